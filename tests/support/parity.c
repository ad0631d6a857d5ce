/* SPDX-License-Identifier: MIT */
#include "support/parity.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/random.h"
#include "data/batch_plan.h"
#include "train/evaluate.h"
#include "train/step.h"

/* Lengths: below the number of ranks, 1, primes, and one long row; 8 rows a step, so the second step has 5. */
static const int lengths[] = {1, 31, 2, 17, 61, 3, 8, 23, 5, 29, 1, 13, 47};
enum { N_ROWS = sizeof lengths / sizeof *lengths, ROWS_A_STEP = 8, ROWS_A_MICRO = 2 };

/* Row 7 has no label at all; elsewhere about a third is masked, in runs that differ from row to row. */
static enum uly_status write_rows(const char *path, int64_t V)
{
    FILE *f = fopen(path, "w");
    ULY_FAIL_IF(!f, ULY_ERR_IO, "%s cannot be written", path);
    for (int row = 0; row < N_ROWS; row++) {
        int ids[64];
        fprintf(f, "{\"input_ids\": [");
        for (int i = 0; i < lengths[row]; i++) {
            ids[i] = (int)uly_random_below(77, (uint64_t)row, (uint64_t)i, (uint64_t)V);
            fprintf(f, "%s%d", i ? ", " : "", ids[i]);
        }
        fprintf(f, "], \"labels\": [");
        for (int i = 0; i < lengths[row]; i++) {
            int masked = row == 7 || (i / (row + 1)) % 3 == 1;
            fprintf(f, "%s%d", i ? ", " : "", masked ? ULY_IGNORE_LABEL : ids[i]);
        }
        fprintf(f, "]}\n");
    }
    ULY_FAIL_IF(fclose(f) != 0, ULY_ERR_IO, "%s cannot be written", path);
    return ULY_OK;
}

static enum uly_status read_rows(const struct model_case *c, struct uly_dataset *data)
{
    char path[128];
    const char *paths[] = {path};
    struct uly_data_options options = {.max_length = 64, .vocab_size = c->V, .eos_id = -1};
    snprintf(path, sizeof path, "/tmp/uly_parity_%ld_%p.jsonl", (long)getpid(), (void *)&options);
    ULY_TRY(write_rows(path, c->V));
    enum uly_status status = uly_dataset_read(paths, 1, &options, data);
    unlink(path);
    return status;
}

struct setup {
    struct uly_model_config config;
    struct uly_params params;
    struct uly_memory memory;
    struct uly_backend *be;
    struct uly_mesh mesh;
    struct uly_decoder *decoder;
    struct uly_dataset data;
    struct uly_batch_plan plan, eval_plan;
    struct uly_trainer trainer;
};

static enum uly_status make_plans(struct setup *s, int dp)
{
    struct uly_batch_plan_options options = {.n_pieces = s->data.n_pieces,
                                             .random = true,
                                             .seed = 9,
                                             .dp_size = dp,
                                             .rows = ROWS_A_MICRO,
                                             .accumulation = ROWS_A_STEP / ROWS_A_MICRO / dp};
    ULY_TRY(uly_batch_plan_init(&s->data, &options, &s->plan));
    options.random = false;
    options.accumulation = 0;
    return uly_batch_plan_init(&s->data, &options, &s->eval_plan);
}

static enum uly_status set_up(const struct model_case *c, struct uly_comm *comm,
                              const struct model_grid *grid, struct setup *s)
{
    struct uly_trainer_options trainer = {
        .schedule = {.type = ULY_SCHEDULE_CONSTANT, .learning_rate = 1e-3, .total_steps = 3},
        .beta1 = 0.9,
        .beta2 = 0.999,
        .epsilon =
            1e-3, /* so large that rounding in a gradient near zero is not blown up to a whole step */
        .weight_decay = 0.1};
    s->config = model_config_of(c);
    ULY_TRY(uly_backend_create(c->backend, c->threads, &s->be));
    ULY_TRY(uly_mesh_init(comm, grid->dp, grid->ring, grid->ulysses, &s->mesh));
    ULY_TRY(uly_params_init(&s->config, &s->params));
    ULY_TRY(read_rows(c, &s->data));
    ULY_TRY(make_plans(s, grid->dp));
    int64_t longest = s->plan.max_tokens;
    struct uly_decoder_options options = {
        .dtype = c->dtype,
        .max_tokens = longest > s->eval_plan.max_tokens ? longest : s->eval_plan.max_tokens,
        .checkpointing = c->checkpointing,
        .training = true,
        .heads_per_stage = grid->heads_per_stage,
        .query_tile = grid->query_tile};
    uly_memory_init(&s->memory, uly_backend_space(s->be));
    ULY_TRY(uly_params_make_tensors(&s->params, c->dtype, true, &s->memory));
    ULY_TRY(uly_decoder_create(&s->config, &s->params, &s->mesh, s->be, &options, &s->memory,
                               &s->decoder));
    ULY_TRY(uly_trainer_init(&trainer, &s->params, &s->mesh, s->be, s->decoder, &s->memory,
                             &s->trainer));
    ULY_TRY(uly_memory_reserve(&s->memory));
    for (int i = 0; i < ULY_LIFE_COUNT; i++) /* what is not written must not be read */
        if (i != ULY_LIFE_OPTIMIZER)         /* moments start at zero */
            memset(s->memory.arena[i].base, 0xff, (size_t)s->memory.arena[i].high);
    model_fill_weights(c, &s->params);
    return ULY_OK;
}

