/* SPDX-License-Identifier: MIT
 *
 * The stage loop. Buffers are flat tensors; a block is found by arithmetic on (entry or slot, row),
 * written down once in block_of, tile_view and add_parts.
 */
#include "parallel/cp_attention.h"

#include <string.h>

#include "base/mem.h"
#include "parallel/layout.h"
#include "parallel/stage.h"

enum { N_VIEWS = 9 }; /* views alive at once: the backward of attention */

struct uly_cp_attention {
    struct uly_cp_options options;
    struct uly_mesh *mesh;
    struct uly_backend *be;
    struct uly_head_plan plan;
    struct uly_stage *stages; /* owned, plan.n_stages */
    /* token side, [entries * s * D]; absent on one ulysses rank */
    struct uly_tensor tok_q, tok_k, tok_v, tok_do, tok_delta, tok_dk, tok_dv;
    /* head side, [heads * S * D] (delta [heads * S]) */
    struct uly_tensor q, k, v, out, d_o, delta, dq, dk, dv;
    struct uly_tensor dk_home, dv_home; /* dk, dv rounded for the way home, where no sum follows */
    /* of the micro-batch at hand */
    int64_t S, s;
    int64_t *tok_first,
        *tok_count; /* [Pu] where each rank's tokens lie in the sequence; owned, one block */
    /* room for the arguments of one call, owned */
    int most_entries;
    int64_t *view_ints; /* [N_VIEWS, 2, most_entries] */
    int *kv_of;         /* [most_entries] */
    struct uly_part *parts;
    int64_t *part_ints; /* [max_parts, 4, Pu] */
    int n_parts, max_parts;
};

/* ------------------------------------------------------------------ making it */

struct entry_sizes {
    int q, kv;           /* entries of a stage, all ranks */
    int q_mine, kv_mine; /* of the rank that has most */
};

static int larger(int a, int b)
{
    return a > b ? a : b;
}

static struct entry_sizes measure_entries(const struct uly_head_plan *plan,
                                          const struct uly_stage *stages)
{
    struct entry_sizes most = {0};
    for (int t = 0; t < plan->n_stages; t++) {
        const struct uly_head_entries *kv_new = &stages[t].kv_new, *kv_done = &stages[t].kv_done;
        most.q = larger(most.q, stages[t].q.n);
        most.kv = larger(most.kv, larger(kv_new->n, kv_done->n));
        most.q_mine = larger(most.q_mine, uly_entries_most(&stages[t].q, plan->Pu));
        most.kv_mine = larger(most.kv_mine, larger(uly_entries_most(kv_new, plan->Pu),
                                                   uly_entries_most(kv_done, plan->Pu)));
    }
    return most;
}

static enum uly_dtype acc_of(enum uly_dtype model)
{
    return model == ULY_DTYPE_F64 ? ULY_DTYPE_F64 : ULY_DTYPE_F32;
}

static enum uly_status flat(struct uly_memory *memory, enum uly_life life, const char *name,
                            enum uly_dtype dtype, int64_t blocks, int64_t rows, int64_t dim,
                            struct uly_tensor *out)
{
    ULY_TRY(uly_tensor_new(&memory->arena[life], name, dtype, 3, blocks, rows, dim, out));
    *out = uly_tensor_reshape(*out, 1, blocks * rows * dim, 1, 1);
    return ULY_OK;
}

static enum uly_status make_token_side(struct uly_cp_attention *cp, struct entry_sizes most,
                                       struct uly_memory *memory)
{
    const struct uly_cp_options *o = &cp->options;
    int64_t s = uly_layout_max_count(o->max_tokens, 1, cp->plan.Pu), D = o->D;
    enum uly_life life = ULY_LIFE_COMM;
    enum uly_dtype acc = acc_of(o->model), home = uly_cp_dkv_dtype(cp);
    if (cp->plan.Pu == 1)
        return ULY_OK;
    ULY_TRY(flat(memory, life, "q to send", o->model, most.q, s, D, &cp->tok_q));
    ULY_TRY(flat(memory, life, "k to send", o->model, most.kv, s, D, &cp->tok_k));
    ULY_TRY(flat(memory, life, "v to send", o->model, most.kv, s, D, &cp->tok_v));
    if (!o->training)
        return ULY_OK;
    ULY_TRY(flat(memory, life, "dO to send", o->model, most.q, s, D, &cp->tok_do));
    ULY_TRY(flat(memory, life, "delta to send", acc, most.q, s, 1, &cp->tok_delta));
    ULY_TRY(flat(memory, life, "dk come home", home, most.kv, s, D, &cp->tok_dk));
    return flat(memory, life, "dv come home", home, most.kv, s, D, &cp->tok_dv);
}

