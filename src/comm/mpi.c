/* SPDX-License-Identifier: MIT
 *
 * Ranks as processes under MPI (Open MPI or MPICH), on non-blocking point-to-point messages alone.
 *
 * What two ranks send each other in one exchange is a stream: the parts in order, each cut into messages of at most
 * comm->chunk bytes. A slot keeps a fixed number of requests per peer and direction (a window); as a message completes,
 * the next one of its stream takes its request. Invariants:
 * 1. Both ends of a stream cut it alike (one chunk size on all ranks), and messages of one pair and tag do not overtake
 *    each other, so the k-th message sent is the k-th received.
 * 2. The window holds every part's first message at least, and all requests exist from uly_comm_reserve on.
 * 3. Waiting polls: every communicator of the rank advances, and the processor is given away between polls, since ranks
 *    may outnumber cores.
 */
#include "comm/comm_impl.h"

#ifndef ULY_HAVE_MPI

enum uly_status uly_comm_mpi(struct uly_comm **out)
{
    (void)out;
    ULY_FAIL(ULY_ERR_UNSUPPORTED,
             "this build has no MPI: it runs one rank, started by itself and with all threads");
}

#else

#include <errno.h>
#include <limits.h>
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

enum {
    TAGS = 32768,   /* MPI guarantees tags up to 32767 */
    MIN_WINDOW = 4, /* messages on their way per peer and direction */
    POLLS_SPIN = 32,
    POLLS_YIELD = 4096,
    SLEEP_NS = 50000
};

enum direction { RECEIVE, SEND, N_DIRECTIONS };

struct stream { /* what one peer still gets, or gives, in one exchange */
    int part;
    int64_t done; /* bytes of that part handed to MPI */
    int pending;  /* messages on their way */
};

struct lane { /* one slot's requests; index (direction * size + peer) * window + k */
    const struct uly_slot *slot; /* NULL: idle */
    int64_t chunk;               /* as it was at the start */
    int pending;
    MPI_Request *requests;  /* [n_requests] */
    int *bytes;             /* [n_requests], of the message */
    struct stream *streams; /* [N_DIRECTIONS * size] */
};

struct mpi_state {
    MPI_Comm handle;
    bool finalize; /* the world of a program that we initialised */
    int n_lanes, window, n_requests;
    struct lane *lanes;   /* [n_lanes] */
    int *finished;        /* [n_requests], indices out of MPI_Testsome */
    MPI_Status *statuses; /* [n_requests] */
};

static enum uly_status mpi_failure(const char *call, int code)
{
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int length = 0;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS)
        snprintf(text, sizeof text, "error %d", code);
    ULY_FAIL(ULY_ERR_COMM, "%s: %s", call, text);
}

#define MPI_TRY(name, call)                                                                        \
    do {                                                                                           \
        int mpi_try_code_ = (call);                                                                \
        if (mpi_try_code_ != MPI_SUCCESS)                                                          \
            return mpi_failure(name, mpi_try_code_);                                               \
    } while (0)

static struct mpi_state *state_of(const struct uly_comm *comm)
{
    return comm->impl;
}

/* ------------------------------------------------------------------ requests */

static void free_lanes(struct lane *lanes, int n)
{
    for (int i = 0; lanes && i < n; i++) {
        uly_free(lanes[i].requests);
        uly_free(lanes[i].bytes);
        uly_free(lanes[i].streams);
    }
    uly_free(lanes);
}

static enum uly_status lane_init(struct lane *lane, int64_t n_requests, int n_streams)
{
    ULY_TRY(ULY_ALLOC(&lane->requests, n_requests));
    for (int64_t i = 0; i < n_requests; i++)
        lane->requests[i] = MPI_REQUEST_NULL;
    ULY_TRY(ULY_ALLOC(&lane->bytes, n_requests));
    return ULY_ALLOC(&lane->streams, n_streams);
}

static enum uly_status mpi_reserve(struct uly_comm *comm, int n_slots, int max_parts)
{
    struct mpi_state *state = state_of(comm);
    struct lane *lanes = NULL;
    int *finished = NULL, window = max_parts > MIN_WINDOW ? max_parts : MIN_WINDOW;
    int64_t n = (int64_t)N_DIRECTIONS * comm->size * window;
    MPI_Status *statuses = NULL;
    enum uly_status status = ULY_OK;
    ULY_FAIL_IF(n > INT_MAX, ULY_ERR_INVALID, "%lld requests are more than MPI counts",
                (long long)n);
    ULY_TRY_GOTO(ULY_ALLOC(&finished, n), failed);
    ULY_TRY_GOTO(ULY_ALLOC(&statuses, n), failed);
    ULY_TRY_GOTO(ULY_ALLOC(&lanes, n_slots + 1), failed);
    for (int i = 0; i <= n_slots; i++)
        ULY_TRY_GOTO(lane_init(&lanes[i], n, N_DIRECTIONS * comm->size), failed);
    free_lanes(state->lanes, state->n_lanes);
    uly_free(state->finished);
    uly_free(state->statuses);
    state->lanes = lanes;
    state->n_lanes = n_slots + 1;
    state->window = window;
    state->n_requests = (int)n;
    state->finished = finished;
    state->statuses = statuses;
    return ULY_OK;
failed:
    free_lanes(lanes, n_slots + 1);
    uly_free(statuses);
    uly_free(finished);
    return status;
}

