/* SPDX-License-Identifier: MIT
 *
 * The rows of train and eval, and what they mean together: contradictions, and what "auto" stands for once the number of
 * ranks and the model are known.
 */
#include "train/train_options.h"

#include <math.h>

#include "formats/config_json.h"
#include "train/schedule.h"

enum { TRAIN = 1, EVAL = 2 };

#define VALUES         struct uly_train_options
#define BOOL(field)    ULY_OPTION_AT(ULY_OPTION_BOOL, bool, VALUES, field)
#define INT(field)     ULY_OPTION_AT(ULY_OPTION_INT, int64_t, VALUES, field)
#define DOUBLE(field)  ULY_OPTION_AT(ULY_OPTION_DOUBLE, double, VALUES, field)
#define STRING(field)  ULY_OPTION_AT(ULY_OPTION_STRING, char *, VALUES, field)
#define CHOICE(field)  ULY_OPTION_AT(ULY_OPTION_CHOICE, int, VALUES, field)
#define BYTES(field)   ULY_OPTION_AT(ULY_OPTION_BYTES, int64_t, VALUES, field)
#define SECONDS(field) ULY_OPTION_AT(ULY_OPTION_SECONDS, double, VALUES, field)
#define LIST(field)    ULY_OPTION_AT(ULY_OPTION_LIST, struct uly_strings, VALUES, field)

static const char *const method_words[] = {"auto", "ulysses", "upipe", "ring", "usp", NULL};
static const char *const dtype_words[] = {"float32", "bfloat16", NULL};
static const char *const save_dtype_words[] = {"input", "float32", "bfloat16", "float16", NULL};
static const char *const checkpointing_words[] = {"none", "full", NULL};
static const char *const over_length_words[] = {"auto", "error", "truncate", "split", "drop", NULL};
static const char *const bad_rows_words[] = {"error", "skip", NULL};
static const char *const sampling_words[] = {"random", "sequential", NULL};
static const char *const scheduler_words[] = {
#define X(name, text) text,
    ULY_SCHEDULE_LIST(X)
#undef X
        NULL};

