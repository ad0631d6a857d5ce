/* SPDX-License-Identifier: MIT */
#include "train/run.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "train/together.h"
#include "train/metrics.h"
#include "train/run_impl.h"
#include "train/text.h"

/* A step that takes longer than this is asked at its layer borders whether it should stop. */
static const double long_step_seconds = 1.0;

/* What has happened since the last line of metrics. */
struct interval {
    int64_t steps, tokens, valid_tokens;
    double loss_sum, seconds, flops, comm_seconds;
    int64_t comm_bytes;
};

struct loop {
    struct uly_run *run;
    struct uly_metrics metrics;
    struct interval interval;
    struct uly_run_totals totals;
    struct uly_step_result last;
    int64_t last_eval; /* steps finished when it was made; -1 none */
    double first_step_seconds;
};

/* ------------------------------------------------------------------ numbers of a step */

/* Model flops of the current step, over all replicas: attention's share depends on each row's own length. */
static double step_flops(const struct uly_run *run, const struct uly_batch_step *info)
{
    double flops = 0;
    const struct uly_batch_plan *plan = &run->plan;
    for (int64_t micro = 0; micro < info->n_micro; micro++)
        for (int64_t replica = 0; replica < plan->options.dp_size; replica++)
            for (int64_t slot = 0; slot < plan->options.rows; slot++) {
                int64_t piece = uly_batch_plan_piece(plan, micro, replica, slot);
                if (piece < 0)
                    continue;
                int64_t length = plan->data->pieces[piece].length;
                flops += (double)length * uly_model_flops_per_token(run->config, length);
            }
    return flops;
}

static void add_counters(struct uly_comm *comm, double *bytes, double *seconds)
{
    struct uly_comm_counters c = uly_comm_counters(comm);
    *bytes += (double)c.bytes;
    *seconds += c.seconds;
}

static void reset_counters(const struct uly_run *run)
{
    uly_comm_reset_counters(run->mesh.world);
    uly_comm_reset_counters(run->mesh.sp);
    uly_comm_reset_counters(run->mesh.ulysses);
    uly_comm_reset_counters(run->mesh.ring);
}

/* Adds a finished step: what concerns all ranks is the maximum over them, in one reduction. */
static enum uly_status count_step(struct loop *l, const struct uly_batch_step *info, double seconds)
{
    struct uly_run *run = l->run;
    double x[4] = {seconds, 0, 0, (double)uly_machine_peak_rss()};
    add_counters(run->mesh.world, &x[1], &x[2]);
    add_counters(run->mesh.sp, &x[1], &x[2]);
    add_counters(run->mesh.ulysses, &x[1], &x[2]);
    add_counters(run->mesh.ring, &x[1], &x[2]);
    ULY_TRY(uly_all_reduce_f64(run->world, x, 4, ULY_REDUCE_MAX));
    run->border_checks = x[0] > long_step_seconds;
    l->interval.steps++;
    l->interval.tokens += info->tokens;
    l->interval.valid_tokens += info->valid_tokens;
    l->interval.loss_sum += l->last.loss_sum;
    l->interval.seconds += x[0];
    l->interval.flops += step_flops(run, info);
    l->interval.comm_bytes += (int64_t)x[1];
    l->interval.comm_seconds += x[2];
    l->totals.steps++;
    l->totals.tokens += info->tokens;
    l->totals.valid_tokens += info->valid_tokens;
    l->totals.train_seconds += x[0];
    l->totals.rss_bytes = (int64_t)x[3];
    if (l->last.updated)
        l->totals.loss = l->last.loss;
    return ULY_OK;
}

/* ------------------------------------------------------------------ lines */

static double seconds_left(const struct loop *l)
{
    /* the first step also pays for what is made once, so it counts only while it is the only one */
    double steps = (double)l->totals.steps, seconds = l->totals.train_seconds;
    if (l->totals.steps > 1) {
        steps -= 1;
        seconds -= l->first_step_seconds;
    }
    return (double)(l->run->total_steps - l->totals.steps) * seconds / steps;
}

static double epoch_of(const struct loop *l)
{
    return (double)l->totals.steps / (double)l->run->plan.steps_per_epoch;
}

