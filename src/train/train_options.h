/* SPDX-License-Identifier: MIT
 *
 * The options of `ulysses train`, and of `ulysses eval`, which has some of the same rows. Names and
 * defaults follow Transformers' TrainingArguments where they exist there. docs/options.md is made
 * from these rows.
 *
 *   struct uly_train_options values;
 *   struct uly_options options;
 *   uly_options_init(&options, uly_train_option_table(), &values);
 *   uly_options_parse(&options, argc, argv);
 *   uly_train_options_check(&values, false);             before there are ranks
 *   uly_train_options_resolve(&values, world, hosts, &config, &asked);  on every rank: what "auto" stands for
 */
#ifndef ULY_TRAIN_TRAIN_OPTIONS_H
#define ULY_TRAIN_TRAIN_OPTIONS_H

#include "base/dtype.h"
#include "base/options.h"
#include "data/dataset.h"
#include "model/decoder.h"
#include "parallel/method.h"

enum uly_bad_rows_choice { ULY_BAD_ROWS_ERROR, ULY_BAD_ROWS_SKIP };
enum uly_sampling { ULY_SAMPLING_RANDOM, ULY_SAMPLING_SEQUENTIAL };
enum uly_dtype_choice { ULY_DTYPE_CHOICE_F32, ULY_DTYPE_CHOICE_BF16 };
enum uly_save_dtype_choice {
    ULY_SAVE_DTYPE_INPUT, /* the input folder's */
    ULY_SAVE_DTYPE_F32,
    ULY_SAVE_DTYPE_BF16,
    ULY_SAVE_DTYPE_F16
};

struct uly_train_options {
    /* files */
    char *model;            /* folder */
    char *output_dir;       /* train only */
    char *config_overrides; /* JSON text; NULL: none */
    char *config_file;
    struct uly_strings data, eval_data;
    bool overwrite_output_dir;
    /* layout; 0 stands for "chosen" before uly_train_options_resolve, never after */
    int64_t nproc; /* 0: what the launcher gave, or 1; stays 0 when not given */
    int64_t threads, sp_size, dp_size, ulysses_size, ring_size;
    int64_t heads_per_stage; /* 0: not given, until resolved */
    int64_t query_tile;      /* 0: the whole shard, or chosen by method auto */
    int64_t token_tile;      /* 0: chosen; stays 0 */
    int method;              /* enum uly_method; never auto once resolved */
    /* numbers */
    int dtype, save_dtype;      /* enum uly_dtype_choice, uly_save_dtype_choice */
    int64_t zero_stage;         /* 0 */
    int gradient_checkpointing; /* enum uly_checkpointing of model/decoder.h */
    /* batch */
    int64_t max_length; /* 0: max_position_embeddings, until resolved */
    int64_t per_device_train_batch_size;
    int64_t gradient_accumulation_steps; /* 0 (not given) until resolved */
    int64_t global_batch_size;           /* rows a step; 0 (not given) until resolved */
    int over_length;                     /* enum uly_over_length */
    int bad_rows, train_sampling_strategy;
    /* optimizer */
    double learning_rate, warmup_steps, weight_decay, adam_beta1, adam_beta2, adam_epsilon;
    double max_grad_norm, num_train_epochs;
    double min_lr, min_lr_rate; /* of cosine_with_min_lr; below 0: not given */
    double num_decay_steps; /* of warmup_stable_decay; 0: not given; below 1 a ratio of the steps */
    int lr_scheduler_type;  /* enum uly_schedule_type */
    int64_t max_steps;      /* -1: num_train_epochs decides */
    int64_t seed;
    /* watching and saving */
    double validation_split; /* 0: none */
    int64_t logging_steps, eval_steps;
    int64_t max_shard_size;                /* bytes */
    double time_limit, collective_timeout; /* seconds; 0: none */
    char *dump_gradients;                  /* folder */
    /* eval only */
    bool json;
    char *dump_losses; /* file */
};

const struct uly_option_table *uly_train_option_table(void);
const struct uly_option_table *uly_eval_option_table(void);

/* Names from elsewhere and options of later parts, shared by both tables; they end with a NULL name. */
extern const struct uly_option_answer uly_foreign_options[], uly_later_options[];

/* What contradicts itself whatever the model is; the layout too where nproc is given. eval: the
 * options came from the table of eval. ULY_ERR_USAGE with the options and values. */
enum uly_status uly_train_options_check(const struct uly_train_options *options, bool eval);

/* Fills in layout, method, max_length, accumulation and global batch, in place: dp_size * sp_size = world, sp_size =
 * ulysses_size * ring_size, method and heads_per_stage as uly_method_resolve chooses them (under auto the most heads;
 * memory may ask for fewer), global_batch_size = dp_size * per_device_train_batch_size * gradient_accumulation_steps.
 * threads is not touched where given; 0 stays 0 (the command that starts the ranks knows the processors). hosts: [world]
 * machine of each rank, borrowed by *asked; NULL: one machine. *asked: what the choice was made from. The same result on
 * every rank. ULY_ERR_USAGE with the values and sizes that would work. */
enum uly_status uly_train_options_resolve(struct uly_train_options *options, int world,
                                          const int *hosts, const struct uly_model_config *config,
                                          struct uly_method_request *asked);

/* The element type of a run and of the written folder (input: the folder's own type). */
enum uly_dtype uly_train_dtype(const struct uly_train_options *options);
enum uly_dtype uly_train_save_dtype(const struct uly_train_options *options, enum uly_dtype input);

#endif
