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

/* [s, heads, D]: this rank's tokens of a tensor that every rank could compute. */
static float *make(const struct ulysses_shard *shard, int heads, double frequency)
{
    int64_t width = (int64_t)heads * D, at = shard->segment[0].start * width;
    float *x = malloc((size_t)(shard->tokens * width) * sizeof *x);
    for (int64_t i = 0; i < shard->tokens * width; i++) /* without a ring a shard is one piece */
        x[i] = (float)sin(frequency * (double)(at + i));
    return x;
}

/* Output [s, H, D] of this rank's tokens; the ranks of comm share the sequence. */
static float *attend(struct ulysses_comm *comm, struct ulysses_shard *shard)
{
    struct ulysses_attention_options options = {
        .heads = H, .kv_heads = K, .head_dim = D, .max_tokens = S};
    struct ulysses_mask mask = {.tokens = S}; /* causal, one document */
    struct ulysses_attention_tensors t = {0};
    struct ulysses_attention *attention;
    if (ulysses_attention_create(comm, &options, &attention) != ULYSSES_OK ||
        ulysses_attention_shard(attention, S, shard) != ULYSSES_OK)
        goto failed;
    t.tokens = shard->tokens;
    t.lse_elements = ulysses_attention_lse_elements(attention);
    t.q = make(shard, H, 0.37), t.k = make(shard, K, 0.71), t.v = make(shard, K, 1.13);
    t.o = make(shard, H, (double)NAN); /* not yet computed */
    t.lse = malloc((size_t)t.lse_elements * sizeof *t.lse);
    if (ulysses_attention_forward(attention, &mask, &t) != ULYSSES_OK)
        goto failed;
    ulysses_attention_destroy(attention);
    free((void *)t.q), free((void *)t.k), free((void *)t.v), free(t.lse);
    return t.o;
failed:
    fprintf(stderr, "%s\n", ulysses_error_message());
    ulysses_comm_abort(comm, 1);
    exit(1);
}

int main(void)
{
    struct ulysses_comm *world, *self;
    struct ulysses_shard part, all;
    double worst = 0;
    if (ulysses_comm_world(&world) != ULYSSES_OK || ulysses_comm_self(&self) != ULYSSES_OK)
        return fprintf(stderr, "%s\n", ulysses_error_message()), 1;
    float *mine = attend(world, &part), *whole = attend(self, &all);
    for (int64_t i = 0; i < part.tokens * H * D; i++) {
        double d = fabs((double)(mine[i] - whole[part.segment[0].start * H * D + i]));
        worst = d <= worst ? worst : d; /* NaN stays */
    }
    printf("rank %d of %d: %d tokens from %d on, largest difference from one rank %.1e\n",
           ulysses_comm_rank(world), ulysses_comm_size(world), (int)part.tokens,
           (int)part.segment[0].start, worst);
    free(mine), free(whole);
    ulysses_comm_destroy(self);
    ulysses_comm_destroy(world);
    return !(worst <= 1e-5);
}
