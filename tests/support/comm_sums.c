/* SPDX-License-Identifier: MIT
 *
 * Collectives on tensors: sums compared bit by bit with the same sum made in rank order, gathers by content.
 */
#include "comm_cases.h"

#include <string.h>

#include "base/mem.h"
#include "base/random.h"

struct sums {
    struct uly_backend *be;
    struct uly_arena arena;
    struct uly_tensor t, buffer;
};

static enum uly_status sums_open(struct sums *s, enum uly_dtype dtype, int64_t n, int64_t room)
{
    ULY_TRY(uly_backend_create("cpu:ref", 1, &s->be));
    uly_arena_init(&s->arena, "sums", &uly_host_space);
    ULY_TRY(uly_tensor_new(&s->arena, "t", dtype, 2, n, n ? 1 : 0, 1, &s->t));
    ULY_TRY(uly_tensor_new(&s->arena, "buffer", dtype, 1, room, 1, 1, &s->buffer));
    ULY_TRY(uly_arena_reserve(&s->arena));
    memset(s->arena.base, 0xff, (size_t)s->arena.high);
    return ULY_OK;
}

static void sums_close(struct sums *s)
{
    uly_arena_clear(&s->arena);
    uly_backend_destroy(s->be);
}

/* Values of very different size, so that another order of the sum has other bits. */
static double value_of(int rank, int64_t i)
{
    double x = uly_random_normal(11, (uint64_t)rank, (uint64_t)i);
    return (i + rank) % 3 == 0 ? x * 1e6 : x;
}

static enum uly_status check_f32(const struct sums *s, int size, int64_t n)
{
    const float *got = uly_tensor_address(s->t);
    for (int64_t i = 0; i < n; i++) {
        float sum = (float)value_of(0, i);
        for (int r = 1; r < size; r++)
            sum += (float)value_of(r, i);
        CHECK(memcmp(&sum, &got[i], sizeof sum) == 0, "element %lld of %lld: %.9g, not %.9g",
              (long long)i, (long long)n, (double)got[i], (double)sum);
    }
    return ULY_OK;
}

static enum uly_status check_f64(const struct sums *s, int size, int64_t n)
{
    const double *got = uly_tensor_address(s->t);
    for (int64_t i = 0; i < n; i++) {
        double sum = value_of(0, i);
        for (int r = 1; r < size; r++)
            sum += value_of(r, i);
        CHECK(memcmp(&sum, &got[i], sizeof sum) == 0, "element %lld of %lld: %.17g, not %.17g",
              (long long)i, (long long)n, got[i], sum);
    }
    return ULY_OK;
}

static enum uly_status reduce_once(struct uly_comm *comm, enum uly_dtype dtype, int64_t n,
                                   int64_t room)
{
    struct sums s;
    int rank = uly_comm_rank(comm), size = uly_comm_size(comm);
    ULY_TRY(sums_open(&s, dtype, n, room));
    float *f = uly_tensor_address(s.t);
    double *d = uly_tensor_address(s.t);
    for (int64_t i = 0; i < n; i++) {
        if (dtype == ULY_DTYPE_F32)
            f[i] = (float)value_of(rank, i);
        else
            d[i] = value_of(rank, i);
    }
    uly_alloc_guard_begin();
    enum uly_status status = uly_all_reduce(comm, s.be, s.t, s.buffer);
    uly_alloc_guard_end();
    ULY_TRY(status);
    ULY_TRY(dtype == ULY_DTYPE_F32 ? check_f32(&s, size, n) : check_f64(&s, size, n));
    sums_close(&s);
    return ULY_OK;
}

/* Buffers of one element a rank, of odd sizes, and larger than the tensor. */
static enum uly_status all_reduce(struct uly_comm *comm, void *arg)
{
    (void)arg;
    static const int64_t n[] = {0, 1, 2, 7, 64, 1009};
    int size = uly_comm_size(comm);
    for (int i = 0; i < 6; i++) {
        if (n[i] <= 64)
            ULY_TRY(reduce_once(comm, ULY_DTYPE_F32, n[i], size));
        ULY_TRY(reduce_once(comm, ULY_DTYPE_F32, n[i], 100 + size));
        ULY_TRY(reduce_once(comm, ULY_DTYPE_F32, n[i], 5000));
        ULY_TRY(reduce_once(comm, ULY_DTYPE_F64, n[i], 333));
    }
    return ULY_OK;
}

static enum uly_status all_reduce_refused(struct uly_comm *comm, void *arg)
{
    (void)arg;
    struct sums s;
    int size = uly_comm_size(comm);
    ULY_TRY(sums_open(&s, ULY_DTYPE_F32, 4, size));
    struct uly_tensor none = uly_tensor_rows(s.buffer, 0, size - 1), other = s.buffer;
    other.dtype = ULY_DTYPE_F64;
    CHECK(uly_all_reduce(comm, s.be, s.t, none) == ULY_ERR_INVALID, "no room for a slice");
    CHECK(uly_all_reduce(comm, s.be, s.t, other) == ULY_ERR_INVALID, "another type");
    if (size > 1 && size <= 4)
        CHECK(uly_all_reduce(comm, s.be, s.t, s.t) == ULY_ERR_INVALID, "its own buffer");
    sums_close(&s);
    return uly_barrier(comm);
}

static int64_t gather_count(int rank, int turn)
{
    return (rank + turn) % 3 == 1
               ? 0
               : 1 + (int64_t)uly_random_below(3, (uint64_t)turn, (uint64_t)rank, 900);
}

/* Uneven counts, zeros among them; elements behind the gathered ones stay as they were. */
static enum uly_status all_gather(struct uly_comm *comm, void *arg)
{
    (void)arg;
    int rank = uly_comm_rank(comm), size = uly_comm_size(comm);
    for (int turn = 0; turn < 4; turn++) {
        struct uly_arena arena;
        struct uly_tensor send, recv;
        int64_t counts[ROOM_RANKS], total = 0;
        for (int r = 0; r < size; r++)
            total += counts[r] = gather_count(r, turn);
        uly_arena_init(&arena, "gather", &uly_host_space);
        ULY_TRY(uly_tensor_new(&arena, "send", ULY_DTYPE_I32, 1, counts[rank], 1, 1, &send));
        ULY_TRY(uly_tensor_new(&arena, "recv", ULY_DTYPE_I32, 1, total + 5, 1, 1, &recv));
        ULY_TRY(uly_arena_reserve(&arena));
        memset(arena.base, 0xff, (size_t)arena.high);
        int32_t *out = uly_tensor_address(send), *in = uly_tensor_address(recv);
        for (int64_t i = 0; i < counts[rank]; i++)
            out[i] = (int32_t)(rank * 10000 + i);
        ULY_TRY(uly_all_gather(comm, send, recv, counts));
        int64_t at = 0;
        for (int r = 0; r < size; r++)
            for (int64_t i = 0; i < counts[r]; i++, at++)
                CHECK(in[at] == r * 10000 + i, "element %lld of rank %d is %d", (long long)i, r,
                      in[at]);
        for (; at < total + 5; at++)
            CHECK(in[at] == -1, "element %lld behind the end was written", (long long)at);
        counts[size - 1] = total + 6;
        CHECK(uly_all_gather(comm, send, recv, counts) == ULY_ERR_INVALID, "too many were taken");
        uly_arena_clear(&arena);
    }
    return uly_barrier(comm);
}

const struct comm_case comm_sum_cases[] = {
    {"all_reduce", all_reduce},
    {"all_reduce, refused", all_reduce_refused},
    {"all_gather", all_gather},
    {NULL, NULL},
};
