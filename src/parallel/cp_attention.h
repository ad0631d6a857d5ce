/* SPDX-License-Identifier: MIT
 *
 * Context-parallel attention: one stage loop, forward and backward, over the ranks that share a
 * sequence.
 *
 * A stage is a few query heads of every rank. Its rows come from a source, token tile by token
 * tile, straight into the send block of the rank that owns the head; an exchange turns token shards
 * into whole sequences of the owned heads; attention runs over the whole sequence; a second
 * exchange brings the output home, where a sink takes it tile by tile. The source and sink are the
 * only difference between the fused sublayer of a model and plain q, k, v tensors. Full-width q, k,
 * v never exist. With a ring the head side holds the ring rank's tokens only, and their keys and
 * values visit the queries of the others. Query tiles let a slice of every shard at a time have its
 * queries in flight.
 *
 * What lies where, with s tokens on this rank, W on the ulysses ranks of its ring rank, D head size:
 *   token side  a block per (head, owner): [s, D], in the order of the stage's list: rank 0's heads, rank 1's, ...
 *   head side   a block per own head: [W, D] in sequence order; kv head h lies in slot h % n_slots while it is resident
 * On one ulysses rank both sides are the same memory and nothing is exchanged.
 *
 * docs/operator.md says what is live when, in what order things happen, and what is sent. LSE
 * [owned heads, W] is the caller's: it passes from a forward to its backward and stays on the head
 * side.
 */
#ifndef ULY_PARALLEL_CP_ATTENTION_H
#define ULY_PARALLEL_CP_ATTENTION_H

#include "parallel/heads.h"
#include "parallel/mesh.h"

/* Heads of one kind that a stage moves, in the order of their blocks on the token side. */
struct uly_head_entries {
    int n;
    const int *head;  /* [n] global head; a kv head stands once per rank that needs it */
    const int *first; /* [Pu + 1] entries of rank r are first[r] ... first[r + 1] - 1 */
    int n_runs;       /* the distinct heads as rising contiguous runs */
    const struct uly_head_range *runs; /* [n_runs] */
    int n_distinct;
    const int *place; /* [n] index of the entry's head among the distinct ones */
};

struct uly_stage {
    int index;
    struct uly_head_entries q, kv_new, kv_done;
};

/* Rows [row, row + count) of this rank's shard, for the entries of a stage. Views are [count,
 * entries, D]. */
struct uly_cp_source {
    void *context;
    /* Fills q (entries stage->q), k and v (entries stage->kv_new), ready for the product: biased,
     * normed, roped. With query tiles the keys go first and the queries later: then q, or k and v
     * together, are NULL. */
    enum uly_status (*qkv)(void *context, const struct uly_stage *stage, int64_t row, int64_t count,
                           const struct uly_heads *q, const struct uly_heads *k,
                           const struct uly_heads *v);
    /* Backward: fills dO and delta = rowsum(dO * O) (acc, dim 1) of the stage's q entries. */
    enum uly_status (*d_out)(void *context, const struct uly_stage *stage, int64_t row,
                             int64_t count, const struct uly_heads *d_o,
                             const struct uly_heads *delta);
};

struct uly_cp_sink {
    void *context;
    /* Forward: takes the output of the stage's q entries. */
    enum uly_status (*out)(void *context, const struct uly_stage *stage, int64_t row, int64_t count,
                           const struct uly_heads *o);
    /* Backward: takes dq of the stage's q entries (model dtype). */
    enum uly_status (*dq)(void *context, const struct uly_stage *stage, int64_t row, int64_t count,
                          const struct uly_heads *dq);
    /* Backward: ADDS dk, dv of the entries stage->kv_done to what it holds; a head may come once
     * per rank that used it, in this stage or another. acc where heads are shared between ranks
     * (plan.shared_kv) and on one ulysses rank, where nothing travels, else model dtype; a sink
     * that keeps uly_cp_dkv_dtype rounds once. */
    enum uly_status (*dkv)(void *context, const struct uly_stage *stage, int64_t row, int64_t count,
                           const struct uly_heads *dk, const struct uly_heads *dv);
};

struct uly_cp_options {
    int H, K, D;
    int heads_per_stage; /* 0: all */
    int64_t query_tile;  /* rows of a rank's shard whose queries are in flight together; 0: all of
                            them. Only where ring_size is 1 (else ULY_ERR_USAGE). */
    double scale;        /* of q k' */
    enum uly_dtype model;
    bool training;      /* backward buffers are made */
    bool serial;        /* every exchange is waited for at once: fewer buffers, the same bits */
    int64_t max_tokens; /* longest sequence */
    int64_t token_tile; /* rows that a source or sink call gets at most */
};

struct uly_cp_attention;

/* Makes all buffers in memory (measuring): head side in ACTIVATIONS, token side in COMM. mesh, be:
 * borrowed. */
enum uly_status uly_cp_create(const struct uly_cp_options *options, struct uly_mesh *mesh,
                              struct uly_backend *be, struct uly_memory *memory,
                              struct uly_cp_attention **out);
void uly_cp_destroy(struct uly_cp_attention *cp); /* NULL is fine */

const struct uly_head_plan *uly_cp_plan(const struct uly_cp_attention *cp);
/* Query heads of this rank: the first dimension of LSE. */
int uly_cp_owned_heads(const struct uly_cp_attention *cp);
/* Elements of LSE for the longest sequence: [owned heads, tokens of this ring rank]. */
int64_t uly_cp_lse_elements(const struct uly_cp_attention *cp);
/* dtype of dk, dv at the sink. */
enum uly_dtype uly_cp_dkv_dtype(const struct uly_cp_attention *cp);

/* Collective over the mesh's sp ranks. mask: whole sequence, the same on all ranks, S <=
 * max_tokens. lse: acc, at least uly_cp_lse_elements, dense; what a forward wrote is for the
 * backward of the same shapes only. */
enum uly_status uly_cp_forward(struct uly_cp_attention *cp, const struct uly_mask *mask,
                               const struct uly_cp_source *source, const struct uly_cp_sink *sink,
                               struct uly_tensor lse);
enum uly_status uly_cp_backward(struct uly_cp_attention *cp, const struct uly_mask *mask,
                                const struct uly_cp_source *source, const struct uly_cp_sink *sink,
                                struct uly_tensor lse);

#endif
