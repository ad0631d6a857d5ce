/* SPDX-License-Identifier: MIT
 *
 * Learning-rate schedules with the formulas of Transformers' optimization.py, so that a run's curve
 * can be laid beside a Python one. A schedule is a pure function of the step: nothing to save,
 * nothing to resume.
 */
#ifndef ULY_TRAIN_SCHEDULE_H
#define ULY_TRAIN_SCHEDULE_H

#include <stdint.h>

#include "base/status.h"

/* X(name, text): text as in TrainingArguments' lr_scheduler_type. */
#define ULY_SCHEDULE_LIST(X)                                                                       \
    X(ULY_SCHEDULE_CONSTANT, "constant")                                                           \
    X(ULY_SCHEDULE_CONSTANT_WITH_WARMUP, "constant_with_warmup")                                   \
    X(ULY_SCHEDULE_LINEAR, "linear")                                                               \
    X(ULY_SCHEDULE_COSINE, "cosine")                                                               \
    X(ULY_SCHEDULE_COSINE_WITH_MIN_LR, "cosine_with_min_lr")                                       \
    X(ULY_SCHEDULE_WARMUP_STABLE_DECAY, "warmup_stable_decay")

enum uly_schedule_type {
#define X(name, text) name,
    ULY_SCHEDULE_LIST(X)
#undef X
        ULY_SCHEDULE_COUNT
};

struct uly_schedule {
    enum uly_schedule_type type;
    double learning_rate; /* the peak */
    int64_t total_steps;  /* optimizer steps of the run */
    int64_t warmup_steps; /* resolved: see uly_schedule_warmup_steps */
    int64_t decay_steps;  /* warmup_stable_decay: the last steps, a half cosine down to the floor */
    double
        min_lr_rate; /* cosine_with_min_lr, warmup_stable_decay: the floor as a share of the peak */
};

/* ULY_ERR_USAGE with the known names where text is none of them. */
enum uly_status uly_schedule_parse(const char *text, enum uly_schedule_type *out);
const char *uly_schedule_name(enum uly_schedule_type type);

/* warmup as given: below 1 it is a share of total_steps, rounded up; else a number of steps, cut to
 * an integer. */
int64_t uly_schedule_warmup_steps(double warmup, int64_t total_steps);

/* Learning rate of a step, counted from 0: step 0 of a warm-up has rate 0, as in Transformers. */
double uly_schedule_rate(const struct uly_schedule *schedule, int64_t step);

#endif
