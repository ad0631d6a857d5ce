/* SPDX-License-Identifier: MIT
 *
 * tokenizer.json as a whole: reading its parts, and the way of a text through them:
 *
 *   text -> added tokens cut out -> valid UTF-8 stretches -> pieces (pretokenizer.c) -> merging (bpe.c) -> ids
 */
#include "formats/tokenizer.h"

#include <inttypes.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "formats/added_tokens.h"
#include "formats/bpe.h"
#include "formats/json.h"
#include "formats/pretokenizer.h"
#include "formats/utf8.h"

enum { MAX_TEMPLATE = 16, REPORT_BYTES = 1 << 20 };
static const int64_t max_file_bytes = 256 << 20;

struct uly_tokenizer {
    struct uly_bpe bpe;
    struct uly_pretokenizer *pre;
    struct uly_added_tokens added;
    int32_t prefix[MAX_TEMPLATE], suffix[MAX_TEMPLATE]; /* the post-processor's tokens */
    int n_prefix, n_suffix;
    int64_t n_ids; /* highest id + 1 */
    int64_t bos, eos;
};

/* ------------------------------------------------------------------ post-processor */

static enum uly_status add_template_token(struct uly_tokenizer *t, const json_t *processor,
                                          const json_t *item, bool after, const char *name)
{
    const char *id = NULL;
    ULY_TRY(uly_json_get_string(item, "id", name, &id));
    const json_t *tokens = json_object_get(processor, "special_tokens");
    const json_t *ids = json_object_get(json_object_get(tokens, id ? id : ""), "ids"), *value;
    ULY_FAIL_IF(json_array_size(ids) == 0, ULY_ERR_FORMAT,
                "%s: post-processor: special token \"%.60s\" has no ids", name, id ? id : "");
    size_t i;
    json_array_foreach(ids, i, value)
    {
        int *n = after ? &t->n_suffix : &t->n_prefix;
        ULY_FAIL_IF(*n == MAX_TEMPLATE, ULY_ERR_UNSUPPORTED,
                    "%s: post-processor: more than %d special tokens", name, (int)MAX_TEMPLATE);
        int64_t number = json_is_integer(value) ? json_integer_value(value) : -1;
        ULY_FAIL_IF(number < 0 || number > ULY_MAX_TOKEN_ID, ULY_ERR_FORMAT,
                    "%s: post-processor: special token \"%.60s\" has a bad id", name, id);
        (after ? t->suffix : t->prefix)[(*n)++] = (int32_t)number;
    }
    return ULY_OK;
}

static enum uly_status read_template(struct uly_tokenizer *t, const json_t *processor,
                                     const char *name)
{
    const json_t *single = json_object_get(processor, "single"), *item;
    bool after = false;
    size_t i;
    json_array_foreach(single, i, item)
    {
        const json_t *token = json_object_get(item, "SpecialToken");
        const json_t *sequence = json_object_get(item, "Sequence");
        ULY_FAIL_IF(
            !token && (!sequence || after), ULY_ERR_UNSUPPORTED,
            "%s: post-processor TemplateProcessing: item %zu of \"single\" is not supported", name,
            i);
        if (sequence)
            after = true;
        else
            ULY_TRY(add_template_token(t, processor, token, after, name));
    }
    ULY_FAIL_IF(!after, ULY_ERR_FORMAT, "%s: post-processor: \"single\" lacks the text itself",
                name);
    return ULY_OK;
}

static enum uly_status read_post_processor(struct uly_tokenizer *t, const json_t *node,
                                           const char *name)
{
    const char *type = "none";
    if (!node || json_is_null(node))
        return ULY_OK;
    ULY_TRY(uly_json_get_string(node, "type", name, &type));
    if (strcmp(type, "ByteLevel") == 0) /* moves offsets only */
        return ULY_OK;
    if (strcmp(type, "TemplateProcessing") == 0) {
        ULY_FAIL_IF(t->n_prefix || t->n_suffix, ULY_ERR_UNSUPPORTED,
                    "%s: two templates in one post-processor are not supported", name);
        return read_template(t, node, name);
    }
    ULY_FAIL_IF(strcmp(type, "Sequence") != 0, ULY_ERR_UNSUPPORTED,
                "%s: post-processor %s is not supported yet", name, type);
    const json_t *list = json_object_get(node, "processors"), *item;
    size_t i;
    json_array_foreach(list, i, item)
    {
        const char *inner = "none";
        ULY_TRY(uly_json_get_string(item, "type", name, &inner));
        ULY_FAIL_IF(strcmp(inner, "Sequence") == 0, ULY_ERR_UNSUPPORTED,
                    "%s: a post-processor Sequence in a Sequence is not supported", name);
        ULY_TRY(read_post_processor(t, item, name));
    }
    return ULY_OK;
}

