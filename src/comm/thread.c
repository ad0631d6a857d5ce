/* SPDX-License-Identifier: MIT
 *
 * Ranks as threads of one process, so that whole multi-rank runs fit under a sanitizer or a debugger.
 *
 * An exchange is a post: a rank publishes where its parts lie, every peer copies what is meant for it, and the wait ends
 * when the rank has copied from all and all have copied from it. Invariants:
 * 1. One lock guards every post, group and flag of the world; the copies themselves run outside it.
 * 2. A post under copy (readers > 0) stays; its owner takes it back only when nobody reads. So a rank that fails may free
 *    its buffers once its wait, or uly_comm_abort, has returned.
 * 3. A waiting rank copies for all its posts on all its communicators, since a peer may need another one first.
 * 4. The first rank to abort the world decides the status and message of all.
 */
#include "comm/comm_impl.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

struct world { /* what all groups of a run share */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool aborted;
    int first_rank; /* rank of the world that aborted first, valid when aborted */
    enum uly_status first_status;
    char first_message[ULY_MESSAGE_BYTES];
    struct group *groups; /* list of all groups, freed when every rank has ended */
};

struct post { /* one rank's side of one exchange */
    bool live;
    bool wanted_back; /* the owner waits for the readers to leave */
    int readers;      /* peers that copy right now */
    int taken;        /* peers that have copied */
    int n_got;        /* peers copied from */
    bool *got;        /* [size] */
    const struct uly_slot *slot;
};

struct member {         /* one rank of a group */
    struct post *posts; /* [n_posts], owned by the rank; NULL before it has reserved */
    int n_posts;
    bool left; /* its communicator is destroyed */
};

struct group { /* the ranks of one communicator */
    struct world *world;
    struct group *next; /* in world->groups */
    int size;
    struct member *members;
};

struct thread_state { /* one rank's comm->impl */
    struct group *group;
    int world_rank;
    struct post *posts; /* [n_posts] */
    bool *got;          /* [n_posts * size], where the posts' flags lie */
};

/* ------------------------------------------------------------------ groups */

static enum uly_status group_create(struct world *world, int size, struct group **out)
{
    struct group *group = NULL;
    struct member *members = NULL;
    enum uly_status status = ULY_OK;
    ULY_TRY(ULY_ALLOC(&group, 1));
    ULY_TRY_GOTO(ULY_ALLOC(&members, size), failed);
    pthread_mutex_lock(&world->lock);
    *group = (struct group){world, world->groups, size, members};
    world->groups = group;
    pthread_mutex_unlock(&world->lock);
    *out = group;
    return ULY_OK;
failed:
    uly_free(group);
    return status;
}

static void group_leave(struct group *group, int rank)
{
    struct world *world = group->world;
    pthread_mutex_lock(&world->lock);
    group->members[rank] = (struct member){.left = true};
    pthread_cond_broadcast(&world->changed);
    pthread_mutex_unlock(&world->lock);
}

/* ------------------------------------------------------------------ posts; the lock is held */

static struct thread_state *state_of(const struct uly_comm *comm)
{
    return comm->impl;
}

static struct world *world_of(const struct uly_comm *comm)
{
    return state_of(comm)->group->world;
}

static struct post *find_post(struct group *group, int rank, int64_t sequence)
{
    struct member *member = &group->members[rank];
    for (int i = 0; i < member->n_posts; i++)
        if (member->posts[i].live && member->posts[i].slot->sequence == sequence)
            return &member->posts[i];
    return NULL;
}

