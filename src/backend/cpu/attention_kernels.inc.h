/* SPDX-License-Identifier: MIT
 *
 * Attention forward and backward for one vector width. The including file names its table:
 *
 *   #define ULY_ATTENTION_TABLE uly_cpu_attention_avx2
 *   #define ULY_ATTENTION_NAME "avx2"
 *
 * Forward: lanes are queries. A panel of queries keeps its q' (packed once), its running maximum, sum and o' and meets
 * the keys block by block:
 *     s'[keys][LANES]  = K q'          K rows as they are,     q' packed over the head dimension
 *     p' = 2^(s' * c - max), in place  maximum and sum are vectors: nothing is reduced across lanes
 *     o'[dim][LANES]  += V' p'         V read by columns,      p' is the panel that is there
 * Backward: lanes are keys. A panel of keys keeps k' and v' (packed once), dk' and dv' and meets the queries block by block:
 *     s[queries][LANES]  = Q k'        p = 2^(s * c - lse * log2(e))
 *     dp[queries][LANES] = dO v'       ds = p * (dp - delta) * scale
 *     dv'[dim][LANES]   += dO' p       dO read by columns
 *     dk'[dim][LANES]   += Q' ds       Q read by columns
 *     dq[queries][dim]   = ds K        over all panels of the row at once; then added to the caller's
 * So no tile is ever transposed, and what is packed is packed once an item (forward) or once a row (backward).
 *
 * Powers are of 2: c = scale * log2(e). s * c - m is one fused instruction, so that c's rounding only counts times the
 * distance from the maximum (or the LSE), however large the scores are. Mask classes of a panel and a block: hidden (skipped),
 * whole (no test), edge (scores of hidden pairs become -inf, whose power is exactly 0). Where a block's visible part is a
 * smaller rectangle, only that is computed.
 */
#include <float.h>
#include <math.h>

#include "backend/cpu/attention.h"

#include "backend/cpu/attention_product.inc.h"

#define LOG2_E 1.4426950408889634
#define LN_2   0.6931471805599453

enum {
    QUERIES = ULY_CPU_ATTENTION_QUERIES,
    KEYS = ULY_CPU_ATTENTION_KEYS,
    Q_BLOCK = ULY_CPU_ATTENTION_Q_BLOCK,
    MAX_PANELS = QUERIES / LANES
};

_Static_assert(LANES <= ULY_CPU_ATTENTION_MAX_LANES && QUERIES % LANES == 0 && Q_BLOCK >= LANES &&
                   ULY_CPU_ATTENTION_K_BLOCK % LANES == 0 &&
                   ULY_CPU_ATTENTION_K_BLOCK_WIDE % LANES == 0,
               "blocks are whole panels, and the scratch has room for them");

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void fill(float *p, int64_t n, float value)
{
    for (int64_t i = 0; i < n; i++)
        p[i] = value;
}

/* First visible keys (local numbers) of query rows [row, row + rows). They rise, so equal ends are equal throughout, which
 * spares the search among the documents in most blocks. */
static void first_keys(const struct uly_mask *mask, int64_t q_first, int64_t k_first, int64_t row,
                       int64_t rows, int64_t *lo)
{
    lo[0] = uly_mask_lo(mask, q_first + row) - k_first;
    lo[rows - 1] = uly_mask_lo(mask, q_first + row + rows - 1) - k_first;
    const bool same = lo[0] == lo[rows - 1];
    for (int64_t i = 1; i < rows - 1; i++)
        lo[i] = same ? lo[0] : uly_mask_lo(mask, q_first + row + i) - k_first;
}

/* c is positive, so that a hidden score of -inf stays that; the scale's sign goes into the packed operand. */
static float base2_scale(double scale)
{
    return fmaxf((float)fabs(scale * LOG2_E), FLT_MIN);
}
static float scale_sign(double scale)
{
    return scale < 0 ? -1.0f : 1.0f;
}

