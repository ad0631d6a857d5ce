/* SPDX-License-Identifier: MIT
 *
 * A case is a function that makes tensors in a bed, runs one operation through the bed's backend and notes the results; it
 * is run twice, in a bed of the tested backend and in one of cpu:ref. What it makes depends on the variant and the dtype
 * alone. Sizes: 1, 2, odd ones, one more and one less than widths of vectors, and past the tile of 256 rows.
 */
#include "support/op_cases.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "support/backend_support.h"

/* The dtypes of a case: `model` as asked, acc float32 (no backend but cpu:ref has float64). */
struct kind {
    enum uly_dtype model, acc;
};

struct op_case {
    const char *name;
    int n_variants;
    void (*run)(struct bed *b, struct kind kind, int variant);
};

struct size {
    int64_t rows, width, pad;
};

/* Rows and widths of token-wise tensors. */
static const struct size sizes[] = {{1, 1, 0},  {0, 8, 0},  {3, 17, 0},    {17, 3, 1},   {5, 64, 0},
                                    {7, 65, 3}, {2, 63, 5}, {257, 129, 0}, {300, 96, 32}};
enum { N_SIZES = sizeof sizes / sizeof *sizes };

static struct uly_tensor random_matrix(struct bed *b, enum uly_dtype dtype, struct size s,
                                       double scale)
{
    struct uly_tensor t = bed_matrix(b, dtype, s.rows, s.width, s.pad);
    bed_random(b, t, scale);
    return t;
}

static struct uly_tensor random_vector(struct bed *b, enum uly_dtype dtype, int64_t n, double scale)
{
    struct uly_tensor t = bed_vector(b, dtype, n);
    bed_random(b, t, scale);
    return t;
}

/* ------------------------------------------------------------------ data */

static void run_fill(struct bed *b, struct kind kind, int variant)
{
    struct size s = sizes[variant];
    struct uly_tensor x = bed_matrix(b, kind.model, s.rows, s.width, s.pad);
    bed_ok(uly_fill(b->be, x, -1.25));
    bed_output(b, "x", x, BED_EXACT);
}

static void run_cast(struct bed *b, struct kind kind, int variant)
{
    struct size s = sizes[variant];
    struct uly_tensor acc = random_matrix(b, kind.acc, s, 3);
    struct uly_tensor down = bed_matrix(b, kind.model, s.rows, s.width, s.pad + 1);
    struct uly_tensor up = bed_matrix(b, kind.acc, s.rows, s.width, 0);
    bed_ok(uly_cast(b->be, acc, down));
    bed_ok(uly_cast(b->be, down, up));
    bed_output(b, "down", down, BED_EXACT);
    bed_output(b, "up", up, BED_EXACT);
}

/* Types that only pass through: float16 from files, float64 not at all in `cpu`'s model but in a cast. */
static void run_cast_foreign(struct bed *b, struct kind kind, int variant)
{
    struct size s = sizes[variant];
    static const enum uly_dtype foreign[] = {ULY_DTYPE_F16, ULY_DTYPE_F64};
    for (int i = 0; i < 2; i++) {
        struct uly_tensor x = random_matrix(b, foreign[i], s, 3);
        struct uly_tensor y = bed_matrix(b, kind.model, s.rows, s.width, s.pad);
        struct uly_tensor z = bed_matrix(b, foreign[i], s.rows, s.width, s.pad);
        bed_ok(uly_cast(b->be, x, y));
        bed_ok(uly_cast(b->be, y, z));
        bed_output(b, "to model", y, BED_EXACT);
        bed_output(b, "from model", z, BED_EXACT);
    }
}

static void run_add(struct bed *b, struct kind kind, int variant)
{
    struct size s = sizes[variant];
    struct uly_tensor model = random_matrix(b, kind.model, s, 1);
    struct uly_tensor acc = random_matrix(b, kind.acc, s, 1);
    struct uly_tensor sum = random_matrix(b, kind.model, s, 1);
    bed_ok(uly_add(b->be, model, acc));
    bed_ok(uly_add(b->be, acc, sum));
    bed_output(b, "acc", acc, BED_EXACT); /* one addition, correctly rounded everywhere */
    bed_output(b, "sum", sum, BED_ROUNDED);
}

