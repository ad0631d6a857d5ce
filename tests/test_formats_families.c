/* SPDX-License-Identifier: MIT
 *
 * config.json of every family: defaults of keys that are absent, windows layer by layer, rope types in both spellings with
 * Transformers' own frequencies, what is refused, and --config-overrides.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/mem.h"
#include "base/random.h"
#include "formats/config_json.h"
#include "model/rope.h"
#include "support/folder.h"

static void check_ok(enum uly_status status, const char *what)
{
    if (status != ULY_OK)
        fail_msg("%s: %s", what, uly_error_message());
}
#define OK(call) check_ok((call), #call)

#define SIZES                                                                                      \
    "\"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 4, "                   \
    "\"num_attention_heads\": 8, \"vocab_size\": 1000"
#define LLAMA   "{\"model_type\": \"llama\", " SIZES
#define MISTRAL "{\"model_type\": \"mistral\", " SIZES ", \"num_key_value_heads\": 2"
#define QWEN2   "{\"model_type\": \"qwen2\", " SIZES ", \"num_key_value_heads\": 2"
#define QWEN3   "{\"model_type\": \"qwen3\", " SIZES ", \"num_key_value_heads\": 2"

static enum uly_status parse(const char *text, struct uly_model_config *c)
{
    return uly_config_json_parse(text, (int64_t)strlen(text), "config.json", c);
}

static struct uly_model_config read_ok(const char *text)
{
    struct uly_model_config c;
    check_ok(parse(text, &c), text);
    return c;
}

/* ------------------------------------------------------------------ families */

static void test_defaults(void **state)
{
    (void)state;
    struct uly_model_config c = read_ok("{\"architectures\": [\"MistralForCausalLM\"], "
                                        "\"model_type\": \"mistral\", " SIZES "}");
    assert_string_equal(c.architecture, "MistralForCausalLM");
    assert_int_equal(c.num_key_value_heads, 8);
    assert_int_equal(c.head_dim, 8);
    assert_int_equal(c.max_position_embeddings, 131072);
    assert_int_equal(c.sliding_window, 4096); /* no key at all is a window */
    assert_int_equal(c.bos_token_id, 1);
    assert_int_equal(c.eos_token_id, 2);
    assert_false(c.qkv_bias || c.o_bias || c.mlp_bias || c.qk_norm || c.tie_word_embeddings);
    assert_true(c.rms_norm_eps == 1e-6 && c.rope.theta == 10000);

    c = read_ok(QWEN2 "}");
    assert_string_equal(c.architecture, "Qwen2ForCausalLM");
    assert_int_equal(c.head_dim, 8);
    assert_int_equal(c.max_position_embeddings, 32768);
    assert_int_equal(c.sliding_window, 0);
    assert_int_equal(c.bos_token_id, -1);
    assert_int_equal(c.eos_token_id, -1);
    assert_true(c.qkv_bias && !c.o_bias && !c.mlp_bias && !c.qk_norm);

    c = read_ok(QWEN3 "}");
    assert_string_equal(c.architecture, "Qwen3ForCausalLM");
    assert_int_equal(c.head_dim, 128); /* not hidden_size / heads */
    assert_int_equal(c.max_position_embeddings, 32768);
    assert_true(c.qk_norm && !c.qkv_bias && !c.o_bias);
    c = read_ok(QWEN3 ", \"attention_bias\": true, \"head_dim\": 20}");
    assert_true(c.qkv_bias && c.o_bias && !c.mlp_bias && c.head_dim == 20);

    c = read_ok("{\"model_type\": \"qwen2\", " SIZES ", \"num_key_value_heads\": null}");
    assert_int_equal(c.num_key_value_heads, 8); /* null is as many as heads, no key 32 */
    c = read_ok("{\"model_type\": \"qwen3\", \"hidden_size\": 60, \"intermediate_size\": 96, "
                "\"num_hidden_layers\": 4, \"num_attention_heads\": 64, \"vocab_size\": 1000}");
    assert_int_equal(c.num_key_value_heads, 32);
}

