/* SPDX-License-Identifier: MIT
 *
 * One optimizer step: gradients of all micro-batches, their sum over all ranks, clipping, AdamW.
 *
 * The rule. Gradient = d(sum of token losses over the whole step / number of valid tokens in it), whatever dp, sp and
 * accumulation are: the divisor is known before the first backward, gradients are summed over all ranks, nothing is
 * averaged and nothing multiplied by sp. The logged loss is that same mean.
 *
 *   uly_trainer_init(&options, &params, &mesh, be, decoder, &memory, &trainer);   measuring; then uly_memory_reserve
 *   uly_batch_plan_step(&plan, epoch, index, &info);
 *   uly_trainer_step(&trainer, &plan, &info, &result);
 *
 * Invariant: weights, masters and moments change only in the last part of a step, after every border at which a run may be
 * abandoned; so a step that returns an error or is abandoned has changed no weight.
 */
#ifndef ULY_TRAIN_STEP_H
#define ULY_TRAIN_STEP_H

#include "data/batch_plan.h"
#include "model/decoder.h"
#include "train/schedule.h"

struct uly_trainer_options {
    struct uly_schedule schedule;
    double beta1, beta2, epsilon, weight_decay;
    double max_grad_norm;       /* 0: no clipping */
    const char *dump_gradients; /* folder for the first step's gradients; NULL: none; borrowed */
};

struct uly_trainer {
    struct uly_trainer_options options;
    struct uly_params *params; /* borrowed, as the next three */
    struct uly_mesh *mesh;
    struct uly_backend *be;
    struct uly_decoder *decoder;
    struct uly_tensor buffer; /* comm class, float32: room for the sum over ranks */
    int64_t step;             /* steps finished; the next one's index */
    int64_t updates;          /* steps that changed weights: what AdamW's bias correction counts */
};

struct uly_step_result {
    double loss;          /* mean over the step's valid tokens; NaN without any */
    double loss_sum;      /* over all ranks */
    double grad_norm;     /* before clipping; 0 without a valid token */
    double learning_rate; /* of this step */
    bool updated;         /* off: no token had a label, so no weight changed */
};

/* Makes the trainer's tensors in `memory` (measuring). */
enum uly_status uly_trainer_init(const struct uly_trainer_options *options,
                                 struct uly_params *params, struct uly_mesh *mesh,
                                 struct uly_backend *be, struct uly_decoder *decoder,
                                 struct uly_memory *memory, struct uly_trainer *out);

/* Collective over the world. plan's current step, as uly_batch_plan_step set it, is info. A loss or gradient norm that is
 * not finite is ULY_ERR_INVALID and names the step (counted from 1). */
enum uly_status uly_trainer_step(struct uly_trainer *trainer, struct uly_batch_plan *plan,
                                 const struct uly_batch_step *info, struct uly_step_result *out);

/* Writes all gradients as folder/gradients.safetensors, float32, under the parameters' names. For one rank: after the sum
 * every rank has them all. */
enum uly_status uly_gradients_write(const struct uly_params *params, struct uly_backend *be,
                                    const char *folder);

#endif
