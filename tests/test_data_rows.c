/* SPDX-License-Identifier: MIT
 *
 * Files and rows: what is taken, what is passed over, and every way in which a row or file is refused, each with the file
 * and the line in the message.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "support/data_support.h"

static struct uly_dataset data;

static void test_txt(void **state)
{
    struct uly_data_options options = data_options(64);
    (void)state;
    data_good(&options, &data, data_file("a.txt", "\xef\xbb\xbfhi\r\n\ry\r"), NULL);
    assert_int_equal(data.n_pieces, 1);
    /* the mark is gone, CR LF is LF, a lone CR stays; BOS once, EOS appended */
    assert_string_equal(data_piece_text(&data, 0),
                        "1>107 107>108 108>13 13>16 16>124 124>16 16>2 2>-100");
    assert_int_equal(data.counts.files, 1);
    assert_int_equal(data.counts.rows, 1);
    assert_int_equal(data.counts.documents, 1);
    assert_int_equal(data.counts.tokens, 8);
    assert_int_equal(data.counts.valid_tokens, 7);
    assert_int_equal(data.documents[0].line, 0);
    uly_dataset_clear(&data);
}

static void test_jsonl(void **state)
{
    struct uly_data_options options = data_options(64);
    (void)state;
    const char *a =
        data_file("a.jsonl", "\xef\xbb\xbf{\"text\": \"a\"}\r\n"
                             "\n"
                             "  \t\r\n"
                             "{\"input_ids\": [5, 6, 7], \"source\": \"x\", \"id\": 3}\n"
                             "{\"id\": 4, \"input_ids\": [5, 6, 7], \"labels\": [5, -100, 9],"
                             " \"attention_mask\": [1, 1, 1]}\n"
                             "{\"text\": \"\\u0000\\u00e9\", \"input_ids\": null}");
    const char *b = data_file("b.txt", "z");
    data_good(&options, &data, a, b);
    assert_int_equal(data.n_pieces, 5);
    assert_string_equal(data_piece_text(&data, 0), "1>100 100>2 2>-100");
    assert_string_equal(data_piece_text(&data, 1),
                        "5>6 6>7 7>-100"); /* untouched: no BOS, no EOS */
    assert_string_equal(data_piece_text(&data, 2), "5>-100 6>9 7>-100"); /* shifted */
    assert_string_equal(data_piece_text(&data, 3), "1>3 3>198 198>172 172>2 2>-100");
    assert_string_equal(data_piece_text(&data, 4), "1>125 125>2 2>-100");
    assert_int_equal(data.counts.rows, 5);
    assert_int_equal(data.counts.valid_tokens, 2 + 2 + 1 + 4 + 2);
    assert_int_equal(data.documents[1].line, 4);
    assert_int_equal(data.documents[3].line, 6);
    assert_int_equal(data.documents[4].file, 1);
    assert_string_equal(data.paths[1], b);
    assert_string_equal(data.extra_keys, "source, id, attention_mask");
    uly_dataset_clear(&data);
}

static void test_eos(void **state)
{
    struct uly_data_options options = data_options(64);
    (void)state;
    options.eos_id = 'y' + 3; /* the text ends with it: it is not doubled */
    data_good(&options, &data, data_file("a.txt", "xy"), NULL);
    assert_string_equal(data_piece_text(&data, 0), "1>123 123>124 124>-100");
    uly_dataset_clear(&data);
    options.eos_id = -1;
    data_good(&options, &data, data_file("a.txt", "x"), NULL);
    assert_string_equal(data_piece_text(&data, 0), "1>123 123>-100");
    uly_dataset_clear(&data);
    options.eos_id = DATA_VOCAB;
    data_bad(&options, ULY_ERR_INVALID, "end-of-sequence token is 259", data_file("a.txt", "x"));
}

static void test_many_extra_keys(void **state)
{
    struct uly_data_options options = data_options(64);
    char line[16384] = "{\"input_ids\": [5]";
    size_t used = strlen(line);
    (void)state;
    for (int i = 0; i < 200; i++)
        used += (size_t)snprintf(line + used, sizeof line - used, ", \"key number %d\": 0", i);
    snprintf(line + used, sizeof line - used, "}\n");
    data_good(&options, &data, data_file("a.jsonl", line), NULL);
    assert_memory_equal(data.extra_keys, "key number 0, key number 1, ", 28);
    assert_string_equal(data.extra_keys + strlen(data.extra_keys) - 5, ", ...");
    assert_null(strstr(strstr(data.extra_keys, "..."), "... "));
    uly_dataset_clear(&data);
}

