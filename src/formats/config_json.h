/* SPDX-License-Identifier: MIT
 *
 * config.json of a model folder -> struct uly_model_config. Which architectures there are, and what
 * each sets, is a table in config_json.c; what is not supported is refused by name before any work.
 * The file's text is kept: writing changes the value of "dtype" (or "torch_dtype", the spelling
 * found) in place and nothing else, so that unknown keys, their order and their number formats
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

/* The text with its dtype set; synced. */
enum uly_status uly_config_json_write(const struct uly_config_json *kept, enum uly_dtype dtype,
                                      const char *path);

/* "LlamaForCausalLM, ..." for messages and help; constant text. */
const char *uly_config_supported_architectures(void);

#endif
