/* SPDX-License-Identifier: MIT */
#include "model/config.h"

#include <math.h>

/* Transformers' _compute_llama3_parameters: long wavelengths are stretched by factor, short ones kept, and those between
 * blended linearly in (original length / wavelength). */
static double llama3_frequency(const struct uly_rope_config *rope, double frequency)
{
    static const double two_pi = 6.283185307179586476925286766559;
    double original = (double)rope->original_max_position_embeddings;
    double wavelength = two_pi / frequency;
    if (wavelength > original / rope->low_freq_factor)
        return frequency / rope->factor;
    if (wavelength < original / rope->high_freq_factor)
        return frequency;
    double smooth = (original / wavelength - rope->low_freq_factor) /
                    (rope->high_freq_factor - rope->low_freq_factor);
    return (1 - smooth) * frequency / rope->factor + smooth * frequency;
}

void uly_rope_inv_freq(const struct uly_model_config *config, double *out)
{
    for (int i = 0; i < config->head_dim / 2; i++) {
        double frequency = pow(config->rope.theta, -2.0 * i / config->head_dim);
        if (config->rope.type == ULY_ROPE_LLAMA3)
            frequency = llama3_frequency(&config->rope, frequency);
        out[i] = frequency;
    }
}

double uly_model_flops_per_token(const struct uly_model_config *config, int64_t S)
{
    /* in double: the products of a large model at millions of tokens leave 63 bits */
    double E = (double)config->hidden_size, F = (double)config->intermediate_size;
    double V = (double)config->vocab_size, L = config->num_hidden_layers;
    double q = (double)config->num_attention_heads * config->head_dim;
    double kv = (double)config->num_key_value_heads * config->head_dim;
    double matrices = L * (2 * E * q + 2 * E * kv + 3 * E * F);
    return 6 * matrices + 6 * V * E + 6 * L * q * (double)S;
}
