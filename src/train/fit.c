/* SPDX-License-Identifier: MIT
 *
 * Whether a run fits, before it takes the memory: the size tables say what each rank will take, so the sum over the ranks
 * of a machine can be compared with what the machine (and its control group) has left.
 */
#include <stdio.h>

#include "base/mem.h"
#include "train/together.h"
#include "train/run_impl.h"
#include "train/text.h"

int64_t uly_rank_memory_total(const struct uly_rank_memory *memory)
{
    int64_t sum = memory->scratch;
    for (int i = 0; i < ULY_LIFE_COUNT; i++)
        sum += memory->by_class[i];
    return sum;
}

/* "params 1.2 GiB, grads 2.4 GiB, ..." of one rank; classes without bytes are left out. */
static void class_text(const struct uly_rank_memory *memory, char *out, size_t bytes)
{
    size_t used = 0;
    struct uly_text text;
    out[0] = 0;
    for (int i = 0; i < ULY_LIFE_COUNT && used < bytes; i++)
        if (memory->by_class[i] > 0)
            used += (size_t)snprintf(out + used, bytes - used, "%s%s %s", used ? ", " : "",
                                     uly_life_name((enum uly_life)i),
                                     uly_text_bytes(memory->by_class[i], &text));
}

/* What the ranks of a machine need together, and what it has. */
struct host_sum {
    int64_t need, available;
    int ranks, largest; /* largest: the rank that needs most */
};

static struct host_sum sum_host(const struct uly_run *run, int first)
{
    const int *hosts = uly_comm_hosts(run->world);
    struct host_sum sum = {0, run->ranks_memory[first].available, 0, first};
    for (int r = first; r < run->size; r++) {
        const struct uly_rank_memory *m = &run->ranks_memory[r];
        if (hosts[r] != hosts[first])
            continue;
        sum.ranks++;
        sum.need += uly_rank_memory_total(m);
        if (m->available < sum.available)
            sum.available = m->available;
        if (uly_rank_memory_total(m) > uly_rank_memory_total(&run->ranks_memory[sum.largest]))
            sum.largest = r;
    }
    return sum;
}

/* The first rank of the machine that lacks most; -1 where all have enough. */
static int worst_host(const struct uly_run *run, struct host_sum *out)
{
    const int *hosts = uly_comm_hosts(run->world);
    int worst = -1;
    /* hosts are numbered in the order of their first ranks */
    for (int r = 0, next = 0; r < run->size; r++) {
        if (hosts[r] != next)
            continue;
        next++;
        struct host_sum sum = sum_host(run, r);
        if (sum.need <= sum.available)
            continue;
        if (worst < 0 || sum.need - sum.available > out->need - out->available) {
            worst = r;
            *out = sum;
        }
    }
    return worst;
}

enum uly_status uly_run_measure(struct uly_run *run, bool *fits, int64_t *need, int64_t *available)
{
    struct uly_rank_memory mine = {.scratch = uly_backend_scratch_bytes(run->be)};
    struct host_sum sum;
    mine.available = run->limit.available;
    for (int i = 0; i < ULY_LIFE_COUNT; i++)
        mine.by_class[i] = run->memory.arena[i].high;
    if (!run->ranks_memory)
        ULY_TRY(uly_agree(run->world, ULY_ALLOC(&run->ranks_memory, run->size)));
    ULY_TRY(uly_all_gather_host(run->world, &mine, sizeof mine, run->ranks_memory));
    *fits = worst_host(run, &sum) < 0;
    if (!*fits) {
        *need = sum.need;
        *available = sum.available;
    }
    return ULY_OK;
}

enum uly_status uly_run_fit(struct uly_run *run)
{
    struct host_sum sum;
    int first = worst_host(run, &sum);
    if (first < 0)
        return ULY_OK;
    char classes[400];
    struct uly_text needed, have, most;
    const struct uly_rank_memory *m = &run->ranks_memory[sum.largest];
    class_text(m, classes, sizeof classes);
    ULY_FAIL_TOGETHER(
        run->world, ULY_ERR_NO_MEMORY,
        "the run does not fit on %s: its %d rank%s would take %s, and %s are available (%s); rank "
        "%d takes %s: %s. More ranks, a smaller --max-length, fewer --heads-per-stage or fewer "
        "rows a micro-batch take less",
        uly_comm_host_name(run->world, first), sum.ranks, sum.ranks == 1 ? "" : "s",
        uly_text_bytes(sum.need, &needed), uly_text_bytes(sum.available, &have), run->limit.name,
        sum.largest, uly_text_bytes(uly_rank_memory_total(m), &most), classes);
}
