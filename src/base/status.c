/* SPDX-License-Identifier: MIT
 *
 * The error record of a thread: fixed storage, so that reporting an error cannot itself run out of memory.
 */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGE_BYTES = 2048, TRACE_BYTES = 4096 };

struct error_record {
    enum uly_status status;
    char message[MESSAGE_BYTES];
    char trace[TRACE_BYTES];
};

static _Thread_local struct error_record record;

const char *uly_status_text(enum uly_status status)
{
    switch (status) {
#define X(name, value, text)                                                                       \
    case name:                                                                                     \
        return text;
        ULY_STATUS_LIST(X)
#undef X
    }
    return "unknown status";
}

int uly_status_exit_code(enum uly_status status)
{
    if (status == ULY_OK)
        return 0;
    return status == ULY_ERR_USAGE ? 2 : 1;
}

const char *uly_error_message(void)
{
    return record.message;
}

enum uly_status uly_error_status(void)
{
    return record.status;
}

const char *uly_error_trace(void)
{
    return record.trace;
}

void uly_error_clear(void)
{
    record.status = ULY_OK;
    record.message[0] = '\0';
    record.trace[0] = '\0';
}

void uly_error_frame(const char *file, int line, const char *function)
{
    size_t used = strlen(record.trace);
    snprintf(record.trace + used, sizeof record.trace - used, "  %s:%d %s\n", file, line, function);
}

enum uly_status uly_error_record(enum uly_status status, const char *file, int line,
                                 const char *function, const char *format, ...)
{
    char message[MESSAGE_BYTES]; /* the arguments may point into the old record */
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    uly_error_clear();
    memcpy(record.message, message, sizeof message);
    record.status = status;
    uly_error_frame(file, line, function);
    return status;
}

void uly_bug(const char *file, int line, const char *function, const char *condition)
{
    fprintf(stderr, "ulysses: bug: %s:%d %s: %s\n", file, line, function, condition);
    fflush(NULL);
    abort();
}
