/* SPDX-License-Identifier: MIT */
#include "model/rope.h"

#include <math.h>
#include <string.h>

static const double two_pi = 6.283185307179586476925286766559;

static const char *const type_names[ULY_ROPE_TYPES] = {
    [ULY_ROPE_DEFAULT] = "default", [ULY_ROPE_LINEAR] = "linear", [ULY_ROPE_DYNAMIC] = "dynamic",
    [ULY_ROPE_YARN] = "yarn",       [ULY_ROPE_LLAMA3] = "llama3", [ULY_ROPE_LONGROPE] = "longrope",
};

const char *uly_rope_type_name(enum uly_rope_type type)
{
    return type_names[type];
}

bool uly_rope_type_of(const char *name, enum uly_rope_type *out)
{
    for (int i = 0; i < ULY_ROPE_TYPES; i++)
        if (strcmp(name, type_names[i]) == 0) {
            *out = (enum uly_rope_type)i;
            return true;
        }
    return false;
}

/* ------------------------------------------------------------------ the types */

/* Long wavelengths are stretched by factor, short ones kept, and those between blended linearly in
 * (original length / wavelength). */
static double llama3_frequency(const struct uly_rope_config *rope, double frequency)
{
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

/* The base grows with the document, so that its last position turns no further than trained ones:
 * theta * (factor * length / max - (factor - 1)) ^ (D / (D - 2)). */
static double dynamic_theta(const struct uly_model_config *c, int64_t length)
{
    double max = (double)c->max_position_embeddings, D = c->head_dim;
    if (length <= c->max_position_embeddings)
        return c->rope.theta;
    double grown = c->rope.factor * (double)length / max - (c->rope.factor - 1);
    return c->rope.theta * pow(grown, D / (D - 2));
}

/* The dimension whose wavelength turns `rotations` times within the original length. */
static double yarn_dimension(const struct uly_model_config *c, double rotations)
{
    double original = (double)c->rope.original_max_position_embeddings;
    return c->head_dim * log(original / (rotations * two_pi)) / (2 * log(c->rope.theta));
}

/* Fast dimensions are kept, slow ones stretched by factor, those between blended linearly in the
 * dimension's index (Peng et al. 2023). */
static void yarn_frequencies(const struct uly_model_config *c, double *f)
{
    const struct uly_rope_config *r = &c->rope;
    double low = yarn_dimension(c, r->beta_fast), high = yarn_dimension(c, r->beta_slow);
    if (r->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, c->head_dim - 1);
    if (low == high)
        high += 0.001; /* a step, not a division by zero */
    for (int i = 0; i < c->head_dim / 2; i++) {
        double ramp = fmin(fmax((i - low) / (high - low), 0), 1);
        f[i] = f[i] / r->factor * ramp + f[i] * (1 - ramp);
    }
}

void uly_rope_inv_freq(const struct uly_model_config *config, int64_t length, double *out)
{
    const struct uly_rope_config *r = &config->rope;
    bool longer = length > r->original_max_position_embeddings;
    double theta = r->type == ULY_ROPE_DYNAMIC ? dynamic_theta(config, length) : r->theta;
    for (int i = 0; i < config->head_dim / 2; i++) {
        out[i] = pow(theta, -2.0 * i / config->head_dim);
        if (r->type == ULY_ROPE_LLAMA3)
            out[i] = llama3_frequency(r, out[i]);
        else if (r->type == ULY_ROPE_LINEAR)
            out[i] /= r->factor;
        else if (r->type == ULY_ROPE_LONGROPE)
            out[i] /= longer ? r->long_factor[i] : r->short_factor[i];
    }
    if (r->type == ULY_ROPE_YARN)
        yarn_frequencies(config, out);
}

/* ------------------------------------------------------------------ scale */

static double yarn_scale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

double uly_rope_scale(const struct uly_model_config *config)
{
    const struct uly_rope_config *r = &config->rope;
    if (r->type != ULY_ROPE_YARN && r->type != ULY_ROPE_LONGROPE)
        return 1;
    if (r->attention_factor > 0)
        return r->attention_factor;
    if (r->type == ULY_ROPE_YARN)
        return r->mscale != 0 && r->mscale_all_dim != 0
                   ? yarn_scale(r->factor, r->mscale) / yarn_scale(r->factor, r->mscale_all_dim)
                   : yarn_scale(r->factor, 1);
    double original = (double)r->original_max_position_embeddings;
    return r->factor <= 1 ? 1 : sqrt(1 + log(r->factor) / log(original));
}

/* ------------------------------------------------------------------ tables */

int64_t uly_rope_limit(const struct uly_model_config *config)
{
    if (config->rope.type == ULY_ROPE_DYNAMIC)
        return config->max_position_embeddings;
    return config->rope.type == ULY_ROPE_LONGROPE ? config->rope.original_max_position_embeddings
                                                  : 0;
}

int64_t uly_rope_max_tables(const struct uly_model_config *config, int64_t max_tokens)
{
    if (config->rope.type == ULY_ROPE_DYNAMIC)
        return 1 + max_tokens / (config->max_position_embeddings + 1);
    return config->rope.type == ULY_ROPE_LONGROPE ? 2 : 1;
}

int64_t uly_rope_table_of(const struct uly_model_config *config, int64_t length,
                          int64_t longer_before)
{
    int64_t limit = uly_rope_limit(config);
    if (limit == 0 || length <= limit)
        return 0;
    return config->rope.type == ULY_ROPE_DYNAMIC ? 1 + longer_before : 1;
}
