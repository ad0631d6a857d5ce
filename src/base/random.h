/* SPDX-License-Identifier: MIT
 *
 * Counter-based random numbers: a value is a pure function of (seed, stream, index), so the order of draws, the number
 * of ranks and the point of a resume change nothing. Philox4x32-10, Salmon et al., "Parallel random numbers: as easy as
 * 1, 2, 3", SC 2011.
 */
#ifndef ULY_BASE_RANDOM_H
#define ULY_BASE_RANDOM_H

#include <stdint.h>

/* 64 uniform bits. */
uint64_t uly_random_bits(uint64_t seed, uint64_t stream, uint64_t index);
/* Uniform in [0, 1), a multiple of 2^-53. */
double uly_random_uniform(uint64_t seed, uint64_t stream, uint64_t index);
/* Standard normal (Box-Muller on two uniforms of the same index). */
double uly_random_normal(uint64_t seed, uint64_t stream, uint64_t index);
/* Uniform integer in [0, n), n > 0, without modulo bias worth naming (64-bit multiply-shift). */
uint64_t uly_random_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t n);
/* A permutation of 0 .. n-1 (Fisher-Yates), a function of (seed, stream, n) alone; out: [n], the caller's. */
void uly_random_permutation(uint64_t seed, uint64_t stream, int64_t n, int64_t *out);

#endif
