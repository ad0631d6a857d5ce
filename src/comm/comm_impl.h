/* SPDX-License-Identifier: MIT
 *
 * For authors of communicators: the table of primitives and the object that carries it. Everything that is not in the
 * table is built once on top of it (collectives.c, call_check.c).
 *
 * An implementation makes its object with uly_comm_new, sets comm->impl, and calls uly_comm_finish. What it may rely on:
 * 1. Arguments were checked; a slot that is started was free, and is waited for at most once.
 * 2. Of the n_slots + 1 slots, the last belongs to small host data and the checks of arguments.
 * 3. Every rank starts its exchanges of a communicator in one order, so slot->sequence names the same exchange everywhere;
 *    the index of a slot does not, since ranks may finish their exchanges in different orders.
 * 4. A wait must advance every exchange in flight on every communicator of the rank (the list that starts at comm->root):
 *    a peer may be waiting for another one first.
 */
#ifndef ULY_COMM_COMM_IMPL_H
#define ULY_COMM_COMM_IMPL_H

#include "comm/comm.h"

enum {
    ULY_HOST_BYTES = 80,   /* name of a machine, with its end */
    ULY_HOST_DATA = 4096,  /* largest small host data, bytes a rank */
    ULY_SMALL_BYTES = 512, /* room a rank in comm->gathered: 64 scalars, or a message */
    ULY_MESSAGE_BYTES = 1024
};

struct uly_slot { /* one exchange in flight */
    bool busy;
    int index;
    int n_parts;
    const char *what;
    int64_t sequence;
    struct uly_part
        *parts; /* [max_parts], owned copies; their arrays are the caller's until the wait */
};

struct uly_comm;

/* How a communicator is divided, as every rank of the parent sees it for its own part. */
struct uly_split {
    int color, key;
    int rank, size;     /* of this rank in the new communicator */
    const int *members; /* [size], ranks of the parent in the order of the new communicator */
};

/* All entries are required. X(name) */
#define ULY_COMM_OPS_LIST(X)                                                                       \
    X(reserve) X(start) X(wait) X(poke) X(gather_host) X(split) X(abort) X(destroy)

struct uly_comm_ops {
    /* Own state for n_slots + 1 slots of up to max_parts parts; replaces what there was; on failure nothing changes.
     * Called while nothing is in flight. */
    enum uly_status (*reserve)(struct uly_comm *comm, int n_slots, int max_parts);
    /* Begins the exchange and copies the rank's own block. Does not block. */
    enum uly_status (*start)(struct uly_comm *comm, struct uly_slot *slot);
    /* Ends it. After a failure no peer touches this rank's buffers any more. */
    enum uly_status (*wait)(struct uly_comm *comm, struct uly_slot *slot);
    /* Advances what is in flight on this communicator, without waiting. */
    enum uly_status (*poke)(struct uly_comm *comm);
    /* all[r * bytes ...] = rank r's bytes, 0 < bytes <= ULY_HOST_DATA. uly_comm_gather_by_exchange serves where tensors may
     * lie in host memory. */
    enum uly_status (*gather_host)(struct uly_comm *comm, const char *what, const void *mine,
                                   int64_t bytes, void *all);
    /* Sets child->impl. Collective over comm: it communicates before it can fail. */
    enum uly_status (*split)(struct uly_comm *comm, const struct uly_split *split,
                             struct uly_comm *child);
    void (*abort)(struct uly_comm *comm, int exit_code);
    void (*destroy)(struct uly_comm *comm); /* comm->impl may be NULL */
};

struct uly_comm {
    struct uly_comm_ops ops;
    void *impl; /* the implementation's own state, owned */
    int rank, size;

    struct uly_comm *root; /* the communicator that this one was split from, itself at the top */
    struct uly_comm *next; /* list of a rank's communicators, from root */

    enum uly_status broken; /* of root: the first failure of a wait; nothing works after it */
    char broken_text[ULY_MESSAGE_BYTES];

    int *hosts;                         /* [size] */
    char (*host_names)[ULY_HOST_BYTES]; /* [size] */

    double timeout; /* seconds, 0: none */
    int64_t chunk;  /* bytes */
    bool check;     /* compare arguments across ranks */

    int n_slots, max_parts;
    struct uly_slot *slots; /* [n_slots + 1] */
    struct uly_part *parts; /* [(n_slots + 1) * max_parts], where the slots' parts lie */
    int64_t sequence;       /* of the next exchange */

