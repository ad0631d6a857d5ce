/* SPDX-License-Identifier: MIT
 *
 * Operations whose elements do not meet: one driver lays a grid of items over tensors of one shape, and each operation
 * says what to do with a run of neighbouring elements. Tensors that are all dense count as one long row.
 */
#include <math.h>
#include <string.h>

#include "backend/cpu/ops.h"

enum { RUN = 32768, MOST = 5 }; /* elements of an item, about; tensors of an operation */

struct sweep {
    const struct uly_cpu_kernels *kernels;
    struct uly_span at[MOST]; /* first elements */
    int64_t stride[MOST];
    int n; /* tensors */
    int64_t rows, width;
    int64_t row_step, column_step, n_across; /* an item's rows and columns, items side by side */
    /* Does n elements; at: where they lie in each tensor. */
    void (*run)(const struct sweep *s, const struct uly_span *at, int64_t n);
    double value;
    const struct uly_adamw_factors *adamw;
};

static void sweep_item(void *context, int64_t item, int thread)
{
    (void)thread;
    const struct sweep *s = context;
    int64_t row = item / s->n_across * s->row_step, column = item % s->n_across * s->column_step;
    int64_t end = row + s->row_step < s->rows ? row + s->row_step : s->rows;
    int64_t n = s->width - column < s->column_step ? s->width - column : s->column_step;
    for (; row < end; row++) {
        struct uly_span at[MOST];
        for (int t = 0; t < s->n; t++)
            at[t] =
                s->at[t].p == NULL ? s->at[t] : uly_span_at(s->at[t], row * s->stride[t] + column);
        s->run(s, at, n);
    }
}

/* s: kernels, run and what run needs. A tensor that does not exist gives an absent span. */
static enum uly_status sweep(struct uly_backend *be, struct sweep s, int n,
                             const struct uly_tensor *const *t)
{
    bool dense = true;
    for (int i = 0; i < n; i++) {
        s.at[i] = uly_cpu_span_or_none(*t[i]);
        s.stride[i] = t[i]->stride;
        dense = dense && uly_tensor_is_dense(t[i]);
    }
    s.kernels = uly_cpu_of(be)->kernels;
    s.n = n;
    s.rows = dense ? 1 : t[0]->shape[0];
    s.width = dense ? uly_tensor_count(t[0]) : uly_tensor_width(t[0]);
    if (s.rows == 0 || s.width == 0)
        return ULY_OK;
    s.column_step = s.width < RUN ? s.width : RUN;
    s.row_step = s.width < RUN ? RUN / s.width : 1;
    s.n_across = (s.width + s.column_step - 1) / s.column_step;
    uly_cpu_for(be, (s.rows + s.row_step - 1) / s.row_step * s.n_across, sweep_item, &s);
    return ULY_OK;
}

/* ------------------------------------------------------------------ data in and out */

static void copy_rows(unsigned char *to, int64_t to_stride, const unsigned char *from,
                      int64_t from_stride, int64_t rows, int64_t row_bytes)
{
    if (to_stride == row_bytes && from_stride == row_bytes) {
        row_bytes *= rows;
        rows = rows > 0;
    }
    for (int64_t i = 0; i < rows && row_bytes > 0; i++)
        memcpy(to + i * to_stride, from + i * from_stride, (size_t)row_bytes);
}

enum uly_status uly_cpu_write(struct uly_backend *be, struct uly_tensor t, const void *host)
{
    (void)be;
    int64_t bytes = uly_dtype_bytes(t.dtype), row_bytes = uly_tensor_width(&t) * bytes;
    copy_rows(uly_tensor_address(t), t.stride * bytes, host, row_bytes, t.shape[0], row_bytes);
    return ULY_OK;
}

enum uly_status uly_cpu_read(struct uly_backend *be, struct uly_tensor t, void *host)
{
    (void)be;
    int64_t bytes = uly_dtype_bytes(t.dtype), row_bytes = uly_tensor_width(&t) * bytes;
    copy_rows(host, row_bytes, uly_tensor_address(t), t.stride * bytes, t.shape[0], row_bytes);
    return ULY_OK;
}

static void run_fill(const struct sweep *s, const struct uly_span *at, int64_t n)
{
    s->kernels->fill(at[0], (float)s->value, n);
}

enum uly_status uly_cpu_fill(struct uly_backend *be, struct uly_tensor t, double value)
{
    if (!uly_cpu_is_fast(t.dtype))
        return uly_cpu_of(be)->ref.fill(be, t, value);
    return sweep(be, (struct sweep){.run = run_fill, .value = value}, 1,
                 (const struct uly_tensor *const[]){&t});
}

static void run_cast(const struct sweep *s, const struct uly_span *at, int64_t n)
{
    s->kernels->convert(at[0], at[1], n);
}

enum uly_status uly_cpu_cast(struct uly_backend *be, struct uly_tensor src, struct uly_tensor dst)
{
    if (!uly_cpu_is_fast(src.dtype) || !uly_cpu_is_fast(dst.dtype))
        return uly_cpu_of(be)->ref.cast(be, src, dst);
    return sweep(be, (struct sweep){.run = run_cast}, 2,
                 (const struct uly_tensor *const[]){&src, &dst});
}

/* ------------------------------------------------------------------ sums and factors */

static void run_add(const struct sweep *s, const struct uly_span *at, int64_t n)
{
    s->kernels->add(at[0], at[1], n);
}

