/* SPDX-License-Identifier: MIT
 *
 * cpu:ref's backward operations against central differences of its forward ones, in float64. Gradients that are added to
 * start from 0.5, so that an overwrite shows. The loss of a forward is sum(weight * output), the weights being the random
 * output gradient.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "support/backend_support.h"

#define F64 ULY_DTYPE_F64

typedef double (*loss_fn)(void *problem);

static double weighted_sum(struct uly_tensor output, struct uly_tensor weight)
{
    double sum = 0;
    for (int64_t i = 0; i < output.shape[0]; i++)
        for (int64_t j = 0; j < uly_tensor_width(&output); j++)
            sum += bed_get(output, i, j) * bed_get(weight, i, j);
    return sum;
}

/* gradient[i, j] - start against (loss(x + h) - loss(x - h)) / 2h: the difference's own error is about 1e-10. */
static void check_gradient(const char *what, loss_fn loss, void *problem, struct uly_tensor x,
                           struct uly_tensor gradient, double start)
{
    const double h = 1e-5;
    assert_int_equal(uly_tensor_count(&x), uly_tensor_count(&gradient));
    for (int64_t i = 0; i < x.shape[0]; i++) {
        for (int64_t j = 0; j < uly_tensor_width(&x); j++) {
            double kept = bed_get(x, i, j);
            bed_set(x, i, j, kept + h);
            double above = loss(problem);
            bed_set(x, i, j, kept - h);
            double below = loss(problem);
            bed_set(x, i, j, kept);
            double wanted = (above - below) / (2 * h), got = bed_get(gradient, i, j) - start;
            if (!(fabs(got - wanted) <= 1e-8 * fmax(1, fabs(wanted))))
                fail_msg("%s[%lld, %lld] is %.12g, the difference quotient %.12g", what,
                         (long long)i, (long long)j, got, wanted);
        }
    }
}

static struct uly_tensor random_matrix(struct bed *b, int64_t rows, int64_t width, int64_t pad,
                                       double scale)
{
    struct uly_tensor t = bed_matrix(b, F64, rows, width, pad);
    bed_random(b, t, scale);
    return t;
}

static struct uly_tensor random_vector(struct bed *b, int64_t n)
{
    struct uly_tensor t = bed_vector(b, F64, n);
    bed_random(b, t, 1);
    return t;
}

static struct uly_tensor half_matrix(struct bed *b, int64_t rows, int64_t width, int64_t pad)
{
    struct uly_tensor t = bed_matrix(b, F64, rows, width, pad);
    bed_ok(uly_fill(b->be, t, 0.5));
    return t;
}

/* ------------------------------------------------------------------ token-wise */

struct norm {
    struct bed *b;
    struct uly_rmsnorm_fwd_args fwd;
    struct uly_tensor dy;
};

static double norm_loss(void *problem)
{
    struct norm *p = problem;
    bed_ok(uly_rmsnorm_fwd(p->b->be, &p->fwd));
    return weighted_sum(p->fwd.y, p->dy);
}

static void test_rmsnorm(void **state)
{
    (void)state;
    struct bed b;
    bed_open(&b, "cpu:ref", 1);
    static const int64_t widths[] = {1, 7, 67}; /* one more than a block of accumulators, too */
    for (int k = 0; k < 3; k++) {
        bed_reset(&b);
        struct norm p = {.b = &b, .fwd.eps = 1e-2}; /* large enough that a forgotten eps shows */
        int64_t s = 5, e = widths[k];
        p.fwd.x = random_matrix(&b, s, e, 3, 2);
        p.fwd.w = random_vector(&b, e);
        p.fwd.y = bed_matrix(&b, F64, s, e, 0);
        p.dy = random_matrix(&b, s, e, 1, 1);
        struct uly_tensor dx = half_matrix(&b, s, e, 5), dw = bed_vector(&b, F64, e);
        bed_ok(uly_fill(b.be, dw, 0.5));
        struct uly_rmsnorm_bwd_args bwd = {p.fwd.x, p.fwd.w, p.dy, dx, dw, p.fwd.eps};
        bed_ok(uly_rmsnorm_bwd(b.be, &bwd));
        check_gradient("dx", norm_loss, &p, p.fwd.x, dx, 0.5);
        check_gradient("dw", norm_loss, &p, p.fwd.w, dw, 0.5);
        bed_check_sentinels(&b);
    }
    bed_close(&b);
}

