/* SPDX-License-Identifier: MIT
 *
 * The whole model: gradients against finite differences in float64; every layout against one rank; documents that do not
 * see each other; memory options that change no bit.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

#include "base/random.h"
#include "support/model_fixture.h"

static const int64_t several[] = {0, 1, 14, 15, 38};

static void give_rows(struct model_case *c, int64_t S, const int64_t *starts, int64_t n_docs)
{
    int32_t *ids, *labels;
    model_make_rows(S, c->V, starts, n_docs, 5, &ids, &labels);
    c->S = S;
    c->starts = starts;
    c->n_docs = n_docs;
    c->ids = ids;
    c->labels = labels;
}

static void take_rows(struct model_case *c)
{
    free((void *)(uintptr_t)c->ids);
    free((void *)(uintptr_t)c->labels);
}

/* Central differences on a few elements of every parameter. */
static void check_differences(struct model_case c)
{
    struct model_result base, up, down;
    give_rows(&c, 23, several, 4);
    model_run(&c, 1, true, &base);
    for (int p = 0; p < base.n_params; p++)
        for (int k = 0; k < 4; k++) {
            int64_t n = base.first[p + 1] - base.first[p];
            int64_t i = (int64_t)uly_random_below(3, (uint64_t)p, (uint64_t)k, (uint64_t)n);
            c.nudge_param = p;
            c.nudge_index = i;
            c.nudge = 1e-5;
            model_run(&c, 1, false, &up);
            c.nudge = -1e-5;
            model_run(&c, 1, false, &down);
            double want = (up.loss_sum - down.loss_sum) / 2e-5 / (double)base.n_valid;
            double got = base.grads[base.first[p] + i];
            if (!(fabs(got - want) <= 1e-8 + 1e-6 * fabs(want)))
                fail_msg("%s[%d]: gradient %.12g, difference quotient %.12g", base.names[p], (int)i,
                         got, want);
            model_result_clear(&up);
            model_result_clear(&down);
        }
    model_result_clear(&base);
    take_rows(&c);
}

static void test_finite_differences(void **state)
{
    (void)state;
    struct model_case c = model_case_small(4, 2);
    check_differences(c);
    c.tied = true;
    c.qkv_bias = c.o_bias = c.mlp_bias = true;
    c.llama3 = true;
    c.checkpointing = ULY_CHECKPOINT_NONE;
    check_differences(c);
}

/* What families add: a norm of heads, a window on some layers, every rope type, and documents (1, 13, 1 and 8 tokens, and
 * then 23) on both sides of the length that two of the types depend on. */
static void test_finite_differences_of_families(void **state)
{
    (void)state;
    struct model_case c = model_case_small(4, 2);
    c.D = 4;
    c.qk_norm = true;
    c.window = 5;
    c.layers_without_window = 1;
    check_differences(c);
    c.qkv_bias = true;
    c.layers = 1;
    c.D = 10; /* heads wider than the hidden size */
    c.layers_without_window = 0;
    for (int type = ULY_ROPE_LINEAR; type < ULY_ROPE_TYPES; type++) {
        c.rope = (enum uly_rope_type)type;
        c.checkpointing = type % 2 ? ULY_CHECKPOINT_NONE : ULY_CHECKPOINT_FULL;
        check_differences(c);
    }
}

static void check_same(const struct model_case *c, const struct model_result *got,
                       const struct model_result *want, int sp, double loss_tolerance,
                       double relative, double floor)
{
    const char *name;
    double worst = model_worst_gradient(got, want, relative, floor, &name);
    double loss = fabs(got->loss_sum - want->loss_sum) / fabs(want->loss_sum);
    if (!(worst <= 1) || !(loss <= loss_tolerance))
        fail_msg("sp %d H %d K %d S %d: loss differs by %g, %s by %g times what is allowed", sp,
                 c->H, c->K, (int)c->S, loss, name, worst);
    for (int64_t i = 0; i < c->S; i++)
        assert_true(fabs((double)got->losses[i] - (double)want->losses[i]) <=
                    loss_tolerance * 10 * (1 + fabs((double)want->losses[i])));
}

