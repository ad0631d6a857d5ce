/* SPDX-License-Identifier: MIT */
#include "train/evaluate.h"

#include <math.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "parallel/layout.h"
#include "train/together.h"

struct eval {
    struct uly_decoder *decoder;
    struct uly_mesh *mesh;
    struct uly_backend *be;
    struct uly_batch_plan *plan;
    const struct uly_eval_options *options;
    float *
        losses; /* [plan max_tokens] of the current micro-batch; NULL where nobody asked for losses by token */
    float *all; /* [dp, plan max_tokens], rank 0 with a dump: the same of every replica */
    struct uly_file_writer writer;
    double sum[ULY_EVAL_BUCKETS];
    int64_t tokens[ULY_EVAL_BUCKETS];
};

enum uly_status uly_eval_make_tensors(struct uly_eval_options *options,
                                      const struct uly_batch_plan *plan, struct uly_mesh *mesh,
                                      struct uly_memory *memory)
{
    if (!options->dump_path)
        return ULY_OK;
    struct uly_arena *arena = &memory->arena[ULY_LIFE_COMM];
    int64_t size = uly_comm_size(mesh->world);
    int64_t room = plan->max_tokens > size ? plan->max_tokens : size;
    ULY_TRY(uly_tensor_new(arena, "token losses", ULY_DTYPE_F32, 1, plan->max_tokens, 1, 1,
                           &options->room));
    return uly_tensor_new(arena, "sum of token losses", ULY_DTYPE_F32, 1, room, 1, 1,
                          &options->buffer);
}

static int bucket_of(int64_t position)
{
    int k = 0;
    while (position > 1) {
        position >>= 1;
        k++;
    }
    return k < ULY_EVAL_BUCKETS ? k : ULY_EVAL_BUCKETS - 1;
}

/* This rank's tokens of the micro-batch into the buckets of the position that they predict. */
static void count_positions(struct eval *e, const struct uly_batch *batch)
{
    const struct uly_mesh *m = e->mesh;
    struct uly_segment segment[2];
    int n =
        uly_layout(batch->S, m->ring_size, m->ulysses_size, m->ring_rank, m->ulysses_rank, segment);
    for (int i = 0; i < n; i++) {
        int64_t doc = 0;
        for (int64_t j = segment[i].start; j < segment[i].start + segment[i].count; j++) {
            while (doc + 1 < batch->n_docs && batch->starts[doc + 1] <= j)
                doc++;
            if (batch->labels[j] == ULY_IGNORE_LABEL)
                continue;
            int k = bucket_of(j - batch->starts[doc] + 1);
            e->sum[k] += (double)e->losses[j];
            e->tokens[k]++;
        }
    }
}

/* The whole micro-batch of one replica, on every rank of the world: zeros from all but the owners of the tokens. */
static enum uly_status gather_losses(struct eval *e, int replica, int64_t S)
{
    struct uly_tensor t = uly_tensor_rows(e->options->room, 0, S);
    if (S == 0)
        return ULY_OK;
    if (replica == e->mesh->dp_rank)
        ULY_TRY(uly_tensor_write(e->be, t, e->losses));
    else
        ULY_TRY(uly_fill(e->be, t, 0));
    ULY_TRY(uly_all_reduce(e->mesh->world, e->be, t, e->options->buffer));
    if (e->all)
        ULY_TRY(uly_tensor_read(e->be, t, e->all + replica * e->plan->max_tokens));
    return ULY_OK;
}

static int64_t tokens_of(const struct uly_batch_plan *plan, int64_t micro, int replica)
{
    int64_t sum = 0;
    for (int64_t slot = 0; slot < plan->options.rows; slot++) {
        int64_t piece = uly_batch_plan_piece(plan, micro, replica, slot);
        sum += piece >= 0 ? plan->data->pieces[piece].length : 0;
    }
    return sum;
}

/* Appends a micro-batch's losses row by row: neighbours in the order of the data lie in neighbouring replicas. */
static enum uly_status write_losses(struct eval *e, int64_t micro)
{
    int dp = e->mesh->dp_size;
    for (int64_t slot = 0; slot < e->plan->options.rows; slot++)
        for (int replica = 0; replica < dp; replica++) {
            int64_t at = 0, piece = uly_batch_plan_piece(e->plan, micro, replica, slot);
            if (piece < 0)
                continue;
            for (int64_t before = 0; before < slot; before++)
                at += e->plan->data->pieces[uly_batch_plan_piece(e->plan, micro, replica, before)]
                          .length;
            const float *row = e->all + replica * e->plan->max_tokens + at;
            ULY_TRY(
                uly_file_writer_append(&e->writer, row, e->plan->data->pieces[piece].length * 4));
        }
    return ULY_OK;
}

