/* SPDX-License-Identifier: MIT
 *
 * Inside of the stage loop, shared by cp_attention.c (the schedule), cp_buffers.c (what there is), cp_exchange.c (between
 * token side and head side) and cp_ring.c (attention over the blocks of a ring).
 *
 * An item is a query tile of a stage; items run in the order of stages, then tiles. With s tokens on this rank at most, W
 * on the ranks of its ring rank together, T rows a query tile, R = min(W, Pu T), the buffers are
 *   of an item, twice where two may be in flight ("lanes")
 *     token side  q [entries, T, D], later the output on its way home; dO, delta
 *     head side   q, o [heads, R, D]; dO, delta; acc [heads, R, D]: O between ring blocks, or dQ
 *   resident      k, v [slots, W, D]; dK, dV (acc)
 *   on their way  k, v [entries, T, D]; dk, dv, and their rounded form on the head side
 *   of the ring   k, v of two blocks, dK, dV of two blocks, and those that arrive
 * With query tiles, keys and gradients of keys are on their way only while no item is in flight, and share the lanes' room.
 * docs/operator.md has the sum, and a test holds the arenas to it.
 */
#ifndef ULY_PARALLEL_CP_IMPL_H
#define ULY_PARALLEL_CP_IMPL_H

#include "parallel/cp_attention.h"
#include "parallel/layout.h"

enum {
    CP_VIEWS = 9, /* views alive at once: the backward of attention */
    CP_LANES = 2
};

struct cp_lane {
    struct uly_tensor tok_q, tok_do, tok_delta; /* absent on one ulysses rank */
    struct uly_tensor q, out, d_o, delta, acc;  /* head side */
};

/* An exchange and the room for its arguments. */
struct cp_exchange {
    struct uly_part *parts; /* [max_parts], owned */
    int64_t *ints;          /* [max_parts, 4, ranks], owned */
    int n_parts, max_parts, ranks;
    bool in_flight;
    struct uly_request request;
};

/* Rows that are neighbours in the sequence and in every buffer. */
struct cp_run {
    int64_t token, count; /* global */
    int64_t lane_row;     /* in the item's head-side buffers */
    int64_t home_row;     /* among this ring rank's tokens: in k, v and LSE */
};

/* A slice of every rank's shard: where its rows lie on the head side. */
struct cp_slice {
    int64_t row, rows;   /* of this rank's shard */
    int64_t lane_rows;   /* of all ulysses ranks together */
    int64_t *count;      /* [Pu] rows of each rank; the three arrays are one block, owned */
    int64_t *lane_first; /* [Pu] where they start in a lane's buffers */
    int64_t *home_first; /* [Pu] where they start among this ring rank's tokens */
    int n_runs;
    struct cp_run *runs; /* [2 Pu], owned */
};

/* Keys of one ring rank as attention sees them, and where their gradients go. */
struct cp_block {
    struct uly_tensor k, v, dk, dv;
    int first,
        modulo; /* block number of the stage's kv head h: (first + h) % modulo; modulo 0: none */
    int64_t block_rows; /* rows of a head's block */
    int n_runs;
    struct cp_run runs[2]; /* lane_row is not used; home_row is the row in the block */
};

struct cp_ring {                        /* absent where ring_size is 1 */
    struct uly_tensor k[2], v[2];       /* [slots * W * D] of blocks that arrive */
    struct uly_tensor dk[2], dv[2];     /* acc, contributions to blocks of others */
    struct uly_tensor dk_came, dv_came; /* acc, contributions of others */
    struct cp_exchange keys, gradients;
    struct cp_run chunks[2]; /* own tokens; home_row counts from the first */
    int n_chunks;
};

struct uly_cp_attention {
    struct uly_cp_options options;
    struct uly_mesh *mesh;
    struct uly_backend *be;
    struct uly_head_plan plan;
    struct uly_stage *stages; /* owned, plan.n_stages */
    bool alone;               /* one ulysses rank: token side and head side are the same memory */
    bool tiled;               /* keys go ahead of queries, and queries go by tiles */
    int n_lanes;
    int64_t max_s, max_joined, tile; /* s, W, T */
    struct cp_lane lanes[CP_LANES];
    struct uly_tensor k, v, dk, dv;       /* resident */
    struct uly_tensor tok_k, tok_v;       /* on their way to the heads */
    struct uly_tensor tok_dk, tok_dv;     /* on their way home */
    struct uly_tensor dk_round, dv_round; /* [slots * R * D], where dk and dv go home rounded */
    struct cp_exchange arrive, leave;     /* over the ulysses ranks */
    struct cp_ring ring;
    /* of the micro-batch at hand */
    const struct uly_mask *mask;
    int64_t s, joined; /* tokens of this rank, of this ring rank */
    int n_tiles;
    int64_t *shard_first,
        *shard_count; /* [Pu] of each rank, among this ring rank's tokens; one block, owned */
    struct uly_segment *shards; /* [Pu, 2] owned */
    int *n_shards;              /* [Pu] owned */
    struct cp_slice slice;      /* of the tile that uly_cp_enter_tile named last */
    /* room for the arguments of one call, owned */
    int most_entries;
    int64_t *view_ints; /* [CP_VIEWS, 2, most_entries] */
    int *kv_of;         /* [most_entries] */
};