static enum uly_status make_head_side(struct uly_cp_attention *cp, struct entry_sizes most,
                                      struct uly_memory *memory)
{
    const struct uly_cp_options *o = &cp->options;
    int64_t S = o->max_tokens, D = o->D, n = most.q_mine, slots = cp->plan.n_slots;
    enum uly_life life = ULY_LIFE_ACTIVATIONS;
    enum uly_dtype acc = acc_of(o->model);
    ULY_TRY(flat(memory, life, "stage q", o->model, n, S, D, &cp->q));
    ULY_TRY(flat(memory, life, "resident k", o->model, slots, S, D, &cp->k));
    ULY_TRY(flat(memory, life, "resident v", o->model, slots, S, D, &cp->v));
    ULY_TRY(flat(memory, life, "stage o, later dq", o->model, n, S, D, &cp->out));
    if (!o->training)
        return ULY_OK;
    ULY_TRY(flat(memory, life, "stage dO", o->model, n, S, D, &cp->d_o));
    ULY_TRY(flat(memory, life, "stage delta", acc, n, S, 1, &cp->delta));
    ULY_TRY(flat(memory, life, "stage dQ", acc, n, S, D, &cp->dq));
    ULY_TRY(flat(memory, life, "resident dK", acc, slots, S, D, &cp->dk));
    ULY_TRY(flat(memory, life, "resident dV", acc, slots, S, D, &cp->dv));
    cp->dk_home = cp->dk;
    cp->dv_home = cp->dv;
    if (cp->plan.Pu == 1 || uly_cp_dkv_dtype(cp) == acc)
        return ULY_OK;
    ULY_TRY(flat(memory, life, "rounded dK", o->model, slots, S, D, &cp->dk_home));
    return flat(memory, life, "rounded dV", o->model, slots, S, D, &cp->dv_home);
}

static enum uly_status make_call_room(struct uly_cp_attention *cp, struct entry_sizes most)
{
    int Pu = cp->plan.Pu;
    cp->most_entries = larger(larger(most.q, most.kv), cp->plan.n_slots);
    cp->max_parts = 3 * most.q_mine + 2 * most.kv_mine;
    ULY_TRY(ULY_ALLOC(&cp->view_ints, (size_t)N_VIEWS * 2 * (size_t)cp->most_entries));
    ULY_TRY(ULY_ALLOC(&cp->kv_of, cp->most_entries));
    ULY_TRY(ULY_ALLOC(&cp->tok_first, 2 * (size_t)Pu));
    cp->tok_count = cp->tok_first + Pu;
    ULY_TRY(ULY_ALLOC(&cp->parts, cp->max_parts));
    ULY_TRY(ULY_ALLOC(&cp->part_ints, (size_t)cp->max_parts * 4 * (size_t)Pu));
    return uly_comm_reserve(cp->mesh->ulysses, cp->max_parts, 2);
}

enum uly_status uly_cp_create(const struct uly_cp_options *options, struct uly_mesh *mesh,
                              struct uly_backend *be, struct uly_memory *memory,
                              struct uly_cp_attention **out)
{
    struct uly_cp_attention *cp;
    enum uly_status status = ULY_OK;
    ULY_FAIL_IF(mesh->ring_size != 1, ULY_ERR_UNSUPPORTED, "ring size %d is not there yet",
                mesh->ring_size);
    ULY_FAIL_IF(options->query_tile != 0, ULY_ERR_UNSUPPORTED, "query tiles are not there yet");
    ULY_TRY(ULY_ALLOC(&cp, 1));
    cp->options = *options;
    cp->mesh = mesh;
    cp->be = be;
    ULY_TRY_GOTO(uly_head_plan_init(options->H, options->K, mesh->ulysses_size,
                                    options->heads_per_stage, &cp->plan),
                 fail);
    ULY_TRY_GOTO(uly_stages_create(&cp->plan, &cp->stages), fail);
    struct entry_sizes most = measure_entries(&cp->plan, cp->stages);
    ULY_TRY_GOTO(make_call_room(cp, most), fail);
    ULY_TRY_GOTO(make_head_side(cp, most, memory), fail);
    ULY_TRY_GOTO(make_token_side(cp, most, memory), fail);
    *out = cp;
    return ULY_OK;
fail:
    uly_cp_destroy(cp);
    return status;
}

