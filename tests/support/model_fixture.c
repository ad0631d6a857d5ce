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
#include <time.h>

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
                               .weight_size = 1.5,
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
        double size = norm ? 0.2 : c->weight_size / sqrt((double)c->E);
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
    const struct model_grid *grid;
    struct model_result *out;
    bool with_grads;
    pthread_mutex_t lock;
};

static void prepare_result(const struct model_case *c, const struct uly_params *params,
                           struct model_result *out)
{
    out->n_params = params->n;
    out->names = room((size_t)params->n, sizeof *out->names);
    out->first = room((size_t)params->n + 1, sizeof *out->first);
    for (int p = 0; p < params->n; p++) {
        memcpy(out->names[p], params->list[p].name, sizeof out->names[p]);
        out->first[p + 1] = out->first[p] + params->list[p].shape[0] * params->list[p].shape[1];
    }
    out->grads = room((size_t)out->first[params->n], sizeof *out->grads);
    out->losses = room((size_t)out->S, sizeof *out->losses);
    out->logits = c->logits ? room((size_t)(out->S * c->V), sizeof *out->logits) : NULL;
}

/* Adds this rank's share; ranks come in any order, which double precision does not mind. */
static void add_result(struct job *job, const struct uly_params *params, double loss_sum)
{
    pthread_mutex_lock(&job->lock);
    job->out->loss_sum += loss_sum;
    if (job->with_grads) {
        const double *wide = uly_tensor_address(params->grads);
        const float *narrow = uly_tensor_address(params->grads);
        for (int64_t i = 0; i < job->out->first[params->n]; i++)
            job->out->grads[i] +=
                params->grads.dtype == ULY_DTYPE_F64 ? wide[i] : (double)narrow[i];
    }
    pthread_mutex_unlock(&job->lock);
}

/* One rank's model. */
struct rank {
    struct uly_model_config config;
    struct uly_params params;
    struct uly_memory memory;
    struct uly_backend *be;
    struct uly_mesh mesh;
    struct uly_decoder *decoder;
    uint64_t slow, calls;
};

/* Up to two milliseconds, so that ranks come to every layer in another order. */
static enum uly_status dawdle(void *context, const char *phase, int layer, int n_layers)
{
    struct rank *r = context;
    (void)phase, (void)layer, (void)n_layers;
    struct timespec t = {0, (long)uly_random_below(r->slow, 2, r->calls++, 2000000)};
    nanosleep(&t, NULL);
    return ULY_OK;
}

static enum uly_status set_up(struct job *job, struct uly_comm *comm, struct rank *r)
{
    const struct model_case *c = job->c;
    const struct model_grid *grid = job->grid;
    int64_t most = c->second && c->second->S > c->S ? c->second->S : c->S;
    struct uly_decoder_options options = {.dtype = c->dtype,
                                          .max_tokens = most,
                                          .checkpointing = c->checkpointing,
                                          .training = job->with_grads,
                                          .heads_per_stage = grid->heads_per_stage,
                                          .query_tile = grid->query_tile,
                                          .token_tile = c->token_tile};
    r->config = model_config_of(c);
    ULY_TRY(uly_backend_create(c->backend, c->threads, &r->be));
    ULY_TRY(uly_mesh_init(comm, grid->dp, grid->ring, grid->ulysses, &r->mesh));
    ULY_TRY(uly_params_init(&r->config, &r->params));
    uly_memory_init(&r->memory, uly_backend_space(r->be));
    ULY_TRY(uly_params_make_tensors(&r->params, c->dtype, job->with_grads, &r->memory));
    ULY_TRY(uly_decoder_create(&r->config, &r->params, &r->mesh, r->be, &options, &r->memory,
                               &r->decoder));
    ULY_TRY(uly_memory_reserve(&r->memory));
    for (int i = 0; i < ULY_LIFE_COUNT; i++) /* what is not written must not be read */
        memset(r->memory.arena[i].base, 0xff, (size_t)r->memory.arena[i].high);
    model_fill_weights(c, &r->params);
    if (c->slow > 0) {
        r->slow = (uint64_t)c->slow * 100 + (uint64_t)uly_comm_rank(comm);
        uly_decoder_set_progress(r->decoder, dawdle, r);
    }
    pthread_mutex_lock(&job->lock);
    if (!job->out->names)
        prepare_result(c, &r->params, job->out);
    pthread_mutex_unlock(&job->lock);
    return ULY_OK;
}

/* The i-th micro-batch of this rank's replica and where its tokens lie among all; false where there is none left. A replica
 * has an empty one rather than none. */
