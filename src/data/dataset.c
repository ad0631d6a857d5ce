/* SPDX-License-Identifier: MIT
 *
 * Files to documents. All files are looked at before the first is read, so that a wrong name at the end of a long list
 * costs nothing; they are mapped, so that lines and texts are views.
 */
#include "data/dataset.h"

#include <math.h>
#include <string.h>
#include <strings.h>

#include "backend/backend.h"
#include "base/file.h"
#include "base/mem.h"
#include "data/builder.h"
#include "data/row.h"
#include "formats/utf8.h"

enum { WHERE_BYTES = 512, PROGRESS_BYTES = 1 << 16 };

struct reader {
    const struct uly_data_options *options;
    struct uly_dataset *data;
    struct uly_dataset_builder builder;
    int32_t file;      /* index of the path being read */
    int64_t done;      /* bytes of all files, up to the text being tokenised */
    int64_t total;     /* bytes of all files */
    int64_t told;      /* the last number that the progress callback got */
    int64_t text_left; /* bytes of the row being tokenised, as they stand in the file */
};

/* ------------------------------------------------------------------ kinds of files */

static bool ends_with(const char *path, const char *ending)
{
    size_t n = strlen(path), m = strlen(ending);
    return n > m && strcasecmp(path + n - m, ending) == 0;
}

/* Kinds of files that are refused by name, with a line that makes one of ours. */
static const struct {
    const char *ending, *convert;
} other_kinds[] = {
    {".json", "jq -c '.[]' FILE.json > rows.jsonl (for a list of rows)"},
    {".csv",
     "python3 -c 'import csv, json, sys; [print(json.dumps({\"text\": r[\"text\"]})) for r in "
     "csv.DictReader(sys.stdin)]' < FILE.csv > rows.jsonl"},
    {".tsv",
     "python3 -c 'import csv, json, sys; [print(json.dumps({\"text\": r[\"text\"]})) for r in "
     "csv.DictReader(sys.stdin, delimiter=\"\\t\")]' < FILE.tsv > rows.jsonl"},
    {".parquet", "python3 -c 'import pandas; pandas.read_parquet(\"FILE.parquet\")"
                 ".to_json(\"rows.jsonl\", orient=\"records\", lines=True)'"},
    {".arrow", "python3 -c 'import datasets; datasets.Dataset.from_file(\"FILE.arrow\")"
               ".to_json(\"rows.jsonl\")'"},
    {".gz", "gzip -dk FILE.gz"},
    {".zst", "zstd -d FILE.zst"},
    {".xz", "xz -dk FILE.xz"},
    {".bz2", "bzip2 -dk FILE.bz2"},
    {".pdf", "pdftotext FILE.pdf FILE.txt"},
    {".epub", "pandoc FILE.epub -t plain -o FILE.txt"},
    {".md", "cp FILE.md FILE.txt"},
};

static enum uly_status check_path(const char *path, int64_t *bytes)
{
    switch (uly_path_kind(path, bytes)) {
    case ULY_PATH_NONE:
        ULY_FAIL(ULY_ERR_IO, "%s: no such file", path);
    case ULY_PATH_FOLDER:
        ULY_FAIL(ULY_ERR_UNSUPPORTED,
                 "%s is a folder; name its files: --data %s/*.txt, or %s/*.jsonl", path, path,
                 path);
    case ULY_PATH_OTHER:
        ULY_FAIL(ULY_ERR_UNSUPPORTED, "%s is not a regular file: write it to a file first", path);
    case ULY_PATH_FILE:
        break;
    }
    if (ends_with(path, ".txt") || ends_with(path, ".jsonl"))
        return ULY_OK;
    for (size_t i = 0; i < sizeof other_kinds / sizeof other_kinds[0]; i++)
        ULY_FAIL_IF(ends_with(path, other_kinds[i].ending), ULY_ERR_UNSUPPORTED,
                    "%s: %s files are not read, only .txt and .jsonl; to make one: %s", path,
                    other_kinds[i].ending, other_kinds[i].convert);
    ULY_FAIL(ULY_ERR_UNSUPPORTED,
             "%s is neither .txt (one document) nor .jsonl (a row a line): rename it to what it is",
             path);
}

