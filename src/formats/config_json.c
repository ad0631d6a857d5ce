/* SPDX-License-Identifier: MIT
 *
 * Reading config.json. Three tables hold what differs between models: the families, the keys whose values would change the
 * result in a way that the program does not compute (refused by name), and the sizes with their limits.
 */
#include "formats/config_json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "formats/json.h"

enum { MAX_CONFIG_BYTES = 16 << 20 };

/* ------------------------------------------------------------------ families */

struct family {
    const char *architecture, *model_type;
    const char *qkv_bias_key, *o_bias_key,
        *mlp_bias_key;                /* config keys that switch biases; NULL: none */
    bool tied_default;                /* tie_word_embeddings where the key is absent */
    int64_t bos_default, eos_default; /* ids where the key is absent */
};

static const struct family families[] = {
    {"LlamaForCausalLM", "llama", "attention_bias", "attention_bias", "mlp_bias", false, 1, 2},
};
enum { N_FAMILIES = sizeof families / sizeof families[0] };

const char *uly_config_supported_architectures(void)
{
    return "LlamaForCausalLM";
}

static enum uly_status find_family(const json_t *root, const char *name, const struct family **out)
{
    const json_t *list = json_object_get(root, "architectures");
    const char *architecture = json_string_value(json_array_get(list, 0));
    const char *type = NULL;
    ULY_TRY(uly_json_get_string(root, "model_type", name, &type));
    ULY_FAIL_IF(uly_json_has(root, "architectures") && !architecture, ULY_ERR_FORMAT,
                "%s: \"architectures\" must be a list of names", name);
    ULY_FAIL_IF(!architecture && !type, ULY_ERR_FORMAT,
                "%s: names neither \"architectures\" nor \"model_type\" (not a model's "
                "config.json?)",
                name);
    const struct family *found = NULL;
    for (int i = 0; !found && i < N_FAMILIES; i++)
        if (strcmp(architecture ? architecture : type,
                   architecture ? families[i].architecture : families[i].model_type) == 0)
            found = &families[i];
    ULY_FAIL_IF(!found, ULY_ERR_UNSUPPORTED,
                "%s: architecture %s is not supported (supported today: %s)", name,
                architecture ? architecture : type, uly_config_supported_architectures());
    ULY_FAIL_IF(!type, ULY_ERR_FORMAT,
                "%s: no \"model_type\"; Transformers needs it: add \"model_type\": \"%s\"", name,
                found->model_type);
    ULY_FAIL_IF(strcmp(type, found->model_type) != 0, ULY_ERR_UNSUPPORTED,
                "%s: model_type \"%s\" does not belong to architecture %s (\"%s\" does)", name,
                type, found->architecture, found->model_type);
    *out = found;
    return ULY_OK;
}

/* ------------------------------------------------------------------ refusals */

enum rule { MUST_BE_ABSENT, MUST_BE_NUMBER, MUST_BE_FALSE, MUST_BE_TEXT };

static const struct refusal {
    const char *key;
    enum rule rule;
    double number;    /* MUST_BE_NUMBER: the only value (absent and null count as it) */
    const char *text; /* MUST_BE_TEXT: the only value */
    const char *hint;
} refusals[] = {
    {"quantization_config", MUST_BE_ABSENT, 0, NULL,
     "quantised weights cannot be trained; take the model's unquantised folder"},
    {"hidden_act", MUST_BE_TEXT, 0, "silu", "only silu is there"},
    {"attention_dropout", MUST_BE_NUMBER, 0, NULL, "dropout is not there; set it to 0.0"},
    {"hidden_dropout", MUST_BE_NUMBER, 0, NULL, "dropout is not there; set it to 0.0"},
    {"resid_pdrop", MUST_BE_NUMBER, 0, NULL, "dropout is not there; set it to 0.0"},
    {"embd_pdrop", MUST_BE_NUMBER, 0, NULL, "dropout is not there; set it to 0.0"},
    {"partial_rotary_factor", MUST_BE_NUMBER, 1, NULL, "only whole heads are rotated"},
    {"pretraining_tp", MUST_BE_NUMBER, 1, NULL, "set it to 1 (the weights are the same)"},
    {"is_encoder_decoder", MUST_BE_FALSE, 0, NULL, "only decoders are there"},
    {"add_cross_attention", MUST_BE_FALSE, 0, NULL, "only decoders are there"},
    {"per_layer_config", MUST_BE_ABSENT, 0, NULL, "all layers must be alike"},
};

