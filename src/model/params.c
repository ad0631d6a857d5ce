/* SPDX-License-Identifier: MIT */
#include "model/params.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

/* Appends a parameter and returns its index. d1 = 0 makes a vector. */
static int add_param(struct uly_params *params, enum uly_param_role role, int64_t d0, int64_t d1,
                     const char *format, ...) __attribute__((format(printf, 5, 6)));

static int add_param(struct uly_params *params, enum uly_param_role role, int64_t d0, int64_t d1,
                     const char *format, ...)
{
    struct uly_param *p = &params->list[params->n];
    va_list args;
    va_start(args, format);
    vsnprintf(p->name, sizeof p->name, format, args);
    va_end(args);
    p->role = role;
    p->n_dim = d1 ? 2 : 1;
    p->shape[0] = d0;
    p->shape[1] = d1 ? d1 : 1;
    p->trainable = true;
    return params->n++;
}

static int add_linear(struct uly_params *params, int layer, const char *name, int64_t out,
                      int64_t in)
{
    return add_param(params, ULY_PARAM_MATRIX, out, in, "model.layers.%d.%s.weight", layer, name);
}

static int add_bias(struct uly_params *params, bool present, int layer, const char *name, int64_t n)
{
    return present ? add_param(params, ULY_PARAM_BIAS, n, 0, "model.layers.%d.%s.bias", layer, name)
                   : -1;
}

/* The norm of every head of a projection: one weight of head_dim for all of them. */
static int add_head_norm(const struct uly_model_config *c, struct uly_params *params, int layer,
                         const char *name)
{
    return c->qk_norm ? add_param(params, ULY_PARAM_NORM, c->head_dim, 0,
                                  "model.layers.%d.%s.weight", layer, name)
                      : -1;
}

static void add_layer(const struct uly_model_config *c, struct uly_params *params, int layer)
{
    struct uly_layer_params *l = &params->layers[layer];
    int64_t E = c->hidden_size, F = c->intermediate_size;
    int64_t q = (int64_t)c->num_attention_heads * c->head_dim;
    int64_t kv = (int64_t)c->num_key_value_heads * c->head_dim;
    l->input_norm =
        add_param(params, ULY_PARAM_NORM, E, 0, "model.layers.%d.input_layernorm.weight", layer);
    l->q = add_linear(params, layer, "self_attn.q_proj", q, E);
    l->k = add_linear(params, layer, "self_attn.k_proj", kv, E);
    l->v = add_linear(params, layer, "self_attn.v_proj", kv, E);
    l->o = add_linear(params, layer, "self_attn.o_proj", E, q);
    l->q_bias = add_bias(params, c->qkv_bias, layer, "self_attn.q_proj", q);
    l->k_bias = add_bias(params, c->qkv_bias, layer, "self_attn.k_proj", kv);
    l->v_bias = add_bias(params, c->qkv_bias, layer, "self_attn.v_proj", kv);
    l->o_bias = add_bias(params, c->o_bias, layer, "self_attn.o_proj", E);
    l->q_norm = add_head_norm(c, params, layer, "self_attn.q_norm");
    l->k_norm = add_head_norm(c, params, layer, "self_attn.k_norm");
    l->post_norm = add_param(params, ULY_PARAM_NORM, E, 0,
                             "model.layers.%d.post_attention_layernorm.weight", layer);
    l->gate = add_linear(params, layer, "mlp.gate_proj", F, E);
    l->up = add_linear(params, layer, "mlp.up_proj", F, E);
    l->down = add_linear(params, layer, "mlp.down_proj", E, F);
    l->gate_bias = add_bias(params, c->mlp_bias, layer, "mlp.gate_proj", F);
    l->up_bias = add_bias(params, c->mlp_bias, layer, "mlp.up_proj", F);
    l->down_bias = add_bias(params, c->mlp_bias, layer, "mlp.down_proj", E);
}

