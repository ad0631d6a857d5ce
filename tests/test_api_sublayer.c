/* SPDX-License-Identifier: MIT
 *
 * The public fused sublayer on thread ranks: the output against its formula in double, gradients
 * against differences of that formula along random directions, layouts against one rank in bfloat16,
 * and what is refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/mem.h"
#include "base/random.h"
#include "ulysses/sublayer.h"

enum { S = 37, E = 22, H = 6, K = 2, D = 8, DOCS = 4 };
/* the tensors that have gradients */
enum { X, NORM, WQ, WK, WV, WO, BQ, BK, BV, BO, Q_NORM, K_NORM, N };

static const int64_t size_of[N] = {S * E, E,    H *D *E, K *D *E, K *D *E, E *H *D,
                                   H *D,  K *D, K *D,    E,       D,       D};
static const int64_t documents[DOCS] = {0, 1, 14, 30};
static const double frequencies[D / 2] = {1, 0.31, 0.1, 0.011};

struct variant {
    bool qkv_bias, out_bias, qk_norm, own_frequencies, in_place;
    double theta, rope_scale, scale;
    int64_t window;
};

static const struct variant variants[] = {
    {.theta = 10000},
    {.qkv_bias = true,
     .out_bias = true,
     .qk_norm = true,
     .own_frequencies = true,
     .rope_scale = 1.25,
     .scale = 0.4,
     .window = 9,
     .in_place = true},
    {.qk_norm = true, .window = 5},
};

static bool has(const struct variant *v, int tensor)
{
    if (tensor == BQ || tensor == BK || tensor == BV)
        return v->qkv_bias;
    if (tensor == BO)
        return v->out_bias;
    return tensor == Q_NORM || tensor == K_NORM ? v->qk_norm : true;
}

static struct ulysses_mask mask_of(const struct variant *v)
{
    return (struct ulysses_mask){S, documents, DOCS, v->window};
}

static void *room(int64_t n, size_t bytes)
{
    void *p = calloc((size_t)n + 1, bytes);
    ULY_BUG_ON(!p);
    return p;
}

/* ------------------------------------------------------------------ the formula, in double */

static void rms_norm(const double *x, const double *w, int64_t n, double *y)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * w[i] / sqrt(sum / (double)n + 1e-5);
}

static void linear(const double *x, const double *w, const double *bias, int out, int in, double *y)
{
    for (int o = 0; o < out; o++) {
        y[o] = bias ? bias[o] : 0;
        for (int i = 0; i < in; i++)
            y[o] += w[o * in + i] * x[i];
    }
}

static int64_t start_of(int64_t token)
{
    int64_t start = 0;
    for (int i = 0; i < DOCS; i++)
        if (documents[i] <= token)
            start = documents[i];
    return start;
}

/* One head of a token: its norm, its rotation. */
static void finish_head(const struct variant *v, double *x, const double *norm, int64_t token)
{
    double y[D];
    double factor = v->rope_scale != 0 ? v->rope_scale : 1;
    if (v->qk_norm)
        rms_norm(x, norm, D, x);
    for (int i = 0; i < D / 2; i++) {
        double f = v->own_frequencies ? frequencies[i]
                   : v->theta != 0    ? pow(v->theta, -2.0 * i / D)
                                      : 0;
        double angle = (double)(token - start_of(token)) * f;
        y[i] = factor * (x[i] * cos(angle) - x[i + D / 2] * sin(angle));
        y[i + D / 2] = factor * (x[i + D / 2] * cos(angle) + x[i] * sin(angle));
    }
    memcpy(x, y, sizeof y);
}

struct plain {
    double q[S][H * D], k[S][K * D], v[S][K * D], o[S][H * D], y[S][E];
};

static void attend(const struct variant *v, struct plain *p, int64_t t, int h)
{
    double w[S], sum = 0, scale = v->scale != 0 ? v->scale : 1 / sqrt(D);
    int64_t lo = start_of(t);
    int kv = h / (H / K);
    if (v->window && t - v->window + 1 > lo)
        lo = t - v->window + 1;
    for (int64_t j = lo; j <= t; j++) {
        double score = 0;
        for (int d = 0; d < D; d++)
            score += p->q[t][h * D + d] * p->k[j][kv * D + d];
        sum += w[j] = exp(scale * score);
    }
    for (int d = 0; d < D; d++) {
        p->o[t][h * D + d] = 0;
        for (int64_t j = lo; j <= t; j++)
            p->o[t][h * D + d] += w[j] / sum * p->v[j][kv * D + d];
    }
}

