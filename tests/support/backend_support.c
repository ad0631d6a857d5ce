/* SPDX-License-Identifier: MIT */
#include "support/backend_support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"

enum { ARENA_BYTES = 1 << 28, GAP = 256, SENTINEL = 0xff };

void bed_expect(enum uly_status got, enum uly_status wanted, const char *call, const char *file,
                int line)
{
    if (got == wanted)
        return;
    print_error("%s gave \"%s\" (%s), not \"%s\"\n", call, uly_status_text(got),
                got == ULY_OK ? "" : uly_error_message(), uly_status_text(wanted));
    _fail(file, line);
}

void bed_expect_close(double got, double wanted, double tolerance, const char *what,
                      const char *file, int line)
{
    if (fabs(got - wanted) <= tolerance)
        return;
    print_error("%s is %.17g, not %.17g within %g\n", what, got, wanted, tolerance);
    _fail(file, line);
}

void (*bed_after_create)(struct uly_backend *be);

void bed_open(struct bed *b, const char *backend, int threads)
{
    memset(b, 0, sizeof *b);
    bed_ok(uly_backend_create(backend, threads, &b->be));
    if (bed_after_create != NULL)
        bed_after_create(b->be);
    uly_arena_init(&b->arena, "bed", uly_backend_space(b->be));
    b->arena.used = b->arena.high = ARENA_BYTES;
    bed_ok(uly_arena_reserve(&b->arena));
    bed_reset(b);
}

void bed_close(struct bed *b)
{
    uly_arena_clear(&b->arena);
    uly_backend_destroy(b->be);
    b->be = NULL;
}

void bed_reset(struct bed *b)
{
    b->n_owned = b->n_outputs = 0;
    b->draws = 0;
    b->used = GAP;
    memset(b->arena.base, SENTINEL, GAP);
}

/* `bytes` of sentinels with a gap behind; returns their offset. */
static int64_t carve(struct bed *b, int64_t bytes)
{
    int64_t offset = b->used;
    b->used = (offset + bytes + GAP + 63) / 64 * 64;
    assert_true(b->used <= ARENA_BYTES);
    memset(b->arena.base + offset, SENTINEL, (size_t)(b->used - offset));
    return offset;
}

static struct uly_tensor own(struct bed *b, struct uly_tensor t)
{
    assert_true(b->n_owned < BED_TENSORS);
    b->owned[b->n_owned++] = t;
    return t;
}

struct uly_tensor bed_vector(struct bed *b, enum uly_dtype dtype, int64_t n)
{
    int64_t offset = carve(b, n * uly_dtype_bytes(dtype));
    return own(b, (struct uly_tensor){&b->arena, offset, dtype, 1, {n, 1, 1}, 1});
}

struct uly_tensor bed_matrix(struct bed *b, enum uly_dtype dtype, int64_t rows, int64_t width,
                             int64_t pad)
{
    int64_t bytes = uly_dtype_bytes(dtype);
    int64_t offset = carve(b, (rows * (width + pad) + pad) * bytes) + pad * bytes;
    return own(b, (struct uly_tensor){&b->arena, offset, dtype, 2, {rows, width, 1}, width + pad});
}

static double load(const unsigned char *p, enum uly_dtype dtype, int64_t i)
{
    const void *at = p + i * uly_dtype_bytes(dtype);
    switch (dtype) {
    case ULY_DTYPE_F32:
        return (double)*(const float *)at;
    case ULY_DTYPE_BF16:
        return (double)uly_bf16_to_f32(*(const uint16_t *)at);
    case ULY_DTYPE_F16:
        return (double)uly_f16_to_f32(*(const uint16_t *)at);
    case ULY_DTYPE_F64:
        return *(const double *)at;
    case ULY_DTYPE_I32:
        return (double)*(const int32_t *)at;
    case ULY_DTYPE_I64:
        return (double)*(const int64_t *)at;
    case ULY_DTYPE_U8:
        return (double)*(const uint8_t *)at;
    }
    return (double)NAN;
}

static void store(unsigned char *p, enum uly_dtype dtype, int64_t i, double x)
{
    void *at = p + i * uly_dtype_bytes(dtype);
    switch (dtype) {
    case ULY_DTYPE_F32:
        *(float *)at = (float)x;
        break;
    case ULY_DTYPE_BF16:
        *(uint16_t *)at = uly_f32_to_bf16((float)x);
        break;
    case ULY_DTYPE_F16:
        *(uint16_t *)at = uly_f32_to_f16((float)x);
        break;
    case ULY_DTYPE_F64:
        *(double *)at = x;
        break;
    case ULY_DTYPE_I32:
        *(int32_t *)at = (int32_t)x;
        break;
    case ULY_DTYPE_I64:
        *(int64_t *)at = (int64_t)x;
        break;
    case ULY_DTYPE_U8:
        *(uint8_t *)at = (uint8_t)x;
        break;
    }
}

double bed_get(struct uly_tensor t, int64_t row, int64_t column)
{
    return load(uly_tensor_address(t), t.dtype, row * t.stride + column);
}

void bed_set(struct uly_tensor t, int64_t row, int64_t column, double x)
{
    store(uly_tensor_address(t), t.dtype, row * t.stride + column, x);
}

double bed_head_get(const struct uly_heads *v, int h, int64_t row, int d)
{
    return load(uly_tensor_address(v->t), v->t.dtype, v->offset[h] + row * v->stride[h] + d);
}

