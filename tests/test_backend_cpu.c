/* SPDX-License-Identifier: MIT
 *
 * The backend `cpu` against cpu:ref, over every operation: instruction sets, numbers of threads, both ways of the matrix
 * product, and 16 lanes on any machine. Besides: large products on whole numbers, where every way must be exact; values
 * that are no numbers; what the backend refuses; how many threads it has.
 */
#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cpu/cpu_impl.h"
#include "backend/cpu/features.h"
#include "backend/peak.h"
#include "base/mem.h"
#include "support/attention_wide.h"
#include "support/backend_support.h"
#include "support/kernels_wide.h"
#include "support/op_cases.h"

static const enum uly_dtype models[] = {ULY_DTYPE_F32, ULY_DTYPE_BF16};

static const char *const isas[] = {"cpu:generic", "cpu:avx2", "cpu:avx512"};
enum { N_ISAS = sizeof isas / sizeof *isas };

/* False, and a line that says so, where this CPU lacks the backend's instruction set. */
static bool is_here(const char *backend)
{
    struct uly_backend *be;
    if (uly_backend_create(backend, 1, &be) == ULY_OK) {
        uly_backend_destroy(be);
        return true;
    }
    assert_int_equal(uly_error_status(), ULY_ERR_UNSUPPORTED);
    print_message("skipped: %s (%s)\n", backend, uly_error_message());
    return false;
}

/* ------------------------------------------------------------------ the op matrix */

static void test_isas(void **state)
{
    (void)state;
    for (int i = 0; i < N_ISAS; i++)
        for (int t = 0; t < 2 && is_here(isas[i]); t++)
            op_cases_compare(isas[i], 2, models[t]);
}

static void test_threads(void **state)
{
    (void)state;
    for (int threads = 2; threads <= 3; threads++)
        for (int t = 0; t < 2; t++)
            op_cases_compare_threads("cpu", threads, models[t]);
}

static void use_wide_kernels(struct uly_backend *be)
{
    if (be->impl == NULL) /* cpu:ref */
        return;
    uly_cpu_of(be)->kernels = &uly_test_kernels_wide;
    uly_cpu_of(be)->attention = &uly_test_attention_wide;
}

static void test_wide(void **state)
{
    (void)state;
    bed_after_create = use_wide_kernels;
    for (int t = 0; t < 2; t++)
        op_cases_compare("cpu:generic", 1, models[t]);
    bed_after_create = NULL;
}

static void test_ways_of_matmul(void **state)
{
    (void)state;
    static const char *const ways[] = {"primitive", "convert"};
    for (int way = 0; way < 2; way++) {
        setenv("ULY_CPU_MATMUL", ways[way], 1);
        for (int i = 0; i < op_cases_count(); i++) {
            if (strcmp(op_case_name(i), "matmul") != 0)
                continue;
            for (int t = 0; t < 2; t++) {
                op_case_compare(i, "cpu", 2, models[t]);
                op_case_compare_threads(i, "cpu", 3, models[t]);
            }
        }
    }
    unsetenv("ULY_CPU_MATMUL");
}

/* ------------------------------------------------------------------ large products, exactly */

struct shape {
    int64_t m, n, k;
};

/* Small whole numbers: every partial sum is a whole number below 2^24, so that float32 is exact in any order. */
static void whole_numbers(struct uly_tensor t, int seed)
{
    for (int64_t i = 0; i < t.shape[0]; i++)
        for (int64_t j = 0; j < uly_tensor_width(&t); j++)
            bed_set(t, i, j, (double)((i * 31 + j * 17 + i * j % 7 + seed) % 5 - 2));
}

static int64_t product_at(const struct uly_matmul_args *args, const int8_t *a, const int8_t *b,
                          struct shape s, int64_t i, int64_t j)
{
    int64_t sum = 0;
    for (int64_t l = 0; l < s.k; l++)
        sum += a[args->transpose_a ? l * s.m + i : i * s.k + l] *
               b[args->transpose_b ? j * s.k + l : l * s.n + j];
    return sum;
}

