/* SPDX-License-Identifier: MIT
 *
 * The cpu backend's attention kernels, every width that this machine runs and the 16-lane panels besides, against
 * cpu:ref: sizes around the borders of panels and blocks, masks, slices of queries and keys, both types, and the same
 * bits with one, two and three threads.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cpu/attention.h"
#include "backend/cpu/cpu_impl.h"
#include "support/attention_wide.h"
#include "support/backend_support.h"

/* ------------------------------------------------------------------ the kernels of this machine */

enum { MAX_TABLES = 4, MAX_THREADS = 3 };

static int tables_here(const struct uly_cpu_attention_kernels *out[MAX_TABLES])
{
    int n = 0;
    out[n++] = &uly_cpu_attention_generic;
    out[n++] = &uly_test_attention_wide;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        out[n++] = &uly_cpu_attention_avx2;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        out[n++] = &uly_cpu_attention_avx512;
#endif
    return n;
}

/* A cpu backend that has the attention's scratch and nothing else. The scratch is all NaN, with sentinels behind it. */
struct bench {
    struct uly_backend be;
    struct uly_cpu cpu;
    int64_t bytes;
    int pokes;
};

static void count_poke(void *context)
{
    ++*(int *)context;
}

static void bench_open(struct bench *s, int threads)
{
    memset(s, 0, sizeof *s);
    s->cpu.scratch_stride = uly_cpu_attention_scratch_bytes();
    assert_int_equal(s->cpu.scratch_stride % 64, 0);
    s->bytes = threads * s->cpu.scratch_stride;
    s->cpu.scratch = aligned_alloc(64, (size_t)s->bytes + 4096);
    assert_non_null(s->cpu.scratch);
    memset(s->cpu.scratch, 0xff, (size_t)s->bytes + 4096);
    s->be.n_threads = threads;
    s->be.impl = &s->cpu;
    s->be.poke = count_poke;
    s->be.poke_context = &s->pokes;
}

static void bench_close(struct bench *s)
{
    for (int64_t i = 0; i < 4096; i++)
        assert_int_equal(s->cpu.scratch[s->bytes + i], 0xff);
    free(s->cpu.scratch);
}

/* ------------------------------------------------------------------ cases */

enum layout { TOKENS, BLOCKS };

struct attention_case {
    int64_t S, q_first, q_rows, k_first, k_rows;
    int dim, n, n_kv, kv_of[8];
    int64_t window, n_docs, starts[6];
    enum uly_dtype dtype;
    enum layout layout;
    int blind_every; /* > 0: the backward gets LSE -inf for every so manieth query, as of one that saw nothing */
    double scale; /* of the scores; 0: 1 / sqrt(dim) */
};

#define WHOLE(S) (S), 0, (S), 0, (S)
#define ONE_DOC                                                                                    \
    1,                                                                                             \
    {                                                                                              \
        0                                                                                          \
    }
#define F32  ULY_DTYPE_F32
#define BF16 ULY_DTYPE_BF16

