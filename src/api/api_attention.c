/* SPDX-License-Identifier: MIT
 *
 * The public attention handle: options checked and agreed on, buffers made, and the operator run
 * with a source and a sink that move heads between the caller's tensors and the stage loop. The
 * caller's memory is used in place; the one buffer beside the stage loop's is for dk, dv where
 * several ranks' shares are summed in float32 before they are rounded to bfloat16 once.
 */
#include <math.h>

#include "api/api_impl.h"
#include "base/mem.h"
#include "parallel/cp_attention.h"
#include "parallel/layout.h"

enum array { A_Q, A_K, A_V, A_O, A_LSE, A_DO, A_DQ, A_DK, A_DV, N_ARRAYS };

struct ulysses_attention {
    struct uly_api_core core;
    struct uly_cp_options options;
    struct uly_cp_attention *cp;
    struct uly_tensor dk_sum, dv_sum; /* [most s, K, D] float32; absent where nothing is rounded */
    int64_t *view_ints;               /* [2, most entries of a stage], owned */
    int64_t most_entries;
    /* of the call at hand */
    struct uly_api_window window[N_ARRAYS];
    struct uly_tensor dk, dv; /* [s, K, D] where the sink adds: the sums, or the caller's */
};

/* ------------------------------------------------------------------ making it */

static enum uly_status make_sums(struct ulysses_attention *a)
{
    const struct uly_cp_options *o = &a->options;
    struct uly_arena *arena = &a->core.memory.arena[ULY_LIFE_ACTIVATIONS];
    if (!o->training || uly_cp_dkv_dtype(a->cp) == o->model)
        return ULY_OK;
    ULY_TRY(uly_tensor_new(arena, "dk, summed", uly_cp_dkv_dtype(a->cp), 3, o->token_tile, o->K,
                           o->D, &a->dk_sum));
    return uly_tensor_new(arena, "dv, summed", uly_cp_dkv_dtype(a->cp), 3, o->token_tile, o->K,
                          o->D, &a->dv_sum);
}

/* All that a rank makes without the others. */
static enum uly_status build_alone(struct ulysses_attention *a,
                                   const struct ulysses_attention_options *o)
{
    struct uly_cp_options *cp = &a->options;
    ULY_TRY(uly_api_core_backend(&a->core, o));
    *cp = (struct uly_cp_options){
        .H = o->heads,
        .K = o->kv_heads,
        .D = o->head_dim,
        .heads_per_stage = o->heads_per_stage,
        .query_tile = o->query_tile,
        .scale = o->scale != 0 ? o->scale : 1 / sqrt(o->head_dim),
        .model = (enum uly_dtype)o->dtype,
        .training = o->training,
        .serial = o->serial,
        .max_tokens = o->max_tokens,
        /* the whole shard at once: rows only move, no tile is computed on */
        .token_tile =
            uly_layout_max_count(o->max_tokens, a->core.mesh.ring_size, a->core.mesh.ulysses_size)};
    ULY_TRY(uly_cp_create(cp, &a->core.mesh, a->core.be, &a->core.memory, &a->cp));
    ULY_TRY(make_sums(a));
    /* contiguous ranges of heads overlap at their ends only, so kv entries are at most K + Pu */
    a->most_entries = (int64_t)cp->H + cp->K + a->core.mesh.ulysses_size;
    ULY_TRY(ULY_ALLOC(&a->view_ints, 2 * a->most_entries));
    return uly_memory_reserve(&a->core.memory);
}

static enum uly_status create(struct ulysses_comm *comm, const struct ulysses_attention_options *o,
                              struct ulysses_attention **out)
{
    struct ulysses_attention *a = NULL;
    ULY_FAIL_IF(!comm, ULY_ERR_INVALID, "comm is NULL");
    ULY_TRY(uly_comm_agree_status(comm->comm, uly_api_check_options(o, out)));
    ULY_TRY(uly_api_same_options(comm->comm, o));
    enum uly_status status = ULY_ALLOC(&a, 1);
    ULY_TRY_GOTO(uly_comm_agree_status(comm->comm, status), fail);
    ULY_TRY_GOTO(uly_api_core_open(&a->core, comm->comm, o), fail);
    ULY_TRY_GOTO(uly_comm_agree_status(comm->comm, build_alone(a, o)), fail);
    *out = a;
    return ULY_OK;
fail:
    ulysses_attention_destroy(a);
    return status;
}

