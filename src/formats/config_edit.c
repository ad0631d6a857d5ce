/* SPDX-License-Identifier: MIT
 *
 * Changing values in the text of a config.json, and --config-overrides. The text is known to be valid JSON, so that a scan
 * that knows strings and nesting finds a key of the outermost object; everything else stays as it was, byte for byte.
 */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "formats/config_json.h"
#include "formats/config_json_impl.h"
#include "model/rope.h"

/* ------------------------------------------------------------------ text */

/* One past the end of the string that opens at text[at]. */
static int64_t skip_string(const char *text, int64_t bytes, int64_t at)
{
    for (at++; at < bytes && text[at] != '"'; at++)
        if (text[at] == '\\')
            at++;
    return at + 1;
}

static int64_t skip_space(const char *text, int64_t bytes, int64_t at)
{
    while (at < bytes && strchr(" \t\r\n", text[at]))
        at++;
    return at;
}

/* One past the end of the value that begins at text[at]. */
static int64_t skip_value(const char *text, int64_t bytes, int64_t at)
{
    int depth = 0;
    while (at < bytes) {
        char c = text[at];
        if (depth == 0 && strchr(",}] \t\r\n", c))
            return at;
        at = c == '"' ? skip_string(text, bytes, at) : at + 1;
        depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        if (depth == 0 && strchr("\"}]", c))
            return at;
    }
    return at;
}

/* The value of a key of the outermost object. */
static bool find_value(const struct uly_config_json *kept, const char *key, int64_t *begin,
                       int64_t *end)
{
    int64_t bytes = kept->bytes, length = (int64_t)strlen(key);
    const char *text = kept->text;
    int64_t at = skip_space(text, bytes, 0) + 1; /* past the brace */
    for (;;) {
        at = skip_space(text, bytes, at);
        if (at >= bytes || text[at] != '"')
            return false;
        int64_t name = at + 1, after = skip_string(text, bytes, at);
        at = skip_space(text, bytes, skip_space(text, bytes, after) + 1); /* past the colon */
        int64_t past = skip_value(text, bytes, at);
        if (after - 1 - name == length && memcmp(text + name, key, (size_t)length) == 0) {
            *begin = at;
            *end = past;
            return true;
        }
        at = skip_space(text, bytes, past) + 1; /* past the comma, or the closing brace */
    }
}

bool uly_config_json_has(const struct uly_config_json *kept, const char *key)
{
    int64_t begin, end;
    return find_value(kept, key, &begin, &end);
}

enum uly_status uly_config_json_set(struct uly_config_json *kept, const char *key,
                                    const char *value)
{
    int64_t begin, end;
    const char *head[4] = {"", "", "", value}, *tail = "";
    if (!find_value(kept, key, &begin, &end)) { /* a first line of its own */
        const char *brace = memchr(kept->text, '{', (size_t)kept->bytes);
        ULY_FAIL_IF(!brace, ULY_ERR_INTERNAL, "config.json without an object");
        begin = end = brace - kept->text + 1;
        head[0] = "\n  \"";
        head[1] = key;
        head[2] = "\": ";
        tail = ",";
    }
    int64_t extra = (int64_t)strlen(tail), at = begin;
    for (int i = 0; i < 4; i++)
        extra += (int64_t)strlen(head[i]);
    char *text;
    int64_t bytes = kept->bytes - (end - begin) + extra;
    ULY_TRY(ULY_ALLOC(&text, bytes + 1));
    memcpy(text, kept->text, (size_t)begin);
    for (int i = 0; i < 5; i++) {
        const char *part = i < 4 ? head[i] : tail;
        memcpy(text + at, part, strlen(part));
        at += (int64_t)strlen(part);
    }
    memcpy(text + at, kept->text + end, (size_t)(kept->bytes - end));
    text[bytes] = '\0';
    uly_free(kept->text);
    *kept = (struct uly_config_json){text, bytes};
    return ULY_OK;
}

/* ------------------------------------------------------------------ which keys */

static const char option[] = "--config-overrides";
static const char *const rope_keys[] = {"rope_scaling", "rope_parameters"};

static bool listed(const char *const *list, size_t n, const char *key)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i], key) == 0)
            return true;
    return false;
}