/* "101": layers 0 and 2 have the window. */
static void check_windows(const char *text, int64_t window, const char *layers)
{
    struct uly_model_config c = read_ok(text);
    for (int l = 0; l < c.num_hidden_layers; l++)
        if (uly_config_window(&c, l) != (layers[l] == '1' ? window : 0))
            fail_msg("%s: layer %d has window %d", text, l, (int)uly_config_window(&c, l));
    int n = 0;
    for (const char *l = layers; *l; l++)
        n += *l == '1';
    assert_int_equal(uly_config_window_layers(&c), n);
    assert_int_equal(c.sliding_window, n > 0 ? window : 0);
}

#define FULL    "\"full_attention\""
#define SLIDING "\"sliding_attention\""

static void test_windows(void **state)
{
    (void)state;
    check_windows(LLAMA ", \"sliding_window\": null}", 0, "0000");
    check_windows(LLAMA ", \"sliding_window\": 8, \"use_sliding_window\": false}", 0, "0000");
    check_windows(MISTRAL ", \"sliding_window\": null}", 0, "0000");
    check_windows(MISTRAL ", \"sliding_window\": 17}", 17, "1111");
    check_windows(MISTRAL "}", 4096, "1111");
    check_windows(QWEN2 ", \"sliding_window\": 17, \"max_window_layers\": 1}", 0, "0000");
    check_windows(QWEN2 ", \"sliding_window\": 17, \"max_window_layers\": 1, "
                        "\"use_sliding_window\": true}",
                  17, "0111");
    check_windows(QWEN2 ", \"use_sliding_window\": true, \"max_window_layers\": 0}", 4096, "1111");
    check_windows(QWEN2 ", \"use_sliding_window\": true}", 0, "0000"); /* from layer 28 on */
    check_windows(QWEN2 ", \"use_sliding_window\": true, \"sliding_window\": null, "
                        "\"max_window_layers\": 0}",
                  0, "0000");
    check_windows(QWEN3 ", \"use_sliding_window\": true, \"sliding_window\": 5, "
                        "\"max_window_layers\": 0, \"layer_types\": [" SLIDING ", " FULL
                        ", " SLIDING ", " FULL "]}",
                  5, "1010");
    check_windows(QWEN3 ", \"layer_types\": [" FULL ", " FULL ", " FULL ", " FULL "]}", 0, "0000");
    check_windows(MISTRAL ", \"sliding_window\": 6, \"layer_types\": [" SLIDING ", " SLIDING
                          ", " SLIDING ", " SLIDING "]}",
                  6, "1111");
}

static void test_flops(void **state)
{
    (void)state;
    struct uly_model_config c = read_ok(MISTRAL ", \"sliding_window\": null}");
    struct uly_model_config w = read_ok(MISTRAL ", \"sliding_window\": 10}");
    for (int64_t S = 1; S <= 40; S += 13) {
        double seen = 0; /* keys that all queries see, in the convention of S^2 / 2 */
        seen = S <= 10 ? (double)S * (double)S / 2 : 10 * (double)S - 50;
        double less = uly_model_flops_per_token(&c, S) - uly_model_flops_per_token(&w, S);
        double want = 12 * 64 * 4 * ((double)S / 2 - seen / (double)S);
        assert_true(fabs(less - want) <= 1e-9 * uly_model_flops_per_token(&c, S));
    }
}

/* ------------------------------------------------------------------ rope */

struct rope_case {
    const char *settings; /* inside the rope object, without type and theta */
    const char *type;
    int64_t max_positions, length;
    double f[4], scale; /* what Transformers 5.24 has, in float32 */
};

