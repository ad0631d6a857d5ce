/* SPDX-License-Identifier: MIT
 *
 * The optimizer step over every layout, with ranks as threads: the same rows, split in every way that dp, sp and
 * accumulation allow, must give the same loss, norm, gradients and weights; labels lie unevenly, some shards and one
 * whole step have none.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/mem.h"
#include "base/random.h"
#include "train/evaluate.h"
#include "train/step.h"

enum { PIECES = 5, MAX_TOKENS = 96, STEPS = 3, MAX_WEIGHTS = 40000 };

static const struct uly_model_config model = {.architecture = "LlamaForCausalLM",
                                              .model_type = "llama",
                                              .hidden_size = 24,
                                              .intermediate_size = 40,
                                              .vocab_size = 37,
                                              .max_position_embeddings = 128,
                                              .num_hidden_layers = 2,
                                              .num_attention_heads = 6,
                                              .num_key_value_heads = 2,
                                              .head_dim = 4,
                                              .rms_norm_eps = 1e-5,
                                              .tie_word_embeddings = true,
                                              .qkv_bias = true,
                                              .rope = {.theta = 10000},
                                              .bos_token_id = -1,
                                              .eos_token_id = -1,
                                              .pad_token_id = -1};

/* Rows of 13, 1, 31, 7 and 2 tokens: primes, one without any label, one with a single one. */
struct rows {
    int32_t ids[MAX_TOKENS], labels[MAX_TOKENS];
    struct uly_document documents[PIECES];
    struct uly_piece pieces[PIECES];
    struct uly_dataset data;
};

static void make_rows(struct rows *r, bool labelled)
{
    static const int64_t lengths[PIECES] = {13, 1, 31, 7, 2};
    int64_t first = 0;
    memset(r, 0, sizeof *r);
    for (int p = 0; p < PIECES; p++) {
        int64_t valid = 0;
        for (int64_t i = 0; i < lengths[p]; i++) {
            int64_t at = first + i;
            bool counts = p == 2 ? i == 17 : p == 3 ? i % 3 != 1 : p != 0 || i > 9;
            r->ids[at] = (int32_t)uly_random_below(5, 1, (uint64_t)at, 37);
            r->labels[at] = counts && labelled ? r->ids[at] : ULY_IGNORE_LABEL;
            valid += i > 0 && counts && labelled;
        }
        r->documents[p] =
            (struct uly_document){.first = first, .length = lengths[p], .labels = first};
        r->pieces[p] = (struct uly_piece){
            .document = p, .start = 0, .length = lengths[p], .valid_tokens = valid};
        first += lengths[p];
    }
    r->data = (struct uly_dataset){.ids = r->ids,
                                   .given_labels = r->labels,
                                   .documents = r->documents,
                                   .pieces = r->pieces,
                                   .n_documents = PIECES,
                                   .n_pieces = PIECES};
}

/* What a run of STEPS steps left behind. */
struct outcome {
    double loss[STEPS], norm[STEPS], eval_loss;
    bool updated[STEPS];
    int64_t updates, steps, n;
    bool moved; /* whether any weight is another than at the start */
    float weights[MAX_WEIGHTS], gradients[MAX_WEIGHTS];
};

struct job {
    struct rows *rows;
    int dp;
    int64_t micro_rows, accumulation;
    bool labelled;
    double max_grad_norm, weight_decay;
    enum uly_checkpointing checkpointing;
    struct outcome *out; /* of rank 0 */
};

struct rank {
    struct uly_mesh mesh;
    struct uly_backend *be;
    struct uly_params params;
    struct uly_memory memory;
    struct uly_decoder *decoder;
    struct uly_trainer trainer;
    struct uly_batch_plan plan, eval_plan;
};

static enum uly_status fill_weights(struct rank *r)
{
    for (int i = 0; i < r->params.n; i++) {
        struct uly_tensor t = r->params.list[i].weight;
        float local[2048];
        int64_t count = uly_tensor_count(&t);
        ULY_BUG_ON(count > 2048);
        for (int64_t j = 0; j < count; j++) {
            double x = uly_random_normal(7, (uint64_t)i, (uint64_t)j);
            local[j] = (float)(r->params.list[i].role == ULY_PARAM_NORM ? 1 + 0.1 * x : 0.15 * x);
        }
        ULY_TRY(uly_tensor_write(r->be, t, local));
    }
    return ULY_OK;
}

