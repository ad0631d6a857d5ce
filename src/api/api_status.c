/* SPDX-License-Identifier: MIT
 *
 * Status, version, and the checks that all calls of the public library share.
 */
#include <stdint.h>
#include <string.h>

#include "api/api_impl.h"

/* the two lists are one list: a status crosses by its number */
_Static_assert((int)ULYSSES_OK == (int)ULY_OK && (int)ULYSSES_ERR_USAGE == (int)ULY_ERR_USAGE &&
                   (int)ULYSSES_ERR_INVALID == (int)ULY_ERR_INVALID &&
                   (int)ULYSSES_ERR_UNSUPPORTED == (int)ULY_ERR_UNSUPPORTED &&
                   (int)ULYSSES_ERR_FORMAT == (int)ULY_ERR_FORMAT &&
                   (int)ULYSSES_ERR_IO == (int)ULY_ERR_IO &&
                   (int)ULYSSES_ERR_NO_SPACE == (int)ULY_ERR_NO_SPACE &&
                   (int)ULYSSES_ERR_NO_MEMORY == (int)ULY_ERR_NO_MEMORY &&
                   (int)ULYSSES_ERR_COMM == (int)ULY_ERR_COMM &&
                   (int)ULYSSES_ERR_PEER == (int)ULY_ERR_PEER &&
                   (int)ULYSSES_ERR_INTERNAL == (int)ULY_ERR_INTERNAL,
               "public and internal status");
_Static_assert((int)ULYSSES_FLOAT32 == (int)ULY_DTYPE_F32 &&
                   (int)ULYSSES_BFLOAT16 == (int)ULY_DTYPE_BF16,
               "public and internal dtype");

const char *ulysses_status_text(enum ulysses_status status)
{
    return uly_status_text((enum uly_status)status);
}

const char *ulysses_error_message(void)
{
    return uly_error_message();
}

const char *ulysses_version(void)
{
    return ULY_VERSION;
}

enum uly_status uly_api_same(struct uly_comm *comm, const char *what,
                             const struct uly_api_word *words, int n)
{
    enum { MOST = 32 };
    int64_t top[2 * MOST]; /* largest value, and largest negative of it: minus the smallest */
    ULY_BUG_ON(n > MOST);
    for (int i = 0; i < n; i++) {
        top[2 * i] = words[i].value;
        top[2 * i + 1] = -words[i].value;
    }
    ULY_TRY(uly_all_reduce_i64(comm, top, 2 * n, ULY_REDUCE_MAX));
    for (int i = 0; i < n; i++)
        ULY_FAIL_IF(top[2 * i] != -top[2 * i + 1], ULY_ERR_COMM,
                    "%s: the ranks differ in %s, from %lld to %lld", what, words[i].name,
                    (long long)-top[2 * i + 1], (long long)top[2 * i]);
    return ULY_OK;
}

void uly_api_window_set(struct uly_api_window *window, const struct uly_mem_space *space,
                        const void *memory, enum uly_dtype dtype, int64_t rows, int64_t heads,
                        int64_t dim)
{
    int64_t width = heads * dim;
    /* an empty tensor may come without memory, and still has a place to point to */
    void *base = memory ? (void *)(uintptr_t)memory : (void *)window;
    window->arena = (struct uly_arena){.name = "the caller's memory",
                                       .space = space,
                                       .base = base,
                                       .high = rows * width * uly_dtype_bytes(dtype),
                                       .reserved = true};
    window->t = (struct uly_tensor){.arena = &window->arena,
                                    .dtype = dtype,
                                    .n_dim = 3,
                                    .shape = {rows, heads, dim},
                                    .stride = width};
}

static bool arrays_overlap(const struct uly_api_array *a, const struct uly_api_array *b)
{
    uintptr_t p = (uintptr_t)a->memory, q = (uintptr_t)b->memory;
    return p < q + (uintptr_t)(b->elements * uly_dtype_bytes(b->dtype)) &&
           q < p + (uintptr_t)(a->elements * uly_dtype_bytes(a->dtype));
}

enum uly_status uly_api_check_arrays(const struct uly_api_array *arrays, int n)
{
    for (int i = 0; i < n; i++) {
        const struct uly_api_array *a = &arrays[i];
        if (a->elements == 0)
            continue;
        ULY_FAIL_IF(!a->memory, ULY_ERR_INVALID, "%s is NULL, it has %lld elements", a->name,
                    (long long)a->elements);
        ULY_FAIL_IF((uintptr_t)a->memory % (uintptr_t)uly_dtype_bytes(a->dtype) != 0,
                    ULY_ERR_INVALID, "%s is not aligned to its elements of %s", a->name,
                    uly_dtype_name(a->dtype));
        for (int j = 0; j < i; j++)
            ULY_FAIL_IF(arrays[j].elements > 0 && (a->written || arrays[j].written) &&
                            arrays_overlap(a, &arrays[j]),
                        ULY_ERR_INVALID, "%s overlaps %s", a->name, arrays[j].name);
    }
    return ULY_OK;
}
