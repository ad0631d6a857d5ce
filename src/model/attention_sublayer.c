/* SPDX-License-Identifier: MIT
 *
 * The attention sublayer as a source and a sink of the stage loop. Forward: norm, project, bias, rope, straight into send
 * blocks; the output goes into its head columns of O. Backward: q, k, v are made again from x, dO = dx o_proj goes out with
 * delta; dq comes home into O's columns, after o_proj's gradient of these heads was taken; the last pass turns the rope back
 * and goes through q/k norm, bias and projections.
 */
#include "model/decoder_impl.h"

struct sublayer {
    struct uly_decoder *d;
    const struct uly_layer_params *p;
    struct uly_mask mask; /* the micro-batch's, with this layer's window */
    struct uly_tensor x;  /* [s, E] block input */
    struct uly_tensor o;  /* [s, H*D] */
};

static struct sublayer sublayer_of(struct uly_decoder *d, int layer)
{
    struct sublayer l = {
        .d = d,
        .p = &d->params->layers[layer],
        .mask = d->mask,
        .x = uly_tensor_rows(uly_block_in(d, layer), 0, d->s),
        .o = uly_tensor_rows(uly_kept(d, layer)->o, 0, d->s),
    };
    l.mask.window = uly_config_window(d->config, layer);
    return l;
}

/* A dense [rows, columns] at the start of a tile's room. */
static struct uly_tensor tile_of(struct uly_tensor tile, int64_t rows, int64_t columns)
{
    return uly_tensor_reshape(tile, 2, rows, columns, 1);
}

/* The norm of every head of a dense [rows, heads * D], in place; nothing where the model has none. */
static enum uly_status head_norm(struct uly_decoder *d, struct uly_tensor t, int norm)
{
    int64_t D = d->config->head_dim;
    if (norm < 0 || uly_tensor_count(&t) == 0)
        return ULY_OK;
    struct uly_tensor heads = uly_tensor_reshape(t, 2, uly_tensor_count(&t) / D, D, 1);
    return uly_norm(d, heads, norm, heads);
}

/* The distinct heads of a list, side by side in `out`: one product a run of neighbouring heads, and their norm. */
static enum uly_status project(struct sublayer *l, const struct uly_head_entries *list, int w,
                               int bias, int norm, struct uly_tensor h, struct uly_tensor out)
{
    int64_t D = l->d->config->head_dim, at = 0;
    for (int i = 0; i < list->n_runs; i++) {
        int64_t first = list->runs[i].first * D, n = list->runs[i].count * D;
        struct uly_tensor part = {0};
        if (bias >= 0)
            part = uly_tensor_rows(uly_weight(l->d, bias), first, n);
        ULY_TRY(uly_linear_fwd(l->d, h, uly_tensor_rows(uly_weight(l->d, w), first, n), part, false,
                               uly_tensor_cols(out, at, n)));
        at += n;
    }
    return head_norm(l->d, out, norm);
}

/* What a rotation of rows [row, row + count) reads. */
static void give_frequencies(const struct uly_decoder *d, int64_t row, int64_t count,
                             struct uly_head_move_args *args)
{
    bool several = uly_tensor_exists(&d->rope_table);
    args->position = uly_tensor_rows(d->position, row, count);
    args->rope_scale = d->rope_scale;
    args->inv_freq =
        several ? d->inv_freq : uly_tensor_reshape(d->inv_freq, 1, d->config->head_dim / 2, 1, 1);
    if (several)
        args->table = uly_tensor_rows(d->rope_table, row, count);
}

/* Distinct heads of a tile to the blocks of a list, with or without rope. */
static enum uly_status place_heads(struct sublayer *l, const struct uly_head_entries *list,
                                   struct uly_tensor tile, int64_t row, enum uly_rope_mode rope,
                                   const struct uly_heads *dst)
{
    struct uly_decoder *d = l->d;
    struct uly_head_move_args args = {
        .src = uly_decoder_view(d, 0, tile, list->n, list->place), .dst = *dst, .rope = rope};
    give_frequencies(d, row, tile.shape[0], &args);
    return uly_head_move(d->be, &args);
}

