/* SPDX-License-Identifier: MIT */
#include "data/builder.h"

#include <string.h>

#include "backend/backend.h"
#include "base/mem.h"

/* Room for `more` beyond n objects in an owned array. */
static enum uly_status grow(void **array, int64_t n, int64_t more, int64_t *room, size_t size)
{
    if (n + more <= *room)
        return ULY_OK;
    int64_t wanted = *room * 2 > n + more ? *room * 2 : n + more;
    ULY_TRY(uly_realloc(array, (size_t)wanted, size));
    *room = wanted;
    return ULY_OK;
}

#define GROW(array, n, more, room)                                                                 \
    do {                                                                                           \
        void *grow_array_ = (array);                                                               \
        ULY_TRY(grow(&grow_array_, (n), (more), (room), sizeof *(array)));                         \
        (array) = grow_array_;                                                                     \
    } while (0)

/* FNV-1a over 64-bit words. */
static void mix(uint64_t *hash, uint64_t word)
{
    *hash = (*hash ^ word) * 1099511628211u;
}

/* Labels that count in tokens [start, start + length) of a document: each token but the last predicts the next one. */
static int64_t count_valid(const struct uly_dataset *data, const struct uly_document *document,
                           int64_t start, int64_t length)
{
    if (document->labels < 0)
        return length - 1;
    const int32_t *labels = data->given_labels + document->labels + start;
    int64_t valid = 0;
    for (int64_t i = 1; i < length; i++)
        valid += labels[i] != ULY_IGNORE_LABEL;
    return valid;
}

/* Pieces of a document of n tokens: each but the first starts with the last token of the one before. */
static int64_t count_pieces(int64_t n, int64_t max_length)
{
    return n <= max_length ? 1 : (n - 1 + max_length - 2) / (max_length - 1);
}

static void add_pieces(struct uly_dataset_builder *b, const struct uly_document *document,
                       int64_t n_pieces)
{
    struct uly_dataset *data = b->data;
    int64_t step = b->options->max_length - 1, valid = 0;
    for (int64_t i = 0; i < n_pieces; i++) {
        struct uly_piece *piece = &data->pieces[data->n_pieces++];
        int64_t start = i * step, left = document->length - start;
        piece->document = data->n_documents;
        piece->start = start;
        piece->length = n_pieces > 1 && left > step + 1 ? step + 1 : left;
        piece->valid_tokens = count_valid(data, document, start, piece->length);
        valid += piece->valid_tokens;
        mix(&data->fingerprint, (uint64_t)piece->length);
        if (piece->length > data->counts.longest_piece)
            data->counts.longest_piece = piece->length;
    }
    data->counts.valid_tokens += valid;
    data->counts.pieces += n_pieces;
    data->counts.unlabeled_rows += valid == 0;
    if (n_pieces > 1) {
        data->counts.split_rows++;
        data->counts.split_pieces += n_pieces;
    }
}

static enum uly_status too_long(const char *where, int64_t n, int64_t max_length)
{
    ULY_FAIL(ULY_ERR_FORMAT,
             "%s: %lld tokens, more than --max-length %lld; --over-length truncate, split or drop "
             "says what to do",
             where, (long long)n, (long long)max_length);
}

/* What becomes of a document of n tokens: *keep of them (0: dropped) in *n_pieces pieces. */
static enum uly_status decide(const struct uly_data_options *options, const char *where,
                              bool from_text, int64_t n, int64_t *keep, int64_t *n_pieces)
{
    enum uly_over_length rule = options->over_length;
    if (rule == ULY_OVER_AUTO)
        rule = from_text ? ULY_OVER_SPLIT : ULY_OVER_ERROR;
    *keep = n;
    *n_pieces = 1;
    if (n <= options->max_length)
        return ULY_OK;
    switch (rule) {
    case ULY_OVER_AUTO:
    case ULY_OVER_ERROR:
        return too_long(where, n, options->max_length);
    case ULY_OVER_TRUNCATE:
        *keep = options->max_length;
        break;
    case ULY_OVER_DROP:
        *keep = *n_pieces = 0;
        break;
    case ULY_OVER_SPLIT:
        ULY_FAIL_IF(options->max_length < 2, ULY_ERR_INVALID,
                    "%s: %lld tokens cannot be split into pieces of 1 token, which would have no "
                    "label",
                    where, (long long)n);
        *n_pieces = count_pieces(n, options->max_length);
        break;
    }
    return ULY_OK;
}

/* Tokens and labels behind the ones that are there; add_eos: one more token. */
static void append_tokens(struct uly_dataset_builder *b, const int32_t *ids, const int32_t *labels,
                          int64_t n, bool add_eos)
{
    struct uly_dataset *data = b->data;
    memcpy(data->ids + b->n_ids, ids, (size_t)n * sizeof *ids);
    b->n_ids += n;
    if (add_eos)
        data->ids[b->n_ids++] = (int32_t)b->options->eos_id;
    if (labels) {
        memcpy(data->given_labels + b->n_labels, labels, (size_t)n * sizeof *labels);
        b->n_labels += n;
    }
    mix(&data->fingerprint, (uint64_t)n << 2 | (uint64_t)add_eos << 1 | (labels != NULL));
    for (int64_t i = 0; i < n; i++)
        mix(&data->fingerprint,
            (uint64_t)(uint32_t)ids[i] << 32 | (labels ? (uint32_t)labels[i] : 0));
}

enum uly_status uly_builder_add(struct uly_dataset_builder *builder, const char *where,
                                bool from_text, int32_t file, int64_t line, const int32_t *ids,
                                const int32_t *labels, int64_t n)
{
    struct uly_dataset *data = builder->data;
    struct uly_data_counts *counts = &data->counts;
    int64_t eos = builder->options->eos_id, keep, n_pieces;
    bool add_eos = from_text && eos >= 0 && ids[n - 1] != eos;
    int64_t whole = n + add_eos;
    ULY_TRY(decide(builder->options, where, from_text, whole, &keep, &n_pieces));
    GROW(data->ids, builder->n_ids, keep, &builder->id_room);
    GROW(data->given_labels, builder->n_labels, labels ? keep : 0, &builder->label_room);
    GROW(data->documents, data->n_documents, 1, &builder->document_room);
    GROW(data->pieces, data->n_pieces, n_pieces, &builder->piece_room);
    counts->longest_document = whole > counts->longest_document ? whole : counts->longest_document;
    if (keep == 0) {
        counts->dropped_rows++;
        counts->dropped_tokens += whole;
        return ULY_OK;
    }
    if (keep < whole) {
        counts->truncated_rows++;
        counts->truncated_tokens += whole - keep;
    }
    struct uly_document *document = &data->documents[data->n_documents];
    *document = (struct uly_document){.first = builder->n_ids,
                                      .length = keep,
                                      .labels = labels ? builder->n_labels : -1,
                                      .file = file,
                                      .line = line};
    append_tokens(builder, ids, labels, keep < n ? keep : n, add_eos && keep == whole);
    add_pieces(builder, document, n_pieces);
    data->n_documents++;
    counts->documents++;
    counts->tokens += keep;
    return ULY_OK;
}