static const struct uly_option rows[] = {
    /* clang-format off */
    {.name = "model", STRING(model), .required = true, .metavar = "DIR", .group = "Files",
     .help = "model folder: config.json, safetensors files, tokenizer.json"},
    {.name = "config-overrides", STRING(config_overrides), .metavar = "JSON", .group = "Files",
     .help = "config.json values for this run and the written folder, such as '{\"rope_theta\": 1e6}'; rope, lengths, windows"},
    {.name = "data", LIST(data), .required = true, .metavar = "FILE", .group = "Files",
     .help = ".txt (one document a file) or .jsonl (rows with \"text\", or \"input_ids\" and \"labels\")"},
    {.name = "output-dir", STRING(output_dir), .required = true, .commands = TRAIN, .metavar = "DIR", .group = "Files",
     .help = "folder for metrics.jsonl, options.json and the trained model"},
    {.name = "overwrite-output-dir", BOOL(overwrite_output_dir), .commands = TRAIN, .unsaved = true, .group = "Files",
     .help = "replace what a run left in the output folder"},
    {.name = "config-file", STRING(config_file), .unsaved = true, .metavar = "FILE", .group = "Files",
     .help = "JSON object of options"},

    {.name = "nproc", INT(nproc), .initial = "auto", .shown = "what mpirun or srun gave, else 1", .word = "auto",
     .min = 1, .max = 4096, .group = "Layout",
     .help = "ranks on this machine, started and pinned by the program itself"},
    {.name = "threads", INT(threads), .initial = "auto", .shown = "OMP_NUM_THREADS, else a rank's share of the CPUs",
     .word = "auto", .min = 1, .max = 4096, .group = "Layout", .help = "threads of a rank"},
    {.name = "sp-size", INT(sp_size), .initial = "auto", .shown = "all ranks", .word = "auto",
     .min = 1, .max = 1 << 20, .group = "Layout", .help = "ranks that share each sequence"},
    {.name = "dp-size", INT(dp_size), .initial = "auto", .shown = "ranks / sp-size", .word = "auto",
     .min = 1, .max = 1 << 20, .group = "Layout", .help = "replicas with rows of their own"},
    {.name = "method", CHOICE(method), .initial = "auto", .group = "Layout", .choices = method_words,
     .help = "how a sequence is split (docs/methods.md); auto chooses the sizes and says why"},
    {.name = "ulysses-size", INT(ulysses_size), .initial = "auto", .shown = "what the method says", .word = "auto",
     .min = 1, .max = 1 << 20, .group = "Layout",
     .help = "ranks that exchange heads against tokens; times ring-size it is sp-size"},
    {.name = "ring-size", INT(ring_size), .initial = "auto", .shown = "what the method says", .word = "auto",
     .min = 1, .max = 1 << 20, .group = "Layout", .help = "ranks that pass keys and values to each other"},
    {.name = "heads-per-stage", INT(heads_per_stage), .initial = "auto", .shown = "what the method says", .word = "auto",
     .min = 1, .max = 1 << 20, .group = "Layout",
     .help = "query heads of a rank in one exchange, 1 to heads / ulysses-size rounded up; fewer take less memory"},
    {.name = "query-tile", INT(query_tile), .initial = "auto", .shown = "the whole shard, or what auto chooses", .word = "auto",
     .min = 1, .max = 0x1p40, .group = "Layout",
     .help = "tokens of a rank whose queries are in flight at once; needs ring-size 1"},
    {.name = "token-tile", INT(token_tile), .initial = "auto", .shown = "chosen", .word = "auto",
     .min = 1, .max = 1 << 20, .group = "Layout", .help = "rows of a pass over tokens; changes nothing but speed and memory"},

    {.name = "dtype", CHOICE(dtype), .initial = "bfloat16", .choices = dtype_words, .group = "Numbers",
     .help = "type of weights and activations; sums, master weights and moments are float32"},
    {.name = "save-dtype", CHOICE(save_dtype), .initial = "input", .shown = "the input folder's", .commands = TRAIN,
     .choices = save_dtype_words, .group = "Numbers", .help = "type of the weights in the written folder"},
    {.name = "zero-stage", INT(zero_stage), .initial = "0", .max = 3, .commands = TRAIN, .group = "Numbers",
     .help = "what is split over ranks beside the sequence: 0 nothing"},
    {.name = "gradient-checkpointing", CHOICE(gradient_checkpointing), .initial = "full", .commands = TRAIN,
     .choices = checkpointing_words, .when_true = "full", .when_false = "none", .group = "Memory",
     .help = "full keeps the blocks' inputs and computes each block again; none keeps more and computes once"},

    {.name = "max-length", INT(max_length), .initial = "auto", .shown = "max_position_embeddings", .word = "auto",
     .min = 1, .max = 0x1p40, .group = "Batch", .help = "the most tokens of a row"},
    {.name = "per-device-train-batch-size", INT(per_device_train_batch_size), .initial = "1",
     .min = 1, .max = 1 << 20, .group = "Batch", .help = "rows of a micro-batch of one replica, laid end to end"},
    {.name = "gradient-accumulation-steps", INT(gradient_accumulation_steps), .initial = "auto", .shown = "1",
     .word = "auto", .min = 1, .max = 1 << 20, .commands = TRAIN, .group = "Batch", .help = "micro-batches of a step"},
    {.name = "global-batch-size", INT(global_batch_size), .initial = "auto",
     .shown = "replicas * rows * accumulation", .word = "auto",
     .min = 1, .max = 0x1p40, .commands = TRAIN, .group = "Batch", .help = "rows of a step; sets the accumulation"},
    {.name = "over-length", CHOICE(over_length), .initial = "auto", .shown = "split for plain text, error for others",
     .choices = over_length_words, .group = "Batch", .help = "rows of more than max-length tokens"},
    {.name = "bad-rows", CHOICE(bad_rows), .initial = "error", .choices = bad_rows_words, .group = "Batch",
     .help = "rows that cannot be read"},
    {.name = "train-sampling-strategy", CHOICE(train_sampling_strategy), .initial = "random", .commands = TRAIN,
     .choices = sampling_words, .group = "Batch", .help = "order of the rows in an epoch"},

    {.name = "learning-rate", DOUBLE(learning_rate), .initial = "2e-5", .max = HUGE_VAL, .commands = TRAIN,
     .metavar = "X", .group = "Optimizer", .help = "the peak of the schedule"},
    {.name = "lr-scheduler-type", CHOICE(lr_scheduler_type), .initial = "linear", .commands = TRAIN,
     .choices = scheduler_words, .metavar = "NAME", .group = "Optimizer",
     .help = "constant, constant_with_warmup, linear, cosine, cosine_with_min_lr or warmup_stable_decay"},
    {.name = "warmup-steps", DOUBLE(warmup_steps), .initial = "0", .max = HUGE_VAL, .commands = TRAIN,
     .group = "Optimizer", .help = "steps from 0 to the learning rate; below 1 a ratio of all steps"},
    {.name = "min-lr", DOUBLE(min_lr), .initial = "none", .word = "none", .word_value = -1, .max = HUGE_VAL,
     .commands = TRAIN, .metavar = "X", .group = "Optimizer", .help = "floor of cosine_with_min_lr"},
    {.name = "min-lr-rate", DOUBLE(min_lr_rate), .initial = "none", .word = "none", .word_value = -1, .max = 1,
     .commands = TRAIN, .metavar = "X", .group = "Optimizer",
     .help = "the same as a share of the learning rate; also the floor of warmup_stable_decay"},
    {.name = "num-decay-steps", DOUBLE(num_decay_steps), .initial = "none", .word = "none", .max = HUGE_VAL,
     .above_min = true, .commands = TRAIN, .group = "Optimizer",
     .help = "last steps of warmup_stable_decay, in which the rate falls; below 1 a ratio of all steps"},
    {.name = "weight-decay", DOUBLE(weight_decay), .initial = "0", .max = HUGE_VAL, .commands = TRAIN,
     .metavar = "X", .group = "Optimizer", .help = "not on norms and biases"},
    {.name = "adam-beta1", DOUBLE(adam_beta1), .initial = "0.9", .max = 1, .commands = TRAIN, .metavar = "X",
     .group = "Optimizer", .help = "memory of the first moment"},
    {.name = "adam-beta2", DOUBLE(adam_beta2), .initial = "0.999", .max = 1, .commands = TRAIN, .metavar = "X",
     .group = "Optimizer", .help = "memory of the second moment"},
    {.name = "adam-epsilon", DOUBLE(adam_epsilon), .initial = "1e-8", .max = HUGE_VAL, .above_min = true,
     .commands = TRAIN, .metavar = "X", .group = "Optimizer", .help = "added to the root of the second moment"},
    {.name = "max-grad-norm", DOUBLE(max_grad_norm), .initial = "1", .max = HUGE_VAL, .commands = TRAIN,
     .metavar = "X", .group = "Optimizer", .help = "larger gradients are scaled down to this norm; 0: never"},
    {.name = "max-steps", INT(max_steps), .initial = "-1", .word = "-1", .word_value = -1, .min = 1, .max = 0x1p53,
     .commands = TRAIN, .group = "Optimizer", .help = "steps of the run; -1: num-train-epochs decides"},
    {.name = "num-train-epochs", DOUBLE(num_train_epochs), .initial = "3", .max = 0x1p53, .above_min = true,
     .commands = TRAIN, .group = "Optimizer", .help = "how often each row is seen, unless max-steps is given"},
    {.name = "seed", INT(seed), .initial = "42", .max = 0x1p53, .commands = TRAIN, .group = "Optimizer",
     .help = "decides the order of the rows"},

    {.name = "logging-steps", INT(logging_steps), .initial = "1", .min = 1, .max = 0x1p53, .commands = TRAIN,
     .group = "Watching and saving",
     .help = "a line on the screen and in metrics.jsonl every so many steps; its loss is their mean"},
    {.name = "eval-data", LIST(eval_data), .commands = TRAIN, .metavar = "FILE", .group = "Watching and saving",
     .help = "rows to evaluate on, as --data"},
    {.name = "validation-split", DOUBLE(validation_split), .initial = "none", .word = "none", .max = 1,
     .above_min = true, .commands = TRAIN, .metavar = "F", .group = "Watching and saving",
     .help = "evaluate on this fraction of the rows, the last ones, and train on the others"},
    {.name = "eval-steps", INT(eval_steps), .initial = "500", .min = 1, .max = 0x1p53, .commands = TRAIN,
     .group = "Watching and saving",
     .help = "with evaluation data: evaluate every so many steps, before the first and at the end"},
    {.name = "max-shard-size", BYTES(max_shard_size), .initial = "5GB", .min = 1, .max = HUGE_VAL, .commands = TRAIN,
     .group = "Watching and saving", .help = "largest safetensors file"},
    {.name = "time-limit", SECONDS(time_limit), .initial = "none", .word = "none", .max = HUGE_VAL, .above_min = true,
     .commands = TRAIN, .metavar = "TIME", .group = "Watching and saving",
     .help = "stop after this time (90, 45s, 30m, 3h50m, 01:30:00) and write the model"},
    {.name = "collective-timeout", SECONDS(collective_timeout), .initial = "30m", .max = HUGE_VAL, .metavar = "TIME",
     .group = "Watching and saving", .help = "end the run when ranks wait longer for each other; 0: never"},
    {.name = "dump-gradients", STRING(dump_gradients), .commands = TRAIN, .metavar = "DIR", .group = "Watching and saving",
     .help = "write the first step's gradients, reduced and before clipping, in float32"},
    {.name = "json", BOOL(json), .commands = EVAL, .unsaved = true, .group = "Watching and saving",
     .help = "print the result as one JSON object"},
    {.name = "dump-losses", STRING(dump_losses), .commands = EVAL, .unsaved = true, .metavar = "FILE",
     .group = "Watching and saving", .help = "write the loss of every token"},
    /* clang-format on */
};