static const struct attention_case cases[] = {
    /* lengths, one document */
    {WHOLE(1), 64, 1, 1, {0}, 0, ONE_DOC, F32, TOKENS, 0, 0},
    {WHOLE(2), 8, 2, 1, {0, 0}, 0, ONE_DOC, F32, TOKENS, 0, 0},
    {WHOLE(3), 16, 2, 2, {0, 1}, 0, ONE_DOC, BF16, BLOCKS, 0, 0},
    {WHOLE(17), 80, 3, 1, {0, 0, 0}, 0, ONE_DOC, F32, BLOCKS, 0, 0},
    {WHOLE(64), 64, 2, 2, {0, 1}, 0, ONE_DOC, F32, TOKENS, 0, 0},
    {WHOLE(65), 128, 2, 1, {0, 0}, 0, ONE_DOC, F32, TOKENS, 0, 0},
    {WHOLE(193), 64, 1, 1, {0}, 0, ONE_DOC, F32, BLOCKS, 0, 0},
    {WHOLE(257), 8, 4, 2, {0, 0, 1, 1}, 0, ONE_DOC, F32, TOKENS, 0, 0},
    {WHOLE(257), 64, 3, 2, {0, 0, 1}, 0, ONE_DOC, BF16, TOKENS, 7, 0},
    {WHOLE(600), 16, 2, 1, {0, 0}, 0, ONE_DOC, F32, TOKENS, 0, 0},
    {WHOLE(600), 64, 1, 1, {0}, 0, ONE_DOC, F32, BLOCKS, 13, 0},
    /* head sizes */
    {WHOLE(70), 12, 2, 1, {0, 0}, 0, ONE_DOC, F32, TOKENS, 0, 0},
    {WHOLE(70), 96, 2, 1, {0, 0}, 0, ONE_DOC, F32, TOKENS, 0, 0},
    {WHOLE(70), 33, 1, 1, {0}, 0, ONE_DOC, BF16, TOKENS, 0, 0},
    {WHOLE(131), 160, 1, 1, {0}, 0, ONE_DOC, F32, TOKENS, 0, 0},
    {WHOLE(131), 256, 2, 1, {0, 0}, 0, ONE_DOC, F32, BLOCKS, 0, 0},
    {WHOLE(67), 256, 2, 2, {0, 1}, 0, ONE_DOC, BF16, TOKENS, 0, 0},
    {WHOLE(40), 300, 1, 1, {0}, 0, ONE_DOC, F32, TOKENS, 0, 0}, /* left to cpu:ref */
    /* kv heads: in a mixed order, one of them without a query head; many query heads to one */
    {WHOLE(100), 16, 5, 4, {2, 0, 0, 3, 2}, 0, ONE_DOC, F32, TOKENS, 0, 0},
    {WHOLE(210), 8, 8, 1, {0, 0, 0, 0, 0, 0, 0, 0}, 0, ONE_DOC, BF16, BLOCKS, 0, 0},
    /* scales */
    {WHOLE(100), 16, 1, 1, {0}, 0, ONE_DOC, F32, TOKENS, 0, -0.3},
    {WHOLE(100), 16, 1, 1, {0}, 0, ONE_DOC, F32, TOKENS, 0, 1e-30},
    /* windows and documents */
    {WHOLE(257), 16, 2, 1, {0, 0}, 1, ONE_DOC, F32, TOKENS, 0, 0},
    {WHOLE(600), 16, 2, 1, {0, 0}, 100, ONE_DOC, F32, BLOCKS, 0, 0},
    {WHOLE(530), 32, 1, 1, {0}, 255, 3, {0, 3, 260}, BF16, TOKENS, 0, 0},
    {WHOLE(600), 16, 3, 2, {0, 1, 1}, 0, 5, {0, 1, 190, 193, 451}, F32, TOKENS, 11, 0},
    {WHOLE(300), 24, 2, 1, {0, 0}, 64, 4, {0, 95, 97, 224}, F32, BLOCKS, 0, 0},
    {WHOLE(90),
     64,
     1,
     1,
     {0},
     0,
     6,
     {0, 0, 31, 31, 90, 90},
     F32,
     TOKENS,
     0,
     0}, /* empty documents */
    /* slices: late queries; keys in the middle; queries before, over and behind the keys; nothing visible; no keys */
    {450, 301, 149, 0, 450, 16, 2, 1, {0, 0}, 0, ONE_DOC, F32, TOKENS, 0, 0},
    {600, 97, 400, 203, 257, 16, 2, 1, {0, 0}, 0, ONE_DOC, F32, BLOCKS, 0, 0},
    {600, 97, 400, 203, 257, 16, 2, 1, {0, 0}, 90, 3, {0, 204, 399}, F32, TOKENS, 5, 0},
    {600, 400, 200, 10, 120, 64, 1, 1, {0}, 0, 2, {0, 90}, BF16, TOKENS, 0, 0},
    {600, 400, 200, 10, 120, 16, 1, 1, {0}, 300, ONE_DOC, F32, TOKENS, 0, 0},
    {600, 20, 70, 300, 200, 16, 2, 1, {0, 0}, 0, ONE_DOC, F32, TOKENS, 0, 0},
    {600, 500, 70, 100, 200, 16, 2, 1, {0, 0}, 0, 2, {0, 400}, F32, TOKENS, 0, 0},
    {40, 0, 9, 20, 0, 8, 2, 1, {0, 0}, 0, ONE_DOC, F32, TOKENS, 0, 0},
};
enum { N_CASES = sizeof cases / sizeof *cases };

