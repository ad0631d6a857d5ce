/* SPDX-License-Identifier: MIT
 *
 * Head ownership and stages: every query head once, always beside its own kv head, kv heads sent once per rank and group.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "parallel/stage.h"

static const int shapes[][2] = {{8, 8}, {8, 2}, {7, 7},  {6, 2},  {28, 4},
                                {8, 1}, {1, 1}, {32, 8}, {64, 8}, {5, 5}};

static void check_plan(int H, int K, int Pu, int per_stage)
{
    struct uly_head_plan plan;
    int g = H / K, computed[64] = {0};
    assert_int_equal(uly_head_plan_init(H, K, Pu, per_stage, &plan), ULY_OK);
    int owners[64] = {0};
    for (int r = 0; r < Pu; r++) {
        int resident[64] = {0}, sent[64] = {0}, done[64] = {0};
        for (int t = 0; t < plan.n_stages; t++) {
            struct uly_head_range q = uly_head_plan_q(&plan, t, r);
            struct uly_head_range kv = uly_head_plan_kv(&plan, t, r);
            struct uly_head_range fresh = uly_head_plan_kv_new(&plan, t, r);
            struct uly_head_range last = uly_head_plan_kv_done(&plan, t, r);
            assert_true(q.count <= plan.per_stage && kv.count <= plan.n_slots);
            for (int h = fresh.first; h < fresh.first + fresh.count; h++) {
                resident[h] = 1;
                sent[h]++;
            }
            for (int h = q.first; h < q.first + q.count; h++) {
                computed[h]++;
                assert_true(h / g >= kv.first && h / g < kv.first + kv.count);
                assert_true(resident[h / g] && !done[h / g]);
            }
            for (int h = last.first; h < last.first + last.count; h++)
                done[h]++;
        }
        for (int h = 0; h < K;
             h++) { /* crossed once where needed, and its gradient goes home once */
            assert_true(sent[h] <= 1);
            assert_int_equal(sent[h], done[h]);
            owners[h] += sent[h];
        }
    }
    int shared = 0;
    for (int h = 0; h < H; h++)
        assert_int_equal(computed[h], 1);
    for (int h = 0; h < K; h++)
        shared = shared || owners[h] > 1;
    assert_int_equal(plan.shared_kv, shared);
}

static void test_every_shape(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int Pu = 1; Pu <= 9; Pu++) {
            int most = (shapes[i][0] + Pu - 1) / Pu;
            for (int n = 0; n <= most; n++)
                check_plan(shapes[i][0], shapes[i][1], Pu, n);
        }
}

static void check_list(const struct uly_head_entries *e, int Pu)
{
    int distinct = 0;
    assert_int_equal(e->first[0], 0);
    assert_int_equal(e->first[Pu], e->n);
    for (int i = 0; i < e->n_runs; i++) {
        assert_true(e->runs[i].count > 0);
        if (i > 0)
            assert_true(e->runs[i - 1].first + e->runs[i - 1].count < e->runs[i].first);
        distinct += e->runs[i].count;
    }
    assert_int_equal(distinct, e->n_distinct);
    for (int i = 0; i < e->n; i++) { /* place says where the runs, side by side, have the head */
        int at = 0, found = -1;
        for (int k = 0; k < e->n_runs; at += e->runs[k++].count)
            if (e->head[i] >= e->runs[k].first && e->head[i] < e->runs[k].first + e->runs[k].count)
                found = at + e->head[i] - e->runs[k].first;
        assert_int_equal(e->place[i], found);
    }
}

static void test_stage_lists(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int Pu = 1; Pu <= 8; Pu++)
            for (int n = 0; n <= 3 && n <= (shapes[i][0] + Pu - 1) / Pu; n++) {
                struct uly_head_plan plan;
                struct uly_stage *stages;
                assert_int_equal(uly_head_plan_init(shapes[i][0], shapes[i][1], Pu, n, &plan),
                                 ULY_OK);
                assert_int_equal(uly_stages_create(&plan, &stages), ULY_OK);
                for (int t = 0; t < plan.n_stages; t++) {
                    check_list(&stages[t].q, Pu);
                    check_list(&stages[t].kv_new, Pu);
                    check_list(&stages[t].kv_done, Pu);
                }
                uly_stages_free(stages, plan.n_stages);
            }
}

static void test_refusals(void **state)
{
    (void)state;
    struct uly_head_plan plan;
    assert_int_equal(uly_head_plan_init(7, 2, 1, 0, &plan), ULY_ERR_USAGE);
    assert_int_equal(uly_head_plan_init(8, 8, 3, 4, &plan), ULY_ERR_USAGE);
    assert_non_null(strstr(uly_error_message(), "1 ... 3"));
    assert_int_equal(uly_head_plan_init(8, 8, 3, -1, &plan), ULY_ERR_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_shape),
        cmocka_unit_test(test_stage_lists),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
