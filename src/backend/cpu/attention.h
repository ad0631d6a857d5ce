/* SPDX-License-Identifier: MIT
 *
 * Attention of the cpu backend: one driver (attention.c: who computes what, in which order, on which thread) over a table
 * of kernels, one table a vector width (attention_generic.c, attention_avx2.c, attention_avx512.c, all made from
 * attention_kernels.inc.h).
 *
 *   uly_cpu_attention_fwd(be, &uly_cpu_attention_avx2, args);
 *
 * Contract of the two calls: uly_attention_fwd and uly_attention_bwd of backend/backend.h. be is a `cpu` backend whose
 * scratch holds uly_cpu_attention_scratch_bytes() a thread; nothing is allocated. Heads wider than
 * ULY_CPU_ATTENTION_MAX_DIM and float64 go to cpu:ref, which needs no more memory, only time.
 */
#ifndef ULY_BACKEND_CPU_ATTENTION_H
#define ULY_BACKEND_CPU_ATTENTION_H

#include "backend/backend_impl.h"

enum {
    ULY_CPU_ATTENTION_MAX_DIM = 256,
    ULY_CPU_ATTENTION_QUERIES = 192, /* queries (over all its heads) of a forward item, at most */
    ULY_CPU_ATTENTION_KEYS = 192,    /* keys that a forward item loads at a time */
    ULY_CPU_ATTENTION_Q_BLOCK = 96,  /* queries of a backward step */
    ULY_CPU_ATTENTION_K_BLOCK = 128, /* keys of a backward row, for heads up to 128 */
    ULY_CPU_ATTENTION_K_BLOCK_WIDE = 64, /* the same for wider heads */
    ULY_CPU_ATTENTION_MAX_LANES = 64
};

/* A forward item: the same query rows of neighbouring query heads that read one kv head. */
struct uly_cpu_attention_item {
    int head, n_heads;
    int64_t row,
        rows; /* n_heads * (rows rounded up to lanes) <= ULY_CPU_ATTENTION_QUERIES; row is a multiple of lanes */
};

/* Called between blocks of work; wait additionally holds the backward's order (see attention.c). */
struct uly_cpu_attention_hooks {
    void (*poke)(void *context); /* may be NULL */
    void *poke_context;
    void (*wait)(void *context, int head, int64_t q_block);
    void (*done)(void *context, int head, int64_t q_block);
    void *order;
};

/* All kernels of one vector width. scratch: one thread's, uly_cpu_attention_scratch_bytes(), 64-byte aligned. */
struct uly_cpu_attention_kernels {
    const char *name;
    int lanes; /* width of a panel; forward items start at multiples of it */
    void (*forward)(const struct uly_attention_fwd_args *args,
                    const struct uly_cpu_attention_item *item,
                    const struct uly_cpu_attention_hooks *hooks, float *scratch);
    /* One backward row: key rows [key, key + keys) of kv head kv with every query of every head that reads it. */
    void (*backward)(const struct uly_attention_bwd_args *args, int kv, int64_t key, int64_t keys,
                     const struct uly_cpu_attention_hooks *hooks, float *scratch);
};
extern const struct uly_cpu_attention_kernels uly_cpu_attention_generic;
extern const struct uly_cpu_attention_kernels uly_cpu_attention_avx2;   /* x86-64 only */
extern const struct uly_cpu_attention_kernels uly_cpu_attention_avx512; /* x86-64 only */

/* Query rows [*first, *end) that see any of the key rows [key, key + keys); empty when *first >= *end. */
void uly_cpu_attention_queries_of(const struct uly_attention_bwd_args *args, int64_t key,
                                  int64_t keys, int64_t *first, int64_t *end);

/* Bytes of scratch for one thread, a multiple of 64; the same for every width and shape. */
int64_t uly_cpu_attention_scratch_bytes(void);

enum uly_status uly_cpu_attention_fwd(struct uly_backend *be,
                                      const struct uly_cpu_attention_kernels *kernels,
                                      const struct uly_attention_fwd_args *args);
enum uly_status uly_cpu_attention_bwd(struct uly_backend *be,
                                      const struct uly_cpu_attention_kernels *kernels,
                                      const struct uly_attention_bwd_args *args);

#endif
