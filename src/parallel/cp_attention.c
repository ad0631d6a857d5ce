/* SPDX-License-Identifier: MIT
 *
 * The stage loop: the order of things. What lies where is in cp_impl.h.
 */
#include "parallel/cp_attention.h"

#include "base/mem.h"
#include "parallel/cp_impl.h"
#include "parallel/stage.h"

/* ------------------------------------------------------------------ making it */

enum uly_status uly_cp_create(const struct uly_cp_options *options, struct uly_mesh *mesh,
                              struct uly_backend *be, struct uly_memory *memory,
                              struct uly_cp_attention **out)
{
    struct uly_cp_attention *cp;
    enum uly_status status = ULY_OK;
    ULY_FAIL_IF(options->query_tile < 0 || (options->query_tile > 0 && mesh->ring_size > 1),
                ULY_ERR_USAGE,
                "query-tile %lld with ring-size %d: queries go by tiles only where ring-size is 1",
                (long long)options->query_tile, mesh->ring_size);
    ULY_TRY(ULY_ALLOC(&cp, 1));
    cp->options = *options;
    cp->mesh = mesh;
    cp->be = be;
    cp->alone = mesh->ulysses_size == 1;
    cp->max_s = uly_layout_max_count(options->max_tokens, mesh->ring_size, mesh->ulysses_size);
    cp->max_joined =
        uly_layout_max_joined(options->max_tokens, mesh->ring_size, mesh->ulysses_size);
    cp->tiled = options->query_tile > 0 && options->query_tile < cp->max_s;
    cp->tile = cp->tiled ? options->query_tile : cp->max_s;
    ULY_TRY_GOTO(uly_head_plan_init(options->H, options->K, mesh->ulysses_size,
                                    options->heads_per_stage, &cp->plan),
                 fail);
    ULY_TRY_GOTO(uly_stages_create(&cp->plan, &cp->stages), fail);
    ULY_TRY_GOTO(uly_cp_make_buffers(cp, memory), fail);
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
    uly_cp_free_rooms(cp);
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
    return uly_cp_owned_heads(cp) * cp->max_joined;
}

enum uly_dtype uly_cp_dkv_dtype(const struct uly_cp_attention *cp)
{
    return cp->plan.shared_kv ? cp_acc(cp) : cp->options.model;
}

/* ------------------------------------------------------------------ a micro-batch */

static void enter_batch(struct uly_cp_attention *cp, const struct uly_mask *mask)
{
    const struct uly_mesh *m = cp->mesh;
    int64_t at = 0, most = 0;
    for (int r = 0; r < cp->plan.Pu; r++) {
        cp->n_shards[r] =
            uly_layout(mask->S, m->ring_size, m->ulysses_size, m->ring_rank, r, &cp->shards[2 * r]);
        cp->shard_first[r] = at;
        cp->shard_count[r] = 0;
        for (int i = 0; i < cp->n_shards[r]; i++)
            cp->shard_count[r] += cp->shards[2 * r + i].count;
        at += cp->shard_count[r];
        most = cp->shard_count[r] > most ? cp->shard_count[r] : most;
    }
    cp->mask = mask;
    cp->joined = at;
    cp->s = cp->shard_count[m->ulysses_rank];
    cp->n_tiles = most > cp->tile ? (int)((most + cp->tile - 1) / cp->tile) : 1;
    uly_cp_ring_enter(cp);
}

/* ------------------------------------------------------------------ items */

/* One pass over all items. */
struct pass {
    struct uly_cp_attention *cp;
    const struct uly_cp_source *source;
    const struct uly_cp_sink *sink;
    struct uly_tensor lse;
    bool backward;
};

static const struct uly_stage *stage_of(const struct uly_cp_attention *cp, int item)
{
    return &cp->stages[item / cp->n_tiles];
}

static int tile_of(const struct uly_cp_attention *cp, int item)
{
    return item % cp->n_tiles;
}

static struct cp_lane *lane_of(struct uly_cp_attention *cp, int item)
{
    return &cp->lanes[item % cp->n_lanes];
}

static bool is_last_tile(const struct uly_cp_attention *cp, int item)
{
    return tile_of(cp, item) == cp->n_tiles - 1;
}

/* Whether the item after this one may set out before this one is home: not where the resident keys change. The same on all
 * ranks, as the lists are of all ranks. */
static bool overlaps(const struct uly_cp_attention *cp, int item)
{
    if (cp->n_lanes < 2 || item + 1 >= cp->plan.n_stages * cp->n_tiles)
        return false;
    return !is_last_tile(cp, item) ||
           (stage_of(cp, item + 1)->kv_new.n == 0 && stage_of(cp, item)->kv_done.n == 0);
}

/* With query tiles all new keys come before the stage's first queries, in slices of the same size. */
static enum uly_status bring_keys(const struct pass *p, int item)
{
    struct uly_cp_attention *cp = p->cp;
    const struct uly_stage *stage = stage_of(cp, item);
    if (stage->kv_new.n == 0)
        return ULY_OK;
    for (int tile = 0; tile < cp->n_tiles; tile++) {
        ULY_TRY(uly_cp_bring(cp, stage, tile, lane_of(cp, item), CP_KEYS, p->source));
        ULY_TRY(uly_cp_exchange_wait(cp->mesh->ulysses, &cp->arrive));
    }
    return ULY_OK;
}