static void show_step(struct loop *l, const struct uly_step_metrics *m)
{
    struct uly_text speed, left;
    char loss[48];
    struct uly_run *run = l->run;
    if (isfinite(m->loss))
        snprintf(loss, sizeof loss, "loss %.4f", m->loss);
    else
        snprintf(loss, sizeof loss, "no label, no weight changed");
    uly_text_count((int64_t)(m->tokens_per_second + 0.5), &speed);
    uly_text_seconds(seconds_left(l), &left);
    /* on a terminal about twenty lines stay, so that the curve can be seen at the end */
    int64_t every = run->total_steps / 20 > 1 ? run->total_steps / 20 : 1;
    bool stays = m->step == 1 || m->step == run->total_steps || m->step % every == 0;
    if (run->progress.terminal && !stays)
        uly_progress_status(&run->progress, 0,
                            "step %" PRId64 "/%" PRId64 "  %s  %s tokens/s  %s left", m->step,
                            run->total_steps, loss, speed.text, left.text);
    else
        uly_progress_line(&run->progress, "step %" PRId64 "/%" PRId64 "  %s  %s tokens/s  %s left",
                          m->step, run->total_steps, loss, speed.text, left.text);
}

static enum uly_status log_interval(struct loop *l)
{
    const struct interval *i = &l->interval;
    double steps = (double)i->steps;
    struct uly_step_metrics m = {.step = l->totals.steps,
                                 .loss = i->valid_tokens > 0 ? i->loss_sum / (double)i->valid_tokens
                                                             : (double)NAN,
                                 .grad_norm = l->last.updated ? l->last.grad_norm : (double)NAN,
                                 .learning_rate = l->last.learning_rate,
                                 .epoch = epoch_of(l),
                                 .tokens = l->totals.tokens,
                                 .valid_tokens = l->totals.valid_tokens,
                                 .tokens_per_second = (double)i->tokens / i->seconds,
                                 .tflops = i->flops / i->seconds * 1e-12,
                                 .step_seconds = i->seconds / steps,
                                 .comm_bytes = (int64_t)((double)i->comm_bytes / steps),
                                 .comm_seconds = i->comm_seconds / steps,
                                 .peak_bytes = l->totals.peak_bytes,
                                 .rss_bytes = l->totals.rss_bytes};
    show_step(l, &m);
    enum uly_status status = uly_metrics_step(&l->metrics, &m);
    memset(&l->interval, 0, sizeof l->interval);
    return status;
}

static void show_estimate(struct loop *l)
{
    struct uly_text whole, step;
    struct uly_run *run = l->run;
    uly_text_seconds(l->first_step_seconds, &step);
    uly_text_seconds(l->first_step_seconds * (double)run->total_steps, &whole);
    uly_progress_line(&run->progress, "estimate  %s for the whole run (the first step took %s)",
                      whole.text, step.text);
}

/* ------------------------------------------------------------------ steps */

static enum uly_status evaluate(struct loop *l)
{
    struct uly_run *run = l->run;
    struct uly_eval_result r;
    struct uly_text seconds;
    run->step_started = uly_seconds();
    snprintf(run->step_name, sizeof run->step_name, "evaluation");
    bool asked = run->border_checks;
    run->border_checks = true; /* an evaluation may be long where steps are short */
    enum uly_status status =
        uly_evaluate(run->decoder, &run->mesh, run->be, &run->eval_plan, &run->eval_options, &r);
    run->border_checks = asked;
    if (run->stopping)
        return ULY_OK;
    ULY_TRY(status);
    l->last_eval = l->totals.steps;
    l->totals.eval_loss = r.loss;
    struct uly_eval_metrics m = {.step = l->totals.steps,
                                 .epoch = epoch_of(l),
                                 .eval_loss = r.loss,
                                 .perplexity = r.perplexity,
                                 .eval_tokens = r.tokens,
                                 .eval_valid_tokens = r.valid_tokens,
                                 .eval_seconds = uly_seconds() - run->step_started};
    uly_progress_line(&run->progress,
                      "eval      step %" PRId64 ": eval loss %.4f, perplexity %.4g (%s)", m.step,
                      m.eval_loss, m.perplexity, uly_text_seconds(m.eval_seconds, &seconds));
    return uly_metrics_eval(&l->metrics, &m);
}