static void tear_down(struct setup *s)
{
    uly_batch_plan_clear(&s->eval_plan);
    uly_batch_plan_clear(&s->plan);
    uly_dataset_clear(&s->data);
    uly_decoder_destroy(s->decoder);
    uly_memory_clear(&s->memory);
    uly_params_clear(&s->params);
    uly_mesh_clear(&s->mesh);
    uly_backend_destroy(s->be);
}

static double element(struct uly_tensor t, int64_t i)
{
    const void *base = uly_tensor_address(t);
    if (t.dtype == ULY_DTYPE_F64)
        return ((const double *)base)[i];
    if (t.dtype == ULY_DTYPE_F32)
        return (double)((const float *)base)[i];
    return (double)uly_bf16_to_f32(((const uint16_t *)base)[i]);
}

static double *room(int64_t n)
{
    double *p = calloc((size_t)n + 1, sizeof *p);
    ULY_BUG_ON(!p);
    return p;
}

static void copy_gradients(const struct uly_params *params, struct model_result *r)
{
    r->n_params = params->n;
    r->names = calloc((size_t)params->n, sizeof *r->names);
    r->first = calloc((size_t)params->n + 1, sizeof *r->first);
    ULY_BUG_ON(!r->names || !r->first);
    for (int p = 0; p < params->n; p++) {
        memcpy(r->names[p], params->list[p].name, sizeof r->names[p]);
        r->first[p + 1] = r->first[p] + uly_tensor_count(&params->list[p].grad);
    }
    r->grads = room(r->first[params->n]);
    for (int64_t i = 0; i < r->first[params->n]; i++)
        r->grads[i] = element(params->grads, i);
}

static void copy_weights(const struct uly_params *params, struct parity_result *out)
{
    out->weights = room(out->first.first[params->n]);
    for (int p = 0; p < params->n; p++)
        for (int64_t i = out->first.first[p]; i < out->first.first[p + 1]; i++)
            out->weights[i] = element(params->list[p].master, i - out->first.first[p]);
}

enum uly_status parity_run(const struct model_case *c, struct uly_comm *comm,
                           const struct model_grid *grid, struct parity_result *out)
{
    struct setup s = {0};
    struct uly_batch_step info;
    struct uly_step_result result;
    struct uly_eval_result eval;
    struct uly_eval_options no_dump = {0};
    memset(out, 0, sizeof *out);
    ULY_TRY(set_up(c, comm, grid, &s));
    for (int step = 0; step < PARITY_STEPS; step++) {
        uly_batch_plan_step(&s.plan, step / s.plan.steps_per_epoch, step % s.plan.steps_per_epoch,
                            &info);
        ULY_TRY(uly_trainer_step(&s.trainer, &s.plan, &info, &result));
        out->loss[step] = result.loss;
        out->norm[step] = result.grad_norm;
        if (step == 0)
            copy_gradients(&s.params, &out->first);
    }
    copy_weights(&s.params, out);
    ULY_TRY(uly_evaluate(s.decoder, &s.mesh, s.be, &s.eval_plan, &no_dump, &eval));
    out->eval_loss = eval.loss;
    out->valid_tokens = eval.valid_tokens;
    tear_down(&s);
    return ULY_OK;
}

void parity_clear(struct parity_result *r)
{
    model_result_clear(&r->first);
    free(r->weights);
}

static bool close_to(double got, double want, double tolerance)
{
    return fabs(got - want) <= tolerance * fabs(want);
}

const char *parity_difference(const struct parity_result *got, const struct parity_result *want)
{
    static _Thread_local char text[256];
    const char *name;
    for (int i = 0; i < PARITY_STEPS; i++)
        if (!close_to(got->loss[i], want->loss[i], 1e-6) ||
            !close_to(got->norm[i], want->norm[i], 1e-5)) {
            snprintf(text, sizeof text, "step %d: loss %.9g, norm %.9g, not %.9g, %.9g", i,
                     got->loss[i], got->norm[i], want->loss[i], want->norm[i]);
            return text;
        }
    double worst = model_worst_gradient(&got->first, &want->first, 1e-5, 1e-7, &name);
    if (!(worst <= 1)) {
        snprintf(text, sizeof text, "gradient of %s: %g times what is allowed", name, worst);
        return text;
    }
    if (!close_to(got->eval_loss, want->eval_loss, 1e-6) ||
        got->valid_tokens != want->valid_tokens) {
        snprintf(text, sizeof text, "evaluation: loss %.9g of %lld tokens, not %.9g of %lld",
                 got->eval_loss, (long long)got->valid_tokens, want->eval_loss,
                 (long long)want->valid_tokens);
        return text;
    }
    for (int64_t i = 0; i < want->first.first[want->first.n_params]; i++)
        if (!(fabs(got->weights[i] - want->weights[i]) <= 2e-6)) {
            /* three updates of about 1e-3 each, from gradients that may differ by 1e-5 of the largest */
            snprintf(text, sizeof text, "weight %lld after %d steps: %.9g, not %.9g", (long long)i,
                     PARITY_STEPS, got->weights[i], want->weights[i]);
            return text;
        }
    return NULL;
}