static int8_t *small_copy(struct uly_tensor t)
{
    int64_t width = uly_tensor_width(&t);
    int8_t *out = malloc((size_t)(t.shape[0] * width));
    assert_non_null(out);
    for (int64_t i = 0; i < t.shape[0]; i++)
        for (int64_t j = 0; j < width; j++)
            out[i * width + j] = (int8_t)bed_get(t, i, j);
    return out;
}

/* Every 7th row and 5th column of c, and the last ones. */
static void check_product(const struct uly_matmul_args *args, struct shape s, double start)
{
    int8_t *a = small_copy(args->a), *b = small_copy(args->b);
    bool bf16 = args->c.dtype == ULY_DTYPE_BF16;
    for (int64_t i = 0; i < s.m; i += i + 7 < s.m || i == s.m - 1 ? 7 : s.m - 1 - i) {
        for (int64_t j = 0; j < s.n; j += j + 5 < s.n || j == s.n - 1 ? 5 : s.n - 1 - j) {
            double wanted = (double)product_at(args, a, b, s, i, j) + start;
            if (uly_tensor_exists(&args->bias))
                wanted += bed_get(args->bias, j, 0);
            if (bf16)
                wanted = (double)uly_bf16_to_f32(uly_f32_to_bf16((float)wanted));
            if (bed_get(args->c, i, j) != wanted)
                fail_msg("c[%lld, %lld] is %g, not %g", (long long)i, (long long)j,
                         bed_get(args->c, i, j), wanted);
        }
    }
    free(a);
    free(b);
}

/* kind: bit 0 and 1 the transposes, bit 2 into acc, bit 3 accumulating, bit 4 with a bias */
static void large_product(struct bed *b, enum uly_dtype dtype, struct shape s, int kind)
{
    struct uly_matmul_args args = {
        .transpose_a = kind & 1, .transpose_b = kind & 2, .accumulate = kind & 8};
    bed_reset(b);
    args.a = bed_matrix(b, dtype, args.transpose_a ? s.k : s.m, args.transpose_a ? s.m : s.k, 3);
    args.b = bed_matrix(b, dtype, args.transpose_b ? s.n : s.k, args.transpose_b ? s.k : s.n, 0);
    args.c = bed_matrix(b, kind & 4 ? ULY_DTYPE_F32 : dtype, s.m, s.n, 1);
    whole_numbers(args.a, 1);
    whole_numbers(args.b, 2);
    if (args.accumulate)
        bed_ok(uly_fill(b->be, args.c, 3));
    if (kind & 16) {
        args.bias = bed_vector(b, dtype, s.n);
        for (int64_t j = 0; j < s.n; j++)
            bed_set(args.bias, j, 0, (double)(j % 9));
    }
    bed_ok(uly_matmul(b->be, &args));
    check_product(&args, s, args.accumulate ? 3 : 0);
    bed_check_sentinels(b);
}

/* Past every border: row tiles and their groups, column blocks, blocks of the inner dimension, with tails; and one of whole
 * blocks only. */
static void test_large_products(void **state)
{
    (void)state;
    static const struct shape shapes[] = {{1100, 530, 70}, {70, 517, 1300}, {512, 256, 1024}};
    static const char *const ways[] = {"convert", "primitive"};
    static const int kinds[] = {0, 2, 1 | 4 | 8, 2 | 4 | 16, 8 | 16, 3};
    for (int way = 0; way < 2; way++) {
        setenv("ULY_CPU_MATMUL", ways[way], 1);
        for (int threads = 1; threads <= 2; threads++) {
            struct bed b;
            bed_open(&b, "cpu", threads);
            for (int s = 0; s < 3; s++)
                for (int kind = 0; kind < 6; kind++)
                    large_product(&b, models[(s + kind + threads) % 2], shapes[s], kinds[kind]);
            bed_close(&b);
        }
    }
    unsetenv("ULY_CPU_MATMUL");
}

