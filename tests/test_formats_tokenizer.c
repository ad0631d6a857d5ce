/* SPDX-License-Identifier: MIT
 *
 * tokenizer.json: ids against the tokenizers library (tests/golden/tokenizer, made by tools/golden/make_tokenizer_golden.py),
 * what is refused, texts that are not UTF-8, time on long runs, and the byte tokenizer of init.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "formats/json.h"
#include "formats/pretokenizer.h"
#include "formats/tokenizer.h"
#include "formats/utf8.h"
#include "support/folder.h"

#define OK(call) assert_int_equal((call), ULY_OK)

static void golden_folder(char *path, const char *name)
{
    char root[TEST_PATH];
    const char *data = getenv("ULY_TEST_DATA");
    assert_non_null(data);
    test_path(path, test_path(root, data, "tokenizer"), name);
}

/* ------------------------------------------------------------------ against the library */

static void check_ids(struct uly_tokenizer *t, const char *text, int64_t bytes, bool special,
                      const json_t *expected, const char *hex)
{
    struct uly_ids ids = {0};
    OK(uly_tokenizer_encode(t, text, bytes, special, NULL, NULL, &ids));
    bool same = ids.n == (int64_t)json_array_size(expected);
    for (int64_t i = 0; same && i < ids.n; i++)
        same = ids.list[i] == json_integer_value(json_array_get(expected, (size_t)i));
    if (!same)
        fail_msg("other ids for the text %s", hex);
    uly_ids_clear(&ids);
}

static void check_round_trip(struct uly_tokenizer *t, const char *text, int64_t bytes)
{
    struct uly_ids ids = {0};
    char *back;
    int64_t n;
    OK(uly_tokenizer_encode(t, text, bytes, false, NULL, NULL, &ids));
    OK(uly_tokenizer_decode(t, ids.list, ids.n, &back, &n));
    assert_int_equal(n, bytes);
    assert_memory_equal(back, text, (size_t)bytes);
    uly_free(back);
    uly_ids_clear(&ids);
}

static void check_case(const char *name, bool round_trip)
{
    char folder[TEST_PATH], path[TEST_PATH];
    struct uly_tokenizer *t;
    json_t *golden, *row;
    size_t i;
    golden_folder(folder, name);
    OK(uly_tokenizer_open(folder, &t));
    OK(uly_json_read_object(test_path(path, folder, "golden.json"), 1 << 30, &golden));
    const json_t *rows = json_object_get(golden, "cases");
    assert_true(json_array_size(rows) > 200);
    json_array_foreach(rows, i, row)
    {
        const char *hex = json_string_value(json_object_get(row, "hex"));
        int64_t bytes = (int64_t)strlen(hex) / 2;
        char *text = malloc((size_t)bytes + 1);
        for (int64_t k = 0; k < bytes; k++) {
            char pair[3] = {hex[2 * k], hex[2 * k + 1], '\0'};
            text[k] = (char)strtol(pair, NULL, 16);
        }
        check_ids(t, text, bytes, false, json_object_get(row, "ids"), hex);
        check_ids(t, text, bytes, true, json_object_get(row, "special"), hex);
        if (round_trip)
            check_round_trip(t, text, bytes);
        free(text);
    }
    json_decref(golden);
    uly_tokenizer_close(t);
}

static void test_library(void **state)
{
    (void)state;
    check_case("gpt2", true);
    check_case("prefix", false);
    check_case("llama3", true);
    check_case("qwen2", true);
}

static void test_special_ids(void **state)
{
    (void)state;
    char folder[TEST_PATH];
    struct uly_tokenizer *t;
    golden_folder(folder, "llama3");
    OK(uly_tokenizer_open(folder, &t));
    assert_int_equal(uly_tokenizer_bos_id(t), 0);
    assert_int_equal(uly_tokenizer_eos_id(t), 1);
    assert_int_equal(uly_tokenizer_token_id(t, "sequence"), 330); /* in the vocabulary too */
    assert_int_equal(uly_tokenizer_token_id(t, "\xe6\x97\xa5\xe6\x9c\xac"), 600);
    assert_int_equal(uly_tokenizer_token_id(t, "no such token"), -1);
    assert_int_equal(uly_tokenizer_vocab_size(t), 601);
    uly_tokenizer_close(t);
    golden_folder(folder, "prefix"); /* no tokenizer_config.json */
    OK(uly_tokenizer_open(folder, &t));
    assert_int_equal(uly_tokenizer_eos_id(t), -1);
    uly_tokenizer_close(t);
}

