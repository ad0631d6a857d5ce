/* SPDX-License-Identifier: MIT
 *
 * Documents into pieces: the rules for what is too long, labels across a split, counts, the validation part, the
 * fingerprint.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "support/data_support.h"

static struct uly_dataset data;

static void test_split_by_hand(void **state)
{
    struct uly_data_options options = data_options(4);
    (void)state;
    /* BOS a b c d e EOS: seven tokens, six labels */
    data_good(&options, &data, data_file("a.txt", "abcde"), NULL);
    assert_int_equal(data.n_pieces, 2);
    assert_string_equal(data_piece_text(&data, 0), "1>100 100>101 101>102 102>-100");
    assert_string_equal(data_piece_text(&data, 1), "102>103 103>104 104>2 2>-100");
    assert_int_equal(data.counts.split_rows, 1);
    assert_int_equal(data.counts.split_pieces, 2);
    assert_int_equal(data.counts.tokens, 7);
    assert_int_equal(data.counts.valid_tokens, 6);
    assert_int_equal(data.counts.longest_document, 7);
    assert_int_equal(data.counts.longest_piece, 4);
    uly_dataset_clear(&data);
}

/* For every length and limit: pieces together hold each label of the document exactly once, in order; each next piece
 * starts with the last token of the one before; none is longer than the limit and only the last is shorter. */
static void test_split_all_lengths(void **state)
{
    char text[128];
    (void)state;
    for (int64_t max = 2; max <= 9; max++)
        for (int n = 1; n <= 40; n++) {
            struct uly_data_options options = data_options(max);
            for (int i = 0; i < n; i++)
                text[i] = (char)('!' + i);
            text[n] = '\0';
            data_good(&options, &data, data_file("a.txt", text), NULL);
            int64_t whole = n + 2, at = 0, valid = 0;
            for (int64_t i = 0; i < data.n_pieces; i++) {
                int32_t ids[64], labels[64];
                int64_t length = data.pieces[i].length;
                bool is_last = i == data.n_pieces - 1;
                assert_true(is_last ? length <= max : length == max);
                assert_true(length >= 2);
                uly_dataset_piece(&data, i, ids, labels);
                for (int64_t k = 0; k < length; k++) {
                    int32_t next = at + k + 1 < whole ? data.ids[at + k + 1] : -7;
                    assert_int_equal(ids[k], data.ids[at + k]);
                    assert_int_equal(labels[k], k + 1 < length ? next : ULY_IGNORE_LABEL);
                    valid += labels[k] != ULY_IGNORE_LABEL;
                }
                at += length - 1; /* the next piece starts with this one's last token */
            }
            assert_int_equal(at, whole - 1);
            assert_int_equal(valid, whole - 1);
            assert_int_equal(data.counts.valid_tokens, valid);
            assert_int_equal(data.counts.split_rows, whole > max);
            uly_dataset_clear(&data);
        }
}

static const char given[] = "{\"input_ids\": [5, 6, 7, 8, 9], \"labels\": [5, -100, 7, 8, -100]}\n"
                            "{\"input_ids\": [10, 11]}\n";

