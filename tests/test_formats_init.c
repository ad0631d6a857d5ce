/* SPDX-License-Identifier: MIT
 *
 * A new model folder from a config.json: values of the weights, the tokenizer, what is refused.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/random.h"
#include "checkpoint/init_model.h"
#include "checkpoint/model_folder.h"
#include "formats/safetensors.h"
#include "formats/tokenizer.h"
#include "support/folder.h"

#define OK(call) assert_int_equal((call), ULY_OK)

static const char config_text[] =
    "{\n  \"architectures\": [\"LlamaForCausalLM\"],\n  \"model_type\": \"llama\",\n"
    "  \"hidden_size\": 24,\n  \"intermediate_size\": 40,\n  \"num_hidden_layers\": 2,\n"
    "  \"num_attention_heads\": 6,\n  \"num_key_value_heads\": 2,\n  \"vocab_size\": %d,\n"
    "  \"bos_token_id\": 1,\n  \"eos_token_id\": 2,\n  \"attention_bias\": true,\n"
    "  \"initializer_range\": 0.03,\n  \"my own key\": [1, 2.50, null],\n"
    "  \"torch_dtype\": \"%s\"\n}\n";

static void write_config(const char *folder, int vocab, const char *dtype)
{
    char text[1024];
    snprintf(text, sizeof text, config_text, vocab, dtype);
    test_write_text(folder, "given.json", text);
}

static void read_all(const struct uly_safetensors *st, const char *name, float *out, int64_t n)
{
    const struct uly_safetensors_entry *e = uly_safetensors_find(st, name);
    assert_non_null(e);
    assert_int_equal(e->count, n);
    OK(uly_safetensors_read(st, e, ULY_DTYPE_F32, 0, n, out));
}

/* Moments of the embedding (300 x 24 values of normal(0, 0.03)), and the exact value of some. */
static void check_values(const struct uly_safetensors *st, uint64_t seed)
{
    static float values[300 * 24];
    double sum = 0, squares = 0;
    read_all(st, "model.embed_tokens.weight", values, 300 * 24);
    for (int i = 0; i < 300 * 24; i++) {
        assert_true(isfinite(values[i]));
        sum += (double)values[i];
        squares += (double)values[i] * (double)values[i];
    }
    assert_true(fabs(sum / 7200) < 5 * 0.03 / sqrt(7200));
    assert_true(fabs(sqrt(squares / 7200) - 0.03) < 0.03 * 5 / sqrt(2 * 7200.0));
    for (int i = 0; i < 100; i++)
        assert_float_equal(values[i], (float)(0.03 * uly_random_normal(seed, 0, (uint64_t)i)), 0);
    read_all(st, "model.layers.1.self_attn.k_proj.bias", values, 8);
    for (int i = 0; i < 8; i++)
        assert_float_equal(values[i], 0, 0);
    read_all(st, "model.layers.0.post_attention_layernorm.weight", values, 24);
    for (int i = 0; i < 24; i++)
        assert_float_equal(values[i], 1, 0);
}

static void test_init(void **state)
{
    (void)state;
    char folder[TEST_PATH], config[TEST_PATH], out[TEST_PATH], path[TEST_PATH];
    struct uly_init_result result = {0};
    struct uly_safetensors *st;
    struct uly_tokenizer *tokenizer;
    test_folder_make(folder);
    write_config(folder, 300, "float32");
    test_path(config, folder, "given.json");
    test_path(out, folder, "model");
    OK(uly_init_model(out, config, NULL, 11, &result));
    /* embedding and head 2 * 7200, two layers, the last norm */
    int64_t layer = 2 * 24 * 24 + 2 * 8 * 24 + 2 * 24 + 2 * 8 + 3 * 24 * 40 + 2 * 24;
    assert_int_equal(result.n_params, 2 * 7200 + 2 * layer + 24);
    assert_true(result.has_tokenizer);
    OK(uly_safetensors_open(test_path(path, out, "model.safetensors"), &st));
    check_values(st, 11);
    uly_safetensors_close(st);
    OK(uly_tokenizer_open(out, &tokenizer));
    assert_int_equal(uly_tokenizer_eos_id(tokenizer), 2);
    uly_tokenizer_close(tokenizer);
    size_t n;
    char *before = test_read(folder, "given.json", &n), *after = test_read(out, "config.json", &n);
    assert_string_equal(before, after); /* the dtype is the same: not a byte changes */
    free(before);
    free(after);
    assert_false(test_exists(out, ".tokenizer"));
    assert_false(test_exists(out, ".writing"));

    uint64_t hash = test_folder_hash(out); /* a model is never written over */
    assert_int_equal(uly_init_model(out, config, NULL, 12, &result), ULY_ERR_INVALID);
    test_error_says("holds a model already|config.json");
    assert_true(test_folder_hash(out) == hash);
    char again[TEST_PATH], other[TEST_PATH];
    OK(uly_init_model(test_path(again, folder, "again"), config, NULL, 11, &result));
    assert_true(test_folder_hash(again) == hash); /* the same seed, the same bytes */
    OK(uly_init_model(test_path(other, folder, "other"), config, NULL, 12, &result));
    assert_true(test_folder_hash(other) != hash);
    test_folder_remove(folder);
}

/* No room for the bytes; another dtype; a tokenizer of the user's own. */
static void test_variants(void **state)
{
    (void)state;
    char folder[TEST_PATH], config[TEST_PATH], out[TEST_PATH], path[TEST_PATH];
    struct uly_init_result result = {0};
    struct uly_safetensors *st;
    test_folder_make(folder);
    test_path(config, folder, "given.json");
    write_config(folder, 257, "bfloat16");
    OK(uly_init_model(test_path(out, folder, "small"), config, NULL, 1, &result));
    assert_false(result.has_tokenizer);
    assert_false(uly_tokenizer_exists(out));
    OK(uly_safetensors_open(test_path(path, out, "model.safetensors"), &st));
    assert_string_equal(uly_safetensors_find(st, "model.norm.weight")->dtype, "BF16");
    uly_safetensors_close(st);

    const char *data = getenv("ULY_TEST_DATA");
    char golden[TEST_PATH], tokenizer[TEST_PATH];
    assert_non_null(data);
    test_path(golden, data, "tokenizer");
    test_path(path, golden, "llama3");
    test_path(tokenizer, path, "tokenizer.json");
    write_config(folder, 700, "float16");
    OK(uly_init_model(test_path(out, folder, "own"), config, tokenizer, 1, &result));
    assert_true(result.has_tokenizer && test_exists(out, "tokenizer_config.json"));
    assert_false(test_exists(out, "golden.json"));
    write_config(folder, 600, "float32"); /* its highest id is 600 */
    assert_int_equal(uly_init_model(test_path(out, folder, "tight"), config, tokenizer, 1, &result),
                     ULY_ERR_INVALID);
    test_error_says("600|vocab_size");
    assert_false(test_exists(folder, "tight"));
    assert_int_equal(uly_init_model(out, config, "/no/such/tokenizer.json", 1, &result),
                     ULY_ERR_IO);
    test_error_says("/no/such/tokenizer.json|No such file");
    assert_false(test_exists(folder, "tight"));
    assert_int_equal(uly_init_model(out, "/no/such/config.json", NULL, 1, &result), ULY_ERR_IO);
    assert_false(test_exists(folder, "tight"));
    test_folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_init),
                                       cmocka_unit_test(test_variants)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