/* Sender and receiver must mean the same bytes, or the copy would read or leave what it must not. */
static enum uly_status check_pair(const struct uly_comm *comm, const struct uly_slot *mine,
                                  const struct uly_slot *theirs, int peer)
{
    ULY_FAIL_IF(mine->n_parts != theirs->n_parts, ULY_ERR_COMM,
                "%s (collective %lld): %d parts on rank %d, %s has %d on rank %d", mine->what,
                (long long)mine->sequence, mine->n_parts, comm->rank, theirs->what, theirs->n_parts,
                peer);
    for (int i = 0; i < mine->n_parts; i++) {
        int64_t out, in;
        uly_part_send(&theirs->parts[i], comm->rank, &out);
        uly_part_recv(&mine->parts[i], peer, &in);
        ULY_FAIL_IF(out != in, ULY_ERR_COMM,
                    "%s (collective %lld), part %d: rank %d sends %lld bytes, rank %d expects %lld",
                    mine->what, (long long)mine->sequence, i, peer, (long long)out, comm->rank,
                    (long long)in);
    }
    return ULY_OK;
}

static void copy_from(const struct uly_comm *comm, const struct uly_slot *mine,
                      const struct uly_slot *theirs, int peer)
{
    for (int i = 0; i < mine->n_parts; i++) {
        int64_t bytes;
        const unsigned char *src = uly_part_send(&theirs->parts[i], comm->rank, &bytes);
        unsigned char *dst = uly_part_recv(&mine->parts[i], peer, &bytes);
        if (bytes > 0)
            memcpy(dst, src, (size_t)bytes);
    }
}

/* Copies from a peer that has posted; the lock is given up meanwhile. */
static enum uly_status take(struct uly_comm *comm, struct post *mine, struct post *theirs, int peer)
{
    struct world *world = world_of(comm);
    ULY_TRY(check_pair(comm, mine->slot, theirs->slot, peer));
    theirs->readers++;
    pthread_mutex_unlock(&world->lock);
    copy_from(comm, mine->slot, theirs->slot, peer);
    pthread_mutex_lock(&world->lock);
    theirs->readers--;
    theirs->taken++;
    mine->got[peer] = true;
    mine->n_got++;
    if (theirs->taken == comm->size - 1 || theirs->wanted_back)
        pthread_cond_broadcast(&world->changed);
    return ULY_OK;
}

/* Takes all that peers have posted for one communicator. *moved: something was taken. */
static enum uly_status advance(struct uly_comm *comm, bool *moved)
{
    struct thread_state *state = state_of(comm);
    struct group *group = state->group;
    for (int i = 0; i <= comm->n_slots; i++) {
        struct post *mine = &state->posts[i];
        if (!mine->live || mine->n_got == comm->size - 1)
            continue;
        for (int k = 1; k < comm->size; k++) { /* each rank starts with another peer */
            int peer = (comm->rank + k) % comm->size;
            if (mine->got[peer])
                continue;
            struct post *theirs = find_post(group, peer, mine->slot->sequence);
            if (!theirs)
                continue;
            ULY_TRY(take(comm, mine, theirs, peer));
            *moved = true;
        }
    }
    return ULY_OK;
}

static enum uly_status check_aborted(const struct world *world)
{
    ULY_FAIL_IF(world->aborted, ULY_ERR_PEER, "rank %d failed: %s", world->first_rank,
                world->first_message);
    return ULY_OK;
}

/* Takes back every post of this rank, so that its buffers are its own again. */
static void withdraw_all(struct uly_comm *comm)
{
    struct world *world = world_of(comm);
    for (struct uly_comm *c = comm->root; c; c = c->next) {
        struct thread_state *state = c->impl;
        for (int i = 0; state && state->posts && i <= c->n_slots; i++) {
            struct post *post = &state->posts[i];
            post->wanted_back = true;
            while (post->live && post->readers > 0)
                pthread_cond_wait(&world->changed, &world->lock);
            post->wanted_back = false;
            post->live = false;
        }
    }
}