/* ------------------------------------------------------------------ tokenizer.json */

static enum uly_status refuse_part(const json_t *root, const char *key, const char *allowed,
                                   const char *name)
{
    const char *type = allowed;
    const json_t *node = json_object_get(root, key);
    if (!node || json_is_null(node))
        return ULY_OK;
    if (json_is_object(node))
        ULY_TRY(uly_json_get_string(node, "type", name, &type));
    ULY_FAIL_IF(!allowed || strcmp(type, allowed) != 0, ULY_ERR_UNSUPPORTED,
                "%s: %s %s is not supported yet", name, key, type ? type : "(unknown)");
    return ULY_OK;
}

/* An added token that the vocabulary has too must agree with it on the id. */
static enum uly_status check_added(struct uly_tokenizer *t, const char *name)
{
    t->n_ids = t->bpe.n_ids;
    for (int64_t i = 0; i < t->added.n; i++) {
        const struct uly_added_token *token = &t->added.list[i];
        int64_t id = uly_bpe_token_id(&t->bpe, token->content);
        ULY_FAIL_IF(id >= 0 && id != token->id, ULY_ERR_FORMAT,
                    "%s: added token \"%.60s\" has the id %d, in the vocabulary %" PRId64, name,
                    token->content, (int)token->id, id);
        if (token->id >= t->n_ids)
            t->n_ids = token->id + 1;
    }
    for (int i = 0; i < t->n_prefix + t->n_suffix; i++) {
        int32_t id = i < t->n_prefix ? t->prefix[i] : t->suffix[i - t->n_prefix];
        ULY_FAIL_IF(id >= t->n_ids, ULY_ERR_FORMAT,
                    "%s: post-processor: id %d is beyond the vocabulary (%" PRId64 ")", name,
                    (int)id, t->n_ids);
    }
    return ULY_OK;
}

static enum uly_status read_tokenizer(struct uly_tokenizer *t, const json_t *root, const char *name)
{
    ULY_FAIL_IF(!json_is_object(root), ULY_ERR_FORMAT, "%s: holds %s, not a JSON object", name,
                uly_json_type_text(root));
    ULY_TRY(refuse_part(root, "normalizer", NULL, name));
    ULY_TRY(refuse_part(root, "decoder", "ByteLevel", name));
    ULY_TRY(uly_bpe_init(&t->bpe, json_object_get(root, "model"), name));
    ULY_TRY(uly_pretokenizer_create(json_object_get(root, "pre_tokenizer"), name, &t->pre));
    ULY_TRY(uly_added_tokens_init(&t->added, json_object_get(root, "added_tokens"), name));
    ULY_TRY(read_post_processor(t, json_object_get(root, "post_processor"), name));
    return check_added(t, name);
}

/* ------------------------------------------------------------------ tokenizer_config.json */

/* A token given as "text" or {"content": "text"}; -1 where there is none. */
static enum uly_status named_token(const struct uly_tokenizer *t, const json_t *config,
                                   const char *key, int64_t *out)
{
    static const char name[] = "tokenizer_config.json";
    const json_t *value = json_object_get(config, key);
    const char *content = NULL;
    *out = -1;
    if (json_is_object(value))
        ULY_TRY(uly_json_get_string(value, "content", name, &content));
    else
        ULY_TRY(uly_json_get_string(config, key, name, &content));
    if (!content || !*content)
        return ULY_OK;
    *out = uly_tokenizer_token_id(t, content);
    ULY_FAIL_IF(*out < 0, ULY_ERR_FORMAT, "%s: %s \"%.60s\" is not in tokenizer.json", name, key,
                content);
    return ULY_OK;
}

/* add_bos_token and add_eos_token make Transformers build another post-processor than the file's. */
static enum uly_status check_switch(const json_t *config, const char *key, bool present)
{
    bool wanted = false;
    ULY_TRY(uly_json_get_bool(config, key, "tokenizer_config.json", &wanted));
    ULY_FAIL_IF(
        wanted && !present, ULY_ERR_UNSUPPORTED,
        "tokenizer_config.json: \"%s\": true is not supported yet where tokenizer.json does "
        "not say the same",
        key);
    return ULY_OK;
}