static void test_rules(void **state)
{
    struct uly_data_options options = data_options(3);
    (void)state;
    data_bad(&options, ULY_ERR_FORMAT, "a.jsonl:1: 5 tokens, more than --max-length 3",
             data_file("a.jsonl", given)); /* auto is error for rows of ids */

    options.over_length = ULY_OVER_SPLIT;
    data_good(&options, &data, data_file("a.jsonl", given), NULL);
    assert_int_equal(data.n_pieces, 3);
    assert_string_equal(data_piece_text(&data, 0), "5>-100 6>7 7>-100");
    assert_string_equal(data_piece_text(&data, 1), "7>8 8>-100 9>-100");
    assert_int_equal(data.counts.valid_tokens, 3);
    assert_int_equal(data.pieces[1].valid_tokens, 1);
    uly_dataset_clear(&data);

    options.over_length = ULY_OVER_TRUNCATE;
    data_good(&options, &data, data_file("a.jsonl", given), NULL);
    assert_int_equal(data.n_pieces, 2);
    assert_string_equal(data_piece_text(&data, 0), "5>-100 6>7 7>-100");
    assert_string_equal(data_piece_text(&data, 1), "10>11 11>-100");
    assert_int_equal(data.counts.truncated_rows, 1);
    assert_int_equal(data.counts.truncated_tokens, 2);
    assert_int_equal(data.counts.tokens, 5);
    uly_dataset_clear(&data);

    options.over_length = ULY_OVER_DROP;
    data_good(&options, &data, data_file("a.jsonl", given), NULL);
    assert_int_equal(data.n_pieces, 1);
    assert_string_equal(data_piece_text(&data, 0), "10>11 11>-100");
    assert_int_equal(data.counts.dropped_rows, 1);
    assert_int_equal(data.counts.dropped_tokens, 5);
    assert_int_equal(data.counts.rows, 2);
    assert_int_equal(data.counts.documents, 1);
    uly_dataset_clear(&data);

    options.over_length = ULY_OVER_ERROR; /* also for text, when asked for */
    data_bad(&options, ULY_ERR_FORMAT, "a.txt: 4 tokens, more than --max-length 3",
             data_file("a.txt", "ab"));
    options.over_length = ULY_OVER_TRUNCATE; /* EOS is the token that is cut */
    data_good(&options, &data, data_file("a.txt", "ab"), NULL);
    assert_string_equal(data_piece_text(&data, 0), "1>100 100>101 101>-100");
    assert_int_equal(data.counts.truncated_tokens, 1);
    uly_dataset_clear(&data);
}

/* Rows of exactly the limit, one token more, and one token. */
static void test_borders(void **state)
{
    struct uly_data_options options = data_options(3);
    (void)state;
    data_good(&options, &data, data_file("a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"ab\"}\n"),
              NULL);
    assert_int_equal(data.n_pieces, 3);
    assert_int_equal(data.pieces[0].length, 3);
    assert_int_equal(data.pieces[1].length, 3);
    assert_string_equal(data_piece_text(&data, 2), "101>2 2>-100");
    uly_dataset_clear(&data);

    data_good(&options, &data,
              data_file("a.jsonl", "{\"input_ids\": [5]}\n{\"input_ids\": [5], \"labels\": [5]}\n"
                                   "{\"input_ids\": [5, 6], \"labels\": [6, -100]}\n"
                                   "{\"input_ids\": [5, 6]}\n"),
              NULL);
    assert_string_equal(data_piece_text(&data, 0), "5>-100");
    assert_string_equal(data_piece_text(&data, 1), "5>-100");
    assert_string_equal(data_piece_text(&data, 2), "5>-100 6>-100");
    assert_int_equal(data.counts.unlabeled_rows, 3);
    assert_int_equal(data.counts.valid_tokens, 1);
    assert_int_equal(data.counts.tokens, 6);
    uly_dataset_clear(&data);

    options.max_length = 1; /* pieces of one token would have no label */
    data_bad(&options, ULY_ERR_INVALID, "cannot be split into pieces of 1 token",
             data_file("a.txt", "a"));
    options.over_length = ULY_OVER_TRUNCATE;
    data_good(&options, &data, data_file("a.txt", "a"), NULL);
    assert_string_equal(data_piece_text(&data, 0), "1>-100");
    uly_dataset_clear(&data);
}

/* Valid tokens against a count that knows nothing of pieces: for each text row its tokens - 1, for each row with labels the
 * labels behind the first that are not -100. */
