/* SPDX-License-Identifier: MIT
 *
 * Writing: the header is fixed by names, types and shapes alone, so it goes out first and the data
 * streams after it.
 */
#include "formats/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "formats/json.h"

struct uly_safetensors_writer {
    struct uly_file_writer file;
    const struct uly_safetensors_item *items;  /* borrowed */
    const struct uly_safetensors_item **order; /* [n] the k-th tensor, a view into items */
    int64_t n;
    int64_t data_bytes, given; /* the header promises data_bytes; given so far */
};

/* Name in the file and place in the reference library's order of types (it writes the highest
 * first). */
static const char *type_name(enum uly_dtype dtype, int *place)
{
    static const struct {
        const char *name;
        int place;
    } types[] = {
        [ULY_DTYPE_U8] = {"U8", 0},   [ULY_DTYPE_F16] = {"F16", 1}, [ULY_DTYPE_BF16] = {"BF16", 2},
        [ULY_DTYPE_I32] = {"I32", 3}, [ULY_DTYPE_F32] = {"F32", 4}, [ULY_DTYPE_F64] = {"F64", 5},
        [ULY_DTYPE_I64] = {"I64", 6}};
    *place = types[dtype].place;
    return types[dtype].name;
}

static int by_layout(const void *a, const void *b)
{
    const struct uly_safetensors_item *x = *(const struct uly_safetensors_item *const *)a;
    const struct uly_safetensors_item *y = *(const struct uly_safetensors_item *const *)b;
    int px, py;
    type_name(x->dtype, &px);
    type_name(y->dtype, &py);
    if (px != py)
        return px > py ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* {"dtype": ..., "shape": [...], "data_offsets": [*at, *at + bytes]}; moves *at on. */
static enum uly_status entry_json(const struct uly_safetensors_item *item, int64_t *at,
                                  json_t **out)
{
    int place;
    json_t *shape = json_array();
    int64_t bytes = uly_dtype_bytes(item->dtype), begin = *at;
    bool bad = item->n_dim < 0 || item->n_dim > 3;
    for (int i = 0; !bad && i < item->n_dim; i++) {
        bad = item->shape[i] < 0 || __builtin_mul_overflow(bytes, item->shape[i], &bytes);
        json_array_append_new(shape, json_integer(item->shape[i]));
    }
    bad = bad || __builtin_add_overflow(begin, bytes, at);
    if (bad) {
        json_decref(shape);
        ULY_FAIL(ULY_ERR_INVALID, "tensor %s: its shape overflows 63 bits", item->name);
    }
    json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", type_name(item->dtype, &place),
                              "shape", shape, "data_offsets", (json_int_t)begin, (json_int_t)*at);
    ULY_FAIL_IF(!entry, ULY_ERR_NO_MEMORY, "tensor %s: no memory for its header entry", item->name);
    *out = entry;
    return ULY_OK;
}

/* The header as text in the order of the data; jansson keeps the order of insertion. */
static enum uly_status header_json(struct uly_safetensors_writer *w, json_t **out)
{
    enum uly_status status = ULY_OK;
    json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    for (int64_t k = 0; k < w->n; k++) {
        const struct uly_safetensors_item *item = w->order[k];
        json_t *entry = NULL;
        if (json_object_get(header, item->name))
            ULY_FAIL_GOTO(failed, ULY_ERR_INVALID, "%s: tensor %s is written twice", w->file.path,
                          item->name);
        ULY_TRY_GOTO(entry_json(item, &w->data_bytes, &entry), failed);
        if (json_object_set_new(header, item->name, entry) != 0)
            ULY_FAIL_GOTO(failed, ULY_ERR_INVALID, "%s: \"%s\" cannot be a tensor's name",
                          w->file.path, item->name);
    }
    *out = header;
    return ULY_OK;
failed:
    json_decref(header);
    return status;
}

static enum uly_status write_header(struct uly_safetensors_writer *w)
{
    static const char spaces[8] = "       ";
    json_t *header = NULL;
    ULY_TRY(header_json(w, &header));
    char *text = json_dumps(header, JSON_COMPACT);
    json_decref(header);
    ULY_FAIL_IF(!text, ULY_ERR_NO_MEMORY, "%s: no memory for the header", w->file.path);
    int64_t bytes = (int64_t)strlen(text), padded = (bytes + 7) / 8 * 8;
    unsigned char length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)((uint64_t)padded >> (8 * i));
    enum uly_status status = ULY_OK;
    if (padded > ULY_SAFETENSORS_MAX_HEADER)
        ULY_FAIL_GOTO(end, ULY_ERR_INVALID,
                      "%s: header of %" PRId64 " bytes is above the format's limit", w->file.path,
                      padded);
    ULY_TRY_GOTO(uly_file_writer_append(&w->file, length, 8), end);
    ULY_TRY_GOTO(uly_file_writer_append(&w->file, text, bytes), end);
    ULY_TRY_GOTO(uly_file_writer_append(&w->file, spaces, padded - bytes), end);
end:
    uly_json_text_free(text);
    return status;
}

enum uly_status uly_safetensors_writer_open(const char *path,
                                            const struct uly_safetensors_item *items, int64_t n,
                                            struct uly_safetensors_writer **out)
{
    enum uly_status status = ULY_OK;
    struct uly_safetensors_writer *w;
    ULY_TRY(ULY_ALLOC(&w, 1));
    w->file.fd = -1;
    w->items = items;
    w->n = n;
    ULY_TRY_GOTO(ULY_ALLOC(&w->order, n), failed);
    for (int64_t i = 0; i < n; i++)
        w->order[i] = &items[i];
    if (n > 0)
        qsort(w->order, (size_t)n, sizeof *w->order, by_layout);
    ULY_TRY_GOTO(uly_file_writer_open(path, &w->file), failed);
    ULY_TRY_GOTO(write_header(w), failed);
    *out = w;
    return ULY_OK;
failed:
    uly_safetensors_writer_abort(w);
    return status;
}

int64_t uly_safetensors_writer_order(const struct uly_safetensors_writer *w, int64_t k)
{
    ULY_BUG_ON(k < 0 || k >= w->n);
    return w->order[k] - w->items;
}

enum uly_status uly_safetensors_writer_append(struct uly_safetensors_writer *w, const void *data,
                                              int64_t bytes)
{
    ULY_FAIL_IF(bytes > w->data_bytes - w->given, ULY_ERR_INTERNAL,
                "%s: %" PRId64 " bytes of data given, %" PRId64 " promised", w->file.path,
                w->given + bytes, w->data_bytes);
    ULY_TRY(uly_file_writer_append(&w->file, data, bytes));
    w->given += bytes;
    return ULY_OK;
}

enum uly_status uly_safetensors_writer_close(struct uly_safetensors_writer *w)
{
    enum uly_status status = ULY_OK;
    if (w->given != w->data_bytes)
        ULY_FAIL_GOTO(end, ULY_ERR_INTERNAL, "%s: %" PRId64 " of %" PRId64 " bytes of data given",
                      w->file.path, w->given, w->data_bytes);
    ULY_TRY_GOTO(uly_file_writer_close(&w->file), end);
end:
    uly_safetensors_writer_abort(w);
    return status;
}

void uly_safetensors_writer_abort(struct uly_safetensors_writer *w)
{
    if (!w)
        return;
    uly_file_writer_abort(&w->file);
    uly_free(w->order);
    uly_free(w);
}
