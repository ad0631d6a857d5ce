/* SPDX-License-Identifier: MIT */
#include "base/tensor.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum { ALIGNMENT = 64 };

static enum uly_status table_row(struct uly_arena *arena, const char *name,
                                 const struct uly_tensor *t, int64_t bytes)
{
    if (arena->n_rows == arena->row_room) {
        int room = arena->row_room ? 2 * arena->row_room : 64;
        void *rows = arena->rows;
        ULY_TRY(uly_realloc(&rows, (size_t)room, sizeof *arena->rows));
        arena->rows = rows;
        arena->row_room = room;
    }
    struct uly_arena_row *row = &arena->rows[arena->n_rows++];
    snprintf(row->name, sizeof row->name, "%s", name);
    row->dtype = t->dtype;
    row->n_dim = t->n_dim;
    memcpy(row->shape, t->shape, sizeof row->shape);
    row->offset = t->offset;
    row->bytes = bytes;
    return ULY_OK;
}

enum uly_status uly_tensor_new(struct uly_arena *arena, const char *name, enum uly_dtype dtype,
                               int n_dim, int64_t d0, int64_t d1, int64_t d2,
                               struct uly_tensor *out)
{
    ULY_FAIL_IF(arena->reserved, ULY_ERR_INTERNAL,
                "tensor %s asked for after the arena %s was reserved", name, arena->name);
    ULY_BUG_ON(n_dim < 1 || n_dim > ULY_MAX_DIM);
    struct uly_tensor t = {arena, arena->used, dtype, n_dim, {d0, 1, 1}, 1};
    if (n_dim > 1)
        t.shape[1] = d1;
    if (n_dim > 2)
        t.shape[2] = d2;
    int64_t bytes = uly_dtype_bytes(dtype);
    bool bad = false;
    for (int i = 0; i < ULY_MAX_DIM; i++)
        bad = bad || t.shape[i] < 0 || __builtin_mul_overflow(bytes, t.shape[i], &bytes);
    int64_t end = 0;
    bad = bad || __builtin_add_overflow(arena->used, bytes, &end) || end > INT64_MAX - ALIGNMENT;
    ULY_FAIL_IF(bad, ULY_ERR_NO_MEMORY, "tensor %s [%lld, %lld, %lld] is too large", name,
                (long long)t.shape[0], (long long)t.shape[1], (long long)t.shape[2]);
    t.stride = uly_tensor_width(&t);
    ULY_TRY(table_row(arena, name, &t, bytes));
    arena->used = (end + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (arena->used > arena->high)
        arena->high = arena->used;
    *out = t;
    return ULY_OK;
}

struct uly_tensor uly_tensor_rows(struct uly_tensor t, int64_t start, int64_t count)
{
    ULY_BUG_ON(start < 0 || count < 0 || start + count > t.shape[0]);
    t.offset += start * t.stride * uly_dtype_bytes(t.dtype);
    t.shape[0] = count;
    return t;
}

struct uly_tensor uly_tensor_cols(struct uly_tensor t, int64_t start, int64_t count)
{
    ULY_BUG_ON(start < 0 || count < 0 || start + count > uly_tensor_width(&t) || t.n_dim < 2);
    t.offset += start * uly_dtype_bytes(t.dtype);
    t.n_dim = 2;
    t.shape[1] = count;
    t.shape[2] = 1;
    return t;
}

struct uly_tensor uly_tensor_reshape(struct uly_tensor t, int n_dim, int64_t d0, int64_t d1,
                                     int64_t d2)
{
    struct uly_tensor u = t;
    ULY_BUG_ON(!uly_tensor_is_dense(&t) || n_dim < 1 || n_dim > ULY_MAX_DIM);
    u.n_dim = n_dim;
    u.shape[0] = d0;
    u.shape[1] = n_dim > 1 ? d1 : 1;
    u.shape[2] = n_dim > 2 ? d2 : 1;
    u.stride = uly_tensor_width(&u);
    ULY_BUG_ON(uly_tensor_count(&u) > uly_tensor_count(&t));
    return u;
}

const char *uly_tensor_text(const struct uly_tensor *t, char *buffer, int64_t bytes)
{
    int used = snprintf(buffer, (size_t)bytes, "[");
    for (int i = 0; i < t->n_dim; i++)
        used += snprintf(buffer + used, (size_t)(bytes - used), "%s%lld", i ? ", " : "",
                         (long long)t->shape[i]);
    snprintf(buffer + used, (size_t)(bytes - used), "] %s", uly_dtype_name(t->dtype));
    return buffer;
}
