/* SPDX-License-Identifier: MIT
 *
 * The option engine on a small table, and the table of train: every form a value may have, every message, the file's round
 * trip, and what the options mean together.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/options.h"
#include "train/schedule.h"
#include "train/train_options.h"

/* ------------------------------------------------------------------ a small table */

struct values {
    bool loud;
    int64_t count, tile, size;
    double rate, limit;
    char *name, *place;
    int color;
    struct uly_strings files;
    char *config;
};

static const char *const colors[] = {"red", "green", "dark_blue", NULL};
static const struct uly_option rows[] = {
    {.name = "PLACE",
     ULY_OPTION_AT(ULY_OPTION_STRING, char *, struct values, place),
     .positional = true,
     .help = "where"},
    {.name = "loud", ULY_OPTION_AT(ULY_OPTION_BOOL, bool, struct values, loud), .help = "noise"},
    {.name = "row-count",
     ULY_OPTION_AT(ULY_OPTION_INT, int64_t, struct values, count),
     .initial = "7",
     .min = 1,
     .max = 100,
     .help = "rows | lines"},
    {.name = "tile",
     ULY_OPTION_AT(ULY_OPTION_INT, int64_t, struct values, tile),
     .initial = "auto",
     .word = "auto",
     .min = 1,
     .max = 0x1p53,
     .help = "tile"},
    {.name = "size",
     ULY_OPTION_AT(ULY_OPTION_BYTES, int64_t, struct values, size),
     .initial = "5GB",
     .help = "size"},
    {.name = "rate",
     ULY_OPTION_AT(ULY_OPTION_DOUBLE, double, struct values, rate),
     .initial = "2e-5",
     .max = 1,
     .above_min = true,
     .help = "rate"},
    {.name = "limit",
     ULY_OPTION_AT(ULY_OPTION_SECONDS, double, struct values, limit),
     .initial = "none",
     .word = "none",
     .help = "limit"},
    {.name = "name",
     ULY_OPTION_AT(ULY_OPTION_STRING, char *, struct values, name),
     .required = true,
     .metavar = "TEXT",
     .help = "name"},
    {.name = "color",
     ULY_OPTION_AT(ULY_OPTION_CHOICE, int, struct values, color),
     .initial = "green",
     .choices = colors,
     .when_true = "dark_blue",
     .when_false = "red",
     .help = "color"},
    {.name = "files",
     ULY_OPTION_AT(ULY_OPTION_LIST, struct uly_strings, struct values, files),
     .metavar = "FILE",
     .help = "files"},
    {.name = "config-file",
     ULY_OPTION_AT(ULY_OPTION_STRING, char *, struct values, config),
     .unsaved = true,
     .metavar = "FILE",
     .help = "file"},
};
static const struct uly_option_answer foreign[] = {
    {"colour", NULL, "type --color NAME"}, {"color", "blue", "type --color dark-blue"}, {0}};
static const struct uly_option_answer later[] = {
    {"smell", NULL, NULL}, {"taste", NULL, "--color is"}, {"row-count", "13", "12 is"}, {0}};
static const struct uly_option_table table = {
    .command = "paint",
    .usage = "ulysses paint [PLACE]",
    .about = "Paints.",
    .rows = rows,
    .n_rows = sizeof rows / sizeof rows[0],
    .foreign = foreign,
    .later = later,
    .config_file = "config-file",
    .foreign_in_page = true,
};

static struct values v;
static struct uly_options options;

enum { MAX_WORDS = 32 };

/* Parses a line of words; "\x01" in a word stands for a space. */
static enum uly_status parse_with(const struct uly_option_table *t, void *values, const char *line)
{
    static char copy[1024];
    static char *words[MAX_WORDS];
    int n = 0;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *at = copy; *at;) {
        words[n++] = at;
        at += strcspn(at, " ");
        if (*at)
            *at++ = '\0';
    }
    for (int i = 0; i < n; i++)
        for (char *c = words[i]; *c; c++)
            if (*c == '\x01')
                *c = ' ';
    assert_int_equal(uly_options_init(&options, t, values), ULY_OK);
    return uly_options_parse(&options, n, words);
}

