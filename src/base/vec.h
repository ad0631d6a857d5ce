/* SPDX-License-Identifier: MIT
 *
 * Vectors of ULY_VEC_W floats, through the compiler's vector extension, so that one source serves
 * every width: 16 lanes with AVX-512 flags, 8 with AVX2, 4 elsewhere (SSE2, NEON). A file may
 * define ULY_VEC_W (4, 8 or 16) before the include to force a width that its flags do not have in
 * hardware; the compiler then splits each vector (tests do that).
 *
 * This header is the one place of the program with GNU extensions. Everything in it is inlined by
 * force: no vector is ever passed between functions of two files, whose flags may differ.
 *
 * Conventions: uly_vf floats, uly_vi / uly_vu 32-bit integers, uly_vd doubles, ULY_VEC_W lanes
 * each. Addresses need no alignment. Masks are uly_vi with all bits of a lane set or clear, as the
 * comparison operators give them. Operators
 * + - * / & | ^ ~ << >> < > == work lane by lane; a product and a sum of one expression become one
 * fused instruction where the hardware has it (-ffp-contract=fast).
 */
#ifndef ULY_BASE_VEC_H
#define ULY_BASE_VEC_H

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#ifndef ULY_VEC_W
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define ULY_VEC_W 16
#elif defined(__AVX2__) && defined(__FMA__)
#define ULY_VEC_W 8
#else
#define ULY_VEC_W 4
#endif
#endif

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored                                                                     \
    "-Wpsabi" /* says that calls would differ between flags: there are no calls */
#endif

#define ULY_VEC_INLINE static inline __attribute__((always_inline, unused))

typedef float uly_vf __attribute__((vector_size(4 * ULY_VEC_W)));
typedef int32_t uly_vi __attribute__((vector_size(4 * ULY_VEC_W)));
typedef uint32_t uly_vu __attribute__((vector_size(4 * ULY_VEC_W)));
typedef uint16_t uly_vh __attribute__((vector_size(2 * ULY_VEC_W)));

/* ------------------------------------------------------------------ memory */

