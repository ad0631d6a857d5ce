/* SPDX-License-Identifier: MIT */
#include "base/mem.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct mem_context {
    int guard;
    long fail_at;
};

static _Thread_local struct mem_context context;

static enum uly_status may_allocate(size_t n, size_t size)
{
    ULY_FAIL_IF(context.guard, ULY_ERR_INTERNAL, "%zu bytes asked for inside a training step",
                n * size);
    ULY_FAIL_IF(size && n > SIZE_MAX / size, ULY_ERR_NO_MEMORY, "%zu objects of %zu bytes overflow",
                n, size);
    if (context.fail_at > 0 && --context.fail_at == 0)
        ULY_FAIL(ULY_ERR_NO_MEMORY, "allocation of %zu bytes failed as asked by a test", n * size);
    return ULY_OK;
}

enum uly_status uly_alloc(size_t n, size_t size, void **out)
{
    ULY_TRY(may_allocate(n, size));
    void *p = calloc(n ? n : 1, size ? size : 1);
    ULY_FAIL_IF(!p, ULY_ERR_NO_MEMORY, "%zu bytes of memory cannot be had", n * size);
    *out = p;
    return ULY_OK;
}

enum uly_status uly_realloc(void **p, size_t n, size_t size)
{
    ULY_TRY(may_allocate(n, size));
    size_t bytes = n * size;
    void *q = realloc(*p, bytes > 0 ? bytes : 1);
    ULY_FAIL_IF(!q, ULY_ERR_NO_MEMORY, "%zu bytes of memory cannot be had", n * size);
    *p = q;
    return ULY_OK;
}

enum uly_status uly_strdup(const char *text, char **out)
{
    size_t bytes = strlen(text) + 1;
    void *p;
    ULY_TRY(uly_alloc(bytes, 1, &p));
    memcpy(p, text, bytes);
    *out = p;
    return ULY_OK;
}

void uly_free(void *p)
{
    free(p);
}

void uly_alloc_guard_begin(void)
{
    context.guard++;
}

void uly_alloc_guard_end(void)
{
    ULY_BUG_ON(context.guard == 0);
    context.guard--;
}

void uly_alloc_fail_at(long k)
{
    context.fail_at = k;
}
