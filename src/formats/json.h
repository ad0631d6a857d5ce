/* SPDX-License-Identifier: MIT
 *
 * JSON through jansson, with errors that say where: "config.json:3:14: ...". Duplicate keys are
 * refused (two parsers would read two different values). A json_t from here is released with
 * json_decref.
 *
 * The getters read one key of an object. A missing key, and null, leave *out as it was (set the
 * default before the call); a value of another type is ULY_ERR_FORMAT, with the file's name and the
 * key.
 */
#ifndef ULY_FORMATS_JSON_H
#define ULY_FORMATS_JSON_H

#include <jansson.h>
#include <stdint.h>

#include "base/status.h"

/* text: [bytes], needs no NUL. name: the file, for messages. */
enum uly_status uly_json_parse(const char *text, int64_t bytes, const char *name, json_t **out);
/* A whole file; its top must be an object. */
enum uly_status uly_json_read_object(const char *path, int64_t max_bytes, json_t **out);

/* True where the key is there and not null. */
bool uly_json_has(const json_t *object, const char *key);
enum uly_status uly_json_get_int(const json_t *object, const char *key, const char *name,
                                 int64_t *out); /* 3 and 3.0 alike */
enum uly_status uly_json_get_double(const json_t *object, const char *key, const char *name,
                                    double *out);
enum uly_status uly_json_get_bool(const json_t *object, const char *key, const char *name,
                                  bool *out);
/* *out: a view into the object. */
enum uly_status uly_json_get_string(const json_t *object, const char *key, const char *name,
                                    const char **out);

/* Writes value to path, indented by 2, ASCII escapes only where JSON needs them, a newline at the
 * end, synced. */
enum uly_status uly_json_write(const json_t *value, const char *path);
enum uly_status uly_json_write_sorted(const json_t *value, const char *path); /* keys by bytes */

/* Frees text from json_dumps (with jansson's own deallocator); NULL is fine. */
void uly_json_text_free(char *text);

/* "string", "integer", ... for messages. */
const char *uly_json_type_text(const json_t *value);

#endif
