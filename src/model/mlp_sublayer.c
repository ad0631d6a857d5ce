/* SPDX-License-Identifier: MIT
 *
 * The pass over token tiles between two attention sublayers: o_proj with its residual, norm, gate and up, SwiGLU, down with
 * its residual. A tile's intermediates are never longer than the tile, unless the policy keeps them.
 */
#include "model/decoder_impl.h"

/* The buffers of one tile: the kept rows where the policy keeps them, else the tile's own. */
struct mlp_tile {
    struct uly_tensor x, o, mid, h, gate, up, act, dh;
    bool kept;
};

static struct mlp_tile tile_at(struct uly_decoder *d, int layer, int64_t row, int64_t n)
{
    const struct layer_kept *k = uly_kept(d, layer);
    bool kept = d->options.checkpointing == ULY_CHECKPOINT_NONE && d->options.training;
    struct mlp_tile t = {
        .x = uly_tensor_rows(uly_block_in(d, layer), row, n),
        .o = uly_tensor_rows(k->o, row, n),
        .h = uly_tensor_rows(d->h_t, 0, n),
        .act = uly_tensor_rows(d->act_t, 0, n),
        .mid = kept ? uly_tensor_rows(k->mid, row, n) : uly_tensor_rows(d->mid_t, 0, n),
        .gate = kept ? uly_tensor_rows(k->gate, row, n) : uly_tensor_rows(d->gate_t, 0, n),
        .up = kept ? uly_tensor_rows(k->up, row, n) : uly_tensor_rows(d->up_t, 0, n),
        .kept = kept,
    };
    if (d->options.training)
        t.dh = uly_tensor_rows(d->dh_t, 0, n);
    return t;
}

enum uly_status uly_attention_residual(struct uly_decoder *d, const struct uly_layer_params *p,
                                       struct uly_tensor x, struct uly_tensor o,
                                       struct uly_tensor mid)
{
    ULY_TRY(uly_cast(d->be, x, mid));
    return uly_linear_fwd(d, o, uly_weight(d, p->o), uly_weight(d, p->o_bias), true, mid);
}

static enum uly_status make_gate_up(struct uly_decoder *d, const struct uly_layer_params *p,
                                    const struct mlp_tile *t)
{
    ULY_TRY(uly_linear_fwd(d, t->h, uly_weight(d, p->gate), uly_weight(d, p->gate_bias), false,
                           t->gate));
    return uly_linear_fwd(d, t->h, uly_weight(d, p->up), uly_weight(d, p->up_bias), false, t->up);
}

static enum uly_status tile_forward(struct uly_decoder *d, int layer, int64_t row, int64_t n)
{
    const struct uly_layer_params *p = &d->params->layers[layer];
    struct mlp_tile t = tile_at(d, layer, row, n);
    struct uly_tensor out = uly_tensor_rows(uly_block_in(d, layer + 1), row, n);
    ULY_TRY(uly_attention_residual(d, p, t.x, t.o, t.mid));
    ULY_TRY(uly_norm(d, t.mid, p->post_norm, t.h));
    ULY_TRY(make_gate_up(d, p, &t));
    ULY_TRY(uly_swiglu_fwd(d->be, t.gate, t.up, t.act));
    ULY_TRY(uly_cast(d->be, t.mid, out));
    return uly_linear_fwd(d, t.act, uly_weight(d, p->down), uly_weight(d, p->down_bias), true, out);
}

static enum uly_status tile_backward(struct uly_decoder *d, int layer, int64_t row, int64_t n)
{
    const struct uly_layer_params *p = &d->params->layers[layer];
    struct mlp_tile t = tile_at(d, layer, row, n);
    struct uly_tensor dx = uly_tensor_rows(d->dx, row, n);
    if (!t.kept)
        ULY_TRY(uly_attention_residual(d, p, t.x, t.o, t.mid));
    ULY_TRY(uly_norm(d, t.mid, p->post_norm, t.h));
    if (!t.kept)
        ULY_TRY(make_gate_up(d, p, &t));
    ULY_TRY(uly_swiglu_fwd(d->be, t.gate, t.up, t.act));
    ULY_TRY(uly_linear_grads(d, dx, t.act, uly_grad(d, p->down), uly_grad(d, p->down_bias)));
    /* from here on act holds its own gradient, gate and up theirs */
    ULY_TRY(uly_linear_dx(d, dx, uly_weight(d, p->down), false, t.act));
    ULY_TRY(uly_swiglu_bwd(d->be, t.gate, t.up, t.act, t.gate, t.up));
    ULY_TRY(uly_linear_grads(d, t.gate, t.h, uly_grad(d, p->gate), uly_grad(d, p->gate_bias)));
    ULY_TRY(uly_linear_grads(d, t.up, t.h, uly_grad(d, p->up), uly_grad(d, p->up_bias)));
    ULY_TRY(uly_linear_dx(d, t.gate, uly_weight(d, p->gate), false, t.dh));
    ULY_TRY(uly_linear_dx(d, t.up, uly_weight(d, p->up), true, t.dh));
    return uly_norm_bwd(d, t.mid, p->post_norm, t.dh, dx);
}

typedef enum uly_status (*tile_fn)(struct uly_decoder *, int layer, int64_t row, int64_t n);

static enum uly_status for_tiles(struct uly_decoder *d, int layer, tile_fn fn)
{
    for (int64_t row = 0; row < d->s; row += d->tile) {
        int64_t left = d->s - row;
        ULY_TRY(fn(d, layer, row, left < d->tile ? left : d->tile));
    }
    return ULY_OK;
}

enum uly_status uly_mlp_sublayer_fwd(struct uly_decoder *d, int layer)
{
    return for_tiles(d, layer, tile_forward);
}

enum uly_status uly_mlp_sublayer_bwd(struct uly_decoder *d, int layer)
{
    return for_tiles(d, layer, tile_backward);
}
