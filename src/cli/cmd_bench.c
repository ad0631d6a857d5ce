/* SPDX-License-Identifier: MIT
 *
 * ulysses bench gemm|attention|alltoall|step: how fast this machine runs the parts of a training step, each beside the
 * limit of its instructions (peak_gflops: the type's multiply-add on registers alone).
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "backend/backend.h"
#include "cli/bench.h"
#include "train/machine.h"
#include "train/together.h"

static const char *const dtype_words[] = {"float32", "bfloat16", NULL};
static const char *const checkpointing_words[] = {"none", "full", NULL};

#define AT_INT(field) ULY_OPTION_AT(ULY_OPTION_INT, int64_t, struct uly_bench_options, field)

/* clang-format off */
static const struct uly_option rows[] = {
    {.name = "WHAT", ULY_OPTION_AT(ULY_OPTION_STRING, char *, struct uly_bench_options, what), .group = "What",
     .help = "gemm, attention, alltoall or step", .required = true, .positional = true},
    {.name = "json", ULY_OPTION_AT(ULY_OPTION_BOOL, bool, struct uly_bench_options, json), .group = "What",
     .help = "one JSON object instead of a table"},
    {.name = "nproc", AT_INT(nproc), .initial = "0", .shown = "what mpirun or srun gave, else 1", .max = 1 << 16,
     .group = "Layout", .help = "ranks on this machine (alltoall, step)"},
    {.name = "threads", AT_INT(threads), .initial = "0", .shown = "this rank's CPUs", .max = 4096, .group = "Layout",
     .help = "threads of a rank"},
    {.name = "dtype", ULY_OPTION_AT(ULY_OPTION_CHOICE, int, struct uly_bench_options, dtype), .initial = "bfloat16",
     .choices = dtype_words, .group = "Shape", .help = "element type"},
    {.name = "size", AT_INT(size), .initial = "4096", .min = 1, .max = 1 << 16, .group = "Shape",
     .help = "the matrix product is size x size x size"},
    {.name = "seq", AT_INT(seq), .initial = "0", .shown = "8192 for attention, 16384 for step", .max = 1 << 30,
     .group = "Shape", .help = "tokens of the sequence"},
    {.name = "heads", AT_INT(heads), .initial = "8", .min = 1, .max = 512, .group = "Shape", .help = "query heads"},
    {.name = "kv-heads", AT_INT(kv_heads), .initial = "0", .shown = "heads", .max = 512, .group = "Shape",
     .help = "key and value heads"},
    {.name = "head-dim", AT_INT(head_dim), .initial = "64", .min = 1, .max = 512, .group = "Shape",
     .help = "numbers of a head"},
    {.name = "window", AT_INT(window), .initial = "0", .shown = "none", .max = 1 << 30, .group = "Shape",
     .help = "keys that a query sees"},
    {.name = "bytes", ULY_OPTION_AT(ULY_OPTION_BYTES, int64_t, struct uly_bench_options, bytes), .initial = "16MiB",
     .min = 4, .max = 0x1p40, .group = "Shape", .help = "what a rank sends to each other one (alltoall)"},
    {.name = "gradient-checkpointing",
     ULY_OPTION_AT(ULY_OPTION_CHOICE, int, struct uly_bench_options, checkpointing), .initial = "full",
     .choices = checkpointing_words, .group = "Shape", .help = "as in train (step)"},
    {.name = "steps", AT_INT(steps), .initial = "2", .min = 1, .max = 1 << 20, .group = "Time",
     .help = "steps after one to warm up; the best counts"},
    {.name = "repeats", AT_INT(repeats), .initial = "3", .min = 1, .max = 1 << 20, .group = "Time",
     .help = "repeats of the others after one to warm up; the best counts"},
};
/* clang-format on */

static const struct uly_option_table table = {
    .command = "bench",
    .usage = "ulysses bench gemm|attention|alltoall|step [--json] [options]",
    .about = "Measures this machine: the parts of a training step and the step itself.",
    .rows = rows,
    .n_rows = sizeof rows / sizeof *rows};

enum uly_dtype uly_bench_dtype(const struct uly_bench_options *options)
{
    return options->dtype == 0 ? ULY_DTYPE_F32 : ULY_DTYPE_BF16;
}

/* ------------------------------------------------------------------ results */

void uly_bench_add(struct uly_bench_result *r, const char *name, double value)
{
    ULY_BUG_ON(r->n >= (int)(sizeof r->item / sizeof *r->item));
    r->item[r->n].name = name;
    r->item[r->n++].value = value;
}

