/* SPDX-License-Identifier: MIT
 *
 * Memory by lifetime: one arena a class, one reservation each, and a size table of what lies where.
 *
 *   struct uly_memory mem;
 *   uly_memory_init(&mem, space);                        measuring: no memory yet
 *   uly_tensor_new(&mem.arena[ULY_LIFE_PARAMS], ...)     offsets are given out, the table grows
 *   uly_memory_planned_bytes(&mem)                       what the run will take, before it takes it
 *   uly_memory_reserve(&mem)                             the same tensors are live from here on; no more may be made
 *   uly_memory_clear(&mem)
 *
 * Invariants: 1. every tensor's offset is a multiple of 64 bytes and, with its bytes, below the arena's high-water mark;
 * 2. tensors made between a mark and its release share room with those made after the release; 3. after the reservation
 * nothing is handed out, so a training step cannot allocate.
 */
#ifndef ULY_BASE_ARENA_H
#define ULY_BASE_ARENA_H

#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"

/* Lifetime classes. X(name, text) */
#define ULY_LIFE_LIST(X)                                                                           \
    X(ULY_LIFE_PARAMS, "params")                                                                   \
    X(ULY_LIFE_GRADS, "grads")                                                                     \
    X(ULY_LIFE_OPTIMIZER, "optimizer")                                                             \
    X(ULY_LIFE_CHECKPOINTS, "checkpoints")                                                         \
    X(ULY_LIFE_ACTIVATIONS, "activations")                                                         \
    X(ULY_LIFE_SCRATCH, "scratch")                                                                 \
    X(ULY_LIFE_COMM, "comm")

enum uly_life {
#define X(name, text) name,
    ULY_LIFE_LIST(X)
#undef X
        ULY_LIFE_COUNT
};

/* Where an arena's bytes come from (host memory; later a device). */
struct uly_mem_space {
    const char *name;
    /* At least `bytes` zeroed bytes aligned to 64. */
    enum uly_status (*alloc)(int64_t bytes, void **out);
    void (*free)(void *base, int64_t bytes);
};

extern const struct uly_mem_space uly_host_space;

struct uly_arena_row { /* one line of the size table */
    char name[48];
    enum uly_dtype dtype;
    int n_dim;
    int64_t shape[3];
    int64_t offset, bytes;
};

struct uly_arena {
    const char *name;
    const struct uly_mem_space *space;
    unsigned char *base; /* NULL while measuring; only a backend dereferences it */
    int64_t used;        /* bytes given out below the current mark */
    int64_t high;        /* high-water mark of used: the size of the reservation */
    bool reserved;
    struct uly_arena_row *rows; /* owned; n_rows of them */
    int n_rows, row_room;
};

struct uly_memory {
    struct uly_arena arena[ULY_LIFE_COUNT];
};

const char *uly_life_name(enum uly_life life);

void uly_arena_init(struct uly_arena *arena, const char *name, const struct uly_mem_space *space);
enum uly_status uly_arena_reserve(struct uly_arena *arena);
void uly_arena_clear(struct uly_arena *arena);

/* Frames: what is made after mark and before release shares its room with what comes after the release. */
int64_t uly_arena_mark(const struct uly_arena *arena);
void uly_arena_release(struct uly_arena *arena, int64_t mark);
/* Ends frames that shared room: what is made from here on lies behind `end`, a mark taken in the longest of them. */
void uly_arena_pass(struct uly_arena *arena, int64_t end);

void uly_memory_init(struct uly_memory *memory, const struct uly_mem_space *space);
/* Sum of the high-water marks of all classes, bytes. */
int64_t uly_memory_planned_bytes(const struct uly_memory *memory);
enum uly_status uly_memory_reserve(struct uly_memory *memory);
void uly_memory_clear(struct uly_memory *memory);

#endif
