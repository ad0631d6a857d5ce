/* SPDX-License-Identifier: MIT
 *
 * The stage loop on the fast backend, several blocks of keys long, against plain attention in double.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/cp_plain.h"

static void test_fast_backend(void **state)
{
    (void)state;
    static const int64_t documents[] = {0, 100, 101, 280};
    for (int P = 1; P <= 4; P++) {
        plain_check(P, 301, 6, 2, 16, documents, 4, "cpu", ULY_DTYPE_F32, 0, 64, 1e-5);
        plain_check(P, 301, 6, 2, 16, documents, 4, "cpu", ULY_DTYPE_BF16, 0, 64, 2e-2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fast_backend),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
