/* SPDX-License-Identifier: MIT
 *
 * The `cpu` backend's own state, and how its operations use threads.
 *
 * Every operation cuts its work into items whose borders do not depend on the number of threads, and gives them to
 * uly_cpu_for. An item is computed by one thread, alone, so the thread count changes no bit of a result. Working memory
 * is made once, at create: one piece a thread, shared by all operations (they never run at the same time).
 *
 * A backend belongs to one rank, and a rank is one thread of control: no two calls run on one backend at once. Two ranks
 * in one process have a backend each.
 */
#ifndef ULY_BACKEND_CPU_CPU_IMPL_H
#define ULY_BACKEND_CPU_CPU_IMPL_H

#include "backend/backend_impl.h"

enum {
    ULY_CPU_ROWS =
        256 /* rows of a numeric tile: where sums over rows are cut, and rows of a work item */
};

struct uly_cpu_kernels;
struct uly_cpu_attention_kernels;
struct uly_cpu_matmul;
struct uly_rms_stats;

struct uly_cpu {
    const struct uly_cpu_kernels *kernels; /* static table of the chosen instruction set */
    const struct uly_cpu_attention_kernels *attention; /* of the same instruction set */
    struct uly_backend_ops ref;      /* cpu:ref's table, for dtypes off the fast path */
    struct uly_cpu_matmul *matmul;   /* owned */
    void *scratch_block;             /* owned; what uly_alloc gave */
    unsigned char *scratch;          /* [n_threads][scratch_stride], aligned to 64 */
    int64_t scratch_stride;          /* bytes of a thread's piece, a multiple of 64 */
    struct uly_rms_stats *row_stats; /* owned, [ULY_CPU_STAT_ROWS] */
};

enum { ULY_CPU_STAT_ROWS = 1024 }; /* rows whose statistics an operation keeps at a time */

static inline struct uly_cpu *uly_cpu_of(struct uly_backend *be)
{
    return be->impl;
}

/* Thread `thread`'s working memory, aligned to 64; contents undefined. */
static inline void *uly_cpu_scratch(struct uly_backend *be, int thread)
{
    struct uly_cpu *cpu = be->impl;
    return cpu->scratch + thread * cpu->scratch_stride;
}

/* Computes item `item` on thread `thread` (0 <= thread < n_threads; at any time no two items have the same one). */
typedef void (*uly_cpu_item_fn)(void *context, int64_t item, int thread);

/* Runs items 0 .. n - 1, each once, on the backend's threads, in any order; returns when all are done. The calling thread
 * takes part as thread 0 and calls the backend's poke between its items, where there are other threads also before them.
 * Libraries called inside an item see one thread. */
void uly_cpu_for(struct uly_backend *be, int64_t n, uly_cpu_item_fn fn, void *context);

#endif
