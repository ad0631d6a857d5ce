/* SPDX-License-Identifier: MIT
 *
 * Between token side and head side. Buffers are flat tensors; a block is found by arithmetic on (entry or slot, row), written
 * down once in place_of, which views and exchanges both use.
 */
#include <string.h>

#include "parallel/cp_impl.h"
#include "parallel/stage.h"

/* ------------------------------------------------------------------ where things lie */

void uly_cp_enter_tile(struct uly_cp_attention *cp, int tile)
{
    struct cp_slice *s = &cp->slice;
    int64_t first = tile * cp->tile;
    s->row = first < cp->s ? first : cp->s;
    s->lane_rows = 0;
    s->n_runs = 0;
    for (int r = 0; r < cp->plan.Pu; r++) {
        int64_t left = cp->shard_count[r] - first, at = 0;
        int64_t count = left < 0 ? 0 : left < cp->tile ? left : cp->tile;
        s->count[r] = count;
        s->lane_first[r] = s->lane_rows;
        s->home_first[r] = cp->shard_first[r] + (count > 0 ? first : 0);
        for (int i = 0; i < cp->n_shards[r] && count > 0; i++) {
            struct uly_segment g = cp->shards[2 * r + i];
            int64_t from = first > at ? first - at : 0; /* rows of the segment before the slice */
            int64_t end = first + count - at < g.count ? first + count - at : g.count;
            if (from < end) {
                int64_t home = cp->shard_first[r] + at + from;
                struct cp_run *last = s->n_runs > 0 ? &s->runs[s->n_runs - 1] : NULL;
                if (last && last->token + last->count == g.start + from &&
                    last->home_row + last->count == home)
                    last->count += end - from;
                else
                    s->runs[s->n_runs++] = (struct cp_run){
                        g.start + from, end - from, s->lane_first[r] + at + from - first, home};
            }
            at += g.count;
        }
        s->lane_rows += count;
    }
    s->rows = s->count[cp->mesh->ulysses_rank];
}

/* One kind of heads on the move. */
struct side {
    const struct uly_head_entries *list;
    struct uly_tensor token, head;
    int dim;
    bool by_slot;  /* head-side blocks are slots of kv heads, else places of query heads */
    bool resident; /* blocks hold all tokens of the ring rank, else a tile's */
};

struct place {
    int64_t block;        /* head-side block of an entry of this rank */
    int64_t rows;         /* rows of a block */
    const int64_t *first; /* [Pu] row of each rank's slice in it */
};

static struct place place_of(const struct uly_cp_attention *cp, const struct side *side, int entry)
{
    const struct uly_head_entries *list = side->list;
    int block = side->by_slot ? list->head[entry] % cp->plan.n_slots
                              : entry - list->first[cp->mesh->ulysses_rank];
    if (side->resident)
        return (struct place){block, cp->joined, cp->slice.home_first};
    return (struct place){block, cp->slice.lane_rows, cp->slice.lane_first};
}

static struct uly_heads make_view(const struct uly_cp_attention *cp, int view, struct uly_tensor t,
                                  int n, int64_t rows, int dim, int64_t **offset)
{
    int64_t *ints = cp->view_ints + (int64_t)view * 2 * cp->most_entries;
    ULY_BUG_ON(view >= CP_VIEWS || n > cp->most_entries);
    for (int i = 0; i < n; i++)
        ints[cp->most_entries + i] = dim;
    *offset = ints;
    return (struct uly_heads){t, n, rows, dim, ints, ints + cp->most_entries};
}

/* Rows [row, row + count) of this rank's shard, inside the slice, for every entry of a list: on the token side, or in
 * place on one rank. */
static struct uly_heads tile_view(const struct uly_cp_attention *cp, int view,
                                  const struct side *side, int64_t row, int64_t count)
{
    int64_t *offset, in_slice = row - cp->slice.row;
    struct uly_heads heads = make_view(cp, view, cp->alone ? side->head : side->token,
                                       side->list->n, count, side->dim, &offset);
    for (int e = 0; e < side->list->n; e++) {
        struct place p = {e, cp->slice.rows, NULL};
        if (cp->alone)
            p = place_of(cp, side, e);
        offset[e] = (p.block * p.rows + (p.first ? p.first[0] : 0) + in_slice) * side->dim;
    }
    return heads;
}

