/* SPDX-License-Identifier: MIT
 *
 * Writing config.json: the text as read, with the value of its dtype key replaced in place. The text is known to be valid
 * JSON, so that a scan that knows strings and nesting finds the key; the result is parsed again before it is written.
 */
#include "formats/config_json.h"

#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "formats/json.h"

/* One past the end of the string that opens at text[at]. */
static int64_t skip_string(const char *text, int64_t bytes, int64_t at)
{
    for (at++; at < bytes && text[at] != '"'; at++)
        if (text[at] == '\\')
            at++;
    return at + 1;
}

static int64_t skip_space(const char *text, int64_t bytes, int64_t at)
{
    while (at < bytes && strchr(" \t\r\n", text[at]))
        at++;
    return at;
}

static bool is_dtype_key(const char *text, int64_t bytes)
{
    static const char *const keys[] = {"\"dtype\"", "\"torch_dtype\""};
    for (int i = 0; i < 2; i++)
        if (bytes == (int64_t)strlen(keys[i]) && memcmp(text, keys[i], (size_t)bytes) == 0)
            return true;
    return false;
}

/* Finds the value (a string or null) of the next dtype key of the outermost object, looking from *at on with the nesting
 * depth *depth. Returns false at the end of the text. */
static bool next_dtype_value(const char *text, int64_t bytes, int64_t *at, int *depth,
                             int64_t *begin, int64_t *end)
{
    int64_t i = *at;
    while (i < bytes) {
        char c = text[i];
        if (c != '"') {
            *depth += (c == '{' || c == '[') - (c == '}' || c == ']');
            i++;
            continue;
        }
        int64_t after = skip_string(text, bytes, i);
        int64_t colon = skip_space(text, bytes, after);
        bool key = *depth == 1 && colon < bytes && text[colon] == ':';
        if (key && is_dtype_key(text + i, after - i)) {
            *begin = skip_space(text, bytes, colon + 1);
            *end = text[*begin] == '"' ? skip_string(text, bytes, *begin) : *begin + 4; /* null */
            *at = *end;
            return true;
        }
        i = after;
    }
    *at = i;
    return false;
}

static enum uly_status append_edited(const struct uly_config_json *kept, const char *value,
                                     struct uly_file_writer *w)
{
    int64_t at = 0, copied = 0, begin, end;
    int depth = 0, found = 0;
    while (next_dtype_value(kept->text, kept->bytes, &at, &depth, &begin, &end)) {
        ULY_TRY(uly_file_writer_append(w, kept->text + copied, begin - copied));
        ULY_TRY(uly_file_writer_append(w, "\"", 1));
        ULY_TRY(uly_file_writer_append(w, value, (int64_t)strlen(value)));
        ULY_TRY(uly_file_writer_append(w, "\"", 1));
        copied = end;
        found++;
    }
    if (!found) { /* the old spelling is the one that every version reads */
        const char *brace = memchr(kept->text, '{', (size_t)kept->bytes);
        ULY_FAIL_IF(!brace, ULY_ERR_INTERNAL, "config.json without an object");
        copied = brace - kept->text + 1;
        ULY_TRY(uly_file_writer_append(w, kept->text, copied));
        static const char head[] = "\n  \"torch_dtype\": \"", tail[] = "\",";
        ULY_TRY(uly_file_writer_append(w, head, sizeof head - 1));
        ULY_TRY(uly_file_writer_append(w, value, (int64_t)strlen(value)));
        ULY_TRY(uly_file_writer_append(w, tail, sizeof tail - 1));
    }
    return uly_file_writer_append(w, kept->text + copied, kept->bytes - copied);
}

enum uly_status uly_config_json_write(const struct uly_config_json *kept, enum uly_dtype dtype,
                                      const char *path)
{
    struct uly_file_writer w;
    ULY_TRY(uly_file_writer_open(path, &w));
    enum uly_status status = append_edited(kept, uly_dtype_name(dtype), &w);
    if (status != ULY_OK) {
        uly_file_writer_abort(&w);
        return status;
    }
    ULY_TRY(uly_file_writer_close(&w));
    struct uly_model_config check;
    ULY_TRY(uly_config_json_read(path, &check, NULL));
    ULY_FAIL_IF(check.dtype != dtype, ULY_ERR_INTERNAL, "%s: dtype came out as %s, not %s", path,
                uly_dtype_name(check.dtype), uly_dtype_name(dtype));
    return ULY_OK;
}
