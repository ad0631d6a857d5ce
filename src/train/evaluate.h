/* SPDX-License-Identifier: MIT
 *
 * Evaluation: the training path without its backward, by the same rule (sum of token losses over the number of valid
 * tokens) at every layout.
 */
#ifndef ULY_TRAIN_EVALUATE_H
#define ULY_TRAIN_EVALUATE_H

#include "data/batch_plan.h"
#include "model/decoder.h"

enum { ULY_EVAL_BUCKETS = 40 }; /* positions up to 2^40 */

struct uly_eval_options {
    bool by_position;         /* fill bucket_loss and bucket_tokens */
    const char *dump_path;    /* file for the losses of all tokens, NULL: none; rank 0 writes */
    struct uly_tensor room;   /* with dump_path: float32 [plan.max_tokens], and ... */
    struct uly_tensor buffer; /* ... a buffer for its sum over ranks */
};

struct uly_eval_result {
    double loss;       /* mean over valid tokens; NaN without any */
    double perplexity; /* exp(loss) */
    int64_t valid_tokens, tokens, rows;
    /* loss of the tokens that predict positions 2^k ... 2^(k+1) - 1 of their row, position 0 being its first token */
    double bucket_loss[ULY_EVAL_BUCKETS]; /* means; NaN without a token */
    int64_t bucket_tokens[ULY_EVAL_BUCKETS];
};

/* Makes options' tensors for a plan, where there is a dump_path (measuring). */
enum uly_status uly_eval_make_tensors(struct uly_eval_options *options,
                                      const struct uly_batch_plan *plan, struct uly_mesh *mesh,
                                      struct uly_memory *memory);

/* Collective over the world. plan: rows in order, all in one step. The dump has one float32 per token, rows in order: the
 * loss of predicting the next token, 0 where that has no label. A loss that is not finite is reported as it is. */
enum uly_status uly_evaluate(struct uly_decoder *decoder, struct uly_mesh *mesh,
                             struct uly_backend *be, struct uly_batch_plan *plan,
                             const struct uly_eval_options *options, struct uly_eval_result *out);

#endif