static enum uly_status check_refusal(const json_t *object, const struct refusal *r,
                                     const char *name)
{
    const json_t *value = json_object_get(object, r->key);
    if (!value || json_is_null(value))
        return ULY_OK;
    bool fine = false;
    if (r->rule == MUST_BE_NUMBER)
        fine = json_is_number(value) && json_number_value(value) == r->number;
    else if (r->rule == MUST_BE_FALSE)
        fine = json_is_false(value);
    else if (r->rule == MUST_BE_TEXT)
        fine = json_is_string(value) && strcmp(json_string_value(value), r->text) == 0;
    if (fine)
        return ULY_OK;
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(6));
    enum uly_status status = uly_error_record(ULY_ERR_UNSUPPORTED, __FILE__, __LINE__, __func__,
                                              "%s: \"%s\": %.60s is not supported: %s", name,
                                              r->key, text ? text : "(value)", r->hint);
    uly_json_text_free(text);
    return status;
}

static enum uly_status check_refusals(const json_t *root, const char *name)
{
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++)
        ULY_TRY(check_refusal(root, &refusals[i], name));
    const json_t *types = json_object_get(root, "layer_types"), *type;
    size_t i;
    json_array_foreach(types, i, type) ULY_FAIL_IF(
        !json_is_string(type) || strcmp(json_string_value(type), "full_attention") != 0,
        ULY_ERR_UNSUPPORTED, "%s: \"layer_types\"[%zu]: %s is not supported (full_attention is)",
        name, i, json_is_string(type) ? json_string_value(type) : uly_json_type_text(type));
    return ULY_OK;
}

/* ------------------------------------------------------------------ rope */

/* Numbers that the llama3 type needs, all of them named where they are missing or out of range. */
static enum uly_status read_llama3(const json_t *root, const json_t *rope, const char *name,
                                   struct uly_model_config *c)
{
    static const char *const keys[] = {"factor", "low_freq_factor", "high_freq_factor"};
    for (int i = 0; i < 3; i++)
        ULY_FAIL_IF(!uly_json_has(rope, keys[i]), ULY_ERR_FORMAT,
                    "%s: rope type llama3 needs \"%s\"", name, keys[i]);
    ULY_TRY(uly_json_get_double(rope, "factor", name, &c->rope.factor));
    ULY_TRY(uly_json_get_double(rope, "low_freq_factor", name, &c->rope.low_freq_factor));
    ULY_TRY(uly_json_get_double(rope, "high_freq_factor", name, &c->rope.high_freq_factor));
    /* Transformers: the key beside rope_scaling beats the one in it; max_position_embeddings stands in for both */
    static const char original[] = "original_max_position_embeddings";
    c->rope.original_max_position_embeddings = c->max_position_embeddings;
    ULY_TRY(uly_json_get_int(rope, original, name, &c->rope.original_max_position_embeddings));
    ULY_TRY(uly_json_get_int(root, original, name, &c->rope.original_max_position_embeddings));
    const struct uly_rope_config *r = &c->rope;
    ULY_FAIL_IF(!(r->factor >= 1 && isfinite(r->factor)), ULY_ERR_INVALID,
                "%s: rope factor %g must be at least 1", name, r->factor);
    ULY_FAIL_IF(!(r->low_freq_factor > 0 && r->high_freq_factor > r->low_freq_factor &&
                  isfinite(r->high_freq_factor)),
                ULY_ERR_INVALID,
                "%s: rope low_freq_factor %g must be above 0 and below high_freq_factor %g", name,
                r->low_freq_factor, r->high_freq_factor);
    ULY_FAIL_IF(r->original_max_position_embeddings < 1, ULY_ERR_INVALID,
                "%s: %s %" PRId64 " must be positive", name, original,
                r->original_max_position_embeddings);
    return ULY_OK;
}

