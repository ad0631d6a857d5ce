/* SPDX-License-Identifier: MIT
 *
 * The leak probe, in every method: one token is changed, and no bit of the logits or losses changes where that token must
 * not be seen: in another document, before it, or at the window's distance and beyond. Where it must be seen something
 * does change, so the probe can fail.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "support/methods.h"

enum { S = 53 };
static const int64_t starts[] = {0, 1, 15, 16, 38};
static const int sizes[] = {3, 4, 8};
static const enum uly_dtype dtypes[] = {ULY_DTYPE_F32, ULY_DTYPE_BF16};

/* A case with rows of its own, every token with a label; free_rows frees them. */
static struct model_case probe_case(enum uly_dtype dtype, int64_t n_docs)
{
    struct model_case c = model_case_small(12, 4);
    int32_t *ids, *labels;
    c.backend = "cpu";
    c.dtype = dtype;
    c.V = 40;
    c.logits = true;
    model_make_rows(S, c.V, starts, n_docs, 5, &ids, &labels);
    for (int i = 0; i < S; i++)
        labels[i] = i % 40;
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

/* Changes token `at` and counts the tokens from there to end whose logits change from what they were before; fails where
 * those of another one, or its loss, do. */
static int count_changed(const struct model_case *c, const struct model_grid *grid,
                         const struct model_result *before, int64_t at, int64_t end)
{
    struct model_result after;
    int32_t *ids = (int32_t *)(uintptr_t)c->ids;
    int changed = 0;
    ids[at] = (ids[at] + 1) % (int32_t)c->V;
    model_run_on(c, grid, false, &after);
    ids[at] = (ids[at] + (int32_t)c->V - 1) % (int32_t)c->V;
    for (int64_t i = 0; i < S; i++) {
        size_t row = (size_t)(i * c->V), bytes = (size_t)c->V * sizeof *before->logits;
        bool same = memcmp(before->logits + row, after.logits + row, bytes) == 0;
        bool same_loss = memcmp(before->losses + i, after.losses + i, sizeof *before->losses) == 0;
        if ((i < at || i >= end) && !(same && same_loss))
            fail_msg("ulysses %d ring %d n %d query tile %d %s: token %d sees token %d",
                     grid->ulysses, grid->ring, grid->heads_per_stage, (int)grid->query_tile,
                     uly_dtype_name(c->dtype), (int)i, (int)at);
        changed += !same;
    }
    model_result_clear(&after);
    return changed;
}

/* Calls check for every method on every number of ranks, in both dtypes. */
static void for_every_method(void (*check)(enum uly_dtype dtype, const struct model_grid *grid))
{
    struct model_grid grid;
    for (int method = 0; method < N_METHODS; method++)
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
            for (size_t t = 0; t < sizeof dtypes / sizeof *dtypes; t++)
                if (method_grid(method, 1, sizes[k], 12, 4, &grid))
                    check(dtypes[t], &grid);
}

/* A document's first token, one inside, the last one, and a document of one token. */
static void check_documents(enum uly_dtype dtype, const struct model_grid *grid)
{
    static const int64_t probes[][2] = {{1, 15}, {20, 38}, {37, 38}, {15, 16}}; /* token, end */
    struct model_case c = probe_case(dtype, 5);
    struct model_result before;
    model_run_on(&c, grid, false, &before);
    for (size_t i = 0; i < sizeof probes / sizeof *probes; i++) {
        int64_t at = probes[i][0], end = probes[i][1];
        int changed = count_changed(&c, grid, &before, at, end);
        assert_in_range(changed, (end - at + 1) / 2, end - at);
    }
    model_result_clear(&before);
    free_rows(&c);
}

static void check_window(enum uly_dtype dtype, const struct model_grid *grid)
{
    static const int64_t windows[] = {1, 7, 20};
    for (size_t w = 0; w < sizeof windows / sizeof *windows; w++) {
        struct model_case c = probe_case(dtype, 1);
        struct model_result before;
        c.layers = 1;
        c.window = windows[w];
        model_run_on(&c, grid, false, &before);
        int changed = count_changed(&c, grid, &before, 20, 20 + windows[w]);
        assert_in_range(changed, (windows[w] + 1) / 2, windows[w]);
        if (dtype == ULY_DTYPE_F32) /* bfloat16 may round a change away */
            assert_int_equal(changed, windows[w]);
        model_result_clear(&before);
        free_rows(&c);
    }
}

static void test_documents(void **state)
{
    (void)state;
    for_every_method(check_documents);
}

static void test_windows(void **state)
{
    (void)state;
    for_every_method(check_window);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_documents),
        cmocka_unit_test(test_windows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
