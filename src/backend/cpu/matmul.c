/* SPDX-License-Identifier: MIT
 *
 * Matrix products: the cut into blocks, and the two ways to multiply one (matmul.h). A work item is a block of columns
 * for a group of row tiles, so that a packed piece of b serves several tiles; the group is as large as leaves every thread
 * a few items. Its size changes which thread does what, never a block, hence no bit.
 */
#include "backend/cpu/matmul.h"

#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu_impl.h"
#include "backend/cpu/features.h"
#include "backend/cpu/kernels.h"
#include "base/log.h"
#include "base/mem.h"

enum {
    ROWS = ULY_CPU_ROWS,
    COLUMNS = 256,      /* of a block, at most; convert */
    INNER = 512,        /* of a block; convert */
    WIDE_COLUMNS = 512, /* the same for primitives, which pack inside and want it larger */
    WIDE_INNER = 1024,
    GROUP = 4, /* row tiles of an item, at most */
    PAD = 16   /* floats between packed rows, beyond a multiple of 32 */
};

/* One thread's scratch, floats: a packed, b packed, c of a group; primitives use the first two as scratchpad. */
enum {
    A_FLOATS = ROWS * (INNER + PAD),
    B_FLOATS = INNER * (COLUMNS + PAD),
    C_FLOATS = GROUP * ROWS * (COLUMNS + PAD)
};
_Static_assert(ROWS *(WIDE_COLUMNS + PAD) <= C_FLOATS, "a primitive's block of c must fit");

struct uly_cpu_matmul {
    struct uly_dnnl *dnnl; /* owned; NULL where no dtype uses primitives */
    bool primitive_f32, primitive_bf16;
};

/* One product, cut. Sizes in elements; x[row][column] of a stored matrix lies at row * ld + column. */
struct product {
    struct uly_backend *be;
    struct uly_span a, b, c, bias;
    int64_t m, n, k, lda, ldb, ldc;
    bool transpose_a, transpose_b, accumulate;
    int64_t columns, inner;     /* of a block */
    int64_t n_columns, n_tiles; /* blocks along n, row tiles along m */
    int64_t group;              /* row tiles of an item */
    bool primitive;
    int handle[2][2][2]
              [2];      /* of a primitive: [last row tile][last column block][last inner][adds] */
    _Atomic int status; /* of a block that failed */
};

/* ------------------------------------------------------------------ cutting */

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Near-equal column blocks of whole multiples of 32, at most `most` wide. */
static void cut_columns(struct product *p, int64_t most)
{
    int64_t n = ceil_div(p->n, most);
    p->columns = ceil_div(ceil_div(p->n, n), 32) * 32;
    p->n_columns = ceil_div(p->n, p->columns);
}

static void cut(struct product *p)
{
    cut_columns(p, p->primitive ? WIDE_COLUMNS : COLUMNS);
    p->inner = p->transpose_a ? ROWS : p->primitive ? WIDE_INNER : INNER;
    p->n_tiles = ceil_div(p->m, ROWS);
    p->group = p->primitive ? 1 : GROUP;
    while (p->group > 1 && ceil_div(p->n_tiles, p->group) * p->n_columns < 4 * p->be->n_threads)
        p->group /= 2;
}

static struct uly_span span_of(struct uly_tensor t)
{
    return (struct uly_span){uly_tensor_address(t), t.dtype};
}

/* A matrix of one row may carry any stride; the library wants at least the width. */
static int64_t leading(struct uly_tensor t)
{
    int64_t width = uly_tensor_width(&t);
    return t.stride > width ? t.stride : width;
}

