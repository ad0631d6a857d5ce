/* SPDX-License-Identifier: MIT
 *
 * How ranks come to life: `--nproc N` starts them here through mpirun; mpirun or srun may have
 * started this process as one of several; otherwise there is one.
 */
#ifndef ULY_CLI_LAUNCH_H
#define ULY_CLI_LAUNCH_H

#include "comm/comm.h"

/* --nproc n was given: ULY_ERR_USAGE inside mpirun or srun. *launch: whether this process must call uly_launch (not for
 * n = 1, and not in a rank that uly_launch has started). */
enum uly_status uly_launch_wanted(int64_t n, bool *launch);

/* Runs this program again as n ranks of this machine under mpirun (Open MPI or MPICH), in a process group of its own,
 * with the arguments argv (argv[0] is ignored; --nproc may stay in: the ranks know that they were launched), and waits.
 * graceful: the first Ctrl-C, SIGTERM or SIGUSR1 is passed on as SIGUSR1 (the ranks save and stop), the second ends them;
 * else the first ends them. *exit_code: that of the run, one of 0, 1, 2. ULY_ERR_UNSUPPORTED where there is no mpirun. */
enum uly_status uly_launch(int n, bool graceful, int argc, char **argv, int *exit_code);

/* True in a process that uly_launch started: --nproc has been obeyed. */
bool uly_launched(void);

/* The communicator of this process: MPI_COMM_WORLD where mpirun or srun started it, else one rank.
 * Ranks of uly_launch are bound to their CPUs first. ULY_ERR_USAGE, with the command to type, where
 * a launcher started several processes and MPI says that each is alone. *out: the caller destroys
 * it. */
enum uly_status uly_launch_world(struct uly_comm **out);

/* Whether this process's standard output ends up on a terminal where a line may be drawn over. */
bool uly_launch_on_terminal(void);

/* Whether no launcher started this process. */
bool uly_launch_alone(void);

/* Rank as the launcher's environment says, before MPI runs; 0 where there is no launcher. */
int uly_launch_rank(void);

#endif