static void good(const char *line)
{
    if (parse_with(&table, &v, line) != ULY_OK)
        fail_msg("%s: %s", line, uly_error_message());
}

static void done(void)
{
    uly_options_clear(&options);
    assert_null(v.name);
    assert_null(v.files.items);
}

/* The line is refused as wrong usage, and the message has all of the parts ("|" between them). */
static void bad_with(const struct uly_option_table *t, void *values, const char *line,
                     const char *parts)
{
    char part[256];
    enum uly_status status = parse_with(t, values, line);
    assert_int_equal(status, ULY_ERR_USAGE);
    while (*parts) {
        size_t n = strcspn(parts, "|");
        snprintf(part, sizeof part, "%.*s", (int)n, parts);
        if (!strstr(uly_error_message(), part))
            fail_msg("%s: \"%s\" does not say \"%s\"", line, uly_error_message(), part);
        parts += n + (parts[n] == '|');
    }
    uly_options_clear(&options);
}

static void bad(const char *line, const char *parts)
{
    bad_with(&table, &v, line, parts);
}

static void test_defaults(void **state)
{
    (void)state;
    memset(&v, 0xff, sizeof v);
    good("--name x");
    assert_false(v.loud);
    assert_int_equal(v.count, 7);
    assert_int_equal(v.tile, 0);
    assert_int_equal(v.size, 5000000000);
    assert_true(v.rate == 2e-5);
    assert_true(v.limit == 0);
    assert_int_equal(v.color, 1);
    assert_int_equal(v.files.n, 0);
    assert_null(v.place);
    assert_int_equal(uly_options_source(&options, "row_count"), ULY_FROM_DEFAULT);
    assert_int_equal(uly_options_source(&options, "name"), ULY_FROM_COMMAND_LINE);
    done();
}

static void test_forms(void **state)
{
    (void)state;
    good("--name=a=b --row_count 9 --loud --rate=1 --files one two -x --tile 3 here");
    assert_string_equal(v.name, "a=b");
    assert_int_equal(v.count, 9);
    assert_true(v.loud);
    assert_true(v.rate == 1);
    assert_int_equal(v.files.n, 3);
    assert_string_equal(v.files.items[2], "-x");
    assert_int_equal(v.tile, 3);
    assert_string_equal(v.place, "here");
    done();
    good("--loud false --name x --files a --files=b --tile auto --color");
    assert_false(v.loud);
    assert_int_equal(v.files.n, 2);
    assert_string_equal(v.files.items[1], "b");
    assert_int_equal(v.tile, 0);
    assert_int_equal(v.color, 2); /* a bare choice is its meaning of true */
    done();
    good("--loud there --name x --color=false");
    assert_int_equal(v.color, 0);
    assert_true(v.loud);
    assert_string_equal(v.place, "there");
    uly_options_clear(&options);
    good("--name x -- --files"); /* after "--" nothing is an option */
    assert_string_equal(v.place, "--files");
    done();
}

static void test_units(void **state)
{
    static const struct {
        const char *text;
        double value;
    } sizes[] = {{"0", 0},        {"4096", 4096}, {"1.5GB", 1.5e9}, {"80GiB", 85899345920.0},
                 {"3kb", 3000},   {"2KiB", 2048}, {"7B", 7},        {"9007199254740993", 0},
                 {"2tib", 0x1p41}};
    static const struct {
        const char *text;
        double value;
    } times[] = {{"90", 90},        {"45s", 45},      {"30m", 1800},       {"1.5h", 5400},
                 {"2d", 172800},    {"3h50m", 13800}, {"1d1h1m1s", 90061}, {"01:30", 90},
                 {"1:00:01", 3601}, {"none", 0}};
    char line[100];
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        snprintf(line, sizeof line, "--name x --size %s", sizes[i].text);
        good(line);
        if (i == 7) /* exact where a double is not */
            assert_int_equal(v.size, 9007199254740993);
        else
            assert_int_equal(v.size, (int64_t)sizes[i].value);
        done();
    }
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        snprintf(line, sizeof line, "--name x --limit %s", times[i].text);
        good(line);
        assert_true(v.limit == times[i].value);
        done();
    }
}