static struct product product_of(struct uly_backend *be, const struct uly_matmul_args *args)
{
    struct product p = {.be = be,
                        .a = span_of(args->a),
                        .b = span_of(args->b),
                        .c = span_of(args->c),
                        .m = args->c.shape[0],
                        .n = uly_tensor_width(&args->c),
                        .k = args->transpose_a ? args->a.shape[0] : uly_tensor_width(&args->a),
                        .lda = leading(args->a),
                        .ldb = leading(args->b),
                        .ldc = leading(args->c),
                        .transpose_a = args->transpose_a,
                        .transpose_b = args->transpose_b,
                        .accumulate = args->accumulate};
    if (uly_tensor_exists(&args->bias))
        p.bias = span_of(args->bias);
    return p;
}

/* ------------------------------------------------------------------ one block of c */

/* Where c's block is summed in float32: c itself, or scratch. */
struct sum {
    float *p;
    int64_t ld;
    int64_t row, rows, column, columns; /* of c */
};

static struct sum sum_of(const struct product *p, int64_t tile, int64_t block, float *scratch)
{
    struct sum s = {.row = tile * ROWS, .column = block * p->columns};
    s.rows = p->m - s.row < ROWS ? p->m - s.row : ROWS;
    s.columns = p->n - s.column < p->columns ? p->n - s.column : p->columns;
    if (p->c.dtype == ULY_DTYPE_F32) {
        s.p = (float *)(void *)p->c.p + s.row * p->ldc + s.column;
        s.ld = p->ldc;
    } else {
        s.p = scratch;
        s.ld = p->columns + PAD;
    }
    return s;
}

static bool starts_filled(const struct product *p)
{
    return p->accumulate || p->bias.p != NULL || p->k == 0;
}

/* What the products are added to: c and bias. */
static void sum_begin(const struct product *p, const struct sum *s)
{
    const struct uly_cpu_kernels *kernels = uly_cpu_of(p->be)->kernels;
    for (int64_t i = 0; i < s->rows && starts_filled(p); i++) {
        struct uly_span row = {(unsigned char *)(s->p + i * s->ld), ULY_DTYPE_F32};
        if (p->accumulate)
            kernels->convert(uly_span_at(p->c, (s->row + i) * p->ldc + s->column), row, s->columns);
        else
            kernels->fill(row, 0, s->columns);
        if (p->bias.p != NULL)
            kernels->add(uly_span_at(p->bias, s->column), row, s->columns);
    }
}

static void sum_end(const struct product *p, const struct sum *s)
{
    const struct uly_cpu_kernels *kernels = uly_cpu_of(p->be)->kernels;
    for (int64_t i = 0; i < s->rows && p->c.dtype != ULY_DTYPE_F32; i++)
        kernels->convert((struct uly_span){(unsigned char *)(s->p + i * s->ld), ULY_DTYPE_F32},
                         uly_span_at(p->c, (s->row + i) * p->ldc + s->column), s->columns);
}

/* ------------------------------------------------------------------ convert */

static struct uly_span a_at(const struct product *p, int64_t row, int64_t inner)
{
    return uly_span_at(p->a, p->transpose_a ? inner * p->lda + row : row * p->lda + inner);
}
static struct uly_span b_at(const struct product *p, int64_t inner, int64_t column)
{
    return uly_span_at(p->b, p->transpose_b ? column * p->ldb + inner : inner * p->ldb + column);
}

/* Adds inner elements [first, first + count) to a block; b of these is packed already. */
static enum uly_status convert_block(const struct product *p, const struct sum *s, int64_t first,
                                     int64_t count, float *a_packed, const float *b_packed)
{
    const float *a = (const float *)(const void *)a_at(p, s->row, first).p;
    int64_t lda = p->lda;
    if (p->transpose_a || p->a.dtype != ULY_DTYPE_F32) {
        lda = INNER + PAD;
        uly_cpu_of(p->be)->kernels->pack(a_at(p, s->row, first), p->lda, p->transpose_a, s->rows,
                                         count, a_packed, lda);
        a = a_packed;
    }
    return uly_dnnl_sgemm(s->rows, s->columns, count, a, lda, b_packed, p->columns + PAD,
                          first > 0 || starts_filled(p), s->p, s->ld);
}

