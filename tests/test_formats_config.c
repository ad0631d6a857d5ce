/* SPDX-License-Identifier: MIT
 *
 * config.json: what is read, what is refused and how, the file kept byte for byte, and mutated files.
 */
#include <float.h>
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

#define OK(call) assert_int_equal((call), ULY_OK)

#define HEAD "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", "
#define SIZES                                                                                      \
    "\"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 3, "                   \
    "\"num_attention_heads\": 8, \"vocab_size\": 1000"

static enum uly_status parse(const char *text, struct uly_model_config *c)
{
    return uly_config_json_parse(text, (int64_t)strlen(text), "config.json", c);
}

/* ------------------------------------------------------------------ reading */

static void test_defaults(void **state)
{
    (void)state;
    struct uly_model_config c;
    OK(parse(HEAD SIZES "}", &c));
    assert_string_equal(c.architecture, "LlamaForCausalLM");
    assert_string_equal(c.model_type, "llama");
    assert_int_equal(c.hidden_size, 64);
    assert_int_equal(c.intermediate_size, 96);
    assert_int_equal(c.num_hidden_layers, 3);
    assert_int_equal(c.num_attention_heads, 8);
    assert_int_equal(c.num_key_value_heads, 8);
    assert_int_equal(c.head_dim, 8);
    assert_int_equal(c.vocab_size, 1000);
    assert_int_equal(c.max_position_embeddings, 2048);
    assert_true(c.rms_norm_eps == 1e-6 && c.initializer_range == 0.02);
    assert_false(c.tie_word_embeddings || c.qkv_bias || c.o_bias || c.mlp_bias);
    assert_int_equal(c.rope.type, ULY_ROPE_DEFAULT);
    assert_true(c.rope.theta == 10000);
    assert_int_equal(c.bos_token_id, 1);
    assert_int_equal(c.eos_token_id, 2);
    assert_int_equal(c.pad_token_id, -1);
    assert_int_equal(c.dtype, ULY_DTYPE_F32);
}

static void test_everything_set(void **state)
{
    (void)state;
    struct uly_model_config c;
    OK(parse(HEAD SIZES
             ", \"num_key_value_heads\": 2, \"head_dim\": 16, \"attention_bias\": true, "
             "\"mlp_bias\": true, \"tie_word_embeddings\": true, \"rms_norm_eps\": 1e-5, "
             "\"initializer_range\": 0.5, \"bos_token_id\": null, \"eos_token_id\": [7, 9], "
             "\"pad_token_id\": -1, \"dtype\": \"bfloat16\", \"torch_dtype\": \"float16\", "
             "\"max_position_embeddings\": 131072.0, \"rope_theta\": 500000.0, "
             "\"hidden_act\": \"silu\", \"attention_dropout\": 0.0, \"pretraining_tp\": 1, "
             "\"rope_scaling\": null, \"quantization_config\": null, "
             "\"layer_types\": [\"full_attention\", \"full_attention\", \"full_attention\"], "
             "\"unknown\": {\"a\": [1]}}",
             &c));
    assert_int_equal(c.num_key_value_heads, 2);
    assert_int_equal(c.head_dim, 16);
    assert_true(c.qkv_bias && c.o_bias && c.mlp_bias && c.tie_word_embeddings);
    assert_true(c.rms_norm_eps == 1e-5 && c.initializer_range == 0.5);
    assert_int_equal(c.bos_token_id, -1);
    assert_int_equal(c.eos_token_id, 7);
    assert_int_equal(c.pad_token_id, -1);
    assert_int_equal(c.dtype, ULY_DTYPE_BF16);
    assert_int_equal(c.max_position_embeddings, 131072);
    assert_true(c.rope.theta == 500000);
    OK(parse("{\"model_type\": \"llama\", " SIZES "}", &c)); /* the type alone is enough */
    assert_string_equal(c.architecture, "LlamaForCausalLM");
    OK(parse("{\"model_type\": \"llama\", \"hidden_size\": 2, \"intermediate_size\": 1, "
             "\"num_hidden_layers\": 1, \"num_attention_heads\": 1, \"vocab_size\": 1}",
             &c)); /* ids of the family's defaults are beyond this vocabulary */
    assert_int_equal(c.bos_token_id, -1);
    assert_int_equal(c.eos_token_id, -1);
}

