/* SPDX-License-Identifier: MIT
 *
 * Every call of oneDNN, for its releases 2.6 and later and 3.x. The two differ in how a memory descriptor is held (a struct
 * by value, or a handle) and in the two steps or one that make a primitive's descriptor; both differences end here.
 *
 * A primitive runs on several threads at once only because each gives it its own scratchpad, stream and memory objects: on
 * the library's own scratchpad, two threads in one primitive give wrong numbers.
 */
#include "backend/cpu/matmul.h"

#include <dnnl.h>

#include "base/mem.h"

enum { CAPACITY = 256, N_MEMORIES = 4 };

struct entry {
    struct uly_dnnl_key key;
    dnnl_primitive_t primitive; /* owned; NULL: the library has none for this key */
};

struct uly_dnnl {
    dnnl_engine_t engine;
    dnnl_stream_t *streams; /* owned, [n_threads] */
    int n_threads;
    struct entry *entries; /* owned, [CAPACITY], n_entries used */
    int n_entries;
    dnnl_memory_t *memories; /* owned, [CAPACITY][n_threads][a, b, c, scratchpad] */
};

static const char *result_text(dnnl_status_t result)
{
    return result == dnnl_out_of_memory       ? "out of memory"
           : result == dnnl_invalid_arguments ? "invalid arguments"
           : result == dnnl_unimplemented     ? "not implemented"
                                              : "failed";
}

#define DNNL_TRY(call)                                                                             \
    do {                                                                                           \
        dnnl_status_t dnnl_result_ = (call);                                                       \
        ULY_FAIL_IF(dnnl_result_ != dnnl_success,                                                  \
                    dnnl_result_ == dnnl_out_of_memory ? ULY_ERR_NO_MEMORY : ULY_ERR_INTERNAL,     \
                    "oneDNN: %s (status %d) in " #call, result_text(dnnl_result_),                 \
                    (int)dnnl_result_);                                                            \
    } while (0)

enum uly_status uly_dnnl_sgemm(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
                               const float *b, int64_t ldb, bool accumulate, float *c, int64_t ldc)
{
    float beta = accumulate ? 1.0f : 0.0f;
    DNNL_TRY(dnnl_sgemm('N', 'N', m, n, k, 1.0f, a, lda, b, ldb, beta, c, ldc));
    return ULY_OK;
}

/* ------------------------------------------------------------------ descriptors: two versions of the library */

static dnnl_data_type_t dnnl_type(enum uly_dtype dtype)
{
    return dtype == ULY_DTYPE_BF16 ? dnnl_bf16 : dnnl_f32;
}

/* A row-major [rows, columns] matrix of stride ld, or its transpose: element (i, j) of op(x). */
struct matrix {
    dnnl_dims_t dims, strides;
    dnnl_data_type_t type;
};

static struct matrix matrix_of(int64_t rows, int64_t columns, int64_t ld, bool transposed,
                               enum uly_dtype dtype)
{
    struct matrix x = {{rows, columns}, {ld, 1}, dnnl_type(dtype)};
    if (transposed) {
        x.strides[0] = 1;
        x.strides[1] = ld;
    }
    return x;
}

#if DNNL_VERSION_MAJOR >= 3

static dnnl_status_t make_matmul_desc(dnnl_engine_t engine, const struct matrix x[3],
                                      const_dnnl_primitive_attr_t attr, dnnl_primitive_desc_t *out)
{
    dnnl_memory_desc_t md[3] = {NULL, NULL, NULL};
    dnnl_status_t result = dnnl_success;
    for (int i = 0; i < 3 && result == dnnl_success; i++)
        result =
            dnnl_memory_desc_create_with_strides(&md[i], 2, x[i].dims, x[i].type, x[i].strides);
    if (result == dnnl_success)
        result = dnnl_matmul_primitive_desc_create(out, engine, md[0], md[1], NULL, md[2], attr);
    for (int i = 0; i < 3; i++)
        if (md[i] != NULL)
            dnnl_memory_desc_destroy(md[i]);
    return result;
}

static dnnl_status_t append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
}

#else

