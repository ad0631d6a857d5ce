/* SPDX-License-Identifier: MIT
 *
 * Wrappers of the operations on head views (moves, attention), and the mask. A view is where an
 * offset gone wrong would write into a neighbour's memory without a sound, so every head of every
 * view is checked against its tensor.
 */
#include "backend/backend.h"
#include "backend/check.h"

int64_t uly_mask_lo(const struct uly_mask *mask, int64_t q)
{
    /* the last start that is <= q, by bisection: below is always <= q, above never */
    int64_t below = 0, above = mask->n_docs;
    while (above - below > 1) {
        int64_t middle = below + (above - below) / 2;
        if (mask->starts[middle] <= q)
            below = middle;
        else
            above = middle;
    }
    int64_t lo = mask->n_docs > 0 ? mask->starts[below] : 0;
    if (mask->window > 0 && q - mask->window + 1 > lo)
        lo = q - mask->window + 1;
    return lo;
}

/* ------------------------------------------------------------------ heads on the move */

static enum uly_status check_rope(struct uly_check c, const struct uly_head_move_args *args)
{
    const struct uly_heads *src = &args->src;
    ULY_FAIL_IF(args->rope != ULY_ROPE_FORWARD && args->rope != ULY_ROPE_INVERSE, ULY_ERR_INVALID,
                "head_move: rope mode %d", (int)args->rope);
    ULY_FAIL_IF(src->dim % 2 != 0, ULY_ERR_INVALID,
                "head_move: a head of %d numbers cannot be rotated in pairs", src->dim);
    ULY_TRY(uly_check_vector(c, "position", &args->position, ULY_BIT_I64, src->rows));
    if (!uly_tensor_exists(&args->table))
        return uly_check_vector(c, "inv_freq", &args->inv_freq, ULY_BIT_F64, src->dim / 2);
    ULY_TRY(uly_check_vector(c, "table", &args->table, ULY_BIT_I32, src->rows));
    ULY_TRY(uly_check_matrix(c, "inv_freq", &args->inv_freq, ULY_BIT_F64, args->inv_freq.shape[0],
                             src->dim / 2));
    ULY_FAIL_IF(args->inv_freq.shape[0] < 1 || !uly_tensor_is_dense(&args->inv_freq),
                ULY_ERR_INVALID, "head_move: inv_freq has %lld tables, or rows apart",
                (long long)args->inv_freq.shape[0]);
    return ULY_OK;
}

enum uly_status uly_head_move(struct uly_backend *be, const struct uly_head_move_args *args)
{
    struct uly_check c = {be, "head_move"};
    const struct uly_heads *src = &args->src;
    unsigned floats = be->dtypes | ULY_BIT_F32;
    ULY_TRY(uly_check_heads(c, "src", src, floats, src->n, src->rows, src->dim));
    ULY_TRY(uly_check_heads(c, "dst", &args->dst, floats, src->n, src->rows, src->dim));
    if (uly_heads_empty(src))
        return ULY_OK;
    if (uly_tensor_exists(&args->bias))
        ULY_TRY(uly_check_vector(c, "bias", &args->bias, be->dtypes, (int64_t)src->n * src->dim));
    if (args->rope != ULY_ROPE_NONE)
        ULY_TRY(check_rope(c, args));
    return be->ops.head_move(be, args);
}

enum uly_status uly_head_dot(struct uly_backend *be, const struct uly_heads *a,
                             const struct uly_heads *b, const struct uly_heads *out)
{
    struct uly_check c = {be, "head_dot"};
    unsigned floats = be->dtypes | ULY_BIT_F32;
    ULY_TRY(uly_check_heads(c, "a", a, floats, a->n, a->rows, a->dim));
    ULY_TRY(uly_check_heads(c, "b", b, floats, a->n, a->rows, a->dim));
    ULY_TRY(uly_check_heads(c, "out", out, uly_acc_bit(a->t.dtype), a->n, a->rows, 1));
    return uly_heads_empty(a) ? ULY_OK : be->ops.head_dot(be, a, b, out);
}

/* ------------------------------------------------------------------ attention */