static void run_scale(struct bed *b, struct kind kind, int variant)
{
    struct uly_tensor x = random_matrix(b, kind.acc, sizes[variant], 1);
    bed_ok(uly_scale(b->be, x, 0.3));
    bed_output(b, "x", x, BED_ROUNDED);
}

static void run_sum_squares(struct bed *b, struct kind kind, int variant)
{
    struct uly_tensor x = random_matrix(b, kind.acc, sizes[variant], 1);
    struct uly_tensor y = random_matrix(b, kind.model, sizes[variant], 100);
    struct uly_tensor out = bed_vector(b, ULY_DTYPE_F64, 2);
    double sum[2];
    bed_ok(uly_sum_squares(b->be, x, &sum[0]));
    bed_ok(uly_sum_squares(b->be, y, &sum[1]));
    for (int i = 0; i < 2; i++)
        bed_set(out, i, 0, sum[i]);
    bed_output(b, "sums", out, BED_ROUNDED);
}

/* ------------------------------------------------------------------ matrix product */

struct product {
    int64_t m, n, k, pad;
};
static const struct product products[] = {
    {1, 1, 1, 0},    {3, 5, 7, 0},     {17, 64, 3, 1},    {64, 17, 65, 0},  {2, 129, 31, 3},
    {5, 4, 0, 0},    {0, 4, 5, 0},     {4, 0, 5, 0},      {257, 33, 64, 0}, {256, 48, 66, 32},
    {1, 300, 64, 0}, {33, 20, 300, 1}, {513, 16, 40, 16},
};
enum { N_PRODUCTS = sizeof products / sizeof *products };

/* The four transposes, each plain, with a bias, and accumulating into model and into acc. */
static void run_matmul(struct bed *b, struct kind kind, int variant)
{
    struct product p = products[variant / 4];
    bool ta = variant & 1, tb = variant & 2;
    struct size a = {ta ? p.k : p.m, ta ? p.m : p.k, p.pad};
    struct size w = {tb ? p.n : p.k, tb ? p.k : p.n, p.pad};
    struct size c = {p.m, p.n, p.pad};
    struct uly_matmul_args args = {.transpose_a = ta, .transpose_b = tb};
    args.a = random_matrix(b, kind.model, a, 1);
    args.b = random_matrix(b, kind.model, w, 0.5);
    struct uly_tensor bias = random_vector(b, kind.model, p.n, 1);
    static const char *const names[] = {"c model",
                                        "c acc",
                                        "c model, accumulated",
                                        "c acc, accumulated",
                                        "c model, bias",
                                        "c acc, bias, accumulated"};
    for (int i = 0; i < 6; i++) {
        enum uly_dtype dtype = i % 2 ? kind.acc : kind.model;
        args.accumulate = i == 2 || i == 3 || i == 5;
        args.bias = i >= 4 ? bias : (struct uly_tensor){0};
        args.c = args.accumulate ? random_matrix(b, dtype, c, 1)
                                 : bed_matrix(b, dtype, c.rows, c.width, c.pad);
        bed_ok(uly_matmul(b->be, &args));
        bed_output(b, names[i], args.c, BED_ROUNDED);
    }
}

static void run_column_sum(struct bed *b, struct kind kind, int variant)
{
    struct size s = sizes[variant];
    struct uly_tensor x = random_matrix(b, kind.model, s, 1);
    struct uly_tensor y = random_matrix(b, kind.acc, s, 1);
    struct uly_tensor out = random_vector(b, kind.acc, s.width, 1);
    bed_ok(uly_column_sum(b->be, x, out));
    bed_ok(uly_column_sum(b->be, y, out));
    bed_output(b, "out", out, BED_ROUNDED);
}

/* ------------------------------------------------------------------ token-wise */

