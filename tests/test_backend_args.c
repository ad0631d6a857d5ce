/* SPDX-License-Identifier: MIT
 *
 * What the public wrappers refuse, with which words, and the life of a backend. Every refusal names the operation and the
 * argument; nothing is written.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "backend/check.h"
#include "base/mem.h"
#include "support/backend_support.h"

#define F32  ULY_DTYPE_F32
#define F64  ULY_DTYPE_F64
#define BF16 ULY_DTYPE_BF16
#define I32  ULY_DTYPE_I32

/* The call fails with ULY_ERR_INVALID and its message has both words in it. */
#define refused(call, word, other) expect_refusal((call), (word), (other), #call, __LINE__)
static void expect_refusal(enum uly_status status, const char *word, const char *other,
                           const char *call, int line)
{
    const char *message = uly_error_message();
    if (status == ULY_ERR_INVALID && strstr(message, word) && strstr(message, other))
        return;
    print_error("%s: \"%s\" with \"%s\", expected \"%s\" and \"%s\"\n", call,
                uly_status_text(status), message, word, other);
    _fail(__FILE__, line);
}

static struct bed bed;

static int open_bed(void **state)
{
    bed_open(&bed, "cpu:ref", 1);
    *state = &bed;
    return 0;
}

static int close_bed(void **state)
{
    struct bed *b = *state;
    bed_check_sentinels(b);
    bed_close(b);
    return 0;
}

/* ------------------------------------------------------------------ life */

static void test_names(void **state)
{
    (void)state;
    struct uly_backend *be = NULL;
    bed_ok(uly_backend_create("cpu:ref", 3, &be));
    assert_non_null(strstr(uly_backend_name(be), "cpu:ref"));
    assert_int_equal(uly_backend_threads(be), 1);
    assert_true(uly_backend_space(be) == &uly_host_space);
    assert_true(uly_backend_supports(be, F32) && uly_backend_supports(be, BF16));
    assert_true(uly_backend_supports(be, F64) && !uly_backend_supports(be, ULY_DTYPE_F16));
    assert_int_equal(uly_backend_scratch_bytes(be), 0);
    uly_backend_destroy(be);
    uly_backend_destroy(NULL);
    bed_ok(uly_backend_create("cpu", 2, &be));
    assert_non_null(strstr(uly_backend_name(be), "cpu"));
    uly_backend_destroy(be);
    struct uly_backend *untouched = be = NULL;
    static const char *const unknown[] = {
        "", "cuda", "cuda:0", "cpu:", "cpu:sse", "cpu:ref2", "CPU"};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        bed_refused(uly_backend_create(unknown[i], 1, &be), ULY_ERR_UNSUPPORTED);
    assert_non_null(strstr(uly_error_message(), "CPU"));
    refused(uly_backend_create("cpu:ref", 0, &be), "0 threads", "");
    assert_ptr_equal(be, untouched);
}

static void test_no_memory(void **state)
{
    (void)state;
    struct uly_backend *be = NULL;
    uly_alloc_fail_at(1);
    bed_refused(uly_backend_create("cpu:ref", 1, &be), ULY_ERR_NO_MEMORY);
    uly_alloc_fail_at(0);
    assert_null(be);
}

/* A table without any one of its entries is refused, whichever it is. */
static void test_incomplete_table(void **state)
{
    (void)state;
    struct uly_backend be = {.n_threads = 1};
    void (*nothing)(void) = NULL;
    bed_ok(uly_cpu_ref_init(&be));
    bed_ok(uly_check_table(&be));
    for (size_t at = 0; at < sizeof be.ops; at += sizeof nothing) {
        struct uly_backend_ops kept = be.ops;
        memcpy((unsigned char *)&be.ops + at, &nothing, sizeof nothing);
        bed_refused(uly_check_table(&be), ULY_ERR_INTERNAL);
        be.ops = kept;
    }
    be.ops.attention_bwd = NULL;
    bed_refused(uly_check_table(&be), ULY_ERR_INTERNAL);
    assert_non_null(strstr(uly_error_message(), "attention_bwd"));
}

