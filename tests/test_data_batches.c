/* SPDX-License-Identifier: MIT
 *
 * Batches: the ledger of an epoch (each row once, whatever the layout), short steps, the order of rows, and what a
 * micro-batch holds.
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
#include "base/mem.h"
#include "data/batch_plan.h"
#include "support/data_support.h"

enum { N_ROWS = 23, MAX_ROWS = 64 };

static struct uly_dataset data;

/* Rows of 1 to 11 tokens whose first token is the row's number. */
static int make_data(void **state)
{
    static char text[1 << 14];
    size_t used = 0;
    struct uly_data_options options = data_options(64);
    if (data_folder_make(state) != 0)
        return -1;
    for (int row = 0; row < N_ROWS; row++) {
        int n = 1 + row * 5 % 11;
        used += (size_t)snprintf(text + used, sizeof text - used, "{\"input_ids\": [%d", row);
        for (int i = 1; i < n; i++)
            used += (size_t)snprintf(text + used, sizeof text - used, ", %d", 100 + i);
        used += (size_t)snprintf(text + used, sizeof text - used, "]}\n");
    }
    data_good(&options, &data, data_file("rows.jsonl", text), NULL);
    return data.n_pieces == N_ROWS ? 0 : -1;
}

static int clear_data(void **state)
{
    uly_dataset_clear(&data);
    return data_folder_remove(state);
}

static struct uly_batch_plan_options plan_options(int64_t dp, int64_t rows, int64_t accumulation)
{
    return (struct uly_batch_plan_options){.n_pieces = N_ROWS,
                                           .random = true,
                                           .seed = 42,
                                           .dp_size = dp,
                                           .rows = rows,
                                           .accumulation = accumulation};
}

/* Checks a micro-batch's arrays against the data set, and enters its rows in `seen`. */
static void check_micro(const struct uly_batch_plan *plan, const struct uly_batch *batch, int *seen,
                        int64_t *tokens, int64_t *valid)
{
    assert_true(batch->n_docs <= plan->options.rows && batch->S <= plan->max_tokens);
    for (int64_t d = 0; d < batch->n_docs; d++) {
        int64_t begin = batch->starts[d];
        int64_t end = d + 1 < batch->n_docs ? batch->starts[d + 1] : batch->S;
        int row = batch->ids[begin];
        assert_int_equal(d ? 0 : begin, 0);
        assert_int_equal(end - begin, 1 + row * 5 % 11);
        for (int64_t i = begin; i < end; i++) {
            assert_int_equal(batch->ids[i], i == begin ? row : 100 + (i - begin));
            assert_int_equal(batch->labels[i],
                             i + 1 < end ? 100 + (i + 1 - begin) : ULY_IGNORE_LABEL);
            *valid += batch->labels[i] != ULY_IGNORE_LABEL;
        }
        seen[row]++;
    }
    *tokens += batch->S;
}

/* One epoch by all replicas: each row once, the counts of every step as told before its first micro-batch. */
static void check_epoch(struct uly_batch_plan *plan, int64_t epoch)
{
    int seen[MAX_ROWS] = {0};
    int64_t n = plan->options.n_pieces, rows_so_far = 0;
    for (int64_t step = 0; step < plan->steps_per_epoch; step++) {
        struct uly_batch_step info;
        int64_t tokens = 0, valid = 0, rows = 0;
        uly_batch_plan_step(plan, epoch, step, &info);
        assert_true(info.n_micro >= 1 && info.n_micro <= plan->max_micro);
        for (int64_t micro = 0; micro < info.n_micro; micro++) {
            int64_t here = 0, most = 0, least = n;
            for (int64_t replica = 0; replica < plan->options.dp_size; replica++) {
                struct uly_batch batch;
                uly_batch_plan_micro(plan, micro, replica, &batch);
                check_micro(plan, &batch, seen, &tokens, &valid);
                here += batch.n_docs;
                most = batch.n_docs > most ? batch.n_docs : most;
                least = batch.n_docs < least ? batch.n_docs : least;
            }
            assert_true(here > 0);          /* no micro-batch is empty everywhere */
            assert_true(most - least <= 1); /* shares are as equal as they can be */
            rows += here;
        }
        assert_int_equal(info.n_rows, rows);
        assert_int_equal(info.tokens, tokens);
        assert_int_equal(info.valid_tokens, valid);
        bool is_last = step == plan->steps_per_epoch - 1;
        assert_true(is_last ? rows <= plan->rows_per_step : rows == plan->rows_per_step);
        rows_so_far += rows;
    }
    assert_int_equal(rows_so_far, n);
    for (int row = 0; row < N_ROWS; row++)
        assert_int_equal(seen[row],
                         row >= plan->options.first_piece && row < plan->options.first_piece + n);
}

