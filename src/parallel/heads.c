/* SPDX-License-Identifier: MIT */
#include "parallel/heads.h"

#include "parallel/layout.h"

struct uly_head_range uly_head_plan_owned(const struct uly_head_plan *plan, int rank)
{
    int64_t first, count;
    uly_cut(plan->H, plan->Pu, rank, &first, &count);
    return (struct uly_head_range){(int)first, (int)count};
}

struct uly_head_range uly_head_plan_q(const struct uly_head_plan *plan, int stage, int rank)
{
    struct uly_head_range own = uly_head_plan_owned(plan, rank);
    int from = stage * plan->per_stage;
    if (stage < 0 || from >= own.count)
        return (struct uly_head_range){0, 0};
    int left = own.count - from;
    return (struct uly_head_range){own.first + from,
                                   left < plan->per_stage ? left : plan->per_stage};
}

struct uly_head_range uly_head_plan_kv(const struct uly_head_plan *plan, int stage, int rank)
{
    struct uly_head_range q = uly_head_plan_q(plan, stage, rank);
    if (q.count == 0)
        return q;
    int g = plan->H / plan->K, first = q.first / g, last = (q.first + q.count - 1) / g;
    return (struct uly_head_range){first, last - first + 1};
}

struct uly_head_range uly_head_plan_kv_new(const struct uly_head_plan *plan, int stage, int rank)
{
    struct uly_head_range now = uly_head_plan_kv(plan, stage, rank);
    struct uly_head_range before = uly_head_plan_kv(plan, stage - 1, rank);
    int resident_end = before.first + before.count;
    if (now.count > 0 && before.count > 0 && resident_end > now.first) {
        now.count -= resident_end - now.first;
        now.first = resident_end;
    }
    return now;
}

struct uly_head_range uly_head_plan_kv_done(const struct uly_head_plan *plan, int stage, int rank)
{
    struct uly_head_range now = uly_head_plan_kv(plan, stage, rank);
    struct uly_head_range after = uly_head_plan_kv(plan, stage + 1, rank);
    if (now.count > 0 && after.count > 0 && after.first < now.first + now.count)
        now.count = after.first - now.first;
    return now;
}

enum uly_status uly_head_plan_init(int H, int K, int Pu, int per_stage, struct uly_head_plan *out)
{
    ULY_FAIL_IF(H < 1 || K < 1 || H % K != 0, ULY_ERR_USAGE,
                "%d query heads are not a multiple of %d kv heads", H, K);
    ULY_BUG_ON(Pu < 1);
    int most = (H + Pu - 1) / Pu;
    ULY_FAIL_IF(per_stage < 0 || per_stage > most, ULY_ERR_USAGE,
                "heads-per-stage %d is outside 1 ... %d (%d heads over %d ulysses ranks)",
                per_stage, most, H, Pu);
    struct uly_head_plan plan = {.H = H, .K = K, .Pu = Pu, .most_owned = most};
    plan.per_stage = per_stage ? per_stage : most;
    plan.n_stages = (most + plan.per_stage - 1) / plan.per_stage;
    int last_of_previous = -1;
    for (int r = 0; r < Pu; r++) {
        struct uly_head_range own = uly_head_plan_owned(&plan, r);
        if (own.count == 0)
            continue;
        int g = H / K, first = own.first / g;
        plan.shared_kv = plan.shared_kv || first == last_of_previous;
        last_of_previous = (own.first + own.count - 1) / g;
        for (int t = 0; t < plan.n_stages; t++) {
            int needed = uly_head_plan_kv(&plan, t, r).count;
            if (needed > plan.n_slots)
                plan.n_slots = needed;
        }
    }
    *out = plan;
    return ULY_OK;
}
