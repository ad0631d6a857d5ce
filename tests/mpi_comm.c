/* SPDX-License-Identifier: MIT
 * ranks: 1 2 3 4
 *
 * The MPI communicator: the shared cases with messages of the default size, of 1000 bytes and of 333 bytes (which cuts
 * elements), checking of arguments on and off; and a wait that takes too long.
 */
#include <stdio.h>
#include <string.h>

#include "comm/comm_impl.h"
#include "support/comm_cases.h"

/* The late rank comes only after the other has given up; after that the same messages must still arrive whole. */
static enum uly_status timeout(struct uly_comm *comm, void *arg)
{
    (void)arg;
    int rank = uly_comm_rank(comm), last = uly_comm_size(comm) - 1;
    struct uly_comm *other;
    struct room room;
    struct uly_slot *slot;
    char tail[16]; /* of the list of ranks; others may be slow and stand in it too */
    if (last == 0)
        return ULY_OK;
    snprintf(tail, sizeof tail, " %d", last);
    ULY_TRY(uly_comm_split(comm, 0, 0, &other));
    for (int64_t missed = 0, seed = 21; missed == 0; seed++) { /* rank 0 must miss something */
        ULY_TRY(room_open(&room, comm, (uint64_t)seed, 2, 5000));
        missed = rank == 0 ? room.index[0][3][last] : 0;
        ULY_TRY(uly_all_reduce_i64(comm, &missed, 1, ULY_REDUCE_SUM));
        if (missed == 0)
            room_close(&room);
    }
    if (rank == last)
        ULY_TRY(uly_barrier(other));
    ULY_TRY(uly_comm_start_raw(comm, false, "late", room.parts, 2, &slot));
    if (rank == 0) {
        uly_comm_set_timeout(comm, 0.1);
        enum uly_status status =
            comm->ops.wait(comm, slot); /* below the wrapper: it stays usable */
        const char *text = uly_error_message();
        CHECK(status == ULY_ERR_COMM && strstr(text, "seconds for ranks") &&
                  strcmp(text + strlen(text) - strlen(tail), tail) == 0,
              "status %d: %s", status, text);
        uly_comm_set_timeout(comm, 0);
    }
    if (rank != last)
        ULY_TRY(uly_barrier(other));
    ULY_TRY(uly_comm_wait_raw(comm, slot));
    ULY_TRY(room_check(&room));
    room_close(&room);
    uly_comm_destroy(other);
    return ULY_OK;
}

static const struct comm_case mpi_cases[] = {{"timeout", timeout}, {NULL, NULL}};

/* A failing rank ends all: the others may wait for it in the middle of the case. */
static void run_cases(struct uly_comm *comm, const struct comm_case *cases)
{
    for (const struct comm_case *c = cases; c->fn; c++) {
        if (c->fn(comm, NULL) == ULY_OK)
            continue;
        fprintf(stderr, "rank %d of %d, %s, chunk %lld, check %d: %s\n%s", uly_comm_rank(comm),
                uly_comm_size(comm), c->name, (long long)comm->chunk, comm->check,
                uly_error_message(), uly_error_trace());
        uly_comm_abort(comm, 1);
    }
}

int main(void)
{
    static const int64_t chunks[] = {INT64_C(1) << 40, 1000, 333};
    struct uly_comm *comm;
    if (uly_comm_mpi(&comm) != ULY_OK) {
        fprintf(stderr, "%s\n", uly_error_message());
        return 1;
    }
    for (int i = 0; i < 3; i++)
        for (int check = 0; check < 2; check++) {
            uly_comm_set_chunk(comm, chunks[i]);
            if (uly_comm_set_check(comm, check) != ULY_OK)
                uly_comm_abort(comm, 1);
            if (chunks[i] == 333 && check) /* once is enough */
                continue;
            run_cases(comm, comm_cases);
            run_cases(comm, comm_sum_cases);
            run_cases(comm, mpi_cases);
        }
    /* a rank that got here alone, or with another count of failures, would show as a difference */
    int64_t done = 1;
    enum uly_status status = uly_all_reduce_i64(comm, &done, 1, ULY_REDUCE_SUM);
    int failed = status != ULY_OK || done != uly_comm_size(comm);
    uly_comm_destroy(comm);
    return failed;
}
