/* SPDX-License-Identifier: MIT */
#include "base/arena.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/mem.h"

/* Anonymous maps: zero pages that become resident when first touched, so a reservation costs nothing by itself. */
static enum uly_status host_alloc(int64_t bytes, void **out)
{
    void *p = mmap(NULL, (size_t)(bytes > 0 ? bytes : 1), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ULY_FAIL_IF(p == MAP_FAILED, ULY_ERR_NO_MEMORY, "%lld bytes of memory cannot be had",
                (long long)bytes);
    *out = p;
    return ULY_OK;
}

static void host_free(void *base, int64_t bytes)
{
    munmap(base, (size_t)(bytes > 0 ? bytes : 1));
}

const struct uly_mem_space uly_host_space = {"host", host_alloc, host_free};

const char *uly_life_name(enum uly_life life)
{
    static const char *const names[] = {
#define X(name, text) text,
        ULY_LIFE_LIST(X)
#undef X
    };
    ULY_BUG_ON(life >= ULY_LIFE_COUNT);
    return names[life];
}

void uly_arena_init(struct uly_arena *arena, const char *name, const struct uly_mem_space *space)
{
    memset(arena, 0, sizeof *arena);
    arena->name = name;
    arena->space = space;
}

enum uly_status uly_arena_reserve(struct uly_arena *arena)
{
    ULY_BUG_ON(arena->reserved);
    void *base;
    ULY_TRY(arena->space->alloc(arena->high, &base));
    arena->base = base;
    arena->reserved = true;
    return ULY_OK;
}

void uly_arena_clear(struct uly_arena *arena)
{
    if (arena->reserved)
        arena->space->free(arena->base, arena->high);
    uly_free(arena->rows);
    memset(arena, 0, sizeof *arena);
}

int64_t uly_arena_mark(const struct uly_arena *arena)
{
    return arena->used;
}

void uly_arena_release(struct uly_arena *arena, int64_t mark)
{
    ULY_BUG_ON(mark > arena->used);
    arena->used = mark;
}

void uly_arena_pass(struct uly_arena *arena, int64_t end)
{
    ULY_BUG_ON(end > arena->high);
    if (end > arena->used)
        arena->used = end;
}

void uly_memory_init(struct uly_memory *memory, const struct uly_mem_space *space)
{
    for (int i = 0; i < ULY_LIFE_COUNT; i++)
        uly_arena_init(&memory->arena[i], uly_life_name((enum uly_life)i), space);
}

int64_t uly_memory_planned_bytes(const struct uly_memory *memory)
{
    int64_t sum = 0;
    for (int i = 0; i < ULY_LIFE_COUNT; i++)
        sum += memory->arena[i].high;
    return sum;
}

enum uly_status uly_memory_reserve(struct uly_memory *memory)
{
    for (int i = 0; i < ULY_LIFE_COUNT; i++)
        ULY_TRY(uly_arena_reserve(&memory->arena[i]));
    return ULY_OK;
}

void uly_memory_clear(struct uly_memory *memory)
{
    for (int i = 0; i < ULY_LIFE_COUNT; i++)
        uly_arena_clear(&memory->arena[i]);
}
