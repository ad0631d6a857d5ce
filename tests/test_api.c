/* SPDX-License-Identifier: MIT
 *
 * The public library on thread ranks: values against plain attention in double, what is refused and
 * in which words, several handles at once, and that a call allocates nothing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "support/cp_plain.h"
#include "ulysses/ulysses.h"

/* ------------------------------------------------------------------ one rank's tensors */

static int64_t element_bytes(enum ulysses_dtype dtype)
{
    return dtype == ULYSSES_FLOAT32 ? 4 : 2;
}

static void put(void *array, enum ulysses_dtype dtype, int64_t i, double value)
{
    if (dtype == ULYSSES_FLOAT32)
        ((float *)array)[i] = (float)value;
    else
        ((uint16_t *)array)[i] = uly_f32_to_bf16((float)value);
}

static double get(const void *array, enum ulysses_dtype dtype, int64_t i)
{
    return dtype == ULYSSES_FLOAT32 ? (double)((const float *)array)[i]
                                    : (double)uly_bf16_to_f32(((const uint16_t *)array)[i]);
}

/* Unwritten memory is all ones: NaN in both types. An empty array is NULL. */
static void *fresh(int64_t n, enum ulysses_dtype dtype)
{
    if (n == 0)
        return NULL;
    void *p = malloc((size_t)(n * element_bytes(dtype)));
    ULY_BUG_ON(!p);
    memset(p, 0xff, (size_t)(n * element_bytes(dtype)));
    return p;
}

static void *copy_in(const double *global, const struct ulysses_shard *shard, int64_t width,
                     enum ulysses_dtype dtype)
{
    void *p = fresh(shard->tokens * width, dtype);
    int64_t at = 0;
    for (int i = 0; i < shard->n_segments; i++)
        for (int64_t j = 0; j < shard->segment[i].count * width; j++)
            put(p, dtype, at++, global[shard->segment[i].start * width + j]);
    return p;
}

static void copy_out(double *global, const struct ulysses_shard *shard, int64_t width,
                     enum ulysses_dtype dtype, const void *p)
{
    int64_t at = 0;
    for (int i = 0; i < shard->n_segments; i++)
        for (int64_t j = 0; j < shard->segment[i].count * width; j++)
            global[shard->segment[i].start * width + j] = get(p, dtype, at++);
}

static struct ulysses_attention_tensors make_tensors(const struct plain_attention *in,
                                                     const struct ulysses_attention *attention,
                                                     enum ulysses_dtype dtype,
                                                     struct ulysses_shard *shard)
{
    ULY_BUG_ON(ulysses_attention_shard(attention, in->S, shard) != ULYSSES_OK);
    int64_t q = (int64_t)in->H * in->D, k = (int64_t)in->K * in->D, s = shard->tokens;
    int64_t lse = ulysses_attention_lse_elements(attention);
    return (struct ulysses_attention_tensors){.dtype = dtype,
                                              .tokens = s,
                                              .q = copy_in(in->q, shard, q, dtype),
                                              .k = copy_in(in->k, shard, k, dtype),
                                              .v = copy_in(in->v, shard, k, dtype),
                                              .d_o = copy_in(in->d_o, shard, q, dtype),
                                              .o = fresh(s * q, dtype),
                                              .dq = fresh(s * q, dtype),
                                              .dk = fresh(s * k, dtype),
                                              .dv = fresh(s * k, dtype),
                                              .lse = fresh(lse, ULYSSES_FLOAT32),
                                              .lse_elements = lse};
}