static const struct uly_option_table train_table = {
    .command = "train",
    .usage = "ulysses train --model DIR --data FILE... --output-dir OUT [options]",
    .about = "Trains a model on long rows split over ranks and writes a folder that Transformers "
             "loads.",
    .rows = rows,
    .n_rows = sizeof rows / sizeof rows[0],
    .command_bit = TRAIN,
    .foreign = uly_foreign_options,
    .later = uly_later_options,
    .config_file = "config-file",
    .foreign_in_page = true,
};

static const struct uly_option_table eval_table = {
    .command = "eval",
    .usage = "ulysses eval --model DIR --data FILE... [options]",
    .about = "Mean loss and perplexity of a model over all rows, the same at every layout.",
    .rows = rows,
    .n_rows = sizeof rows / sizeof rows[0],
    .command_bit = EVAL,
    .foreign = uly_foreign_options,
    .later = uly_later_options,
    .config_file = "config-file",
};

const struct uly_option_table *uly_train_option_table(void)
{
    return &train_table;
}

const struct uly_option_table *uly_eval_option_table(void)
{
    return &eval_table;
}

/* ------------------------------------------------------------------ together */

/* How many ranks share a sequence, where --sp-size does not say: what the sizes of the method leave no doubt about, else
 * all ranks. */
