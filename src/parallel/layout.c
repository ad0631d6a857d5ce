/* SPDX-License-Identifier: MIT */
#include "parallel/layout.h"

void uly_cut(int64_t n, int parts, int i, int64_t *first, int64_t *count)
{
    int64_t quotient = n / parts, rest = n % parts;
    *first = i * quotient + (i < rest ? i : rest);
    *count = quotient + (i < rest);
}

static int64_t tile_of(int64_t S, int ranks)
{
    return S >= 16 * (int64_t)ranks * ULY_TILE ? ULY_TILE : 1;
}

/* Adds [start, end) in tiles, clipped to S tokens, joining it to the segment before where they
 * touch. */
static int add_segment(struct uly_segment out[2], int n, int64_t start, int64_t end, int64_t tile,
                       int64_t S)
{
    start *= tile;
    end = end * tile < S ? end * tile : S;
    if (start >= end)
        return n;
    if (n > 0 && out[n - 1].start + out[n - 1].count == start) {
        out[n - 1].count += end - start;
        return n;
    }
    out[n] = (struct uly_segment){start, end - start};
    return n + 1;
}

int uly_layout(int64_t S, int ring_size, int ulysses_size, int ring_rank, int ulysses_rank,
               struct uly_segment out[2])
{
    int64_t tile = tile_of(S, ring_size * ulysses_size), tiles = (S + tile - 1) / tile;
    int64_t low, low_count, high = 0, high_count = 0;
    if (ring_size == 1) {
        low = 0;
        low_count = tiles;
    } else {
        uly_cut(tiles, 2 * ring_size, ring_rank, &low, &low_count);
        uly_cut(tiles, 2 * ring_size, 2 * ring_size - 1 - ring_rank, &high, &high_count);
    }
    int64_t first, count; /* this ulysses rank's part of the two chunks joined */
    uly_cut(low_count + high_count, ulysses_size, ulysses_rank, &first, &count);
    int64_t end = first + count, split = end < low_count ? end : low_count;
    int n = add_segment(out, 0, low + first, low + split, tile, S);
    int64_t from = first > low_count ? first : low_count;
    return add_segment(out, n, high + from - low_count, high + end - low_count, tile, S);
}

int64_t uly_layout_count(int64_t S, int ring_size, int ulysses_size, int ring_rank,
                         int ulysses_rank)
{
    struct uly_segment segment[2];
    int n = uly_layout(S, ring_size, ulysses_size, ring_rank, ulysses_rank, segment);
    int64_t count = 0;
    for (int i = 0; i < n; i++)
        count += segment[i].count;
    return count;
}

int64_t uly_layout_max_count(int64_t max_S, int ring_size, int ulysses_size)
{
    int64_t tile = tile_of(max_S, ring_size * ulysses_size), tiles = (max_S + tile - 1) / tile;
    int64_t chunks = 2 * (int64_t)ring_size;
    int64_t joined = ring_size == 1 ? tiles : 2 * ((tiles + chunks - 1) / chunks);
    int64_t count = (joined + ulysses_size - 1) / ulysses_size * tile;
    return count < max_S ? count : max_S;
}
