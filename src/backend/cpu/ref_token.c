/* SPDX-License-Identifier: MIT
 *
 * cpu:ref: token-wise operations, loss and optimizer. The formulas are those of backend.h, line by
 * line.
 */
#include <math.h>

#include "backend/cpu/ref.h"

/* ------------------------------------------------------------------ RMS norm */

static double inverse_rms(const struct uly_tensor *x, int64_t row, double eps)
{
    int64_t width = uly_tensor_width(x);
    double sum = 0;
    for (int64_t j = 0; j < width; j++)
        sum += uly_ref_get(x, row, j) * uly_ref_get(x, row, j);
    return 1 / sqrt(sum / (double)width + eps);
}

enum uly_status uly_ref_rmsnorm_fwd(struct uly_backend *be, const struct uly_rmsnorm_fwd_args *args)
{
    (void)be;
    int64_t width = uly_tensor_width(&args->x);
    for (int64_t i = 0; i < args->x.shape[0]; i++) {
        double r = inverse_rms(&args->x, i, args->eps);
        for (int64_t j = 0; j < width; j++)
            uly_ref_set(&args->y, i, j,
                        uly_ref_get(&args->x, i, j) * r * uly_ref_get(&args->w, j, 0));
    }
    return ULY_OK;
}

/* dw, in blocks of columns so that every sum over rows is one double. */
static void rmsnorm_bwd_weight(const struct uly_rmsnorm_bwd_args *args)
{
    int64_t width = uly_tensor_width(&args->x);
    for (int64_t first = 0; first < width; first += ULY_REF_BLOCK) {
        double sum[ULY_REF_BLOCK] = {0};
        int64_t n = width - first < ULY_REF_BLOCK ? width - first : ULY_REF_BLOCK;
        for (int64_t i = 0; i < args->x.shape[0]; i++) {
            double r = inverse_rms(&args->x, i, args->eps);
            for (int64_t j = 0; j < n; j++)
                sum[j] +=
                    uly_ref_get(&args->dy, i, first + j) * uly_ref_get(&args->x, i, first + j) * r;
        }
        for (int64_t j = 0; j < n; j++)
            uly_ref_set(&args->dw, first + j, 0, uly_ref_get(&args->dw, first + j, 0) + sum[j]);
    }
}

enum uly_status uly_ref_rmsnorm_bwd(struct uly_backend *be, const struct uly_rmsnorm_bwd_args *args)
{
    (void)be;
    int64_t width = uly_tensor_width(&args->x);
    if (uly_tensor_exists(&args->dw))
        rmsnorm_bwd_weight(args);
    for (int64_t i = 0; i < args->x.shape[0]; i++) {
        double r = inverse_rms(&args->x, i, args->eps), mean = 0;
        for (int64_t j = 0; j < width; j++)
            mean += uly_ref_get(&args->dy, i, j) * uly_ref_get(&args->w, j, 0) *
                    uly_ref_get(&args->x, i, j) / (double)width;
        for (int64_t j = 0; j < width; j++) {
            double g = uly_ref_get(&args->dy, i, j) * uly_ref_get(&args->w, j, 0);
            double dx = r * (g - uly_ref_get(&args->x, i, j) * r * r * mean);
            uly_ref_set(&args->dx, i, j, uly_ref_get(&args->dx, i, j) + dx);
        }
    }
    return ULY_OK;
}

/* ------------------------------------------------------------------ SwiGLU */

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

enum uly_status uly_ref_swiglu_fwd(struct uly_backend *be, struct uly_tensor gate,
                                   struct uly_tensor up, struct uly_tensor y)
{
    (void)be;
    for (int64_t i = 0; i < gate.shape[0]; i++) {
        for (int64_t j = 0; j < uly_tensor_width(&gate); j++) {
            double g = uly_ref_get(&gate, i, j);
            uly_ref_set(&y, i, j, g * sigmoid(g) * uly_ref_get(&up, i, j));
        }
    }
    return ULY_OK;
}

/* silu(g) = g sigmoid(g), silu'(g) = sigmoid(g) (1 + g (1 - sigmoid(g))) */
enum uly_status uly_ref_swiglu_bwd(struct uly_backend *be, struct uly_tensor gate,
                                   struct uly_tensor up, struct uly_tensor dy,
                                   struct uly_tensor dgate, struct uly_tensor dup)
{
    (void)be;
    for (int64_t i = 0; i < gate.shape[0]; i++) {
        for (int64_t j = 0; j < uly_tensor_width(&gate); j++) {
            double g = uly_ref_get(&gate, i, j), u = uly_ref_get(&up, i, j);
            double d = uly_ref_get(&dy, i, j), s = sigmoid(g);
            uly_ref_set(&dgate, i, j, d * u * s * (1 + g * (1 - s)));
            uly_ref_set(&dup, i, j, d * g * s);
        }
    }
    return ULY_OK;
}

/* ------------------------------------------------------------------ embedding */

/* An id that the table lacks would read a stranger's memory; the data layer has refused it long
 * before. */
