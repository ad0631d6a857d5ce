/* SPDX-License-Identifier: MIT */
#include "backend/check.h"

#include <stdio.h>

enum { TEXT_BYTES = 96 };

/* Names of a dtype set, "float32 or bfloat16". */
static const char *dtypes_text(unsigned dtypes, char *buffer, int bytes)
{
    static const enum uly_dtype all[] = {
#define X(name, n, text) name,
        ULY_DTYPE_LIST(X)
#undef X
    };
    int used = 0;
    buffer[0] = '\0';
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (dtypes & uly_bit(all[i]) && used < bytes)
            used += snprintf(buffer + used, (size_t)(bytes - used), "%s%s", used ? " or " : "",
                             uly_dtype_name(all[i]));
    return buffer;
}

/* Elements from the tensor's first to one past its last, or -1 where that is more than `limit`. By
 * divisions, so that no product can overflow. */
static int64_t span_within(const struct uly_tensor *t, int64_t limit)
{
    if (t->shape[0] == 0 || t->shape[1] == 0 || t->shape[2] == 0)
        return 0;
    if (t->shape[1] > limit / t->shape[2])
        return -1;
    int64_t width = t->shape[1] * t->shape[2];
    int64_t more = t->shape[0] - 1;
    if (more > 0 && more > (limit - width) / t->stride)
        return -1;
    return more * t->stride + width;
}

static bool shape_is_sane(const struct uly_tensor *t)
{
    if (t->n_dim < 1 || t->n_dim > ULY_MAX_DIM)
        return false;
    for (int i = 0; i < ULY_MAX_DIM; i++)
        if (t->shape[i] < 0 || (i >= t->n_dim && t->shape[i] != 1))
            return false;
    return true;
}

enum uly_status uly_check_tensor(struct uly_check c, const char *what, const struct uly_tensor *t,
                                 unsigned dtypes)
{
    char text[TEXT_BYTES], wanted[TEXT_BYTES];
    ULY_FAIL_IF(!t->arena, ULY_ERR_INVALID, "%s: %s is absent", c.op, what);
    ULY_FAIL_IF(!shape_is_sane(t), ULY_ERR_INVALID,
                "%s: %s has %d dimensions of [%lld, %lld, %lld]", c.op, what, t->n_dim,
                (long long)t->shape[0], (long long)t->shape[1], (long long)t->shape[2]);
    uly_tensor_text(t, text, sizeof text);
    ULY_FAIL_IF(!(dtypes & uly_bit(t->dtype)), ULY_ERR_INVALID, "%s: %s is %s, not %s", c.op, what,
                text, dtypes_text(dtypes, wanted, sizeof wanted));
    ULY_FAIL_IF(!t->arena->reserved, ULY_ERR_INVALID,
                "%s: %s %s lies in the arena %s, which is not reserved yet", c.op, what, text,
                t->arena->name);
    ULY_FAIL_IF(t->arena->space != c.be->space, ULY_ERR_INVALID,
                "%s: %s %s lies in %s memory, the backend works in %s memory", c.op, what, text,
                t->arena->space->name, c.be->space->name);
    int64_t bytes = uly_dtype_bytes(t->dtype);
    int64_t room = t->offset < 0 || t->offset > t->arena->high ? -1 : t->arena->high - t->offset;
    bool strided_wrong = t->shape[0] > 1 && (t->stride < 0 || uly_tensor_width(t) > t->stride);
    ULY_FAIL_IF(strided_wrong, ULY_ERR_INVALID, "%s: %s %s has a row stride of %lld", c.op, what,
                text, (long long)t->stride);
    ULY_FAIL_IF(
        room < 0 || t->offset % bytes != 0 || span_within(t, room / bytes) < 0, ULY_ERR_INVALID,
        "%s: %s %s at byte %lld with row stride %lld leaves the %lld bytes of %s", c.op, what, text,
        (long long)t->offset, (long long)t->stride, (long long)t->arena->high, t->arena->name);
    return ULY_OK;
}

enum uly_status uly_check_matrix(struct uly_check c, const char *what, const struct uly_tensor *t,
                                 unsigned dtypes, int64_t rows, int64_t width)
{
    char text[TEXT_BYTES];
    ULY_TRY(uly_check_tensor(c, what, t, dtypes));
    ULY_FAIL_IF(t->n_dim < 2 || t->shape[0] != rows || uly_tensor_width(t) != width,
                ULY_ERR_INVALID, "%s: %s is %s, not [%lld, %lld]", c.op, what,
                uly_tensor_text(t, text, sizeof text), (long long)rows, (long long)width);
    return ULY_OK;
}

enum uly_status uly_check_vector(struct uly_check c, const char *what, const struct uly_tensor *t,
                                 unsigned dtypes, int64_t n)
{
    char text[TEXT_BYTES];
    ULY_TRY(uly_check_tensor(c, what, t, dtypes));
    ULY_FAIL_IF(t->n_dim != 1 || t->shape[0] != n || (n > 1 && t->stride != 1), ULY_ERR_INVALID,
                "%s: %s is %s with stride %lld, not a dense [%lld]", c.op, what,
                uly_tensor_text(t, text, sizeof text), (long long)t->stride, (long long)n);
    return ULY_OK;
}

enum uly_status uly_check_heads(struct uly_check c, const char *what, const struct uly_heads *v,
                                unsigned dtypes, int n, int64_t rows, int dim)
{
    if (v->n == 0 && n == 0)
        return ULY_OK;
    ULY_FAIL_IF(v->n < 0 || v->rows < 0 || v->dim < 1, ULY_ERR_INVALID,
                "%s: %s has %d heads of [%lld, %d]", c.op, what, v->n, (long long)v->rows, v->dim);
    ULY_FAIL_IF(v->n != n || v->rows != rows || v->dim != dim, ULY_ERR_INVALID,
                "%s: %s has %d heads of [%lld, %d], not %d of [%lld, %d]", c.op, what, v->n,
                (long long)v->rows, v->dim, n, (long long)rows, dim);
    if (uly_heads_empty(v))
        return ULY_OK;
    ULY_TRY(uly_check_tensor(c, what, &v->t, dtypes));
    ULY_FAIL_IF(!v->offset || !v->stride, ULY_ERR_INVALID, "%s: %s has no offsets or strides", c.op,
                what);
    int64_t span = span_within(&v->t, INT64_MAX);
    for (int h = 0; h < n; h++) {
        int64_t offset = v->offset[h], stride = v->stride[h];
        bool inside = offset >= 0 && offset <= span - dim && stride >= (rows > 1 ? dim : 0) &&
                      (rows == 1 || rows - 1 <= (span - dim - offset) / stride);
        ULY_FAIL_IF(
            !inside, ULY_ERR_INVALID,
            "%s: head %d of %s, %lld rows of %d at offset %lld with stride %lld, leaves the "
            "tensor's %lld elements or overlaps itself",
            c.op, h, what, (long long)rows, dim, (long long)offset, (long long)stride,
            (long long)span);
    }
    return ULY_OK;
}
