/* SPDX-License-Identifier: MIT
 *
 * The lists of a stage (struct uly_stage), built once from the head plan.
 */
#ifndef ULY_PARALLEL_STAGE_H
#define ULY_PARALLEL_STAGE_H

#include "parallel/cp_attention.h"

/* plan->n_stages stages into *out, owned by the caller: uly_stages_free. */
enum uly_status uly_stages_create(const struct uly_head_plan *plan, struct uly_stage **out);
void uly_stages_free(struct uly_stage *stages, int n_stages); /* NULL is fine */

/* Most heads that one rank has in the list. */
int uly_entries_most(const struct uly_head_entries *entries, int Pu);

#endif
