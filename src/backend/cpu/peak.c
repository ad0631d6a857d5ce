/* SPDX-License-Identifier: MIT
 *
 * Times the instruction peak: every thread repeats its kernel's multiply-adds (multiply_add in kernels_rows.inc.h, or
 * peak_avx512.c for bfloat16) as often as takes one of
 * them a few hundredths of a second, all at once.
 */
#include "backend/peak.h"

#include "backend/cpu/features.h"
#include "backend/cpu/ops.h"
#include "backend/cpu/peak_kernels.h"
#include "base/clock.h"

enum { RUNS = 6, FIRST_REPEATS = 100000, TRIES = 3 };
static const double run_seconds = 0.04;

struct job {
    void (*repeat)(int64_t n, float *out);
    int64_t n;
};

static void peak_item(void *context, int64_t item, int thread)
{
    (void)item;
    (void)thread;
    const struct job *job = context;
    float out[ULY_CPU_PEAK_FLOATS];
    job->repeat(job->n, out);
}

/* Repeats that take one undisturbed thread about run_seconds. */
static int64_t choose_repeats(void (*repeat)(int64_t n, float *out))
{
    float out[ULY_CPU_PEAK_FLOATS];
    double least = run_seconds;
    for (int i = 0; i < TRIES; i++) {
        double start = uly_seconds();
        repeat(FIRST_REPEATS, out);
        double seconds = uly_seconds() - start;
        least = seconds > 0 && seconds < least ? seconds : least;
    }
    return (int64_t)(FIRST_REPEATS * (run_seconds / least));
}

double uly_cpu_peak_gflops(struct uly_backend *be, enum uly_dtype dtype)
{
    if (be->ops.destroy != uly_cpu_destroy)
        return 0;
    const struct uly_cpu_kernels *kernels = uly_cpu_of(be)->kernels;
    struct job job = {.repeat = kernels->multiply_add};
    double flops = 2.0 * ULY_CPU_PEAK_CHAINS * kernels->width, best = 0; /* of one repeat */
#if defined(__x86_64__)
    if (dtype == ULY_DTYPE_BF16 && kernels->width == 16 && uly_cpu_has_bf16()) {
        job.repeat = uly_cpu_peak_bf16;
        flops *= 2;
    }
#else
    (void)dtype;
#endif
    job.n = choose_repeats(job.repeat);
    for (int run = 0; run < RUNS; run++) {
        double start = uly_seconds();
        uly_cpu_for(be, be->n_threads, peak_item, &job);
        double rate = flops * (double)job.n * be->n_threads / (uly_seconds() - start);
        best = rate > best ? rate : best;
    }
    return best * 1e-9;
}