/* The next message of a stream; *bytes 0 where the stream is at its end. */
static unsigned char *next_message(const struct lane *lane, enum direction direction, int peer,
                                   struct stream *stream, int64_t *bytes)
{
    for (*bytes = 0; stream->part < lane->slot->n_parts; stream->part++, stream->done = 0) {
        const struct uly_part *part = &lane->slot->parts[stream->part];
        int64_t all;
        unsigned char *base =
            direction == SEND ? uly_part_send(part, peer, &all) : uly_part_recv(part, peer, &all);
        if (stream->done == all)
            continue;
        unsigned char *at = base + stream->done;
        *bytes = all - stream->done < lane->chunk ? all - stream->done : lane->chunk;
        stream->done += *bytes;
        return at;
    }
    return NULL;
}

/* Hands the next message of request `index`'s stream to MPI, if there is one. */
static enum uly_status post_next(struct uly_comm *comm, struct lane *lane, int index)
{
    struct mpi_state *state = state_of(comm);
    int which = index / state->window, peer = which % comm->size;
    enum direction direction = which / comm->size == SEND ? SEND : RECEIVE;
    struct stream *stream = &lane->streams[which];
    int tag = (int)(lane->slot->sequence % TAGS);
    int64_t bytes;
    unsigned char *at = next_message(lane, direction, peer, stream, &bytes);
    if (bytes == 0)
        return ULY_OK;
    ULY_BUG_ON(bytes > INT_MAX);
    lane->bytes[index] = (int)bytes;
    if (direction == SEND)
        MPI_TRY("MPI_Isend", MPI_Isend(at, (int)bytes, MPI_BYTE, peer, tag, state->handle,
                                       &lane->requests[index]));
    else
        MPI_TRY("MPI_Irecv", MPI_Irecv(at, (int)bytes, MPI_BYTE, peer, tag, state->handle,
                                       &lane->requests[index]));
    stream->pending++;
    lane->pending++;
    return ULY_OK;
}

static enum uly_status mpi_start(struct uly_comm *comm, struct uly_slot *slot)
{
    struct mpi_state *state = state_of(comm);
    struct lane *lane = &state->lanes[slot->index];
    int n_streams = N_DIRECTIONS * comm->size;
    lane->slot = slot;
    lane->chunk = comm->chunk;
    lane->pending = 0;
    memset(lane->streams, 0, (size_t)n_streams * sizeof *lane->streams);
    for (int d = 0; d < N_DIRECTIONS; d++)     /* receives first: then nothing arrives unexpected */
        for (int k = 1; k < comm->size; k++) { /* each rank starts with another peer */
            int which = d * comm->size + (comm->rank + k) % comm->size;
            for (int w = 0; w < state->window; w++)
                ULY_TRY(post_next(comm, lane, which * state->window + w));
        }
    uly_comm_copy_own(comm, slot); /* while the messages are on their way */
    return ULY_OK;
}

/* ------------------------------------------------------------------ progress */

static enum uly_status finish_message(struct uly_comm *comm, struct lane *lane, int index,
                                      const MPI_Status *done)
{
    struct mpi_state *state = state_of(comm);
    int which = index / state->window, peer = which % comm->size, count = 0;
    if (which / comm->size == RECEIVE) {
        MPI_TRY("MPI_Get_count", MPI_Get_count(done, MPI_BYTE, &count));
        ULY_FAIL_IF(count != lane->bytes[index], ULY_ERR_COMM,
                    "%s (collective %lld): rank %d sent %d bytes where rank %d expects %d",
                    lane->slot->what, (long long)lane->slot->sequence, peer, count, comm->rank,
                    lane->bytes[index]);
    }
    lane->streams[which].pending--;
    lane->pending--;
    return post_next(comm, lane, index);
}

static enum uly_status advance_lane(struct uly_comm *comm, struct lane *lane)
{
    struct mpi_state *state = state_of(comm);
    int n = 0;
    int code =
        MPI_Testsome(state->n_requests, lane->requests, &n, state->finished, state->statuses);
    if (code == MPI_ERR_IN_STATUS) /* the cause is in one of the statuses */
        for (int i = 0; i < n; i++)
            if (state->statuses[i].MPI_ERROR != MPI_SUCCESS &&
                state->statuses[i].MPI_ERROR != MPI_ERR_PENDING)
                code = state->statuses[i].MPI_ERROR;
    MPI_TRY("MPI_Testsome", code);
    for (int i = 0; n != MPI_UNDEFINED && i < n; i++)
        ULY_TRY(finish_message(comm, lane, state->finished[i], &state->statuses[i]));
    return ULY_OK;
}