/* ------------------------------------------------------------------ odd texts */

static void open_gpt2(struct uly_tokenizer **t)
{
    char folder[TEST_PATH];
    golden_folder(folder, "gpt2");
    OK(uly_tokenizer_open(folder, t));
}

static void test_invalid_utf8(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "\xff",
        "a\x80 b",
        "the\xc3",
        "the \xe2\x82",
        "\xed\xa0\x80",
        "\xf4\x90\x80\x80",
        "\xc0\x80",
        "\xe0\x80\x80 the the",
        "\xfe\xff<|end|>\xff the",
    };
    struct uly_tokenizer *t;
    open_gpt2(&t);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        check_round_trip(t, texts[i], (int64_t)strlen(texts[i]));
    uint64_t x = 1; /* random bytes */
    char noise[300];
    for (int round = 0; round < 50; round++) {
        for (size_t i = 0; i < sizeof noise; i++) {
            x = x * 6364136223846793005u + 1442695040888963407u;
            noise[i] = (char)(x >> 56);
        }
        check_round_trip(t, noise, (int64_t)sizeof noise);
    }
    struct uly_ids ids = {
        0}; /* a bad byte is the token of that byte, between the usual tokens of the rest */
    OK(uly_tokenizer_encode(t, " the\xff the", 9, false, NULL, NULL, &ids));
    assert_int_equal(ids.n, 3);
    assert_int_equal(ids.list[0], ids.list[2]);
    uly_ids_clear(&ids);
    uly_tokenizer_close(t);
}

static void test_utf8_reader(void **state)
{
    (void)state;
    int64_t n_valid = 0;
    for (int64_t c = 0; c < 0x110000; c++) { /* every code point there and back */
        unsigned char text[4];
        int64_t back = -1;
        int n = uly_utf8_write(c, text);
        if (uly_utf8_read(text, n, &back)) {
            assert_int_equal(back, c);
            n_valid++;
            for (int cut = 1; cut < n; cut++)
                assert_int_equal(uly_utf8_read(text, cut, &back), 0);
        }
    }
    assert_int_equal(n_valid, 0x110000 - 0x800); /* all but the surrogates */
}

static enum uly_status count_calls(void *context, int64_t done, int64_t bytes)
{
    int64_t *calls = context;
    assert_true(done > 0 && done <= bytes);
    if (++calls[0] == calls[1])
        ULY_FAIL(ULY_ERR_INVALID, "stopped");
    return ULY_OK;
}

/* Runs without a place to split them: quadratic work would take hours here. */
static void test_long_runs(void **state)
{
    (void)state;
    static const char *const units[] = {"a", " ", "\n", "ab", "the", " the", "\xe6\x97\xa5", "1"};
    enum { BYTES = 3000000 };
    char *text = malloc(BYTES);
    struct uly_tokenizer *t;
    open_gpt2(&t);
    for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
        size_t n = strlen(units[u]);
        for (size_t i = 0; i < BYTES; i++)
            text[i] = units[u][i % n];
        check_round_trip(t, text, BYTES);
    }
    struct uly_ids ids = {0};
    int64_t calls[2] = {0, -1};
    OK(uly_tokenizer_encode(t, text, BYTES, false, count_calls, calls, &ids));
    assert_true(calls[0] >= 1);
    uly_ids_clear(&ids);
    memset(text, ' ', BYTES); /* many pieces, many reports; the second abandons the work */
    for (size_t i = 0; i < BYTES; i += 2)
        text[i] = 'x';
    calls[0] = 0;
    calls[1] = 2;
    assert_int_equal(uly_tokenizer_encode(t, text, BYTES, false, count_calls, calls, &ids),
                     ULY_ERR_INVALID);
    assert_int_equal(calls[0], 2);
    uly_ids_clear(&ids);
    uly_tokenizer_close(t);
    free(text);
}

