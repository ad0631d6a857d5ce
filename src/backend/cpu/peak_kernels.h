/* SPDX-License-Identifier: MIT
 *
 * The repeated multiply-adds behind uly_cpu_peak_gflops.
 */
#ifndef ULY_BACKEND_CPU_PEAK_KERNELS_H
#define ULY_BACKEND_CPU_PEAK_KERNELS_H

#include <stdint.h>

enum {
    ULY_CPU_PEAK_CHAINS =
        12, /* independent accumulators: more than latency times issue width, fewer than registers */
    ULY_CPU_PEAK_FLOATS = 16 /* what a kernel writes, so that its work is not thrown away */
};

/* n times ULY_CPU_PEAK_CHAINS bfloat16 dot products of 16 lanes. x86-64 only, and only where uly_cpu_has_bf16(). */
void uly_cpu_peak_bf16(int64_t n, float *out);

#endif
