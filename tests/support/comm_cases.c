/* SPDX-License-Identifier: MIT */
#include "comm_cases.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "comm/comm_impl.h"

/* ------------------------------------------------------------------ exchange */

static enum uly_status content(struct uly_comm *comm, void *arg)
{
    (void)arg;
    static const int64_t most[] = {1, 2, 17, 1000, 40000};
    for (int i = 0; i < 5; i++)
        for (int parts = 1; parts <= ROOM_PARTS; parts++) {
            struct room room;
            ULY_TRY(room_open(&room, comm, (uint64_t)(100 + i), parts, most[i]));
            ULY_TRY(uly_exchange(comm, "content", room.parts, parts));
            ULY_TRY(room_check(&room));
            room_close(&room);
        }
    return ULY_OK;
}

/* No part, and parts of nothing without a tensor. */
static enum uly_status nothing(struct uly_comm *comm, void *arg)
{
    (void)arg;
    int64_t zero[ROOM_RANKS] = {0};
    struct uly_part part = {
        .send_offset = zero, .send_count = zero, .recv_offset = zero, .recv_count = zero};
    ULY_TRY(uly_exchange(comm, "no part", NULL, 0));
    return uly_exchange(comm, "empty part", &part, 1);
}

/* Several in flight, finished in an order that differs between ranks. */
static enum uly_status in_flight(struct uly_comm *comm, void *arg)
{
    (void)arg;
    struct room room[3];
    struct uly_request request[3];
    ULY_TRY(uly_comm_reserve(comm, 2, 3));
    for (int turn = 0; turn < 6; turn++) {
        for (int i = 0; i < 3; i++) {
            ULY_TRY(room_open(&room[i], comm, (uint64_t)(10 * turn + i), 2, 3000));
            ULY_TRY(uly_exchange_start(comm, "one of three", room[i].parts, 2, &request[i]));
        }
        for (int k = 0; k < 3; k++) {
            int step = uly_comm_rank(comm) % 2 ? 2 : 1;
            int i = (turn + step * k) % 3;
            uly_comm_poke(comm);
            ULY_TRY(uly_exchange_wait(comm, &request[i]));
            ULY_TRY(room_check(&room[i]));
            room_close(&room[i]);
        }
    }
    return uly_comm_reserve(comm, 4, 2);
}

/* Rounds of random size, nothing allocated by the communicator; ranks drift apart by up to two exchanges. */
static enum uly_status stress(struct uly_comm *comm, void *arg)
{
    (void)arg;
    struct room room[2];
    struct uly_request request[2];
    for (int i = 0; i < 1000; i++) {
        int k = i % 2;
        int64_t most = 1 + (int64_t)uly_random_below(7, 0, (uint64_t)i, i % 50 ? 60 : 5000);
        if (i >= 2) {
            ULY_TRY(uly_exchange_wait(comm, &request[k]));
            ULY_TRY(room_check(&room[k]));
            room_close(&room[k]);
        }
        ULY_TRY(room_open(&room[k], comm, (uint64_t)(1000 + i), 1 + i % ROOM_PARTS, most));
        uly_alloc_guard_begin();
        enum uly_status status =
            uly_exchange_start(comm, "stress", room[k].parts, room[k].n_parts, &request[k]);
        uly_alloc_guard_end();
        ULY_TRY(status);
    }
    for (int k = 0; k < 2; k++) {
        ULY_TRY(uly_exchange_wait(comm, &request[k]));
        ULY_TRY(room_check(&room[k]));
        room_close(&room[k]);
    }
    return ULY_OK;
}

