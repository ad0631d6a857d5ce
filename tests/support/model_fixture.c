/* SPDX-License-Identifier: MIT */
#include "support/model_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"

struct model_case model_case_small(int H, int K)
{
    return (struct model_case){.H = H,
                               .K = K,
                               .D = 8,
                               .layers = 2,
                               .E = 24,
                               .F = 40,
                               .V = 50,
                               .backend = "cpu:ref",
                               .dtype = ULY_DTYPE_F64,
                               .checkpointing = ULY_CHECKPOINT_FULL,
                               .threads = 1,
                               .seed = 11};
}

static void *room(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);
    ULY_BUG_ON(!p);
    return p;
}

void model_make_rows(int64_t S, int64_t V, const int64_t *starts, int64_t n_docs, uint64_t seed,
                     int32_t **ids, int32_t **labels)
{
    *ids = room((size_t)S, sizeof **ids);
    *labels = room((size_t)S, sizeof **labels);
    for (int64_t i = 0; i < S; i++)
        (*ids)[i] = (int32_t)uly_random_below(seed, 100, (uint64_t)i, (uint64_t)V);
    for (int64_t d = 0; d < n_docs; d++) {
        int64_t end = d + 1 < n_docs ? starts[d + 1] : S;
        for (int64_t i = starts[d]; i < end; i++) {
            bool masked = i + 1 == end || uly_random_below(seed, 101, (uint64_t)i, 3) == 0;
            (*labels)[i] = masked ? ULY_IGNORE_LABEL : (*ids)[i + 1];
        }
    }
}

struct uly_rope_config model_rope_of(enum uly_rope_type type, int D)
{
    struct uly_rope_config r = {.type = type, .theta = 10000};
    if (type != ULY_ROPE_DEFAULT) {
        r.factor = type == ULY_ROPE_LLAMA3 ? 8 : 4;
        r.original_max_position_embeddings = MODEL_ROPE_ORIGINAL;
    }
    if (type == ULY_ROPE_LLAMA3) {
        r.theta = 500000;
        r.low_freq_factor = 1;
        r.high_freq_factor = 4;
        r.original_max_position_embeddings = 64;
    }
    if (type == ULY_ROPE_YARN) {
        r.beta_fast = 4; /* so that heads of 4 or 8 have fast and slow dimensions */
        r.beta_slow = 1;
        r.truncate = true;
    }
    for (int i = 0; type == ULY_ROPE_LONGROPE && i < D / 2; i++) {
        r.short_factor[i] = 1 + 0.25 * i;
        r.long_factor[i] = 1.5 + i;
    }
    return r;
}

struct uly_model_config model_config_of(const struct model_case *c)
{
    struct uly_model_config config = {
        .architecture = "LlamaForCausalLM",
        .model_type = "llama",
        .hidden_size = c->E,
        .intermediate_size = c->F,
        .vocab_size = c->V,
        .max_position_embeddings = 4096,
        .num_hidden_layers = c->layers,
        .num_attention_heads = c->H,
        .num_key_value_heads = c->K,
        .head_dim = c->D,
        .rms_norm_eps = 1e-5,
        .initializer_range = 0.02,
        .tie_word_embeddings = c->tied,
        .qkv_bias = c->qkv_bias,
        .o_bias = c->o_bias,
        .mlp_bias = c->mlp_bias,
        .qk_norm = c->qk_norm,
        .sliding_window = c->window,
        .rope = model_rope_of(c->llama3 ? ULY_ROPE_LLAMA3 : c->rope, c->D),
        .dtype = c->dtype};
    if (c->rope == ULY_ROPE_DYNAMIC)
        config.max_position_embeddings = MODEL_ROPE_ORIGINAL;
    for (int layer = 0; c->window > 0 && layer < c->layers; layer++)
        if (!(c->layers_without_window >> layer & 1))
            uly_config_set_window(&config, layer);
    return config;
}

static void store(void *base, enum uly_dtype dtype, int64_t i, double x)
{
    if (dtype == ULY_DTYPE_F64)
        ((double *)base)[i] = x;
    else if (dtype == ULY_DTYPE_F32)
        ((float *)base)[i] = (float)x;
    else
        ((uint16_t *)base)[i] = uly_f32_to_bf16((float)x);
}

static void store_weight(struct uly_param *p, int64_t i, double x)
{
    store(uly_tensor_address(p->weight), p->weight.dtype, i, x);
    if (uly_tensor_exists(&p->master) && p->master.arena != p->weight.arena)
        store(uly_tensor_address(p->master), p->master.dtype, i, x);
}

void model_fill_weights(const struct model_case *c, struct uly_params *params)
{
    for (int p = 0; p < params->n; p++) {
        bool norm = params->list[p].role == ULY_PARAM_NORM;
        double size = norm ? 0.2 : 1.5 / sqrt((double)c->E);
        for (int64_t i = 0; i < uly_tensor_count(&params->list[p].weight); i++) {
            double x = size * uly_random_normal(c->seed, (uint64_t)p, (uint64_t)i) + (norm ? 1 : 0);
            x = (double)uly_bf16_to_f32(uly_f32_to_bf16((float)x));
            if (c->nudge != 0 && p == c->nudge_param && i == c->nudge_index)
                x += c->nudge;
            store_weight(&params->list[p], i, x);
        }
    }
}

struct job {
    const struct model_case *c;
    struct model_result *out;
    bool with_grads;
    pthread_mutex_t lock;
};

