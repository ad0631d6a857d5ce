/* SPDX-License-Identifier: MIT
 *
 * Learning-rate schedules against values printed by Transformers' get_scheduler (5.24; peak 0.5,
 * two steps past the end).
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "train/schedule.h"

enum { MAX_STEPS = 20 };

struct golden {
    enum uly_schedule_type type;
    int64_t total, warmup, decay;
    double floor_rate;
    double rate[MAX_STEPS];
};

static const struct golden cases[] = {
    {ULY_SCHEDULE_CONSTANT, 7, 3, 0, 0.0, {0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5}},
    {ULY_SCHEDULE_CONSTANT_WITH_WARMUP,
     7,
     3,
     0,
     0.0,
     {0.0, 0.16666666666666666, 0.3333333333333333, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5}},
    {ULY_SCHEDULE_LINEAR,
     11,
     0,
     0,
     0.0,
     {0.5, 0.45454545454545453, 0.4090909090909091, 0.36363636363636365, 0.3181818181818182,
      0.2727272727272727, 0.22727272727272727, 0.18181818181818182, 0.13636363636363635,
      0.09090909090909091, 0.045454545454545456, 0.0, 0.0}},
    {ULY_SCHEDULE_LINEAR,
     11,
     4,
     0,
     0.0,
     {0.0, 0.125, 0.25, 0.375, 0.5, 0.42857142857142855, 0.35714285714285715, 0.2857142857142857,
      0.21428571428571427, 0.14285714285714285, 0.07142857142857142, 0.0, 0.0}},
    {ULY_SCHEDULE_COSINE,
     11,
     0,
     0,
     0.0,
     {0.5, 0.48987324340362437, 0.4603133832077953, 0.4137151834863213, 0.35385375325047164,
      0.2855787095683213, 0.21442129043167873, 0.14614624674952842, 0.08628481651367875,
      0.03968661679220467, 0.010126756596375686, 0.0, 0.01012675659637563}},
    {ULY_SCHEDULE_COSINE,
     13,
     5,
     0,
     0.0,
     {0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.4809698831278217, 0.42677669529663687, 0.34567085809127246,
      0.25, 0.15432914190872757, 0.07322330470336313, 0.019030116872178315, 0.0,
      0.019030116872178288}},
    {ULY_SCHEDULE_COSINE_WITH_MIN_LR,
     11,
     2,
     0,
     0.1,
     {0.0, 0.25, 0.5, 0.4864308396768294, 0.44735999970177004, 0.3875, 0.31407083997505936,
      0.2359291600249407, 0.16250000000000006, 0.10264000029822998, 0.06356916032317063, 0.05,
      0.0635691603231706}},
    {ULY_SCHEDULE_WARMUP_STABLE_DECAY,
     17,
     3,
     5,
     0.25,
     {0.125, 0.25, 0.375, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.46419068644530265,
      0.37044068644530265, 0.2545593135546974, 0.16080931355469738, 0.125, 0.125}},
    {ULY_SCHEDULE_WARMUP_STABLE_DECAY,
     9,
     2,
     3,
     0.0,
     {0.0, 0.25, 0.5, 0.5, 0.5, 0.5, 0.5, 0.375, 0.12500000000000006, 0.0, 0.0}},
};

static void test_rates_equal_transformers(void **state)
{
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const struct golden *g = &cases[c];
        struct uly_schedule s = {.type = g->type,
                                 .learning_rate = 0.5,
                                 .total_steps = g->total,
                                 .warmup_steps = g->warmup,
                                 .decay_steps = g->decay,
                                 .min_lr_rate = g->floor_rate};
        for (int64_t step = 0; step < g->total + 2; step++)
            assert_true(fabs(uly_schedule_rate(&s, step) - g->rate[step]) < 1e-15);
    }
}

static void test_warmup_ratio(void **state)
{
    (void)state;
    assert_int_equal(uly_schedule_warmup_steps(0, 100), 0);
    assert_int_equal(uly_schedule_warmup_steps(0.03, 101), 4); /* rounded up */
    assert_int_equal(uly_schedule_warmup_steps(0.5, 7), 4);
    assert_int_equal(uly_schedule_warmup_steps(1, 100), 1); /* from 1 on a number of steps */
    assert_int_equal(uly_schedule_warmup_steps(12.9, 100), 12);
}

static void test_names(void **state)
{
    (void)state;
    for (int i = 0; i < ULY_SCHEDULE_COUNT; i++) {
        enum uly_schedule_type type = ULY_SCHEDULE_COUNT;
        assert_int_equal(uly_schedule_parse(uly_schedule_name((enum uly_schedule_type)i), &type),
                         ULY_OK);
        assert_int_equal(type, i);
    }
    enum uly_schedule_type type = ULY_SCHEDULE_COUNT;
    assert_int_equal(uly_schedule_parse("polynomial", &type), ULY_ERR_USAGE);
    assert_int_equal(type, ULY_SCHEDULE_COUNT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rates_equal_transformers),
        cmocka_unit_test(test_warmup_ratio),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
