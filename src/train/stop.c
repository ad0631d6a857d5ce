/* SPDX-License-Identifier: MIT
 *
 * Stopping as asked: SIGUSR1, --time-limit, a file OUT/stop. Any rank may notice; all must stop at the same border, so
 * they ask each other by a tiny reduction. Layer borders do so when steps are long; when steps are short the borders of
 * steps are enough, and the layers are spared the reduction.
 */
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "train/run_impl.h"

/* where there are several, the highest is named */
enum { CAUSE_NONE, CAUSE_FILE, CAUSE_TIME, CAUSE_SIGNAL };

static const char *const causes[] = {"", "the file stop in the output folder", "the time limit",
                                     "a signal"};

static int64_t own_cause(const struct uly_run *run)
{
    if (run->io->stop && *run->io->stop > 0)
        return CAUSE_SIGNAL;
    if (!run->training || run->rank != 0)
        return CAUSE_NONE;
    double limit = run->values->time_limit;
    if (limit > 0 && uly_seconds() - run->started >= limit)
        return CAUSE_TIME;
    return run->stop_file_path && uly_path_kind(run->stop_file_path, NULL) != ULY_PATH_NONE
               ? CAUSE_FILE
               : CAUSE_NONE;
}

enum uly_status uly_run_ask_stop(struct uly_run *run)
{
    int64_t cause = own_cause(run);
    ULY_TRY(uly_all_reduce_i64(run->world, &cause, 1, ULY_REDUCE_MAX));
    if (cause != CAUSE_NONE) {
        run->stopping = true;
        run->stop_cause = causes[cause];
    }
    return ULY_OK;
}

/* Where a long step is: on a terminal all the time, elsewhere a line a minute. */
static void show_place(struct uly_run *run, const char *phase, int layer, int n_layers)
{
    double seconds = uly_seconds() - run->step_started;
    if (seconds < 10)
        return;
    if (strcmp(phase, "loss") == 0)
        uly_progress_status(&run->progress, 60, "%s: loss, %.0f s", run->step_name, seconds);
    else
        uly_progress_status(&run->progress, 60, "%s: %s, layer %d of %d, %.0f s", run->step_name,
                            phase, layer + 1, n_layers, seconds);
}

enum uly_status uly_run_border(void *context, const char *phase, int layer, int n_layers)
{
    struct uly_run *run = context;
    show_place(run, phase, layer, n_layers);
    if (!run->border_checks)
        return ULY_OK;
    ULY_TRY(uly_run_ask_stop(run));
    /* no error: whoever called the decoder looks at run->stopping first */
    return run->stopping ? ULY_ERR_PEER : ULY_OK;
}