struct swiglu {
    struct bed *b;
    struct uly_tensor gate, up, y, dy;
};

static double swiglu_loss(void *problem)
{
    struct swiglu *p = problem;
    bed_ok(uly_swiglu_fwd(p->b->be, p->gate, p->up, p->y));
    return weighted_sum(p->y, p->dy);
}

static void test_swiglu(void **state)
{
    (void)state;
    struct bed b;
    bed_open(&b, "cpu:ref", 1);
    struct swiglu p = {.b = &b};
    p.gate = random_matrix(&b, 6, 5, 1, 3);
    p.up = random_matrix(&b, 6, 5, 0, 1);
    p.dy = random_matrix(&b, 6, 5, 2, 1);
    p.y = bed_matrix(&b, F64, 6, 5, 0);
    struct uly_tensor dgate = bed_matrix(&b, F64, 6, 5, 0), dup = bed_matrix(&b, F64, 6, 5, 3);
    bed_ok(uly_swiglu_bwd(b.be, p.gate, p.up, p.dy, dgate, dup));
    check_gradient("dgate", swiglu_loss, &p, p.gate, dgate, 0);
    check_gradient("dup", swiglu_loss, &p, p.up, dup, 0);
    bed_close(&b);
}

struct embed {
    struct bed *b;
    struct uly_tensor ids, table, x, dx;
};

static double embed_loss(void *problem)
{
    struct embed *p = problem;
    bed_ok(uly_embed_fwd(p->b->be, p->ids, p->table, p->x));
    return weighted_sum(p->x, p->dx);
}

static void test_embed(void **state)
{
    (void)state;
    struct bed b;
    bed_open(&b, "cpu:ref", 1);
    struct embed p = {.b = &b};
    p.ids = bed_vector(&b, ULY_DTYPE_I32, 9);
    bed_random_ids(&b, p.ids, 5); /* 9 of 5: some repeat */
    p.table = random_matrix(&b, 6, 3, 1, 1);
    p.x = bed_matrix(&b, F64, 9, 3, 0);
    p.dx = random_matrix(&b, 9, 3, 2, 1);
    struct uly_tensor dtable = half_matrix(&b, 6, 3, 0);
    bed_ok(uly_embed_bwd(b.be, p.ids, p.dx, dtable));
    check_gradient("dtable", embed_loss, &p, p.table, dtable, 0.5);
    for (int j = 0; j < 3; j++)
        assert_true(bed_get(dtable, 5, j) == 0.5); /* id 5 is in no token */
    bed_close(&b);
}

struct linear {
    struct bed *b;
    struct uly_matmul_args fwd;
    struct uly_tensor dy;
};

static double linear_loss(void *problem)
{
    struct linear *p = problem;
    bed_ok(uly_matmul(p->b->be, &p->fwd));
    return weighted_sum(p->fwd.c, p->dy);
}

/* The three products of a layer, as backend.h lists them, and the gradient of its bias. */
static void test_linear(void **state)
{
    (void)state;
    struct bed b;
    bed_open(&b, "cpu:ref", 1);
    int64_t s = 5, k = 4, n = 3;
    struct linear p = {.b = &b, .fwd.transpose_b = true};
    p.fwd.a = random_matrix(&b, s, k, 1, 1);
    p.fwd.b = random_matrix(&b, n, k, 0, 1);
    p.fwd.bias = random_vector(&b, n);
    p.fwd.c = bed_matrix(&b, F64, s, n, 2);
    p.dy = random_matrix(&b, s, n, 0, 1);
    struct uly_tensor dx = bed_matrix(&b, F64, s, k, 0), dw = half_matrix(&b, n, k, 3);
    struct uly_tensor dbias = bed_vector(&b, F64, n);
    bed_ok(uly_fill(b.be, dbias, 0.5));
    bed_ok(uly_matmul(b.be, &(struct uly_matmul_args){.a = p.dy, .b = p.fwd.b, .c = dx}));
    bed_ok(uly_matmul(
        b.be, &(struct uly_matmul_args){
                  .a = p.dy, .b = p.fwd.a, .c = dw, .transpose_a = true, .accumulate = true}));
    bed_ok(uly_column_sum(b.be, p.dy, dbias));
    check_gradient("dx", linear_loss, &p, p.fwd.a, dx, 0);
    check_gradient("dw", linear_loss, &p, p.fwd.b, dw, 0.5);
    check_gradient("dbias", linear_loss, &p, p.fwd.bias, dbias, 0.5);
    bed_close(&b);
}

