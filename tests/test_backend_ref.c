/* SPDX-License-Identifier: MIT
 *
 * cpu:ref's forward operations against values from elsewhere: PyTorch 2.15 in float64 (norm, SiLU, attention, loss, AdamW), a
 * product written another way, rope in long double up to positions of a million, and what must be exact.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"
#include "support/backend_support.h"

#define F64 ULY_DTYPE_F64

static int open_bed(void **state)
{
    static struct bed b;
    bed_open(&b, "cpu:ref", 1);
    *state = &b;
    return 0;
}

static int close_bed(void **state)
{
    struct bed *b = *state;
    bed_check_sentinels(b);
    bed_close(b);
    return 0;
}

static struct uly_tensor matrix_of(struct bed *b, int64_t rows, int64_t width, int64_t pad,
                                   const double *values)
{
    struct uly_tensor t = bed_matrix(b, F64, rows, width, pad);
    for (int64_t i = 0; i < rows * width; i++)
        bed_set(t, i / width, i % width, values[i]);
    return t;
}

static struct uly_tensor vector_of(struct bed *b, enum uly_dtype dtype, int64_t n,
                                   const double *values)
{
    struct uly_tensor t = bed_vector(b, dtype, n);
    for (int64_t i = 0; i < n; i++)
        bed_set(t, i, 0, values[i]);
    return t;
}

static void expect(struct uly_tensor t, const double *wanted, double tolerance)
{
    for (int64_t i = 0; i < uly_tensor_count(&t); i++)
        bed_close_to(bed_get(t, i / uly_tensor_width(&t), i % uly_tensor_width(&t)), wanted[i],
                     tolerance);
}

/* ------------------------------------------------------------------ data */

/* Strided in, strided out, a 3-D tensor, no rows: bytes as they are, NaN payloads and signs of zero too. */
static void test_write_read(void **state)
{
    struct bed *b = *state;
    uint32_t in[24], out[24];
    for (int i = 0; i < 24; i++)
        in[i] = (uint32_t)uly_random_bits(1, 2, (uint64_t)i);
    in[0] = 0x7fa00001; /* a signalling NaN */
    in[1] = 0x80000000;
    struct uly_tensor t = bed_matrix(b, ULY_DTYPE_F32, 4, 6, 3);
    memset(out, 0, sizeof out);
    bed_ok(uly_tensor_write(b->be, t, in));
    bed_ok(uly_tensor_read(b->be, t, out));
    assert_memory_equal(in, out, sizeof in);
    bed_ok(uly_tensor_read(b->be, uly_tensor_cols(uly_tensor_rows(t, 1, 2), 2, 3), out));
    assert_memory_equal(out, in + 8, 12);
    assert_memory_equal(out + 3, in + 14, 12);
    struct uly_tensor cube = uly_tensor_reshape(bed_vector(b, ULY_DTYPE_F32, 24), 3, 2, 3, 4);
    bed_ok(uly_tensor_write(b->be, cube, in));
    bed_ok(uly_tensor_read(b->be, uly_tensor_cols(cube, 4, 8), out));
    assert_memory_equal(out, in + 4, 32);
    assert_memory_equal(out + 8, in + 16, 32);
    bed_ok(uly_tensor_write(b->be, uly_tensor_rows(t, 4, 0), NULL));
}

/* One rounding from double to bfloat16 and float16: just above the middle of two neighbours goes up, although it is the
 * middle itself in float32. */