    /* working room, so that no collective allocates */
    int64_t *host_index;     /* [4 * size], offsets and counts of small host data */
    int64_t *index;          /* [4 * size], of the collectives on tensors */
    unsigned char *gathered; /* [size * ULY_SMALL_BYTES] */
    bool *waiting;           /* [size], ranks not heard from, for messages */
    struct uly_call *calls;  /* [2 * size] where check is on: records sent and received */

    struct uly_comm_counters counters;
};

/* An object with a full table (ULY_ERR_INTERNAL names a missing entry) and no slots yet. */
enum uly_status uly_comm_new(const struct uly_comm_ops *ops, int rank, int size,
                             struct uly_comm **out);
/* Default slots, once comm->impl is set. */
enum uly_status uly_comm_finish(struct uly_comm *comm);
/* Fills hosts from host_names. */
void uly_comm_number_hosts(struct uly_comm *comm);
/* This machine's name, cut to the room. */
void uly_comm_own_host(char name[ULY_HOST_BYTES]);
/* True where the environment asks for the check of arguments. */
bool uly_comm_check_wanted(void);
enum uly_status uly_comm_set_check(struct uly_comm *comm, bool check);

/* An exchange without check and counting, in the slot for small data or (host false) in a free one. */
enum uly_status uly_comm_start_raw(struct uly_comm *comm, bool host, const char *what,
                                   const struct uly_part *parts, int n_parts,
                                   struct uly_slot **out);
enum uly_status uly_comm_wait_raw(struct uly_comm *comm, struct uly_slot *slot);
/* Both, counted. Arguments are trusted. */
enum uly_status uly_comm_exchange_raw(struct uly_comm *comm, const char *what,
                                      const struct uly_part *part);

enum uly_status uly_comm_gather_by_exchange(struct uly_comm *comm, const char *what,
                                            const void *mine, int64_t bytes, void *all);

/* Records the timeout of a slot: comm->waiting says for whom. Returns ULY_ERR_COMM. */
enum uly_status uly_comm_timed_out(struct uly_comm *comm, const struct uly_slot *slot);

/* Compares a call across ranks, where checking is on: its name, n named values that must be the same everywhere, and the
 * counts of its parts, pair by pair. Collective; the same verdict on every rank. */
enum uly_status uly_comm_check_call(struct uly_comm *comm, const char *what,
                                    const char *const *names, const int64_t *values, int n,
                                    const struct uly_part *parts, int n_parts);

/* Where some rank says failed: *rank is the lowest of them (else -1) and text[ULY_SMALL_BYTES] becomes its text. */
enum uly_status uly_comm_first_failure(struct uly_comm *comm, const char *what, bool failed,
                                       int *rank, char *text);

/* What a rank can check of a part by itself: ranges, types, own block, overlap. ULY_ERR_INVALID names part i. */
enum uly_status uly_comm_check_part(const struct uly_comm *comm, const char *what, int i,
                                    const struct uly_part *part);

/* Copies this rank's own block of every part. */
void uly_comm_copy_own(const struct uly_comm *comm, const struct uly_slot *slot);

/* Whether two dense tensors share memory. */
static inline bool uly_tensor_overlap(const struct uly_tensor *a, const struct uly_tensor *b)
{
    int64_t a_end = a->offset + uly_tensor_count(a) * uly_dtype_bytes(a->dtype);
    int64_t b_end = b->offset + uly_tensor_count(b) * uly_dtype_bytes(b->dtype);
    return a->arena == b->arena && a->offset < b_end && b->offset < a_end;
}

/* Address and bytes of what a part sends to, or receives from, a peer. */
static inline unsigned char *uly_part_send(const struct uly_part *part, int peer, int64_t *bytes)
{
    int64_t unit = uly_dtype_bytes(part->send.dtype);
    *bytes = part->send_count[peer] * unit;
    unsigned char *base = *bytes ? uly_tensor_address(part->send) : NULL;
    return *bytes ? base + part->send_offset[peer] * unit : NULL;
}
static inline unsigned char *uly_part_recv(const struct uly_part *part, int peer, int64_t *bytes)
{
    int64_t unit = uly_dtype_bytes(part->recv.dtype);
    *bytes = part->recv_count[peer] * unit;
    unsigned char *base = *bytes ? uly_tensor_address(part->recv) : NULL;
    return *bytes ? base + part->recv_offset[peer] * unit : NULL;
}

#endif