/* ------------------------------------------------------------------ tensors */

static void test_where_a_tensor_lies(void **state)
{
    struct bed *b = *state;
    struct uly_tensor t = bed_matrix(b, F32, 4, 6, 2), u;
    float host[24];
    u = (struct uly_tensor){0};
    refused(uly_tensor_read(b->be, u, host), "read", "absent");
    u = t;
    u.offset = b->arena.high - 4 * (3 * 8 + 6); /* the last place where it fits */
    bed_ok(uly_tensor_read(b->be, u, host));
    u.offset += 4;
    refused(uly_tensor_read(b->be, u, host), "read", "leaves");
    u = t;
    u.offset = -4;
    refused(uly_tensor_write(b->be, u, host), "write", "leaves");
    u = t;
    u.offset += 2;
    refused(uly_tensor_read(b->be, u, host), "read", "leaves"); /* no element starts there */
    u = t;
    u.stride = 5;
    refused(uly_fill(b->be, u, 0), "fill", "row stride of 5");
    u = t;
    u.stride = INT64_MAX / 2; /* the product overflows 63 bits */
    refused(uly_fill(b->be, u, 0), "fill", "leaves");
    u = t;
    u.shape[0] = u.shape[1] = u.stride = INT64_MAX;
    refused(uly_fill(b->be, u, 0), "fill", "leaves");
    u = t;
    u.shape[1] = -1;
    refused(uly_fill(b->be, u, 0), "fill", "dimensions");
    u = t;
    u.n_dim = 4;
    refused(uly_fill(b->be, u, 0), "fill", "4 dimensions");
    u = t;
    u.n_dim = 1; /* and yet 6 wide */
    refused(uly_fill(b->be, u, 0), "fill", "dimensions");
    refused(uly_fill(b->be, bed_vector(b, I32, 3), 0x1p40), "fill", "int32");
    refused(uly_fill(b->be, bed_vector(b, ULY_DTYPE_U8, 3), -1), "fill", "uint8");
}

static enum uly_status no_alloc(int64_t bytes, void **out)
{
    (void)bytes;
    (void)out;
    return ULY_ERR_NO_MEMORY;
}

static void no_free(void *base, int64_t bytes)
{
    (void)base;
    (void)bytes;
}

static void test_other_memory(void **state)
{
    struct bed *b = *state;
    struct uly_arena arena;
    struct uly_tensor t;
    uly_arena_init(&arena, "later", &uly_host_space);
    bed_ok(uly_tensor_new(&arena, "t", F32, 1, 3, 1, 1, &t));
    refused(uly_fill(b->be, t, 0), "fill", "not reserved");
    uly_arena_clear(&arena);
    static const struct uly_mem_space device = {"device", no_alloc, no_free};
    struct uly_arena copy = b->arena;
    copy.space = &device;
    t = bed_vector(b, F32, 3);
    t.arena = &copy;
    refused(uly_fill(b->be, t, 0), "device memory", "host memory");
}

/* ------------------------------------------------------------------ shapes and dtypes, op by op */

static void test_elementwise(void **state)
{
    struct bed *b = *state;
    struct uly_tensor x = bed_matrix(b, F32, 2, 3, 0), y = bed_matrix(b, F32, 3, 2, 0);
    struct uly_tensor ids = bed_matrix(b, I32, 2, 3, 0), h = bed_matrix(b, ULY_DTYPE_F16, 2, 3, 0);
    double out;
    refused(uly_cast(b->be, x, y), "cast", "[3, 2]");
    refused(uly_cast(b->be, ids, x), "cast", "int32");
    refused(uly_cast(b->be, x, ids), "cast", "int32");
    refused(uly_cast(b->be, bed_vector(b, F32, 6), x), "cast", "differ in shape");
    refused(uly_add(b->be, x, h), "add", "float16");
    refused(uly_add(b->be, y, x), "add", "[2, 3]");
    refused(uly_scale(b->be, bed_matrix(b, BF16, 2, 3, 0), 2), "scale", "bfloat16");
    refused(uly_sum_squares(b->be, ids, &out), "sum_squares", "int32");
}

