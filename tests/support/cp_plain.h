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

/* Runs the operator on this rank's shard and writes this rank's rows of out->o, dq, dk, dv (inputs come from in). */
enum uly_status plain_run(const struct plain_attention *in, struct plain_attention *out,
                          struct uly_comm *comm, const char *backend, enum uly_dtype model,
                          int heads_per_stage, int64_t token_tile);

/* Runs the operator over `ranks` threads on random input and fails the test where o, dq, dk or dv differs from plain
 * attention by more than tolerance times its largest value. */
void plain_check(int ranks, int64_t S, int H, int K, int D, const int64_t *starts, int64_t n_docs,
                 const char *backend, enum uly_dtype model, int per_stage, int64_t tile,
                 double tolerance);

#endif
