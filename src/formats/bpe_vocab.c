/* SPDX-License-Identifier: MIT
 *
 * The "model" object of tokenizer.json -> vocabulary and merge table.
 */
#include <inttypes.h>
#include <string.h>

#include "base/mem.h"
#include "formats/bpe.h"
#include "formats/bpe_impl.h"
#include "formats/json.h"
#include "formats/utf8.h"

/* ------------------------------------------------------------------ the byte alphabet */

/* Printable bytes stand for themselves; the other 68 take U+0100 and up, in order (GPT-2's bytes_to_unicode). */
static bool is_itself(int byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

int uly_byte_alphabet(int byte)
{
    int n = 0;
    if (is_itself(byte))
        return byte;
    for (int b = 0; b < byte; b++)
        n += !is_itself(b);
    return 256 + n;
}

int uly_byte_of(int64_t code_point)
{
    if (code_point >= 0 && code_point < 256)
        return is_itself((int)code_point) ? (int)code_point : -1;
    for (int b = 0, n = 256; b < 256 && code_point < 256 + 68; b++)
        if (!is_itself(b) && n++ == code_point)
            return b;
    return -1;
}

/* Undoes the alphabet: writes the bytes that a token stands for and returns true; false where a character is outside (a
 * token of that kind cannot come from text, only by its name). out: at least as long as the text. */
static bool to_bytes(const char *text, int64_t n, unsigned char *out, int64_t *bytes)
{
    int64_t used = 0;
    for (int64_t at = 0, c = 0; at < n;) {
        int length = uly_utf8_read((const unsigned char *)text + at, n - at, &c);
        int byte = length ? uly_byte_of(c) : -1;
        if (byte < 0)
            return false;
        out[used++] = (unsigned char)byte;
        at += length;
    }
    *bytes = used;
    return true;
}

/* ------------------------------------------------------------------ bytes -> id */

static bool equals(const struct uly_bpe *b, int32_t id, const unsigned char *piece, int64_t bytes)
{
    return b->length[id] == bytes && memcmp(b->text + b->start[id], piece, (size_t)bytes) == 0;
}

int64_t uly_bpe_find(const struct uly_bpe *b, const unsigned char *piece, int64_t bytes)
{
    int64_t i = (int64_t)(uly_bpe_hash(piece, bytes) & (uint64_t)b->slot_mask);
    for (; b->slots[i] >= 0; i = (i + 1) & b->slot_mask)
        if (equals(b, b->slots[i], piece, bytes))
            return b->slots[i];
    return -1;
}

static void enter(struct uly_bpe *b, int32_t id)
{
    uint64_t hash = uly_bpe_hash(b->text + b->start[id], b->length[id]);
    int64_t i = (int64_t)(hash & (uint64_t)b->slot_mask);
    while (b->slots[i] >= 0)
        i = (i + 1) & b->slot_mask;
    b->slots[i] = id;
}

/* A power of two at least twice n, less one. */
static int64_t table_mask(int64_t n)
{
    int64_t size = 16;
    while (size < 2 * n)
        size *= 2;
    return size - 1;
}

/* Highest id + 1 and the room for all texts. */
static enum uly_status measure_vocab(struct uly_bpe *b, const json_t *vocab, const char *name,
                                     int64_t *text_bytes)
{
    const char *token;
    json_t *value;
    *text_bytes = 0;
    json_object_foreach((json_t *)(uintptr_t)vocab, token, value)
    {
        int64_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        ULY_FAIL_IF(id < 0 || id > ULY_MAX_TOKEN_ID, ULY_ERR_FORMAT,
                    "%s: token \"%.60s\" has no id in 0 ... %d", name, token,
                    (int)ULY_MAX_TOKEN_ID);
        b->n_ids = id + 1 > b->n_ids ? id + 1 : b->n_ids;
        *text_bytes += (int64_t)strlen(token);
    }
    return ULY_OK;
}

static enum uly_status read_vocab(struct uly_bpe *b, const json_t *vocab, const char *name)
{
    int64_t text_bytes = 0, used = 0;
    ULY_TRY(measure_vocab(b, vocab, name, &text_bytes));
    ULY_TRY(ULY_ALLOC(&b->start, b->n_ids));
    ULY_TRY(ULY_ALLOC(&b->length, b->n_ids));
    ULY_TRY(ULY_ALLOC(&b->text, text_bytes));
    b->slot_mask = table_mask((int64_t)json_object_size(vocab));
    ULY_TRY(ULY_ALLOC(&b->slots, b->slot_mask + 1));
    for (int64_t i = 0; i < b->n_ids; i++)
        b->start[i] = -1;
    memset(b->slots, 0xff, (size_t)(b->slot_mask + 1) * sizeof *b->slots);
    const char *token;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)vocab, token, value)
    {
        int32_t id = (int32_t)json_integer_value(value);
        int64_t n = (int64_t)strlen(token), bytes = n;
        ULY_FAIL_IF(b->start[id] >= 0, ULY_ERR_FORMAT, "%s: two tokens have the id %d", name,
                    (int)id);
        bool from_text = to_bytes(token, n, b->text + used, &bytes);
        if (!from_text)
            memcpy(b->text + used, token, (size_t)n);
        b->start[id] = used;
        b->length[id] = (int32_t)bytes;
        used += bytes;
        if (from_text)
            enter(b, id);
    }
    for (int i = 0; i < 256; i++) {
        unsigned char byte = (unsigned char)i;
        b->byte_id[i] = (int32_t)uly_bpe_find(b, &byte, 1);
    }
    return ULY_OK;
}