static void test_refusals(void **state)
{
    (void)state;
    bad("--name x --row-count abc",
        "--row-count takes a whole number, at least 1 and at most 100|\"abc\"");
    bad("--name x --row-count 0", "at least 1|\"0\"");
    bad("--name x --row-count 101", "at most 100");
    bad("--name x --row-count 7.5", "a whole number");
    bad("--name x --row-count 99999999999999999999", "a whole number");
    bad("--name x --tile 0", "a whole number, at least 1|or auto|\"0\"");
    bad("--name x --rate 0", "a number above 0 and at most 1|\"0\"");
    bad("--name x --rate nan", "--rate takes a number|\"nan\"");
    bad("--name x --rate 0x1p-3", "--rate");
    bad("--name x --rate 1e-3x", "--rate");
    bad("--name x --rate=", "--rate");
    bad("--name x --size 5XB", "--size takes a size such as");
    bad("--name x --size -1", "--size");
    bad("--name x --size 1e30GB", "--size");
    bad("--name x --limit 5m3h", "--limit takes a time");
    bad("--name x --limit 1:75", "--limit");
    bad("--name x --limit 1:2:3:4", "--limit");
    bad("--name x --color yellow", "--color takes red|green|dark_blue|\"yellow\"");
    bad("--name x --loud=maybe", "--loud takes true or false|maybe");
    bad("--name", "--name needs a value");
    bad("--name --loud", "--name needs a value");
    bad("--files", "--files needs a value");
    bad("--row-count 8", "--name is missing|ulysses paint needs TEXT");
    bad("--name x one two", "unexpected word \"two\"");
    bad("--name x -v", "unknown option -v");
    bad("--name=", "--name takes a text");
}

static void test_names(void **state)
{
    (void)state;
    bad("--row-cuont 3", "--row-cuont is not an option of ulysses paint|did you mean --row-count?");
    bad("--count 3", "did you mean --row-count?");
    bad("--rte 3", "did you mean --rate?");
    bad("--zebra 3", "--zebra|ulysses paint --help lists them");
    bad("--colour red", "--colour is not an option of ulysses paint: type --color NAME");
    bad("--color blue --name x", "--color blue is not known here: type --color dark-blue");
    bad("--smell", "--smell is not there yet");
    bad("--taste=sweet", "--taste is not there yet; --color is");
    bad("--row_count=13 --name x", "--row-count 13 is not there yet; 12 is");
    static const char *const names[] = {"train", "eval", NULL, "inspect"};
    assert_string_equal(uly_nearest_name("trian", names, 4), "train");
    assert_string_equal(uly_nearest_name("inspekt", names, 4), "inspect");
    assert_null(uly_nearest_name("xyz", names, 4));
    assert_null(uly_nearest_name("", names, 4));
}

static void test_help(void **state)
{
    char *text = NULL;
    size_t bytes = 0;
    (void)state;
    good("--help --nonsense"); /* asks for nothing else */
    assert_true(options.help);
    uly_options_clear(&options);
    FILE *out = open_memstream(&text, &bytes);
    uly_options_help(&table, out);
    fclose(out);
    assert_non_null(strstr(text, "usage: ulysses paint [PLACE]"));
    for (int i = 0; i < table.n_rows; i++)
        assert_non_null(strstr(text, rows[i].name));
    assert_non_null(strstr(text, "--color red|green|dark_blue"));
    assert_non_null(strstr(text, "[5GB]"));
    assert_non_null(strstr(text, "Not there yet:\n--smell, --taste, --row-count 13"));
    free(text);
    out = open_memstream(&text, &bytes);
    uly_options_markdown(&table, out);
    fclose(out);
    assert_non_null(strstr(text, "| `--row-count N` | `7` | rows \\| lines |"));
    assert_non_null(strstr(text, "| `--colour` | type --color NAME |"));
    free(text);
}

/* ------------------------------------------------------------------ files */

static char folder[] = "/tmp/uly_options_XXXXXX";
static char path[128];

