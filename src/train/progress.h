/* SPDX-License-Identifier: MIT
 *
 * What a person watches: on a terminal one line that is drawn over, elsewhere plain lines, few enough for a log file.
 * Only rank 0 has an output; the functions do nothing where it is NULL.
 */
#ifndef ULY_TRAIN_PROGRESS_H
#define ULY_TRAIN_PROGRESS_H

#include <stdbool.h>
#include <stdio.h>

struct uly_progress {
    FILE *out; /* borrowed; NULL: silent */
    bool terminal;
    bool drawn;       /* a status line stands on the terminal */
    double last_draw; /* uly_seconds */
};

/* A line that stays; a newline is added. */
void uly_progress_line(struct uly_progress *p, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* A line that the next one replaces. On a terminal: at most ten a second. Elsewhere: a plain line, at most one in
 * plain_seconds since the last line of any kind. */
void uly_progress_status(struct uly_progress *p, double plain_seconds, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