static enum uly_status build(struct rank *r, const struct job *job, struct uly_comm *world)
{
    int sp = uly_comm_size(world) / job->dp;
    struct uly_batch_plan_options plan = {.n_pieces = PIECES,
                                          .dp_size = job->dp,
                                          .rows = job->micro_rows,
                                          .accumulation = job->accumulation};
    struct uly_batch_plan_options eval = plan;
    struct uly_decoder_options options = {.dtype = ULY_DTYPE_F32,
                                          .max_tokens = MAX_TOKENS,
                                          .checkpointing = job->checkpointing,
                                          .training = true};
    struct uly_trainer_options trainer = {.schedule = {.type = ULY_SCHEDULE_LINEAR,
                                                       .learning_rate = 1e-2,
                                                       .total_steps = STEPS,
                                                       .warmup_steps = 0},
                                          .beta1 = 0.9,
                                          .beta2 = 0.99,
                                          .epsilon = 1e-8,
                                          .weight_decay = job->weight_decay,
                                          .max_grad_norm = job->max_grad_norm};
    eval.accumulation = 0;
    ULY_TRY(uly_batch_plan_init(&job->rows->data, &plan, &r->plan));
    ULY_TRY(uly_batch_plan_init(&job->rows->data, &eval, &r->eval_plan));
    ULY_TRY(uly_mesh_init(world, job->dp, 1, sp, &r->mesh));
    ULY_TRY(uly_backend_create("cpu:ref", 1, &r->be));
    ULY_TRY(uly_params_init(&model, &r->params));
    uly_memory_init(&r->memory, uly_backend_space(r->be));
    ULY_TRY(uly_params_make_tensors(&r->params, ULY_DTYPE_F32, true, &r->memory));
    ULY_TRY(
        uly_decoder_create(&model, &r->params, &r->mesh, r->be, &options, &r->memory, &r->decoder));
    ULY_TRY(uly_trainer_init(&trainer, &r->params, &r->mesh, r->be, r->decoder, &r->memory,
                             &r->trainer));
    ULY_TRY(uly_memory_reserve(&r->memory));
    return fill_weights(r);
}

static enum uly_status collect(struct rank *r, bool gradients, float *out, int64_t *n)
{
    int64_t at = 0;
    for (int i = 0; i < r->params.n; i++) {
        struct uly_tensor t = gradients ? r->params.list[i].grad : r->params.list[i].weight;
        ULY_BUG_ON(at + uly_tensor_count(&t) > MAX_WEIGHTS);
        ULY_TRY(uly_tensor_read(r->be, t, out + at));
        at += uly_tensor_count(&t);
    }
    *n = at;
    return ULY_OK;
}

static enum uly_status steps(struct rank *r, struct outcome *out)
{
    struct uly_eval_options eval = {.by_position = true};
    struct uly_eval_result result;
    ULY_TRY(collect(r, false, out->weights, &out->n));
    for (int i = 0; i < STEPS; i++) {
        struct uly_batch_step info;
        struct uly_step_result step;
        uly_batch_plan_step(&r->plan, i / r->plan.steps_per_epoch, i % r->plan.steps_per_epoch,
                            &info);
        ULY_TRY(uly_trainer_step(&r->trainer, &r->plan, &info, &step));
        out->loss[i] = step.loss;
        out->norm[i] = step.grad_norm;
        out->updated[i] = step.updated;
        if (i == 0)
            ULY_TRY(collect(r, true, out->gradients, &out->n));
    }
    float *start = NULL;
    ULY_TRY(ULY_ALLOC(&start, MAX_WEIGHTS));
    memcpy(start, out->weights, sizeof out->weights);
    out->updates = r->trainer.updates;
    out->steps = r->trainer.step;
    enum uly_status status = collect(r, false, out->weights, &out->n);
    out->moved = memcmp(start, out->weights, sizeof(float) * (size_t)out->n) != 0;
    uly_free(start);
    ULY_TRY(status);
    ULY_TRY(uly_evaluate(r->decoder, &r->mesh, r->be, &r->eval_plan, &eval, &result));
    out->eval_loss = result.loss;
    double sum = 0;
    int64_t count = 0;
    for (int k = 0; k < ULY_EVAL_BUCKETS; k++)
        if (result.bucket_tokens[k]) {
            sum += result.bucket_loss[k] * (double)result.bucket_tokens[k];
            count += result.bucket_tokens[k];
        }
    ULY_FAIL_IF(count != result.valid_tokens ||
                    (count > 0 && fabs(sum / (double)count - result.loss) > 1e-9 * result.loss),
                ULY_ERR_INTERNAL, "losses by position do not add up to the loss");
    return ULY_OK;
}