static void write_config(const char *text)
{
    snprintf(path, sizeof path, "%s/run.json", folder);
    assert_int_equal(uly_file_write(path, text, (int64_t)strlen(text)), ULY_OK);
}

static void test_config_file(void **state)
{
    char line[256];
    (void)state;
    write_config("{\"name\": \"file\", \"row_count\": 5, \"rate\": 0.25, \"loud\": true,"
                 " \"files\": [\"a\", \"b\"], \"size\": \"1MB\", \"color\": true, \"tile\": null}");
    snprintf(line, sizeof line, "--row-count 6 --config_file %s --files c", path);
    good(line);
    assert_string_equal(v.name, "file");
    assert_int_equal(v.count, 6); /* the command line beats the file, wherever it stands */
    assert_true(v.rate == 0.25);
    assert_true(v.loud);
    assert_int_equal(v.files.n, 1); /* and replaces its lists */
    assert_string_equal(v.files.items[0], "c");
    assert_int_equal(v.size, 1000000);
    assert_int_equal(v.color, 2);
    assert_int_equal(v.tile, 0);
    assert_int_equal(uly_options_source(&options, "rate"), ULY_FROM_FILE);
    assert_int_equal(uly_options_source(&options, "row-count"), ULY_FROM_COMMAND_LINE);
    assert_int_equal(uly_options_source(&options, "tile"), ULY_FROM_DEFAULT);
    done();
}

static void bad_config(const char *text, const char *parts)
{
    char line[256], all[512];
    write_config(text);
    snprintf(line, sizeof line, "--config-file=%s", path);
    snprintf(all, sizeof all, "run.json|%s", parts);
    bad(line, all);
}

static void test_bad_config(void **state)
{
    (void)state;
    bad_config("{\"row_cuont\": 5}", "row_cuont is not an option|did you mean --row-count?");
    bad_config("{\"row_count\": \"x\"}", "row-count takes a whole number");
    bad_config("{\"row_count\": 5.5}", "row-count takes a whole number");
    bad_config("{\"row_count\": true}", "row-count takes a whole number");
    bad_config("{\"row_count\": [5]}", "takes a value, not a list");
    bad_config("{\"name\": {}}", "takes a value, not an object");
    bad_config("{\"files\": [\"a\", 3]}", "item 2 of files is not a string");
    bad_config("{\"files\": 3}", "a list of strings");
    bad_config("{\"smell\": 3}", "smell is not there yet");
    bad_config("{\"colour\": \"red\"}", "type --color NAME");
    bad_config("{\"config_file\": \"x\"}", "belongs on the command line");
    bad_config("{\"row_count\": 5,\n \"row_count\": 6}", ":2:|duplicate");
    bad_config("{\"row_count\": 5, \"row-count\": 6}",
               "row_count and row-count are the same option");
    bad_config("{\"row_count\": 5,}", ":1:");
    bad_config("[1]", "expected an object");
    bad("--config-file /nowhere/at.json", "/nowhere/at.json|No such file");
}

static void test_round_trip(void **state)
{
    static const char *const lines[] = {
        "--name x",
        "--name \x01\"\\\xc3\xa9 --row-count 99 --tile 12 --size 3GiB --rate 0.1 --limit 1.5h",
        "--name y --size 12345 --rate 3.3333333333333335e-7 --color red --files a \"b --loud",
    };
    (void)state;
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        struct values first;
        struct uly_options kept;
        good(lines[i]);
        first = v;
        kept = options;
        kept.values = &first;
        snprintf(path, sizeof path, "%s/options.json", folder);
        assert_int_equal(uly_options_write_json(&kept, path), ULY_OK);
        char line[256];
        snprintf(line, sizeof line, "--config-file %s", path);
        good(line);
        assert_string_equal(v.name, first.name);
        assert_int_equal(v.count, first.count);
        assert_int_equal(v.tile, first.tile);
        assert_int_equal(v.size, first.size);
        assert_true(v.rate == first.rate && v.limit == first.limit);
        assert_int_equal(v.color, first.color);
        assert_int_equal(v.files.n, first.files.n);
        for (int k = 0; k < v.files.n; k++)
            assert_string_equal(v.files.items[k], first.files.items[k]);
        assert_int_equal(v.loud, first.loud);
        done();
        uly_options_clear(&kept);
    }
}