/* ------------------------------------------------------------------ refusals */

/* A minimal tokenizer: two bytes and a merge; the arguments replace its parts. */
static enum uly_status parse_with(const char *model_extra, const char *pre, const char *rest)
{
    char text[2048];
    struct uly_tokenizer *t = NULL;
    int n = snprintf(text, sizeof text,
                     "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, "
                     "\"merges\": [\"a b\"]%s}, \"pre_tokenizer\": %s%s}",
                     model_extra, pre, rest);
    enum uly_status status = uly_tokenizer_parse(text, n, NULL, 0, "tokenizer.json", &t);
    if (status == ULY_OK)
        uly_tokenizer_close(t);
    return status;
}

static const char plain[] = "{\"type\": \"ByteLevel\", \"use_regex\": false}";

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *model, *pre, *rest, *says;
    } cases[] = {
        {", \"byte_fallback\": true", plain, "", "byte_fallback"},
        {", \"dropout\": 0.1", plain, "", "dropout 0.1"},
        {", \"unk_token\": \"a\"", plain, "", "unk_token"},
        {", \"continuing_subword_prefix\": \"##\"", plain, "", "continuing_subword_prefix"},
        {", \"end_of_word_suffix\": \"</w>\"", plain, "", "end_of_word_suffix"},
        {"", "null", "", "pre-tokenizer"},
        {"", "{\"type\": \"Metaspace\"}", "", "Metaspace|not supported yet"},
        {"", "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Digits\"}]}", "", "Digits"},
        {"", "{\"type\": \"Sequence\", \"pretokenizers\": []}", "", "ByteLevel"},
        {"", "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"x\"}, \"behavior\": \"Removed\"}",
         "", "Removed"},
        {"", "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"(\"}, \"behavior\": \"Isolated\"}",
         "", "regular expression"},
        {"", "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"x*\"}, \"behavior\": \"Isolated\"}",
         "", "empty text"},
        {"", "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"x\"}, \"behavior\": \"Isolated\"}",
         "", "without ByteLevel"},
        {"", plain, ", \"normalizer\": {\"type\": \"NFC\"}", "normalizer NFC|not supported yet"},
        {"", plain, ", \"decoder\": {\"type\": \"Metaspace\"}", "decoder Metaspace"},
        {"", plain, ", \"post_processor\": {\"type\": \"BertProcessing\"}", "BertProcessing"},
        {"", plain, ", \"added_tokens\": [{\"id\": 3, \"content\": \"<x>\", \"lstrip\": true}]",
         "<x>|lstrip"},
        {"", plain, ", \"added_tokens\": [{\"id\": 3, \"content\": \"\"}]", "added token"},
        {"", plain, ", \"added_tokens\": [{\"id\": 3, \"content\": \"ab\"}]", "ab|3|2"},
        {"", plain,
         ", \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": "
         "{\"id\": \"<x>\"}}, {\"Sequence\": {\"id\": \"A\"}}], \"special_tokens\": {\"<x>\": "
         "{\"ids\": [9]}}}",
         "9|beyond the vocabulary"},
    };
    OK(parse_with("", plain, ""));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        enum uly_status status = parse_with(cases[i].model, cases[i].pre, cases[i].rest);
        if (status != ULY_ERR_UNSUPPORTED && status != ULY_ERR_FORMAT)
            fail_msg("case %zu (%s) gave status %d", i, cases[i].says, (int)status);
        test_error_says(cases[i].says);
    }
}

static void check_text(const char *text, enum uly_status expected, const char *says)
{
    struct uly_tokenizer *t = NULL;
    assert_int_equal(
        uly_tokenizer_parse(text, (int64_t)strlen(text), NULL, 0, "tokenizer.json", &t), expected);
    test_error_says(says);
}

