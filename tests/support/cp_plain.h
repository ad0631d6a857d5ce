/* SPDX-License-Identifier: MIT
 *
 * Context-parallel attention on plain host arrays: a source and a sink that copy, and plain attention in double to
 * compare with.
 */
#ifndef ULY_TESTS_CP_PLAIN_H
#define ULY_TESTS_CP_PLAIN_H

#include "parallel/cp_attention.h"

/* Whole tensors in global order, row-major doubles; owned by the test. */
struct plain_attention {
    int64_t S;
    int H, K, D;
    struct uly_mask mask;
    double *q, *d_o, *o, *dq; /* [S, H, D] */
    double *k, *v, *dk, *dv;  /* [S, K, D] */
};

/* Random q, k, v, dO from a seed; the other arrays are NaN. starts and n_docs are borrowed. */
void plain_init(struct plain_attention *p, int64_t S, int H, int K, int D, const int64_t *starts,
                int64_t n_docs, int64_t window, uint64_t seed);
void plain_clear(struct plain_attention *p);

/* o, dq, dk, dv by rows of a full score matrix. */
void plain_dense(struct plain_attention *p);

/* What the operator is asked for. */
struct plain_case {
    int64_t S;
    int H, K, D;
    const int64_t *starts; /* [n_docs] borrowed */
    int64_t n_docs, window;
    int ulysses, ring;   /* sizes */
    int heads_per_stage; /* 0: all */
    int64_t query_tile;  /* 0: all */
    int64_t token_tile;
    bool serial;
    const char *backend;
    enum uly_dtype model;
    double gap;         /* scores rise by this from each eighth of the keys to the next */
    double delta_shift; /* what the source adds to delta */
    int slow;           /* above 0: ranks sleep at random before they fill and take, seeded by it */
};

/* What a rank measured. */
struct plain_measures {
    /* bytes sent to other ranks */
    int64_t ulysses_forward, ulysses_backward, ring_forward, ring_backward;
    /* high-water marks of the operator's buffers: activations, comm */
    int64_t head_bytes, token_bytes;
};

/* Float64 on cpu:ref over one rank, all heads at once, one document of one token tile. */
struct plain_case plain_case_small(int64_t S, int H, int K);

/* Runs the operator on this rank's shard and writes this rank's rows of out->o, dq, dk, dv (inputs come from in). measures:
 * this rank's, or NULL. */
enum uly_status plain_run(const struct plain_case *c, const struct plain_attention *in,
                          struct plain_attention *out, struct uly_comm *comm,
                          struct plain_measures *measures);

/* Runs it over ulysses * ring threads on random input, rounded to the model's dtype. Errors e[4] of o, dq, dk, dv, each
 * over the largest value of plain attention's; fails the test where a call fails. measures: [ranks], or NULL. */
void plain_errors(const struct plain_case *c, double e[4], struct plain_measures *measures);

/* The same errors as roots of mean squares: over all elements, where the largest error may be one element's. */
void plain_rms_errors(const struct plain_case *c, double e[4]);

/* Fails the test where one of the errors is above the tolerance. */
void plain_check(const struct plain_case *c, double tolerance);

#endif
