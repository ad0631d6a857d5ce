/* SPDX-License-Identifier: MIT
 *
 * A bed: a backend and one arena full of sentinels, for tests of operations.
 *
 *   struct bed b;
 *   bed_open(&b, "cpu:ref", 1);
 *   struct uly_tensor x = bed_matrix(&b, ULY_DTYPE_F32, 17, 64, 3);
 *   bed_random(&b, x, 1.0);
 *   ... uly_rmsnorm_fwd(b.be, ...) ...
 *   bed_check_sentinels(&b);
 *   bed_close(&b);
 *
 * Every byte of the arena that is no element of a tensor is 0xff, and so is every element until something writes it: NaN in
 * all float types. So a read past the end shows as NaN, a write past the end as a changed sentinel, an element left out as
 * NaN. Two beds that make the same calls hold the same numbers. A failure fails the running cmocka test.
 */
#ifndef ULY_TESTS_BACKEND_SUPPORT_H
#define ULY_TESTS_BACKEND_SUPPORT_H

#include "backend/backend.h"

enum { BED_TENSORS = 64, BED_HEADS = 32 };

/* How an output compares with the reference's. */
enum bed_rule {
    BED_EXACT,   /* bit for bit, -0 = 0 */
    BED_ROUNDED, /* float32: within 1e-5 of the largest value (float64: 1e-12); bfloat16: as float32, plus one step of
                    rounding (2^-7 of the value) in 2 % of the elements at most */
};

struct bed_output {
    const char *name;
    struct uly_tensor t;
    enum bed_rule rule;
};

struct bed {
    struct uly_backend *be;
    struct uly_arena arena;
    int64_t used;                         /* bytes carved from the arena */
    struct uly_tensor owned[BED_TENSORS]; /* what is not sentinel */
    int n_owned;
    struct bed_output outputs[BED_TENSORS];
    int n_outputs;
    uint64_t draws; /* random tensors made so far: the stream of the next one */
};

/* A view and the arrays it borrows; not to be copied. */
struct bed_heads {
    struct uly_heads v;
    int64_t offset[BED_HEADS], stride[BED_HEADS];
};

void bed_open(struct bed *b, const char *backend, int threads);
/* Called with every backend that bed_open has made, where set: a test may put parts of its own into it. */
extern void (*bed_after_create)(struct uly_backend *be);
void bed_close(struct bed *b);
/* Forgets all tensors; the backend stays. */
void bed_reset(struct bed *b);

/* A dense [n] or a [rows, width] tensor, all NaN. pad > 0: the rows stand `pad` elements further apart than they are wide
 * and the first starts inside the gap, so that an odd pad also misaligns it. */
struct uly_tensor bed_vector(struct bed *b, enum uly_dtype dtype, int64_t n);
struct uly_tensor bed_matrix(struct bed *b, enum uly_dtype dtype, int64_t rows, int64_t width,
                             int64_t pad);

/* Normal numbers times scale; whole numbers in [0, n) for ids. */
void bed_random(struct bed *b, struct uly_tensor t, double scale);
void bed_random_ids(struct bed *b, struct uly_tensor t, int64_t n);
/* The same rows and width in another tensor of the same dtype or another float type. */
void bed_copy(struct bed *b, struct uly_tensor from, struct uly_tensor to);

/* Element (row, column) of any dtype, and its setter. */
double bed_get(struct uly_tensor t, int64_t row, int64_t column);
void bed_set(struct uly_tensor t, int64_t row, int64_t column, double x);
double bed_head_get(const struct uly_heads *v, int h, int64_t row, int d);

/* Heads in token layout: a [rows, n * dim + pad] tensor; head-major: [n, rows, dim], the last head first where `reversed`,
 * which is what a send block looks like. */
void bed_token_heads(struct bed *b, struct bed_heads *out, enum uly_dtype dtype, int n,
                     int64_t rows, int dim, int64_t pad);
void bed_block_heads(struct bed *b, struct bed_heads *out, enum uly_dtype dtype, int n,
                     int64_t rows, int dim, bool reversed);

/* Notes a result for bed_compare. */
void bed_output(struct bed *b, const char *name, struct uly_tensor t, enum bed_rule rule);
/* The noted results of both beds, one by one; `where` opens the message of a failure. force_exact: whatever their rule. */
void bed_compare(const char *where, const struct bed *got, const struct bed *wanted,
                 bool force_exact);

void bed_check_sentinels(const struct bed *b);

/* Fails the test unless the call succeeded, with the error's message. */
#define bed_ok(call) bed_expect((call), ULY_OK, #call, __FILE__, __LINE__)
/* ... unless it failed with this status. */
#define bed_refused(call, status) bed_expect((call), (status), #call, __FILE__, __LINE__)
void bed_expect(enum uly_status got, enum uly_status wanted, const char *call, const char *file,
                int line);
/* |got - wanted| <= tolerance; NaN is never close. */
#define bed_close_to(got, wanted, tolerance)                                                       \
    bed_expect_close((got), (wanted), (tolerance), #got, __FILE__, __LINE__)
void bed_expect_close(double got, double wanted, double tolerance, const char *what,
                      const char *file, int line);

#endif
