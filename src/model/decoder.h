/* SPDX-License-Identifier: MIT
 *
 * The decoder: embedding, L blocks, final norm, head and loss; forward and backward over a
 * micro-batch that the ranks of a replica share. No arithmetic of its own: a schedule of backend
 * operations and exchanges.
 *
 *   uly_params_init(&config, &params);
 *   uly_memory_init(&memory, space);
 *   uly_params_make_tensors(&params, dtype, true, &memory);
 *   uly_decoder_create(&config, &params, &mesh, be, &options, &memory, &decoder);    tables only,
 * no memory yet uly_memory_reserve(&memory);
 *   ... fill the weights ...
 *   uly_decoder_backward(decoder, &batch, 1.0 / n_valid, &loss_sum)                   adds to the
 * gradients
 *
 * Gradients are of this rank's share only: sum them over all ranks of all replicas (uly_all_reduce
 * over params.grads).
 */
#ifndef ULY_MODEL_DECODER_H
#define ULY_MODEL_DECODER_H

#include "backend/backend.h"
#include "model/batch.h"
#include "model/config.h"
#include "model/params.h"
#include "parallel/mesh.h"

enum uly_checkpointing {
    ULY_CHECKPOINT_NONE, /* keeps the middle residual, attention output, LSE, gate and up of every
                            layer */
    ULY_CHECKPOINT_FULL  /* keeps the block inputs and runs each block's forward again */
};

struct uly_decoder_options {
    enum uly_dtype dtype; /* of weights and activations */
    int64_t max_tokens; /* longest micro-batch (S, all ranks together) that this decoder will see */
    enum uly_checkpointing checkpointing;
    bool training;       /* off: uly_decoder_backward is refused and its buffers are not made */
    int heads_per_stage; /* 0: all of a rank's heads in one stage (ulysses) */
    int64_t query_tile;  /* as in struct uly_cp_options; 0: the whole shard */
    int token_tile;      /* rows of a token-wise pass; 0: chosen */
    double scale;        /* of q k'; 0: 1 / sqrt(head_dim) */
    bool serial;         /* as in struct uly_cp_options */
    bool attention_only; /* what the attention sublayer works with and no more: model/sublayer.h */
};

struct uly_decoder;

/* Makes all tensors of the decoder in `memory` (measuring). config, params, mesh, be: borrowed,
 * must outlive it. */
enum uly_status uly_decoder_create(const struct uly_model_config *config, struct uly_params *params,
                                   struct uly_mesh *mesh, struct uly_backend *be,
                                   const struct uly_decoder_options *options,
                                   struct uly_memory *memory, struct uly_decoder **out);
void uly_decoder_destroy(struct uly_decoder *decoder); /* NULL is fine */

/* Called at layer borders from the calling rank: phase ("forward", "backward", "loss"), layer of
 * n_layers. Returns anything but ULY_OK to abandon the micro-batch (that status is passed on). */
typedef enum uly_status (*uly_progress_fn)(void *context, const char *phase, int layer,
                                           int n_layers);
void uly_decoder_set_progress(struct uly_decoder *decoder, uly_progress_fn progress, void *context);

/* Forward only. *loss_sum: sum of the token losses of this rank's shard (double; sum it over sp).
 * losses: optional host array [S], filled with the loss of this rank's tokens at their global index
 * (other entries are left alone; 0 where there is no label). Collective over the mesh's sp ranks.
 */
enum uly_status uly_decoder_forward(struct uly_decoder *decoder, const struct uly_batch *batch,
                                    double *loss_sum, float *losses);

/* Forward and backward: gradient of loss_factor * (sum of token losses), ADDED to the parameters'
 * gradients. */
enum uly_status uly_decoder_backward(struct uly_decoder *decoder, const struct uly_batch *batch,
                                     double loss_factor, double *loss_sum);

/* Logits of this rank's tokens, forward only, for tests and comparisons: host array [S, V] float,
 * filled at the tokens' global index. Not for long rows: it is S * V floats. */
enum uly_status uly_decoder_logits(struct uly_decoder *decoder, const struct uly_batch *batch,
                                   float *logits);

#endif
