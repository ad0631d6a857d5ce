/* SPDX-License-Identifier: MIT
 *
 * cpu:ref: head views, rope, attention. Attention has no tile and no running maximum: it computes a
 * score again wherever it needs one, so every sum is a plain sum and nothing is allocated.
 */
#include <math.h>

#include "backend/cpu/ref.h"

/* ------------------------------------------------------------------ heads on the move */

static double move_get(const struct uly_head_move_args *args, int h, int64_t row, int d)
{
    double x = uly_ref_head_get(&args->src, h, row, d);
    if (uly_tensor_exists(&args->bias))
        x += uly_ref_get(&args->bias, (int64_t)h * args->src.dim + d, 0);
    return x;
}

static void move_set(const struct uly_head_move_args *args, int h, int64_t row, int d, double x)
{
    if (args->accumulate)
        x += uly_ref_head_get(&args->dst, h, row, d);
    uly_ref_head_set(&args->dst, h, row, d, x);
}

static void move_rotated(const struct uly_head_move_args *args, int h, int64_t row)
{
    const int64_t *position = uly_tensor_address(args->position);
    const double *inv_freq = uly_tensor_address(args->inv_freq);
    double sign = args->rope == ULY_ROPE_INVERSE ? -1 : 1;
    int half = args->src.dim / 2;
    if (uly_tensor_exists(&args->table))
        inv_freq += ((const int32_t *)uly_tensor_address(args->table))[row] * (int64_t)half;
    for (int i = 0; i < half; i++) {
        double angle = (double)position[row] * inv_freq[i];
        double c = cos(angle), s = sign * sin(angle);
        double a = move_get(args, h, row, i), b = move_get(args, h, row, i + half);
        move_set(args, h, row, i, (a * c - b * s) * args->rope_scale);
        move_set(args, h, row, i + half, (b * c + a * s) * args->rope_scale);
    }
}

enum uly_status uly_ref_head_move(struct uly_backend *be, const struct uly_head_move_args *args)
{
    for (int h = 0; h < args->src.n; h++) {
        for (int64_t row = 0; row < args->src.rows; row++) {
            if (args->rope != ULY_ROPE_NONE) {
                move_rotated(args, h, row);
                continue;
            }
            for (int d = 0; d < args->src.dim; d++)
                move_set(args, h, row, d, move_get(args, h, row, d));
        }
        uly_ref_poke(be);
    }
    return ULY_OK;
}

/* a(row, h) . b(other, g) */
static double dot(const struct uly_heads *a, int h, int64_t row, const struct uly_heads *b, int g,
                  int64_t other)
{
    double sum = 0;
    for (int d = 0; d < a->dim; d++)
        sum += uly_ref_head_get(a, h, row, d) * uly_ref_head_get(b, g, other, d);
    return sum;
}

enum uly_status uly_ref_head_dot(struct uly_backend *be, const struct uly_heads *a,
                                 const struct uly_heads *b, const struct uly_heads *out)
{
    (void)be;
    for (int h = 0; h < a->n; h++)
        for (int64_t row = 0; row < a->rows; row++)
            uly_ref_head_set(out, h, row, 0, dot(a, h, row, b, h, row));
    return ULY_OK;
}

/* ------------------------------------------------------------------ attention, forward */

/* Key rows [*from, *to) of this call that query row i of this call sees; may be empty. */
static void visible_keys(const struct uly_mask *mask, int64_t q, int64_t k_first, int64_t k_rows,
                         int64_t *from, int64_t *to)
{
    *from = uly_mask_lo(mask, q) - k_first;
    *to = q + 1 - k_first;
    if (*from < 0)
        *from = 0;
    if (*to > k_rows)
        *to = k_rows;
    if (*to < *from)
        *to = *from;
}

/* What a former result over other keys and this call's weigh in the result over both: natural log-sum-exps, either may be
 * -inf. The larger one is factored out, so that no power overflows. */
struct merge_weights {
    double before, now, lse;
};

static struct merge_weights merge_weights(double before, double now)
{
    double largest = fmax(before, now);
    if (largest == -HUGE_VAL)
        return (struct merge_weights){0, 0, -HUGE_VAL};
    double lse = largest + log(exp(before - largest) + exp(now - largest));
    return (struct merge_weights){exp(before - lse), exp(now - lse), lse};
}

