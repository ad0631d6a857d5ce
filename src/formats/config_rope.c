/* SPDX-License-Identifier: MIT
 *
 * The rotation in config.json, in all its spellings: rope_scaling with rope_theta beside it, and rope_parameters with
 * rope_theta inside; "type" and "rope_type". Defaults and precedence are those of Transformers 5.24
 * (modeling_rope_utils.py); what it only warns of, and what would divide by zero, is refused.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "formats/config_json_impl.h"
#include "model/rope.h"

static const char original_key[] = "original_max_position_embeddings";

static enum uly_status need(const json_t *rope, const char *key, const char *name,
                            const struct uly_rope_config *r)
{
    ULY_FAIL_IF(!json_object_get(rope, key), ULY_ERR_FORMAT, "%s: rope type %s needs \"%s\"", name,
                uly_rope_type_name(r->type), key);
    return ULY_OK;
}

/* A number in (above, infinity). */
static enum uly_status read_number(const json_t *rope, const char *key, const char *name,
                                   double above, double *out)
{
    ULY_TRY(uly_json_get_double(rope, key, name, out));
    ULY_FAIL_IF(!(*out > above && isfinite(*out)), ULY_ERR_INVALID,
                "%s: rope %s %g must be above %g", name, key, *out, above);
    return ULY_OK;
}

/* The same with 0 (or null, or no key) for `initial`, as Python's "or" has it. */
static enum uly_status read_number_or(const json_t *rope, const char *key, const char *name,
                                      double initial, double *out)
{
    double value = 0;
    ULY_TRY(uly_json_get_double(rope, key, name, &value));
    ULY_FAIL_IF(!(value >= 0 && isfinite(value)), ULY_ERR_INVALID,
                "%s: rope %s %g must not be negative", name, key, value);
    *out = value > 0 ? value : initial;
    return ULY_OK;
}

static enum uly_status read_factor(const json_t *rope, const char *name, struct uly_rope_config *r)
{
    ULY_TRY(uly_json_get_double(rope, "factor", name, &r->factor));
    ULY_FAIL_IF(!(r->factor >= 1 && isfinite(r->factor)), ULY_ERR_INVALID,
                "%s: rope factor %g must be at least 1", name, r->factor);
    return ULY_OK;
}

/* The key beside the object beats the one in it; max_position_embeddings stands in for both. */
static enum uly_status read_original(const json_t *root, const json_t *rope, const char *name,
                                     struct uly_model_config *c)
{
    int64_t *original = &c->rope.original_max_position_embeddings;
    *original = c->max_position_embeddings;
    ULY_TRY(uly_json_get_int(rope, original_key, name, original));
    ULY_TRY(uly_json_get_int(root, original_key, name, original));
    ULY_FAIL_IF(*original < 1 || *original > INT64_MAX / 4096, ULY_ERR_INVALID,
                "%s: %s %" PRId64 " must be positive", name, original_key, *original);
    return ULY_OK;
}

/* ------------------------------------------------------------------ the types */

static enum uly_status read_llama3(const json_t *rope, const char *name, struct uly_rope_config *r)
{
    ULY_TRY(need(rope, "low_freq_factor", name, r));
    ULY_TRY(need(rope, "high_freq_factor", name, r));
    ULY_TRY(uly_json_get_double(rope, "low_freq_factor", name, &r->low_freq_factor));
    ULY_TRY(uly_json_get_double(rope, "high_freq_factor", name, &r->high_freq_factor));
    ULY_FAIL_IF(!(r->low_freq_factor > 0 && r->high_freq_factor > r->low_freq_factor &&
                  isfinite(r->high_freq_factor)),
                ULY_ERR_INVALID,
                "%s: rope low_freq_factor %g must be above 0 and below high_freq_factor %g", name,
                r->low_freq_factor, r->high_freq_factor);
    return ULY_OK;
}

