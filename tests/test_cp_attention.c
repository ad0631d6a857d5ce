/* SPDX-License-Identifier: MIT
 *
 * The stage loop over 1 ... 8 ranks (threads) against plain attention in double: o, dq, dk, dv apart, for uneven heads,
 * shared kv heads, any length, documents, any heads a stage.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "support/cp_plain.h"

struct job {
    const struct plain_attention *in;
    struct plain_attention *out;
    const char *backend;
    enum uly_dtype model;
    int heads_per_stage;
    int64_t token_tile;
};

static enum uly_status run_rank(struct uly_comm *comm, void *arg)
{
    const struct job *j = arg;
    return plain_run(j->in, j->out, comm, j->backend, j->model, j->heads_per_stage, j->token_tile);
}

/* Largest difference over the largest value. */
static double error_of(const double *got, const double *want, int64_t n)
{
    double worst = 0, top = 1e-300;
    for (int64_t i = 0; i < n; i++) {
        if (isnan(got[i]))
            return HUGE_VAL;
        worst = fmax(worst, fabs(got[i] - want[i]));
        top = fmax(top, fabs(want[i]));
    }
    return worst / top;
}

static void check(int ranks, int64_t S, int H, int K, int D, const int64_t *starts, int64_t n_docs,
                  const char *backend, enum uly_dtype model, int per_stage, int64_t tile,
                  double tolerance)
{
    struct plain_attention in, out;
    plain_init(&in, S, H, K, D, starts, n_docs, 0, 7);
    plain_init(&out, S, H, K, D, starts, n_docs, 0, 7);
    plain_dense(&in);
    struct job job = {&in, &out, backend, model, per_stage, tile};
    if (uly_comm_run_threads(ranks, run_rank, &job) != ULY_OK)
        fail_msg("P %d S %d H %d K %d n %d: %s\n%s", ranks, (int)S, H, K, per_stage,
                 uly_error_message(), uly_error_trace());
    double e[4] = {error_of(out.o, in.o, S * H * D), error_of(out.dq, in.dq, S * H * D),
                   error_of(out.dk, in.dk, S * K * D), error_of(out.dv, in.dv, S * K * D)};
    for (int i = 0; i < 4; i++)
        if (!(e[i] <= tolerance))
            fail_msg("P %d S %d H %d K %d n %d tile %d: error of o %g dq %g dk %g dv %g", ranks,
                     (int)S, H, K, per_stage, (int)tile, e[0], e[1], e[2], e[3]);
    plain_clear(&in);
    plain_clear(&out);
}

static const int64_t one[] = {0}, several[] = {0, 1, 11, 12, 40};
static const int shapes[][2] = {{8, 8}, {8, 2}, {7, 7}, {6, 2}, {28, 4}, {8, 1}};

static void test_ulysses_every_shape(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int P = 1; P <= 8; P += P == 4 ? 4 : 1) {
            check(P, 61, shapes[i][0], shapes[i][1], 4, several, 5, "cpu:ref", ULY_DTYPE_F64, 0, 7,
                  1e-12);
            check(P, 61, shapes[i][0], shapes[i][1], 4, several, 5, "cpu:ref", ULY_DTYPE_F32, 0, 64,
                  1e-5);
        }
}

static void test_lengths(void **state)
{
    (void)state;
    for (int64_t S = 1; S <= 9; S++)
        for (int P = 1; P <= 8; P++)
            check(P, S, 4, 2, 4, one, 1, "cpu:ref", ULY_DTYPE_F64, 0, 3, 1e-12);
}

/* Stages of few heads: the schedule that later methods use must already be the same operator. */
static void test_stages(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int P = 1; P <= 8; P += 1 + P / 3)
            for (int n = 1; n <= 3 && n <= (shapes[i][0] + P - 1) / P; n++)
                check(P, 53, shapes[i][0], shapes[i][1], 4, several, 5, "cpu:ref", ULY_DTYPE_F64, n,
                      16, 1e-12);
}

static void test_fast_backend(void **state)
{
    (void)state;
    static const int64_t documents[] = {0, 100, 101, 280};
    for (int P = 1; P <= 4; P++) {
        check(P, 301, 6, 2, 16, documents, 4, "cpu", ULY_DTYPE_F32, 0, 64, 1e-5);
        check(P, 301, 6, 2, 16, documents, 4, "cpu", ULY_DTYPE_BF16, 0, 64, 2e-2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ulysses_every_shape),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_stages),
        cmocka_unit_test(test_fast_backend),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
