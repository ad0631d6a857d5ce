/* SPDX-License-Identifier: MIT
 *
 * The stage loop over 1 ... 8 ranks (threads) against plain attention in double: o, dq, dk, dv apart, for uneven heads,
 * shared kv heads, any length, documents, any heads a stage.
 *
 * tsan: yes
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/cp_plain.h"

static const int64_t one[] = {0}, several[] = {0, 1, 11, 12, 40};
static const int shapes[][2] = {{8, 8}, {8, 2}, {7, 7}, {6, 2}, {28, 4}, {8, 1}};

static void test_ulysses_every_shape(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int P = 1; P <= 8; P += P == 4 ? 4 : 1) {
            plain_check(P, 61, shapes[i][0], shapes[i][1], 4, several, 5, "cpu:ref", ULY_DTYPE_F64,
                        0, 7, 1e-12);
            plain_check(P, 61, shapes[i][0], shapes[i][1], 4, several, 5, "cpu:ref", ULY_DTYPE_F32,
                        0, 64, 1e-5);
        }
}

static void test_lengths(void **state)
{
    (void)state;
    for (int64_t S = 1; S <= 9; S++)
        for (int P = 1; P <= 8; P++)
            plain_check(P, S, 4, 2, 4, one, 1, "cpu:ref", ULY_DTYPE_F64, 0, 3, 1e-12);
}

/* Stages of few heads: the schedule that later methods use must already be the same operator. */
static void test_stages(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int P = 1; P <= 8; P += 1 + P / 3)
            for (int n = 1; n <= 3 && n <= (shapes[i][0] + P - 1) / P; n++)
                plain_check(P, 53, shapes[i][0], shapes[i][1], 4, several, 5, "cpu:ref",
                            ULY_DTYPE_F64, n, 16, 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ulysses_every_shape),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_stages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
