/* SPDX-License-Identifier: MIT
 *
 * The sequence over ranks, checked by content against the definition written out with explicit token lists.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "parallel/layout.h"

enum { MAX_S = 3 * 16 * 8 * ULY_TILE };

static int64_t list[MAX_S];

/* The tokens of a rank by the definition: chunks as lists of tiles, joined, cut, expanded. */
static int64_t tokens_of(int64_t S, int Pr, int Pu, int i, int j)
{
    static int64_t joined[MAX_S];
    int64_t tile = S >= 16 * (int64_t)Pr * Pu * ULY_TILE ? ULY_TILE : 1,
            tiles = (S + tile - 1) / tile;
    int64_t n = 0, count = 0;
    int parts = Pr > 1 ? 2 * Pr : 1;
    for (int half = 0; half < (Pr > 1 ? 2 : 1); half++) {
        int chunk = half ? 2 * Pr - 1 - i : (Pr > 1 ? i : 0);
        int64_t at = 0;
        for (int c = 0; c < parts; c++) {
            int64_t size = tiles / parts + (c < tiles % parts);
            for (int64_t t = 0; t < size; t++, at++)
                if (c == chunk)
                    joined[n++] = at;
        }
    }
    int64_t at = 0;
    for (int r = 0; r < Pu; r++) {
        int64_t size = n / Pu + (r < n % Pu);
        for (int64_t t = 0; t < size; t++, at++)
            for (int64_t k = 0; r == j && k < tile; k++)
                if (joined[at] * tile + k < S)
                    list[count++] = joined[at] * tile + k;
    }
    return count;
}

static void check_layout(int64_t S, int Pr, int Pu)
{
    static unsigned char seen[MAX_S];
    for (int64_t t = 0; t < S; t++)
        seen[t] = 0;
    for (int i = 0; i < Pr; i++)
        for (int j = 0; j < Pu; j++) {
            struct uly_segment segment[2];
            int64_t n = tokens_of(S, Pr, Pu, i, j), at = 0;
            int n_segments = uly_layout(S, Pr, Pu, i, j, segment);
            assert_int_equal(uly_layout_count(S, Pr, Pu, i, j), n);
            assert_true(n <= uly_layout_max_count(S, Pr, Pu));
            for (int k = 0; k < n_segments; k++) {
                assert_true(segment[k].count > 0);
                for (int64_t t = 0; t < segment[k].count; t++, at++) {
                    assert_true(at < n);
                    assert_int_equal(segment[k].start + t, list[at]);
                    seen[list[at]]++;
                }
            }
            assert_int_equal(at, n);
        }
    for (int64_t t = 0; t < S; t++)
        assert_int_equal(seen[t], 1);
}

static void test_every_token_once(void **state)
{
    (void)state;
    static const int64_t lengths[] = {0, 1, 2, 3, 5, 7, 8, 31, 64, 257, 4096, 4099, 8191, 16411};
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++)
        for (int Pr = 1; Pr <= 4; Pr++)
            for (int Pu = 1; Pu <= 8; Pu++)
                check_layout(lengths[k], Pr, Pu);
    for (int ranks = 1; ranks <= 8; ranks++) /* around the length where cuts go by tiles */
        for (int64_t d = -1; d <= 1; d++)
            check_layout(16 * (int64_t)ranks * ULY_TILE + d, 1, ranks);
}

static void test_cuts_fall_on_tiles(void **state)
{
    (void)state;
    int64_t S = 16 * 3 * ULY_TILE + 77;
    for (int j = 0; j < 3; j++) {
        struct uly_segment segment[2];
        assert_int_equal(uly_layout(S, 1, 3, 0, j, segment), 1);
        assert_int_equal(segment[0].start % ULY_TILE, 0);
    }
}

/* Eight tokens on a ring of two: the published zigzag [[0 1 6 7] [2 3 4 5]]. */
static void test_zigzag(void **state)
{
    (void)state;
    struct uly_segment s[2];
    assert_int_equal(uly_layout(8, 2, 1, 0, 0, s), 2);
    assert_int_equal(s[0].start, 0);
    assert_int_equal(s[0].count, 2);
    assert_int_equal(s[1].start, 6);
    assert_int_equal(s[1].count, 2);
    assert_int_equal(uly_layout(8, 2, 1, 1, 0, s), 1); /* 2 3 and 4 5 touch */
    assert_int_equal(s[0].start, 2);
    assert_int_equal(s[0].count, 4);
}

/* No length up to a maximum gives a rank more than the bound that memory is planned with. */
static void test_max_count_bounds_shorter_sequences(void **state)
{
    (void)state;
    static const int64_t maxima[] = {1, 5, 100, 4095, 4096, 4097, 12288, 20000};
    for (size_t k = 0; k < sizeof maxima / sizeof *maxima; k++)
        for (int Pr = 1; Pr <= 3; Pr++)
            for (int Pu = 1; Pu <= 4; Pu++)
                for (int64_t S = 0; S <= maxima[k]; S += 1 + S / 7)
                    for (int i = 0; i < Pr; i++)
                        assert_true(uly_layout_count(S, Pr, Pu, i, 0) <=
                                    uly_layout_max_count(maxima[k], Pr, Pu));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_token_once),
        cmocka_unit_test(test_cuts_fall_on_tiles),
        cmocka_unit_test(test_zigzag),
        cmocka_unit_test(test_max_count_bounds_shorter_sequences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