/* ------------------------------------------------------------------ progress */

static void tell(struct reader *r, int64_t done, bool always)
{
    if (r->options->progress && done > r->told && (always || done - r->told >= PROGRESS_BYTES)) {
        r->told = done;
        r->options->progress(r->options->progress_context, done, r->total);
    }
}

/* From inside the tokenizer: `done` of `bytes` of the text, which stands for text_left bytes of the file. */
static enum uly_status tell_tokenised(void *context, int64_t done, int64_t bytes)
{
    struct reader *r = context;
    double share = bytes > 0 ? (double)done / (double)bytes : 1;
    tell(r, r->done + (int64_t)(share * (double)r->text_left), false);
    return ULY_OK;
}

/* ------------------------------------------------------------------ text */

static enum uly_status check_token_ids(const struct reader *r, const char *where,
                                       const int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        ULY_FAIL_IF(ids[i] < 0 || ids[i] >= r->options->vocab_size, ULY_ERR_INVALID,
                    "%s: the tokenizer makes token %d, but the model has %lld tokens: they do not "
                    "belong together",
                    where, ids[i], (long long)r->options->vocab_size);
    return ULY_OK;
}

static enum uly_status add_text(struct reader *r, const char *where, int64_t line, const char *text,
                                int64_t bytes)
{
    enum uly_status status = ULY_OK;
    int32_t *ids = NULL;
    int64_t n = 0;
    ULY_FAIL_IF(!r->options->encode, ULY_ERR_INVALID,
                "%s: text needs a tokenizer, and the model folder has no tokenizer.json; add one, "
                "or train on rows with \"input_ids\"",
                where);
    ULY_TRY(
        r->options->encode(r->options->encode_context, text, bytes, tell_tokenised, r, &ids, &n));
    ULY_TRY_GOTO(check_token_ids(r, where, ids, n), out);
    if (n == 0)
        ULY_FAIL_GOTO(out, ULY_ERR_FORMAT, "%s: the text has no tokens", where);
    ULY_TRY_GOTO(uly_builder_add(&r->builder, where, true, r->file, line, ids, NULL, n), out);
out:
    uly_free(ids);
    return status;
}

/* A copy of text with the line ends of Windows, CR LF, as LF: what a reader in text mode makes of them. */
static enum uly_status unix_lines(const char *text, int64_t bytes, char **out, int64_t *n)
{
    int64_t used = 0;
    ULY_TRY(ULY_ALLOC(out, bytes));
    for (int64_t i = 0; i < bytes; i++)
        if (text[i] != '\r' || i + 1 == bytes || text[i + 1] != '\n')
            (*out)[used++] = text[i];
    *n = used;
    return ULY_OK;
}

static enum uly_status check_utf8(const char *path, const char *text, int64_t bytes)
{
    const unsigned char *p = (const unsigned char *)text;
    int64_t line = 1, code_point;
    for (int64_t i = 0; i < bytes;) {
        int length = uly_utf8_read(p + i, bytes - i, &code_point);
        ULY_FAIL_IF(length == 0, ULY_ERR_FORMAT,
                    "%s:%lld: byte %lld of the text (0x%02x) is not UTF-8; convert it: iconv -f "
                    "LATIN1 -t UTF-8 FILE > utf8.txt",
                    path, (long long)line, (long long)i, p[i]);
        line += p[i] == '\n';
        i += length;
    }
    return ULY_OK;
}

static enum uly_status read_txt(struct reader *r, const char *path, const char *text, int64_t bytes)
{
    enum uly_status status = ULY_OK;
    char *copy = NULL;
    int64_t n = bytes;
    r->data->counts.rows++;
    ULY_FAIL_IF(bytes == 0, ULY_ERR_FORMAT, "%s: the file is empty", path);
    ULY_TRY(check_utf8(path, text, bytes));
    if (memchr(text, '\r', (size_t)bytes))
        ULY_TRY(unix_lines(text, bytes, &copy, &n));
    r->text_left = bytes;
    ULY_TRY_GOTO(add_text(r, path, 0, copy ? copy : text, n), out);
out:
    uly_free(copy);
    return status;
}

