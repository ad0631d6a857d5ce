/* SPDX-License-Identifier: MIT
 *
 * Cost. Layers are what it takes: the vocabulary is cut to its first ids (every id's row is handled alike, and nothing that
 * a layout changes depends on how many there are), so neither the two large tables nor their gradients are made, and the
 * row is short. Two layers of an 8-billion model are 0.44 billion parameters: 3.5 GB a rank with their gradients, and
 * 1.7 GB on rank 0 for the gradients to compare with. Optimizer state is never reserved.
 */
#include "train/selfcheck.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "checkpoint/model_folder.h"
#include "parallel/layout.h"
#include "train/machine.h"
#include "train/parity_rule.h"
#include "train/progress.h"
#include "train/text.h"
#include "train/together.h"

/* Documents of the row: of one token, shorter than the ranks are many, prime, and longer than a shard of two ranks. */
static const int64_t doc_lengths[] = {1, 3, 67, 2, 41, 1, 96};
enum {
    N_DOCS = sizeof doc_lengths / sizeof *doc_lengths,
    N_TOKENS = 211,
    MOST_IDS = 2048,
    WINDOW = 40, /* a longer window than the documents would hide nothing */
    BUFFER = 1 << 20
};

struct setting {
    int ulysses_size, ring_size, heads_per_stage;
    int64_t query_tile;
};

struct selfcheck {
    const struct uly_selfcheck_options *options;
    struct uly_comm *world;
    int rank, size;
    struct uly_progress progress;
    struct uly_model_folder *folder;
    struct uly_model_config config; /* the folder's, cut */
    struct uly_params params;
    struct uly_memory memory; /* of the parameters and gradients alone */
    struct uly_machine_threads threads;
    struct uly_backend *be;
    int64_t starts[N_DOCS];
    int32_t ids[N_TOKENS], labels[N_TOKENS];
    int64_t n_valid;
    struct uly_batch batch;
    double loss; /* of one rank; on rank 0 */
    float *want; /* owned: its gradients; on rank 0 */
    int checked, failed;
};

/* ------------------------------------------------------------------ model and row */

static enum uly_status open_model(struct selfcheck *c)
{
    ULY_TRY(uly_model_folder_open(c->options->model, &c->folder));
    c->config = *uly_model_folder_config(c->folder);
    if (c->config.num_hidden_layers > c->options->layers)
        c->config.num_hidden_layers = c->options->layers;
    ULY_TRY(uly_params_init(&c->config, &c->params));
    enum uly_status status = uly_model_folder_check(c->folder, &c->params);
    uly_params_clear(&c->params);
    ULY_TRY(status);
    if (c->config.vocab_size > MOST_IDS)
        c->config.vocab_size = MOST_IDS;
    if (c->config.sliding_window > WINDOW)
        c->config.sliding_window = WINDOW;
    return uly_params_init(&c->config, &c->params);
}

/* About a third of the labels is masked, in runs whose length grows; the last token of a document has none. */
static void make_row(struct selfcheck *c)
{
    int64_t at = 0;
    for (int d = 0; d < N_DOCS; d++) {
        int64_t end = at + doc_lengths[d];
        c->starts[d] = at;
        for (; at < end; at++)
            c->ids[at] =
                (int32_t)uly_random_below(5, 0, (uint64_t)at, (uint64_t)c->config.vocab_size);
    }
    ULY_BUG_ON(at != N_TOKENS);
    for (int d = 0; d < N_DOCS; d++)
        for (int64_t i = 0; i < doc_lengths[d]; i++) {
            int64_t t = c->starts[d] + i;
            bool none = i + 1 == doc_lengths[d] || (i / (2 * d + 1)) % 3 == 1;
            c->labels[t] = none ? ULY_IGNORE_LABEL : c->ids[t + 1];
            c->n_valid += !none;
        }
    c->batch = (struct uly_batch){
        .S = N_TOKENS, .n_docs = N_DOCS, .starts = c->starts, .ids = c->ids, .labels = c->labels};
}

