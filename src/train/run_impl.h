/* SPDX-License-Identifier: MIT
 *
 * A run's parts, shared by the files that build it up (setup.c, fit.c), tell about it (report.c) and drive it (run.c).
 */
#ifndef ULY_TRAIN_RUN_IMPL_H
#define ULY_TRAIN_RUN_IMPL_H

#include "checkpoint/model_folder.h"
#include "formats/tokenizer.h"
#include "train/evaluate.h"
#include "train/machine.h"
#include "train/output_folder.h"
#include "train/progress.h"
#include "train/run.h"
#include "train/step.h"

/* What a rank takes of its machine's memory; gathered from all ranks. */
struct uly_rank_memory {
    int64_t by_class[ULY_LIFE_COUNT]; /* bytes of each lifetime class */
    int64_t scratch;                  /* the backend's own */
    int64_t available;                /* what this rank saw as available before it took any */
};

struct uly_run {
    bool training;
    struct uly_options *parsed;       /* borrowed */
    struct uly_train_options *values; /* borrowed: what parsed describes */
    struct uly_comm *world;           /* borrowed */
    int rank, size;                   /* in the world */
    const struct uly_run_io *io;      /* borrowed */
    struct uly_progress progress;     /* silent on all ranks but 0 */
    double started;                   /* uly_seconds */

    struct uly_model_folder *folder;
    const struct uly_model_config *config; /* the folder's */
    struct uly_params params;
    enum uly_dtype dtype;
    bool has_tokenizer;
    struct uly_dataset data, eval_data; /* eval_data: of --eval-data */
    bool has_eval, split_eval;          /* split_eval: evaluation pieces are the last of data */
    struct uly_batch_plan plan, eval_plan;
    struct uly_machine_threads threads;
    struct uly_method_request asked; /* of the method; hosts: the world's */
    struct uly_method_choice choice;
    char stage_reason[160]; /* why auto chose this many heads a stage */
    struct uly_backend *be;
    struct uly_mesh mesh;
    struct uly_memory memory;
    struct uly_decoder *decoder;
    struct uly_trainer trainer;
    struct uly_eval_options eval_options;
    struct uly_rank_memory *ranks_memory; /* owned [size] */
    struct uly_memory_limit limit;
    struct uly_output output;
    int64_t total_steps;

    /* stopping: decided together at layer borders */
    bool stopping;
    bool border_checks;     /* whether layer borders ask, or only the borders of steps */
    const char *stop_cause; /* constant text */
    char *stop_file_path;   /* owned: OUT/stop */
    double step_started;    /* uly_seconds */
    char step_name[32];     /* "step 12 of 100", for the progress line */
};

/* ------------------------------------------------------------------ setup.c */

/* Model folder, options and threads; collective at its end. */
enum uly_status uly_run_open(struct uly_run *run);
/* Reads and tokenises; collective only once all is read. */
enum uly_status uly_run_read_data(struct uly_run *run);
/* Mesh, plans, decoder, trainer: all sizes, no memory yet. Under method auto, stages shrink until the sizes fit. */
enum uly_status uly_run_build(struct uly_run *run);
/* Takes the memory and fills the weights. */
enum uly_status uly_run_load(struct uly_run *run);
void uly_run_clear(struct uly_run *run);

/* ------------------------------------------------------------------ fit.c */

/* Gathers the size tables of all ranks and compares each machine's with what it has; *need, *available: bytes of the
 * machine that lacks most, where one does. Collective; the same on every rank. */
enum uly_status uly_run_measure(struct uly_run *run, bool *fits, int64_t *need, int64_t *available);
/* ULY_ERR_NO_MEMORY with the numbers, where what was measured last does not fit. */
enum uly_status uly_run_fit(struct uly_run *run);
/* Bytes of one rank. */
int64_t uly_rank_memory_total(const struct uly_rank_memory *memory);

/* ------------------------------------------------------------------ report.c */

/* What is in force, before the first step; rank 0 prints. */
void uly_report_start(struct uly_run *run);

struct uly_run_totals {
    double loss; /* of the last step that had a label; NaN: none */
    double eval_loss;
    double train_seconds; /* spent in steps */
    int64_t tokens, valid_tokens, steps;
    int64_t peak_bytes, rss_bytes; /* the highest rank's */
};
/* What came out, where it is, and how to use it. */
void uly_report_end(struct uly_run *run, const struct uly_run_totals *totals);

/* ------------------------------------------------------------------ stop.c */

/* A uly_progress_fn over the run: shows a long step's place, and abandons it where the ranks agree to stop. */
enum uly_status uly_run_border(void *run, const char *phase, int layer, int n_layers);
/* Asks all ranks; sets run->stopping. Collective. */
enum uly_status uly_run_ask_stop(struct uly_run *run);

#endif