static const struct rope_case rope_cases[] = {
    {"\"factor\": 2.5", "linear", 2048, 9, {0.4, 0.04, 0.004, 0.0004}, 1},
    {"\"factor\": 2.0", "dynamic", 1024, 1024, {1, 0.1, 0.01, 0.001}, 1},
    {"\"factor\": 2.0",
     "dynamic",
     1024,
     3000,
     {1, 0.05903911590576172, 0.003485617460682988, 0.0002057877863990143},
     1},
    {"\"factor\": 4, \"original_max_position_embeddings\": 512",
     "yarn",
     2048,
     3000,
     {1, 0.0625, 0.0025, 0.00025},
     1.138629436111989},
    {"\"factor\": null, \"original_max_position_embeddings\": 512, \"beta_fast\": null, "
     "\"beta_slow\": 0",
     "yarn",
     2048,
     1,
     {1, 0.0625, 0.0025, 0.00025},
     1.138629436111989},
    {"\"factor\": 4, \"original_max_position_embeddings\": 512, \"mscale\": 0.707, "
     "\"mscale_all_dim\": 1.2, \"truncate\": false, \"beta_fast\": 20, \"beta_slow\": 2",
     "yarn",
     2048,
     1,
     {1, 0.0707545056939125, 0.0025, 0.00025},
     0.941403523749669},
    {"\"factor\": 4, \"original_max_position_embeddings\": 4, \"attention_factor\": 0.75",
     "yarn",
     2048,
     1,
     {1, 0.025, 0.0025, 0.00025},
     0.75},
    {"\"short_factor\": [1, 1, 1, 1.5], \"long_factor\": [1, 2, 3, 4.5], "
     "\"original_max_position_embeddings\": 1024",
     "longrope",
     4096,
     1024,
     {1, 0.1, 0.01, 0.0006666666666666667},
     1.0954451150103321},
    {"\"short_factor\": [1, 1, 1, 1.5], \"long_factor\": [1, 2, 3, 4.5], "
     "\"original_max_position_embeddings\": 1024",
     "longrope",
     4096,
     1025,
     {1, 0.05, 0.0033333333333333335, 0.00022222222222222223},
     1.0954451150103321},
};

static void check_rope(const struct rope_case *r, const char *text)
{
    struct uly_model_config c = read_ok(text);
    double f[4] = {-1, -1, -1, -1}; /* no frequency is negative */
    assert_string_equal(uly_rope_type_name(c.rope.type), r->type);
    uly_rope_inv_freq(&c, r->length, f);
    for (int i = 0; i < 4; i++)
        if (!(fabs(f[i] / r->f[i] - 1) <= 3e-7))
            fail_msg("%s: frequency %d is %.9g, not %.9g", text, i, f[i], r->f[i]);
    assert_true(fabs(uly_rope_scale(&c) - r->scale) <= 1e-12);
}

static void test_rope_types(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rope_cases / sizeof *rope_cases; i++) {
        const struct rope_case *r = &rope_cases[i];
        char text[1024];
        snprintf(text, sizeof text,
                 LLAMA ", \"max_position_embeddings\": %d, \"rope_theta\": 1e4, \"rope_scaling\": "
                       "{\"type\": \"%s\", %s}}",
                 (int)r->max_positions, r->type, r->settings);
        check_rope(r, text);
        snprintf(text, sizeof text,
                 MISTRAL ", \"max_position_embeddings\": %d, \"rope_theta\": 5, \"rope_parameters\""
                         ": {\"rope_type\": \"%s\", \"rope_theta\": 10000.0, %s}}",
                 (int)r->max_positions, r->type, r->settings);
        check_rope(r, text);
    }
    /* the key beside the object beats the one in it */
    struct uly_model_config c =
        read_ok(LLAMA ", \"original_max_position_embeddings\": 77, \"rope_scaling\": {\"type\": "
                      "\"yarn\", \"factor\": 2, \"original_max_position_embeddings\": 512}}");
    assert_int_equal(c.rope.original_max_position_embeddings, 77);
    assert_true(c.rope.beta_fast == 32 && c.rope.beta_slow == 1 && c.rope.truncate);
}