static void run_rmsnorm_fwd(struct bed *b, struct kind kind, int variant)
{
    struct size s = sizes[variant];
    struct uly_rmsnorm_fwd_args args = {.eps = 1e-5};
    args.x = random_matrix(b, kind.model, s, 2);
    args.w = random_vector(b, kind.model, s.width, 1);
    args.y = bed_matrix(b, kind.model, s.rows, s.width, s.pad);
    bed_ok(uly_rmsnorm_fwd(b->be, &args));
    bed_output(b, "y", args.y, BED_ROUNDED);
    args.y = args.x; /* in place */
    bed_ok(uly_rmsnorm_fwd(b->be, &args));
    bed_output(b, "y in x", args.y, BED_ROUNDED);
}

static void run_rmsnorm_bwd(struct bed *b, struct kind kind, int variant)
{
    struct size s = sizes[variant / 3];
    struct uly_rmsnorm_bwd_args args = {.eps = 1e-5};
    args.x = random_matrix(b, kind.model, s, 2);
    args.w = random_vector(b, kind.model, s.width, 1);
    /* variants: everything in the model's dtype; dy acc; dx acc and no dw */
    args.dy = random_matrix(b, variant % 3 == 1 ? kind.acc : kind.model, s, 1);
    args.dx = random_matrix(b, variant % 3 == 2 ? kind.acc : kind.model, s, 1);
    if (variant % 3 != 2)
        args.dw = random_vector(b, kind.acc, s.width, 1);
    bed_ok(uly_rmsnorm_bwd(b->be, &args));
    bed_output(b, "dx", args.dx, BED_ROUNDED);
    if (variant % 3 != 2)
        bed_output(b, "dw", args.dw, BED_ROUNDED);
}

static void run_swiglu(struct bed *b, struct kind kind, int variant)
{
    struct size s = sizes[variant];
    struct uly_tensor gate = random_matrix(b, kind.model, s, 4);
    struct uly_tensor up = random_matrix(b, kind.model, s, 1);
    struct uly_tensor dy = random_matrix(b, kind.model, s, 1);
    struct uly_tensor y = bed_matrix(b, kind.model, s.rows, s.width, s.pad);
    struct uly_tensor dgate = bed_matrix(b, kind.model, s.rows, s.width, 0);
    struct uly_tensor dup = bed_matrix(b, kind.model, s.rows, s.width, s.pad);
    struct uly_tensor dy2 = random_matrix(b, kind.model, s, 1);
    if (s.rows > 1) { /* saturated both ways */
        bed_set(gate, 0, 0, 200);
        bed_set(gate, 1, 0, -200);
    }
    bed_ok(uly_swiglu_fwd(b->be, gate, up, y));
    bed_output(b, "y", y, BED_ROUNDED);
    bed_ok(uly_swiglu_bwd(b->be, gate, up, dy, dgate, dup));
    bed_output(b, "dgate", dgate, BED_ROUNDED);
    bed_output(b, "dup", dup, BED_ROUNDED);
    bed_ok(uly_swiglu_bwd(b->be, gate, up, dy2, gate, dy2)); /* in place: dup over dy */
    bed_output(b, "dgate in gate", gate, BED_ROUNDED);
    bed_output(b, "dup in dy", dy2, BED_ROUNDED);
}

/* The other aliases of swiglu, in tensors of their own: y over gate or up, dup over up. */
static void run_swiglu_alias(struct bed *b, struct kind kind, int variant)
{
    struct size s = sizes[variant];
    for (int i = 0; i < 3; i++) {
        struct uly_tensor gate = random_matrix(b, kind.model, s, 4);
        struct uly_tensor up = random_matrix(b, kind.model, s, 1);
        struct uly_tensor dy = random_matrix(b, kind.model, s, 1);
        if (i < 2)
            bed_ok(uly_swiglu_fwd(b->be, gate, up, i ? up : gate));
        else
            bed_ok(uly_swiglu_bwd(b->be, gate, up, dy, gate, up));
        bed_output(b, "gate", gate, BED_ROUNDED);
        bed_output(b, "up", up, BED_ROUNDED);
    }
}

