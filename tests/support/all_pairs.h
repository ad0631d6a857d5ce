/* SPDX-License-Identifier: MIT
 *
 * Few cases out of a product of factors such that every pair of levels of two factors that can occur does occur.
 *
 *   static bool valid(const int *choice) { return !(choice[0] == 2 && choice[1] == 0); }
 *   int levels[] = {3, 2, 4}, cases[3 * 2 * 4][ALL_PAIRS_FACTORS];
 *   int n = all_pairs_cover(levels, 3, valid, cases, 24);
 */
#ifndef ULY_TESTS_ALL_PAIRS_H
#define ULY_TESTS_ALL_PAIRS_H

#include <stdbool.h>

enum { ALL_PAIRS_FACTORS = 8, ALL_PAIRS_LEVELS = 16 }; /* at most */

typedef bool (*all_pairs_valid_fn)(const int *choice); /* [n_factors] levels */

/* Greedy: takes the valid combination that has most pairs not seen before; of several the one whose levels were taken
 * least often, and of these the first in lexicographic order; until none has a new pair. The same cases every time.
 * Returns how many; -1 where they are more than `most`. */
int all_pairs_cover(const int *levels, int n_factors, all_pairs_valid_fn valid,
                    int (*cases)[ALL_PAIRS_FACTORS], int most);

/* The pairs that n cases have, all different. With all valid combinations as the cases: the pairs that can occur. */
int all_pairs_count(int n_factors, int (*cases)[ALL_PAIRS_FACTORS], int n);

/* The next combination in lexicographic order, from all zeros on; false after the last. */
bool all_pairs_next(const int *levels, int n_factors, int *choice);

#endif
