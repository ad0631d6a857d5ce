/* SPDX-License-Identifier: MIT */
#include "checkpoint/init_model.h"
#include "cli/cli.h"
#include "train/text.h"

struct init_options {
    char *dir, *config, *tokenizer;
    int64_t seed;
};

static const struct uly_option rows[] = {
    {.name = "DIR",
     ULY_OPTION_AT(ULY_OPTION_STRING, char *, struct init_options, dir),
     .group = "Files",
     .help = "folder to make",
     .required = true,
     .positional = true},
    {.name = "config",
     ULY_OPTION_AT(ULY_OPTION_STRING, char *, struct init_options, config),
     .metavar = "FILE",
     .group = "Files",
     .help = "a config.json, or a folder with one",
     .required = true},
    {.name = "tokenizer",
     ULY_OPTION_AT(ULY_OPTION_STRING, char *, struct init_options, tokenizer),
     .shown = "one token a byte",
     .metavar = "FILE",
     .group = "Files",
     .help = "a tokenizer.json; the small tokenizer files beside it come along"},
    {.name = "seed",
     ULY_OPTION_AT(ULY_OPTION_INT, int64_t, struct init_options, seed),
     .initial = "42",
     .max = 0x1p53,
     .group = "Numbers",
     .help = "decides the weights"},
};

static const struct uly_option_table table = {
    .command = "init",
    .usage = "ulysses init DIR --config FILE [--tokenizer FILE] [--seed N]",
    .about = "Makes a model folder with random weights, ready to be trained from nothing.",
    .rows = rows,
    .n_rows = sizeof rows / sizeof *rows};

static enum uly_status make_model(const struct init_options *v)
{
    struct uly_init_result result;
    struct uly_text count;
    ULY_TRY(uly_init_model(v->dir, v->config, v->tokenizer, (uint64_t)v->seed, &result));
    printf("%s: %s parameters%s\n", v->dir, uly_text_count(result.n_params, &count),
           result.has_tokenizer ? ""
                                : "; without a tokenizer: the vocabulary has no room for 256 "
                                  "bytes and the special tokens, so it trains on input_ids rows");
    return ULY_OK;
}

int uly_cmd_init(int argc, char **argv)
{
    struct init_options values;
    struct uly_options options;
    bool done = false;
    enum uly_status status = uly_cli_parse(&table, &values, argc, argv, &options, &done);
    if (status == ULY_OK && !done)
        status = make_model(&values);
    int code = status == ULY_OK ? 0 : uly_cli_failed(status);
    uly_options_clear(&options);
    return code;
}
