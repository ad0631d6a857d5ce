/* SPDX-License-Identifier: MIT
 *
 * What a model is, as read from config.json: sizes and switches, no tensors. Field names are those
 * of config.json where there is one. Families are data: a row of a table in
 * src/formats/config_json.c says what a family sets, so that the rest of the program never asks for
 * a family's name.
 */
#ifndef ULY_MODEL_CONFIG_H
#define ULY_MODEL_CONFIG_H

#include "base/dtype.h"
#include "base/status.h"

enum { ULY_MAX_LAYERS = 4096, ULY_MAX_HEAD_DIM = 512 };

enum uly_rope_type {
    ULY_ROPE_DEFAULT,
    ULY_ROPE_LINEAR,
    ULY_ROPE_DYNAMIC,
    ULY_ROPE_YARN,
    ULY_ROPE_LLAMA3,
    ULY_ROPE_LONGROPE,
    ULY_ROPE_TYPES
};

/* Fields that a type does not use are 0. */
struct uly_rope_config {
    enum uly_rope_type type;
    double theta;
    double factor;                            /* all but default */
    double low_freq_factor, high_freq_factor; /* llama3 */
    int64_t original_max_position_embeddings; /* llama3, yarn, longrope */
    double attention_factor;                  /* yarn, longrope; 0: from factor, see rope.h */
    double beta_fast, beta_slow;              /* yarn */
    double mscale, mscale_all_dim;            /* yarn; 0: not given */
    bool truncate;                            /* yarn */
    double short_factor[ULY_MAX_HEAD_DIM / 2], long_factor[ULY_MAX_HEAD_DIM / 2]; /* longrope */
};

struct uly_model_config {
    char architecture[64]; /* architectures[0], e.g. "LlamaForCausalLM" */
    char model_type[32];
    int64_t hidden_size, intermediate_size, vocab_size, max_position_embeddings;
    int num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim;
    double rms_norm_eps, initializer_range;
    bool tie_word_embeddings;
    bool qkv_bias, o_bias, mlp_bias;
    bool qk_norm;           /* RMS norm of every query and key head before the rotation */
    int64_t sliding_window; /* keys that a query of a layer with a window sees, itself included; 0:
                               no layer has one */
    uint8_t window_layers[ULY_MAX_LAYERS / 8]; /* bit l: layer l has the window */
    struct uly_rope_config rope;
    int64_t bos_token_id, eos_token_id, pad_token_id; /* -1: none; a list's first */
    enum uly_dtype dtype; /* "dtype" or "torch_dtype"; float32 when absent */
};

/* The window of a layer as struct uly_mask has it; 0: none. */
int64_t uly_config_window(const struct uly_model_config *config, int layer);

/* Gives a layer the window. */
void uly_config_set_window(struct uly_model_config *config, int layer);

/* Layers that have a window. */
int uly_config_window_layers(const struct uly_model_config *config);

/* Model flops of one token's forward and backward in a document of S tokens, on the average, the
 * head included: 6 * (matrix parameters without the embedding table) + 6 * V * E + 12 * H * D *
 * (keys that a query sees) summed over the layers, where these are S / 2, the causal half, and W - W^2
 * / (2 S) under a window W < S. */
double uly_model_flops_per_token(const struct uly_model_config *config, int64_t S);

#endif