static void test_matmul(void **state)
{
    struct bed *b = *state;
    struct uly_tensor a = bed_matrix(b, BF16, 4, 3, 1), w = bed_matrix(b, BF16, 5, 3, 0);
    struct uly_matmul_args good = {
        .a = a, .b = w, .c = bed_matrix(b, F32, 4, 5, 0), .transpose_b = true};
    struct uly_matmul_args bad = good;
    bad.transpose_b = false;
    refused(uly_matmul(b->be, &bad), "matmul", "a [4, 3] bfloat16 and b [5, 3]");
    bad = good;
    bad.transpose_a = true;
    refused(uly_matmul(b->be, &bad), "matmul", "transposed");
    bad = good;
    bad.c = bed_matrix(b, F32, 5, 4, 0);
    refused(uly_matmul(b->be, &bad), "c is [5, 4]", "not [4, 5]");
    bad.c = bed_matrix(b, F64, 4, 5, 0);
    refused(uly_matmul(b->be, &bad), "c is", "float64");
    bad = good;
    bad.b = bed_matrix(b, F32, 5, 3, 0);
    refused(uly_matmul(b->be, &bad), "b is", "float32");
    bad = good;
    bad.bias = bed_vector(b, BF16, 4);
    refused(uly_matmul(b->be, &bad), "bias", "[5]");
    bad.bias = bed_vector(b, F32, 5);
    refused(uly_matmul(b->be, &bad), "bias", "float32");
    bad = good;
    bad.a = bed_vector(b, BF16, 4);
    refused(uly_matmul(b->be, &bad), "matmul", "do not multiply");
    refused(uly_column_sum(b->be, a, bed_vector(b, F32, 4)), "column_sum", "[3]");
    refused(uly_column_sum(b->be, a, bed_vector(b, BF16, 3)), "column_sum", "bfloat16");
}

static void test_token_wise(void **state)
{
    struct bed *b = *state;
    struct uly_tensor x = bed_matrix(b, BF16, 4, 6, 0), narrow = bed_matrix(b, BF16, 4, 5, 0);
    struct uly_tensor w = bed_vector(b, BF16, 6), acc = bed_matrix(b, F32, 4, 6, 0);
    struct uly_rmsnorm_fwd_args norm = {x, w, narrow, 1e-5};
    refused(uly_rmsnorm_fwd(b->be, &norm), "rmsnorm_fwd: y", "[4, 6]");
    norm = (struct uly_rmsnorm_fwd_args){x, bed_vector(b, F32, 6), x, 1e-5};
    refused(uly_rmsnorm_fwd(b->be, &norm), "rmsnorm_fwd: w", "float32");
    struct uly_rmsnorm_bwd_args back = {x, w, acc, acc, bed_vector(b, BF16, 6), 1e-5};
    refused(uly_rmsnorm_bwd(b->be, &back), "rmsnorm_bwd: dw", "bfloat16");
    back.dw = bed_vector(b, F32, 5);
    refused(uly_rmsnorm_bwd(b->be, &back), "rmsnorm_bwd: dw", "[6]");
    back.dx = bed_matrix(b, F64, 4, 6, 0);
    refused(uly_rmsnorm_bwd(b->be, &back), "rmsnorm_bwd: dx", "float64");
    refused(uly_swiglu_fwd(b->be, x, acc, x), "swiglu_fwd: up", "float32");
    refused(uly_swiglu_fwd(b->be, x, narrow, x), "swiglu_fwd: up", "[4, 5]");
    refused(uly_swiglu_bwd(b->be, x, x, x, x, narrow), "swiglu_bwd: dup", "[4, 5]");
    struct uly_tensor ids = bed_vector(b, I32, 4), table = bed_matrix(b, BF16, 9, 6, 0);
    refused(uly_embed_fwd(b->be, bed_vector(b, I32, 3), table, x), "embed_fwd: ids", "[4]");
    refused(uly_embed_fwd(b->be, bed_vector(b, ULY_DTYPE_I64, 4), table, x), "ids", "int64");
    refused(uly_embed_fwd(b->be, ids, acc, x), "embed_fwd: table", "float32");
    refused(uly_embed_fwd(b->be, ids, table, narrow), "embed_fwd: table", "[9, 5]");
    refused(uly_embed_bwd(b->be, ids, x, table), "embed_bwd: table", "bfloat16");
}