static void free_tensors(struct ulysses_attention_tensors *t)
{
    void *all[] = {(void *)(uintptr_t)t->q,
                   (void *)(uintptr_t)t->k,
                   (void *)(uintptr_t)t->v,
                   t->o,
                   (void *)(uintptr_t)t->d_o,
                   t->dq,
                   t->dk,
                   t->dv,
                   t->lse};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* ------------------------------------------------------------------ values */

struct layout_case {
    int ring, ulysses, per_stage;
    int64_t query_tile;
};

struct job {
    const struct plain_attention *in;
    struct plain_attention *out;
    struct layout_case layout;
    enum ulysses_dtype dtype;
    int64_t max_tokens;
    double *lse; /* [H, S] global */
};

#define TRY(call)                                                                                  \
    do {                                                                                           \
        enum ulysses_status try_status_ = (call);                                                  \
        if (try_status_ != ULYSSES_OK)                                                             \
            return try_status_;                                                                    \
    } while (0)

static struct ulysses_attention_options options_of(const struct job *job)
{
    return (struct ulysses_attention_options){.heads = job->in->H,
                                              .kv_heads = job->in->K,
                                              .head_dim = job->in->D,
                                              .dtype = job->dtype,
                                              .max_tokens = job->max_tokens,
                                              .ring_size = job->layout.ring,
                                              .ulysses_size = job->layout.ulysses,
                                              .heads_per_stage = job->layout.per_stage,
                                              .query_tile = job->layout.query_tile,
                                              .training = true};
}

static struct ulysses_mask mask_of(const struct plain_attention *in)
{
    return (struct ulysses_mask){in->S, in->mask.starts, in->mask.n_docs, in->mask.window};
}

/* LSE lies by head and, within a head, by the shards of the rank's ulysses group in their order. */
static void copy_lse(const struct job *job, const struct ulysses_attention *attention, int rank,
                     const float *lse)
{
    int first, count, group = rank / job->layout.ulysses * job->layout.ulysses;
    int64_t at = 0;
    ulysses_attention_owned_heads(attention, &first, &count);
    for (int h = first; h < first + count; h++)
        for (int u = 0; u < job->layout.ulysses; u++) {
            struct ulysses_shard shard;
            ULY_BUG_ON(ulysses_layout(job->in->S, job->layout.ring, job->layout.ulysses, group + u,
                                      &shard) != ULYSSES_OK);
            for (int i = 0; i < shard.n_segments; i++)
                for (int64_t j = 0; j < shard.segment[i].count; j++)
                    job->lse[h * job->in->S + shard.segment[i].start + j] = (double)lse[at++];
        }
}

static enum ulysses_status run_rank(struct ulysses_comm *comm, void *arg)
{
    const struct job *job = arg;
    struct ulysses_attention_options options = options_of(job);
    struct ulysses_attention *attention;
    struct ulysses_mask mask = mask_of(job->in);
    struct ulysses_shard shard;
    int64_t q = (int64_t)job->in->H * job->in->D, k = (int64_t)job->in->K * job->in->D;
    TRY(ulysses_attention_create(comm, &options, &attention));
    struct ulysses_attention_tensors t = make_tensors(job->in, attention, job->dtype, &shard);
    uly_alloc_guard_begin(); /* from here on an allocation is an error */
    enum ulysses_status status = ulysses_attention_forward(attention, &mask, &t);
    if (status == ULYSSES_OK)
        status = ulysses_attention_backward(attention, &mask, &t);
    uly_alloc_guard_end();
    copy_out(job->out->o, &shard, q, job->dtype, t.o);
    copy_out(job->out->dq, &shard, q, job->dtype, t.dq);
    copy_out(job->out->dk, &shard, k, job->dtype, t.dk);
    copy_out(job->out->dv, &shard, k, job->dtype, t.dv);
    copy_lse(job, attention, ulysses_comm_rank(comm), t.lse);
    free_tensors(&t);
    ulysses_attention_destroy(attention);
    return status;
}

/* Largest difference over the largest value. */
static double error_of(const double *got, const double *want, int64_t n)
{
    double worst = 0, top = 1e-300;
    for (int64_t i = 0; i < n; i++) {
        if (isnan(got[i]))
            return HUGE_VAL;
        worst = fmax(worst, fabs(got[i] - want[i]));
        top = fmax(top, fabs(want[i]));
    }
    return worst / top;
}

/* [H, S] in double, from the definition. */
static void plain_lse(const struct plain_attention *p, double *lse)
{
    for (int h = 0; h < p->H; h++)
        for (int64_t q = 0; q < p->S; q++) {
            double sum = 0; /* scores of unit normals stay small: no shift is needed */
            for (int64_t j = uly_mask_lo(&p->mask, q); j <= q; j++) {
                double score = 0;
                for (int d = 0; d < p->D; d++)
                    score += p->q[(q * p->H + h) * p->D + d] *
                             p->k[(j * p->K + h / (p->H / p->K)) * p->D + d];
                sum += exp(score / sqrt(p->D));
            }
            lse[h * p->S + q] = log(sum);
        }
}

static void check_values(struct layout_case layout, int64_t S, int H, int K, int D,
                         const int64_t *docs, int64_t n_docs, int64_t window,
                         enum ulysses_dtype dtype)
{
    static const int64_t whole[] = {0};
    struct plain_attention in, out;
    double tolerance = dtype == ULYSSES_FLOAT32 ? 1e-5 : 2e-2;
    if (n_docs == 0) {
        docs = whole;
        n_docs = 1;
    }
    plain_init(&in, S, H, K, D, docs, n_docs, window, 11);
    plain_init(&out, S, H, K, D, docs, n_docs, window, 11);
    plain_dense(&in);
    double *lse = fresh(2 * H * S, ULYSSES_FLOAT32), *want = malloc((size_t)(H * S) * sizeof *want);
    assert_true(lse && want);
    for (int64_t i = 0; i < H * S; i++)
        lse[i] = (double)NAN;
    plain_lse(&in, want);
    struct job job = {&in, &out, layout, dtype, S + 3, lse};
    if (ulysses_comm_run_threads(layout.ring * layout.ulysses, run_rank, &job) != ULYSSES_OK)
        fail_msg("ring %d ulysses %d n %d: %s", layout.ring, layout.ulysses, layout.per_stage,
                 ulysses_error_message());
    double e[] = {error_of(out.o, in.o, S * H * D), error_of(out.dq, in.dq, S * H * D),
                  error_of(out.dk, in.dk, S * K * D), error_of(out.dv, in.dv, S * K * D),
                  error_of(lse, want, H * S)};
    for (int i = 0; i < 5; i++)
        if (!(e[i] <= tolerance))
            fail_msg("ring %d ulysses %d n %d S %d: error of o %g dq %g dk %g dv %g lse %g",
                     layout.ring, layout.ulysses, layout.per_stage, (int)S, e[0], e[1], e[2], e[3],
                     e[4]);
    free(lse);
    free(want);
    plain_clear(&in);
    plain_clear(&out);
}

static void test_values(void **state)
{
    (void)state;
    static const int64_t documents[] = {0, 1, 40, 41, 77};
    static const struct layout_case layouts[] = {
        {1, 1, 0, 0},
        {1, 2, 0, 0},
        {1, 3, 1, 0},
        {1, 4, 2, 0},
    };
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
        for (int dtype = 0; dtype < 2; dtype++) {
            check_values(layouts[i], 101, 7, 7, 12, NULL, 0, 0, (enum ulysses_dtype)dtype);
            check_values(layouts[i], 101, 6, 2, 16, documents, 5, 0, (enum ulysses_dtype)dtype);
            check_values(layouts[i], 101, 6, 1, 8, documents, 5, 13, (enum ulysses_dtype)dtype);
        }
    /* fewer tokens than ranks: empty shards, whose pointers are NULL */
    check_values((struct layout_case){1, 4, 0, 0}, 3, 8, 2, 8, NULL, 0, 0, ULYSSES_FLOAT32);
    check_values((struct layout_case){2, 2, 0, 0}, 3, 8, 2, 8, NULL, 0, 0, ULYSSES_BFLOAT16);
    /* fewer heads than ranks: a rank without LSE */
    check_values((struct layout_case){1, 4, 0, 0}, 29, 3, 3, 8, NULL, 0, 0, ULYSSES_BFLOAT16);
}

/* ------------------------------------------------------------------ several handles */

/* Two handles of one communicator, their calls between each other, and each result as if alone. */
static enum ulysses_status two_handles_rank(struct ulysses_comm *comm, void *arg)
{
    struct job *job = arg;
    struct ulysses_attention *attention[2];
    struct ulysses_attention_tensors t[2];
    struct ulysses_shard shard[2];
    for (int i = 0; i < 2; i++) {
        struct ulysses_attention_options options = options_of(&job[i]);
        TRY(ulysses_attention_create(comm, &options, &attention[i]));
        t[i] = make_tensors(job[i].in, attention[i], job[i].dtype, &shard[i]);
    }
    for (int pass = 0; pass < 4; pass++) {
        int i = pass % 2;
        struct ulysses_mask mask = mask_of(job[i].in);
        TRY(pass < 2 ? ulysses_attention_forward(attention[i], &mask, &t[i])
                     : ulysses_attention_backward(attention[i], &mask, &t[i]));
    }
    for (int i = 0; i < 2; i++) {
        int64_t q = (int64_t)job[i].in->H * job[i].in->D, k = (int64_t)job[i].in->K * job[i].in->D;
        copy_out(job[i].out->o, &shard[i], q, job[i].dtype, t[i].o);
        copy_out(job[i].out->dq, &shard[i], q, job[i].dtype, t[i].dq);
        copy_out(job[i].out->dk, &shard[i], k, job[i].dtype, t[i].dk);
        copy_out(job[i].out->dv, &shard[i], k, job[i].dtype, t[i].dv);
        free_tensors(&t[i]);
        ulysses_attention_destroy(attention[i]);
    }
    return ULYSSES_OK;
}

static void test_two_handles(void **state)
{
    (void)state;
    static const int64_t docs[] = {0, 9};
    struct plain_attention in[2], out[2];
    struct job job[2];
    for (int i = 0; i < 2; i++) {
        int64_t S = i ? 31 : 45;
        int H = i ? 4 : 6, K = i ? 2 : 3, D = i ? 8 : 20;
        plain_init(&in[i], S, H, K, D, docs, 2, i ? 5 : 0, 3);
        plain_init(&out[i], S, H, K, D, docs, 2, i ? 5 : 0, 3);
        plain_dense(&in[i]);
        job[i] = (struct job){&in[i], &out[i], {1, 3, 1, 0}, ULYSSES_FLOAT32, S, NULL};
    }
    assert_int_equal(ulysses_comm_run_threads(3, two_handles_rank, job), ULYSSES_OK);
    for (int i = 0; i < 2; i++) {
        int64_t nq = in[i].S * in[i].H * in[i].D, nk = in[i].S * in[i].K * in[i].D;
        assert_true(error_of(out[i].o, in[i].o, nq) <= 1e-5);
        assert_true(error_of(out[i].dq, in[i].dq, nq) <= 1e-5);
        assert_true(error_of(out[i].dk, in[i].dk, nk) <= 1e-5);
        assert_true(error_of(out[i].dv, in[i].dv, nk) <= 1e-5);
        plain_clear(&in[i]);
        plain_clear(&out[i]);
    }
}

/* Bytes of a handle of 8 heads on 2 ranks in three settings. */
static enum ulysses_status measure_bytes(struct ulysses_comm *comm, void *arg)
{
    int64_t *bytes = arg;
    for (int i = 0; i < 3; i++) {
        struct ulysses_attention_options options = {
            .heads = 8,
            .kv_heads = 2, /* neighbouring stages share one: they overlap */
            .head_dim = 16,
            .max_tokens = 4096,
            .heads_per_stage = i ? 1 : 0,
            .serial = i == 2};
        struct ulysses_attention *attention;
        TRY(ulysses_attention_create(comm, &options, &attention));
        if (ulysses_comm_rank(comm) == 0)
            bytes[i] = ulysses_attention_bytes(attention);
        ulysses_attention_destroy(attention);
    }
    return ULYSSES_OK;
}

static void test_bytes(void **state)
{
    (void)state;
    int64_t bytes[3] = {0};
    assert_int_equal(ulysses_comm_run_threads(2, measure_bytes, bytes), ULYSSES_OK);
    assert_true(bytes[0] > bytes[1] && bytes[1] > bytes[2]);
    /* at least q, k, v and o of one head over the whole sequence */
    assert_true(bytes[2] >= INT64_C(4) * 4096 * 16 * 4);
}

/* ------------------------------------------------------------------ what is refused */

static void refused(enum ulysses_status status, enum ulysses_status want, const char *words)
{
    if (status != want || !strstr(ulysses_error_message(), words))
        fail_msg("got \"%s\" (%s), wanted %s with \"%s\"", ulysses_error_message(),
                 ulysses_status_text(status), ulysses_status_text(want), words);
}

static const struct ulysses_attention_options good_options = {
    .heads = 4, .kv_heads = 2, .head_dim = 8, .max_tokens = 40, .training = true};

#define REFUSED_OPTION(field, value, want, words)                                                  \
    do {                                                                                           \
        struct ulysses_attention_options bad = good_options;                                       \
        struct ulysses_attention *none = NULL;                                                     \
        bad.field = value;                                                                         \
        refused(ulysses_attention_create(comm, &bad, &none), want, words);                         \
        assert_null(none);                                                                         \
    } while (0)

static void test_options_refused(void **state)
{
    (void)state;
    struct ulysses_comm *comm;
    struct ulysses_attention *unset = NULL;
    assert_int_equal(ulysses_comm_self(&comm), ULYSSES_OK);
    refused(ulysses_attention_create(NULL, &good_options, &unset), ULYSSES_ERR_INVALID, "comm");
    refused(ulysses_attention_create(comm, NULL, &unset), ULYSSES_ERR_INVALID, "options is NULL");
    refused(ulysses_attention_create(comm, &good_options, NULL), ULYSSES_ERR_INVALID, "out");
    REFUSED_OPTION(heads, 0, ULYSSES_ERR_INVALID, "heads 0");
    REFUSED_OPTION(kv_heads, 3, ULYSSES_ERR_USAGE, "multiple of kv_heads");
    REFUSED_OPTION(head_dim, -1, ULYSSES_ERR_INVALID, "head_dim -1");
    REFUSED_OPTION(max_tokens, 0, ULYSSES_ERR_INVALID, "max_tokens 0");
    REFUSED_OPTION(max_tokens, INT64_C(1) << 50, ULYSSES_ERR_NO_MEMORY, "");
    REFUSED_OPTION(max_tokens, INT64_MAX, ULYSSES_ERR_INVALID, "max_tokens 9223372036854775807");
    REFUSED_OPTION(heads, INT_MAX - 1, ULYSSES_ERR_INVALID, "heads 2147483646");
    REFUSED_OPTION(head_dim, INT_MAX, ULYSSES_ERR_INVALID, "head_dim 2147483647");
    REFUSED_OPTION(threads, 5000, ULYSSES_ERR_INVALID, "threads 5000");
    REFUSED_OPTION(scale, (double)NAN, ULYSSES_ERR_INVALID, "scale nan");
    REFUSED_OPTION(dtype, (enum ulysses_dtype)7, ULYSSES_ERR_INVALID, "dtype 7");
    REFUSED_OPTION(ulysses_size, 2, ULYSSES_ERR_USAGE, "not the 1 ranks");
    REFUSED_OPTION(ring_size, 2, ULYSSES_ERR_USAGE, "not the 1 ranks");
    REFUSED_OPTION(ring_size, -1, ULYSSES_ERR_INVALID, "ring_size -1");
    REFUSED_OPTION(heads_per_stage, 5, ULYSSES_ERR_USAGE, "5");
    REFUSED_OPTION(heads_per_stage, -1, ULYSSES_ERR_INVALID, "heads_per_stage -1");
    REFUSED_OPTION(query_tile, -1, ULYSSES_ERR_INVALID, "query_tile -1");
    REFUSED_OPTION(backend, "abacus", ULYSSES_ERR_UNSUPPORTED, "abacus");
    ulysses_comm_destroy(comm);
}

#define REFUSED_CALL(what, field, value, words)                                                    \
    do {                                                                                           \
        struct ulysses_mask m = mask;                                                              \
        struct ulysses_attention_tensors t = good;                                                 \
        (what).field = value;                                                                      \
        refused(ulysses_attention_backward(attention, &m, &t), ULYSSES_ERR_INVALID, words);        \
        if (strncmp(#field, "d_", 2) != 0 && strncmp(#field, "dq", 2) != 0)                        \
            refused(ulysses_attention_forward(attention, &m, &t), ULYSSES_ERR_INVALID, words);     \
    } while (0)

static void test_calls_refused(void **state)
{
    (void)state;
    static const int64_t docs[] = {0, 5}, late[] = {1, 5}, falling[] = {0, 5, 5}, far[] = {0, 37};
    struct ulysses_comm *comm;
    struct ulysses_attention *attention;
    struct ulysses_shard shard;
    struct plain_attention in;
    plain_init(&in, 37, 4, 2, 8, docs, 2, 0, 1);
    assert_int_equal(ulysses_comm_self(&comm), ULYSSES_OK);
    assert_int_equal(ulysses_attention_create(comm, &good_options, &attention), ULYSSES_OK);
    struct ulysses_mask mask = mask_of(&in);
    struct ulysses_attention_tensors good = make_tensors(&in, attention, ULYSSES_FLOAT32, &shard);
    REFUSED_CALL(m, tokens, 0, "0 tokens");
    REFUSED_CALL(m, tokens, 41, "1 to 40");
    REFUSED_CALL(m, window, -1, "window -1");
    REFUSED_CALL(m, n_docs, INT64_MAX, "9223372036854775807 documents"); /* before they are read */
    refused(ulysses_attention_shard(attention, 41, &shard), ULYSSES_ERR_INVALID, "at most 40");
    refused(ulysses_attention_shard(NULL, 3, &shard), ULYSSES_ERR_INVALID, "NULL");
    REFUSED_CALL(m, n_docs, -1, "n_docs -1");
    REFUSED_CALL(m, doc_starts, NULL, "doc_starts is NULL");
    REFUSED_CALL(m, doc_starts, late, "starts at token 1, not 0");
    REFUSED_CALL(m, doc_starts, far, "document 1 starts at token 37");
    REFUSED_CALL(t, dtype, ULYSSES_BFLOAT16, "dtype 1, the handle of 0");
    REFUSED_CALL(t, tokens, 36, "36 tokens, rank 0 of 1 holds 37");
    REFUSED_CALL(t, lse_elements, 159, "159 elements, not 160");
    REFUSED_CALL(t, q, NULL, "q is NULL");
    REFUSED_CALL(t, k, NULL, "k is NULL");
    REFUSED_CALL(t, v, NULL, "v is NULL");
    REFUSED_CALL(t, o, NULL, "o is NULL");
    REFUSED_CALL(t, lse, NULL, "lse is NULL");
    REFUSED_CALL(t, v, (const char *)good.v + 2, "v is not aligned");
    REFUSED_CALL(t, d_o, NULL, "d_o is NULL");
    REFUSED_CALL(t, dq, NULL, "dq is NULL");
    REFUSED_CALL(t, dq, good.o, "dq overlaps o");
    mask.n_docs = 3;
    REFUSED_CALL(m, doc_starts, falling, "document 2 starts at token 5, after 5");
    mask.n_docs = 2;
    refused(ulysses_attention_forward(attention, NULL, &good), ULYSSES_ERR_INVALID, "mask");
    refused(ulysses_attention_forward(attention, &mask, NULL), ULYSSES_ERR_INVALID, "");
    refused(ulysses_attention_forward(NULL, &mask, &good), ULYSSES_ERR_INVALID, "attention");
    ulysses_attention_destroy(attention);
    struct ulysses_attention_options options = good_options;
    options.training = false;
    assert_int_equal(ulysses_attention_create(comm, &options, &attention), ULYSSES_OK);
    mask = mask_of(&in);
    refused(ulysses_attention_backward(attention, &mask, &good), ULYSSES_ERR_USAGE, "training");
    assert_int_equal(ulysses_attention_forward(attention, &mask, &good), ULYSSES_OK);
    ulysses_attention_destroy(attention);
    ulysses_comm_destroy(comm);
    free_tensors(&good);
    plain_clear(&in);
}

/* ------------------------------------------------------------------ ranks that differ */

/* A wrong argument of one rank is everyone's error, and the handle works afterwards. */
static enum ulysses_status one_wrong_rank(struct ulysses_comm *comm, void *arg)
{
    const struct job *job = arg;
    int rank = ulysses_comm_rank(comm);
    struct ulysses_attention_options options = options_of(job);
    struct ulysses_attention *attention = NULL;
    struct ulysses_shard shard;
    options.heads = rank == 1 ? 8 : 4;
    refused(ulysses_attention_create(comm, &options, &attention), ULYSSES_ERR_COMM,
            "differ in heads, from 4 to 8");
    options.heads = rank == 2 ? 0 : 4;
    refused(ulysses_attention_create(comm, &options, &attention),
            rank == 2 ? ULYSSES_ERR_INVALID : ULYSSES_ERR_PEER, "heads 0");
    options = options_of(job);
    options.backend = rank == 1 ? "abacus" : NULL;
    refused(ulysses_attention_create(comm, &options, &attention),
            rank == 1 ? ULYSSES_ERR_UNSUPPORTED : ULYSSES_ERR_PEER, "abacus");
    options.backend = NULL;
    TRY(ulysses_attention_create(comm, &options, &attention));
    struct ulysses_attention_tensors t = make_tensors(job->in, attention, job->dtype, &shard);
    struct ulysses_mask mask = mask_of(job->in);
    t.tokens += rank == 0;
    refused(ulysses_attention_forward(attention, &mask, &t),
            rank == 0 ? ULYSSES_ERR_INVALID : ULYSSES_ERR_PEER, "rank 0 of 3 holds");
    t.tokens = shard.tokens;
    mask.window = rank;
    refused(ulysses_attention_forward(attention, &mask, &t), ULYSSES_ERR_COMM,
            "differ in the mask's window, from 0 to 2");
    mask.window = 0;
    refused(rank ? ulysses_attention_forward(attention, &mask, &t)
                 : ulysses_attention_backward(attention, &mask, &t),
            ULYSSES_ERR_COMM, "direction");
    TRY(ulysses_attention_forward(attention, &mask, &t));
    TRY(ulysses_attention_backward(attention, &mask, &t));
    copy_out(job->out->o, &shard, (int64_t)job->in->H * job->in->D, job->dtype, t.o);
    free_tensors(&t);
    ulysses_attention_destroy(attention);
    return ULYSSES_OK;
}

static void test_ranks_differ(void **state)
{
    (void)state;
    static const int64_t docs[] = {0};
    struct plain_attention in, out;
    plain_init(&in, 23, 4, 2, 8, docs, 1, 0, 5);
    plain_init(&out, 23, 4, 2, 8, docs, 1, 0, 5);
    plain_dense(&in);
    struct job job = {&in, &out, {1, 3, 0, 0}, ULYSSES_FLOAT32, 23, NULL};
    enum ulysses_status status = ulysses_comm_run_threads(3, one_wrong_rank, &job);
    if (status != ULYSSES_OK)
        fail_msg("%s", ulysses_error_message());
    assert_true(error_of(out.o, in.o, 23 * 4 * 8) <= 1e-5);
    plain_clear(&in);
    plain_clear(&out);
}

/* Rank 1 runs out of memory at every place in turn; every rank hears of it, nothing is leaked. */
static enum ulysses_status no_memory(struct ulysses_comm *comm, void *arg)
{
    int *failures = arg;
    for (int k = 1;; k++) {
        struct ulysses_attention *attention = NULL;
        uly_alloc_fail_at(ulysses_comm_rank(comm) == 1 ? k : 0);
        enum ulysses_status status = ulysses_attention_create(comm, &good_options, &attention);
        uly_alloc_fail_at(0);
        if (status == ULYSSES_OK) {
            ulysses_attention_destroy(attention);
            if (ulysses_comm_rank(comm) == 0)
                *failures = k - 1;
            return ULYSSES_OK;
        }
        if (status != ULYSSES_ERR_PEER && status != ULYSSES_ERR_NO_MEMORY)
            return status;
    }
}

static void test_no_memory(void **state)
{
    (void)state;
    int failures = 0;
    enum ulysses_status status = ulysses_comm_run_threads(2, no_memory, &failures);
    if (status != ULYSSES_OK)
        fail_msg("%s", ulysses_error_message());
    assert_true(failures > 10);
}

/* ------------------------------------------------------------------ communicator, layout */

static enum ulysses_status own_error(struct ulysses_comm *comm, void *arg)
{
    (void)arg;
    return ulysses_comm_rank(comm) == 1 ? ULYSSES_ERR_IO : ULYSSES_OK;
}

static enum ulysses_status split_pairs(struct ulysses_comm *comm, void *arg)
{
    int *ranks = arg, rank = ulysses_comm_rank(comm);
    struct ulysses_comm *pair = NULL;
    refused(ulysses_comm_split(comm, rank == 3 ? -1 : 0, 0, &pair),
            rank == 3 ? ULYSSES_ERR_INVALID : ULYSSES_ERR_PEER, "color -1");
    TRY(ulysses_comm_split(comm, rank % 2, -rank, &pair));
    ranks[rank] = 10 * ulysses_comm_size(pair) + ulysses_comm_rank(pair);
    ulysses_comm_destroy(pair);
    ulysses_comm_destroy(comm); /* lent: nothing happens */
    return ULYSSES_OK;
}

static void test_comm(void **state)
{
    (void)state;
    int ranks[5];
    assert_int_equal(ulysses_comm_run_threads(5, split_pairs, ranks), ULYSSES_OK);
    static const int want[5] = {32, 21, 31, 20, 30};
    assert_memory_equal(ranks, want, sizeof want);
    refused(ulysses_comm_run_threads(3, own_error, NULL), ULYSSES_ERR_IO, "rank 1 returned");
    refused(ulysses_comm_run_threads(0, own_error, NULL), ULYSSES_ERR_INVALID, "0 ranks");
    refused(ulysses_comm_run_threads(1, NULL, NULL), ULYSSES_ERR_INVALID, "fn is NULL");
    refused(ulysses_comm_self(NULL), ULYSSES_ERR_INVALID, "out is NULL");
    ulysses_comm_destroy(NULL);
    ulysses_attention_destroy(NULL);
    assert_string_equal(ulysses_version(), "0.1.0");
    assert_string_equal(ulysses_status_text(ULYSSES_OK), "success");
}

/* Every token has one rank, whatever the sizes. */
/* Many heads are many parts of an exchange, a few for each. */
static void test_many_heads(void **state)
{
    (void)state;
    struct ulysses_comm *comm;
    struct ulysses_attention *attention = NULL;
    struct ulysses_attention_options options = good_options;
    options.heads = options.kv_heads = 1500;
    options.head_dim = 2;
    options.max_tokens = 2;
    assert_int_equal(ulysses_comm_self(&comm), ULYSSES_OK);
    if (ulysses_attention_create(comm, &options, &attention) != ULYSSES_OK)
        fail_msg("%s", ulysses_error_message());
    ulysses_attention_destroy(attention);
    ulysses_comm_destroy(comm);
}

/* What only tells a number has no status: of a handle that could not be made it tells 0. */
static void test_no_handle(void **state)
{
    (void)state;
    int first = 5, count = 5;
    ulysses_attention_owned_heads(NULL, &first, &count);
    assert_int_equal(first, 0);
    assert_int_equal(count, 0);
    assert_int_equal(ulysses_attention_bytes(NULL), 0);
    assert_int_equal(ulysses_attention_lse_elements(NULL), 0);
    assert_int_equal(ulysses_comm_rank(NULL), 0);
    assert_int_equal(ulysses_comm_size(NULL), 0);
    ulysses_comm_set_timeout(NULL, 1);
    ulysses_attention_destroy(NULL);
    ulysses_comm_destroy(NULL);
}

static void test_layout(void **state)
{
    (void)state;
    static const int64_t lengths[] = {0, 1, 2, 7, 101, 4099};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (int ring = 1; ring <= 4; ring++)
            for (int ulysses = 1; ulysses <= 3; ulysses++) {
                int64_t S = lengths[i], most = 0, largest = 0;
                unsigned char *seen = calloc((size_t)S + 1, 1);
                assert_non_null(seen);
                for (int r = 0; r < ring * ulysses; r++) {
                    struct ulysses_shard shard;
                    int64_t n = 0;
                    assert_int_equal(ulysses_layout(S, ring, ulysses, r, &shard), ULYSSES_OK);
                    for (int k = 0; k < shard.n_segments; k++)
                        for (int64_t j = 0; j < shard.segment[k].count; j++, n++)
                            seen[shard.segment[k].start + j]++;
                    assert_int_equal(n, shard.tokens);
                    largest = n > largest ? n : largest;
                }
                for (int64_t j = 0; j < S; j++)
                    assert_int_equal(seen[j], 1);
                assert_int_equal(ulysses_layout_most(S, ring, ulysses, &most), ULYSSES_OK);
                assert_true(most >= largest);
                free(seen);
            }
    struct ulysses_shard shard;
    int64_t most;
    refused(ulysses_layout(-1, 1, 1, 0, &shard), ULYSSES_ERR_INVALID, "-1 tokens");
    refused(ulysses_layout(5, 0, 1, 0, &shard), ULYSSES_ERR_INVALID, "ring size 0");
    refused(ulysses_layout(5, 2, 2, 4, &shard), ULYSSES_ERR_INVALID, "rank 4 of 4");
    refused(ulysses_layout(5, 2, 2, 3, NULL), ULYSSES_ERR_INVALID, "out is NULL");
    refused(ulysses_layout_most(5, 1, -1, &most), ULYSSES_ERR_INVALID, "ulysses size -1");
    refused(ulysses_layout_most(5, 1, 1, NULL), ULYSSES_ERR_INVALID, "out is NULL");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),        cmocka_unit_test(test_two_handles),
        cmocka_unit_test(test_bytes),         cmocka_unit_test(test_options_refused),
        cmocka_unit_test(test_calls_refused), cmocka_unit_test(test_ranks_differ),
        cmocka_unit_test(test_no_memory),     cmocka_unit_test(test_comm),
        cmocka_unit_test(test_layout),        cmocka_unit_test(test_no_handle),
        cmocka_unit_test(test_many_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
