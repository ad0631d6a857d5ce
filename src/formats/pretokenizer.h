/* SPDX-License-Identifier: MIT
 *
 * The "pre_tokenizer" of tokenizer.json: cuts text into the pieces that merging works on.
 */
#ifndef ULY_FORMATS_PRETOKENIZER_H
#define ULY_FORMATS_PRETOKENIZER_H

#include <jansson.h>
#include <stdint.h>

#include "base/status.h"

struct uly_pretokenizer;

/* One piece, in order; the pieces make up the text (with a space before it where add_prefix_space says so). */
typedef enum uly_status (*uly_piece_fn)(void *context, const unsigned char *piece, int64_t bytes);

/* node: ByteLevel, or a Sequence of Split(Regex, Isolated) and one ByteLevel at its end; everything else is refused by
 * name. name: for messages. */
enum uly_status uly_pretokenizer_create(const json_t *node, const char *name,
                                        struct uly_pretokenizer **out);
void uly_pretokenizer_destroy(struct uly_pretokenizer *p); /* NULL is fine */

/* text: valid UTF-8. */
enum uly_status uly_pretokenizer_run(struct uly_pretokenizer *p, const unsigned char *text,
                                     int64_t bytes, uly_piece_fn piece, void *context);

/* The pattern in PCRE2's words, where the tokenizers library (Oniguruma) means something else by the same text; what
 * cannot be said exactly is refused. *out: the caller frees. */
enum uly_status uly_pattern_translate(const char *pattern, const char *name, char **out);

#endif