/* A weight gradient summed over calls of one numeric tile each has the bits of one call; so have the rows of a product. */
static void test_tile_by_tile(void **state)
{
    (void)state;
    enum { ROWS = 3 * ULY_CPU_ROWS, N = 72, K = 40 };
    for (int t = 0; t < 2; t++) {
        struct bed b;
        bed_open(&b, "cpu", 2);
        struct uly_tensor dy = bed_matrix(&b, models[t], ROWS, N, 0);
        struct uly_tensor x = bed_matrix(&b, models[t], ROWS, K, 0);
        struct uly_tensor dw[2], dx[2];
        bed_random(&b, dy, 1);
        bed_random(&b, x, 1);
        for (int way = 0; way < 2; way++) {
            int64_t step = way == 0 ? ROWS : ULY_CPU_ROWS;
            dw[way] = bed_matrix(&b, ULY_DTYPE_F32, N, K, 0);
            dx[way] = bed_matrix(&b, models[t], ROWS, ROWS, 0);
            bed_ok(uly_fill(b.be, dw[way], 0));
            for (int64_t i = 0; i < ROWS; i += step) {
                struct uly_tensor some_dy = uly_tensor_rows(dy, i, step);
                bed_ok(uly_matmul(b.be, &(struct uly_matmul_args){.a = some_dy,
                                                                  .b = uly_tensor_rows(x, i, step),
                                                                  .c = dw[way],
                                                                  .transpose_a = true,
                                                                  .accumulate = true}));
                bed_ok(uly_matmul(b.be,
                                  &(struct uly_matmul_args){.a = some_dy,
                                                            .b = dy,
                                                            .c = uly_tensor_rows(dx[way], i, step),
                                                            .transpose_b = true}));
            }
        }
        assert_memory_equal(uly_tensor_address(dw[0]), uly_tensor_address(dw[1]),
                            N * K * sizeof(float));
        assert_memory_equal(uly_tensor_address(dx[0]), uly_tensor_address(dx[1]),
                            (size_t)(ROWS * ROWS * uly_dtype_bytes(models[t])));
        bed_close(&b);
    }
}

/* ------------------------------------------------------------------ no numbers */

/* Rows with one special value each: what comes out must be the reference's, NaN for NaN, infinity for infinity. */
static void special_rows(struct bed *b, struct uly_tensor t)
{
    static const double special[] = {(double)NAN, HUGE_VAL, -HUGE_VAL, 3e38, -3e38, 1e-30, 0, -100};
    bed_random(b, t, 1);
    for (int i = 0; i < 8; i++)
        bed_set(t, i, i * 2 + 3, special[i]);
}

static void run_special(struct bed *b, enum uly_dtype model)
{
    enum { ROWS = 8, WIDTH = 37 };
    struct uly_tensor x = bed_matrix(b, model, ROWS, WIDTH, 0);
    struct uly_tensor y = bed_matrix(b, model, ROWS, WIDTH, 0);
    struct uly_tensor z = bed_matrix(b, model, ROWS, WIDTH, 0);
    struct uly_tensor w = bed_vector(b, model, WIDTH), labels = bed_vector(b, ULY_DTYPE_I32, ROWS);
    struct uly_tensor logits = bed_matrix(b, ULY_DTYPE_F32, ROWS, WIDTH, 0);
    struct uly_tensor loss = bed_vector(b, ULY_DTYPE_F32, ROWS);
    special_rows(b, x);
    bed_random(b, y, 1);
    bed_random(b, w, 1);
    special_rows(b, logits);
    bed_random_ids(b, labels, WIDTH);
    bed_ok(uly_swiglu_fwd(b->be, x, y, z));
    bed_output(b, "silu", z, BED_ROUNDED);
    struct uly_tensor normed = bed_matrix(b, model, ROWS, WIDTH, 0);
    bed_ok(uly_rmsnorm_fwd(
        b->be, &(struct uly_rmsnorm_fwd_args){.x = x, .w = w, .y = normed, .eps = 1e-6}));
    bed_output(b, "normed", normed, BED_ROUNDED);
    struct uly_tensor dlogits = bed_matrix(b, model, ROWS, WIDTH, 0);
    bed_ok(uly_cross_entropy(
        b->be,
        &(struct uly_cross_entropy_args){
            .logits = logits, .labels = labels, .loss = loss, .dlogits = dlogits, .factor = 0.5}));
    bed_output(b, "loss", loss, BED_ROUNDED);
    bed_output(b, "dlogits", dlogits, BED_ROUNDED);
    struct uly_tensor product = bed_matrix(b, model, ROWS, ROWS, 0);
    bed_ok(uly_matmul(
        b->be, &(struct uly_matmul_args){.a = x, .b = y, .c = product, .transpose_b = true}));
    bed_output(b, "product", product, BED_ROUNDED);
}

