/* SPDX-License-Identifier: MIT */
#include "train/parity_rule.h"

#include <math.h>

#include "base/mem.h"

enum { PIECE = 1 << 18 }; /* elements copied out of the arena at a time */

static struct uly_tensor flat(struct uly_tensor t)
{
    return uly_tensor_reshape(t, 1, uly_tensor_count(&t), 1, 1);
}

enum uly_status uly_parity_keep(const struct uly_params *params, struct uly_backend *be,
                                float **out)
{
    float *values = NULL;
    ULY_FAIL_IF(params->grads.dtype != ULY_DTYPE_F32, ULY_ERR_UNSUPPORTED,
                "gradients of %s are not compared", uly_dtype_name(params->grads.dtype));
    ULY_TRY(ULY_ALLOC(&values, uly_tensor_count(&params->grads)));
    enum uly_status status = uly_tensor_read(be, flat(params->grads), values);
    if (status != ULY_OK) {
        uly_free(values);
        return status;
    }
    *out = values;
    return ULY_OK;
}

/* The largest difference of a tensor from `want`, and the largest value there. got: room for a piece. */
static enum uly_status compare_tensor(struct uly_backend *be, struct uly_tensor grad,
                                      const float *want, float *got, double *difference,
                                      double *largest)
{
    struct uly_tensor t = flat(grad);
    int64_t count = uly_tensor_count(&t);
    *difference = *largest = 0;
    for (int64_t first = 0; first < count; first += PIECE) {
        int64_t n = count - first < PIECE ? count - first : PIECE;
        ULY_TRY(uly_tensor_read(be, uly_tensor_rows(t, first, n), got));
        for (int64_t i = 0; i < n; i++) {
            double a = (double)got[i], b = (double)want[first + i], d = fabs(a - b);
            *difference = isnan(d) ? HUGE_VAL : fmax(*difference, d);
            *largest = fmax(*largest, fabs(b));
        }
    }
    return ULY_OK;
}

static enum uly_status compare_all(const struct uly_params *params, struct uly_backend *be,
                                   const float *want, float *got, struct uly_parity *out)
{
    struct uly_parity worst = {0, 0, ""};
    double largest_of_all = 0;
    int64_t n = uly_tensor_count(&params->grads);
    for (int64_t i = 0; i < n; i++)
        largest_of_all = fmax(largest_of_all, fabs((double)want[i]));
    for (int i = 0; i < params->n; i++) {
        const struct uly_param *p = &params->list[i];
        double difference, largest;
        if (!p->trainable)
            continue;
        ULY_TRY(compare_tensor(be, p->grad, want, got, &difference, &largest));
        want += uly_tensor_count(&p->grad);
        double allowed = fmax(ULY_PARITY_GRADIENT * largest, ULY_PARITY_FLOOR * largest_of_all);
        double excess = difference > 0 ? difference / allowed : 0;
        if (excess > worst.excess)
            worst =
                (struct uly_parity){excess, largest > 0 ? difference / largest : HUGE_VAL, p->name};
    }
    *out = worst;
    return ULY_OK;
}

enum uly_status uly_parity_compare(const struct uly_params *params, struct uly_backend *be,
                                   const float *want, struct uly_parity *out)
{
    float *got = NULL;
    ULY_TRY(ULY_ALLOC(&got, PIECE));
    enum uly_status status = compare_all(params, be, want, got, out);
    uly_free(got);
    return status;
}
