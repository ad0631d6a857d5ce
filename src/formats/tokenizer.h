/* SPDX-License-Identifier: MIT
 *
 * tokenizer.json of byte-level BPE models: text to token ids and back.
 *
 * What is there: model BPE (merges as "a b" or ["a", "b"], ignore_merges), normalizer none,
 * pre-tokenizer ByteLevel or Sequence of Split(Regex, Isolated) and ByteLevel, post-processor none,
 * ByteLevel or TemplateProcessing, added tokens. Every other component and setting is refused by
 * name when the file is opened, never approximated.
 *
 * Bytes that are not UTF-8 are tokens of their own bytes: each goes through the byte alphabet like
 * any other byte and ends the piece of text before it (the tokenizers library never sees such
 * text).
 *
 * A tokenizer is read-only after opening apart from a cache: one thread at a time uses one.
 */
#ifndef ULY_FORMATS_TOKENIZER_H
#define ULY_FORMATS_TOKENIZER_H

#include <stdint.h>

#include "base/status.h"

struct uly_tokenizer;

struct uly_ids {   /* a growing list of token ids */
    int32_t *list; /* owned, n of them */
    int64_t n, room;
};

/* Called now and then with the bytes done of the text; anything but ULY_OK abandons the work and is
 * passed on. */
typedef enum uly_status (*uly_tokenize_progress_fn)(void *context, int64_t done, int64_t bytes);

/* tokenizer.json of a folder, with eos_token and bos_token of its tokenizer_config.json where there
 * is one. ULY_ERR_INVALID with what to do where the folder has no tokenizer.json (ask
 * uly_tokenizer_exists first). */
enum uly_status uly_tokenizer_open(const char *folder, struct uly_tokenizer **out);
void uly_tokenizer_close(struct uly_tokenizer *tokenizer); /* NULL is fine */
bool uly_tokenizer_exists(const char *folder);
/* The same from memory. config_text: tokenizer_config.json, NULL for none. */
enum uly_status uly_tokenizer_parse(const char *text, int64_t bytes, const char *config_text,
                                    int64_t config_bytes, const char *name,
                                    struct uly_tokenizer **out);

/* Highest id + 1, added tokens included. */
int64_t uly_tokenizer_vocab_size(const struct uly_tokenizer *tokenizer);
/* Id of tokenizer_config.json's eos_token; -1 where it names none. */
int64_t uly_tokenizer_eos_id(const struct uly_tokenizer *tokenizer);
int64_t uly_tokenizer_bos_id(const struct uly_tokenizer *tokenizer);
/* Id of a token by its content (added tokens first, then the vocabulary); -1 where there is none.
 */
int64_t uly_tokenizer_token_id(const struct uly_tokenizer *tokenizer, const char *content);

/* Appends the ids of text [bytes] (NULs allowed) to ids. add_special: the post-processor's tokens
 * around it. Time grows as n log n in the longest piece, whatever the text. progress may be NULL.
 */
enum uly_status uly_tokenizer_encode(struct uly_tokenizer *tokenizer, const char *text,
                                     int64_t bytes, bool add_special,
                                     uly_tokenize_progress_fn progress, void *context,
                                     struct uly_ids *ids);
/* The bytes of ids; special tokens appear as their content. *out: NUL after *bytes bytes; the
 * caller frees. */
enum uly_status uly_tokenizer_decode(const struct uly_tokenizer *tokenizer, const int32_t *ids,
                                     int64_t n, char **out, int64_t *bytes);

enum uly_status uly_ids_add(struct uly_ids *ids, int32_t id);
void uly_ids_clear(struct uly_ids *ids);

/* ------------------------------------------------------------------ a tokenizer of one token a
 * byte */

/* Whether vocab_size has room for 256 bytes and the distinct special ids (-1: none; all below
 * vocab_size). */
bool uly_byte_tokenizer_fits(int64_t vocab_size, int64_t bos, int64_t eos, int64_t pad);
/* Writes tokenizer.json, tokenizer_config.json and special_tokens_map.json into an existing folder:
 * the special ids keep their places, the bytes take the other ids in order. ULY_ERR_INVALID where
 * there is no room. */
enum uly_status uly_byte_tokenizer_write(const char *folder, int64_t vocab_size, int64_t bos,
                                         int64_t eos, int64_t pad, int64_t max_length);

#endif
