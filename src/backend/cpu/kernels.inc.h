/* SPDX-License-Identifier: MIT
 *
 * The kernels of one vector width (kernels.h says what each does). A file defines ULY_CPU_KERNELS, the table's name, and
 * ULY_CPU_KERNELS_TEXT, and includes this; its instruction-set flags choose the width (base/vec.h).
 *
 * Types are handled at the edge: a kernel goes through its elements in chunks, gets each operand's chunk as float32 (the
 * operand itself where it is float32, a buffer on the stack where it is bfloat16), computes on float32, and hands the
 * result chunk back. So an output may be an input's own place, and one loop serves every mixture of types.
 *
 * This file: chunks, elementwise kernels, packing, column sums. kernels_rows.inc.h: everything that knows a formula.
 */
#include "backend/cpu/kernels.h"

#include <math.h>

#include "backend/cpu/peak_kernels.h"
#include "base/vec.h"

enum { W = ULY_VEC_W, CHUNK = ULY_CPU_CHUNK };

/* ------------------------------------------------------------------ edges of a row */

/* A vector from p, of which `left` > 0 elements exist; lanes beyond them are 0. */
ULY_VEC_INLINE uly_vf load(const float *p, int64_t left)
{
    return left >= W ? uly_vf_load(p) : uly_vf_load_n(p, left);
}
ULY_VEC_INLINE void store(float *p, uly_vf v, int64_t left)
{
    if (left >= W)
        uly_vf_store(p, v);
    else
        uly_vf_store_n(p, v, left);
}

static void widen(const unsigned char *src, float *dst, int64_t n)
{
    const uint16_t *p = (const uint16_t *)(const void *)src;
    int64_t i = 0;
    for (; i + W <= n; i += W)
        uly_vf_store(dst + i, uly_vf_load_bf16(p + i));
    if (i < n)
        uly_vf_store_n(dst + i, uly_vf_load_bf16_n(p + i, n - i), n - i);
}

static void narrow(const float *src, unsigned char *dst, int64_t n)
{
    uint16_t *p = (uint16_t *)(void *)dst;
    int64_t i = 0;
    for (; i + W <= n; i += W)
        uly_vf_store_bf16(p + i, uly_vf_load(src + i));
    if (i < n)
        uly_vf_store_bf16_n(p + i, uly_vf_load_n(src + i, n - i), n - i);
}

/* Elements [i, i + n) of an operand as float32, n <= CHUNK: in place or in the buffer. */
static inline const float *get(struct uly_span s, int64_t i, int64_t n, float *buffer)
{
    s = uly_span_at(s, i);
    if (s.dtype == ULY_DTYPE_F32)
        return (const float *)(const void *)s.p;
    widen(s.p, buffer, n);
    return buffer;
}

/* Where elements from i on of a result are to be written, and the end of writing them. */
static inline float *target(struct uly_span s, int64_t i, float *buffer)
{
    s = uly_span_at(s, i);
    return s.dtype == ULY_DTYPE_F32 ? (float *)(void *)s.p : buffer;
}
static inline void put(struct uly_span s, int64_t i, int64_t n, const float *buffer)
{
    s = uly_span_at(s, i);
    if (s.dtype != ULY_DTYPE_F32)
        narrow(buffer, s.p, n);
}

/* Chunks [i, i + k) of n elements; vectors of a chunk of k elements. */
#define EACH_CHUNK(i, k, n)                                                                        \
    for (int64_t i = 0, k; i < (n) && (k = (n)-i < CHUNK ? (n)-i : CHUNK, true); i += CHUNK)
#define EACH_VECTOR(j, k) for (int64_t j = 0; j < (k); j += W)

/* ------------------------------------------------------------------ elementwise */

static void convert(struct uly_span src, struct uly_span dst, int64_t n)
{
    if (src.dtype == dst.dtype) {
        if (src.p != dst.p && n > 0)
            memmove(dst.p, src.p, (size_t)(n * uly_dtype_bytes(src.dtype)));
    } else if (src.dtype == ULY_DTYPE_F32) {
        narrow((const float *)(const void *)src.p, dst.p, n);
    } else {
        widen(src.p, (float *)(void *)dst.p, n);
    }
}

static void fill(struct uly_span dst, float value, int64_t n)
{
    float buffer[CHUNK];
    EACH_CHUNK(i, k, n)
    {
        float *y = target(dst, i, buffer);
        EACH_VECTOR(j, k)
        store(y + j, uly_vf_set1(value), k - j);
        put(dst, i, k, buffer);
    }
}