/* ------------------------------------------------------------------ forward */

/* LANES queries of one head. Key numbers are local (row of the call's k). */
struct query_panel {
    int head;
    int64_t row, rows;  /* query rows; rows <= LANES */
    int64_t first, end; /* keys that any of them sees lie in [first, end) */
    int64_t lo[LANES];  /* first visible key of each query; rising, may lie outside of the keys */
    float *q, *o;       /* [dim][LANES] */
    float m[LANES], l[LANES]; /* running maximum of s * c, and sum */
};

static void panel_init(const struct uly_attention_fwd_args *a, struct query_panel *p, float *rows)
{
    const int64_t dim = a->q.dim;
    const int64_t shift = a->q_first - a->k_first; /* query row 0 is at this local key number */
    first_keys(a->mask, a->q_first, a->k_first, p->row, p->rows, p->lo);
    for (int64_t i = 0; i < LANES; i++) {
        p->lo[i] = p->lo[min64(i, p->rows - 1)]; /* lanes without a query follow the last one */
        p->m[i] = -INFINITY;
        p->l[i] = 0.0f;
    }
    p->first = max64(p->lo[0], 0);
    p->end = min64(p->row + p->rows + shift, a->k.rows);
    load_rows(&a->q, p->head, p->row, p->rows, rows);
    pack_lanes(rows, p->rows, dim, scale_sign(a->scale), p->q);
    memset(p->o, 0, (size_t)(dim * LANES) * sizeof *p->o);
}

/* Scores of hidden pairs become -inf: s[n][LANES], keys [key, key + n). */
static void hide_forward(const struct query_panel *p, int64_t shift, int64_t key, int64_t n,
                         float *s)
{
    int64_t end = 0; /* lanes before it have lo <= the key */
    for (int64_t j = 0; j < n; j++, s += LANES) {
        const int64_t begin = min64(max64(key + j - shift - p->row, 0), LANES);
        while (end < LANES && p->lo[end] <= key + j)
            end++;
        fill(s, begin, -INFINITY);
        if (end < LANES)
            fill(s + end, LANES - end, -INFINITY);
    }
}

/* s[n][LANES] becomes 2^(s * c - maximum); the panel's maximum and sum move on, and its o' where a maximum grew. */
static void softmax_step(struct query_panel *p, int64_t dim, int64_t n, float scale2, float *s)
{
    const uly_vf c = uly_vf_set1(scale2);
    uly_vf top[VECTORS], sum[VECTORS], factor[VECTORS];
    int grew = 0;
    for (int v = 0; v < VECTORS; v++)
        top[v] = uly_vf_load(s + v * ULY_VEC_W);
    for (int64_t j = 1; j < n; j++)
        for (int v = 0; v < VECTORS; v++)
            top[v] = uly_vf_max(top[v], uly_vf_load(s + j * LANES + v * ULY_VEC_W));
    for (int v = 0; v < VECTORS; v++) {
        const uly_vf old = uly_vf_load(p->m + v * ULY_VEC_W);
        top[v] = uly_vf_max(old, top[v] * c);
        const uly_vi larger = top[v] > old;
        for (int i = 0; i < ULY_VEC_W; i++)
            grew |= larger[i];
        uly_vf_store(p->m + v * ULY_VEC_W, top[v]);
        /* a lane that has seen nothing yet: -inf - 0 stays -inf, -inf - -inf would be NaN */
        top[v] = uly_vf_select(top[v] == -INFINITY, uly_vf_zero(), top[v]);
        factor[v] = exp2_vector(old - top[v]);
        sum[v] = uly_vf_load(p->l + v * ULY_VEC_W) * factor[v];
    }
    if (grew)
        for (int64_t d = 0; d < dim; d++)
            for (int v = 0; v < VECTORS; v++) {
                float *o = p->o + d * LANES + v * ULY_VEC_W;
                uly_vf_store(o, uly_vf_load(o) * factor[v]);
            }
    for (int64_t j = 0; j < n; j++)
        for (int v = 0; v < VECTORS; v++) {
            const uly_vf e =
                exp2_vector(uly_vf_fma(uly_vf_load(s + j * LANES + v * ULY_VEC_W), c, -top[v]));
            sum[v] += e;
            uly_vf_store(s + j * LANES + v * ULY_VEC_W, e);
        }
    for (int v = 0; v < VECTORS; v++)
        uly_vf_store(p->l + v * ULY_VEC_W, sum[v]);
}