/* ------------------------------------------------------------------ rows */

static bool is_blank(const char *line, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r')
            return false;
    return true;
}

static enum uly_status read_line(struct reader *r, int64_t number, const char *line, int64_t bytes)
{
    enum uly_status status = ULY_OK;
    struct uly_dataset *data = r->data;
    struct uly_row row;
    char where[WHERE_BYTES];
    snprintf(where, sizeof where, "%s:%lld", data->paths[r->file], (long long)number);
    data->counts.rows++;
    r->text_left = bytes;
    ULY_TRY_GOTO(uly_row_parse(line, bytes, where, r->options->vocab_size, data->extra_keys,
                               sizeof data->extra_keys, &row),
                 out);
    if (row.text)
        ULY_TRY_GOTO(add_text(r, where, number, row.text, row.bytes), out);
    else
        ULY_TRY_GOTO(
            uly_builder_add(&r->builder, where, false, r->file, number, row.ids, row.labels, row.n),
            out);
out:
    uly_row_clear(&row);
    return status;
}

/* A bad row is counted and passed over where that was asked for; any other error stays one. */
static enum uly_status skip_if_bad(struct reader *r, enum uly_status status)
{
    struct uly_dataset *data = r->data;
    if (status != ULY_ERR_FORMAT || !r->options->skip_bad_rows)
        return status;
    if (data->counts.bad_rows++ == 0)
        snprintf(data->first_bad_row, sizeof data->first_bad_row, "%s", uly_error_message());
    uly_error_clear();
    return ULY_OK;
}

static enum uly_status read_jsonl(struct reader *r, const char *text, int64_t bytes)
{
    int64_t number = 0;
    for (int64_t at = 0; at < bytes;) {
        const char *end = memchr(text + at, '\n', (size_t)(bytes - at));
        int64_t length = end ? end - (text + at) : bytes - at;
        number++;
        if (!is_blank(text + at, length))
            ULY_TRY(skip_if_bad(r, read_line(r, number, text + at, length)));
        at += length + 1;
        r->done += length + 1;
        tell(r, r->done < r->total ? r->done : r->total, false);
    }
    return ULY_OK;
}

/* ------------------------------------------------------------------ files */

static enum uly_status read_file(struct reader *r)
{
    static const char mark[] = "\xef\xbb\xbf"; /* the byte order mark some editors write */
    enum uly_status status = ULY_OK;
    const char *path = r->data->paths[r->file];
    struct uly_mapping mapping;
    ULY_TRY(uly_file_map(path, &mapping));
    const char *text = mapping.data ? (const char *)mapping.data : "";
    int64_t bytes = mapping.bytes, begin = r->done;
    if (bytes >= 3 && memcmp(text, mark, 3) == 0) {
        text += 3;
        bytes -= 3;
    }
    if (ends_with(path, ".txt"))
        ULY_TRY_GOTO(skip_if_bad(r, read_txt(r, path, text, bytes)), out);
    else
        ULY_TRY_GOTO(read_jsonl(r, text, bytes), out);
    r->done = begin + mapping.bytes;
    tell(r, r->done, true);
out:
    uly_file_unmap(&mapping);
    return status;
}

static enum uly_status look_at_files(struct reader *r, const char *const *paths, int n_paths)
{
    struct uly_dataset *data = r->data;
    ULY_FAIL_IF(n_paths < 1, ULY_ERR_INVALID, "no data files were named");
    ULY_TRY(ULY_ALLOC(&data->paths, n_paths));
    for (int i = 0; i < n_paths; i++) {
        int64_t bytes;
        ULY_TRY(check_path(paths[i], &bytes));
        ULY_TRY(uly_strdup(paths[i], &data->paths[i]));
        data->counts.files++;
        r->total += bytes;
    }
    return ULY_OK;
}