static void test_broken_files(void **state)
{
    (void)state;
    check_text("", ULY_ERR_FORMAT, "tokenizer.json:1");
    check_text("{\n  \"model\": [}", ULY_ERR_FORMAT, "tokenizer.json:2");
    check_text("[]", ULY_ERR_FORMAT, "an array");
    check_text("{}", ULY_ERR_FORMAT, "no \"model\"");
    check_text("{\"model\": {\"type\": \"WordPiece\"}}", ULY_ERR_UNSUPPORTED, "WordPiece");
    check_text("{\"model\": {\"vocab\": {\"a\": 0, \"b\": 0}, \"merges\": []}}", ULY_ERR_FORMAT,
               "two tokens|0");
    check_text("{\"model\": {\"vocab\": {\"a\": -1}, \"merges\": []}}", ULY_ERR_FORMAT, "\"a\"");
    check_text("{\"model\": {\"vocab\": {\"a\": 99999999999}, \"merges\": []}}", ULY_ERR_FORMAT,
               "\"a\"");
    check_text("{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [\"a a\"]}}", ULY_ERR_FORMAT,
               "merge 0|not in the vocabulary");
    check_text("{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [\"aa\"]}}", ULY_ERR_FORMAT,
               "not two tokens");
    check_text("{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [[\"a\"]]}}", ULY_ERR_FORMAT,
               "neither");
    check_text("{\"model\": {\"vocab\": {\"\xe2\x96\x81\": 0}, \"merges\": [\"\xe2\x96\x81 a\"]}}",
               ULY_ERR_UNSUPPORTED, "byte alphabet");
    char folder[TEST_PATH];
    struct uly_tokenizer *t = NULL;
    test_folder_make(folder);
    assert_false(uly_tokenizer_exists(folder));
    assert_int_equal(uly_tokenizer_open(folder, &t), ULY_ERR_INVALID);
    test_error_says("no tokenizer.json|input_ids");
    test_folder_remove(folder);
}

static void check_config(const char *config, const char *says)
{
    static const char text[] =
        "{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": []}, \"pre_tokenizer\": {\"type\": "
        "\"ByteLevel\"}, \"added_tokens\": [{\"id\": 1, \"content\": \"<e>\", \"special\": true}]}";
    struct uly_tokenizer *t = NULL;
    enum uly_status status = uly_tokenizer_parse(text, sizeof text - 1, config,
                                                 (int64_t)strlen(config), "tokenizer.json", &t);
    if (!says) {
        assert_int_equal(status, ULY_OK);
        assert_int_equal(uly_tokenizer_eos_id(t), 1);
        uly_tokenizer_close(t);
        return;
    }
    assert_true(status == ULY_ERR_UNSUPPORTED || status == ULY_ERR_FORMAT);
    test_error_says(says);
}

static void test_tokenizer_config(void **state)
{
    (void)state;
    check_config("{\"eos_token\": \"<e>\"}", NULL);
    check_config("{\"eos_token\": {\"content\": \"<e>\"}, \"bos_token\": null}", NULL);
    check_config("{\"eos_token\": \"<none>\"}", "eos_token|<none>");
    check_config("{\"eos_token\": 3}", "eos_token|string");
    check_config("{\"eos_token\": \"<e>\", \"add_eos_token\": true}", "add_eos_token");
    check_config("{\"add_bos_token\": true}", "add_bos_token");
    check_config("{\"added_tokens_decoder\": {\"7\": {\"content\": \"<new>\"}}}", "<new>|7");
    check_config("{", "tokenizer_config.json:1");
}

static void test_patterns(void **state)
{
    (void)state;
    static const char *const refused[] = {"\\d+",   "\\w",    "\\p{Lu}", "\\P{L}", "[[:alpha:]]",
                                          "[a&&b]", "^a",     "a$",      "(?<=a)", "a{1,2}+",
                                          "[\\S]",  "(?m:a)", "\\bx",    "\\"};
    char *out;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        assert_int_equal(uly_pattern_translate(refused[i], "x", &out), ULY_ERR_UNSUPPORTED);
        test_error_says("regular expression|not supported yet");
    }
    OK(uly_pattern_translate("a(?!b)[^x\\]]+|\\.{1,3}", "x", &out));
    assert_string_equal(out, "a(?!b)[^x\\]]+|\\.{1,3}");
    uly_free(out);
}

