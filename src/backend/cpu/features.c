/* SPDX-License-Identifier: MIT
 *
 * CPU features through the compiler's own query, which also asks whether the system saves the wide registers.
 */
#include "backend/cpu/features.h"

#if defined(__x86_64__)

bool uly_cpu_has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

bool uly_cpu_has_avx512(void)
{
    return uly_cpu_has_avx2() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq");
}

bool uly_cpu_has_bf16(void)
{
    return uly_cpu_has_avx512() && __builtin_cpu_supports("avx512bf16");
}

#else

bool uly_cpu_has_avx2(void)
{
    return false;
}

bool uly_cpu_has_avx512(void)
{
    return false;
}

bool uly_cpu_has_bf16(void)
{
    return false;
}

#endif
