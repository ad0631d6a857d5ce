/* SPDX-License-Identifier: MIT */
#include "base/random.h"

#include <math.h>

struct words {
    uint32_t w[4];
};

/* Ten rounds; constants from table 2 of the paper. */
static struct words philox(struct words c, uint32_t key0, uint32_t key1)
{
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c.w[0], b = (uint64_t)0xCD9E8D57u * c.w[2];
        c = (struct words){{(uint32_t)(b >> 32) ^ c.w[1] ^ key0, (uint32_t)b,
                            (uint32_t)(a >> 32) ^ c.w[3] ^ key1, (uint32_t)a}};
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return c;
}

static struct words draw(uint64_t seed, uint64_t stream, uint64_t index)
{
    struct words c = {
        {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)}};
    return philox(c, (uint32_t)seed, (uint32_t)(seed >> 32));
}

static double unit(uint32_t high, uint32_t low)
{
    return (double)(((uint64_t)high << 32 | low) >> 11) * 0x1p-53;
}

uint64_t uly_random_bits(uint64_t seed, uint64_t stream, uint64_t index)
{
    struct words c = draw(seed, stream, index);
    return (uint64_t)c.w[0] << 32 | c.w[1];
}

double uly_random_uniform(uint64_t seed, uint64_t stream, uint64_t index)
{
    struct words c = draw(seed, stream, index);
    return unit(c.w[0], c.w[1]);
}

double uly_random_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
    struct words c = draw(seed, stream, index);
    double radius = sqrt(-2.0 * log(1.0 - unit(c.w[0], c.w[1])));
    return radius * cos(6.283185307179586476925 * unit(c.w[2], c.w[3]));
}

uint64_t uly_random_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t n)
{
    uint64_t x = uly_random_bits(seed, stream, index), high = x >> 32, low = x & 0xffffffffu;
    uint64_t n_high = n >> 32, n_low = n & 0xffffffffu;
    /* the upper 64 bits of the 128-bit product x * n, in 32-bit halves */
    uint64_t middle = high * n_low + ((low * n_low) >> 32);
    uint64_t cross = low * n_high + (middle & 0xffffffffu);
    return high * n_high + (middle >> 32) + (cross >> 32);
}

void uly_random_permutation(uint64_t seed, uint64_t stream, int64_t n, int64_t *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = i;
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = (int64_t)uly_random_below(seed, stream, (uint64_t)i, (uint64_t)i + 1);
        int64_t swap = out[i];
        out[i] = out[j];
        out[j] = swap;
    }
}
