/* SPDX-License-Identifier: MIT
 *
 * The collectives, built once on the table's primitives. Sums are made here, in rank order, never by a library: the same
 * layout then gives the same bits on every rank and in every run.
 */
#include "comm/comm_impl.h"

#include <math.h>
#include <string.h>

/* ------------------------------------------------------------------ small host data */

enum uly_status uly_comm_gather_by_exchange(struct uly_comm *comm, const char *what,
                                            const void *mine, int64_t bytes, void *all)
{
    int size = comm->size;
    int64_t *zero = comm->host_index, *offset = zero + size, *count = offset + size;
    /* windows on the caller's memory, for the length of this call; the sent one is only read */
    struct uly_arena from = {.base = (unsigned char *)mine}, to = {.base = all};
    struct uly_slot *slot;
    for (int r = 0; r < size; r++) {
        zero[r] = 0;
        offset[r] = r * bytes;
        count[r] = bytes;
    }
    struct uly_part part = {.send = {&from, 0, ULY_DTYPE_U8, 1, {bytes, 1, 1}, 1},
                            .recv = {&to, 0, ULY_DTYPE_U8, 1, {size * bytes, 1, 1}, 1},
                            .send_offset = zero,
                            .send_count = count,
                            .recv_offset = offset,
                            .recv_count = count};
    ULY_TRY(uly_comm_start_raw(comm, true, what, &part, 1, &slot));
    return uly_comm_wait_raw(comm, slot);
}

enum uly_status uly_all_gather_host(struct uly_comm *comm, const void *mine, int64_t bytes,
                                    void *all)
{
    static const char *const names[] = {"the number of bytes"};
    ULY_FAIL_IF(bytes < 0 || bytes > ULY_HOST_DATA, ULY_ERR_INVALID,
                "small host data of %lld bytes, at most %d are taken", (long long)bytes,
                ULY_HOST_DATA);
    ULY_TRY(uly_comm_check_call(comm, "all_gather_host", names, &bytes, 1, NULL, 0));
    return bytes == 0 ? ULY_OK : comm->ops.gather_host(comm, "all_gather_host", mine, bytes, all);
}

enum uly_status uly_barrier(struct uly_comm *comm)
{
    char token = 0;
    ULY_TRY(uly_comm_check_call(comm, "barrier", NULL, NULL, 0, NULL, 0));
    return comm->ops.gather_host(comm, "barrier", &token, 1, comm->gathered);
}

static enum uly_status gather_scalars(struct uly_comm *comm, const char *what, const void *x, int n,
                                      enum uly_reduce_op op)
{
    static const char *const names[] = {"the number of values", "the operation"};
    int64_t values[] = {n, (int64_t)op};
    ULY_FAIL_IF(n < 0 || n > ULY_SMALL_BYTES / 8, ULY_ERR_INVALID,
                "%s of %d values, at most %d are taken", what, n, ULY_SMALL_BYTES / 8);
    ULY_TRY(uly_comm_check_call(comm, what, names, values, 2, NULL, 0));
    return n == 0 ? ULY_OK : comm->ops.gather_host(comm, what, x, 8 * (int64_t)n, comm->gathered);
}

/* A NaN on any rank is the result: a maximum must not hide it. */
static double combine_f64(double a, double b, enum uly_reduce_op op)
{
    if (op == ULY_REDUCE_SUM)
        return a + b;
    if (isnan(a) || isnan(b))
        return isnan(a) ? a : b;
    if (op == ULY_REDUCE_MAX)
        return b > a ? b : a;
    return b < a ? b : a;
}

static int64_t combine_i64(int64_t a, int64_t b, enum uly_reduce_op op)
{
    if (op == ULY_REDUCE_SUM)
        return a + b;
    if (op == ULY_REDUCE_MAX)
        return b > a ? b : a;
    return b < a ? b : a;
}

enum uly_status uly_all_reduce_f64(struct uly_comm *comm, double *x, int n, enum uly_reduce_op op)
{
    ULY_TRY(gather_scalars(comm, "all_reduce_f64", x, n, op));
    const double *all = (const double *)(const void *)comm->gathered;
    for (int i = 0; i < n; i++) {
        x[i] = all[i];
        for (int r = 1; r < comm->size; r++)
            x[i] = combine_f64(x[i], all[r * n + i], op);
    }
    return ULY_OK;
}

enum uly_status uly_all_reduce_i64(struct uly_comm *comm, int64_t *x, int n, enum uly_reduce_op op)
{
    ULY_TRY(gather_scalars(comm, "all_reduce_i64", x, n, op));
    const int64_t *all = (const int64_t *)(const void *)comm->gathered;
    for (int i = 0; i < n; i++) {
        x[i] = all[i];
        for (int r = 1; r < comm->size; r++)
            x[i] = combine_i64(x[i], all[r * n + i], op);
    }
    return ULY_OK;
}

/* ------------------------------------------------------------------ tensors */

/* FNV-1a over 64-bit words: enough to tell two lists of counts apart. */
static int64_t fingerprint(const int64_t *x, int n)
{
    uint64_t h = UINT64_C(14695981039346656037);
    for (int i = 0; i < n; i++)
        h = (h ^ (uint64_t)x[i]) * UINT64_C(1099511628211);
    return (int64_t)(h >> 1);
}