struct uly_heads uly_cp_view(const struct uly_cp_attention *cp, int view, struct uly_tensor t,
                             int first, int n, int modulo, int64_t block_rows, int64_t row,
                             int64_t rows, int dim)
{
    int64_t *offset;
    struct uly_heads heads = make_view(cp, view, t, n, rows, dim, &offset);
    for (int i = 0; i < n; i++) {
        int64_t block = modulo ? (first + i) % modulo : first + i;
        offset[i] = (block * block_rows + row) * dim;
    }
    return heads;
}

/* ------------------------------------------------------------------ exchanges */

struct cp_part uly_cp_add_part(struct cp_exchange *x, struct uly_tensor send,
                               struct uly_tensor recv)
{
    ULY_BUG_ON(x->n_parts >= x->max_parts);
    int64_t *ints = x->ints + (int64_t)x->n_parts * 4 * x->ranks;
    struct cp_part p = {ints, ints + x->ranks, ints + 2 * x->ranks, ints + 3 * x->ranks};
    memset(ints, 0, 4 * (size_t)x->ranks * sizeof *ints);
    x->parts[x->n_parts++] =
        (struct uly_part){send, recv, p.send_offset, p.send_count, p.recv_offset, p.recv_count};
    return p;
}

enum uly_status uly_cp_exchange_start(struct uly_comm *comm, struct cp_exchange *x,
                                      const char *what)
{
    ULY_TRY(uly_exchange_start(comm, what, x->parts, x->n_parts, &x->request));
    x->in_flight = true;
    return ULY_OK;
}

enum uly_status uly_cp_exchange_wait(struct uly_comm *comm, struct cp_exchange *x)
{
    if (!x->in_flight)
        return ULY_OK;
    x->in_flight = false;
    ULY_TRY(uly_exchange_wait(comm, &x->request));
    x->n_parts = 0;
    return ULY_OK;
}

/* One part per head that a rank may have in the list: entry i of every rank crosses in part i. The counts follow from the
 * plan alone, so all ranks have the same number of parts, some with nothing in them. */
static void add_parts(struct uly_cp_attention *cp, struct cp_exchange *x, const struct side *side,
                      bool to_heads)
{
    const struct uly_head_entries *list = side->list;
    int Pu = cp->plan.Pu, me = cp->mesh->ulysses_rank, most = uly_entries_most(list, Pu);
    int mine = list->first[me + 1] - list->first[me];
    for (int i = 0; i < most; i++) {
        struct cp_part p = to_heads ? uly_cp_add_part(x, side->token, side->head)
                                    : uly_cp_add_part(x, side->head, side->token);
        int64_t *tok_at = to_heads ? p.send_offset : p.recv_offset;
        int64_t *tok_n = to_heads ? p.send_count : p.recv_count;
        int64_t *head_at = to_heads ? p.recv_offset : p.send_offset;
        int64_t *head_n = to_heads ? p.recv_count : p.send_count;
        for (int r = 0; r < Pu; r++) {
            if (i < list->first[r + 1] - list->first[r]) {
                tok_at[r] = (list->first[r] + i) * cp->slice.rows * side->dim;
                tok_n[r] = cp->slice.rows * side->dim;
            }
            if (i < mine) {
                struct place at = place_of(cp, side, list->first[me] + i);
                head_at[r] = (at.block * at.rows + at.first[r]) * side->dim;
                head_n[r] = cp->slice.count[r] * side->dim;
            }
        }
    }
}

/* ------------------------------------------------------------------ to the heads */

static struct side query_side(const struct uly_cp_attention *cp, const struct uly_stage *stage,
                              struct uly_tensor token, struct uly_tensor head)
{
    return (struct side){&stage->q, token, head, cp->options.D, false, false};
}

static struct side key_side(const struct uly_cp_attention *cp, const struct uly_stage *stage,
                            struct uly_tensor token, struct uly_tensor head)
{
    return (struct side){&stage->kv_new, token, head, cp->options.D, true, true};
}

/* All sides that may be moved to the heads; enum cp_load says which are. */
struct load {
    struct side q, k, v, d_o, delta;
};

static struct load load_of(const struct uly_cp_attention *cp, const struct uly_stage *stage,
                           const struct cp_lane *lane)
{
    struct load l = {.q = query_side(cp, stage, lane->tok_q, lane->q),
                     .k = key_side(cp, stage, cp->tok_k, cp->k),
                     .v = key_side(cp, stage, cp->tok_v, cp->v),
                     .d_o = query_side(cp, stage, lane->tok_do, lane->d_o),
                     .delta = query_side(cp, stage, lane->tok_delta, lane->delta)};
    l.delta.dim = 1;
    return l;
}