static enum uly_status counters(struct uly_comm *comm, void *arg)
{
    (void)arg;
    struct room room;
    int64_t bytes = 0;
    ULY_TRY(room_open(&room, comm, 5, ROOM_PARTS, 500));
    uly_comm_reset_counters(comm);
    ULY_TRY(uly_exchange(comm, "counted", room.parts, ROOM_PARTS));
    ULY_TRY(uly_exchange(comm, "counted", room.parts, ROOM_PARTS));
    ULY_TRY(uly_barrier(comm)); /* small host data does not count as bytes */
    for (int p = 0; p < ROOM_PARTS; p++)
        for (int r = 0; r < room.size; r++)
            if (r != room.rank)
                bytes += 2 * room.index[p][1][r] * uly_dtype_bytes(room.parts[p].send.dtype);
    struct uly_comm_counters c = uly_comm_counters(comm);
    CHECK(c.bytes == bytes && c.exchanges == 2 && c.seconds > 0,
          "%lld bytes in %lld exchanges, not %lld in 2", (long long)c.bytes, (long long)c.exchanges,
          (long long)bytes);
    uly_comm_reset_counters(comm);
    c = uly_comm_counters(comm);
    CHECK(c.bytes == 0 && c.exchanges == 0 && c.seconds <= 0, "the counters were not reset");
    room_close(&room);
    return ULY_OK;
}

/* ------------------------------------------------------------------ wrong arguments; every rank makes the same mistake */

static enum uly_status refused(struct uly_comm *comm, const struct uly_part *part,
                               enum uly_status expected, const char *words)
{
    struct uly_request request;
    enum uly_status status = uly_exchange_start(comm, "refused", part, 1, &request);
    CHECK(status == expected && strstr(uly_error_message(), words), "status %d, not %d: %s", status,
          expected, uly_error_message());
    return ULY_OK;
}

static enum uly_status arguments(struct uly_comm *comm, void *arg)
{
    (void)arg;
    struct room room;
    ULY_TRY(room_open(&room, comm, 3, 1, 50));
    int last = room.size - 1;
    int64_t *count = room.index[0][1], *from = room.index[0][0], room_left = count[last];
    struct uly_part part = room.parts[0];
    count[last] = -1;
    ULY_TRY(refused(comm, &part, ULY_ERR_INVALID, "-1 elements"));
    count[last] = room_left + 4;
    ULY_TRY(refused(comm, &part, ULY_ERR_INVALID, "part 0, sent"));
    count[last] = INT64_MAX;
    ULY_TRY(refused(comm, &part, ULY_ERR_INVALID, "part 0, sent"));
    count[last] = 1;
    from[last] = -1;
    ULY_TRY(refused(comm, &part, ULY_ERR_INVALID, "from -1"));
    from[last] = 0;
    for (int r = 0; r < room.size; r++)
        room.index[0][1][r] = room.index[0][3][r] = 1;
    part.recv.dtype = ULY_DTYPE_F64;
    ULY_TRY(refused(comm, &part, ULY_ERR_INVALID, "int64 is sent and float64 received"));
    part.recv = part.send;
    part.recv_offset = part.send_offset;
    ULY_TRY(refused(comm, &part, ULY_ERR_INVALID, "overlap"));
    part = room.parts[0];
    room.index[0][1][room.rank] = 0;
    ULY_TRY(refused(comm, &part, ULY_ERR_INVALID, "sends itself 0"));
    room_close(&room);
    ULY_TRY(uly_barrier(comm)); /* still usable */

    struct uly_request a, b, c;
    enum uly_status status;
    ULY_TRY(uly_comm_reserve(comm, 1, 2));
    ULY_TRY(uly_exchange_start(comm, "a", NULL, 0, &a));
    ULY_TRY(uly_exchange_start(comm, "b", NULL, 0, &b));
    status = uly_exchange_start(comm, "c", NULL, 0, &c);
    CHECK(status == ULY_ERR_INTERNAL && strstr(uly_error_message(), "in flight"), "%s",
          uly_error_message());
    CHECK(uly_comm_reserve(comm, 4, 2) == ULY_ERR_INTERNAL, "room was made while in flight");
    ULY_TRY(uly_exchange_wait(comm, &b));
    ULY_TRY(uly_exchange_wait(comm, &a));
    CHECK(uly_exchange_wait(comm, &a) == ULY_ERR_INTERNAL, "waited twice");
    CHECK(uly_comm_reserve(comm, 0, 1) == ULY_ERR_INVALID, "no parts");
    return uly_comm_reserve(comm, 4, 2);
}

/* ------------------------------------------------------------------ small host data */