/* A bed's tensors of one case. */
struct attention_bed {
    struct bed_heads q, k, v, o, d_o, lse, delta, dq, dk, dv;
    struct uly_mask mask;
    struct uly_attention_fwd_args fwd;
    struct uly_attention_bwd_args bwd;
};

static void make_heads(struct bed *b, const struct attention_case *c, struct bed_heads *out,
                       bool of_keys, enum uly_dtype dtype, int dim, double size)
{
    const int n = of_keys ? c->n_kv : c->n;
    const int64_t rows = of_keys ? c->k_rows : c->q_rows;
    if (c->layout == TOKENS)
        bed_token_heads(b, out, dtype, n, rows, dim, 3);
    else
        bed_block_heads(b, out, dtype, n, rows, dim, true);
    if (size > 0)
        bed_random(b, out->v.t, size);
}

static void make_case(struct bed *b, const struct attention_case *c, struct attention_bed *a)
{
    bed_reset(b);
    make_heads(b, c, &a->q, false, c->dtype, c->dim, 2);
    make_heads(b, c, &a->k, true, c->dtype, c->dim, 1);
    make_heads(b, c, &a->v, true, c->dtype, c->dim, 1);
    make_heads(b, c, &a->d_o, false, c->dtype, c->dim, 1);
    make_heads(b, c, &a->o, false, c->dtype, c->dim, 0);
    make_heads(b, c, &a->lse, false, F32, 1, 0);
    make_heads(b, c, &a->delta, false, F32, 1, 0);
    make_heads(b, c, &a->dq, false, F32, c->dim, 0.1); /* added to, not overwritten */
    make_heads(b, c, &a->dk, true, F32, c->dim, 0.1);
    make_heads(b, c, &a->dv, true, F32, c->dim, 0.1);
    a->mask = (struct uly_mask){c->S, c->starts, c->n_docs, c->window};
    const double scale = c->scale != 0 ? c->scale : 1 / sqrt(c->dim);
    a->fwd = (struct uly_attention_fwd_args){a->q.v,     a->k.v,   a->v.v,   a->o.v,
                                             a->lse.v,   c->kv_of, &a->mask, c->q_first,
                                             c->k_first, scale,    false};
    a->bwd = (struct uly_attention_bwd_args){a->q.v,     a->k.v,     a->v.v,     a->d_o.v, a->lse.v,
                                             a->delta.v, a->dq.v,    a->dk.v,    a->dv.v,  c->kv_of,
                                             &a->mask,   c->q_first, c->k_first, scale};
}

static float *head_number(const struct bed_heads *x, int h, int64_t row)
{
    return (float *)uly_tensor_address(x->v.t) + x->offset[h] + row * x->stride[h];
}

/* What the backward gets: the reference's LSE and delta, some queries blind. */
static void prepare_backward(struct bed *b, const struct attention_case *c, struct attention_bed *a)
{
    bed_ok(uly_head_dot(b->be, &a->o.v, &a->d_o.v, &a->delta.v));
    for (int h = 0; h < c->n; h++)
        for (int64_t i = 0; c->blind_every > 0 && i < c->q_rows; i += c->blind_every)
            *head_number(&a->lse, h, i) = -INFINITY;
}

static void take_backward_inputs(const struct attention_case *c, const struct attention_bed *from,
                                 struct attention_bed *to)
{
    for (int h = 0; h < c->n; h++)
        for (int64_t i = 0; i < c->q_rows; i++) {
            *head_number(&to->lse, h, i) = *head_number(&from->lse, h, i);
            *head_number(&to->delta, h, i) = *head_number(&from->delta, h, i);
        }
}

