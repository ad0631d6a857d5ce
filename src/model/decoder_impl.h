/* SPDX-License-Identifier: MIT
 *
 * Inside of the decoder, shared by decoder.c (the schedule), attention_sublayer.c and mlp_sublayer.c.
 *
 * Buffers, with s tokens on this rank and T rows a tile:
 *   kept over a micro-batch   block_in[0 ... L] [s, E]; under `none` also mid, o, lse, gate, up of every layer
 *   of one layer              o [s, H*D] (backward: dq in its columns), lse [owned heads, S], dx [s, E], dk, dv [s, K*D]
 *   of one tile               everything else; attention, MLP and loss tiles share their room
 */
#ifndef ULY_MODEL_DECODER_IMPL_H
#define ULY_MODEL_DECODER_IMPL_H

#include "model/decoder.h"
#include "parallel/cp_attention.h"
#include "parallel/layout.h"

/* What a layer keeps from its forward to its backward. Under `full` all layers share one. */
struct layer_kept {
    struct uly_tensor o;        /* [s, H*D] model */
    struct uly_tensor lse;      /* [owned heads * S] acc */
    struct uly_tensor mid;      /* [s, E] model; `none` only */
    struct uly_tensor gate, up; /* [s, F] model; `none` only */
};

struct uly_decoder {
    const struct uly_model_config *config;
    struct uly_params *params;
    struct uly_mesh *mesh;
    struct uly_backend *be;
    struct uly_decoder_options options;
    enum uly_dtype acc;
    int64_t max_s, tile, loss_tile;
    int q_width, kv_width; /* H*D, K*D */
    struct uly_cp_attention *cp;
    uly_progress_fn progress;
    void *progress_context;

    struct uly_tensor inv_freq;   /* [tables, D/2] float64 */
    struct uly_tensor rope_table; /* [s] int32; absent where there is one table */
    double rope_scale;
    struct uly_tensor ids, labels, position; /* [s] int32, int32, int64 */
    struct uly_tensor *block_in; /* [n_block_in], owned list; layer l reads l % n_block_in */
    int n_block_in;
    struct layer_kept *kept; /* [n_kept], owned list */
    int n_kept;
    struct uly_tensor dx, dk, dv;
    struct uly_tensor losses; /* [s] acc */

    struct uly_tensor h_t, dh_t, mid_t;     /* [T, E] model, acc, model */
    struct uly_tensor q_t, k_t, v_t, d_o_t; /* [T, H*D], [T, K*D] twice, [T, H*D] */
    struct uly_tensor d_raw_t;              /* [T, H*D]; q/k norm only */
    struct uly_tensor gate_t, up_t, act_t;  /* [T, F] */
    struct uly_tensor logits_t, dlogits_t;  /* [loss tile, V] acc, model */

    int64_t *view_ints; /* [VIEWS, 2, most_heads] for head views; owned */
    int most_heads;
    void *host_room; /* [max_s] of 8 bytes, owned: positions in, losses out */

    /* of the micro-batch at hand */
    struct uly_mask mask;
    int64_t s;
    int n_segments;
    struct uly_segment segment[2];
};

enum { ULY_DECODER_VIEWS = 3 };

/* A view of columns [place * D ...) of a [rows, heads * D] tensor for n heads; place NULL means 0, 1, 2, ... `view`
 * (0 ... ULY_DECODER_VIEWS - 1) names the room of its arrays, valid until the next call with the same one. */
struct uly_heads uly_decoder_view(const struct uly_decoder *d, int view, struct uly_tensor t, int n,
                                  const int *place);

static inline struct uly_tensor uly_weight(const struct uly_decoder *d, int index)
{
    return index < 0 ? (struct uly_tensor){0} : d->params->list[index].weight;
}

/* The gradient of a parameter; absent where there is no such parameter or it is not trained. */
static inline struct uly_tensor uly_grad(const struct uly_decoder *d, int index)
{
    return index < 0 ? (struct uly_tensor){0} : d->params->list[index].grad;
}

static inline const struct layer_kept *uly_kept(const struct uly_decoder *d, int layer)
{
    return &d->kept[layer % d->n_kept];
}

static inline struct uly_tensor uly_block_in(const struct uly_decoder *d, int layer)
{
    return d->block_in[layer % d->n_block_in];
}

/* y = x W' (+ bias) (+ y): a linear layer's forward on a tile. bias: optional. */
enum uly_status uly_linear_fwd(struct uly_decoder *d, struct uly_tensor x, struct uly_tensor w,
                               struct uly_tensor bias, bool accumulate, struct uly_tensor y);
/* dW += dy' x and db += column sums of dy, where these exist. */
enum uly_status uly_linear_grads(struct uly_decoder *d, struct uly_tensor dy, struct uly_tensor x,
                                 struct uly_tensor dw, struct uly_tensor db);
/* dx (+)= dy W. */
enum uly_status uly_linear_dx(struct uly_decoder *d, struct uly_tensor dy, struct uly_tensor w,
                              bool accumulate, struct uly_tensor dx);

enum uly_status uly_norm(struct uly_decoder *d, struct uly_tensor x, int norm, struct uly_tensor y);
/* dx += backward of the norm of x, from dy (acc); the norm's gradient too. */
enum uly_status uly_norm_bwd(struct uly_decoder *d, struct uly_tensor x, int norm,
                             struct uly_tensor dy, struct uly_tensor dx);

/* Takes a micro-batch in: mask, this rank's tokens, positions, frequencies, and ids and labels where the decoder is whole. */
enum uly_status uly_decoder_enter(struct uly_decoder *d, const struct uly_batch *batch);

/* mid = x + O o_proj' + bias on a tile: one product, one rounding. mid: not x. */
enum uly_status uly_attention_residual(struct uly_decoder *d, const struct uly_layer_params *p,
                                       struct uly_tensor x, struct uly_tensor o,
                                       struct uly_tensor mid);

/* Attention sublayer up to O and LSE (kept->o, kept->lse); o_proj belongs to the MLP's pass. */
enum uly_status uly_attention_sublayer_fwd(struct uly_decoder *d, int layer);
/* From dx, the gradient after the sublayer's residual addition, to dx before it; takes all gradients of its weights. */
enum uly_status uly_attention_sublayer_bwd(struct uly_decoder *d, int layer);

/* mid = x + O o_proj'; next block input = mid + MLP(norm(mid)), by token tile. */
enum uly_status uly_mlp_sublayer_fwd(struct uly_decoder *d, int layer);
/* dx of the block's output becomes dx of mid, in place. */
enum uly_status uly_mlp_sublayer_bwd(struct uly_decoder *d, int layer);

#endif