/* comm->waiting = the ranks that a post still needs; fails where one of them can never come. */
static enum uly_status find_waiting(struct uly_comm *comm, const struct post *mine)
{
    struct group *group = state_of(comm)->group;
    for (int r = 0; r < comm->size; r++) {
        const struct post *theirs = find_post(group, r, mine->slot->sequence);
        bool missing = r != comm->rank && !mine->got[r];
        comm->waiting[r] = missing || (r != comm->rank && theirs && !theirs->got[comm->rank]);
        ULY_FAIL_IF(missing && !theirs && group->members[r].left, ULY_ERR_COMM,
                    "%s (collective %lld) on rank %d: rank %d has left", mine->slot->what,
                    (long long)mine->slot->sequence, comm->rank, r);
    }
    return ULY_OK;
}

/* Sleeps until something changes. *late: the deadline (seconds on uly_seconds' clock, 0: none) has passed. */
static void sleep_until(struct world *world, double deadline, bool *late)
{
    *late = false;
    if (deadline <= 0) {
        pthread_cond_wait(&world->changed, &world->lock);
        return;
    }
    struct timespec t = {(time_t)deadline, 0};
    t.tv_nsec = (long)(1e9 * (deadline - (double)t.tv_sec));
    *late = pthread_cond_timedwait(&world->changed, &world->lock, &t) == ETIMEDOUT;
}

static enum uly_status wait_locked(struct uly_comm *comm, struct post *mine)
{
    struct world *world = world_of(comm);
    double deadline = comm->timeout > 0 ? uly_seconds() + comm->timeout : 0;
    for (bool late = false;;) {
        bool moved = false;
        ULY_TRY(check_aborted(world));
        for (struct uly_comm *c = comm->root; c; c = c->next)
            ULY_TRY(advance(c, &moved));
        if (mine->n_got == comm->size - 1 && mine->taken == comm->size - 1)
            return ULY_OK;
        if (moved) /* the lock was given up: look again before sleeping */
            continue;
        ULY_TRY(find_waiting(comm, mine));
        if (late)
            return uly_comm_timed_out(comm, mine->slot);
        sleep_until(world, deadline, &late);
    }
}

/* ------------------------------------------------------------------ the table */

static enum uly_status thread_reserve(struct uly_comm *comm, int n_slots, int max_parts)
{
    struct thread_state *state = state_of(comm);
    struct post *posts = NULL;
    bool *got = NULL;
    enum uly_status status = ULY_OK;
    (void)max_parts;
    ULY_TRY_GOTO(ULY_ALLOC(&posts, n_slots + 1), failed);
    ULY_TRY_GOTO(ULY_ALLOC(&got, (int64_t)(n_slots + 1) * comm->size), failed);
    for (int i = 0; i <= n_slots; i++)
        posts[i].got = got + (int64_t)i * comm->size;
    pthread_mutex_lock(&world_of(comm)->lock);
    uly_free(state->posts);
    uly_free(state->got);
    state->posts = posts;
    state->got = got;
    state->group->members[comm->rank].posts = posts;
    state->group->members[comm->rank].n_posts = n_slots + 1;
    pthread_mutex_unlock(&world_of(comm)->lock);
    return ULY_OK;
failed:
    uly_free(posts);
    return status;
}

static enum uly_status thread_start(struct uly_comm *comm, struct uly_slot *slot)
{
    struct world *world = world_of(comm);
    struct post *post = &state_of(comm)->posts[slot->index];
    pthread_mutex_lock(&world->lock);
    memset(post->got, 0, (size_t)comm->size * sizeof *post->got);
    post->slot = slot;
    post->taken = post->n_got = 0;
    post->live = true;
    pthread_cond_broadcast(&world->changed);
    pthread_mutex_unlock(&world->lock);
    uly_comm_copy_own(comm, slot);
    return ULY_OK;
}

static enum uly_status thread_wait(struct uly_comm *comm, struct uly_slot *slot)
{
    struct world *world = world_of(comm);
    struct post *post = &state_of(comm)->posts[slot->index];
    pthread_mutex_lock(&world->lock);
    enum uly_status status = wait_locked(comm, post);
    if (status == ULY_OK)
        post->live = false;
    else
        withdraw_all(comm);
    pthread_mutex_unlock(&world->lock);
    return status;
}

