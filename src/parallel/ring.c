/* SPDX-License-Identifier: MIT */
#include "parallel/ring.h"

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int uly_ring_visible(const struct uly_mask *mask, int ring_size, int ulysses_size, int receiver,
                     int sender, struct uly_segment out[2])
{
    struct uly_segment queries[2], keys[2];
    int64_t tile = uly_layout_tile(mask->S, ring_size * ulysses_size);
    int n_queries = uly_layout_chunks(mask->S, ring_size, ulysses_size, receiver, queries);
    int n_keys = uly_layout_chunks(mask->S, ring_size, ulysses_size, sender, keys);
    int n = 0;
    for (int k = 0; k < n_keys; k++) {
        int64_t chunk_end = keys[k].start + keys[k].count, first = chunk_end, end = keys[k].start;
        for (int q = 0; q < n_queries; q++) {
            /* neighbouring queries see ranges that overlap or touch, so a chunk of them sees one range */
            int64_t seen = max64(uly_mask_lo(mask, queries[q].start), keys[k].start);
            int64_t seen_end = min64(queries[q].start + queries[q].count, chunk_end);
            if (seen >= seen_end)
                continue;
            first = min64(first, seen);
            end = max64(end, seen_end);
        }
        if (first >= end)
            continue;
        first = max64(first / tile * tile, keys[k].start);
        end = min64((end + tile - 1) / tile * tile, chunk_end);
        out[n++] = (struct uly_segment){first, end - first};
    }
    return n;
}
