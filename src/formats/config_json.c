/* SPDX-License-Identifier: MIT
 *
 * Reading config.json. Three tables hold what differs between models: the families, the keys whose values would change the
 * result in a way that the program does not compute (refused by name), and the sizes with their limits.
 */
#include "formats/config_json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "formats/config_json_impl.h"

enum { MAX_CONFIG_BYTES = 16 << 20 };

/* ------------------------------------------------------------------ families */

enum presence { NEVER, ALWAYS, BY_KEY /* attention_bias, or mlp_bias of the MLP */ };
enum window_rule {
    NO_WINDOW,
    ONE_WINDOW,     /* sliding_window, null for none: all layers */
    CHOSEN_WINDOWS, /* use_sliding_window, and layer_types or max_window_layers */
};

/* What a family is, with Transformers' defaults of keys that are absent. */
struct family {
    const char *architecture, *model_type;
    enum presence qkv_bias, o_bias, mlp_bias;
    bool qk_norm;
    enum window_rule window;
    int64_t kv_heads;         /* 0: as many as query heads */
    int64_t head_dim;         /* 0: hidden_size / heads */
    bool heads_divide_hidden; /* also where head_dim is given */
    int64_t max_positions, bos, eos;
};

/* clang-format off */
/* A new family is a row here. */
#define FAMILY_LIST(X)                                                                             \
    X(LlamaForCausalLM, "llama", .qkv_bias = BY_KEY, .o_bias = BY_KEY, .mlp_bias = BY_KEY,         \
      .heads_divide_hidden = true, .max_positions = 2048, .bos = 1, .eos = 2)                      \
    X(MistralForCausalLM, "mistral", .window = ONE_WINDOW, .kv_heads = 8,                          \
      .max_positions = 131072, .bos = 1, .eos = 2)                                                 \
    X(Qwen2ForCausalLM, "qwen2", .qkv_bias = ALWAYS, .window = CHOSEN_WINDOWS, .kv_heads = 32,     \
      .max_positions = 32768, .bos = -1, .eos = -1)                                                \
    X(Qwen3ForCausalLM, "qwen3", .qkv_bias = BY_KEY, .o_bias = BY_KEY, .qk_norm = true,            \
      .window = CHOSEN_WINDOWS, .kv_heads = 32, .head_dim = 128, .max_positions = 32768,           \
      .bos = -1, .eos = -1)
/* clang-format on */

static const struct family families[] = {
#define X(name, type, ...) {.architecture = #name, .model_type = type, __VA_ARGS__},
    FAMILY_LIST(X)
#undef X
};
enum { N_FAMILIES = sizeof families / sizeof families[0] };