static dnnl_status_t make_matmul_desc(dnnl_engine_t engine, const struct matrix x[3],
                                      const_dnnl_primitive_attr_t attr, dnnl_primitive_desc_t *out)
{
    dnnl_memory_desc_t md[3];
    dnnl_matmul_desc_t op;
    dnnl_status_t result = dnnl_success;
    for (int i = 0; i < 3 && result == dnnl_success; i++)
        result = dnnl_memory_desc_init_by_strides(&md[i], 2, x[i].dims, x[i].type, x[i].strides);
    if (result == dnnl_success)
        result = dnnl_matmul_desc_init(&op, &md[0], &md[1], NULL, &md[2]);
    if (result == dnnl_success)
        result = dnnl_primitive_desc_create(out, &op, attr, engine, NULL);
    return result;
}

static dnnl_status_t append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f);
}

#endif

static int64_t desc_bytes(const_dnnl_primitive_desc_t pd, dnnl_query_t what)
{
    return (int64_t)dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(pd, what, 0));
}

/* ------------------------------------------------------------------ primitives */

static dnnl_status_t make_attr(bool accumulate, dnnl_primitive_attr_t *out)
{
    dnnl_post_ops_t ops = NULL;
    dnnl_status_t result = dnnl_primitive_attr_create(out);
    if (result == dnnl_success)
        result = dnnl_primitive_attr_set_scratchpad_mode(*out, dnnl_scratchpad_mode_user);
    if (result == dnnl_success && accumulate) {
        result = dnnl_post_ops_create(&ops);
        if (result == dnnl_success)
            result = append_sum(ops);
        if (result == dnnl_success)
            result = dnnl_primitive_attr_set_post_ops(*out, ops); /* copies */
        if (ops != NULL)
            dnnl_post_ops_destroy(ops);
    }
    return result;
}

/* The memory objects of one entry, without addresses. */
static dnnl_status_t make_memories(struct uly_dnnl *d, const_dnnl_primitive_desc_t pd,
                                   dnnl_memory_t *out)
{
    static const dnnl_query_t query[N_MEMORIES] = {dnnl_query_src_md, dnnl_query_weights_md,
                                                   dnnl_query_dst_md, dnnl_query_scratchpad_md};
    for (int i = 0; i < d->n_threads * N_MEMORIES; i++) {
        dnnl_status_t result =
            dnnl_memory_create(&out[i], dnnl_primitive_desc_query_md(pd, query[i % N_MEMORIES], 0),
                               d->engine, DNNL_MEMORY_NONE);
        if (result != dnnl_success)
            return result;
    }
    return dnnl_success;
}

static dnnl_memory_t *memories_of(struct uly_dnnl *d, int handle, int thread)
{
    return d->memories + ((int64_t)handle * d->n_threads + thread) * N_MEMORIES;
}

static void clear_entry(struct uly_dnnl *d, int handle)
{
    dnnl_memory_t *memory = memories_of(d, handle, 0);
    for (int i = 0; i < d->n_threads * N_MEMORIES; i++) {
        if (memory[i] != NULL)
            dnnl_memory_destroy(memory[i]);
        memory[i] = NULL;
    }
    if (d->entries[handle].primitive != NULL)
        dnnl_primitive_destroy(d->entries[handle].primitive);
    d->entries[handle].primitive = NULL;
}

/* Leaves the entry's primitive NULL where the library has none or its scratchpad is too large. */
static void make_entry(struct uly_dnnl *d, int handle, int64_t scratch_bytes)
{
    struct entry *e = &d->entries[handle];
    const struct uly_dnnl_key *key = &e->key;
    struct matrix x[3] = {matrix_of(key->m, key->k, key->lda, key->transpose_a, key->dtype),
                          matrix_of(key->k, key->n, key->ldb, key->transpose_b, key->dtype),
                          matrix_of(key->m, key->n, key->ldc, false, key->c_dtype)};
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t result = make_attr(key->accumulate, &attr);
    if (result == dnnl_success)
        result = make_matmul_desc(d->engine, x, attr, &pd);
    if (result == dnnl_success && desc_bytes(pd, dnnl_query_scratchpad_md) > scratch_bytes)
        result = dnnl_unimplemented;
    if (result == dnnl_success)
        result = dnnl_primitive_create(&e->primitive, pd);
    if (result == dnnl_success)
        result = make_memories(d, pd, memories_of(d, handle, 0));
    if (result != dnnl_success)
        clear_entry(d, handle);
    if (pd != NULL)
        dnnl_primitive_desc_destroy(pd);
    if (attr != NULL)
        dnnl_primitive_attr_destroy(attr);
}

