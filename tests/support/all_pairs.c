/* SPDX-License-Identifier: MIT */
#include "support/all_pairs.h"

#include <string.h>

struct seen {
    bool pair[ALL_PAIRS_FACTORS][ALL_PAIRS_LEVELS][ALL_PAIRS_FACTORS][ALL_PAIRS_LEVELS];
};

bool all_pairs_next(const int *levels, int n_factors, int *choice)
{
    for (int f = n_factors - 1; f >= 0; f--) {
        if (++choice[f] < levels[f])
            return true;
        choice[f] = 0;
    }
    return false;
}

/* Pairs of a combination that were not seen; marks them where asked to. */
static int new_pairs(struct seen *seen, int n_factors, const int *choice, bool mark)
{
    int n = 0;
    for (int a = 0; a < n_factors; a++)
        for (int b = a + 1; b < n_factors; b++) {
            bool *pair = &seen->pair[a][choice[a]][b][choice[b]];
            n += !*pair;
            *pair = *pair || mark;
        }
    return n;
}

int all_pairs_cover(const int *levels, int n_factors, all_pairs_valid_fn valid,
                    int (*cases)[ALL_PAIRS_FACTORS], int most)
{
    static _Thread_local struct seen seen;
    memset(&seen, 0, sizeof seen);
    int used[ALL_PAIRS_FACTORS][ALL_PAIRS_LEVELS] = {{0}};
    for (int n = 0;; n++) {
        int choice[ALL_PAIRS_FACTORS] = {0}, best[ALL_PAIRS_FACTORS] = {0}, best_new = 0;
        int best_used = 0;
        do {
            int count = valid(choice) ? new_pairs(&seen, n_factors, choice, false) : 0;
            int often = 0;
            for (int f = 0; f < n_factors; f++)
                often += used[f][choice[f]] * levels[f];
            if (count > best_new || (count > 0 && count == best_new && often < best_used)) {
                best_new = count;
                best_used = often;
                memcpy(best, choice, sizeof best);
            }
        } while (all_pairs_next(levels, n_factors, choice));
        if (best_new == 0)
            return n;
        if (n == most)
            return -1;
        new_pairs(&seen, n_factors, best, true);
        memcpy(cases[n], best, sizeof best);
        for (int f = 0; f < n_factors; f++)
            used[f][best[f]]++;
    }
}

int all_pairs_count(int n_factors, int (*cases)[ALL_PAIRS_FACTORS], int n)
{
    static _Thread_local struct seen seen;
    int count = 0;
    memset(&seen, 0, sizeof seen);
    for (int i = 0; i < n; i++)
        count += new_pairs(&seen, n_factors, cases[i], true);
    return count;
}