static void test_tables(void **state)
{
    (void)state;
    struct uly_model_config c = read_ok(LLAMA ", \"max_position_embeddings\": 10, "
                                              "\"rope_scaling\": {\"type\": \"dynamic\", "
                                              "\"factor\": 2}}");
    assert_int_equal(uly_rope_limit(&c), 10);
    assert_int_equal(uly_rope_max_tables(&c, 32), 3); /* 11 + 11 + 10 */
    assert_int_equal(uly_rope_max_tables(&c, 33), 4);
    assert_int_equal(uly_rope_table_of(&c, 10, 7), 0);
    assert_int_equal(uly_rope_table_of(&c, 11, 0), 1);
    assert_int_equal(uly_rope_table_of(&c, 11, 2), 3);
    c.rope.type = ULY_ROPE_LONGROPE;
    c.rope.original_max_position_embeddings = 20;
    assert_int_equal(uly_rope_max_tables(&c, 1000), 2);
    assert_int_equal(uly_rope_table_of(&c, 20, 7), 0);
    assert_int_equal(uly_rope_table_of(&c, 21, 7), 1);
    c.rope.type = ULY_ROPE_YARN;
    assert_int_equal(uly_rope_limit(&c), 0);
    assert_int_equal(uly_rope_max_tables(&c, 1000), 1);
    assert_int_equal(uly_rope_table_of(&c, 1000, 7), 0);
}

/* ------------------------------------------------------------------ refusals */

struct refused {
    const char *text;
    enum uly_status status;
    const char *says;
};

#define ROPE(settings) LLAMA ", \"rope_scaling\": {" settings "}}"