enum ulysses_status ulysses_attention_create(struct ulysses_comm *comm,
                                             const struct ulysses_attention_options *options,
                                             struct ulysses_attention **out)
{
    return uly_api_status(create(comm, options, out));
}

void ulysses_attention_destroy(struct ulysses_attention *attention)
{
    if (!attention)
        return;
    uly_cp_destroy(attention->cp);
    uly_free(attention->view_ints);
    uly_api_core_clear(&attention->core);
    uly_free(attention);
}

/* ------------------------------------------------------------------ asking it */

enum ulysses_status ulysses_attention_shard(const struct ulysses_attention *attention, int64_t S,
                                            struct ulysses_shard *out)
{
    return uly_api_core_shard(attention ? &attention->core : NULL, S, out);
}

int64_t ulysses_attention_bytes(const struct ulysses_attention *attention)
{
    return attention ? uly_api_core_bytes(&attention->core) : 0;
}

void ulysses_attention_owned_heads(const struct ulysses_attention *attention, int *first,
                                   int *count)
{
    struct uly_head_range owned = {0};
    if (attention)
        owned = uly_head_plan_owned(uly_cp_plan(attention->cp), attention->core.mesh.ulysses_rank);
    *first = owned.first;
    *count = owned.count;
}

int64_t ulysses_attention_lse_elements(const struct ulysses_attention *attention)
{
    return attention ? uly_cp_lse_elements(attention->cp) : 0;
}

/* ------------------------------------------------------------------ source and sink */

/* The heads of a list in rows [row, row + count) of a dense [s, heads, D] tensor. */
static struct uly_heads rows_of(struct ulysses_attention *a, struct uly_tensor t, int64_t row,
                                int64_t count, const int *head, int n)
{
    int64_t *offset = a->view_ints, *stride = offset + a->most_entries;
    ULY_BUG_ON(n > a->most_entries);
    for (int i = 0; i < n; i++) {
        offset[i] = (int64_t)head[i] * a->options.D;
        stride[i] = t.stride;
    }
    return (struct uly_heads){
        uly_tensor_rows(t, row, count), n, count, a->options.D, offset, stride};
}

static enum uly_status give(struct ulysses_attention *a, enum array which,
                            const struct uly_head_entries *list, int64_t row, int64_t count,
                            const struct uly_heads *dst)
{
    return uly_head_move(
        a->core.be,
        &(struct uly_head_move_args){
            .src = rows_of(a, a->window[which].t, row, count, list->head, list->n), .dst = *dst});
}

static enum uly_status source_qkv(void *context, const struct uly_stage *stage, int64_t row,
                                  int64_t count, const struct uly_heads *q,
                                  const struct uly_heads *k, const struct uly_heads *v)
{
    struct ulysses_attention *a = context;
    if (q)
        ULY_TRY(give(a, A_Q, &stage->q, row, count, q));
    if (!k)
        return ULY_OK;
    ULY_TRY(give(a, A_K, &stage->kv_new, row, count, k));
    return give(a, A_V, &stage->kv_new, row, count, v);
}

static enum uly_status source_d_out(void *context, const struct uly_stage *stage, int64_t row,
                                    int64_t count, const struct uly_heads *d_o,
                                    const struct uly_heads *delta)
{
    struct ulysses_attention *a = context;
    const struct uly_head_entries *list = &stage->q;
    struct uly_heads o = rows_of(a, a->window[A_O].t, row, count, list->head, list->n);
    struct uly_heads g = o; /* the same places of another tensor */
    g.t = uly_tensor_rows(a->window[A_DO].t, row, count);
    ULY_TRY(uly_head_dot(a->core.be, &o, &g, delta));
    return give(a, A_DO, list, row, count, d_o);
}