/* ------------------------------------------------------------------ merges */

/* The two halves of a merge: "a b" or ["a", "b"]; views with their lengths. */
static enum uly_status split_merge(const json_t *merge, const char *name, const char *part[2],
                                   int64_t bytes[2])
{
    const char *text = json_string_value(merge);
    if (text) {
        const char *space = strchr(text, ' ');
        ULY_FAIL_IF(!space || strchr(space + 1, ' '), ULY_ERR_FORMAT,
                    "%s: merge \"%.60s\" is not two tokens", name, text);
        part[0] = text;
        bytes[0] = space - text;
        part[1] = space + 1;
        bytes[1] = (int64_t)strlen(space + 1);
        return ULY_OK;
    }
    for (size_t i = 0; i < 2; i++) {
        part[i] = json_string_value(json_array_get(merge, i));
        ULY_FAIL_IF(!part[i] || json_array_size(merge) != 2, ULY_ERR_FORMAT,
                    "%s: a merge is neither \"a b\" nor [\"a\", \"b\"]", name);
        bytes[i] = (int64_t)strlen(part[i]);
    }
    return ULY_OK;
}

static void enter_pair(struct uly_bpe *b, struct uly_bpe_pair pair)
{
    int64_t i = (int64_t)(uly_bpe_pair_hash(pair.left, pair.right) & (uint64_t)b->pair_mask);
    while (b->pairs[i].left >= 0 &&
           (b->pairs[i].left != pair.left || b->pairs[i].right != pair.right))
        i = (i + 1) & b->pair_mask;
    b->pairs[i] = pair; /* a repeated merge takes its last rank, as in the tokenizers library */
}

static enum uly_status read_merge(struct uly_bpe *b, const json_t *merge, int32_t rank,
                                  const char *name)
{
    enum { MAX_PART = 4096 };
    const char *part[2] = {NULL, NULL};
    unsigned char joined[2 * MAX_PART];
    int64_t bytes[2] = {0, 0}, at = 0, id[3];
    ULY_TRY(split_merge(merge, name, part, bytes));
    for (int i = 0; i < 2; i++) {
        int64_t n = 0;
        ULY_FAIL_IF(bytes[i] > MAX_PART || !to_bytes(part[i], bytes[i], joined + at, &n),
                    ULY_ERR_UNSUPPORTED,
                    "%s: merge %d: \"%.*s\" is not made of the byte alphabet (only byte-level BPE "
                    "is supported)",
                    name, (int)rank, (int)(bytes[i] < 60 ? bytes[i] : 60), part[i]);
        id[i] = uly_bpe_find(b, joined + at, n);
        at += n;
    }
    id[2] = uly_bpe_find(b, joined, at);
    ULY_FAIL_IF(id[0] < 0 || id[1] < 0 || id[2] < 0, ULY_ERR_FORMAT,
                "%s: merge %d: \"%.*s\" + \"%.*s\" or one of them is not in the vocabulary", name,
                (int)rank, (int)(bytes[0] < 60 ? bytes[0] : 60), part[0],
                (int)(bytes[1] < 60 ? bytes[1] : 60), part[1]);
    enter_pair(b, (struct uly_bpe_pair){(int32_t)id[0], (int32_t)id[1], rank, (int32_t)id[2]});
    return ULY_OK;
}

