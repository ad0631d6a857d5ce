/* SPDX-License-Identifier: MIT
 *
 * A run is built up here, cheap refusals first. Each function ends with all ranks of one mind (uly_agree), so that an
 * error of one rank ends them all, and is told once.
 */
#include <math.h>
#include <stdio.h>

#include "base/mem.h"
#include "parallel/layout.h"
#include "train/together.h"
#include "train/run_impl.h"
#include "train/text.h"

/* ------------------------------------------------------------------ folder and options */

static enum uly_status open_folder(struct uly_run *run)
{
    struct uly_train_options *v = run->values;
    ULY_TRY(uly_model_folder_open(v->model, &run->folder));
    if (v->config_overrides)
        ULY_TRY(uly_model_folder_override(run->folder, v->config_overrides));
    run->config = uly_model_folder_config(run->folder);
    ULY_TRY(uly_params_init(run->config, &run->params));
    ULY_TRY(uly_model_folder_check(run->folder, &run->params));
    ULY_TRY(uly_train_options_resolve(v, run->size, uly_comm_hosts(run->world), run->config,
                                      &run->asked));
    ULY_TRY(uly_method_resolve(&run->asked, &run->choice));
    run->dtype = uly_train_dtype(v);
    run->has_tokenizer = uly_tokenizer_exists(v->model);
    if (run->training && run->rank == 0) {
        ULY_TRY(uly_output_check(v->output_dir, v->model, v->overwrite_output_dir));
        uly_model_folder_warn_unused(run->folder, &run->params);
    }
    return ULY_OK;
}

enum uly_status uly_run_open(struct uly_run *run)
{
    ULY_TRY(uly_agree(run->world, open_folder(run)));
    ULY_TRY(uly_machine_count_threads(run->world, (int)run->values->threads, &run->threads));
    run->values->threads = run->threads.threads;
    return ULY_OK;
}

/* ------------------------------------------------------------------ data */

/* The folder's tokenizer. One that the program does not know refuses texts only: rows of input_ids
 * do without. */
struct text_encoder {
    struct uly_tokenizer *tokenizer; /* NULL: none, or one that is refused */
    char *refusal;                   /* why, owned; NULL where it is not refused */
};

static enum uly_status encoder_open(const char *folder, struct text_encoder *encoder)
{
    enum uly_status status = uly_tokenizer_open(folder, &encoder->tokenizer);
    if (status != ULY_ERR_UNSUPPORTED)
        return status;
    ULY_TRY(uly_strdup(uly_error_message(), &encoder->refusal));
    uly_error_clear();
    return ULY_OK;
}

static void encoder_close(struct text_encoder *encoder)
{
    uly_tokenizer_close(encoder->tokenizer);
    uly_free(encoder->refusal);
}

static enum uly_status encode(void *context, const char *text, int64_t bytes,
                              uly_tokenize_progress_fn progress, void *progress_context,
                              int32_t **ids, int64_t *n)
{
    const struct text_encoder *encoder = context;
    struct uly_ids list = {NULL, 0, 0};
    ULY_FAIL_IF(encoder->refusal, ULY_ERR_UNSUPPORTED,
                "%s; rows with \"input_ids\" need no tokenizer", encoder->refusal);
    enum uly_status status = uly_tokenizer_encode(encoder->tokenizer, text, bytes, true, progress,
                                                  progress_context, &list);
    if (status != ULY_OK) {
        uly_ids_clear(&list);
        return status;
    }
    *ids = list.list;
    *n = list.n;
    return ULY_OK;
}

static void show_reading(void *context, int64_t done, int64_t total)
{
    struct uly_run *run = context;
    uly_progress_status(&run->progress, 10, "reading and tokenising: %.0f %%",
                        total > 0 ? 100.0 * (double)done / (double)total : 100.0);
}

static enum uly_status read_files(struct uly_run *run, struct text_encoder *encoder,
                                  const struct uly_strings *files, struct uly_dataset *out)
{
    const struct uly_train_options *v = run->values;
    int64_t eos = encoder->tokenizer ? uly_tokenizer_eos_id(encoder->tokenizer) : -1;
    struct uly_data_options options = {.max_length = v->max_length,
                                       .vocab_size = run->config->vocab_size,
                                       .eos_id = eos >= 0 ? eos : run->config->eos_token_id,
                                       .over_length = (enum uly_over_length)v->over_length,
                                       .skip_bad_rows = v->bad_rows == ULY_BAD_ROWS_SKIP,
                                       .encode = run->has_tokenizer ? encode : NULL,
                                       .encode_context = encoder,
                                       .progress = show_reading,
                                       .progress_context = run};
    return uly_dataset_read((const char *const *)files->items, files->n, &options, out);
}

