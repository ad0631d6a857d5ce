/* SPDX-License-Identifier: MIT
 *
 * Communicator: ranks that exchange tensors. One table, three implementations: `self` (one rank), `thread` (ranks are
 * threads of one process), `mpi` (processes; Open MPI or MPICH). NCCL fits the same table later.
 *
 * Rules. 1. Every rank of a communicator enters every collective, in the same order, with zero counts where it has
 * nothing. 2. Reductions are an exchange and a sum in rank order, so the same layout gives the same bits on every rank.
 * 3. Counts are 64-bit elements; an implementation cuts messages to what its library takes. 4. A rank's communicator is
 * used by one thread at a time (MPI level FUNNELED). 5. Arguments that must agree across ranks are compared where
 * checking is on (environment ULY_CHECK=agree; always on in tests): a difference is ULY_ERR_COMM on every rank and names
 * the call and the values. 6. A wait that takes longer than the timeout ends in ULY_ERR_COMM, which names the collective,
 * its sequence number and the ranks waited for. 7. When a rank aborts, every other rank's wait ends in ULY_ERR_PEER (or
 * the process ends, under MPI) within seconds.
 */
#ifndef ULY_COMM_COMM_H
#define ULY_COMM_COMM_H

#include "backend/backend.h"

struct uly_comm;

/* ------------------------------------------------------------------ life */

/* One rank. *out: the caller destroys it. */
enum uly_status uly_comm_self(struct uly_comm **out);

/* Runs fn(comm, arg) on n ranks, each a thread of this process, and waits for all. comm is destroyed after fn returns. A
 * rank that returns an error aborts the others. Returns ULY_OK, or the status of the rank that failed first, whose error
 * record becomes the caller's. */
typedef enum uly_status (*uly_rank_fn)(struct uly_comm *comm, void *arg);
enum uly_status uly_comm_run_threads(int n, uly_rank_fn fn, void *arg);

/* MPI_COMM_WORLD; calls MPI_Init_thread(FUNNELED) and, when destroyed, MPI_Finalize. ULY_ERR_UNSUPPORTED in a build
 * without MPI. */
enum uly_status uly_comm_mpi(struct uly_comm **out);

/* Ranks of the same color form a communicator, ordered by (key, rank). Collective. Destroy before the parent. */
enum uly_status uly_comm_split(struct uly_comm *comm, int color, int key, struct uly_comm **out);

void uly_comm_destroy(struct uly_comm *comm); /* NULL is fine */

/* Ends every rank of the world with this exit status; under threads it marks the world as aborted and returns. The caller
 * has said why already. */
void uly_comm_abort(struct uly_comm *comm, int exit_code);

int uly_comm_rank(const struct uly_comm *comm);
int uly_comm_size(const struct uly_comm *comm);
/* The machine of each rank, [size] indices in order of first appearance (rank 0's machine is 0); owned by comm. */
const int *uly_comm_hosts(const struct uly_comm *comm);
/* Name of the machine of a rank; owned by comm. */
const char *uly_comm_host_name(const struct uly_comm *comm, int rank);
/* Names the machines by hand, names[rank] the same on every rank; splits made later inherit them. For tests, whose ranks
 * are all on one. */
void uly_comm_set_host_names(struct uly_comm *comm, const char *const *names);

void uly_comm_set_timeout(struct uly_comm *comm, double seconds); /* 0: wait for ever (default) */
/* Largest message handed to the library at once, bytes, the same on every rank (MPI only; default and most 1 GiB, or rank
 * 0's environment variable ULY_COMM_CHUNK; tests set 1000). Inherited by splits. */
void uly_comm_set_chunk(struct uly_comm *comm, int64_t bytes);

/* ------------------------------------------------------------------ exchange */

/* One part of an exchange: to every peer r, send_count[r] elements of `send` from element send_offset[r]; from every peer
 * r, recv_count[r] elements into `recv` at recv_offset[r]. Offsets count elements from the tensor's first one (dense
 * memory). send and recv have one dtype and must not overlap. The arrays are [size] and stay valid until the wait. A rank
 * that gives up between start and wait calls uly_comm_abort before it frees them or the tensors. */