static enum uly_status mpi_poke(struct uly_comm *comm)
{
    struct mpi_state *state = state_of(comm);
    for (int i = 0; i < state->n_lanes; i++)
        if (state->lanes[i].slot && state->lanes[i].pending > 0)
            ULY_TRY(advance_lane(comm, &state->lanes[i]));
    return ULY_OK;
}

/* Spins for short waits, then lets other ranks of this machine run, then sleeps. */
static void back_off(int64_t polls)
{
    struct timespec nap = {0, SLEEP_NS};
    if (polls >= POLLS_YIELD)
        nanosleep(&nap, NULL);
    else if (polls >= POLLS_SPIN)
        sched_yield();
}

static enum uly_status timed_out(struct uly_comm *comm, const struct lane *lane)
{
    for (int r = 0; r < comm->size; r++)
        comm->waiting[r] = lane->streams[RECEIVE * comm->size + r].pending > 0 ||
                           lane->streams[SEND * comm->size + r].pending > 0;
    return uly_comm_timed_out(comm, lane->slot);
}

/* After a failure messages may still be on their way. No byte of them moves outside a call of MPI, and a communicator that
 * failed makes none but MPI_Abort. */
static enum uly_status mpi_wait(struct uly_comm *comm, struct uly_slot *slot)
{
    struct lane *lane = &state_of(comm)->lanes[slot->index];
    double begin = comm->timeout > 0 ? uly_seconds() : 0;
    for (int64_t polls = 0; lane->pending > 0; polls++) {
        for (struct uly_comm *c = comm->root; c; c = c->next)
            ULY_TRY(mpi_poke(c));
        if (lane->pending == 0)
            break;
        if (comm->timeout > 0 && uly_seconds() - begin > comm->timeout)
            return timed_out(comm, lane);
        back_off(polls);
    }
    lane->slot = NULL;
    return ULY_OK;
}

/* ------------------------------------------------------------------ life */

static void mpi_abort(struct uly_comm *comm, int exit_code)
{
    (void)comm;
    fflush(NULL);
    MPI_Abort(MPI_COMM_WORLD, exit_code);
}

static void mpi_destroy(struct uly_comm *comm)
{
    struct mpi_state *state = comm->impl;
    if (!state)
        return;
    bool finalize = state->finalize;
    /* with messages left over, freeing and finalising could wait for ever for a rank that is gone */
    bool broken = comm->root->broken != ULY_OK;
    if (broken && finalize) {
        uly_log(ULY_LOG_INFO, "comm", "ended after: %s", comm->root->broken_text);
        mpi_abort(comm, 1);
    }
    if (state->handle != MPI_COMM_NULL && !broken)
        MPI_Comm_free(&state->handle);
    free_lanes(state->lanes, state->n_lanes);
    uly_free(state->finished);
    uly_free(state->statuses);
    uly_free(state);
    comm->impl = NULL;
    if (finalize)
        MPI_Finalize();
}

static enum uly_status attach(struct uly_comm *comm, MPI_Comm handle, bool finalize)
{
    struct mpi_state *state = NULL;
    ULY_TRY(ULY_ALLOC(&state, 1));
    state->handle = handle;
    state->finalize = finalize;
    comm->impl = state;
    return ULY_OK;
}

static enum uly_status mpi_split(struct uly_comm *comm, const struct uly_split *split,
                                 struct uly_comm *child)
{
    MPI_Comm handle = MPI_COMM_NULL;
    int size = 0, rank = 0;
    MPI_TRY("MPI_Comm_split",
            MPI_Comm_split(state_of(comm)->handle, split->color, split->key, &handle));
    enum uly_status status = attach(child, handle, false);
    if (status != ULY_OK)
        MPI_Comm_free(&handle);
    ULY_TRY(status);
    MPI_TRY("MPI_Comm_set_errhandler", MPI_Comm_set_errhandler(handle, MPI_ERRORS_RETURN));
    MPI_TRY("MPI_Comm_size", MPI_Comm_size(handle, &size));
    MPI_TRY("MPI_Comm_rank", MPI_Comm_rank(handle, &rank));
    ULY_FAIL_IF(size != split->size || rank != split->rank, ULY_ERR_INTERNAL,
                "MPI made this rank %d of %d, %d of %d was planned", rank, size, split->rank,
                split->size);
    return ULY_OK;
}