static void attend_row(const struct uly_attention_fwd_args *args, int h, int64_t row)
{
    const struct uly_heads *q = &args->q, *k = &args->k;
    int g = args->kv_of[h];
    int64_t from, to;
    visible_keys(args->mask, args->q_first + row, args->k_first, k->rows, &from, &to);
    double largest = -HUGE_VAL, sum = 0;
    for (int64_t j = from; j < to; j++)
        largest = fmax(largest, args->scale * dot(q, h, row, k, g, j));
    for (int64_t j = from; j < to; j++)
        sum += exp(args->scale * dot(q, h, row, k, g, j) - largest);
    double before = args->merge ? uly_ref_head_get(&args->lse, h, row, 0) : -HUGE_VAL;
    struct merge_weights w = merge_weights(before, from < to ? largest + log(sum) : -HUGE_VAL);
    uly_ref_head_set(&args->lse, h, row, 0, w.lse);
    for (int first = 0; first < q->dim; first += ULY_REF_BLOCK) {
        double o[ULY_REF_BLOCK] = {0};
        int n = q->dim - first < ULY_REF_BLOCK ? q->dim - first : ULY_REF_BLOCK;
        for (int64_t j = from; j < to; j++) {
            double p = w.now * exp(args->scale * dot(q, h, row, k, g, j) - largest) / sum;
            for (int d = 0; d < n; d++)
                o[d] += p * uly_ref_head_get(&args->v, g, j, first + d);
        }
        for (int d = 0; d < n && args->merge; d++)
            o[d] += w.before * uly_ref_head_get(&args->o, h, row, first + d);
        for (int d = 0; d < n; d++)
            uly_ref_head_set(&args->o, h, row, first + d, o[d]);
    }
}

enum uly_status uly_ref_attention_fwd(struct uly_backend *be,
                                      const struct uly_attention_fwd_args *args)
{
    for (int h = 0; h < args->q.n; h++) {
        for (int64_t row = 0; row < args->q.rows; row++) {
            attend_row(args, h, row);
            uly_ref_poke(be);
        }
    }
    return ULY_OK;
}

/* ------------------------------------------------------------------ attention, backward */

/* p and ds of query (h, row) and its kv head's key j; both 0 where the query's LSE is -inf (it saw
 * nothing anywhere). */
static void weight_and_gradient(const struct uly_attention_bwd_args *args, int h, int64_t row,
                                int64_t j, double *p, double *ds)
{
    int g = args->kv_of[h];
    double lse = uly_ref_head_get(&args->lse, h, row, 0);
    *p = *ds = 0;
    if (lse == -HUGE_VAL)
        return;
    *p = exp(args->scale * dot(&args->q, h, row, &args->k, g, j) - lse);
    *ds = *p * args->scale *
          (dot(&args->d_o, h, row, &args->v, g, j) - uly_ref_head_get(&args->delta, h, row, 0));
}

static void add_to(const struct uly_heads *v, int h, int64_t row, int first, int n,
                   const double *sum)
{
    for (int d = 0; d < n; d++)
        uly_ref_head_set(v, h, row, first + d, uly_ref_head_get(v, h, row, first + d) + sum[d]);
}

static void query_gradient(const struct uly_attention_bwd_args *args, int h, int64_t row)
{
    int64_t from, to;
    visible_keys(args->mask, args->q_first + row, args->k_first, args->k.rows, &from, &to);
    for (int first = 0; first < args->q.dim; first += ULY_REF_BLOCK) {
        double dq[ULY_REF_BLOCK] = {0};
        int n = args->q.dim - first < ULY_REF_BLOCK ? args->q.dim - first : ULY_REF_BLOCK;
        for (int64_t j = from; j < to; j++) {
            double p, ds;
            weight_and_gradient(args, h, row, j, &p, &ds);
            for (int d = 0; d < n; d++)
                dq[d] += ds * uly_ref_head_get(&args->k, args->kv_of[h], j, first + d);
        }
        add_to(&args->dq, h, row, first, n, dq);
    }
}

/* dk and dv of columns [first, first + n) of key j of kv head g: over its query heads, over the
 * queries that see it. */
static void key_gradient(const struct uly_attention_bwd_args *args, int g, int64_t j, int first,
                         int n)
{
    double dk[ULY_REF_BLOCK] = {0}, dv[ULY_REF_BLOCK] = {0};
    for (int h = 0; h < args->q.n; h++) {
        for (int64_t row = 0; args->kv_of[h] == g && row < args->q.rows; row++) {
            int64_t from, to;
            visible_keys(args->mask, args->q_first + row, args->k_first, args->k.rows, &from, &to);
            if (j < from || j >= to)
                continue;
            double p, ds;
            weight_and_gradient(args, h, row, j, &p, &ds);
            for (int d = 0; d < n; d++) {
                dk[d] += ds * uly_ref_head_get(&args->q, h, row, first + d);
                dv[d] += p * uly_ref_head_get(&args->d_o, h, row, first + d);
            }
        }
    }
    add_to(&args->dk, g, j, first, n, dk);
    add_to(&args->dv, g, j, first, n, dv);
}

enum uly_status uly_ref_attention_bwd(struct uly_backend *be,
                                      const struct uly_attention_bwd_args *args)
{
    for (int h = 0; h < args->q.n; h++) {
        for (int64_t row = 0; row < args->q.rows; row++) {
            query_gradient(args, h, row);
            uly_ref_poke(be);
        }
    }
    int dim = args->k.dim;
    for (int g = 0; g < args->k.n; g++) {
        for (int64_t j = 0; j < args->k.rows; j++) {
            for (int first = 0; first < dim; first += ULY_REF_BLOCK)
                key_gradient(args, g, j, first,
                             dim - first < ULY_REF_BLOCK ? dim - first : ULY_REF_BLOCK);
            uly_ref_poke(be);
        }
    }
    return ULY_OK;
}