/* The same rotation in all its spellings. */
static void test_rope_spellings(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "\"rope_theta\": 5e5, \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, "
        "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
        "\"original_max_position_embeddings\": 8192}",
        "\"rope_theta\": 500000, \"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8, "
        "\"low_freq_factor\": 1, \"high_freq_factor\": 4, "
        "\"original_max_position_embeddings\": 8192}",
        "\"rope_parameters\": {\"rope_type\": \"llama3\", \"rope_theta\": 500000.0, \"factor\": "
        "8.0, "
        "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
        "\"original_max_position_embeddings\": 8192}",
        "\"rope_parameters\": {\"rope_type\": \"default\"}, \"rope_scaling\": {\"rope_type\": "
        "\"llama3\", \"rope_theta\": 500000, \"factor\": 8, \"low_freq_factor\": 1, "
        "\"high_freq_factor\": 4}, \"max_position_embeddings\": 8192",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        char text[1024];
        struct uly_model_config c;
        snprintf(text, sizeof text, "%s%s, %s}", HEAD, SIZES, texts[i]);
        OK(parse(text, &c));
        assert_int_equal(c.rope.type, ULY_ROPE_LLAMA3);
        assert_true(c.rope.theta == 500000 && c.rope.factor == 8);
        assert_true(c.rope.low_freq_factor == 1 && c.rope.high_freq_factor == 4);
        assert_int_equal(c.rope.original_max_position_embeddings, 8192);
    }
    struct uly_model_config c;
    OK(parse(HEAD SIZES ", \"rope_scaling\": {}, \"rope_parameters\": {\"rope_theta\": 77}}", &c));
    assert_int_equal(c.rope.type, ULY_ROPE_DEFAULT);
    assert_true(c.rope.theta == 77);
}

/* Llama 3.1's numbers; three dimensions worked by hand, one in each band of wavelengths. */
static void test_inv_freq(void **state)
{
    (void)state;
    struct uly_model_config c = {.head_dim = 128};
    double f[64];
    c.rope = (struct uly_rope_config){.type = ULY_ROPE_DEFAULT, .theta = 500000};
    uly_rope_inv_freq(&c, 1, f);
    assert_true(f[0] == 1);
    assert_true(fabs(f[32] / 1.4142135623730951e-3 - 1) < 1e-14);
    assert_true(fabs(f[63] / (pow(500000, 1 / 64.0) / 500000) - 1) < 1e-13);
    double plain[64];
    memcpy(plain, f, sizeof f);
    c.rope = (struct uly_rope_config){.type = ULY_ROPE_LLAMA3,
                                      .theta = 500000,
                                      .factor = 8,
                                      .low_freq_factor = 1,
                                      .high_freq_factor = 4,
                                      .original_max_position_embeddings = 8192};
    uly_rope_inv_freq(&c, 1, f);
    assert_true(f[0] == plain[0] && f[28] == plain[28]); /* wavelength 1956 < 8192 / 4 */
    assert_true(fabs(f[63] / (plain[63] / 8) - 1) < 1e-15);
    double wavelength = 2 * 3.14159265358979323846 / plain[32]; /* 4443: between 2048 and 8192 */
    double smooth = (8192 / wavelength - 1) / 3;
    assert_true(fabs(f[32] / ((1 - smooth) * plain[32] / 8 + smooth * plain[32]) - 1) < 1e-13);
    for (int i = 1; i < 64; i++)
        assert_true(f[i] < f[i - 1]);
}

static void test_flops(void **state)
{
    (void)state;
    struct uly_model_config c;
    OK(parse(HEAD SIZES ", \"num_key_value_heads\": 2}", &c));
    /* q, o 64*64; k, v 64*16; three of 64*96; head 1000*64; attention 3 layers * 64 * S */
    double matrices = 3 * (2 * 4096.0 + 2 * 1024 + 3 * 6144);
    assert_true(uly_model_flops_per_token(&c, 100) == 6 * (matrices + 64000 + 3 * 64 * 100.0));
    c.hidden_size = 1 << 24; /* no overflow at absurd sizes */
    c.intermediate_size = 1 << 24;
    c.num_hidden_layers = 1 << 16;
    assert_true(uly_model_flops_per_token(&c, INT64_C(1) << 40) > 1e20);
}

/* ------------------------------------------------------------------ refusals */

struct refused {
    const char *text;
    enum uly_status status;
    const char *says;
};