static int64_t rows_from(const struct uly_cp_attention *cp, int64_t row)
{
    int64_t left = cp->slice.row + cp->slice.rows - row;
    return left < cp->options.token_tile ? left : cp->options.token_tile;
}

static enum uly_status run_source(struct uly_cp_attention *cp, const struct uly_stage *stage,
                                  const struct load *load, unsigned what,
                                  const struct uly_cp_source *source)
{
    bool queries = what & CP_QUERIES, keys = what & CP_KEYS;
    for (int64_t row = cp->slice.row, n; row < cp->slice.row + cp->slice.rows; row += n) {
        n = rows_from(cp, row);
        struct uly_heads q, k, v;
        if (queries)
            q = tile_view(cp, 0, &load->q, row, n);
        if (keys) {
            k = tile_view(cp, 1, &load->k, row, n);
            v = tile_view(cp, 2, &load->v, row, n);
        }
        ULY_TRY(source->qkv(source->context, stage, row, n, queries ? &q : NULL, keys ? &k : NULL,
                            keys ? &v : NULL));
        if (!(what & CP_OUTPUT_GRADIENT))
            continue;
        struct uly_heads d_o = tile_view(cp, 3, &load->d_o, row, n);
        struct uly_heads delta = tile_view(cp, 4, &load->delta, row, n);
        ULY_TRY(source->d_out(source->context, stage, row, n, &d_o, &delta));
    }
    return ULY_OK;
}

enum uly_status uly_cp_bring(struct uly_cp_attention *cp, const struct uly_stage *stage, int tile,
                             struct cp_lane *lane, unsigned what,
                             const struct uly_cp_source *source)
{
    struct load load = load_of(cp, stage, lane);
    uly_cp_enter_tile(cp, tile);
    ULY_TRY(run_source(cp, stage, &load, what, source));
    if (cp->alone)
        return ULY_OK;
    if (what & CP_QUERIES)
        add_parts(cp, &cp->arrive, &load.q, true);
    if (what & CP_KEYS) {
        add_parts(cp, &cp->arrive, &load.k, true);
        add_parts(cp, &cp->arrive, &load.v, true);
    }
    if (what & CP_OUTPUT_GRADIENT) {
        add_parts(cp, &cp->arrive, &load.d_o, true);
        add_parts(cp, &cp->arrive, &load.delta, true);
    }
    return uly_cp_exchange_start(cp->mesh->ulysses, &cp->arrive,
                                 what & CP_OUTPUT_GRADIENT ? "q (k v) dO delta to heads"
                                 : what & CP_QUERIES       ? "q (k v) to heads"
                                                           : "k v to heads");
}

/* ------------------------------------------------------------------ home */

static struct uly_tensor result_of(const struct uly_cp_attention *cp, const struct cp_lane *lane,
                                   bool backward)
{
    return backward && !cp_rounds(cp) ? lane->acc : lane->out;
}

static struct side gradient_side(const struct uly_cp_attention *cp, const struct uly_stage *stage,
                                 bool is_dk)
{
    struct uly_tensor rounded = is_dk ? cp->dk_round : cp->dv_round;
    bool rounds = uly_tensor_exists(&rounded);
    struct uly_tensor head = rounds ? rounded : is_dk ? cp->dk : cp->dv;
    return (struct side){
        &stage->kv_done, is_dk ? cp->tok_dk : cp->tok_dv, head, cp->options.D, true, !rounds};
}

static enum uly_status round_rows(struct uly_cp_attention *cp, struct uly_tensor from,
                                  struct uly_tensor to, int slot)
{
    int64_t D = cp->options.D;
    const struct cp_slice *s = &cp->slice;
    for (int r = 0; r < cp->plan.Pu; r++) {
        int64_t n = s->count[r] * D, home = (slot * cp->joined + s->home_first[r]) * D;
        int64_t lane = (slot * s->lane_rows + s->lane_first[r]) * D;
        ULY_TRY(uly_cast(cp->be, uly_tensor_rows(from, home, n), uly_tensor_rows(to, lane, n)));
    }
    return ULY_OK;
}

