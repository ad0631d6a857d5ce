/* SPDX-License-Identifier: MIT
 *
 * What a model folder holds, from config.json and the headers of the weight files; no weight is read.
 */
#include <inttypes.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/model_folder.h"
#include "cli/cli.h"
#include "formats/safetensors.h"
#include "formats/tokenizer.h"
#include "model/rope.h"
#include "train/text.h"

#define COUNT(n) uly_text_count((n), &(struct uly_text){{0}})

struct inspect_options {
    char *dir;
};

static const struct uly_option rows[] = {
    {.name = "DIR",
     ULY_OPTION_AT(ULY_OPTION_STRING, char *, struct inspect_options, dir),
     .group = "Files",
     .help = "a model folder",
     .required = true,
     .positional = true},
};

static const struct uly_option_table table = {
    .command = "inspect",
    .usage = "ulysses inspect DIR",
    .about = "Says what a model folder holds: configuration, parameters, tensors, types, sizes.",
    .rows = rows,
    .n_rows = sizeof rows / sizeof *rows};

/* Runs of layers that have a window, e.g. "layers 0, 2, 4-27". */
static void print_windows(const struct uly_model_config *c)
{
    const char *separator = "layers ";
    if (c->sliding_window == 0)
        return;
    printf("window        %s tokens on ", COUNT(c->sliding_window));
    for (int first = 0, last; first < c->num_hidden_layers; first = last + 1) {
        last = first;
        if (uly_config_window(c, first) == 0)
            continue;
        while (last + 1 < c->num_hidden_layers && uly_config_window(c, last + 1) > 0)
            last++;
        printf("%s%d", separator, first);
        if (last > first)
            printf("-%d", last);
        separator = ", ";
    }
    printf("\n");
}

static void print_rope(const struct uly_model_config *c)
{
    const struct uly_rope_config *r = &c->rope;
    printf("positions     at most %s, rope %s, theta %.9g\n", COUNT(c->max_position_embeddings),
           uly_rope_type_name(r->type), r->theta);
    if (r->type == ULY_ROPE_DEFAULT)
        return;
    printf("              factor %g", r->factor);
    if (r->type == ULY_ROPE_LLAMA3)
        printf(", low %g, high %g", r->low_freq_factor, r->high_freq_factor);
    if (r->type == ULY_ROPE_YARN)
        printf(", beta %g to %g", r->beta_slow, r->beta_fast);
    if (r->original_max_position_embeddings > 0)
        printf(", original %s", COUNT(r->original_max_position_embeddings));
    if (r->type == ULY_ROPE_YARN || r->type == ULY_ROPE_LONGROPE)
        printf(", scale %g", uly_rope_scale(c));
    printf("\n");
}

static void print_config(const struct uly_model_config *c)
{
    printf("architecture  %s (%s)\n", c->architecture, c->model_type);
    printf("layers        %d, hidden %" PRId64 ", mlp %" PRId64 "\n", c->num_hidden_layers,
           c->hidden_size, c->intermediate_size);
    printf("attention     %d heads of %d, %d kv heads%s%s\n", c->num_attention_heads, c->head_dim,
           c->num_key_value_heads, c->qkv_bias ? ", with biases" : "",
           c->qk_norm ? ", queries and keys normed" : "");
    print_windows(c);
    print_rope(c);
    printf("vocabulary    %s, bos %" PRId64 ", eos %" PRId64 ", pad %" PRId64 " (-1: none)\n",
           COUNT(c->vocab_size), c->bos_token_id, c->eos_token_id, c->pad_token_id);
}

static void print_sizes(const struct uly_model_folder *folder, const struct uly_params *params)
{
    const struct uly_model_config *c = uly_model_folder_config(folder);
    struct uly_text bytes;
    int shards = uly_model_folder_shards(folder);
    printf("parameters    %s, %s without embeddings%s\n", COUNT(uly_params_count(params, false)),
           COUNT(uly_params_count(params, true)), c->tie_word_embeddings ? " (tied)" : "");
    printf("weights       %s, %s in %d file%s\n", uly_dtype_name(c->dtype),
           uly_text_bytes(uly_model_folder_weight_bytes(folder), &bytes), shards,
           shards == 1 ? "" : "s");
    printf("tokenizer     %s\n", uly_tokenizer_exists(uly_model_folder_path(folder))
                                     ? "yes"
                                     : "none: trains on rows of input_ids");
}

static void print_entry(const struct uly_safetensors_entry *e)
{
    printf("  %-6s [", e->dtype);
    for (int i = 0; i < e->n_dim; i++)
        printf("%s%" PRId64, i ? ", " : "", e->shape[i]);
    printf("] %s\n", e->name);
}

static enum uly_status print_file(const char *path)
{
    struct uly_safetensors *st = NULL;
    ULY_TRY(uly_safetensors_open(path, &st));
    printf("%s\n", uly_path_base(path));
    for (int64_t i = 0; i < uly_safetensors_count(st); i++)
        print_entry(uly_safetensors_entry(st, i));
    uly_safetensors_close(st);
    return ULY_OK;
}

static bool is_weight_file(const char *name)
{
    const char *end = strrchr(name, '.');
    return end && strcmp(end, ".safetensors") == 0;
}

static enum uly_status print_tensors(const char *dir)
{
    enum uly_status status = ULY_OK;
    struct uly_names names = {NULL, 0, 0};
    ULY_TRY(uly_folder_list(dir, &names));
    for (int64_t i = 0; i < names.n && status == ULY_OK; i++) {
        char *path = NULL;
        if (!is_weight_file(names.list[i]))
            continue;
        status = uly_path_join(dir, names.list[i], &path);
        if (status == ULY_OK)
            status = print_file(path);
        uly_free(path);
    }
    uly_names_clear(&names);
    return status;
}

static enum uly_status inspect(const char *dir)
{
    enum uly_status status = ULY_OK;
    struct uly_model_folder *folder = NULL;
    struct uly_params params = {0};
    ULY_TRY(uly_model_folder_open(dir, &folder));
    ULY_TRY_GOTO(uly_params_init(uly_model_folder_config(folder), &params), out);
    ULY_TRY_GOTO(uly_model_folder_check(folder, &params), out);
    print_config(uly_model_folder_config(folder));
    print_sizes(folder, &params);
    ULY_TRY_GOTO(print_tensors(dir), out);
    uly_model_folder_warn_unused(folder, &params);
out:
    uly_params_clear(&params);
    uly_model_folder_close(folder);
    return status;
}

int uly_cmd_inspect(int argc, char **argv)
{
    struct inspect_options values;
    struct uly_options options;
    bool done = false;
    enum uly_status status = uly_cli_parse(&table, &values, argc, argv, &options, &done);
    if (status == ULY_OK && !done)
        status = inspect(values.dir);
    int code = status == ULY_OK ? 0 : uly_cli_failed(status);
    uly_options_clear(&options);
    return code;
}