void uly_cp_destroy(struct uly_cp_attention *cp)
{
    if (!cp)
        return;
    uly_stages_free(cp->stages, cp->plan.n_stages);
    uly_free(cp->view_ints);
    uly_free(cp->kv_of);
    uly_free(cp->tok_first);
    uly_free(cp->parts);
    uly_free(cp->part_ints);
    uly_free(cp);
}

const struct uly_head_plan *uly_cp_plan(const struct uly_cp_attention *cp)
{
    return &cp->plan;
}

int uly_cp_owned_heads(const struct uly_cp_attention *cp)
{
    return uly_head_plan_owned(&cp->plan, cp->mesh->ulysses_rank).count;
}

int64_t uly_cp_lse_elements(const struct uly_cp_attention *cp)
{
    return uly_cp_owned_heads(cp) * cp->options.max_tokens;
}

enum uly_dtype uly_cp_dkv_dtype(const struct uly_cp_attention *cp)
{
    return cp->plan.shared_kv ? acc_of(cp->options.model) : cp->options.model;
}

/* ------------------------------------------------------------------ where things lie */

/* The head-side block of an entry of this rank: q heads by their place in the stage, kv heads by
 * their slot. */
static int block_of(const struct uly_cp_attention *cp, const struct uly_head_entries *list,
                    const struct uly_stage *stage, int entry)
{
    if (list == &stage->q)
        return entry - list->first[cp->mesh->ulysses_rank];
    return list->head[entry] % cp->plan.n_slots;
}

static struct uly_heads make_view(const struct uly_cp_attention *cp, int view, struct uly_tensor t,
                                  int n, int64_t rows, int dim)
{
    int64_t *ints = cp->view_ints + (int64_t)view * 2 * cp->most_entries;
    for (int i = 0; i < n; i++)
        ints[cp->most_entries + i] = dim;
    return (struct uly_heads){t, n, rows, dim, ints, ints + cp->most_entries};
}

static int64_t *view_offsets(const struct uly_cp_attention *cp, int view)
{
    return cp->view_ints + (int64_t)view * 2 * cp->most_entries;
}

/* Rows [row, row + count) of this rank's shard for every entry of a list: on the token side, or in
 * place on one rank. */
static struct uly_heads tile_view(const struct uly_cp_attention *cp, int view,
                                  const struct uly_stage *stage,
                                  const struct uly_head_entries *list, struct uly_tensor token,
                                  struct uly_tensor head, int dim, int64_t row, int64_t count)
{
    bool alone = cp->plan.Pu == 1;
    struct uly_heads heads = make_view(cp, view, alone ? head : token, list->n, count, dim);
    int64_t *offset = view_offsets(cp, view);
    for (int e = 0; e < list->n; e++) {
        int64_t block = alone ? block_of(cp, list, stage, e) : e;
        offset[e] = (block * (alone ? cp->S : cp->s) + row) * dim;
    }
    return heads;
}

/* The whole sequence of head-side blocks first ... first + n - 1, modulo the number of blocks where
 * they are slots. */
static struct uly_heads sequence_view(const struct uly_cp_attention *cp, int view,
                                      struct uly_tensor t, int first, int n, int modulo, int dim)
{
    struct uly_heads heads = make_view(cp, view, t, n, cp->S, dim);
    int64_t *offset = view_offsets(cp, view);
    for (int i = 0; i < n; i++)
        offset[i] = (int64_t)(modulo ? (first + i) % modulo : first + i) * cp->S * dim;
    return heads;
}

static void enter_batch(struct uly_cp_attention *cp, int64_t S)
{
    int64_t at = 0;
    for (int r = 0; r < cp->plan.Pu; r++) {
        cp->tok_first[r] = at;
        cp->tok_count[r] = uly_layout_count(S, 1, cp->plan.Pu, 0, r);
        at += cp->tok_count[r];
    }
    cp->S = S;
    cp->s = cp->tok_count[cp->mesh->ulysses_rank];
}

/* ------------------------------------------------------------------ exchange */

/* One part per head that a rank may have in the list: entry i of every rank crosses in part i. The
 * counts follow from the plan alone, so all ranks have the same number of parts, some with nothing
 * in them. */