static inline enum uly_dtype cp_acc(const struct uly_cp_attention *cp)
{
    return cp->options.model == ULY_DTYPE_F64 ? ULY_DTYPE_F64 : ULY_DTYPE_F32;
}

static inline bool cp_rounds(const struct uly_cp_attention *cp)
{
    return cp->options.model != cp_acc(cp);
}

/* The heads of this rank in a stage: query heads, and the kv heads that they read. */
struct cp_heads {
    struct uly_head_range q, kv;
    int lse_first; /* row of LSE of its first head */
};

/* ------------------------------------------------------------------ cp_exchange.c */

/* Sets cp->slice. */
void uly_cp_enter_tile(struct uly_cp_attention *cp, int tile);

/* Views of blocks first ... first + n - 1 (modulo, where that is not 0) of block_rows rows each, from `row` on. */
struct uly_heads uly_cp_view(const struct uly_cp_attention *cp, int view, struct uly_tensor t,
                             int first, int n, int modulo, int64_t block_rows, int64_t row,
                             int64_t rows, int dim);

enum cp_load { CP_QUERIES = 1, CP_KEYS = 2, CP_OUTPUT_GRADIENT = 4 };

/* Runs the source over the tile's rows and starts their exchange (cp->arrive). what: bits of enum cp_load. */
enum uly_status uly_cp_bring(struct uly_cp_attention *cp, const struct uly_stage *stage, int tile,
                             struct cp_lane *lane, unsigned what,
                             const struct uly_cp_source *source);

/* Starts the way home of what attention left in `lane` (o, or dq rounded) into `into`'s token side (cp->leave); with
 * keys, of the gradients of finished kv heads too. */
enum uly_status uly_cp_send_home(struct uly_cp_attention *cp, const struct uly_stage *stage,
                                 int tile, const struct cp_lane *lane, const struct cp_lane *into,
                                 bool backward, bool keys);
/* Gives it to the sink. */
enum uly_status uly_cp_deliver(struct uly_cp_attention *cp, const struct uly_stage *stage, int tile,
                               const struct cp_lane *lane, const struct cp_lane *into,
                               bool backward, bool keys, const struct uly_cp_sink *sink);
/* Gradients of finished kv heads alone: round, exchange and sink, tile by tile. */
enum uly_status uly_cp_keys_home(struct uly_cp_attention *cp, const struct uly_stage *stage,
                                 const struct uly_cp_sink *sink);

enum uly_status uly_cp_exchange_start(struct uly_comm *comm, struct cp_exchange *x,
                                      const char *what);
enum uly_status uly_cp_exchange_wait(struct uly_comm *comm, struct cp_exchange *x);
/* One more part: its arrays, zero for every rank. */
struct cp_part {
    int64_t *send_offset, *send_count, *recv_offset, *recv_count; /* [ranks] */
};
struct cp_part uly_cp_add_part(struct cp_exchange *x, struct uly_tensor send,
                               struct uly_tensor recv);

/* ------------------------------------------------------------------ cp_ring.c */

void uly_cp_ring_enter(struct uly_cp_attention *cp);
/* Attention of an item over all blocks; the output is in lane->out. lse: the caller's. */
enum uly_status uly_cp_attend(struct uly_cp_attention *cp, const struct uly_stage *stage, int tile,
                              struct cp_lane *lane, struct uly_tensor lse);
/* dq of an item in lane->acc; dK and dV of the resident heads grow. */
enum uly_status uly_cp_attend_backward(struct uly_cp_attention *cp, const struct uly_stage *stage,
                                       int tile, struct cp_lane *lane, struct uly_tensor lse);

/* ------------------------------------------------------------------ cp_buffers.c */

enum uly_status uly_cp_make_buffers(struct uly_cp_attention *cp, struct uly_memory *memory);
void uly_cp_free_rooms(struct uly_cp_attention *cp);

#endif
