/* SPDX-License-Identifier: MIT */
#include "parallel/layout.h"

void uly_cut(int64_t n, int parts, int i, int64_t *first, int64_t *count)
{
    int64_t quotient = n / parts, rest = n % parts;
    *first = i * quotient + (i < rest ? i : rest);
    *count = quotient + (i < rest);
}

int64_t uly_layout_tile(int64_t S, int ranks)
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

/* The two chunks of a ring rank in tiles; a ring of one has all in the first. */
struct chunk_pair {
    int64_t tile, low, low_count, high, high_count;
};

static struct chunk_pair chunks_of(int64_t S, int ring_size, int ulysses_size, int ring_rank)
{
    struct chunk_pair c = {.tile = uly_layout_tile(S, ring_size * ulysses_size)};
    int64_t tiles = (S + c.tile - 1) / c.tile;
    if (ring_size == 1) {
        c.low_count = tiles;
        return c;
    }
    uly_cut(tiles, 2 * ring_size, ring_rank, &c.low, &c.low_count);
    uly_cut(tiles, 2 * ring_size, 2 * ring_size - 1 - ring_rank, &c.high, &c.high_count);
    return c;
}

/* Tiles [first, end) of the two chunks joined. */
static int part_of(struct chunk_pair c, int64_t first, int64_t end, int64_t S,
                   struct uly_segment out[2])
{
    int64_t split = end < c.low_count ? end : c.low_count;
    int n = add_segment(out, 0, c.low + first, c.low + split, c.tile, S);
    int64_t from = first > c.low_count ? first : c.low_count;
    return add_segment(out, n, c.high + from - c.low_count, c.high + end - c.low_count, c.tile, S);
}

int uly_layout(int64_t S, int ring_size, int ulysses_size, int ring_rank, int ulysses_rank,
               struct uly_segment out[2])
{
    struct chunk_pair c = chunks_of(S, ring_size, ulysses_size, ring_rank);
    int64_t first, count;
    uly_cut(c.low_count + c.high_count, ulysses_size, ulysses_rank, &first, &count);
    return part_of(c, first, first + count, S, out);
}

int uly_layout_chunks(int64_t S, int ring_size, int ulysses_size, int ring_rank,
                      struct uly_segment out[2])
{
    struct chunk_pair c = chunks_of(S, ring_size, ulysses_size, ring_rank);
    return part_of(c, 0, c.low_count + c.high_count, S, out);
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

static int64_t max_joined_tiles(int64_t max_S, int ring_size, int64_t tile)
{
    int64_t tiles = (max_S + tile - 1) / tile, chunks = 2 * (int64_t)ring_size;
    return ring_size == 1 ? tiles : 2 * ((tiles + chunks - 1) / chunks);
}

int64_t uly_layout_max_count(int64_t max_S, int ring_size, int ulysses_size)
{
    int64_t tile = uly_layout_tile(max_S, ring_size * ulysses_size);
    int64_t joined = max_joined_tiles(max_S, ring_size, tile);
    int64_t count = (joined + ulysses_size - 1) / ulysses_size * tile;
    return count < max_S ? count : max_S;
}

int64_t uly_layout_max_joined(int64_t max_S, int ring_size, int ulysses_size)
{
    int64_t tile = uly_layout_tile(max_S, ring_size * ulysses_size);
    int64_t count = max_joined_tiles(max_S, ring_size, tile) * tile;
    return count < max_S ? count : max_S;
}
