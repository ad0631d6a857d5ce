/* SPDX-License-Identifier: MIT
 *
 * What a model is, as read from config.json: sizes and switches, no tensors. Field names are those
 * of config.json where there is one. Families are data: a row of a table in config.c says which
 * switches a family sets, so that the rest of the program never asks for a family's name.
 */
#ifndef ULY_MODEL_CONFIG_H
#define ULY_MODEL_CONFIG_H

#include "base/dtype.h"
#include "base/status.h"

enum uly_rope_type { ULY_ROPE_DEFAULT, ULY_ROPE_LLAMA3 };

struct uly_rope_config {
    enum uly_rope_type type;
    double theta;
    /* llama3 only */
    double factor, low_freq_factor, high_freq_factor;
    int64_t original_max_position_embeddings;
};

struct uly_model_config {
    char architecture[64]; /* architectures[0], e.g. "LlamaForCausalLM" */
    char model_type[32];
    int64_t hidden_size, intermediate_size, vocab_size, max_position_embeddings;
    int num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim;
    double rms_norm_eps, initializer_range;
    bool tie_word_embeddings;
    bool qkv_bias, o_bias, mlp_bias; /* Llama: attention_bias sets the first two */
    struct uly_rope_config rope;
    int64_t bos_token_id, eos_token_id, pad_token_id; /* -1: none; a list's first */
    enum uly_dtype dtype; /* "dtype" or "torch_dtype"; float32 when absent */
};

/* inv_freq[head_dim / 2] of the rotation, float64: theta^(-2i / head_dim), and for llama3 the
 * wavelength-dependent division by factor of Transformers' _compute_llama3_parameters. out: the
 * caller's. */
void uly_rope_inv_freq(const struct uly_model_config *config, double *out);

/* Model flops of one token's forward and backward at sequence length S, the causal half counted,
 * the head included: 6 * (matrix parameters without the embedding table) + 6 * V * E + 6 * L * H *
 * D * S (docs/design.md). */
double uly_model_flops_per_token(const struct uly_model_config *config, int64_t S);

#endif
