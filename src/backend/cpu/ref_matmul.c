/* SPDX-License-Identifier: MIT
 *
 * cpu:ref: matrix product and column sums.
 */
#include "backend/cpu/ref.h"

enum uly_status uly_ref_matmul(struct uly_backend *be, const struct uly_matmul_args *args)
{
    const struct uly_tensor *a = &args->a, *b = &args->b, *c = &args->c;
    int64_t m = c->shape[0], n = uly_tensor_width(c);
    int64_t k = args->transpose_a ? a->shape[0] : uly_tensor_width(a);
    bool biased = uly_tensor_exists(&args->bias);
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t l = 0; l < k; l++) {
                double x = args->transpose_a ? uly_ref_get(a, l, i) : uly_ref_get(a, i, l);
                double y = args->transpose_b ? uly_ref_get(b, j, l) : uly_ref_get(b, l, j);
                sum += x * y;
            }
            if (biased)
                sum += uly_ref_get(&args->bias, j, 0);
            if (args->accumulate)
                sum += uly_ref_get(c, i, j);
            uly_ref_set(c, i, j, sum);
        }
        uly_ref_poke(be);
    }
    return ULY_OK;
}

enum uly_status uly_ref_column_sum(struct uly_backend *be, struct uly_tensor x,
                                   struct uly_tensor out)
{
    (void)be;
    for (int64_t j = 0; j < uly_tensor_width(&x); j++) {
        double sum = uly_ref_get(&out, j, 0);
        for (int64_t i = 0; i < x.shape[0]; i++)
            sum += uly_ref_get(&x, i, j);
        uly_ref_set(&out, j, 0, sum);
    }
    return ULY_OK;
}
