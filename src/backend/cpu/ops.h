/* SPDX-License-Identifier: MIT
 *
 * The cpu backend's entries of the table, as backend.h specifies them: elementwise.c, tokenwise.c (norm, column sums,
 * embedding, loss) and head_move.c. matmul.h and attention.h have the others.
 */
#ifndef ULY_BACKEND_CPU_OPS_H
#define ULY_BACKEND_CPU_OPS_H

#include "backend/cpu/cpu_impl.h"
#include "backend/cpu/kernels.h"

/* float32 and bfloat16 have kernels; other float types go to cpu:ref's entry. */
static inline bool uly_cpu_is_fast(enum uly_dtype dtype)
{
    return dtype == ULY_DTYPE_F32 || dtype == ULY_DTYPE_BF16;
}

static inline struct uly_span uly_cpu_span(struct uly_tensor t)
{
    return (struct uly_span){uly_tensor_address(t), t.dtype};
}

/* Optional tensors: an absent span where there is none. */
static inline struct uly_span uly_cpu_span_or_none(struct uly_tensor t)
{
    return uly_tensor_exists(&t) ? uly_cpu_span(t) : (struct uly_span){NULL, ULY_DTYPE_F32};
}

void uly_cpu_destroy(struct uly_backend *be); /* in cpu.c */
enum uly_status uly_cpu_write(struct uly_backend *be, struct uly_tensor t, const void *host);
enum uly_status uly_cpu_read(struct uly_backend *be, struct uly_tensor t, void *host);
enum uly_status uly_cpu_fill(struct uly_backend *be, struct uly_tensor t, double value);
enum uly_status uly_cpu_cast(struct uly_backend *be, struct uly_tensor src, struct uly_tensor dst);
enum uly_status uly_cpu_add(struct uly_backend *be, struct uly_tensor src, struct uly_tensor dst);
enum uly_status uly_cpu_scale(struct uly_backend *be, struct uly_tensor t, double factor);
enum uly_status uly_cpu_sum_squares(struct uly_backend *be, struct uly_tensor t, double *out);
enum uly_status uly_cpu_column_sum(struct uly_backend *be, struct uly_tensor x,
                                   struct uly_tensor out);
enum uly_status uly_cpu_rmsnorm_fwd(struct uly_backend *be,
                                    const struct uly_rmsnorm_fwd_args *args);
enum uly_status uly_cpu_rmsnorm_bwd(struct uly_backend *be,
                                    const struct uly_rmsnorm_bwd_args *args);
enum uly_status uly_cpu_swiglu_fwd(struct uly_backend *be, struct uly_tensor gate,
                                   struct uly_tensor up, struct uly_tensor y);
enum uly_status uly_cpu_swiglu_bwd(struct uly_backend *be, struct uly_tensor gate,
                                   struct uly_tensor up, struct uly_tensor dy,
                                   struct uly_tensor dgate, struct uly_tensor dup);
enum uly_status uly_cpu_embed_fwd(struct uly_backend *be, struct uly_tensor ids,
                                  struct uly_tensor table, struct uly_tensor x);
enum uly_status uly_cpu_embed_bwd(struct uly_backend *be, struct uly_tensor ids,
                                  struct uly_tensor dx, struct uly_tensor dtable);
enum uly_status uly_cpu_cross_entropy(struct uly_backend *be,
                                      const struct uly_cross_entropy_args *args);
enum uly_status uly_cpu_adamw(struct uly_backend *be, const struct uly_adamw_args *args);

enum uly_status uly_cpu_head_move(struct uly_backend *be, const struct uly_head_move_args *args);
enum uly_status uly_cpu_head_dot(struct uly_backend *be, const struct uly_heads *a,
                                 const struct uly_heads *b, const struct uly_heads *out);

#endif
