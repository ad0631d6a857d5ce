/* SPDX-License-Identifier: MIT
 *
 * The inner loops of the token-wise operations and the packing of the matrix product: one table a vector width, all made
 * from kernels.inc.h. A kernel works on rows or pieces of rows of a work item, on one thread, and never on tensors: the
 * drivers (matmul.c, tokenwise.c, head_move.c) turn those into addresses and items.
 *
 * A `struct uly_span` is where a kernel reads or writes: float32 or bfloat16, nothing else. Arithmetic is float32, sums
 * over a row go into double every ULY_CPU_CHUNK elements. Results of two widths differ in the last bits, those of one width
 * depend on nothing but the arguments.
 */
#ifndef ULY_BACKEND_CPU_KERNELS_H
#define ULY_BACKEND_CPU_KERNELS_H

#include "base/dtype.h"

#include <stdbool.h>

enum {
    ULY_CPU_CHUNK = 256
}; /* elements that a kernel holds as float32 at a time: stays in the first-level cache */

/* Elements from p on. */
struct uly_span {
    unsigned char *p; /* NULL: absent, where a kernel says that it may be */
    enum uly_dtype dtype;
};

static inline struct uly_span uly_span_at(struct uly_span s, int64_t elements)
{
    s.p += elements * uly_dtype_bytes(s.dtype);
    return s;
}

/* Statistics of a row that the backward of the RMS norm needs. */
struct uly_rms_stats {
    float r;    /* 1 / sqrt(mean(x^2) + eps) */
    float back; /* r^3 mean(dy w x) */
};

struct uly_adamw_factors {
    float beta1, beta2, one_less_beta1, one_less_beta2;
    float step_size;    /* lr / (1 - beta1^step) */
    float inverse_root; /* 1 / sqrt(1 - beta2^step) */
    float eps, decay;   /* decay: lr * weight_decay */
    float grad_factor;
};

struct uly_cpu_kernels {
    const char *name;
    int width; /* floats of a vector */

    void (*convert)(struct uly_span src, struct uly_span dst, int64_t n);
    void (*fill)(struct uly_span dst, float value, int64_t n);
    void (*add)(struct uly_span src, struct uly_span dst, int64_t n);
    void (*scale)(struct uly_span x, float factor, int64_t n);
    double (*sum_squares)(struct uly_span x, int64_t n);
    /* dst[i][j] = src[i][j], or src[j][i] where transposed; dst: [rows][ld_dst] float32. */
    void (*pack)(struct uly_span src, int64_t ld_src, bool transposed, int64_t rows,
                 int64_t columns, float *dst, int64_t ld_dst);
    /* sum[j] += sum over rows of x[i][j] (float32), j < n <= ULY_CPU_CHUNK, rows at most a numeric tile. */
    void (*column_sum)(struct uly_span x, int64_t stride, int64_t rows, int64_t n, double *sum);

    void (*rmsnorm)(struct uly_span x, struct uly_span w, struct uly_span y, int64_t n, double eps);
    struct uly_rms_stats (*rms_stats)(struct uly_span x, struct uly_span w, struct uly_span dy,
                                      int64_t n, double eps);
    void (*rmsnorm_dx)(struct uly_span x, struct uly_span w, struct uly_span dy, struct uly_span dx,
                       int64_t n, struct uly_rms_stats stats);
    /* dw[j] += sum over rows of dy[i][j] x[i][j] stats[i].r; n and rows as in column_sum. */
    void (*rmsnorm_dw)(struct uly_span x, int64_t x_stride, struct uly_span dy, int64_t dy_stride,
                       const struct uly_rms_stats *stats, int64_t rows, int64_t n, float *dw);
    void (*swiglu)(struct uly_span gate, struct uly_span up, struct uly_span y, int64_t n);
    void (*swiglu_back)(struct uly_span gate, struct uly_span up, struct uly_span dy,
                        struct uly_span dgate, struct uly_span dup, int64_t n);
    /* Loss of one row of n logits; dlogits may be absent, or be the logits. */
    float (*cross_entropy)(const float *logits, int64_t n, int64_t label, double factor,
                           struct uly_span dlogits);
    /* model may be absent. */
    void (*adamw)(const struct uly_adamw_factors *f, float *master, float *m, float *v,
                  const float *grad, struct uly_span model, int64_t n);

    /* c[i] = scale cos(position * inv_freq[i]), s[i] = scale sin(...), i < n <= ULY_CPU_CHUNK. */
    void (*angles)(double position, const double *inv_freq, int64_t n, float scale, float *c,
                   float *s);
    /* Elements [first, first + n) and half + the same of a head, n <= ULY_CPU_CHUNK: backend.h's rotation with c and s of
     * these elements. bias may be absent. */
    void (*rotate)(struct uly_span src, struct uly_span bias, struct uly_span dst, bool accumulate,
                   int64_t first, int64_t half, int64_t n, const float *c, const float *s);
    /* dst (+)= src + bias. */
    void (*move)(struct uly_span src, struct uly_span bias, struct uly_span dst, bool accumulate,
                 int64_t n);
    float (*dot)(struct uly_span a, struct uly_span b, int64_t n);
    /* n times ULY_CPU_PEAK_CHAINS multiply-adds of vectors in registers; out: ULY_CPU_PEAK_FLOATS. For benchmarks. */
    void (*multiply_add)(int64_t n, float *out);
};

extern const struct uly_cpu_kernels uly_cpu_kernels_generic;
extern const struct uly_cpu_kernels uly_cpu_kernels_avx2;   /* x86-64 only */
extern const struct uly_cpu_kernels uly_cpu_kernels_avx512; /* x86-64 only */

#endif