static enum uly_status check_ids(const struct uly_tensor *ids, int64_t vocabulary)
{
    const int32_t *id = uly_tensor_address(*ids);
    for (int64_t i = 0; i < ids->shape[0]; i++)
        ULY_FAIL_IF(id[i] < 0 || id[i] >= vocabulary, ULY_ERR_INVALID,
                    "embedding: id %d of token %lld is not in [0, %lld)", (int)id[i], (long long)i,
                    (long long)vocabulary);
    return ULY_OK;
}

enum uly_status uly_ref_embed_fwd(struct uly_backend *be, struct uly_tensor ids,
                                  struct uly_tensor table, struct uly_tensor x)
{
    (void)be;
    ULY_TRY(check_ids(&ids, table.shape[0]));
    const int32_t *id = uly_tensor_address(ids);
    for (int64_t i = 0; i < x.shape[0]; i++)
        for (int64_t j = 0; j < uly_tensor_width(&x); j++)
            uly_ref_set(&x, i, j, uly_ref_get(&table, id[i], j));
    return ULY_OK;
}

enum uly_status uly_ref_embed_bwd(struct uly_backend *be, struct uly_tensor ids,
                                  struct uly_tensor dx, struct uly_tensor dtable)
{
    (void)be;
    ULY_TRY(check_ids(&ids, dtable.shape[0]));
    const int32_t *id = uly_tensor_address(ids);
    for (int64_t i = 0; i < dx.shape[0]; i++)
        for (int64_t j = 0; j < uly_tensor_width(&dx); j++)
            uly_ref_set(&dtable, id[i], j, uly_ref_get(&dtable, id[i], j) + uly_ref_get(&dx, i, j));
    return ULY_OK;
}

/* ------------------------------------------------------------------ loss */

static double log_sum_exp(const struct uly_tensor *logits, int64_t row)
{
    int64_t width = uly_tensor_width(logits);
    double largest = -HUGE_VAL, sum = 0;
    for (int64_t j = 0; j < width; j++)
        largest = fmax(largest, uly_ref_get(logits, row, j));
    for (int64_t j = 0; j < width; j++)
        sum += exp(uly_ref_get(logits, row, j) - largest);
    return largest + log(sum);
}

enum uly_status uly_ref_cross_entropy(struct uly_backend *be,
                                      const struct uly_cross_entropy_args *args)
{
    const struct uly_tensor *logits = &args->logits, *dlogits = &args->dlogits;
    const int32_t *label = uly_tensor_address(args->labels);
    int64_t width = uly_tensor_width(logits);
    for (int64_t i = 0; i < logits->shape[0]; i++) {
        bool ignored = label[i] == ULY_IGNORE_LABEL;
        ULY_FAIL_IF(!ignored && (label[i] < 0 || label[i] >= width), ULY_ERR_INVALID,
                    "cross entropy: label %d of token %lld is not in [0, %lld)", (int)label[i],
                    (long long)i, (long long)width);
        double lse = ignored ? 0 : log_sum_exp(logits, i);
        uly_ref_set(&args->loss, i, 0, ignored ? 0 : lse - uly_ref_get(logits, i, label[i]));
        if (!uly_tensor_exists(dlogits))
            continue;
        for (int64_t j = 0; j < width; j++) {
            double p = ignored ? 0 : exp(uly_ref_get(logits, i, j) - lse);
            uly_ref_set(dlogits, i, j, (p - (label[i] == j)) * args->factor);
        }
        uly_ref_poke(be);
    }
    return ULY_OK;
}

/* ------------------------------------------------------------------ optimizer */

enum uly_status uly_ref_adamw(struct uly_backend *be, const struct uly_adamw_args *args)
{
    (void)be;
    void *master = uly_tensor_address(args->master), *grad = uly_tensor_address(args->grad);
    void *first = uly_tensor_address(args->m), *second = uly_tensor_address(args->v);
    enum uly_dtype acc = args->master.dtype;
    double correction1 = 1 - pow(args->beta1, (double)args->step);
    double correction2 = 1 - pow(args->beta2, (double)args->step);
    for (int64_t i = 0; i < uly_tensor_count(&args->master); i++) {
        double g = uly_ref_load(grad, acc, i) * args->grad_factor;
        double p = uly_ref_load(master, acc, i) * (1 - args->lr * args->weight_decay);
        double m = args->beta1 * uly_ref_load(first, acc, i) + (1 - args->beta1) * g;
        double v = args->beta2 * uly_ref_load(second, acc, i) + (1 - args->beta2) * g * g;
        p -= args->lr * (m / correction1) / (sqrt(v / correction2) + args->eps);
        uly_ref_store(first, acc, i, m);
        uly_ref_store(second, acc, i, v);
        uly_ref_store(master, acc, i, p);
        if (uly_tensor_exists(&args->model)) /* the master's stored value, rounded */
            uly_ref_store(uly_tensor_address(args->model), args->model.dtype, i,
                          uly_ref_load(master, acc, i));
    }
    return ULY_OK;
}
