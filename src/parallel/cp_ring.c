/* SPDX-License-Identifier: MIT
 *
 * Attention of an item over the keys of all ring ranks: its own first, then step by step those of the others, with the next
 * block in flight while this one is computed. Forward, the results over blocks are merged by their log-sum-exp in float32.
 * Backward works from the global log-sum-exp; a block's dK and dV go straight back to its owner, which adds them in the
 * order of steps, its own first.
 *
 * Without a ring there is one block: the whole sequence.
 */
#include "parallel/cp_impl.h"
#include "parallel/ring.h"

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

void uly_cp_ring_enter(struct uly_cp_attention *cp)
{
    struct uly_segment chunks[2];
    const struct uly_mesh *m = cp->mesh;
    int n = uly_layout_chunks(cp->mask->S, m->ring_size, m->ulysses_size, m->ring_rank, chunks);
    int64_t row = 0;
    for (int i = 0; i < n; i++) {
        cp->ring.chunks[i] = (struct cp_run){chunks[i].start, chunks[i].count, 0, row};
        row += chunks[i].count;
    }
    cp->ring.n_chunks = n;
}

static struct cp_heads heads_of(struct uly_cp_attention *cp, const struct uly_stage *stage)
{
    int me = cp->mesh->ulysses_rank, g = cp->options.H / cp->options.K;
    struct cp_heads heads = {.q = uly_head_plan_q(&cp->plan, stage->index, me),
                             .kv = uly_head_plan_kv(&cp->plan, stage->index, me)};
    heads.lse_first = heads.q.first - uly_head_plan_owned(&cp->plan, me).first;
    for (int i = 0; i < heads.q.count; i++)
        cp->kv_of[i] = (heads.q.first + i) / g - heads.kv.first;
    return heads;
}

/* ------------------------------------------------------------------ blocks */

static struct cp_block own_block(const struct uly_cp_attention *cp, const struct cp_heads *h)
{
    struct cp_block b = {.k = cp->k,
                         .v = cp->v,
                         .dk = cp->dk,
                         .dv = cp->dv,
                         .first = h->kv.first,
                         .modulo = cp->plan.n_slots,
                         .block_rows = cp->joined,
                         .n_runs = cp->ring.n_chunks};
    for (int i = 0; i < b.n_runs; i++)
        b.runs[i] = cp->ring.chunks[i];
    return b;
}

static int ring_rank(const struct uly_cp_attention *cp, int steps)
{
    int size = cp->mesh->ring_size;
    return ((cp->mesh->ring_rank + steps) % size + size) % size;
}

/* What this rank receives at a step: dense blocks of the rows that it sees. */
static struct cp_block block_at(const struct uly_cp_attention *cp, int step)
{
    const struct uly_mesh *m = cp->mesh;
    struct uly_segment seen[2];
    int i = step % 2;
    struct cp_block b = {
        .k = cp->ring.k[i], .v = cp->ring.v[i], .dk = cp->ring.dk[i], .dv = cp->ring.dv[i]};
    b.n_runs = uly_ring_visible(cp->mask, m->ring_size, m->ulysses_size, m->ring_rank,
                                ring_rank(cp, -step), seen);
    for (int r = 0; r < b.n_runs; r++) {
        b.runs[r] = (struct cp_run){seen[r].start, seen[r].count, 0, b.block_rows};
        b.block_rows += seen[r].count;
    }
    return b;
}

/* Which of this rank's rows rank i + step sees; home_row counts in k and v, lane_row in the message. */
static int given_at(const struct uly_cp_attention *cp, int step, struct cp_run out[2],
                    int64_t *rows)
{
    const struct uly_mesh *m = cp->mesh;
    struct uly_segment seen[2];
    int n = uly_ring_visible(cp->mask, m->ring_size, m->ulysses_size, ring_rank(cp, step),
                             m->ring_rank, seen);
    *rows = 0;
    for (int i = 0; i < n; i++) {
        const struct cp_run *chunk = &cp->ring.chunks[0];
        if (seen[i].start >= chunk->token + chunk->count)
            chunk++;
        out[i] = (struct cp_run){seen[i].start, seen[i].count, *rows,
                                 chunk->home_row + seen[i].start - chunk->token};
        *rows += seen[i].count;
    }
    return n;
}