static const struct refused refusals[] = {
    {MISTRAL ", \"sliding_window\": 0}", ULY_ERR_INVALID, "sliding_window|0|null for none"},
    {MISTRAL ", \"sliding_window\": -1}", ULY_ERR_INVALID, "sliding_window|-1"},
    {MISTRAL ", \"use_sliding_window\": false}", ULY_ERR_UNSUPPORTED,
     "use_sliding_window|MistralForCausalLM|null for none"},
    {MISTRAL ", \"sliding_window\": 5, \"layer_types\": [" FULL ", " SLIDING ", " SLIDING
             ", " SLIDING "]}",
     ULY_ERR_UNSUPPORTED, "[0] is full_attention|every layer"},
    {MISTRAL ", \"sliding_window\": null, \"layer_types\": [" FULL ", " SLIDING ", " FULL ", " FULL
             "]}",
     ULY_ERR_UNSUPPORTED, "[1] is sliding_attention|no \"sliding_window\""},
    {QWEN2 ", \"layer_types\": [" FULL ", " FULL ", " FULL ", " SLIDING "]}", ULY_ERR_UNSUPPORTED,
     "[3] is sliding_attention|use_sliding_window"},
    {QWEN2 ", \"layer_types\": [" FULL ", \"linear_attention\", " FULL ", " FULL "]}",
     ULY_ERR_UNSUPPORTED, "[1]|linear_attention|full_attention and sliding_attention"},
    {QWEN2 ", \"layer_types\": [" FULL "]}", ULY_ERR_FORMAT, "layer_types|num_hidden_layers (4)"},
    {QWEN2 ", \"layer_types\": 3}", ULY_ERR_FORMAT, "layer_types"},
    {QWEN2 ", \"attention_bias\": false}", ULY_ERR_UNSUPPORTED, "attention_bias|always has"},
    {MISTRAL ", \"attention_bias\": true}", ULY_ERR_UNSUPPORTED, "attention_bias|no such bias"},
    {QWEN3 ", \"mlp_bias\": true}", ULY_ERR_UNSUPPORTED, "mlp_bias|no such bias"},
    {QWEN3 ", \"use_mrope\": true}", ULY_ERR_UNSUPPORTED, "use_mrope|another family"},
    {QWEN2 ", \"attention_dropout\": 0.5}", ULY_ERR_UNSUPPORTED, "attention_dropout|0.5"},
    {"{\"model_type\": \"qwen2\", " SIZES "}", ULY_ERR_INVALID,
     "num_attention_heads 8|num_key_value_heads 32|family's default"},
    {ROPE("\"factor\": 4"), ULY_ERR_UNSUPPORTED, "default has no factor|4"},
    {ROPE("\"rope_type\": \"default\", \"factor\": 2.5"), ULY_ERR_UNSUPPORTED, "2.5"},
    {ROPE("\"type\": \"dynamic\""), ULY_ERR_FORMAT, "dynamic needs \"factor\""},
    {ROPE("\"type\": \"yarn\""), ULY_ERR_FORMAT, "yarn needs \"factor\""},
    {ROPE("\"type\": \"linear\", \"factor\": null"), ULY_ERR_FORMAT, "linear needs \"factor\""},
    {ROPE("\"type\": \"linear\", \"factor\": 0.5"), ULY_ERR_INVALID, "factor 0.5"},
    {ROPE("\"type\": \"yarn\", \"factor\": 2, \"beta_fast\": 1, \"beta_slow\": 2"), ULY_ERR_INVALID,
     "beta_fast 1|beta_slow 2"},
    {ROPE("\"type\": \"yarn\", \"factor\": 2, \"attention_factor\": 0"), ULY_ERR_INVALID,
     "attention_factor 0"},
    {ROPE("\"type\": \"yarn\", \"factor\": 2, \"mscale\": -1"), ULY_ERR_INVALID, "mscale -1"},
    {ROPE("\"type\": \"yarn\", \"factor\": 2, \"rope_theta\": 1"), ULY_ERR_INVALID, "rope_theta 1"},
    {ROPE("\"type\": \"yarn\", \"factor\": 2, \"original_max_position_embeddings\": 0"),
     ULY_ERR_INVALID, "original_max_position_embeddings 0"},
    {ROPE("\"type\": \"longrope\", \"long_factor\": [1, 1, 1, 1]"), ULY_ERR_FORMAT,
     "longrope needs \"short_factor\""},
    {ROPE("\"type\": \"longrope\", \"long_factor\": [1, 1, 1], \"short_factor\": [1, 1, 1, 1]"),
     ULY_ERR_FORMAT, "long_factor|4 numbers|it has 3"},
    {ROPE("\"type\": \"longrope\", \"long_factor\": [1, 1, 0, 1], \"short_factor\": [1, 1, 1, 1]"),
     ULY_ERR_INVALID, "long_factor|[2] 0"},
    {ROPE("\"type\": \"longrope\", \"long_factor\": [1, 1, \"1\", 1], \"short_factor\": [1, 1, 1, "
          "1]"),
     ULY_ERR_FORMAT, "long_factor|[2]"},
    {ROPE("\"type\": \"default\", \"mrope_section\": [1, 2, 1]"), ULY_ERR_UNSUPPORTED,
     "mrope_section"},
    {ROPE("\"rope_type\": \"proportional\", \"factor\": 2"), ULY_ERR_UNSUPPORTED,
     "proportional|longrope are"},
};

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        struct uly_model_config c = {.head_dim = 12345};
        enum uly_status status = parse(refusals[i].text, &c);
        if (status != refusals[i].status)
            fail_msg("%s: status %d, message \"%s\"", refusals[i].text, (int)status,
                     uly_error_message());
        test_error_says("config.json");
        test_error_says(refusals[i].says);
        assert_int_equal(c.head_dim, 12345);
    }
}

/* ------------------------------------------------------------------ overrides */