enum uly_status uly_all_gather(struct uly_comm *comm, struct uly_tensor send,
                               struct uly_tensor recv, const int64_t *counts)
{
    static const char *const names[] = {"the fingerprint of the counts", "the element type"};
    int size = comm->size;
    int64_t *zero = comm->index, *mine = zero + size, *offset = mine + size, total = 0;
    for (int r = 0; r < size; r++) {
        ULY_FAIL_IF(counts[r] < 0 || __builtin_add_overflow(total, counts[r], &total),
                    ULY_ERR_INVALID, "all_gather: rank %d has %lld elements", r,
                    (long long)counts[r]);
        zero[r] = 0;
        mine[r] = counts[comm->rank];
        offset[r] = total - counts[r];
    }
    ULY_FAIL_IF(counts[comm->rank] > 0 && counts[comm->rank] > uly_tensor_count(&send),
                ULY_ERR_INVALID, "all_gather: %lld elements of a tensor of %lld",
                (long long)counts[comm->rank], (long long)uly_tensor_count(&send));
    ULY_FAIL_IF(total > 0 && total > uly_tensor_count(&recv), ULY_ERR_INVALID,
                "all_gather: %lld elements into a tensor of %lld", (long long)total,
                (long long)uly_tensor_count(&recv));
    int64_t values[] = {fingerprint(counts, size), (int64_t)recv.dtype};
    ULY_TRY(uly_comm_check_call(comm, "all_gather", names, values, 2, NULL, 0));
    struct uly_part part = {send, recv, zero, mine, offset, counts};
    ULY_TRY(uly_comm_check_part(comm, "all_gather", 0, &part));
    return uly_comm_exchange_raw(comm, "all_gather", &part);
}

/* The r-th of `size` near-equal slices of n elements starts here. */
static int64_t slice_start(int64_t n, int size, int r)
{
    return n / size * r + (n % size < r ? n % size : r);
}

/* Sums n elements of t from `first` on, n at most what `size` slots of m elements hold: every rank receives its own slice
 * from all, sums it in rank order into slot 0, and sends the sum to all. */
static enum uly_status reduce_piece(struct uly_comm *comm, struct uly_backend *be,
                                    struct uly_tensor t, struct uly_tensor buffer, int64_t m,
                                    int64_t first, int64_t n)
{
    int size = comm->size;
    int64_t mine = slice_start(n, size, comm->rank + 1) - slice_start(n, size, comm->rank);
    int64_t *start = comm->index, *count = start + size, *slot = count + size, *own = slot + size;
    for (int r = 0; r < size; r++) {
        start[r] = first + slice_start(n, size, r);
        count[r] = slice_start(n, size, r + 1) - slice_start(n, size, r);
        slot[r] = r * m;
        own[r] = mine;
    }
    struct uly_part scatter = {t, buffer, start, count, slot, own};
    ULY_TRY(uly_comm_exchange_raw(comm, "all_reduce, scatter", &scatter));
    struct uly_tensor sum = uly_tensor_rows(buffer, 0, mine);
    for (int r = 1; r < size && mine > 0; r++)
        ULY_TRY(uly_add(be, uly_tensor_rows(buffer, r * m, mine), sum));
    for (int r = 0; r < size; r++)
        slot[r] = 0;
    struct uly_part gather = {buffer, t, slot, own, start, count};
    return uly_comm_exchange_raw(comm, "all_reduce, gather", &gather);
}

enum uly_status uly_all_reduce(struct uly_comm *comm, struct uly_backend *be, struct uly_tensor t,
                               struct uly_tensor buffer)
{
    static const char *const names[] = {"the number of elements", "the room of a slice",
                                        "the element type"};
    int64_t n = uly_tensor_count(&t), m = uly_tensor_count(&buffer) / comm->size;
    ULY_FAIL_IF(t.dtype != buffer.dtype, ULY_ERR_INVALID, "all_reduce of %s through a buffer of %s",
                uly_dtype_name(t.dtype), uly_dtype_name(buffer.dtype));
    ULY_FAIL_IF(!uly_tensor_is_dense(&t) || !uly_tensor_is_dense(&buffer), ULY_ERR_INVALID,
                "all_reduce needs dense tensors");
    ULY_FAIL_IF(m < 1, ULY_ERR_INVALID,
                "all_reduce over %d ranks through a buffer of %lld elements", comm->size,
                (long long)uly_tensor_count(&buffer));
    int64_t values[] = {n, m, (int64_t)t.dtype};
    ULY_TRY(uly_comm_check_call(comm, "all_reduce", names, values, 3, NULL, 0));
    if (comm->size == 1)
        return ULY_OK;
    ULY_FAIL_IF(n > 0 && uly_tensor_overlap(&t, &buffer), ULY_ERR_INVALID,
                "all_reduce: the buffer overlaps the tensor");
    struct uly_tensor room = uly_tensor_reshape(buffer, 1, uly_tensor_count(&buffer), 1, 1);
    int64_t most = m * comm->size;
    for (int64_t first = 0; first < n; first += most)
        ULY_TRY(reduce_piece(comm, be, t, room, m, first, n - first < most ? n - first : most));
    return ULY_OK;
}