/* ------------------------------------------------------------------ bad rows */

/* One bad row as line 3 of a file; parts of the message besides the file and line. */
static const struct {
    const char *line, *parts;
} bad_rows[] = {
    {"{\"text\": \"a\"", "broken JSON at byte|of the line"},
    {"{\"text\": \"a\"}}", "broken JSON at byte 14"},
    {"{\"text\": 'a'}", "broken JSON at byte"},
    {"text", "broken JSON at byte"},
    {"{\"text\": \"a\", \"text\": \"b\"}", "broken JSON|duplicate"},
    {"{\"text\": \"\xff\"}", "broken JSON|0xff"},
    {"{\"text\": \"\xc3\x28\"}", "broken JSON"},
    {"{\"text\": \"\\ud800\"}", "broken JSON"},
    {"{\"input_ids\": [99999999999999999999]}", "broken JSON|too big integer"},
    {"[1, 2]", "a row is an object"},
    {"{}", "neither \"text\" nor \"input_ids\""},
    {"{\"id\": 1, \"content\": \"a\"}", "neither \"text\" nor \"input_ids\""},
    {"{\"text\": null}", "neither \"text\" nor \"input_ids\""},
    {"{\"prompt\": \"a\"}", "neither"},
    {"{\"text\": 5}", "\"text\" is|not a string"},
    {"{\"text\": [\"a\"]}", "\"text\" is|not a string"},
    {"{\"text\": \"\"}", "\"text\" is empty"},
    {"{\"text\": \"a\", \"labels\": [1]}", "\"labels\" belong to \"input_ids\""},
    {"{\"input_ids\": []}", "\"input_ids\" is empty"},
    {"{\"input_ids\": 5}", "\"input_ids\" is|not a list of integers"},
    {"{\"input_ids\": [5, 6.0]}", "item 1 of \"input_ids\" is|not an integer"},
    {"{\"input_ids\": [[5]]}", "item 0 of \"input_ids\" is|not an integer"},
    {"{\"input_ids\": [5, \"6\"]}", "item 1 of \"input_ids\""},
    {"{\"input_ids\": [5, 259]}",
     "item 1 of \"input_ids\" is 259, not one of the model's 259 tokens"},
    {"{\"input_ids\": [-1]}", "item 0 of \"input_ids\" is -1"},
    {"{\"input_ids\": [-100]}", "item 0 of \"input_ids\" is -100"},
    {"{\"input_ids\": [4294967297]}", "is 4294967297"},
    {"{\"input_ids\": [5, 6], \"labels\": [5]}", "\"labels\" has 1 items, \"input_ids\" 2"},
    {"{\"input_ids\": [5, 6], \"labels\": [5, 6, 7]}", "\"labels\" has 3 items"},
    {"{\"input_ids\": [5], \"labels\": [-1]}", "item 0 of \"labels\" is -1|nor -100"},
    {"{\"input_ids\": [5], \"labels\": [259]}", "item 0 of \"labels\" is 259"},
    {"{\"input_ids\": [5], \"labels\": \"x\"}", "\"labels\" is|not a list"},
    {"{\"input_ids\": [5, 0], \"attention_mask\": [1, 0]}",
     "item 1 of \"attention_mask\" is not 1"},
    {"{\"input_ids\": [5, 6, 7, 8, 9]}", "5 tokens, more than --max-length 4|--over-length"},
};
enum { N_BAD = sizeof bad_rows / sizeof bad_rows[0] };