/* row[dim], the result of these keys with log-sum-exp `now`, joined by what o and lse (*at) hold of other keys. */
static void merge_row(const struct uly_heads *o, int h, int64_t i, double now, float *at,
                      float *row)
{
    const double before = (double)*at, largest = fmax(before, now);
    const float *p = (const float *)uly_tensor_address(o->t) + o->offset[h] + i * o->stride[h];
    double lse = -HUGE_VAL, w_before = 0, w_now = 0;
    if (largest > -HUGE_VAL) { /* the larger one is factored out, so that no power overflows */
        lse = largest + log(exp(before - largest) + exp(now - largest));
        w_before = exp(before - lse);
        w_now = exp(now - lse);
    }
    for (int d = 0; d < o->dim; d++)
        row[d] = (float)w_before * p[d] + (float)w_now * row[d];
    *at = (float)lse;
}

static void panel_finish(const struct uly_attention_fwd_args *a, const struct query_panel *p,
                         float *row)
{
    float *lse = (float *)uly_tensor_address(a->lse.t) + a->lse.offset[p->head];
    for (int64_t i = 0; i < p->rows; i++) {
        const bool blind = p->m[i] == -INFINITY && p->l[i] == 0.0f; /* o' is 0 then */
        const double now = blind ? -HUGE_VAL : (double)p->m[i] * LN_2 + log((double)p->l[i]);
        float *at = lse + (p->row + i) * a->lse.stride[p->head];
        unpack_lane(p->o, i, a->q.dim, blind ? 1.0f : 1.0f / p->l[i], row);
        if (a->merge)
            merge_row(&a->o, p->head, p->row + i, now, at, row);
        else
            *at = (float)now;
        store_row(&a->o, p->head, p->row + i, row);
    }
}

static void forward_item(const struct uly_attention_fwd_args *a,
                         const struct uly_cpu_attention_item *item,
                         const struct uly_cpu_attention_hooks *hooks, float *scratch)
{
    const int64_t dim = a->q.dim, shift = a->q_first - a->k_first;
    const int kv = a->kv_of[item->head];
    const float scale2 = base2_scale(a->scale);
    struct query_panel panel[MAX_PANELS];
    float *k = scratch, *v = k + KEYS * dim, *s = v + KEYS * dim, *next = s + KEYS * LANES;
    int64_t first = a->k.rows, end = 0;
    int n = 0;
    for (int h = 0; h < item->n_heads; h++)
        for (int64_t r = 0; r < item->rows; r += LANES, n++, next += 2 * dim * LANES) {
            struct query_panel *p = &panel[n];
            p->head = item->head + h;
            p->row = item->row + r;
            p->rows = min64(item->rows - r, LANES);
            p->q = next;
            p->o = next + dim * LANES;
            panel_init(a, p, k);
            first = min64(first, p->first);
            end = max64(end, p->end);
        }
    for (int64_t k0 = first / KEYS * KEYS; k0 < end; k0 += KEYS) {
        const int64_t x = max64(k0, first), count = min64(k0 + KEYS, end) - x;
        load_rows(&a->k, kv, x, count, k);
        load_rows(&a->v, kv, x, count, v);
        for (int i = 0; i < n; i++) {
            struct query_panel *p = &panel[i];
            const int64_t from = max64(x, p->first), keys = min64(x + count, p->end) - from;
            if (keys <= 0)
                continue;
            const int64_t at = (from - x) * dim;
            product(keys, dim, LANES, (struct left){k + at, dim, 1}, p->q, LANES,
                    (struct result){s, LANES, false});
            if (p->lo[LANES - 1] > from || p->row + shift < from + keys - 1)
                hide_forward(p, shift, from, keys, s);
            softmax_step(p, dim, keys, scale2, s);
            product(dim, keys, LANES, (struct left){v + at, 1, dim}, s, LANES,
                    (struct result){p->o, LANES, true});
        }
        if (hooks->poke)
            hooks->poke(hooks->poke_context);
    }
    for (int i = 0; i < n; i++)
        panel_finish(a, &panel[i], k);
}

