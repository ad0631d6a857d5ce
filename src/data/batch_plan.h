/* SPDX-License-Identifier: MIT
 *
 * Rows to global batches to micro-batches.
 *
 * The order of an epoch is a function of (seed, epoch) alone, or the order of the files. Step t of
 * an epoch takes the next dp * rows * accumulation rows; no step crosses the end of an epoch, so an
 * epoch's last step may be short. Row j of a step goes to micro-batch j / (dp * rows) and there to
 * replica j % dp: a short step leaves the shares as equal as they can be. A replica may have no row
 * in a micro-batch: it gets an empty one, and all replicas have the same number of micro-batches,
 * so that they meet in every collective. Neither loss nor gradient depends on the placement.
 *
 *   struct uly_batch_plan plan;
 *   uly_batch_plan_init(&data, &options, &plan);            allocates everything
 *   for (epoch ...)
 *       for (step = 0; step < plan.steps_per_epoch; step++) {
 *           uly_batch_plan_step(&plan, epoch, step, &info); info.valid_tokens, before the first backward
 *           for (micro = 0; micro < info.n_micro; micro++)
 *               uly_batch_plan_micro(&plan, micro, replica, &batch);     valid until the next call
 *       }
 *   uly_batch_plan_clear(&plan);
 *
 * A plan belongs to one rank; the data set is shared and must outlive it. Evaluation is a plan with
 * rows in order and accumulation 0: one step that has every row once.
 */
#ifndef ULY_DATA_BATCH_PLAN_H
#define ULY_DATA_BATCH_PLAN_H

#include "data/dataset.h"
#include "model/batch.h"

struct uly_batch_plan_options {
    int64_t first_piece, n_pieces; /* the part of the data set that this plan is about */
    bool random;                   /* else the order of the files */
    uint64_t seed;
    int64_t dp_size;
    int64_t rows;         /* of a micro-batch of one replica */
    int64_t accumulation; /* micro-batches a step; 0: as many as one step over all rows takes */
};

struct uly_batch_plan {
    const struct uly_dataset *data; /* borrowed */
    struct uly_batch_plan_options options;
    int64_t rows_per_step, steps_per_epoch;
    int64_t max_micro;  /* micro-batches of a full step */
    int64_t max_tokens; /* no micro-batch has more: the sum of the `rows` longest pieces */
    int64_t *order;     /* owned [n_pieces]: pieces in the current epoch's order */
    int64_t epoch;      /* the one that order belongs to; -1: none yet */
    int64_t step_first, step_rows; /* the current step: order[step_first ... + step_rows) */
    int32_t *ids, *labels;         /* owned [max_tokens] */
    int64_t *starts;               /* owned [rows] */
};

struct uly_batch_step {
    int64_t n_rows;       /* over all replicas and micro-batches */
    int64_t n_micro;      /* of every replica; at least 1 */
    int64_t tokens;       /* over all replicas */
    int64_t valid_tokens; /* the divisor of loss and gradient */
};

/* ULY_ERR_INVALID where there is no piece or a size is below 1. */
enum uly_status uly_batch_plan_init(const struct uly_dataset *data,
                                    const struct uly_batch_plan_options *options,
                                    struct uly_batch_plan *out);
void uly_batch_plan_clear(struct uly_batch_plan *plan);

/* Makes (epoch, step) the current step; epoch and step from 0, step < steps_per_epoch. Any order of
 * calls. */
void uly_batch_plan_step(struct uly_batch_plan *plan, int64_t epoch, int64_t step,
                         struct uly_batch_step *out);

/* The piece in place `slot` (0 ... rows - 1) of a micro-batch of a replica in the current step, or
 * -1. */
int64_t uly_batch_plan_piece(const struct uly_batch_plan *plan, int64_t micro, int64_t replica,
                             int64_t slot);

/* A micro-batch of the current step; out's arrays belong to the plan and last until the next call.
 */
void uly_batch_plan_micro(struct uly_batch_plan *plan, int64_t micro, int64_t replica,
                          struct uly_batch *out);

#endif