/* Nothing to train on: says what happened to the rows that were there. */
static enum uly_status check_not_empty(const struct uly_dataset *data)
{
    const struct uly_data_counts *c = &data->counts;
    if (c->pieces > 0)
        return ULY_OK;
    ULY_FAIL_IF(c->rows == 0, ULY_ERR_INVALID, "%s%s: no row at all", data->paths[0],
                c->files > 1 ? " and the other files" : "");
    ULY_FAIL(ULY_ERR_INVALID, "%s%s: none of %lld row%s is left (%lld bad, %lld dropped)%s%s",
             data->paths[0], c->files > 1 ? " and the other files" : "", (long long)c->rows,
             c->rows == 1 ? "" : "s", (long long)c->bad_rows, (long long)c->dropped_rows,
             c->bad_rows ? "; the first bad one: " : "", data->first_bad_row);
}

enum uly_status uly_dataset_read(const char *const *paths, int n_paths,
                                 const struct uly_data_options *options, struct uly_dataset *out)
{
    enum uly_status status = ULY_OK;
    struct uly_dataset data = {.fingerprint = 14695981039346656037u};
    struct reader r = {
        .options = options, .data = &data, .builder = {.data = &data, .options = options}};
    ULY_FAIL_IF(options->max_length < 1 || options->vocab_size < 1, ULY_ERR_INVALID,
                "rows of at most %lld tokens of %lld", (long long)options->max_length,
                (long long)options->vocab_size);
    ULY_FAIL_IF(options->eos_id >= options->vocab_size, ULY_ERR_INVALID,
                "the end-of-sequence token is %lld, but the model has %lld tokens",
                (long long)options->eos_id, (long long)options->vocab_size);
    ULY_TRY_GOTO(look_at_files(&r, paths, n_paths), fail);
    for (r.file = 0; r.file < n_paths; r.file++)
        ULY_TRY_GOTO(read_file(&r), fail);
    ULY_TRY_GOTO(check_not_empty(&data), fail);
    *out = data;
    return ULY_OK;
fail:
    uly_dataset_clear(&data);
    return status;
}

void uly_dataset_clear(struct uly_dataset *data)
{
    for (int64_t i = 0; i < data->counts.files; i++)
        uly_free(data->paths[i]);
    uly_free(data->paths);
    uly_free(data->ids);
    uly_free(data->given_labels);
    uly_free(data->documents);
    uly_free(data->pieces);
    *data = (struct uly_dataset){0};
}

/* ------------------------------------------------------------------ pieces */

void uly_dataset_piece(const struct uly_dataset *data, int64_t piece, int32_t *ids, int32_t *labels)
{
    const struct uly_piece *p = &data->pieces[piece];
    const struct uly_document *document = &data->documents[p->document];
    const int32_t *from = data->ids + document->first + p->start;
    const int32_t *targets =
        document->labels < 0 ? from : data->given_labels + document->labels + p->start;
    memcpy(ids, from, (size_t)p->length * sizeof *ids);
    memcpy(labels, targets + 1, (size_t)(p->length - 1) * sizeof *labels);
    labels[p->length - 1] = ULY_IGNORE_LABEL;
}

enum uly_status uly_dataset_validation_pieces(int64_t n_pieces, double fraction, int64_t *out)
{
    ULY_FAIL_IF(!(fraction > 0 && fraction < 1), ULY_ERR_INVALID,
                "a validation split of %g is not between 0 and 1", fraction);
    ULY_FAIL_IF(n_pieces < 2, ULY_ERR_INVALID,
                "a validation split needs at least 2 rows, and there is %lld", (long long)n_pieces);
    /* a product that is whole but for rounding (0.07 * 100) must not be rounded up */
    int64_t n = (int64_t)ceil(fraction * (double)n_pieces * (1 - 1e-12));
    *out = n < 1 ? 1 : n > n_pieces - 1 ? n_pieces - 1 : n;
    return ULY_OK;
}
