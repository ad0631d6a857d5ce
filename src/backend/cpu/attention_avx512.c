/* SPDX-License-Identifier: MIT
 *
 * Attention kernels for AVX-512; the build gives this file its flags.
 */
#include "backend/cpu/attention.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define ULY_ATTENTION_TABLE uly_cpu_attention_avx512
#define ULY_ATTENTION_NAME  "avx512"
#include "backend/cpu/attention_kernels.inc.h"
#endif
