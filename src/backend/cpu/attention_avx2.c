/* SPDX-License-Identifier: MIT
 *
 * Attention kernels for AVX2 with FMA; the build gives this file its flags.
 */
#include "backend/cpu/attention.h"

#if defined(__AVX2__) && defined(__FMA__)
#define ULY_ATTENTION_TABLE uly_cpu_attention_avx2
#define ULY_ATTENTION_NAME  "avx2"
#include "backend/cpu/attention_kernels.inc.h"
#endif