static enum uly_status check_key(const char *key)
{
    static const char *const allowed[] = {"rope_theta",
                                          "rope_scaling",
                                          "rope_parameters",
                                          "max_position_embeddings",
                                          "original_max_position_embeddings",
                                          "sliding_window",
                                          "use_sliding_window",
                                          "max_window_layers",
                                          "layer_types",
                                          "rms_norm_eps",
                                          "bos_token_id",
                                          "eos_token_id",
                                          "pad_token_id"};
    static const char *const shapes[] = {
        "hidden_size",       "intermediate_size",   "vocab_size",
        "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "head_dim",          "tie_word_embeddings", "attention_bias",
        "mlp_bias",          "architectures",       "model_type"};
    if (listed(allowed, sizeof allowed / sizeof *allowed, key))
        return ULY_OK;
    ULY_FAIL_IF(listed(shapes, sizeof shapes / sizeof *shapes, key), ULY_ERR_USAGE,
                "%s: \"%s\" decides which weights the model has; those are the folder's", option,
                key);
    ULY_FAIL_IF(strcmp(key, "dtype") == 0 || strcmp(key, "torch_dtype") == 0, ULY_ERR_USAGE,
                "%s: \"%s\": type --dtype or --save-dtype instead", option, key);
    ULY_FAIL(ULY_ERR_USAGE,
             "%s: \"%s\" is not a key that can be changed (rope_theta, rope_scaling, "
             "rope_parameters, max_position_embeddings, original_max_position_embeddings, "
             "sliding_window, use_sliding_window, max_window_layers, layer_types, rms_norm_eps "
             "and the ids of special tokens are)",
             option, key);
}

static enum uly_status parse(const char *overrides, json_t **out)
{
    json_t *root;
    const char *key;
    json_t *value;
    enum uly_status status = ULY_OK;
    if (uly_json_parse(overrides, (int64_t)strlen(overrides), option, &root) != ULY_OK) {
        char said[256]; /* a fault of the command line, not of a file */
        snprintf(said, sizeof said, "%s", uly_error_message());
        ULY_FAIL(ULY_ERR_USAGE, "%s", said);
    }
    if (!json_is_object(root))
        ULY_FAIL_GOTO(bad, ULY_ERR_USAGE,
                      "%s holds %s, not a JSON object such as {\"rope_theta\": 1e6}", option,
                      uly_json_type_text(root));
    json_object_foreach(root, key, value) ULY_TRY_GOTO(check_key(key), bad);
    if (json_object_get(root, rope_keys[0]) && json_object_get(root, rope_keys[1]))
        ULY_FAIL_GOTO(
            bad, ULY_ERR_USAGE,
            "%s: rope_scaling and rope_parameters say the same thing; give one of the two", option);
    *out = root;
    return ULY_OK;
bad:
    json_decref(root);
    return status;
}

enum uly_status uly_config_overrides_check(const char *overrides)
{
    json_t *root;
    ULY_TRY(parse(overrides, &root));
    json_decref(root);
    return ULY_OK;
}

/* ------------------------------------------------------------------ applying them */

/* Sets a key to a value, with as few digits as say it exactly. */
static enum uly_status set(struct uly_config_json *kept, const char *key, const json_t *value)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
    json_t *again = text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
    if (!again || !json_equal(again, value)) {
        uly_json_text_free(text);
        text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    }
    json_decref(again);
    ULY_FAIL_IF(!text, ULY_ERR_NO_MEMORY, "%s: \"%s\" cannot be written", option, key);
    enum uly_status status = uly_config_json_set(kept, key, text);
    uly_json_text_free(text);
    return status;
}

/* A copy of a given rotation, complete: theta and the length before extension stay where they are not given, because
 * Transformers would take 10000 and the extended length for them. */
static json_t *complete_rope(const json_t *given, const json_t *old, const json_t *config,
                             bool theta_given)
{
    static const char original[] = "original_max_position_embeddings";
    const json_t *theta = json_object_get(old, "rope_theta");
    const json_t *length = json_object_get(old, original);
    json_t *rope = json_object_size(given) ? json_deep_copy(given) : json_object();
    if (!json_object_get(rope, "rope_type") && !json_object_get(rope, "type"))
        json_object_set_new(rope, "rope_type", json_string("default"));
    const json_t *word =
        json_object_get(rope, json_object_get(rope, "rope_type") ? "rope_type" : "type");
    enum uly_rope_type type = ULY_ROPE_DEFAULT;
    if (json_is_string(word))
        uly_rope_type_of(json_string_value(word), &type);
    if (theta && !theta_given && !json_object_get(rope, "rope_theta"))
        json_object_set(rope, "rope_theta", (json_t *)(uintptr_t)theta);
    if (!length)
        length = json_object_get(config, "max_position_embeddings");
    bool reads = type == ULY_ROPE_YARN || type == ULY_ROPE_LLAMA3 || type == ULY_ROPE_LONGROPE;
    if (reads && length && !json_object_get(rope, original) && !json_object_get(config, original))
        json_object_set(rope, original, (json_t *)(uintptr_t)length);
    return rope;
}