struct uly_part {
    struct uly_tensor send, recv;
    const int64_t *send_offset, *send_count, *recv_offset, *recv_count;
};

struct uly_request {
    int slot;         /* private to the communicator */
    int64_t sequence; /* number of the collective, for messages */
};

/* Room for exchanges of up to n_parts parts, in_flight at a time (default 4 parts, 2 in flight). Call before the first
 * step: inside a step nothing is allocated. */
enum uly_status uly_comm_reserve(struct uly_comm *comm, int n_parts, int in_flight);

/* All-to-all with uneven counts, all parts in one operation; a pairwise exchange is one with zero counts elsewhere. Send
 * buffers must stay untouched, and receive buffers are undefined, until the wait. what: a constant name for messages. */
enum uly_status uly_exchange_start(struct uly_comm *comm, const char *what,
                                   const struct uly_part *parts, int n_parts,
                                   struct uly_request *out);
enum uly_status uly_exchange_wait(struct uly_comm *comm, struct uly_request *request);
static inline enum uly_status uly_exchange(struct uly_comm *comm, const char *what,
                                           const struct uly_part *parts, int n_parts)
{
    struct uly_request request;
    enum uly_status status = uly_exchange_start(comm, what, parts, n_parts, &request);
    return status == ULY_OK ? uly_exchange_wait(comm, &request) : status;
}

/* Lets messages in flight progress; a uly_poke_fn with the communicator as context. */
void uly_comm_poke(void *comm);

/* ------------------------------------------------------------------ collectives built on the exchange */

/* recv[recv_offset[r] ...] = what rank r sent: send_count (one's own count) elements of `send`; counts: [size], the same
 * on every rank. Dense tensors of one dtype. */
enum uly_status uly_all_gather(struct uly_comm *comm, struct uly_tensor send,
                               struct uly_tensor recv, const int64_t *counts);

/* t = sum over ranks of t, in rank order, the same bits on every rank. Goes through the buffer in pieces, so any buffer of
 * at least `size` elements will do. */
enum uly_status uly_all_reduce(struct uly_comm *comm, struct uly_backend *be, struct uly_tensor t,
                               struct uly_tensor buffer);

/* ------------------------------------------------------------------ small host data */

enum uly_reduce_op { ULY_REDUCE_SUM, ULY_REDUCE_MAX, ULY_REDUCE_MIN };

/* x[i] = op over ranks of x[i], n doubles, combined in rank order: the same bits everywhere. n <= 64. */
enum uly_status uly_all_reduce_f64(struct uly_comm *comm, double *x, int n, enum uly_reduce_op op);
enum uly_status uly_all_reduce_i64(struct uly_comm *comm, int64_t *x, int n, enum uly_reduce_op op);

/* all[r * bytes ...] = rank r's bytes; at most 4096 bytes a rank. */
enum uly_status uly_all_gather_host(struct uly_comm *comm, const void *mine, int64_t bytes,
                                    void *all);

enum uly_status uly_barrier(struct uly_comm *comm);

/* Every rank calls it with its own status before a collective that it could not enter: ULY_OK where all are, else one's
 * own error, or ULY_ERR_PEER with the number of the lowest rank that failed and its message. */
enum uly_status uly_comm_agree_status(struct uly_comm *comm, enum uly_status mine);

/* Compares a value that must be the same on every rank (only where checking is on). */
enum uly_status uly_comm_check_same(struct uly_comm *comm, const char *what, int64_t value);

/* ------------------------------------------------------------------ counters */

struct uly_comm_counters {
    int64_t bytes; /* of tensors, sent to other ranks since the last reset, not small host data */
    int64_t exchanges; /* exchanges of tensors entered */
    double seconds;    /* spent inside start, wait and the collectives */
};
struct uly_comm_counters
uly_comm_counters(const struct uly_comm *comm); /* splits count for themselves */
void uly_comm_reset_counters(struct uly_comm *comm);

#endif