/* ------------------------------------------------------------------ heads */

struct rope {
    struct bed *b;
    struct uly_head_move_args fwd;
    struct uly_tensor dy;
};

static double rope_loss(void *problem)
{
    struct rope *p = problem;
    bed_ok(uly_head_move(p->b->be, &p->fwd));
    return weighted_sum(p->fwd.dst.t, p->dy);
}

/* The inverse rotation is the forward one's transpose, so it carries gradients home; the bias gets their column sums. */
static void test_rope(void **state)
{
    (void)state;
    struct bed b;
    bed_open(&b, "cpu:ref", 1);
    int n = 2, dim = 6;
    int64_t rows = 4;
    struct bed_heads src, dst, d_dst, d_src;
    bed_token_heads(&b, &src, F64, n, rows, dim, 1);
    bed_random(&b, src.v.t, 1);
    bed_block_heads(&b, &dst, F64, n, rows, dim, true);
    bed_block_heads(&b, &d_dst, F64, n, rows, dim, true);
    bed_random(&b, d_dst.v.t, 1);
    bed_token_heads(&b, &d_src, F64, n, rows, dim, 2);
    bed_ok(uly_fill(b.be, d_src.v.t, 0.5));
    struct rope p = {.b = &b, .fwd = {.src = src.v, .dst = dst.v}, .dy = d_dst.v.t};
    p.fwd.rope = ULY_ROPE_FORWARD;
    p.fwd.rope_scale = 1.5;
    p.fwd.bias = random_vector(&b, (int64_t)n * dim);
    p.fwd.position = bed_vector(&b, ULY_DTYPE_I64, rows);
    p.fwd.inv_freq = bed_vector(&b, F64, dim / 2);
    for (int i = 0; i < rows; i++)
        bed_set(p.fwd.position, i, 0, i < 2 ? i : i + 1000);
    for (int i = 0; i < dim / 2; i++)
        bed_set(p.fwd.inv_freq, i, 0, pow(10000, -2.0 * i / dim));
    struct uly_head_move_args back = p.fwd;
    back.src = d_dst.v;
    back.dst = d_src.v;
    back.bias = (struct uly_tensor){0};
    back.rope = ULY_ROPE_INVERSE;
    back.accumulate = true;
    bed_ok(uly_head_move(b.be, &back));
    check_gradient("d_src", rope_loss, &p, src.v.t, d_src.v.t, 0.5);
    struct uly_tensor d_bias = bed_vector(&b, F64, (int64_t)n * dim);
    bed_ok(uly_fill(b.be, d_bias, 0.5 - 0.5 * (double)rows)); /* takes away d_src's start */
    bed_ok(uly_column_sum(b.be, d_src.v.t, d_bias));
    check_gradient("d_bias", rope_loss, &p, p.fwd.bias, d_bias, 0.5);
    bed_check_sentinels(&b);
    bed_close(&b);
}

struct attention {
    struct bed *b;
    struct bed_heads q, k, v, o, d_o, lse, delta, dq, dk, dv;
    struct uly_mask mask;
    struct uly_attention_fwd_args fwd;
};

static double attention_loss(void *problem)
{
    struct attention *p = problem;
    bed_ok(uly_attention_fwd(p->b->be, &p->fwd));
    return weighted_sum(p->o.v.t, p->d_o.v.t);
}