static void run_embed(struct bed *b, struct kind kind, int variant)
{
    struct size s = sizes[variant];
    int64_t vocabulary = 11; /* few, so that ids repeat */
    struct uly_tensor ids = bed_vector(b, ULY_DTYPE_I32, s.rows);
    bed_random_ids(b, ids, vocabulary);
    struct size t = {vocabulary, s.width, s.pad};
    struct uly_tensor table = random_matrix(b, kind.model, t, 1);
    struct uly_tensor dtable = random_matrix(b, kind.acc, t, 1);
    struct uly_tensor x = bed_matrix(b, kind.model, s.rows, s.width, s.pad);
    bed_ok(uly_embed_fwd(b->be, ids, table, x));
    bed_output(b, "x", x, BED_EXACT);
    bed_ok(uly_embed_bwd(b->be, ids, x, dtable));
    bed_output(b, "dtable", dtable, BED_ROUNDED);
}

/* ------------------------------------------------------------------ heads on the move */

struct heads_size {
    int n, dim;
    int64_t rows;
};
static const struct heads_size heads_sizes[] = {{1, 2, 1},   {3, 8, 5},    {2, 64, 17},
                                                {5, 6, 33},  {0, 8, 4},    {4, 8, 0},
                                                {7, 128, 3}, {2, 80, 259}, {3, 24, 64}};
enum { N_HEADS_SIZES = sizeof heads_sizes / sizeof *heads_sizes };

static void random_token_heads(struct bed *b, struct bed_heads *v, enum uly_dtype dtype,
                               struct heads_size s, double scale)
{
    bed_token_heads(b, v, dtype, s.n, s.rows, s.dim, 3);
    bed_random(b, v->v.t, scale);
}

/* Into send blocks and back, in both dtypes; odd head sizes and misaligned rows. No arithmetic, so nothing may change. */
static void run_head_move_plain(struct bed *b, struct kind kind, int variant)
{
    struct heads_size s = heads_sizes[variant];
    struct bed_heads tokens, block, back, wide;
    random_token_heads(b, &tokens, kind.model, s, 1);
    bed_block_heads(b, &block, kind.model, s.n, s.rows, s.dim, true);
    bed_token_heads(b, &back, kind.model, s.n, s.rows, s.dim, 0);
    bed_block_heads(b, &wide, kind.acc, s.n, s.rows, s.dim, false);
    struct uly_head_move_args args = {.src = tokens.v, .dst = block.v};
    bed_ok(uly_head_move(b->be, &args));
    args = (struct uly_head_move_args){.src = block.v, .dst = back.v};
    bed_ok(uly_head_move(b->be, &args));
    args = (struct uly_head_move_args){.src = block.v, .dst = wide.v};
    bed_ok(uly_head_move(b->be, &args));
    bed_output(b, "block", block.v.t, BED_EXACT);
    bed_output(b, "back", back.v.t, BED_EXACT);
    bed_output(b, "wide", wide.v.t, BED_EXACT);
    args = (struct uly_head_move_args){.src = wide.v, .dst = block.v, .accumulate = true};
    bed_ok(uly_head_move(b->be, &args));
    bed_output(b, "accumulated", block.v.t, BED_EXACT); /* x + x */
}