static void test_cast_rounds_once(void **state)
{
    struct bed *b = *state;
    const double in[] = {1 + 0x1p-8 + 0x1p-40, 1 + 0x1p-8, 1 + 0x1p-8 - 0x1p-40,
                         -1 - 0x1p-8 - 0x1p-40, 3e38};
    const double bf16[] = {1 + 0x1p-7, 1, 1, -1 - 0x1p-7, 0};
    struct uly_tensor x = vector_of(b, F64, 5, in), y = bed_vector(b, ULY_DTYPE_BF16, 5);
    bed_ok(uly_cast(b->be, x, y));
    for (int i = 0; i < 4; i++)
        assert_true(bed_get(y, i, 0) == bf16[i]);
    bed_close_to(bed_get(y, 4, 0), 3e38, 3e38 * 0x1p-8);
    const double half[] = {1 + 0x1p-11 + 0x1p-40, 1 + 0x1p-11, 65536, 0x1p-25, -HUGE_VAL};
    struct uly_tensor h = bed_vector(b, ULY_DTYPE_F16, 5);
    bed_ok(uly_cast(b->be, vector_of(b, F64, 5, half), h));
    assert_true(bed_get(h, 0, 0) == 1 + 0x1p-10 && bed_get(h, 1, 0) == 1);
    assert_true(isinf(bed_get(h, 2, 0)) && bed_get(h, 3, 0) == 0 && isinf(bed_get(h, 4, 0)));
}

static void test_elementwise(void **state)
{
    struct bed *b = *state;
    struct uly_tensor x = bed_matrix(b, ULY_DTYPE_BF16, 3, 5, 1), y = bed_matrix(b, F64, 3, 5, 2);
    struct uly_tensor ids = bed_vector(b, ULY_DTYPE_I32, 3);
    bed_ok(uly_fill(b->be, x, 0.75));
    bed_ok(uly_fill(b->be, y, -2));
    bed_ok(uly_fill(b->be, ids, ULY_IGNORE_LABEL));
    assert_true(bed_get(ids, 2, 0) == -100);
    bed_ok(uly_add(b->be, x, y));
    bed_ok(uly_scale(b->be, y, -2));
    double sum = 0;
    bed_ok(uly_sum_squares(b->be, y, &sum));
    assert_true(sum == 15 * 2.5 * 2.5 && bed_get(y, 2, 4) == 2.5);
    bed_set(y, 2, 4, (double)NAN); /* trouble is not lost */
    bed_ok(uly_sum_squares(b->be, y, &sum));
    assert_true(isnan(sum));
}

/* ------------------------------------------------------------------ products */

/* Whole numbers, so that any order of summation gives the same value, to the bit: c against sums over host arrays. */
static void one_product(struct bed *b, enum uly_dtype dtype, int variant)
{
    enum { M = 5, N = 4, K = 7 };
    bool ta = variant & 1, tb = variant & 2, accumulate = variant & 4, biased = variant & 8;
    double a[M][K], w[K][N], c[M][N], bias[N];
    bed_reset(b);
    struct uly_matmul_args args = {.transpose_a = ta, .transpose_b = tb, .accumulate = accumulate};
    args.a = bed_matrix(b, dtype, ta ? K : M, ta ? M : K, 3);
    args.b = bed_matrix(b, dtype, tb ? N : K, tb ? K : N, 1);
    args.c = bed_matrix(b, dtype, M, N, 2);
    if (biased)
        args.bias = bed_vector(b, dtype, N);
    for (int j = 0; j < N; j++)
        bias[j] = biased ? j - 1 : 0;
    for (int j = 0; biased && j < N; j++)
        bed_set(args.bias, j, 0, bias[j]);
    for (int i = 0; i < M * K; i++) {
        a[i / K][i % K] = (double)uly_random_below(1, 1, (uint64_t)i, 7) - 3;
        bed_set(args.a, ta ? i % K : i / K, ta ? i / K : i % K, a[i / K][i % K]);
    }
    for (int i = 0; i < K * N; i++) {
        w[i / N][i % N] = (double)uly_random_below(1, 2, (uint64_t)i, 7) - 3;
        bed_set(args.b, tb ? i % N : i / N, tb ? i / N : i % N, w[i / N][i % N]);
    }
    for (int i = 0; i < M * N; i++) {
        c[i / N][i % N] = bias[i % N] + (accumulate ? i : 0);
        if (accumulate)
            bed_set(args.c, i / N, i % N, i);
    }
    for (int l = 0; l < K; l++) /* rank-one updates: not the order of the reference */
        for (int i = 0; i < M; i++)
            for (int j = 0; j < N; j++)
                c[i][j] += a[i][l] * w[l][j];
    bed_ok(uly_matmul(b->be, &args));
    expect(args.c, &c[0][0], 0);
    bed_check_sentinels(b);
}

