/* SPDX-License-Identifier: MIT */
#include "data/batch_plan.h"

#include <stdlib.h>

#include "base/mem.h"
#include "base/random.h"

/* Streams of random numbers of the row order: one an epoch, apart from every other use of the seed. */
static const uint64_t order_streams = UINT64_C(0x726f7773) << 32;

static int longest_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

/* The sum of the `rows` longest pieces: no order of rows makes a longer micro-batch. */
static int64_t most_tokens(struct uly_batch_plan *plan)
{
    int64_t n = plan->options.n_pieces, sum = 0;
    for (int64_t i = 0; i < n; i++)
        plan->order[i] = plan->data->pieces[plan->options.first_piece + i].length;
    qsort(plan->order, (size_t)n, sizeof *plan->order, longest_first);
    for (int64_t i = 0; i < n && i < plan->options.rows; i++)
        sum += plan->order[i];
    return sum;
}

static enum uly_status check(const struct uly_dataset *data, const struct uly_batch_plan_options *o)
{
    const int64_t most = INT64_C(1) << 20; /* keeps every product in 63 bits */
    ULY_FAIL_IF(o->n_pieces < 1 || o->first_piece < 0 ||
                    o->first_piece + o->n_pieces > data->n_pieces,
                ULY_ERR_INVALID, "rows %lld to %lld of %lld", (long long)o->first_piece,
                (long long)(o->first_piece + o->n_pieces), (long long)data->n_pieces);
    ULY_FAIL_IF(o->dp_size < 1 || o->rows < 1 || o->accumulation < 0 || o->dp_size > most ||
                    o->rows > most || o->accumulation > most,
                ULY_ERR_INVALID, "%lld replicas of %lld rows in %lld micro-batches",
                (long long)o->dp_size, (long long)o->rows, (long long)o->accumulation);
    return ULY_OK;
}

enum uly_status uly_batch_plan_init(const struct uly_dataset *data,
                                    const struct uly_batch_plan_options *options,
                                    struct uly_batch_plan *out)
{
    enum uly_status status = ULY_OK;
    struct uly_batch_plan plan = {.data = data, .options = *options, .epoch = -1};
    ULY_TRY(check(data, options));
    int64_t n = options->n_pieces, micro = options->dp_size * options->rows;
    if (options->accumulation == 0)
        plan.options.accumulation = (n + micro - 1) / micro;
    plan.max_micro = plan.options.accumulation;
    plan.rows_per_step = micro * plan.max_micro;
    plan.steps_per_epoch = (n + plan.rows_per_step - 1) / plan.rows_per_step;
    int64_t most_docs = n < options->rows ? n : options->rows;
    ULY_TRY_GOTO(ULY_ALLOC(&plan.order, n), fail);
    plan.max_tokens = most_tokens(&plan);
    ULY_TRY_GOTO(ULY_ALLOC(&plan.ids, plan.max_tokens), fail);
    ULY_TRY_GOTO(ULY_ALLOC(&plan.labels, plan.max_tokens), fail);
    ULY_TRY_GOTO(ULY_ALLOC(&plan.starts, most_docs), fail);
    *out = plan;
    return ULY_OK;
fail:
    uly_batch_plan_clear(&plan);
    return status;
}

void uly_batch_plan_clear(struct uly_batch_plan *plan)
{
    uly_free(plan->order);
    uly_free(plan->ids);
    uly_free(plan->labels);
    uly_free(plan->starts);
    *plan = (struct uly_batch_plan){0};
}

static void make_order(struct uly_batch_plan *plan, int64_t epoch)
{
    const struct uly_batch_plan_options *o = &plan->options;
    if (plan->epoch == epoch)
        return;
    if (o->random)
        uly_random_permutation(o->seed, order_streams + (uint64_t)epoch, o->n_pieces, plan->order);
    for (int64_t i = 0; i < o->n_pieces; i++)
        plan->order[i] = o->first_piece + (o->random ? plan->order[i] : i);
    plan->epoch = epoch;
}

void uly_batch_plan_step(struct uly_batch_plan *plan, int64_t epoch, int64_t step,
                         struct uly_batch_step *out)
{
    ULY_BUG_ON(epoch < 0 || step < 0 || step >= plan->steps_per_epoch);
    make_order(plan, epoch);
    int64_t micro = plan->options.dp_size * plan->options.rows;
    int64_t left = plan->options.n_pieces - step * plan->rows_per_step;
    plan->step_first = step * plan->rows_per_step;
    plan->step_rows = left < plan->rows_per_step ? left : plan->rows_per_step;
    *out = (struct uly_batch_step){.n_rows = plan->step_rows,
                                   .n_micro = (plan->step_rows + micro - 1) / micro};
    for (int64_t i = 0; i < plan->step_rows; i++) {
        const struct uly_piece *piece = &plan->data->pieces[plan->order[plan->step_first + i]];
        out->tokens += piece->length;
        out->valid_tokens += piece->valid_tokens;
    }
}

int64_t uly_batch_plan_piece(const struct uly_batch_plan *plan, int64_t micro, int64_t replica,
                             int64_t slot)
{
    const struct uly_batch_plan_options *o = &plan->options;
    int64_t row = micro * o->dp_size * o->rows + slot * o->dp_size + replica;
    ULY_BUG_ON(plan->epoch < 0 || replica < 0 || replica >= o->dp_size || slot < 0 ||
               slot >= o->rows || micro < 0);
    return row < plan->step_rows ? plan->order[plan->step_first + row] : -1;
}

void uly_batch_plan_micro(struct uly_batch_plan *plan, int64_t micro, int64_t replica,
                          struct uly_batch *out)
{
    *out = (struct uly_batch){.starts = plan->starts, .ids = plan->ids, .labels = plan->labels};
    for (int64_t slot = 0; slot < plan->options.rows; slot++) {
        int64_t piece = uly_batch_plan_piece(plan, micro, replica, slot);
        if (piece < 0)
            break;
        uly_dataset_piece(plan->data, piece, plan->ids + out->S, plan->labels + out->S);
        plan->starts[out->n_docs++] = out->S;
        out->S += plan->data->pieces[piece].length;
    }
}