static void test_special_values(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++) {
        struct bed got, wanted;
        bed_open(&got, "cpu", 2);
        bed_open(&wanted, "cpu:ref", 1);
        run_special(&got, models[t]);
        run_special(&wanted, models[t]);
        for (int k = 0; k < wanted.n_outputs; k++) {
            struct uly_tensor x = got.outputs[k].t, y = wanted.outputs[k].t;
            for (int64_t i = 0; i < y.shape[0]; i++)
                for (int64_t j = 0; j < uly_tensor_width(&y); j++) {
                    double a = bed_get(x, i, j), b = bed_get(y, i, j);
                    bool same = isnan(a) ? isnan(b) : isinf(a) ? a == b : isfinite(b);
                    if (!same)
                        fail_msg("%s[%lld, %lld] is %g, the reference has %g",
                                 wanted.outputs[k].name, (long long)i, (long long)j, a, b);
                }
        }
        bed_close(&got);
        bed_close(&wanted);
    }
}

/* Rope at positions of millions: as exact as at 0. */
static void test_far_positions(void **state)
{
    (void)state;
    enum { ROWS = 9, DIM = 128 };
    static const int64_t far[ROWS] = {0,       1,        65535,     1000003,         4194304,
                                      9999991, 33554431, 123456789, INT64_C(1) << 31};
    struct bed b;
    struct bed_heads src, dst;
    bed_open(&b, "cpu", 1);
    struct uly_tensor position = bed_vector(&b, ULY_DTYPE_I64, ROWS);
    struct uly_tensor inv_freq = bed_vector(&b, ULY_DTYPE_F64, DIM / 2);
    bed_token_heads(&b, &src, ULY_DTYPE_F32, 1, ROWS, DIM, 0);
    bed_token_heads(&b, &dst, ULY_DTYPE_F32, 1, ROWS, DIM, 0);
    bed_ok(uly_fill(b.be, src.v.t, 1)); /* y[i] = c - s, y[i + D/2] = c + s */
    for (int64_t i = 0; i < DIM / 2; i++)
        bed_set(inv_freq, i, 0, pow(10000, -2.0 * (double)i / DIM));
    bed_ok(uly_tensor_write(b.be, position, far));
    bed_ok(uly_head_move(b.be, &(struct uly_head_move_args){.src = src.v,
                                                            .dst = dst.v,
                                                            .rope = ULY_ROPE_FORWARD,
                                                            .position = position,
                                                            .inv_freq = inv_freq,
                                                            .rope_scale = 1}));
    for (int64_t row = 0; row < ROWS; row++)
        for (int i = 0; i < DIM / 2; i++) {
            double angle = (double)far[row] * bed_get(inv_freq, i, 0);
            bed_close_to(bed_head_get(&dst.v, 0, row, i), cos(angle) - sin(angle), 3e-7);
            bed_close_to(bed_head_get(&dst.v, 0, row, i + DIM / 2), cos(angle) + sin(angle), 3e-7);
        }
    bed_close(&b);
}

/* ------------------------------------------------------------------ threads and progress */