static enum uly_status read_merges(struct uly_bpe *b, const json_t *merges, const char *name)
{
    b->n_merges = (int64_t)json_array_size(merges);
    ULY_FAIL_IF(b->n_merges > ULY_MAX_TOKEN_ID, ULY_ERR_FORMAT, "%s: %" PRId64 " merges", name,
                b->n_merges);
    b->pair_mask = table_mask(b->n_merges);
    ULY_TRY(ULY_ALLOC(&b->pairs, b->pair_mask + 1));
    memset(b->pairs, 0xff, (size_t)(b->pair_mask + 1) * sizeof *b->pairs);
    for (int64_t i = 0; i < b->n_merges; i++)
        ULY_TRY(read_merge(b, json_array_get(merges, (size_t)i), (int32_t)i, name));
    return ULY_OK;
}

/* ------------------------------------------------------------------ the whole */

static enum uly_status check_options(const json_t *model, const char *name)
{
    const char *type = "BPE", *prefix = "", *suffix = "";
    double dropout = 0;
    bool byte_fallback = false;
    ULY_TRY(uly_json_get_string(model, "type", name, &type));
    ULY_FAIL_IF(strcmp(type, "BPE") != 0, ULY_ERR_UNSUPPORTED,
                "%s: tokenizer model %s is not supported yet (BPE over bytes is)", name, type);
    ULY_TRY(uly_json_get_double(model, "dropout", name, &dropout));
    ULY_FAIL_IF(dropout != 0, ULY_ERR_UNSUPPORTED, "%s: BPE dropout %g is not supported", name,
                dropout);
    ULY_TRY(uly_json_get_bool(model, "byte_fallback", name, &byte_fallback));
    ULY_FAIL_IF(byte_fallback, ULY_ERR_UNSUPPORTED,
                "%s: byte_fallback (a SentencePiece-style tokenizer) is not supported yet", name);
    ULY_TRY(uly_json_get_string(model, "continuing_subword_prefix", name, &prefix));
    ULY_TRY(uly_json_get_string(model, "end_of_word_suffix", name, &suffix));
    ULY_FAIL_IF(*prefix || *suffix, ULY_ERR_UNSUPPORTED,
                "%s: continuing_subword_prefix and end_of_word_suffix are not supported", name);
    return ULY_OK;
}

enum uly_status uly_bpe_init(struct uly_bpe *b, const json_t *model, const char *name)
{
    ULY_FAIL_IF(!json_is_object(model), ULY_ERR_FORMAT, "%s: no \"model\"", name);
    ULY_TRY(check_options(model, name));
    const json_t *vocab = json_object_get(model, "vocab");
    const json_t *merges = json_object_get(model, "merges");
    ULY_FAIL_IF(!json_is_object(vocab) || !json_is_array(merges), ULY_ERR_FORMAT,
                "%s: the model has no \"vocab\" or no \"merges\"", name);
    ULY_TRY(uly_json_get_bool(model, "ignore_merges", name, &b->ignore_merges));
    ULY_TRY(read_vocab(b, vocab, name));
    ULY_TRY(read_merges(b, merges, name));
    /* with all bytes there, an unknown token cannot occur; without, its rules would be needed */
    bool complete = true;
    for (int i = 0; i < 256; i++)
        complete = complete && b->byte_id[i] >= 0;
    ULY_FAIL_IF(uly_json_has(model, "unk_token") && !complete, ULY_ERR_UNSUPPORTED,
                "%s: a vocabulary without all 256 bytes and with an unk_token is not supported yet",
                name);
    return ULY_OK;
}

void uly_bpe_clear(struct uly_bpe *b)
{
    uly_free(b->start);
    uly_free(b->length);
    uly_free(b->text);
    uly_free(b->slots);
    uly_free(b->pairs);
    uly_free(b->symbols);
    uly_free(b->heap);
    uly_free(b->cache);
    *b = (struct uly_bpe){0};
}

int64_t uly_bpe_token_id(const struct uly_bpe *b, const char *content)
{
    int64_t n = (int64_t)strlen(content), bytes;
    void *buffer;
    if (uly_alloc((size_t)n, 1, &buffer) != ULY_OK)
        return -1;
    int64_t id = -1;
    if (to_bytes(content, n, buffer, &bytes)) {
        id = uly_bpe_find(b, buffer, bytes);
    } else { /* not in the table: tokens of this kind are few and asked for while opening */
        for (int64_t i = 0; i < b->n_ids && id < 0; i++)
            if (b->start[i] >= 0 && equals(b, (int32_t)i, (const unsigned char *)content, n))
                id = i;
    }
    uly_free(buffer);
    return id;
}
