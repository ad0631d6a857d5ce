/* SPDX-License-Identifier: MIT */
#include "base/dtype.h"

#include <math.h>

float uly_f16_to_f32(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000u) << 16, exponent = (x >> 10) & 31u, mantissa = x & 1023u;
    uint32_t u;
    if (exponent == 0) { /* zero or subnormal: mantissa * 2^-24 */
        float f = ldexpf((float)mantissa, -24);
        return sign ? -f : f;
    }
    if (exponent == 31)
        u = sign | 0x7f800000u | mantissa << 13;
    else
        u = sign | (exponent + 112) << 23 | mantissa << 13;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

uint16_t uly_f32_to_f16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    uint16_t sign = (uint16_t)((u >> 16) & 0x8000u);
    uint32_t magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) /* rounds to 2^16 or more */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) /* below the smallest normal: units of 2^-24, rounded to even */
        return (uint16_t)(sign | (uint16_t)nearbyintf(ldexpf(fabsf(f), 24)));
    uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1);
    return (uint16_t)(sign | (uint16_t)((rounded - 0x38000000u) >> 13));
}