static int64_t sp_size_of(const struct uly_train_options *o, int64_t world)
{
    int64_t said = o->ulysses_size * o->ring_size; /* 0 where one is not given */
    if (o->method == ULY_METHOD_ULYSSES || o->method == ULY_METHOD_UPIPE)
        said = said ? said : o->ulysses_size;
    if (o->method == ULY_METHOD_RING)
        said = said ? said : o->ring_size;
    if (said > 0 && world % said == 0)
        return said;
    return o->dp_size > 0 ? world / o->dp_size : world;
}

/* dp and sp; *asked: the question to the method, without the model and its machines. */
static enum uly_status resolve_layout(struct uly_train_options *o, int64_t world,
                                      struct uly_method_request *asked)
{
    char sizes[200];
    ULY_FAIL_IF(o->dp_size > 0 && world % o->dp_size, ULY_ERR_USAGE,
                "--dp-size %lld does not divide the %lld ranks; these do: %s",
                (long long)o->dp_size, (long long)world,
                uly_divisors(world, false, sizes, sizeof sizes));
    if (o->sp_size == 0)
        o->sp_size = sp_size_of(o, world);
    ULY_FAIL_IF(world % o->sp_size, ULY_ERR_USAGE,
                "--sp-size %lld does not divide the %lld rank%s; these do: %s",
                (long long)o->sp_size, (long long)world, world == 1 ? "" : "s",
                uly_divisors(world, false, sizes, sizeof sizes));
    if (o->dp_size == 0)
        o->dp_size = world / o->sp_size;
    ULY_FAIL_IF(o->dp_size * o->sp_size != world, ULY_ERR_USAGE,
                "--dp-size %lld * --sp-size %lld is %lld, but there are %lld ranks; with this "
                "--sp-size, --dp-size is %lld",
                (long long)o->dp_size, (long long)o->sp_size, (long long)(o->dp_size * o->sp_size),
                (long long)world, (long long)(world / o->sp_size));
    *asked = (struct uly_method_request){.method = (enum uly_method)o->method,
                                         .sp_size = o->sp_size,
                                         .ulysses_size = o->ulysses_size,
                                         .ring_size = o->ring_size,
                                         .heads_per_stage = o->heads_per_stage,
                                         .query_tile = o->query_tile,
                                         .world = (int)world};
    return ULY_OK;
}