static void test_bad_rows(void **state)
{
    struct uly_data_options options = data_options(4);
    char text[512], parts[512];
    (void)state;
    for (int i = 0; i < N_BAD; i++) {
        snprintf(text, sizeof text, "{\"text\": \"a\"}\n\n%s\n{\"text\": \"b\"}\n",
                 bad_rows[i].line);
        snprintf(parts, sizeof parts, "bad.jsonl:3: |%s", bad_rows[i].parts);
        options.skip_bad_rows = false;
        data_bad(&options, ULY_ERR_FORMAT, parts, data_file("bad.jsonl", text));
        options.skip_bad_rows = true;
        data_good(&options, &data, data_file("bad.jsonl", text), NULL);
        assert_int_equal(data.counts.bad_rows, 1);
        assert_int_equal(data.counts.rows, 3);
        assert_int_equal(data.counts.documents, 2);
        assert_int_equal(data.counts.tokens, 6); /* nothing of the bad row is left behind */
        assert_int_equal(data.documents[1].first, 3);
        assert_non_null(strstr(data.first_bad_row, "bad.jsonl:3: "));
        assert_string_equal(data_piece_text(&data, 1), "1>101 101>2 2>-100");
        uly_dataset_clear(&data);
    }
    /* a NUL in a line is no end of it */
    data_bad(&options, ULY_ERR_INVALID, "none of 1 row is left|bad.jsonl:1: |broken JSON",
             data_file_bytes("bad.jsonl", "{\"text\"\0: \"a\"}\n", 15));
}

static void test_bad_text_files(void **state)
{
    struct uly_data_options options = data_options(64);
    (void)state;
    data_bad(&options, ULY_ERR_FORMAT, "a.txt:2: byte 4 of the text (0xe9) is not UTF-8|iconv",
             data_file("a.txt", "one\n\xe9t\xe9"));
    data_bad(&options, ULY_ERR_FORMAT, "a.txt:1: byte 3",
             data_file("a.txt", "\xef\xbb\xbf"
                                "abc\xf0\x9f\x98")); /* cut short at the end */
    data_bad(&options, ULY_ERR_FORMAT, "a.txt: the file is empty", data_file("a.txt", ""));
    data_bad(&options, ULY_ERR_FORMAT, "a.txt: the file is empty",
             data_file("a.txt", "\xef\xbb\xbf"));
    options.skip_bad_rows = true;
    data_good(&options, &data, data_file("bad.txt", "\xff"), data_file("good.txt", "x"));
    assert_int_equal(data.counts.bad_rows, 1);
    assert_int_equal(data.counts.documents, 1);
    assert_int_equal(data.documents[0].file, 1);
    uly_dataset_clear(&data);
    data_bad(&options, ULY_ERR_INVALID,
             "none of 1 row is left (1 bad, 0 dropped)|bad.txt:1: byte 0",
             data_file("bad.txt", "\xff"));
}

/* Refused by name, whatever --bad-rows says: a kind of row is no accident. */
static void test_other_kinds(void **state)
{
    static const struct {
        const char *line, *parts;
    } rows[] = {
        {"{\"messages\": []}", "messages are not there yet|jq -c"},
        {"{\"prompt\": \"a\", \"completion\": \"b\"}",
         "prompt and completion are not there yet|jq -c"},
        {"{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}", "preferences|jq -c"},
        {"{\"instruction\": \"a\", \"input\": \"\", \"output\": \"c\"}", "alpaca|jq -c"},
        {"{\"conversations\": []}", "ShareGPT|jq -c"},
        {"{\"text\": \"a\", \"input_ids\": [1]}", "two kinds of row in one: text, and input_ids"},
        {"{\"text\": \"a\", \"messages\": []}", "two kinds of row in one: text, and messages"},
    };
    struct uly_data_options options = data_options(64);
    char text[256], parts[256];
    (void)state;
    for (int skip = 0; skip < 2; skip++)
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
            options.skip_bad_rows = skip;
            snprintf(text, sizeof text, "{\"text\": \"a\"}\n%s", rows[i].line);
            snprintf(parts, sizeof parts, "kinds.jsonl:2: |%s", rows[i].parts);
            data_bad(&options, ULY_ERR_UNSUPPORTED, parts, data_file("kinds.jsonl", text));
        }
}

static void test_other_files(void **state)
{
    static const struct {
        const char *name, *parts;
    } files[] = {
        {"a.csv", "a.csv: .csv files are not read|python3"},
        {"a.parquet", ".parquet files are not read|python3"},
        {"a.json", ".json files are not read|jq"},
        {"a.JSONL.gz", ".gz files are not read|gzip -dk"},
        {"a.md", ".md files are not read|cp"},
        {"a.html", "a.html is neither .txt (one document) nor .jsonl"},
        {"text", "neither .txt"},
    };
    struct uly_data_options options = data_options(64);
    char folder[256];
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        data_bad(&options, ULY_ERR_UNSUPPORTED, files[i].parts, data_file(files[i].name, "x"));
    data_bad(&options, ULY_ERR_IO, "/nowhere/a.txt: no such file", "/nowhere/a.txt");
    snprintf(folder, sizeof folder, "%s", data_file("a.txt", "x"));
    *strrchr(folder, '/') = '\0';
    data_bad(&options, ULY_ERR_UNSUPPORTED, "is a folder|*.jsonl", folder);
    data_bad(&options, ULY_ERR_UNSUPPORTED, "not a regular file", "/dev/null");
    data_good(&options, &data, data_file("A.TXT", "x"), NULL); /* capitals are fine */
    uly_dataset_clear(&data);
}