/* Rows of queries and keys inside the sequence; documents that start at 0 and do not go back. */
static enum uly_status check_mask(struct uly_check c, const struct uly_mask *mask, int64_t q_first,
                                  int64_t q_rows, int64_t k_first, int64_t k_rows)
{
    ULY_FAIL_IF(!mask, ULY_ERR_INVALID, "%s: no mask", c.op);
    ULY_FAIL_IF(mask->S < 0 || mask->window < 0 || mask->n_docs < (mask->S > 0), ULY_ERR_INVALID,
                "%s: a mask of %lld tokens, %lld documents, window %lld", c.op, (long long)mask->S,
                (long long)mask->n_docs, (long long)mask->window);
    for (int64_t i = 0; i < mask->n_docs; i++) {
        int64_t least = i == 0 ? 0 : mask->starts[i - 1];
        int64_t most = i == 0 ? 0 : mask->S;
        ULY_FAIL_IF(mask->starts[i] < least || mask->starts[i] > most, ULY_ERR_INVALID,
                    "%s: document %lld starts at %lld, after %lld, in a sequence of %lld", c.op,
                    (long long)i, (long long)mask->starts[i], (long long)least, (long long)mask->S);
    }
    ULY_FAIL_IF(q_first < 0 || q_rows > mask->S || q_first > mask->S - q_rows, ULY_ERR_INVALID,
                "%s: %lld queries from %lld on leave the sequence of %lld", c.op, (long long)q_rows,
                (long long)q_first, (long long)mask->S);
    ULY_FAIL_IF(k_first < 0 || k_rows > mask->S || k_first > mask->S - k_rows, ULY_ERR_INVALID,
                "%s: %lld keys from %lld on leave the sequence of %lld", c.op, (long long)k_rows,
                (long long)k_first, (long long)mask->S);
    return ULY_OK;
}

static enum uly_status check_kv_of(struct uly_check c, const int *kv_of, int n, int n_kv)
{
    ULY_FAIL_IF(n > 0 && !kv_of, ULY_ERR_INVALID, "%s: no kv_of", c.op);
    for (int h = 0; h < n; h++)
        ULY_FAIL_IF(kv_of[h] < 0 || kv_of[h] >= n_kv, ULY_ERR_INVALID,
                    "%s: query head %d reads kv head %d of %d", c.op, h, kv_of[h], n_kv);
    return ULY_OK;
}

enum uly_status uly_attention_fwd(struct uly_backend *be, const struct uly_attention_fwd_args *args)
{
    struct uly_check c = {be, "attention_fwd"};
    const struct uly_heads *q = &args->q, *k = &args->k;
    unsigned model = uly_heads_empty(q) ? be->dtypes : be->dtypes & uly_bit(q->t.dtype);
    int dim = q->n > 0 ? q->dim : k->dim;
    ULY_TRY(uly_check_heads(c, "q", q, be->dtypes, q->n, q->rows, dim));
    ULY_TRY(uly_check_heads(c, "k", k, model, k->n, k->rows, dim));
    ULY_TRY(uly_check_heads(c, "v", &args->v, model, k->n, k->rows, dim));
    unsigned acc = uly_acc_bit(q->t.dtype);
    ULY_TRY(uly_check_heads(c, "o", &args->o, args->merge ? acc : model | acc, q->n, q->rows, dim));
    ULY_TRY(uly_check_heads(c, "lse", &args->lse, uly_acc_bit(q->t.dtype), q->n, q->rows, 1));
    ULY_TRY(check_kv_of(c, args->kv_of, q->n, k->n));
    ULY_TRY(check_mask(c, args->mask, args->q_first, q->rows, args->k_first, k->rows));
    return uly_heads_empty(q) ? ULY_OK : be->ops.attention_fwd(be, args);
}

enum uly_status uly_attention_bwd(struct uly_backend *be, const struct uly_attention_bwd_args *args)
{
    struct uly_check c = {be, "attention_bwd"};
    const struct uly_heads *q = &args->q, *k = &args->k;
    unsigned model = uly_heads_empty(q) ? be->dtypes : be->dtypes & uly_bit(q->t.dtype);
    int dim = q->n > 0 ? q->dim : k->dim;
    unsigned acc = uly_acc_bit(q->t.dtype);
    ULY_TRY(uly_check_heads(c, "q", q, be->dtypes, q->n, q->rows, dim));
    ULY_TRY(uly_check_heads(c, "k", k, model, k->n, k->rows, dim));
    ULY_TRY(uly_check_heads(c, "v", &args->v, model, k->n, k->rows, dim));
    ULY_TRY(uly_check_heads(c, "d_o", &args->d_o, model, q->n, q->rows, dim));
    ULY_TRY(uly_check_heads(c, "lse", &args->lse, acc, q->n, q->rows, 1));
    ULY_TRY(uly_check_heads(c, "delta", &args->delta, acc, q->n, q->rows, 1));
    ULY_TRY(uly_check_heads(c, "dq", &args->dq, acc, q->n, q->rows, dim));
    if (!uly_heads_empty(q)) { /* without queries nothing is added, whatever the views' dtype */
        ULY_TRY(uly_check_heads(c, "dk", &args->dk, acc, k->n, k->rows, dim));
        ULY_TRY(uly_check_heads(c, "dv", &args->dv, acc, k->n, k->rows, dim));
    }
    ULY_TRY(check_kv_of(c, args->kv_of, q->n, k->n));
    ULY_TRY(check_mask(c, args->mask, args->q_first, q->rows, args->k_first, k->rows));
    bool nothing = uly_heads_empty(q) || uly_heads_empty(k);
    return nothing ? ULY_OK : be->ops.attention_bwd(be, args);
}