/* ------------------------------------------------------------------ backward */

/* A row of the backward: keys of one kv head and everything that belongs to them. */
struct key_row {
    int64_t key, keys;        /* key rows */
    int64_t panels;           /* ceil(keys / LANES) */
    int64_t width;            /* panels * LANES, and room for it between the rows of ds */
    float *kd, *vd, *dk, *dv; /* [panels][dim][LANES] */
    float *kr;                /* [ceil(dim / LANES)][width][LANES] */
    float *q, *d_o;           /* [Q_BLOCK][dim] */
    float *p;                 /* [Q_BLOCK][LANES] */
    float *ds;                /* [Q_BLOCK][ds_row] */
    float *dq;                /* [Q_BLOCK][dq_row] */
    int64_t ds_row, dq_row;
    float scale2;                          /* c */
    float lse[Q_BLOCK], lse_rest[Q_BLOCK]; /* -lse * log2(e) in two parts; see load_queries */
    float delta[Q_BLOCK];                  /* -delta * scale */
    int64_t lo[Q_BLOCK];                   /* first visible key of each query (local) */
    bool blind[Q_BLOCK];                   /* LSE is -inf */
    bool any_blind;
};

static void key_row_init(const struct uly_attention_bwd_args *a, int kv, struct key_row *r,
                         float *next)
{
    const int64_t dim = a->q.dim;
    r->panels = (r->keys + LANES - 1) / LANES;
    r->width = r->panels * LANES;
    r->ds_row = r->width + 16; /* not a power of two: columns fall into different cache sets */
    r->dq_row = round_up(dim, LANES);
    const int64_t panel = r->width * dim;
    r->kd = next, next += panel;
    r->vd = next, next += panel;
    r->dk = next, next += panel;
    r->dv = next, next += panel;
    r->kr = next, next += r->width * r->dq_row;
    r->q = next, next += Q_BLOCK * dim;
    r->d_o = next, next += Q_BLOCK * dim;
    r->p = next, next += Q_BLOCK * LANES;
    r->ds = next, next += Q_BLOCK * r->ds_row;
    r->dq = next;
    memset(r->dk, 0, (size_t)panel * sizeof *r->dk);
    memset(r->dv, 0, (size_t)panel * sizeof *r->dv);
    for (int64_t p = 0; p < r->panels; p++) {
        const int64_t rows = min64(r->keys - p * LANES, LANES);
        float *lane_rows = r->q; /* room for LANES rows until the first queries come */
        load_rows(&a->v, kv, r->key + p * LANES, rows, lane_rows);
        pack_lanes(lane_rows, rows, dim, 1.0f, r->vd + p * LANES * dim);
        load_rows(&a->k, kv, r->key + p * LANES, rows, lane_rows);
        pack_lanes(lane_rows, rows, dim, scale_sign(a->scale), r->kd + p * LANES * dim);
        memset(lane_rows + rows * dim, 0, (size_t)((LANES - rows) * dim) * sizeof *lane_rows);
        pack_steps(lane_rows, LANES, dim, r->width * LANES, r->kr + p * LANES * LANES);
    }
}