static struct uly_config_json keep(const char *text)
{
    struct uly_config_json kept = {NULL, (int64_t)strlen(text)};
    OK(ULY_ALLOC(&kept.text, kept.bytes + 1));
    memcpy(kept.text, text, (size_t)kept.bytes);
    return kept;
}

static void check_override(const char *before, const char *overrides, const char *after)
{
    struct uly_config_json kept = keep(before);
    struct uly_model_config c, again;
    check_ok(uly_config_json_override(&kept, overrides, &c), overrides);
    assert_int_equal(kept.bytes, strlen(after));
    assert_memory_equal(kept.text, after, strlen(after));
    OK(uly_config_json_parse(kept.text, kept.bytes, "again", &again));
    assert_memory_equal(&c.rope.theta, &again.rope.theta, sizeof c.rope.theta);
    uly_config_json_clear(&kept);
}

#define YARN "\"rope_type\": \"yarn\", \"factor\": 4.0"

static void test_overrides(void **state)
{
    (void)state;
    /* in place; a key that is not there comes first */
    check_override(
        LLAMA ",\n \"max_position_embeddings\" : 2048, \"z\": [1, {\"rms_norm_eps\": 1}]}",
        "{\"max_position_embeddings\": 8192}",
        LLAMA ",\n \"max_position_embeddings\" : 8192, \"z\": [1, {\"rms_norm_eps\": 1}]}");
    check_override("{ \"model_type\": \"llama\", " SIZES "}", "{\"rms_norm_eps\": 1e-5}",
                   "{\n  \"rms_norm_eps\": 1e-5, \"model_type\": \"llama\", " SIZES "}");
    /* theta where it counts, in every spelling */
    check_override(LLAMA ", \"rope_theta\": 10000.0}", "{\"rope_theta\": 1e6}",
                   LLAMA ", \"rope_theta\": 1000000.0}");
    check_override(LLAMA
                   ", \"rope_parameters\": {\"rope_theta\": 1e4, \"rope_type\": \"default\"}}",
                   "{\"rope_theta\": 1e6}",
                   LLAMA ", \"rope_parameters\": {\"rope_theta\": 1000000.0, \"rope_type\": "
                         "\"default\"}}");
    /* a theta and a length before extension that are not given stay */
    check_override(LLAMA
                   ", \"rope_parameters\": {\"rope_theta\": 5e5, \"rope_type\": \"default\"}, "
                   "\"max_position_embeddings\": 2048}",
                   "{\"rope_scaling\": {" YARN "}, \"max_position_embeddings\": 8192}",
                   LLAMA ", \"rope_parameters\": {" YARN ", \"rope_theta\": 500000.0, "
                         "\"original_max_position_embeddings\": 2048}, "
                         "\"max_position_embeddings\": 8192}");
    check_override(LLAMA ", \"rope_scaling\": null, \"rope_theta\": 5e5, "
                         "\"max_position_embeddings\": 2048}",
                   "{\"rope_scaling\": {" YARN ", \"original_max_position_embeddings\": 1024}}",
                   LLAMA ", \"rope_scaling\": {" YARN
                         ", \"original_max_position_embeddings\": 1024}"
                         ", \"rope_theta\": 5e5, \"max_position_embeddings\": 2048}");
    check_override(LLAMA ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}}",
                   "{\"rope_parameters\": null, \"rope_theta\": 77}",
                   "{\n  \"rope_theta\": 77,\"model_type\": \"llama\", " SIZES
                   ", \"rope_scaling\": {\"rope_type\": \"default\"}}");
    check_override(MISTRAL ", \"sliding_window\": 4096}", "{\"sliding_window\": null}",
                   MISTRAL ", \"sliding_window\": null}");
}