static enum uly_status read_config(struct uly_tokenizer *t, const json_t *config)
{
    ULY_FAIL_IF(!json_is_object(config), ULY_ERR_FORMAT, "tokenizer_config.json: holds %s",
                uly_json_type_text(config));
    ULY_TRY(named_token(t, config, "eos_token", &t->eos));
    ULY_TRY(named_token(t, config, "bos_token", &t->bos));
    bool has_bos = t->n_prefix > 0 && t->prefix[0] == t->bos;
    bool has_eos = t->n_suffix > 0 && t->suffix[t->n_suffix - 1] == t->eos;
    ULY_TRY(check_switch(config, "add_bos_token", has_bos));
    ULY_TRY(check_switch(config, "add_eos_token", has_eos));
    /* Transformers adds tokens that stand only here */
    const char *id;
    json_t *token;
    json_object_foreach(json_object_get(config, "added_tokens_decoder"), id, token)
    {
        const char *content = NULL;
        ULY_TRY(uly_json_get_string(token, "content", "tokenizer_config.json", &content));
        ULY_FAIL_IF(content && !uly_added_tokens_find(&t->added, content), ULY_ERR_UNSUPPORTED,
                    "tokenizer_config.json: added token %s \"%.60s\" is not in tokenizer.json, "
                    "which is not supported yet",
                    id, content);
    }
    return ULY_OK;
}

/* ------------------------------------------------------------------ opening */

enum uly_status uly_tokenizer_parse(const char *text, int64_t bytes, const char *config_text,
                                    int64_t config_bytes, const char *name,
                                    struct uly_tokenizer **out)
{
    enum uly_status status = ULY_OK;
    struct uly_tokenizer *t;
    json_t *root = NULL, *config = NULL;
    ULY_TRY(ULY_ALLOC(&t, 1));
    t->bos = t->eos = -1;
    ULY_TRY_GOTO(uly_json_parse(text, bytes, name, &root), end);
    ULY_TRY_GOTO(read_tokenizer(t, root, name), end);
    if (config_text) {
        ULY_TRY_GOTO(uly_json_parse(config_text, config_bytes, "tokenizer_config.json", &config),
                     end);
        ULY_TRY_GOTO(read_config(t, config), end);
    }
    *out = t;
    t = NULL;
end:
    json_decref(root);
    json_decref(config);
    uly_tokenizer_close(t);
    return status;
}

bool uly_tokenizer_exists(const char *folder)
{
    char *path;
    if (uly_path_join(folder, "tokenizer.json", &path) != ULY_OK)
        return false;
    bool found = uly_path_kind(path, NULL) == ULY_PATH_FILE;
    uly_free(path);
    return found;
}

enum uly_status uly_tokenizer_open(const char *folder, struct uly_tokenizer **out)
{
    enum uly_status status = ULY_OK;
    char *path = NULL, *config_path = NULL, *text = NULL, *config = NULL;
    int64_t bytes = 0, config_bytes = 0;
    ULY_TRY_GOTO(uly_path_join(folder, "tokenizer.json", &path), end);
    ULY_TRY_GOTO(uly_path_join(folder, "tokenizer_config.json", &config_path), end);
    if (uly_path_kind(path, NULL) != ULY_PATH_FILE)
        ULY_FAIL_GOTO(end, ULY_ERR_INVALID,
                      "%s: no tokenizer.json in this folder; give rows of input_ids, or copy the "
                      "tokenizer's files into it",
                      folder);
    ULY_TRY_GOTO(uly_file_read(path, max_file_bytes, &text, &bytes), end);
    if (uly_path_kind(config_path, NULL) == ULY_PATH_FILE)
        ULY_TRY_GOTO(uly_file_read(config_path, max_file_bytes, &config, &config_bytes), end);
    ULY_TRY_GOTO(uly_tokenizer_parse(text, bytes, config, config_bytes, path, out), end);
end:
    uly_free(path);
    uly_free(config_path);
    uly_free(text);
    uly_free(config);
    return status;
}

void uly_tokenizer_close(struct uly_tokenizer *t)
{
    if (!t)
        return;
    uly_bpe_clear(&t->bpe);
    uly_pretokenizer_destroy(t->pre);
    uly_added_tokens_clear(&t->added);
    uly_free(t);
}

int64_t uly_tokenizer_vocab_size(const struct uly_tokenizer *t)
{
    return t->n_ids;
}

int64_t uly_tokenizer_eos_id(const struct uly_tokenizer *t)
{
    return t->eos;
}

int64_t uly_tokenizer_bos_id(const struct uly_tokenizer *t)
{
    return t->bos;
}

