/* SPDX-License-Identifier: MIT
 *
 * The signals' way: mpirun turns Ctrl-C and SIGTERM into SIGTERM for the ranks and kills them a
 * second later, too soon to save anything. So it runs in a process group of its own, where the
 * terminal's Ctrl-C does not reach it, and gets SIGUSR1, which it passes on to the ranks; these
 * stop at the next layer border and write the model.
 */
#include "cli/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "train/machine.h"

/* Variables that say how many processes a launcher started in this step, and which one this is. */
static const char *const size_variables[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                             "SLURM_STEP_NUM_TASKS"};
static const char *const rank_variables[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK",
                                             "SLURM_PROCID"};
static const char *const local_rank_variables[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                                                   "PMI_RANK"};

static const char launched_variable[] = "ULY_LAUNCHED";
static const char terminal_variable[] = "ULY_TERMINAL";

static int variable(const char *name, int absent)
{
    const char *text = getenv(name);
    char *end;
    if (!text || !*text)
        return absent;
    long n = strtol(text, &end, 10);
    return *end == 0 && n >= 0 && n < 1 << 30 ? (int)n : absent;
}

static int first_variable(const char *const *names, size_t n, int absent)
{
    for (size_t i = 0; i < n; i++)
        if (variable(names[i], -1) >= 0)
            return variable(names[i], -1);
    return absent;
}

/* The most processes that any launcher variable speaks of; *name: that variable. 0 without a
 * launcher. A Slurm allocation sets SLURM_STEP_NUM_TASKS to 1 for its own shell, which is no
 * launch. */
static int launcher_size(const char **name)
{
    int most = 0;
    for (size_t i = 0; i < sizeof size_variables / sizeof *size_variables; i++) {
        int n = variable(size_variables[i], 0);
        if (n > most && (n > 1 || strncmp(size_variables[i], "SLURM", 5) != 0)) {
            most = n;
            *name = size_variables[i];
        }
    }
    if (most == 0 && getenv("PMIX_RANK")) {
        most = 1;
        *name = "PMIX_RANK";
    }
    return most;
}

bool uly_launched(void)
{
    return variable(launched_variable, 0) > 0;
}

bool uly_launch_alone(void)
{
    const char *name = NULL;
    return launcher_size(&name) == 0;
}

bool uly_launch_on_terminal(void)
{
    /* Open MPI gives every rank a pseudo-terminal, so a rank cannot ask its own output: the
     * launcher tells it */
    if (!uly_launch_alone())
        return variable(terminal_variable, 0) == 1;
    return isatty(STDOUT_FILENO) == 1;
}

int uly_launch_rank(void)
{
    return first_variable(rank_variables, sizeof rank_variables / sizeof *rank_variables, 0);
}

enum uly_status uly_launch_world(struct uly_comm **out)
{
    const char *name = NULL;
    int expected = launcher_size(&name);
    if (expected == 0)
        return uly_comm_self(out);
    if (uly_launched())
        ULY_TRY(uly_machine_pin(
            first_variable(local_rank_variables,
                           sizeof local_rank_variables / sizeof *local_rank_variables, 0),
            variable(launched_variable, 1)));
    struct uly_comm *comm;
    enum uly_status status = uly_comm_mpi(&comm);
    int size = status == ULY_OK ? uly_comm_size(comm) : 1;
    if (status == ULY_OK && (size > 1 || expected == 1)) {
        *out = comm;
        return ULY_OK;
    }
    if (status != ULY_OK) /* no MPI in this build, for one */
        return status;
    uly_comm_destroy(comm);
    ULY_FAIL(ULY_ERR_USAGE,
             "%s says that %d processes were started together, but MPI says that each is alone; "
             "under Slurm type `srun --mpi=pmix ulysses ...`, elsewhere use the mpirun of the MPI "
             "that ulysses was built with, or `ulysses ... --nproc %d` alone",
             name, expected, expected);
}

/* ------------------------------------------------------------------ --nproc */

static volatile sig_atomic_t
    signals_seen; /* of this process alone: the launcher has no ranks inside */

static void on_signal(int signal_number)
{
    (void)signal_number;
    signals_seen++;
}

enum { MPIRUN_NONE, MPIRUN_OPEN_MPI, MPIRUN_OTHER };

/* Which mpirun is in the path, by what it says of itself. */
static int find_mpirun(void)
{
    FILE *f = popen("mpirun --version 2>/dev/null", "r");
    if (!f)
        return MPIRUN_NONE;
    char line[256];
    int kind = MPIRUN_NONE;
    while (fgets(line, sizeof line, f)) {
        if (strstr(line, "Open MPI") || strstr(line, "OpenRTE") || strstr(line, "open-mpi"))
            kind = MPIRUN_OPEN_MPI;
        else if (kind == MPIRUN_NONE)
            kind = MPIRUN_OTHER;
    }
    int rc = pclose(f);
    return rc == 0 ? kind : MPIRUN_NONE;
}

