/* SPDX-License-Identifier: MIT
 *
 * The communicators of one process: the shared cases on one rank and on threads, and what only threads can show: ranks that
 * fail, leave, come too late or run out of memory while others wait.
 *
 * tsan: yes
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "support/comm_cases.h"

static const int sizes[] = {1, 2, 3, 4, 5, 8};

/* ------------------------------------------------------------------ the shared cases */

static void run_cases(const struct comm_case *cases)
{
    for (const struct comm_case *c = cases; c->fn; c++)
        for (int i = 0; i < 6; i++)
            if (uly_comm_run_threads(sizes[i], c->fn, NULL) != ULY_OK)
                fail_msg("%s on %d ranks: %s", c->name, sizes[i], uly_error_message());
}

static void threads(void **state)
{
    (void)state;
    unsetenv("ULY_CHECK");
    run_cases(comm_cases);
    run_cases(comm_sum_cases);
}

static void threads_checked(void **state)
{
    (void)state;
    setenv("ULY_CHECK", "nan,agree", 1);
    run_cases(comm_cases);
    run_cases(comm_sum_cases);
    unsetenv("ULY_CHECK");
}

static void self(void **state)
{
    (void)state;
    struct uly_comm *comm;
    assert_int_equal(uly_comm_self(&comm), ULY_OK);
    assert_int_equal(uly_comm_size(comm), 1);
    for (const struct comm_case *c = comm_cases; c->fn; c++)
        if (c->fn(comm, NULL) != ULY_OK)
            fail_msg("%s: %s", c->name, uly_error_message());
    for (const struct comm_case *c = comm_sum_cases; c->fn; c++)
        if (c->fn(comm, NULL) != ULY_OK)
            fail_msg("%s: %s", c->name, uly_error_message());
    uly_comm_destroy(comm);
    uly_comm_destroy(NULL);
}

/* ------------------------------------------------------------------ a rank fails while the others wait */

enum { FAILING = 2 };

struct scene {
    int how;          /* what the ranks wait in */
    atomic_int peers; /* ranks that were told of the failure, and why */
    atomic_int late;  /* set when the waiting rank has given up */
    enum uly_status seen;
};

static enum uly_status fail_now(void)
{
    ULY_FAIL(ULY_ERR_NO_MEMORY, "12345 bytes cannot be had");
}

/* Waits for what never comes, in one of several ways. */
static enum uly_status wait_in_vain(struct uly_comm *comm, int how)
{
    double x = 1;
    struct uly_comm *sub;
    struct room room;
    enum uly_status status;
    switch (how) {
    case 0:
        return uly_barrier(comm);
    case 1:
        return uly_all_reduce_f64(comm, &x, 1, ULY_REDUCE_SUM);
    case 2:
        return uly_comm_split(comm, 0, 0, &sub);
    default:
        ULY_TRY(room_open(&room, comm, 4, 2, 100));
        status = uly_exchange(comm, "in vain", room.parts, 2);
        room_close(&room);
        return status;
    }
}

static enum uly_status failing_rank(struct uly_comm *comm, void *arg)
{
    struct scene *scene = arg;
    enum uly_status status =
        uly_comm_rank(comm) == FAILING ? fail_now() : wait_in_vain(comm, scene->how);
    if (status == ULY_ERR_PEER && strstr(uly_error_message(), "rank 2 failed: 12345 bytes"))
        atomic_fetch_add(&scene->peers, 1);
    return status;
}

static void failure_spreads(void **state)
{
    (void)state;
    for (int how = 0; how < 4; how++) {
        struct scene scene = {.how = how};
        assert_int_equal(uly_comm_run_threads(4, failing_rank, &scene), ULY_ERR_NO_MEMORY);
        assert_string_equal(uly_error_message(), "12345 bytes cannot be had");
        assert_int_equal(uly_error_status(), ULY_ERR_NO_MEMORY);
        assert_int_equal(atomic_load(&scene.peers), 3);
    }
}

/* Ranks 0 and 3 wait on a group that the failing rank 2 does not belong to, for rank 1, which waits above. */
static enum uly_status failing_outside(struct uly_comm *comm, void *arg)
{
    struct scene *scene = arg;
    struct uly_comm *group;
    int rank = uly_comm_rank(comm);
    ULY_TRY(uly_comm_split(comm, rank == FAILING, 0, &group));
    atomic_fetch_add(&scene->late, 1);
    while (rank == FAILING && atomic_load(&scene->late) < 4) /* the others are past the split */
        sched_yield();
    enum uly_status status = rank == FAILING ? fail_now() : uly_barrier(rank == 1 ? comm : group);
    if (status == ULY_ERR_PEER && strstr(uly_error_message(), "rank 2 failed: 12345 bytes"))
        atomic_fetch_add(&scene->peers, 1);
    uly_comm_destroy(group);
    return status;
}

