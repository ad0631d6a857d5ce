/* SPDX-License-Identifier: MIT */
#include "model/config.h"

int64_t uly_config_window(const struct uly_model_config *config, int layer)
{
    if (config->sliding_window == 0 || layer < 0 || layer >= ULY_MAX_LAYERS)
        return 0;
    return config->window_layers[layer / 8] >> (layer % 8) & 1 ? config->sliding_window : 0;
}

void uly_config_set_window(struct uly_model_config *config, int layer)
{
    ULY_BUG_ON(layer < 0 || layer >= ULY_MAX_LAYERS);
    config->window_layers[layer / 8] =
        (uint8_t)(config->window_layers[layer / 8] | 1u << (layer % 8));
}

int uly_config_window_layers(const struct uly_model_config *config)
{
    int n = 0;
    for (int layer = 0; config->sliding_window > 0 && layer < config->num_hidden_layers; layer++)
        n += uly_config_window(config, layer) > 0;
    return n;
}

double uly_model_flops_per_token(const struct uly_model_config *config, int64_t S)
{
    /* in double: the products of a large model at millions of tokens leave 63 bits */
    double E = (double)config->hidden_size, F = (double)config->intermediate_size;
    double V = (double)config->vocab_size, L = config->num_hidden_layers;
    double q = (double)config->num_attention_heads * config->head_dim;
    double kv = (double)config->num_key_value_heads * config->head_dim;
    double matrices = L * (2 * E * q + 2 * E * kv + 3 * E * F);
    double W = (double)config->sliding_window, all = (double)S / 2, few = all;
    if (config->sliding_window < S)
        few = W - W * W / (2 * (double)S);
    double with_window = uly_config_window_layers(config);
    return 6 * matrices + 6 * V * E + 12 * q * ((L - with_window) * all + with_window * few);
}