static const struct refused refusals[] = {
    {"", ULY_ERR_FORMAT, "config.json:1"},
    {"{\n\"a\": 1,\n\"b\" 2}", ULY_ERR_FORMAT, "config.json:3:"},
    {"[]", ULY_ERR_FORMAT, "an array"},
    {"{}", ULY_ERR_FORMAT, "architectures|model_type"},
    {HEAD "\"model_type\": \"llama\"}", ULY_ERR_FORMAT, "config.json:1|duplicate"},
    {"{\"architectures\": \"LlamaForCausalLM\"}", ULY_ERR_FORMAT, "list of names"},
    {"{\"architectures\": [\"LlamaForCausalLM\"], " SIZES "}", ULY_ERR_FORMAT,
     "no \"model_type\"|\"llama\""},
    {"{\"architectures\": [\"GPT2LMHeadModel\"], \"model_type\": \"gpt2\"}", ULY_ERR_UNSUPPORTED,
     "GPT2LMHeadModel|LlamaForCausalLM"},
    {"{\"architectures\": [\"LlamaForSequenceClassification\"], \"model_type\": \"llama\"}",
     ULY_ERR_UNSUPPORTED, "LlamaForSequenceClassification|LlamaForCausalLM"},
    {"{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"mistral\"}",
     ULY_ERR_UNSUPPORTED, "mistral|llama"},
    {"{\"model_type\": \"gemma\"}", ULY_ERR_UNSUPPORTED, "gemma|LlamaForCausalLM|Qwen3ForCausalLM"},
    {HEAD SIZES ", \"quantization_config\": {\"bits\": 4}}", ULY_ERR_UNSUPPORTED,
     "quantization_config|unquantised"},
    {HEAD SIZES ", \"hidden_act\": \"gelu\"}", ULY_ERR_UNSUPPORTED, "hidden_act|gelu|silu"},
    {HEAD SIZES ", \"attention_dropout\": 0.1}", ULY_ERR_UNSUPPORTED, "attention_dropout|0.1"},
    {HEAD SIZES ", \"partial_rotary_factor\": 0.5}", ULY_ERR_UNSUPPORTED,
     "partial_rotary_factor|0.5"},
    {HEAD SIZES ", \"rope_parameters\": {\"partial_rotary_factor\": 0.5}}", ULY_ERR_UNSUPPORTED,
     "partial_rotary_factor"},
    {HEAD SIZES ", \"pretraining_tp\": 2}", ULY_ERR_UNSUPPORTED, "pretraining_tp|2"},
    {HEAD SIZES ", \"layer_types\": [\"full_attention\", \"sliding_attention\"]}", ULY_ERR_FORMAT,
     "layer_types|num_hidden_layers (3)"},
    {HEAD SIZES ", \"layer_types\": [\"full_attention\", \"sliding_attention\", "
                "\"full_attention\"]}",
     ULY_ERR_UNSUPPORTED, "layer_types|[1] is sliding_attention|no window"},
    {HEAD SIZES ", \"sliding_window\": 64}", ULY_ERR_UNSUPPORTED,
     "sliding_window|64|LlamaForCausalLM has no window"},
    {HEAD SIZES ", \"rope_scaling\": {\"type\": \"ntk\", \"factor\": 4}}", ULY_ERR_UNSUPPORTED,
     "rope type \"ntk\"|default, linear, dynamic, yarn, llama3 and longrope"},
    {HEAD SIZES ", \"rope_scaling\": {\"type\": \"su\", \"factor\": 4}}", ULY_ERR_UNSUPPORTED,
     "su|longrope"},
    {HEAD SIZES ", \"rope_scaling\": {\"rope_type\": \"linear\"}}", ULY_ERR_FORMAT,
     "linear|factor"},
    {HEAD SIZES ", \"embedding_multiplier\": 12.0}", ULY_ERR_UNSUPPORTED,
     "embedding_multiplier|12.0|another family"},
    {HEAD SIZES ", \"final_logit_softcapping\": 30}", ULY_ERR_UNSUPPORTED,
     "final_logit_softcapping|30"},
    {HEAD SIZES ", \"num_local_experts\": 8}", ULY_ERR_UNSUPPORTED, "num_local_experts|8"},
    {HEAD SIZES ", \"head_dim\": 514}", ULY_ERR_INVALID, "head_dim|514|512"},
    {HEAD SIZES ", \"rope_scaling\": 3}", ULY_ERR_FORMAT, "rope_scaling|object"},
    {HEAD SIZES ", \"rope_parameters\": {\"full_attention\": {\"rope_type\": \"default\"}}}",
     ULY_ERR_UNSUPPORTED, "full_attention"},
    {HEAD SIZES ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, "
                "\"high_freq_factor\": 4}}",
     ULY_ERR_FORMAT, "llama3|low_freq_factor"},
    {HEAD SIZES ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 0.5, "
                "\"low_freq_factor\": 1, \"high_freq_factor\": 4}}",
     ULY_ERR_INVALID, "factor 0.5"},
    {HEAD SIZES ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, "
                "\"low_freq_factor\": 4, \"high_freq_factor\": 4}}",
     ULY_ERR_INVALID, "low_freq_factor 4"},
    {HEAD SIZES ", \"rope_theta\": -1}", ULY_ERR_INVALID, "rope_theta -1"},
    {HEAD SIZES ", \"rope_theta\": \"10000\"}", ULY_ERR_FORMAT, "rope_theta|a number|a string"},
    {HEAD SIZES ", \"num_key_value_heads\": 3}", ULY_ERR_INVALID, "8|num_key_value_heads 3"},
    {HEAD SIZES ", \"num_key_value_heads\": 16}", ULY_ERR_INVALID, "num_key_value_heads 16"},
    {HEAD SIZES ", \"num_key_value_heads\": 0}", ULY_ERR_INVALID, "num_key_value_heads|0"},
    {HEAD SIZES ", \"head_dim\": 7}", ULY_ERR_INVALID, "head_dim 7|even"},
    {HEAD SIZES ", \"head_dim\": -4}", ULY_ERR_INVALID, "head_dim|-4"},
    {HEAD SIZES ", \"max_position_embeddings\": 0}", ULY_ERR_INVALID, "max_position_embeddings"},
    {HEAD SIZES ", \"max_position_embeddings\": 9223372036854775807}", ULY_ERR_INVALID,
     "max_position_embeddings"},
    {HEAD SIZES ", \"rms_norm_eps\": -1e-6}", ULY_ERR_INVALID, "rms_norm_eps"},
    {HEAD SIZES ", \"initializer_range\": 2}", ULY_ERR_INVALID, "initializer_range 2"},
    {HEAD SIZES ", \"eos_token_id\": 1000}", ULY_ERR_INVALID, "eos_token_id|1000|vocab_size"},
    {HEAD SIZES ", \"eos_token_id\": \"2\"}", ULY_ERR_FORMAT, "eos_token_id"},
    {HEAD SIZES ", \"tie_word_embeddings\": 1}", ULY_ERR_FORMAT, "tie_word_embeddings|an integer"},
    {HEAD SIZES ", \"dtype\": \"float64\"}", ULY_ERR_UNSUPPORTED, "dtype|float64"},
    {HEAD SIZES ", \"torch_dtype\": 16}", ULY_ERR_FORMAT, "torch_dtype|a string"},
    {HEAD "\"hidden_size\": 64}", ULY_ERR_FORMAT, "\"intermediate_size\" is missing"},
    {HEAD "\"hidden_size\": 0}", ULY_ERR_INVALID, "hidden_size|0"},
    {HEAD "\"hidden_size\": 6.5}", ULY_ERR_FORMAT, "hidden_size|an integer"},
    {HEAD "\"hidden_size\": 99999999999}", ULY_ERR_INVALID, "hidden_size|99999999999"},
    {HEAD "\"hidden_size\": 65, \"intermediate_size\": 96, \"num_hidden_layers\": 3, "
          "\"num_attention_heads\": 8, \"vocab_size\": 1000}",
     ULY_ERR_INVALID, "hidden_size 65|8"},
    {HEAD "\"hidden_size\": 8, \"intermediate_size\": 96, \"num_hidden_layers\": 3, "
          "\"num_attention_heads\": 8, \"vocab_size\": 1000}",
     ULY_ERR_INVALID, "head_dim 1"},
    {HEAD "\"hidden_size\": 64, \"intermediate_size\": 96, \"vocab_size\": 3000000000}",
     ULY_ERR_INVALID, "vocab_size|3000000000"},
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
        assert_int_equal(c.head_dim, 12345); /* the output is set on success alone */
    }
}