/* Every allocation fails in turn: an error, and nothing leaks (the sanitizer build looks). */
static void test_no_memory(void **state)
{
    static char line[] = "--name x --files a b --name y";
    char *words[MAX_WORDS];
    int n = 0;
    for (char *word = line; word; n++) {
        words[n] = word;
        word = strchr(word, (int)' ');
        if (word)
            *word++ = 0;
    }
    (void)state;
    for (long k = 1;; k++) {
        uly_alloc_fail_at(k);
        enum uly_status status = uly_options_init(&options, &table, &v);
        if (status == ULY_OK) {
            status = uly_options_parse(&options, n, words);
            uly_options_clear(&options);
        }
        uly_alloc_fail_at(0);
        if (status == ULY_OK) {
            assert_true(k > 5);
            break;
        }
        assert_int_equal(status, ULY_ERR_NO_MEMORY);
    }
}

/* ------------------------------------------------------------------ train and eval */

static struct uly_train_options t;
static const struct uly_model_config config = {
    .num_attention_heads = 8, .num_key_value_heads = 4, .max_position_embeddings = 4096};
static struct uly_method_request asked;
#define MUST "--model m --data a.txt --output-dir o "

static enum uly_status train_parse(const char *line)
{
    char all[512];
    snprintf(all, sizeof all, MUST "%s", line);
    return parse_with(uly_train_option_table(), &t, all);
}

/* Parse, check and resolve; the first error is the result. */
static enum uly_status train_resolve(const char *line, int world)
{
    enum uly_status status = train_parse(line);
    if (status == ULY_OK)
        status = uly_train_options_check(&t, false);
    if (status == ULY_OK)
        status = uly_train_options_resolve(&t, world, NULL, &config, &asked);
    return status;
}

static void refused(const char *line, int world, const char *part)
{
    enum uly_status status = train_resolve(line, world);
    if (status != ULY_ERR_USAGE || !strstr(uly_error_message(), part))
        fail_msg("%s: %d \"%s\" does not say \"%s\"", line, status, uly_error_message(), part);
    uly_options_clear(&options);
}

static void accepted(const char *line, int world)
{
    if (train_resolve(line, world) != ULY_OK)
        fail_msg("%s: %s", line, uly_error_message());
}

static void test_train_defaults(void **state)
{
    (void)state;
    accepted("", 1);
    assert_int_equal(t.sp_size, 1);
    assert_int_equal(t.dp_size, 1);
    assert_int_equal(t.method, ULY_METHOD_ULYSSES);
    assert_int_equal(t.ring_size, 1);
    assert_int_equal(t.dtype, ULY_DTYPE_CHOICE_BF16);
    assert_int_equal(uly_train_dtype(&t), ULY_DTYPE_BF16);
    assert_int_equal(uly_train_save_dtype(&t, ULY_DTYPE_F16), ULY_DTYPE_F16);
    assert_int_equal(t.zero_stage, 0);
    assert_int_equal(t.gradient_checkpointing, ULY_CHECKPOINT_FULL);
    assert_int_equal(t.max_length, 4096);
    assert_int_equal(t.per_device_train_batch_size, 1);
    assert_int_equal(t.gradient_accumulation_steps, 1);
    assert_int_equal(t.global_batch_size, 1);
    assert_int_equal(t.over_length, ULY_OVER_AUTO);
    assert_int_equal(t.bad_rows, ULY_BAD_ROWS_ERROR);
    assert_int_equal(t.train_sampling_strategy, ULY_SAMPLING_RANDOM);
    assert_true(t.learning_rate == 2e-5 && t.warmup_steps == 0 && t.weight_decay == 0);
    assert_true(t.adam_beta1 == 0.9 && t.adam_beta2 == 0.999 && t.adam_epsilon == 1e-8);
    assert_true(t.max_grad_norm == 1 && t.num_train_epochs == 3);
    assert_int_equal(t.max_steps, -1);
    assert_int_equal(t.lr_scheduler_type, ULY_SCHEDULE_LINEAR);
    assert_int_equal(t.seed, 42);
    assert_int_equal(t.logging_steps, 1);
    assert_int_equal(t.eval_steps, 500);
    assert_int_equal(t.max_shard_size, 5000000000);
    assert_true(t.time_limit == 0 && t.collective_timeout == 1800 && t.validation_split == 0);
    assert_true(t.min_lr == -1 && t.min_lr_rate == -1 && t.num_decay_steps == 0);
    uly_options_clear(&options);
}

