/* SPDX-License-Identifier: MIT
 *
 * Diagnostics on standard error: "ulysses[rank/size] area: text". Lower case, values after a space, the exact cause.
 * What a user asked to see (start block, progress, results) is not a log: the commands print that on standard output.
 *
 * The context (rank, level, count of warnings) belongs to the calling thread, since a rank may be a thread. Level from
 * the environment variable ULY_LOG (error, warn, info, debug), default warn. A test fails on a warning it did not expect:
 * see uly_log_warnings.
 */
#ifndef ULY_BASE_LOG_H
#define ULY_BASE_LOG_H

enum uly_log_level { ULY_LOG_ERROR, ULY_LOG_WARN, ULY_LOG_INFO, ULY_LOG_DEBUG };

/* Names this thread's rank in later lines; size 1 prints no prefix. */
void uly_log_set_rank(int rank, int size);

/* Writes one line (a newline is added). area: the folder that speaks, e.g. "comm". */
void uly_log(enum uly_log_level level, const char *area, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Warnings written by this thread since it started. */
int uly_log_warnings(void);

#endif
