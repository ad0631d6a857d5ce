/* SPDX-License-Identifier: MIT
 *
 * The parameters of a model as a table: name as in the checkpoint, shape, role, and where weight,
 * gradient and optimizer state lie. Everything that goes over all parameters (load, save, reduce,
 * clip, update, dump) is a loop over this table.
 */
#ifndef ULY_MODEL_PARAMS_H
#define ULY_MODEL_PARAMS_H

#include "base/tensor.h"
#include "model/config.h"

enum uly_param_role { ULY_PARAM_MATRIX, ULY_PARAM_BIAS, ULY_PARAM_NORM, ULY_PARAM_EMBEDDING };

struct uly_param {
    char name[96]; /* e.g. "model.layers.0.self_attn.q_proj.weight" */
    enum uly_param_role role;
    int n_dim;
    int64_t shape[2];               /* [out, in] for matrices, [n] otherwise */
    bool trainable;                 /* off: no gradient, no moments */
    struct uly_tensor weight;       /* model dtype */
    struct uly_tensor grad;         /* acc, a slice of params->grads; absent when not trainable */
    struct uly_tensor master, m, v; /* acc; master is weight itself where model is acc */
};

/* Indices into the table; -1 where the model has none. */
struct uly_layer_params {
    int input_norm, post_norm;
    int q, k, v, o, q_bias, k_bias, v_bias, o_bias;
    int q_norm, k_norm; /* [D] */
    int gate, up, down, gate_bias, up_bias, down_bias;
};

struct uly_params {
    struct uly_param *list; /* owned, n of them, in the order of the checkpoint: embedding, layers,
                               final norm, head */
    int n;
    struct uly_layer_params *layers; /* owned, num_hidden_layers */
    int embedding, final_norm,
        head; /* head == embedding when tied: one parameter, one gradient, one name */
    struct uly_tensor grads; /* all gradients end to end, [total] acc */
};

/* The table without tensors (names, shapes, roles): all that loading, sizes and `inspect` need.
 * *out: uly_params_clear. */
enum uly_status uly_params_init(const struct uly_model_config *config, struct uly_params *out);
void uly_params_clear(struct uly_params *params);

/* Number of parameters; without_embeddings leaves out the embedding table and the head. */
int64_t uly_params_count(const struct uly_params *params, bool without_embeddings);

/* Makes the tensors in the memory's arenas (measuring): weights; with `training`, gradients and
 * AdamW state too. */
enum uly_status uly_params_make_tensors(struct uly_params *params, enum uly_dtype model,
                                        bool training, struct uly_memory *memory);

#endif