static void test_layout(void **state)
{
    (void)state;
    accepted("", 8);
    assert_int_equal(t.sp_size * 100 + t.dp_size, 801);
    uly_options_clear(&options);
    accepted("--sp-size 2", 6);
    assert_int_equal(t.sp_size * 100 + t.dp_size, 203);
    assert_int_equal(t.ulysses_size, 2);
    uly_options_clear(&options);
    accepted("--dp_size 3", 6);
    assert_int_equal(t.sp_size * 100 + t.dp_size, 203);
    uly_options_clear(&options);
    accepted("--ulysses-size 2 --method ulysses --ring-size 1", 4);
    assert_int_equal(t.sp_size * 100 + t.dp_size, 202);
    uly_options_clear(&options);
    accepted("--ring-size 2 --method ring", 4);
    assert_int_equal(t.sp_size * 100 + t.dp_size, 202);
    uly_options_clear(&options);
    accepted("--ring-size 2 --ulysses-size 2", 8); /* both sizes leave no doubt */
    assert_int_equal(t.sp_size * 100 + t.dp_size, 402);
    assert_int_equal(t.method, ULY_METHOD_USP);
    uly_options_clear(&options);
    accepted("--ring-size 2", 8); /* one does: all ranks */
    assert_int_equal(t.sp_size * 100 + t.dp_size, 801);
    assert_int_equal(t.ulysses_size, 4);
    assert_int_equal(t.heads_per_stage, 2);
    uly_options_clear(&options);
    refused("--sp-size 4", 6, "--sp-size 4 does not divide the 6 ranks; these do: 1, 2, 3, 6");
    refused("--dp-size 4", 6, "--dp-size 4 does not divide the 6 ranks");
    refused("--sp-size 2 --dp-size 2", 8, "is 4, but there are 8 ranks");
    refused("--sp-size 2 --nproc 3", 3, "does not divide the 3 ranks");
}

/* The options reach the method: tests/test_method.c has its rules. With --nproc the sizes are refused before there are ranks
 * and a model. */
static void test_method_options(void **state)
{
    (void)state;
    accepted("--method upipe", 2);
    assert_int_equal(t.method, ULY_METHOD_UPIPE);
    assert_int_equal(t.heads_per_stage, 1);
    uly_options_clear(&options);
    accepted("--method=ring --heads_per_stage 3", 2);
    assert_int_equal(t.ring_size * 10 + t.ulysses_size, 21);
    assert_int_equal(t.heads_per_stage, 3);
    uly_options_clear(&options);
    accepted("--query-tile 512 --method upipe --heads-per-stage 2", 2);
    assert_int_equal(t.query_tile, 512);
    assert_int_equal(t.heads_per_stage, 2);
    uly_options_clear(&options);
    accepted("", 2);
    assert_int_equal(asked.method, ULY_METHOD_AUTO); /* what was asked outlives the choice */
    assert_int_equal(t.method, ULY_METHOD_ULYSSES);
    assert_int_equal(t.heads_per_stage, 4);
    uly_options_clear(&options);
    refused("--sp-size 4 --ulysses-size 3", 4,
            "--ulysses-size 3 does not divide --sp-size 4; these do: 1, 2, 4");
    refused("--heads-per-stage 0", 2, "--heads-per-stage takes a whole number, at least 1");
    refused("--heads-per-stage 5", 2, "--heads-per-stage 5 is more than the 4 of a rank");
    assert_int_equal(train_parse("--nproc 4 --ulysses-size 4 --ring-size 4"), ULY_OK);
    assert_int_equal(uly_train_options_check(&t, false), ULY_ERR_USAGE);
    assert_non_null(strstr(uly_error_message(), "1 x 4, 2 x 2, 4 x 1"));
    uly_options_clear(&options);
    assert_int_equal(train_parse("--nproc 4 --method ring --ulysses-size 4"), ULY_OK);
    assert_int_equal(uly_train_options_check(&t, false), ULY_ERR_USAGE);
    assert_non_null(strstr(uly_error_message(), "--method ring exchanges no heads"));
    uly_options_clear(&options);
}