static void test_loss_and_optimizer(void **state)
{
    struct bed *b = *state;
    struct uly_cross_entropy_args good = {.logits = bed_matrix(b, F32, 4, 6, 0),
                                          .labels = bed_vector(b, I32, 4),
                                          .loss = bed_vector(b, F32, 4)};
    struct uly_cross_entropy_args bad = good;
    bad.logits = bed_matrix(b, BF16, 4, 6, 0);
    refused(uly_cross_entropy(b->be, &bad), "cross_entropy: logits", "bfloat16");
    bad = good;
    bad.labels = bed_vector(b, I32, 5);
    refused(uly_cross_entropy(b->be, &bad), "cross_entropy: labels", "[4]");
    bad = good;
    bad.loss = bed_vector(b, F64, 4);
    refused(uly_cross_entropy(b->be, &bad), "cross_entropy: loss", "float64");
    bad = good;
    bad.dlogits = bed_matrix(b, F64, 4, 6, 0);
    refused(uly_cross_entropy(b->be, &bad), "cross_entropy: dlogits", "float64");
    struct uly_tensor p = bed_vector(b, F32, 5), short_one = bed_vector(b, F32, 4);
    struct uly_adamw_args step = {p, p, p, p, .step = 0};
    refused(uly_adamw(b->be, &step), "adamw", "step 0");
    step.step = 1;
    step.grad = short_one;
    refused(uly_adamw(b->be, &step), "adamw: grad", "[5]");
    step.grad = p;
    step.v = bed_vector(b, BF16, 5);
    refused(uly_adamw(b->be, &step), "adamw: v", "bfloat16");
    step.v = bed_matrix(b, F32, 5, 1, 1); /* as many, but with gaps */
    refused(uly_adamw(b->be, &step), "adamw: v", "dense");
    step.v = p;
    step.model = bed_vector(b, F64, 5);
    refused(uly_adamw(b->be, &step), "adamw: model", "float64");
}

/* ------------------------------------------------------------------ views */