static void add(struct uly_span src, struct uly_span dst, int64_t n)
{
    float xs[CHUNK], ys[CHUNK];
    EACH_CHUNK(i, k, n)
    {
        const float *x = get(src, i, k, xs), *old = get(dst, i, k, ys);
        float *y = target(dst, i, ys);
        EACH_VECTOR(j, k)
        store(y + j, load(old + j, k - j) + load(x + j, k - j), k - j);
        put(dst, i, k, ys);
    }
}

static void scale(struct uly_span dst, float factor, int64_t n)
{
    float ys[CHUNK];
    EACH_CHUNK(i, k, n)
    {
        const float *old = get(dst, i, k, ys);
        float *y = target(dst, i, ys);
        EACH_VECTOR(j, k)
        store(y + j, load(old + j, k - j) * factor, k - j);
        put(dst, i, k, ys);
    }
}

/* Squares in double (they overflow a float early), a sum a lane, lanes added by halves. */
static double sum_squares(struct uly_span x, int64_t n)
{
    float buffer[CHUNK];
    double lane[W] = {0};
    EACH_CHUNK(i, k, n)
    {
        const float *p = get(x, i, k, buffer);
        int64_t j = 0;
        for (; j + W <= k; j += W)
            for (int l = 0; l < W; l++)
                lane[l] += (double)p[j + l] * (double)p[j + l];
        for (int l = 0; j + l < k; l++)
            lane[l] += (double)p[j + l] * (double)p[j + l];
    }
    for (int half = W / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            lane[l] += lane[l + half];
    return lane[0];
}

/* ------------------------------------------------------------------ packing */

/* dst[j][i] = src[i][j] for four rows of n elements, in blocks of 4 x 4. */
static void transpose_4(const float *const src[4], int64_t n, float *dst, int64_t ld)
{
    int64_t j = 0;
    for (; j + 4 <= n; j += 4)
        uly_transpose_4x4(src[0] + j, src[1] + j, src[2] + j, src[3] + j, dst + j * ld, ld);
    for (; j < n; j++)
        for (int i = 0; i < 4; i++)
            dst[j * ld + i] = src[i][j];
}

static void pack(struct uly_span src, int64_t ld_src, bool transposed, int64_t rows,
                 int64_t columns, float *dst, int64_t ld_dst)
{
    float buffer[4][CHUNK];
    if (!transposed) {
        for (int64_t i = 0; i < rows; i++)
            convert(uly_span_at(src, i * ld_src),
                    (struct uly_span){(unsigned char *)(dst + i * ld_dst), ULY_DTYPE_F32}, columns);
        return;
    }
    /* source rows are columns here: four at a time while there are four */
    for (int64_t j = 0; j < columns; j += 4) {
        int64_t width = columns - j < 4 ? columns - j : 4;
        EACH_CHUNK(i, k, rows)
        {
            const float *p[4];
            for (int64_t c = 0; c < width; c++)
                p[c] = get(src, (j + c) * ld_src + i, k, buffer[c]);
            if (width == 4)
                transpose_4(p, k, dst + i * ld_dst + j, ld_dst);
            else
                for (int64_t c = 0; c < width; c++)
                    for (int64_t r = 0; r < k; r++)
                        dst[(i + r) * ld_dst + j + c] = p[c][r];
        }
    }
}

static void column_sum(struct uly_span x, int64_t stride, int64_t rows, int64_t n, double *sum)
{
    float buffer[CHUNK], partial[CHUNK] = {0};
    for (int64_t i = 0; i < rows; i++) {
        const float *p = get(x, i * stride, n, buffer);
        EACH_VECTOR(j, n)
        store(partial + j, load(partial + j, n - j) + load(p + j, n - j), n - j);
    }
    for (int64_t j = 0; j < n; j++)
        sum[j] += (double)partial[j];
}

#include "backend/cpu/kernels_rows.inc.h"

const struct uly_cpu_kernels ULY_CPU_KERNELS = {
    .name = ULY_CPU_KERNELS_TEXT,
    .width = W,
    .convert = convert,
    .fill = fill,
    .add = add,
    .scale = scale,
    .sum_squares = sum_squares,
    .pack = pack,
    .column_sum = column_sum,
    .rmsnorm = rmsnorm,
    .rms_stats = rms_stats,
    .rmsnorm_dx = rmsnorm_dx,
    .rmsnorm_dw = rmsnorm_dw,
    .swiglu = swiglu,
    .swiglu_back = swiglu_back,
    .cross_entropy = cross_entropy,
    .adamw = adamw,
    .angles = angles,
    .rotate = rotate,
    .move = move,
    .dot = dot,
    .multiply_add = multiply_add,
};