static enum uly_status convert_item(const struct product *p, int64_t item, int thread)
{
    float *a_packed = uly_cpu_scratch(p->be, thread), *b_packed = a_packed + A_FLOATS;
    float *c_scratch = b_packed + B_FLOATS;
    struct sum sums[GROUP];
    int64_t block = item % p->n_columns, first_tile = item / p->n_columns * p->group;
    int64_t n = p->n_tiles - first_tile < p->group ? p->n_tiles - first_tile : p->group;
    for (int64_t t = 0; t < n; t++) {
        sums[t] = sum_of(p, first_tile + t, block, c_scratch + t * ROWS * (COLUMNS + PAD));
        sum_begin(p, &sums[t]);
    }
    for (int64_t first = 0; first < p->k; first += p->inner) {
        int64_t count = p->k - first < p->inner ? p->k - first : p->inner;
        uly_cpu_of(p->be)->kernels->pack(b_at(p, first, sums[0].column), p->ldb, p->transpose_b,
                                         count, sums[0].columns, b_packed, p->columns + PAD);
        for (int64_t t = 0; t < n; t++)
            ULY_TRY(convert_block(p, &sums[t], first, count, a_packed, b_packed));
    }
    for (int64_t t = 0; t < n; t++)
        sum_end(p, &sums[t]);
    return ULY_OK;
}

/* ------------------------------------------------------------------ primitives */

/* A bfloat16 result of a single primitive is rounded by it; anything else is summed in float32. */
static bool rounds_itself(const struct product *p)
{
    return p->c.dtype != ULY_DTYPE_F32 && p->k <= p->inner && !starts_filled(p);
}

static int primitive_handle(const struct product *p, const struct sum *s, int64_t first)
{
    bool last_row = s->row + ROWS >= p->m, last_column = s->column + p->columns >= p->n;
    bool last_inner = first + p->inner >= p->k, adds = first > 0 || starts_filled(p);
    return p->handle[last_row][last_column][last_inner][adds];
}

static enum uly_status primitive_item(const struct product *p, int64_t item, int thread)
{
    struct uly_dnnl *dnnl = uly_cpu_of(p->be)->matmul->dnnl;
    float *scratch = uly_cpu_scratch(p->be, thread);
    struct sum s =
        sum_of(p, item / p->n_columns, item % p->n_columns, scratch + A_FLOATS + B_FLOATS);
    void *c =
        rounds_itself(p) ? uly_span_at(p->c, s.row * p->ldc + s.column).p : (unsigned char *)s.p;
    sum_begin(p, &s);
    for (int64_t first = 0; first < p->k; first += p->inner)
        ULY_TRY(uly_dnnl_run(dnnl, primitive_handle(p, &s, first), thread, a_at(p, s.row, first).p,
                             b_at(p, first, s.column).p, c, scratch));
    if (!rounds_itself(p))
        sum_end(p, &s);
    return ULY_OK;
}

/* The primitive of one of the 16 kinds of block; the sizes of a last block may be a whole block's. */
static int find_handle(const struct product *p, const bool last[3], bool adds)
{
    int64_t tail_m = p->m - (p->n_tiles - 1) * ROWS;
    int64_t tail_n = p->n - (p->n_columns - 1) * p->columns;
    int64_t tail_k = p->k - (ceil_div(p->k, p->inner) - 1) * p->inner;
    bool direct = p->c.dtype == ULY_DTYPE_F32 || rounds_itself(p);
    struct uly_dnnl_key key = {.m = last[0] ? tail_m : ROWS,
                               .n = last[1] ? tail_n : p->columns,
                               .k = last[2] ? tail_k : p->inner,
                               .lda = p->lda,
                               .ldb = p->ldb,
                               .ldc = direct ? p->ldc : p->columns + PAD,
                               .transpose_a = p->transpose_a,
                               .transpose_b = p->transpose_b,
                               .accumulate = adds,
                               .dtype = p->a.dtype,
                               .c_dtype = direct ? p->c.dtype : ULY_DTYPE_F32};
    return uly_dnnl_find(uly_cpu_of(p->be)->matmul->dnnl, &key,
                         (A_FLOATS + B_FLOATS) * (int64_t)sizeof(float));
}