static enum uly_status read_yarn(const json_t *rope, const char *name, struct uly_rope_config *r)
{
    const json_t *truncate = json_object_get(rope, "truncate");
    r->truncate = !truncate; /* null is false, as in Python */
    ULY_TRY(uly_json_get_bool(rope, "truncate", name, &r->truncate));
    ULY_TRY(read_number_or(rope, "beta_fast", name, 32, &r->beta_fast));
    ULY_TRY(read_number_or(rope, "beta_slow", name, 1, &r->beta_slow));
    ULY_TRY(read_number_or(rope, "mscale", name, 0, &r->mscale));
    ULY_TRY(read_number_or(rope, "mscale_all_dim", name, 0, &r->mscale_all_dim));
    ULY_FAIL_IF(r->beta_fast < r->beta_slow, ULY_ERR_INVALID,
                "%s: rope beta_fast %g must not be below beta_slow %g", name, r->beta_fast,
                r->beta_slow);
    ULY_FAIL_IF(r->theta <= 1, ULY_ERR_INVALID, "%s: rope type yarn needs rope_theta %g above 1",
                name, r->theta);
    return ULY_OK;
}

/* head_dim / 2 divisors of the frequencies. */
static enum uly_status read_list(const json_t *rope, const char *key, const char *name, int n,
                                 const struct uly_rope_config *r, double *out)
{
    const json_t *list = json_object_get(rope, key);
    ULY_TRY(need(rope, key, name, r));
    ULY_FAIL_IF(!json_is_array(list) || json_array_size(list) != (size_t)n, ULY_ERR_FORMAT,
                "%s: rope \"%s\" must be a list of %d numbers (head_dim / 2), it has %zu", name,
                key, n, json_array_size(list));
    for (int i = 0; i < n; i++) {
        const json_t *value = json_array_get(list, (size_t)i);
        ULY_FAIL_IF(!json_is_number(value), ULY_ERR_FORMAT, "%s: rope \"%s\"[%d] must be a number",
                    name, key, i);
        out[i] = json_number_value(value);
        ULY_FAIL_IF(!(out[i] > 0 && isfinite(1 / out[i])), ULY_ERR_INVALID,
                    "%s: rope \"%s\"[%d] %g must be positive", name, key, i, out[i]);
    }
    return ULY_OK;
}

static enum uly_status read_longrope(const json_t *rope, const char *name,
                                     struct uly_model_config *c)
{
    struct uly_rope_config *r = &c->rope;
    ULY_TRY(read_list(rope, "short_factor", name, c->head_dim / 2, r, r->short_factor));
    ULY_TRY(read_list(rope, "long_factor", name, c->head_dim / 2, r, r->long_factor));
    ULY_FAIL_IF(r->original_max_position_embeddings < 2, ULY_ERR_INVALID,
                "%s: %s %" PRId64 " must be above 1 for rope type longrope", name, original_key,
                r->original_max_position_embeddings);
    return ULY_OK;
}

/* What yarn and longrope multiply cos and sin with must be a number. */
static enum uly_status check_scale(const char *name, const struct uly_model_config *c)
{
    double scale = uly_rope_scale(c);
    ULY_FAIL_IF(!(scale > 0 && isfinite(scale)), ULY_ERR_INVALID,
                "%s: rope attention_factor comes out as %g", name, scale);
    return ULY_OK;
}

static enum uly_status read_type(const json_t *root, const json_t *rope, const char *name,
                                 struct uly_model_config *c)
{
    struct uly_rope_config *r = &c->rope;
    bool original =
        r->type == ULY_ROPE_LLAMA3 || r->type == ULY_ROPE_YARN || r->type == ULY_ROPE_LONGROPE;
    if (original)
        ULY_TRY(read_original(root, rope, name, c));
    if (r->type != ULY_ROPE_LONGROPE)
        ULY_TRY(need(rope, "factor", name, r));
    if (uly_json_has(rope, "factor"))
        ULY_TRY(read_factor(rope, name, r));
    else if (original) /* null, or no key of longrope: the ratio of the two lengths */
        r->factor =
            (double)c->max_position_embeddings / (double)r->original_max_position_embeddings;
    ULY_FAIL_IF(r->factor == 0, ULY_ERR_FORMAT, "%s: rope type %s needs \"factor\"", name,
                uly_rope_type_name(r->type));
    ULY_FAIL_IF(r->type == ULY_ROPE_DYNAMIC && c->head_dim < 4, ULY_ERR_INVALID,
                "%s: rope type dynamic needs a head_dim of at least 4, not %d", name, c->head_dim);
    if (r->type == ULY_ROPE_LLAMA3)
        return read_llama3(rope, name, r);
    if (r->type != ULY_ROPE_YARN && r->type != ULY_ROPE_LONGROPE)
        return ULY_OK;
    ULY_TRY(r->type == ULY_ROPE_YARN ? read_yarn(rope, name, r) : read_longrope(rope, name, c));
    if (uly_json_has(rope, "attention_factor"))
        ULY_TRY(read_number(rope, "attention_factor", name, 0, &r->attention_factor));
    return check_scale(name, c);
}