/* ------------------------------------------------------------------ blocks on the move */

/* The rows of one run of every head: from slots to dense blocks of rank i + step, and from rank i - step to dense blocks.
 * Ranks may have different numbers of runs, so both are always described, one of them perhaps empty. */
static void add_key_parts(struct uly_cp_attention *cp, const struct cp_heads *h, int step,
                          struct uly_tensor from, struct uly_tensor to)
{
    struct cp_run given[2];
    struct cp_block block = block_at(cp, step);
    int64_t rows, D = cp->options.D;
    int n = given_at(cp, step, given, &rows), to_rank = ring_rank(cp, step);
    int from_rank = ring_rank(cp, -step), slots = cp->plan.n_slots;
    for (int j = 0; j < h->kv.count; j++)
        for (int r = 0; r < 2; r++) {
            struct cp_part p = uly_cp_add_part(&cp->ring.keys, from, to);
            int64_t slot = (h->kv.first + j) % slots;
            if (r < n) {
                p.send_offset[to_rank] = (slot * cp->joined + given[r].home_row) * D;
                p.send_count[to_rank] = given[r].count * D;
            }
            if (r < block.n_runs) {
                p.recv_offset[from_rank] = (j * block.block_rows + block.runs[r].home_row) * D;
                p.recv_count[from_rank] = block.runs[r].count * D;
            }
        }
}

static enum uly_status start_keys(struct uly_cp_attention *cp, const struct cp_heads *h, int step)
{
    int i = step % 2;
    add_key_parts(cp, h, step, cp->k, cp->ring.k[i]);
    add_key_parts(cp, h, step, cp->v, cp->ring.v[i]);
    return uly_cp_exchange_start(cp->mesh->ring, &cp->ring.keys, "k v around the ring");
}

/* Contributions to the block of a step go back to its owner, all heads in one message each. */
static enum uly_status start_gradients(struct uly_cp_attention *cp, const struct cp_heads *h,
                                       int step)
{
    struct cp_ring *ring = &cp->ring;
    struct cp_run given[2];
    struct cp_block block = block_at(cp, step);
    int64_t rows, width = h->kv.count * cp->options.D;
    (void)given_at(cp, step, given, &rows);
    for (int i = 0; i < 2; i++) {
        struct cp_part p = i == 0 ? uly_cp_add_part(&ring->gradients, block.dk, ring->dk_came)
                                  : uly_cp_add_part(&ring->gradients, block.dv, ring->dv_came);
        p.send_count[ring_rank(cp, -step)] = block.block_rows * width;
        p.recv_count[ring_rank(cp, step)] = rows * width;
    }
    return uly_cp_exchange_start(cp->mesh->ring, &ring->gradients, "dk dv around the ring");
}

static enum uly_status add_run(struct uly_cp_attention *cp, struct uly_tensor came,
                               int64_t came_row, struct uly_tensor own, int64_t own_row,
                               int64_t rows)
{
    int64_t D = cp->options.D;
    return uly_add(cp->be, uly_tensor_rows(came, came_row * D, rows * D),
                   uly_tensor_rows(own, own_row * D, rows * D));
}

/* Waits for the contributions of a step and adds them to the resident dK and dV. */
static enum uly_status take_gradients(struct uly_cp_attention *cp, const struct cp_heads *h,
                                      int step)
{
    struct cp_run given[2];
    int64_t rows;
    int n = given_at(cp, step, given, &rows);
    ULY_TRY(uly_cp_exchange_wait(cp->mesh->ring, &cp->ring.gradients));
    for (int j = 0; j < h->kv.count; j++)
        for (int r = 0; r < n; r++) {
            int64_t slot = (h->kv.first + j) % cp->plan.n_slots;
            int64_t own = slot * cp->joined + given[r].home_row, at = j * rows + given[r].lane_row;
            ULY_TRY(add_run(cp, cp->ring.dk_came, at, cp->dk, own, given[r].count));
            ULY_TRY(add_run(cp, cp->ring.dv_came, at, cp->dv, own, given[r].count));
        }
    return ULY_OK;
}

/* ------------------------------------------------------------------ one block */