/* Query heads come once, so they are written, not added. */
static enum uly_status take(struct ulysses_attention *a, enum array which,
                            const struct uly_stage *stage, int64_t row, int64_t count,
                            const struct uly_heads *src)
{
    return uly_head_move(
        a->core.be, &(struct uly_head_move_args){.src = *src,
                                                 .dst = rows_of(a, a->window[which].t, row, count,
                                                                stage->q.head, stage->q.n)});
}

static enum uly_status sink_out(void *context, const struct uly_stage *stage, int64_t row,
                                int64_t count, const struct uly_heads *o)
{
    return take(context, A_O, stage, row, count, o);
}

static enum uly_status sink_dq(void *context, const struct uly_stage *stage, int64_t row,
                               int64_t count, const struct uly_heads *dq)
{
    return take(context, A_DQ, stage, row, count, dq);
}

/* Entry by entry, because a kv head that several ranks read stands several times. */
static enum uly_status add_entries(struct ulysses_attention *a, struct uly_tensor to,
                                   const struct uly_head_entries *list, int64_t row, int64_t count,
                                   const struct uly_heads *from)
{
    for (int e = 0; e < list->n; e++) {
        struct uly_heads one = *from;
        one.n = 1;
        one.offset += e;
        one.stride += e;
        ULY_TRY(uly_head_move(a->core.be, &(struct uly_head_move_args){
                                              .src = one,
                                              .dst = rows_of(a, to, row, count, &list->head[e], 1),
                                              .accumulate = true}));
    }
    return ULY_OK;
}

static enum uly_status sink_dkv(void *context, const struct uly_stage *stage, int64_t row,
                                int64_t count, const struct uly_heads *dk,
                                const struct uly_heads *dv)
{
    struct ulysses_attention *a = context;
    ULY_TRY(add_entries(a, a->dk, &stage->kv_done, row, count, dk));
    return add_entries(a, a->dv, &stage->kv_done, row, count, dv);
}

/* ------------------------------------------------------------------ a call */

static enum uly_status check_tensors(const struct ulysses_attention *a, int64_t tokens,
                                     const struct ulysses_attention_tensors *t, bool backward)
{
    const struct uly_cp_options *o = &a->options;
    int64_t lse = uly_cp_lse_elements(a->cp), s, nq, nk;
    ULY_FAIL_IF(!t, ULY_ERR_INVALID, "tensors is NULL");
    ULY_FAIL_IF((int)t->dtype != (int)o->model, ULY_ERR_INVALID,
                "the tensors are of dtype %d, the handle of %d (%s)", (int)t->dtype, (int)o->model,
                uly_dtype_name(o->model));
    ULY_TRY(uly_api_core_tokens(&a->core, tokens, t->tokens, &s));
    ULY_FAIL_IF(t->lse_elements < lse, ULY_ERR_INVALID, "lse has room for %lld elements, not %lld",
                (long long)t->lse_elements, (long long)lse);
    nq = s * o->H * o->D;
    nk = s * o->K * o->D;
    const struct uly_api_array arrays[N_ARRAYS] = {
        [A_Q] = {"q", t->q, nq, o->model, false},
        [A_K] = {"k", t->k, nk, o->model, false},
        [A_V] = {"v", t->v, nk, o->model, false},
        [A_O] = {"o", t->o, nq, o->model, !backward},
        [A_LSE] = {"lse", t->lse, lse, ULY_DTYPE_F32, !backward},
        [A_DO] = {"d_o", t->d_o, nq, o->model, false},
        [A_DQ] = {"dq", t->dq, nq, o->model, true},
        [A_DK] = {"dk", t->dk, nk, o->model, true},
        [A_DV] = {"dv", t->dv, nk, o->model, true},
    };
    return uly_api_check_arrays(arrays, backward ? N_ARRAYS : A_DO);
}

