/* SPDX-License-Identifier: MIT */
#ifndef ULY_BASE_CLOCK_H
#define ULY_BASE_CLOCK_H

#include <time.h>

/* Seconds on a clock that never goes back; only differences mean something. */
static inline double uly_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