static void test_batch(void **state)
{
    (void)state;
    accepted("--global-batch-size 24 --per-device-train-batch-size 2 --sp-size 1", 4);
    assert_int_equal(t.gradient_accumulation_steps, 3);
    uly_options_clear(&options);
    accepted("--gradient-accumulation-steps 5 --per-device-train-batch-size 2", 4);
    assert_int_equal(t.global_batch_size, 10);
    uly_options_clear(&options);
    accepted("--gradient-accumulation-steps 3 --global-batch-size 3", 1);
    uly_options_clear(&options);
    refused("--gradient-accumulation-steps 1 --global-batch-size 3", 1, "contradicts");
    refused("--global-batch-size 6 --sp-size 1", 4, "not a multiple of 4");
    refused("--validation-split 0.1 --eval-data b.txt", 1, "--validation-split and --eval-data");
    refused("--validation-split 1", 1, "--validation-split 1 leaves no row");
    refused("--validation-split 0", 1, "--validation-split takes a number above 0");
    refused("--adam-beta2 1", 1, "must be below 1");
    refused("--max-steps 0", 1, "--max-steps takes a whole number, at least 1");
}

static void test_schedules(void **state)
{
    (void)state;
    refused("--lr-scheduler-type constant --warmup-steps 3", 1, "constant_with_warmup takes it");
    refused("--lr-scheduler-type cosine_with_min_lr", 1, "one of --min-lr and --min-lr-rate");
    refused("--lr-scheduler-type cosine_with_min_lr --min-lr 0 --min-lr-rate 0", 1, "one of");
    refused("--min-lr 1e-6", 1, "belongs to --lr-scheduler-type cosine_with_min_lr, not to linear");
    refused("--lr-scheduler-type warmup_stable_decay", 1, "needs --num-decay-steps");
    refused("--num-decay-steps 4", 1, "belongs to --lr-scheduler-type warmup_stable_decay");
    accepted("--lr-scheduler-type warmup_stable_decay --num-decay-steps 0.2 --min-lr-rate 0.1", 1);
    assert_int_equal(t.lr_scheduler_type, ULY_SCHEDULE_WARMUP_STABLE_DECAY);
    uly_options_clear(&options);
    accepted("--lr-scheduler-type cosine_with_min_lr --min-lr 0 --warmup-steps 0.1", 1);
    assert_true(t.min_lr == 0 && t.warmup_steps == 0.1);
    uly_options_clear(&options);
    refused("--lr-scheduler-type polynomial", 1, "takes constant|constant_with_warmup|linear");
}

/* Everything that is answered is answered as itself: no name is both an option and refused whatever its value. */
static void test_answers(void **state)
{
    const struct uly_option_table *all[] = {uly_train_option_table(), uly_eval_option_table()};
    char line[128], label[128];
    (void)state;
    for (int c = 0; c < 2; c++)
        for (int kind = 0; kind < 2; kind++)
            for (const struct uly_option_answer *a = kind ? uly_later_options : uly_foreign_options;
                 a->name; a++) {
                const char *expected = kind ? "is not there yet" : a->answer;
                if (c == 1 && a->value && strcmp(a->name, "dtype") && strcmp(a->name, "method"))
                    continue; /* an option of train only */
                snprintf(line, sizeof line, "--%s=%s", a->name, a->value ? a->value : "x");
                snprintf(label, sizeof label, "--%s", a->name);
                assert_int_equal(parse_with(all[c], &t, line), ULY_ERR_USAGE);
                if (!strstr(uly_error_message(), expected) || !strstr(uly_error_message(), label))
                    fail_msg("%s: %s", line, uly_error_message());
                uly_options_clear(&options);
            }
    refused("--cp_size 4", 1, "--cp_size is not an option of ulysses train: type --sp-size N");
    refused("--ring_degree 2", 1, "type --ring-size N");
    refused("--ulysses-degree 2", 1, "type --ulysses-size N");
    refused("--bf16", 1, "--bf16 is not an option of ulysses train: type --dtype bfloat16");
    refused("--save-steps 100", 1, "--save-steps is not there yet");
    refused("--gradient-checkpointing attention", 1, "is not there yet");
    refused("--zero_stage=1", 1, "--zero-stage 1 is not there yet; --zero-stage 0 is");
    accepted("--gradient-checkpointing true --zero-stage 0", 1);
    assert_int_equal(t.gradient_checkpointing, ULY_CHECKPOINT_FULL);
    uly_options_clear(&options);
}

