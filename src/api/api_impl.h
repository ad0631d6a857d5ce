/* SPDX-License-Identifier: MIT
 *
 * What the files of the public library share. The handles of ulysses.h wrap the program's own
 * objects; nothing in here computes.
 */
#ifndef ULY_API_API_IMPL_H
#define ULY_API_API_IMPL_H

#include "parallel/mesh.h"
#include "ulysses/ulysses.h"

struct ulysses_comm {
    struct uly_comm *comm;
    bool borrowed; /* a thread rank's: it ends with the rank's function */
};

static inline enum ulysses_status uly_api_status(enum uly_status status)
{
    return (enum ulysses_status)status;
}

/* A number that must be the same on every rank, with its name for the message. */
struct uly_api_word {
    const char *name;
    int64_t value; /* not INT64_MIN */
};

/* ULY_ERR_COMM on every rank, with the name and both values, where a word differs. n <= 32. */
enum uly_status uly_api_same(struct uly_comm *comm, const char *what,
                             const struct uly_api_word *words, int n);

/* What every handle has: zero before it is opened. */
struct uly_api_core {
    int64_t max_tokens;
    struct uly_mesh mesh;
    struct uly_backend *be;
    struct uly_memory memory; /* measuring after uly_api_core_backend */
};

/* The mesh of the sizes that options and ranks make. Collective. */
enum uly_status uly_api_core_open(struct uly_api_core *core, struct uly_comm *comm,
                                  const struct ulysses_attention_options *options);
/* The backend, and memory to measure; a rank by itself. */
enum uly_status uly_api_core_backend(struct uly_api_core *core,
                                     const struct ulysses_attention_options *options);
void uly_api_core_clear(struct uly_api_core *core); /* at any stage */
enum ulysses_status uly_api_core_shard(const struct uly_api_core *core, int64_t S,
                                       struct ulysses_shard *out);
int64_t uly_api_core_bytes(const struct uly_api_core *core);
/* *s = tokens of this rank; ULY_ERR_INVALID where the caller gives another number. */
enum uly_status uly_api_core_tokens(const struct uly_api_core *core, int64_t S, int64_t given,
                                    int64_t *s);

/* Values out of range, by name; out: where the handle will go, only compared with NULL. */
enum uly_status uly_api_check_options(const struct ulysses_attention_options *options,
                                      const void *out);
/* uly_api_same for what must agree. Collective. */
enum uly_status uly_api_same_options(struct uly_comm *comm,
                                     const struct ulysses_attention_options *options);
enum uly_status uly_api_check_mask(const struct ulysses_mask *mask, int64_t max_tokens);
/* uly_api_same for a call's direction and mask. Collective. */
enum uly_status uly_api_same_call(struct uly_comm *comm, const struct ulysses_mask *mask,
                                  bool backward);
/* A checked mask; borrows its array. */
struct uly_mask uly_api_mask(const struct ulysses_mask *mask);

/* The caller's memory as a tensor: a window on it for the length of a call, nothing is copied. */
struct uly_api_window {
    struct uly_arena arena;
    struct uly_tensor t;
};

/* [rows, heads, dim] dense at `memory`, which may be NULL where there is no element. The sizes have
 * been checked. Inputs are only read through it. */
void uly_api_window_set(struct uly_api_window *window, const struct uly_mem_space *space,
                        const void *memory, enum uly_dtype dtype, int64_t rows, int64_t heads,
                        int64_t dim);

/* An array that a caller gave, for the checks. */
struct uly_api_array {
    const char *name;
    const void *memory;
    int64_t elements;
    enum uly_dtype dtype;
    bool written;
};

/* ULY_ERR_INVALID, by name, where an array with elements is NULL or not aligned to its element, or
 * where a written one overlaps another. */
enum uly_status uly_api_check_arrays(const struct uly_api_array *arrays, int n);

#endif