static void test_matmul(void **state)
{
    static const enum uly_dtype dtypes[] = {ULY_DTYPE_F32, ULY_DTYPE_BF16, ULY_DTYPE_F64};
    for (int d = 0; d < 3; d++)
        for (int variant = 0; variant < 16; variant++)
            one_product(*state, dtypes[d], variant);
}

/* k = 0: the bias, zeros, or c as it was; m = 0 or n = 0: nothing; a 3-D operand is its rows times the rest. */
static void test_matmul_degenerate(void **state)
{
    struct bed *b = *state;
    struct uly_tensor a = bed_matrix(b, F64, 2, 0, 0), w = bed_matrix(b, F64, 0, 3, 0);
    struct uly_matmul_args args = {.a = a, .b = w, .c = bed_matrix(b, F64, 2, 3, 1)};
    bed_ok(uly_matmul(b->be, &args));
    expect(args.c, (double[6]){0}, 0);
    args.bias = vector_of(b, F64, 3, (double[]){1, 2, 3});
    bed_ok(uly_matmul(b->be, &args));
    expect(args.c, (double[]){1, 2, 3, 1, 2, 3}, 0);
    args.bias = (struct uly_tensor){0};
    args.accumulate = true;
    bed_ok(uly_matmul(b->be, &args));
    expect(args.c, (double[]){1, 2, 3, 1, 2, 3}, 0);
    args.a = bed_matrix(b, F64, 0, 5, 0);
    args.b = matrix_of(b, 5, 3, 0, (double[15]){0});
    args.c = bed_matrix(b, F64, 0, 3, 0);
    bed_ok(uly_matmul(b->be, &args));
    struct uly_tensor cube = vector_of(b, F64, 8, (double[]){1, 2, 3, 4, 5, 6, 7, 8});
    args = (struct uly_matmul_args){.a = uly_tensor_reshape(cube, 3, 2, 2, 2),
                                    .b = matrix_of(b, 4, 1, 0, (double[]){1, 10, 100, 1000}),
                                    .c = bed_matrix(b, F64, 2, 1, 0)};
    bed_ok(uly_matmul(b->be, &args));
    expect(args.c, (double[]){4321, 8765}, 0);
}

static void test_column_sum(void **state)
{
    struct bed *b = *state;
    struct uly_tensor x = matrix_of(b, 3, 2, 1, (double[]){1, 2, 3, 4, 5, 6});
    struct uly_tensor out = vector_of(b, F64, 2, (double[]){100, 200});
    bed_ok(uly_column_sum(b->be, x, out));
    expect(out, (double[]){109, 212}, 0);
}

/* ------------------------------------------------------------------ token-wise, loss, optimizer: PyTorch's values */

static void test_rmsnorm(void **state)
{
    struct bed *b = *state;
    struct uly_rmsnorm_fwd_args args = {.eps = 1e-5};
    args.x = matrix_of(b, 2, 4, 1, (double[]){1, -2, 3, 0.5, 0.1, 0.2, -0.3, 4});
    args.w = vector_of(b, F64, 4, (double[]){1, 0.5, -1, 2});
    args.y = bed_matrix(b, F64, 2, 4, 0);
    bed_ok(uly_rmsnorm_fwd(b->be, &args));
    static const double wanted[] = {0.5298121992304703,  -0.5298121992304703, -1.5894365976914109,
                                    0.5298121992304703,  0.04978261347040733, 0.04978261347040733,
                                    0.14934784041122195, 3.9826090776325858};
    expect(args.y, wanted, 1e-14);
}

static void test_swiglu(void **state)
{
    struct bed *b = *state;
    struct uly_tensor gate = matrix_of(b, 1, 6, 0, (double[]){0, 1, -3, 20, 1e4, -1e4});
    struct uly_tensor up = matrix_of(b, 1, 6, 0, (double[]){5, 2, -1, 1, 1, 1});
    struct uly_tensor y = bed_matrix(b, F64, 1, 6, 0);
    bed_ok(uly_swiglu_fwd(b->be, gate, up, y));
    static const double wanted[] = {
        0, 2 * 0.7310585786300049, 0.14227761953270035, 19.999999958776925, 1e4, 0};
    expect(y, wanted, 1e-14);
}

