/* SPDX-License-Identifier: MIT
 *
 * The sequence over ranks: which tokens a rank holds. One function for every method.
 *
 * The S tokens are cut into 2 * ring_size chunks; ring rank i holds chunks i and 2 * ring_size - 1
 * - i, so that causal work balances (zigzag; ring_size 1 is contiguous); the two, joined, are cut
 * among the ulysses ranks. Cuts are near-equal, the first parts one longer; nothing is padded, a
 * shard may be empty. Where S >= 16 * ranks * ULY_TILE the cuts fall on whole tiles of the global
 * sequence, so that a token meets the same kernel call in every layout.
 */
#ifndef ULY_PARALLEL_LAYOUT_H
#define ULY_PARALLEL_LAYOUT_H

#include <stdint.h>

enum { ULY_TILE = 256 }; /* the numeric tile, rows */

struct uly_segment {
    int64_t start, count; /* global tokens */
};

/* Part i of n in near-equal contiguous parts: [*first, *first + *count). */
void uly_cut(int64_t n, int parts, int i, int64_t *first, int64_t *count);

/* The tokens of one rank in local order: up to two segments into out; returns how many (empty ones
 * are left out). Neighbouring segments are joined. */
int uly_layout(int64_t S, int ring_size, int ulysses_size, int ring_rank, int ulysses_rank,
               struct uly_segment out[2]);

/* The tokens of all ulysses ranks of a ring rank together, in their order: its chunks, up to two
 * (joined where they touch); returns how many. */
int uly_layout_chunks(int64_t S, int ring_size, int ulysses_size, int ring_rank,
                      struct uly_segment out[2]);

/* Rows on whose multiples all cuts of a sequence fall: ULY_TILE or 1. */
int64_t uly_layout_tile(int64_t S, int ranks);

/* Tokens of one rank. */
int64_t uly_layout_count(int64_t S, int ring_size, int ulysses_size, int ring_rank,
                         int ulysses_rank);

/* The most tokens that any rank holds of any sequence of at most max_S tokens. */
int64_t uly_layout_max_count(int64_t max_S, int ring_size, int ulysses_size);
/* The same for the ulysses ranks of a ring rank together. */
int64_t uly_layout_max_joined(int64_t max_S, int ring_size, int ulysses_size);

#endif
