/* SPDX-License-Identifier: MIT */
#include "cli/cli.h"
#include "train/train_options.h"

static enum uly_status train(void *options, struct uly_comm *world, const struct uly_run_io *io)
{
    return uly_run_train(options, world, io);
}

int uly_cmd_train(int argc, char **argv)
{
    struct uly_train_options values;
    struct uly_options options;
    bool done = false;
    int code = 0;
    enum uly_status status =
        uly_cli_parse(uly_train_option_table(), &values, argc, argv, &options, &done);
    if (status == ULY_OK && !done)
        status = uly_train_options_check(&values, false);
    if (status != ULY_OK)
        code = uly_cli_failed_early(status);
    else if (!done)
        code = uly_cli_run_job(&(struct uly_cli_job){.nproc = values.nproc,
                                                     .graceful = true,
                                                     .argc = argc,
                                                     .argv = argv,
                                                     .fn = train,
                                                     .context = &options});
    uly_options_clear(&options);
    return code;
}