static void test_embed(void **state)
{
    struct bed *b = *state;
    struct uly_tensor table = matrix_of(b, 3, 2, 1, (double[]){1, 2, 3, 4, 5, 6});
    struct uly_tensor ids = vector_of(b, ULY_DTYPE_I32, 4, (double[]){2, 0, 2, 1});
    struct uly_tensor x = bed_matrix(b, F64, 4, 2, 0);
    bed_ok(uly_embed_fwd(b->be, ids, table, x));
    expect(x, (double[]){5, 6, 1, 2, 5, 6, 3, 4}, 0);
    bed_set(ids, 1, 0, 3);
    bed_refused(uly_embed_fwd(b->be, ids, table, x), ULY_ERR_INVALID);
    bed_set(ids, 1, 0, -1);
    bed_refused(uly_embed_bwd(b->be, ids, x, table), ULY_ERR_INVALID);
}

static void test_cross_entropy(void **state)
{
    struct bed *b = *state;
    struct uly_cross_entropy_args args = {.factor = 0.5};
    args.logits = matrix_of(b, 3, 3, 1, (double[]){1, 2, -1, 0.5, 0, 3, 7, 8, 9});
    args.labels = vector_of(b, ULY_DTYPE_I32, 3, (double[]){1, 0, ULY_IGNORE_LABEL});
    args.loss = bed_vector(b, F64, 3);
    args.dlogits = bed_matrix(b, F64, 3, 3, 0);
    bed_ok(uly_cross_entropy(b->be, &args));
    expect(args.loss, (double[]){0.34901221676818633, 2.6238729583693674, 0}, 1e-14);
    static const double wanted[] = {0.12974823017120957,
                                    -0.1473077436508794,
                                    0.017559513479669865,
                                    -0.46373927715962615,
                                    0.021993240146028922,
                                    0.44174603701359716,
                                    0,
                                    0,
                                    0};
    expect(args.dlogits, wanted, 1e-14);
    bed_set(args.labels, 0, 0, 3);
    bed_refused(uly_cross_entropy(b->be, &args), ULY_ERR_INVALID);
    bed_set(args.labels, 0, 0, -1); /* only -100 means "ignore" */
    bed_refused(uly_cross_entropy(b->be, &args), ULY_ERR_INVALID);
}

/* Logits of +-10^4: no overflow; the loss of a sure and wrong answer is the gap. */
static void test_cross_entropy_far_apart(void **state)
{
    struct bed *b = *state;
    struct uly_cross_entropy_args args = {.factor = 1};
    args.logits = matrix_of(b, 2, 2, 0, (double[]){1e4, -1e4, 1e4, -1e4});
    args.labels = vector_of(b, ULY_DTYPE_I32, 2, (double[]){0, 1});
    args.loss = bed_vector(b, F64, 2);
    args.dlogits = bed_matrix(b, F64, 2, 2, 0);
    bed_ok(uly_cross_entropy(b->be, &args));
    expect(args.loss, (double[]){0, 2e4}, 0);
    expect(args.dlogits, (double[]){0, 0, 1, -1}, 0);
}

static void test_adamw(void **state)
{
    struct bed *b = *state;
    static const double grads[3][4] = {
        {0.5, -2, 1e-4, 0}, {-0.25, -1, 3e-4, 1}, {1, 0.125, -2e-4, 0}};
    static const double wanted[3][4] = {
        {0.98900001999996, -0.4895000049999975, 0.2398490099009901, 0},
        {0.9853440324463798, -0.47967603088983163, 0.23048861608630253, -0.0074245874103652425},
        {0.9777945698233113, -0.4723340008270212, 0.22769342560341296, -0.013169447950995141}};
    struct uly_adamw_args args = {.lr = 0.01,
                                  .beta1 = 0.9,
                                  .beta2 = 0.99,
                                  .eps = 1e-6,
                                  .weight_decay = 0.1,
                                  .grad_factor = 0.25};
    args.master = vector_of(b, F64, 4, (double[]){1, -0.5, 0.25, 0});
    args.m = vector_of(b, F64, 4, (double[4]){0});
    args.v = vector_of(b, F64, 4, (double[4]){0});
    args.grad = bed_vector(b, F64, 4);
    args.model = bed_vector(b, F64, 4);
    for (args.step = 1; args.step <= 3; args.step++) {
        for (int i = 0; i < 4; i++) /* the factor, a power of two, undoes this exactly */
            bed_set(args.grad, i, 0, 4 * grads[args.step - 1][i]);
        bed_ok(uly_adamw(b->be, &args));
        expect(args.master, wanted[args.step - 1], 1e-14);
        expect(args.model, wanted[args.step - 1], 1e-14);
    }
    expect(args.m, (double[]){0.118, -0.2395, 1.51e-05, 0.09}, 1e-15);
    expect(args.v, (double[]){0.013069, 0.04926025, 1.38901e-09, 0.0099}, 1e-15);
}