/* The object that describes the rotation: rope_scaling (old) beats rope_parameters (new), as in Transformers. NULL where
 * there is none; {} counts as none. */
static enum uly_status rope_object(const json_t *root, const char *name, const json_t **out)
{
    static const char *const keys[] = {"rope_scaling", "rope_parameters"};
    *out = NULL;
    for (int i = 0; i < 2 && !*out; i++) {
        const json_t *value = json_object_get(root, keys[i]);
        ULY_FAIL_IF(value && !json_is_null(value) && !json_is_object(value), ULY_ERR_FORMAT,
                    "%s: \"%s\" must be an object, not %s", name, keys[i],
                    uly_json_type_text(value));
        if (json_object_size(value) > 0)
            *out = value;
    }
    return ULY_OK;
}

static enum uly_status read_rope(const json_t *root, const char *name, struct uly_model_config *c)
{
    const json_t *rope;
    const char *type = "default";
    ULY_TRY(rope_object(root, name, &rope));
    c->rope.theta = 10000;
    ULY_TRY(uly_json_get_double(root, "rope_theta", name, &c->rope.theta));
    if (rope) {
        const char *key;
        json_t *value;
        json_object_foreach((json_t *)(uintptr_t)rope, key, value) ULY_FAIL_IF(
            json_is_object(value), ULY_ERR_UNSUPPORTED,
            "%s: rope settings for each layer type (\"%s\") are not supported", name, key);
        ULY_TRY(uly_json_get_double(rope, "rope_theta", name, &c->rope.theta));
        ULY_TRY(uly_json_get_string(rope, "type", name, &type));
        ULY_TRY(uly_json_get_string(rope, "rope_type", name, &type));
        for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++)
            if (strcmp(refusals[i].key, "partial_rotary_factor") == 0)
                ULY_TRY(check_refusal(rope, &refusals[i], name));
    }
    ULY_FAIL_IF(!(c->rope.theta > 0 && isfinite(c->rope.theta)), ULY_ERR_INVALID,
                "%s: rope_theta %g must be positive", name, c->rope.theta);
    if (strcmp(type, "default") == 0) {
        c->rope.type = ULY_ROPE_DEFAULT;
        return ULY_OK;
    }
    ULY_FAIL_IF(strcmp(type, "llama3") != 0, ULY_ERR_UNSUPPORTED,
                "%s: rope type \"%s\" is not supported (default and llama3 are)", name, type);
    c->rope.type = ULY_ROPE_LLAMA3;
    return read_llama3(root, rope, name, c);
}

/* ------------------------------------------------------------------ sizes */

/* A size that must be there unless it has a default (above 0), in 1 .. max. */
static enum uly_status read_size(const json_t *root, const char *key, const char *name,
                                 int64_t initial, int64_t max, int64_t *out)
{
    int64_t value = initial;
    ULY_FAIL_IF(initial == 0 && !uly_json_has(root, key), ULY_ERR_FORMAT, "%s: \"%s\" is missing",
                name, key);
    ULY_TRY(uly_json_get_int(root, key, name, &value));
    ULY_FAIL_IF(value < 1 || value > max, ULY_ERR_INVALID,
                "%s: \"%s\" is %" PRId64 ", must be 1 to %" PRId64, name, key, value, max);
    *out = value;
    return ULY_OK;
}

