/* SPDX-License-Identifier: MIT */
#include "support/cp_plain.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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
    double delta_shift;
    uint64_t slow, calls;           /* seed of random delays, 0: none */
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

/* Up to half a millisecond, so that ranks come to every exchange in another order. */
static void dawdle(struct shard *x)
{
    if (x->slow) {
        struct timespec t = {0, (long)uly_random_below(x->slow, 1, x->calls++, 500000)};
        nanosleep(&t, NULL);
    }
}

static enum uly_status source_qkv(void *context, const struct uly_stage *stage, int64_t row,
                                  int64_t count, const struct uly_heads *q,
                                  const struct uly_heads *k, const struct uly_heads *v)
{
    dawdle(context);
    if (q)
        ULY_TRY(give(context, T_Q, &stage->q, row, count, q));
    if (!k)
        return ULY_OK;
    ULY_TRY(give(context, T_K, &stage->kv_new, row, count, k));
    return give(context, T_V, &stage->kv_new, row, count, v);
}

/* Float64 only. */
static void shift_heads(const struct uly_heads *x, double by)
{
    for (int h = 0; h < x->n; h++)
        for (int64_t i = 0; i < x->rows; i++)
            ((double *)uly_tensor_address(x->t))[x->offset[h] + i * x->stride[h]] += by;
}

static enum uly_status source_d_out(void *context, const struct uly_stage *stage, int64_t row,
                                    int64_t count, const struct uly_heads *d_o,
                                    const struct uly_heads *delta)
{
    struct shard *x = context;
    struct uly_heads o = token_view(x, T_O, row, count, stage->q.head, stage->q.n, false);
    struct uly_heads g = token_view(x, T_DO, row, count, stage->q.head, stage->q.n, true);
    ULY_TRY(uly_head_dot(x->be, &o, &g, delta));
    if (x->delta_shift != 0)
        shift_heads(delta, x->delta_shift);
    return give(x, T_DO, &stage->q, row, count, d_o);
}

