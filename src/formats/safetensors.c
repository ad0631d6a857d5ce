/* SPDX-License-Identifier: MIT
 *
 * Reading. The header is foreign data: each number is checked before it is used in arithmetic, and
 * all of it before the file counts as open. The order of checks is chosen so that the first one to
 * fail names the likeliest cause.
 */
#include "formats/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "formats/json.h"

enum { LENGTH_BYTES = 8 };

struct uly_safetensors {
    char *path;
    struct uly_mapping file;
    const unsigned char *data; /* a view: file.data + 8 + header */
    int64_t data_bytes;
    json_t *header;                               /* owns the names */
    struct uly_safetensors_entry *entries;        /* [n] by offset */
    const struct uly_safetensors_entry **by_name; /* [n] views into entries */
    int64_t n;
};

/* Element types that the format knows, with their size in bits (some are below a byte). */
static const struct known_dtype {
    const char *name;
    int bits;
    int dtype; /* enum uly_dtype where we can read it, else -1 */
} known_dtypes[] = {
    {"F32", 32, ULY_DTYPE_F32},
    {"BF16", 16, ULY_DTYPE_BF16},
    {"F16", 16, ULY_DTYPE_F16},
    {"F64", 64, ULY_DTYPE_F64},
    {"I32", 32, ULY_DTYPE_I32},
    {"I64", 64, ULY_DTYPE_I64},
    {"U8", 8, ULY_DTYPE_U8},
    {"BOOL", 8, -1},
    {"I8", 8, -1},
    {"F8_E5M2", 8, -1},
    {"F8_E4M3", 8, -1},
    {"F8_E8M0", 8, -1},
    {"I16", 16, -1},
    {"U16", 16, -1},
    {"U32", 32, -1},
    {"U64", 64, -1},
    {"C64", 64, -1},
    {"F4", 4, -1},
    {"F6_E2M3", 6, -1},
    {"F6_E3M2", 6, -1},
};

static const struct known_dtype *find_dtype(const char *name)
{
    for (size_t i = 0; i < sizeof known_dtypes / sizeof known_dtypes[0]; i++)
        if (strcmp(name, known_dtypes[i].name) == 0)
            return &known_dtypes[i];
    return NULL;
}

/* ------------------------------------------------------------------ the header */

static enum uly_status header_bytes(const struct uly_safetensors *st, int64_t *out)
{
    static const char lfs[] = "version https://git-lfs.github.com";
    const unsigned char *p = st->file.data;
    int64_t bytes = st->file.bytes;
    ULY_FAIL_IF(
        bytes >= (int64_t)sizeof lfs - 1 && memcmp(p, lfs, sizeof lfs - 1) == 0, ULY_ERR_FORMAT,
        "%s: is a Git-LFS pointer, not the weights; run \"git lfs pull\" in its folder", st->path);
    ULY_FAIL_IF(bytes < LENGTH_BYTES, ULY_ERR_FORMAT,
                "%s: has %" PRId64 " bytes, too few for a safetensors file (truncated?)", st->path,
                bytes);
    uint64_t n = 0;
    for (int i = 0; i < LENGTH_BYTES; i++)
        n |= (uint64_t)p[i] << (8 * i);
    ULY_FAIL_IF(n > ULY_SAFETENSORS_MAX_HEADER, ULY_ERR_FORMAT,
                "%s: header of %" PRIu64 " bytes is above the format's limit of %d (not a "
                "safetensors file?)",
                st->path, n, (int)ULY_SAFETENSORS_MAX_HEADER);
    ULY_FAIL_IF((int64_t)n > bytes - LENGTH_BYTES, ULY_ERR_FORMAT,
                "%s: file is %" PRId64 " bytes, its header alone asks for %" PRIu64 " (truncated?)",
                st->path, bytes, n + LENGTH_BYTES);
    ULY_FAIL_IF(n == 0 || p[LENGTH_BYTES] != '{', ULY_ERR_FORMAT,
                "%s: header does not start with '{' (not a safetensors file?)", st->path);
    *out = (int64_t)n;
    return ULY_OK;
}

