/* SPDX-License-Identifier: MIT
 *
 * OUT/metrics.jsonl: one JSON object a line, flushed, so that it can be followed and survives a crash. Only rank 0 has
 * one; all functions do nothing with a file of NULL.
 */
#ifndef ULY_TRAIN_METRICS_H
#define ULY_TRAIN_METRICS_H

#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

struct uly_metrics {
    FILE *file;
    char *path; /* owned */
};

/* A line of training. Sums and means are over the steps since the last line (--logging-steps). */
struct uly_step_metrics {
    int64_t step;         /* from 1 */
    double loss;          /* mean over the valid tokens; NaN (null in the file) without any */
    double grad_norm;     /* of the last step, before clipping */
    double learning_rate; /* of the last step */
    double epoch;         /* with its fraction */
    int64_t tokens, valid_tokens; /* since the start of the run, over all ranks */
    double tokens_per_second;     /* over all ranks */
    double tflops;       /* model flops with the causal half, over all ranks, a second / 1e12 */
    double step_seconds; /* a step */
    int64_t comm_bytes;  /* sent by the busiest rank a step */
    double comm_seconds; /* of the busiest rank a step */
    int64_t peak_bytes;  /* high-water mark of the arenas of the highest rank */
    int64_t rss_bytes;   /* resident peak of the highest rank */
};

struct uly_eval_metrics {
    int64_t step; /* steps finished */
    double epoch, eval_loss, perplexity;
    int64_t eval_tokens, eval_valid_tokens;
    double eval_seconds;
};

enum uly_status uly_metrics_open(const char *folder, struct uly_metrics *out);
enum uly_status uly_metrics_step(struct uly_metrics *metrics, const struct uly_step_metrics *line);
enum uly_status uly_metrics_eval(struct uly_metrics *metrics, const struct uly_eval_metrics *line);
void uly_metrics_close(struct uly_metrics *metrics); /* a zeroed one is fine */

#endif