static const struct uly_comm_ops mpi_ops = {
    .reserve = mpi_reserve,
    .start = mpi_start,
    .wait = mpi_wait,
    .poke = mpi_poke,
    .gather_host = uly_comm_gather_by_exchange,
    .split = mpi_split,
    .abort = mpi_abort,
    .destroy = mpi_destroy,
};

/* ULY_COMM_CHUNK in bytes; 0 where it is not set, -1 where it is no positive number. */
static int64_t chunk_wanted(void)
{
    const char *text = getenv("ULY_COMM_CHUNK");
    if (!text || !*text)
        return 0;
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    return *end || errno || value < 1 ? -1 : (int64_t)value;
}

/* Machines, and what the environment asks for: a launcher may give it to some ranks only, so the chunk is rank 0's, and
 * one rank's wish for checking is everyone's. */
static enum uly_status agree_setup(struct uly_comm *comm)
{
    struct setup {
        char host[ULY_HOST_BYTES];
        int64_t chunk, check;
    } mine, *all = NULL;
    bool check = false;
    memset(&mine, 0, sizeof mine);
    uly_comm_own_host(mine.host);
    mine.chunk = chunk_wanted();
    mine.check = uly_comm_check_wanted();
    enum uly_status status = ULY_ALLOC(&all, comm->size);
    ULY_TRY_GOTO(uly_comm_agree_status(comm, status), done);
    ULY_TRY_GOTO(
        uly_comm_gather_by_exchange(comm, "machines of the ranks", &mine, sizeof mine, all), done);
    for (int r = 0; r < comm->size; r++) {
        memcpy(comm->host_names[r], all[r].host, ULY_HOST_BYTES);
        check = check || all[r].check;
    }
    uly_comm_number_hosts(comm);
    if (all[0].chunk < 0)
        ULY_FAIL_GOTO(done, ULY_ERR_INVALID, "ULY_COMM_CHUNK is not a positive number of bytes");
    if (all[0].chunk > 0)
        uly_comm_set_chunk(comm, all[0].chunk);
    status = uly_comm_agree_status(comm, uly_comm_set_check(comm, check));
done:
    uly_free(all);
    return status;
}

/* *ours: this call initialised MPI, so the communicator finalises it. */
static enum uly_status start_mpi(bool *ours)
{
    int initialized = 0, finalized = 0, level = 0;
    MPI_TRY("MPI_Finalized", MPI_Finalized(&finalized));
    ULY_FAIL_IF(finalized, ULY_ERR_UNSUPPORTED, "MPI was ended before and cannot start again");
    MPI_TRY("MPI_Initialized", MPI_Initialized(&initialized));
    if (initialized)
        MPI_TRY("MPI_Query_thread", MPI_Query_thread(&level));
    else
        MPI_TRY("MPI_Init_thread", MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level));
    *ours = !initialized;
    if (level < MPI_THREAD_FUNNELED && !initialized)
        MPI_Finalize();
    ULY_FAIL_IF(level < MPI_THREAD_FUNNELED, ULY_ERR_UNSUPPORTED,
                "this MPI does not allow threads (level %d, FUNNELED is %d)", level,
                MPI_THREAD_FUNNELED);
    return ULY_OK;
}

static enum uly_status world_comm(bool ours, struct uly_comm **out)
{
    MPI_Comm handle = MPI_COMM_NULL;
    int size = 0, rank = 0;
    /* a communicator of our own: messages of other users of MPI in the process cannot meet ours */
    MPI_TRY("MPI_Comm_dup", MPI_Comm_dup(MPI_COMM_WORLD, &handle));
    MPI_TRY("MPI_Comm_set_errhandler", MPI_Comm_set_errhandler(handle, MPI_ERRORS_RETURN));
    MPI_TRY("MPI_Comm_size", MPI_Comm_size(handle, &size));
    MPI_TRY("MPI_Comm_rank", MPI_Comm_rank(handle, &rank));
    struct uly_comm *comm = NULL;
    enum uly_status status = ULY_OK;
    ULY_TRY_GOTO(uly_comm_new(&mpi_ops, rank, size, &comm), failed);
    ULY_TRY_GOTO(attach(comm, handle, false), failed);
    ULY_TRY_GOTO(uly_comm_finish(comm), failed);
    state_of(comm)->finalize = ours;
    ULY_TRY_GOTO(agree_setup(comm), failed);
    uly_log_set_rank(rank, size);
    *out = comm;
    return ULY_OK;
failed
    : /* up to agree_setup the other ranks do not know, and MPI_Finalize would wait for them: the caller ends the process */
    uly_comm_destroy(comm);
    return status;
}

enum uly_status uly_comm_mpi(struct uly_comm **out)
{
    bool ours = false;
    ULY_TRY(start_mpi(&ours));
    return world_comm(ours, out);
}

#endif