/* variant % 4: forward, forward with bias and scale, inverse accumulating from acc, inverse in place. */
static void run_head_move_rope(struct bed *b, struct kind kind, int variant)
{
    struct heads_size s = heads_sizes[variant / 5];
    int mode = variant % 5;
    struct bed_heads src, dst;
    random_token_heads(b, &src, mode == 2 ? kind.acc : kind.model, s, 1);
    bed_block_heads(b, &dst, kind.model, s.n, s.rows, s.dim, true);
    struct uly_head_move_args args = {.src = src.v, .dst = dst.v, .rope_scale = 1};
    args.rope = mode < 2 ? ULY_ROPE_FORWARD : ULY_ROPE_INVERSE;
    args.position = bed_vector(b, ULY_DTYPE_I64, s.rows);
    args.inv_freq = bed_vector(b, ULY_DTYPE_F64, s.dim / 2);
    for (int64_t i = 0; i < s.rows; i++) /* near, far and very far, restarting */
        bed_set(args.position, i, 0,
                (double)(i % 3 == 0   ? i
                         : i % 3 == 1 ? 131071 + i
                                      : 5000000 - i));
    for (int i = 0; i < s.dim / 2; i++)
        bed_set(args.inv_freq, i, 0, pow(500000, -2.0 * i / s.dim));
    if (mode == 1) {
        args.bias = random_vector(b, kind.model, (int64_t)s.n * s.dim, 1);
        args.rope_scale = 1.25;
    }
    if (mode == 2) {
        args.accumulate = true;
        bed_random(b, dst.v.t, 1);
    }
    if (mode == 3)
        args.dst = args.src;
    if (mode == 4) { /* rows with frequencies of their own, in any order */
        args.table = bed_vector(b, ULY_DTYPE_I32, s.rows);
        args.inv_freq = bed_matrix(b, ULY_DTYPE_F64, 3, s.dim / 2, 0);
        for (int64_t i = 0; i < s.rows; i++)
            bed_set(args.table, i, 0, (double)((i * 5 + 2) % 3));
        for (int i = 0; i < 3 * (s.dim / 2); i++)
            bed_set(args.inv_freq, i / (s.dim / 2), i % (s.dim / 2),
                    pow(10000 * (1 + i / (s.dim / 2)), -2.0 * (i % (s.dim / 2)) / s.dim));
    }
    bed_ok(uly_head_move(b->be, &args));
    bed_output(b, "dst", args.dst.t, BED_ROUNDED);
}

static void run_head_dot(struct bed *b, struct kind kind, int variant)
{
    struct heads_size s = heads_sizes[variant];
    struct bed_heads o, d_o, delta;
    random_token_heads(b, &o, kind.model, s, 1);
    random_token_heads(b, &d_o, kind.model, s, 1);
    bed_token_heads(b, &delta, kind.acc, s.n, s.rows, 1, 0);
    bed_ok(uly_head_dot(b->be, &o.v, &d_o.v, &delta.v));
    bed_output(b, "delta", delta.v.t, BED_ROUNDED);
}

/* ------------------------------------------------------------------ attention */

struct attention_size {
    int n, n_kv, dim;
    int64_t S, q_first, q_rows, k_first, k_rows, window, n_docs;
    int64_t starts[4];
    double scale; /* of the random q; large ones make a sharp softmax */
};
static const struct attention_size attentions[] = {
    {1, 1, 2, 1, 0, 1, 0, 1, 0, 1, {0}, 1},
    {4, 2, 64, 65, 0, 65, 0, 65, 0, 1, {0}, 1},
    {7, 1, 32, 64, 0, 64, 0, 64, 0, 1, {0}, 1},
    {6, 2, 24, 257, 0, 257, 0, 257, 0, 4, {0, 1, 100, 193}, 1},
    {2, 2, 128, 131, 0, 131, 0, 131, 17, 2, {0, 64}, 1},
    {2, 2, 80, 200, 70, 130, 0, 200, 0, 2, {0, 67}, 1}, /* the last query slice */
    {3, 1, 16, 300, 30, 100, 100, 150, 0, 1, {0}, 1},   /* queries 30-99 see no key of this call */
    {2, 1, 96, 300, 200, 100, 10, 120, 64, 3, {0, 90, 260}, 1}, /* nearly all hidden */
    {2, 1, 8, 40, 0, 9, 20, 20, 0, 1, {0}, 1},                  /* nothing visible at all */
    {2, 1, 8, 40, 0, 9, 0, 0, 0, 1, {0}, 1},                    /* no keys */
    {2, 2, 64, 40, 0, 0, 0, 40, 0, 1, {0}, 1},                  /* no queries */
    {2, 1, 64, 96, 0, 96, 0, 96, 1, 1, {0}, 1},                 /* everybody sees itself alone */
    {4, 2, 64, 150, 0, 150, 0, 150, 0, 1, {0}, 10},             /* scores of tens */
    {1, 1, 24, 530, 3, 520, 1, 529, 100, 3, {0, 255, 257}, 1},
};
enum { N_ATTENTIONS = sizeof attentions / sizeof *attentions };