static void load_queries(const struct uly_attention_bwd_args *a, int h, int64_t row, int64_t rows,
                         struct key_row *r)
{
    load_rows(&a->q, h, row, rows, r->q);
    load_rows(&a->d_o, h, row, rows, r->d_o);
    first_keys(a->mask, a->q_first, a->k_first, row, rows, r->lo);
    /* what the rounding of c does to a score, done to the LSE as well: their difference then keeps its digits */
    const double exact = fabs(a->scale) * LOG2_E;
    const double lse_scale = exact == 0 ? LOG2_E : LOG2_E * ((double)r->scale2 / exact);
    r->any_blind = false;
    for (int64_t i = 0; i < rows; i++) {
        const float lse = load_one(&a->lse, h, row + i);
        r->blind[i] = lse == -INFINITY;
        r->any_blind |= r->blind[i];
        const double lse2 = r->blind[i] ? 0.0 : -(double)lse * lse_scale;
        r->lse[i] = (float)lse2;
        r->lse_rest[i] = (float)(lse2 - (double)r->lse[i]);
        r->delta[i] = (float)(-(double)load_one(&a->delta, h, row + i) * a->scale);
    }
}

/* Scores of hidden pairs become -inf: s[n][LANES], queries from i on, keys from key on. */
static void hide_backward(const struct key_row *r, int64_t own, int64_t i, int64_t n, int64_t key,
                          float *s)
{
    for (int64_t j = 0; j < n; j++, s += LANES) {
        int64_t begin = min64(max64(r->lo[i + j] - key, 0), LANES);
        int64_t end = min64(max64(own + i + j + 1 - key, 0), LANES);
        if (r->blind[i + j])
            end = 0;
        fill(s, min64(begin, end), -INFINITY);
        fill(s + end, LANES - end, -INFINITY);
    }
}

/* p[n][LANES] in place of the scores, ds in place of dp. */
static void probabilities(const struct key_row *r, int64_t i, int64_t n, double scale, float *p,
                          float *ds)
{
    const uly_vf c = uly_vf_set1(r->scale2), s1 = uly_vf_set1((float)scale);
    for (int64_t j = 0; j < n; j++, p += LANES, ds += r->ds_row) {
        const uly_vf lse = uly_vf_set1(r->lse[i + j]), rest = uly_vf_set1(r->lse_rest[i + j]);
        const uly_vf delta = uly_vf_set1(r->delta[i + j]);
        for (int v = 0; v < VECTORS; v++) {
            const uly_vf e = exp2_vector(uly_vf_fma(uly_vf_load(p + v * ULY_VEC_W), c, lse) + rest);
            const uly_vf g = uly_vf_load(ds + v * ULY_VEC_W) * s1 + delta;
            uly_vf_store(p + v * ULY_VEC_W, e);
            uly_vf_store(ds + v * ULY_VEC_W, e * g);
        }
    }
}

/* One panel of keys against queries [0, rows) of the block, whose first is at local key number `own`. Returns whether any
 * sees any; then its columns of ds are complete. */
static bool panel_backward(const struct uly_attention_bwd_args *a, struct key_row *r, int64_t panel,
                           int64_t own, int64_t rows)
{
    const int64_t dim = a->q.dim;
    const int64_t key = r->key + panel * LANES, keys = min64(r->keys - panel * LANES, LANES);
    int64_t i0 = max64(key - own, 0), i1 = rows;
    while (i1 > i0 && r->lo[i1 - 1] > key + keys - 1)
        i1--;
    if (i0 >= i1)
        return false;
    const int64_t n = i1 - i0, at = panel * LANES * dim;
    float *ds = r->ds + panel * LANES;
    const float *q = r->q + i0 * dim, *d_o = r->d_o + i0 * dim;
    for (int64_t i = 0; i < rows; i++)
        if (i < i0 || i >= i1)
            memset(ds + i * r->ds_row, 0, LANES * sizeof *ds);
    ds += i0 * r->ds_row;
    product(n, dim, LANES, (struct left){q, dim, 1}, r->kd + at, LANES,
            (struct result){r->p, LANES, false});
    product(n, dim, LANES, (struct left){d_o, dim, 1}, r->vd + at, LANES,
            (struct result){ds, r->ds_row, false});
    if (r->any_blind || own + i0 < key + keys - 1 || r->lo[i1 - 1] > key || keys < LANES)
        hide_backward(r, own, i0, n, key, r->p);
    probabilities(r, i0, n, a->scale, r->p, ds);
    product(dim, n, LANES, (struct left){d_o, 1, dim}, r->p, LANES,
            (struct result){r->dv + at, LANES, true});
    product(dim, n, LANES, (struct left){q, 1, dim}, ds, r->ds_row,
            (struct result){r->dk + at, LANES, true});
    return true;
}

