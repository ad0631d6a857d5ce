/* SPDX-License-Identifier: MIT */
#include "model/sublayer.h"

#include <string.h>

#include "base/mem.h"
#include "model/decoder_impl.h"

struct uly_sublayer {
    struct uly_model_config config; /* one layer, no vocabulary, no MLP */
    struct uly_params params;       /* its tensors are those of the call */
    struct uly_decoder *d;
    double inv_freq[ULY_MAX_HEAD_DIM / 2];
};

static enum uly_status build(struct uly_sublayer *l, const struct uly_sublayer_options *o,
                             struct uly_mesh *mesh, struct uly_backend *be,
                             struct uly_memory *memory)
{
    l->config = (struct uly_model_config){
        .hidden_size = o->E,
        .num_hidden_layers = 1,
        .num_attention_heads = o->H,
        .num_key_value_heads = o->K,
        .head_dim = o->D,
        .rms_norm_eps = o->eps,
        .qkv_bias = o->qkv_bias,
        .o_bias = o->o_bias,
        .qk_norm = o->qk_norm,
        .rope = {.type = ULY_ROPE_DEFAULT, .theta = 1}, /* replaced by inv_freq */
    };
    uly_config_set_window(&l->config, 0);
    ULY_TRY(uly_params_init(&l->config, &l->params));
    struct uly_decoder_options options = {.dtype = o->dtype,
                                          .max_tokens = o->max_tokens,
                                          .checkpointing = ULY_CHECKPOINT_FULL,
                                          .training = o->training,
                                          .heads_per_stage = o->heads_per_stage,
                                          .query_tile = o->query_tile,
                                          .scale = o->scale,
                                          .serial = o->serial,
                                          .attention_only = true};
    ULY_TRY(uly_decoder_create(&l->config, &l->params, mesh, be, &options, memory, &l->d));
    memcpy(l->inv_freq, o->inv_freq, (size_t)(o->D / 2) * sizeof *l->inv_freq);
    l->d->rope_scale = o->rope_scale;
    return ULY_OK;
}

enum uly_status uly_sublayer_create(const struct uly_sublayer_options *options,
                                    struct uly_mesh *mesh, struct uly_backend *be,
                                    struct uly_memory *memory, struct uly_sublayer **out)
{
    struct uly_sublayer *l;
    ULY_FAIL_IF(options->D % 2 != 0 || options->D > ULY_MAX_HEAD_DIM, ULY_ERR_UNSUPPORTED,
                "head size %d: it is even and at most %d", options->D, ULY_MAX_HEAD_DIM);
    ULY_TRY(ULY_ALLOC(&l, 1));
    enum uly_status status = build(l, options, mesh, be, memory);
    if (status != ULY_OK) {
        uly_sublayer_destroy(l);
        return status;
    }
    *out = l;
    return ULY_OK;
}

void uly_sublayer_destroy(struct uly_sublayer *sublayer)
{
    if (!sublayer)
        return;
    uly_decoder_destroy(sublayer->d);
    uly_params_clear(&sublayer->params);
    uly_free(sublayer);
}

/* Index of a weight in the table of parameters; -1: there is none. */
static int index_of(const struct uly_sublayer *l, enum uly_sublayer_weight which)
{
    const struct uly_layer_params *p = &l->params.layers[0];
    const int index[ULY_SUBLAYER_WEIGHTS] = {
        [ULY_SUBLAYER_NORM] = p->input_norm,
        [ULY_SUBLAYER_Q] = p->q,
        [ULY_SUBLAYER_K] = p->k,
        [ULY_SUBLAYER_V] = p->v,
        [ULY_SUBLAYER_O] = p->o,
        [ULY_SUBLAYER_Q_BIAS] = p->q_bias,
        [ULY_SUBLAYER_K_BIAS] = p->k_bias,
        [ULY_SUBLAYER_V_BIAS] = p->v_bias,
        [ULY_SUBLAYER_O_BIAS] = p->o_bias,
        [ULY_SUBLAYER_Q_NORM] = p->q_norm,
        [ULY_SUBLAYER_K_NORM] = p->k_norm,
    };
    return index[which];
}

bool uly_sublayer_shape(const struct uly_sublayer *sublayer, enum uly_sublayer_weight which,
                        int64_t shape[2])
{
    int i = index_of(sublayer, which);
    if (i < 0)
        return false;
    const struct uly_param *p = &sublayer->params.list[i];
    shape[0] = p->shape[0];
    shape[1] = p->n_dim == 2 ? p->shape[1] : 0;
    return true;
}

int64_t uly_sublayer_lse_elements(const struct uly_sublayer *sublayer)
{
    return uly_cp_lse_elements(sublayer->d->cp);
}

/* The call's tensors to where the decoder looks for a layer's. */
static enum uly_status enter(struct uly_sublayer *l, const struct uly_mask *mask,
                             const struct uly_sublayer_tensors *t)
{
    struct uly_decoder *d = l->d;
    struct uly_batch batch = {.S = mask->S, .n_docs = mask->n_docs, .starts = mask->starts};
    for (int w = 0; w < ULY_SUBLAYER_WEIGHTS; w++) {
        int i = index_of(l, (enum uly_sublayer_weight)w);
        if (i < 0)
            continue;
        l->params.list[i].weight = t->weight[w];
        l->params.list[i].grad = t->grad[w];
    }
    d->block_in[0] = t->x;
    d->kept[0].o = t->o;
    d->kept[0].lse = t->lse;
    d->dx = t->dx;
    l->config.sliding_window = mask->window;
    ULY_TRY(uly_decoder_enter(d, &batch));
    return uly_tensor_write(d->be, uly_tensor_rows(d->inv_freq, 0, 1), l->inv_freq);
}

enum uly_status uly_sublayer_forward(struct uly_sublayer *sublayer, const struct uly_mask *mask,
                                     const struct uly_sublayer_tensors *tensors)
{
    struct uly_decoder *d = sublayer->d;
    const struct uly_layer_params *p = &sublayer->params.layers[0];
    ULY_TRY(enter(sublayer, mask, tensors));
    ULY_TRY(uly_attention_sublayer_fwd(d, 0));
    for (int64_t row = 0, n; row < d->s; row += n) {
        n = d->s - row < d->tile ? d->s - row : d->tile;
        ULY_TRY(uly_attention_residual(d, p, uly_tensor_rows(tensors->x, row, n),
                                       uly_tensor_rows(tensors->o, row, n),
                                       uly_tensor_rows(tensors->y, row, n)));
    }
    return ULY_OK;
}

enum uly_status uly_sublayer_backward(struct uly_sublayer *sublayer, const struct uly_mask *mask,
                                      const struct uly_sublayer_tensors *tensors)
{
    ULY_FAIL_IF(!sublayer->d->options.training, ULY_ERR_USAGE,
                "backward of a sublayer that was made without training");
    ULY_TRY(enter(sublayer, mask, tensors));
    return uly_attention_sublayer_bwd(sublayer->d, 0);
}
