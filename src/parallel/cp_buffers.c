/* SPDX-License-Identifier: MIT
 *
 * The buffers of the stage loop: sizes, lifetimes, and which share room.
 */
#include "base/mem.h"
#include "parallel/cp_impl.h"
#include "parallel/stage.h"

struct entry_sizes {
    int q, kv;           /* entries of a stage, all ranks */
    int q_mine, kv_mine; /* of the rank that has most */
};

static int larger(int a, int b)
{
    return a > b ? a : b;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static struct entry_sizes measure_entries(const struct uly_cp_attention *cp)
{
    struct entry_sizes most = {0};
    int Pu = cp->plan.Pu;
    for (int t = 0; t < cp->plan.n_stages; t++) {
        const struct uly_stage *stage = &cp->stages[t];
        most.q = larger(most.q, stage->q.n);
        most.kv = larger(most.kv, larger(stage->kv_new.n, stage->kv_done.n));
        most.q_mine = larger(most.q_mine, uly_entries_most(&stage->q, Pu));
        most.kv_mine = larger(most.kv_mine, larger(uly_entries_most(&stage->kv_new, Pu),
                                                   uly_entries_most(&stage->kv_done, Pu)));
    }
    return most;
}

/* Whether any two neighbouring items may be in flight together. */
static bool ever_overlaps(const struct uly_cp_attention *cp)
{
    if (cp->alone || cp->options.serial)
        return false;
    for (int t = 1; t < cp->plan.n_stages; t++)
        if (cp->stages[t].kv_new.n == 0 && cp->stages[t - 1].kv_done.n == 0)
            return true;
    return cp->tiled;
}

static enum uly_status flat(struct uly_memory *memory, enum uly_life life, const char *name,
                            enum uly_dtype dtype, int64_t blocks, int64_t rows, int64_t dim,
                            struct uly_tensor *out)
{
    ULY_TRY(uly_tensor_new(&memory->arena[life], name, dtype, 3, blocks, rows, dim, out));
    *out = uly_tensor_reshape(*out, 1, blocks * rows * dim, 1, 1);
    return ULY_OK;
}

/* ------------------------------------------------------------------ token side */

static enum uly_status make_token_lanes(struct uly_cp_attention *cp, struct entry_sizes most,
                                        struct uly_memory *memory)
{
    const struct uly_cp_options *o = &cp->options;
    for (int i = 0; i < cp->n_lanes; i++) {
        struct cp_lane *l = &cp->lanes[i];
        ULY_TRY(flat(memory, ULY_LIFE_COMM, "q to send, o to come", o->model, most.q, cp->tile,
                     o->D, &l->tok_q));
        if (!o->training)
            continue;
        ULY_TRY(flat(memory, ULY_LIFE_COMM, "dO to send", o->model, most.q, cp->tile, o->D,
                     &l->tok_do));
        ULY_TRY(flat(memory, ULY_LIFE_COMM, "delta to send", cp_acc(cp), most.q, cp->tile, 1,
                     &l->tok_delta));
    }
    return ULY_OK;
}

/* Keys on their way in and their gradients on the way home never meet, and share their room; with query tiles they do
 * not meet the lanes either. */
static enum uly_status make_token_side(struct uly_cp_attention *cp, struct entry_sizes most,
                                       struct uly_memory *memory)
{
    const struct uly_cp_options *o = &cp->options;
    struct uly_arena *arena = &memory->arena[ULY_LIFE_COMM];
    enum uly_dtype home = uly_cp_dkv_dtype(cp);
    if (cp->alone)
        return ULY_OK;
    int64_t start = uly_arena_mark(arena);
    ULY_TRY(make_token_lanes(cp, most, memory));
    int64_t lanes = uly_arena_mark(arena);
    if (cp->tiled)
        uly_arena_release(arena, start);
    start = uly_arena_mark(arena);
    ULY_TRY(
        flat(memory, ULY_LIFE_COMM, "k to send", o->model, most.kv, cp->tile, o->D, &cp->tok_k));
    ULY_TRY(
        flat(memory, ULY_LIFE_COMM, "v to send", o->model, most.kv, cp->tile, o->D, &cp->tok_v));
    int64_t keys = uly_arena_mark(arena);
    if (o->training) {
        uly_arena_release(arena, start);
        ULY_TRY(
            flat(memory, ULY_LIFE_COMM, "dk to come", home, most.kv, cp->tile, o->D, &cp->tok_dk));
        ULY_TRY(
            flat(memory, ULY_LIFE_COMM, "dv to come", home, most.kv, cp->tile, o->D, &cp->tok_dv));
    }
    uly_arena_pass(arena, keys);
    uly_arena_pass(arena, lanes);
    return ULY_OK;
}

/* ------------------------------------------------------------------ head side */

static enum uly_status make_head_lanes(struct uly_cp_attention *cp, struct entry_sizes most,
                                       int64_t R, struct uly_memory *memory)
{
    const struct uly_cp_options *o = &cp->options;
    int64_t n = most.q_mine, D = o->D;
    bool partial = cp->mesh->ring_size > 1 && cp_rounds(cp);
    for (int i = 0; i < cp->n_lanes; i++) {
        struct cp_lane *l = &cp->lanes[i];
        ULY_TRY(flat(memory, ULY_LIFE_ACTIVATIONS, "stage q", o->model, n, R, D, &l->q));
        ULY_TRY(flat(memory, ULY_LIFE_ACTIVATIONS, "stage o, dq", o->model, n, R, D, &l->out));
        if (o->training || partial)
            ULY_TRY(
                flat(memory, ULY_LIFE_ACTIVATIONS, "stage O, dQ", cp_acc(cp), n, R, D, &l->acc));
        if (!o->training)
            continue;
        ULY_TRY(flat(memory, ULY_LIFE_ACTIVATIONS, "stage dO", o->model, n, R, D, &l->d_o));
        ULY_TRY(flat(memory, ULY_LIFE_ACTIVATIONS, "stage delta", cp_acc(cp), n, R, 1, &l->delta));
    }
    return ULY_OK;
}

static enum uly_status make_head_side(struct uly_cp_attention *cp, struct entry_sizes most,
                                      struct uly_memory *memory)
{
    const struct uly_cp_options *o = &cp->options;
    struct uly_arena *arena = &memory->arena[ULY_LIFE_ACTIVATIONS];
    int64_t W = cp->max_joined, R = smaller(W, cp->plan.Pu * cp->tile);
    int64_t slots = cp->plan.n_slots, D = o->D;
    ULY_TRY(flat(memory, ULY_LIFE_ACTIVATIONS, "resident k", o->model, slots, W, D, &cp->k));
    ULY_TRY(flat(memory, ULY_LIFE_ACTIVATIONS, "resident v", o->model, slots, W, D, &cp->v));
    if (o->training) {
        ULY_TRY(
            flat(memory, ULY_LIFE_ACTIVATIONS, "resident dK", cp_acc(cp), slots, W, D, &cp->dk));
        ULY_TRY(
            flat(memory, ULY_LIFE_ACTIVATIONS, "resident dV", cp_acc(cp), slots, W, D, &cp->dv));
    }
    int64_t start = uly_arena_mark(arena);
    ULY_TRY(make_head_lanes(cp, most, R, memory));
    int64_t lanes = uly_arena_mark(arena);
    if (!o->training || cp->alone || uly_cp_dkv_dtype(cp) == cp_acc(cp))
        return ULY_OK;
    if (cp->tiled)
        uly_arena_release(arena, start);
    ULY_TRY(flat(memory, ULY_LIFE_ACTIVATIONS, "rounded dK", o->model, slots, R, D, &cp->dk_round));
    ULY_TRY(flat(memory, ULY_LIFE_ACTIVATIONS, "rounded dV", o->model, slots, R, D, &cp->dv_round));
    uly_arena_pass(arena, lanes);
    return ULY_OK;
}

static enum uly_status make_ring(struct uly_cp_attention *cp, struct uly_memory *memory)
{
    const struct uly_cp_options *o = &cp->options;
    struct cp_ring *ring = &cp->ring;
    int64_t slots = cp->plan.n_slots, W = cp->max_joined;
    if (cp->mesh->ring_size == 1)
        return ULY_OK;
    /* with two ring ranks there is one block of another rank, with more two are in flight */
    int n = cp->mesh->ring_size > 2 && !o->serial ? 2 : 1;
    for (int i = 0; i < n; i++) {
        ULY_TRY(flat(memory, ULY_LIFE_COMM, "ring k", o->model, slots, W, o->D, &ring->k[i]));
        ULY_TRY(flat(memory, ULY_LIFE_COMM, "ring v", o->model, slots, W, o->D, &ring->v[i]));
    }
    for (int i = n; i < 2; i++) {
        ring->k[i] = ring->k[0];
        ring->v[i] = ring->v[0];
    }
    if (!o->training)
        return ULY_OK;
    for (int i = 0; i < n; i++) {
        ULY_TRY(flat(memory, ULY_LIFE_COMM, "ring dK", cp_acc(cp), slots, W, o->D, &ring->dk[i]));
        ULY_TRY(flat(memory, ULY_LIFE_COMM, "ring dV", cp_acc(cp), slots, W, o->D, &ring->dv[i]));
    }
    for (int i = n; i < 2; i++) {
        ring->dk[i] = ring->dk[0];
        ring->dv[i] = ring->dv[0];
    }
    ULY_TRY(
        flat(memory, ULY_LIFE_COMM, "ring dK came", cp_acc(cp), slots, W, o->D, &ring->dk_came));
    return flat(memory, ULY_LIFE_COMM, "ring dV came", cp_acc(cp), slots, W, o->D, &ring->dv_came);
}

/* ------------------------------------------------------------------ room for arguments */

static enum uly_status make_exchange(struct cp_exchange *x, int max_parts, int ranks)
{
    x->max_parts = max_parts;
    x->ranks = ranks;
    ULY_TRY(ULY_ALLOC(&x->parts, max_parts));
    return ULY_ALLOC(&x->ints, (size_t)max_parts * 4 * (size_t)ranks);
}

static enum uly_status make_slice(struct uly_cp_attention *cp)
{
    size_t Pu = (size_t)cp->plan.Pu;
    ULY_TRY(ULY_ALLOC(&cp->slice.count, 3 * Pu));
    cp->slice.lane_first = cp->slice.count + Pu;
    cp->slice.home_first = cp->slice.lane_first + Pu;
    ULY_TRY(ULY_ALLOC(&cp->slice.runs, 2 * Pu));
    ULY_TRY(ULY_ALLOC(&cp->shard_first, 2 * Pu));
    cp->shard_count = cp->shard_first + Pu;
    ULY_TRY(ULY_ALLOC(&cp->shards, 2 * Pu));
    return ULY_ALLOC(&cp->n_shards, Pu);
}

static enum uly_status make_rooms(struct uly_cp_attention *cp, struct entry_sizes most)
{
    int Pu = cp->plan.Pu, Pr = cp->mesh->ring_size, slots = cp->plan.n_slots;
    int parts = 3 * most.q_mine + 2 * most.kv_mine;
    cp->most_entries = larger(larger(most.q, most.kv), slots);
    ULY_TRY(ULY_ALLOC(&cp->view_ints, (size_t)CP_VIEWS * 2 * (size_t)cp->most_entries));
    ULY_TRY(ULY_ALLOC(&cp->kv_of, cp->most_entries));
    ULY_TRY(make_slice(cp));
    ULY_TRY(make_exchange(&cp->arrive, parts, Pu));
    ULY_TRY(make_exchange(&cp->leave, parts, Pu));
    ULY_TRY(uly_comm_reserve(cp->mesh->ulysses, parts, 2));
    if (Pr == 1)
        return ULY_OK;
    ULY_TRY(make_exchange(&cp->ring.keys, 4 * slots, Pr)); /* k and v of two chunks a head */
    ULY_TRY(make_exchange(&cp->ring.gradients, 4 * slots, Pr));
    return uly_comm_reserve(cp->mesh->ring, 4 * slots, 2);
}

void uly_cp_free_rooms(struct uly_cp_attention *cp)
{
    struct cp_exchange *all[] = {&cp->arrive, &cp->leave, &cp->ring.keys, &cp->ring.gradients};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        uly_free(all[i]->parts);
        uly_free(all[i]->ints);
    }
    uly_free(cp->slice.count);
    uly_free(cp->slice.runs);
    uly_free(cp->shard_first);
    uly_free(cp->shards);
    uly_free(cp->n_shards);
    uly_free(cp->view_ints);
    uly_free(cp->kv_of);
}

enum uly_status uly_cp_make_buffers(struct uly_cp_attention *cp, struct uly_memory *memory)
{
    struct entry_sizes most = measure_entries(cp);
    cp->n_lanes = ever_overlaps(cp) ? 2 : 1;
    ULY_TRY(make_rooms(cp, most));
    ULY_TRY(make_head_side(cp, most, memory));
    ULY_TRY(make_token_side(cp, most, memory));
    return make_ring(cp, memory);
}