/* ------------------------------------------------------------------ writing */

static void check_written(const char *before, enum uly_dtype dtype, const char *after)
{
    char folder[TEST_PATH], in[TEST_PATH], out[TEST_PATH];
    struct uly_model_config c;
    struct uly_config_json kept;
    test_folder_make(folder);
    test_write_text(folder, "in.json", before);
    OK(uly_config_json_read(test_path(in, folder, "in.json"), &c, &kept));
    OK(uly_config_json_write(&kept, dtype, test_path(out, folder, "out.json")));
    uly_config_json_clear(&kept);
    char *text = test_read(folder, "out.json", NULL);
    assert_string_equal(text, after);
    free(text);
    OK(uly_config_json_read(out, &c, NULL));
    assert_int_equal(c.dtype, dtype);
    test_folder_remove(folder);
}

static void test_writing(void **state)
{
    (void)state;
    /* nothing but the value moves: order, blanks, number formats, escapes, unknown keys, no newline at the end */
    check_written(
        HEAD SIZES ",\n\t\"x\": 1.50e-05,  \"torch_dtype\" :\n\"float32\", \"y\": \"\\u00e9\"}",
        ULY_DTYPE_BF16,
        HEAD SIZES ",\n\t\"x\": 1.50e-05,  \"torch_dtype\" :\n\"bfloat16\", \"y\": \"\\u00e9\"}");
    check_written(HEAD SIZES ", \"dtype\": \"bfloat16\"}\n", ULY_DTYPE_BF16,
                  HEAD SIZES ", \"dtype\": \"bfloat16\"}\n");
    check_written(HEAD SIZES ", \"dtype\": null}", ULY_DTYPE_F16,
                  HEAD SIZES ", \"dtype\": \"float16\"}");
    check_written(HEAD SIZES ", \"dtype\": \"float32\", \"torch_dtype\": \"float32\"}",
                  ULY_DTYPE_F16,
                  HEAD SIZES ", \"dtype\": \"float16\", \"torch_dtype\": \"float16\"}");
    /* keys inside other objects and values that look like the key stay */
    check_written(HEAD SIZES ", \"x\": {\"dtype\": \"int8\"}, \"z\": \"dtype\", \"w\": [\"dtype\", "
                             "\"\\\"}\"], \"dtype\": \"float32\"}",
                  ULY_DTYPE_BF16,
                  HEAD SIZES ", \"x\": {\"dtype\": \"int8\"}, \"z\": \"dtype\", \"w\": [\"dtype\", "
                             "\"\\\"}\"], \"dtype\": \"bfloat16\"}");
    check_written("{\"architectures\": null, \"model_type\": \"llama\", " SIZES "}", ULY_DTYPE_F32,
                  "{\n  \"torch_dtype\": \"float32\",\"architectures\": null, \"model_type\": "
                  "\"llama\", " SIZES "}");
}

