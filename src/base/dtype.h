/* SPDX-License-Identifier: MIT
 *
 * Element types and the bfloat16 / float16 conversions.
 */
#ifndef ULY_BASE_DTYPE_H
#define ULY_BASE_DTYPE_H

#include <stdint.h>
#include <string.h>

/* X(name, bytes, text): text is the name that options, config.json and messages use. */
#define ULY_DTYPE_LIST(X)                                                                          \
    X(ULY_DTYPE_F32, 4, "float32")                                                                 \
    X(ULY_DTYPE_BF16, 2, "bfloat16")                                                               \
    X(ULY_DTYPE_F16, 2, "float16")                                                                 \
    X(ULY_DTYPE_F64, 8, "float64")                                                                 \
    X(ULY_DTYPE_I32, 4, "int32")                                                                   \
    X(ULY_DTYPE_I64, 8, "int64")                                                                   \
    X(ULY_DTYPE_U8, 1, "uint8")

enum uly_dtype {
#define X(name, bytes, text) name,
    ULY_DTYPE_LIST(X)
#undef X
};

static inline int64_t uly_dtype_bytes(enum uly_dtype dtype)
{
    static const int64_t bytes[] = {
#define X(name, n, text) n,
        ULY_DTYPE_LIST(X)
#undef X
    };
    return bytes[dtype];
}

static inline const char *uly_dtype_name(enum uly_dtype dtype)
{
    static const char *const names[] = {
#define X(name, n, text) text,
        ULY_DTYPE_LIST(X)
#undef X
    };
    return names[dtype];
}

static inline float uly_bf16_to_f32(uint16_t x)
{
    uint32_t u = (uint32_t)x << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* Round to nearest even; NaN stays a (quiet) NaN. */
static inline uint16_t uly_f32_to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 0x40);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}

/* float16 (IEEE binary16), exact both ways where the value is representable; to float16 rounds to nearest even. */
float uly_f16_to_f32(uint16_t x);
uint16_t uly_f32_to_f16(float f);

#endif
