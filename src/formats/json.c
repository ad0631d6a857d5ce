/* SPDX-License-Identifier: MIT */
#include "formats/json.h"

#include <math.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"

enum uly_status uly_json_parse(const char *text, int64_t bytes, const char *name, json_t **out)
{
    json_error_t error;
    json_t *value =
        json_loadb(text, (size_t)bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    ULY_FAIL_IF(!value, ULY_ERR_FORMAT, "%s:%d:%d: %s", name, error.line,
                error.column > 0 ? error.column : 1, error.text);
    *out = value;
    return ULY_OK;
}

enum uly_status uly_json_read_object(const char *path, int64_t max_bytes, json_t **out)
{
    char *text;
    int64_t bytes;
    json_t *value = NULL;
    ULY_TRY(uly_file_read(path, max_bytes, &text, &bytes));
    enum uly_status status = uly_json_parse(text, bytes, path, &value);
    uly_free(text);
    ULY_TRY(status);
    if (!json_is_object(value)) {
        const char *type = uly_json_type_text(value);
        json_decref(value);
        ULY_FAIL(ULY_ERR_FORMAT, "%s: holds %s, not a JSON object", path, type);
    }
    *out = value;
    return ULY_OK;
}

bool uly_json_has(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return value && !json_is_null(value);
}

const char *uly_json_type_text(const json_t *value)
{
    if (!value)
        return "nothing";
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        return "null";
    }
    return "nothing";
}

static enum uly_status wrong_type(const char *name, const char *key, const char *wanted,
                                  const json_t *value)
{
    ULY_FAIL(ULY_ERR_FORMAT, "%s: \"%s\" must be %s, not %s", name, key, wanted,
             uly_json_type_text(value));
}

enum uly_status uly_json_get_int(const json_t *object, const char *key, const char *name,
                                 int64_t *out)
{
    const json_t *value = json_object_get(object, key);
    if (!value || json_is_null(value))
        return ULY_OK;
    if (json_is_integer(value)) {
        *out = json_integer_value(value);
        return ULY_OK;
    }
    double real = json_real_value(value); /* 0.0 for what is no real */
    if (json_is_real(value) && rint(real) == real && fabs(real) < 9e15) {
        *out = (int64_t)real;
        return ULY_OK;
    }
    return wrong_type(name, key, "an integer", value);
}

enum uly_status uly_json_get_double(const json_t *object, const char *key, const char *name,
                                    double *out)
{
    const json_t *value = json_object_get(object, key);
    if (!value || json_is_null(value))
        return ULY_OK;
    if (!json_is_number(value))
        return wrong_type(name, key, "a number", value);
    *out = json_number_value(value);
    return ULY_OK;
}

enum uly_status uly_json_get_bool(const json_t *object, const char *key, const char *name,
                                  bool *out)
{
    const json_t *value = json_object_get(object, key);
    if (!value || json_is_null(value))
        return ULY_OK;
    if (!json_is_boolean(value))
        return wrong_type(name, key, "true or false", value);
    *out = json_is_true(value);
    return ULY_OK;
}

enum uly_status uly_json_get_string(const json_t *object, const char *key, const char *name,
                                    const char **out)
{
    const json_t *value = json_object_get(object, key);
    if (!value || json_is_null(value))
        return ULY_OK;
    if (!json_is_string(value))
        return wrong_type(name, key, "a string", value);
    *out = json_string_value(value);
    return ULY_OK;
}

static enum uly_status write_text(const json_t *value, size_t flags, const char *path)
{
    char *text = json_dumps(value, JSON_INDENT(2) | JSON_ENCODE_ANY | flags);
    ULY_FAIL_IF(!text, ULY_ERR_NO_MEMORY, "%s: no memory to write the JSON text", path);
    struct uly_file_writer w;
    enum uly_status status = uly_file_writer_open(path, &w);
    if (status == ULY_OK) {
        status = uly_file_writer_append(&w, text, (int64_t)strlen(text));
        if (status == ULY_OK)
            status = uly_file_writer_append(&w, "\n", 1);
        if (status == ULY_OK)
            status = uly_file_writer_close(&w);
        else
            uly_file_writer_abort(&w);
    }
    uly_json_text_free(text);
    return status;
}

enum uly_status uly_json_write(const json_t *value, const char *path)
{
    return write_text(value, 0, path);
}

enum uly_status uly_json_write_sorted(const json_t *value, const char *path)
{
    return write_text(value, JSON_SORT_KEYS, path);
}

void uly_json_text_free(char *text)
{
    json_free_t release = NULL;
    json_get_alloc_funcs(NULL, &release);
    if (text)
        release(text);
}