struct attention_bed {
    struct bed_heads q, k, v, o, d_o, lse, delta, dq, dk, dv;
    int kv_of[BED_HEADS];
    struct uly_mask mask;
    struct uly_attention_fwd_args fwd;
    struct uly_attention_bwd_args bwd;
};

static void attention_inputs(struct bed *b, struct kind kind, const struct attention_size *s,
                             struct attention_bed *a)
{
    struct heads_size queries = {s->n, s->dim, s->q_rows}, keys = {s->n_kv, s->dim, s->k_rows};
    random_token_heads(b, &a->q, kind.model, queries, s->scale);
    bed_block_heads(b, &a->k, kind.model, s->n_kv, s->k_rows, s->dim, true);
    bed_random(b, a->k.v.t, 1);
    random_token_heads(b, &a->v, kind.model, keys, 1);
    bed_block_heads(b, &a->o, kind.model, s->n, s->q_rows, s->dim, false);
    random_token_heads(b, &a->d_o, kind.model, queries, 1);
    bed_block_heads(b, &a->lse, kind.acc, s->n, s->q_rows, 1, true);
    bed_token_heads(b, &a->delta, kind.acc, s->n, s->q_rows, 1, 1);
    for (int h = 0; h < s->n; h++)
        a->kv_of[h] = h * s->n_kv / s->n;
    a->mask = (struct uly_mask){s->S, s->starts, s->n_docs, s->window};
    a->fwd = (struct uly_attention_fwd_args){.q = a->q.v,
                                             .k = a->k.v,
                                             .v = a->v.v,
                                             .o = a->o.v,
                                             .lse = a->lse.v,
                                             .kv_of = a->kv_of,
                                             .mask = &a->mask,
                                             .q_first = s->q_first,
                                             .k_first = s->k_first,
                                             .scale = 1 / sqrt((double)s->dim)};
}

static void run_attention_fwd(struct bed *b, struct kind kind, int variant)
{
    struct attention_bed a;
    attention_inputs(b, kind, &attentions[variant], &a);
    bed_ok(uly_attention_fwd(b->be, &a.fwd));
    bed_output(b, "o", a.o.v.t, BED_ROUNDED);
    bed_output(b, "lse", a.lse.v.t, BED_ROUNDED);
}

/* LSE and delta come from plain loops here, so that the backward is judged alone and both backends get the same. */
static void run_attention_bwd(struct bed *b, struct kind kind, int variant)
{
    const struct attention_size *s = &attentions[variant];
    struct attention_bed a;
    attention_inputs(b, kind, s, &a);
    struct uly_backend *ref;
    uly_alloc_guard_end(); /* the second backend is the test's, not the step's */
    bed_ok(uly_backend_create("cpu:ref", 1, &ref));
    bed_ok(uly_attention_fwd(ref, &a.fwd));
    bed_ok(uly_head_dot(ref, &a.o.v, &a.d_o.v, &a.delta.v));
    uly_backend_destroy(ref);
    uly_alloc_guard_begin();
    bed_token_heads(b, &a.dq, kind.acc, s->n, s->q_rows, s->dim, 2);
    bed_block_heads(b, &a.dk, kind.acc, s->n_kv, s->k_rows, s->dim, true);
    bed_token_heads(b, &a.dv, kind.acc, s->n_kv, s->k_rows, s->dim, 0);
    bed_random(b, a.dq.v.t, 0.1); /* added to, not overwritten */
    bed_random(b, a.dk.v.t, 0.1);
    bed_random(b, a.dv.v.t, 0.1);
    a.bwd = (struct uly_attention_bwd_args){.q = a.q.v,
                                            .k = a.k.v,
                                            .v = a.v.v,
                                            .d_o = a.d_o.v,
                                            .lse = a.lse.v,
                                            .delta = a.delta.v,
                                            .dq = a.dq.v,
                                            .dk = a.dk.v,
                                            .dv = a.dv.v,
                                            .kv_of = a.kv_of,
                                            .mask = &a.mask,
                                            .q_first = s->q_first,
                                            .k_first = s->k_first,
                                            .scale = a.fwd.scale};
    bed_ok(uly_attention_bwd(b->be, &a.bwd));
    bed_output(b, "dq", a.dq.v.t, BED_ROUNDED);
    bed_output(b, "dk", a.dk.v.t, BED_ROUNDED);
    bed_output(b, "dv", a.dv.v.t, BED_ROUNDED);
}