static void note_forward(struct bed *b, const struct attention_bed *a)
{
    b->n_outputs = 0;
    bed_output(b, "o", a->o.v.t, BED_ROUNDED);
    bed_output(b, "lse", a->lse.v.t, BED_ROUNDED);
}

static void note_backward(struct bed *b, const struct attention_bed *a)
{
    b->n_outputs = 0;
    bed_output(b, "dq", a->dq.v.t, BED_ROUNDED);
    bed_output(b, "dk", a->dk.v.t, BED_ROUNDED);
    bed_output(b, "dv", a->dv.v.t, BED_ROUNDED);
}

/* ------------------------------------------------------------------ tests */

/* Forward and backward of one case by one table: `got` holds the results of one thread, `again` of more. */
static void run_forward(struct bed *b, const struct uly_cpu_attention_kernels *table, int threads,
                        const struct attention_case *c, struct attention_bed *a)
{
    struct bench s;
    bench_open(&s, threads);
    s.cpu.ref = b->be->ops;
    make_case(b, c, a);
    bed_ok(uly_cpu_attention_fwd(&s.be, table, &a->fwd));
    bench_close(&s);
    bed_check_sentinels(b);
    note_forward(b, a);
}

static void run_backward(struct bed *b, const struct uly_cpu_attention_kernels *table, int threads,
                         const struct attention_case *c, const struct attention_bed *ref,
                         struct attention_bed *a)
{
    struct bench s;
    bench_open(&s, threads);
    s.cpu.ref = b->be->ops;
    make_case(b, c, a);
    take_backward_inputs(c, ref, a);
    bed_ok(uly_cpu_attention_bwd(&s.be, table, &a->bwd));
    bench_close(&s);
    bed_check_sentinels(b);
    note_backward(b, a);
}

static void test_forward_equals_reference(void **state)
{
    (void)state;
    const struct uly_cpu_attention_kernels *tables[MAX_TABLES];
    const int n_tables = tables_here(tables);
    struct bed wanted, got, again;
    struct attention_bed a, x, y;
    bed_open(&wanted, "cpu:ref", 1);
    bed_open(&got, "cpu:ref", 1);
    bed_open(&again, "cpu:ref", 1);
    for (int i = 0; i < N_CASES; i++) {
        make_case(&wanted, &cases[i], &a);
        bed_ok(uly_attention_fwd(wanted.be, &a.fwd));
        note_forward(&wanted, &a);
        for (int t = 0; t < n_tables; t++) {
            char where[64];
            snprintf(where, sizeof where, "%s, case %d", tables[t]->name, i);
            run_forward(&got, tables[t], 1, &cases[i], &x);
            bed_compare(where, &got, &wanted, false);
            for (int threads = 2; threads <= MAX_THREADS; threads++) {
                run_forward(&again, tables[t], threads, &cases[i], &y);
                bed_compare(where, &again, &got, true);
            }
        }
    }
    bed_close(&wanted);
    bed_close(&got);
    bed_close(&again);
}

static void test_backward_equals_reference(void **state)
{
    (void)state;
    const struct uly_cpu_attention_kernels *tables[MAX_TABLES];
    const int n_tables = tables_here(tables);
    struct bed wanted, got, again;
    struct attention_bed a, x, y;
    bed_open(&wanted, "cpu:ref", 1);
    bed_open(&got, "cpu:ref", 1);
    bed_open(&again, "cpu:ref", 1);
    for (int i = 0; i < N_CASES; i++) {
        make_case(&wanted, &cases[i], &a);
        bed_ok(uly_attention_fwd(wanted.be, &a.fwd));
        prepare_backward(&wanted, &cases[i], &a);
        bed_ok(uly_attention_bwd(wanted.be, &a.bwd));
        note_backward(&wanted, &a);
        for (int t = 0; t < n_tables; t++) {
            char where[64];
            snprintf(where, sizeof where, "%s, case %d", tables[t]->name, i);
            run_backward(&got, tables[t], 1, &cases[i], &a, &x);
            bed_compare(where, &got, &wanted, false);
            for (int threads = 2; threads <= MAX_THREADS; threads++) {
                run_backward(&again, tables[t], threads, &cases[i], &a, &y);
                bed_compare(where, &again, &got, true);
            }
        }
    }
    bed_close(&wanted);
    bed_close(&got);
    bed_close(&again);
}