/* False where the library lacks one that this product needs. */
static bool find_primitives(struct product *p)
{
    uly_dnnl_make_room(uly_cpu_of(p->be)->matmul->dnnl, 16);
    int64_t n_inner = ceil_div(p->k, p->inner);
    for (int i = 0; i < 16; i++) {
        bool last[3] = {i & 1, i & 2, i & 4}, adds = i & 8;
        bool happens = (last[0] || p->n_tiles > 1) && (last[1] || p->n_columns > 1) &&
                       (last[2] || n_inner > 1) &&
                       (adds ? starts_filled(p) || n_inner > 1 : !starts_filled(p));
        int handle = happens ? find_handle(p, last, adds) : 0;
        if (handle < 0)
            return false;
        p->handle[last[0]][last[1]][last[2]][adds] = handle;
    }
    return true;
}

/* ------------------------------------------------------------------ all blocks */

static void run_item(void *context, int64_t item, int thread)
{
    struct product *p = context;
    enum uly_status status =
        p->primitive ? primitive_item(p, item, thread) : convert_item(p, item, thread);
    if (status != ULY_OK)
        p->status = status;
}

static enum uly_status multiply(struct uly_backend *be, const struct uly_matmul_args *args,
                                bool primitive)
{
    struct product p = product_of(be, args);
    if (p.m == 0 || p.n == 0)
        return ULY_OK;
    p.primitive = primitive && p.k > 0;
    cut(&p);
    if (p.primitive && !find_primitives(&p)) {
        p.primitive = false;
        cut(&p);
    }
    uly_cpu_for(be, ceil_div(p.n_tiles, p.group) * p.n_columns, run_item, &p);
    ULY_FAIL_IF(p.status != ULY_OK, (enum uly_status)p.status,
                "matmul: a block of [%lld, %lld] x [%lld, %lld] failed in oneDNN", (long long)p.m,
                (long long)p.k, (long long)p.k, (long long)p.n);
    return ULY_OK;
}

enum uly_status uly_cpu_matmul(struct uly_backend *be, const struct uly_matmul_args *args)
{
    const struct uly_cpu_matmul *mm = uly_cpu_of(be)->matmul;
    return multiply(be, args,
                    args->a.dtype == ULY_DTYPE_BF16 ? mm->primitive_bf16 : mm->primitive_f32);
}

/* ------------------------------------------------------------------ life */

int64_t uly_cpu_matmul_scratch_bytes(void)
{
    return (A_FLOATS + B_FLOATS + C_FLOATS) * (int64_t)sizeof(float);
}

enum uly_status uly_cpu_matmul_create(struct uly_backend *be, struct uly_cpu_matmul **out)
{
    struct uly_cpu_matmul *mm;
    enum uly_status status = ULY_OK;
    const char *way = getenv("ULY_CPU_MATMUL");
    if (way != NULL && *way == '\0')
        way = NULL;
    ULY_FAIL_IF(way != NULL && strcmp(way, "convert") != 0 && strcmp(way, "primitive") != 0,
                ULY_ERR_USAGE, "ULY_CPU_MATMUL=%s: it is convert or primitive", way);
    ULY_TRY(ULY_ALLOC(&mm, 1));
    mm->primitive_f32 = way != NULL && strcmp(way, "primitive") == 0;
    mm->primitive_bf16 = way != NULL ? mm->primitive_f32 : uly_cpu_has_bf16();
    if (mm->primitive_f32 || mm->primitive_bf16)
        ULY_TRY_GOTO(uly_dnnl_create(be->n_threads, &mm->dnnl), fail);
    *out = mm;
    return ULY_OK;
fail:
    uly_cpu_matmul_destroy(mm);
    return status;
}