static void test_views(void **state)
{
    struct bed *b = *state;
    struct bed_heads src, dst, other;
    bed_token_heads(b, &src, BF16, 2, 5, 4, 1);
    bed_block_heads(b, &dst, F32, 2, 5, 4, true);
    bed_block_heads(b, &other, F32, 2, 6, 4, true);
    struct uly_head_move_args args = {.src = src.v, .dst = other.v};
    refused(uly_head_move(b->be, &args), "head_move: dst", "2 of [5, 4]");
    args.dst = dst.v;
    dst.offset[1] = 20; /* the last block of 40 elements */
    dst.offset[0] = 21; /* one element past it */
    refused(uly_head_move(b->be, &args), "head 0 of dst", "40 elements");
    dst.offset[0] = -1;
    refused(uly_head_move(b->be, &args), "head 0 of dst", "offset -1");
    dst.offset[0] = 0;
    dst.stride[1] = 3; /* rows over each other */
    refused(uly_head_move(b->be, &args), "head 1 of dst", "overlaps");
    dst.stride[1] = INT64_MAX / 2;
    refused(uly_head_move(b->be, &args), "head 1 of dst", "leaves");
    dst.stride[1] = 4;
    args.dst.offset = NULL;
    refused(uly_head_move(b->be, &args), "head_move: dst", "no offsets");
    args.dst = dst.v;
    args.dst.t = uly_tensor_rows(args.dst.t, 0, 39);
    refused(uly_head_move(b->be, &args), "head 1 of dst", "39 elements");
    args.dst = dst.v;
    args.src.rows = args.dst.rows =
        1; /* one row: its stride says nothing, its end counts all the same */
    dst.offset[0] = 37;
    refused(uly_head_move(b->be, &args), "head 0 of dst", "offset 37");
    dst.offset[0] = 0;
    args.dst = dst.v;
    args.src.rows = -1;
    refused(uly_head_move(b->be, &args), "head_move: src", "[-1, 4]");
    args.src = src.v;
    args.bias = bed_vector(b, BF16, 7);
    refused(uly_head_move(b->be, &args), "head_move: bias", "[8]");
    args.bias = (struct uly_tensor){0};
    args.rope = ULY_ROPE_FORWARD;
    refused(uly_head_move(b->be, &args), "head_move: position", "absent");
    args.position = bed_vector(b, ULY_DTYPE_I64, 5);
    args.inv_freq = bed_vector(b, F32, 2);
    refused(uly_head_move(b->be, &args), "head_move: inv_freq", "float32");
    args.inv_freq = bed_vector(b, ULY_DTYPE_F64, 2);
    args.table = bed_vector(b, ULY_DTYPE_I32, 4);
    refused(uly_head_move(b->be, &args), "head_move: table", "[4]");
    args.table = bed_vector(b, ULY_DTYPE_I32, 5); /* the frequencies of one row are a [2, 1] here */
    refused(uly_head_move(b->be, &args), "head_move: inv_freq", "[2]");
    args.src.dim = args.dst.dim = 3;
    refused(uly_head_move(b->be, &args), "head_move", "pairs");
    refused(uly_head_dot(b->be, &src.v, &src.v, &dst.v), "head_dot: out", "[5, 1]");
    args = (struct uly_head_move_args){0}; /* nothing to move needs no tensor */
    bed_ok(uly_head_move(b->be, &args));
}

struct attention {
    struct bed_heads q, k, o, lse, dq, dk;
    struct uly_mask mask;
    struct uly_attention_fwd_args fwd;
    struct uly_attention_bwd_args bwd;
};

static const int64_t starts[] = {0, 4};
static const int64_t late[] = {1, 4}, falling[] = {0, 4, 3}, beyond[] = {0, 99};
static const int kv_of[] = {0, 0, 1}, no_such[] = {0, 2, 1};

static void good_attention(struct bed *b, struct attention *a)
{
    bed_token_heads(b, &a->q, F32, 3, 5, 4, 0);
    bed_token_heads(b, &a->k, F32, 2, 8, 4, 0);
    bed_token_heads(b, &a->o, F32, 3, 5, 4, 0);
    bed_token_heads(b, &a->lse, F32, 3, 5, 1, 0);
    bed_token_heads(b, &a->dq, F32, 3, 5, 4, 0);
    bed_token_heads(b, &a->dk, F32, 2, 8, 4, 0);
    a->mask = (struct uly_mask){10, starts, 2, 0};
    a->fwd = (struct uly_attention_fwd_args){.q = a->q.v,
                                             .k = a->k.v,
                                             .v = a->k.v,
                                             .o = a->o.v,
                                             .lse = a->lse.v,
                                             .kv_of = kv_of,
                                             .mask = &a->mask,
                                             .q_first = 5,
                                             .k_first = 2,
                                             .scale = 1};
    a->bwd = (struct uly_attention_bwd_args){.q = a->q.v,
                                             .k = a->k.v,
                                             .v = a->k.v,
                                             .d_o = a->o.v,
                                             .lse = a->lse.v,
                                             .delta = a->lse.v,
                                             .dq = a->dq.v,
                                             .dk = a->dk.v,
                                             .dv = a->dk.v,
                                             .kv_of = kv_of,
                                             .mask = &a->mask,
                                             .q_first = 5,
                                             .k_first = 2,
                                             .scale = 1};
}

