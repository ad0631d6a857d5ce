/* SPDX-License-Identifier: MIT
 *
 * The physical limit that benchmarks compare with.
 */
#ifndef ULY_BACKEND_PEAK_H
#define ULY_BACKEND_PEAK_H

#include "backend/backend.h"

/* 1e9 floating-point operations a second of the dtype's multiply-add instruction on independent register accumulators, no
 * loads or stores, on all of the backend's threads at once; the best of a few runs, about a third of a second in all.
 * float32: the fused multiply-add of the backend's vector width (a product and a sum where the width has none fused).
 * bfloat16: the dot-product instruction where the CPU and the width have it, else the float32 figure, since the arithmetic
 * is float32 then. 0 for a backend that is not `cpu`. */
double uly_cpu_peak_gflops(struct uly_backend *be, enum uly_dtype dtype);

#endif