static void test_ledger(void **state)
{
    (void)state;
    for (int64_t dp = 1; dp <= 5; dp++)
        for (int64_t rows = 1; rows <= 3; rows++)
            for (int64_t accumulation = 0; accumulation <= 4; accumulation++)
                for (int part = 0; part < 2; part++) {
                    struct uly_batch_plan plan;
                    struct uly_batch_plan_options options = plan_options(dp, rows, accumulation);
                    options.first_piece = part * 4;
                    options.n_pieces = part ? 17 : N_ROWS;
                    options.random = rows != 2;
                    assert_int_equal(uly_batch_plan_init(&data, &options, &plan), ULY_OK);
                    int64_t per_step = dp * rows * accumulation;
                    assert_int_equal(plan.steps_per_epoch,
                                     accumulation ? (options.n_pieces + per_step - 1) / per_step
                                                  : 1);
                    uly_alloc_guard_begin(); /* inside a step nothing is allocated */
                    for (int64_t epoch = 0; epoch < 3; epoch++)
                        check_epoch(&plan, epoch);
                    uly_alloc_guard_end();
                    uly_batch_plan_clear(&plan);
                }
}

/* The rows of the epoch's steps in order, as the plan has them. */
static void rows_of(struct uly_batch_plan *plan, int64_t epoch, int64_t *out)
{
    for (int64_t step = 0; step < plan->steps_per_epoch; step++) {
        struct uly_batch_step info;
        uly_batch_plan_step(plan, epoch, step, &info);
        for (int64_t i = 0; i < info.n_rows; i++)
            *out++ = plan->order[plan->step_first + i];
    }
}

static void order_with(int64_t dp, int64_t rows, int64_t accumulation, uint64_t seed, int64_t epoch,
                       int64_t *out)
{
    struct uly_batch_plan plan;
    struct uly_batch_plan_options options = plan_options(dp, rows, accumulation);
    options.seed = seed;
    assert_int_equal(uly_batch_plan_init(&data, &options, &plan), ULY_OK);
    rows_of(&plan, epoch, out);
    uly_batch_plan_clear(&plan);
}

static void test_order(void **state)
{
    int64_t first[N_ROWS], other[N_ROWS];
    (void)state;
    order_with(1, 1, 1, 42, 0, first);
    order_with(1, 1, 1, 42, 0, other);
    assert_memory_equal(first, other, sizeof first);
    order_with(4, 2, 3, 42, 0, other); /* the order does not know the layout */
    assert_memory_equal(first, other, sizeof first);
    order_with(1, 1, 1, 42, 1, other);
    assert_memory_not_equal(first, other, sizeof first);
    order_with(1, 1, 1, 43, 0, other);
    assert_memory_not_equal(first, other, sizeof first);
    int moved = 0;
    for (int64_t i = 0; i < N_ROWS; i++)
        moved += first[i] != i;
    assert_true(moved > N_ROWS / 2);
}

/* The rows of a global batch are the same set for every way of making the batch: step t of any layout with the same number
 * of rows a step. */
static void test_global_batch(void **state)
{
    static const int64_t layouts[][3] = {{1, 1, 6}, {1, 6, 1}, {6, 1, 1}, {2, 3, 1}, {3, 1, 2}};
    (void)state;
    for (size_t l = 0; l < sizeof layouts / sizeof layouts[0]; l++) {
        struct uly_batch_plan plan, reference;
        struct uly_batch_plan_options options =
            plan_options(layouts[l][0], layouts[l][1], layouts[l][2]);
        struct uly_batch_plan_options plain = plan_options(1, 1, 6);
        assert_int_equal(uly_batch_plan_init(&data, &options, &plan), ULY_OK);
        assert_int_equal(uly_batch_plan_init(&data, &plain, &reference), ULY_OK);
        assert_int_equal(plan.steps_per_epoch, 4);
        for (int64_t step = 0; step < 4; step++) {
            struct uly_batch_step a, b;
            int seen[MAX_ROWS] = {0};
            uly_batch_plan_step(&reference, 5, step, &a);
            uly_batch_plan_step(&plan, 5, step, &b);
            assert_int_equal(a.n_rows, b.n_rows);
            assert_int_equal(a.tokens, b.tokens);
            assert_int_equal(a.valid_tokens, b.valid_tokens);
            for (int64_t micro = 0; micro < b.n_micro; micro++)
                for (int64_t replica = 0; replica < options.dp_size; replica++)
                    for (int64_t slot = 0; slot < options.rows; slot++) {
                        int64_t piece = uly_batch_plan_piece(&plan, micro, replica, slot);
                        if (piece >= 0)
                            seen[piece]++;
                    }
            for (int64_t i = 0; i < a.n_rows; i++)
                seen[uly_batch_plan_piece(&reference, i, 0, 0)]--;
            for (int row = 0; row < N_ROWS; row++)
                assert_int_equal(seen[row], 0);
        }
        uly_batch_plan_clear(&plan);
        uly_batch_plan_clear(&reference);
    }
}

