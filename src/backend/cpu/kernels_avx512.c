/* SPDX-License-Identifier: MIT
 *
 * The kernels for CPUs with AVX-512 (F, BW, VL, DQ); the build gives this file the flags.
 */
#include "backend/cpu/kernels.h"

#ifdef __AVX512F__
#define ULY_CPU_KERNELS      uly_cpu_kernels_avx512
#define ULY_CPU_KERNELS_TEXT "avx512"
#include "backend/cpu/kernels.inc.h"
#endif