/* The environment of the ranks; all of it is inherited through mpirun on this machine. */
static void set_environment(int kind, int n)
{
    char text[16];
    snprintf(text, sizeof text, "%d", n);
    setenv(launched_variable, text, 1);
    setenv(terminal_variable, isatty(STDOUT_FILENO) == 1 ? "1" : "0", 1);
    if (kind != MPIRUN_OPEN_MPI)
        return;
    /* what mpirun -q sets: ranks have said why they ended. Open MPI 5 has no such option, and minds an unknown one */
    setenv("OMPI_MCA_orte_execute_quiet", "1", 1);
    if (geteuid() == 0) { /* containers: there is nobody else */
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
        setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    }
    if (n > uly_machine_cpus())
        setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
}

/* Becomes mpirun. Returns only on failure. */
static void exec_mpirun(int kind, int n, int argc, char **argv, const char *program)
{
    static const char *const open_mpi[] = {"--oversubscribe", "--bind-to", "none"};
    char count[16];
    void *memory = NULL;
    if (uly_alloc((size_t)argc + 16, sizeof(char *), &memory) != ULY_OK)
        return;
    const char **list = memory;
    int k = 0;
    snprintf(count, sizeof count, "%d", n);
    list[k++] = "mpirun";
    for (size_t i = 0; kind == MPIRUN_OPEN_MPI && i < sizeof open_mpi / sizeof *open_mpi; i++)
        list[k++] = open_mpi[i];
    list[k++] = "-n";
    list[k++] = count;
    list[k++] = program;
    for (int i = 1; i < argc; i++)
        list[k++] = argv[i];
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* nobody is left behind when the launcher is killed */
    int null = open("/dev/null", O_RDONLY);
    if (null >= 0)
        dup2(null, STDIN_FILENO); /* a background group that reads the terminal would be stopped */
    signal(SIGTTOU, SIG_IGN);
    set_environment(kind, n);
    execvp("mpirun", (char *const *)(void *)list);
}

static void watch_signals(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal; /* no SA_RESTART: waitpid must come back */
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
}

/* Waits for mpirun; the first signal asks the ranks to stop, the next ones end them. */
static int wait_for(pid_t child, bool graceful)
{
    static const int passed_on[] = {SIGUSR1, SIGTERM, SIGKILL};
    int status = 0, seen = 0, next = graceful ? 0 : 1;
    for (;;) {
        struct timespec pause = {0, 50 * 1000 * 1000};
        pid_t got = waitpid(child, &status, WNOHANG);
        if (got == child)
            return status;
        if (got < 0 && errno != EINTR)
            return 1 << 8;
        if (signals_seen == seen) {
            nanosleep(&pause, NULL);
            continue;
        }
        seen++;
        if (next == 0)
            fprintf(stderr, "ulysses: stopping; the model of the last finished step will be "
                            "written (once more to end at once)\n");
        kill(child, passed_on[next]);
        next += next < 2;
    }
}

enum uly_status uly_launch_wanted(int64_t n, bool *launch)
{
    const char *name = NULL;
    *launch = false;
    if (n < 1 || uly_launched())
        return ULY_OK;
    ULY_FAIL_IF(launcher_size(&name) > 0, ULY_ERR_USAGE,
                "--nproc starts ranks by itself, but this process was started by mpirun or srun "
                "already (%s is set); leave --nproc out (--nproc auto where a config file has it)",
                name);
    *launch = n > 1;
    return ULY_OK;
}

/* What mpirun's end means: 0, 1 or 2; a rank that was killed is named. */
static int exit_code_of(int status)
{
    int killed_by = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    if (code > 128 && code <= 128 + 64)
        killed_by = code - 128; /* how mpirun passes on a rank's signal */
    if (killed_by && signals_seen == 0)
        fprintf(stderr, "ulysses: a rank was ended by signal %d (%s), and the others with it\n",
                killed_by, strsignal(killed_by));
    return code == 0 && !killed_by ? 0 : code == 2 ? 2 : 1;
}

enum uly_status uly_launch(int n, bool graceful, int argc, char **argv, int *exit_code)
{
    char program[4096];
    int kind = find_mpirun();
    ULY_FAIL_IF(kind == MPIRUN_NONE, ULY_ERR_UNSUPPORTED,
                "--nproc %d needs mpirun, and there is none in the PATH; install it (Debian: "
                "openmpi-bin)",
                n);
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    ULY_FAIL_IF(length <= 0, ULY_ERR_IO, "cannot find this program's own path: %s",
                strerror(errno));
    program[length] = 0;
    fflush(NULL);
    watch_signals();
    pid_t child = fork();
    ULY_FAIL_IF(child < 0, ULY_ERR_IO, "cannot start mpirun: %s", strerror(errno));
    if (child == 0) {
        exec_mpirun(kind, n, argc, argv, program);
        _exit(127);
    }
    *exit_code = exit_code_of(wait_for(child, graceful));
    return ULY_OK;
}
