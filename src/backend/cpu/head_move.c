/* SPDX-License-Identifier: MIT
 *
 * Heads on the move: items of rows, all heads of a row together, so that a row's angles are made once.
 */
#include "backend/cpu/ops.h"

enum { ITEM_ROWS = 32 };

struct move {
    const struct uly_cpu_kernels *kernels;
    const struct uly_head_move_args *args;
    struct uly_span src, dst, bias;
    const int64_t *position;
    const double *inv_freq;
    const int32_t *table; /* NULL: all rows have the first frequencies */
};

static struct uly_span head_row(struct uly_span s, const struct uly_heads *v, int h, int64_t row)
{
    return uly_span_at(s, v->offset[h] + row * v->stride[h]);
}

static struct uly_span bias_of(const struct move *m, int h)
{
    return m->bias.p == NULL ? m->bias : uly_span_at(m->bias, (int64_t)h * m->args->src.dim);
}

static void move_row(const struct move *m, int64_t row)
{
    const struct uly_head_move_args *args = m->args;
    for (int h = 0; h < args->src.n; h++)
        m->kernels->move(head_row(m->src, &args->src, h, row), bias_of(m, h),
                         head_row(m->dst, &args->dst, h, row), args->accumulate, args->src.dim);
}

static void rotate_row(const struct move *m, int64_t row)
{
    const struct uly_head_move_args *args = m->args;
    float c[ULY_CPU_CHUNK], s[ULY_CPU_CHUNK];
    int64_t half = args->src.dim / 2;
    const double *inv_freq = m->inv_freq + (m->table ? m->table[row] * half : 0);
    /* the inverse turns by the opposite angle */
    double position = (double)m->position[row] * (args->rope == ULY_ROPE_INVERSE ? -1 : 1);
    for (int64_t first = 0; first < half; first += ULY_CPU_CHUNK) {
        int64_t n = half - first < ULY_CPU_CHUNK ? half - first : ULY_CPU_CHUNK;
        m->kernels->angles(position, inv_freq + first, n, (float)args->rope_scale, c, s);
        for (int h = 0; h < args->src.n; h++)
            m->kernels->rotate(head_row(m->src, &args->src, h, row), bias_of(m, h),
                               head_row(m->dst, &args->dst, h, row), args->accumulate, first, half,
                               n, c, s);
    }
}

static void move_item(void *context, int64_t item, int thread)
{
    (void)thread;
    const struct move *m = context;
    int64_t rows = m->args->src.rows, end = (item + 1) * ITEM_ROWS;
    for (int64_t row = item * ITEM_ROWS; row < end && row < rows; row++) {
        if (m->args->rope == ULY_ROPE_NONE)
            move_row(m, row);
        else
            rotate_row(m, row);
    }
}

enum uly_status uly_cpu_head_move(struct uly_backend *be, const struct uly_head_move_args *args)
{
    struct move m = {.kernels = uly_cpu_of(be)->kernels,
                     .args = args,
                     .src = uly_cpu_span(args->src.t),
                     .dst = uly_cpu_span(args->dst.t),
                     .bias = uly_cpu_span_or_none(args->bias)};
    if (args->rope != ULY_ROPE_NONE) {
        m.position = uly_tensor_address(args->position);
        m.inv_freq = uly_tensor_address(args->inv_freq);
        if (uly_tensor_exists(&args->table))
            m.table = uly_tensor_address(args->table);
    }
    uly_cpu_for(be, (args->src.rows + ITEM_ROWS - 1) / ITEM_ROWS, move_item, &m);
    return ULY_OK;
}

struct dots {
    const struct uly_cpu_kernels *kernels;
    const struct uly_heads *a, *b, *out;
};

static void dot_item(void *context, int64_t item, int thread)
{
    (void)thread;
    const struct dots *d = context;
    struct uly_span a = uly_cpu_span(d->a->t), b = uly_cpu_span(d->b->t);
    float *out = uly_tensor_address(d->out->t);
    int64_t end = (item + 1) * ITEM_ROWS;
    for (int64_t row = item * ITEM_ROWS; row < end && row < d->a->rows; row++)
        for (int h = 0; h < d->a->n; h++)
            out[d->out->offset[h] + row * d->out->stride[h]] =
                d->kernels->dot(head_row(a, d->a, h, row), head_row(b, d->b, h, row), d->a->dim);
}

enum uly_status uly_cpu_head_dot(struct uly_backend *be, const struct uly_heads *a,
                                 const struct uly_heads *b, const struct uly_heads *out)
{
    struct dots d = {uly_cpu_of(be)->kernels, a, b, out};
    uly_cpu_for(be, (a->rows + ITEM_ROWS - 1) / ITEM_ROWS, dot_item, &d);
    return ULY_OK;
}
