/* SPDX-License-Identifier: MIT
 *
 * Tensor: a typed, strided window of an arena, passed by value. It holds no address: only a backend turns it into one,
 * so its memory may be a device's. A view shares its parent's arena and lives as long as that arena.
 */
#ifndef ULY_BASE_TENSOR_H
#define ULY_BASE_TENSOR_H

#include <stddef.h>

#include "base/arena.h"

enum { ULY_MAX_DIM = 3 };

struct uly_tensor {
    struct uly_arena *arena; /* borrowed; NULL means "no tensor" where an argument is optional */
    int64_t offset;          /* bytes from the arena's base */
    enum uly_dtype dtype;
    int n_dim;                  /* 1 to 3 */
    int64_t shape[ULY_MAX_DIM]; /* slowest dimension first; unused ones are 1 */
    int64_t stride; /* elements between neighbours in dimension 0; dimensions 1 and 2 are dense */
};

/* Makes a dense tensor of shape [d0], [d0, d1] or [d0, d1, d2] (n_dim 1 to 3) in the arena and enters it in the size
 * table. Fails with ULY_ERR_INTERNAL after the arena's reservation, with ULY_ERR_NO_MEMORY where sizes overflow 63 bits. */
enum uly_status uly_tensor_new(struct uly_arena *arena, const char *name, enum uly_dtype dtype,
                               int n_dim, int64_t d0, int64_t d1, int64_t d2,
                               struct uly_tensor *out);

/* Rows [start, start + count) of dimension 0. */
struct uly_tensor uly_tensor_rows(struct uly_tensor t, int64_t start, int64_t count);

/* Columns [start, start + count) of a [rows, columns] tensor (a [n, a, b] one counts as [n, a * b]). */
struct uly_tensor uly_tensor_cols(struct uly_tensor t, int64_t start, int64_t count);

/* The same elements of a dense tensor under another shape; the number of elements may shrink (a prefix). */
struct uly_tensor uly_tensor_reshape(struct uly_tensor t, int n_dim, int64_t d0, int64_t d1,
                                     int64_t d2);

static inline int64_t uly_tensor_width(const struct uly_tensor *t) /* elements of one row */
{
    return t->shape[1] * t->shape[2];
}
static inline int64_t uly_tensor_count(const struct uly_tensor *t)
{
    return t->shape[0] * t->shape[1] * t->shape[2];
}
static inline bool uly_tensor_is_dense(const struct uly_tensor *t)
{
    return t->stride == uly_tensor_width(t) || t->shape[0] <= 1;
}
static inline bool uly_tensor_exists(const struct uly_tensor *t)
{
    return t->arena != NULL;
}

/* "[2048, 512] bfloat16" for messages; writes into buffer and returns it. */
const char *uly_tensor_text(const struct uly_tensor *t, char *buffer, int64_t bytes);

#endif
