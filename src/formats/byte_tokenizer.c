/* SPDX-License-Identifier: MIT
 *
 * The tokenizer of `init` without --tokenizer: one token a byte, plus the special tokens of config.json at their ids.
 */
#include <inttypes.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "formats/bpe.h"
#include "formats/json.h"
#include "formats/tokenizer.h"
#include "formats/utf8.h"

enum { N_SPECIAL = 3 };

struct special { /* one special token; roles of the same id share one */
    const char *content;
    int64_t id;
};

/* The distinct special tokens; key[i] names the role's token in `list` (-1: the role has none). Returns the number. */
static int collect_special(const int64_t ids[N_SPECIAL], struct special list[N_SPECIAL],
                           int role[N_SPECIAL])
{
    static const char *const contents[N_SPECIAL] = {"<s>", "</s>", "<pad>"};
    int n = 0;
    for (int i = 0; i < N_SPECIAL; i++) {
        role[i] = -1;
        for (int k = 0; k < n; k++)
            if (ids[i] >= 0 && list[k].id == ids[i])
                role[i] = k;
        if (ids[i] < 0 || role[i] >= 0)
            continue;
        role[i] = n;
        list[n++] = (struct special){contents[i], ids[i]};
    }
    return n;
}

bool uly_byte_tokenizer_fits(int64_t vocab_size, int64_t bos, int64_t eos, int64_t pad)
{
    struct special list[N_SPECIAL];
    int role[N_SPECIAL];
    const int64_t ids[N_SPECIAL] = {bos, eos, pad};
    int n = collect_special(ids, list, role);
    for (int i = 0; i < n; i++)
        if (list[i].id >= vocab_size)
            return false;
    return vocab_size >= 256 + n;
}

static json_t *added_token(const struct special *s)
{
    return json_pack("{s:I, s:s, s:b, s:b, s:b, s:b, s:b}", "id", (json_int_t)s->id, "content",
                     s->content, "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0,
                     "special", 1);
}

/* Special tokens keep their ids; bytes take the others in order. Entries by rising id. */
static json_t *make_vocab(const struct special *list, int n)
{
    json_t *vocab = json_object();
    int byte = 0;
    for (int64_t id = 0; id < 256 + n; id++) {
        const char *content = NULL;
        char letter[8] = "";
        for (int i = 0; i < n; i++)
            if (list[i].id == id)
                content = list[i].content;
        if (!content && byte < 256) {
            letter[uly_utf8_write(uly_byte_alphabet(byte++), (unsigned char *)letter)] = '\0';
            content = letter;
        }
        if (content)
            json_object_set_new(vocab, content, json_integer(id));
    }
    for (int i = 0; i < n; i++) /* ids far above the bytes */
        if (list[i].id >= 256 + n)
            json_object_set_new(vocab, list[i].content, json_integer(list[i].id));
    return vocab;
}

static json_t *make_tokenizer(const struct special *list, int n)
{
    json_t *added = json_array();
    for (int64_t id = -1, found = 0; found < n; found++) { /* by rising id */
        const struct special *next = NULL;
        for (int i = 0; i < n; i++)
            if (list[i].id > id && (!next || list[i].id < next->id))
                next = &list[i];
        json_array_append_new(added, added_token(next));
        id = next->id;
    }
    /* no regular expression: without merges, splitting changes nothing */
    return json_pack(
        "{s:s, s:n, s:n, s:o, s:n, s:{s:s, s:b, s:b, s:b}, s:n, s:{s:s, s:b, s:b, s:b},"
        " s:{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:[]}}",
        "version", "1.0", "truncation", "padding", "added_tokens", added, "normalizer",
        "pre_tokenizer", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1, "use_regex",
        0, "post_processor", "decoder", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets",
        1, "use_regex", 0, "model", "type", "BPE", "dropout", "unk_token",
        "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0,
        "ignore_merges", 0, "vocab", make_vocab(list, n), "merges");
}

static json_t *make_special_map(const struct special *list, const int role[N_SPECIAL])
{
    static const char *const keys[N_SPECIAL] = {"bos_token", "eos_token", "pad_token"};
    json_t *map = json_object();
    for (int i = 0; i < N_SPECIAL; i++)
        if (role[i] >= 0)
            json_object_set_new(map, keys[i], json_string(list[role[i]].content));
    return map;
}

static json_t *make_config(const struct special *list, const int role[N_SPECIAL],
                           int64_t max_length)
{
    json_t *config = make_special_map(list, role);
    json_object_set_new(config, "clean_up_tokenization_spaces", json_false());
    json_object_set_new(config, "model_max_length", json_integer(max_length));
    json_object_set_new(config, "tokenizer_class", json_string("PreTrainedTokenizerFast"));
    return config;
}

static enum uly_status write_json(const char *folder, const char *file, json_t *value)
{
    char *path;
    enum uly_status status = uly_path_join(folder, file, &path);
    if (status == ULY_OK) {
        status = uly_json_write(value, path);
        uly_free(path);
    }
    json_decref(value);
    return status;
}

enum uly_status uly_byte_tokenizer_write(const char *folder, int64_t vocab_size, int64_t bos,
                                         int64_t eos, int64_t pad, int64_t max_length)
{
    struct special list[N_SPECIAL];
    int role[N_SPECIAL];
    const int64_t ids[N_SPECIAL] = {bos, eos, pad};
    int n = collect_special(ids, list, role);
    ULY_FAIL_IF(!uly_byte_tokenizer_fits(vocab_size, bos, eos, pad), ULY_ERR_INVALID,
                "a vocabulary of %" PRId64 " has no room for 256 bytes and %d special tokens",
                vocab_size, n);
    ULY_TRY(write_json(folder, "tokenizer.json", make_tokenizer(list, n)));
    ULY_TRY(write_json(folder, "tokenizer_config.json", make_config(list, role, max_length)));
    return write_json(folder, "special_tokens_map.json", make_special_map(list, role));
}