static void random_heads(struct bed *b, struct bed_heads *v, int n, int64_t rows, int dim)
{
    bed_token_heads(b, v, F64, n, rows, dim, 1);
    bed_random(b, v->v.t, 1);
}

static void attention_open(struct attention *p, struct bed *b, int n, int n_kv, int dim,
                           const int *kv_of, int64_t q_rows, int64_t k_rows)
{
    p->b = b;
    random_heads(b, &p->q, n, q_rows, dim);
    random_heads(b, &p->k, n_kv, k_rows, dim);
    random_heads(b, &p->v, n_kv, k_rows, dim);
    random_heads(b, &p->d_o, n, q_rows, dim);
    bed_token_heads(b, &p->o, F64, n, q_rows, dim, 1);
    bed_block_heads(b, &p->lse, F64, n, q_rows, 1, true);
    bed_block_heads(b, &p->delta, F64, n, q_rows, 1, false);
    bed_token_heads(b, &p->dq, F64, n, q_rows, dim, 0);
    bed_token_heads(b, &p->dk, F64, n_kv, k_rows, dim, 2);
    bed_token_heads(b, &p->dv, F64, n_kv, k_rows, dim, 3);
    bed_ok(uly_fill(b->be, p->dq.v.t, 0.5));
    bed_ok(uly_fill(b->be, p->dk.v.t, 0.5));
    bed_ok(uly_fill(b->be, p->dv.v.t, 0.5));
    p->fwd = (struct uly_attention_fwd_args){.q = p->q.v,
                                             .k = p->k.v,
                                             .v = p->v.v,
                                             .o = p->o.v,
                                             .lse = p->lse.v,
                                             .kv_of = kv_of,
                                             .mask = &p->mask,
                                             .scale = 0.7};
}

/* The backward of rows [k0, k0 + count) of the keys, into the same rows of dk and dv. */
static void attention_back(struct attention *p, int64_t k0, int64_t count)
{
    struct uly_attention_bwd_args bwd = {.q = p->q.v,
                                         .k = p->k.v,
                                         .v = p->v.v,
                                         .d_o = p->d_o.v,
                                         .lse = p->lse.v,
                                         .delta = p->delta.v,
                                         .dq = p->dq.v,
                                         .dk = p->dk.v,
                                         .dv = p->dv.v,
                                         .kv_of = p->fwd.kv_of,
                                         .mask = &p->mask,
                                         .q_first = p->fwd.q_first,
                                         .k_first = p->fwd.k_first + k0,
                                         .scale = p->fwd.scale};
    struct uly_heads *keys[] = {&bwd.k, &bwd.v, &bwd.dk, &bwd.dv};
    for (int i = 0; i < 4; i++) {
        keys[i]->t = uly_tensor_rows(keys[i]->t, k0, count);
        keys[i]->rows = count;
    }
    bed_ok(uly_attention_bwd(p->b->be, &bwd));
}

static void attention_check(struct attention *p)
{
    check_gradient("dq", attention_loss, p, p->q.v.t, p->dq.v.t, 0.5);
    check_gradient("dk", attention_loss, p, p->k.v.t, p->dk.v.t, 0.5);
    check_gradient("dv", attention_loss, p, p->v.v.t, p->dv.v.t, 0.5);
    bed_check_sentinels(p->b);
}

static const int kv_of_gqa[] = {0, 0, 1, 1,
                                0}; /* not sorted: a kv head's queries need not be neighbours */

static void attention_case(struct uly_mask mask, int dim, int64_t q_first, int64_t q_rows,
                           int64_t k_first, int64_t k_rows)
{
    struct bed b;
    bed_open(&b, "cpu:ref", 1);
    struct attention p;
    attention_open(&p, &b, 5, 2, dim, kv_of_gqa, q_rows, k_rows);
    p.mask = mask;
    p.fwd.q_first = q_first;
    p.fwd.k_first = k_first;
    attention_loss(&p);
    bed_ok(uly_head_dot(b.be, &p.o.v, &p.d_o.v, &p.delta.v));
    attention_back(&p, 0, k_rows);
    attention_check(&p);
    bed_close(&b);
}