/* Parameters and gradients, without the optimizer's tensors. */
static enum uly_status load_model(struct selfcheck *c)
{
    ULY_TRY(uly_arena_reserve(&c->memory.arena[ULY_LIFE_PARAMS]));
    ULY_TRY(uly_arena_reserve(&c->memory.arena[ULY_LIFE_GRADS]));
    return uly_model_folder_load_first(c->folder, &c->params, c->be);
}

/* Weights and gradients of every rank, the copy of rank 0, and as much again as the gradients for a layout's buffers. */
static enum uly_status check_memory(struct selfcheck *c)
{
    const int *hosts = uly_comm_hosts(c->world);
    struct uly_memory_limit limit = uly_machine_memory();
    int64_t weights = c->memory.arena[ULY_LIFE_PARAMS].high;
    int64_t grads = c->memory.arena[ULY_LIFE_GRADS].high, need = 0;
    for (int r = 0; r < c->size; r++)
        if (hosts[r] == hosts[c->rank])
            need += weights + grads + (r == 0 ? grads : 0);
    struct uly_text needed, have;
    ULY_FAIL_IF(need > limit.available, ULY_ERR_NO_MEMORY,
                "%d layers of %s over the ranks of this machine need %s in float32, and %s are "
                "available (%s); fewer --layers or ranks take less",
                c->config.num_hidden_layers, c->options->model, uly_text_bytes(need, &needed),
                uly_text_bytes(limit.available, &have), limit.name);
    return ULY_OK;
}

static enum uly_status prepare_alone(struct selfcheck *c)
{
    ULY_TRY(uly_backend_create("cpu", c->threads.threads, &c->be));
    uly_memory_init(&c->memory, uly_backend_space(c->be));
    ULY_TRY(uly_params_make_tensors(&c->params, ULY_DTYPE_F32, true, &c->memory));
    ULY_TRY(check_memory(c));
    return load_model(c);
}

/* ------------------------------------------------------------------ one layout */

struct layout_run {
    struct uly_mesh mesh;
    struct uly_memory memory;
    struct uly_decoder *decoder;
    struct uly_tensor buffer; /* for the sum of the gradients */
};

static enum uly_status make_layout(struct selfcheck *c, const struct setting *s,
                                   struct layout_run *run)
{
    struct uly_decoder_options options = {.dtype = ULY_DTYPE_F32,
                                          .max_tokens = N_TOKENS,
                                          .checkpointing = ULY_CHECKPOINT_FULL,
                                          .training = true,
                                          .heads_per_stage = s->heads_per_stage,
                                          .query_tile = s->query_tile};
    int64_t room = uly_tensor_count(&c->params.grads), ranks = uly_comm_size(run->mesh.sp);
    room = room < BUFFER ? room : BUFFER;
    ULY_TRY(uly_decoder_create(&c->config, &c->params, &run->mesh, c->be, &options, &run->memory,
                               &run->decoder));
    ULY_TRY(uly_tensor_new(&run->memory.arena[ULY_LIFE_COMM], "gradient sum", ULY_DTYPE_F32, 1,
                           room > ranks ? room : ranks, 1, 1, &run->buffer));
    return uly_memory_reserve(&run->memory);
}

/* Gradients into params, summed over the ranks, and the mean loss. */
static enum uly_status compute(struct selfcheck *c, struct layout_run *run, double *loss)
{
    double sum;
    ULY_TRY(uly_fill(c->be, c->params.grads, 0));
    ULY_TRY(uly_decoder_backward(run->decoder, &c->batch, 1.0 / (double)c->n_valid, &sum));
    ULY_TRY(uly_all_reduce(run->mesh.sp, c->be, c->params.grads, run->buffer));
    ULY_TRY(uly_all_reduce_f64(run->mesh.sp, &sum, 1, ULY_REDUCE_SUM));
    *loss = sum / (double)c->n_valid;
    return ULY_OK;
}