static void add_parts(struct uly_cp_attention *cp, const struct uly_stage *stage,
                      const struct uly_head_entries *list, struct uly_tensor token,
                      struct uly_tensor head, int64_t dim, bool to_heads)
{
    int Pu = cp->plan.Pu, me = cp->mesh->ulysses_rank;
    int mine = list->first[me + 1] - list->first[me], most = uly_entries_most(list, Pu);
    for (int i = 0; i < most; i++) {
        ULY_BUG_ON(cp->n_parts >= cp->max_parts);
        int64_t *tok_at = cp->part_ints + (int64_t)cp->n_parts * 4 * Pu, *tok_n = tok_at + Pu;
        int64_t *head_at = tok_n + Pu, *head_n = head_at + Pu;
        for (int r = 0; r < Pu; r++) {
            bool theirs = i < list->first[r + 1] - list->first[r];
            tok_at[r] = theirs ? (list->first[r] + i) * cp->s * dim : 0;
            tok_n[r] = theirs ? cp->s * dim : 0;
            head_n[r] = i < mine ? cp->tok_count[r] * dim : 0;
            head_at[r] = 0;
            if (i < mine)
                head_at[r] =
                    (block_of(cp, list, stage, list->first[me] + i) * cp->S + cp->tok_first[r]) *
                    dim;
        }
        cp->parts[cp->n_parts++] =
            to_heads ? (struct uly_part){token, head, tok_at, tok_n, head_at, head_n}
                     : (struct uly_part){head, token, head_at, head_n, tok_at, tok_n};
    }
}

static enum uly_status exchange(struct uly_cp_attention *cp, const char *what)
{
    return uly_exchange(cp->mesh->ulysses, what, cp->parts, cp->n_parts);
}

/* q and new k, v (and dO, delta) from token shards to whole sequences. */
static enum uly_status to_heads(struct uly_cp_attention *cp, const struct uly_stage *stage,
                                bool backward)
{
    int64_t D = cp->options.D;
    if (cp->plan.Pu == 1)
        return ULY_OK;
    cp->n_parts = 0;
    add_parts(cp, stage, &stage->q, cp->tok_q, cp->q, D, true);
    add_parts(cp, stage, &stage->kv_new, cp->tok_k, cp->k, D, true);
    add_parts(cp, stage, &stage->kv_new, cp->tok_v, cp->v, D, true);
    if (backward) {
        add_parts(cp, stage, &stage->q, cp->tok_do, cp->d_o, D, true);
        add_parts(cp, stage, &stage->q, cp->tok_delta, cp->delta, 1, true);
    }
    return exchange(cp, backward ? "q k v dO delta to heads" : "q k v to heads");
}

/* ------------------------------------------------------------------ source and sink, tile by tile
 */

static int64_t tile_rows(const struct uly_cp_attention *cp, int64_t row)
{
    int64_t left = cp->s - row;
    return left < cp->options.token_tile ? left : cp->options.token_tile;
}

static enum uly_status run_source(struct uly_cp_attention *cp, const struct uly_stage *stage,
                                  const struct uly_cp_source *source, bool backward)
{
    int D = cp->options.D;
    for (int64_t row = 0, n; row < cp->s; row += n) {
        n = tile_rows(cp, row);
        struct uly_heads q = tile_view(cp, 0, stage, &stage->q, cp->tok_q, cp->q, D, row, n);
        struct uly_heads k = tile_view(cp, 1, stage, &stage->kv_new, cp->tok_k, cp->k, D, row, n);
        struct uly_heads v = tile_view(cp, 2, stage, &stage->kv_new, cp->tok_v, cp->v, D, row, n);
        ULY_TRY(source->qkv(source->context, stage, row, n, &q, &k, &v));
        if (!backward)
            continue;
        struct uly_heads d_o = tile_view(cp, 3, stage, &stage->q, cp->tok_do, cp->d_o, D, row, n);
        struct uly_heads delta =
            tile_view(cp, 4, stage, &stage->q, cp->tok_delta, cp->delta, 1, row, n);
        ULY_TRY(source->d_out(source->context, stage, row, n, &d_o, &delta));
    }
    return ULY_OK;
}

static enum uly_status run_sink(struct uly_cp_attention *cp, const struct uly_stage *stage,
                                const struct uly_cp_sink *sink, bool backward)
{
    int D = cp->options.D;
    struct uly_tensor dq = cp->options.model == acc_of(cp->options.model) ? cp->dq : cp->out;
    for (int64_t row = 0, n; row < cp->s; row += n) {
        n = tile_rows(cp, row);
        struct uly_heads q =
            tile_view(cp, 0, stage, &stage->q, cp->tok_q, backward ? dq : cp->out, D, row, n);
        if (!backward) {
            ULY_TRY(sink->out(sink->context, stage, row, n, &q));
            continue;
        }
        ULY_TRY(sink->dq(sink->context, stage, row, n, &q));
        struct uly_heads dk =
            tile_view(cp, 1, stage, &stage->kv_done, cp->tok_dk, cp->dk_home, D, row, n);
        struct uly_heads dv =
            tile_view(cp, 2, stage, &stage->kv_done, cp->tok_dv, cp->dv_home, D, row, n);
        ULY_TRY(sink->dkv(sink->context, stage, row, n, &dk, &dv));
    }
    return ULY_OK;
}