/* With a constant gradient both corrected moments are the gradient's own, so that each step moves by lr, and the bfloat16
 * model is the float32 master rounded: 40 steps too small for bfloat16 add up in the master. */
static void test_adamw_master(void **state)
{
    struct bed *b = *state;
    struct uly_adamw_args args = {
        .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-12, .grad_factor = 1};
    args.master = vector_of(b, ULY_DTYPE_F32, 1, (double[]){1});
    args.m = vector_of(b, ULY_DTYPE_F32, 1, (double[]){0});
    args.v = vector_of(b, ULY_DTYPE_F32, 1, (double[]){0});
    args.grad = vector_of(b, ULY_DTYPE_F32, 1, (double[]){0.25});
    args.model = bed_vector(b, ULY_DTYPE_BF16, 1);
    for (args.step = 1; args.step <= 40; args.step++) {
        bed_ok(uly_adamw(b->be, &args));
        double master = bed_get(args.master, 0, 0);
        bed_close_to(master, 1 - 1e-4 * (double)args.step, 1e-5);
        assert_true(bed_get(args.model, 0, 0) ==
                    (double)uly_bf16_to_f32(uly_f32_to_bf16((float)master)));
    }
    assert_true(bed_get(args.model, 0, 0) < 1);
}

/* ------------------------------------------------------------------ heads */

/* Two heads from token rows into blocks that lie in reverse, and back; then added; then in place with a bias. */
static void test_head_move(void **state)
{
    struct bed *b = *state;
    struct bed_heads tokens, block;
    bed_token_heads(b, &tokens, ULY_DTYPE_BF16, 2, 3, 2, 1);
    bed_block_heads(b, &block, ULY_DTYPE_F32, 2, 3, 2, true);
    for (int i = 0; i < 12; i++)
        bed_set(tokens.v.t, i / 4, i % 4, i + 1);
    struct uly_head_move_args args = {.src = tokens.v, .dst = block.v};
    bed_ok(uly_head_move(b->be, &args));
    expect(block.v.t, (double[]){3, 4, 7, 8, 11, 12, 1, 2, 5, 6, 9, 10}, 0);
    args = (struct uly_head_move_args){.src = block.v, .dst = tokens.v, .accumulate = true};
    bed_ok(uly_head_move(b->be, &args));
    expect(tokens.v.t, (double[]){2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24}, 0);
    args = (struct uly_head_move_args){.src = tokens.v, .dst = tokens.v};
    args.bias = vector_of(b, ULY_DTYPE_BF16, 4, (double[]){1, 0, -1, 100});
    bed_ok(uly_head_move(b->be, &args));
    expect(tokens.v.t, (double[]){3, 4, 5, 108, 11, 12, 13, 116, 19, 20, 21, 124}, 0);
}

static void test_head_dot(void **state)
{
    struct bed *b = *state;
    struct bed_heads x, y, out;
    bed_token_heads(b, &x, F64, 2, 2, 2, 0);
    bed_block_heads(b, &y, F64, 2, 2, 2, false);
    bed_block_heads(b, &out, F64, 2, 2, 1, false);
    for (int i = 0; i < 8; i++) {
        bed_set(x.v.t, i / 4, i % 4, i);
        bed_set(y.v.t, i, 0, i + 1);
    }
    bed_ok(uly_head_dot(b->be, &x.v, &y.v, &out.v));
    expect(out.v.t, (double[]){0 * 1 + 1 * 2, 4 * 3 + 5 * 4, 2 * 5 + 3 * 6, 6 * 7 + 7 * 8}, 0);
}

