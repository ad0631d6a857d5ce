/* SPDX-License-Identifier: MIT
 *
 * Any split gives the same numbers: an all-pairs cover of the parity matrix (support/matrix.h), each case in float32 and
 * in bfloat16, one process, ranks as threads. With the environment variable ULY_MATRIX_TABLE=FILE the whole product runs
 * instead, and the differences measured go to FILE as tables for docs/parity.md (`make parity`).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/matrix.h"
#include "support/matrix_table.h"

enum { MOST_CASES = 300, MOST_COMBINATIONS = 20000 };

static int cases[MOST_COMBINATIONS][ALL_PAIRS_FACTORS];

/* All valid combinations of the first factors. */
static int all_combinations(int n_factors)
{
    int n = 0, choice[ALL_PAIRS_FACTORS] = {0};
    do {
        if (!matrix_valid(choice))
            continue;
        assert_true(n < MOST_COMBINATIONS);
        memcpy(cases[n++], choice, sizeof choice);
    } while (all_pairs_next(matrix_levels, n_factors, choice));
    return n;
}

/* Every pair of levels of two factors but the dtype, and each of these in every dtype. */
static int cover(void)
{
    int n = all_pairs_cover(matrix_levels, MATRIX_LAYOUT_FACTORS, matrix_valid, cases, MOST_CASES);
    assert_in_range(n, 1, MOST_CASES);
    for (int i = 0; i < n; i++) {
        memcpy(cases[n + i], cases[i], sizeof cases[i]);
        cases[n + i][MATRIX_DTYPE] = 1;
    }
    return 2 * n;
}

/* Every pair that any combination has is in a case, in both dtypes, and the last case is not there for nothing. */
static void test_cover(void **state)
{
    (void)state;
    int all = all_combinations(MATRIX_FACTORS), pairs = all_pairs_count(MATRIX_FACTORS, cases, all);
    int layouts = all_combinations(MATRIX_LAYOUT_FACTORS);
    int layout_pairs = all_pairs_count(MATRIX_LAYOUT_FACTORS, cases, layouts);
    int n = cover();
    print_message("%d of %d combinations have all %d pairs\n", n, all, pairs);
    assert_int_equal(all_pairs_count(MATRIX_FACTORS, cases, n), pairs);
    assert_int_equal(all_pairs_count(MATRIX_LAYOUT_FACTORS, cases, n / 2), layout_pairs);
    assert_int_equal(all_pairs_count(MATRIX_LAYOUT_FACTORS, cases + n / 2, n / 2), layout_pairs);
    assert_true(all_pairs_count(MATRIX_LAYOUT_FACTORS, cases, n / 2 - 1) < layout_pairs);
}

static bool is_fine(const int *choice, const struct matrix_measure *m)
{
    if (m->loss <= 1 && m->token <= 1 && m->gradient <= 1)
        return true;
    print_error("%s: loss %g, a token's loss %g, gradient of %s %g times what is allowed\n",
                matrix_text(choice), m->loss, m->token, m->tensor, m->gradient);
    return false;
}

static void test_matrix(void **state)
{
    (void)state;
    const char *path = getenv("ULY_MATRIX_TABLE");
    struct matrix_table *table = matrix_table_new();
    int n = path ? all_combinations(MATRIX_FACTORS) : cover();
    int bad = 0;
    for (int i = 0; i < n; i++) {
        struct matrix_measure m;
        matrix_measure(cases[i], &m);
        matrix_table_add(table, cases[i], &m);
        bad += !is_fine(cases[i], &m);
        if (path && (i + 1) % 1000 == 0)
            print_message("%d of %d cases\n", i + 1, n);
    }
    if (path)
        assert_true(matrix_table_write(table, path));
    matrix_table_free(table);
    assert_int_equal(bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cover),
        cmocka_unit_test(test_matrix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