/* ------------------------------------------------------------------ forward */

/* What one stage attends with, on this rank. */
struct stage_heads {
    struct uly_head_range q, kv;
    int lse_first; /* row of LSE of its first head */
};

static struct stage_heads heads_of(struct uly_cp_attention *cp, const struct uly_stage *stage)
{
    int me = cp->mesh->ulysses_rank, g = cp->options.H / cp->options.K;
    struct stage_heads heads = {.q = uly_head_plan_q(&cp->plan, stage->index, me),
                                .kv = uly_head_plan_kv(&cp->plan, stage->index, me)};
    heads.lse_first = heads.q.first - uly_head_plan_owned(&cp->plan, me).first;
    for (int i = 0; i < heads.q.count; i++)
        cp->kv_of[i] = (heads.q.first + i) / g - heads.kv.first;
    return heads;
}

static enum uly_status attend(struct uly_cp_attention *cp, const struct uly_stage *stage,
                              const struct uly_mask *mask, struct uly_tensor lse)
{
    struct stage_heads h = heads_of(cp, stage);
    int D = cp->options.D, n = h.q.count, slots = cp->plan.n_slots;
    if (n == 0 || cp->S == 0)
        return ULY_OK;
    return uly_attention_fwd(cp->be,
                             &(struct uly_attention_fwd_args){
                                 .q = sequence_view(cp, 0, cp->q, 0, n, 0, D),
                                 .k = sequence_view(cp, 1, cp->k, h.kv.first, h.kv.count, slots, D),
                                 .v = sequence_view(cp, 2, cp->v, h.kv.first, h.kv.count, slots, D),
                                 .o = sequence_view(cp, 3, cp->out, 0, n, 0, D),
                                 .lse = sequence_view(cp, 4, lse, h.lse_first, n, 0, 1),
                                 .kv_of = cp->kv_of,
                                 .mask = mask,
                                 .scale = cp->options.scale});
}

enum uly_status uly_cp_forward(struct uly_cp_attention *cp, const struct uly_mask *mask,
                               const struct uly_cp_source *source, const struct uly_cp_sink *sink,
                               struct uly_tensor lse)
{
    ULY_BUG_ON(mask->S > cp->options.max_tokens);
    enter_batch(cp, mask->S);
    for (int t = 0; t < cp->plan.n_stages; t++) {
        const struct uly_stage *stage = &cp->stages[t];
        ULY_TRY(run_source(cp, stage, source, false));
        ULY_TRY(to_heads(cp, stage, false));
        ULY_TRY(attend(cp, stage, mask, lse));
        if (cp->plan.Pu > 1) {
            cp->n_parts = 0;
            add_parts(cp, stage, &stage->q, cp->tok_q, cp->out, cp->options.D, false);
            ULY_TRY(exchange(cp, "o to tokens"));
        }
        ULY_TRY(run_sink(cp, stage, sink, false));
    }
    return ULY_OK;
}

/* ------------------------------------------------------------------ backward */

static struct uly_tensor slot_of(const struct uly_cp_attention *cp, struct uly_tensor t, int head)
{
    int64_t block = cp->S * cp->options.D;
    return uly_tensor_rows(t, head % cp->plan.n_slots * block, block);
}

/* dQ starts at zero in every stage, dK and dV when their head becomes resident. */
static enum uly_status clear_gradients(struct uly_cp_attention *cp, const struct uly_stage *stage)
{
    int me = cp->mesh->ulysses_rank;
    int n = uly_head_plan_q(&cp->plan, stage->index, me).count;
    struct uly_head_range kv_new = uly_head_plan_kv_new(&cp->plan, stage->index, me);
    ULY_TRY(uly_fill(cp->be, uly_tensor_rows(cp->dq, 0, n * cp->S * cp->options.D), 0));
    for (int h = kv_new.first; h < kv_new.first + kv_new.count; h++) {
        ULY_TRY(uly_fill(cp->be, slot_of(cp, cp->dk, h), 0));
        ULY_TRY(uly_fill(cp->be, slot_of(cp, cp->dv, h), 0));
    }
    return ULY_OK;
}

