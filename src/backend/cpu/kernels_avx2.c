/* SPDX-License-Identifier: MIT
 *
 * The kernels for CPUs with AVX2 and FMA; the build gives this file the flags.
 */
#include "backend/cpu/kernels.h"

#ifdef __AVX2__
#define ULY_CPU_KERNELS      uly_cpu_kernels_avx2
#define ULY_CPU_KERNELS_TEXT "avx2"
#include "backend/cpu/kernels.inc.h"
#endif
