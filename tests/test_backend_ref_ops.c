/* SPDX-License-Identifier: MIT
 *
 * The op matrix on cpu:ref itself, in all three dtypes: nothing is written outside a tensor, no element of a result is left
 * out, nothing is allocated. (The same matrix judges the other backends.)
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/op_cases.h"

static void test_float32(void **state)
{
    (void)state;
    op_cases_run("cpu:ref", 1, ULY_DTYPE_F32);
}

static void test_bfloat16(void **state)
{
    (void)state;
    op_cases_run("cpu:ref", 1, ULY_DTYPE_BF16);
}

static void test_float64(void **state)
{
    (void)state;
    op_cases_run("cpu:ref", 1, ULY_DTYPE_F64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_float32),
        cmocka_unit_test(test_bfloat16),
        cmocka_unit_test(test_float64),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
