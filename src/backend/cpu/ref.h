/* SPDX-License-Identifier: MIT
 *
 * Inside of cpu:ref: elements of any float dtype as doubles, and the operations that its table
 * lists.
 */
#ifndef ULY_BACKEND_CPU_REF_H
#define ULY_BACKEND_CPU_REF_H

#include <math.h>

#include "backend/backend_impl.h"

/* Sums over many columns are held in blocks of this many double accumulators: an operation may not
 * allocate. */
enum { ULY_REF_BLOCK = 64 };

/* The nearest float, except that an inexact result is made odd in its last bit: rounding that to
 * fewer bits is then the same as rounding x itself (one rounding, not two). */
static inline float uly_ref_to_odd(double x)
{
    float f = (float)x;
    if (isnan(x) || (double)f == x)
        return f;
    if (fabs((double)f) > fabs(x))
        f = nextafterf(f, 0.0f);
    uint32_t bits;
    memcpy(&bits, &f, 4);
    bits |= 1;
    memcpy(&f, &bits, 4);
    return f;
}

/* Element i from p on. */
static inline double uly_ref_load(const void *p, enum uly_dtype dtype, int64_t i)
{
    switch (dtype) {
    case ULY_DTYPE_F32:
        return (double)((const float *)p)[i];
    case ULY_DTYPE_BF16:
        return (double)uly_bf16_to_f32(((const uint16_t *)p)[i]);
    case ULY_DTYPE_F16:
        return (double)uly_f16_to_f32(((const uint16_t *)p)[i]);
    case ULY_DTYPE_F64:
        return ((const double *)p)[i];
    case ULY_DTYPE_I32:
        return (double)((const int32_t *)p)[i];
    case ULY_DTYPE_I64:
        return (double)((const int64_t *)p)[i];
    case ULY_DTYPE_U8:
        return (double)((const uint8_t *)p)[i];
    }
    return 0;
}

static inline void uly_ref_store(void *p, enum uly_dtype dtype, int64_t i, double x)
{
    switch (dtype) {
    case ULY_DTYPE_F32:
        ((float *)p)[i] = (float)x;
        break;
    case ULY_DTYPE_BF16:
        ((uint16_t *)p)[i] = uly_f32_to_bf16(uly_ref_to_odd(x));
        break;
    case ULY_DTYPE_F16:
        ((uint16_t *)p)[i] = uly_f32_to_f16(uly_ref_to_odd(x));
        break;
    case ULY_DTYPE_F64:
        ((double *)p)[i] = x;
        break;
    case ULY_DTYPE_I32:
        ((int32_t *)p)[i] = (int32_t)x;
        break;
    case ULY_DTYPE_I64:
        ((int64_t *)p)[i] = (int64_t)x;
        break;
    case ULY_DTYPE_U8:
        ((uint8_t *)p)[i] = (uint8_t)x;
        break;
    }
}

/* Element (row, column) of a tensor read as [rows, the rest]. */
static inline double uly_ref_get(const struct uly_tensor *t, int64_t row, int64_t column)
{
    return uly_ref_load(uly_tensor_address(*t), t->dtype, row * t->stride + column);
}
static inline void uly_ref_set(const struct uly_tensor *t, int64_t row, int64_t column, double x)
{
    uly_ref_store(uly_tensor_address(*t), t->dtype, row * t->stride + column, x);
}

/* Element (row, head, d) of a view. */
static inline double uly_ref_head_get(const struct uly_heads *v, int h, int64_t row, int d)
{
    return uly_ref_load(uly_tensor_address(v->t), v->t.dtype,
                        v->offset[h] + row * v->stride[h] + d);
}
static inline void uly_ref_head_set(const struct uly_heads *v, int h, int64_t row, int d, double x)
{
    uly_ref_store(uly_tensor_address(v->t), v->t.dtype, v->offset[h] + row * v->stride[h] + d, x);
}

static inline void uly_ref_poke(struct uly_backend *be)
{
    if (be->poke)
        be->poke(be->poke_context);
}

/* Entries of the table, as backend.h specifies them. */
enum uly_status uly_ref_matmul(struct uly_backend *be, const struct uly_matmul_args *args);
enum uly_status uly_ref_column_sum(struct uly_backend *be, struct uly_tensor x,
                                   struct uly_tensor out);
enum uly_status uly_ref_rmsnorm_fwd(struct uly_backend *be,
                                    const struct uly_rmsnorm_fwd_args *args);
enum uly_status uly_ref_rmsnorm_bwd(struct uly_backend *be,
                                    const struct uly_rmsnorm_bwd_args *args);
enum uly_status uly_ref_swiglu_fwd(struct uly_backend *be, struct uly_tensor gate,
                                   struct uly_tensor up, struct uly_tensor y);
enum uly_status uly_ref_swiglu_bwd(struct uly_backend *be, struct uly_tensor gate,
                                   struct uly_tensor up, struct uly_tensor dy,
                                   struct uly_tensor dgate, struct uly_tensor dup);
enum uly_status uly_ref_embed_fwd(struct uly_backend *be, struct uly_tensor ids,
                                  struct uly_tensor table, struct uly_tensor x);
enum uly_status uly_ref_embed_bwd(struct uly_backend *be, struct uly_tensor ids,
                                  struct uly_tensor dx, struct uly_tensor dtable);
enum uly_status uly_ref_head_move(struct uly_backend *be, const struct uly_head_move_args *args);
enum uly_status uly_ref_head_dot(struct uly_backend *be, const struct uly_heads *a,
                                 const struct uly_heads *b, const struct uly_heads *out);
enum uly_status uly_ref_attention_fwd(struct uly_backend *be,
                                      const struct uly_attention_fwd_args *args);
enum uly_status uly_ref_attention_bwd(struct uly_backend *be,
                                      const struct uly_attention_bwd_args *args);
enum uly_status uly_ref_cross_entropy(struct uly_backend *be,
                                      const struct uly_cross_entropy_args *args);
enum uly_status uly_ref_adamw(struct uly_backend *be, const struct uly_adamw_args *args);

#endif
