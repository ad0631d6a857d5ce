/* SPDX-License-Identifier: MIT
 *
 * Every operation over odd shapes, run by a backend and by cpu:ref on the same numbers and compared.
 *
 *   for (int i = 0; i < op_cases_count(); i++)
 *       op_case_compare(i, "cpu:avx2", 2, ULY_DTYPE_BF16);
 *
 * Operations run under the allocation guard, as in a training step. Sentinels around all tensors are checked in both.
 */
#ifndef ULY_TESTS_OP_CASES_H
#define ULY_TESTS_OP_CASES_H

#include "base/dtype.h"

int op_cases_count(void);
const char *op_case_name(int i);

/* All variants of case i; model: float32 or bfloat16. */
void op_case_compare(int i, const char *backend, int threads, enum uly_dtype model);

/* The same backend with one thread and with `threads`: bit for bit. */
void op_case_compare_threads(int i, const char *backend, int threads, enum uly_dtype model);

/* All cases of one kind; the tests of a backend are these two calls. */
void op_cases_compare(const char *backend, int threads, enum uly_dtype model);
void op_cases_compare_threads(const char *backend, int threads, enum uly_dtype model);

/* All cases without a comparison: no byte outside a tensor is written, no element of a result is left out. */
void op_cases_run(const char *backend, int threads, enum uly_dtype model);

#endif
