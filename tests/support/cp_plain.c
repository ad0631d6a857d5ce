/* SPDX-License-Identifier: MIT */
#include "support/cp_plain.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "parallel/layout.h"

static double *array(int64_t n, uint64_t seed, uint64_t stream)
{
    double *x = malloc((size_t)(n ? n : 1) * sizeof *x);
    ULY_BUG_ON(!x);
    for (int64_t i = 0; i < n; i++)
        x[i] = stream ? uly_random_normal(seed, stream, (uint64_t)i) : (double)NAN;
    return x;
}

void plain_init(struct plain_attention *p, int64_t S, int H, int K, int D, const int64_t *starts,
                int64_t n_docs, int64_t window, uint64_t seed)
{
    int64_t nq = S * H * D, nk = S * K * D;
    *p = (struct plain_attention){
        .S = S, .H = H, .K = K, .D = D, .mask = {S, starts, n_docs, window}};
    p->q = array(nq, seed, 1);
    p->k = array(nk, seed, 2);
    p->v = array(nk, seed, 3);
    p->d_o = array(nq, seed, 4);
    p->o = array(nq, seed, 0);
    p->dq = array(nq, seed, 0);
    p->dk = array(nk, seed, 0);
    p->dv = array(nk, seed, 0);
}

void plain_clear(struct plain_attention *p)
{
    double *all[] = {p->q, p->k, p->v, p->d_o, p->o, p->dq, p->dk, p->dv};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static double dot(const double *a, const double *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* One query of one head: its weights over keys lo ... q, its output, and its share of all gradients. */
static void dense_row(struct plain_attention *p, int64_t q, int h, double *w)
{
    int D = p->D, kv = h / (p->H / p->K);
    int64_t lo = 0;
    for (int64_t i = 0; i < p->mask.n_docs; i++)
        if (p->mask.starts[i] <= q)
            lo = p->mask.starts[i];
    if (p->mask.window && q - p->mask.window + 1 > lo)
        lo = q - p->mask.window + 1;
    double scale = 1 / sqrt(D), top = -HUGE_VAL, sum = 0, delta = 0;
    const double *Q = p->q + (q * p->H + h) * D, *G = p->d_o + (q * p->H + h) * D;
    double *O = p->o + (q * p->H + h) * D, *dQ = p->dq + (q * p->H + h) * D;
    for (int64_t j = lo; j <= q; j++) {
        w[j] = scale * dot(Q, p->k + (j * p->K + kv) * D, D);
        top = fmax(top, w[j]);
    }
    for (int64_t j = lo; j <= q; j++)
        sum += w[j] = exp(w[j] - top);
    memset(O, 0, (size_t)D * sizeof *O);
    for (int64_t j = lo; j <= q; j++)
        for (int d = 0; d < D; d++)
            O[d] += w[j] / sum * p->v[(j * p->K + kv) * D + d];
    delta = dot(O, G, D);
    for (int64_t j = lo; j <= q; j++) {
        const double *K = p->k + (j * p->K + kv) * D, *V = p->v + (j * p->K + kv) * D;
        double prob = w[j] / sum, ds = prob * (dot(G, V, D) - delta) * scale;
        for (int d = 0; d < D; d++) {
            dQ[d] += ds * K[d];
            p->dk[(j * p->K + kv) * D + d] += ds * Q[d];
            p->dv[(j * p->K + kv) * D + d] += prob * G[d];
        }
    }
}

void plain_dense(struct plain_attention *p)
{
    double *w = malloc((size_t)(p->S + 1) * sizeof *w);
    ULY_BUG_ON(!w);
    memset(p->dq, 0, (size_t)(p->S * p->H * p->D) * sizeof *p->dq);
    memset(p->dk, 0, (size_t)(p->S * p->K * p->D) * sizeof *p->dk);
    memset(p->dv, 0, (size_t)(p->S * p->K * p->D) * sizeof *p->dv);
    for (int h = 0; h < p->H; h++)
        for (int64_t q = 0; q < p->S; q++)
            dense_row(p, q, h, w);
    free(w);
}

/* ------------------------------------------------------------------ the operator on a shard */

enum tensor_kind { T_Q, T_K, T_V, T_DO, T_O, T_DQ, T_DK, T_DV, N_TENSORS };

struct shard {
    struct uly_backend *be;
    struct uly_tensor t[N_TENSORS]; /* [s, heads, D] */
    int D;
    int64_t offset[256], stride[256]; /* room for one view */
    int64_t offset2[256], stride2[256];
};

static struct uly_heads token_view(struct shard *x, enum tensor_kind which, int64_t row,
                                   int64_t count, const int *head, int n, bool second)
{
    struct uly_tensor t = uly_tensor_rows(x->t[which], row, count);
    int64_t *offset = second ? x->offset2 : x->offset, *stride = second ? x->stride2 : x->stride;
    for (int i = 0; i < n; i++) {
        offset[i] = (int64_t)head[i] * x->D;
        stride[i] = t.stride;
    }
    return (struct uly_heads){t, n, count, x->D, offset, stride};
}

static enum uly_status give(struct shard *x, enum tensor_kind which,
                            const struct uly_head_entries *list, int64_t row, int64_t count,
                            const struct uly_heads *dst)
{
    return uly_head_move(
        x->be,
        &(struct uly_head_move_args){
            .src = token_view(x, which, row, count, list->head, list->n, false), .dst = *dst});
}

static enum uly_status take(struct shard *x, enum tensor_kind which,
                            const struct uly_head_entries *list, int64_t row, int64_t count,
                            const struct uly_heads *src)
{
    for (int e = 0; e < list->n; e++) {
        struct uly_heads one = *src;
        one.n = 1;
        one.offset += e;
        one.stride += e;
        ULY_TRY(uly_head_move(x->be,
                              &(struct uly_head_move_args){
                                  .src = one,
                                  .dst = token_view(x, which, row, count, &list->head[e], 1, false),
                                  .accumulate = true}));
    }
    return ULY_OK;
}

static enum uly_status source_qkv(void *context, const struct uly_stage *stage, int64_t row,
                                  int64_t count, const struct uly_heads *q,
                                  const struct uly_heads *k, const struct uly_heads *v)
{
    ULY_TRY(give(context, T_Q, &stage->q, row, count, q));
    ULY_TRY(give(context, T_K, &stage->kv_new, row, count, k));
    return give(context, T_V, &stage->kv_new, row, count, v);
}

static enum uly_status source_d_out(void *context, const struct uly_stage *stage, int64_t row,
                                    int64_t count, const struct uly_heads *d_o,
                                    const struct uly_heads *delta)
{
    struct shard *x = context;
    struct uly_heads o = token_view(x, T_O, row, count, stage->q.head, stage->q.n, false);
    struct uly_heads g = token_view(x, T_DO, row, count, stage->q.head, stage->q.n, true);
    ULY_TRY(uly_head_dot(x->be, &o, &g, delta));
    return give(x, T_DO, &stage->q, row, count, d_o);
}

static enum uly_status sink_o(void *context, const struct uly_stage *stage, int64_t row,
                              int64_t count, const struct uly_heads *o)
{
    return take(context, T_O, &stage->q, row, count, o);
}

static enum uly_status sink_dq(void *context, const struct uly_stage *stage, int64_t row,
                               int64_t count, const struct uly_heads *dq)
{
    return take(context, T_DQ, &stage->q, row, count, dq);
}

static enum uly_status sink_dkv(void *context, const struct uly_stage *stage, int64_t row,
                                int64_t count, const struct uly_heads *dk,
                                const struct uly_heads *dv)
{
    ULY_TRY(take(context, T_DK, &stage->kv_done, row, count, dk));
    return take(context, T_DV, &stage->kv_done, row, count, dv);
}

/* Rows of a global array to a dense tensor of another dtype and back, one element at a time. */
static void convert(struct uly_tensor t, double *host, bool to_tensor)
{
    void *base = uly_tensor_address(t);
    for (int64_t i = 0; i < uly_tensor_count(&t); i++)
        switch (t.dtype) {
        case ULY_DTYPE_F64:
            *(to_tensor ? (double *)base + i : host + i) =
                to_tensor ? host[i] : ((double *)base)[i];
            break;
        case ULY_DTYPE_F32:
            if (to_tensor)
                ((float *)base)[i] = (float)host[i];
            else
                host[i] = (double)((float *)base)[i];
            break;
        default:
            if (to_tensor)
                ((uint16_t *)base)[i] = uly_f32_to_bf16((float)host[i]);
            else
                host[i] = (double)uly_bf16_to_f32(((uint16_t *)base)[i]);
        }
}

static void copy_shard(const struct plain_attention *p, struct shard *x, int P, int rank,
                       bool to_tensor)
{
    double *host[N_TENSORS] = {p->q, p->k, p->v, p->d_o, p->o, p->dq, p->dk, p->dv};
    struct uly_segment segment[2];
    int n = uly_layout(p->S, 1, P, 0, rank, segment);
    int64_t at = 0;
    for (int i = 0; i < n; at += segment[i++].count)
        for (int k = to_tensor ? T_Q : T_O; k <= (to_tensor ? T_DO : T_DV); k++) {
            struct uly_tensor rows = uly_tensor_rows(x->t[k], at, segment[i].count);
            convert(rows, host[k] + segment[i].start * uly_tensor_width(&rows), to_tensor);
        }
}

enum uly_status plain_run(const struct plain_attention *in, struct plain_attention *out,
                          struct uly_comm *comm, const char *backend, enum uly_dtype model,
                          int heads_per_stage, int64_t token_tile)
{
    struct shard x = {.D = in->D};
    struct uly_memory memory;
    struct uly_mesh mesh;
    struct uly_cp_attention *cp;
    int P = uly_comm_size(comm), rank = uly_comm_rank(comm);
    int64_t s = uly_layout_count(in->S, 1, P, 0, rank);
    enum uly_dtype acc = model == ULY_DTYPE_F64 ? ULY_DTYPE_F64 : ULY_DTYPE_F32;
    ULY_TRY(uly_backend_create(backend, 1, &x.be));
    uly_memory_init(&memory, uly_backend_space(x.be));
    ULY_TRY(uly_mesh_init(comm, 1, 1, P, &mesh));
    struct uly_cp_options options = {.H = in->H,
                                     .K = in->K,
                                     .D = in->D,
                                     .heads_per_stage = heads_per_stage,
                                     .scale = 1 / sqrt(in->D),
                                     .model = model,
                                     .training = true,
                                     .max_tokens = in->S,
                                     .token_tile = token_tile};
    ULY_TRY(uly_cp_create(&options, &mesh, x.be, &memory, &cp));
    struct uly_arena *arena = &memory.arena[ULY_LIFE_ACTIVATIONS];
    for (int k = 0; k < N_TENSORS; k++) {
        int heads = k == T_K || k == T_V || k == T_DK || k == T_DV ? in->K : in->H;
        enum uly_dtype dtype = k == T_DK || k == T_DV ? uly_cp_dkv_dtype(cp) : model;
        ULY_TRY(uly_tensor_new(arena, "test", dtype, 3, s, heads, in->D, &x.t[k]));
    }
    struct uly_tensor lse;
    ULY_TRY(uly_tensor_new(arena, "lse", acc, 1, uly_cp_owned_heads(cp) * in->S, 1, 1, &lse));
    ULY_TRY(uly_memory_reserve(&memory));
    for (int i = 0; i < ULY_LIFE_COUNT; i++) /* what is not written must not be read */
        memset(memory.arena[i].base, 0xff, (size_t)memory.arena[i].high);
    for (int k = T_O; k <= T_DV; k++)
        ULY_TRY(uly_fill(x.be, x.t[k], 0));
    copy_shard(in, &x, P, rank, true);
    struct uly_cp_source source = {&x, source_qkv, source_d_out};
    struct uly_cp_sink sink = {&x, sink_o, sink_dq, sink_dkv};
    ULY_TRY(uly_cp_forward(cp, &in->mask, &source, &sink, lse));
    ULY_TRY(uly_cp_backward(cp, &in->mask, &source, &sink, lse));
    copy_shard(out, &x, P, rank, false);
    uly_cp_destroy(cp);
    uly_mesh_clear(&mesh);
    uly_memory_clear(&memory);
    uly_backend_destroy(x.be);
    return ULY_OK;
}

/* ------------------------------------------------------------------ over ranks, compared */

struct job {
    const struct plain_attention *in;
    struct plain_attention *out;
    const char *backend;
    enum uly_dtype model;
    int heads_per_stage;
    int64_t token_tile;
};

static enum uly_status run_rank(struct uly_comm *comm, void *arg)
{
    const struct job *j = arg;
    return plain_run(j->in, j->out, comm, j->backend, j->model, j->heads_per_stage, j->token_tile);
}

/* Largest difference over the largest value. */
static double error_of(const double *got, const double *want, int64_t n)
{
    double worst = 0, top = 1e-300;
    for (int64_t i = 0; i < n; i++) {
        if (isnan(got[i]))
            return HUGE_VAL;
        worst = fmax(worst, fabs(got[i] - want[i]));
        top = fmax(top, fabs(want[i]));
    }
    return worst / top;
}

void plain_check(int ranks, int64_t S, int H, int K, int D, const int64_t *starts, int64_t n_docs,
                 const char *backend, enum uly_dtype model, int per_stage, int64_t tile,
                 double tolerance)
{
    struct plain_attention in, out;
    plain_init(&in, S, H, K, D, starts, n_docs, 0, 7);
    plain_init(&out, S, H, K, D, starts, n_docs, 0, 7);
    plain_dense(&in);
    struct job job = {&in, &out, backend, model, per_stage, tile};
    if (uly_comm_run_threads(ranks, run_rank, &job) != ULY_OK)
        fail_msg("P %d S %d H %d K %d n %d: %s\n%s", ranks, (int)S, H, K, per_stage,
                 uly_error_message(), uly_error_trace());
    double e[4] = {error_of(out.o, in.o, S * H * D), error_of(out.dq, in.dq, S * H * D),
                   error_of(out.dk, in.dk, S * K * D), error_of(out.dv, in.dv, S * K * D)};
    for (int i = 0; i < 4; i++)
        if (!(e[i] <= tolerance))
            fail_msg("P %d S %d H %d K %d n %d tile %d: error of o %g dq %g dk %g dv %g", ranks,
                     (int)S, H, K, per_stage, (int)tile, e[0], e[1], e[2], e[3]);
    plain_clear(&in);
    plain_clear(&out);
}
