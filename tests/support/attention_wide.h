/* SPDX-License-Identifier: MIT */
#ifndef ULY_TESTS_ATTENTION_WIDE_H
#define ULY_TESTS_ATTENTION_WIDE_H

#include "backend/cpu/attention.h"

extern const struct uly_cpu_attention_kernels uly_test_attention_wide;

#endif
