/* SPDX-License-Identifier: MIT */
#include "data_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"

enum { N_PATHS = 8, PATH_ROOM = 128, TEXT_ROOM = 4096, PIECE_ROOM = 256 };

static char folder[] = "/tmp/uly_data_XXXXXX";

int data_folder_make(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

int data_folder_remove(void **state)
{
    (void)state;
    return uly_folder_remove(folder) == ULY_OK ? 0 : -1;
}

const char *data_file_bytes(const char *name, const char *text, int64_t n)
{
    static char paths[N_PATHS][PATH_ROOM];
    static int next;
    char *path = paths[next++ % N_PATHS];
    snprintf(path, PATH_ROOM, "%s/%s", folder, name);
    assert_int_equal(uly_file_write(path, text, n < 0 ? (int64_t)strlen(text) : n), ULY_OK);
    return path;
}

const char *data_file(const char *name, const char *text)
{
    return data_file_bytes(name, text, -1);
}

/* One token a byte between BOS and nothing; reports progress at the half and the end. */
static enum uly_status encode_bytes(void *context, const char *text, int64_t bytes,
                                    uly_tokenize_progress_fn progress, void *progress_context,
                                    int32_t **ids, int64_t *n)
{
    (void)context;
    ULY_TRY(progress(progress_context, bytes / 2, bytes));
    ULY_TRY(ULY_ALLOC(ids, bytes + 1));
    (*ids)[0] = DATA_BOS;
    for (int64_t i = 0; i < bytes; i++)
        (*ids)[i + 1] = (unsigned char)text[i] + 3;
    *n = bytes + 1;
    return progress(progress_context, bytes, bytes);
}

struct uly_data_options data_options(int64_t max_length)
{
    return (struct uly_data_options){.max_length = max_length,
                                     .vocab_size = DATA_VOCAB,
                                     .eos_id = DATA_EOS,
                                     .encode = encode_bytes};
}

void data_good(const struct uly_data_options *options, struct uly_dataset *out, const char *a,
               const char *b)
{
    const char *paths[] = {a, b};
    memset(out, 0xff, sizeof *out);
    if (uly_dataset_read(paths, b ? 2 : 1, options, out) != ULY_OK)
        fail_msg("%s: %s", a, uly_error_message());
}

void data_bad(const struct uly_data_options *options, enum uly_status status, const char *parts,
              const char *a)
{
    struct uly_dataset data;
    char part[256];
    enum uly_status got = uly_dataset_read(&a, 1, options, &data);
    if (got != status)
        fail_msg("%s: status %d, not %d: %s", parts, got, status, uly_error_message());
    while (*parts) {
        size_t n = strcspn(parts, "|");
        snprintf(part, sizeof part, "%.*s", (int)n, parts);
        if (!strstr(uly_error_message(), part))
            fail_msg("\"%s\" does not say \"%s\"", uly_error_message(), part);
        parts += n + (parts[n] == '|');
    }
}

const char *data_piece_text(const struct uly_dataset *data, int64_t piece)
{
    static char text[TEXT_ROOM];
    int32_t ids[PIECE_ROOM], labels[PIECE_ROOM];
    int64_t n = data->pieces[piece].length;
    size_t used = 0;
    assert_true(piece < data->n_pieces && n <= PIECE_ROOM);
    for (int64_t i = 0; i < PIECE_ROOM; i++)
        ids[i] = labels[i] = INT32_MIN;
    uly_dataset_piece(data, piece, ids, labels);
    for (int64_t i = 0; i < n; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%d>%d", i ? " " : "", ids[i],
                                 labels[i]);
    if (n < PIECE_ROOM) /* nothing beyond the piece was written */
        assert_true(ids[n] == INT32_MIN && labels[n] == INT32_MIN);
    return text;
}