static enum uly_status source_qkv(void *context, const struct uly_stage *stage, int64_t row,
                                  int64_t count, const struct uly_heads *q,
                                  const struct uly_heads *k, const struct uly_heads *v)
{
    struct sublayer *l = context;
    struct uly_decoder *d = l->d;
    const struct uly_layer_params *p = l->p;
    struct uly_tensor h = uly_tensor_rows(d->h_t, 0, count);
    int64_t D = d->config->head_dim;
    int64_t q_width = stage->q.n_distinct * D, kv_width = stage->kv_new.n_distinct * D;
    struct uly_tensor q_t = tile_of(d->q_t, count, q_width);
    struct uly_tensor k_t = tile_of(d->k_t, count, kv_width);
    struct uly_tensor v_t = tile_of(d->v_t, count, kv_width);
    ULY_TRY(uly_norm(d, uly_tensor_rows(l->x, row, count), p->input_norm, h));
    if (q) {
        ULY_TRY(project(l, &stage->q, p->q, p->q_bias, p->q_norm, h, q_t));
        ULY_TRY(place_heads(l, &stage->q, q_t, row, ULY_ROPE_FORWARD, q));
    }
    if (!k)
        return ULY_OK;
    ULY_TRY(project(l, &stage->kv_new, p->k, p->k_bias, p->k_norm, h, k_t));
    ULY_TRY(place_heads(l, &stage->kv_new, k_t, row, ULY_ROPE_FORWARD, k));
    ULY_TRY(project(l, &stage->kv_new, p->v, p->v_bias, -1, h, v_t));
    return place_heads(l, &stage->kv_new, v_t, row, ULY_ROPE_NONE, v);
}

static enum uly_status sink_out(void *context, const struct uly_stage *stage, int64_t row,
                                int64_t count, const struct uly_heads *o)
{
    struct sublayer *l = context;
    struct uly_tensor rows = uly_tensor_rows(l->o, row, count);
    return uly_head_move(
        l->d->be,
        &(struct uly_head_move_args){
            .src = *o, .dst = uly_decoder_view(l->d, 0, rows, stage->q.n, stage->q.head)});
}

enum uly_status uly_attention_sublayer_fwd(struct uly_decoder *d, int layer)
{
    struct sublayer l = sublayer_of(d, layer);
    struct uly_cp_source source = {.context = &l, .qkv = source_qkv};
    struct uly_cp_sink sink = {.context = &l, .out = sink_out};
    return uly_cp_forward(d->cp, &l.mask, &source, &sink, uly_kept(d, layer)->lse);
}

/* ------------------------------------------------------------------ backward */

static enum uly_status source_d_out(void *context, const struct uly_stage *stage, int64_t row,
                                    int64_t count, const struct uly_heads *d_o,
                                    const struct uly_heads *delta)
{
    struct sublayer *l = context;
    struct uly_decoder *d = l->d;
    const struct uly_head_entries *list = &stage->q;
    struct uly_tensor dx = uly_tensor_rows(d->dx, row, count);
    struct uly_tensor o = uly_tensor_rows(l->o, row, count);
    struct uly_tensor d_o_t = uly_tensor_rows(d->d_o_t, 0, count);
    struct uly_tensor w = uly_weight(d, l->p->o), dw = uly_grad(d, l->p->o);
    int64_t D = d->config->head_dim, at = 0;
    for (int i = 0; i < list->n_runs; i++) {
        int64_t first = list->runs[i].first * D, n = list->runs[i].count * D;
        ULY_TRY(uly_linear_dx(d, dx, uly_tensor_cols(w, first, n), false,
                              uly_tensor_cols(d_o_t, at, n)));
        if (uly_tensor_exists(&dw))
            ULY_TRY(uly_linear_grads(d, dx, uly_tensor_cols(o, first, n),
                                     uly_tensor_cols(dw, first, n), (struct uly_tensor){0}));
        at += n;
    }
    struct uly_tensor o_bias = uly_grad(d, l->p->o_bias);
    if (stage->index == 0 && uly_tensor_exists(&o_bias))
        ULY_TRY(uly_column_sum(d->be, dx, o_bias));
    struct uly_heads mine = uly_decoder_view(d, 1, o, list->n, list->head);
    struct uly_heads theirs = uly_decoder_view(d, 2, d_o_t, list->n, list->place);
    ULY_TRY(uly_head_dot(d->be, &mine, &theirs, delta));
    return place_heads(l, list, d_o_t, row, ULY_ROPE_NONE, d_o);
}

static enum uly_status sink_dkv(void *context, const struct uly_stage *stage, int64_t row,
                                int64_t count, const struct uly_heads *dk,
                                const struct uly_heads *dv)
{
    struct sublayer *l = context;
    struct uly_decoder *d = l->d;
    const struct uly_head_entries *list = &stage->kv_done;
    const struct uly_heads *from[2] = {dk, dv};
    struct uly_tensor to[2] = {uly_tensor_rows(d->dk, row, count),
                               uly_tensor_rows(d->dv, row, count)};
    for (int i = 0; i < 2; i++)
        /* entry by entry: a head that several ranks used stands several times, and is summed in rank order */
        for (int e = 0; e < list->n; e++) {
            struct uly_heads src = *from[i];
            src.n = 1;
            src.offset += e;
            src.stride += e;
            ULY_TRY(
                uly_head_move(d->be, &(struct uly_head_move_args){
                                         .src = src,
                                         .dst = uly_decoder_view(d, 0, to[i], 1, &list->head[e]),
                                         .accumulate = true}));
        }
    return ULY_OK;
}

