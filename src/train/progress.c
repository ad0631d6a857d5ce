/* SPDX-License-Identifier: MIT */
#include "train/progress.h"

#include <stdarg.h>

#include "base/clock.h"

static const char erase[] = "\r\033[K"; /* to the line's start, clear to its end */

void uly_progress_line(struct uly_progress *p, const char *format, ...)
{
    char text[1024];
    va_list args;
    if (!p->out)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(p->out, "%s%s\n", p->drawn ? erase : "", text);
    fflush(p->out);
    p->drawn = false;
    p->last_draw = uly_seconds();
}

void uly_progress_status(struct uly_progress *p, double plain_seconds, const char *format, ...)
{
    char text[256];
    va_list args;
    if (!p->out || uly_seconds() - p->last_draw < (p->terminal ? 0.1 : plain_seconds))
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (p->terminal)
        fprintf(p->out, "%s%s", erase, text);
    else
        fprintf(p->out, "%s\n", text);
    fflush(p->out);
    p->drawn = p->terminal;
    p->last_draw = uly_seconds();
}