static enum uly_status read_heads(const json_t *root, const char *name, struct uly_model_config *c)
{
    enum { MAX_HEADS = 1 << 16 };
    int64_t heads = 0, kv = 0, dim = 0;
    ULY_TRY(read_size(root, "num_attention_heads", name, 0, MAX_HEADS, &heads));
    ULY_TRY(read_size(root, "num_key_value_heads", name, heads, MAX_HEADS, &kv));
    ULY_FAIL_IF(heads % kv, ULY_ERR_INVALID,
                "%s: num_attention_heads %" PRId64 " is not a multiple of num_key_value_heads "
                "%" PRId64,
                name, heads, kv);
    ULY_FAIL_IF(c->hidden_size % heads, ULY_ERR_INVALID,
                "%s: hidden_size %" PRId64 " is not a multiple of num_attention_heads %" PRId64,
                name, c->hidden_size, heads);
    ULY_TRY(read_size(root, "head_dim", name, c->hidden_size / heads, MAX_HEADS, &dim));
    ULY_FAIL_IF(dim % 2, ULY_ERR_INVALID, "%s: head_dim %" PRId64 " must be even (rope pairs)",
                name, dim);
    c->num_attention_heads = (int)heads;
    c->num_key_value_heads = (int)kv;
    c->head_dim = (int)dim;
    return ULY_OK;
}

static enum uly_status read_sizes(const json_t *root, const char *name, struct uly_model_config *c)
{
    enum { MAX_LAYERS = 1 << 16, MAX_WIDTH = 1 << 24 };
    int64_t layers = 0;
    ULY_TRY(read_size(root, "hidden_size", name, 0, MAX_WIDTH, &c->hidden_size));
    ULY_TRY(read_size(root, "intermediate_size", name, 0, MAX_WIDTH, &c->intermediate_size));
    ULY_TRY(read_size(root, "vocab_size", name, 0, INT32_MAX, &c->vocab_size));
    ULY_TRY(read_size(root, "num_hidden_layers", name, 0, MAX_LAYERS, &layers));
    ULY_TRY(read_size(root, "max_position_embeddings", name, 2048, INT64_MAX / 4096,
                      &c->max_position_embeddings));
    c->num_hidden_layers = (int)layers;
    ULY_TRY(read_heads(root, name, c));
    c->rms_norm_eps = 1e-6;
    c->initializer_range = 0.02;
    ULY_TRY(uly_json_get_double(root, "rms_norm_eps", name, &c->rms_norm_eps));
    ULY_TRY(uly_json_get_double(root, "initializer_range", name, &c->initializer_range));
    ULY_FAIL_IF(!(c->rms_norm_eps >= 0 && c->rms_norm_eps < 1), ULY_ERR_INVALID,
                "%s: rms_norm_eps %g must be in [0, 1)", name, c->rms_norm_eps);
    ULY_FAIL_IF(!(c->initializer_range >= 0 && c->initializer_range <= 1), ULY_ERR_INVALID,
                "%s: initializer_range %g must be in [0, 1]", name, c->initializer_range);
    return ULY_OK;
}

/* ------------------------------------------------------------------ the rest */

/* An id, a list of ids (the first counts) or null (-1: none). */
static enum uly_status read_id(const json_t *root, const char *key, const char *name,
                               int64_t initial, int64_t vocab, int64_t *out)
{
    const json_t *value = json_object_get(root, key);
    if (json_is_array(value))
        value = json_array_get(value, 0);
    int64_t id = value ? -1 : initial;
    if (value && !json_is_null(value)) {
        ULY_FAIL_IF(!json_is_integer(value), ULY_ERR_FORMAT,
                    "%s: \"%s\" must be an id or a list of ids", name, key);
        id = json_integer_value(value);
    }
    /* -1 is how some published folders spell "none"; an id beyond the vocabulary cannot be meant either */
    ULY_FAIL_IF(id < -1 || (value && id >= vocab), ULY_ERR_INVALID,
                "%s: \"%s\" is %" PRId64 ", vocab_size is %" PRId64, name, key, id, vocab);
    *out = id < vocab ? id : -1;
    return ULY_OK;
}