static void test_independent_count(void **state)
{
    struct uly_data_options options = data_options(7);
    static char text[1 << 16];
    size_t used = 0;
    int64_t expected = 0, tokens = 0;
    (void)state;
    options.over_length = ULY_OVER_SPLIT;
    for (int row = 0; row < 100; row++) {
        int n = 1 + row * 7 % 23;
        if (row % 3 == 0) {
            used += (size_t)snprintf(text + used, sizeof text - used, "{\"text\": \"%.*s\"}\n", n,
                                     "abcdefghijklmnopqrstuvwxyz");
            expected += n + 1;
            tokens += n + 2;
            continue;
        }
        used += (size_t)snprintf(text + used, sizeof text - used, "{\"input_ids\": [");
        for (int i = 0; i < n; i++)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%d", i ? "," : "", i + 1);
        used += (size_t)snprintf(text + used, sizeof text - used, "], \"labels\": [");
        for (int i = 0; i < n; i++) {
            bool counts = (i * row) % 4 == 1;
            expected += counts && i > 0;
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%d", i ? "," : "",
                                     counts ? i + 1 : -100);
        }
        used += (size_t)snprintf(text + used, sizeof text - used, "]}\n");
        tokens += n;
    }
    data_good(&options, &data, data_file("a.jsonl", text), NULL);
    int64_t sum = 0;
    for (int64_t i = 0; i < data.n_pieces; i++) {
        int32_t ids[8], labels[8];
        uly_dataset_piece(&data, i, ids, labels);
        int64_t here = 0;
        for (int64_t k = 0; k < data.pieces[i].length; k++)
            here += labels[k] != ULY_IGNORE_LABEL;
        assert_int_equal(here, data.pieces[i].valid_tokens);
        sum += here;
    }
    assert_int_equal(sum, expected);
    assert_int_equal(data.counts.valid_tokens, expected);
    assert_int_equal(data.counts.tokens, tokens);
    assert_int_equal(data.counts.documents, 100);
    uly_dataset_clear(&data);
}

static void test_validation(void **state)
{
    static const struct {
        int64_t n;
        double fraction;
        int64_t expected;
    } cases[] = {{10, 0.25, 3},          {100, 0.07, 7},   {10, 0.1, 1},
                 {2, 0.01, 1},           {2, 0.99, 1},     {3, 0.9, 2},
                 {30, 0.1, 3},           {1000, 0.003, 3}, {7, 0.5, 4},
                 {1000000, 0.05, 50000}, {10, 0.300001, 4}};
    int64_t n = -1;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(uly_dataset_validation_pieces(cases[i].n, cases[i].fraction, &n), ULY_OK);
        assert_int_equal(n, cases[i].expected);
    }
    assert_int_equal(uly_dataset_validation_pieces(1, 0.5, &n), ULY_ERR_INVALID);
    assert_int_equal(uly_dataset_validation_pieces(9, 0, &n), ULY_ERR_INVALID);
    assert_int_equal(uly_dataset_validation_pieces(9, 1, &n), ULY_ERR_INVALID);
}

static uint64_t fingerprint(const char *text, int64_t max_length)
{
    struct uly_data_options options = data_options(max_length);
    options.over_length = ULY_OVER_SPLIT;
    data_good(&options, &data, data_file("print.jsonl", text), NULL);
    uint64_t print = data.fingerprint;
    uly_dataset_clear(&data);
    return print;
}

static void test_fingerprint(void **state)
{
    uint64_t first = fingerprint("{\"input_ids\": [5, 6, 7, 8]}\n", 8);
    (void)state;
    assert_true(first == fingerprint("\n{\"input_ids\": [5, 6, 7, 8], \"x\": 1}", 8));
    assert_true(first != fingerprint("{\"input_ids\": [5, 6, 8, 7]}\n", 8));
    assert_true(first != fingerprint("{\"input_ids\": [5, 6]}\n{\"input_ids\": [7, 8]}\n", 8));
    assert_true(first != fingerprint("{\"input_ids\": [5, 6, 7, 8]}\n", 3));
    assert_true(first !=
                fingerprint("{\"input_ids\": [5, 6, 7, 8], \"labels\": [5, 6, 7, -100]}\n", 8));
    assert_true(fingerprint("{\"input_ids\": [5, 6], \"labels\": [5, 6]}\n", 8) !=
                fingerprint("{\"input_ids\": [5, 6], \"labels\": [5, -100]}\n", 8));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_by_hand),
        cmocka_unit_test(test_split_all_lengths),
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_borders),
        cmocka_unit_test(test_independent_count),
        cmocka_unit_test(test_validation),
        cmocka_unit_test(test_fingerprint),
    };
    return cmocka_run_group_tests(tests, data_folder_make, data_folder_remove);
}
