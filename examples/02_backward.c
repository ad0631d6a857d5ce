/* SPDX-License-Identifier: MIT
 *
 * Forward and backward of three packed documents under a sliding window, in four settings of the
 * same operator, each checked against one rank that has the whole sequence. ranks: 4
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <ulysses/ulysses.h>

enum { S = 613, H = 8, K = 4, D = 32 };
enum { Q, KEY, V, D_O, O, DQ, DK, DV, N_ARRAYS }; /* the first four are given */

static const int heads_of[N_ARRAYS] = {H, K, K, H, H, H, K, K};
static const int64_t documents[] = {0, 100, 407};
static const struct ulysses_mask mask = {
    .tokens = S, .doc_starts = documents, .n_docs = 3, .window = 150};

struct result {
    struct ulysses_shard shard;
    float *array[N_ARRAYS]; /* [s, heads, D] */
};

static void check(struct ulysses_comm *comm, enum ulysses_status status)
{
    if (status == ULYSSES_OK)
        return;
    fprintf(stderr, "%s: %s\n", ulysses_status_text(status), ulysses_error_message());
    ulysses_comm_abort(comm, 1);
}

/* Inputs depend on the place in the whole sequence alone, so any rank can make its part; what is
 * still to be computed is NaN. */
static float *make(const struct ulysses_shard *shard, int which)
{
    int64_t width = (int64_t)heads_of[which] * D, at = 0;
    float *x = malloc((size_t)(shard->tokens * width + 1) * sizeof *x);
    for (int i = 0; i < shard->n_segments; i++)
        for (int64_t j = 0; j < shard->segment[i].count * width; j++) {
            double place = (double)(shard->segment[i].start * width + j);
            x[at++] = which < O ? (float)sin((0.37 + 0.21 * which) * place) : NAN;
        }
    return x;
}

static struct result run(struct ulysses_comm *comm, struct ulysses_attention_options options)
{
    struct ulysses_attention *attention;
    struct result r;
    options.heads = H;
    options.kv_heads = K;
    options.head_dim = D;
    options.max_tokens = S;
    options.training = true;
    check(comm, ulysses_attention_create(comm, &options, &attention));
    check(comm, ulysses_attention_shard(attention, S, &r.shard));
    for (int i = 0; i < N_ARRAYS; i++)
        r.array[i] = make(&r.shard, i);
    int64_t n = ulysses_attention_lse_elements(attention);
    struct ulysses_attention_tensors t = {.tokens = r.shard.tokens, .lse_elements = n};
    t.lse = malloc((size_t)(n + 1) * sizeof *t.lse);
    t.q = r.array[Q];
    t.k = r.array[KEY];
    t.v = r.array[V];
    t.o = r.array[O];
    t.d_o = r.array[D_O];
    t.dq = r.array[DQ];
    t.dk = r.array[DK];
    t.dv = r.array[DV];
    check(comm, ulysses_attention_forward(attention, &mask, &t));
    check(comm, ulysses_attention_backward(attention, &mask, &t));
    free(t.lse);
    ulysses_attention_destroy(attention);
    return r;
}

static void clear(struct result *r)
{
    for (int i = 0; i < N_ARRAYS; i++)
        free(r->array[i]);
}

/* The largest difference of any element that was computed; NaN counts as infinite. */
static double difference(const struct result *part, const struct result *whole)
{
    double worst = 0;
    for (int a = O; a < N_ARRAYS; a++) {
        int64_t width = (int64_t)heads_of[a] * D, at = 0;
        for (int i = 0; i < part->shard.n_segments; i++)
            for (int64_t j = 0; j < part->shard.segment[i].count * width; j++) {
                int64_t place = part->shard.segment[i].start * width + j;
                double d = fabs((double)(part->array[a][at++] - whole->array[a][place]));
                worst = d <= worst ? worst : isnan(d) ? HUGE_VAL : d;
            }
    }
    return worst;
}

int main(void)
{
    static const struct {
        const char *name;
        struct ulysses_attention_options options;
    } settings[] = {
        {"ulysses: all heads of a rank at once", {.ulysses_size = 4}},
        {"upipe: one head of a rank at a time", {.ulysses_size = 4, .heads_per_stage = 1}},
        {"ring: every rank has all heads", {.ring_size = 4}},
        {"usp: two by two, one head at a time",
         {.ulysses_size = 2, .ring_size = 2, .heads_per_stage = 1}},
    };
    struct ulysses_comm *world, *self;
    int failed = 0;
    if (ulysses_comm_world(&world) != ULYSSES_OK || ulysses_comm_self(&self) != ULYSSES_OK) {
        fprintf(stderr, "%s\n", ulysses_error_message());
        return 1;
    }
    struct result whole = run(self, (struct ulysses_attention_options){0});
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        struct result part = run(world, settings[i].options);
        double worst = difference(&part, &whole);
        printf("rank %d, %-37s %3d tokens, largest difference of o, dq, dk, dv %.1e\n",
               ulysses_comm_rank(world), settings[i].name, (int)part.shard.tokens, worst);
        failed |= !(worst <= 1e-4);
        clear(&part);
    }
    clear(&whole);
    ulysses_comm_destroy(self);
    ulysses_comm_destroy(world);
    return failed;
}