void uly_bench_add_int(struct uly_bench_result *r, const char *name, int64_t value)
{
    uly_bench_add(r, name, (double)value);
    r->item[r->n - 1].whole = true;
}

void uly_bench_add_text(struct uly_bench_result *r, const char *name, const char *text)
{
    uly_bench_add(r, name, 0);
    r->item[r->n - 1].text = text;
}

static void print_value(const struct uly_bench_result *r, int i, bool json)
{
    if (r->item[i].text)
        printf(json ? "\"%s\"" : "%s", r->item[i].text);
    else if (r->item[i].whole)
        printf("%" PRId64, (int64_t)r->item[i].value);
    else
        printf(json ? "%.6g" : "%.4g", r->item[i].value);
}

static void print_result(const struct uly_bench_result *r, bool json)
{
    for (int i = 0; i < r->n; i++) {
        printf(json ? "%s\"%s\": " : "%s%-30s ", !json ? "" : i ? ", " : "{", r->item[i].name);
        print_value(r, i, json);
        if (!json)
            printf("\n");
    }
    if (json)
        printf("}\n");
}

/* ------------------------------------------------------------------ the command */

static enum uly_status check_options(struct uly_bench_options *o)
{
    static const char *const known[] = {"gemm", "attention", "alltoall", "step"};
    bool found = false;
    for (int i = 0; i < 4; i++)
        found = found || strcmp(o->what, known[i]) == 0;
    ULY_FAIL_IF(strcmp(o->what, "adamw") == 0, ULY_ERR_USAGE,
                "bench adamw is not there yet; there are gemm, attention, alltoall and step");
    ULY_FAIL_IF(!found, ULY_ERR_USAGE,
                "bench %s is not known; there are gemm, attention, alltoall and step", o->what);
    if (o->kv_heads == 0)
        o->kv_heads = o->heads;
    if (o->seq == 0)
        o->seq = strcmp(o->what, "step") == 0 ? 16384 : 8192;
    ULY_FAIL_IF(o->heads % o->kv_heads != 0, ULY_ERR_USAGE,
                "--heads %" PRId64 " is no multiple of --kv-heads %" PRId64, o->heads, o->kv_heads);
    return ULY_OK;
}

static enum uly_status measure(const struct uly_bench_options *o, struct uly_comm *world,
                               struct uly_backend *be, struct uly_bench_result *r)
{
    bool alone = uly_comm_size(world) == 1;
    if (strcmp(o->what, "alltoall") == 0)
        return uly_bench_alltoall(o, world, be, r);
    if (strcmp(o->what, "step") == 0)
        return uly_bench_step(o, world, be, r);
    if (!alone)
        ULY_FAIL_TOGETHER(world, ULY_ERR_USAGE,
                          "bench %s is for one rank; --threads sets its threads", o->what);
    return strcmp(o->what, "gemm") == 0 ? uly_bench_gemm(o, be, r) : uly_bench_attention(o, be, r);
}

static enum uly_status bench(void *context, struct uly_comm *world, const struct uly_run_io *io)
{
    const struct uly_bench_options *o = context;
    struct uly_machine_threads threads;
    struct uly_backend *be = NULL;
    struct uly_bench_result r;
    (void)io;
    memset(&r, 0, sizeof r);
    ULY_TRY(uly_machine_count_threads(world, (int)o->threads, &threads));
    ULY_TRY(uly_agree(world, uly_backend_create("cpu", threads.threads, &be)));
    uly_bench_add_text(&r, "bench", o->what);
    uly_bench_add_text(&r, "dtype", dtype_words[o->dtype]);
    uly_bench_add_text(&r, "backend", uly_backend_name(be));
    uly_bench_add_int(&r, "threads", threads.threads);
    enum uly_status status = measure(o, world, be, &r);
    if (status == ULY_OK && uly_comm_rank(world) == 0)
        print_result(&r, o->json);
    uly_backend_destroy(be);
    return status;
}

int uly_cmd_bench(int argc, char **argv)
{
    struct uly_bench_options values;
    struct uly_options options;
    bool done = false;
    int code = 0;
    enum uly_status status = uly_cli_parse(&table, &values, argc, argv, &options, &done);
    if (status == ULY_OK && !done)
        status = check_options(&values);
    if (status != ULY_OK)
        code = uly_cli_failed_early(status);
    else if (!done)
        code = uly_cli_run_job(&(struct uly_cli_job){
            .nproc = values.nproc, .argc = argc, .argv = argv, .fn = bench, .context = &values});
    uly_options_clear(&options);
    return code;
}
