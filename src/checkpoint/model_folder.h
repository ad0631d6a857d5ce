/* SPDX-License-Identifier: MIT
 *
 * A model folder as published on the hub: config.json, model.safetensors or shards with an index,
 * and small files beside.
 *
 *   uly_model_folder_open(path, &folder);        config and headers checked; nothing loaded
 *   uly_params_init(uly_model_folder_config(folder), &params);
 *   uly_model_folder_check(folder, &params);     every tensor there, with its shape
 *   ... make tensors, reserve ...
 *   uly_model_folder_load(folder, &params, be);
 *   uly_model_folder_write(out, folder, &params, be, &options);
 *   uly_model_folder_close(folder);
 *
 * A folder holds no collective: every rank that needs weights opens and loads on its own; one rank
 * writes.
 */
#ifndef ULY_CHECKPOINT_MODEL_FOLDER_H
#define ULY_CHECKPOINT_MODEL_FOLDER_H

#include "backend/backend.h"
#include "formats/config_json.h"
#include "model/params.h"

struct uly_model_folder;

/* A hub name, pytorch_model.bin, GGUF, adapter, quantised or weightless folders are refused with
 * what to do. */
enum uly_status uly_model_folder_open(const char *path, struct uly_model_folder **out);
void uly_model_folder_close(struct uly_model_folder *folder); /* NULL is fine */

/* Changes the folder's configuration, as read here and as written beside its weights later; the files
 * stay as they are. overrides: see uly_config_json_override. */
enum uly_status uly_model_folder_override(struct uly_model_folder *folder, const char *overrides);

const struct uly_model_config *uly_model_folder_config(const struct uly_model_folder *folder);
/* config.json as read, for writing it again; a view. */
const struct uly_config_json *uly_model_folder_config_json(const struct uly_model_folder *folder);
const char *uly_model_folder_path(const struct uly_model_folder *folder);
int64_t uly_model_folder_weight_bytes(const struct uly_model_folder *folder); /* on disk */
int uly_model_folder_shards(const struct uly_model_folder *folder);           /* files */

/* Names the first parameter that is missing or has another shape or an unreadable type. A head that
 * is absent though config.json does not tie it is named with the switch. */
enum uly_status uly_model_folder_check(const struct uly_model_folder *folder,
                                       const struct uly_params *params);

/* Fills weight, and master where it is a tensor of its own (with the file's full precision in
 * float32). Frozen parameters too. Runs the check first. */
enum uly_status uly_model_folder_load(const struct uly_model_folder *folder,
                                      struct uly_params *params, struct uly_backend *be);

/* The same for a model that is the beginning of the folder's: fewer layers, or fewer rows of the embedding and the head.
 * Nothing else is read. */
enum uly_status uly_model_folder_load_first(const struct uly_model_folder *folder,
                                            struct uly_params *params, struct uly_backend *be);

/* One warning that lists tensors which the model does not use (call it on one rank). */
void uly_model_folder_warn_unused(const struct uly_model_folder *folder,
                                  const struct uly_params *params);

/* ------------------------------------------------------------------ writing */

struct uly_save_options {
    enum uly_dtype dtype;    /* of the weights on disk: F32, BF16 or F16 */
    int64_t max_shard_bytes; /* 0: 5 GB */
};

/* Gives elements [first, first + count) of parameter `param` (an index into the table) as float32.
 */
typedef enum uly_status (*uly_weights_fn)(void *context, const struct uly_params *params, int param,
                                          int64_t first, int64_t count, float *out);

/* Writes a complete model folder into `out` (made where missing): everything goes to a folder
 * beside, is synced and checked, then moves in by renames, weights first, index and config.json
 * last, so that a crash or a full disk leaves what was there. Shards that the new index does not
 * name are removed. Small files of the source folder come along. Other files of `out`
 * (metrics.jsonl, ...) are left alone. Weights come from master, where there is one, else weight.
 */
enum uly_status uly_model_folder_write(const char *out, const struct uly_model_folder *source,
                                       const struct uly_params *params, struct uly_backend *be,
                                       const struct uly_save_options *options);

/* The general form: config text and weights from anywhere. copy_from: folder of the small files,
 * NULL for none. */
enum uly_status uly_model_folder_write_from(const char *out, const struct uly_config_json *config,
                                            const char *copy_from, const struct uly_params *params,
                                            uly_weights_fn weights, void *context,
                                            const struct uly_save_options *options);

#endif