static void test_overrides_refused(void **state)
{
    (void)state;
    static const struct refused cases[] = {
        {"{\"hidden_size\": 3}", ULY_ERR_USAGE, "hidden_size|which weights"},
        {"{\"tie_word_embeddings\": true}", ULY_ERR_USAGE, "tie_word_embeddings"},
        {"{\"dtype\": \"float32\"}", ULY_ERR_USAGE, "--save-dtype"},
        {"{\"max_position_embedding\": 3}", ULY_ERR_USAGE,
         "\"max_position_embedding\" is not|max_position_embeddings"},
        {"{\"rope_scaling\": {}, \"rope_parameters\": {}}", ULY_ERR_USAGE, "one of the two"},
        {"{\"rope_scaling\": 3}", ULY_ERR_USAGE, "rope_scaling|an object or null"},
        {"[3]", ULY_ERR_USAGE, "an array"},
        {"rope_theta=3", ULY_ERR_USAGE, "--config-overrides:1"},
        {"{\"rope_theta\": -3}", ULY_ERR_INVALID, "config.json with|rope_theta -3"},
        {"{\"sliding_window\": 64}", ULY_ERR_UNSUPPORTED, "sliding_window|LlamaForCausalLM"},
        {"{\"rope_scaling\": {\"factor\": 4}}", ULY_ERR_UNSUPPORTED, "default has no factor"},
        {"{\"original_max_position_embeddings\": 64}", ULY_ERR_USAGE,
         "no effect on rope type default"},
        {"{\"use_sliding_window\": true}", ULY_ERR_USAGE, "use_sliding_window|no effect"},
        {"{\"rope_scaling\": {\"type\": \"ntk\"}}", ULY_ERR_UNSUPPORTED, "\"ntk\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct uly_config_json kept = keep(LLAMA "}");
        struct uly_model_config c = {.head_dim = 12345};
        enum uly_status status = uly_config_json_override(&kept, cases[i].text, &c);
        if (status != cases[i].status)
            fail_msg("%s: status %d, message \"%s\"", cases[i].text, (int)status,
                     uly_error_message());
        test_error_says(cases[i].says);
        assert_int_equal(c.head_dim, 12345);
        assert_memory_equal(kept.text, LLAMA "}", sizeof LLAMA); /* as it was */
        uly_config_json_clear(&kept);
    }
}

