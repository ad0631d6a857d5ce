/* SPDX-License-Identifier: MIT
 *
 * Conversion between the float types of weight files, through float32 (float64 where one side is
 * float64), a block at a time, so that each direction is one small loop that the compiler can
 * vectorise.
 */
#include "formats/safetensors.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/status.h"

enum { BLOCK = 512 };

static void to_double(const unsigned char *from, enum uly_dtype dtype, double *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float f;
        uint16_t u;
        switch (dtype) {
        case ULY_DTYPE_F64:
            memcpy(&out[i], from + 8 * i, 8);
            break;
        case ULY_DTYPE_F32:
            memcpy(&f, from + 4 * i, 4);
            out[i] = (double)f;
            break;
        default:
            memcpy(&u, from + 2 * i, 2);
            out[i] = (double)(dtype == ULY_DTYPE_BF16 ? uly_bf16_to_f32(u) : uly_f16_to_f32(u));
        }
    }
}

static void to_float(const unsigned char *from, enum uly_dtype dtype, float *out, int64_t n)
{
    uint16_t u;
    if (dtype == ULY_DTYPE_F32)
        memcpy(out, from, (size_t)n * 4);
    else if (dtype == ULY_DTYPE_BF16)
        for (int64_t i = 0; i < n; i++) {
            memcpy(&u, from + 2 * i, 2);
            out[i] = uly_bf16_to_f32(u);
        }
    else
        for (int64_t i = 0; i < n; i++) {
            memcpy(&u, from + 2 * i, 2);
            out[i] = uly_f16_to_f32(u);
        }
}

/* Writes n floats as dtype; returns the first index whose finite value became infinite, else n. */
static int64_t from_float(const float *in, enum uly_dtype dtype, unsigned char *to, int64_t n)
{
    if (dtype == ULY_DTYPE_F32) {
        memcpy(to, in, (size_t)n * 4);
        return n;
    }
    int64_t bad = 0;
    for (int64_t i = 0; i < n; i++) {
        bool half = dtype == ULY_DTYPE_F16;
        uint16_t u = half ? uly_f32_to_f16(in[i]) : uly_f32_to_bf16(in[i]);
        uint16_t infinity = half ? 0x7c00 : 0x7f80;
        bad += (u & 0x7fff) == infinity && fabsf(in[i]) <= FLT_MAX;
        memcpy(to + 2 * i, &u, 2);
    }
    if (!bad)
        return n;
    for (int64_t i = 0; i < n; i++) { /* rare: look again for the place */
        float back;
        to_float(to + 2 * i, dtype, &back, 1);
        if (isinf(back) && !isinf(in[i]))
            return i;
    }
    return n;
}

static int64_t from_double(const double *in, enum uly_dtype dtype, unsigned char *to, int64_t n)
{
    if (dtype == ULY_DTYPE_F64) {
        memcpy(to, in, (size_t)n * 8);
        return n;
    }
    float block[BLOCK];
    for (int64_t i = 0; i < n; i++) {
        /* the cast of a larger value is undefined in C; its magnitude decides here */
        if (fabs(in[i]) <= DBL_MAX && fabs(in[i]) >= (double)FLT_MAX * (1 + 0x1p-25))
            return i;
        block[i] = (float)in[i];
    }
    return from_float(block, dtype, to, n);
}

int64_t uly_convert(const void *from, enum uly_dtype from_dtype, void *to, enum uly_dtype to_dtype,
                    int64_t n)
{
    int64_t from_bytes = uly_dtype_bytes(from_dtype), to_bytes = uly_dtype_bytes(to_dtype);
    if (from_dtype == to_dtype) {
        if (n > 0)
            memcpy(to, from, (size_t)(n * to_bytes));
        return n;
    }
    bool wide = from_dtype == ULY_DTYPE_F64 || to_dtype == ULY_DTYPE_F64;
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t count = n - i < BLOCK ? n - i : BLOCK, good;
        const unsigned char *source = (const unsigned char *)from + i * from_bytes;
        unsigned char *target = (unsigned char *)to + i * to_bytes;
        if (wide) {
            double block[BLOCK];
            to_double(source, from_dtype, block, count);
            good = from_double(block, to_dtype, target, count);
        } else {
            float block[BLOCK];
            to_float(source, from_dtype, block, count);
            good = from_float(block, to_dtype, target, count);
        }
        if (good < count)
            return i + good;
    }
    return n;
}
