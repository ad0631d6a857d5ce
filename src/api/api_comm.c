/* SPDX-License-Identifier: MIT
 *
 * Communicators and the layout, as the public library shows them.
 */
#include <limits.h>

#include "api/api_impl.h"
#include "base/mem.h"
#include "parallel/layout.h"

/* ------------------------------------------------------------------ communicator */

/* Wraps comm, which is destroyed where that fails. */
static enum uly_status wrap(struct uly_comm *comm, struct ulysses_comm **out)
{
    struct ulysses_comm *handle;
    enum uly_status status = ULY_ALLOC(&handle, 1);
    if (status != ULY_OK) {
        uly_comm_destroy(comm);
        return status;
    }
    handle->comm = comm;
    *out = handle;
    return ULY_OK;
}

static enum uly_status make(enum uly_status (*maker)(struct uly_comm **), struct ulysses_comm **out)
{
    struct uly_comm *comm;
    ULY_FAIL_IF(!out, ULY_ERR_INVALID, "out is NULL");
    ULY_TRY(maker(&comm));
    return wrap(comm, out);
}

enum ulysses_status ulysses_comm_self(struct ulysses_comm **out)
{
    return uly_api_status(make(uly_comm_self, out));
}

enum ulysses_status ulysses_comm_world(struct ulysses_comm **out)
{
    return uly_api_status(make(uly_comm_mpi, out));
}

struct thread_job {
    ulysses_rank_fn fn;
    void *arg;
};

static enum uly_status thread_rank(struct uly_comm *comm, void *arg)
{
    const struct thread_job *job = arg;
    struct ulysses_comm handle = {.comm = comm, .borrowed = true};
    enum uly_status status = (enum uly_status)job->fn(&handle, job->arg);
    /* the caller's function may end in an error of its own, of which nothing was recorded */
    ULY_FAIL_IF(status != ULY_OK && uly_error_status() != status, status,
                "the function of rank %d returned \"%s\"", uly_comm_rank(comm),
                uly_status_text(status));
    return status;
}

static enum uly_status run_threads(int n, ulysses_rank_fn fn, void *arg)
{
    struct thread_job job = {fn, arg};
    ULY_FAIL_IF(!fn, ULY_ERR_INVALID, "fn is NULL");
    return uly_comm_run_threads(n, thread_rank, &job);
}

enum ulysses_status ulysses_comm_run_threads(int n, ulysses_rank_fn fn, void *arg)
{
    return uly_api_status(run_threads(n, fn, arg));
}

static enum uly_status split(struct ulysses_comm *comm, int color, int key,
                             struct ulysses_comm **out)
{
    struct uly_comm *part = NULL;
    ULY_FAIL_IF(!comm || !out, ULY_ERR_INVALID, "comm or out is NULL");
    ULY_TRY(uly_comm_split(comm->comm, color, key, &part));
    return wrap(part, out);
}

enum ulysses_status ulysses_comm_split(struct ulysses_comm *comm, int color, int key,
                                       struct ulysses_comm **out)
{
    return uly_api_status(split(comm, color, key, out));
}

void ulysses_comm_destroy(struct ulysses_comm *comm)
{
    if (!comm || comm->borrowed)
        return;
    uly_comm_destroy(comm->comm);
    uly_free(comm);
}

void ulysses_comm_abort(struct ulysses_comm *comm, int exit_status)
{
    uly_comm_abort(comm->comm, exit_status);
}

int ulysses_comm_rank(const struct ulysses_comm *comm)
{
    return comm ? uly_comm_rank(comm->comm) : 0;
}

int ulysses_comm_size(const struct ulysses_comm *comm)
{
    return comm ? uly_comm_size(comm->comm) : 0;
}

void ulysses_comm_set_timeout(struct ulysses_comm *comm, double seconds)
{
    if (comm)
        uly_comm_set_timeout(comm->comm, seconds);
}

/* ------------------------------------------------------------------ layout */

static enum uly_status check_sizes(int64_t S, int ring_size, int ulysses_size)
{
    ULY_FAIL_IF(S < 0, ULY_ERR_INVALID, "a sequence of %lld tokens", (long long)S);
    ULY_FAIL_IF(ring_size < 1 || ulysses_size < 1 || ring_size > INT_MAX / 2 / ulysses_size,
                ULY_ERR_INVALID, "ring size %d x ulysses size %d: both are at least 1", ring_size,
                ulysses_size);
    return ULY_OK;
}

static enum uly_status layout(int64_t S, int ring_size, int ulysses_size, int rank,
                              struct ulysses_shard *out)
{
    struct uly_segment segment[2];
    struct ulysses_shard shard = {0};
    ULY_TRY(check_sizes(S, ring_size, ulysses_size));
    ULY_FAIL_IF(rank < 0 || rank >= ring_size * ulysses_size, ULY_ERR_INVALID, "rank %d of %d",
                rank, ring_size * ulysses_size);
    ULY_FAIL_IF(!out, ULY_ERR_INVALID, "out is NULL");
    shard.n_segments =
        uly_layout(S, ring_size, ulysses_size, rank / ulysses_size, rank % ulysses_size, segment);
    for (int i = 0; i < shard.n_segments; i++) {
        shard.segment[i] = (struct ulysses_segment){segment[i].start, segment[i].count};
        shard.tokens += segment[i].count;
    }
    *out = shard;
    return ULY_OK;
}

enum ulysses_status ulysses_layout(int64_t S, int ring_size, int ulysses_size, int rank,
                                   struct ulysses_shard *out)
{
    return uly_api_status(layout(S, ring_size, ulysses_size, rank, out));
}

static enum uly_status layout_most(int64_t max_tokens, int ring_size, int ulysses_size,
                                   int64_t *out)
{
    ULY_TRY(check_sizes(max_tokens, ring_size, ulysses_size));
    ULY_FAIL_IF(!out, ULY_ERR_INVALID, "out is NULL");
    *out = uly_layout_max_count(max_tokens, ring_size, ulysses_size);
    return ULY_OK;
}

enum ulysses_status ulysses_layout_most(int64_t max_tokens, int ring_size, int ulysses_size,
                                        int64_t *out)
{
    return uly_api_status(layout_most(max_tokens, ring_size, ulysses_size, out));
}
