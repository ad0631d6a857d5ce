/* SPDX-License-Identifier: MIT
 *
 * Byte-pair merging over bytes: the vocabulary, the merge table and the work on one piece of text. Tokens are kept as the bytes
 * they stand for: the byte alphabet of tokenizer.json (each byte as one printable character) is undone on reading.
 */
#ifndef ULY_FORMATS_BPE_H
#define ULY_FORMATS_BPE_H

#include <jansson.h>
#include <stdint.h>

#include "base/status.h"
#include "formats/tokenizer.h"

enum { ULY_MAX_TOKEN_ID = (1 << 24) - 1 };

struct uly_bpe_pair { /* a slot of the merge table; left < 0: free */
    int32_t left, right, rank, merged;
};

struct uly_bpe_symbol { /* a token of the piece in work, in a linked list */
    int32_t id, previous, next;
};

struct uly_bpe_candidate { /* a merge that may be done: order = rank, then position */
    uint64_t order;
    int32_t left, right;
};

struct uly_bpe_cached; /* pieces seen lately */

struct uly_bpe {
    int64_t n_ids;       /* highest id + 1 */
    int64_t *start;      /* [n_ids] where the token's bytes begin in `bytes`; -1: no such token */
    int32_t *length;     /* [n_ids] */
    unsigned char *text; /* the bytes of all tokens */
    int32_t *slots;      /* [slot_mask + 1] hash table bytes -> id, -1 free */
    int64_t slot_mask;
    struct uly_bpe_pair *pairs; /* [pair_mask + 1] */
    int64_t pair_mask, n_merges;
    int32_t byte_id[256]; /* -1: the vocabulary lacks the byte */
    bool ignore_merges;
    /* work space of one thread */
    struct uly_bpe_symbol *symbols;
    struct uly_bpe_candidate *heap;
    int64_t symbol_room, heap_room, n_heap;
    struct uly_bpe_cached *cache;
};

/* Code point of a byte in the byte alphabet, and the reverse (-1: not in the alphabet). */
int uly_byte_alphabet(int byte);
int uly_byte_of(int64_t code_point);

/* model: the "model" object of tokenizer.json; name: for messages. Fails with what is not supported. out: zeroed by the
 * caller; uly_bpe_clear in any case. */
enum uly_status uly_bpe_init(struct uly_bpe *out, const json_t *model, const char *name);
void uly_bpe_clear(struct uly_bpe *bpe);

/* Id of a token given as in tokenizer.json (byte alphabet); -1 where there is none. */
int64_t uly_bpe_token_id(const struct uly_bpe *bpe, const char *content);

/* Appends the ids of one piece (less than 2^31 bytes). */
enum uly_status uly_bpe_encode(struct uly_bpe *bpe, const unsigned char *piece, int64_t bytes,
                               struct uly_ids *ids);

#endif
