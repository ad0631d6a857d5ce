/* SPDX-License-Identifier: MIT
 *
 * The public face of every backend: life, and the wrappers of the operations on whole tensors,
 * which check their arguments once and dispatch (operations on head views: backend_heads.c). The
 * order of work is the same everywhere: shapes are taken from the first argument, the others are
 * compared with them, then the table is called.
 */
#include "backend/backend.h"

#include <stdio.h>
#include <string.h>

#include "backend/check.h"
#include "base/mem.h"

/* ------------------------------------------------------------------ life */

/* Every entry of the table; the assertion below fails when one is added to the struct and not here.
 */
#define OPS(X)                                                                                     \
    X(destroy)                                                                                     \
    X(write)                                                                                       \
    X(read)                                                                                        \
    X(fill)                                                                                        \
    X(cast)                                                                                        \
    X(add)                                                                                         \
    X(scale)                                                                                       \
    X(sum_squares)                                                                                 \
    X(matmul)                                                                                      \
    X(column_sum)                                                                                  \
    X(rmsnorm_fwd)                                                                                 \
    X(rmsnorm_bwd)                                                                                 \
    X(swiglu_fwd)                                                                                  \
    X(swiglu_bwd)                                                                                  \
    X(embed_fwd)                                                                                   \
    X(embed_bwd)                                                                                   \
    X(head_move)                                                                                   \
    X(head_dot)                                                                                    \
    X(attention_fwd)                                                                               \
    X(attention_bwd)                                                                               \
    X(cross_entropy)                                                                               \
    X(adamw)

#define X(op) +1
_Static_assert(sizeof(struct uly_backend_ops) == (0 OPS(X)) * sizeof(void (*)(void)),
               "the list of operations must name every entry of the table");
#undef X

