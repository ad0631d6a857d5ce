/* SPDX-License-Identifier: MIT
 *
 * `ulysses selfcheck`: does any layout that these ranks allow change a number of this model? The model's first layers and
 * the first rows of its vocabulary are loaded in float32; a short row of random ids, several documents with uneven labels,
 * goes forward and backward on one rank, then over all ranks in every layout: every pair of ulysses and ring sizes, with
 * stages of one head, of a kv group and of all heads, and query tiles. Loss and every gradient tensor are compared by the
 * rule of parity_rule.h.
 */
#ifndef ULY_TRAIN_SELFCHECK_H
#define ULY_TRAIN_SELFCHECK_H

#include "train/run.h"

struct uly_selfcheck_options {
    const char *model;
    int layers;  /* the first so many, or all where there are fewer */
    int threads; /* of a rank; 0: chosen */
};

/* Collective. Rank 0 tells a line a layout to io->out. ULY_ERR_INVALID where a layout differs, with how many do. */
enum uly_status uly_selfcheck(const struct uly_selfcheck_options *options, struct uly_comm *world,
                              const struct uly_run_io *io);

#endif
