/* SPDX-License-Identifier: MIT
 *
 * The parts that both directions of attention share: one micro-kernel, 2^x, and the moves between head views and panels.
 * Included by attention_kernels.inc.h, once for every vector width; everything is static.
 *
 * A panel is the right-hand operand or the result of a product: [k][LANES] floats, LANES = VECTORS * ULY_VEC_W, so that a
 * step k is VECTORS vector loads. A left-hand operand is never packed: the micro-kernel broadcasts one element at a time
 * and takes it row by row or column by column, so a matrix and its transpose cost the same.
 *
 * The micro-kernel holds 6 x VECTORS accumulators: 12 of the 16 registers of SSE2 and AVX2 (and two panel vectors and a
 * broadcast), 24 of the 32 of AVX-512. Every result is summed over k in rising order whatever the tile is, so no bit
 * depends on how rows are cut into tiles.
 */
#include "base/vec.h"

#if ULY_VEC_W == 16
#define VECTORS 4
#else
#define VECTORS 2
#endif
#define LANES (VECTORS * ULY_VEC_W)

/* Left operand: element (i, k) is at p[i * row + k * step]. */
struct left {
    const float *p;
    int64_t row, step;
};

/* Result: element (i, j) is at p[i * row + j]; add: on top of what is there. */
struct result {
    float *p;
    int64_t row;
    bool add;
};

/* c[rows][nv vectors] (+)= a[rows][n] * b[n][nv vectors], b's steps apart by ldb; rows and nv are constants of the call. */
ULY_VEC_INLINE void tile(const int rows, const int nv, int64_t n, struct left a, const float *b,
                         int64_t ldb, struct result c)
{
    uly_vf s[6][VECTORS];
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < nv; v++)
            s[i][v] = c.add ? uly_vf_load(c.p + i * c.row + v * ULY_VEC_W) : uly_vf_zero();
    for (int64_t k = 0; k < n; k++) {
        uly_vf x[VECTORS];
        for (int v = 0; v < nv; v++)
            x[v] = uly_vf_load(b + v * ULY_VEC_W);
        for (int i = 0; i < rows; i++) {
            uly_vf y = uly_vf_set1(a.p[i * a.row]);
            for (int v = 0; v < nv; v++)
                s[i][v] = uly_vf_fma(y, x[v], s[i][v]);
        }
        a.p += a.step;
        b += ldb;
    }
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < nv; v++)
            uly_vf_store(c.p + i * c.row + v * ULY_VEC_W, s[i][v]);
}

/* Any number of rows. A rest of 2 is taken with the 6 before it as 4 + 4, which keeps the pipelines busier. */
ULY_VEC_INLINE void tiles(const int nv, int64_t rows, int64_t n, struct left a, const float *b,
                          int64_t ldb, struct result c)
{
    while (rows > 0) {
        const int now = rows >= 6 && rows != 8 ? 6 : rows >= 4 ? 4 : rows >= 2 ? 2 : 1;
        switch (now) {
        case 6:
            tile(6, nv, n, a, b, ldb, c);
            break;
        case 4:
            tile(4, nv, n, a, b, ldb, c);
            break;
        case 2:
            tile(2, nv, n, a, b, ldb, c);
            break;
        default:
            tile(1, nv, n, a, b, ldb, c);
            break;
        }
        rows -= now;
        a.p += now * a.row;
        c.p += now * c.row;
    }
}

/* c[rows][width] (+)= a[rows][n] * b[n][width], 0 < width <= LANES, rounded up to whole vectors. */
static void product(int64_t rows, int64_t n, int64_t width, struct left a, const float *b,
                    int64_t ldb, struct result c)
{
    int64_t vectors = (width + ULY_VEC_W - 1) / ULY_VEC_W;
    if (vectors == VECTORS) {
        tiles(VECTORS, rows, n, a, b, ldb, c);
        return;
    }
    for (; vectors > 0; vectors--, b += ULY_VEC_W, c.p += ULY_VEC_W)
        tiles(1, rows, n, a, b, ldb, c);
}

/* 2^x for x < 128, relative error below 2e-7; exactly 0 for x <= -127 (-inf too), so a hidden score needs no mask after
 * it; NaN stays NaN. x = n + f, |f| <= 1/2; 2^f is a polynomial of degree 6 with the smallest relative error (2e-9) among
 * those with p(0) = 1: then -127 gives the bits of 1.0 less 127 in the exponent, which are the bits of zero. */
