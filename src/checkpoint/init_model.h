/* SPDX-License-Identifier: MIT
 *
 * A new model: config.json -> folder with random weights and a tokenizer.
 */
#ifndef ULY_CHECKPOINT_INIT_MODEL_H
#define ULY_CHECKPOINT_INIT_MODEL_H

#include <stdint.h>

#include "base/status.h"

struct uly_init_result {
    int64_t n_params;
    bool has_tokenizer; /* off: the vocabulary has no room for 256 bytes and the special ids, and
                           none was given */
};

/* Matrices and embeddings normal(0, initializer_range), norms one, biases zero; a value depends on
 * (seed, parameter's index, element) alone. Written in config's dtype. config_path: a config.json,
 * or a folder with one. tokenizer_path: a tokenizer.json (the small tokenizer files beside it come
 * along), or NULL: one token a byte. A folder that already holds a model is refused. */
enum uly_status uly_init_model(const char *out, const char *config_path, const char *tokenizer_path,
                               uint64_t seed, struct uly_init_result *result);

#endif