static enum uly_status set_out(const struct pass *p, int item)
{
    struct uly_cp_attention *cp = p->cp;
    unsigned what =
        CP_QUERIES | (cp->tiled ? 0u : CP_KEYS) | (p->backward ? (unsigned)CP_OUTPUT_GRADIENT : 0u);
    if (cp->tiled && tile_of(cp, item) == 0)
        ULY_TRY(bring_keys(p, item));
    return uly_cp_bring(cp, stage_of(cp, item), tile_of(cp, item), lane_of(cp, item), what,
                        p->source);
}

static struct uly_tensor slot_of(const struct uly_cp_attention *cp, struct uly_tensor t, int head)
{
    int64_t block = cp->joined * cp->options.D;
    return uly_tensor_rows(t, head % cp->plan.n_slots * block, block);
}

/* dK and dV start at zero when their head becomes resident. */
static enum uly_status clear_new_keys(struct uly_cp_attention *cp, const struct uly_stage *stage)
{
    struct uly_head_range kv_new =
        uly_head_plan_kv_new(&cp->plan, stage->index, cp->mesh->ulysses_rank);
    for (int h = kv_new.first; h < kv_new.first + kv_new.count; h++) {
        ULY_TRY(uly_fill(cp->be, slot_of(cp, cp->dk, h), 0));
        ULY_TRY(uly_fill(cp->be, slot_of(cp, cp->dv, h), 0));
    }
    return ULY_OK;
}

static enum uly_status attend(const struct pass *p, int item)
{
    struct uly_cp_attention *cp = p->cp;
    const struct uly_stage *stage = stage_of(cp, item);
    int tile = tile_of(cp, item);
    if (!p->backward)
        return uly_cp_attend(cp, stage, tile, lane_of(cp, item), p->lse);
    if (tile == 0)
        ULY_TRY(clear_new_keys(cp, stage));
    return uly_cp_attend_backward(cp, stage, tile, lane_of(cp, item), p->lse);
}

/* Gradients of finished kv heads go home with the last item of the stage, or after it where they go by tiles. */
static bool with_keys(const struct pass *p, int item)
{
    return p->backward && !p->cp->tiled && stage_of(p->cp, item)->kv_done.n > 0;
}

static enum uly_status send_home(const struct pass *p, int item, const struct cp_lane *into)
{
    return uly_cp_send_home(p->cp, stage_of(p->cp, item), tile_of(p->cp, item),
                            lane_of(p->cp, item), into, p->backward, with_keys(p, item));
}

static enum uly_status deliver(const struct pass *p, int item, const struct cp_lane *into)
{
    return uly_cp_deliver(p->cp, stage_of(p->cp, item), tile_of(p->cp, item), lane_of(p->cp, item),
                          into, p->backward, with_keys(p, item), p->sink);
}

/* While an item is attended, the one after it is on its way to the heads and the one before it on its way home. The latter
 * lands in the token side of the item at hand, whose queries have left it. */
static enum uly_status run(const struct pass *p)
{
    struct uly_cp_attention *cp = p->cp;
    bool is_out = false;            /* this item has set out already */
    bool before_is_pending = false; /* the item before it is not home yet */
    for (int item = 0; item < cp->plan.n_stages * cp->n_tiles; item++) {
        struct cp_lane *lane = lane_of(cp, item);
        bool overlap = overlaps(cp, item);
        if (!is_out)
            ULY_TRY(set_out(p, item));
        ULY_TRY(uly_cp_exchange_wait(cp->mesh->ulysses, &cp->arrive));
        if (before_is_pending)
            ULY_TRY(send_home(p, item - 1, lane));
        if (overlap)
            ULY_TRY(set_out(p, item + 1));
        ULY_TRY(attend(p, item));
        if (before_is_pending)
            ULY_TRY(deliver(p, item - 1, lane));
        is_out = before_is_pending = overlap;
        if (overlap)
            continue;
        ULY_TRY(send_home(p, item, lane));
        ULY_TRY(deliver(p, item, lane));
        if (p->backward && cp->tiled && is_last_tile(cp, item) && stage_of(cp, item)->kv_done.n > 0)
            ULY_TRY(uly_cp_keys_home(cp, stage_of(cp, item), p->sink));
    }
    return ULY_OK;
}

enum uly_status uly_cp_forward(struct uly_cp_attention *cp, const struct uly_mask *mask,
                               const struct uly_cp_source *source, const struct uly_cp_sink *sink,
                               struct uly_tensor lse)
{
    ULY_BUG_ON(mask->S > cp->options.max_tokens);
    enter_batch(cp, mask);
    return run(&(struct pass){cp, source, sink, lse, false});
}

enum uly_status uly_cp_backward(struct uly_cp_attention *cp, const struct uly_mask *mask,
                                const struct uly_cp_source *source, const struct uly_cp_sink *sink,
                                struct uly_tensor lse)
{
    ULY_BUG_ON(!cp->options.training || mask->S > cp->options.max_tokens);
    enter_batch(cp, mask);
    return run(&(struct pass){cp, source, sink, lse, true});
}