enum uly_status uly_cpu_add(struct uly_backend *be, struct uly_tensor src, struct uly_tensor dst)
{
    if (!uly_cpu_is_fast(src.dtype))
        return uly_cpu_of(be)->ref.add(be, src, dst);
    return sweep(be, (struct sweep){.run = run_add}, 2,
                 (const struct uly_tensor *const[]){&src, &dst});
}

static void run_scale(const struct sweep *s, const struct uly_span *at, int64_t n)
{
    s->kernels->scale(at[0], (float)s->value, n);
}

enum uly_status uly_cpu_scale(struct uly_backend *be, struct uly_tensor t, double factor)
{
    return sweep(be, (struct sweep){.run = run_scale, .value = factor}, 1,
                 (const struct uly_tensor *const[]){&t});
}

/* Squares are summed in blocks, as many at a time as have a place in `part`; then the blocks in order. */
enum { BLOCK = 65536, PARTS = 512 };

struct squares {
    const struct uly_cpu_kernels *kernels;
    struct uly_span x;
    int64_t n;
    double part[PARTS];
};

static void squares_item(void *context, int64_t item, int thread)
{
    (void)thread;
    struct squares *s = context;
    int64_t first = item * BLOCK, n = s->n - first < BLOCK ? s->n - first : BLOCK;
    s->part[item] = s->kernels->sum_squares(uly_span_at(s->x, first), n);
}

static double sum_squares_row(struct uly_backend *be, struct uly_span x, int64_t n)
{
    struct squares s = {.kernels = uly_cpu_of(be)->kernels};
    double sum = 0;
    for (int64_t first = 0; first < n; first += (int64_t)BLOCK * PARTS) {
        s.x = uly_span_at(x, first);
        s.n = n - first < (int64_t)BLOCK * PARTS ? n - first : (int64_t)BLOCK * PARTS;
        int64_t blocks = (s.n + BLOCK - 1) / BLOCK;
        uly_cpu_for(be, blocks, squares_item, &s);
        for (int64_t i = 0; i < blocks; i++)
            sum += s.part[i];
    }
    return sum;
}

enum uly_status uly_cpu_sum_squares(struct uly_backend *be, struct uly_tensor t, double *out)
{
    if (!uly_cpu_is_fast(t.dtype))
        return uly_cpu_of(be)->ref.sum_squares(be, t, out);
    bool dense = uly_tensor_is_dense(&t);
    int64_t rows = dense ? 1 : t.shape[0];
    int64_t n = dense ? uly_tensor_count(&t) : uly_tensor_width(&t);
    double sum = 0;
    for (int64_t i = 0; i < rows; i++)
        sum += sum_squares_row(be, uly_span_at(uly_cpu_span(t), i * t.stride), n);
    *out = sum;
    return ULY_OK;
}

/* ------------------------------------------------------------------ SwiGLU */

static void run_swiglu(const struct sweep *s, const struct uly_span *at, int64_t n)
{
    s->kernels->swiglu(at[0], at[1], at[2], n);
}

enum uly_status uly_cpu_swiglu_fwd(struct uly_backend *be, struct uly_tensor gate,
                                   struct uly_tensor up, struct uly_tensor y)
{
    return sweep(be, (struct sweep){.run = run_swiglu}, 3,
                 (const struct uly_tensor *const[]){&gate, &up, &y});
}

static void run_swiglu_back(const struct sweep *s, const struct uly_span *at, int64_t n)
{
    s->kernels->swiglu_back(at[0], at[1], at[2], at[3], at[4], n);
}

enum uly_status uly_cpu_swiglu_bwd(struct uly_backend *be, struct uly_tensor gate,
                                   struct uly_tensor up, struct uly_tensor dy,
                                   struct uly_tensor dgate, struct uly_tensor dup)
{
    return sweep(be, (struct sweep){.run = run_swiglu_back}, 5,
                 (const struct uly_tensor *const[]){&gate, &up, &dy, &dgate, &dup});
}

/* ------------------------------------------------------------------ optimizer */

static void run_adamw(const struct sweep *s, const struct uly_span *at, int64_t n)
{
    s->kernels->adamw(s->adamw, (float *)(void *)at[0].p, (float *)(void *)at[1].p,
                      (float *)(void *)at[2].p, (const float *)(const void *)at[3].p, at[4], n);
}

/* The corrections are made in double; from there on everything is float32, as in PyTorch. */
enum uly_status uly_cpu_adamw(struct uly_backend *be, const struct uly_adamw_args *args)
{
    double correction1 = 1 - pow(args->beta1, (double)args->step);
    double correction2 = 1 - pow(args->beta2, (double)args->step);
    struct uly_adamw_factors factors = {.beta1 = (float)args->beta1,
                                        .beta2 = (float)args->beta2,
                                        .one_less_beta1 = (float)(1 - args->beta1),
                                        .one_less_beta2 = (float)(1 - args->beta2),
                                        .step_size = (float)(args->lr / correction1),
                                        .inverse_root = (float)(1 / sqrt(correction2)),
                                        .eps = (float)args->eps,
                                        .decay = (float)(args->lr * args->weight_decay),
                                        .grad_factor = (float)args->grad_factor};
    return sweep(be, (struct sweep){.run = run_adamw, .adamw = &factors}, 5,
                 (const struct uly_tensor *const[]){&args->master, &args->m, &args->v, &args->grad,
                                                    &args->model});
}
