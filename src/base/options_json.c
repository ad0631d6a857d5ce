/* SPDX-License-Identifier: MIT
 *
 * Options from a JSON object and to one. Values pass through the same texts as on the command line,
 * so a file takes what the command line takes ("5GB", "auto"), and numbers and words are checked in
 * one place.
 */
#include <jansson.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/options_impl.h"

/* A JSON scalar as the text that the command line would have; returns NULL where it has none. */
static const char *scalar_text(const json_t *value, char *buffer, size_t bytes)
{
    switch (json_typeof(value)) {
    case JSON_STRING:
        return json_string_value(value);
    case JSON_INTEGER:
        snprintf(buffer, bytes, "%lld", (long long)json_integer_value(value));
        return buffer;
    case JSON_REAL:
        snprintf(buffer, bytes, "%.17g", json_real_value(value));
        return buffer;
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    case JSON_NULL:
    case JSON_OBJECT:
    case JSON_ARRAY:
        break;
    }
    return NULL;
}

static enum uly_status read_value(struct uly_options *options, const char *path, const char *key,
                                  const json_t *value)
{
    char buffer[64];
    const struct uly_option *row;
    ULY_TRY(uly_option_find(options->table, key, path, &row));
    ULY_FAIL_IF(row->positional || (options->table->config_file &&
                                    uly_option_same_name(key, options->table->config_file)),
                ULY_ERR_USAGE, "%s: %s belongs on the command line, not in a file", path, key);
    bool is_list = row->type == ULY_OPTION_LIST && json_is_array(value);
    if (!is_list) {
        const char *text = scalar_text(value, buffer, sizeof buffer);
        ULY_FAIL_IF(!text && !json_is_null(value), ULY_ERR_USAGE, "%s: %s takes a value, not %s",
                    path, key, json_is_array(value) ? "a list" : "an object");
        ULY_FAIL_IF(row->type == ULY_OPTION_LIST && text && !json_is_string(value), ULY_ERR_USAGE,
                    "%s: %s takes a list of strings, not %s", path, key, text);
        return uly_option_assign(options, key, text, path, false);
    }
    ULY_TRY(uly_option_assign(options, key, NULL, path, false));
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *item = json_array_get(value, i);
        ULY_FAIL_IF(!json_is_string(item), ULY_ERR_USAGE, "%s: item %zu of %s is not a string",
                    path, i + 1, key);
        ULY_TRY(uly_option_assign(options, key, json_string_value(item), path, true));
    }
    return ULY_OK;
}

/* An option in two spellings is two values, of which one would be ignored. */
static enum uly_status check_once(const json_t *object, const char *path, const char *key)
{
    const char *other;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, other, value)
        ULY_FAIL_IF(strcmp(other, key) != 0 && uly_option_same_name(other, key), ULY_ERR_USAGE,
                    "%s: %s and %s are the same option; give one of the two", path, key, other);
    return ULY_OK;
}

enum uly_status uly_options_read_json(struct uly_options *options, const char *path)
{
    enum uly_status status = ULY_OK;
    json_error_t error;
    const char *key;
    json_t *value;
    json_t *object = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    ULY_FAIL_IF(!object && error.line < 0, ULY_ERR_USAGE, "config file: %s", error.text);
    ULY_FAIL_IF(!object, ULY_ERR_USAGE, "config file %s:%d:%d: %s", path, error.line, error.column,
                error.text);
    if (!json_is_object(object))
        ULY_FAIL_GOTO(
            out, ULY_ERR_USAGE,
            "config file %s: expected an object of options, {\"learning_rate\": 1e-5, ...}", path);
    json_object_foreach(object, key, value)
    {
        ULY_TRY_GOTO(check_once(object, path, key), out);
        ULY_TRY_GOTO(read_value(options, path, key, value), out);
    }
out:
    json_decref(object);
    return status;
}

/* ------------------------------------------------------------------ writing */

static void put_string(const char *text, FILE *out)
{
    json_t *string = json_string(text); /* NULL where the text is not UTF-8 */
    if (!string || json_dumpf(string, out, JSON_ENCODE_ANY) != 0)
        fputs("null", out);
    json_decref(string);
}

static void put_value(const struct uly_option *row, const void *field, FILE *out)
{
    char buffer[64];
    const struct uly_strings *list = field;
    const char *text;
    switch (row->type) {
    case ULY_OPTION_LIST:
        fputc('[', out);
        for (int i = 0; i < list->n; i++) {
            fputs(i ? ", " : "", out);
            put_string(list->items[i], out);
        }
        fputc(']', out);
        break;
    case ULY_OPTION_STRING:
        put_string(*(char *const *)field, out);
        break;
    case ULY_OPTION_BOOL:
    case ULY_OPTION_INT:
    case ULY_OPTION_DOUBLE:
    case ULY_OPTION_SECONDS:
    case ULY_OPTION_CHOICE:
    case ULY_OPTION_BYTES:
        text = uly_option_value_text(row, field, -1, buffer, sizeof buffer);
        if (row->type == ULY_OPTION_CHOICE || row->type == ULY_OPTION_BYTES ||
            (row->word && strcmp(text, row->word) == 0))
            put_string(text, out);
        else
            fputs(text, out);
        break;
    }
}

static bool is_empty(const struct uly_option *row, const void *field)
{
    if (row->type == ULY_OPTION_STRING)
        return *(char *const *)field == NULL;
    return row->type == ULY_OPTION_LIST && ((const struct uly_strings *)field)->n == 0;
}

static void put_options(const struct uly_options *options, FILE *out)
{
    const char *separator = "{\n";
    for (int i = 0; i < options->table->n_rows; i++) {
        const struct uly_option *row = &options->table->rows[i];
        const void *field = uly_option_field(options, row);
        if (row->positional || row->unsaved || is_empty(row, field) ||
            !uly_option_in_force(options->table, row))
            continue;
        fprintf(out, "%s  \"", separator);
        for (const char *c = row->name; *c; c++)
            fputc(*c == '-' ? '_' : *c, out);
        fputs("\": ", out);
        put_value(row, field, out);
        separator = ",\n";
    }
    fputs(separator[0] == '{' ? "{}\n" : "\n}\n", out);
}

enum uly_status uly_options_write_json(const struct uly_options *options, const char *path)
{
    enum uly_status status = ULY_OK;
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    ULY_FAIL_IF(!out, ULY_ERR_NO_MEMORY, "no memory for %s", path);
    put_options(options, out);
    if (fclose(out) != 0)
        ULY_FAIL_GOTO(out, ULY_ERR_NO_MEMORY, "no memory for %s", path);
    ULY_TRY_GOTO(uly_file_write(path, text, (int64_t)bytes), out);
out:
    uly_free(text);
    return status;
}