/* Collective over comm. */
static enum uly_status run_layout(struct selfcheck *c, struct uly_comm *comm,
                                  const struct setting *s, double *loss)
{
    struct layout_run run = {0};
    enum uly_status status = ULY_OK;
    uly_memory_init(&run.memory, uly_backend_space(c->be));
    ULY_TRY_GOTO(uly_mesh_init(comm, 1, s->ring_size, s->ulysses_size, &run.mesh), out);
    ULY_TRY_GOTO(uly_agree(comm, make_layout(c, s, &run)), out);
    uly_backend_set_poke(c->be, uly_comm_poke, run.mesh.sp);
    ULY_TRY_GOTO(compute(c, &run, loss), out);
out:
    uly_backend_set_poke(c->be, NULL, NULL);
    uly_decoder_destroy(run.decoder);
    uly_memory_clear(&run.memory);
    uly_mesh_clear(&run.mesh);
    return status;
}

static enum uly_status run_reference(struct selfcheck *c)
{
    struct uly_comm *self;
    struct setting alone = {1, 1, 0, 0};
    if (c->rank != 0)
        return ULY_OK;
    ULY_TRY(uly_comm_self(&self));
    enum uly_status status = run_layout(c, self, &alone, &c->loss);
    uly_comm_destroy(self);
    ULY_TRY(status);
    ULY_FAIL_IF(!isfinite(c->loss), ULY_ERR_INVALID, "the loss of one rank is %s",
                isnan(c->loss) ? "nan" : "infinite");
    return uly_parity_keep(&c->params, c->be, &c->want);
}

/* ------------------------------------------------------------------ all layouts */

static void tell(struct selfcheck *c, const struct setting *s, double loss,
                 const struct uly_parity *gradients)
{
    double loss_difference = fabs(loss - c->loss) / fabs(c->loss);
    bool passed = loss_difference <= ULY_PARITY_LOSS && gradients->excess <= 1;
    char tile[48] = "";
    if (s->query_tile > 0)
        snprintf(tile, sizeof tile, ", query-tile %" PRId64, s->query_tile);
    uly_progress_line(&c->progress,
                      "%-4s  %-7s ulysses-size %d, ring-size %d, heads-per-stage %d%s: loss "
                      "%.1e, worst gradient %.1e%s%s",
                      passed ? "pass" : "FAIL",
                      uly_method_name(uly_method_of(c->config.num_attention_heads, s->ulysses_size,
                                                    s->ring_size, s->heads_per_stage)),
                      s->ulysses_size, s->ring_size, s->heads_per_stage, tile, loss_difference,
                      gradients->difference, gradients->name[0] ? " " : "", gradients->name);
    c->failed += !passed;
}

static enum uly_status check_setting(struct selfcheck *c, const struct setting *s)
{
    double loss = 0;
    struct uly_parity gradients = {0, 0, ""};
    uly_progress_status(&c->progress, 60,
                        "running ulysses-size %d, ring-size %d, heads-per-stage %d",
                        s->ulysses_size, s->ring_size, s->heads_per_stage);
    ULY_TRY(run_layout(c, c->world, s, &loss));
    enum uly_status status = ULY_OK;
    if (c->rank == 0)
        status = uly_parity_compare(&c->params, c->be, c->want, &gradients);
    ULY_TRY(uly_agree(c->world, status));
    c->checked++;
    if (c->rank == 0)
        tell(c, s, loss, &gradients);
    return ULY_OK;
}

/* One head, a kv group and all heads a stage, as far as these differ; where there is no ring, one head with query tiles too.
 * On one rank, all heads in one stage are what the others are compared with. */
static enum uly_status check_sizes(struct selfcheck *c, int Pu, int Pr)
{
    int H = c->config.num_attention_heads, all = (H + Pu - 1) / Pu;
    int group = uly_method_kv_group(H, c->config.num_key_value_heads, Pu);
    const int heads[] = {1, group, all};
    for (int i = 0; i < 3; i++) {
        bool new = i == 0 || heads[i] > heads[i - 1];
        if (new && (heads[i] < all || c->size > 1))
            ULY_TRY(check_setting(c, &(struct setting){Pu, Pr, heads[i], 0}));
    }
    int64_t shard = uly_layout_max_count(N_TOKENS, Pr, Pu);
    if (Pr == 1 && shard > 1)
        ULY_TRY(check_setting(c, &(struct setting){Pu, Pr, 1, (shard + 3) / 4}));
    return ULY_OK;
}