static enum uly_status thread_poke(struct uly_comm *comm)
{
    struct world *world = world_of(comm);
    bool moved = false;
    pthread_mutex_lock(&world->lock);
    enum uly_status status = world->aborted ? ULY_OK : advance(comm, &moved);
    pthread_mutex_unlock(&world->lock);
    return status;
}

/* The lock is held. "Another rank failed" gives way to what that other rank has to say. */
static void world_abort(struct world *world, int rank, enum uly_status status, const char *message)
{
    if (!world->aborted || (world->first_status == ULY_ERR_PEER && status != ULY_ERR_PEER)) {
        world->aborted = true;
        world->first_rank = rank;
        world->first_status = status;
        snprintf(world->first_message, sizeof world->first_message, "%s", message);
    }
    pthread_cond_broadcast(&world->changed);
}

static void thread_abort(struct uly_comm *comm, int exit_code)
{
    struct world *world = world_of(comm);
    enum uly_status status = uly_error_status();
    char message[ULY_MESSAGE_BYTES];
    if (status != ULY_OK)
        snprintf(message, sizeof message, "%s", uly_error_message());
    else
        snprintf(message, sizeof message, "aborted with exit status %d", exit_code);
    pthread_mutex_lock(&world->lock);
    world_abort(world, state_of(comm)->world_rank, status == ULY_OK ? ULY_ERR_COMM : status,
                message);
    withdraw_all(comm);
    pthread_mutex_unlock(&world->lock);
}

static void thread_destroy(struct uly_comm *comm)
{
    struct thread_state *state = comm->impl;
    if (!state)
        return;
    struct world *world = state->group->world;
    pthread_mutex_lock(&world->lock);
    for (int i = 0; state->posts && i <= comm->n_slots; i++)
        if (state->posts[i].live) { /* an exchange was given up */
            withdraw_all(comm);
            break;
        }
    pthread_mutex_unlock(&world->lock);
    group_leave(state->group, comm->rank);
    uly_free(state->posts);
    uly_free(state->got);
    uly_free(state);
    comm->impl = NULL;
}

static enum uly_status attach(struct uly_comm *comm, struct group *group, int world_rank)
{
    struct thread_state *state = NULL;
    ULY_TRY(ULY_ALLOC(&state, 1));
    state->group = group;
    state->world_rank = world_rank;
    comm->impl = state;
    return ULY_OK;
}

/* The first member makes the group and tells the others where it is. */
static enum uly_status thread_split(struct uly_comm *comm, const struct uly_split *split,
                                    struct uly_comm *child)
{
    struct group *group = NULL, **all = (struct group **)(void *)comm->gathered;
    enum uly_status status = ULY_OK;
    if (split->rank == 0)
        status = group_create(world_of(comm), split->size, &group);
    ULY_TRY(uly_comm_gather_by_exchange(comm, "split", &group, sizeof group, all));
    ULY_TRY(status);
    group = all[split->members[0]];
    ULY_FAIL_IF(!group, ULY_ERR_PEER, "rank %d could not make the group", split->members[0]);
    status = attach(child, group, state_of(comm)->world_rank);
    if (status != ULY_OK)
        group_leave(group, split->rank);
    return status;
}

static const struct uly_comm_ops thread_ops = {
    .reserve = thread_reserve,
    .start = thread_start,
    .wait = thread_wait,
    .poke = thread_poke,
    .gather_host = uly_comm_gather_by_exchange,
    .split = thread_split,
    .abort = thread_abort,
    .destroy = thread_destroy,
};

/* ------------------------------------------------------------------ running ranks */

struct rank_thread {
    pthread_t thread;
    int rank;
    struct group *group;
    uly_rank_fn fn;
    void *arg;
};