static enum uly_status parse_shape(const char *path, const struct known_dtype *dtype,
                                   const json_t *shape, struct uly_safetensors_entry *e,
                                   int64_t *bytes)
{
    ULY_FAIL_IF(!json_is_array(shape), ULY_ERR_FORMAT, "%s: tensor %s: no shape", path, e->name);
    size_t n = json_array_size(shape);
    ULY_FAIL_IF(n > ULY_SAFETENSORS_MAX_DIM, ULY_ERR_FORMAT,
                "%s: tensor %s: %zu dimensions, at most %d are known", path, e->name, n,
                (int)ULY_SAFETENSORS_MAX_DIM);
    e->n_dim = (int)n;
    e->count = 1;
    bool overflow = false;
    for (size_t i = 0; i < n; i++) {
        const json_t *d = json_array_get(shape, i);
        ULY_FAIL_IF(!json_is_integer(d) || json_integer_value(d) < 0, ULY_ERR_FORMAT,
                    "%s: tensor %s: dimension %zu is no size", path, e->name, i);
        e->shape[i] = json_integer_value(d);
        overflow = overflow || __builtin_mul_overflow(e->count, e->shape[i], &e->count);
    }
    int64_t bits;
    overflow = overflow || __builtin_mul_overflow(e->count, (int64_t)dtype->bits, &bits);
    ULY_FAIL_IF(overflow, ULY_ERR_FORMAT, "%s: tensor %s: its shape overflows 63 bits", path,
                e->name);
    ULY_FAIL_IF(bits % 8, ULY_ERR_FORMAT,
                "%s: tensor %s: %" PRId64 " elements of %d bits end inside a byte", path, e->name,
                e->count, dtype->bits);
    *bytes = bits / 8;
    return ULY_OK;
}

static enum uly_status parse_entry(const char *path, const char *name, const json_t *value,
                                   struct uly_safetensors_entry *e)
{
    e->name = name;
    ULY_FAIL_IF(!json_is_object(value), ULY_ERR_FORMAT, "%s: tensor %s: entry is %s", path, name,
                uly_json_type_text(value));
    const char *key;
    json_t *ignored;
    json_object_foreach((json_t *)(uintptr_t)value, key, ignored)
        ULY_FAIL_IF(strcmp(key, "dtype") && strcmp(key, "shape") && strcmp(key, "data_offsets"),
                    ULY_ERR_FORMAT, "%s: tensor %s: unknown key \"%s\"", path, name, key);
    e->dtype = json_string_value(json_object_get(value, "dtype"));
    ULY_FAIL_IF(!e->dtype, ULY_ERR_FORMAT, "%s: tensor %s: no dtype", path, name);
    const struct known_dtype *dtype = find_dtype(e->dtype);
    ULY_FAIL_IF(!dtype, ULY_ERR_FORMAT, "%s: tensor %s: unknown dtype \"%s\"", path, name,
                e->dtype);
    int64_t bytes = 0;
    ULY_TRY(parse_shape(path, dtype, json_object_get(value, "shape"), e, &bytes));

    const json_t *offsets = json_object_get(value, "data_offsets");
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    ULY_FAIL_IF(json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end),
                ULY_ERR_FORMAT, "%s: tensor %s: data_offsets are not two integers", path, name);
    e->begin = json_integer_value(begin);
    e->end = json_integer_value(end);
    ULY_FAIL_IF(e->begin < 0 || e->end < e->begin, ULY_ERR_FORMAT,
                "%s: tensor %s: data_offsets [%" PRId64 ", %" PRId64 "] are no range", path, name,
                e->begin, e->end);
    ULY_FAIL_IF(e->end - e->begin != bytes, ULY_ERR_FORMAT,
                "%s: tensor %s: shape and dtype %s make %" PRId64 " bytes, data_offsets %" PRId64,
                path, name, e->dtype, bytes, e->end - e->begin);
    return ULY_OK;
}