/* All heads of a [count, heads * D] tensor into a tile of the model's dtype, the rope turned back where asked. */
static enum uly_status unrope(struct uly_decoder *d, struct uly_tensor from, int64_t row,
                              enum uly_rope_mode rope, struct uly_tensor to)
{
    int n = (int)(uly_tensor_width(&from) / d->config->head_dim);
    struct uly_head_move_args args = {.src = uly_decoder_view(d, 0, from, n, NULL),
                                      .dst = uly_decoder_view(d, 1, to, n, NULL),
                                      .rope = rope};
    give_frequencies(d, row, from.shape[0], &args);
    return uly_head_move(d->be, &args);
}

/* Where the model has a q/k norm: the projection is made again, and *dy, the gradient after the norm, becomes the one
 * before it, in a tile of its own. */
static enum uly_status head_norm_backward(struct uly_decoder *d, struct uly_tensor h, int w,
                                          int bias, int norm, struct uly_tensor *dy)
{
    int64_t count = dy->shape[0], width = uly_tensor_width(dy), D = d->config->head_dim;
    if (norm < 0)
        return ULY_OK;
    struct uly_tensor raw = tile_of(d->d_o_t, count, width);
    struct uly_tensor d_raw = tile_of(d->d_raw_t, count, width);
    ULY_TRY(uly_linear_fwd(d, h, uly_weight(d, w), uly_weight(d, bias), false, raw));
    ULY_TRY(uly_fill(d->be, d_raw, 0));
    int64_t rows = count * (width / D);
    ULY_TRY(uly_norm_bwd(d, uly_tensor_reshape(raw, 2, rows, D, 1), norm,
                         uly_tensor_reshape(*dy, 2, rows, D, 1),
                         uly_tensor_reshape(d_raw, 2, rows, D, 1)));
    *dy = d_raw;
    return ULY_OK;
}

/* The last pass over a tile: through rope, bias, projections and norm into dx. */
static enum uly_status project_backward(struct sublayer *l, int64_t row, int64_t count)
{
    struct uly_decoder *d = l->d;
    const struct uly_layer_params *p = l->p;
    struct uly_tensor x = uly_tensor_rows(l->x, row, count);
    struct uly_tensor h = uly_tensor_rows(d->h_t, 0, count);
    struct uly_tensor dh = uly_tensor_rows(d->dh_t, 0, count);
    struct uly_tensor dq = uly_tensor_rows(d->q_t, 0, count);
    struct uly_tensor dk = uly_tensor_rows(d->k_t, 0, count);
    struct uly_tensor dv = uly_tensor_rows(d->v_t, 0, count);
    ULY_TRY(uly_norm(d, x, p->input_norm, h));
    ULY_TRY(unrope(d, uly_tensor_rows(l->o, row, count), row, ULY_ROPE_INVERSE, dq));
    ULY_TRY(head_norm_backward(d, h, p->q, p->q_bias, p->q_norm, &dq));
    ULY_TRY(uly_linear_grads(d, dq, h, uly_grad(d, p->q), uly_grad(d, p->q_bias)));
    ULY_TRY(uly_linear_dx(d, dq, uly_weight(d, p->q), false, dh));
    ULY_TRY(unrope(d, uly_tensor_rows(d->dk, row, count), row, ULY_ROPE_INVERSE, dk));
    ULY_TRY(head_norm_backward(d, h, p->k, p->k_bias, p->k_norm, &dk));
    ULY_TRY(uly_linear_grads(d, dk, h, uly_grad(d, p->k), uly_grad(d, p->k_bias)));
    ULY_TRY(uly_linear_dx(d, dk, uly_weight(d, p->k), true, dh));
    ULY_TRY(unrope(d, uly_tensor_rows(d->dv, row, count), row, ULY_ROPE_NONE, dv));
    ULY_TRY(uly_linear_grads(d, dv, h, uly_grad(d, p->v), uly_grad(d, p->v_bias)));
    ULY_TRY(uly_linear_dx(d, dv, uly_weight(d, p->v), true, dh));
    return uly_norm_bwd(d, x, p->input_norm, dh, uly_tensor_rows(d->dx, row, count));
}

enum uly_status uly_attention_sublayer_bwd(struct uly_decoder *d, int layer)
{
    struct sublayer l = sublayer_of(d, layer);
    struct uly_cp_source source = {.context = &l, .qkv = source_qkv, .d_out = source_d_out};
    struct uly_cp_sink sink = {.context = &l, .dq = sink_out, .dkv = sink_dkv};
    ULY_TRY(uly_fill(d->be, uly_tensor_rows(d->dk, 0, d->s), 0));
    ULY_TRY(uly_fill(d->be, uly_tensor_rows(d->dv, 0, d->s), 0));
    ULY_TRY(uly_cp_backward(d->cp, &l.mask, &source, &sink, uly_kept(d, layer)->lse));
    for (int64_t row = 0; row < d->s; row += d->tile) {
        int64_t left = d->s - row;
        ULY_TRY(project_backward(&l, row, left < d->tile ? left : d->tile));
    }
    return ULY_OK;
}