static void tell_start(struct selfcheck *c)
{
    const struct uly_model_config *whole = uly_model_folder_config(c->folder);
    struct uly_text ids, all_ids;
    uly_progress_line(&c->progress,
                      "model   %s: %s, the first %d of %d layers, %s of %s ids, in float32",
                      c->options->model, whole->architecture, c->config.num_hidden_layers,
                      whole->num_hidden_layers, uly_text_count(c->config.vocab_size, &ids),
                      uly_text_count(whole->vocab_size, &all_ids));
    uly_progress_line(&c->progress, "row     %d tokens in %d documents, %d with a label", N_TOKENS,
                      N_DOCS, (int)c->n_valid);
    if (uly_config_window_layers(&c->config) > 0 &&
        c->config.sliding_window != whole->sliding_window)
        uly_progress_line(&c->progress,
                          "        sliding windows cut from %" PRId64 " to %" PRId64
                          " tokens, so that they hide some of it",
                          whole->sliding_window, c->config.sliding_window);
    uly_progress_line(&c->progress,
                      "equal   where loss differs by %g of one rank's at most, each gradient by %g "
                      "of its largest value (or %g of the largest of all)",
                      ULY_PARITY_LOSS, ULY_PARITY_GRADIENT, ULY_PARITY_FLOOR);
}

static enum uly_status check_all(struct selfcheck *c)
{
    ULY_TRY(uly_agree(c->world, open_model(c)));
    make_row(c);
    ULY_TRY(uly_machine_count_threads(c->world, c->options->threads, &c->threads));
    tell_start(c);
    uly_progress_status(&c->progress, 60, "loading the weights");
    ULY_TRY(uly_agree(c->world, prepare_alone(c)));
    uly_progress_status(&c->progress, 60, "running on one rank");
    ULY_TRY(uly_agree(c->world, run_reference(c)));
    for (int Pu = c->size; Pu >= 1; Pu--)
        if (c->size % Pu == 0)
            ULY_TRY(check_sizes(c, Pu, c->size / Pu));
    int64_t failed = c->failed;
    ULY_TRY(uly_all_reduce_i64(c->world, &failed, 1, ULY_REDUCE_MAX));
    if (failed > 0)
        ULY_FAIL_TOGETHER(c->world, ULY_ERR_INVALID, "%d of %d layouts differ from one rank",
                          (int)failed, c->checked);
    uly_progress_line(&c->progress, "%d layout%s of %d rank%s equal one rank", c->checked,
                      c->checked == 1 ? "" : "s", c->size, c->size == 1 ? "" : "s");
    if (c->size == 1)
        uly_progress_line(&c->progress, "Only one rank was there, so nothing was exchanged: "
                                        "--nproc 4 checks every method over 4 ranks.");
    return ULY_OK;
}

enum uly_status uly_selfcheck(const struct uly_selfcheck_options *options, struct uly_comm *world,
                              const struct uly_run_io *io)
{
    struct selfcheck *c = NULL;
    ULY_TRY(uly_agree(world, ULY_ALLOC(&c, 1)));
    c->options = options;
    c->world = world;
    c->rank = uly_comm_rank(world);
    c->size = uly_comm_size(world);
    c->progress =
        (struct uly_progress){.out = c->rank == 0 ? io->out : NULL, .terminal = io->terminal};
    enum uly_status status = check_all(c);
    uly_free(c->want);
    uly_memory_clear(&c->memory);
    uly_backend_destroy(c->be);
    uly_params_clear(&c->params);
    uly_model_folder_close(c->folder);
    uly_free(c);
    return status;
}
