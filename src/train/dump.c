/* SPDX-License-Identifier: MIT
 *
 * The gradients of a step as a safetensors file, for comparison with another layout or another program.
 */
#include <stdio.h>

#include "base/file.h"
#include "base/mem.h"
#include "formats/safetensors.h"
#include "train/step.h"

enum { PIECE = 1 << 18 }; /* elements copied out of the arena at a time */

static enum uly_status append_tensor(struct uly_backend *be, struct uly_tensor t, float *host,
                                     struct uly_safetensors_writer *writer)
{
    int64_t count = uly_tensor_count(&t);
    struct uly_tensor flat = uly_tensor_reshape(t, 1, count, 1, 1);
    for (int64_t first = 0; first < count; first += PIECE) {
        int64_t n = count - first < PIECE ? count - first : PIECE;
        ULY_TRY(uly_tensor_read(be, uly_tensor_rows(flat, first, n), host));
        ULY_TRY(uly_safetensors_writer_append(writer, host, n * (int64_t)sizeof *host));
    }
    return ULY_OK;
}

static enum uly_status write_file(const struct uly_params *params, struct uly_backend *be,
                                  const char *path, struct uly_safetensors_item *items,
                                  const int *index, int64_t n, float *host)
{
    struct uly_safetensors_writer *writer = NULL;
    ULY_TRY(uly_safetensors_writer_open(path, items, n, &writer));
    for (int64_t k = 0; k < n; k++) {
        const struct uly_param *p = &params->list[index[uly_safetensors_writer_order(writer, k)]];
        enum uly_status status = append_tensor(be, p->grad, host, writer);
        if (status != ULY_OK) {
            uly_safetensors_writer_abort(writer);
            return status;
        }
    }
    return uly_safetensors_writer_close(writer);
}

enum uly_status uly_gradients_write(const struct uly_params *params, struct uly_backend *be,
                                    const char *folder)
{
    enum uly_status status = ULY_OK;
    struct uly_safetensors_item *items = NULL;
    int *index = NULL;
    float *host = NULL;
    char *path = NULL;
    int64_t n = 0;
    ULY_FAIL_IF(params->grads.dtype != ULY_DTYPE_F32, ULY_ERR_UNSUPPORTED,
                "gradients are written in float32 only, and these are %s",
                uly_dtype_name(params->grads.dtype));
    ULY_TRY_GOTO(ULY_ALLOC(&items, params->n), out);
    ULY_TRY_GOTO(ULY_ALLOC(&index, params->n), out);
    ULY_TRY_GOTO(ULY_ALLOC(&host, PIECE), out);
    for (int i = 0; i < params->n; i++) {
        const struct uly_param *p = &params->list[i];
        if (!p->trainable)
            continue;
        items[n] = (struct uly_safetensors_item){.name = p->name,
                                                 .dtype = ULY_DTYPE_F32,
                                                 .n_dim = p->n_dim,
                                                 .shape = {p->shape[0], p->shape[1], 1}};
        index[n++] = i;
    }
    ULY_TRY_GOTO(uly_folder_create(folder, NULL), out);
    ULY_TRY_GOTO(uly_path_join(folder, "gradients.safetensors", &path), out);
    ULY_TRY_GOTO(write_file(params, be, path, items, index, n, host), out);
out:
    uly_free(path);
    uly_free(host);
    uly_free(index);
    uly_free(items);
    return status;
}
