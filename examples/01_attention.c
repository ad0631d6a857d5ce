/* SPDX-License-Identifier: MIT
 *
 * Attention over the ranks of MPI, each with a part of one sequence, checked against one rank that
 * has all of it. ranks: 2
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <ulysses/ulysses.h>

enum { S = 1001, H = 8, K = 2, D = 64 }; /* tokens, query heads, kv heads, head size */

static void check(struct ulysses_comm *comm, enum ulysses_status status)
{
    if (status == ULYSSES_OK)
        return;
    fprintf(stderr, "%s: %s\n", ulysses_status_text(status), ulysses_error_message());
    ulysses_comm_abort(comm, 1);
}

/* [s, heads, D]: this rank's tokens of a tensor that every rank could compute. */
static float *make(const struct ulysses_shard *shard, int heads, double frequency)
{
    int64_t width = (int64_t)heads * D, at = 0;
    float *x = malloc((size_t)(shard->tokens * width + 1) * sizeof *x);
    for (int i = 0; i < shard->n_segments; i++)
        for (int64_t j = 0; j < shard->segment[i].count * width; j++)
            x[at++] = (float)sin(frequency * (double)(shard->segment[i].start * width + j));
    return x;
}

/* Output [s, H, D] of this rank's tokens; the ranks of comm share the sequence. */
static float *attend(struct ulysses_comm *comm, struct ulysses_shard *shard)
{
    struct ulysses_attention_options options = {
        .heads = H, .kv_heads = K, .head_dim = D, .max_tokens = S};
    struct ulysses_mask mask = {.tokens = S};
    struct ulysses_attention *attention;
    check(comm, ulysses_attention_create(comm, &options, &attention));
    check(comm, ulysses_attention_shard(attention, S, shard));
    float *q = make(shard, H, 0.37), *k = make(shard, K, 0.71), *v = make(shard, K, 1.13);
    float *o = make(shard, H, (double)NAN); /* not yet computed */
    int64_t n = ulysses_attention_lse_elements(attention);
    struct ulysses_attention_tensors tensors = {.tokens = shard->tokens,
                                                .q = q,
                                                .k = k,
                                                .v = v,
                                                .o = o,
                                                .lse = malloc((size_t)(n + 1) * sizeof(float)),
                                                .lse_elements = n};
    check(comm, ulysses_attention_forward(attention, &mask, &tensors));
    ulysses_attention_destroy(attention);
    free(q), free(k), free(v), free(tensors.lse);
    return o;
}

int main(void)
{
    struct ulysses_comm *world, *self;
    struct ulysses_shard part, all;
    double worst = 0;
    int wrong = 0;
    if (ulysses_comm_world(&world) != ULYSSES_OK || ulysses_comm_self(&self) != ULYSSES_OK)
        return fprintf(stderr, "%s\n", ulysses_error_message()), 1;
    float *mine = attend(world, &part), *whole = attend(self, &all);
    for (int64_t i = 0; i < part.tokens * H * D; i++) { /* without a ring a shard is one piece */
        double d = fabs((double)(mine[i] - whole[part.segment[0].start * H * D + i]));
        worst = fmax(worst, d);
        wrong |= !(d <= 1e-5); /* NaN is wrong, too */
    }
    printf("rank %d of %d: tokens %d to %d, largest difference from one rank %.1e\n",
           ulysses_comm_rank(world), ulysses_comm_size(world), (int)part.segment[0].start,
           (int)(part.segment[0].start + part.tokens - 1), worst);
    free(mine), free(whole);
    ulysses_comm_destroy(self);
    ulysses_comm_destroy(world);
    return wrong;
}
