/* SPDX-License-Identifier: MIT
 *
 * Driver of the cpu backend's attention: cuts a call into work, hands it to threads, keeps the order of sums.
 *
 * Forward. An item is a block of query rows of some query heads that read one kv head. Panels of queries start at
 * multiples of the panel's width and blocks of keys at multiples of ULY_CPU_ATTENTION_KEYS, so a query's result does not
 * depend on how panels are put together into items: items may shrink when there are many threads. Threads take items one
 * by one, the late query rows (which see most keys) first.
 *
 * Backward. A row is a block of keys of one kv head with all queries that see it: dk and dv of these keys are summed by
 * one thread, in its scratch, over query heads and queries in rising order, and added to the caller's at the end. dq gets
 * one contribution from every row; the contributions to a block of queries must be added in the order of the rows. So
 * threads take the rows in rising order, and before a thread adds to a query block it waits until the row before its own
 * has done so. That wait is rare: a row of a causal mask starts behind the row before, and both advance at one pace. So
 * one head keeps many threads busy, all five products are made once, there is no copy of dq for each thread, and the
 * sums are those of one thread, bit for bit. A wait always ends: the row waited for was taken before, by a running
 * thread, and waits only for rows before it.
 */
#include "backend/cpu/attention.h"

#include <sched.h>
#include <stdatomic.h>

#include "backend/cpu/cpu_impl.h"

enum {
    SLOTS = 8, /* states of rows in each thread's scratch: rows in flight plus room to run ahead */
    SLOT_FLOATS = 16, /* 64 bytes */
    SPINS = 200       /* looks before a waiting thread offers its core to others */
};

/* How far a row has come. */
struct row_state {
    _Atomic int64_t row;  /* -1: none yet */
    _Atomic int64_t done; /* (head, query block) numbers below it are added; INT64_MAX: all */
};
_Static_assert(sizeof(struct row_state) <= SLOT_FLOATS * sizeof(float), "a slot is a cache line");

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

int64_t uly_cpu_attention_scratch_bytes(void)
{
    /* backward, in floats, at the widest head and panel; the forward needs less (see attention_kernels.inc.h) */
    const int64_t dim = ULY_CPU_ATTENTION_MAX_DIM, lanes = ULY_CPU_ATTENTION_MAX_LANES;
    const int64_t queries = ULY_CPU_ATTENTION_Q_BLOCK;
    int64_t backward = 0;
    for (int wide = 0; wide < 2; wide++) {
        const int64_t keys = wide ? ULY_CPU_ATTENTION_K_BLOCK_WIDE : ULY_CPU_ATTENTION_K_BLOCK;
        const int64_t d = wide ? dim : dim / 2;
        backward = max64(backward, 5 * keys * d + queries * (3 * d + lanes + keys + 16));
    }
    const int64_t forward = 2 * ULY_CPU_ATTENTION_KEYS * dim + ULY_CPU_ATTENTION_KEYS * lanes +
                            2 * ULY_CPU_ATTENTION_QUERIES * dim;
    return (max64(forward, backward) + SLOTS * SLOT_FLOATS) * (int64_t)sizeof(float);
}

/* Whether the kernels here take it; the rest is for cpu:ref. */
static bool is_ours(const struct uly_heads *q)
{
    return q->dim <= ULY_CPU_ATTENTION_MAX_DIM && q->t.dtype != ULY_DTYPE_F64;
}

/* A thread's scratch for the kernels; before it lie the thread's slots. */
static float *kernel_scratch(struct uly_backend *be, int thread)
{
    return (float *)uly_cpu_scratch(be, thread) + SLOTS * SLOT_FLOATS;
}

/* Progress is made from the calling thread only, which is thread 0. */
static struct uly_cpu_attention_hooks hooks_of(struct uly_backend *be, int thread)
{
    return (struct uly_cpu_attention_hooks){.poke = thread == 0 ? be->poke : NULL,
                                            .poke_context = be->poke_context};
}

/* ------------------------------------------------------------------ forward */

/* The query heads [*head, *head + *n) of chunk number c: neighbours that read one kv head, at most `most`. False: there
 * are not so many chunks. */
static bool chunk_of(const struct uly_attention_fwd_args *a, int most, int64_t c, int *head, int *n)
{
    for (int h = 0; h < a->q.n;) {
        int end = h + 1;
        while (end < a->q.n && end - h < most && a->kv_of[end] == a->kv_of[h])
            end++;
        if (c-- == 0) {
            *head = h;
            *n = end - h;
            return true;
        }
        h = end;
    }
    return false;
}