/* ------------------------------------------------------------------ loss, optimizer */

static void run_cross_entropy(struct bed *b, struct kind kind, int variant)
{
    struct size s = sizes[variant];
    struct uly_cross_entropy_args args = {.factor = 0.125};
    args.logits = random_matrix(b, kind.acc, s, 5);
    args.labels = bed_vector(b, ULY_DTYPE_I32, s.rows);
    bed_random_ids(b, args.labels, s.width);
    for (int64_t i = 1; i < s.rows; i += 3)
        bed_set(args.labels, i, 0, ULY_IGNORE_LABEL);
    args.loss = bed_vector(b, kind.acc, s.rows);
    bed_ok(uly_cross_entropy(b->be, &args));
    bed_output(b, "loss alone", args.loss, BED_ROUNDED);
    args.loss = bed_vector(b, kind.acc, s.rows);
    args.dlogits = bed_matrix(b, kind.model, s.rows, s.width, s.pad);
    bed_ok(uly_cross_entropy(b->be, &args));
    bed_output(b, "loss", args.loss, BED_ROUNDED);
    bed_output(b, "dlogits", args.dlogits, BED_ROUNDED);
    if (kind.model == kind.acc) {
        args.dlogits = args.logits; /* in place */
        bed_ok(uly_cross_entropy(b->be, &args));
        bed_output(b, "dlogits in logits", args.logits, BED_ROUNDED);
    }
}

static void run_adamw(struct bed *b, struct kind kind, int variant)
{
    static const int64_t counts[] = {1, 3, 17, 64, 1000, 0};
    int64_t n = counts[variant];
    struct uly_adamw_args args = {.lr = 1e-2,
                                  .beta1 = 0.9,
                                  .beta2 = 0.999,
                                  .eps = 1e-8,
                                  .weight_decay = 0.1,
                                  .grad_factor = 0.5};
    args.master = random_vector(b, kind.acc, n, 1);
    args.m = random_vector(b, kind.acc, n, 0.1);
    args.v = bed_vector(b, kind.acc, n);
    for (int64_t i = 0; i < n; i++)
        bed_set(args.v, i, 0, 0.01 * (double)(i % 5));
    args.grad = random_vector(b, kind.acc, n, 1);
    struct uly_tensor model = bed_vector(b, kind.model, n);
    for (args.step = 1; args.step <= 3; args.step++) {
        args.model = args.step == 2 ? (struct uly_tensor){0} : model;
        bed_ok(uly_adamw(b->be, &args));
    }
    bed_output(b, "master", args.master, BED_ROUNDED);
    bed_output(b, "m", args.m, BED_ROUNDED);
    bed_output(b, "v", args.v, BED_ROUNDED);
    bed_output(b, "model", model, BED_ROUNDED);
}

/* ------------------------------------------------------------------ driver */