/* Threads of this process; 0 where the system does not tell. */
static int threads_alive(void)
{
    int n = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *entry; tasks != NULL && (entry = readdir(tasks)) != NULL;)
        n += entry->d_name[0] != '.';
    if (tasks != NULL)
        closedir(tasks);
    return n;
}

struct rank {
    int threads;
    int most_alive;
};

static void *rank_main(void *context)
{
    struct rank *rank = context;
    struct bed b;
    bed_open(&b, "cpu", rank->threads);
    struct uly_tensor x = bed_matrix(&b, ULY_DTYPE_F32, 600, 64, 0);
    struct uly_tensor y = bed_matrix(&b, ULY_DTYPE_F32, 600, 600, 0);
    bed_random(&b, x, 1);
    for (int i = 0; i < 5; i++) {
        bed_ok(uly_matmul(b.be,
                          &(struct uly_matmul_args){.a = x, .b = x, .c = y, .transpose_b = true}));
        int alive = threads_alive();
        rank->most_alive = alive > rank->most_alive ? alive : rank->most_alive;
    }
    bed_close(&b);
    return NULL;
}

static void two_ranks(int threads, int allowed)
{
    struct rank ranks[2] = {{threads, 0}, {threads, 0}};
    pthread_t thread[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, rank_main, &ranks[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < 2; i++)
        assert_true(ranks[i].most_alive <= allowed);
}

/* Runs first: no thread pool is there yet. A rank of one thread must not wake the library's own threads. */
static void test_threads_alive(void **state)
{
    (void)state;
    int before = threads_alive();
    struct rank one = {1, 0};
    rank_main(&one);
    assert_int_equal(one.most_alive, before);
    two_ranks(1, before + 2);
    two_ranks(2, before + 4);
}

static void count_poke(void *context)
{
    pthread_t *caller = ((void **)context)[1];
    ++*(int *)((void **)context)[0];
    assert_true(pthread_equal(*caller, pthread_self()));
}

static void test_poke(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        struct bed b;
        int pokes = 0;
        pthread_t caller = pthread_self();
        void *context[2] = {&pokes, &caller};
        bed_open(&b, "cpu", threads);
        struct uly_tensor x = bed_matrix(&b, ULY_DTYPE_F32, 2048, 40, 0);
        struct uly_tensor y = bed_matrix(&b, ULY_DTYPE_F32, 2048, 300, 0);
        struct uly_tensor w = bed_matrix(&b, ULY_DTYPE_F32, 300, 40, 0);
        bed_random(&b, x, 1);
        bed_random(&b, w, 1);
        uly_backend_set_poke(b.be, count_poke, context);
        for (int i = 0; i < 10; i++)
            bed_ok(uly_matmul(
                b.be, &(struct uly_matmul_args){.a = x, .b = w, .c = y, .transpose_b = true}));
        assert_true(pokes >= 10);
        bed_close(&b);
    }
}

/* ------------------------------------------------------------------ choices and refusals */

static void test_choices(void **state)
{
    (void)state;
    struct uly_backend *be;
    setenv("ULY_CPU_ISA", "generic", 1);
    bed_ok(uly_backend_create("cpu", 1, &be));
    assert_string_equal(uly_backend_name(be), "cpu (generic, 1 thread)");
    assert_true(uly_backend_supports(be, ULY_DTYPE_F32));
    assert_true(uly_backend_supports(be, ULY_DTYPE_BF16));
    assert_false(uly_backend_supports(be, ULY_DTYPE_F64));
    assert_true(uly_backend_scratch_bytes(be) > 0);
    uly_backend_destroy(be);
    setenv("ULY_CPU_ISA", "avx1024", 1);
    bed_refused(uly_backend_create("cpu", 1, &be), ULY_ERR_UNSUPPORTED);
    assert_non_null(strstr(uly_error_message(), "ULY_CPU_ISA"));
    assert_non_null(strstr(uly_error_message(), "avx1024"));
    bed_ok(uly_backend_create("cpu:generic", 1, &be)); /* a name beats the variable */
    uly_backend_destroy(be);
    unsetenv("ULY_CPU_ISA");
    if (!uly_cpu_has_avx512())
        bed_refused(uly_backend_create("cpu:avx512", 1, &be), ULY_ERR_UNSUPPORTED);
    setenv("ULY_CPU_MATMUL", "fast", 1);
    bed_refused(uly_backend_create("cpu", 1, &be), ULY_ERR_USAGE);
    assert_non_null(strstr(uly_error_message(), "fast"));
    unsetenv("ULY_CPU_MATMUL");
}