/* By hand: 5 rows in order, 2 replicas, 1 row each, 2 micro-batches. The last step has one row: replica 1 gets an empty
 * micro-batch, and both have one. */
static void test_short_step(void **state)
{
    struct uly_batch_plan plan;
    struct uly_batch_plan_options options = plan_options(2, 1, 2);
    struct uly_batch_step info;
    struct uly_batch batch;
    (void)state;
    options.random = false;
    options.n_pieces = 5;
    assert_int_equal(uly_batch_plan_init(&data, &options, &plan), ULY_OK);
    assert_int_equal(plan.steps_per_epoch, 2);
    uly_batch_plan_step(&plan, 0, 0, &info);
    assert_int_equal(info.n_micro, 2);
    uly_batch_plan_micro(&plan, 1, 0, &batch);
    assert_int_equal(batch.ids[0], 2);
    uly_batch_plan_micro(&plan, 1, 1, &batch);
    assert_int_equal(batch.ids[0], 3);
    uly_batch_plan_step(&plan, 0, 1, &info);
    assert_int_equal(info.n_rows, 1);
    assert_int_equal(info.n_micro, 1);
    uly_batch_plan_micro(&plan, 0, 0, &batch);
    assert_int_equal(batch.ids[0], 4);
    uly_batch_plan_micro(&plan, 0, 1, &batch);
    assert_int_equal(batch.S, 0);
    assert_int_equal(batch.n_docs, 0);
    uly_batch_plan_clear(&plan);
}

/* Evaluation: accumulation 0 is one step with every row once, in order, for row counts that nothing divides. */
static void test_evaluation(void **state)
{
    (void)state;
    for (int64_t n = 1; n <= N_ROWS; n++)
        for (int64_t dp = 1; dp <= 4; dp++) {
            struct uly_batch_plan plan;
            struct uly_batch_plan_options options = plan_options(dp, 2, 0);
            struct uly_batch_step info;
            options.random = false;
            options.n_pieces = n;
            options.first_piece = N_ROWS - n;
            assert_int_equal(uly_batch_plan_init(&data, &options, &plan), ULY_OK);
            assert_int_equal(plan.steps_per_epoch, 1);
            check_epoch(&plan, 0);
            uly_batch_plan_step(&plan, 0, 0, &info);
            assert_int_equal(info.n_rows, n);
            assert_int_equal(uly_batch_plan_piece(&plan, 0, 0, 0), N_ROWS - n);
            uly_batch_plan_clear(&plan);
        }
}

static void test_longest_micro_batch(void **state)
{
    struct uly_batch_plan plan;
    struct uly_batch_plan_options options = plan_options(1, 1, 1);
    (void)state;
    assert_int_equal(uly_batch_plan_init(&data, &options, &plan), ULY_OK);
    assert_int_equal(plan.max_tokens, 11);
    uly_batch_plan_clear(&plan);
    options.rows = 3; /* lengths 11, 11 and 10 are there */
    assert_int_equal(uly_batch_plan_init(&data, &options, &plan), ULY_OK);
    assert_int_equal(plan.max_tokens, 11 + 11 + 10);
    uly_batch_plan_clear(&plan);
    options.rows = 1000; /* more than there are */
    assert_int_equal(uly_batch_plan_init(&data, &options, &plan), ULY_OK);
    assert_int_equal(plan.max_tokens, data.counts.tokens);
    uly_batch_plan_clear(&plan);
}

static void test_bad_plans(void **state)
{
    struct uly_batch_plan plan;
    struct uly_batch_plan_options options = plan_options(1, 1, 1), good = options;
    (void)state;
    options.n_pieces = N_ROWS + 1;
    assert_int_equal(uly_batch_plan_init(&data, &options, &plan), ULY_ERR_INVALID);
    options.n_pieces = 0;
    assert_int_equal(uly_batch_plan_init(&data, &options, &plan), ULY_ERR_INVALID);
    options = good;
    options.dp_size = 0;
    assert_int_equal(uly_batch_plan_init(&data, &options, &plan), ULY_ERR_INVALID);
    options = good;
    options.rows = 0;
    assert_int_equal(uly_batch_plan_init(&data, &options, &plan), ULY_ERR_INVALID);
    for (long k = 1; k <= 5; k++) {
        uly_alloc_fail_at(k);
        enum uly_status status = uly_batch_plan_init(&data, &good, &plan);
        uly_alloc_fail_at(0);
        assert_int_equal(status, k <= 4 ? ULY_ERR_NO_MEMORY : ULY_OK);
    }
    uly_batch_plan_clear(&plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger),       cmocka_unit_test(test_order),
        cmocka_unit_test(test_global_batch), cmocka_unit_test(test_short_step),
        cmocka_unit_test(test_evaluation),   cmocka_unit_test(test_longest_micro_batch),
        cmocka_unit_test(test_bad_plans),
    };
    return cmocka_run_group_tests(tests, make_data, clear_data);
}