static enum uly_status resolve_batch(struct uly_train_options *o)
{
    int64_t micro = o->dp_size * o->per_device_train_batch_size;
    int64_t given = o->gradient_accumulation_steps;
    if (o->global_batch_size == 0) {
        o->gradient_accumulation_steps = given ? given : 1;
        o->global_batch_size = micro * o->gradient_accumulation_steps;
        return ULY_OK;
    }
    ULY_FAIL_IF(
        o->global_batch_size % micro, ULY_ERR_USAGE,
        "--global-batch-size %lld is not a multiple of %lld, the rows of one micro-batch of "
        "all replicas (--dp-size %lld * --per-device-train-batch-size %lld)",
        (long long)o->global_batch_size, (long long)micro, (long long)o->dp_size,
        (long long)o->per_device_train_batch_size);
    int64_t steps = o->global_batch_size / micro;
    ULY_FAIL_IF(given && given != steps, ULY_ERR_USAGE,
                "--gradient-accumulation-steps %lld contradicts --global-batch-size %lld, which "
                "takes %lld (%lld rows a micro-batch of all replicas); give one of the two",
                (long long)given, (long long)o->global_batch_size, (long long)steps,
                (long long)micro);
    o->gradient_accumulation_steps = steps;
    return ULY_OK;
}

static enum uly_status resolve_method(struct uly_train_options *o, struct uly_method_request *asked)
{
    struct uly_method_choice choice;
    ULY_TRY(uly_method_resolve(asked, &choice));
    o->method = (int)choice.method;
    o->ulysses_size = choice.ulysses_size;
    o->ring_size = choice.ring_size;
    o->heads_per_stage = choice.heads_per_stage;
    o->query_tile = choice.query_tile;
    return ULY_OK;
}

enum uly_status uly_train_options_resolve(struct uly_train_options *options, int world,
                                          const int *hosts, const struct uly_model_config *config,
                                          struct uly_method_request *asked)
{
    struct uly_train_options o = *options; /* changed only on success */
    struct uly_method_request request;
    ULY_TRY(resolve_layout(&o, world, &request));
    request.H = config->num_attention_heads;
    request.K = config->num_key_value_heads;
    request.hosts = hosts;
    ULY_TRY(resolve_batch(&o));
    ULY_TRY(resolve_method(&o, &request));
    if (o.max_length == 0) {
        ULY_FAIL_IF(config->max_position_embeddings < 1, ULY_ERR_USAGE,
                    "config.json has no max_position_embeddings: give --max-length N");
        o.max_length = config->max_position_embeddings;
    }
    *options = o;
    *asked = request;
    return ULY_OK;
}

