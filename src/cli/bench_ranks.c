/* SPDX-License-Identifier: MIT
 *
 * What several ranks do together: the all-to-all, and a whole training step on a model of fixed shape.
 */
#include <float.h>
#include <string.h>

#include "backend/peak.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/random.h"
#include "cli/bench.h"
#include "train/step.h"

/* ------------------------------------------------------------------ all-to-all */

static enum uly_status time_alltoall(const struct uly_bench_options *o, struct uly_comm *world,
                                     struct uly_memory *memory, int64_t *places, double *best)
{
    struct uly_arena *arena = &memory->arena[ULY_LIFE_COMM];
    int64_t size = uly_comm_size(world), each = o->bytes / 4;
    int64_t *offset = places, *count = places + size;
    struct uly_part part = {
        .send_offset = offset, .send_count = count, .recv_offset = offset, .recv_count = count};
    ULY_TRY(uly_tensor_new(arena, "send", ULY_DTYPE_F32, 1, each * size, 1, 1, &part.send));
    ULY_TRY(uly_tensor_new(arena, "receive", ULY_DTYPE_F32, 1, each * size, 1, 1, &part.recv));
    ULY_TRY(uly_memory_reserve(memory));
    for (int64_t r = 0; r < size; r++) {
        offset[r] = r * each;
        count[r] = each;
    }
    *best = DBL_MAX;
    for (int64_t i = 0; i <= o->repeats; i++) {
        ULY_TRY(uly_barrier(world));
        double begin = uly_seconds();
        ULY_TRY(uly_exchange(world, "bench", &part, 1));
        double seconds = uly_seconds() - begin;
        ULY_TRY(uly_all_reduce_f64(world, &seconds, 1, ULY_REDUCE_MAX));
        if (i > 0 && seconds < *best)
            *best = seconds;
    }
    return ULY_OK;
}

/* Bytes a second that one thread copies between two blocks of this size. */
static enum uly_status copy_rate(int64_t bytes, int64_t repeats, double *rate)
{
    unsigned char *from;
    double best = DBL_MAX;
    ULY_TRY(ULY_ALLOC(&from, 2 * bytes));
    memset(from, 1, (size_t)(2 * bytes));
    for (int64_t i = 0; i <= repeats; i++) {
        double begin = uly_seconds();
        memcpy(from + bytes, from, (size_t)bytes);
        double seconds = uly_seconds() - begin;
        from[0] = (unsigned char)(from[bytes] + 1); /* the copy is looked at, so it happens */
        best = seconds < best ? seconds : best;
    }
    uly_free(from);
    *rate = (double)bytes / best;
    return ULY_OK;
}

enum uly_status uly_bench_alltoall(const struct uly_bench_options *o, struct uly_comm *world,
                                   struct uly_backend *be, struct uly_bench_result *out)
{
    struct uly_memory memory;
    int64_t *places;
    int size = uly_comm_size(world);
    double seconds = 0, rate;
    ULY_TRY(ULY_ALLOC(&places, 2 * size));
    uly_memory_init(&memory, uly_backend_space(be));
    enum uly_status status = time_alltoall(o, world, &memory, places, &seconds);
    uly_memory_clear(&memory);
    uly_free(places);
    ULY_TRY(status);
    ULY_TRY(copy_rate(o->bytes * size, o->repeats, &rate));
    uly_bench_add_int(out, "ranks", size);
    uly_bench_add_int(out, "bytes_to_each", o->bytes);
    uly_bench_add(out, "seconds", seconds);
    uly_bench_add(out, "bytes_per_second", (double)o->bytes * (size - 1) / seconds);
    uly_bench_add(out, "copy_bytes_per_second", rate);
    return ULY_OK;
}

/* ------------------------------------------------------------------ step */

/* 23.6 M parameters without embeddings: large enough that the kernels decide, small enough for any machine. */
static const struct uly_model_config step_model = {.architecture = "LlamaForCausalLM",
                                                   .model_type = "llama",
                                                   .hidden_size = 512,
                                                   .intermediate_size = 1408,
                                                   .vocab_size = 8192,
                                                   .max_position_embeddings = 1 << 20,
                                                   .num_hidden_layers = 8,
                                                   .num_attention_heads = 8,
                                                   .num_key_value_heads = 4,
                                                   .head_dim = 64,
                                                   .rms_norm_eps = 1e-5,
                                                   .initializer_range = 0.02,
                                                   .rope = {.theta = 500000},
                                                   .bos_token_id = -1,
                                                   .eos_token_id = -1,
                                                   .pad_token_id = -1};

struct step_bench {
    struct uly_params params;
    struct uly_mesh mesh;
    struct uly_memory memory;
    struct uly_decoder *decoder;
    struct uly_trainer trainer;
    struct uly_dataset data;
    struct uly_batch_plan plan;
    struct uly_document document;
    struct uly_piece piece;
};

/* One row of random tokens. */
static enum uly_status make_data(struct step_bench *b, int64_t S)
{
    ULY_TRY(ULY_ALLOC(&b->data.ids, S));
    for (int64_t i = 0; i < S; i++)
        b->data.ids[i] =
            (int32_t)uly_random_below(1, 9, (uint64_t)i, (uint64_t)step_model.vocab_size);
    b->document = (struct uly_document){.length = S, .labels = -1};
    b->piece = (struct uly_piece){.length = S, .valid_tokens = S - 1};
    b->data.documents = &b->document;
    b->data.pieces = &b->piece;
    b->data.n_documents = b->data.n_pieces = 1;
    struct uly_batch_plan_options options = {
        .n_pieces = 1, .dp_size = 1, .rows = 1, .accumulation = 1};
    return uly_batch_plan_init(&b->data, &options, &b->plan);
}