/* ------------------------------------------------------------------ the object */

enum uly_status uly_config_rope_object(const json_t *root, const char *name, const json_t **out,
                                       const char **key)
{
    static const char *const keys[] = {"rope_scaling", "rope_parameters"};
    *out = NULL;
    for (int i = 0; i < 2 && !*out; i++) {
        const json_t *value = json_object_get(root, keys[i]);
        ULY_FAIL_IF(value && !json_is_null(value) && !json_is_object(value), ULY_ERR_FORMAT,
                    "%s: \"%s\" must be an object, not %s", name, keys[i],
                    uly_json_type_text(value));
        if (json_object_size(value) == 0)
            continue;
        *out = value;
        if (key)
            *key = keys[i];
    }
    return ULY_OK;
}

static enum uly_status check_object(const json_t *rope, const char *name)
{
    static const struct uly_config_refusal refusals[] = {
        {"partial_rotary_factor", ULY_MUST_BE_NUMBER, 1, NULL, "only whole heads are rotated"},
        {"mrope_section", ULY_MUST_BE_ABSENT, 0, NULL, "positions of images are not there"},
    };
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)rope, key, value)
        ULY_FAIL_IF(json_is_object(value), ULY_ERR_UNSUPPORTED,
                    "%s: rope settings for each layer type (\"%s\") are not supported", name, key);
    for (int i = 0; i < 2; i++)
        ULY_TRY(uly_config_refuse(rope, &refusals[i], name));
    return ULY_OK;
}

enum uly_status uly_config_read_rope(const json_t *root, const char *name,
                                     struct uly_model_config *c)
{
    const json_t *rope;
    const char *type = "default";
    struct uly_rope_config *r = &c->rope;
    ULY_TRY(uly_config_rope_object(root, name, &rope, NULL));
    r->theta = 10000; /* of every family */
    ULY_TRY(uly_json_get_double(root, "rope_theta", name, &r->theta));
    if (rope) {
        ULY_TRY(check_object(rope, name));
        ULY_TRY(uly_json_get_double(rope, "rope_theta", name, &r->theta));
        ULY_TRY(uly_json_get_string(rope, "type", name, &type));
        ULY_TRY(uly_json_get_string(rope, "rope_type", name, &type));
    }
    ULY_FAIL_IF(!(r->theta > 0 && isfinite(r->theta)), ULY_ERR_INVALID,
                "%s: rope_theta %g must be positive", name, r->theta);
    ULY_FAIL_IF(strcmp(type, "su") == 0, ULY_ERR_UNSUPPORTED,
                "%s: rope type \"su\" is called \"longrope\" today; rename it", name);
    ULY_FAIL_IF(!uly_rope_type_of(type, &r->type), ULY_ERR_UNSUPPORTED,
                "%s: rope type \"%s\" is not supported (default, linear, dynamic, yarn, llama3 and "
                "longrope are)",
                name, type);
    if (r->type != ULY_ROPE_DEFAULT)
        return read_type(root, rope, name, c);
    double factor = 1; /* a forgotten type would leave it without effect */
    if (rope)
        ULY_TRY(uly_json_get_double(rope, "factor", name, &factor));
    ULY_FAIL_IF(
        factor != 1, ULY_ERR_UNSUPPORTED,
        "%s: rope type default has no factor, but it is %g: name the \"rope_type\" (linear, "
        "dynamic, yarn, llama3, longrope), or leave factor out",
        name, factor);
    return ULY_OK;
}