/* A head at positions up to a million, against long double; float32 results are float32-exact; back again is the identity. */
static void test_rope(void **state)
{
    struct bed *b = *state;
    enum { DIM = 64, ROWS = 6 };
    static const double positions[ROWS] = {0, 1, 255, 4095, 131071, 1048575};
    for (int pass = 0; pass < 2; pass++) {
        enum uly_dtype dtype = pass ? ULY_DTYPE_F32 : F64;
        double tolerance =
            pass ? 3e-7 : 1e-9; /* 1e-9: position * inv_freq has 53 bits, 2^20 * 2^-53 = 1e-10 */
        bed_reset(b);
        struct bed_heads x, y;
        bed_token_heads(b, &x, dtype, 1, ROWS, DIM, 0);
        bed_random(b, x.v.t, 1);
        bed_block_heads(b, &y, dtype, 1, ROWS, DIM, false);
        struct uly_head_move_args args = {.src = x.v, .dst = y.v, .rope = ULY_ROPE_FORWARD};
        args.rope_scale = 1;
        args.position = vector_of(b, ULY_DTYPE_I64, ROWS, positions);
        args.inv_freq = bed_vector(b, F64, DIM / 2);
        for (int i = 0; i < DIM / 2; i++)
            bed_set(args.inv_freq, i, 0, pow(500000, -2.0 * i / DIM));
        bed_ok(uly_head_move(b->be, &args));
        for (int row = 0; row < ROWS; row++) {
            for (int i = 0; i < DIM / 2; i++) {
                long double angle =
                    (long double)positions[row] * (long double)bed_get(args.inv_freq, i, 0);
                long double c = cosl(angle), s = sinl(angle);
                long double u = (long double)bed_get(x.v.t, row, i);
                long double w = (long double)bed_get(x.v.t, row, i + DIM / 2);
                double size = 1 + hypot((double)u, (double)w);
                bed_close_to(bed_head_get(&y.v, 0, row, i), (double)(u * c - w * s),
                             tolerance * size);
                bed_close_to(bed_head_get(&y.v, 0, row, i + DIM / 2), (double)(w * c + u * s),
                             tolerance * size);
            }
        }
        args.src = args.dst;
        args.rope = ULY_ROPE_INVERSE;
        bed_ok(uly_head_move(b->be, &args)); /* in place */
        for (int i = 0; i < ROWS * DIM; i++)
            bed_close_to(bed_get(y.v.t, i, 0), bed_get(x.v.t, i / DIM, i % DIM),
                         pass ? 1e-6 : 1e-14);
    }
}

/* ------------------------------------------------------------------ mask and attention */

static void test_mask(void **state)
{
    (void)state;
    static const int64_t starts[] = {0, 4, 5, 9};
    struct uly_mask mask = {12, starts, 4, 0};
    static const int64_t documents[12] = {0, 0, 0, 0, 4, 5, 5, 5, 5, 9, 9, 9};
    static const int64_t window[12] = {0, 0, 0, 1, 4, 5, 5, 5, 6, 9, 9, 9};
    for (int q = 0; q < 12; q++) {
        mask.window = 0;
        assert_int_equal(uly_mask_lo(&mask, q), documents[q]);
        mask.window = 3;
        assert_int_equal(uly_mask_lo(&mask, q), window[q]);
        mask.window = 1;
        assert_int_equal(uly_mask_lo(&mask, q), q);
        mask.window = INT64_MAX;
        assert_int_equal(uly_mask_lo(&mask, q), documents[q]);
    }
}

struct attention {
    struct bed_heads q, k, v, o, lse;
    struct uly_mask mask;
    struct uly_attention_fwd_args args;
};

static const int64_t one_start[] = {0};
static const int first_head[] = {0};

