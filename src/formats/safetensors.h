/* SPDX-License-Identifier: MIT
 *
 * safetensors files, read and written.
 *
 *   | 8 bytes: N, little endian | N bytes: JSON header | data |
 *   header: {"__metadata__": {...}, "name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
 *
 * Opening checks everything before anything is used: N against the file and 100 MB, the JSON, known
 * dtypes, products of shapes without overflow, end - begin = bytes of the shape, offsets inside the
 * file, no overlap, no gap, no duplicate name. Git-LFS pointers and truncated files are named as
 * such. Data may lie unaligned: it is copied, never cast.
 *
 *   uly_safetensors_open(path, &st);
 *   const struct uly_safetensors_entry *e = uly_safetensors_find(st, "lm_head.weight");
 *   uly_safetensors_read(st, e, ULY_DTYPE_F32, 0, e->count, out);
 *   uly_safetensors_close(st);
 *
 * Writing streams: the writer lays the tensors out (largest element type first, then by name, as
 * the reference library does) and is given the data in that order.
 */
#ifndef ULY_FORMATS_SAFETENSORS_H
#define ULY_FORMATS_SAFETENSORS_H

#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"

enum { ULY_SAFETENSORS_MAX_DIM = 8, ULY_SAFETENSORS_MAX_HEADER = 100000000 };

struct uly_safetensors; /* an open file */

struct uly_safetensors_entry {
    const char *name;                       /* a view, lives as long as the file is open */
    const char *dtype;                      /* as in the file: "BF16", "I8", "F8_E4M3", ... */
    int n_dim;                              /* 0 (a scalar) to 8 */
    int64_t shape[ULY_SAFETENSORS_MAX_DIM]; /* slowest first; zeros are legal */
    int64_t count;                          /* elements */
    int64_t begin, end;                     /* bytes from the start of the data */
};

enum uly_status uly_safetensors_open(const char *path, struct uly_safetensors **out);
void uly_safetensors_close(struct uly_safetensors *st); /* NULL is fine */

const char *uly_safetensors_path(const struct uly_safetensors *st);
int64_t uly_safetensors_count(const struct uly_safetensors *st);
/* i-th entry, in the order of the data. */
const struct uly_safetensors_entry *uly_safetensors_entry(const struct uly_safetensors *st,
                                                          int64_t i);
/* NULL where there is none; O(log n). */
const struct uly_safetensors_entry *uly_safetensors_find(const struct uly_safetensors *st,
                                                         const char *name);
/* Value of a key of __metadata__, NULL where there is none; a view. */
const char *uly_safetensors_metadata(const struct uly_safetensors *st, const char *key);

/* The element type of F32, BF16, F16, F64, I32, I64 and U8 entries; every other one is refused by
 * name. */
enum uly_status uly_safetensors_dtype(const struct uly_safetensors *st,
                                      const struct uly_safetensors_entry *entry,
                                      enum uly_dtype *out);

/* Copies elements [first, first + count) of the flat tensor into out (any alignment of the source),
 * converted to `as` (F32, BF16, F16 or F64, from any of these; or the entry's own type). Narrowing
 * rounds to nearest even; a finite value that becomes infinite is ULY_ERR_INVALID with its index.
 */
enum uly_status uly_safetensors_read(const struct uly_safetensors *st,
                                     const struct uly_safetensors_entry *entry, enum uly_dtype as,
                                     int64_t first, int64_t count, void *out);

/* Lets go of the file's pages in memory (they are read again when needed): called after each large tensor, it keeps the
 * resident size of a process that loads a model far below the model's size. */
void uly_safetensors_drop_pages(const struct uly_safetensors *st);

/* Host conversion of n elements between F32, BF16, F16 and F64 (same rules). Returns n, or the
 * index of the first finite value that does not fit. Source and destination may be unaligned and
 * must not overlap. */
int64_t uly_convert(const void *from, enum uly_dtype from_dtype, void *to, enum uly_dtype to_dtype,
                    int64_t n);

/* ------------------------------------------------------------------ writing */

struct uly_safetensors_item { /* one tensor to write */
    const char *name;         /* borrowed until the writer is closed */
    enum uly_dtype dtype;
    int n_dim; /* 0 to 3 */
    int64_t shape[3];
};

struct uly_safetensors_writer;

/* Writes the header for n items. items: borrowed until close. */
enum uly_status uly_safetensors_writer_open(const char *path,
                                            const struct uly_safetensors_item *items, int64_t n,
                                            struct uly_safetensors_writer **out);
/* Index into items of the k-th tensor of the file: give the data in the order k = 0, 1, ... n - 1.
 */
int64_t uly_safetensors_writer_order(const struct uly_safetensors_writer *w, int64_t k);
/* Next bytes of the data, in pieces of any size. */
enum uly_status uly_safetensors_writer_append(struct uly_safetensors_writer *w, const void *data,
                                              int64_t bytes);
/* Syncs and closes; ULY_ERR_INTERNAL where data is missing. Frees the writer in any case; on
 * failure the file is removed. */
enum uly_status uly_safetensors_writer_close(struct uly_safetensors_writer *w);
void uly_safetensors_writer_abort(
    struct uly_safetensors_writer *w); /* removes the file; NULL is fine */

#endif