/* The rotation, whose settings stand in one of two objects, theta in it or beside it: what is given replaces what is in
 * force, in the spelling of the folder. */
static enum uly_status set_rope(struct uly_config_json *kept, const json_t *config,
                                const json_t *overrides)
{
    enum uly_status status = ULY_OK;
    const json_t *old = NULL, *theta = json_object_get(overrides, "rope_theta");
    const char *key = NULL;
    json_t *rope = NULL;
    ULY_TRY(uly_config_rope_object(config, "config.json", &old, &key));
    for (int i = 0; i < 2; i++) {
        const json_t *given = json_object_get(overrides, rope_keys[i]);
        if (!given)
            continue;
        ULY_FAIL_IF(!json_is_object(given) && !json_is_null(given), ULY_ERR_USAGE,
                    "%s: \"%s\" must be an object or null, not %s", option, rope_keys[i],
                    uly_json_type_text(given));
        key = old ? key : rope_keys[i];
        rope = complete_rope(given, old, config, theta != NULL);
    }
    if (!rope && old && theta)
        rope = json_deep_copy(old);
    bool inside = rope && json_object_get(rope, "rope_theta");
    if (inside && theta)
        json_object_set(rope, "rope_theta", (json_t *)(uintptr_t)theta);
    if (theta && (!inside || json_object_get(config, "rope_theta")))
        ULY_TRY_GOTO(set(kept, "rope_theta", theta), end);
    if (rope)
        ULY_TRY_GOTO(set(kept, key, rope), end);
end:
    json_decref(rope);
    return status;
}

static enum uly_status apply(struct uly_config_json *kept, const json_t *config,
                             const json_t *overrides)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)overrides, key, value)
    {
        if (strcmp(key, "rope_theta") == 0 || listed(rope_keys, 2, key))
            continue;
        ULY_TRY(set(kept, key, value));
    }
    return set_rope(kept, config, overrides);
}

/* A value that the other keys leave without effect was meant to have one. */
static enum uly_status check_effect(const json_t *config, const json_t *given,
                                    const struct uly_model_config *c)
{
    static const char original[] = "original_max_position_embeddings";
    const json_t *types = json_object_get(given, "layer_types");
    types = types ? types : json_object_get(config, "layer_types");
    bool window = json_is_integer(json_object_get(given, "sliding_window"));
    ULY_FAIL_IF(c->sliding_window == 0 &&
                    (window || json_is_true(json_object_get(given, "use_sliding_window"))),
                ULY_ERR_USAGE,
                "%s: \"%s\" has no effect, because no layer has a window: \"use_sliding_window\": "
                "true switches them on, layer_types or max_window_layers chooses the layers",
                option, window ? "sliding_window" : "use_sliding_window");
    ULY_FAIL_IF(uly_json_has(given, "max_window_layers") && json_is_array(types), ULY_ERR_USAGE,
                "%s: \"max_window_layers\" has no effect beside layer_types, which names the "
                "layers; give that",
                option);
    ULY_FAIL_IF(uly_json_has(given, original) &&
                    (c->rope.type == ULY_ROPE_DEFAULT || c->rope.type == ULY_ROPE_LINEAR ||
                     c->rope.type == ULY_ROPE_DYNAMIC),
                ULY_ERR_USAGE, "%s: \"%s\" has no effect on rope type %s", option, original,
                uly_rope_type_name(c->rope.type));
    return ULY_OK;
}

enum uly_status uly_config_json_override(struct uly_config_json *kept, const char *overrides,
                                         struct uly_model_config *out)
{
    enum uly_status status = ULY_OK;
    json_t *given = NULL, *config = NULL;
    struct uly_config_json edited = {NULL, kept->bytes};
    struct uly_model_config c; /* out keeps its values where something is refused */
    ULY_TRY(parse(overrides, &given));
    ULY_TRY_GOTO(uly_json_parse(kept->text, kept->bytes, "config.json", &config), end);
    ULY_TRY_GOTO(ULY_ALLOC(&edited.text, kept->bytes + 1), end);
    memcpy(edited.text, kept->text, (size_t)kept->bytes);
    ULY_TRY_GOTO(apply(&edited, config, given), end);
    ULY_TRY_GOTO(
        uly_config_json_parse(edited.text, edited.bytes, "config.json with --config-overrides", &c),
        end);
    ULY_TRY_GOTO(check_effect(config, given, &c), end);
    *out = c;
    uly_config_json_clear(kept);
    *kept = edited;
    edited = (struct uly_config_json){0};
end:
    uly_config_json_clear(&edited);
    json_decref(config);
    json_decref(given);
    return status;
}