/* One head of size 2, the three tokens of the PyTorch script. */
static void small_attention(struct bed *b, struct attention *a)
{
    static const double q[] = {1, 0.5, 0.25, -1, 2, 1}, k[] = {0.5, 1, -1, 2, 1.5, 0.25};
    static const double v[] = {1, 2, 3, -1, 0.5, 0.5};
    bed_token_heads(b, &a->q, F64, 1, 3, 2, 0);
    bed_token_heads(b, &a->k, F64, 1, 3, 2, 1);
    bed_token_heads(b, &a->v, F64, 1, 3, 2, 2);
    bed_token_heads(b, &a->o, F64, 1, 3, 2, 0);
    bed_token_heads(b, &a->lse, F64, 1, 3, 1, 0);
    for (int i = 0; i < 6; i++) {
        bed_set(a->q.v.t, i / 2, i % 2, q[i]);
        bed_set(a->k.v.t, i / 2, i % 2, k[i]);
        bed_set(a->v.v.t, i / 2, i % 2, v[i]);
    }
    a->mask = (struct uly_mask){3, one_start, 1, 0};
    a->args = (struct uly_attention_fwd_args){.q = a->q.v,
                                              .k = a->k.v,
                                              .v = a->v.v,
                                              .o = a->o.v,
                                              .lse = a->lse.v,
                                              .kv_of = first_head,
                                              .mask = &a->mask,
                                              .scale = 0.5};
}

static void test_attention(void **state)
{
    struct bed *b = *state;
    struct attention a;
    small_attention(b, &a);
    bed_ok(uly_attention_fwd(b->be, &a.args));
    static const double o[] = {
        1, 2, 1.6691788825063718, 0.9962316762404421, 0.9387032108030123, 0.7929987937587218};
    expect(a.o.v.t, o, 1e-14);
    expect(a.lse.v.t, (double[]){0.5, -0.03014895274627355, 2.174376749559057}, 1e-14);
}

/* A hidden key's weight is 0 whatever it holds: NaN keys and values of the future and of another document change nothing. */
static void test_attention_hidden_keys(void **state)
{
    struct bed *b = *state;
    static const int64_t starts[] = {0, 1};
    struct attention a;
    small_attention(b, &a);
    a.mask = (struct uly_mask){3, starts, 2, 0};
    for (int d = 0; d < 2; d++) {
        bed_set(a.k.v.t, 2, d, (double)NAN);
        bed_set(a.v.v.t, 2, d, HUGE_VAL);
        bed_set(a.k.v.t, 0, d, (double)NAN);
        bed_set(a.v.v.t, 0, d, (double)NAN);
    }
    a.args.q.rows = a.args.o.rows = a.args.lse.rows = 1;
    a.args.q.t = uly_tensor_rows(a.args.q.t, 1, 1); /* query 1 alone: it sees key 1 alone */
    a.args.q_first = 1;
    bed_ok(uly_attention_fwd(b->be, &a.args));
    assert_true(bed_get(a.o.v.t, 0, 0) == 3 && bed_get(a.o.v.t, 0, 1) == -1);
    bed_close_to(bed_get(a.lse.v.t, 0, 0), 0.5 * (0.25 * -1 - 1 * 2), 1e-15);
}

/* Keys that lie wholly after the queries: output 0 and LSE -inf, and the backward adds nothing. */
static void test_attention_sees_nothing(void **state)
{
    struct bed *b = *state;
    struct attention a;
    small_attention(b, &a);
    a.mask.S = 9;
    a.args.k_first = 3;
    bed_ok(uly_attention_fwd(b->be, &a.args));
    expect(a.o.v.t, (double[6]){0}, 0);
    for (int i = 0; i < 3; i++)
        assert_true(bed_get(a.lse.v.t, i, 0) == -HUGE_VAL);
    struct bed_heads dq, dk, dv;
    bed_token_heads(b, &dq, F64, 1, 3, 2, 0);
    bed_token_heads(b, &dk, F64, 1, 3, 2, 0);
    bed_token_heads(b, &dv, F64, 1, 3, 2, 0);
    bed_ok(uly_fill(b->be, dq.v.t, 7));
    bed_ok(uly_fill(b->be, dk.v.t, 7));
    bed_ok(uly_fill(b->be, dv.v.t, 7));
    struct uly_attention_bwd_args back = {.q = a.q.v,
                                          .k = a.k.v,
                                          .v = a.v.v,
                                          .d_o = a.q.v,
                                          .lse = a.lse.v,
                                          .delta = a.lse.v,
                                          .dq = dq.v,
                                          .dk = dk.v,
                                          .dv = dv.v,
                                          .kv_of = first_head,
                                          .mask = &a.mask,
                                          .scale = 0.5};
    bed_ok(uly_attention_bwd(
        b->be, &back)); /* keys visible, but every LSE is -inf (and delta not a number to use) */
    expect(dq.v.t, (double[]){7, 7, 7, 7, 7, 7}, 0);
    expect(dk.v.t, (double[]){7, 7, 7, 7, 7, 7}, 0);
    expect(dv.v.t, (double[]){7, 7, 7, 7, 7, 7}, 0);
}

