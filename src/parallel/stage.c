/* SPDX-License-Identifier: MIT */
#include "parallel/stage.h"

#include <stdint.h>

#include "base/mem.h"

typedef struct uly_head_range (*range_fn)(const struct uly_head_plan *, int stage, int rank);

/* Ranges rise with the rank and touch or overlap in one head at most, so the distinct heads in
 * order of appearance are rising too, and a run goes on where the next head is its end. */
static void fill_entries(const struct uly_head_plan *plan, int stage, range_fn range, int *head,
                         int *first, int *place, struct uly_head_range *runs,
                         struct uly_head_entries *out)
{
    int n = 0, n_runs = 0, n_distinct = 0;
    for (int r = 0; r < plan->Pu; r++) {
        struct uly_head_range heads = range(plan, stage, r);
        first[r] = n;
        for (int h = heads.first; h < heads.first + heads.count; h++) {
            bool repeated = n > 0 && head[n - 1] == h;
            if (!repeated && n_runs > 0 && runs[n_runs - 1].first + runs[n_runs - 1].count == h)
                runs[n_runs - 1].count++;
            else if (!repeated)
                runs[n_runs++] = (struct uly_head_range){h, 1};
            n_distinct += !repeated;
            place[n] = n_distinct - 1;
            head[n++] = h;
        }
    }
    first[plan->Pu] = n;
    *out = (struct uly_head_entries){n, head, first, n_runs, runs, n_distinct, place};
}

static enum uly_status make_entries(const struct uly_head_plan *plan, int stage, range_fn range,
                                    struct uly_head_entries *out)
{
    size_t n = 0;
    for (int r = 0; r < plan->Pu; r++)
        n += (size_t)range(plan, stage, r).count;
    int *ints;
    struct uly_head_range *runs;
    ULY_TRY(ULY_ALLOC(&ints, 2 * n + (size_t)plan->Pu + 1));
    enum uly_status status = ULY_ALLOC(&runs, n);
    if (status != ULY_OK) {
        uly_free(ints);
        return status;
    }
    fill_entries(plan, stage, range, ints, ints + 2 * n, ints + n, runs, out);
    return ULY_OK;
}

static void free_entries(struct uly_head_entries *entries)
{
    uly_free((void *)(uintptr_t)entries->head); /* one block: heads, places, firsts */
    uly_free((void *)(uintptr_t)entries->runs);
}

enum uly_status uly_stages_create(const struct uly_head_plan *plan, struct uly_stage **out)
{
    struct uly_stage *stages;
    enum uly_status status = ULY_OK;
    ULY_TRY(ULY_ALLOC(&stages, plan->n_stages));
    for (int t = 0; t < plan->n_stages; t++) {
        stages[t].index = t;
        ULY_TRY_GOTO(make_entries(plan, t, uly_head_plan_q, &stages[t].q), fail);
        ULY_TRY_GOTO(make_entries(plan, t, uly_head_plan_kv_new, &stages[t].kv_new), fail);
        ULY_TRY_GOTO(make_entries(plan, t, uly_head_plan_kv_done, &stages[t].kv_done), fail);
    }
    *out = stages;
    return ULY_OK;
fail:
    uly_stages_free(stages, plan->n_stages);
    return status;
}

void uly_stages_free(struct uly_stage *stages, int n_stages)
{
    for (int t = 0; stages && t < n_stages; t++) {
        free_entries(&stages[t].q);
        free_entries(&stages[t].kv_new);
        free_entries(&stages[t].kv_done);
    }
    uly_free(stages);
}

int uly_entries_most(const struct uly_head_entries *entries, int Pu)
{
    int most = 0;
    for (int r = 0; r < Pu; r++) {
        int n = entries->first[r + 1] - entries->first[r];
        most = n > most ? n : most;
    }
    return most;
}