ULY_VEC_INLINE uly_vf uly_vf_load(const float *p)
{
    uly_vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
ULY_VEC_INLINE void uly_vf_store(float *p, uly_vf v)
{
    memcpy(p, &v, sizeof v);
}

/* The first n of ULY_VEC_W floats, 0 <= n <= ULY_VEC_W; the other lanes are 0, and nothing beyond n
 * is read or written. */
ULY_VEC_INLINE uly_vf uly_vf_load_n(const float *p, int64_t n)
{
    float lane[ULY_VEC_W] = {0};
    for (int64_t i = 0; i < n; i++)
        lane[i] = p[i];
    return uly_vf_load(lane);
}
ULY_VEC_INLINE void uly_vf_store_n(float *p, uly_vf v, int64_t n)
{
    float lane[ULY_VEC_W];
    uly_vf_store(lane, v);
    for (int64_t i = 0; i < n; i++)
        p[i] = lane[i];
}

ULY_VEC_INLINE uly_vf uly_vf_zero(void)
{
    return (uly_vf){0};
}
ULY_VEC_INLINE uly_vf uly_vf_set1(float x)
{
    return x - (uly_vf){0}; /* x - 0 is x for every x, -0 and NaN too */
}
ULY_VEC_INLINE uly_vi uly_vi_set1(int32_t x)
{
    return x + (uly_vi){0};
}
ULY_VEC_INLINE uly_vi uly_vi_lanes(void) /* 0, 1, 2, ... */
{
    static const int32_t lane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    uly_vi v;
    memcpy(&v, lane, sizeof v);
    return v;
}

/* ------------------------------------------------------------------ arithmetic */

/* a * b + c, fused where the hardware has it; on x86-64 also in a build whose optimiser would not fuse it. */
ULY_VEC_INLINE uly_vf uly_vf_fma(uly_vf a, uly_vf b, uly_vf c)
{
#if ULY_VEC_W == 16 && defined(__AVX512F__)
    return (uly_vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif ULY_VEC_W == 8 && defined(__FMA__)
    return (uly_vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

/* Lanes of a where the mask is set, of b elsewhere. */
ULY_VEC_INLINE uly_vf uly_vf_select(uly_vi mask, uly_vf a, uly_vf b)
{
    return (uly_vf)(((uly_vi)a & mask) | ((uly_vi)b & ~mask));
}

/* max: a > b ? a : b, min: a < b ? a : b. So where either is NaN the result is b. */
#if ULY_VEC_W == 16 && defined(__AVX512F__)
ULY_VEC_INLINE uly_vf uly_vf_max(uly_vf a, uly_vf b)
{
    return (uly_vf)_mm512_max_ps((__m512)a, (__m512)b);
}
ULY_VEC_INLINE uly_vf uly_vf_min(uly_vf a, uly_vf b)
{
    return (uly_vf)_mm512_min_ps((__m512)a, (__m512)b);
}
ULY_VEC_INLINE uly_vf uly_vf_sqrt(uly_vf a)
{
    return (uly_vf)_mm512_sqrt_ps((__m512)a);
}
#elif ULY_VEC_W == 8 && defined(__AVX__)
ULY_VEC_INLINE uly_vf uly_vf_max(uly_vf a, uly_vf b)
{
    return (uly_vf)_mm256_max_ps((__m256)a, (__m256)b);
}
ULY_VEC_INLINE uly_vf uly_vf_min(uly_vf a, uly_vf b)
{
    return (uly_vf)_mm256_min_ps((__m256)a, (__m256)b);
}
ULY_VEC_INLINE uly_vf uly_vf_sqrt(uly_vf a)
{
    return (uly_vf)_mm256_sqrt_ps((__m256)a);
}
#elif ULY_VEC_W == 4 && defined(__SSE2__)
ULY_VEC_INLINE uly_vf uly_vf_max(uly_vf a, uly_vf b)
{
    return (uly_vf)_mm_max_ps((__m128)a, (__m128)b);
}
ULY_VEC_INLINE uly_vf uly_vf_min(uly_vf a, uly_vf b)
{
    return (uly_vf)_mm_min_ps((__m128)a, (__m128)b);
}
ULY_VEC_INLINE uly_vf uly_vf_sqrt(uly_vf a)
{
    return (uly_vf)_mm_sqrt_ps((__m128)a);
}
#else
ULY_VEC_INLINE uly_vf uly_vf_max(uly_vf a, uly_vf b)
{
    return uly_vf_select(a > b, a, b);
}
ULY_VEC_INLINE uly_vf uly_vf_min(uly_vf a, uly_vf b)
{
    return uly_vf_select(a < b, a, b);
}
ULY_VEC_INLINE uly_vf uly_vf_sqrt(uly_vf a)
{
    uly_vf r;
    for (int i = 0; i < ULY_VEC_W; i++)
        r[i] = __builtin_sqrtf(a[i]);
    return r;
}
#endif

/* Sum of the lanes, always by halves: the order is fixed for a width. */
ULY_VEC_INLINE float uly_vf_sum(uly_vf v)
{
    float lane[ULY_VEC_W];
    uly_vf_store(lane, v);
    for (int n = ULY_VEC_W / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++)
            lane[i] += lane[i + n];
    return lane[0];
}
/* Largest lane; NaN is not looked for. */
ULY_VEC_INLINE float uly_vf_hmax(uly_vf v)
{
    float lane[ULY_VEC_W];
    uly_vf_store(lane, v);
    for (int n = ULY_VEC_W / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++)
            lane[i] = lane[i] > lane[i + n] ? lane[i] : lane[i + n];
    return lane[0];
}

/* ------------------------------------------------------------------ bfloat16 */

ULY_VEC_INLINE uly_vf uly_vf_load_bf16(const uint16_t *p)
{
    uly_vh h;
    memcpy(&h, p, sizeof h);
    return (uly_vf)(__builtin_convertvector(h, uly_vu) << 16);
}
ULY_VEC_INLINE uly_vf uly_vf_load_bf16_n(const uint16_t *p, int64_t n)
{
    uint16_t lane[ULY_VEC_W] = {0};
    for (int64_t i = 0; i < n; i++)
        lane[i] = p[i];
    return uly_vf_load_bf16(lane);
}

/* Rounded to nearest even; NaN stays a quiet NaN; the same as uly_f32_to_bf16 lane by lane. */
ULY_VEC_INLINE uly_vh uly_vf_to_bf16(uly_vf v)
{
    uly_vu u = (uly_vu)v;
    uly_vu nearest = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    uly_vu is_nan = (uly_vu)(v != v);
    uly_vu r = (nearest & ~is_nan) | (((u >> 16) | 0x40u) & is_nan);
    return __builtin_convertvector(r, uly_vh);
}
ULY_VEC_INLINE void uly_vf_store_bf16(uint16_t *p, uly_vf v)
{
    uly_vh h = uly_vf_to_bf16(v);
    memcpy(p, &h, sizeof h);
}
ULY_VEC_INLINE void uly_vf_store_bf16_n(uint16_t *p, uly_vf v, int64_t n)
{
    uint16_t lane[ULY_VEC_W];
    uly_vf_store_bf16(lane, v);
    for (int64_t i = 0; i < n; i++)
        p[i] = lane[i];
}

/* ------------------------------------------------------------------ transposition */

/* to[j * ld + i] = row_i[j], i and j below 4, whatever the width. */
ULY_VEC_INLINE void uly_transpose_4x4(const float *row0, const float *row1, const float *row2,
                                      const float *row3, float *to, int64_t ld)
{
#if defined(__SSE2__)
    __m128 a = _mm_loadu_ps(row0), b = _mm_loadu_ps(row1);
    __m128 c = _mm_loadu_ps(row2), d = _mm_loadu_ps(row3);
    _MM_TRANSPOSE4_PS(a, b, c, d);
    _mm_storeu_ps(to, a);
    _mm_storeu_ps(to + ld, b);
    _mm_storeu_ps(to + 2 * ld, c);
    _mm_storeu_ps(to + 3 * ld, d);
#else
    for (int j = 0; j < 4; j++) {
        to[j * ld] = row0[j];
        to[j * ld + 1] = row1[j];
        to[j * ld + 2] = row2[j];
        to[j * ld + 3] = row3[j];
    }
#endif
}

/* ------------------------------------------------------------------ exp */

/* e^x, relative error below 2e-7 where the result is between 1.9e-38 and 3.4e38. Smaller results (x
 * < -86.9, -inf too) are exactly 0, larger ones +inf; NaN stays NaN.
 *
 * x = n ln 2 + r with |r| <= ln 2 / 2 and n an integer; e^r = 1 + r + r^2 p(r), p of degree 4 with
 * the smallest largest relative error (3e-9); ln 2 in two parts, the first with so few bits that n
 * times it is exact without a fused instruction. The scale 2^(n - 1) is always a normal number, so
 * the last factor of 2 is a product of its own. */
ULY_VEC_INLINE uly_vf uly_vf_exp(uly_vf x0)
{
    const float shift =
        12582912.0f; /* 1.5 * 2^23: adding it leaves the rounded integer in the low bits */
    uly_vf x = uly_vf_max(uly_vf_set1(-88.0f), uly_vf_min(uly_vf_set1(89.0f), x0)); /* keeps NaN */
    uly_vf t = x * 1.44269504f + shift;
    uly_vf n = t - shift;
    uly_vf r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    uly_vf p = 0.0013814222f * r + 0.00836889869f;
    p = p * r + 0.0416684057f;
    p = p * r + 0.166665191f;
    p = p * r + 0.499999933f;
    p = (p * r) * r + r + 1.0f;
    uly_vf scale = (uly_vf)(((uly_vi)t << 23) + (126 << 23));
    uly_vf y = p * scale * 2.0f;
    return (uly_vf)((uly_vi)y & ~(x0 < -86.9f));
}

#endif