static enum uly_status sink_o(void *context, const struct uly_stage *stage, int64_t row,
                              int64_t count, const struct uly_heads *o)
{
    dawdle(context);
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

static void copy_shard(const struct plain_attention *p, struct shard *x, const struct plain_case *c,
                       int rank, bool to_tensor)
{
    double *host[N_TENSORS] = {p->q, p->k, p->v, p->d_o, p->o, p->dq, p->dk, p->dv};
    struct uly_segment segment[2];
    int n = uly_layout(p->S, c->ring, c->ulysses, rank / c->ulysses, rank % c->ulysses, segment);
    int64_t at = 0;
    for (int i = 0; i < n; at += segment[i++].count)
        for (int k = to_tensor ? T_Q : T_O; k <= (to_tensor ? T_DO : T_DV); k++) {
            struct uly_tensor rows = uly_tensor_rows(x->t[k], at, segment[i].count);
            convert(rows, host[k] + segment[i].start * uly_tensor_width(&rows), to_tensor);
        }
}

static enum uly_status make_tensors(const struct plain_case *c, struct shard *x, int64_t s,
                                    struct uly_cp_attention *cp, struct uly_memory *memory,
                                    struct uly_tensor *lse)
{
    struct uly_arena *arena = &memory->arena[ULY_LIFE_SCRATCH];
    enum uly_dtype acc = c->model == ULY_DTYPE_F64 ? ULY_DTYPE_F64 : ULY_DTYPE_F32;
    for (int k = 0; k < N_TENSORS; k++) {
        int heads = k == T_K || k == T_V || k == T_DK || k == T_DV ? c->K : c->H;
        enum uly_dtype dtype = k == T_DK || k == T_DV ? uly_cp_dkv_dtype(cp) : c->model;
        ULY_TRY(uly_tensor_new(arena, "test", dtype, 3, s, heads, c->D, &x->t[k]));
    }
    ULY_TRY(uly_tensor_new(arena, "lse", acc, 1, uly_cp_lse_elements(cp), 1, 1, lse));
    ULY_TRY(uly_memory_reserve(memory));
    for (int i = 0; i < ULY_LIFE_COUNT; i++) /* what is not written must not be read */
        memset(memory->arena[i].base, 0xff, (size_t)memory->arena[i].high);
    for (int k = T_O; k <= T_DV; k++)
        ULY_TRY(uly_fill(x->be, x->t[k], 0));
    return ULY_OK;
}

static int64_t sent(struct uly_comm *comm)
{
    int64_t bytes = uly_comm_counters(comm).bytes;
    uly_comm_reset_counters(comm);
    return bytes;
}

enum uly_status plain_run(const struct plain_case *c, const struct plain_attention *in,
                          struct plain_attention *out, struct uly_comm *comm,
                          struct plain_measures *measures)
{
    struct shard x = {.D = in->D};
    struct uly_memory memory;
    struct uly_mesh mesh;
    struct uly_cp_attention *cp;
    struct plain_measures m;
    struct uly_tensor lse;
    int rank = uly_comm_rank(comm);
    x.delta_shift = c->delta_shift;
    x.slow = c->slow > 0 ? (uint64_t)c->slow * 100 + (uint64_t)rank : 0;
    ULY_TRY(uly_backend_create(c->backend, 1, &x.be));
    uly_memory_init(&memory, uly_backend_space(x.be));
    ULY_TRY(uly_mesh_init(comm, 1, c->ring, c->ulysses, &mesh));
    struct uly_cp_options options = {.H = in->H,
                                     .K = in->K,
                                     .D = in->D,
                                     .heads_per_stage = c->heads_per_stage,
                                     .query_tile = c->query_tile,
                                     .scale = 1 / sqrt(in->D),
                                     .model = c->model,
                                     .training = true,
                                     .serial = c->serial,
                                     .max_tokens = in->S,
                                     .token_tile = c->token_tile};
    ULY_TRY(uly_cp_create(&options, &mesh, x.be, &memory, &cp));
    ULY_TRY(make_tensors(
        c, &x, uly_layout_count(in->S, c->ring, c->ulysses, rank / c->ulysses, rank % c->ulysses),
        cp, &memory, &lse));
    copy_shard(in, &x, c, rank, true);
    struct uly_cp_source source = {&x, source_qkv, source_d_out};
    struct uly_cp_sink sink = {&x, sink_o, sink_dq, sink_dkv};
    ULY_TRY(uly_cp_forward(cp, &in->mask, &source, &sink, lse));
    m.ulysses_forward = sent(mesh.ulysses);
    m.ring_forward = sent(mesh.ring);
    ULY_TRY(uly_cp_backward(cp, &in->mask, &source, &sink, lse));
    m.ulysses_backward = sent(mesh.ulysses);
    m.ring_backward = sent(mesh.ring);
    m.head_bytes = memory.arena[ULY_LIFE_ACTIVATIONS].high;
    m.token_bytes = memory.arena[ULY_LIFE_COMM].high;
    if (measures)
        *measures = m;
    copy_shard(out, &x, c, rank, false);
    uly_cp_destroy(cp);
    uly_mesh_clear(&mesh);
    uly_memory_clear(&memory);
    uly_backend_destroy(x.be);
    return ULY_OK;
}

/* ------------------------------------------------------------------ over ranks, compared */

struct plain_case plain_case_small(int64_t S, int H, int K)
{
    static const int64_t one[] = {0};
    return (struct plain_case){.S = S,
                               .H = H,
                               .K = K,
                               .D = 4,
                               .starts = one,
                               .n_docs = 1,
                               .ulysses = 1,
                               .ring = 1,
                               .token_tile = 64,
                               .backend = "cpu:ref",
                               .model = ULY_DTYPE_F64};
}

struct job {
    const struct plain_case *c;
    const struct plain_attention *in;
    struct plain_attention *out;
    struct plain_measures *measures;
};

static enum uly_status run_rank(struct uly_comm *comm, void *arg)
{
    const struct job *j = arg;
    return plain_run(j->c, j->in, j->out, comm,
                     j->measures ? &j->measures[uly_comm_rank(comm)] : NULL);
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

/* The first numbers of q and k add gap times the eighth that the key lies in to a score. */
static void tilt_scores(const struct plain_case *c, struct plain_attention *p)
{
    if (c->gap == 0)
        return;
    for (int64_t i = 0; i < c->S * c->H; i++)
        p->q[i * c->D] = sqrt(c->D);
    for (int64_t i = 0; i < c->S * c->K; i++)
        p->k[i * c->D] = c->gap * (double)(i / c->K * 8 / c->S);
}

/* What the operator is given in bfloat16 is given to plain attention too: the error left is the operator's own. */
static void round_inputs(const struct plain_case *c, struct plain_attention *p)
{
    int64_t nq = c->S * c->H * c->D, nk = c->S * c->K * c->D;
    double *inputs[] = {p->q, p->d_o, p->k, p->v};
    for (int k = 0; k < 4 && c->model == ULY_DTYPE_BF16; k++)
        for (int64_t i = 0; i < (k < 2 ? nq : nk); i++)
            inputs[k][i] = (double)uly_bf16_to_f32(uly_f32_to_bf16((float)inputs[k][i]));
}

static const char *text_of(const struct plain_case *c)
{
    static _Thread_local char text[256];
    snprintf(
        text, sizeof text,
        "S %d H %d K %d D %d docs %d window %d ulysses %d ring %d n %d query tile %d token tile "
        "%d %s %s%s",
        (int)c->S, c->H, c->K, c->D, (int)c->n_docs, (int)c->window, c->ulysses, c->ring,
        c->heads_per_stage, (int)c->query_tile, (int)c->token_tile, c->backend,
        uly_dtype_name(c->model), c->serial ? " serial" : "");
    return text;
}

/* Root of the mean square of the differences over that of the values. */
static double rms_error_of(const double *got, const double *want, int64_t n)
{
    double difference = 0, size = 1e-300;
    for (int64_t i = 0; i < n; i++) {
        difference += (got[i] - want[i]) * (got[i] - want[i]);
        size += want[i] * want[i];
    }
    return isnan(difference) ? HUGE_VAL : sqrt(difference / size);
}

static void errors(const struct plain_case *c, struct plain_measures *measures,
                   double (*error)(const double *, const double *, int64_t), double e[4])
{
    struct plain_attention in, out;
    int64_t nq = c->S * c->H * c->D, nk = c->S * c->K * c->D;
    plain_init(&in, c->S, c->H, c->K, c->D, c->starts, c->n_docs, c->window, 7);
    plain_init(&out, c->S, c->H, c->K, c->D, c->starts, c->n_docs, c->window, 7);
    tilt_scores(c, &in);
    round_inputs(c, &in);
    plain_dense(&in);
    struct job job = {c, &in, &out, measures};
    if (uly_comm_run_threads(c->ulysses * c->ring, run_rank, &job) != ULY_OK)
        fail_msg("%s: %s\n%s", text_of(c), uly_error_message(), uly_error_trace());
    e[0] = error(out.o, in.o, nq);
    e[1] = error(out.dq, in.dq, nq);
    e[2] = error(out.dk, in.dk, nk);
    e[3] = error(out.dv, in.dv, nk);
    plain_clear(&in);
    plain_clear(&out);
}

void plain_errors(const struct plain_case *c, double e[4], struct plain_measures *measures)
{
    errors(c, measures, error_of, e);
}

void plain_rms_errors(const struct plain_case *c, double e[4])
{
    errors(c, NULL, rms_error_of, e);
}

void plain_check(const struct plain_case *c, double tolerance)
{
    double e[4];
    plain_errors(c, e, NULL);
    for (int i = 0; i < 4; i++)
        if (!(e[i] <= tolerance))
            fail_msg("%s: error of o %g dq %g dk %g dv %g", text_of(c), e[0], e[1], e[2], e[3]);
}