static const int64_t one[] = {0}, four[] = {0, 1, 2, 7};

static void test_attention_causal(void **state)
{
    (void)state;
    attention_case((struct uly_mask){7, one, 1, 0}, 3, 0, 7, 0, 7);
}

static void test_attention_wide_heads(void **state)
{
    (void)state;
    attention_case((struct uly_mask){3, one, 1, 0}, 67, 0, 3, 0, 3);
}

static void test_attention_window(void **state)
{
    (void)state;
    attention_case((struct uly_mask){9, one, 1, 3}, 2, 0, 9, 0, 9);
}

static void test_attention_documents(void **state)
{
    (void)state;
    attention_case((struct uly_mask){11, four, 4, 0}, 2, 0, 11, 0, 11);
    attention_case((struct uly_mask){11, four, 4, 2}, 2, 0, 11, 0, 11);
}

/* Queries 3-9 against keys 5-10: 3 and 4 see nothing, keys after 9 are seen by nobody. */
static void test_attention_offsets(void **state)
{
    (void)state;
    attention_case((struct uly_mask){12, one, 1, 0}, 2, 3, 7, 5, 6);
    attention_case((struct uly_mask){12, four, 4, 4}, 2, 3, 7, 5, 6);
}

/* Keys in three calls, as in a ring: LSE and delta of the whole, contributions summed. */
static void test_attention_in_key_blocks(void **state)
{
    (void)state;
    struct bed b;
    bed_open(&b, "cpu:ref", 1);
    struct attention p;
    attention_open(&p, &b, 5, 2, 3, kv_of_gqa, 11, 11);
    p.mask = (struct uly_mask){11, four, 4, 5};
    attention_loss(&p);
    bed_ok(uly_head_dot(b.be, &p.o.v, &p.d_o.v, &p.delta.v));
    attention_back(&p, 7, 4);
    attention_back(&p, 0, 3);
    attention_back(&p, 3, 4);
    attention_check(&p);
    bed_close(&b);
}

/* ------------------------------------------------------------------ loss */

struct loss {
    struct bed *b;
    struct uly_cross_entropy_args args;
};

static double sum_of_losses(void *problem)
{
    struct loss *p = problem;
    bed_ok(uly_cross_entropy(p->b->be, &p->args));
    double sum = 0;
    for (int64_t i = 0; i < p->args.loss.shape[0]; i++)
        sum += bed_get(p->args.loss, i, 0);
    return sum * p->args.factor;
}

static void test_cross_entropy(void **state)
{
    (void)state;
    struct bed b;
    bed_open(&b, "cpu:ref", 1);
    struct loss p = {.b = &b, .args.factor = 0.25};
    p.args.logits = random_matrix(&b, 5, 7, 1, 3);
    p.args.labels = bed_vector(&b, ULY_DTYPE_I32, 5);
    bed_random_ids(&b, p.args.labels, 7);
    bed_set(p.args.labels, 2, 0, ULY_IGNORE_LABEL);
    p.args.loss = bed_vector(&b, F64, 5);
    p.args.dlogits = bed_matrix(&b, F64, 5, 7, 2);
    struct uly_tensor dlogits = p.args.dlogits;
    sum_of_losses(&p);
    p.args.dlogits = (struct uly_tensor){0};
    check_gradient("dlogits", sum_of_losses, &p, p.args.logits, dlogits, 0);
    bed_check_sentinels(&b);
    bed_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rmsnorm),
        cmocka_unit_test(test_swiglu),
        cmocka_unit_test(test_embed),
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_attention_causal),
        cmocka_unit_test(test_attention_wide_heads),
        cmocka_unit_test(test_attention_window),
        cmocka_unit_test(test_attention_documents),
        cmocka_unit_test(test_attention_offsets),
        cmocka_unit_test(test_attention_in_key_blocks),
        cmocka_unit_test(test_cross_entropy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
