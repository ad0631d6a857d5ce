/* SPDX-License-Identifier: MIT
 *
 * A whole run: from options to a trained model folder, or to an evaluation's numbers.
 *
 * Order of things. Everything that can refuse a run comes before anything that takes long, and nothing is written before
 * the last refusal: folder and options, data (each rank reads and tokenises by itself and waits in no collective), sizes
 * of all tensors, comparison with the machine's memory, the output folder; then memory is taken, weights are loaded, and
 * steps are made.
 */
#ifndef ULY_TRAIN_RUN_H
#define ULY_TRAIN_RUN_H

#include <signal.h>
#include <stdio.h>

#include "comm/comm.h"
#include "train/evaluate.h"
#include "train/train_options.h"

/* What a run needs of the process around it. */
struct uly_run_io {
    FILE *out;                         /* where rank 0 tells the story; NULL: nowhere */
    bool terminal;                     /* a line may be drawn over */
    const volatile sig_atomic_t *stop; /* above 0: stop at the next layer border; may be NULL */
    int64_t memory; /* bytes that the ranks of a machine may take; 0: what the machine has */
};

/* Collective. options: parsed with the train table and checked; their values are filled in on the way
 * (uly_train_options_resolve). A stop as asked is ULY_OK. */
enum uly_status uly_run_train(struct uly_options *options, struct uly_comm *world,
                              const struct uly_run_io *io);

/* Collective. options: parsed with the eval table. *out: the same on every rank. A loss that is not finite is
 * ULY_ERR_INVALID; a data set without any label too. */
enum uly_status uly_run_eval(struct uly_options *options, struct uly_comm *world,
                             const struct uly_run_io *io, struct uly_eval_result *out);

#endif