static void formula(const struct variant *v, double *const a[N], struct plain *p)
{
    for (int64_t t = 0; t < S; t++) {
        double h[E];
        rms_norm(a[X] + t * E, a[NORM], E, h);
        linear(h, a[WQ], v->qkv_bias ? a[BQ] : NULL, H * D, E, p->q[t]);
        linear(h, a[WK], v->qkv_bias ? a[BK] : NULL, K * D, E, p->k[t]);
        linear(h, a[WV], v->qkv_bias ? a[BV] : NULL, K * D, E, p->v[t]);
        for (int i = 0; i < H; i++)
            finish_head(v, p->q[t] + i * D, a[Q_NORM], t);
        for (int i = 0; i < K; i++)
            finish_head(v, p->k[t] + i * D, a[K_NORM], t);
    }
    for (int64_t t = 0; t < S; t++) {
        for (int h = 0; h < H; h++)
            attend(v, p, t, h);
        linear(p->o[t], a[WO], v->out_bias ? a[BO] : NULL, E, H * D, p->y[t]);
        for (int e = 0; e < E; e++)
            p->y[t][e] += a[X][t * E + e];
    }
}

/* ------------------------------------------------------------------ the library's */

struct job {
    const struct variant *v;
    int ring, ulysses, per_stage;
    int64_t query_tile;
    enum ulysses_dtype dtype;
    double *const *in; /* [N] */
    const double *dy;  /* [S, E] */
    double *y;         /* [S, E] out */
    double **grad;     /* [N] out */
};

static void *to_dtype(const double *x, int64_t n, enum ulysses_dtype dtype)
{
    void *p = room(n, 4);
    for (int64_t i = 0; i < n; i++)
        if (dtype == ULYSSES_FLOAT32)
            ((float *)p)[i] = (float)x[i];
        else
            ((uint16_t *)p)[i] = uly_f32_to_bf16((float)x[i]);
    return p;
}

static double from_dtype(const void *p, int64_t i, enum ulysses_dtype dtype)
{
    return dtype == ULYSSES_FLOAT32 ? (double)((const float *)p)[i]
                                    : (double)uly_bf16_to_f32(((const uint16_t *)p)[i]);
}

/* A rank's rows of a [S, E] array; NaN (all ones) where x is NULL. */
static void *rows_in(const double *x, const struct ulysses_shard *shard, enum ulysses_dtype dtype)
{
    double *part = room(shard->tokens * E, sizeof *part);
    int64_t at = 0;
    for (int i = 0; i < shard->n_segments; i++)
        for (int64_t j = 0; j < shard->segment[i].count * E; j++)
            part[at++] = x ? x[shard->segment[i].start * E + j] : (double)NAN;
    void *p = to_dtype(part, at, dtype);
    free(part);
    return p;
}

static void rows_out(double *x, const struct ulysses_shard *shard, const void *p,
                     enum ulysses_dtype dtype)
{
    int64_t at = 0;
    for (int i = 0; i < shard->n_segments; i++)
        for (int64_t j = 0; j < shard->segment[i].count * E; j++)
            x[shard->segment[i].start * E + j] = from_dtype(p, at++, dtype);
}

static struct ulysses_sublayer_options options_of(const struct job *job)
{
    const struct variant *v = job->v;
    return (struct ulysses_sublayer_options){.attention = {.heads = H,
                                                           .kv_heads = K,
                                                           .head_dim = D,
                                                           .scale = v->scale,
                                                           .dtype = job->dtype,
                                                           .max_tokens = S,
                                                           .ring_size = job->ring,
                                                           .ulysses_size = job->ulysses,
                                                           .heads_per_stage = job->per_stage,
                                                           .query_tile = job->query_tile,
                                                           .training = true},
                                             .hidden = E,
                                             .norm_eps = 1e-5,
                                             .qkv_bias = v->qkv_bias,
                                             .out_bias = v->out_bias,
                                             .qk_norm = v->qk_norm,
                                             .rope_theta = v->theta,
                                             .inv_freq = v->own_frequencies ? frequencies : NULL,
                                             .rope_scale = v->rope_scale};
}

