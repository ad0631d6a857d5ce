/* SPDX-License-Identifier: MIT
 *
 * ulysses selfcheck: the layouts of these ranks against one rank, on the first layers of a model.
 */
#include "cli/cli.h"
#include "train/selfcheck.h"

struct values {
    char *model;
    int64_t layers, nproc, threads;
};

/* clang-format off */
static const struct uly_option rows[] = {
    {.name = "model", ULY_OPTION_AT(ULY_OPTION_STRING, char *, struct values, model), .required = true,
     .metavar = "DIR", .group = "Files", .help = "model folder: config.json and safetensors files"},
    {.name = "layers", ULY_OPTION_AT(ULY_OPTION_INT, int64_t, struct values, layers), .initial = "2", .min = 1,
     .max = 1 << 16, .group = "Files", .help = "how many of its layers, from the first"},
    {.name = "nproc", ULY_OPTION_AT(ULY_OPTION_INT, int64_t, struct values, nproc), .initial = "auto",
     .shown = "what mpirun or srun gave, else 1", .word = "auto", .min = 1, .max = 4096, .group = "Layout",
     .help = "ranks on this machine; every method is tried over all of them"},
    {.name = "threads", ULY_OPTION_AT(ULY_OPTION_INT, int64_t, struct values, threads), .initial = "auto",
     .shown = "OMP_NUM_THREADS, else a rank's share of the CPUs", .word = "auto", .min = 1, .max = 4096,
     .group = "Layout", .help = "threads of a rank"},
};
/* clang-format on */

static const struct uly_option_table table = {
    .command = "selfcheck",
    .usage = "ulysses selfcheck --model DIR [--layers 2] [--nproc N]",
    .about =
        "Runs the first layers of a model over the ranks in every layout and compares loss and "
        "gradients with one rank. Exit status 0: all are equal.",
    .rows = rows,
    .n_rows = sizeof rows / sizeof *rows};

static enum uly_status selfcheck(void *context, struct uly_comm *world, const struct uly_run_io *io)
{
    const struct values *v = context;
    struct uly_selfcheck_options options = {
        .model = v->model, .layers = (int)v->layers, .threads = (int)v->threads};
    return uly_selfcheck(&options, world, io);
}

int uly_cmd_selfcheck(int argc, char **argv)
{
    struct values values;
    struct uly_options options;
    bool done = false;
    int code = 0;
    enum uly_status status = uly_cli_parse(&table, &values, argc, argv, &options, &done);
    if (status != ULY_OK)
        code = uly_cli_failed_early(status);
    else if (!done)
        code = uly_cli_run_job(&(struct uly_cli_job){.nproc = values.nproc,
                                                     .argc = argc,
                                                     .argv = argv,
                                                     .fn = selfcheck,
                                                     .context = &values});
    uly_options_clear(&options);
    return code;
}