static enum uly_status on_rank(struct uly_comm *world, void *arg)
{
    struct job *job = arg;
    struct rank r;
    struct outcome *mine = NULL;
    memset(&r, 0, sizeof r);
    enum uly_status status = ULY_ALLOC(&mine, 1);
    if (status == ULY_OK)
        status = build(&r, job, world);
    if (status == ULY_OK)
        status = steps(&r, mine);
    if (status == ULY_OK && uly_comm_rank(world) == 0)
        *job->out = *mine;
    uly_free(mine);
    uly_batch_plan_clear(&r.eval_plan);
    uly_batch_plan_clear(&r.plan);
    uly_decoder_destroy(r.decoder);
    uly_memory_clear(&r.memory);
    uly_params_clear(&r.params);
    uly_backend_destroy(r.be);
    uly_mesh_clear(&r.mesh);
    return status;
}

static void run(struct job job, int ranks)
{
    struct rows *rows = NULL;
    assert_int_equal(ULY_ALLOC(&rows, 1), ULY_OK);
    make_rows(rows, job.labelled);
    job.rows = rows;
    enum uly_status status = uly_comm_run_threads(ranks, on_rank, &job);
    if (status != ULY_OK)
        print_error("%s\n%s", uly_error_message(), uly_error_trace());
    assert_int_equal(status, ULY_OK);
    uly_free(rows);
}

static struct outcome reference, other; /* too large for a stack */

static void assert_near(double a, double b, double relative)
{
    if (!(fabs(a - b) <= relative * fabs(b)))
        fail_msg("%.9g is not %.9g", a, b);
}

static void assert_same(const struct outcome *a, const struct outcome *b)
{
    double largest = 0;
    for (int i = 0; i < STEPS; i++) {
        assert_near(a->loss[i], b->loss[i], 2e-6);
        assert_near(a->norm[i], b->norm[i], 2e-5);
        assert_int_equal(a->updated[i], b->updated[i]);
    }
    assert_near(a->eval_loss, b->eval_loss, 2e-6);
    assert_int_equal(a->n, b->n);
    for (int64_t i = 0; i < b->n; i++)
        largest = fmax(largest, fabs((double)b->gradients[i]));
    for (int64_t i = 0; i < b->n; i++)
        if (!(fabs((double)a->gradients[i] - (double)b->gradients[i]) <= 1e-5 * largest))
            fail_msg("gradient %lld: %g is not %g", (long long)i, (double)a->gradients[i],
                     (double)b->gradients[i]);
}

static struct job plain_job(struct outcome *out)
{
    return (struct job){.dp = 1,
                        .micro_rows = 1,
                        .accumulation = 4,
                        .labelled = true,
                        .checkpointing = ULY_CHECKPOINT_FULL,
                        .out = out};
}