static void test_attention_mask(void **state)
{
    struct bed *b = *state;
    struct attention a;
    good_attention(b, &a);
    struct uly_attention_fwd_args bad = a.fwd;
    bad.q_first = 6;
    refused(uly_attention_fwd(b->be, &bad), "attention_fwd", "5 queries from 6");
    bad.q_first = INT64_MAX;
    refused(uly_attention_fwd(b->be, &bad), "attention_fwd", "queries");
    bad = a.fwd;
    bad.k_first = 3;
    refused(uly_attention_fwd(b->be, &bad), "attention_fwd", "8 keys from 3");
    bad.k_first = -1;
    refused(uly_attention_fwd(b->be, &bad), "attention_fwd", "keys from -1");
    bad = a.fwd;
    bad.kv_of = no_such;
    refused(uly_attention_fwd(b->be, &bad), "query head 1", "kv head 2 of 2");
    bad.kv_of = NULL;
    refused(uly_attention_fwd(b->be, &bad), "attention_fwd", "kv_of");
    bad = a.fwd;
    bad.mask = NULL;
    refused(uly_attention_fwd(b->be, &bad), "attention_fwd", "mask");
    a.mask.starts = late;
    refused(uly_attention_bwd(b->be, &a.bwd), "document 0", "starts at 1");
    a.mask.starts = beyond;
    refused(uly_attention_bwd(b->be, &a.bwd), "document 1", "99");
    a.mask = (struct uly_mask){10, falling, 3, 0};
    refused(uly_attention_bwd(b->be, &a.bwd), "document 2", "starts at 3");
    a.mask = (struct uly_mask){10, starts, 2, -1};
    refused(uly_attention_bwd(b->be, &a.bwd), "attention_bwd", "window -1");
    a.mask = (struct uly_mask){10, starts, 0, 0};
    refused(uly_attention_bwd(b->be, &a.bwd), "attention_bwd", "0 documents");
}

static void test_attention_views(void **state)
{
    struct bed *b = *state;
    struct attention a;
    struct bed_heads half, wrong;
    good_attention(b, &a);
    bed_token_heads(b, &half, BF16, 3, 5, 4, 0);
    bed_token_heads(b, &wrong, F32, 3, 5, 1, 0);
    struct uly_attention_fwd_args bad = a.fwd;
    bad.o = half.v;
    refused(uly_attention_fwd(b->be, &bad), "attention_fwd: o", "bfloat16");
    bad = a.fwd;
    bad.q = half.v;
    refused(uly_attention_fwd(b->be, &bad), "attention_fwd: k", "not bfloat16");
    bad = a.fwd;
    bad.v.rows = 7;
    refused(uly_attention_fwd(b->be, &bad), "attention_fwd: v", "2 of [8, 4]");
    bad = a.fwd;
    bad.lse = a.o.v;
    refused(uly_attention_fwd(b->be, &bad), "attention_fwd: lse", "3 of [5, 1]");
    struct uly_attention_bwd_args back = a.bwd;
    back.dq = half.v;
    refused(uly_attention_bwd(b->be, &back), "attention_bwd: dq", "bfloat16");
    back = a.bwd;
    back.dk = a.dq.v;
    refused(uly_attention_bwd(b->be, &back), "attention_bwd: dk", "2 of [8, 4]");
    back = a.bwd;
    back.delta.n = 2;
    refused(uly_attention_bwd(b->be, &back), "attention_bwd: delta", "3 of [5, 1]");
    /* a rank without heads, or without rows, calls all the same */
    struct uly_mask empty = {0, starts, 1, 0};
    struct uly_attention_fwd_args none = {.mask = &empty, .scale = 1};
    bed_ok(uly_attention_fwd(b->be, &none));
    bed_ok(uly_attention_bwd(b->be, &(struct uly_attention_bwd_args){.mask = &empty, .scale = 1}));
}

#define in_bed(test) cmocka_unit_test_setup_teardown(test, open_bed, close_bed)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_incomplete_table),
        in_bed(test_where_a_tensor_lies),
        in_bed(test_other_memory),
        in_bed(test_elementwise),
        in_bed(test_matmul),
        in_bed(test_token_wise),
        in_bed(test_loss_and_optimizer),
        in_bed(test_views),
        in_bed(test_attention_mask),
        in_bed(test_attention_views),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