static const struct op_case cases[] = {
    {"fill", N_SIZES, run_fill},
    {"cast", N_SIZES, run_cast},
    {"cast of foreign types", N_SIZES, run_cast_foreign},
    {"add", N_SIZES, run_add},
    {"scale", N_SIZES, run_scale},
    {"sum_squares", N_SIZES, run_sum_squares},
    {"matmul", 4 * N_PRODUCTS, run_matmul},
    {"column_sum", N_SIZES, run_column_sum},
    {"rmsnorm_fwd", N_SIZES, run_rmsnorm_fwd},
    {"rmsnorm_bwd", 3 * N_SIZES, run_rmsnorm_bwd},
    {"swiglu", N_SIZES, run_swiglu},
    {"swiglu in place", N_SIZES, run_swiglu_alias},
    {"embed", N_SIZES, run_embed},
    {"head_move", N_HEADS_SIZES, run_head_move_plain},
    {"head_move with rope", 5 * N_HEADS_SIZES, run_head_move_rope},
    {"head_dot", N_HEADS_SIZES, run_head_dot},
    {"attention_fwd", N_ATTENTIONS, run_attention_fwd},
    {"attention_bwd", N_ATTENTIONS, run_attention_bwd},
    {"cross_entropy", N_SIZES, run_cross_entropy},
    {"adamw", 6, run_adamw},
};

int op_cases_count(void)
{
    return (int)(sizeof cases / sizeof *cases);
}

const char *op_case_name(int i)
{
    return cases[i].name;
}

static void run_variant(struct bed *b, int i, int variant, enum uly_dtype model)
{
    struct kind kind = {model, model == ULY_DTYPE_F64 ? ULY_DTYPE_F64 : ULY_DTYPE_F32};
    bed_reset(b);
    uly_alloc_guard_begin();
    cases[i].run(b, kind, variant);
    uly_alloc_guard_end();
    bed_check_sentinels(b);
}

static void compare(int i, const char *first, int first_threads, const char *second,
                    int second_threads, enum uly_dtype model, bool force_exact)
{
    struct bed got, wanted;
    char where[128];
    bed_open(&got, first, first_threads);
    bed_open(&wanted, second, second_threads);
    for (int variant = 0; variant < cases[i].n_variants; variant++) {
        run_variant(&got, i, variant, model);
        run_variant(&wanted, i, variant, model);
        snprintf(where, sizeof where, "%s: %s %s, variant %d", uly_backend_name(got.be),
                 cases[i].name, uly_dtype_name(model), variant);
        bed_compare(where, &got, &wanted, force_exact);
    }
    bed_close(&got);
    bed_close(&wanted);
}

static void check_numbers(const struct bed *b, const char *name, int variant)
{
    for (int k = 0; k < b->n_outputs; k++) {
        struct uly_tensor t = b->outputs[k].t;
        for (int64_t i = 0; i < t.shape[0]; i++)
            for (int64_t j = 0; j < uly_tensor_width(&t); j++)
                if (isnan(bed_get(t, i, j)))
                    fail_msg("%s, variant %d: %s[%lld, %lld] is not a number", name, variant,
                             b->outputs[k].name, (long long)i, (long long)j);
    }
}

void op_cases_run(const char *backend, int threads, enum uly_dtype model)
{
    struct bed b;
    bed_open(&b, backend, threads);
    for (int i = 0; i < op_cases_count(); i++) {
        for (int variant = 0; variant < cases[i].n_variants; variant++) {
            run_variant(&b, i, variant, model);
            check_numbers(&b, cases[i].name, variant);
        }
    }
    bed_close(&b);
}

void op_case_compare(int i, const char *backend, int threads, enum uly_dtype model)
{
    compare(i, backend, threads, "cpu:ref", 1, model, false);
}

void op_case_compare_threads(int i, const char *backend, int threads, enum uly_dtype model)
{
    compare(i, backend, threads, backend, 1, model, true);
}

void op_cases_compare(const char *backend, int threads, enum uly_dtype model)
{
    for (int i = 0; i < op_cases_count(); i++)
        op_case_compare(i, backend, threads, model);
}

void op_cases_compare_threads(const char *backend, int threads, enum uly_dtype model)
{
    for (int i = 0; i < op_cases_count(); i++)
        op_case_compare_threads(i, backend, threads, model);
}
