/* SPDX-License-Identifier: MIT
 *
 * config.json of a model folder -> struct uly_model_config. Which architectures there are, and what
 * each sets, is a table in config_json.c; what is not supported is refused by name before any work.
 * The file's text is kept: writing changes the value of "dtype" (or "torch_dtype", the spelling
 * found), and what was overridden, in place and nothing else, so that unknown keys, their order and their number formats
 * survive.
 */
#ifndef ULY_FORMATS_CONFIG_JSON_H
#define ULY_FORMATS_CONFIG_JSON_H

#include "model/config.h"

struct uly_config_json {
    char *text; /* owned: the file as read */
    int64_t bytes;
};

/* Reads, checks and translates a config.json. *kept may be NULL; else uly_config_json_clear. */
enum uly_status uly_config_json_read(const char *path, struct uly_model_config *out,
                                     struct uly_config_json *kept);
/* The same from memory; name: for messages. */
enum uly_status uly_config_json_parse(const char *text, int64_t bytes, const char *name,
                                      struct uly_model_config *out);
void uly_config_json_clear(struct uly_config_json *kept);

/* True where the outermost object has the key, also with null. */
bool uly_config_json_has(const struct uly_config_json *kept, const char *key);

/* Gives a key of the outermost object another value (JSON text) in place; a new key comes first. */
enum uly_status uly_config_json_set(struct uly_config_json *kept, const char *key,
                                    const char *value);

/* --config-overrides: a JSON object of keys and their new values. Rotation (rope_theta,
 * rope_scaling, rope_parameters: replaces what is in force in either spelling, and a theta that is
 * not given stays), lengths, windows, rms_norm_eps and ids of special tokens can be changed; keys
 * that decide which weights there are, and unknown ones, are ULY_ERR_USAGE by name. Changes the text
 * and *out, both on success alone. */
enum uly_status uly_config_json_override(struct uly_config_json *kept, const char *overrides,
                                         struct uly_model_config *out);
/* The keys alone, without a folder. */
enum uly_status uly_config_overrides_check(const char *overrides);

/* The text with its dtype set; synced. */
enum uly_status uly_config_json_write(const struct uly_config_json *kept, enum uly_dtype dtype,
                                      const char *path);

/* "LlamaForCausalLM, ..." for messages and help; constant text. */
const char *uly_config_supported_architectures(void);

#endif
