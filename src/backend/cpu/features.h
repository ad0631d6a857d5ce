/* SPDX-License-Identifier: MIT
 *
 * What this CPU can do, asked at run time.
 */
#ifndef ULY_BACKEND_CPU_FEATURES_H
#define ULY_BACKEND_CPU_FEATURES_H

#include <stdbool.h>

/* All that the files with these flags use: AVX2 with FMA; AVX-512 F, BW, VL, DQ. Always false off x86-64. */
bool uly_cpu_has_avx2(void);
bool uly_cpu_has_avx512(void);
/* The bfloat16 dot-product instruction on AVX-512 registers. */
bool uly_cpu_has_bf16(void);

#endif
