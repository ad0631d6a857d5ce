/* SPDX-License-Identifier: MIT */
#include "train/step.h"

#include <inttypes.h>
#include <math.h>

#include "base/mem.h"
#include "train/together.h"

enum { BUFFER_ELEMENTS = 1 << 20 }; /* 4 MiB: enough for the exchange to run at full rate */

enum uly_status uly_trainer_init(const struct uly_trainer_options *options,
                                 struct uly_params *params, struct uly_mesh *mesh,
                                 struct uly_backend *be, struct uly_decoder *decoder,
                                 struct uly_memory *memory, struct uly_trainer *out)
{
    struct uly_trainer trainer = {
        .options = *options, .params = params, .mesh = mesh, .be = be, .decoder = decoder};
    int64_t room = uly_tensor_count(&params->grads), size = uly_comm_size(mesh->world);
    room = room < BUFFER_ELEMENTS ? room : BUFFER_ELEMENTS;
    room = room > size ? room : size;
    ULY_TRY(uly_tensor_new(&memory->arena[ULY_LIFE_COMM], "gradient sum", params->grads.dtype, 1,
                           room, 1, 1, &trainer.buffer));
    *out = trainer;
    return ULY_OK;
}

/* Gradients of this rank's share of all micro-batches, added up; *loss_sum over all ranks. */
static enum uly_status add_gradients(struct uly_trainer *t, struct uly_batch_plan *plan,
                                     const struct uly_batch_step *info, double *loss_sum)
{
    double sum = 0, factor = 1.0 / (double)info->valid_tokens;
    ULY_TRY(uly_fill(t->be, t->params->grads, 0));
    for (int64_t micro = 0; micro < info->n_micro; micro++) {
        struct uly_batch batch;
        double part;
        uly_batch_plan_micro(plan, micro, t->mesh->dp_rank, &batch);
        ULY_TRY(uly_decoder_backward(t->decoder, &batch, factor, &part));
        sum += part;
    }
    ULY_TRY(uly_all_reduce_f64(t->mesh->world, &sum, 1, ULY_REDUCE_SUM));
    *loss_sum = sum;
    return ULY_OK;
}

/* Exact global norm: after the sum each rank holds every gradient, and counts every parameter once, in the table's order. */
static enum uly_status gradient_norm(struct uly_trainer *t, double *norm)
{
    double squares = 0;
    for (int i = 0; i < t->params->n; i++) {
        double part;
        if (!t->params->list[i].trainable)
            continue;
        ULY_TRY(uly_sum_squares(t->be, t->params->list[i].grad, &part));
        squares += part;
    }
    *norm = sqrt(squares);
    return ULY_OK;
}

static struct uly_tensor flat(struct uly_tensor t)
{
    return uly_tensor_reshape(t, 1, uly_tensor_count(&t), 1, 1);
}

static enum uly_status update_weights(struct uly_trainer *t, double rate, double norm)
{
    double clip = 1.0;
    /* torch.nn.utils.clip_grad_norm_'s factor, its small term included, so that curves can be laid side by side */
    if (t->options.max_grad_norm > 0)
        clip = fmin(1.0, t->options.max_grad_norm / (norm + 1e-6));
    for (int i = 0; i < t->params->n; i++) {
        struct uly_param *p = &t->params->list[i];
        if (!p->trainable)
            continue;
        bool decays = p->role != ULY_PARAM_NORM && p->role != ULY_PARAM_BIAS;
        struct uly_adamw_args args = {.master = flat(p->master),
                                      .m = flat(p->m),
                                      .v = flat(p->v),
                                      .grad = flat(p->grad),
                                      .lr = rate,
                                      .beta1 = t->options.beta1,
                                      .beta2 = t->options.beta2,
                                      .eps = t->options.epsilon,
                                      .weight_decay = decays ? t->options.weight_decay : 0,
                                      .grad_factor = clip,
                                      .step = t->updates + 1};
        bool own_master =
            p->master.arena != p->weight.arena || p->master.offset != p->weight.offset;
        if (own_master)
            args.model = flat(p->weight);
        ULY_TRY(uly_adamw(t->be, &args));
    }
    t->updates++;
    return ULY_OK;
}

/* The part of a step in which nothing may be allocated, up to the gradient's norm. */
static enum uly_status compute(struct uly_trainer *t, struct uly_batch_plan *plan,
                               const struct uly_batch_step *info, struct uly_step_result *r)
{
    ULY_TRY(add_gradients(t, plan, info, &r->loss_sum));
    r->loss = r->loss_sum / (double)info->valid_tokens;
    if (!isfinite(r->loss))
        ULY_FAIL_TOGETHER(t->mesh->world, ULY_ERR_INVALID,
                          "step %" PRId64 ": the loss is %s (learning rate %g)", t->step + 1,
                          isnan(r->loss) ? "nan" : "infinite", r->learning_rate);
    ULY_TRY(uly_all_reduce(t->mesh->world, t->be, t->params->grads, t->buffer));
    ULY_TRY(gradient_norm(t, &r->grad_norm));
    if (!isfinite(r->grad_norm))
        ULY_FAIL_TOGETHER(t->mesh->world, ULY_ERR_INVALID,
                          "step %" PRId64 ": the gradient's norm is %s (loss %g, learning rate %g)",
                          t->step + 1, isnan(r->grad_norm) ? "nan" : "infinite", r->loss,
                          r->learning_rate);
    return ULY_OK;
}

static enum uly_status dump_gradients(struct uly_trainer *t)
{
    enum uly_status status = ULY_OK;
    if (uly_comm_rank(t->mesh->world) == 0)
        status = uly_gradients_write(t->params, t->be, t->options.dump_gradients);
    return uly_agree(t->mesh->world, status);
}

enum uly_status uly_trainer_step(struct uly_trainer *t, struct uly_batch_plan *plan,
                                 const struct uly_batch_step *info, struct uly_step_result *out)
{
    struct uly_step_result r = {.loss = (double)NAN,
                                .learning_rate = uly_schedule_rate(&t->options.schedule, t->step)};
    if (info->valid_tokens > 0) {
        uly_alloc_guard_begin();
        enum uly_status status = compute(t, plan, info, &r);
        uly_alloc_guard_end();
        ULY_TRY(status);
        if (t->options.dump_gradients && t->updates == 0)
            ULY_TRY(dump_gradients(t));
        ULY_TRY(update_weights(t, r.learning_rate, r.grad_norm));
        r.updated = true;
    }
    t->step++;
    *out = r;
    return ULY_OK;
}