static void failure_reaches_groups(void **state)
{
    (void)state;
    struct scene scene = {0};
    assert_int_equal(uly_comm_run_threads(4, failing_outside, &scene), ULY_ERR_NO_MEMORY);
    assert_int_equal(atomic_load(&scene.peers), 3);
}

/* A rank that gives up between start and wait frees its tensors after the abort: no peer reads them any more. */
static enum uly_status abort_in_flight(struct uly_comm *comm, void *arg)
{
    struct scene *scene = arg;
    struct room room;
    struct uly_request request;
    ULY_TRY(room_open(&room, comm, (uint64_t)scene->how, 3, 20000));
    enum uly_status status = uly_exchange_start(comm, "given up", room.parts, 3, &request);
    if (status == ULY_OK && uly_comm_rank(comm) == FAILING) {
        status = fail_now();
        uly_comm_abort(comm, 1);
    } else if (status == ULY_OK) {
        status = uly_exchange_wait(comm, &request);
        if (status == ULY_OK)
            status = uly_barrier(comm);
    }
    room_close(&room);
    return status;
}

static void failure_in_flight(void **state)
{
    (void)state;
    for (int i = 0; i < 100; i++) {
        struct scene scene = {.how = i};
        assert_int_equal(uly_comm_run_threads(4, abort_in_flight, &scene), ULY_ERR_NO_MEMORY);
        assert_string_equal(uly_error_message(), "12345 bytes cannot be had");
    }
}

/* All report after an agreement: the cause wins over "another rank failed", whoever comes first. */
static enum uly_status agreed_failure(struct uly_comm *comm, void *arg)
{
    (void)arg;
    return uly_comm_agree_status(comm, uly_comm_rank(comm) == FAILING ? fail_now() : ULY_OK);
}

static void cause_wins(void **state)
{
    (void)state;
    for (int i = 0; i < 30; i++) {
        assert_int_equal(uly_comm_run_threads(4, agreed_failure, NULL), ULY_ERR_NO_MEMORY);
        assert_string_equal(uly_error_message(), "12345 bytes cannot be had");
    }
}

static enum uly_status abort_alone(struct uly_comm *comm, void *arg)
{
    (void)arg;
    if (uly_comm_rank(comm) == 1)
        uly_comm_abort(comm, 3);
    return uly_comm_rank(comm) == 1 ? ULY_OK : uly_barrier(comm);
}

static void abort_without_error(void **state)
{
    (void)state;
    assert_int_equal(uly_comm_run_threads(3, abort_alone, NULL), ULY_ERR_COMM);
    assert_non_null(strstr(uly_error_message(), "exit status 3"));
}

/* ------------------------------------------------------------------ a rank that does not come */

static enum uly_status late_rank(struct uly_comm *comm, void *arg)
{
    struct scene *scene = arg;
    if (uly_comm_rank(comm) != 0) {
        if (uly_comm_rank(comm) == 2) { /* has come, so it is not among those waited for */
            struct room room;
            struct uly_request request;
            ULY_TRY(room_open(&room, comm, 8, 1, 50));
            ULY_TRY(uly_exchange_start(comm, "the blocks", room.parts, 1, &request));
            while (!atomic_load(&scene->late)) {
                uly_comm_poke(comm);
                sched_yield();
            }
            uly_comm_abort(comm, 0); /* takes its buffers back */
            room_close(&room);
            return ULY_OK;
        }
        while (!atomic_load(&scene->late))
            sched_yield();
        return ULY_OK;
    }
    struct room room;
    uly_comm_set_timeout(comm, 1); /* enough for rank 2 to come */
    ULY_TRY(room_open(&room, comm, 8, 1, 50));
    enum uly_status status = uly_exchange(comm, "the blocks", room.parts, 1);
    room_close(&room);
    CHECK(status == ULY_ERR_COMM, "status %d: %s", status, uly_error_message());
    CHECK(strstr(uly_error_message(), "the blocks (collective ") &&
              strstr(uly_error_message(), "waited 1 seconds for ranks 1, 3"),
          "message %s", uly_error_message());
    status = uly_barrier(comm); /* nothing works after it, and the first cause is told again */
    CHECK(status == ULY_ERR_COMM && strstr(uly_error_message(), "for ranks 1, 3"), "message %s",
          uly_error_message());
    scene->seen = status;
    atomic_store(&scene->late, 1);
    return ULY_OK;
}

static void timeout_names_ranks(void **state)
{
    (void)state;
    struct scene scene = {0};
    unsetenv("ULY_CHECK"); /* else the check of arguments is what times out */
    (void)uly_comm_run_threads(4, late_rank, &scene);
    assert_int_equal(scene.seen, ULY_ERR_COMM);
}