static enum uly_status read_all(struct uly_run *run)
{
    enum uly_status status = ULY_OK;
    const struct uly_train_options *v = run->values;
    struct text_encoder encoder = {NULL, NULL};
    if (run->has_tokenizer)
        ULY_TRY(encoder_open(v->model, &encoder));
    ULY_TRY_GOTO(read_files(run, &encoder, &v->data, &run->data), out);
    if (run->training && v->eval_data.n > 0) {
        ULY_TRY_GOTO(read_files(run, &encoder, &v->eval_data, &run->eval_data), out);
        run->has_eval = true;
    }
    run->split_eval = run->training && v->validation_split > 0;
    run->has_eval = run->has_eval || run->split_eval;
out:
    encoder_close(&encoder);
    return status;
}

/* Ranks on several machines may have been given different files under one name. */
static enum uly_status compare_data(struct uly_run *run)
{
    int64_t mine[2] = {(int64_t)run->data.fingerprint, (int64_t)run->eval_data.fingerprint};
    int64_t low[2] = {mine[0], mine[1]}, high[2] = {mine[0], mine[1]};
    ULY_TRY(uly_all_reduce_i64(run->world, low, 2, ULY_REDUCE_MIN));
    ULY_TRY(uly_all_reduce_i64(run->world, high, 2, ULY_REDUCE_MAX));
    if (low[0] != high[0] || low[1] != high[1])
        ULY_FAIL_TOGETHER(run->world, ULY_ERR_INVALID,
                          "the ranks have read different %s: the files are not the same on all "
                          "machines",
                          low[0] != high[0] ? "training data" : "evaluation data");
    return ULY_OK;
}

enum uly_status uly_run_read_data(struct uly_run *run)
{
    ULY_TRY(uly_agree(run->world, read_all(run)));
    if (run->values->collective_timeout > 0) /* from here on the ranks keep step */
        uly_comm_set_timeout(run->world, run->values->collective_timeout);
    return compare_data(run);
}

/* ------------------------------------------------------------------ sizes */

static enum uly_status make_plans(struct uly_run *run)
{
    const struct uly_train_options *v = run->values;
    int64_t n = run->data.n_pieces, validation = 0;
    if (run->split_eval)
        ULY_TRY(uly_dataset_validation_pieces(n, v->validation_split, &validation));
    struct uly_batch_plan_options options = {
        .n_pieces = n - validation,
        .random = run->training && v->train_sampling_strategy == ULY_SAMPLING_RANDOM,
        .seed = (uint64_t)v->seed,
        .dp_size = v->dp_size,
        .rows = v->per_device_train_batch_size,
        .accumulation = run->training ? v->gradient_accumulation_steps : 0};
    ULY_TRY(uly_batch_plan_init(&run->data, &options, &run->plan));
    if (!run->has_eval)
        return ULY_OK;
    options.random = false;
    options.accumulation = 0;
    options.first_piece = run->split_eval ? n - validation : 0;
    options.n_pieces = run->split_eval ? validation : run->eval_data.n_pieces;
    return uly_batch_plan_init(run->split_eval ? &run->data : &run->eval_data, &options,
                               &run->eval_plan);
}

static struct uly_trainer_options trainer_options(struct uly_run *run)
{
    const struct uly_train_options *v = run->values;
    run->total_steps = v->max_steps > 0
                           ? v->max_steps
                           : (int64_t)ceil(v->num_train_epochs * (double)run->plan.steps_per_epoch);
    struct uly_schedule schedule = {.type = (enum uly_schedule_type)v->lr_scheduler_type,
                                    .learning_rate = v->learning_rate,
                                    .total_steps = run->total_steps};
    schedule.warmup_steps = uly_schedule_warmup_steps(v->warmup_steps, run->total_steps);
    schedule.decay_steps = uly_schedule_warmup_steps(v->num_decay_steps, run->total_steps);
    if (v->min_lr_rate >= 0)
        schedule.min_lr_rate = v->min_lr_rate;
    else if (v->min_lr >= 0 && v->learning_rate > 0)
        schedule.min_lr_rate = v->min_lr / v->learning_rate;
    return (struct uly_trainer_options){.schedule = schedule,
                                        .beta1 = v->adam_beta1,
                                        .beta2 = v->adam_beta2,
                                        .epsilon = v->adam_epsilon,
                                        .weight_decay = v->weight_decay,
                                        .max_grad_norm = v->max_grad_norm,
                                        .dump_gradients = v->dump_gradients};
}

/* Tokens of the longest micro-batch, evaluation included. */
static int64_t longest_batch(const struct uly_run *run)
{
    int64_t longest = run->plan.max_tokens;
    if (run->has_eval && run->eval_plan.max_tokens > longest)
        longest = run->eval_plan.max_tokens;
    return longest;
}

