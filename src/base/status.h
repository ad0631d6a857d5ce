/* SPDX-License-Identifier: MIT
 *
 * Status codes and the error trace.
 *
 * The function that first decides an error records code, message and place (ULY_FAIL); every function that passes it on
 * adds one frame (ULY_TRY). Nobody below src/cli prints. The record belongs to the calling thread (a rank may be a
 * thread), is overwritten by the next ULY_FAIL and lives until then.
 *
 * Words: TRY and FAIL may return; BUG_ON stops the program; CHECK exists in tests only.
 */
#ifndef ULY_BASE_STATUS_H
#define ULY_BASE_STATUS_H

#include <stdbool.h>

/* X(name, value, text) */
#define ULY_STATUS_LIST(X)                                                                         \
    X(ULY_OK, 0, "success")                                                                        \
    X(ULY_ERR_USAGE, -1, "wrong usage")                                                            \
    X(ULY_ERR_INVALID, -2, "invalid value")                                                        \
    X(ULY_ERR_UNSUPPORTED, -3, "not supported")                                                    \
    X(ULY_ERR_FORMAT, -4, "malformed file")                                                        \
    X(ULY_ERR_IO, -5, "input or output failed")                                                    \
    X(ULY_ERR_NO_SPACE, -6, "no space left")                                                       \
    X(ULY_ERR_NO_MEMORY, -7, "out of memory")                                                      \
    X(ULY_ERR_COMM, -8, "communication failed")                                                    \
    X(ULY_ERR_PEER, -9, "another rank failed")                                                     \
    X(ULY_ERR_INTERNAL, -10, "internal error")

enum uly_status {
#define X(name, value, text) name = value,
    ULY_STATUS_LIST(X)
#undef X
};

/* Constant text of a code; never NULL. */
const char *uly_status_text(enum uly_status status);

/* Exit status of a program that ends with this code: 0 done, 2 usage, 1 anything else. */
int uly_status_exit_code(enum uly_status status);

/* The calling thread's last error: one line that names the cause and the values. "" when none was recorded. The string
 * is owned by the thread's record. */
const char *uly_error_message(void);

/* Status of the calling thread's last error. */
enum uly_status uly_error_status(void);

/* The frames of the last error, newest last, one a line ("file:line function"); owned by the thread's record. */
const char *uly_error_trace(void);

void uly_error_clear(void);

/* Used through the macros below. uly_error_record returns status, so that it can end a return statement. */
enum uly_status uly_error_record(enum uly_status status, const char *file, int line,
                                 const char *function, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
void uly_error_frame(const char *file, int line, const char *function);
_Noreturn void uly_bug(const char *file, int line, const char *function, const char *condition);

/* The code is returned by name, not from the call, so that the compiler sees which returns are failures. */
#define ULY_FAIL(status, ...)                                                                      \
    return ((void)uly_error_record((status), __FILE__, __LINE__, __func__, __VA_ARGS__), (status))

#define ULY_FAIL_IF(condition, status, ...)                                                        \
    do {                                                                                           \
        if (condition)                                                                             \
            ULY_FAIL(status, __VA_ARGS__);                                                         \
    } while (0)

#define ULY_TRY(call)                                                                              \
    do {                                                                                           \
        enum uly_status uly_try_status_ = (call);                                                  \
        if (uly_try_status_ != ULY_OK) {                                                           \
            uly_error_frame(__FILE__, __LINE__, __func__);                                         \
            return uly_try_status_;                                                                \
        }                                                                                          \
    } while (0)

/* For functions with a cleanup label; the caller declares `enum uly_status status = ULY_OK;`. */
#define ULY_TRY_GOTO(call, label)                                                                  \
    do {                                                                                           \
        status = (call);                                                                           \
        if (status != ULY_OK) {                                                                    \
            uly_error_frame(__FILE__, __LINE__, __func__);                                         \
            goto label;                                                                            \
        }                                                                                          \
    } while (0)

/* Records an error and goes to the cleanup label. */
#define ULY_FAIL_GOTO(label, code, ...)                                                            \
    do {                                                                                           \
        (void)uly_error_record((code), __FILE__, __LINE__, __func__, __VA_ARGS__);                 \
        status = (code);                                                                           \
        goto label;                                                                                \
    } while (0)

/* A broken promise inside the program itself: prints the place and stops. Never for data from outside. */
#define ULY_BUG_ON(condition)                                                                      \
    do {                                                                                           \
        if (condition)                                                                             \
            uly_bug(__FILE__, __LINE__, __func__, #condition);                                     \
    } while (0)

#endif
