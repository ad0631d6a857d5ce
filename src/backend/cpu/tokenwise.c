/* SPDX-License-Identifier: MIT
 *
 * Operations on whole rows: norm, embedding, loss, column sums. Work over rows is cut into items of a few rows, whose
 * number depends on the width alone; sums over rows belong to the thread that owns their columns, and are cut into numeric
 * tiles of ULY_CPU_ROWS rows that are added in order.
 */
#include "backend/cpu/ops.h"

enum {
    ITEM_ELEMENTS = 16384,
    OWNED = 128
}; /* elements of an item of rows, about; columns of an owner */
_Static_assert((int)OWNED <= (int)ULY_CPU_CHUNK,
               "kernels that sum over rows take a chunk of columns");

static int64_t rows_of_item(int64_t width)
{
    int64_t rows = width > 0 ? ITEM_ELEMENTS / width : ULY_CPU_ROWS;
    return rows < 1 ? 1 : rows > ULY_CPU_ROWS ? ULY_CPU_ROWS : rows;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Runs fn on items of `step` out of n. */
static void run_by(struct uly_backend *be, int64_t n, int64_t step, uly_cpu_item_fn fn,
                   void *context)
{
    uly_cpu_for(be, (n + step - 1) / step, fn, context);
}

/* ------------------------------------------------------------------ RMS norm */

struct norm {
    const struct uly_cpu_kernels *kernels;
    const struct uly_rmsnorm_fwd_args *fwd;
    const struct uly_rmsnorm_bwd_args *bwd;
    struct uly_span x, w, y, dy, dx;
    int64_t width, step;
    int64_t first, rows;         /* rows of this batch; item rows count from first */
    struct uly_rms_stats *stats; /* [rows] */
};

static void norm_item(void *context, int64_t item, int thread)
{
    (void)thread;
    struct norm *n = context;
    int64_t end = smaller((item + 1) * n->step, n->rows);
    for (int64_t i = item * n->step; i < end; i++)
        n->kernels->rmsnorm(uly_span_at(n->x, i * n->fwd->x.stride), n->w,
                            uly_span_at(n->y, i * n->fwd->y.stride), n->width, n->fwd->eps);
}

enum uly_status uly_cpu_rmsnorm_fwd(struct uly_backend *be, const struct uly_rmsnorm_fwd_args *args)
{
    int64_t width = uly_tensor_width(&args->x);
    struct norm n = {.kernels = uly_cpu_of(be)->kernels,
                     .fwd = args,
                     .x = uly_cpu_span(args->x),
                     .w = uly_cpu_span(args->w),
                     .y = uly_cpu_span(args->y),
                     .width = width,
                     .step = rows_of_item(width),
                     .rows = args->x.shape[0]};
    run_by(be, n.rows, n.step, norm_item, &n);
    return ULY_OK;
}

static void stats_item(void *context, int64_t item, int thread)
{
    (void)thread;
    struct norm *n = context;
    int64_t end = smaller((item + 1) * n->step, n->rows);
    for (int64_t i = item * n->step; i < end; i++) {
        int64_t row = n->first + i;
        n->stats[i] = n->kernels->rms_stats(uly_span_at(n->x, row * n->bwd->x.stride), n->w,
                                            uly_span_at(n->dy, row * n->bwd->dy.stride), n->width,
                                            n->bwd->eps);
    }
}

static void dw_item(void *context, int64_t item, int thread)
{
    (void)thread;
    struct norm *n = context;
    int64_t column = item * OWNED, columns = smaller(n->width - column, OWNED);
    float *dw = (float *)uly_tensor_address(n->bwd->dw) + column;
    for (int64_t i = 0; i < n->rows; i += ULY_CPU_ROWS) {
        int64_t row = n->first + i;
        n->kernels->rmsnorm_dw(uly_span_at(n->x, row * n->bwd->x.stride + column), n->bwd->x.stride,
                               uly_span_at(n->dy, row * n->bwd->dy.stride + column),
                               n->bwd->dy.stride, n->stats + i, smaller(n->rows - i, ULY_CPU_ROWS),
                               columns, dw);
    }
}

static void dx_item(void *context, int64_t item, int thread)
{
    (void)thread;
    struct norm *n = context;
    int64_t end = smaller((item + 1) * n->step, n->rows);
    for (int64_t i = item * n->step; i < end; i++) {
        int64_t row = n->first + i;
        n->kernels->rmsnorm_dx(uly_span_at(n->x, row * n->bwd->x.stride), n->w,
                               uly_span_at(n->dy, row * n->bwd->dy.stride),
                               uly_span_at(n->dx, row * n->bwd->dx.stride), n->width, n->stats[i]);
    }
}

/* In batches of rows, while their statistics are kept and the rows are still in a cache. */
enum uly_status uly_cpu_rmsnorm_bwd(struct uly_backend *be, const struct uly_rmsnorm_bwd_args *args)
{
    int64_t width = uly_tensor_width(&args->x), rows = args->x.shape[0];
    struct norm n = {.kernels = uly_cpu_of(be)->kernels,
                     .bwd = args,
                     .x = uly_cpu_span(args->x),
                     .w = uly_cpu_span(args->w),
                     .dy = uly_cpu_span(args->dy),
                     .dx = uly_cpu_span(args->dx),
                     .width = width,
                     .step = rows_of_item(width),
                     .stats = uly_cpu_of(be)->row_stats};
    for (n.first = 0; n.first < rows; n.first += ULY_CPU_STAT_ROWS) {
        n.rows = smaller(rows - n.first, ULY_CPU_STAT_ROWS);
        run_by(be, n.rows, n.step, stats_item, &n);
        if (uly_tensor_exists(&args->dw))
            run_by(be, width, OWNED, dw_item, &n);
        run_by(be, n.rows, n.step, dx_item, &n);
    }
    return ULY_OK;
}

/* ------------------------------------------------------------------ column sums */

struct columns {
    const struct uly_cpu_kernels *kernels;
    struct uly_tensor x;
    float *out;
};

static void column_item(void *context, int64_t item, int thread)
{
    (void)thread;
    const struct columns *c = context;
    int64_t column = item * OWNED, n = smaller(uly_tensor_width(&c->x) - column, OWNED);
    double sum[OWNED];
    for (int64_t j = 0; j < n; j++)
        sum[j] = (double)c->out[column + j];
    for (int64_t i = 0; i < c->x.shape[0]; i += ULY_CPU_ROWS)
        c->kernels->column_sum(uly_span_at(uly_cpu_span(c->x), i * c->x.stride + column),
                               c->x.stride, smaller(c->x.shape[0] - i, ULY_CPU_ROWS), n, sum);
    for (int64_t j = 0; j < n; j++)
        c->out[column + j] = (float)sum[j];
}

enum uly_status uly_cpu_column_sum(struct uly_backend *be, struct uly_tensor x,
                                   struct uly_tensor out)
{
    struct columns c = {uly_cpu_of(be)->kernels, x, uly_tensor_address(out)};
    run_by(be, uly_tensor_width(&x), OWNED, column_item, &c);
    return ULY_OK;
}

/* ------------------------------------------------------------------ embedding */

struct embed {
    const struct uly_cpu_kernels *kernels;
    const int32_t *ids;
    struct uly_span table, x;
    int64_t table_stride, x_stride, rows, width, step;
};

/* An id that the table lacks would read a stranger's memory; the data layer has refused it long before. */
static enum uly_status check_ids(struct uly_tensor ids, int64_t vocabulary)
{
    const int32_t *id = uly_tensor_address(ids);
    for (int64_t i = 0; i < ids.shape[0]; i++)
        ULY_FAIL_IF(id[i] < 0 || id[i] >= vocabulary, ULY_ERR_INVALID,
                    "embedding: id %d of token %lld is not in [0, %lld)", (int)id[i], (long long)i,
                    (long long)vocabulary);
    return ULY_OK;
}

static struct embed embed_of(struct uly_backend *be, struct uly_tensor ids, struct uly_tensor table,
                             struct uly_tensor x)
{
    return (struct embed){.kernels = uly_cpu_of(be)->kernels,
                          .ids = uly_tensor_address(ids),
                          .table = uly_cpu_span(table),
                          .x = uly_cpu_span(x),
                          .table_stride = table.stride,
                          .x_stride = x.stride,
                          .rows = x.shape[0],
                          .width = uly_tensor_width(&x),
                          .step = rows_of_item(uly_tensor_width(&x))};
}

static void embed_item(void *context, int64_t item, int thread)
{
    (void)thread;
    const struct embed *e = context;
    int64_t end = smaller((item + 1) * e->step, e->rows);
    for (int64_t i = item * e->step; i < end; i++)
        e->kernels->convert(uly_span_at(e->table, e->ids[i] * e->table_stride),
                            uly_span_at(e->x, i * e->x_stride), e->width);
}

enum uly_status uly_cpu_embed_fwd(struct uly_backend *be, struct uly_tensor ids,
                                  struct uly_tensor table, struct uly_tensor x)
{
    ULY_TRY(check_ids(ids, table.shape[0]));
    struct embed e = embed_of(be, ids, table, x);
    run_by(be, e.rows, e.step, embed_item, &e);
    return ULY_OK;
}

/* One owner's columns of all rows: two rows may have one id, so rows cannot be shared out. */
static void embed_bwd_item(void *context, int64_t item, int thread)
{
    (void)thread;
    const struct embed *e = context;
    int64_t column = item * OWNED, n = smaller(e->width - column, OWNED);
    for (int64_t i = 0; i < e->rows; i++)
        e->kernels->add(uly_span_at(e->x, i * e->x_stride + column),
                        uly_span_at(e->table, e->ids[i] * e->table_stride + column), n);
}

enum uly_status uly_cpu_embed_bwd(struct uly_backend *be, struct uly_tensor ids,
                                  struct uly_tensor dx, struct uly_tensor dtable)
{
    ULY_TRY(check_ids(ids, dtable.shape[0]));
    struct embed e = embed_of(be, ids, dtable, dx);
    run_by(be, e.width, OWNED, embed_bwd_item, &e);
    return ULY_OK;
}

/* ------------------------------------------------------------------ loss */

struct loss {
    const struct uly_cpu_kernels *kernels;
    const struct uly_cross_entropy_args *args;
    const float *logits;
    const int32_t *labels;
    float *loss;
    struct uly_span dlogits;
    int64_t width, step;
};

static void loss_item(void *context, int64_t item, int thread)
{
    (void)thread;
    const struct loss *l = context;
    int64_t end = smaller((item + 1) * l->step, l->args->logits.shape[0]);
    for (int64_t i = item * l->step; i < end; i++) {
        struct uly_span dlogits = l->dlogits;
        if (dlogits.p != NULL)
            dlogits = uly_span_at(dlogits, i * l->args->dlogits.stride);
        if (l->labels[i] != ULY_IGNORE_LABEL) {
            l->loss[i] = l->kernels->cross_entropy(l->logits + i * l->args->logits.stride, l->width,
                                                   l->labels[i], l->args->factor, dlogits);
            continue;
        }
        l->loss[i] = 0;
        if (dlogits.p != NULL)
            l->kernels->fill(dlogits, 0, l->width);
    }
}

enum uly_status uly_cpu_cross_entropy(struct uly_backend *be,
                                      const struct uly_cross_entropy_args *args)
{
    struct loss l = {.kernels = uly_cpu_of(be)->kernels,
                     .args = args,
                     .logits = uly_tensor_address(args->logits),
                     .labels = uly_tensor_address(args->labels),
                     .loss = uly_tensor_address(args->loss),
                     .dlogits = uly_cpu_span_or_none(args->dlogits),
                     .width = uly_tensor_width(&args->logits)};
    int64_t rows = args->logits.shape[0];
    for (int64_t i = 0; i < rows; i++)
        ULY_FAIL_IF(l.labels[i] != ULY_IGNORE_LABEL && (l.labels[i] < 0 || l.labels[i] >= l.width),
                    ULY_ERR_INVALID, "cross entropy: label %d of token %lld is not in [0, %lld)",
                    (int)l.labels[i], (long long)i, (long long)l.width);
    l.step = rows_of_item(l.width);
    run_by(be, rows, l.step, loss_item, &l);
    return ULY_OK;
}