void uly_cpu_matmul_destroy(struct uly_cpu_matmul *mm)
{
    if (mm == NULL)
        return;
    uly_dnnl_destroy(mm->dnnl);
    uly_free(mm);
}

/* ------------------------------------------------------------------ trust in primitives */

enum { CHECK_M = 37, CHECK_N = 41, CHECK_K = 70 };

/* Small whole numbers, whose products and sums every way must give exactly, in bfloat16 too. */
static enum uly_status check_operands(struct uly_arena *arena, enum uly_dtype dtype,
                                      struct uly_matmul_args args[2])
{
    struct uly_tensor x[2];
    ULY_TRY(uly_tensor_new(arena, "a", dtype, 2, CHECK_M, CHECK_K, 1, &args[0].a));
    ULY_TRY(uly_tensor_new(arena, "b", dtype, 2, CHECK_N, CHECK_K, 1, &args[0].b));
    args[0].transpose_b = true;
    args[1] = args[0];
    for (int i = 0; i < 2; i++)
        ULY_TRY(uly_tensor_new(arena, "c", dtype, 2, CHECK_M, CHECK_N, 1, &args[i].c));
    ULY_TRY(uly_arena_reserve(arena));
    x[0] = args[0].a;
    x[1] = args[0].b;
    for (int t = 0; t < 2; t++) {
        for (int64_t i = 0; i < uly_tensor_count(&x[t]); i++) {
            float v = (float)(i * (7 + 4 * t) % 5 - 2);
            uint16_t h = uly_f32_to_bf16(v);
            unsigned char *at = uly_span_at(span_of(x[t]), i).p;
            if (dtype == ULY_DTYPE_F32)
                memcpy(at, &v, sizeof v);
            else
                memcpy(at, &h, sizeof h);
        }
    }
    return ULY_OK;
}

/* *agrees: the primitives exist for this dtype and multiply as the other way does. */
static enum uly_status check_dtype(struct uly_backend *be, enum uly_dtype dtype, bool *agrees)
{
    enum uly_status status = ULY_OK;
    struct uly_arena arena;
    struct uly_matmul_args args[2] = {{.accumulate = false}};
    uly_arena_init(&arena, "matmul check", be->space);
    ULY_TRY_GOTO(check_operands(&arena, dtype, args), out);
    struct product p = product_of(be, &args[0]);
    p.primitive = true;
    cut(&p);
    *agrees = find_primitives(&p);
    for (int i = 0; i < 2 && *agrees; i++)
        ULY_TRY_GOTO(multiply(be, &args[i], i == 0), out);
    if (*agrees)
        *agrees = memcmp(uly_tensor_address(args[0].c), uly_tensor_address(args[1].c),
                         (size_t)(CHECK_M * CHECK_N * uly_dtype_bytes(dtype))) == 0;
out:
    uly_arena_clear(&arena);
    return status;
}

enum uly_status uly_cpu_matmul_check(struct uly_backend *be)
{
    struct uly_cpu_matmul *mm = uly_cpu_of(be)->matmul;
    bool *const wanted[2] = {&mm->primitive_f32, &mm->primitive_bf16};
    static const enum uly_dtype dtype[2] = {ULY_DTYPE_F32, ULY_DTYPE_BF16};
    for (int i = 0; i < 2; i++) {
        bool agrees = false;
        if (!*wanted[i])
            continue;
        ULY_TRY(check_dtype(be, dtype[i], &agrees));
        if (!agrees)
            uly_log(ULY_LOG_INFO, "backend",
                    "oneDNN has no usable %s product here: converting to float32 instead",
                    uly_dtype_name(dtype[i]));
        *wanted[i] = agrees;
    }
    return ULY_OK;
}
