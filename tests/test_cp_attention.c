/* SPDX-License-Identifier: MIT
 *
 * The stage loop over 1 ... 8 ranks (threads) against plain attention in double: o, dq, dk, dv apart, for uneven heads,
 * shared kv heads, any length, documents, windows, any heads a stage, query tiles, rings and their union with all of these.
 *
 * tsan: yes
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "support/cp_plain.h"

static const int64_t several[] = {0, 1, 11, 12, 40};
static const int shapes[][2] = {{8, 8}, {8, 2}, {7, 7}, {6, 2}, {28, 4}, {8, 1}};
/* ulysses, ring */
static const int grids[][2] = {{1, 2}, {1, 3}, {2, 2}, {1, 4}, {3, 2},
                               {2, 3}, {4, 2}, {2, 4}, {1, 8}};

static struct plain_case shape_case(int64_t S, size_t shape)
{
    struct plain_case c = plain_case_small(S, shapes[shape][0], shapes[shape][1]);
    c.starts = several;
    c.n_docs = 5;
    return c;
}

static void test_ulysses_every_shape(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int P = 1; P <= 8; P += P == 4 ? 4 : 1) {
            struct plain_case c = shape_case(61, i);
            c.ulysses = P;
            c.token_tile = 7;
            plain_check(&c, 1e-12);
            c.model = ULY_DTYPE_F32;
            c.token_tile = 64;
            plain_check(&c, 1e-5);
        }
}

static void test_lengths(void **state)
{
    (void)state;
    for (int64_t S = 1; S <= 9; S++)
        for (int P = 1; P <= 8; P++) {
            struct plain_case c = plain_case_small(S, 4, 2);
            c.token_tile = 3;
            c.ulysses = P;
            plain_check(&c, 1e-12);
            c.query_tile = 1;
            plain_check(&c, 1e-12);
            c.query_tile = 0;
            c.ulysses = 1;
            c.ring = P;
            plain_check(&c, 1e-12);
            c.ulysses = 2;
            c.ring = P / 2 + 1;
            plain_check(&c, 1e-12);
        }
}

static void test_stages(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int P = 1; P <= 8; P += 1 + P / 3)
            for (int n = 1; n <= 3 && n <= (shapes[i][0] + P - 1) / P; n++) {
                struct plain_case c = shape_case(53, i);
                c.ulysses = P;
                c.heads_per_stage = n;
                c.token_tile = 16;
                plain_check(&c, 1e-12);
            }
}

static void test_query_tiles(void **state)
{
    (void)state;
    static const int64_t tiles[] = {1, 3, 8, 100};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t t = 0; t < 4; t++) {
            struct plain_case c = shape_case(53, i);
            c.ulysses = (int)(1 + (i + t) % 4);
            c.heads_per_stage = 1 + (int)(t % 2);
            c.query_tile = tiles[t];
            c.token_tile = 5;
            plain_check(&c, 1e-12);
        }
}

static void test_rings(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t g = 0; g < sizeof grids / sizeof *grids; g++) {
            struct plain_case c = shape_case(53 + (int64_t)g, i);
            c.ulysses = grids[g][0];
            c.ring = grids[g][1];
            c.heads_per_stage = (int)((i + g) % 3); /* 0: all */
            c.token_tile = 16;
            if (g % 2)
                c.n_docs = 1;
            plain_check(&c, 1e-12);
            c.model = ULY_DTYPE_F32;
            plain_check(&c, 1e-5);
        }
}

static void test_windows(void **state)
{
    (void)state;
    static const int64_t windows[] = {1, 2, 7, 30, 1000};
    for (size_t w = 0; w < sizeof windows / sizeof *windows; w++)
        for (size_t g = 0; g < sizeof grids / sizeof *grids; g++) {
            struct plain_case c = shape_case(67, 1 + g % 3);
            c.window = windows[w];
            c.ulysses = grids[g][0];
            c.ring = grids[g][1];
            c.n_docs = w % 2 ? 5 : 1;
            plain_check(&c, 1e-12);
            c.ulysses *= c.ring;
            c.ring = 1;
            c.heads_per_stage = 1;
            c.query_tile = 4;
            plain_check(&c, 1e-12);
        }
}

/* Log-sum-exps that differ by 200 and 1e4 between blocks, where a careless merge overflows. A log-sum-exp of 7e4 has 1e-11
 * behind the point in float64 and 4e-3 in float32; dq sums such errors times keys of that size, so in float32 it need only
 * be finite. */
static void test_far_apart(void **state)
{
    (void)state;
    static const double gaps[] = {200, -200, 1e4, -1e4};
    for (size_t i = 0; i < sizeof gaps / sizeof *gaps; i++)
        for (int ring = 1; ring <= 4; ring++) {
            struct plain_case c = plain_case_small(64, 8, 2);
            double e[4];
            c.ring = ring;
            c.gap = gaps[i];
            plain_check(&c, 1e-6);
            c.model = ULY_DTYPE_F32;
            for (int fast = 0; fast < 2; fast++) {
                c.backend = fast ? "cpu" : "cpu:ref";
                plain_errors(&c, e, NULL);
                assert_true(e[0] <= 1e-2 && isfinite(e[1]) && e[2] <= 1e-2 && e[3] <= 1e-2);
            }
        }
}

/* Exchanges in flight, ranks that dawdle: the same errors, to the last bit, as when every exchange is waited for at once
 * and nobody dawdles. */
static void test_delays(void **state)
{
    (void)state;
    for (int slow = 1; slow <= 6; slow++) {
        struct plain_case c = shape_case(53, (size_t)slow % 6);
        double late[4], prompt[4];
        c.ulysses = 1 + slow % 3;
        c.ring = slow % 2 ? 1 : 3;
        c.heads_per_stage = 1;
        c.query_tile = slow % 2 ? 4 : 0;
        c.slow = slow;
        plain_check(&c, 1e-12);
        plain_errors(&c, late, NULL);
        c.slow = 0;
        c.serial = true;
        plain_errors(&c, prompt, NULL);
        for (int i = 0; i < 4; i++)
            assert_true(late[i] == prompt[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ulysses_every_shape),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_stages),
        cmocka_unit_test(test_query_tiles),
        cmocka_unit_test(test_rings),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_far_apart),
        cmocka_unit_test(test_delays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