/* A key that this folder's other keys leave without effect. */
static void test_overrides_without_effect(void **state)
{
    (void)state;
#define SWITCHED ", \"use_sliding_window\": true, \"sliding_window\": 8"
#define LISTED                                                                                     \
    ", \"layer_types\": [\"full_attention\", \"full_attention\", \"full_attention\", "             \
    "\"sliding_attention\"]"
    static const struct {
        const char *before, *overrides, *says; /* NULL: taken */
    } cases[] = {
        {QWEN2 "}", "{\"sliding_window\": 64}", "sliding_window|no effect|use_sliding_window"},
        {QWEN2 "}", "{\"sliding_window\": null}", NULL},
        {QWEN2 SWITCHED "}", "{\"sliding_window\": 64}", "no effect"}, /* from layer 28 on */
        {QWEN2 SWITCHED "}", "{\"sliding_window\": 64, \"max_window_layers\": 1}", NULL},
        {QWEN2 SWITCHED LISTED "}", "{\"sliding_window\": 64}", NULL},
        {QWEN2 SWITCHED LISTED "}", "{\"max_window_layers\": 1}", "max_window_layers|layer_types"},
        {QWEN2 SWITCHED LISTED "}", "{\"max_window_layers\": 1, \"layer_types\": null}", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct uly_config_json kept = keep(cases[i].before);
        struct uly_model_config c;
        enum uly_status want = cases[i].says ? ULY_ERR_USAGE : ULY_OK;
        enum uly_status status = uly_config_json_override(&kept, cases[i].overrides, &c);
        if (status != want)
            fail_msg("%s: status %d, message \"%s\"", cases[i].overrides, (int)status,
                     uly_error_message());
        if (cases[i].says)
            test_error_says(cases[i].says);
        uly_config_json_clear(&kept);
    }
}

/* ------------------------------------------------------------------ mutations */

/* What is read must be sound, and what is overridden must count. */
static void check_sound(const char *text, int64_t bytes, int *n_read, int *n_overridden)
{
    struct uly_model_config c, changed;
    double f[ULY_MAX_HEAD_DIM / 2];
    if (uly_config_json_parse(text, bytes, "config.json", &c) != ULY_OK)
        return;
    ++*n_read;
    assert_true(c.head_dim > 0 && c.head_dim <= ULY_MAX_HEAD_DIM && c.head_dim % 2 == 0);
    assert_true(c.num_hidden_layers <= ULY_MAX_LAYERS && c.sliding_window >= 0);
    assert_true(uly_rope_scale(&c) > 0 && isfinite(uly_rope_scale(&c)));
    for (int64_t length = 1; length < 1000000; length *= 90) {
        uly_rope_inv_freq(&c, length, f);
        for (int i = 0; i < c.head_dim / 2; i++)
            assert_true(f[i] >= 0 && isfinite(f[i]));
    }
    struct uly_config_json kept = {NULL, bytes};
    OK(ULY_ALLOC(&kept.text, bytes + 1));
    memcpy(kept.text, text, (size_t)bytes);
    if (uly_config_json_override(&kept, "{\"rope_theta\": 7, \"max_position_embeddings\": 99}",
                                 &changed) == ULY_OK) {
        ++*n_overridden;
        assert_true(changed.rope.theta == 7 && changed.max_position_embeddings == 99);
        assert_int_equal(changed.hidden_size, c.hidden_size);
    }
    uly_config_json_clear(&kept);
}

static void test_mutations(void **state)
{
    (void)state;
    static const char *const texts[] = {
        QWEN3 ", \"use_sliding_window\": true, \"sliding_window\": 5, \"max_window_layers\": 2, "
              "\"head_dim\": 4, \"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1, "
              "1.5], \"long_factor\": [2, 3.5], \"original_max_position_embeddings\": 64}, "
              "\"rope_theta\": 100.0}",
        MISTRAL ", \"max_position_embeddings\": 256, \"rope_parameters\": {\"rope_type\": "
                "\"yarn\", \"factor\": 4.0, \"beta_fast\": 8, \"mscale\": 0.7, \"mscale_all_dim\": "
                "0.6, \"truncate\": false, \"rope_theta\": 100.0}}",
        LLAMA ", \"max_position_embeddings\": 256, \"rope_scaling\": {\"rope_type\": "
              "\"dynamic\", \"factor\": 4.0}, \"rope_theta\": 100.0}"};
    static const char letters[] = "0123456789,:[]{}\"-.eE \\truefalsn";
    int n_read = 0, n_overridden = 0;
    for (uint64_t round = 0; round < 6000; round++) {
        const char *text = texts[round % 3];
        int64_t bytes = (int64_t)strlen(text);
        char *mutated = malloc((size_t)bytes); /* exactly as long as it is, for the sanitizer */
        memcpy(mutated, text, (size_t)bytes);
        for (uint64_t c = 0; c < 1 + round % 2; c++) {
            uint64_t place = uly_random_below(9, round, 2 * c, (uint64_t)bytes);
            uint64_t letter = uly_random_below(9, round, 2 * c + 1, sizeof letters - 1);
            mutated[place] = letters[letter];
        }
        check_sound(mutated, bytes, &n_read, &n_overridden);
        free(mutated);
    }
    assert_true(n_read > 300 && n_read < 6000 && n_overridden > 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),  cmocka_unit_test(test_windows),
        cmocka_unit_test(test_flops),     cmocka_unit_test(test_rope_types),
        cmocka_unit_test(test_tables),    cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_overrides), cmocka_unit_test(test_overrides_refused),
        cmocka_unit_test(test_mutations), cmocka_unit_test(test_overrides_without_effect),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
