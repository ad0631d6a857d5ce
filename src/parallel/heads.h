/* SPDX-License-Identifier: MIT
 *
 * Who computes which heads, and when. Ulysses rank r owns the r-th of Pu near-equal contiguous
 * ranges of the H query heads and the kv heads that these read; neither H nor K need divide. Stage
 * t takes the t-th `per_stage` heads of every rank's own range (a rank may have none left, and
 * still enters the stage). A kv head is sent to a rank in the first stage that needs it there,
 * stays while its group lasts, and its gradient goes home after the last one. Because ranges are
 * contiguous, every set below is a contiguous range and no weight is ever permuted.
 */
#ifndef ULY_PARALLEL_HEADS_H
#define ULY_PARALLEL_HEADS_H

#include "base/status.h"

struct uly_head_range {
    int first, count;
};

struct uly_head_plan {
    int H, K, Pu;
    int per_stage; /* query heads a rank a stage */
    int n_stages;
    int most_owned; /* query heads of the rank that owns most */
    int n_slots; /* kv heads resident at once on the rank that needs most: kv head h lies in slot h
                    % n_slots */
    bool shared_kv; /* some kv head is needed by several ranks: its gradient is a sum */
};

/* per_stage 0 means all of a rank's heads. ULY_ERR_USAGE where H % K != 0 or per_stage is outside 0
 * ... ceil(H / Pu). */
enum uly_status uly_head_plan_init(int H, int K, int Pu, int per_stage, struct uly_head_plan *out);

/* Query heads that a rank owns. */
struct uly_head_range uly_head_plan_owned(const struct uly_head_plan *plan, int rank);
/* Query heads of a rank in a stage. */
struct uly_head_range uly_head_plan_q(const struct uly_head_plan *plan, int stage, int rank);
/* kv heads that these read. */
struct uly_head_range uly_head_plan_kv(const struct uly_head_plan *plan, int stage, int rank);
/* Those of them that are not there yet from the stage before. */
struct uly_head_range uly_head_plan_kv_new(const struct uly_head_plan *plan, int stage, int rank);
/* Those of them that no later stage of this rank reads. */
struct uly_head_range uly_head_plan_kv_done(const struct uly_head_plan *plan, int stage, int rank);

#endif