static enum uly_status make_decoder(struct uly_run *run)
{
    const struct uly_train_options *v = run->values;
    struct uly_decoder_options options = {.dtype = run->dtype,
                                          .max_tokens = longest_batch(run),
                                          .checkpointing =
                                              (enum uly_checkpointing)v->gradient_checkpointing,
                                          .training = run->training,
                                          .heads_per_stage = (int)v->heads_per_stage,
                                          .query_tile = v->query_tile,
                                          .token_tile = (int)v->token_tile};
    uly_memory_init(&run->memory, uly_backend_space(run->be));
    ULY_TRY(uly_params_make_tensors(&run->params, run->dtype, run->training, &run->memory));
    ULY_TRY(uly_decoder_create(run->config, &run->params, &run->mesh, run->be, &options,
                               &run->memory, &run->decoder));
    uly_decoder_set_progress(run->decoder, uly_run_border, run);
    if (!run->training)
        return uly_eval_make_tensors(&run->eval_options, &run->plan, &run->mesh, &run->memory);
    struct uly_trainer_options trainer = trainer_options(run);
    return uly_trainer_init(&trainer, &run->params, &run->mesh, run->be, run->decoder, &run->memory,
                            &run->trainer);
}

/* What a rank can do without the others, up to the sizes of its tensors. */
static enum uly_status build_alone(struct uly_run *run)
{
    ULY_TRY(make_plans(run));
    ULY_TRY(uly_backend_create("cpu", run->threads.threads, &run->be));
    ULY_FAIL_IF(!uly_backend_supports(run->be, run->dtype), ULY_ERR_UNSUPPORTED,
                "backend %s has no %s", uly_backend_name(run->be), uly_dtype_name(run->dtype));
    /* a poke advances all communicators of a rank, the ring's too */
    uly_backend_set_poke(run->be, uly_comm_poke, run->mesh.ulysses);
    run->limit = uly_machine_memory();
    if (run->io->memory > 0)
        run->limit = (struct uly_memory_limit){run->io->memory, "the limit given"};
    return ULY_OK;
}

static void drop_decoder(struct uly_run *run)
{
    uly_decoder_destroy(run->decoder);
    run->decoder = NULL;
    uly_memory_clear(&run->memory);
}

static void set_stage(struct uly_run *run, const struct uly_method_stage *stage)
{
    struct uly_train_options *v = run->values;
    v->heads_per_stage = stage->heads;
    v->query_tile = stage->query_tile;
    if (run->asked.method == ULY_METHOD_AUTO)
        v->method =
            (int)uly_method_of(run->asked.H, (int)v->ulysses_size, (int)v->ring_size, stage->heads);
}

/* Measures the stages that may be tried and stops at the first that fits, or at the last: uly_run_fit refuses it. */
static enum uly_status make_sizes(struct uly_run *run)
{
    struct uly_method_stage stage[ULY_METHOD_STAGES];
    int64_t shard =
        uly_layout_max_count(longest_batch(run), run->choice.ring_size, run->choice.ulysses_size);
    int n = uly_method_stages(&run->asked, &run->choice, shard, stage);
    bool fits = false;
    snprintf(run->stage_reason, sizeof run->stage_reason, "stages of %d head%s fit into memory",
             stage[0].heads, stage[0].heads == 1 ? "" : "s");
    for (int i = 0; i < n && !fits; i++) {
        struct uly_text needed, have;
        int64_t need = 0, available = 0;
        if (i > 0)
            drop_decoder(run);
        set_stage(run, &stage[i]);
        ULY_TRY(uly_agree(run->world, make_decoder(run)));
        ULY_TRY(uly_run_measure(run, &fits, &need, &available));
        if (!fits)
            snprintf(run->stage_reason, sizeof run->stage_reason,
                     "stages of %d head%s would need %s where %s are available", stage[i].heads,
                     stage[i].heads == 1 ? "" : "s", uly_text_bytes(need, &needed),
                     uly_text_bytes(available, &have));
    }
    return ULY_OK;
}

enum uly_status uly_run_build(struct uly_run *run)
{
    const struct uly_train_options *v = run->values;
    ULY_TRY(uly_mesh_init(run->world, (int)v->dp_size, (int)v->ring_size, (int)v->ulysses_size,
                          &run->mesh));
    ULY_TRY(uly_agree(run->world, build_alone(run)));
    return make_sizes(run);
}

static enum uly_status load(struct uly_run *run)
{
    ULY_TRY(uly_memory_reserve(&run->memory));
    return uly_model_folder_load(run->folder, &run->params, run->be);
}

enum uly_status uly_run_load(struct uly_run *run)
{
    uly_progress_status(&run->progress, 10, "loading the weights");
    return uly_agree(run->world, load(run));
}

void uly_run_clear(struct uly_run *run)
{
    uly_output_release(&run->output);
    uly_free(run->ranks_memory);
    uly_free(run->stop_file_path);
    uly_decoder_destroy(run->decoder);
    uly_memory_clear(&run->memory);
    uly_backend_destroy(run->be);
    uly_mesh_clear(&run->mesh);
    uly_batch_plan_clear(&run->eval_plan);
    uly_batch_plan_clear(&run->plan);
    uly_dataset_clear(&run->eval_data);
    uly_dataset_clear(&run->data);
    uly_params_clear(&run->params);
    uly_model_folder_close(run->folder);
}