struct buffers {
    void *weight[N];
    float *grad[N];
    struct ulysses_sublayer_weights w;
    struct ulysses_sublayer_gradients g;
    struct ulysses_sublayer_tensors t;
    struct ulysses_shard shard;
};

static void make_buffers(const struct job *job, const struct ulysses_sublayer *sublayer,
                         struct buffers *b)
{
    int64_t lse = ulysses_sublayer_lse_elements(sublayer);
    ULY_BUG_ON(ulysses_sublayer_shard(sublayer, S, &b->shard) != ULYSSES_OK);
    for (int i = NORM; i < N; i++) {
        b->weight[i] = has(job->v, i) ? to_dtype(job->in[i], size_of[i], job->dtype) : NULL;
        b->grad[i] = has(job->v, i) ? room(size_of[i], sizeof(float)) : NULL;
    }
    b->w = (struct ulysses_sublayer_weights){b->weight[NORM],   b->weight[WQ],    b->weight[WK],
                                             b->weight[WV],     b->weight[WO],    b->weight[BQ],
                                             b->weight[BK],     b->weight[BV],    b->weight[BO],
                                             b->weight[Q_NORM], b->weight[K_NORM]};
    b->g = (struct ulysses_sublayer_gradients){
        b->grad[NORM], b->grad[WQ], b->grad[WK], b->grad[WV],     b->grad[WO],    b->grad[BQ],
        b->grad[BK],   b->grad[BV], b->grad[BO], b->grad[Q_NORM], b->grad[K_NORM]};
    b->t = (struct ulysses_sublayer_tensors){
        .dtype = job->dtype,
        .tokens = b->shard.tokens,
        .x = rows_in(job->in[X], &b->shard, job->dtype),
        .y = rows_in(NULL, &b->shard, job->dtype),
        .o = room(b->shard.tokens * H * D, 4),
        .lse = room(lse, 4),
        .lse_elements = lse,
        .dx = rows_in(job->v->in_place ? job->dy : NULL, &b->shard, job->dtype)};
    memset(b->t.o, 0xff, (size_t)(b->shard.tokens * H * D) * 4);
    memset(b->t.lse, 0xff, (size_t)lse * 4);
    b->t.dy = job->v->in_place ? b->t.dx : rows_in(job->dy, &b->shard, job->dtype);
}

static void free_buffers(const struct job *job, struct buffers *b)
{
    for (int i = NORM; i < N; i++) {
        free(b->weight[i]);
        free(b->grad[i]);
    }
    free((void *)(uintptr_t)b->t.x);
    free(b->t.y);
    free(b->t.o);
    free(b->t.lse);
    free(b->t.dx);
    if (!job->v->in_place)
        free((void *)(uintptr_t)b->t.dy);
}

static enum ulysses_status forward_backward(struct ulysses_sublayer *sublayer,
                                            const struct job *job, struct buffers *b)
{
    struct ulysses_mask mask = mask_of(job->v);
    enum ulysses_status status = ulysses_sublayer_forward(sublayer, &mask, &b->w, &b->t);
    if (status == ULYSSES_OK)
        status = ulysses_sublayer_backward(sublayer, &mask, &b->w, &b->t, &b->g);
    for (int i = NORM; i < N && status == ULYSSES_OK; i++)
        if (b->grad[i])
            status = ulysses_sublayer_all_reduce(sublayer, b->grad[i], size_of[i]);
    return status;
}

static enum ulysses_status run_rank(struct ulysses_comm *comm, void *arg)
{
    const struct job *job = arg;
    struct ulysses_sublayer_options options = options_of(job);
    struct ulysses_sublayer *sublayer;
    struct buffers b;
    enum ulysses_status status = ulysses_sublayer_create(comm, &options, &sublayer);
    if (status != ULYSSES_OK)
        return status;
    make_buffers(job, sublayer, &b);
    uly_alloc_guard_begin(); /* from here on an allocation is an error */
    status = forward_backward(sublayer, job, &b);
    uly_alloc_guard_end();
    rows_out(job->y, &b.shard, b.t.y, job->dtype);
    rows_out(job->grad[X], &b.shard, b.t.dx, job->dtype);
    for (int i = NORM; i < N && ulysses_comm_rank(comm) == 0; i++)
        for (int64_t j = 0; b.grad[i] && j < size_of[i]; j++)
            job->grad[i][j] = (double)b.grad[i][j];
    free_buffers(job, &b);
    ulysses_sublayer_destroy(sublayer);
    return status;
}