static void test_bad_ids(void **state)
{
    (void)state;
    struct bed b;
    bed_open(&b, "cpu", 1);
    struct uly_tensor table = bed_matrix(&b, ULY_DTYPE_F32, 5, 8, 0);
    struct uly_tensor x = bed_matrix(&b, ULY_DTYPE_F32, 2, 8, 0);
    struct uly_tensor logits = bed_matrix(&b, ULY_DTYPE_F32, 2, 5, 0);
    struct uly_tensor ids = bed_vector(&b, ULY_DTYPE_I32, 2),
                      loss = bed_vector(&b, ULY_DTYPE_F32, 2);
    bed_random(&b, table, 1);
    bed_random(&b, x, 1);
    bed_random(&b, logits, 1);
    static const double bad[] = {5, -1, INT32_MIN};
    for (int i = 0; i < 3; i++) {
        bed_set(ids, 0, 0, 4);
        bed_set(ids, 1, 0, bad[i]);
        bed_refused(uly_embed_fwd(b.be, ids, table, x), ULY_ERR_INVALID);
        bed_refused(uly_embed_bwd(b.be, ids, x, table), ULY_ERR_INVALID);
        bed_refused(uly_cross_entropy(b.be, &(struct uly_cross_entropy_args){.logits = logits,
                                                                             .labels = ids,
                                                                             .loss = loss,
                                                                             .factor = 1}),
                    ULY_ERR_INVALID);
    }
    bed_check_sentinels(&b);
    bed_close(&b);
}

/* Every allocation of create fails in turn: an error with a cause, nothing kept, no crash. */
static void test_no_memory(void **state)
{
    (void)state;
    setenv("ULY_CPU_MATMUL", "primitive", 1);
    for (long k = 1;; k++) {
        struct uly_backend *be = NULL;
        uly_alloc_fail_at(k);
        enum uly_status status = uly_backend_create("cpu", 2, &be);
        uly_alloc_fail_at(0);
        if (status == ULY_OK) {
            assert_true(k > 5);
            uly_backend_destroy(be);
            break;
        }
        assert_int_equal(status, ULY_ERR_NO_MEMORY);
        assert_null(be);
    }
    unsetenv("ULY_CPU_MATMUL");
}

static void test_peak(void **state)
{
    (void)state;
    struct bed b, ref;
    bed_open(&b, "cpu", 1);
    bed_open(&ref, "cpu:ref", 1);
    for (int t = 0; t < 2; t++) {
        double peak = uly_cpu_peak_gflops(b.be, models[t]);
        assert_true(isfinite(peak) && peak > 0);
        assert_true(uly_cpu_peak_gflops(ref.be, models[t]) == 0);
    }
    bed_close(&b);
    bed_close(&ref);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_alive),  cmocka_unit_test(test_isas),
        cmocka_unit_test(test_threads),        cmocka_unit_test(test_wide),
        cmocka_unit_test(test_ways_of_matmul), cmocka_unit_test(test_large_products),
        cmocka_unit_test(test_tile_by_tile),   cmocka_unit_test(test_special_values),
        cmocka_unit_test(test_far_positions),  cmocka_unit_test(test_poke),
        cmocka_unit_test(test_choices),        cmocka_unit_test(test_bad_ids),
        cmocka_unit_test(test_no_memory),      cmocka_unit_test(test_peak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