enum uly_status uly_check_table(const struct uly_backend *be)
{
#define X(op)                                                                                      \
    ULY_FAIL_IF(!be->ops.op, ULY_ERR_INTERNAL, "backend %s lacks the operation " #op, be->name);
    OPS(X)
#undef X
    ULY_FAIL_IF(!be->space, ULY_ERR_INTERNAL, "backend %s names no memory space", be->name);
    return ULY_OK;
}

static enum uly_status init_by_name(struct uly_backend *be, const char *name)
{
    if (strcmp(name, "cpu") == 0)
        return uly_cpu_init(be, NULL);
    if (strcmp(name, "cpu:ref") == 0) {
        be->n_threads = 1; /* plain loops: more threads would sit idle */
        return uly_cpu_ref_init(be);
    }
    static const char *const widths[] = {"generic", "avx2", "avx512"};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        if (strncmp(name, "cpu:", 4) == 0 && strcmp(name + 4, widths[i]) == 0)
            return uly_cpu_init(be, widths[i]);
    ULY_FAIL(ULY_ERR_UNSUPPORTED,
             "there is no backend %s; there are cpu, cpu:ref, cpu:generic, cpu:avx2, cpu:avx512",
             name);
}

enum uly_status uly_backend_create(const char *name, int n_threads, struct uly_backend **out)
{
    enum uly_status status = ULY_OK;
    struct uly_backend *be = NULL;
    ULY_FAIL_IF(n_threads < 1, ULY_ERR_INVALID, "a backend of %d threads was asked for", n_threads);
    ULY_TRY(ULY_ALLOC(&be, 1));
    be->n_threads = n_threads;
    ULY_TRY_GOTO(init_by_name(be, name), fail);
    ULY_TRY_GOTO(uly_check_table(be), fail);
    *out = be;
    return ULY_OK;
fail:
    uly_backend_destroy(be);
    return status;
}

void uly_backend_destroy(struct uly_backend *be)
{
    if (be && be->ops.destroy)
        be->ops.destroy(be);
    uly_free(be);
}

const char *uly_backend_name(const struct uly_backend *be)
{
    return be->name;
}

int uly_backend_threads(const struct uly_backend *be)
{
    return be->n_threads;
}

const struct uly_mem_space *uly_backend_space(const struct uly_backend *be)
{
    return be->space;
}

bool uly_backend_supports(const struct uly_backend *be, enum uly_dtype model)
{
    return be->dtypes & uly_bit(model);
}

int64_t uly_backend_scratch_bytes(const struct uly_backend *be)
{
    return be->scratch_bytes;
}

void uly_backend_set_poke(struct uly_backend *be, uly_poke_fn poke, void *context)
{
    be->poke = poke;
    be->poke_context = context;
}

/* ------------------------------------------------------------------ data in, data out */

enum uly_status uly_tensor_write(struct uly_backend *be, struct uly_tensor t, const void *host)
{
    ULY_TRY(uly_check_tensor((struct uly_check){be, "write"}, "the tensor", &t, ULY_BITS_ANY));
    return be->ops.write(be, t, host);
}

enum uly_status uly_tensor_read(struct uly_backend *be, struct uly_tensor t, void *host)
{
    ULY_TRY(uly_check_tensor((struct uly_check){be, "read"}, "the tensor", &t, ULY_BITS_ANY));
    return be->ops.read(be, t, host);
}

enum uly_status uly_fill(struct uly_backend *be, struct uly_tensor t, double value)
{
    ULY_TRY(uly_check_tensor((struct uly_check){be, "fill"}, "the tensor", &t, ULY_BITS_ANY));
    double most = t.dtype == ULY_DTYPE_U8 ? 255 : t.dtype == ULY_DTYPE_I32 ? INT32_MAX : 0x1p62;
    double least = t.dtype == ULY_DTYPE_U8 ? 0 : -most;
    bool whole = !(ULY_BITS_FLOAT & uly_bit(t.dtype));
    ULY_FAIL_IF(whole && !(value >= least && value <= most), ULY_ERR_INVALID,
                "fill: %g does not fit %s", value, uly_dtype_name(t.dtype));
    return be->ops.fill(be, t, value);
}

/* src and dst of one shape, element by element. */
static enum uly_status check_pair(struct uly_check c, const struct uly_tensor *src,
                                  const struct uly_tensor *dst, unsigned dst_dtypes)
{
    char a[96], b[96];
    ULY_TRY(uly_check_tensor(c, "src", src, ULY_BITS_FLOAT));
    ULY_TRY(uly_check_tensor(c, "dst", dst, dst_dtypes));
    ULY_FAIL_IF(src->n_dim != dst->n_dim || memcmp(src->shape, dst->shape, sizeof src->shape) != 0,
                ULY_ERR_INVALID, "%s: src %s and dst %s differ in shape", c.op,
                uly_tensor_text(src, a, sizeof a), uly_tensor_text(dst, b, sizeof b));
    return ULY_OK;
}

enum uly_status uly_cast(struct uly_backend *be, struct uly_tensor src, struct uly_tensor dst)
{
    ULY_TRY(check_pair((struct uly_check){be, "cast"}, &src, &dst, ULY_BITS_FLOAT));
    return be->ops.cast(be, src, dst);
}

enum uly_status uly_add(struct uly_backend *be, struct uly_tensor src, struct uly_tensor dst)
{
    ULY_TRY(check_pair((struct uly_check){be, "add"}, &src, &dst, be->dtypes | ULY_BIT_F32));
    return be->ops.add(be, src, dst);
}

enum uly_status uly_scale(struct uly_backend *be, struct uly_tensor t, double factor)
{
    ULY_TRY(uly_check_tensor((struct uly_check){be, "scale"}, "the tensor", &t,
                             ULY_BIT_F32 | (be->dtypes & ULY_BIT_F64)));
    return be->ops.scale(be, t, factor);
}

enum uly_status uly_sum_squares(struct uly_backend *be, struct uly_tensor t, double *out)
{
    ULY_TRY(
        uly_check_tensor((struct uly_check){be, "sum_squares"}, "the tensor", &t, ULY_BITS_FLOAT));
    return be->ops.sum_squares(be, t, out);
}

/* ------------------------------------------------------------------ matrix product */

enum uly_status uly_matmul(struct uly_backend *be, const struct uly_matmul_args *args)
{
    struct uly_check c = {be, "matmul"};
    const struct uly_tensor *a = &args->a, *b = &args->b;
    char text_a[96], text_b[96];
    ULY_TRY(uly_check_tensor(c, "a", a, be->dtypes));
    ULY_TRY(uly_check_tensor(c, "b", b, uly_bit(a->dtype)));
    int64_t m = args->transpose_a ? uly_tensor_width(a) : a->shape[0];
    int64_t k = args->transpose_a ? a->shape[0] : uly_tensor_width(a);
    int64_t k_of_b = args->transpose_b ? uly_tensor_width(b) : b->shape[0];
    int64_t n = args->transpose_b ? b->shape[0] : uly_tensor_width(b);
    ULY_FAIL_IF(a->n_dim < 2 || b->n_dim < 2 || k != k_of_b, ULY_ERR_INVALID,
                "matmul: a %s%s and b %s%s do not multiply", uly_tensor_text(a, text_a, 96),
                args->transpose_a ? " transposed" : "", uly_tensor_text(b, text_b, 96),
                args->transpose_b ? " transposed" : "");
    ULY_TRY(uly_check_matrix(c, "c", &args->c, uly_model_or_acc(a->dtype), m, n));
    if (uly_tensor_exists(&args->bias))
        ULY_TRY(uly_check_vector(c, "bias", &args->bias, uly_bit(a->dtype), n));
    return be->ops.matmul(be, args);
}

enum uly_status uly_column_sum(struct uly_backend *be, struct uly_tensor x, struct uly_tensor out)
{
    struct uly_check c = {be, "column_sum"};
    ULY_TRY(uly_check_tensor(c, "x", &x, be->dtypes | ULY_BIT_F32));
    ULY_TRY(uly_check_matrix(c, "x", &x, uly_bit(x.dtype), x.shape[0], uly_tensor_width(&x)));
    ULY_TRY(uly_check_vector(c, "out", &out, uly_acc_bit(x.dtype), uly_tensor_width(&x)));
    return be->ops.column_sum(be, x, out);
}

/* ------------------------------------------------------------------ token-wise */

enum uly_status uly_rmsnorm_fwd(struct uly_backend *be, const struct uly_rmsnorm_fwd_args *args)
{
    struct uly_check c = {be, "rmsnorm_fwd"};
    const struct uly_tensor *x = &args->x;
    ULY_TRY(uly_check_tensor(c, "x", x, be->dtypes));
    int64_t rows = x->shape[0], width = uly_tensor_width(x);
    ULY_TRY(uly_check_matrix(c, "x", x, uly_bit(x->dtype), rows, width));
    ULY_TRY(uly_check_vector(c, "w", &args->w, uly_bit(x->dtype), width));
    ULY_TRY(uly_check_matrix(c, "y", &args->y, uly_bit(x->dtype), rows, width));
    return be->ops.rmsnorm_fwd(be, args);
}

enum uly_status uly_rmsnorm_bwd(struct uly_backend *be, const struct uly_rmsnorm_bwd_args *args)
{
    struct uly_check c = {be, "rmsnorm_bwd"};
    const struct uly_tensor *x = &args->x;
    ULY_TRY(uly_check_tensor(c, "x", x, be->dtypes));
    int64_t rows = x->shape[0], width = uly_tensor_width(x);
    ULY_TRY(uly_check_matrix(c, "x", x, uly_bit(x->dtype), rows, width));
    ULY_TRY(uly_check_vector(c, "w", &args->w, uly_bit(x->dtype), width));
    ULY_TRY(uly_check_matrix(c, "dy", &args->dy, uly_model_or_acc(x->dtype), rows, width));
    ULY_TRY(uly_check_matrix(c, "dx", &args->dx, uly_model_or_acc(x->dtype), rows, width));
    if (uly_tensor_exists(&args->dw))
        ULY_TRY(uly_check_vector(c, "dw", &args->dw, uly_acc_bit(x->dtype), width));
    return be->ops.rmsnorm_bwd(be, args);
}

/* n tensors of the shape and dtype of the first. */
static enum uly_status check_alike(struct uly_check c, int n, const char *const *what,
                                   const struct uly_tensor *const *t)
{
    ULY_TRY(uly_check_tensor(c, what[0], t[0], c.be->dtypes));
    for (int i = 0; i < n; i++)
        ULY_TRY(uly_check_matrix(c, what[i], t[i], uly_bit(t[0]->dtype), t[0]->shape[0],
                                 uly_tensor_width(t[0])));
    return ULY_OK;
}

enum uly_status uly_swiglu_fwd(struct uly_backend *be, struct uly_tensor gate, struct uly_tensor up,
                               struct uly_tensor y)
{
    const char *const what[] = {"gate", "up", "y"};
    const struct uly_tensor *const t[] = {&gate, &up, &y};
    ULY_TRY(check_alike((struct uly_check){be, "swiglu_fwd"}, 3, what, t));
    return be->ops.swiglu_fwd(be, gate, up, y);
}

enum uly_status uly_swiglu_bwd(struct uly_backend *be, struct uly_tensor gate, struct uly_tensor up,
                               struct uly_tensor dy, struct uly_tensor dgate, struct uly_tensor dup)
{
    const char *const what[] = {"gate", "up", "dy", "dgate", "dup"};
    const struct uly_tensor *const t[] = {&gate, &up, &dy, &dgate, &dup};
    ULY_TRY(check_alike((struct uly_check){be, "swiglu_bwd"}, 5, what, t));
    return be->ops.swiglu_bwd(be, gate, up, dy, dgate, dup);
}

/* table: [V, E] of one of the dtypes; x: [s, E] model; ids: [s]. */
static enum uly_status check_embed(struct uly_check c, const struct uly_tensor *ids,
                                   const struct uly_tensor *x, const struct uly_tensor *table,
                                   unsigned table_dtypes)
{
    ULY_TRY(uly_check_tensor(c, "x", x, c.be->dtypes));
    int64_t width = uly_tensor_width(x);
    ULY_TRY(uly_check_matrix(c, "x", x, uly_bit(x->dtype), x->shape[0], width));
    ULY_TRY(uly_check_tensor(c, "table", table, table_dtypes));
    ULY_TRY(uly_check_matrix(c, "table", table, table_dtypes, table->shape[0], width));
    ULY_TRY(uly_check_vector(c, "ids", ids, ULY_BIT_I32, x->shape[0]));
    return ULY_OK;
}

enum uly_status uly_embed_fwd(struct uly_backend *be, struct uly_tensor ids,
                              struct uly_tensor table, struct uly_tensor x)
{
    ULY_TRY(check_embed((struct uly_check){be, "embed_fwd"}, &ids, &x, &table, uly_bit(x.dtype)));
    return be->ops.embed_fwd(be, ids, table, x);
}

enum uly_status uly_embed_bwd(struct uly_backend *be, struct uly_tensor ids, struct uly_tensor dx,
                              struct uly_tensor dtable)
{
    ULY_TRY(check_embed((struct uly_check){be, "embed_bwd"}, &ids, &dx, &dtable,
                        uly_acc_bit(dx.dtype)));
    return be->ops.embed_bwd(be, ids, dx, dtable);
}

/* ------------------------------------------------------------------ loss, optimizer */

enum uly_status uly_cross_entropy(struct uly_backend *be, const struct uly_cross_entropy_args *args)
{
    struct uly_check c = {be, "cross_entropy"};
    const struct uly_tensor *logits = &args->logits;
    ULY_TRY(uly_check_tensor(c, "logits", logits, ULY_BIT_F32 | (be->dtypes & ULY_BIT_F64)));
    int64_t rows = logits->shape[0], width = uly_tensor_width(logits);
    unsigned acc = uly_bit(logits->dtype);
    ULY_TRY(uly_check_matrix(c, "logits", logits, acc, rows, width));
    ULY_TRY(uly_check_vector(c, "labels", &args->labels, ULY_BIT_I32, rows));
    ULY_TRY(uly_check_vector(c, "loss", &args->loss, acc, rows));
    if (uly_tensor_exists(&args->dlogits)) {
        /* model dtypes whose acc is that of the logits */
        unsigned model = be->dtypes & (acc == ULY_BIT_F64 ? ULY_BIT_F64 : ~(unsigned)ULY_BIT_F64);
        ULY_TRY(uly_check_matrix(c, "dlogits", &args->dlogits, model, rows, width));
    }
    return be->ops.cross_entropy(be, args);
}

enum uly_status uly_adamw(struct uly_backend *be, const struct uly_adamw_args *args)
{
    struct uly_check c = {be, "adamw"};
    const struct uly_tensor *master = &args->master;
    const struct uly_tensor *const t[] = {master, &args->m, &args->v, &args->grad, &args->model};
    const char *const what[] = {"master", "m", "v", "grad", "model"};
    char text[96], first[96];
    ULY_FAIL_IF(args->step < 1, ULY_ERR_INVALID, "adamw: step %lld, the first is 1",
                (long long)args->step);
    ULY_TRY(uly_check_tensor(c, "master", master, ULY_BIT_F32 | (be->dtypes & ULY_BIT_F64)));
    unsigned acc = uly_bit(master->dtype);
    unsigned model = be->dtypes & (acc == ULY_BIT_F64 ? ULY_BIT_F64 : ~(unsigned)ULY_BIT_F64);
    for (int i = 0; i < 5; i++) {
        if (i == 4 && !uly_tensor_exists(t[i]))
            break;
        ULY_TRY(uly_check_tensor(c, what[i], t[i], i == 4 ? model : acc));
        ULY_FAIL_IF(
            uly_tensor_count(t[i]) != uly_tensor_count(master) || !uly_tensor_is_dense(t[i]),
            ULY_ERR_INVALID, "adamw: %s %s is not dense or not as large as master %s", what[i],
            uly_tensor_text(t[i], text, sizeof text), uly_tensor_text(master, first, sizeof first));
    }
    return be->ops.adamw(be, args);
}