static void test_empty(void **state)
{
    struct uly_data_options options = data_options(4);
    (void)state;
    data_bad(&options, ULY_ERR_INVALID, "a.jsonl: no row at all", data_file("a.jsonl", ""));
    data_bad(&options, ULY_ERR_INVALID, "a.jsonl: no row at all", data_file("a.jsonl", "\n \r\n"));
    options.over_length = ULY_OVER_DROP;
    data_bad(&options, ULY_ERR_INVALID, "none of 2 rows is left (0 bad, 2 dropped)",
             data_file("a.jsonl", "{\"text\": \"abcd\"}\n{\"text\": \"abc\"}\n"));
    assert_int_equal(uly_dataset_read(NULL, 0, &options, &data), ULY_ERR_INVALID);
}

static void test_no_tokenizer(void **state)
{
    struct uly_data_options options = data_options(64);
    (void)state;
    options.encode = NULL;
    data_good(&options, &data, data_file("a.jsonl", "{\"input_ids\": [1, 2]}"), NULL);
    uly_dataset_clear(&data);
    data_bad(&options, ULY_ERR_INVALID, "a.jsonl:1: text needs a tokenizer|tokenizer.json",
             data_file("a.jsonl", "{\"text\": \"a\"}"));
    options.skip_bad_rows = true; /* the folder is wrong, not the row */
    data_bad(&options, ULY_ERR_INVALID, "text needs a tokenizer", data_file("a.txt", "a"));
    options = data_options(64);
    options.vocab_size = 100; /* a tokenizer of another model */
    data_bad(&options, ULY_ERR_INVALID,
             "a.txt: the tokenizer makes token 100, but the model has 100",
             data_file("a.txt", "az"));
}

struct told {
    int64_t last, total;
    int calls;
};

static void note(void *context, int64_t done, int64_t total)
{
    struct told *told = context;
    assert_true(done > told->last && done <= total);
    told->last = done;
    told->total = total;
    told->calls++;
}

static void test_progress(void **state)
{
    struct uly_data_options options = data_options(1 << 20);
    struct told told = {0};
    static char text[300001];
    (void)state;
    memset(text, 'a', sizeof text - 1);
    options.progress = note;
    options.progress_context = &told;
    data_good(&options, &data, data_file("a.txt", text), data_file("b.jsonl", "{\"text\": \"a\"}"));
    assert_int_equal(told.total, 300000 + 13);
    assert_int_equal(told.last, told.total);
    assert_true(told.calls >= 3); /* inside the long text, at its end, at the end */
    uly_dataset_clear(&data);
}

/* Every allocation fails in turn: out of memory is an error, never a bad row, and nothing leaks. */
static void test_no_memory(void **state)
{
    struct uly_data_options options = data_options(4);
    const char *path = data_file("a.jsonl", "{\"text\": \"abcdefg\"}\n"
                                            "{\"input_ids\": [5, 6], \"labels\": [5, 6]}\n");
    (void)state;
    options.skip_bad_rows = true;
    for (long k = 1;; k++) {
        uly_alloc_fail_at(k);
        enum uly_status status = uly_dataset_read(&path, 1, &options, &data);
        uly_alloc_fail_at(0);
        if (status == ULY_OK) {
            assert_true(k > 6);
            break;
        }
        assert_int_equal(status, ULY_ERR_NO_MEMORY);
    }
    uly_dataset_clear(&data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_txt),         cmocka_unit_test(test_jsonl),
        cmocka_unit_test(test_eos),         cmocka_unit_test(test_many_extra_keys),
        cmocka_unit_test(test_bad_rows),    cmocka_unit_test(test_bad_text_files),
        cmocka_unit_test(test_other_kinds), cmocka_unit_test(test_other_files),
        cmocka_unit_test(test_empty),       cmocka_unit_test(test_no_tokenizer),
        cmocka_unit_test(test_progress),    cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, data_folder_make, data_folder_remove);
}