static enum uly_status leaver(struct uly_comm *comm, void *arg)
{
    (void)arg;
    ULY_TRY(uly_barrier(comm));
    return uly_comm_rank(comm) == 1 ? ULY_OK : uly_barrier(comm);
}

static void leaving_is_noticed(void **state)
{
    (void)state;
    assert_int_equal(uly_comm_run_threads(3, leaver, NULL), ULY_ERR_COMM);
    assert_non_null(strstr(uly_error_message(), "rank 1 has left"));
}

/* Without the check of arguments, a pair that does not fit still moves nothing out of bounds. */
static enum uly_status misfit(struct uly_comm *comm, void *arg)
{
    struct scene *scene = arg;
    struct room room;
    ULY_TRY(room_open(&room, comm, 6, 1, 50));
    for (int r = 0; r < room.size; r++) {
        room.index[0][1][r] = 1;
        room.index[0][3][r] = r == room.rank || scene->how == 1 ? 1 : 2;
    }
    enum uly_status status =
        uly_exchange(comm, "misfit", room.parts, scene->how == 1 && room.rank ? 0 : 1);
    room_close(&room);
    return status;
}

static void misfits_are_refused(void **state)
{
    (void)state;
    struct scene scene = {.how = 0};
    unsetenv("ULY_CHECK");
    assert_int_equal(uly_comm_run_threads(2, misfit, &scene), ULY_ERR_COMM);
    assert_non_null(strstr(uly_error_message(), "8 bytes"));
    scene.how = 1;
    assert_int_equal(uly_comm_run_threads(2, misfit, &scene), ULY_ERR_COMM);
    assert_non_null(strstr(uly_error_message(), "parts"));
}

/* ------------------------------------------------------------------ memory runs out */

struct shortage {
    long k;
    int rank;
};

static enum uly_status short_split(struct uly_comm *comm, void *arg)
{
    const struct shortage *shortage = arg;
    struct uly_comm *sub = NULL;
    if (uly_comm_rank(comm) == shortage->rank)
        uly_alloc_fail_at(shortage->k);
    enum uly_status status = uly_comm_split(comm, 0, uly_comm_rank(comm), &sub);
    if (status == ULY_OK)
        status = uly_comm_agree_status(comm, uly_comm_reserve(sub, 3, 3));
    uly_alloc_fail_at(0);
    uly_comm_destroy(sub);
    /* whatever failed, it failed everywhere and the communicator above is whole */
    enum uly_status after = uly_barrier(comm);
    return after == ULY_OK || after == ULY_ERR_PEER ? status
                                                    : after; /* PEER: one has gone already */
}

static void memory_runs_out(void **state)
{
    (void)state;
    setenv("ULY_CHECK", "agree", 1);
    for (int rank = 0; rank < 3; rank++) {
        enum uly_status status = ULY_ERR_NO_MEMORY;
        long k = 1;
        for (; status != ULY_OK && k < 100; k++) {
            struct shortage shortage = {k, rank};
            status = uly_comm_run_threads(3, short_split, &shortage);
            if (status != ULY_OK && status != ULY_ERR_NO_MEMORY)
                fail_msg("allocation %ld of rank %d: %s", k, rank, uly_error_message());
        }
        assert_in_range(k, 10, 99);
    }
    unsetenv("ULY_CHECK");
    for (long k = 1; k < 4; k++) { /* the caller's own */
        uly_alloc_fail_at(k);
        assert_int_equal(uly_comm_run_threads(2, leaver, NULL), ULY_ERR_NO_MEMORY);
        uly_alloc_fail_at(0);
    }
    struct uly_comm *comm = NULL;
    enum uly_status status = ULY_ERR_NO_MEMORY;
    for (long k = 1; status != ULY_OK && k < 40; k++) {
        uly_alloc_fail_at(k);
        status = uly_comm_self(&comm);
        uly_alloc_fail_at(0);
        assert_true(status == ULY_OK || (status == ULY_ERR_NO_MEMORY && !comm));
    }
    uly_comm_destroy(comm);
}

static void no_ranks(void **state)
{
    (void)state;
    assert_int_equal(uly_comm_run_threads(0, leaver, NULL), ULY_ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(self),
        cmocka_unit_test(threads),
        cmocka_unit_test(threads_checked),
        cmocka_unit_test(failure_spreads),
        cmocka_unit_test(failure_reaches_groups),
        cmocka_unit_test(failure_in_flight),
        cmocka_unit_test(cause_wins),
        cmocka_unit_test(abort_without_error),
        cmocka_unit_test(timeout_names_ranks),
        cmocka_unit_test(leaving_is_noticed),
        cmocka_unit_test(misfits_are_refused),
        cmocka_unit_test(memory_runs_out),
        cmocka_unit_test(no_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