/* Query i and key j are 100 or -100 in one place: scores are 0 and +-1e4. */
static void make_gaps(const struct attention_case *c, struct attention_bed *a)
{
    for (int64_t i = 0; i < c->S; i++)
        for (int d = 0; d < c->dim; d++) {
            bed_set(a->q.v.t, i, d, d == i % 5 ? (i % 2 ? 100 : -100) : 0);
            bed_set(a->k.v.t, i, d, d == i % 7 ? (i % 3 ? 100 : -100) : 0);
        }
}

/* All of got within tolerance of the largest of wanted. */
static void compare_loosely(const char *where, struct uly_tensor got, struct uly_tensor wanted,
                            double tolerance)
{
    double largest = 0, error = 0;
    for (int64_t i = 0; i < wanted.shape[0]; i++)
        for (int64_t j = 0; j < uly_tensor_width(&wanted); j++) {
            const double x = bed_get(got, i, j), y = bed_get(wanted, i, j);
            assert_true(isfinite(x));
            largest = fmax(largest, fabs(y));
            error = fmax(error, fabs(x - y));
        }
    if (!(error <= tolerance * largest))
        fail_msg("%s: off by %g of %g", where, error, largest);
}

/* Weights are 0 or an even share and nothing overflows. With a fused multiply-add an LSE of 1e4 costs the backward no
 * digit, although neighbours in float32 are a thousandth apart there; without one it costs some. */
static void test_gaps_of_ten_thousand(void **state)
{
    (void)state;
    static const struct attention_case scales[] = {
        {WHOLE(200), 16, 1, 1, {0}, 0, ONE_DOC, F32, TOKENS, 0, 1.0},
        {WHOLE(200), 16, 1, 1, {0}, 0, ONE_DOC, F32, TOKENS, 0, 1.1},
    };
    const struct uly_cpu_attention_kernels *tables[MAX_TABLES];
    const int n_tables = tables_here(tables);
    struct bed wanted, got;
    struct attention_bed a, x;
    bed_open(&wanted, "cpu:ref", 1);
    bed_open(&got, "cpu:ref", 1);
    for (int i = 0; i < 2; i++) {
        make_case(&wanted, &scales[i], &a);
        make_gaps(&scales[i], &a);
        bed_ok(uly_attention_fwd(wanted.be, &a.fwd));
        prepare_backward(&wanted, &scales[i], &a);
        bed_ok(uly_attention_bwd(wanted.be, &a.bwd));
        for (int t = 0; t < n_tables; t++) {
            struct bench s;
            bench_open(&s, 2);
            make_case(&got, &scales[i], &x);
            make_gaps(&scales[i], &x);
            bed_ok(uly_cpu_attention_fwd(&s.be, tables[t], &x.fwd));
            note_forward(&wanted, &a);
            note_forward(&got, &x);
            bed_compare(tables[t]->name, &got, &wanted, false);
            take_backward_inputs(&scales[i], &a, &x);
            bed_ok(uly_cpu_attention_bwd(&s.be, tables[t], &x.bwd));
            const bool fused = strncmp(tables[t]->name, "avx", 3) == 0;
            const double tolerance = fused ? 1e-5 : 1e-3;
            compare_loosely(tables[t]->name, x.dq.v.t, a.dq.v.t, tolerance);
            compare_loosely(tables[t]->name, x.dk.v.t, a.dk.v.t, tolerance);
            compare_loosely(tables[t]->name, x.dv.v.t, a.dv.v.t, tolerance);
            bench_close(&s);
        }
    }
    bed_close(&wanted);
    bed_close(&got);
}