static enum uly_status parse_dtype(const json_t *root, const char *name, enum uly_dtype *out)
{
    static const enum uly_dtype known[] = {ULY_DTYPE_F32, ULY_DTYPE_BF16, ULY_DTYPE_F16};
    const char *text = "float32";
    ULY_TRY(uly_json_get_string(root, "torch_dtype", name, &text));
    ULY_TRY(uly_json_get_string(root, "dtype", name, &text));
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(text, uly_dtype_name(known[i])) == 0) {
            *out = known[i];
            return ULY_OK;
        }
    ULY_FAIL(ULY_ERR_UNSUPPORTED,
             "%s: dtype \"%s\" is not supported (float32, bfloat16 and float16 are)", name, text);
}

static enum uly_status read_switch(const json_t *root, const char *key, const char *name, bool *out)
{
    return key ? uly_json_get_bool(root, key, name, out) : ULY_OK;
}

static enum uly_status translate(const json_t *root, const char *name, struct uly_model_config *out)
{
    struct uly_model_config c = {0};
    const struct family *family = NULL;
    ULY_TRY(find_family(root, name, &family));
    snprintf(c.architecture, sizeof c.architecture, "%s", family->architecture);
    snprintf(c.model_type, sizeof c.model_type, "%s", family->model_type);
    ULY_TRY(check_refusals(root, name));
    ULY_TRY(read_sizes(root, name, &c));
    ULY_TRY(read_rope(root, name, &c));
    c.tie_word_embeddings = family->tied_default;
    ULY_TRY(uly_json_get_bool(root, "tie_word_embeddings", name, &c.tie_word_embeddings));
    ULY_TRY(read_switch(root, family->qkv_bias_key, name, &c.qkv_bias));
    ULY_TRY(read_switch(root, family->o_bias_key, name, &c.o_bias));
    ULY_TRY(read_switch(root, family->mlp_bias_key, name, &c.mlp_bias));
    int64_t V = c.vocab_size;
    ULY_TRY(read_id(root, "bos_token_id", name, family->bos_default, V, &c.bos_token_id));
    ULY_TRY(read_id(root, "eos_token_id", name, family->eos_default, V, &c.eos_token_id));
    ULY_TRY(read_id(root, "pad_token_id", name, -1, V, &c.pad_token_id));
    ULY_TRY(parse_dtype(root, name, &c.dtype));
    *out = c;
    return ULY_OK;
}

enum uly_status uly_config_json_parse(const char *text, int64_t bytes, const char *name,
                                      struct uly_model_config *out)
{
    enum uly_status status = ULY_OK;
    json_t *root = NULL;
    ULY_TRY(uly_json_parse(text, bytes, name, &root));
    if (!json_is_object(root))
        ULY_FAIL_GOTO(end, ULY_ERR_FORMAT, "%s: holds %s, not a JSON object", name,
                      uly_json_type_text(root));
    ULY_TRY_GOTO(translate(root, name, out), end);
end:
    json_decref(root);
    return status;
}

enum uly_status uly_config_json_read(const char *path, struct uly_model_config *out,
                                     struct uly_config_json *kept)
{
    struct uly_config_json file = {0};
    ULY_TRY(uly_file_read(path, MAX_CONFIG_BYTES, &file.text, &file.bytes));
    enum uly_status status = uly_config_json_parse(file.text, file.bytes, path, out);
    if (status == ULY_OK && kept)
        *kept = file;
    else
        uly_config_json_clear(&file);
    return status;
}

void uly_config_json_clear(struct uly_config_json *kept)
{
    uly_free(kept->text);
    *kept = (struct uly_config_json){0};
}