static enum uly_status check_schedule(const struct uly_train_options *o)
{
    const char *name = scheduler_words[o->lr_scheduler_type];
    bool cosine = o->lr_scheduler_type == ULY_SCHEDULE_COSINE_WITH_MIN_LR;
    bool stable = o->lr_scheduler_type == ULY_SCHEDULE_WARMUP_STABLE_DECAY;
    ULY_FAIL_IF(o->lr_scheduler_type == ULY_SCHEDULE_CONSTANT && o->warmup_steps > 0, ULY_ERR_USAGE,
                "--warmup-steps %g contradicts --lr-scheduler-type constant; constant_with_warmup "
                "takes it",
                o->warmup_steps);
    ULY_FAIL_IF(cosine && (o->min_lr < 0) == (o->min_lr_rate < 0), ULY_ERR_USAGE,
                "--lr-scheduler-type cosine_with_min_lr takes one of --min-lr and --min-lr-rate");
    ULY_FAIL_IF(!cosine && o->min_lr >= 0, ULY_ERR_USAGE,
                "--min-lr belongs to --lr-scheduler-type cosine_with_min_lr, not to %s", name);
    ULY_FAIL_IF(!cosine && !stable && o->min_lr_rate >= 0, ULY_ERR_USAGE,
                "--min-lr-rate belongs to --lr-scheduler-type cosine_with_min_lr or "
                "warmup_stable_decay, not to %s",
                name);
    ULY_FAIL_IF(cosine && o->min_lr > o->learning_rate, ULY_ERR_USAGE,
                "--min-lr %g is above --learning-rate %g", o->min_lr, o->learning_rate);
    ULY_FAIL_IF(stable && o->num_decay_steps == 0, ULY_ERR_USAGE,
                "--lr-scheduler-type warmup_stable_decay needs --num-decay-steps");
    ULY_FAIL_IF(!stable && o->num_decay_steps > 0, ULY_ERR_USAGE,
                "--num-decay-steps belongs to --lr-scheduler-type warmup_stable_decay, not to %s",
                name);
    return ULY_OK;
}

enum uly_status uly_train_options_check(const struct uly_train_options *options, bool eval)
{
    struct uly_train_options copy = *options;
    struct uly_method_request asked;
    struct uly_method_choice none;
    if (options->config_overrides)
        ULY_TRY(uly_config_overrides_check(options->config_overrides));
    if (options->nproc > 0) {
        ULY_TRY(resolve_layout(&copy, options->nproc, &asked));
        ULY_TRY(uly_method_resolve(&asked, &none)); /* as far as it can be said without the model */
    }
    if (eval)
        return ULY_OK;
    if (options->nproc > 0)
        ULY_TRY(resolve_batch(&copy));
    ULY_FAIL_IF(options->validation_split > 0 && options->eval_data.n > 0, ULY_ERR_USAGE,
                "--validation-split and --eval-data contradict each other: give one of the two");
    ULY_FAIL_IF(options->validation_split >= 1, ULY_ERR_USAGE,
                "--validation-split %g leaves no row to train on", options->validation_split);
    ULY_FAIL_IF(options->adam_beta1 >= 1 || options->adam_beta2 >= 1, ULY_ERR_USAGE,
                "--adam-beta1 %g and --adam-beta2 %g must be below 1", options->adam_beta1,
                options->adam_beta2);
    return check_schedule(options);
}

/* ------------------------------------------------------------------ element types */

enum uly_dtype uly_train_dtype(const struct uly_train_options *options)
{
    return options->dtype == ULY_DTYPE_CHOICE_F32 ? ULY_DTYPE_F32 : ULY_DTYPE_BF16;
}

enum uly_dtype uly_train_save_dtype(const struct uly_train_options *options, enum uly_dtype input)
{
    switch ((enum uly_save_dtype_choice)options->save_dtype) {
    case ULY_SAVE_DTYPE_INPUT:
        return input;
    case ULY_SAVE_DTYPE_F32:
        return ULY_DTYPE_F32;
    case ULY_SAVE_DTYPE_BF16:
        return ULY_DTYPE_BF16;
    case ULY_SAVE_DTYPE_F16:
        return ULY_DTYPE_F16;
    }
    return input;
}
