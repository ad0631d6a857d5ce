/* SPDX-License-Identifier: MIT
 *
 * The stage loop on the fast backend, several blocks of keys long, against plain attention in double.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/cp_plain.h"

static void test_fast_backend(void **state)
{
    (void)state;
    static const int64_t documents[] = {0, 100, 101, 280};
    /* ulysses, ring, heads a stage, query tile, window */
    static const int settings[][5] = {{1, 1, 0, 0, 0},  {2, 1, 0, 0, 0},  {3, 1, 1, 0, 0},
                                      {4, 1, 1, 20, 0}, {1, 2, 0, 0, 0},  {1, 3, 3, 0, 0},
                                      {2, 2, 1, 0, 0},  {1, 4, 0, 0, 70}, {2, 1, 2, 64, 33}};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        struct plain_case c = plain_case_small(301, 6, 2);
        c.D = 16;
        c.starts = documents;
        c.n_docs = i % 2 ? 1 : 4;
        c.ulysses = settings[i][0];
        c.ring = settings[i][1];
        c.heads_per_stage = settings[i][2];
        c.query_tile = settings[i][3];
        c.window = settings[i][4];
        c.backend = "cpu";
        c.model = ULY_DTYPE_F32;
        plain_check(&c, 1e-5);
        c.model = ULY_DTYPE_BF16;
        plain_check(&c, 2e-2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fast_backend),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