/* A hidden key's weight is exactly 0: whatever finite numbers stand there, not a bit of the result moves. */
static void test_hidden_keys_have_no_weight(void **state)
{
    (void)state;
    static const struct attention_case c = {WHOLE(230), 16,       2,   1,      {0, 0}, 0,
                                            2,          {0, 101}, F32, TOKENS, 0,      0};
    const struct uly_cpu_attention_kernels *tables[MAX_TABLES];
    const int n_tables = tables_here(tables);
    struct bed one, two;
    struct attention_bed a, x;
    bed_open(&one, "cpu:ref", 1);
    bed_open(&two, "cpu:ref", 1);
    for (int t = 0; t < n_tables; t++) {
        struct bench s;
        bench_open(&s, 2);
        make_case(&one, &c, &a);
        make_case(&two, &c, &x);
        for (int64_t i = 0; i < 101; i++)
            for (int d = 0; d < c.dim; d++) {
                bed_set(x.k.v.t, i, d, 1e15);
                bed_set(x.v.v.t, i, d, -1e15);
            }
        bed_ok(uly_cpu_attention_fwd(&s.be, tables[t], &a.fwd));
        bed_ok(uly_cpu_attention_fwd(&s.be, tables[t], &x.fwd));
        for (int h = 0; h < c.n; h++)
            for (int64_t i = 101; i < c.S; i++) {
                assert_true(*head_number(&a.lse, h, i) == *head_number(&x.lse, h, i));
                for (int d = 0; d < c.dim; d++)
                    assert_true(bed_head_get(&a.o.v, h, i, d) == bed_head_get(&x.o.v, h, i, d));
            }
        bench_close(&s);
    }
    bed_close(&one);
    bed_close(&two);
}

/* NaN in a visible key reaches the output: it is neither taken for a small score nor lost in a maximum. */
static void test_nan_is_seen(void **state)
{
    (void)state;
    static const struct attention_case c = {WHOLE(50), 16,  1,      1, {0}, 0,
                                            ONE_DOC,   F32, TOKENS, 0, 0};
    const struct uly_cpu_attention_kernels *tables[MAX_TABLES];
    const int n_tables = tables_here(tables);
    struct bed b;
    struct attention_bed a;
    bed_open(&b, "cpu:ref", 1);
    for (int t = 0; t < n_tables; t++) {
        struct bench s;
        bench_open(&s, 1);
        make_case(&b, &c, &a);
        bed_set(a.k.v.t, 20, 3, (double)NAN);
        bed_ok(uly_cpu_attention_fwd(&s.be, tables[t], &a.fwd));
        for (int64_t i = 0; i < c.S; i++) {
            assert_int_equal(isnan(*head_number(&a.lse, 0, i)) != 0, i >= 20);
            assert_int_equal(isnan(bed_head_get(&a.o.v, 0, i, 5)) != 0, i >= 20);
        }
        bench_close(&s);
    }
    bed_close(&b);
}

/* Both directions let communication progress, more often the longer they take. */
static void test_pokes(void **state)
{
    (void)state;
    static const struct attention_case c = {WHOLE(600), 16,  1,      1, {0}, 0,
                                            ONE_DOC,    F32, TOKENS, 0, 0};
    struct bed b;
    struct attention_bed a;
    struct bench s;
    bed_open(&b, "cpu:ref", 1);
    bench_open(&s, 1);
    make_case(&b, &c, &a);
    bed_ok(uly_cpu_attention_fwd(&s.be, &uly_cpu_attention_generic, &a.fwd));
    assert_in_range(s.pokes, 6, 1000);
    s.pokes = 0;
    prepare_backward(&b, &c, &a);
    bed_ok(uly_cpu_attention_bwd(&s.be, &uly_cpu_attention_generic, &a.bwd));
    assert_in_range(s.pokes, 15, 1000);
    bench_close(&s);
    bed_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward_equals_reference),
        cmocka_unit_test(test_backward_equals_reference),
        cmocka_unit_test(test_gaps_of_ten_thousand),
        cmocka_unit_test(test_hidden_keys_have_no_weight),
        cmocka_unit_test(test_nan_is_seen),
        cmocka_unit_test(test_pokes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
