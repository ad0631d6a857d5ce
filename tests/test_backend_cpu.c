/* SPDX-License-Identifier: MIT
 *
 * The backend `cpu` against cpu:ref, over every operation: instruction sets, numbers of threads, both ways of the matrix
 * product, and 16 lanes on any machine.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/backend_support.h"
#include "support/op_cases.h"

static const enum uly_dtype models[] = {ULY_DTYPE_F32, ULY_DTYPE_BF16};

static void compare_both(const char *backend, int threads)
{
    for (int i = 0; i < 2; i++)
        op_cases_compare(backend, threads, models[i]);
}

static void test_best(void **state)
{
    (void)state;
    compare_both("cpu", 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_best)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
