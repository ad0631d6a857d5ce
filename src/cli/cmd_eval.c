/* SPDX-License-Identifier: MIT */
#include <inttypes.h>

#include "cli/cli.h"
#include "train/text.h"
#include "train/train_options.h"

static void print_json(const struct uly_eval_result *r)
{
    printf("{\"eval_loss\": %.9g, \"perplexity\": %.9g, \"valid_tokens\": %" PRId64
           ", \"tokens\": %" PRId64 ", \"rows\": %" PRId64 ", \"loss_by_position\": [",
           r->loss, r->perplexity, r->valid_tokens, r->tokens, r->rows);
    const char *comma = "";
    for (int k = 0; k < ULY_EVAL_BUCKETS; k++)
        if (r->bucket_tokens[k] > 0) {
            printf("%s{\"position\": %" PRId64 ", \"loss\": %.9g, \"valid_tokens\": %" PRId64 "}",
                   comma, (int64_t)1 << k, r->bucket_loss[k], r->bucket_tokens[k]);
            comma = ", ";
        }
    printf("]}\n");
}

static void print_text(const struct uly_eval_result *r)
{
    struct uly_text valid, tokens, rows, from, to, n;
    printf("eval loss  %.6f, perplexity %.6g\n", r->loss, r->perplexity);
    printf("tokens     %s with a label, of %s in %s rows\n",
           uly_text_count(r->valid_tokens, &valid), uly_text_count(r->tokens, &tokens),
           uly_text_count(r->rows, &rows));
    printf("loss by position in the row\n");
    for (int k = 0; k < ULY_EVAL_BUCKETS; k++)
        if (r->bucket_tokens[k] > 0)
            printf("%12s - %-12s %.4f  (%s tokens)\n", uly_text_count((int64_t)1 << k, &from),
                   uly_text_count(((int64_t)2 << k) - 1, &to), r->bucket_loss[k],
                   uly_text_count(r->bucket_tokens[k], &n));
}

static enum uly_status evaluate(void *context, struct uly_comm *world, const struct uly_run_io *io)
{
    struct uly_options *options = context;
    const struct uly_train_options *values = options->values;
    struct uly_eval_result result;
    struct uly_run_io told = *io;
    if (values->json) /* standard output is for one JSON object */
        told.out = NULL;
    ULY_TRY(uly_run_eval(options, world, &told, &result));
    if (uly_comm_rank(world) != 0)
        return ULY_OK;
    if (values->json)
        print_json(&result);
    else
        print_text(&result);
    return ULY_OK;
}

int uly_cmd_eval(int argc, char **argv)
{
    struct uly_train_options values;
    struct uly_options options;
    bool done = false;
    int code = 0;
    enum uly_status status =
        uly_cli_parse(uly_eval_option_table(), &values, argc, argv, &options, &done);
    if (status == ULY_OK && !done)
        status = uly_train_options_check(&values, true);
    if (status != ULY_OK)
        code = uly_cli_failed_early(status);
    else if (!done)
        code = uly_cli_run_job(&(struct uly_cli_job){.nproc = values.nproc,
                                                     .argc = argc,
                                                     .argv = argv,
                                                     .fn = evaluate,
                                                     .context = &options});
    uly_options_clear(&options);
    return code;
}
