/* SPDX-License-Identifier: MIT
 *
 * Merging one piece. Always the pair of lowest rank, the leftmost of equals, until no pair is in the table. Candidates wait
 * in a heap; one whose tokens have changed since is dropped when it comes up. Each merge adds at most two candidates, so a
 * piece of n bytes costs n log n, however repetitive it is.
 */
#include "formats/bpe.h"

#include <string.h>

#include "base/mem.h"
#include "formats/bpe_impl.h"

enum { CACHE_SLOTS = 1 << 14, CACHED_BYTES = 32, CACHED_IDS = 7 };

struct uly_bpe_cached {
    unsigned char piece[CACHED_BYTES];
    int32_t ids[CACHED_IDS];
    uint8_t bytes, n; /* bytes = 0: free */
};

/* ------------------------------------------------------------------ candidates */

static enum uly_status heap_push(struct uly_bpe *b, struct uly_bpe_candidate c)
{
    if (b->n_heap == b->heap_room) {
        int64_t room = b->heap_room ? 2 * b->heap_room : 256;
        void *heap = b->heap;
        ULY_TRY(uly_realloc(&heap, (size_t)room, sizeof *b->heap));
        b->heap = heap;
        b->heap_room = room;
    }
    int64_t i = b->n_heap++;
    while (i > 0 && b->heap[(i - 1) / 2].order > c.order) {
        b->heap[i] = b->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    b->heap[i] = c;
    return ULY_OK;
}

static struct uly_bpe_candidate heap_pop(struct uly_bpe *b)
{
    struct uly_bpe_candidate top = b->heap[0], last = b->heap[--b->n_heap];
    int64_t i = 0;
    for (;;) {
        int64_t child = 2 * i + 1;
        if (child >= b->n_heap)
            break;
        if (child + 1 < b->n_heap && b->heap[child + 1].order < b->heap[child].order)
            child++;
        if (b->heap[child].order >= last.order)
            break;
        b->heap[i] = b->heap[child];
        i = child;
    }
    b->heap[i] = last;
    return top;
}

/* Enters the pair that starts at symbol `at`, where the table has it. */
static enum uly_status consider(struct uly_bpe *b, int32_t at)
{
    if (at < 0 || b->symbols[at].next < 0)
        return ULY_OK;
    int32_t left = b->symbols[at].id, right = b->symbols[b->symbols[at].next].id;
    const struct uly_bpe_pair *pair = uly_bpe_find_pair(b, left, right);
    if (!pair)
        return ULY_OK;
    uint64_t order = (uint64_t)pair->rank << 32 | (uint32_t)at;
    return heap_push(b, (struct uly_bpe_candidate){order, left, right});
}

/* ------------------------------------------------------------------ one piece */

/* One symbol a byte; bytes that the vocabulary lacks are left out, as the tokenizers library does. Returns the number. */
static int32_t make_symbols(struct uly_bpe *b, const unsigned char *piece, int64_t bytes)
{
    int32_t n = 0;
    for (int64_t i = 0; i < bytes; i++) {
        int32_t id = b->byte_id[piece[i]];
        if (id < 0)
            continue;
        b->symbols[n] = (struct uly_bpe_symbol){id, n - 1, n + 1};
        n++;
    }
    if (n > 0)
        b->symbols[n - 1].next = -1;
    return n;
}

static enum uly_status merge_all(struct uly_bpe *b, int32_t n)
{
    struct uly_bpe_symbol *s = b->symbols;
    b->n_heap = 0;
    for (int32_t i = 0; i < n; i++)
        ULY_TRY(consider(b, i));
    while (b->n_heap > 0) {
        struct uly_bpe_candidate c = heap_pop(b);
        int32_t at = (int32_t)(c.order & 0xffffffffu), next = s[at].next;
        /* a symbol that was merged into its left neighbour has id -1 */
        if (s[at].id != c.left || next < 0 || s[next].id != c.right)
            continue;
        s[at].id = uly_bpe_find_pair(b, c.left, c.right)->merged;
        s[at].next = s[next].next;
        s[next].id = -1;
        if (s[at].next >= 0)
            s[s[at].next].previous = at;
        ULY_TRY(consider(b, s[at].previous));
        ULY_TRY(consider(b, at));
    }
    return ULY_OK;
}

static enum uly_status encode_new(struct uly_bpe *b, const unsigned char *piece, int64_t bytes,
                                  struct uly_ids *ids)
{
    if (bytes > b->symbol_room) {
        int64_t room = bytes + bytes / 2 + 64;
        void *symbols = b->symbols;
        ULY_TRY(uly_realloc(&symbols, (size_t)room, sizeof *b->symbols));
        b->symbols = symbols;
        b->symbol_room = room;
    }
    int32_t n = make_symbols(b, piece, bytes);
    ULY_TRY(merge_all(b, n));
    for (int32_t i = n > 0 ? 0 : -1; i >= 0; i = b->symbols[i].next)
        ULY_TRY(uly_ids_add(ids, b->symbols[i].id));
    return ULY_OK;
}

/* Text repeats its words: most pieces are answered from here. */
static enum uly_status encode_cached(struct uly_bpe *b, const unsigned char *piece, int64_t bytes,
                                     struct uly_ids *ids)
{
    if (!b->cache)
        ULY_TRY(ULY_ALLOC(&b->cache, CACHE_SLOTS));
    struct uly_bpe_cached *c = &b->cache[uly_bpe_hash(piece, bytes) & (CACHE_SLOTS - 1)];
    if (c->bytes == bytes && memcmp(c->piece, piece, (size_t)bytes) == 0) {
        for (int i = 0; i < c->n; i++)
            ULY_TRY(uly_ids_add(ids, c->ids[i]));
        return ULY_OK;
    }
    int64_t before = ids->n;
    ULY_TRY(encode_new(b, piece, bytes, ids));
    if (ids->n - before <= CACHED_IDS) {
        memcpy(c->piece, piece, (size_t)bytes);
        c->bytes = (uint8_t)bytes;
        c->n = (uint8_t)(ids->n - before);
        memcpy(c->ids, ids->list + before, c->n * sizeof c->ids[0]);
    }
    return ULY_OK;
}

enum uly_status uly_bpe_encode(struct uly_bpe *b, const unsigned char *piece, int64_t bytes,
                               struct uly_ids *ids)
{
    if (bytes == 0)
        return ULY_OK;
    if (b->n_merges == 0 && !b->ignore_merges) { /* one token a byte, at any length */
        for (int64_t i = 0; i < bytes; i++)
            if (b->byte_id[piece[i]] >= 0)
                ULY_TRY(uly_ids_add(ids, b->byte_id[piece[i]]));
        return ULY_OK;
    }
    ULY_FAIL_IF(bytes >= INT32_MAX, ULY_ERR_UNSUPPORTED,
                "%lld bytes of text without a place to split it: at most 2 GiB", (long long)bytes);
    if (b->ignore_merges) {
        int64_t id = uly_bpe_find(b, piece, bytes);
        if (id >= 0)
            return uly_ids_add(ids, (int32_t)id);
    }
    if (bytes <= CACHED_BYTES)
        return encode_cached(b, piece, bytes, ids);
    return encode_new(b, piece, bytes, ids);
}

/* ------------------------------------------------------------------ lists of ids */

enum uly_status uly_ids_add(struct uly_ids *ids, int32_t id)
{
    if (ids->n == ids->room) {
        int64_t room = ids->room ? ids->room + ids->room / 2 : 1024;
        void *list = ids->list;
        ULY_TRY(uly_realloc(&list, (size_t)room, sizeof *ids->list));
        ids->list = list;
        ids->room = room;
    }
    ids->list[ids->n++] = id;
    return ULY_OK;
}

void uly_ids_clear(struct uly_ids *ids)
{
    uly_free(ids->list);
    *ids = (struct uly_ids){0};
}