/* The slice's rows of finished dK and dV, where they are rounded before they go. */
static enum uly_status round_keys(struct uly_cp_attention *cp, const struct uly_stage *stage)
{
    struct uly_head_range done =
        uly_head_plan_kv_done(&cp->plan, stage->index, cp->mesh->ulysses_rank);
    if (!uly_tensor_exists(&cp->dk_round))
        return ULY_OK;
    for (int h = done.first; h < done.first + done.count; h++) {
        ULY_TRY(round_rows(cp, cp->dk, cp->dk_round, h % cp->plan.n_slots));
        ULY_TRY(round_rows(cp, cp->dv, cp->dv_round, h % cp->plan.n_slots));
    }
    return ULY_OK;
}

static void add_key_parts(struct uly_cp_attention *cp, const struct uly_stage *stage)
{
    struct side dk = gradient_side(cp, stage, true), dv = gradient_side(cp, stage, false);
    add_parts(cp, &cp->leave, &dk, false);
    add_parts(cp, &cp->leave, &dv, false);
}

enum uly_status uly_cp_send_home(struct uly_cp_attention *cp, const struct uly_stage *stage,
                                 int tile, const struct cp_lane *lane, const struct cp_lane *into,
                                 bool backward, bool keys)
{
    int n = uly_head_plan_q(&cp->plan, stage->index, cp->mesh->ulysses_rank).count;
    uly_cp_enter_tile(cp, tile);
    int64_t elements = n * cp->slice.lane_rows * cp->options.D;
    if (backward && cp_rounds(cp))
        ULY_TRY(uly_cast(cp->be, uly_tensor_rows(lane->acc, 0, elements),
                         uly_tensor_rows(lane->out, 0, elements)));
    if (keys)
        ULY_TRY(round_keys(cp, stage));
    if (cp->alone)
        return ULY_OK;
    struct side side = query_side(cp, stage, into->tok_q, result_of(cp, lane, backward));
    add_parts(cp, &cp->leave, &side, false);
    if (keys)
        add_key_parts(cp, stage);
    return uly_cp_exchange_start(cp->mesh->ulysses, &cp->leave,
                                 backward ? "dq (dk dv) to tokens" : "o to tokens");
}

static enum uly_status deliver_keys(struct uly_cp_attention *cp, const struct uly_stage *stage,
                                    int64_t row, int64_t n, const struct uly_cp_sink *sink)
{
    struct side dk_side = gradient_side(cp, stage, true), dv_side = gradient_side(cp, stage, false);
    struct uly_heads dk = tile_view(cp, 1, &dk_side, row, n);
    struct uly_heads dv = tile_view(cp, 2, &dv_side, row, n);
    return sink->dkv(sink->context, stage, row, n, &dk, &dv);
}

enum uly_status uly_cp_deliver(struct uly_cp_attention *cp, const struct uly_stage *stage, int tile,
                               const struct cp_lane *lane, const struct cp_lane *into,
                               bool backward, bool keys, const struct uly_cp_sink *sink)
{
    struct side side = query_side(cp, stage, into->tok_q, result_of(cp, lane, backward));
    ULY_TRY(uly_cp_exchange_wait(cp->mesh->ulysses, &cp->leave));
    uly_cp_enter_tile(cp, tile);
    for (int64_t row = cp->slice.row, n; row < cp->slice.row + cp->slice.rows; row += n) {
        n = rows_from(cp, row);
        struct uly_heads x = tile_view(cp, 0, &side, row, n);
        ULY_TRY(backward ? sink->dq(sink->context, stage, row, n, &x)
                         : sink->out(sink->context, stage, row, n, &x));
        if (keys)
            ULY_TRY(deliver_keys(cp, stage, row, n, sink));
    }
    return ULY_OK;
}

enum uly_status uly_cp_keys_home(struct uly_cp_attention *cp, const struct uly_stage *stage,
                                 const struct uly_cp_sink *sink)
{
    for (int tile = 0; tile < cp->n_tiles; tile++) {
        uly_cp_enter_tile(cp, tile);
        ULY_TRY(round_keys(cp, stage));
        if (!cp->alone) {
            add_key_parts(cp, stage);
            ULY_TRY(uly_cp_exchange_start(cp->mesh->ulysses, &cp->leave, "dk dv to tokens"));
            ULY_TRY(uly_cp_exchange_wait(cp->mesh->ulysses, &cp->leave));
        }
        for (int64_t row = cp->slice.row, n; row < cp->slice.row + cp->slice.rows; row += n) {
            n = rows_from(cp, row);
            ULY_TRY(deliver_keys(cp, stage, row, n, sink));
        }
    }
    return ULY_OK;
}