static enum uly_status make_model(const struct uly_bench_options *o, struct uly_comm *world,
                                  struct uly_backend *be, struct step_bench *b)
{
    enum uly_dtype dtype = uly_bench_dtype(o);
    struct uly_decoder_options options = {.dtype = dtype,
                                          .max_tokens = o->seq,
                                          .checkpointing = (enum uly_checkpointing)o->checkpointing,
                                          .training = true};
    struct uly_trainer_options trainer = {
        .schedule = {.type = ULY_SCHEDULE_CONSTANT, .learning_rate = 1e-4},
        .beta1 = 0.9,
        .beta2 = 0.999,
        .epsilon = 1e-8,
        .max_grad_norm = 1};
    ULY_TRY(uly_mesh_init(world, 1, 1, uly_comm_size(world), &b->mesh));
    ULY_TRY(uly_params_init(&step_model, &b->params));
    ULY_TRY(uly_params_make_tensors(&b->params, dtype, true, &b->memory));
    ULY_TRY(uly_decoder_create(&step_model, &b->params, &b->mesh, be, &options, &b->memory,
                               &b->decoder));
    ULY_TRY(
        uly_trainer_init(&trainer, &b->params, &b->mesh, be, b->decoder, &b->memory, &b->trainer));
    ULY_TRY(uly_memory_reserve(&b->memory));
    uly_backend_set_poke(be, uly_comm_poke, b->mesh.ulysses);
    for (int i = 0; i < b->params.n; i++) {
        const struct uly_param *p = &b->params.list[i];
        if (p->role == ULY_PARAM_NORM)
            ULY_TRY(uly_fill(be, p->master, 1));
        else
            ULY_TRY(uly_bench_fill(be, p->master, (uint64_t)i, 0.07)); /* deviation 0.02 */
        if (p->weight.offset != p->master.offset || p->weight.arena != p->master.arena)
            ULY_TRY(uly_cast(be, p->master, p->weight));
    }
    return ULY_OK;
}

static enum uly_status time_steps(const struct uly_bench_options *o, struct uly_comm *world,
                                  struct step_bench *b, double *best)
{
    struct uly_batch_step info;
    struct uly_step_result result;
    *best = DBL_MAX;
    uly_batch_plan_step(&b->plan, 0, 0, &info);
    for (int64_t i = 0; i <= o->steps; i++) { /* the first one warms up */
        double begin = uly_seconds();
        ULY_TRY(uly_trainer_step(&b->trainer, &b->plan, &info, &result));
        double seconds = uly_seconds() - begin;
        ULY_TRY(uly_all_reduce_f64(world, &seconds, 1, ULY_REDUCE_MAX));
        if (i > 0 && seconds < *best)
            *best = seconds;
    }
    return ULY_OK;
}

static enum uly_status measure_step(const struct uly_bench_options *o, struct uly_comm *world,
                                    struct uly_backend *be, struct step_bench *b, double *best)
{
    ULY_TRY(make_data(b, o->seq));
    ULY_TRY(make_model(o, world, be, b));
    return time_steps(o, world, b, best);
}

enum uly_status uly_bench_step(const struct uly_bench_options *o, struct uly_comm *world,
                               struct uly_backend *be, struct uly_bench_result *out)
{
    struct step_bench b;
    double best = 0;
    memset(&b, 0, sizeof b);
    uly_memory_init(&b.memory, uly_backend_space(be));
    enum uly_status status = measure_step(o, world, be, &b, &best);
    int64_t bytes = uly_memory_planned_bytes(&b.memory);
    int64_t n = uly_params_count(&b.params, true);
    uly_decoder_destroy(b.decoder);
    uly_memory_clear(&b.memory);
    uly_mesh_clear(&b.mesh);
    uly_params_clear(&b.params);
    uly_batch_plan_clear(&b.plan);
    uly_free(b.data.ids);
    ULY_TRY(status);
    double peak = uly_cpu_peak_gflops(be, uly_bench_dtype(o)); /* of this rank's threads */
    ULY_TRY(uly_all_reduce_f64(world, &peak, 1, ULY_REDUCE_SUM));
    double flops = uly_model_flops_per_token(&step_model, o->seq) * (double)o->seq * 1e-9;
    uly_bench_add_int(out, "ranks", uly_comm_size(world));
    uly_bench_add_int(out, "parameters_without_embeddings", n);
    uly_bench_add_int(out, "seq", o->seq);
    uly_bench_add_text(out, "gradient_checkpointing",
                       o->checkpointing == ULY_CHECKPOINT_FULL ? "full" : "none");
    uly_bench_add(out, "step_seconds", best);
    uly_bench_add(out, "tokens_per_second", (double)o->seq / best);
    uly_bench_add(out, "gflops", flops / best);
    uly_bench_add(out, "peak_gflops", peak);
    uly_bench_add(out, "ratio", flops / best / peak);
    uly_bench_add_int(out, "peak_bytes", bytes);
    return ULY_OK;
}
