/* SPDX-License-Identifier: MIT
 *
 * The rule by which two layouts are equal (docs/numerics.md), for float32 runs of one model: the loss to 1e-6 of its value,
 * each gradient tensor to 1e-5 of its largest value, or 1e-7 of the largest value of all tensors where that is more.
 */
#ifndef ULY_TRAIN_PARITY_RULE_H
#define ULY_TRAIN_PARITY_RULE_H

#include "backend/backend.h"
#include "model/params.h"

#define ULY_PARITY_LOSS     1e-6
#define ULY_PARITY_GRADIENT 1e-5
#define ULY_PARITY_FLOOR    1e-7

/* All gradients of the trainable parameters in host memory, end to end as in params->grads. *out: uly_free. */
enum uly_status uly_parity_keep(const struct uly_params *params, struct uly_backend *be,
                                float **out);

struct uly_parity {
    double
        excess; /* of the worst tensor: its largest difference over what is allowed; above 1 fails; infinite where
                          a value is not a number */
    double difference; /* the same tensor's largest difference over its largest value in `want` */
    const char *name;  /* the tensor's, owned by params; "" where all differences are 0 */
};

/* The gradients in params against what uly_parity_keep returned for the same params. */
enum uly_status uly_parity_compare(const struct uly_params *params, struct uly_backend *be,
                                   const float *want, struct uly_parity *out);

#endif