static enum uly_status host_data(struct uly_comm *comm, void *arg)
{
    (void)arg;
    static const int64_t sizes[] = {1, 7, 512, 4095, 4096};
    int rank = uly_comm_rank(comm), size = uly_comm_size(comm);
    unsigned char mine[4096], *all = NULL;
    ULY_TRY(ULY_ALLOC(&all, 4096 * (int64_t)size));
    for (int i = 0; i < 5; i++) {
        for (int64_t k = 0; k < sizes[i]; k++)
            mine[k] = (unsigned char)(rank * 7 + k * 3 + i);
        memset(all, 0xff, 4096 * (size_t)size);
        ULY_TRY(uly_all_gather_host(comm, mine, sizes[i], all));
        for (int r = 0; r < size; r++)
            for (int64_t k = 0; k < sizes[i]; k++)
                CHECK(all[r * sizes[i] + k] == (unsigned char)(r * 7 + k * 3 + i),
                      "byte %lld of rank %d is wrong", (long long)k, r);
    }
    uly_free(all);
    ULY_TRY(uly_all_gather_host(comm, mine, 0, NULL));
    CHECK(uly_all_gather_host(comm, mine, 4097, mine) == ULY_ERR_INVALID, "4097 bytes were taken");
    return uly_barrier(comm);
}

static enum uly_status scalars(struct uly_comm *comm, void *arg)
{
    (void)arg;
    int rank = uly_comm_rank(comm), size = uly_comm_size(comm);
    double sum = 0, x[64];
    for (int r = 0; r < size; r++) /* a sum that tells one order from another */
        sum = r == 0 ? 1e16 : sum + (r % 2 ? 1.0 : -1e16 / (r + 1));
    x[0] = rank == 0 ? 1e16 : rank % 2 ? 1.0 : -1e16 / (rank + 1);
    for (int i = 1; i < 64; i++)
        x[i] = rank + i;
    ULY_TRY(uly_all_reduce_f64(comm, x, 64, ULY_REDUCE_SUM));
    CHECK(memcmp(&sum, &x[0], sizeof sum) == 0, "sum %.17g, not %.17g", x[0], sum);
    CHECK(fabs(x[63] - (size * (size - 1) / 2 + 63.0 * size)) < 0.5, "x[63] is %g", x[63]);
    double extremes[2] = {rank - 3.5, -rank};
    ULY_TRY(uly_all_reduce_f64(comm, extremes, 2, ULY_REDUCE_MAX));
    CHECK(fabs(extremes[0] - (size - 4.5)) < 1e-12 && fabs(extremes[1]) < 1e-12, "maxima %g %g",
          extremes[0], extremes[1]);
    double low = rank == size - 1 ? -7.0 : rank;
    ULY_TRY(uly_all_reduce_f64(comm, &low, 1, ULY_REDUCE_MIN));
    CHECK(fabs(low + 7.0) < 1e-12, "minimum %g", low);
    double hole = rank == size / 2 ? (double)NAN : 1.0;
    ULY_TRY(uly_all_reduce_f64(comm, &hole, 1, ULY_REDUCE_MAX));
    CHECK(isnan(hole), "a maximum hid a NaN: %g", hole);
    int64_t n[3] = {INT64_C(1) << 53, rank, -rank};
    n[0] += rank; /* not a double */
    ULY_TRY(uly_all_reduce_i64(comm, n, 3, ULY_REDUCE_MAX));
    CHECK(n[0] == (INT64_C(1) << 53) + size - 1 && n[1] == size - 1 && n[2] == 0, "integer maxima");
    n[0] = (INT64_C(1) << 53) + 1;
    ULY_TRY(uly_all_reduce_i64(comm, n, 1, ULY_REDUCE_SUM));
    CHECK(n[0] == ((INT64_C(1) << 53) + 1) * size, "integer sum");
    n[0] = rank - 5;
    ULY_TRY(uly_all_reduce_i64(comm, n, 1, ULY_REDUCE_MIN));
    CHECK(n[0] == -5, "integer minimum");
    CHECK(uly_all_reduce_f64(comm, x, 65, ULY_REDUCE_SUM) == ULY_ERR_INVALID, "65 were taken");
    return uly_all_reduce_f64(comm, x, 0, ULY_REDUCE_SUM);
}

/* ------------------------------------------------------------------ agreement */