static enum uly_status dump_micro(struct eval *e, int64_t micro)
{
    enum uly_status status = ULY_OK;
    for (int replica = 0; replica < e->mesh->dp_size; replica++)
        ULY_TRY(gather_losses(e, replica, tokens_of(e->plan, micro, replica)));
    if (e->all)
        status = write_losses(e, micro);
    return uly_agree(e->mesh->world, status);
}

static enum uly_status run_micro(struct eval *e, int64_t micro, double *loss_sum)
{
    struct uly_batch batch;
    double part;
    uly_batch_plan_micro(e->plan, micro, e->mesh->dp_rank, &batch);
    if (e->losses)
        memset(e->losses, 0, (size_t)e->plan->max_tokens * sizeof *e->losses);
    ULY_TRY(uly_decoder_forward(e->decoder, &batch, &part, e->losses));
    *loss_sum += part;
    if (e->options->by_position)
        count_positions(e, &batch);
    if (e->options->dump_path)
        return dump_micro(e, micro);
    return ULY_OK;
}

static enum uly_status begin(struct eval *e)
{
    enum uly_status status = ULY_OK;
    int64_t n = e->plan->max_tokens;
    if (e->options->by_position || e->options->dump_path)
        ULY_TRY(ULY_ALLOC(&e->losses, n));
    if (!e->options->dump_path)
        return ULY_OK;
    if (uly_comm_rank(e->mesh->world) == 0) {
        status = ULY_ALLOC(&e->all, n * e->mesh->dp_size);
        if (status == ULY_OK)
            status = uly_file_writer_open(e->options->dump_path, &e->writer);
    }
    return uly_agree(e->mesh->world, status);
}

static enum uly_status end(struct eval *e)
{
    enum uly_status status = ULY_OK;
    if (e->all)
        status = uly_file_writer_close(&e->writer);
    return e->options->dump_path ? uly_agree(e->mesh->world, status) : ULY_OK;
}

static enum uly_status sum_buckets(struct eval *e, struct uly_eval_result *out)
{
    ULY_TRY(uly_all_reduce_f64(e->mesh->world, e->sum, ULY_EVAL_BUCKETS, ULY_REDUCE_SUM));
    ULY_TRY(uly_all_reduce_i64(e->mesh->world, e->tokens, ULY_EVAL_BUCKETS, ULY_REDUCE_SUM));
    for (int k = 0; k < ULY_EVAL_BUCKETS; k++) {
        out->bucket_tokens[k] = e->tokens[k];
        out->bucket_loss[k] = e->tokens[k] ? e->sum[k] / (double)e->tokens[k] : (double)NAN;
    }
    return ULY_OK;
}

static enum uly_status evaluate(struct eval *e, struct uly_eval_result *out)
{
    struct uly_batch_step info;
    double sum = 0;
    ULY_TRY(begin(e));
    uly_batch_plan_step(e->plan, 0, 0, &info);
    for (int64_t micro = 0; micro < info.n_micro; micro++)
        ULY_TRY(run_micro(e, micro, &sum));
    ULY_TRY(uly_all_reduce_f64(e->mesh->world, &sum, 1, ULY_REDUCE_SUM));
    if (e->options->by_position)
        ULY_TRY(sum_buckets(e, out));
    ULY_TRY(end(e));
    out->loss = info.valid_tokens > 0 ? sum / (double)info.valid_tokens : (double)NAN;
    out->perplexity = exp(out->loss);
    out->valid_tokens = info.valid_tokens;
    out->tokens = info.tokens;
    out->rows = info.n_rows;
    return ULY_OK;
}

enum uly_status uly_evaluate(struct uly_decoder *decoder, struct uly_mesh *mesh,
                             struct uly_backend *be, struct uly_batch_plan *plan,
                             const struct uly_eval_options *options, struct uly_eval_result *out)
{
    struct eval e = {.decoder = decoder, .mesh = mesh, .be = be, .plan = plan, .options = options};
    struct uly_eval_result result;
    memset(&result, 0, sizeof result);
    enum uly_status status = evaluate(&e, &result);
    if (status == ULY_OK)
        *out = result;
    else if (e.all)
        uly_file_writer_abort(&e.writer);
    uly_free(e.all);
    uly_free(e.losses);
    return status;
}
