/* SPDX-License-Identifier: MIT */
#include "train/text.h"

#include <inttypes.h>
#include <stdio.h>

const char *uly_text_count(int64_t n, struct uly_text *buffer)
{
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%" PRId64, n < 0 ? -n : n), out = 0;
    if (n < 0)
        buffer->text[out++] = '-';
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            buffer->text[out++] = ',';
        buffer->text[out++] = digits[i];
    }
    buffer->text[out] = 0;
    return buffer->text;
}

const char *uly_text_bytes(int64_t n, struct uly_text *buffer)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double x = (double)n;
    int unit = 0;
    while (x >= 1000 && unit < 5) {
        x /= 1024;
        unit++;
    }
    int places = unit == 0 ? 0 : x < 10 ? 2 : x < 100 ? 1 : 0;
    snprintf(buffer->text, sizeof buffer->text, "%.*f %s", places, x, units[unit]);
    return buffer->text;
}

const char *uly_text_seconds(double seconds, struct uly_text *buffer)
{
    size_t room = sizeof buffer->text;
    int64_t s = (int64_t)(seconds + 0.5);
    if (!(seconds >= 0) || seconds > 1e10)
        snprintf(buffer->text, room, "unknown");
    else if (seconds < 10)
        snprintf(buffer->text, room, "%.1f s", seconds);
    else if (s < 60)
        snprintf(buffer->text, room, "%" PRId64 " s", s);
    else if (s < 3600)
        snprintf(buffer->text, room, "%" PRId64 " min %" PRId64 " s", s / 60, s % 60);
    else if (s < 86400)
        snprintf(buffer->text, room, "%" PRId64 " h %" PRId64 " min", s / 3600, s % 3600 / 60);
    else
        snprintf(buffer->text, room, "%" PRId64 " d %" PRId64 " h", s / 86400, s % 86400 / 3600);
    return buffer->text;
}
