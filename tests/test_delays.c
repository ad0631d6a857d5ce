/* SPDX-License-Identifier: MIT
 *
 * Whole models over ranks that come to every layer at random times, by every method: the numbers of one rank, and every
 * rank enters the same exchanges, also the ranks and stages without a head or a token. In float64, so that there is no
 * room for a fault.
 *
 * tsan: yes
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

#include "support/methods.h"

static const int64_t starts[] = {0, 1, 14, 15, 30};
static const struct model_grid alone = {1, 1, 1, 0, 0};

static struct model_case case_of(int H, int K, int64_t S, int64_t n_docs)
{
    struct model_case c = model_case_small(H, K);
    int32_t *ids, *labels;
    c.D = 4;
    c.V = 20;
    c.F = 12;
    model_make_rows(S, c.V, starts, n_docs, 5, &ids, &labels);
    labels[0] = 1; /* at least one */
    c.S = S;
    c.starts = starts;
    c.n_docs = n_docs;
    c.ids = ids;
    c.labels = labels;
    return c;
}

static void free_rows(struct model_case *c)
{
    free((void *)(uintptr_t)c->ids);
    free((void *)(uintptr_t)c->labels);
}

static void check_same(const struct model_case *c, const struct model_grid *grid,
                       const struct model_result *got, const struct model_result *want)
{
    const char *name;
    double worst = model_worst_gradient(got, want, 1e-11, 1e-13, &name);
    double loss = fabs(got->loss_sum - want->loss_sum) / fabs(want->loss_sum);
    if (!(worst <= 1) || !(loss <= 1e-12))
        fail_msg("ulysses %d ring %d n %d query tile %d H %d S %d: loss differs by %g, %s by %g "
                 "times what is allowed",
                 grid->ulysses, grid->ring, grid->heads_per_stage, (int)grid->query_tile, c->H,
                 (int)c->S, loss, name, worst);
    for (int64_t i = 0; i < c->S; i++)
        assert_true(fabsf(got->losses[i] - want->losses[i]) <= 1e-6f * (1 + want->losses[i]));
}

static void check_exchanges(const struct model_grid *grid, const struct model_result *r)
{
    int ranks = grid->dp * grid->ulysses * grid->ring;
    for (int i = 0; i < ranks; i++)
        if (r->exchanges[i] != r->exchanges[0] || (ranks > 1 && r->exchanges[i] == 0))
            fail_msg("ulysses %d ring %d n %d: rank %d entered %d exchanges, rank 0 %d",
                     grid->ulysses, grid->ring, grid->heads_per_stage, i, (int)r->exchanges[i],
                     (int)r->exchanges[0]);
}

/* By every method on sp ranks, delayed where slow > 0. */
static void check_methods(struct model_case *c, int sp, int slow)
{
    struct model_result want, got;
    struct model_grid grid;
    c->slow = 0;
    model_run_on(c, &alone, true, &want);
    for (int method = 0; method < N_METHODS; method++) {
        if (!method_grid(method, 1, sp, c->H, c->K, &grid))
            continue;
        c->slow = slow ? slow + method : 0;
        model_run_on(c, &grid, true, &got);
        check_same(c, &grid, &got, &want);
        check_exchanges(&grid, &got);
        model_result_clear(&got);
    }
    model_result_clear(&want);
}

static void test_random_delays(void **state)
{
    (void)state;
    static const int sizes[] = {3, 4, 8};
    for (int k = 0; k < 3; k++) {
        struct model_case c = case_of(12, 4, 41, 5);
        c.qk_norm = k == 1;
        c.checkpointing = k == 2 ? ULY_CHECKPOINT_NONE : ULY_CHECKPOINT_FULL;
        check_methods(&c, sizes[k], 1 + 20 * k);
        free_rows(&c);
    }
}

/* 28 heads on 8 ranks: the last four have three heads, so the fourth stage is empty there. 7 heads: the last rank has
 * none at all. */
static void test_ranks_without_heads(void **state)
{
    (void)state;
    struct model_case c = case_of(28, 4, 41, 5);
    check_methods(&c, 8, 0);
    free_rows(&c);
    c = case_of(7, 7, 29, 4);
    check_methods(&c, 8, 100);
    free_rows(&c);
}

/* Rows of fewer tokens than ranks, alone: shards without a token. */
static void test_ranks_without_tokens(void **state)
{
    (void)state;
    for (int64_t S = 1; S <= 7; S += 2)
        for (int sp = 4; sp <= 8; sp += 4) {
            struct model_case c = case_of(8, 2, S, S > 1 ? 2 : 1);
            check_methods(&c, sp, 0);
            free_rows(&c);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_delays),
        cmocka_unit_test(test_ranks_without_heads),
        cmocka_unit_test(test_ranks_without_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