/* ------------------------------------------------------------------ mutations */

static void test_mutations(void **state)
{
    (void)state;
    static const char text[] = HEAD SIZES
        ", \"num_key_value_heads\": 2, \"head_dim\": 16, \"eos_token_id\": [7, 9], "
        "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": "
        "1.0, \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192}, "
        "\"rms_norm_eps\": 1e-05, \"tie_word_embeddings\": true, \"dtype\": \"float32\"}";
    static const char letters[] = "0123456789,:[]{}\"-.eE \\truefalsn";
    enum { BYTES = sizeof text - 1, ROUNDS = 5000 };
    int n_read = 0;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        char *mutated =
            malloc(BYTES); /* exactly as long as it is: the sanitizer sees reads beyond */
        memcpy(mutated, text, BYTES);
        int64_t bytes = BYTES;
        int n_changes = 1 + (int)uly_random_below(9, round, 0, 3);
        for (int c = 1; c <= n_changes; c++) {
            uint64_t place = uly_random_below(9, round, (uint64_t)(4 * c), BYTES);
            uint64_t value = uly_random_bits(9, round, (uint64_t)(4 * c + 1));
            uint64_t kind = uly_random_below(9, round, (uint64_t)(4 * c + 2), 16);
            if (kind == 0)
                bytes = (int64_t)place;
            else
                mutated[place] = kind == 1 ? (char)value : letters[value % (sizeof letters - 1)];
        }
        struct uly_model_config c;
        enum uly_status status = uly_config_json_parse(mutated, bytes, "config.json", &c);
        if (status == ULY_OK) { /* then everything that is computed from it must be sound */
            n_read++;
            assert_true(c.num_attention_heads % c.num_key_value_heads == 0);
            assert_true(c.head_dim > 0 && c.head_dim % 2 == 0 && c.hidden_size > 0);
            assert_true(c.rope.theta > 0 && c.vocab_size > 0 && c.num_hidden_layers > 0);
            double *f = malloc((size_t)c.head_dim / 2 * sizeof *f);
            uly_rope_inv_freq(&c, 1, f);
            for (int i = 0; i < c.head_dim / 2; i++)
                assert_true(f[i] >= 0 && f[i] <= DBL_MAX);
            free(f);
        } else {
            assert_true(uly_error_message()[0] != '\0');
        }
        free(mutated);
    }
    assert_true(n_read > 50 && n_read < ROUNDS); /* the loop sees both ends */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),       cmocka_unit_test(test_everything_set),
        cmocka_unit_test(test_rope_spellings), cmocka_unit_test(test_inv_freq),
        cmocka_unit_test(test_flops),          cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_writing),        cmocka_unit_test(test_mutations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