/* Longest run of neighbouring query heads with one kv head. */
static int longest_run(const struct uly_attention_fwd_args *a)
{
    int longest = 1;
    for (int h = 1, run = 1; h < a->q.n; h++) {
        run = a->kv_of[h] == a->kv_of[h - 1] ? run + 1 : 1;
        longest = run > longest ? run : longest;
    }
    return longest;
}

struct forward_plan {
    int heads;      /* query heads of an item, at most */
    int64_t rows;   /* query rows of an item, at most */
    int64_t chunks; /* groups of query heads */
    int64_t n_items;
};

static struct forward_plan plan_forward(const struct uly_attention_fwd_args *a, int lanes,
                                        int n_threads)
{
    struct forward_plan plan = {0};
    const int most = ULY_CPU_ATTENTION_QUERIES / lanes, longest = longest_run(a);
    int head, n;
    plan.heads = longest < most ? longest : most;
    plan.rows = most / plan.heads * lanes;
    while (chunk_of(a, plan.heads, plan.chunks, &head, &n))
        plan.chunks++;
    for (;; plan.rows -= lanes) {
        plan.n_items = plan.chunks * ((a->q.rows + plan.rows - 1) / plan.rows);
        if (plan.rows <= lanes || plan.n_items >= 4 * (int64_t)n_threads)
            return plan;
    }
}

struct forward_job {
    struct uly_backend *be;
    const struct uly_cpu_attention_kernels *kernels;
    const struct uly_attention_fwd_args *args;
    struct forward_plan plan;
    _Atomic int64_t next;
};

/* A thread's share: items until none is left. */
static void forward_share(void *context, int64_t share, int thread)
{
    (void)share;
    struct forward_job *job = context;
    const struct forward_plan plan = job->plan;
    const struct uly_cpu_attention_hooks hooks = hooks_of(job->be, thread);
    for (;;) {
        const int64_t i = atomic_fetch_add(&job->next, 1);
        if (i >= plan.n_items)
            return;
        const int64_t block = plan.n_items / plan.chunks - 1 - i / plan.chunks;
        struct uly_cpu_attention_item item = {.row = block * plan.rows};
        const int64_t left = job->args->q.rows - item.row;
        item.rows = left < plan.rows ? left : plan.rows;
        chunk_of(job->args, plan.heads, i % plan.chunks, &item.head, &item.n_heads);
        job->kernels->forward(job->args, &item, &hooks, kernel_scratch(job->be, thread));
    }
}

enum uly_status uly_cpu_attention_fwd(struct uly_backend *be,
                                      const struct uly_cpu_attention_kernels *kernels,
                                      const struct uly_attention_fwd_args *args)
{
    if (!is_ours(&args->q))
        return uly_cpu_of(be)->ref.attention_fwd(be, args);
    struct forward_job job = {.be = be, .kernels = kernels, .args = args};
    job.plan = plan_forward(args, kernels->lanes, be->n_threads);
    uly_cpu_for(be, be->n_threads, forward_share, &job);
    return ULY_OK;
}

/* ------------------------------------------------------------------ backward */

void uly_cpu_attention_queries_of(const struct uly_attention_bwd_args *args, int64_t key,
                                  int64_t keys, int64_t *first, int64_t *end)
{
    const int64_t last_key = args->k_first + key + keys - 1;
    *first = max64(args->k_first + key - args->q_first, 0);
    int64_t low = *first,
            high = args->q.rows; /* the first query in between that starts after the keys */
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (uly_mask_lo(args->mask, args->q_first + middle) > last_key)
            high = middle;
        else
            low = middle + 1;
    }
    *end = low;
}

/* The backward of one call, shared by its threads. */
struct backward_job {
    struct uly_backend *be;
    const struct uly_cpu_attention_kernels *kernels;
    const struct uly_attention_bwd_args *args;
    int64_t n_rows;
    int64_t keys;   /* of a row, at most */
    int64_t per_kv; /* rows of a kv head */
    int64_t q_blocks;
    _Atomic int64_t next;
};

/* What a thread's hooks need to know of its row. */
struct row_order {
    struct row_state *mine, *before; /* before: NULL for the first keys of a kv head */
    int64_t row, q_blocks;
    int64_t first, end; /* query blocks that the row before adds to */
};

