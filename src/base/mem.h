/* SPDX-License-Identifier: MIT
 *
 * Small host objects (plans, names, parsed files). Tensors live in arenas (base/arena.h), never here.
 *
 * Inside a training step nothing may be allocated: uly_alloc_guard_begin makes any call of this thread fail with
 * ULY_ERR_INTERNAL until uly_alloc_guard_end. Tests make the k-th allocation fail with uly_alloc_fail_at.
 */
#ifndef ULY_BASE_MEM_H
#define ULY_BASE_MEM_H

#include <stddef.h>

#include "base/status.h"

/* Zero-filled memory for n objects of the given size; *out is set only on success. n * size is checked for overflow; 0
 * bytes give a valid pointer. The caller frees with uly_free. */
enum uly_status uly_alloc(size_t n, size_t size, void **out);

/* Grows *p to hold n objects; new space is not initialised; *p stays valid on failure. */
enum uly_status uly_realloc(void **p, size_t n, size_t size);

/* A copy of text; the caller frees with uly_free. */
enum uly_status uly_strdup(const char *text, char **out);

void uly_free(void *p); /* NULL is fine */

void uly_alloc_guard_begin(void);
void uly_alloc_guard_end(void);

/* This thread's k-th allocation from now on fails (1 = the next one); 0 switches it off. */
void uly_alloc_fail_at(long k);

/* ULY_ALLOC(&pointer, n): typed form of uly_alloc. */
#define ULY_ALLOC(pp, n) uly_alloc((size_t)(n), sizeof **(pp), (void **)(pp))

#endif