const char *uly_config_supported_architectures(void)
{
#define X(name, type, ...) ", " #name
    static const char text[] = FAMILY_LIST(X);
#undef X
    return text + 2; /* past the first comma */
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
    ULY_FAIL_IF(!found, ULY_ERR_UNSUPPORTED, "%s: architecture %s is not supported (supported: %s)",
                name, architecture ? architecture : type, uly_config_supported_architectures());
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

/* Keys that change what a model computes and are not computed here. The lower ones belong to other families: Transformers
 * ignores them in these four, and whoever set them meant something else. */
static const struct uly_config_refusal refusals[] = {
    {"quantization_config", ULY_MUST_BE_ABSENT, 0, NULL,
     "quantised weights cannot be trained; take the model's unquantised folder"},
    {"hidden_act", ULY_MUST_BE_TEXT, 0, "silu", "only silu is there"},
    {"hidden_activation", ULY_MUST_BE_TEXT, 0, "silu", "only silu is there"},
    {"attention_dropout", ULY_MUST_BE_NUMBER, 0, NULL, "dropout is not there; set it to 0.0"},
    {"hidden_dropout", ULY_MUST_BE_NUMBER, 0, NULL, "dropout is not there; set it to 0.0"},
    {"resid_pdrop", ULY_MUST_BE_NUMBER, 0, NULL, "dropout is not there; set it to 0.0"},
    {"embd_pdrop", ULY_MUST_BE_NUMBER, 0, NULL, "dropout is not there; set it to 0.0"},
    {"partial_rotary_factor", ULY_MUST_BE_NUMBER, 1, NULL, "only whole heads are rotated"},
    {"pretraining_tp", ULY_MUST_BE_NUMBER, 1, NULL, "set it to 1 (the weights are the same)"},
    {"is_encoder_decoder", ULY_MUST_BE_FALSE, 0, NULL, "only decoders are there"},
    {"add_cross_attention", ULY_MUST_BE_FALSE, 0, NULL, "only decoders are there"},
    {"per_layer_config", ULY_MUST_BE_ABSENT, 0, NULL, "all layers must be alike"},

#define FOREIGN "it belongs to another family; remove the key if the model does without"
    {"alibi", ULY_MUST_BE_FALSE, 0, NULL, FOREIGN},
    {"rope_interleaved", ULY_MUST_BE_FALSE, 0, NULL, FOREIGN},
    {"use_mrope", ULY_MUST_BE_FALSE, 0, NULL, FOREIGN},
    {"use_qk_norm", ULY_MUST_BE_FALSE, 0, NULL, FOREIGN},
    {"qk_layernorm", ULY_MUST_BE_FALSE, 0, NULL, FOREIGN},
    {"no_rope_layers", ULY_MUST_BE_ABSENT, 0, NULL, FOREIGN},
    {"attention_chunk_size", ULY_MUST_BE_ABSENT, 0, NULL, FOREIGN},
    {"clip_qkv", ULY_MUST_BE_ABSENT, 0, NULL, FOREIGN},
    {"attn_logit_softcapping", ULY_MUST_BE_ABSENT, 0, NULL, FOREIGN},
    {"final_logit_softcapping", ULY_MUST_BE_ABSENT, 0, NULL, FOREIGN},
    {"query_pre_attn_scalar", ULY_MUST_BE_ABSENT, 0, NULL, FOREIGN},
    {"attention_multiplier", ULY_MUST_BE_ABSENT, 0, NULL, FOREIGN},
    {"embedding_multiplier", ULY_MUST_BE_NUMBER, 1, NULL, FOREIGN},
    {"residual_multiplier", ULY_MUST_BE_NUMBER, 1, NULL, FOREIGN},
    {"logits_scaling", ULY_MUST_BE_NUMBER, 1, NULL, FOREIGN},
    {"logit_scale", ULY_MUST_BE_NUMBER, 1, NULL, FOREIGN},
    {"kv_lora_rank", ULY_MUST_BE_ABSENT, 0, NULL, FOREIGN},
    {"num_experts", ULY_MUST_BE_NUMBER, 0, NULL, FOREIGN},
    {"num_local_experts", ULY_MUST_BE_NUMBER, 0, NULL, FOREIGN},
    {"n_routed_experts", ULY_MUST_BE_NUMBER, 0, NULL, FOREIGN},
#undef FOREIGN
};

enum uly_status uly_config_refuse(const json_t *object, const struct uly_config_refusal *r,
                                  const char *name)
{
    const json_t *value = json_object_get(object, r->key);
    if (!value || json_is_null(value))
        return ULY_OK;
    bool fine = false;
    if (r->rule == ULY_MUST_BE_NUMBER)
        fine = json_is_number(value) && json_number_value(value) == r->number;
    else if (r->rule == ULY_MUST_BE_FALSE)
        fine = json_is_false(value);
    else if (r->rule == ULY_MUST_BE_TRUE)
        fine = json_is_true(value);
    else if (r->rule == ULY_MUST_BE_TEXT)
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
        ULY_TRY(uly_config_refuse(root, &refusals[i], name));
    return ULY_OK;
}

/* A bias that a family always or never has may be named by its key, but not contradicted. */
static enum uly_status read_bias(const json_t *root, enum presence presence, const char *key,
                                 const char *name, bool *out)
{
    struct uly_config_refusal contradiction = {
        .key = key,
        .rule = presence == ALWAYS ? ULY_MUST_BE_TRUE : ULY_MUST_BE_FALSE,
        .hint = presence == ALWAYS ? "the family always has this bias; remove the key"
                                   : "the family has no such bias; remove the key"};
    if (presence == BY_KEY)
        return uly_json_get_bool(root, key, name, out);
    *out = presence == ALWAYS;
    return uly_config_refuse(root, &contradiction, name);
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

static enum uly_status read_heads(const json_t *root, const struct family *family, const char *name,
                                  struct uly_model_config *c)
{
    enum { MAX_HEADS = 1 << 16 };
    int64_t heads = 0, kv = 0, dim = 0;
    ULY_TRY(read_size(root, "num_attention_heads", name, 0, MAX_HEADS, &heads));
    /* null is as many as query heads; no key at all is the family's */
    bool absent = !json_object_get(root, "num_key_value_heads");
    int64_t kv_initial = absent && family->kv_heads > 0 ? family->kv_heads : heads;
    ULY_TRY(read_size(root, "num_key_value_heads", name, kv_initial, MAX_HEADS, &kv));
    ULY_FAIL_IF(heads % kv, ULY_ERR_INVALID,
                "%s: num_attention_heads %" PRId64 " is not a multiple of num_key_value_heads "
                "%" PRId64 "%s",
                name, heads, kv, absent ? " (the family's default)" : "");
    bool derived = !uly_json_has(root, "head_dim") && family->head_dim == 0;
    ULY_FAIL_IF((derived || family->heads_divide_hidden) && c->hidden_size % heads, ULY_ERR_INVALID,
                "%s: hidden_size %" PRId64 " is not a multiple of num_attention_heads %" PRId64,
                name, c->hidden_size, heads);
    int64_t dim_initial = family->head_dim > 0 ? family->head_dim : c->hidden_size / heads;
    ULY_TRY(read_size(root, "head_dim", name, dim_initial > 0 ? dim_initial : 1, ULY_MAX_HEAD_DIM,
                      &dim));
    ULY_FAIL_IF(dim % 2, ULY_ERR_INVALID, "%s: head_dim %" PRId64 " must be even (rope pairs)",
                name, dim);
    c->num_attention_heads = (int)heads;
    c->num_key_value_heads = (int)kv;
    c->head_dim = (int)dim;
    return ULY_OK;
}

static enum uly_status read_sizes(const json_t *root, const struct family *family, const char *name,
                                  struct uly_model_config *c)
{
    enum { MAX_WIDTH = 1 << 24 };
    int64_t layers = 0;
    ULY_TRY(read_size(root, "hidden_size", name, 0, MAX_WIDTH, &c->hidden_size));
    ULY_TRY(read_size(root, "intermediate_size", name, 0, MAX_WIDTH, &c->intermediate_size));
    ULY_TRY(read_size(root, "vocab_size", name, 0, INT32_MAX, &c->vocab_size));
    ULY_TRY(read_size(root, "num_hidden_layers", name, 0, ULY_MAX_LAYERS, &layers));
    ULY_TRY(read_size(root, "max_position_embeddings", name, family->max_positions,
                      INT64_MAX / 4096, &c->max_position_embeddings));
    c->num_hidden_layers = (int)layers;
    ULY_TRY(read_heads(root, family, name, c));
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

/* ------------------------------------------------------------------ windows */

/* The window that the keys speak of; 0: none. */
static enum uly_status read_window(const json_t *root, const struct family *family,
                                   const char *name, int64_t *out)
{
    static const char key[] = "sliding_window";
    bool use = family->window == ONE_WINDOW; /* CHOSEN_WINDOWS asks for the switch */
    const json_t *value = json_object_get(root, key),
                 *given = json_object_get(root, "use_sliding_window");
    int64_t window = value ? 0 : 4096; /* null is none; no key at all is 4096 */
    ULY_TRY(uly_json_get_bool(root, "use_sliding_window", name, &use));
    ULY_TRY(uly_json_get_int(root, key, name, &window));
    ULY_FAIL_IF(window < 0 || window > INT64_MAX / 4096 || (uly_json_has(root, key) && window == 0),
                ULY_ERR_INVALID, "%s: \"%s\" is %" PRId64 ", must be positive, or null for none",
                name, key, window);
    if (family->window == NO_WINDOW)
        window = value ? window : 0;
    /* where Transformers would ignore a key, what was meant is not known */
    ULY_FAIL_IF(family->window == NO_WINDOW && window > 0 && (use || !given), ULY_ERR_UNSUPPORTED,
                "%s: \"%s\": %" PRId64 " is not supported: %s has no window; set it to null", name,
                key, window, family->architecture);
    ULY_FAIL_IF(
        family->window == ONE_WINDOW && json_is_boolean(given) && use != (window > 0),
        ULY_ERR_UNSUPPORTED,
        "%s: \"use_sliding_window\": %s is not supported: %s has only \"%s\", which is %" PRId64
        "; set that to null for none",
        name, use ? "true" : "false", family->architecture, key, window);
    *out = use && family->window != NO_WINDOW ? window : 0;
    return ULY_OK;
}

/* layer_types: the layer's own word on its window. */
static enum uly_status layer_type(const json_t *types, int layer, const char *name, bool *window)
{
    const json_t *type = json_array_get(types, (size_t)layer);
    const char *word = json_string_value(type);
    bool full = word && strcmp(word, "full_attention") == 0;
    *window = word && strcmp(word, "sliding_attention") == 0;
    ULY_FAIL_IF(!full && !*window, ULY_ERR_UNSUPPORTED,
                "%s: \"layer_types\"[%d]: %s is not supported (full_attention and "
                "sliding_attention are)",
                name, layer, word ? word : uly_json_type_text(type));
    return ULY_OK;
}

static enum uly_status read_windows(const json_t *root, const struct family *family,
                                    const char *name, struct uly_model_config *c)
{
    const json_t *types = json_object_get(root, "layer_types");
    int64_t first = 28; /* Qwen's max_window_layers: layers below it see everything */
    bool listed = types && !json_is_null(types);
    ULY_TRY(read_window(root, family, name, &c->sliding_window));
    if (family->window == CHOSEN_WINDOWS)
        ULY_TRY(uly_json_get_int(root, "max_window_layers", name, &first));
    else
        first = 0;
    ULY_FAIL_IF(
        listed && (!json_is_array(types) || json_array_size(types) != (size_t)c->num_hidden_layers),
        ULY_ERR_FORMAT, "%s: \"layer_types\" must be a list of num_hidden_layers (%d) words", name,
        c->num_hidden_layers);
    for (int layer = 0; layer < c->num_hidden_layers; layer++) {
        bool by_rule = c->sliding_window > 0 && layer >= first, window = by_rule;
        if (listed)
            ULY_TRY(layer_type(types, layer, name, &window));
        ULY_FAIL_IF(window && c->sliding_window == 0, ULY_ERR_UNSUPPORTED,
                    "%s: \"layer_types\"[%d] is sliding_attention, but %s", name, layer,
                    family->window == NO_WINDOW ? "the family has no window"
                    : family->window == ONE_WINDOW
                        ? "there is no \"sliding_window\""
                        : "\"use_sliding_window\" is not true, or \"sliding_window\" is null");
        ULY_FAIL_IF(family->window == ONE_WINDOW && window != by_rule, ULY_ERR_UNSUPPORTED,
                    "%s: \"layer_types\"[%d] is full_attention, but %s has its window on every "
                    "layer; set \"sliding_window\" to null for none",
                    name, layer, family->architecture);
        if (window)
            uly_config_set_window(c, layer);
    }
    if (uly_config_window_layers(c) == 0)
        c->sliding_window = 0;
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

static enum uly_status translate(const json_t *root, const char *name, struct uly_model_config *out)
{
    struct uly_model_config c = {0};
    const struct family *family = NULL;
    ULY_TRY(find_family(root, name, &family));
    snprintf(c.architecture, sizeof c.architecture, "%s", family->architecture);
    snprintf(c.model_type, sizeof c.model_type, "%s", family->model_type);
    ULY_TRY(check_refusals(root, name));
    ULY_TRY(read_sizes(root, family, name, &c));
    ULY_TRY(uly_config_read_rope(root, name, &c));
    c.qk_norm = family->qk_norm;
    ULY_TRY(read_windows(root, family, name, &c));
    ULY_TRY(uly_json_get_bool(root, "tie_word_embeddings", name, &c.tie_word_embeddings));
    ULY_TRY(read_bias(root, family->qkv_bias, "attention_bias", name, &c.qkv_bias));
    if (family->o_bias == BY_KEY) /* one key for all four */
        c.o_bias = c.qkv_bias;
    ULY_TRY(read_bias(root, family->mlp_bias, "mlp_bias", name, &c.mlp_bias));
    int64_t V = c.vocab_size;
    ULY_TRY(read_id(root, "bos_token_id", name, family->bos, V, &c.bos_token_id));
    ULY_TRY(read_id(root, "eos_token_id", name, family->eos, V, &c.eos_token_id));
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
