/* SPDX-License-Identifier: MIT
 *
 * Files to documents to pieces. Every rank reads and tokenises by itself and waits for nobody.
 *
 *   .txt      one document a file
 *   .jsonl    one row a line: {"text": ...} or {"input_ids": [...] [, "labels": [...]]}
 *
 * A document from text gets the tokenizer's own special tokens once, and the end-of-sequence token
 * at its end if absent; one from input_ids is left untouched. A document longer than max_length is
 * refused, cut, split or dropped. Pieces of a split document overlap by one token, so that the
 * label across the split is kept: a next piece starts with the last token of the one before. A
 * piece is what training calls a row.
 *
 * Labels come out shifted: label i is what token i should predict; the last token of a piece has
 * none. Given labels are read as Transformers does: labels[i] belongs to input_ids[i], and is what
 * token i - 1 should predict.
 *
 *   struct uly_dataset data;
 *   ULY_TRY(uly_dataset_read(paths, n, &options, &data));
 *   data.n_pieces rows: a struct uly_batch_plan (batch_plan.h) makes batches of them
 *   uly_dataset_clear(&data);
 *
 * A byte order mark is passed over; CR LF in a .txt file is read as LF; blank lines are no rows. A
 * .txt file that is not UTF-8, an empty text, a row of the wrong shape are bad rows.
 *
 * Read-only once read: ranks that are threads may share one.
 */
#ifndef ULY_DATA_DATASET_H
#define ULY_DATA_DATASET_H

#include <stdint.h>

#include "base/status.h"
#include "formats/tokenizer.h"

enum uly_over_length {
    ULY_OVER_AUTO, /* split for text, error for input_ids */
    ULY_OVER_ERROR,
    ULY_OVER_TRUNCATE,
    ULY_OVER_SPLIT,
    ULY_OVER_DROP
};

/* Token ids of a text, the tokenizer's own special tokens included. progress (with its context) is
 * called now and then with the bytes done of the text. *ids: [*n] from uly_alloc, the caller frees.
 */
typedef enum uly_status (*uly_encode_fn)(void *context, const char *text, int64_t bytes,
                                         uly_tokenize_progress_fn progress, void *progress_context,
                                         int32_t **ids, int64_t *n);
/* Bytes of all files done so far, of total. */
typedef void (*uly_data_progress_fn)(void *context, int64_t done, int64_t total);

struct uly_data_options {
    int64_t max_length;               /* tokens of a piece; at least 1, at least 2 to split */
    int64_t vocab_size;               /* ids are in [0, vocab_size) */
    int64_t eos_id;                   /* -1: none */
    enum uly_over_length over_length; /* zero: auto */
    bool skip_bad_rows;               /* else the first is an error */
    uly_encode_fn encode;             /* NULL: no tokenizer, text rows are refused */
    void *encode_context;
    uly_data_progress_fn progress; /* may be NULL */
    void *progress_context;
};

struct uly_data_counts {
    int64_t files, rows;  /* rows: .txt files and non-blank lines, bad ones included */
    int64_t documents;    /* rows in use */
    int64_t tokens;       /* of the documents in use, after truncation, each once */
    int64_t valid_tokens; /* labels that count */
    int64_t pieces;
    int64_t truncated_rows, truncated_tokens; /* tokens cut off */
    int64_t split_rows, split_pieces;         /* rows that were split, and the pieces they gave */
    int64_t dropped_rows, dropped_tokens;     /* by over_length drop */
    int64_t unlabeled_rows;                   /* in use, but without any label that counts */
    int64_t bad_rows;                         /* skipped */
    int64_t longest_document, longest_piece; /* tokens; the document before it was cut or dropped */
};

struct uly_document {
    int64_t first, length; /* tokens [first, first + length) of ids */
    int64_t labels; /* index of the first token's label in given_labels, or -1: the next token */
    int32_t file;   /* index of the path */
    int64_t line;   /* from 1; 0 for a .txt file */
};

struct uly_piece {
    int64_t document, start, length; /* tokens [start, start + length) of the document */
    int64_t valid_tokens;
};

struct uly_dataset {
    char **paths; /* [counts.files] owned */
    int32_t *ids; /* owned: tokens of all documents */
    int32_t *given_labels;
    struct uly_document *documents; /* owned [n_documents] */
    struct uly_piece *pieces;       /* owned [n_pieces] */
    int64_t n_documents, n_pieces;
    struct uly_data_counts counts;
    char extra_keys[512];     /* keys of rows that were ignored, each once, with ", "; "" when there
                                 were none */
    char first_bad_row[1024]; /* what the first skipped row's error would have said */
    uint64_t fingerprint; /* of all ids, labels and borders: equal on ranks that read the same */
};

/* Reads all files in the order given. Errors: ULY_ERR_FORMAT (a bad row: "file:line: reason"),
 * ULY_ERR_UNSUPPORTED (a kind of file or row that is refused by name, with what to do instead),
 * ULY_ERR_INVALID (no row at all), ULY_ERR_IO. */
enum uly_status uly_dataset_read(const char *const *paths, int n_paths,
                                 const struct uly_data_options *options, struct uly_dataset *out);
void uly_dataset_clear(struct uly_dataset *data);

/* Writes a piece's tokens and shifted labels: ids and labels [piece length], the caller's. */
void uly_dataset_piece(const struct uly_dataset *data, int64_t piece, int32_t *ids,
                       int32_t *labels);

/* Pieces of the validation part, the last ceil(fraction * n_pieces), at least one on each side.
 * ULY_ERR_INVALID with fewer than two pieces. 0 < fraction < 1. */
enum uly_status uly_dataset_validation_pieces(int64_t n_pieces, double fraction, int64_t *out);

#endif
