/* SPDX-License-Identifier: MIT
 *
 * The two hash tables of a vocabulary, shared by reading (bpe_vocab.c) and merging (bpe.c).
 */
#ifndef ULY_FORMATS_BPE_IMPL_H
#define ULY_FORMATS_BPE_IMPL_H

#include "formats/bpe.h"

static inline uint64_t uly_bpe_mix(uint64_t x)
{
    x ^= x >> 32;
    x *= 0x9e3779b97f4a7c15u; /* 2^64 / golden ratio */
    return x ^ x >> 29;
}

/* FNV-1a, mixed so that low bits are good. */
static inline uint64_t uly_bpe_hash(const unsigned char *p, int64_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (int64_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return uly_bpe_mix(h);
}

static inline uint64_t uly_bpe_pair_hash(int32_t left, int32_t right)
{
    return uly_bpe_mix((uint64_t)(uint32_t)left << 32 | (uint32_t)right);
}

/* NULL where the pair does not merge. The tables are never full, so the search ends. */
static inline const struct uly_bpe_pair *uly_bpe_find_pair(const struct uly_bpe *b, int32_t left,
                                                           int32_t right)
{
    int64_t i = (int64_t)(uly_bpe_pair_hash(left, right) & (uint64_t)b->pair_mask);
    for (; b->pairs[i].left >= 0; i = (i + 1) & b->pair_mask)
        if (b->pairs[i].left == left && b->pairs[i].right == right)
            return &b->pairs[i];
    return NULL;
}

/* Id of the token that stands for these bytes; -1 where there is none. */
int64_t uly_bpe_find(const struct uly_bpe *b, const unsigned char *piece, int64_t bytes);

#endif
