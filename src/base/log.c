/* SPDX-License-Identifier: MIT */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct log_context {
    int rank, size, warnings;
};

static _Thread_local struct log_context context = {0, 1, 0};

static const char *const level_names[] = {"error", "warn", "info", "debug"};

void uly_log_set_rank(int rank, int size)
{
    context.rank = rank;
    context.size = size;
}

static enum uly_log_level wanted_level(void)
{
    const char *name = getenv("ULY_LOG");
    for (int i = 0; name && i < 4; i++)
        if (strcmp(name, level_names[i]) == 0)
            return (enum uly_log_level)i;
    return ULY_LOG_WARN;
}

void uly_log(enum uly_log_level level, const char *area, const char *format, ...)
{
    if (level == ULY_LOG_WARN)
        context.warnings++;
    if (level > wanted_level())
        return;
    char text[2048], prefix[48] = "";
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (context.size > 1)
        snprintf(prefix, sizeof prefix, "[%d/%d]", context.rank, context.size);
    /* one call, so that lines of several ranks do not mix */
    fprintf(stderr, "ulysses%s %s: %s: %s\n", prefix, level_names[level], area, text);
}

int uly_log_warnings(void)
{
    return context.warnings;
}