void bed_random(struct bed *b, struct uly_tensor t, double scale)
{
    uint64_t stream = b->draws++;
    for (int64_t i = 0; i < t.shape[0]; i++) {
        for (int64_t j = 0; j < uly_tensor_width(&t); j++) {
            uint64_t index = (uint64_t)(i * uly_tensor_width(&t) + j);
            bed_set(t, i, j, scale * uly_random_normal(7, stream, index));
        }
    }
}

void bed_random_ids(struct bed *b, struct uly_tensor t, int64_t n)
{
    uint64_t stream = b->draws++;
    for (int64_t i = 0; i < t.shape[0]; i++)
        bed_set(t, i, 0, (double)uly_random_below(7, stream, (uint64_t)i, (uint64_t)n));
}

void bed_copy(struct bed *b, struct uly_tensor from, struct uly_tensor to)
{
    (void)b;
    assert_int_equal(uly_tensor_count(&from), uly_tensor_count(&to));
    for (int64_t i = 0; i < from.shape[0]; i++)
        for (int64_t j = 0; j < uly_tensor_width(&from); j++)
            bed_set(to, i, j, bed_get(from, i, j));
}

void bed_token_heads(struct bed *b, struct bed_heads *out, enum uly_dtype dtype, int n,
                     int64_t rows, int dim, int64_t pad)
{
    assert_true(n <= BED_HEADS);
    struct uly_tensor t = bed_matrix(b, dtype, rows, (int64_t)n * dim, pad);
    out->v = (struct uly_heads){t, n, rows, dim, out->offset, out->stride};
    for (int h = 0; h < n; h++) {
        out->offset[h] = (int64_t)h * dim;
        out->stride[h] = t.stride;
    }
}

void bed_block_heads(struct bed *b, struct bed_heads *out, enum uly_dtype dtype, int n,
                     int64_t rows, int dim, bool reversed)
{
    assert_true(n <= BED_HEADS);
    struct uly_tensor t = bed_vector(b, dtype, n * rows * dim);
    out->v = (struct uly_heads){t, n, rows, dim, out->offset, out->stride};
    for (int h = 0; h < n; h++) {
        out->offset[h] = (reversed ? n - 1 - h : h) * rows * dim;
        out->stride[h] = dim;
    }
}

/* ------------------------------------------------------------------ comparing */

void bed_output(struct bed *b, const char *name, struct uly_tensor t, enum bed_rule rule)
{
    assert_true(b->n_outputs < BED_TENSORS);
    b->outputs[b->n_outputs++] = (struct bed_output){name, t, rule};
}

static double largest_of(struct uly_tensor t)
{
    double largest = 0;
    for (int64_t i = 0; i < t.shape[0]; i++)
        for (int64_t j = 0; j < uly_tensor_width(&t); j++)
            if (isfinite(bed_get(t, i, j)))
                largest = fmax(largest, fabs(bed_get(t, i, j)));
    return largest;
}

static void compare_output(const char *where, const struct bed_output *got,
                           const struct bed_output *wanted, bool exact)
{
    struct uly_tensor w = wanted->t;
    double floor = exact ? 0 : (w.dtype == ULY_DTYPE_F64 ? 1e-12 : 1e-5) * largest_of(w);
    double step = !exact && w.dtype == ULY_DTYPE_BF16 ? 0x1p-7 : 0;
    int64_t stepped = 0;
    assert_int_equal(got->t.dtype, w.dtype);
    for (int64_t i = 0; i < w.shape[0]; i++) {
        for (int64_t j = 0; j < uly_tensor_width(&w); j++) {
            double x = bed_get(got->t, i, j), y = bed_get(w, i, j);
            if (x == y || fabs(x - y) <= floor)
                continue;
            stepped++;
            if (!(fabs(x - y) <= floor + step * fabs(y)))
                fail_msg("%s: %s[%lld, %lld] is %.9g, the reference has %.9g (largest %.3g)", where,
                         wanted->name, (long long)i, (long long)j, x, y, largest_of(w));
        }
    }
    if (stepped > 2 + uly_tensor_count(&w) / 50)
        fail_msg("%s: %lld of %lld elements of %s are rounded another way", where,
                 (long long)stepped, (long long)uly_tensor_count(&w), wanted->name);
}

void bed_compare(const char *where, const struct bed *got, const struct bed *wanted,
                 bool force_exact)
{
    assert_int_equal(got->n_outputs, wanted->n_outputs);
    for (int i = 0; i < wanted->n_outputs; i++)
        compare_output(where, &got->outputs[i], &wanted->outputs[i],
                       force_exact || wanted->outputs[i].rule == BED_EXACT);
}

void bed_check_sentinels(const struct bed *b)
{
    unsigned char *mine = calloc((size_t)b->used, 1);
    assert_non_null(mine);
    for (int k = 0; k < b->n_owned; k++) {
        struct uly_tensor t = b->owned[k];
        int64_t bytes = uly_dtype_bytes(t.dtype);
        for (int64_t i = 0; i < t.shape[0]; i++)
            memset(mine + t.offset + i * t.stride * bytes, 1,
                   (size_t)(uly_tensor_width(&t) * bytes));
    }
    int64_t bad = -1;
    for (int64_t i = 0; i < b->used && bad < 0; i++)
        if (!mine[i] && b->arena.base[i] != SENTINEL)
            bad = i;
    free(mine);
    if (bad >= 0) {
        int k = 0; /* the last tensor that starts at or before the byte */
        while (k + 1 < b->n_owned && b->owned[k + 1].offset <= bad)
            k++;
        fail_msg("%s: byte %lld, outside all tensors, was written; tensor %d starts at %lld",
                 uly_backend_name(b->be), (long long)bad, k, (long long)b->owned[k].offset);
    }
}