/* ------------------------------------------------------------------ compared */

static double inner(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* Relative L2 distance. */
static double distance(const double *got, const double *want, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (got[i] - want[i]) * (got[i] - want[i]);
    return sqrt(sum / inner(want, want, n));
}

struct arrays {
    double *in[N], *grad[N], *dy, *y;
};

static void make_arrays(struct arrays *a)
{
    for (int i = 0; i < N; i++) {
        bool norm = i == NORM || i == Q_NORM || i == K_NORM;
        a->in[i] = room(size_of[i], sizeof(double));
        a->grad[i] = room(size_of[i], sizeof(double));
        for (int64_t j = 0; j < size_of[i]; j++)
            a->in[i][j] =
                norm + (i == X ? 1 : 0.3) * uly_random_normal(5, (uint64_t)i, (uint64_t)j);
    }
    a->dy = room(S * E, sizeof(double));
    a->y = room(S * E, sizeof(double));
    for (int64_t j = 0; j < S * E; j++)
        a->dy[j] = uly_random_normal(5, N, (uint64_t)j);
}

static void free_arrays(struct arrays *a)
{
    for (int i = 0; i < N; i++) {
        free(a->in[i]);
        free(a->grad[i]);
    }
    free(a->dy);
    free(a->y);
}

static void run_job(const struct job *job)
{
    for (int i = 0; i < N; i++)
        for (int64_t j = 0; j < size_of[i]; j++)
            job->grad[i][j] = (double)NAN;
    for (int64_t j = 0; j < S * E; j++)
        job->y[j] = (double)NAN;
    if (ulysses_comm_run_threads(job->ring * job->ulysses, run_rank, (void *)(uintptr_t)job) !=
        ULYSSES_OK)
        fail_msg("ring %d ulysses %d n %d: %s", job->ring, job->ulysses, job->per_stage,
                 ulysses_error_message());
}

/* Slope of sum(dy * y) along a direction of one tensor, by differences of the formula. */
static double slope(const struct variant *v, struct arrays *a, struct plain *p, int tensor,
                    const double *direction)
{
    double sum[2], *kept = a->in[tensor], *moved = room(size_of[tensor], sizeof(double));
    double step = 1e-5;
    a->in[tensor] = moved;
    for (int side = 0; side < 2; side++) {
        for (int64_t j = 0; j < size_of[tensor]; j++)
            moved[j] = kept[j] + (side ? -step : step) * direction[j];
        formula(v, a->in, p);
        sum[side] = inner(a->dy, p->y[0], S * E);
    }
    a->in[tensor] = kept;
    free(moved);
    return (sum[0] - sum[1]) / (2 * step);
}

static const struct {
    int ring, ulysses, per_stage;
    int64_t query_tile;
} layouts[] = {{1, 1, 0, 0}, {1, 3, 1, 0}, {1, 2, 1, 5}, {2, 2, 1, 0}, {3, 1, 2, 0}};

enum {
    N_LAYOUTS = sizeof layouts / sizeof *layouts,
    N_VARIANTS = sizeof variants / sizeof *variants
};

static struct job job_of(struct arrays *a, int variant, int layout, enum ulysses_dtype dtype)
{
    return (struct job){&variants[variant],
                        layouts[layout].ring,
                        layouts[layout].ulysses,
                        layouts[layout].per_stage,
                        layouts[layout].query_tile,
                        dtype,
                        a->in,
                        a->dy,
                        a->y,
                        a->grad};
}

static void check_gradients(const struct variant *v, struct arrays *a, struct plain *p, int layout)
{
    for (int i = 0; i < N; i++) {
        double *direction = room(size_of[i], sizeof(double));
        for (int round = 0; round < 3 && has(v, i); round++) {
            for (int64_t j = 0; j < size_of[i]; j++)
                direction[j] = uly_random_normal(9, (uint64_t)(N * round + i), (uint64_t)j);
            double want = slope(v, a, p, i, direction);
            double got = inner(a->grad[i], direction, size_of[i]);
            double limit = 1e-5 * sqrt(inner(a->grad[i], a->grad[i], size_of[i]));
            /* a key bias moves all scores of a query alike where nothing rotates: its gradient may vanish */
            if (!(fabs(got - want) <= limit + 1e-6))
                fail_msg("layout %d, tensor %d: slope %.9g, gradient gives %.9g", layout, i, want,
                         got);
        }
        free(direction);
    }
}

static void test_float32(void **state)
{
    (void)state;
    struct plain *p = room(1, sizeof *p), *moved = room(1, sizeof *moved);
    for (int v = 0; v < N_VARIANTS; v++)
        for (int layout = 0; layout < N_LAYOUTS; layout++) {
            struct arrays a;
            make_arrays(&a);
            struct job job = job_of(&a, v, layout, ULYSSES_FLOAT32);
            formula(&variants[v], a.in, p);
            run_job(&job);
            double e = distance(a.y, p->y[0], S * E);
            if (!(e <= 1e-6))
                fail_msg("variant %d, layout %d: y differs by %g", v, layout, e);
            check_gradients(&variants[v], &a, moved, layout);
            free_arrays(&a);
        }
    free(p);
    free(moved);
}

/* Every layout is as near to float32 as one rank is: at most 1.5 times its distance. */
static void test_bfloat16(void **state)
{
    (void)state;
    for (int v = 0; v < N_VARIANTS; v++) {
        struct arrays exact, a;
        double alone[N + 1];
        make_arrays(&exact);
        struct job job = job_of(&exact, v, 0, ULYSSES_FLOAT32);
        run_job(&job);
        for (int layout = 0; layout < N_LAYOUTS; layout++) {
            make_arrays(&a);
            job = job_of(&a, v, layout, ULYSSES_BFLOAT16);
            run_job(&job);
            for (int i = 0; i <= N; i++) {
                if (i < N && (!has(&variants[v], i) || i == BK))
                    continue;
                double e = i < N ? distance(a.grad[i], exact.grad[i], size_of[i])
                                 : distance(a.y, exact.y, S * E);
                if (layout == 0)
                    alone[i] = e;
                if (!(e <= 1.5 * alone[i] && e < 0.1))
                    fail_msg("variant %d, layout %d, tensor %d: error %g, alone %g", v, layout, i,
                             e, alone[i]);
            }
            free_arrays(&a);
        }
        free_arrays(&exact);
    }
}

/* ------------------------------------------------------------------ what is refused */

static void refused(enum ulysses_status status, enum ulysses_status want, const char *words)
{
    if (status != want || !strstr(ulysses_error_message(), words))
        fail_msg("got \"%s\" (%s), wanted %s with \"%s\"", ulysses_error_message(),
                 ulysses_status_text(status), ulysses_status_text(want), words);
}

#define REFUSED_OPTION(field, value, want, words)                                                  \
    do {                                                                                           \
        struct ulysses_sublayer_options bad = options_of(&job);                                    \
        bad.field = value;                                                                         \
        refused(ulysses_sublayer_create(comm, &bad, &sublayer), want, words);                      \
    } while (0)

#define REFUSED_CALL(field, value, words)                                                          \
    do {                                                                                           \
        struct buffers kept = b;                                                                   \
        b.field = value;                                                                           \
        refused(ulysses_sublayer_backward(sublayer, &mask, &b.w, &b.t, &b.g), ULYSSES_ERR_INVALID, \
                words);                                                                            \
        b = kept;                                                                                  \
    } while (0)

static void test_refused(void **state)
{
    (void)state;
    struct arrays a;
    struct buffers b;
    struct ulysses_comm *comm;
    struct ulysses_sublayer *sublayer = NULL;
    make_arrays(&a);
    struct job job = job_of(&a, 0, 0, ULYSSES_FLOAT32);
    struct ulysses_sublayer_options options = options_of(&job);
    assert_int_equal(ulysses_comm_self(&comm), ULYSSES_OK);
    refused(ulysses_sublayer_create(comm, NULL, &sublayer), ULYSSES_ERR_INVALID, "options is NULL");
    REFUSED_OPTION(hidden, 0, ULYSSES_ERR_INVALID, "hidden 0");
    REFUSED_OPTION(norm_eps, -1, ULYSSES_ERR_INVALID, "norm_eps -1");
    REFUSED_OPTION(rope_theta, (double)NAN, ULYSSES_ERR_INVALID, "rope_theta nan");
    REFUSED_OPTION(inv_freq, frequencies, ULYSSES_ERR_USAGE, "both rope_theta and inv_freq");
    REFUSED_OPTION(attention.head_dim, 7, ULYSSES_ERR_UNSUPPORTED, "head_dim 7");
    REFUSED_OPTION(attention.head_dim, 1024, ULYSSES_ERR_UNSUPPORTED, "at most 512");
    REFUSED_OPTION(attention.kv_heads, 4, ULYSSES_ERR_USAGE, "multiple of kv_heads");
    assert_null(sublayer);
    assert_int_equal(ulysses_sublayer_create(comm, &options, &sublayer), ULYSSES_OK);
    make_buffers(&job, sublayer, &b);
    struct ulysses_mask mask = mask_of(job.v);
    assert_int_equal(ulysses_sublayer_forward(sublayer, &mask, &b.w, &b.t), ULYSSES_OK);
    REFUSED_CALL(w.wk, NULL, "wk is NULL");
    REFUSED_CALL(w.bq, b.w.wq, "bq is given, the handle was created without it");
    REFUSED_CALL(g.k_norm, b.g.norm, "k_norm is given");
    REFUSED_CALL(g.wq, b.g.wv, "the gradient of wv overlaps the gradient of wq");
    REFUSED_CALL(t.x, NULL, "x is NULL");
    REFUSED_CALL(t.dx, b.t.o, "dx overlaps o");
    REFUSED_CALL(t.dtype, ULYSSES_BFLOAT16, "dtype 1");
    REFUSED_CALL(t.tokens, S + 1, "holds 37");
    REFUSED_CALL(t.lse_elements, 1, "room for 1 elements");
    refused(ulysses_sublayer_backward(sublayer, &mask, &b.w, &b.t, NULL), ULYSSES_ERR_INVALID,
            "gradients is NULL");
    refused(ulysses_sublayer_all_reduce(sublayer, NULL, 3), ULYSSES_ERR_INVALID, "x is NULL");
    refused(ulysses_sublayer_all_reduce(sublayer, b.g.wq, -1), ULYSSES_ERR_INVALID, "-1 elements");
    /* frozen weights have no gradients, and the others are as they would be */
    struct ulysses_sublayer_gradients only = {.wo = b.g.wo};
    assert_int_equal(ulysses_sublayer_backward(sublayer, &mask, &b.w, &b.t, &only), ULYSSES_OK);
    run_job(&job);
    for (int64_t j = 0; j < size_of[WO]; j++)
        assert_true((double)b.g.wo[j] == a.grad[WO][j]);
    for (int64_t j = 0; j < size_of[WQ]; j++)
        assert_true(b.g.wq[j] == 0);
    ulysses_sublayer_destroy(sublayer);
    ulysses_sublayer_destroy(NULL);
    free_buffers(&job, &b);
    free_arrays(&a);
    ulysses_comm_destroy(comm);
}

static enum ulysses_status ranks_differ(struct ulysses_comm *comm, void *arg)
{
    const struct job *job = arg;
    struct ulysses_sublayer_options options = options_of(job);
    struct ulysses_sublayer *sublayer = NULL;
    options.norm_eps += ulysses_comm_rank(comm);
    refused(ulysses_sublayer_create(comm, &options, &sublayer), ULYSSES_ERR_COMM, "norm_eps");
    options = options_of(job);
    options.rope_theta += ulysses_comm_rank(comm);
    refused(ulysses_sublayer_create(comm, &options, &sublayer), ULYSSES_ERR_COMM, "rotation");
    options = options_of(job);
    for (int k = 1;; k++) { /* rank 1 runs out of memory at every place in turn */
        uly_alloc_fail_at(ulysses_comm_rank(comm) == 1 ? k : 0);
        enum ulysses_status status = ulysses_sublayer_create(comm, &options, &sublayer);
        uly_alloc_fail_at(0);
        if (status == ULYSSES_OK)
            break;
        if (status != ULYSSES_ERR_PEER && status != ULYSSES_ERR_NO_MEMORY)
            return status;
    }
    ulysses_sublayer_destroy(sublayer);
    return ULYSSES_OK;
}

static void test_ranks_differ(void **state)
{
    (void)state;
    struct arrays a;
    make_arrays(&a);
    struct job job = job_of(&a, 0, 1, ULYSSES_FLOAT32);
    if (ulysses_comm_run_threads(3, ranks_differ, &job) != ULYSSES_OK)
        fail_msg("%s", ulysses_error_message());
    free_arrays(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_float32),
        cmocka_unit_test(test_bfloat16),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_ranks_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