static bool next_batch(const struct job *job, const struct rank *r, int i, struct uly_batch *batch,
                       int64_t *at)
{
    const struct model_case *c = job->c;
    int index = r->mesh.dp_rank + i * r->mesh.dp_size;
    *at = index > 0 ? c->S : 0;
    if (index == 0)
        *batch = (struct uly_batch){c->S, c->n_docs, c->starts, c->ids, c->labels};
    else if (index == 1 && c->second)
        *batch = *c->second;
    else
        *batch = (struct uly_batch){0};
    return batch->S > 0 || i == 0;
}

static enum uly_status run_backward(struct job *job, struct rank *r, double *loss_sum)
{
    struct uly_batch batch;
    int64_t at;
    *loss_sum = 0;
    uly_alloc_guard_begin();
    ULY_TRY(uly_fill(r->be, r->params.grads, 0));
    for (int i = 0; next_batch(job, r, i, &batch, &at); i++) {
        double part;
        ULY_TRY(uly_decoder_backward(r->decoder, &batch, 1.0 / (double)job->out->n_valid, &part));
        *loss_sum += part;
    }
    uly_alloc_guard_end();
    return ULY_OK;
}

static enum uly_status run_forward(struct job *job, struct rank *r, double *loss_sum)
{
    struct uly_batch batch;
    int64_t at;
    *loss_sum = 0;
    for (int i = 0; next_batch(job, r, i, &batch, &at); i++) {
        double part;
        ULY_TRY(uly_decoder_forward(r->decoder, &batch, &part, job->out->losses + at));
        *loss_sum += part;
        if (job->c->logits)
            ULY_TRY(uly_decoder_logits(r->decoder, &batch, job->out->logits + at * job->c->V));
    }
    return ULY_OK;
}

static enum uly_status run_rank(struct uly_comm *comm, void *arg)
{
    struct job *job = arg;
    struct rank r = {0};
    double loss_sum = 0, again;
    ULY_TRY(set_up(job, comm, &r));
    if (job->with_grads)
        ULY_TRY(run_backward(job, &r, &loss_sum));
    ULY_TRY(run_forward(job, &r, &again));
    ULY_FAIL_IF(job->with_grads && again != loss_sum, ULY_ERR_INTERNAL,
                "the forward alone gives %.17g, not %.17g", again, loss_sum);
    add_result(job, &r.params, again);
    job->out->exchanges[uly_comm_rank(comm)] = uly_comm_counters(r.mesh.sp).exchanges +
                                               uly_comm_counters(r.mesh.ulysses).exchanges +
                                               uly_comm_counters(r.mesh.ring).exchanges;
    uly_decoder_destroy(r.decoder);
    uly_memory_clear(&r.memory);
    uly_params_clear(&r.params);
    uly_mesh_clear(&r.mesh);
    uly_backend_destroy(r.be);
    return ULY_OK;
}

static int64_t count_valid(const int32_t *labels, int64_t S)
{
    int64_t n = 0;
    for (int64_t i = 0; i < S; i++)
        n += labels[i] != ULY_IGNORE_LABEL;
    return n;
}

void model_run_on(const struct model_case *c, const struct model_grid *grid, bool with_grads,
                  struct model_result *out)
{
    struct job job = {c, grid, out, with_grads, PTHREAD_MUTEX_INITIALIZER};
    int ranks = grid->dp * grid->ring * grid->ulysses;
    ULY_BUG_ON(ranks > MODEL_MAX_RANKS);
    memset(out, 0, sizeof *out);
    out->S = c->S + (c->second ? c->second->S : 0);
    out->n_valid = count_valid(c->labels, c->S) +
                   (c->second ? count_valid(c->second->labels, c->second->S) : 0);
    if (uly_comm_run_threads(ranks, run_rank, &job) != ULY_OK)
        fail_msg("dp %d ulysses %d ring %d n %d query tile %d H %d K %d S %d: %s\n%s", grid->dp,
                 grid->ulysses, grid->ring, grid->heads_per_stage, (int)grid->query_tile, c->H,
                 c->K, (int)c->S, uly_error_message(), uly_error_trace());
}

void model_run(const struct model_case *c, int ranks, bool with_grads, struct model_result *out)
{
    struct model_grid grid = {1, ranks, 1, c->heads_per_stage, 0};
    model_run_on(c, &grid, with_grads, out);
}

void model_result_clear(struct model_result *r)
{
    free(r->names);
    free(r->first);
    free(r->grads);
    free(r->losses);
    free(r->logits);
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