static void prepare_result(const struct uly_params *params, int64_t S, struct model_result *out)
{
    out->n_params = params->n;
    out->names = room((size_t)params->n, sizeof *out->names);
    out->first = room((size_t)params->n + 1, sizeof *out->first);
    for (int p = 0; p < params->n; p++) {
        memcpy(out->names[p], params->list[p].name, sizeof out->names[p]);
        out->first[p + 1] = out->first[p] + params->list[p].shape[0] * params->list[p].shape[1];
    }
    out->grads = room((size_t)out->first[params->n], sizeof *out->grads);
    out->losses = room((size_t)S, sizeof *out->losses);
}

/* Adds this rank's share; ranks come in any order, which double precision does not mind. */
static void add_result(struct job *job, const struct uly_params *params, double loss_sum)
{
    const double *wide = uly_tensor_address(params->grads);
    const float *narrow = uly_tensor_address(params->grads);
    pthread_mutex_lock(&job->lock);
    job->out->loss_sum += loss_sum;
    for (int64_t i = 0; i < job->out->first[params->n]; i++)
        job->out->grads[i] += params->grads.dtype == ULY_DTYPE_F64 ? wide[i] : (double)narrow[i];
    pthread_mutex_unlock(&job->lock);
}

static enum uly_status run_rank(struct uly_comm *comm, void *arg)
{
    struct job *job = arg;
    const struct model_case *c = job->c;
    struct uly_model_config config = model_config_of(c);
    struct uly_params params;
    struct uly_memory memory;
    struct uly_backend *be;
    struct uly_mesh mesh;
    struct uly_decoder *decoder;
    struct uly_decoder_options options = {.dtype = c->dtype,
                                          .max_tokens = c->S,
                                          .checkpointing = c->checkpointing,
                                          .training = job->with_grads,
                                          .heads_per_stage = c->heads_per_stage,
                                          .token_tile = c->token_tile};
    struct uly_batch batch = {c->S, c->n_docs, c->starts, c->ids, c->labels};
    double loss_sum;
    ULY_TRY(uly_backend_create(c->backend, c->threads, &be));
    ULY_TRY(uly_mesh_init(comm, 1, 1, uly_comm_size(comm), &mesh));
    ULY_TRY(uly_params_init(&config, &params));
    uly_memory_init(&memory, uly_backend_space(be));
    ULY_TRY(uly_params_make_tensors(&params, c->dtype, job->with_grads, &memory));
    ULY_TRY(uly_decoder_create(&config, &params, &mesh, be, &options, &memory, &decoder));
    ULY_TRY(uly_memory_reserve(&memory));
    for (int i = 0; i < ULY_LIFE_COUNT; i++) /* what is not written must not be read */
        memset(memory.arena[i].base, 0xff, (size_t)memory.arena[i].high);
    model_fill_weights(c, &params);
    pthread_mutex_lock(&job->lock);
    if (!job->out->names)
        prepare_result(&params, c->S, job->out);
    pthread_mutex_unlock(&job->lock);
    if (job->with_grads) {
        uly_alloc_guard_begin();
        ULY_TRY(uly_fill(be, params.grads, 0));
        ULY_TRY(uly_decoder_backward(decoder, &batch, 1.0 / (double)job->out->n_valid, &loss_sum));
        uly_alloc_guard_end();
        add_result(job, &params, loss_sum);
    }
    double again;
    ULY_TRY(uly_decoder_forward(decoder, &batch, &again, job->out->losses));
    if (job->with_grads)
        ULY_FAIL_IF(again != loss_sum, ULY_ERR_INTERNAL, "the forward alone gives %.17g, not %.17g",
                    again, loss_sum);
    else {
        pthread_mutex_lock(&job->lock);
        job->out->loss_sum += again;
        pthread_mutex_unlock(&job->lock);
    }
    uly_decoder_destroy(decoder);
    uly_memory_clear(&memory);
    uly_params_clear(&params);
    uly_mesh_clear(&mesh);
    uly_backend_destroy(be);
    return ULY_OK;
}

void model_run(const struct model_case *c, int ranks, bool with_grads, struct model_result *out)
{
    struct job job = {c, out, with_grads, PTHREAD_MUTEX_INITIALIZER};
    memset(out, 0, sizeof *out);
    for (int64_t i = 0; i < c->S; i++)
        out->n_valid += c->labels[i] != ULY_IGNORE_LABEL;
    if (uly_comm_run_threads(ranks, run_rank, &job) != ULY_OK)
        fail_msg("sp %d H %d K %d S %d: %s\n%s", ranks, c->H, c->K, (int)c->S, uly_error_message(),
                 uly_error_trace());
}

void model_result_clear(struct model_result *r)
{
    free(r->names);
    free(r->first);
    free(r->grads);
    free(r->losses);
}

double model_worst_gradient(const struct model_result *got, const struct model_result *want,
                            double relative, double floor, const char **name)
{
    double top_of_all = 0, worst = 0;
    *name = "";
    for (int64_t i = 0; i < want->first[want->n_params]; i++)
        top_of_all = fmax(top_of_all, fabs(want->grads[i]));
    for (int p = 0; p < want->n_params; p++) {
        double top = 0, difference = 0;
        for (int64_t i = want->first[p]; i < want->first[p + 1]; i++) {
            top = fmax(top, fabs(want->grads[i]));
            double d = fabs(got->grads[i] - want->grads[i]);
            difference = isnan(d) ? HUGE_VAL : fmax(difference, d);
        }
        double ratio = difference / fmax(relative * top, floor * top_of_all);
        if (ratio > worst) {
            worst = ratio;
            *name = want->names[p];
        }
    }
    return worst;
}
