/* SPDX-License-Identifier: MIT
 *
 * The attention kernels at 16 lanes whatever this machine has, so that the panels of AVX-512 (64 wide, four vectors) are
 * tested everywhere; the compiler splits each vector.
 */
#define ULY_VEC_W           16
#define ULY_ATTENTION_TABLE uly_test_attention_wide
#define ULY_ATTENTION_NAME  "wide"
#include "support/attention_wide.h"

#include "backend/cpu/attention_kernels.inc.h"