/* All panels against the loaded queries; dq[rows][dim] is their gradient from these keys. False: none sees any. */
static bool block_backward(const struct uly_attention_bwd_args *a, struct key_row *r, int64_t own,
                           int64_t rows)
{
    const int64_t dim = a->q.dim;
    int64_t first = r->panels, end = 0; /* the panels that are seen: neighbours */
    for (int64_t p = 0; p < r->panels; p++)
        if (panel_backward(a, r, p, own, rows)) {
            first = min64(first, p);
            end = p + 1;
        }
    if (first >= end)
        return false;
    for (int64_t d = 0; d < dim; d += LANES)
        product(rows, (end - first) * LANES, min64(dim - d, LANES),
                (struct left){r->ds + first * LANES, r->ds_row, 1},
                r->kr + d * r->width + first * LANES * LANES, LANES,
                (struct result){r->dq + d, r->dq_row, false});
    return true;
}

static void key_row_finish(const struct uly_attention_bwd_args *a, int kv, const struct key_row *r)
{
    const int64_t dim = a->q.dim;
    for (int64_t j = 0; j < r->keys; j++) {
        const int64_t at = j / LANES * LANES * dim;
        unpack_lane(r->dk + at, j % LANES, dim, 1.0f, r->q);
        add_row(&a->dk, kv, r->key + j, r->q);
        unpack_lane(r->dv + at, j % LANES, dim, 1.0f, r->q);
        add_row(&a->dv, kv, r->key + j, r->q);
    }
}

static void backward_row(const struct uly_attention_bwd_args *a, int kv, int64_t key, int64_t keys,
                         const struct uly_cpu_attention_hooks *hooks, float *scratch)
{
    const int64_t shift = a->q_first - a->k_first;
    int64_t first, end;
    uly_cpu_attention_queries_of(a, key, keys, &first, &end);
    if (first >= end)
        return;
    struct key_row r = {.key = key, .keys = keys};
    r.scale2 = base2_scale(a->scale);
    key_row_init(a, kv, &r, scratch);
    for (int h = 0; h < a->q.n; h++) {
        if (a->kv_of[h] != kv)
            continue;
        for (int64_t b = first / Q_BLOCK; b * Q_BLOCK < end; b++) {
            const int64_t row = max64(b * Q_BLOCK, first);
            const int64_t rows = min64((b + 1) * Q_BLOCK, end) - row;
            load_queries(a, h, row, rows, &r);
            const bool any = block_backward(a, &r, row + shift, rows);
            hooks->wait(hooks->order, h, b);
            for (int64_t i = 0; any && i < rows; i++)
                add_row(&a->dq, h, row + i, r.dq + i * r.dq_row);
            hooks->done(hooks->order, h, b);
            if (hooks->poke)
                hooks->poke(hooks->poke_context);
        }
    }
    key_row_finish(a, kv, &r);
}

const struct uly_cpu_attention_kernels ULY_ATTENTION_TABLE = {
    .name = ULY_ATTENTION_NAME,
    .lanes = LANES,
    .forward = forward_item,
    .backward = backward_row,
};
