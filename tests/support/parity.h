/* SPDX-License-Identifier: MIT
 *
 * Three optimizer steps of a small model over any grid of ranks, by the trainer itself: what must not depend on the grid.
 */
#ifndef ULY_TESTS_PARITY_H
#define ULY_TESTS_PARITY_H

#include "support/model_fixture.h"

enum { PARITY_STEPS = 3 };

struct parity_result {
    double loss[PARITY_STEPS], norm[PARITY_STEPS];
    double eval_loss;
    int64_t valid_tokens;
    struct model_result first; /* gradients of the first step, summed over all ranks */
    double *weights;           /* all weights after the last step, end to end as first.first says */
};

/* Rows of uneven lengths and masks (1 token, prime, without a label, longer ones), two a micro-batch of a replica and as
 * many micro-batches as make eight rows a step, whatever dp is; the last step of the epoch is short. c gives sizes,
 * backend, dtype; its own rows are not used. Collective over comm, whose size is the grid's. */
enum uly_status parity_run(const struct model_case *c, struct uly_comm *comm,
                           const struct model_grid *grid, struct parity_result *out);
void parity_clear(struct parity_result *r);

/* NULL where `got` equals `want` by design.md section 10's float32 rule, else what differs (static text of this thread). */
const char *parity_difference(const struct parity_result *got, const struct parity_result *want);

#endif