static enum uly_status check_call(const struct ulysses_attention *a,
                                  const struct ulysses_mask *mask,
                                  const struct ulysses_attention_tensors *t, bool backward)
{
    ULY_FAIL_IF(backward && !a->options.training, ULY_ERR_USAGE,
                "backward of a handle that was created without training");
    ULY_TRY(uly_api_check_mask(mask, a->options.max_tokens));
    return check_tensors(a, mask->tokens, t, backward);
}

/* Looks at the caller's arrays for the length of a call. */
static void bind(struct ulysses_attention *a, const struct ulysses_attention_tensors *t,
                 bool backward)
{
    const struct uly_cp_options *o = &a->options;
    const void *memory[N_ARRAYS] = {t->q, t->k, t->v, t->o, t->lse, t->d_o, t->dq, t->dk, t->dv};
    const struct uly_mem_space *space = uly_backend_space(a->core.be);
    for (int i = 0; i < (backward ? N_ARRAYS : A_DO); i++) {
        int heads = i == A_K || i == A_V || i == A_DK || i == A_DV ? o->K : o->H;
        if (i != A_LSE)
            uly_api_window_set(&a->window[i], space, memory[i], o->model, t->tokens, heads, o->D);
    }
    int64_t lse = uly_cp_lse_elements(a->cp);
    uly_api_window_set(&a->window[A_LSE], space, t->lse, ULY_DTYPE_F32, lse, 1, 1);
    a->window[A_LSE].t.n_dim = 1;
}

static enum uly_status run_backward(struct ulysses_attention *a, const struct uly_mask *mask,
                                    const struct uly_cp_source *source,
                                    const struct uly_cp_sink *sink)
{
    struct uly_tensor dk = a->window[A_DK].t, dv = a->window[A_DV].t;
    bool rounded = uly_tensor_exists(&a->dk_sum);
    a->dk = rounded ? uly_tensor_rows(a->dk_sum, 0, dk.shape[0]) : dk;
    a->dv = rounded ? uly_tensor_rows(a->dv_sum, 0, dv.shape[0]) : dv;
    ULY_TRY(uly_fill(a->core.be, a->dk, 0));
    ULY_TRY(uly_fill(a->core.be, a->dv, 0));
    ULY_TRY(uly_cp_backward(a->cp, mask, source, sink, a->window[A_LSE].t));
    if (!rounded)
        return ULY_OK;
    ULY_TRY(uly_cast(a->core.be, a->dk, dk));
    return uly_cast(a->core.be, a->dv, dv);
}

static enum uly_status run(struct ulysses_attention *a, const struct ulysses_mask *mask,
                           const struct ulysses_attention_tensors *t, bool backward)
{
    struct uly_cp_source source = {a, source_qkv, source_d_out};
    struct uly_cp_sink sink = {a, sink_out, sink_dq, sink_dkv};
    ULY_FAIL_IF(!a, ULY_ERR_INVALID, "attention is NULL");
    ULY_TRY(uly_comm_agree_status(a->core.mesh.sp, check_call(a, mask, t, backward)));
    ULY_TRY(uly_api_same_call(a->core.mesh.sp, mask, backward));
    bind(a, t, backward);
    struct uly_mask inner = uly_api_mask(mask);
    if (backward)
        return run_backward(a, &inner, &source, &sink);
    return uly_cp_forward(a->cp, &inner, &source, &sink, a->window[A_LSE].t);
}

enum ulysses_status ulysses_attention_forward(struct ulysses_attention *attention,
                                              const struct ulysses_mask *mask,
                                              const struct ulysses_attention_tensors *tensors)
{
    return uly_api_status(run(attention, mask, tensors, false));
}

enum ulysses_status ulysses_attention_backward(struct ulysses_attention *attention,
                                               const struct ulysses_mask *mask,
                                               const struct ulysses_attention_tensors *tensors)
{
    return uly_api_status(run(attention, mask, tensors, true));
}