static enum uly_status attend_backward(struct uly_cp_attention *cp, const struct uly_stage *stage,
                                       const struct uly_mask *mask, struct uly_tensor lse)
{
    struct stage_heads h = heads_of(cp, stage);
    int D = cp->options.D, n = h.q.count, slots = cp->plan.n_slots;
    if (n == 0 || cp->S == 0)
        return ULY_OK;
    return uly_attention_bwd(
        cp->be, &(struct uly_attention_bwd_args){
                    .q = sequence_view(cp, 0, cp->q, 0, n, 0, D),
                    .k = sequence_view(cp, 1, cp->k, h.kv.first, h.kv.count, slots, D),
                    .v = sequence_view(cp, 2, cp->v, h.kv.first, h.kv.count, slots, D),
                    .d_o = sequence_view(cp, 3, cp->d_o, 0, n, 0, D),
                    .lse = sequence_view(cp, 4, lse, h.lse_first, n, 0, 1),
                    .delta = sequence_view(cp, 5, cp->delta, 0, n, 0, 1),
                    .dq = sequence_view(cp, 6, cp->dq, 0, n, 0, D),
                    .dk = sequence_view(cp, 7, cp->dk, h.kv.first, h.kv.count, slots, D),
                    .dv = sequence_view(cp, 8, cp->dv, h.kv.first, h.kv.count, slots, D),
                    .kv_of = cp->kv_of,
                    .mask = mask,
                    .scale = cp->options.scale});
}

/* Rounds what goes home in the model's dtype: dq into o's block, finished dK and dV beside. */
static enum uly_status round_gradients(struct uly_cp_attention *cp, const struct uly_stage *stage)
{
    int me = cp->mesh->ulysses_rank;
    if (cp->options.model == acc_of(cp->options.model))
        return ULY_OK;
    int64_t n = uly_head_plan_q(&cp->plan, stage->index, me).count * cp->S * cp->options.D;
    ULY_TRY(uly_cast(cp->be, uly_tensor_rows(cp->dq, 0, n), uly_tensor_rows(cp->out, 0, n)));
    if (cp->dk_home.offset == cp->dk.offset)
        return ULY_OK;
    struct uly_head_range done = uly_head_plan_kv_done(&cp->plan, stage->index, me);
    for (int h = done.first; h < done.first + done.count; h++) {
        ULY_TRY(uly_cast(cp->be, slot_of(cp, cp->dk, h), slot_of(cp, cp->dk_home, h)));
        ULY_TRY(uly_cast(cp->be, slot_of(cp, cp->dv, h), slot_of(cp, cp->dv_home, h)));
    }
    return ULY_OK;
}

static enum uly_status gradients_to_tokens(struct uly_cp_attention *cp,
                                           const struct uly_stage *stage)
{
    int64_t D = cp->options.D;
    if (cp->plan.Pu == 1)
        return ULY_OK;
    struct uly_tensor dq = cp->options.model == acc_of(cp->options.model) ? cp->dq : cp->out;
    cp->n_parts = 0;
    add_parts(cp, stage, &stage->q, cp->tok_q, dq, D, false);
    add_parts(cp, stage, &stage->kv_done, cp->tok_dk, cp->dk_home, D, false);
    add_parts(cp, stage, &stage->kv_done, cp->tok_dv, cp->dv_home, D, false);
    return exchange(cp, "dq dk dv to tokens");
}

enum uly_status uly_cp_backward(struct uly_cp_attention *cp, const struct uly_mask *mask,
                                const struct uly_cp_source *source, const struct uly_cp_sink *sink,
                                struct uly_tensor lse)
{
    ULY_BUG_ON(!cp->options.training || mask->S > cp->options.max_tokens);
    enter_batch(cp, mask->S);
    for (int t = 0; t < cp->plan.n_stages; t++) {
        const struct uly_stage *stage = &cp->stages[t];
        ULY_TRY(run_source(cp, stage, source, true));
        ULY_TRY(to_heads(cp, stage, true));
        ULY_TRY(clear_gradients(cp, stage));
        ULY_TRY(attend_backward(cp, stage, mask, lse));
        ULY_TRY(round_gradients(cp, stage));
        ULY_TRY(gradients_to_tokens(cp, stage));
        ULY_TRY(run_sink(cp, stage, sink, true));
    }
    return ULY_OK;
}
