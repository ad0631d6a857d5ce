/* SPDX-License-Identifier: MIT
 *
 * Shared by the files that translate config.json; for nobody else.
 */
#ifndef ULY_FORMATS_CONFIG_JSON_IMPL_H
#define ULY_FORMATS_CONFIG_JSON_IMPL_H

#include "formats/json.h"
#include "model/config.h"

/* What a key may be where a model of its family computes nothing else. */
enum uly_config_rule {
    ULY_MUST_BE_ABSENT,
    ULY_MUST_BE_NUMBER,
    ULY_MUST_BE_FALSE,
    ULY_MUST_BE_TRUE,
    ULY_MUST_BE_TEXT
};

struct uly_config_refusal {
    const char *key;
    enum uly_config_rule rule;
    double number;    /* ULY_MUST_BE_NUMBER: the only value (absent and null count as it) */
    const char *text; /* ULY_MUST_BE_TEXT: the only value */
    const char *hint;
};

/* ULY_ERR_UNSUPPORTED where the key is there with another value; names key, value and hint. */
enum uly_status uly_config_refuse(const json_t *object, const struct uly_config_refusal *refusal,
                                  const char *name);

/* The object that describes the rotation: rope_scaling (old) beats rope_parameters (new), as in
 * Transformers. NULL where there is none; {} counts as none. *key (may be NULL): its name. */
enum uly_status uly_config_rope_object(const json_t *root, const char *name, const json_t **out,
                                       const char **key);

/* Fills c->rope; the sizes are there already. */
enum uly_status uly_config_read_rope(const json_t *root, const char *name,
                                     struct uly_model_config *c);

#endif
