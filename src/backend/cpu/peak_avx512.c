/* SPDX-License-Identifier: MIT
 *
 * The bfloat16 dot product on independent registers. The file has AVX-512 flags; this one function may use the bfloat16
 * instruction besides.
 */
#include "backend/cpu/peak_kernels.h"

#ifdef __AVX512F__
#include <immintrin.h>

__attribute__((target("avx512bf16"))) void uly_cpu_peak_bf16(int64_t n, float *out)
{
    __m512 sum[ULY_CPU_PEAK_CHAINS];
    volatile int ones = 0x3f803f80,
                 small = 0x2f802f80; /* pairs of 1 and of 2^-32: no sum gets large */
    __m512bh a = (__m512bh)_mm512_set1_epi32(ones), b = (__m512bh)_mm512_set1_epi32(small);
    for (int i = 0; i < ULY_CPU_PEAK_CHAINS; i++)
        sum[i] = _mm512_set1_ps((float)i);
    for (int64_t repeat = 0; repeat < n; repeat++)
        for (int i = 0; i < ULY_CPU_PEAK_CHAINS; i++)
            sum[i] = _mm512_dpbf16_ps(sum[i], a, b);
    for (int i = 1; i < ULY_CPU_PEAK_CHAINS; i++)
        sum[0] = _mm512_add_ps(sum[0], sum[i]);
    _mm512_storeu_ps(out, sum[0]);
}
#endif