static enum uly_status one_step(struct loop *l)
{
    struct uly_run *run = l->run;
    struct uly_batch_step info;
    int64_t index = l->totals.steps, per_epoch = run->plan.steps_per_epoch;
    run->step_started = uly_seconds();
    snprintf(run->step_name, sizeof run->step_name, "step %" PRId64 "/%" PRId64, index + 1,
             run->total_steps);
    uly_batch_plan_step(&run->plan, index / per_epoch, index % per_epoch, &info);
    reset_counters(run); /* an evaluation and the reductions between steps belong to no step */
    enum uly_status status = uly_trainer_step(&run->trainer, &run->plan, &info, &l->last);
    if (run->stopping)
        return ULY_OK;
    ULY_TRY(status);
    ULY_TRY(count_step(l, &info, uly_seconds() - run->step_started));
    if (l->totals.steps == 1) {
        l->first_step_seconds = l->totals.train_seconds;
        show_estimate(l);
    }
    if (!l->last.updated)
        uly_progress_line(&run->progress,
                          "step %" PRId64 ": none of its %" PRId64
                          " tokens has a label; no weight changed",
                          l->totals.steps, info.tokens);
    if (l->totals.steps % run->values->logging_steps == 0 || l->totals.steps == run->total_steps)
        ULY_TRY(log_interval(l));
    return ULY_OK;
}

static enum uly_status all_steps(struct loop *l)
{
    struct uly_run *run = l->run;
    run->border_checks = true; /* nobody knows yet how long a step takes */
    if (run->has_eval)
        ULY_TRY(evaluate(l));
    while (!run->stopping && l->totals.steps < run->total_steps) {
        ULY_TRY(uly_run_ask_stop(run));
        if (!run->stopping)
            ULY_TRY(one_step(l));
        if (run->has_eval && !run->stopping && l->totals.steps % run->values->eval_steps == 0)
            ULY_TRY(evaluate(l));
    }
    if (run->has_eval && !run->stopping && l->last_eval != l->totals.steps)
        ULY_TRY(evaluate(l));
    return ULY_OK;
}

/* ------------------------------------------------------------------ beginning and end */

static int64_t model_file_bytes(const struct uly_run *run)
{
    enum uly_dtype dtype = uly_train_save_dtype(run->values, run->config->dtype);
    return uly_params_count(&run->params, false) * uly_dtype_bytes(dtype) + (1 << 20);
}

/* From here on the output folder changes. */
static enum uly_status claim_output(struct loop *l)
{
    struct uly_run *run = l->run;
    const struct uly_train_options *v = run->values;
    char *path = NULL;
    enum uly_status status = ULY_OK;
    if (run->rank != 0)
        return ULY_OK;
    ULY_TRY(uly_output_claim(v->output_dir, v->overwrite_output_dir, model_file_bytes(run),
                             &run->output));
    ULY_TRY(uly_path_join(v->output_dir, "stop", &run->stop_file_path));
    ULY_TRY(uly_path_join(v->output_dir, "options.json", &path));
    ULY_TRY_GOTO(uly_options_write_json(run->parsed, path), out);
    ULY_TRY_GOTO(uly_metrics_open(v->output_dir, &l->metrics), out);
out:
    uly_free(path);
    return status;
}

static enum uly_status write_model(struct uly_run *run)
{
    const struct uly_train_options *v = run->values;
    struct uly_save_options options = {.dtype = uly_train_save_dtype(v, run->config->dtype),
                                       .max_shard_bytes = v->max_shard_size};
    enum uly_status status = ULY_OK;
    uly_progress_status(&run->progress, 10, "writing the model");
    uly_comm_set_timeout(run->world, 0); /* a large model takes longer than any exchange */
    if (run->rank == 0)
        status =
            uly_model_folder_write(v->output_dir, run->folder, &run->params, run->be, &options);
    if (run->rank == 0 && status == ULY_OK && run->stopping)
        status = uly_file_remove(run->stop_file_path); /* obeyed */
    return uly_agree(run->world, status);
}