static bool same_key(const struct uly_dnnl_key *a, const struct uly_dnnl_key *b)
{
    return a->m == b->m && a->n == b->n && a->k == b->k && a->lda == b->lda && a->ldb == b->ldb &&
           a->ldc == b->ldc && a->transpose_a == b->transpose_a &&
           a->transpose_b == b->transpose_b && a->accumulate == b->accumulate &&
           a->dtype == b->dtype && a->c_dtype == b->c_dtype;
}

void uly_dnnl_make_room(struct uly_dnnl *d, int n)
{
    if (d->n_entries + n <= CAPACITY)
        return;
    for (int i = 0; i < d->n_entries; i++)
        clear_entry(d, i);
    d->n_entries = 0;
}

int uly_dnnl_find(struct uly_dnnl *d, const struct uly_dnnl_key *key, int64_t scratch_bytes)
{
    int handle = 0;
    while (handle < d->n_entries && !same_key(&d->entries[handle].key, key))
        handle++;
    if (handle == d->n_entries) {
        if (handle == CAPACITY)
            return -1;
        d->entries[handle].key = *key;
        make_entry(d, handle, scratch_bytes);
        d->n_entries++;
    }
    return d->entries[handle].primitive != NULL ? handle : -1;
}

enum uly_status uly_dnnl_run(struct uly_dnnl *d, int handle, int thread, const void *a,
                             const void *b, void *c, void *scratch)
{
    dnnl_memory_t *memory = memories_of(d, handle, thread);
    void *address[N_MEMORIES] = {(void *)a, (void *)b, c, scratch};
    for (int i = 0; i < N_MEMORIES; i++)
        DNNL_TRY(dnnl_memory_set_data_handle(memory[i], address[i]));
    dnnl_exec_arg_t args[N_MEMORIES] = {{DNNL_ARG_SRC, memory[0]},
                                        {DNNL_ARG_WEIGHTS, memory[1]},
                                        {DNNL_ARG_DST, memory[2]},
                                        {DNNL_ARG_SCRATCHPAD, memory[3]}};
    dnnl_stream_t stream = d->streams[thread];
    DNNL_TRY(dnnl_primitive_execute(d->entries[handle].primitive, stream, N_MEMORIES, args));
    DNNL_TRY(dnnl_stream_wait(stream));
    return ULY_OK;
}

/* ------------------------------------------------------------------ life */

static enum uly_status init(struct uly_dnnl *d)
{
    size_t n = (size_t)d->n_threads;
    ULY_TRY(ULY_ALLOC(&d->streams, n));
    ULY_TRY(ULY_ALLOC(&d->entries, CAPACITY));
    ULY_TRY(ULY_ALLOC(&d->memories, CAPACITY * n * N_MEMORIES));
    DNNL_TRY(dnnl_engine_create(&d->engine, dnnl_cpu, 0));
    for (int i = 0; i < d->n_threads; i++)
        DNNL_TRY(dnnl_stream_create(&d->streams[i], d->engine, dnnl_stream_default_flags));
    return ULY_OK;
}

enum uly_status uly_dnnl_create(int n_threads, struct uly_dnnl **out)
{
    struct uly_dnnl *d;
    enum uly_status status = ULY_OK;
    ULY_TRY(ULY_ALLOC(&d, 1));
    d->n_threads = n_threads;
    ULY_TRY_GOTO(init(d), fail);
    *out = d;
    return ULY_OK;
fail:
    uly_dnnl_destroy(d);
    return status;
}

void uly_dnnl_destroy(struct uly_dnnl *d)
{
    if (d == NULL)
        return;
    for (int i = 0; i < d->n_entries; i++)
        clear_entry(d, i);
    for (int i = 0; d->streams != NULL && i < d->n_threads; i++)
        if (d->streams[i] != NULL)
            dnnl_stream_destroy(d->streams[i]);
    if (d->engine != NULL)
        dnnl_engine_destroy(d->engine);
    uly_free(d->memories);
    uly_free(d->entries);
    uly_free(d->streams);
    uly_free(d);
}