/* Two blocks of keys, merged through their LSEs, are the whole; scores of thousands stay finite. */
static void test_attention_merge(void **state)
{
    struct bed *b = *state;
    static const double scales[] = {0.5, 5000};
    for (int pass = 0; pass < 2; pass++) {
        struct attention whole, first, second;
        bed_reset(b);
        small_attention(b, &whole);
        small_attention(b, &first);
        small_attention(b, &second);
        whole.args.scale = first.args.scale = second.args.scale = scales[pass];
        first.args.k.rows = first.args.v.rows = 2;
        second.args.k.rows = second.args.v.rows = 1;
        second.args.k.t = uly_tensor_rows(second.args.k.t, 2, 1);
        second.args.v.t = uly_tensor_rows(second.args.v.t, 2, 1);
        second.args.k_first = 2;
        bed_ok(uly_attention_fwd(b->be, &whole.args));
        bed_ok(uly_attention_fwd(b->be, &first.args));
        bed_ok(uly_attention_fwd(b->be, &second.args));
        for (int i = 0; i < 3; i++) {
            double l1 = bed_get(first.lse.v.t, i, 0), l2 = bed_get(second.lse.v.t, i, 0);
            double w2 = 1 / (1 + exp(l1 - l2));
            double lse = fmax(l1, l2) + log1p(exp(-fabs(l1 - l2)));
            bed_close_to(bed_get(whole.lse.v.t, i, 0), lse, 1e-11);
            for (int d = 0; d < 2; d++)
                bed_close_to(bed_get(whole.o.v.t, i, d),
                             (1 - w2) * bed_get(first.o.v.t, i, d) +
                                 w2 * bed_get(second.o.v.t, i, d),
                             1e-11);
        }
    }
}

static void count_pokes(void *context)
{
    ++*(int *)context;
}

static void test_poke(void **state)
{
    struct bed *b = *state;
    struct attention a;
    int pokes = 0;
    small_attention(b, &a);
    uly_backend_set_poke(b->be, count_pokes, &pokes);
    bed_ok(uly_attention_fwd(b->be, &a.args));
    assert_true(pokes > 0);
    uly_backend_set_poke(b->be, NULL, NULL);
    pokes = 0;
    bed_ok(uly_attention_fwd(b->be, &a.args));
    assert_int_equal(pokes, 0);
}

#define in_bed(test) cmocka_unit_test_setup_teardown(test, open_bed, close_bed)

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_bed(test_write_read),
        in_bed(test_cast_rounds_once),
        in_bed(test_elementwise),
        in_bed(test_matmul),
        in_bed(test_matmul_degenerate),
        in_bed(test_column_sum),
        in_bed(test_rmsnorm),
        in_bed(test_swiglu),
        in_bed(test_embed),
        in_bed(test_cross_entropy),
        in_bed(test_cross_entropy_far_apart),
        in_bed(test_adamw),
        in_bed(test_adamw_master),
        in_bed(test_head_move),
        in_bed(test_head_dot),
        in_bed(test_rope),
        cmocka_unit_test(test_mask),
        in_bed(test_attention),
        in_bed(test_attention_hidden_keys),
        in_bed(test_attention_sees_nothing),
        in_bed(test_attention_merge),
        in_bed(test_poke),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