static enum uly_status fail_with(int rank)
{
    ULY_FAIL(ULY_ERR_NO_SPACE, "disk of rank %d is full", rank);
}

static enum uly_status agree(struct uly_comm *comm, void *arg)
{
    (void)arg;
    int rank = uly_comm_rank(comm), size = uly_comm_size(comm), first = size / 2;
    ULY_TRY(uly_comm_agree_status(comm, ULY_OK));
    bool bad = rank >= first; /* all from the middle on fail; the lowest is the one to be told */
    char words[64];
    snprintf(words, sizeof words, "disk of rank %d is full", bad ? rank : first);
    enum uly_status status = uly_comm_agree_status(comm, bad ? fail_with(rank) : ULY_OK);
    CHECK(status == (bad ? ULY_ERR_NO_SPACE : ULY_ERR_PEER), "status %d", status);
    CHECK(strstr(uly_error_message(), words), "message %s", uly_error_message());
    snprintf(words, sizeof words, "rank %d failed", first);
    CHECK(bad || strstr(uly_error_message(), words), "message %s", uly_error_message());
    ULY_TRY(uly_comm_agree_status(comm, ULY_OK));
    return uly_barrier(comm);
}

static enum uly_status disagree(enum uly_status status, const char *a, const char *b)
{
    CHECK(status == ULY_ERR_COMM && strstr(uly_error_message(), a) &&
              strstr(uly_error_message(), b),
          "status %d: %s", status, uly_error_message());
    return ULY_OK;
}

/* A difference between ranks is an error on every rank, names both sides, and leaves the communicator usable. */
static enum uly_status differences(struct uly_comm *comm)
{
    int rank = uly_comm_rank(comm), last = uly_comm_size(comm) - 1;
    struct room room;
    double x = 0;
    ULY_TRY(uly_comm_check_same(comm, "heads", 8));
    ULY_TRY(disagree(uly_comm_check_same(comm, "heads", rank == last ? 7 : 8), "heads", "7 on"));
    if (rank == last)
        ULY_TRY(disagree(uly_barrier(comm), "barrier", "all_reduce_f64"));
    else
        ULY_TRY(
            disagree(uly_all_reduce_f64(comm, &x, 1, ULY_REDUCE_SUM), "barrier", "all_reduce_f64"));
    ULY_TRY(disagree(uly_all_reduce_f64(comm, &x, 1, rank ? ULY_REDUCE_MAX : ULY_REDUCE_MIN),
                     "all_reduce_f64", "the operation"));
    ULY_TRY(room_open(&room, comm, 9, 1, 40));
    for (int i = 0; i < 2; i++)
        for (int r = 0; r <= last; r++)
            room.index[0][1 + 2 * i][r] = 0;
    room.index[0][1][last] = rank == 0 ? 1 : 0; /* the last rank does not expect it */
    ULY_TRY(disagree(uly_exchange(comm, "blocks", room.parts, 1), "blocks, part 0",
                     "rank 0 sends 1 elements"));
    room.index[0][1][last] = 0;
    room.parts[0].send.dtype = room.parts[0].recv.dtype = rank ? ULY_DTYPE_I64 : ULY_DTYPE_F64;
    ULY_TRY(disagree(uly_exchange(comm, "blocks", room.parts, 1), "float64", "int64"));
    ULY_TRY(disagree(uly_exchange(comm, "blocks", room.parts, rank ? 1 : 0), "blocks", "parts"));
    room_close(&room);
    return uly_barrier(comm);
}

static enum uly_status check_arguments(struct uly_comm *comm, void *arg)
{
    (void)arg;
    bool was = comm->check;
    ULY_TRY(uly_comm_set_check(comm, false));
    ULY_TRY(uly_comm_check_same(comm, "unchecked", uly_comm_rank(comm)));
    ULY_TRY(uly_comm_set_check(comm, true));
    if (uly_comm_size(comm) > 1)
        ULY_TRY(differences(comm));
    return uly_comm_set_check(comm, was);
}

/* ------------------------------------------------------------------ machines, split */

