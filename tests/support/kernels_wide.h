/* SPDX-License-Identifier: MIT */
#ifndef ULY_TESTS_KERNELS_WIDE_H
#define ULY_TESTS_KERNELS_WIDE_H

#include "backend/cpu/kernels.h"

extern const struct uly_cpu_kernels uly_test_kernels_wide;

#endif