static const int shapes[][2] = {{8, 8}, {8, 2}, {7, 7}, {6, 2}, {28, 4}};
static const int sizes[] = {2, 3, 4, 8};

static void check_layouts(struct model_case c, double loss, double relative, double floor)
{
    struct model_result one, many;
    model_run(&c, 1, true, &one);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        model_run(&c, sizes[k], true, &many);
        check_same(&c, &many, &one, sizes[k], loss, relative, floor);
        model_result_clear(&many);
    }
    model_result_clear(&one);
}

/* Norms of heads, windows shorter and longer than a shard, and every rope type, several long documents among them. */
static void test_layouts_of_families(void **state)
{
    (void)state;
    static const int64_t documents[] = {0, 1, 18, 41, 41, 60}; /* 1, 17, 23, 0, 19 and 40 tokens */
    static const int64_t windows[] = {0, 1, 7, 30};
    for (int type = 0; type < ULY_ROPE_TYPES; type++)
        for (int k = 0; k < 2; k++) {
            struct model_case c = model_case_small(k ? 5 : 6, k ? 5 : 2);
            c.D = 10;
            c.rope = (enum uly_rope_type)type;
            c.qk_norm = true;
            c.qkv_bias = k;
            c.window = windows[(type + 3 * k) % 4];
            c.layers_without_window = type % 2;
            c.heads_per_stage = k;
            c.token_tile = 7;
            give_rows(&c, 100, documents, 6);
            check_layouts(c, 1e-12, 1e-11, 1e-13);
            take_rows(&c);
        }
}

/* In float64 a layout may differ from one rank by rounding only: 1e-11 leaves no room for a fault. */
static void test_layouts_float64(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct model_case c = model_case_small(shapes[i][0], shapes[i][1]);
        c.D = 4;
        c.qkv_bias = c.o_bias = c.mlp_bias = i % 2;
        c.tied = i == 2;
        c.token_tile = i == 1 ? 5 : 0;
        give_rows(&c, 53, several, 5);
        check_layouts(c, 1e-12, 1e-11, 1e-13);
        take_rows(&c);
    }
}

static void test_layouts_float32(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct model_case c = model_case_small(shapes[i][0], shapes[i][1]);
        c.backend = "cpu";
        c.dtype = ULY_DTYPE_F32;
        c.checkpointing = i % 2 ? ULY_CHECKPOINT_NONE : ULY_CHECKPOINT_FULL;
        give_rows(&c, 211, several, 5);
        check_layouts(c, 1e-6, 1e-5, 1e-7);
        take_rows(&c);
    }
}

/* Lengths below the number of ranks, and one: empty shards enter every exchange. */
static void test_short_rows(void **state)
{
    (void)state;
    static const int64_t starts[] = {0};
    for (int64_t S = 2; S <= 9; S++) {
        struct model_case c = model_case_small(6, 2);
        give_rows(&c, S, starts, 1);
        ((int32_t *)(uintptr_t)c.labels)[0] = 1; /* at least one label */
        check_layouts(c, 1e-12, 1e-11, 1e-13);
        take_rows(&c);
    }
}

/* One label, in each shard in turn: the gradient is that of one rank each time. */
static void test_one_label_in_each_shard(void **state)
{
    (void)state;
    static const int64_t starts[] = {0};
    struct model_case c = model_case_small(8, 2);
    give_rows(&c, 31, starts, 1);
    int32_t *labels = (int32_t *)(uintptr_t)c.labels;
    for (int place = 0; place < 4; place++) {
        for (int64_t i = 0; i < c.S; i++)
            labels[i] = ULY_IGNORE_LABEL;
        labels[place * 8 + 3] = 7;
        check_layouts(c, 1e-12, 1e-11, 1e-13);
    }
    take_rows(&c);
}

static double relative_l2(const struct model_result *got, const struct model_result *want, int p,
                          double least)
{
    double difference = 0, norm = 0;
    for (int64_t i = want->first[p]; i < want->first[p + 1]; i++) {
        difference += (got->grads[i] - want->grads[i]) * (got->grads[i] - want->grads[i]);
        norm += want->grads[i] * want->grads[i];
    }
    return sqrt(difference) / fmax(sqrt(norm), least);
}