static struct row_state *row_slot(struct uly_backend *be, int64_t row)
{
    float *slots = uly_cpu_scratch(be, (int)(row % be->n_threads));
    return (struct row_state *)(void *)(slots + row / be->n_threads % SLOTS * SLOT_FLOATS);
}

static void spin(int *spins)
{
    if (++*spins > SPINS)
        sched_yield();
}

static void wait_for_row_before(void *context, int head, int64_t q_block)
{
    const struct row_order *order = context;
    if (!order->before || q_block < order->first || q_block >= order->end)
        return;
    for (int spins = 0;; spin(&spins)) {
        const int64_t row = atomic_load_explicit(&order->before->row, memory_order_acquire);
        if (row >= order->row) /* the slot went to a later row: this one is finished */
            return;
        if (row == order->row - 1 &&
            atomic_load_explicit(&order->before->done, memory_order_acquire) >
                head * order->q_blocks + q_block)
            return;
    }
}

static void row_advanced(void *context, int head, int64_t q_block)
{
    const struct row_order *order = context;
    atomic_store_explicit(&order->mine->done, head * order->q_blocks + q_block + 1,
                          memory_order_release);
}

/* Takes the next row; false: none is left. */
static bool take_row(struct backward_job *job, struct row_order *order)
{
    order->row = atomic_fetch_add(&job->next, 1);
    if (order->row >= job->n_rows)
        return false;
    order->q_blocks = job->q_blocks;
    order->mine = row_slot(job->be, order->row);
    for (int spins = 0;; spin(&spins)) /* until the slot's last row is finished */
        if (atomic_load_explicit(&order->mine->done, memory_order_acquire) == INT64_MAX)
            break;
    atomic_store_explicit(&order->mine->done, 0, memory_order_relaxed);
    atomic_store_explicit(&order->mine->row, order->row, memory_order_release);
    const int64_t block = order->row % job->per_kv;
    order->before = block > 0 ? row_slot(job->be, order->row - 1) : NULL;
    if (order->before) {
        uly_cpu_attention_queries_of(job->args, (block - 1) * job->keys, job->keys, &order->first,
                                     &order->end);
        const bool none = order->first >= order->end;
        order->first /= ULY_CPU_ATTENTION_Q_BLOCK;
        order->end = none ? order->first : (order->end - 1) / ULY_CPU_ATTENTION_Q_BLOCK + 1;
    }
    return true;
}

/* A thread's share: rows until none is left. */
static void backward_share(void *context, int64_t share, int thread)
{
    (void)share;
    struct backward_job *job = context;
    struct row_order order;
    struct uly_cpu_attention_hooks hooks = hooks_of(job->be, thread);
    hooks.wait = wait_for_row_before;
    hooks.done = row_advanced;
    hooks.order = &order;
    while (take_row(job, &order)) {
        const int64_t key = order.row % job->per_kv * job->keys;
        const int64_t left = job->args->k.rows - key;
        job->kernels->backward(job->args, (int)(order.row / job->per_kv), key,
                               left < job->keys ? left : job->keys, &hooks,
                               kernel_scratch(job->be, thread));
        atomic_store_explicit(&order.mine->done, INT64_MAX, memory_order_release);
    }
}

enum uly_status uly_cpu_attention_bwd(struct uly_backend *be,
                                      const struct uly_cpu_attention_kernels *kernels,
                                      const struct uly_attention_bwd_args *args)
{
    if (!is_ours(&args->q))
        return uly_cpu_of(be)->ref.attention_bwd(be, args);
    const int64_t queries = ULY_CPU_ATTENTION_Q_BLOCK;
    struct backward_job job = {.be = be, .kernels = kernels, .args = args};
    job.keys = args->q.dim > ULY_CPU_ATTENTION_MAX_DIM / 2 ? ULY_CPU_ATTENTION_K_BLOCK_WIDE
                                                           : ULY_CPU_ATTENTION_K_BLOCK;
    job.per_kv = (args->k.rows + job.keys - 1) / job.keys;
    job.n_rows = job.per_kv * args->k.n;
    job.q_blocks = (args->q.rows + queries - 1) / queries;
    for (int64_t i = 0; i < (int64_t)be->n_threads * SLOTS; i++) {
        struct row_state *slot = row_slot(be, i);
        atomic_init(&slot->row, -1);
        atomic_init(&slot->done, INT64_MAX);
    }
    uly_cpu_for(be, be->n_threads, backward_share, &job);
    return ULY_OK;
}