/* Whether some query of a run sees some key of another. */
static bool sees(const struct uly_cp_attention *cp, const struct cp_run *q, const struct cp_run *k)
{
    int64_t first = max64(uly_mask_lo(cp->mask, q->token), k->token);
    return first < min64(q->token + q->count, k->token + k->count);
}

static bool holds(const struct cp_run *k, const struct cp_run *q)
{
    return k->token <= q->token && q->token < k->token + k->count;
}

static struct uly_heads block_view(const struct uly_cp_attention *cp, int view, struct uly_tensor t,
                                   const struct cp_block *b, const struct cp_run *k, int n_kv)
{
    return uly_cp_view(cp, view, t, b->first, n_kv, b->modulo, b->block_rows, k->home_row, k->count,
                       cp->options.D);
}

static enum uly_status pair_forward(struct uly_cp_attention *cp, const struct cp_heads *h,
                                    const struct cp_run *q, const struct cp_block *b,
                                    const struct cp_run *k, const struct cp_lane *lane,
                                    struct uly_tensor out, struct uly_tensor lse, bool merge)
{
    int n = h->q.count, D = cp->options.D;
    int64_t lane_rows = cp->slice.lane_rows;
    return uly_attention_fwd(
        cp->be, &(struct uly_attention_fwd_args){
                    .q = uly_cp_view(cp, 0, lane->q, 0, n, 0, lane_rows, q->lane_row, q->count, D),
                    .k = block_view(cp, 1, b->k, b, k, h->kv.count),
                    .v = block_view(cp, 2, b->v, b, k, h->kv.count),
                    .o = uly_cp_view(cp, 3, out, 0, n, 0, lane_rows, q->lane_row, q->count, D),
                    .lse = uly_cp_view(cp, 4, lse, h->lse_first, n, 0, cp->joined, q->home_row,
                                       q->count, 1),
                    .kv_of = cp->kv_of,
                    .mask = cp->mask,
                    .q_first = q->token,
                    .k_first = k->token,
                    .scale = cp->options.scale,
                    .merge = merge});
}

/* A query's own key is in this rank's own block, so the run that holds a run of queries gives all of them a first result,
 * and every other one is merged. */
static enum uly_status block_forward(struct uly_cp_attention *cp, const struct cp_heads *h,
                                     const struct cp_block *b, const struct cp_lane *lane,
                                     struct uly_tensor out, struct uly_tensor lse, bool own)
{
    for (int i = 0; i < cp->slice.n_runs && h->q.count > 0; i++) {
        const struct cp_run *q = &cp->slice.runs[i];
        for (int r = 0; r < b->n_runs && own; r++)
            if (holds(&b->runs[r], q))
                ULY_TRY(pair_forward(cp, h, q, b, &b->runs[r], lane, out, lse, false));
        for (int r = 0; r < b->n_runs; r++)
            if (!(own && holds(&b->runs[r], q)) && sees(cp, q, &b->runs[r]))
                ULY_TRY(pair_forward(cp, h, q, b, &b->runs[r], lane, out, lse, true));
    }
    return ULY_OK;
}

static enum uly_status pair_backward(struct uly_cp_attention *cp, const struct cp_heads *h,
                                     const struct cp_run *q, const struct cp_block *b,
                                     const struct cp_run *k, const struct cp_lane *lane,
                                     struct uly_tensor lse)
{
    int n = h->q.count, D = cp->options.D;
    int64_t lane_rows = cp->slice.lane_rows;
    return uly_attention_bwd(
        cp->be,
        &(struct uly_attention_bwd_args){
            .q = uly_cp_view(cp, 0, lane->q, 0, n, 0, lane_rows, q->lane_row, q->count, D),
            .k = block_view(cp, 1, b->k, b, k, h->kv.count),
            .v = block_view(cp, 2, b->v, b, k, h->kv.count),
            .d_o = uly_cp_view(cp, 3, lane->d_o, 0, n, 0, lane_rows, q->lane_row, q->count, D),
            .lse =
                uly_cp_view(cp, 4, lse, h->lse_first, n, 0, cp->joined, q->home_row, q->count, 1),
            .delta = uly_cp_view(cp, 5, lane->delta, 0, n, 0, lane_rows, q->lane_row, q->count, 1),
            .dq = uly_cp_view(cp, 6, lane->acc, 0, n, 0, lane_rows, q->lane_row, q->count, D),
            .dk = block_view(cp, 7, b->dk, b, k, h->kv.count),
            .dv = block_view(cp, 8, b->dv, b, k, h->kv.count),
            .kv_of = cp->kv_of,
            .mask = cp->mask,
            .q_first = q->token,
            .k_first = k->token,
            .scale = cp->options.scale});
}

