/* SPDX-License-Identifier: MIT
 *
 * The cpu backend's kernels at 16 lanes whatever this machine has, so that the widest form of every loop and tail is
 * tested everywhere; the compiler splits each vector.
 */
#define ULY_VEC_W            16
#define ULY_CPU_KERNELS      uly_test_kernels_wide
#define ULY_CPU_KERNELS_TEXT "wide"
#include "support/kernels_wide.h"

#include "backend/cpu/kernels.inc.h"