static enum uly_status rank_comm(const struct rank_thread *me, struct uly_comm **out)
{
    struct uly_comm *comm = NULL;
    enum uly_status status = ULY_OK;
    ULY_TRY_GOTO(uly_comm_new(&thread_ops, me->rank, me->group->size, &comm), left);
    ULY_TRY_GOTO(attach(comm, me->group, me->rank), left);
    for (int r = 0; r < comm->size; r++)
        uly_comm_own_host(comm->host_names[r]);
    uly_comm_number_hosts(comm);
    ULY_TRY_GOTO(uly_comm_set_check(comm, uly_comm_check_wanted()), failed);
    ULY_TRY_GOTO(uly_comm_finish(comm), failed);
    *out = comm;
    return ULY_OK;
left: /* destroy would not know of the group */
    group_leave(me->group, me->rank);
failed:
    uly_comm_destroy(comm);
    return status;
}

static void *rank_main(void *arg)
{
    struct rank_thread *me = arg;
    struct world *world = me->group->world;
    struct uly_comm *comm = NULL;
    uly_log_set_rank(me->rank, me->group->size);
    enum uly_status status = rank_comm(me, &comm);
    if (status == ULY_OK)
        status = me->fn(comm, me->arg);
    if (status != ULY_OK) {
        pthread_mutex_lock(&world->lock);
        /* a failure that the rank's record does not hold has no better text than its code's */
        world_abort(world, me->rank, status,
                    uly_error_status() == status ? uly_error_message() : uly_status_text(status));
        pthread_mutex_unlock(&world->lock);
    }
    uly_comm_destroy(comm);
    return NULL;
}

static enum uly_status world_init(struct world *world)
{
    pthread_condattr_t attr;
    memset(world, 0, sizeof *world);
    ULY_FAIL_IF(pthread_condattr_init(&attr) != 0, ULY_ERR_NO_MEMORY, "no condition variable");
    bool good = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0 &&
                pthread_cond_init(&world->changed, &attr) == 0;
    pthread_condattr_destroy(&attr);
    ULY_FAIL_IF(!good, ULY_ERR_NO_MEMORY, "no condition variable");
    if (pthread_mutex_init(&world->lock, NULL) != 0) {
        pthread_cond_destroy(&world->changed);
        ULY_FAIL(ULY_ERR_NO_MEMORY, "no lock");
    }
    return ULY_OK;
}

static void run_ranks(struct world *world, struct group *group, struct rank_thread *ranks)
{
    int n = group->size, started = 0;
    for (int r = 0; r < n; r++) {
        if (pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]) != 0)
            break;
        started++;
    }
    if (started < n) {
        char message[64];
        snprintf(message, sizeof message, "thread %d of %d could not be started", started, n);
        pthread_mutex_lock(&world->lock);
        world_abort(world, started, ULY_ERR_NO_MEMORY, message);
        pthread_mutex_unlock(&world->lock);
    }
    for (int r = started; r < n; r++)
        group_leave(group, r);
    for (int r = 0; r < started; r++)
        pthread_join(ranks[r].thread, NULL);
}

enum uly_status uly_comm_run_threads(int n, uly_rank_fn fn, void *arg)
{
    struct world world;
    struct group *group = NULL;
    struct rank_thread *ranks = NULL;
    enum uly_status status = ULY_OK;
    ULY_FAIL_IF(n < 1, ULY_ERR_INVALID, "%d ranks asked for", n);
    ULY_TRY(world_init(&world));
    ULY_TRY_GOTO(ULY_ALLOC(&ranks, n), done);
    ULY_TRY_GOTO(group_create(&world, n, &group), done);
    for (int r = 0; r < n; r++)
        ranks[r] = (struct rank_thread){.rank = r, .group = group, .fn = fn, .arg = arg};
    run_ranks(&world, group, ranks);
    if (world.aborted)
        ULY_FAIL_GOTO(done, world.first_status, "%s", world.first_message);
done:
    while (world.groups) {
        group = world.groups;
        world.groups = group->next;
        uly_free(group->members);
        uly_free(group);
    }
    uly_free(ranks);
    pthread_cond_destroy(&world.changed);
    pthread_mutex_destroy(&world.lock);
    return status;
}