static enum uly_status block_backward(struct uly_cp_attention *cp, const struct cp_heads *h,
                                      const struct cp_block *b, const struct cp_lane *lane,
                                      struct uly_tensor lse)
{
    for (int i = 0; i < cp->slice.n_runs && h->q.count > 0; i++)
        for (int r = 0; r < b->n_runs; r++)
            if (sees(cp, &cp->slice.runs[i], &b->runs[r]))
                ULY_TRY(pair_backward(cp, h, &cp->slice.runs[i], b, &b->runs[r], lane, lse));
    return ULY_OK;
}

/* ------------------------------------------------------------------ around the ring */

/* A serial schedule has room for one block, and fetches it after the one before was used. */
static bool fetches_ahead(const struct uly_cp_attention *cp, int step)
{
    return !cp->options.serial && step < cp->mesh->ring_size;
}

/* Makes the keys of a step's block ready, and sets out for the next one. */
static enum uly_status turn(struct uly_cp_attention *cp, const struct cp_heads *h, int step)
{
    if (step > 0 && cp->options.serial)
        ULY_TRY(start_keys(cp, h, step));
    if (step > 0)
        ULY_TRY(uly_cp_exchange_wait(cp->mesh->ring, &cp->ring.keys));
    return fetches_ahead(cp, step + 1) ? start_keys(cp, h, step + 1) : ULY_OK;
}

enum uly_status uly_cp_attend(struct uly_cp_attention *cp, const struct uly_stage *stage, int tile,
                              struct cp_lane *lane, struct uly_tensor lse)
{
    struct cp_heads h = heads_of(cp, stage);
    bool partial = cp->mesh->ring_size > 1 && cp_rounds(cp);
    struct uly_tensor out = partial ? lane->acc : lane->out;
    uly_cp_enter_tile(cp, tile);
    for (int step = 0; step < cp->mesh->ring_size; step++) {
        ULY_TRY(turn(cp, &h, step));
        struct cp_block block = step == 0 ? own_block(cp, &h) : block_at(cp, step);
        ULY_TRY(block_forward(cp, &h, &block, lane, out, lse, step == 0));
    }
    if (!partial)
        return ULY_OK;
    int64_t n = h.q.count * cp->slice.lane_rows * cp->options.D;
    return uly_cast(cp->be, uly_tensor_rows(lane->acc, 0, n), uly_tensor_rows(lane->out, 0, n));
}

static enum uly_status clear(struct uly_cp_attention *cp, struct uly_tensor t, int64_t n)
{
    return uly_fill(cp->be, uly_tensor_rows(t, 0, n), 0);
}

enum uly_status uly_cp_attend_backward(struct uly_cp_attention *cp, const struct uly_stage *stage,
                                       int tile, struct cp_lane *lane, struct uly_tensor lse)
{
    struct cp_heads h = heads_of(cp, stage);
    int64_t D = cp->options.D;
    int Pr = cp->mesh->ring_size;
    uly_cp_enter_tile(cp, tile);
    ULY_TRY(clear(cp, lane->acc, h.q.count * cp->slice.lane_rows * D));
    for (int step = 0; step < Pr; step++) {
        ULY_TRY(turn(cp, &h, step));
        struct cp_block block = step == 0 ? own_block(cp, &h) : block_at(cp, step);
        if (step > 0) {
            ULY_TRY(clear(cp, block.dk, h.kv.count * block.block_rows * D));
            ULY_TRY(clear(cp, block.dv, h.kv.count * block.block_rows * D));
        }
        ULY_TRY(block_backward(cp, &h, &block, lane, lse));
        if (step > 1 && !cp->options.serial)
            ULY_TRY(take_gradients(cp, &h, step - 1));
        if (step > 0)
            ULY_TRY(start_gradients(cp, &h, step));
        if (step > 0 && (cp->options.serial || step == Pr - 1))
            ULY_TRY(take_gradients(cp, &h, step));
    }
    return ULY_OK;
}