/* bfloat16: a layout's error against float32 is at most 1.5 times one rank's, tensor by tensor. */
static void test_layouts_bfloat16(void **state)
{
    (void)state;
    static const int64_t documents[] = {0, 40, 41, 150};
    struct model_case c = model_case_small(6, 2);
    struct model_result exact, one, many;
    c.backend = "cpu";
    c.dtype = ULY_DTYPE_F32;
    c.E = 48;
    c.D = 16;
    give_rows(&c, 307, documents, 4);
    model_run(&c, 1, true, &exact);
    c.dtype = ULY_DTYPE_BF16;
    model_run(&c, 1, true, &one);
    double largest = 0;
    for (int p = 0; p < exact.n_params; p++)
        largest = fmax(largest, relative_l2(&one, &exact, p, 1e-30));
    assert_true(largest < 0.05);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        model_run(&c, sizes[k], true, &many);
        assert_true(fabs(many.loss_sum - one.loss_sum) <= 1e-3 * one.loss_sum);
        for (int p = 0; p < exact.n_params; p++) {
            double allowed = 1.5 * relative_l2(&one, &exact, p, 1e-30);
            double error = relative_l2(&many, &exact, p, 1e-30);
            if (!(error <= allowed))
                fail_msg("sp %d: %s has error %g, one rank %g", sizes[k], exact.names[p], error,
                         allowed / 1.5);
        }
        model_result_clear(&many);
    }
    model_result_clear(&exact);
    model_result_clear(&one);
    take_rows(&c);
}

/* Stages, tiles and checkpointing are memory options: they change no result. */
static void test_memory_options(void **state)
{
    (void)state;
    static const int64_t lengths[] = {9, 64, 130};
    for (size_t k = 0; k < 3; k++) {
        struct model_case c = model_case_small(6, 3);
        struct model_result base, other;
        give_rows(&c, lengths[k], several, k == 0 ? 2 : 5);
        model_run(&c, 1, true, &base);
        for (int option = 0; option < 3; option++) {
            struct model_case v = c;
            if (option == 0)
                v.checkpointing = ULY_CHECKPOINT_NONE;
            else if (option == 1)
                v.token_tile = 7;
            else
                v.heads_per_stage = 1;
            model_run(&v, 1, true, &other);
            check_same(&v, &other, &base, 1, 1e-13, 1e-12, 1e-14);
            model_result_clear(&other);
        }
        model_result_clear(&base);
        take_rows(&c);
    }
}

/* A token of one document changes no bit of another document's losses, on any number of ranks. */
static void test_documents_do_not_leak(void **state)
{
    (void)state;
    for (int sp = 1; sp <= 4; sp++) {
        struct model_case c = model_case_small(4, 2);
        struct model_result before, after;
        give_rows(&c, 53, several, 5);
        model_run(&c, sp, false, &before);
        int32_t *ids = (int32_t *)(uintptr_t)c.ids;
        ids[20] = (ids[20] + 1) % (int32_t)c.V; /* in document 3, tokens 15 ... 37 */
        model_run(&c, sp, false, &after);
        int changed = 0;
        for (int64_t i = 0; i < c.S; i++) {
            if (i < 20 || i >= 38)
                assert_true(before.losses[i] == after.losses[i]);
            changed += before.losses[i] != after.losses[i];
        }
        assert_true(changed > 5); /* the probe itself sees something */
        model_result_clear(&before);
        model_result_clear(&after);
        take_rows(&c);
    }
}

