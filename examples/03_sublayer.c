/* SPDX-License-Identifier: MIT
 *
 * The fused attention sublayer of a transformer, forward and backward, over two ranks, one query
 * head of each at a time; the output, the gradient of the input and those of the weights are checked
 * against one rank. ranks: 2
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <ulysses/sublayer.h>

enum { S = 517, E = 128, H = 4, K = 2, D = 32 };
enum { NORM, WQ, WK, WV, WO, N_WEIGHTS };

static const int64_t size_of[N_WEIGHTS] = {E, H *D *E, K *D *E, K *D *E, E *H *D};

struct result {
    struct ulysses_shard shard;
    float *x, *y, *o, *lse, *dx; /* dx holds dy until the backward */
    float *weight[N_WEIGHTS], *gradient[N_WEIGHTS];
};

static void check(struct ulysses_comm *comm, enum ulysses_status status)
{
    if (status == ULYSSES_OK)
        return;
    fprintf(stderr, "%s: %s\n", ulysses_status_text(status), ulysses_error_message());
    ulysses_comm_abort(comm, 1);
}

static float *zeros(int64_t n)
{
    return calloc((size_t)n + 1, sizeof(float));
}

/* As good as random for different i, and the same on every rank. */
static float noise(double seed, int64_t i)
{
    return (float)sin(seed * (double)i * (double)i);
}

/* This rank's rows of [S, E]: numbers that depend on the place in the whole sequence alone. */
static float *rows(const struct ulysses_shard *shard, double seed)
{
    float *x = zeros(shard->tokens * E);
    int64_t at = 0;
    for (int i = 0; i < shard->n_segments; i++)
        for (int64_t j = 0; j < shard->segment[i].count * E; j++)
            x[at++] = noise(seed, shard->segment[i].start * E + j);
    return x;
}

static struct result run(struct ulysses_comm *comm)
{
    struct ulysses_sublayer_options options = {.attention = {.heads = H,
                                                             .kv_heads = K,
                                                             .head_dim = D,
                                                             .max_tokens = S,
                                                             .heads_per_stage = 1,
                                                             .training = true},
                                               .hidden = E,
                                               .norm_eps = 1e-5,
                                               .rope_theta = 10000};
    struct ulysses_mask mask = {.tokens = S};
    struct ulysses_sublayer *sublayer;
    struct result r;
    check(comm, ulysses_sublayer_create(comm, &options, &sublayer));
    check(comm, ulysses_sublayer_shard(sublayer, S, &r.shard));
    for (int w = 0; w < N_WEIGHTS; w++) {
        r.weight[w] = zeros(size_of[w]);
        r.gradient[w] = zeros(size_of[w]); /* the backward adds to it */
        for (int64_t j = 0; j < size_of[w]; j++)
            r.weight[w][j] = w == NORM ? 1 : 0.2f * noise(1.3 + 0.17 * w, j);
    }
    int64_t s = r.shard.tokens, n = ulysses_sublayer_lse_elements(sublayer);
    r.x = rows(&r.shard, 0.73);
    r.dx = rows(&r.shard, 0.41);
    r.y = zeros(s * E);
    r.o = zeros(s * H * D);
    r.lse = zeros(n);
    struct ulysses_sublayer_weights weights = {
        r.weight[NORM], r.weight[WQ], r.weight[WK], r.weight[WV], r.weight[WO], NULL,
        NULL,           NULL,         NULL,         NULL,         NULL};
    struct ulysses_sublayer_gradients gradients = {r.gradient[NORM],
                                                   r.gradient[WQ],
                                                   r.gradient[WK],
                                                   r.gradient[WV],
                                                   r.gradient[WO],
                                                   NULL,
                                                   NULL,
                                                   NULL,
                                                   NULL,
                                                   NULL,
                                                   NULL};
    struct ulysses_sublayer_tensors tensors = {.tokens = s,
                                               .x = r.x,
                                               .y = r.y,
                                               .o = r.o,
                                               .lse = r.lse,
                                               .lse_elements = n,
                                               .dy = r.dx,
                                               .dx = r.dx};
    check(comm, ulysses_sublayer_forward(sublayer, &mask, &weights, &tensors));
    check(comm, ulysses_sublayer_backward(sublayer, &mask, &weights, &tensors, &gradients));
    for (int w = 0; w < N_WEIGHTS; w++)
        check(comm, ulysses_sublayer_all_reduce(sublayer, r.gradient[w], size_of[w]));
    ulysses_sublayer_destroy(sublayer);
    return r;
}

static void clear(struct result *r)
{
    for (int w = 0; w < N_WEIGHTS; w++) {
        free(r->weight[w]);
        free(r->gradient[w]);
    }
    free(r->x);
    free(r->y);
    free(r->o);
    free(r->lse);
    free(r->dx);
}

/* Largest difference over the largest value; NaN counts as infinite. */
static double difference(const float *a, const float *b, int64_t n)
{
    double worst = 0, top = 1e-30;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)(a[i] - b[i]));
        if (isnan(d))
            return HUGE_VAL;
        worst = fmax(worst, d);
        top = fmax(top, fabs((double)b[i]));
    }
    return worst / top;
}

int main(void)
{
    struct ulysses_comm *world, *self;
    if (ulysses_comm_world(&world) != ULYSSES_OK || ulysses_comm_self(&self) != ULYSSES_OK) {
        fprintf(stderr, "%s\n", ulysses_error_message());
        return 1;
    }
    struct result part = run(world), whole = run(self);
    int64_t first = part.shard.segment[0].start * E, n = part.shard.tokens * E;
    double y = difference(part.y, whole.y + first, n),
           dx = difference(part.dx, whole.dx + first, n);
    double dw = 0;
    for (int w = 0; w < N_WEIGHTS; w++)
        dw = fmax(dw, difference(part.gradient[w], whole.gradient[w], size_of[w]));
    printf("rank %d of %d: %d tokens, difference of y %.1e, dx %.1e, weight gradients %.1e\n",
           ulysses_comm_rank(world), ulysses_comm_size(world), (int)part.shard.tokens, y, dx, dw);
    int failed = !(y <= 1e-5 && dx <= 1e-5 && dw <= 1e-5);
    clear(&part);
    clear(&whole);
    ulysses_comm_destroy(self);
    ulysses_comm_destroy(world);
    return failed;
}