int64_t uly_tokenizer_token_id(const struct uly_tokenizer *t, const char *content)
{
    const struct uly_added_token *token = uly_added_tokens_find(&t->added, content);
    return token ? token->id : uly_bpe_token_id(&t->bpe, content);
}

/* ------------------------------------------------------------------ encoding */

struct encoding {
    struct uly_tokenizer *t;
    struct uly_ids *ids;
    uly_tokenize_progress_fn progress;
    void *context;
    int64_t done, bytes, next_report;
};

static enum uly_status advance(struct encoding *e, int64_t bytes)
{
    e->done += bytes;
    if (!e->progress || e->done < e->next_report)
        return ULY_OK;
    e->next_report = e->done + REPORT_BYTES;
    return e->progress(e->context, e->done < e->bytes ? e->done : e->bytes, e->bytes);
}

static enum uly_status encode_piece(void *context, const unsigned char *piece, int64_t bytes)
{
    struct encoding *e = context;
    ULY_TRY(uly_bpe_encode(&e->t->bpe, piece, bytes, e->ids));
    return advance(e, bytes);
}

/* Text without added tokens. Invalid bytes stand alone; between them the text is UTF-8. */
static enum uly_status encode_text(struct encoding *e, const unsigned char *text, int64_t bytes)
{
    for (int64_t at = 0; at < bytes;) {
        int64_t valid = uly_utf8_valid_prefix(text + at, bytes - at);
        ULY_TRY(uly_pretokenizer_run(e->t->pre, text + at, valid, encode_piece, e));
        at += valid;
        if (at < bytes)
            ULY_TRY(encode_piece(e, text + at++, 1));
    }
    return ULY_OK;
}

/* Cuts out the added tokens of trie `pass`; what lies between goes to the next trie, then to encode_text. */
static enum uly_status encode_pass(struct encoding *e, int pass, const unsigned char *text,
                                   int64_t bytes)
{
    if (pass == 2)
        return encode_text(e, text, bytes);
    for (int64_t at = 0; at < bytes;) {
        int64_t begin, end;
        int32_t id;
        uly_trie_search(&e->t->added.tries[pass], text, bytes, at, &begin, &end, &id);
        if (begin > at)
            ULY_TRY(encode_pass(e, pass + 1, text + at, begin - at));
        if (id >= 0) {
            ULY_TRY(uly_ids_add(e->ids, id));
            ULY_TRY(advance(e, end - begin));
        }
        at = end;
    }
    return ULY_OK;
}

enum uly_status uly_tokenizer_encode(struct uly_tokenizer *t, const char *text, int64_t bytes,
                                     bool add_special, uly_tokenize_progress_fn progress,
                                     void *context, struct uly_ids *ids)
{
    struct encoding e = {t, ids, progress, context, 0, bytes, REPORT_BYTES};
    for (int i = 0; add_special && i < t->n_prefix; i++)
        ULY_TRY(uly_ids_add(ids, t->prefix[i]));
    ULY_TRY(encode_pass(&e, 0, (const unsigned char *)text, bytes));
    for (int i = 0; add_special && i < t->n_suffix; i++)
        ULY_TRY(uly_ids_add(ids, t->suffix[i]));
    return ULY_OK;
}

/* ------------------------------------------------------------------ decoding */

static enum uly_status token_bytes(const struct uly_tokenizer *t, int32_t id, const char **text,
                                   int64_t *bytes)
{
    for (int64_t i = 0; i < t->added.n; i++)
        if (t->added.list[i].id == id) {
            *text = t->added.list[i].content;
            *bytes = t->added.list[i].bytes;
            return ULY_OK;
        }
    bool known = id >= 0 && id < t->bpe.n_ids && t->bpe.start[id] >= 0;
    ULY_FAIL_IF(!known, ULY_ERR_INVALID, "no token has the id %d", (int)id);
    *text = (const char *)t->bpe.text + t->bpe.start[id];
    *bytes = t->bpe.length[id];
    return ULY_OK;
}

enum uly_status uly_tokenizer_decode(const struct uly_tokenizer *t, const int32_t *ids, int64_t n,
                                     char **out, int64_t *bytes)
{
    int64_t total = 0, length = 0;
    const char *text = NULL;
    for (int64_t i = 0; i < n; i++) {
        ULY_TRY(token_bytes(t, ids[i], &text, &length));
        total += length;
    }
    char *result;
    ULY_TRY(ULY_ALLOC(&result, total + 1));
    int64_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        (void)token_bytes(t, ids[i], &text, &length); /* all ids are known by now */
        memcpy(result + at, text, (size_t)length);
        at += length;
    }
    *out = result;
    *bytes = total;
    return ULY_OK;
}
