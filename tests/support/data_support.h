/* SPDX-License-Identifier: MIT
 *
 * Files of rows for tests of the data layer, and a tokenizer of one token a byte (byte b is token b + 3, BOS is 1).
 *
 *   data_folder_make();                                   group setup
 *   const char *path = data_file("a.jsonl", "{...}\n");   valid until the next call with the same name
 *   data_good(&options, &data, path, NULL);
 *   data_folder_remove();                                 group teardown
 */
#ifndef ULY_TESTS_DATA_SUPPORT_H
#define ULY_TESTS_DATA_SUPPORT_H

#include "data/dataset.h"

enum { DATA_BOS = 1, DATA_EOS = 2, DATA_VOCAB = 259 };

int data_folder_make(void **state);
int data_folder_remove(void **state);

/* Writes text (n bytes; n < 0: up to its NUL) to a file of the test's folder; returns its path. */
const char *data_file_bytes(const char *name, const char *text, int64_t n);
const char *data_file(const char *name, const char *text);

/* max_length tokens a piece, the byte tokenizer, EOS. */
struct uly_data_options data_options(int64_t max_length);

/* Reads up to two files (b may be NULL) and must succeed. */
void data_good(const struct uly_data_options *options, struct uly_dataset *out, const char *a,
               const char *b);

/* Reading must fail with this status and a message that has every part ("|" between them). */
void data_bad(const struct uly_data_options *options, enum uly_status status, const char *parts,
              const char *a);

/* The piece's ids and labels as text: "1>104 104>-100". Lives until the next call. */
const char *data_piece_text(const struct uly_dataset *data, int64_t piece);

#endif
