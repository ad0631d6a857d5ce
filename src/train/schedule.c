/* SPDX-License-Identifier: MIT */
#include "train/schedule.h"

#include <math.h>
#include <string.h>

static const char *const names[] = {
#define X(name, text) text,
    ULY_SCHEDULE_LIST(X)
#undef X
};

enum uly_status uly_schedule_parse(const char *text, enum uly_schedule_type *out)
{
    for (int i = 0; i < ULY_SCHEDULE_COUNT; i++)
        if (strcmp(text, names[i]) == 0) {
            *out = (enum uly_schedule_type)i;
            return ULY_OK;
        }
    ULY_FAIL(ULY_ERR_USAGE,
             "lr-scheduler-type %s is not known; there are constant, constant_with_warmup, linear, "
             "cosine, cosine_with_min_lr and warmup_stable_decay",
             text);
}

const char *uly_schedule_name(enum uly_schedule_type type)
{
    return names[type];
}

int64_t uly_schedule_warmup_steps(double warmup, int64_t total_steps)
{
    return warmup >= 1 ? (int64_t)warmup : (int64_t)ceil((double)total_steps * warmup);
}

static double at_least_one(int64_t n)
{
    return n > 1 ? (double)n : 1.0;
}

/* 1 at progress 0, floor at progress 1, half a cosine between. */
static double half_cosine(double progress, double floor_rate)
{
    const double pi = 3.14159265358979323846;
    double factor = 0.5 * (1.0 + cos(pi * progress));
    return fmax(0.0, factor * (1.0 - floor_rate) + floor_rate);
}

static double stable_decay_factor(const struct uly_schedule *s, int64_t step)
{
    int64_t decay_start = s->total_steps - s->decay_steps;
    if (step < decay_start)
        return 1.0;
    if (step < s->total_steps)
        return half_cosine((double)(step - decay_start) / at_least_one(s->decay_steps),
                           s->min_lr_rate);
    return s->min_lr_rate;
}

static double warmup_factor(const struct uly_schedule *s, int64_t step)
{
    double factor = (double)step / at_least_one(s->warmup_steps);
    /* the one schedule whose warm-up starts at its floor */
    if (s->type == ULY_SCHEDULE_WARMUP_STABLE_DECAY)
        factor = factor * (1.0 - s->min_lr_rate) + s->min_lr_rate;
    return factor;
}

double uly_schedule_rate(const struct uly_schedule *s, int64_t step)
{
    if (s->type == ULY_SCHEDULE_CONSTANT)
        return s->learning_rate;
    if (step < s->warmup_steps)
        return s->learning_rate * warmup_factor(s, step);
    double rest = at_least_one(s->total_steps - s->warmup_steps);
    double progress = (double)(step - s->warmup_steps) / rest;
    double factor = 1.0;
    switch (s->type) {
    case ULY_SCHEDULE_LINEAR:
        factor = fmax(0.0, (double)(s->total_steps - step) / rest);
        break;
    case ULY_SCHEDULE_COSINE:
        factor = half_cosine(progress, 0.0);
        break;
    case ULY_SCHEDULE_COSINE_WITH_MIN_LR:
        factor = half_cosine(progress, s->min_lr_rate);
        break;
    case ULY_SCHEDULE_WARMUP_STABLE_DECAY:
        factor = stable_decay_factor(s, step);
        break;
    case ULY_SCHEDULE_CONSTANT:
    case ULY_SCHEDULE_CONSTANT_WITH_WARMUP:
    case ULY_SCHEDULE_COUNT:
        break;
    }
    return s->learning_rate * factor;
}
