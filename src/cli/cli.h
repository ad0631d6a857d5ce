/* SPDX-License-Identifier: MIT
 *
 * What the commands share. Only this layer prints: results on standard output, a failure as one line
 * "ulysses: cause" on standard error (with the trace where ULY_LOG=debug).
 */
#ifndef ULY_CLI_CLI_H
#define ULY_CLI_CLI_H

#include "base/options.h"
#include "train/run.h"

/* argv[0] the program, argv[1] the command. Each returns the exit status. */
int uly_cmd_train(int argc, char **argv);
int uly_cmd_eval(int argc, char **argv);
int uly_cmd_init(int argc, char **argv);
int uly_cmd_inspect(int argc, char **argv);
int uly_cmd_bench(int argc, char **argv);
int uly_cmd_selfcheck(int argc, char **argv);

/* Says why, once (an empty message: another rank does), and returns the exit status. */
int uly_cli_failed(enum uly_status status);

/* The same before there are ranks: under mpirun all processes come here with the same error, and the first one tells it. */
int uly_cli_failed_early(enum uly_status status);

/* Parses the words after the command. *done: help was printed, exit with 0. options: uly_options_clear in any case. */
enum uly_status uly_cli_parse(const struct uly_option_table *table, void *values, int argc,
                              char **argv, struct uly_options *options, bool *done);

/* From here on SIGUSR1 asks for a stop; alone: Ctrl-C and SIGTERM too, the second of which ends the process as usual. The
 * flag lives as long as the process. */
const volatile sig_atomic_t *uly_cli_watch_stop(bool alone);

/* Starts the ranks of --nproc, or finds the ones there are, and runs fn on every rank of them. Returns the exit status;
 * an error of one rank ends all. */
struct uly_cli_job {
    int64_t nproc;
    bool graceful; /* a signal means stop and save */
    int argc;
    char **argv;
    enum uly_status (*fn)(void *context, struct uly_comm *world, const struct uly_run_io *io);
    void *context;
};
int uly_cli_run_job(const struct uly_cli_job *job);

#endif
