/* SPDX-License-Identifier: MIT */
#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "cli/launch.h"

int uly_cli_failed(enum uly_status status)
{
    const char *level = getenv("ULY_LOG");
    const char *message = uly_error_message();
    if (uly_error_status() != status) /* no record: say at least the kind */
        message = uly_status_text(status);
    fflush(stdout);
    if (message[0])
        fprintf(stderr, "ulysses: %s\n", message);
    if (message[0] && level && strcmp(level, "debug") == 0)
        fprintf(stderr, "%s", uly_error_trace());
    return uly_status_exit_code(status);
}

enum uly_status uly_cli_parse(const struct uly_option_table *table, void *values, int argc,
                              char **argv, struct uly_options *options, bool *done)
{
    *done = false;
    ULY_TRY(uly_options_init(options, table, values));
    ULY_TRY(uly_options_parse(options, argc - 2, argv + 2));
    *done = options->help || options->help_markdown;
    if (options->help_markdown)
        uly_options_markdown(table, stdout);
    else if (options->help)
        uly_options_help(table, stdout);
    return ULY_OK;
}

/* A signal handler can reach nothing but a variable of the process; it is written here only. */
static volatile sig_atomic_t stop_wanted;

static void on_stop(int signal_number)
{
    (void)signal_number;
    stop_wanted = 1;
}

const volatile sig_atomic_t *uly_cli_watch_stop(bool alone)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_stop;
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &action, NULL);
    if (alone) {
        action.sa_flags = (int)(SA_RESTART | SA_RESETHAND);
        sigaction(SIGINT, &action, NULL);
        sigaction(SIGTERM, &action, NULL);
    }
    return &stop_wanted;
}

int uly_cli_failed_early(enum uly_status status)
{
    if (uly_launch_rank() == 0)
        return uly_cli_failed(status);
    return uly_status_exit_code(status);
}

static int run_here(const struct uly_cli_job *job)
{
    struct uly_comm *world = NULL;
    struct uly_run_io io = {.out = stdout, .terminal = uly_launch_on_terminal()};
    if (job->graceful)
        io.stop = uly_cli_watch_stop(uly_launch_alone());
    enum uly_status status = uly_launch_world(&world);
    if (status != ULY_OK)
        return uly_cli_failed_early(status);
    uly_log_set_rank(uly_comm_rank(world), uly_comm_size(world));
    status = job->fn(job->context, world, &io);
    if (status != ULY_OK) {
        int code = uly_cli_failed(status);
        /* the others may be waiting in a collective; where they know already, they say nothing and wait for this */
        if (uly_error_message()[0])
            uly_comm_abort(world, code);
        uly_comm_destroy(world);
        return code;
    }
    fflush(stdout);
    uly_comm_destroy(world);
    return 0;
}

int uly_cli_run_job(const struct uly_cli_job *job)
{
    bool launch;
    int code = 0;
    enum uly_status status = uly_launch_wanted(job->nproc, &launch);
    if (status == ULY_OK && launch)
        status = uly_launch((int)job->nproc, job->graceful, job->argc, job->argv, &code);
    if (status != ULY_OK)
        return uly_cli_failed_early(status);
    return launch ? code : run_here(job);
}