/* The k-th allocation of opening and encoding fails, for many k: an error each time, and the next try works. */
static void test_allocation_failures(void **state)
{
    (void)state;
    char folder[TEST_PATH];
    golden_folder(folder, "llama3");
    enum uly_status status = ULY_ERR_NO_MEMORY;
    long k = 0;
    while (status != ULY_OK) {
        struct uly_tokenizer *t = NULL;
        struct uly_ids ids = {0};
        uly_alloc_fail_at(++k);
        status = uly_tokenizer_open(folder, &t);
        if (status == ULY_OK)
            status = uly_tokenizer_encode(t, " the sequence<|end|>", 20, true, NULL, NULL, &ids);
        uly_alloc_fail_at(0);
        uly_ids_clear(&ids);
        uly_tokenizer_close(t);
    }
    assert_true(k > 10);
}

/* ------------------------------------------------------------------ the byte tokenizer */

static void check_byte_tokenizer(int64_t vocab, int64_t bos, int64_t eos, int64_t pad)
{
    char folder[TEST_PATH];
    struct uly_tokenizer *t;
    struct uly_ids ids = {0};
    char bytes[256];
    test_folder_make(folder);
    OK(uly_byte_tokenizer_write(folder, vocab, bos, eos, pad, 4096));
    OK(uly_tokenizer_open(folder, &t));
    assert_int_equal(uly_tokenizer_bos_id(t), bos);
    assert_int_equal(uly_tokenizer_eos_id(t), eos);
    assert_true(uly_tokenizer_vocab_size(t) <= vocab);
    for (int i = 0; i < 256; i++)
        bytes[i] = (char)i;
    OK(uly_tokenizer_encode(t, bytes, 256, true, NULL, NULL, &ids));
    assert_int_equal(ids.n, 256);
    int64_t next = 0;
    for (int i = 0; i < 256; i++, next++) { /* the ids that are not special, in order */
        while (next == bos || next == eos || next == pad)
            next++;
        assert_int_equal(ids.list[i], next);
    }
    ids.n = 0;
    if (eos >= 0 && eos != bos) {
        OK(uly_tokenizer_encode(t, "a</s>b", 6, false, NULL, NULL, &ids));
        assert_int_equal(ids.n, 3);
        assert_int_equal(ids.list[1], eos);
    }
    uly_ids_clear(&ids);
    uly_tokenizer_close(t);
    test_folder_remove(folder);
}

static void test_byte_tokenizer(void **state)
{
    (void)state;
    check_byte_tokenizer(256, -1, -1, -1);
    check_byte_tokenizer(258, 1, 2, -1);
    check_byte_tokenizer(259, 0, 1, 2);
    check_byte_tokenizer(258, 256, 257, 257);
    check_byte_tokenizer(257, 7, 7, 7);
    check_byte_tokenizer(50257, 50256, 50256, -1);
    check_byte_tokenizer(32000, 1, 31999, 0);
    assert_false(uly_byte_tokenizer_fits(257, 1, 2, -1));
    assert_false(uly_byte_tokenizer_fits(255, -1, -1, -1));
    assert_false(uly_byte_tokenizer_fits(300, 1, 300, -1));
    assert_int_equal(uly_byte_tokenizer_write(".", 257, 1, 2, -1, 1), ULY_ERR_INVALID);
    test_error_says("257|256 bytes|2 special");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_library),        cmocka_unit_test(test_special_ids),
        cmocka_unit_test(test_invalid_utf8),   cmocka_unit_test(test_utf8_reader),
        cmocka_unit_test(test_long_runs),      cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_broken_files),   cmocka_unit_test(test_tokenizer_config),
        cmocka_unit_test(test_patterns),       cmocka_unit_test(test_allocation_failures),
        cmocka_unit_test(test_byte_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
