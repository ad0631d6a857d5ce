/* SPDX-License-Identifier: MIT
 *
 * Writing config.json: the text as read, with the value of its dtype key replaced in place; the result is parsed again
 * before it counts as written.
 */
#include "formats/config_json.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"

static enum uly_status set_dtype(struct uly_config_json *text, enum uly_dtype dtype)
{
    static const char *const keys[] = {"dtype", "torch_dtype"};
    char value[32];
    int found = 0;
    snprintf(value, sizeof value, "\"%s\"", uly_dtype_name(dtype));
    for (int i = 0; i < 2; i++)
        if (uly_config_json_has(text, keys[i])) {
            ULY_TRY(uly_config_json_set(text, keys[i], value));
            found++;
        }
    /* the old spelling is the one that every version reads */
    return found ? ULY_OK : uly_config_json_set(text, "torch_dtype", value);
}

enum uly_status uly_config_json_write(const struct uly_config_json *kept, enum uly_dtype dtype,
                                      const char *path)
{
    struct uly_file_writer w;
    struct uly_config_json text = {NULL, kept->bytes};
    ULY_TRY(ULY_ALLOC(&text.text, kept->bytes + 1));
    memcpy(text.text, kept->text, (size_t)kept->bytes);
    enum uly_status status = set_dtype(&text, dtype);
    if (status == ULY_OK)
        status = uly_file_writer_open(path, &w);
    if (status == ULY_OK) {
        status = uly_file_writer_append(&w, text.text, text.bytes);
        if (status == ULY_OK)
            status = uly_file_writer_close(&w);
        else
            uly_file_writer_abort(&w);
    }
    uly_config_json_clear(&text);
    ULY_TRY(status);
    struct uly_model_config check;
    ULY_TRY(uly_config_json_read(path, &check, NULL));
    ULY_FAIL_IF(check.dtype != dtype, ULY_ERR_INTERNAL, "%s: dtype came out as %s, not %s", path,
                uly_dtype_name(check.dtype), uly_dtype_name(dtype));
    return ULY_OK;
}
