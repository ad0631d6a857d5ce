/* SPDX-License-Identifier: MIT
 *
 * The error of bfloat16 grows neither with the ring size nor with the number of stages: what is added up over blocks,
 * stages and ranks is added in float32 and rounded once. The operator against plain attention in double, o, dq, dk, dv
 * apart; and the gradients of a deep thin model against float32, where errors of a layer would pile up.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

#include "support/cp_plain.h"
#include "support/model_fixture.h"

static const int64_t starts[] = {0, 60, 61, 150};
enum { MOST_RING = 8 };
#define MOST_GROWTH 1.5
/* The mean over all elements owes nothing to chance: one more rounding a hop, at ring 2, is seen as 1.07. */
#define MOST_RMS_GROWTH 1.02

static void operator_errors(const struct plain_case *c, double e[8])
{
    plain_errors(c, e, NULL);
    plain_rms_errors(c, e + 4);
}

static void check_growth(struct plain_case c)
{
    static const char *const names[] = {"o",     "dq",     "dk",     "dv",
                                        "o rms", "dq rms", "dk rms", "dv rms"};
    double base[8], e[8];
    operator_errors(&c, base);
    for (int i = 0; i < 8; i++)
        assert_true(base[i] > 1e-4 && base[i] < 1e-2); /* bfloat16 has 2^-9 */
    for (c.ring = 1; c.ring <= MOST_RING; c.ring *= 2)
        for (c.ulysses = 1; c.ulysses <= 2; c.ulysses++) {
            int most = c.H / c.ulysses;
            for (c.heads_per_stage = most; c.heads_per_stage >= 1; c.heads_per_stage /= 2) {
                operator_errors(&c, e);
                for (int i = 0; i < 8; i++)
                    if (!(e[i] <= (i < 4 ? MOST_GROWTH : MOST_RMS_GROWTH) * base[i]))
                        fail_msg("D %d ulysses %d ring %d n %d: error of %s %g, of one rank %g",
                                 c.D, c.ulysses, c.ring, c.heads_per_stage, names[i], e[i],
                                 base[i]);
            }
        }
}

static void test_operator(void **state)
{
    (void)state;
    struct plain_case c = plain_case_small(211, 8, 2);
    c.starts = starts;
    c.backend = "cpu";
    c.model = ULY_DTYPE_BF16;
    c.D = 32;
    check_growth(c);
    c.D = 16;
    c.n_docs = 4;
    check_growth(c);
}

/* Relative L2 error of all gradients together. */
static double error_of(const struct model_result *got, const struct model_result *exact)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < exact->first[exact->n_params]; i++) {
        difference += (got->grads[i] - exact->grads[i]) * (got->grads[i] - exact->grads[i]);
        size += exact->grads[i] * exact->grads[i];
    }
    return sqrt(difference / size);
}

static void test_deep_model(void **state)
{
    (void)state;
    struct model_case c = model_case_small(4, 2);
    struct model_grid grid = {1, 1, 1, 0, 0};
    struct model_result exact, got;
    int32_t *ids, *labels;
    double base = 0;
    c.layers = 16;
    c.backend = "cpu";
    model_make_rows(97, c.V, starts, 3, 5, &ids, &labels);
    c.S = 97;
    c.starts = starts;
    c.n_docs = 3;
    c.ids = ids;
    c.labels = labels;
    c.dtype = ULY_DTYPE_F32;
    model_run_on(&c, &grid, true, &exact);
    c.dtype = ULY_DTYPE_BF16;
    for (grid.ring = 1; grid.ring <= MOST_RING; grid.ring *= 2)
        for (grid.heads_per_stage = 4; grid.heads_per_stage >= 1; grid.heads_per_stage /= 2) {
            model_run_on(&c, &grid, true, &got);
            double error = error_of(&got, &exact);
            base = base > 0 ? base : error; /* ring 1, one stage comes first */
            if (!(error <= MOST_GROWTH * base))
                fail_msg("ring %d n %d: error %g, of one rank %g", grid.ring, grid.heads_per_stage,
                         error, base);
            model_result_clear(&got);
        }
    assert_true(base > 1e-3 && base < 0.5);
    model_result_clear(&exact);
    free(ids);
    free(labels);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_operator),
        cmocka_unit_test(test_deep_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