ULY_VEC_INLINE uly_vf exp2_vector(uly_vf x)
{
    const float shift =
        12582912.0f; /* 1.5 * 2^23: adding it leaves the rounded integer in the low bits */
    x = uly_vf_max(uly_vf_set1(-127.0f), x);
    uly_vf t = x + shift;
    uly_vf f = x - (t - shift);
    uly_vf p = 1.5353362e-4f * f + 1.3398874e-3f;
    p = p * f + 9.618437e-3f;
    p = p * f + 5.5503324e-2f;
    p = p * f + 2.4022648e-1f;
    p = p * f + 6.931472e-1f;
    p = p * f + 1.0f;
    return (uly_vf)((uly_vu)p + ((uly_vu)t << 23));
}

static int64_t round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* ------------------------------------------------------------------ head views */

/* Rows [row, row + rows) of head h as floats: out[rows][dim], dense. */
static void load_rows(const struct uly_heads *x, int h, int64_t row, int64_t rows, float *out)
{
    const int64_t dim = x->dim;
    const int64_t at = x->offset[h] + row * x->stride[h];
    if (x->t.dtype == ULY_DTYPE_F32) {
        const float *p = (const float *)uly_tensor_address(x->t) + at;
        for (int64_t i = 0; i < rows; i++)
            memcpy(out + i * dim, p + i * x->stride[h], (size_t)dim * sizeof *out);
        return;
    }
    const uint16_t *p = (const uint16_t *)uly_tensor_address(x->t) + at;
    for (int64_t i = 0; i < rows; i++, p += x->stride[h]) {
        int64_t d = 0;
        for (; d + ULY_VEC_W <= dim; d += ULY_VEC_W)
            uly_vf_store(out + i * dim + d, uly_vf_load_bf16(p + d));
        for (; d < dim; d++)
            out[i * dim + d] = uly_bf16_to_f32(p[d]);
    }
}

/* One number a row: lse and delta. */
static float load_one(const struct uly_heads *x, int h, int64_t row)
{
    return ((const float *)uly_tensor_address(x->t))[x->offset[h] + row * x->stride[h]];
}

/* Row `row` of head h = in[dim]. */
static void store_row(const struct uly_heads *x, int h, int64_t row, const float *in)
{
    const int64_t at = x->offset[h] + row * x->stride[h];
    if (x->t.dtype == ULY_DTYPE_F32) {
        memcpy((float *)uly_tensor_address(x->t) + at, in, (size_t)x->dim * sizeof *in);
        return;
    }
    uint16_t *p = (uint16_t *)uly_tensor_address(x->t) + at;
    for (int d = 0; d < x->dim; d++)
        p[d] = uly_f32_to_bf16(in[d]);
}

/* Row `row` of head h += in[dim]; float32. */
static void add_row(const struct uly_heads *x, int h, int64_t row, const float *in)
{
    float *p = (float *)uly_tensor_address(x->t) + x->offset[h] + row * x->stride[h];
    int64_t d = 0;
    for (; d + ULY_VEC_W <= x->dim; d += ULY_VEC_W)
        uly_vf_store(p + d, uly_vf_load(p + d) + uly_vf_load(in + d));
    for (; d < x->dim; d++)
        p[d] += in[d];
}

/* ------------------------------------------------------------------ panels */

/* x[rows][dim], rows <= LANES -> panel[dim][LANES] = factor * x', zeros in the lanes from rows on. */
static void pack_lanes(const float *x, int64_t rows, int64_t dim, float factor, float *panel)
{
    for (int64_t i = 0; i < LANES; i++)
        for (int64_t d = 0; d < dim; d++)
            panel[d * LANES + i] = i < rows ? factor * x[i * dim + d] : 0.0f;
}

/* panel[dim][LANES], lane i -> row[dim] = factor * lane. */
static void unpack_lane(const float *panel, int64_t i, int64_t dim, float factor, float *row)
{
    for (int64_t d = 0; d < dim; d++)
        row[d] = factor * panel[d * LANES + i];
}

/* x[rows][dim] -> ceil(dim / LANES) panels [rows][LANES], zeros beyond dim; panels `apart` floats apart. */
static void pack_steps(const float *x, int64_t rows, int64_t dim, int64_t apart, float *out)
{
    for (int64_t d0 = 0; d0 < dim; d0 += LANES, out += apart) {
        const int64_t width = dim - d0 < LANES ? dim - d0 : LANES;
        for (int64_t k = 0; k < rows; k++) {
            memcpy(out + k * LANES, x + k * dim + d0, (size_t)width * sizeof *out);
            memset(out + k * LANES + width, 0, (size_t)(LANES - width) * sizeof *out);
        }
    }
}