enum uly_status uly_params_init(const struct uly_model_config *config, struct uly_params *out)
{
    enum { PER_LAYER = 18, OUTSIDE = 3 };
    struct uly_params params = {0};
    int L = config->num_hidden_layers;
    ULY_TRY(ULY_ALLOC(&params.list, (size_t)L * PER_LAYER + OUTSIDE));
    enum uly_status status = ULY_ALLOC(&params.layers, L);
    if (status != ULY_OK) {
        uly_free(params.list);
        return status;
    }
    params.embedding = add_param(&params, ULY_PARAM_EMBEDDING, config->vocab_size,
                                 config->hidden_size, "model.embed_tokens.weight");
    for (int layer = 0; layer < L; layer++)
        add_layer(config, &params, layer);
    params.final_norm =
        add_param(&params, ULY_PARAM_NORM, config->hidden_size, 0, "model.norm.weight");
    params.head = config->tie_word_embeddings
                      ? params.embedding
                      : add_param(&params, ULY_PARAM_MATRIX, config->vocab_size,
                                  config->hidden_size, "lm_head.weight");
    *out = params;
    return ULY_OK;
}

void uly_params_clear(struct uly_params *params)
{
    uly_free(params->list);
    uly_free(params->layers);
    memset(params, 0, sizeof *params);
}

static int64_t param_count(const struct uly_param *p)
{
    return p->shape[0] * p->shape[1];
}

int64_t uly_params_count(const struct uly_params *params, bool without_embeddings)
{
    int64_t sum = 0;
    for (int i = 0; i < params->n; i++)
        if (!without_embeddings || (i != params->embedding && i != params->head))
            sum += param_count(&params->list[i]);
    return sum;
}

static enum uly_status make_weight(struct uly_param *p, enum uly_dtype dtype,
                                   struct uly_arena *arena, struct uly_tensor *out)
{
    return uly_tensor_new(arena, p->name, dtype, p->n_dim, p->shape[0], p->shape[1], 1, out);
}

/* The gradients are one tensor, so that reducing and clipping are one pass; each parameter's is a
 * view of it. */
static enum uly_status make_gradients(struct uly_params *params, enum uly_dtype acc,
                                      struct uly_arena *arena)
{
    int64_t total = 0, at = 0;
    for (int i = 0; i < params->n; i++)
        total += params->list[i].trainable ? param_count(&params->list[i]) : 0;
    ULY_TRY(uly_tensor_new(arena, "gradients", acc, 1, total, 1, 1, &params->grads));
    for (int i = 0; i < params->n; i++) {
        struct uly_param *p = &params->list[i];
        if (!p->trainable)
            continue;
        struct uly_tensor part = uly_tensor_rows(params->grads, at, param_count(p));
        p->grad = uly_tensor_reshape(part, p->n_dim, p->shape[0], p->shape[1], 1);
        at += param_count(p);
    }
    return ULY_OK;
}

enum uly_status uly_params_make_tensors(struct uly_params *params, enum uly_dtype model,
                                        bool training, struct uly_memory *memory)
{
    enum uly_dtype acc = model == ULY_DTYPE_F64 ? ULY_DTYPE_F64 : ULY_DTYPE_F32;
    for (int i = 0; i < params->n; i++) {
        struct uly_param *p = &params->list[i];
        ULY_TRY(make_weight(p, model, &memory->arena[ULY_LIFE_PARAMS], &p->weight));
        if (!training || !p->trainable)
            continue;
        struct uly_arena *optimizer = &memory->arena[ULY_LIFE_OPTIMIZER];
        p->master = p->weight;
        if (model != acc)
            ULY_TRY(make_weight(p, acc, optimizer, &p->master));
        ULY_TRY(make_weight(p, acc, optimizer, &p->m));
        ULY_TRY(make_weight(p, acc, optimizer, &p->v));
    }
    if (training)
        ULY_TRY(make_gradients(params, acc, &memory->arena[ULY_LIFE_GRADS]));
    return ULY_OK;
}