static void say_stopped(struct loop *l)
{
    struct uly_run *run = l->run;
    if (l->totals.steps > 0)
        uly_progress_line(&run->progress,
                          "stopped   by %s after step %" PRId64 " of %" PRId64
                          "; the model of that step is written",
                          run->stop_cause, l->totals.steps, run->total_steps);
    else
        uly_progress_line(&run->progress,
                          "stopped   by %s before the first step was finished; the written model "
                          "is the input's",
                          run->stop_cause);
}

static enum uly_status train(struct loop *l)
{
    struct uly_run *run = l->run;
    ULY_TRY(uly_run_open(run));
    ULY_TRY(uly_run_read_data(run));
    ULY_TRY(uly_run_build(run));
    ULY_TRY(uly_run_fit(run));
    ULY_TRY(uly_agree(run->world, claim_output(l)));
    uly_report_start(run);
    ULY_TRY(uly_run_load(run));
    for (int r = 0; r < run->size; r++) {
        const struct uly_rank_memory *m = &run->ranks_memory[r];
        int64_t arenas = uly_rank_memory_total(m) - m->scratch;
        l->totals.peak_bytes = arenas > l->totals.peak_bytes ? arenas : l->totals.peak_bytes;
    }
    ULY_TRY(all_steps(l));
    ULY_TRY(write_model(run));
    l->totals.rss_bytes = uly_machine_peak_rss();
    ULY_TRY(uly_all_reduce_i64(run->world, &l->totals.rss_bytes, 1, ULY_REDUCE_MAX));
    if (run->stopping)
        say_stopped(l);
    uly_report_end(run, &l->totals);
    return ULY_OK;
}

static struct uly_run make_run(struct uly_options *options, struct uly_comm *world,
                               const struct uly_run_io *io, bool training)
{
    int rank = uly_comm_rank(world);
    struct uly_run run = {.training = training,
                          .parsed = options,
                          .values = options->values,
                          .world = world,
                          .rank = rank,
                          .size = uly_comm_size(world),
                          .io = io,
                          .progress = {.out = rank == 0 ? io->out : NULL,
                                       .terminal = io->terminal,
                                       .last_draw = uly_seconds()},
                          .started = uly_seconds(),
                          .output = {NULL, -1}};
    return run;
}

enum uly_status uly_run_train(struct uly_options *options, struct uly_comm *world,
                              const struct uly_run_io *io)
{
    struct uly_run run = make_run(options, world, io, true);
    struct loop l = {.run = &run, .last_eval = -1};
    l.totals.loss = l.totals.eval_loss = (double)NAN;
    enum uly_status status = train(&l);
    uly_metrics_close(&l.metrics);
    uly_run_clear(&run);
    return status;
}

/* ------------------------------------------------------------------ evaluation */

static enum uly_status eval(struct uly_run *run, struct uly_eval_result *out)
{
    ULY_TRY(uly_run_open(run));
    ULY_TRY(uly_run_read_data(run));
    ULY_TRY(uly_run_build(run));
    ULY_TRY(uly_run_fit(run));
    if (run->progress.out)
        uly_report_start(run);
    ULY_TRY(uly_run_load(run));
    run->step_started = uly_seconds();
    snprintf(run->step_name, sizeof run->step_name, "evaluation");
    ULY_TRY(uly_evaluate(run->decoder, &run->mesh, run->be, &run->plan, &run->eval_options, out));
    if (out->valid_tokens == 0)
        ULY_FAIL_TOGETHER(run->world, ULY_ERR_INVALID,
                          "no token of the data has a label: nothing "
                          "to evaluate");
    if (!isfinite(out->loss))
        ULY_FAIL_TOGETHER(run->world, ULY_ERR_INVALID, "the loss is %s",
                          isnan(out->loss) ? "nan" : "infinite");
    return ULY_OK;
}

enum uly_status uly_run_eval(struct uly_options *options, struct uly_comm *world,
                             const struct uly_run_io *io, struct uly_eval_result *out)
{
    struct uly_run run = make_run(options, world, io, false);
    run.eval_options.by_position = true;
    run.eval_options.dump_path = run.values->dump_losses;
    enum uly_status status = eval(&run, out);
    uly_run_clear(&run);
    return status;
}