static void test_layouts_agree(void **state)
{
    (void)state;
    static const struct {
        int ranks, dp;
        int64_t rows, accumulation;
    } layouts[] = {{1, 1, 2, 2}, {1, 1, 4, 1}, {2, 1, 1, 4}, {3, 1, 2, 2},
                   {2, 2, 1, 2}, {4, 2, 2, 1}, {4, 4, 1, 1}, {6, 2, 1, 2}};
    run(plain_job(&reference), 1);
    assert_int_equal(reference.updates, STEPS);
    assert_true(reference.moved);
    assert_true(reference.loss[0] > 2.5 && reference.loss[0] < 6);
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        struct job job = plain_job(&other);
        job.dp = layouts[i].dp;
        job.micro_rows = layouts[i].rows;
        job.accumulation = layouts[i].accumulation;
        run(job, layouts[i].ranks);
        assert_same(&other, &reference);
    }
}

static void test_checkpointing_changes_nothing(void **state)
{
    (void)state;
    struct job job = plain_job(&other);
    run(plain_job(&reference), 1);
    job.checkpointing = ULY_CHECKPOINT_NONE;
    run(job, 2);
    assert_same(&other, &reference);
}

/* The norm in the file is the norm of the gradients, every parameter once: the embedding is tied. */
static void test_norm_counts_each_parameter_once(void **state)
{
    (void)state;
    double squares = 0;
    run(plain_job(&reference), 1);
    for (int64_t i = 0; i < reference.n; i++)
        squares += (double)reference.gradients[i] * (double)reference.gradients[i];
    assert_near(reference.norm[0], sqrt(squares), 1e-6);
}

static void test_clipping(void **state)
{
    (void)state;
    struct job job = plain_job(&other);
    run(plain_job(&reference), 1);
    /* far above the norm: nothing changes, to the bit */
    job.max_grad_norm = 1e6;
    run(job, 1);
    assert_memory_equal(other.weights, reference.weights, sizeof(float) * (size_t)reference.n);
    /* below it: the logged norm is that of before, the weights are others */
    job.max_grad_norm = reference.norm[0] / 3;
    run(job, 1);
    assert_near(other.norm[0], reference.norm[0], 1e-12);
    assert_true(memcmp(other.weights, reference.weights, sizeof(float) * (size_t)reference.n) != 0);
}

static void test_decay_spares_norms_and_biases(void **state)
{
    (void)state;
    struct uly_params params;
    struct job job = plain_job(&other);
    int64_t at = 0;
    run(plain_job(&reference), 1);
    job.weight_decay = 0.5;
    run(job, 1);
    assert_int_equal(uly_params_init(&model, &params), ULY_OK);
    for (int i = 0; i < params.n; i++) {
        const struct uly_param *p = &params.list[i];
        int64_t count = p->shape[0] * (p->n_dim > 1 ? p->shape[1] : 1), closer = 0;
        double before = 0, after = 0;
        for (int64_t j = 0; j < count; j++) {
            before += fabs((double)reference.weights[at + j]);
            after += fabs((double)other.weights[at + j]);
            closer += other.weights[at + j] != reference.weights[at + j];
        }
        if (p->role == ULY_PARAM_MATRIX || p->role == ULY_PARAM_EMBEDDING)
            assert_true(after < 0.999 * before && closer > count / 2);
        else /* only through the other weights' changes */
            assert_true(fabs(after - before) < 0.01 * (before + 0.1 * (double)count));
        at += count;
    }
    uly_params_clear(&params);
}

static void test_step_without_a_label(void **state)
{
    (void)state;
    struct job job = plain_job(&other);
    job.labelled = false;
    job.weight_decay = 0.5;
    run(job, 2);
    assert_int_equal(other.updates, 0);
    for (int i = 0; i < STEPS; i++) {
        assert_false(other.updated[i]);
        assert_true(isnan(other.loss[i]));
        assert_true(other.norm[i] == 0);
    }
    assert_false(other.moved);
    assert_int_equal(other.steps, STEPS);
    assert_true(isnan(other.eval_loss));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layouts_agree),
        cmocka_unit_test(test_checkpointing_changes_nothing),
        cmocka_unit_test(test_norm_counts_each_parameter_once),
        cmocka_unit_test(test_clipping),
        cmocka_unit_test(test_decay_spares_norms_and_biases),
        cmocka_unit_test(test_step_without_a_label),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