/* One layer with window W: a token changes itself and the W - 1 after it, to the bit no other. */
static void test_windows_do_not_leak(void **state)
{
    (void)state;
    static const int64_t starts[] = {0};
    for (int64_t window = 1; window <= 9; window += 4)
        for (int fast = 0; fast < 2; fast++) {
            struct model_case c = model_case_small(4, 2);
            struct model_result before, after;
            c.backend = fast ? "cpu" : "cpu:ref";
            c.dtype = fast ? ULY_DTYPE_F32 : ULY_DTYPE_F64;
            c.layers = 1;
            c.window = window;
            give_rows(&c, 53, starts, 1);
            for (int64_t i = 0; i < c.S; i++) /* every token has a loss */
                ((int32_t *)(uintptr_t)c.labels)[i] = (int32_t)(i % c.V);
            model_run(&c, 1, false, &before);
            int32_t *ids = (int32_t *)(uintptr_t)c.ids;
            ids[20] = (ids[20] + 1) % (int32_t)c.V;
            model_run(&c, 1, false, &after);
            for (int64_t i = 0; i < c.S; i++)
                if ((before.losses[i] != after.losses[i]) != (i >= 20 && i < 20 + window))
                    fail_msg("window %d: token %d %s", (int)window, (int)i,
                             before.losses[i] == after.losses[i] ? "is the same" : "has changed");
            model_result_clear(&before);
            model_result_clear(&after);
            take_rows(&c);
        }
}

/* A document's losses in a batch of several are those of the document alone, also where the rope depends on its length: 23
 * tokens are above the limit, of 37 others some are and some are not. */
static void check_document_alone(enum uly_rope_type rope)
{
    static const int64_t starts[] = {0};
    struct model_case c = model_case_small(4, 2), alone;
    c.rope = rope;
    struct model_result all, one;
    give_rows(&c, 53, several, 5);
    model_run(&c, 3, false, &all);
    alone = c;
    alone.S = 23;
    alone.starts = starts;
    alone.n_docs = 1;
    alone.ids += 15;
    alone.labels += 15;
    model_run(&alone, 1, false, &one);
    for (int64_t i = 0; i < 23; i++)
        assert_true(fabsf(all.losses[15 + i] - one.losses[i]) <= 1e-6f * (1 + one.losses[i]));
    model_result_clear(&all);
    model_result_clear(&one);
    take_rows(&c);
}

/* Long rows are cut on whole numeric tiles, so a token meets the same kernel calls in every layout: its loss is the same to
 * the bit on one rank, on two and with two threads. */
static void test_long_rows_to_the_bit(void **state)
{
    (void)state;
    static const int64_t starts[] = {0, 3000, 3001};
    enum { S = 2 * 16 * 256 + 77 };
    for (int bf16 = 0; bf16 < 2; bf16++) {
        struct model_case c = model_case_small(2, 1);
        struct model_result one, other;
        c.backend = "cpu";
        c.dtype = bf16 ? ULY_DTYPE_BF16 : ULY_DTYPE_F32;
        give_rows(&c, S, starts, 3);
        model_run(&c, 1, false, &one);
        for (int layout = 0; layout < 2; layout++) {
            c.threads = layout ? 2 : 1;
            model_run(&c, layout ? 1 : 2, false, &other);
            for (int64_t i = 0; i < S; i++)
                if (one.losses[i] != other.losses[i])
                    fail_msg("token %d: loss %.9g, not %.9g (%s)", (int)i, (double)other.losses[i],
                             (double)one.losses[i], layout ? "two threads" : "two ranks");
            model_result_clear(&other);
        }
        model_result_clear(&one);
        take_rows(&c);
    }
}

static void test_documents_alone(void **state)
{
    (void)state;
    check_document_alone(ULY_ROPE_DEFAULT);
    check_document_alone(ULY_ROPE_DYNAMIC);
    check_document_alone(ULY_ROPE_LONGROPE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finite_differences),
        cmocka_unit_test(test_layouts_float64),
        cmocka_unit_test(test_layouts_float32),
        cmocka_unit_test(test_layouts_bfloat16),
        cmocka_unit_test(test_short_rows),
        cmocka_unit_test(test_one_label_in_each_shard),
        cmocka_unit_test(test_memory_options),
        cmocka_unit_test(test_documents_do_not_leak),
        cmocka_unit_test(test_documents_alone),
        cmocka_unit_test(test_long_rows_to_the_bit),
        cmocka_unit_test(test_finite_differences_of_families),
        cmocka_unit_test(test_layouts_of_families),
        cmocka_unit_test(test_windows_do_not_leak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
