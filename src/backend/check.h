/* SPDX-License-Identifier: MIT
 *
 * What the public wrappers of backend.h check before they dispatch. Every function returns
 * ULY_ERR_INVALID with the operation, the argument, what it is and what it should be. Tensor
 * contents are never read: they may be a device's. So ids, labels and positions are not checked
 * here; the data layer checks them when it reads a row, and cpu:ref again.
 */
#ifndef ULY_BACKEND_CHECK_H
#define ULY_BACKEND_CHECK_H

#include "backend/backend_impl.h"

/* Sets of dtypes, bit 1 << dtype. */
enum {
    ULY_BIT_F32 = 1 << ULY_DTYPE_F32,
    ULY_BIT_BF16 = 1 << ULY_DTYPE_BF16,
    ULY_BIT_F16 = 1 << ULY_DTYPE_F16,
    ULY_BIT_F64 = 1 << ULY_DTYPE_F64,
    ULY_BIT_I32 = 1 << ULY_DTYPE_I32,
    ULY_BIT_I64 = 1 << ULY_DTYPE_I64,
    ULY_BITS_FLOAT = ULY_BIT_F32 | ULY_BIT_BF16 | ULY_BIT_F16 | ULY_BIT_F64,
    ULY_BITS_ANY = ULY_BITS_FLOAT | ULY_BIT_I32 | ULY_BIT_I64 | 1 << ULY_DTYPE_U8
};

static inline unsigned uly_bit(enum uly_dtype dtype)
{
    return 1u << dtype;
}
static inline unsigned
uly_acc_bit(enum uly_dtype model) /* the acc dtype that goes with a model dtype */
{
    return model == ULY_DTYPE_F64 ? ULY_BIT_F64 : ULY_BIT_F32;
}
static inline unsigned uly_model_or_acc(enum uly_dtype model)
{
    return uly_bit(model) | uly_acc_bit(model);
}

/* ULY_ERR_INTERNAL where the backend lacks an operation (which is named) or a memory space. */
enum uly_status uly_check_table(const struct uly_backend *be);

/* Who is asking: passed through every check, for the message. */
struct uly_check {
    const struct uly_backend *be;
    const char *op;
};

/* t exists, lies in reserved memory of the backend's space, has a sane stride and one of the
 * dtypes. */
enum uly_status uly_check_tensor(struct uly_check c, const char *what, const struct uly_tensor *t,
                                 unsigned dtypes);
/* ... and is [rows, width], any row stride; a 3-D tensor counts as [rows, the rest]. */
enum uly_status uly_check_matrix(struct uly_check c, const char *what, const struct uly_tensor *t,
                                 unsigned dtypes, int64_t rows, int64_t width);
/* ... and is a dense [n]. */
enum uly_status uly_check_vector(struct uly_check c, const char *what, const struct uly_tensor *t,
                                 unsigned dtypes, int64_t n);

/* The view has n heads of [rows, dim], each inside the tensor's memory, rows of one head apart from
 * each other. A view of no rows or no heads needs no tensor. */
enum uly_status uly_check_heads(struct uly_check c, const char *what, const struct uly_heads *v,
                                unsigned dtypes, int n, int64_t rows, int dim);

static inline bool uly_heads_empty(const struct uly_heads *v)
{
    return v->n == 0 || v->rows == 0;
}

#endif
