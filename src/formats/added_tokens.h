/* SPDX-License-Identifier: MIT
 *
 * Added tokens (special ones among them): found in the raw text before anything else, the leftmost first, the longest of
 * those that begin at the same place. A trie over bytes.
 */
#ifndef ULY_FORMATS_ADDED_TOKENS_H
#define ULY_FORMATS_ADDED_TOKENS_H

#include <jansson.h>
#include <stdint.h>

#include "base/status.h"

struct uly_added_token {
    char *content; /* owned */
    int64_t bytes;
    int32_t id;
    bool special, normalized;
};

struct uly_trie_node {
    int32_t child, sibling; /* node indices; 0: none (the root is nobody's child) */
    int32_t token;          /* id that ends here, -1: none */
    unsigned char byte;
};

struct uly_trie {
    struct uly_trie_node *nodes; /* owned; node 0 is the root */
    int32_t n, room;
    bool starts[256]; /* whether a token begins with the byte */
};

struct uly_added_tokens {
    struct uly_added_token *list; /* owned, n of them, in the file's order */
    int64_t n;
    /* [0]: tokens matched in the raw text, [1]: those matched in normalised text, among what [0] left over */
    struct uly_trie tries[2];
};

/* list: "added_tokens" of tokenizer.json (NULL: none). out: zeroed; clear in any case. */
enum uly_status uly_added_tokens_init(struct uly_added_tokens *out, const json_t *list,
                                      const char *name);
void uly_added_tokens_clear(struct uly_added_tokens *tokens);
const struct uly_added_token *uly_added_tokens_find(const struct uly_added_tokens *tokens,
                                                    const char *content);

/* First match of a trie in text [bytes] at or after `from`: its place and id; *begin = bytes where there is none. */
void uly_trie_search(const struct uly_trie *trie, const unsigned char *text, int64_t bytes,
                     int64_t from, int64_t *begin, int64_t *end, int32_t *id);

#endif