static enum uly_status check_metadata(const char *path, const json_t *metadata)
{
    ULY_FAIL_IF(!json_is_object(metadata), ULY_ERR_FORMAT, "%s: __metadata__ is %s", path,
                uly_json_type_text(metadata));
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)metadata, key, value) ULY_FAIL_IF(
        !json_is_string(value), ULY_ERR_FORMAT, "%s: __metadata__: \"%s\" is %s, not a string",
        path, key, uly_json_type_text(value));
    return ULY_OK;
}

/* ------------------------------------------------------------------ the layout */

static int by_offset(const void *a, const void *b)
{
    const struct uly_safetensors_entry *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Sorted ranges must follow each other without a hole and fill the file. */
static enum uly_status check_layout(const struct uly_safetensors *st)
{
    int64_t at = 0;
    for (int64_t i = 0; i < st->n; i++) {
        const struct uly_safetensors_entry *e = &st->entries[i];
        ULY_FAIL_IF(e->begin < at, ULY_ERR_FORMAT,
                    "%s: tensors %s and %s overlap (at byte %" PRId64 " of the data)", st->path,
                    st->entries[i - 1].name, e->name, e->begin);
        ULY_FAIL_IF(e->begin > at, ULY_ERR_FORMAT,
                    "%s: tensor %s: a gap of %" PRId64 " bytes before its data", st->path, e->name,
                    e->begin - at);
        at = e->end;
    }
    int64_t head = st->file.bytes - st->data_bytes;
    ULY_FAIL_IF(at > st->data_bytes, ULY_ERR_FORMAT,
                "%s: file is %" PRId64 " bytes, its header asks for %" PRId64
                " (truncated download or copy?)",
                st->path, st->file.bytes, at > INT64_MAX - head ? INT64_MAX : at + head);
    ULY_FAIL_IF(at < st->data_bytes, ULY_ERR_FORMAT,
                "%s: file has %" PRId64 " bytes after the last tensor", st->path,
                st->data_bytes - at);
    return ULY_OK;
}

static int by_name(const void *a, const void *b)
{
    const struct uly_safetensors_entry *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static enum uly_status read_header(struct uly_safetensors *st)
{
    int64_t header = 0;
    ULY_TRY(header_bytes(st, &header));
    st->data = st->file.data + LENGTH_BYTES + header;
    st->data_bytes = st->file.bytes - LENGTH_BYTES - header;
    ULY_TRY(
        uly_json_parse((const char *)st->file.data + LENGTH_BYTES, header, st->path, &st->header));
    ULY_FAIL_IF(!json_is_object(st->header), ULY_ERR_FORMAT, "%s: header is no object", st->path);
    int64_t room = (int64_t)json_object_size(st->header);
    ULY_TRY(ULY_ALLOC(&st->entries, room));
    ULY_TRY(ULY_ALLOC(&st->by_name, room));
    const char *name;
    json_t *value;
    json_object_foreach(st->header, name, value)
    {
        if (strcmp(name, "__metadata__") == 0)
            ULY_TRY(check_metadata(st->path, value));
        else
            ULY_TRY(parse_entry(st->path, name, value, &st->entries[st->n++]));
    }
    if (st->n > 0)
        qsort(st->entries, (size_t)st->n, sizeof *st->entries, by_offset);
    ULY_TRY(check_layout(st));
    for (int64_t i = 0; i < st->n; i++)
        st->by_name[i] = &st->entries[i];
    if (st->n > 0)
        qsort(st->by_name, (size_t)st->n, sizeof *st->by_name, by_name);
    return ULY_OK;
}

enum uly_status uly_safetensors_open(const char *path, struct uly_safetensors **out)
{
    enum uly_status status = ULY_OK;
    struct uly_safetensors *st = NULL;
    ULY_TRY(ULY_ALLOC(&st, 1));
    ULY_TRY_GOTO(uly_strdup(path, &st->path), failed);
    ULY_TRY_GOTO(uly_file_map(path, &st->file), failed);
    ULY_TRY_GOTO(read_header(st), failed);
    *out = st;
    return ULY_OK;
failed:
    uly_safetensors_close(st);
    return status;
}

void uly_safetensors_close(struct uly_safetensors *st)
{
    if (!st)
        return;
    json_decref(st->header);
    uly_file_unmap(&st->file);
    uly_free(st->entries);
    uly_free(st->by_name);
    uly_free(st->path);
    uly_free(st);
}

/* ------------------------------------------------------------------ looking and reading */

const char *uly_safetensors_path(const struct uly_safetensors *st)
{
    return st->path;
}

int64_t uly_safetensors_count(const struct uly_safetensors *st)
{
    return st->n;
}

const struct uly_safetensors_entry *uly_safetensors_entry(const struct uly_safetensors *st,
                                                          int64_t i)
{
    ULY_BUG_ON(i < 0 || i >= st->n);
    return &st->entries[i];
}

const struct uly_safetensors_entry *uly_safetensors_find(const struct uly_safetensors *st,
                                                         const char *name)
{
    int64_t low = 0, high = st->n;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        const struct uly_safetensors_entry *e = st->by_name[middle];
        int order = strcmp(name, e->name);
        if (order == 0)
            return e;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

const char *uly_safetensors_metadata(const struct uly_safetensors *st, const char *key)
{
    return json_string_value(json_object_get(json_object_get(st->header, "__metadata__"), key));
}

enum uly_status uly_safetensors_dtype(const struct uly_safetensors *st,
                                      const struct uly_safetensors_entry *entry,
                                      enum uly_dtype *out)
{
    const struct known_dtype *known = find_dtype(entry->dtype);
    ULY_FAIL_IF(!known || known->dtype < 0, ULY_ERR_UNSUPPORTED,
                "%s: tensor %s: dtype %s is not supported (F32, BF16, F16 and F64 weights are)",
                st->path, entry->name, entry->dtype);
    *out = (enum uly_dtype)known->dtype;
    return ULY_OK;
}

static bool is_float(enum uly_dtype dtype)
{
    return dtype == ULY_DTYPE_F32 || dtype == ULY_DTYPE_BF16 || dtype == ULY_DTYPE_F16 ||
           dtype == ULY_DTYPE_F64;
}

enum uly_status uly_safetensors_read(const struct uly_safetensors *st,
                                     const struct uly_safetensors_entry *entry, enum uly_dtype as,
                                     int64_t first, int64_t count, void *out)
{
    enum uly_dtype dtype;
    ULY_TRY(uly_safetensors_dtype(st, entry, &dtype));
    ULY_BUG_ON(first < 0 || count < 0 || first > entry->count || count > entry->count - first);
    ULY_FAIL_IF(dtype != as && !(is_float(dtype) && is_float(as)), ULY_ERR_UNSUPPORTED,
                "%s: tensor %s: %s cannot be read as %s", st->path, entry->name, entry->dtype,
                uly_dtype_name(as));
    const unsigned char *source = st->data + entry->begin + first * uly_dtype_bytes(dtype);
    int64_t good = uly_convert(source, dtype, out, as, count);
    ULY_FAIL_IF(good < count, ULY_ERR_INVALID,
                "%s: tensor %s: element %" PRId64 " (%s) is too large for %s", st->path,
                entry->name, first + good, entry->dtype, uly_dtype_name(as));
    return ULY_OK;
}

void uly_safetensors_drop_pages(const struct uly_safetensors *st)
{
    uly_file_drop_pages(&st->file);
}