static enum uly_status hosts(struct uly_comm *comm, void *arg)
{
    (void)arg;
    for (int r = 0; r < uly_comm_size(comm); r++) { /* the tests run on one machine */
        CHECK(uly_comm_hosts(comm)[r] == 0, "rank %d is on machine %d", r, uly_comm_hosts(comm)[r]);
        CHECK(uly_comm_host_name(comm, r)[0], "rank %d's machine has no name", r);
    }
    return ULY_OK;
}

/* The grid: consecutive ranks share a sequence, equal places of the groups are replicas. */
static enum uly_status split_grid(struct uly_comm *comm, void *arg)
{
    (void)arg;
    int rank = uly_comm_rank(comm), size = uly_comm_size(comm), width = size > 1 ? 2 : 1;
    struct uly_comm *sp, *dp;
    ULY_TRY(uly_comm_split(comm, rank / width, rank, &sp));
    ULY_TRY(uly_comm_split(comm, rank % width, rank, &dp));
    CHECK(uly_comm_rank(sp) == rank % width && uly_comm_rank(dp) == rank / width, "ranks %d %d",
          uly_comm_rank(sp), uly_comm_rank(dp));
    CHECK(uly_comm_size(sp) == (size - rank / width * width < width ? 1 : width), "size %d",
          uly_comm_size(sp));
    int64_t sum = rank, row = rank / width * width;
    ULY_TRY(uly_all_reduce_i64(sp, &sum, 1, ULY_REDUCE_SUM));
    CHECK(sum == (uly_comm_size(sp) == 2 ? 2 * row + 1 : row), "sum %lld", (long long)sum);
    ULY_TRY(content(sp, NULL));
    ULY_TRY(content(dp, NULL));
    ULY_TRY(hosts(dp, NULL));
    ULY_TRY(agree(sp, NULL)); /* a failure agreed in one group is not the other's business */
    uly_comm_destroy(dp);
    ULY_TRY(check_arguments(sp, NULL));
    uly_comm_destroy(sp);
    return uly_barrier(comm);
}

/* key turns the order round; a group of a group; one exchange in flight above while others run below, finished by some
 * ranks first and by others last. */
static enum uly_status split_order(struct uly_comm *comm, void *arg)
{
    (void)arg;
    int rank = uly_comm_rank(comm), size = uly_comm_size(comm);
    struct uly_comm *turned, *inner;
    struct room room;
    struct uly_request request;
    ULY_TRY(uly_comm_split(comm, 5, -rank, &turned));
    CHECK(uly_comm_size(turned) == size && uly_comm_rank(turned) == size - 1 - rank,
          "rank %d of %d", uly_comm_rank(turned), uly_comm_size(turned));
    ULY_TRY(uly_comm_split(turned, uly_comm_rank(turned) % 3, 0, &inner));
    CHECK(uly_comm_rank(inner) == uly_comm_rank(turned) / 3, "equal keys keep the order");
    ULY_TRY(room_open(&room, comm, 77, 2, 30000));
    ULY_TRY(uly_exchange_start(comm, "above", room.parts, 2, &request));
    if (rank % 2 == 0)
        ULY_TRY(uly_exchange_wait(comm, &request));
    ULY_TRY(content(turned, NULL));
    if (rank % 2 == 1)
        ULY_TRY(uly_exchange_wait(comm, &request));
    ULY_TRY(room_check(&room));
    room_close(&room);
    ULY_TRY(content(inner, NULL));
    uly_comm_destroy(inner);
    uly_comm_destroy(turned);
    struct uly_comm *none = NULL;
    enum uly_status status = uly_comm_split(comm, rank == 0 ? -1 : 1, 0, &none);
    CHECK(status == (rank == 0 ? ULY_ERR_INVALID : ULY_ERR_PEER) && !none, "a color of -1: %s",
          uly_error_message());
    return uly_barrier(comm);
}

const struct comm_case comm_cases[] = {
    {"content", content},
    {"nothing", nothing},
    {"in flight", in_flight},
    {"stress", stress},
    {"counters", counters},
    {"arguments", arguments},
    {"host data", host_data},
    {"scalars", scalars},
    {"agree", agree},
    {"check of arguments", check_arguments},
    {"hosts", hosts},
    {"split, grid", split_grid},
    {"split, order", split_order},
    {NULL, NULL},
};