static void test_eval(void **state)
{
    (void)state;
    assert_int_equal(parse_with(uly_eval_option_table(), &t,
                                "--model m --data a b --json --dump-losses f --max-length 9"),
                     ULY_OK);
    assert_int_equal(uly_train_options_check(&t, true), ULY_OK);
    assert_int_equal(uly_train_options_resolve(&t, 3, NULL, &config, &asked), ULY_OK);
    assert_true(t.json);
    assert_int_equal(t.sp_size, 3);
    assert_int_equal(t.data.n, 2);
    assert_int_equal(t.max_length, 9);
    assert_int_equal(t.seed, 42); /* rows of train have their defaults too */
    uly_options_clear(&options);
    bad_with(uly_eval_option_table(), &t, "--model m --data a --learning-rate 1",
             "--learning-rate is an option of another command, not of ulysses eval");
    bad_with(uly_eval_option_table(), &t, "--model m", "--data is missing");
    bad_with(uly_train_option_table(), &t, MUST "--json", "another command");
}

/* What a run writes is a config file that gives the same run, resolved values included. */
static void test_train_round_trip(void **state)
{
    char line[256];
    (void)state;
    accepted("--sp-size 2 --global-batch-size 6 --validation-split 0.25 --time-limit 2h "
             "--method usp --ring-size 2",
             4);
    snprintf(path, sizeof path, "%s/options.json", folder);
    assert_int_equal(uly_options_write_json(&options, path), ULY_OK);
    uly_options_clear(&options);
    snprintf(line, sizeof line, "--config-file %s", path);
    assert_int_equal(parse_with(uly_train_option_table(), &t, line), ULY_OK);
    assert_int_equal(uly_train_options_check(&t, false), ULY_OK);
    assert_int_equal(uly_train_options_resolve(&t, 4, NULL, &config, &asked), ULY_OK);
    assert_string_equal(t.model, "m");
    assert_string_equal(t.data.items[0], "a.txt");
    assert_int_equal(t.sp_size * 100 + t.dp_size, 202);
    assert_int_equal(t.method, ULY_METHOD_USP);
    assert_int_equal(t.ring_size * 10 + t.ulysses_size, 21);
    assert_int_equal(t.heads_per_stage, 2);
    assert_int_equal(t.global_batch_size, 6);
    assert_int_equal(t.gradient_accumulation_steps, 3);
    assert_int_equal(t.max_length, 4096);
    assert_true(t.validation_split == 0.25 && t.time_limit == 7200);
    uly_options_clear(&options);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    return uly_folder_remove(folder) == ULY_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),       cmocka_unit_test(test_forms),
        cmocka_unit_test(test_units),          cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_names),          cmocka_unit_test(test_help),
        cmocka_unit_test(test_config_file),    cmocka_unit_test(test_bad_config),
        cmocka_unit_test(test_round_trip),     cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_train_defaults), cmocka_unit_test(test_layout),
        cmocka_unit_test(test_method_options), cmocka_unit_test(test_batch),
        cmocka_unit_test(test_schedules),      cmocka_unit_test(test_answers),
        cmocka_unit_test(test_eval),           cmocka_unit_test(test_train_round_trip),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
