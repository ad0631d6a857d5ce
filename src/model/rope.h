/* SPDX-License-Identifier: MIT
 *
 * Frequencies of the rotary position embedding for every rope type, as Transformers'
 * modeling_rope_utils has them, in double. Two types depend on the length of the document that a
 * token belongs to: dynamic and longrope. They choose by that document alone, never by a call, a
 * shard or what came before, so that a document's result does not depend on its neighbours or on the
 * layout.
 *
 * Such a decoder holds several tables of frequencies, and a table index for each token:
 *   table 0 is that of documents up to the limit; longrope has one more, for all longer ones;
 *   dynamic has one more for each longer document of the micro-batch, in their order.
 */
#ifndef ULY_MODEL_ROPE_H
#define ULY_MODEL_ROPE_H

#include "model/batch.h"
#include "model/config.h"

/* "default", "linear", ...: the word of config.json. */
const char *uly_rope_type_name(enum uly_rope_type type);

/* The type of a word; false where there is none such. */
bool uly_rope_type_of(const char *name, enum uly_rope_type *out);

/* out[head_dim / 2] = frequencies for a document of `length` tokens, float64; length is read by
 * dynamic and longrope alone. The caller's array. */
void uly_rope_inv_freq(const struct uly_model_config *config, int64_t length, double *out);

/* Factor of cos and sin: 1, except for yarn and longrope. */
double uly_rope_scale(const struct uly_model_config *config);

/* Documents longer than this have frequencies of their own; 0: the length does not matter. */
int64_t uly_rope_limit(const struct uly_model_config *config);

/* Tables that any micro-batch of at most max_tokens needs; 1 where the length does not matter. */
int64_t uly_rope_max_tables(const struct uly_model_config *config, int64_t max_tokens);

/* Table of a document, given how many documents before it are longer than the limit. */
int64_t uly_rope_table_of(const struct uly_model_config *config, int64_t length,
                          int64_t longer_before);

#endif
