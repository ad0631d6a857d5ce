/* SPDX-License-Identifier: MIT
 *
 * cpu:ref, the specification: plain loops, one thread, sums in double, one rounding where a result
 * is stored. It is read beside backend.h and is never made faster; `cpu` is compared with it. This
 * file: the table, data in and out, elementwise operations. ref_matmul.c: products and column sums;
 * ref_token.c: token-wise operations, loss, optimizer; ref_heads.c: head views and attention.
 */
#include "backend/cpu/ref.h"

#include <stdio.h>
#include <string.h>

static void cpu_ref_destroy(struct uly_backend *be)
{
    (void)be; /* it holds nothing */
}

static enum uly_status cpu_ref_write(struct uly_backend *be, struct uly_tensor t, const void *host)
{
    (void)be;
    int64_t bytes = uly_dtype_bytes(t.dtype), row_bytes = uly_tensor_width(&t) * bytes;
    unsigned char *to = uly_tensor_address(t);
    const unsigned char *from = host;
    for (int64_t i = 0; i < t.shape[0] && row_bytes > 0; i++)
        memcpy(to + i * t.stride * bytes, from + i * row_bytes, (size_t)row_bytes);
    return ULY_OK;
}

static enum uly_status cpu_ref_read(struct uly_backend *be, struct uly_tensor t, void *host)
{
    (void)be;
    int64_t bytes = uly_dtype_bytes(t.dtype), row_bytes = uly_tensor_width(&t) * bytes;
    const unsigned char *from = uly_tensor_address(t);
    unsigned char *to = host;
    for (int64_t i = 0; i < t.shape[0] && row_bytes > 0; i++)
        memcpy(to + i * row_bytes, from + i * t.stride * bytes, (size_t)row_bytes);
    return ULY_OK;
}

static enum uly_status cpu_ref_fill(struct uly_backend *be, struct uly_tensor t, double value)
{
    (void)be;
    for (int64_t i = 0; i < t.shape[0]; i++)
        for (int64_t j = 0; j < uly_tensor_width(&t); j++)
            uly_ref_set(&t, i, j, value);
    return ULY_OK;
}

static enum uly_status cpu_ref_cast(struct uly_backend *be, struct uly_tensor src,
                                    struct uly_tensor dst)
{
    (void)be;
    for (int64_t i = 0; i < src.shape[0]; i++)
        for (int64_t j = 0; j < uly_tensor_width(&src); j++)
            uly_ref_set(&dst, i, j, uly_ref_get(&src, i, j));
    return ULY_OK;
}

static enum uly_status cpu_ref_add(struct uly_backend *be, struct uly_tensor src,
                                   struct uly_tensor dst)
{
    (void)be;
    for (int64_t i = 0; i < src.shape[0]; i++)
        for (int64_t j = 0; j < uly_tensor_width(&src); j++)
            uly_ref_set(&dst, i, j, uly_ref_get(&dst, i, j) + uly_ref_get(&src, i, j));
    return ULY_OK;
}

static enum uly_status cpu_ref_scale(struct uly_backend *be, struct uly_tensor t, double factor)
{
    (void)be;
    for (int64_t i = 0; i < t.shape[0]; i++)
        for (int64_t j = 0; j < uly_tensor_width(&t); j++)
            uly_ref_set(&t, i, j, uly_ref_get(&t, i, j) * factor);
    return ULY_OK;
}

static enum uly_status cpu_ref_sum_squares(struct uly_backend *be, struct uly_tensor t, double *out)
{
    (void)be;
    double sum = 0;
    for (int64_t i = 0; i < t.shape[0]; i++)
        for (int64_t j = 0; j < uly_tensor_width(&t); j++)
            sum += uly_ref_get(&t, i, j) * uly_ref_get(&t, i, j);
    *out = sum;
    return ULY_OK;
}

static const struct uly_backend_ops cpu_ref_ops = {
    .destroy = cpu_ref_destroy,
    .write = cpu_ref_write,
    .read = cpu_ref_read,
    .fill = cpu_ref_fill,
    .cast = cpu_ref_cast,
    .add = cpu_ref_add,
    .scale = cpu_ref_scale,
    .sum_squares = cpu_ref_sum_squares,
    .matmul = uly_ref_matmul,
    .column_sum = uly_ref_column_sum,
    .rmsnorm_fwd = uly_ref_rmsnorm_fwd,
    .rmsnorm_bwd = uly_ref_rmsnorm_bwd,
    .swiglu_fwd = uly_ref_swiglu_fwd,
    .swiglu_bwd = uly_ref_swiglu_bwd,
    .embed_fwd = uly_ref_embed_fwd,
    .embed_bwd = uly_ref_embed_bwd,
    .head_move = uly_ref_head_move,
    .head_dot = uly_ref_head_dot,
    .attention_fwd = uly_ref_attention_fwd,
    .attention_bwd = uly_ref_attention_bwd,
    .cross_entropy = uly_ref_cross_entropy,
    .adamw = uly_ref_adamw,
};

enum uly_status uly_cpu_ref_init(struct uly_backend *be)
{
    be->ops = cpu_ref_ops;
    snprintf(be->name, sizeof be->name, "cpu:ref");
    be->space = &uly_host_space;
    be->dtypes = 1u << ULY_DTYPE_F32 | 1u << ULY_DTYPE_BF16 | 1u << ULY_DTYPE_F64;
    be->scratch_bytes = 0;
    return ULY_OK;
}
