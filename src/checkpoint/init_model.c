/* SPDX-License-Identifier: MIT */
#include "checkpoint/init_model.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/random.h"
#include "checkpoint/model_folder.h"
#include "formats/tokenizer.h"

static const char staging_name[] = ".tokenizer";

struct random_source {
    uint64_t seed;
    double range;
};

static enum uly_status random_weights(void *context, const struct uly_params *params, int param,
                                      int64_t first, int64_t count, float *out)
{
    const struct random_source *source = context;
    enum uly_param_role role = params->list[param].role;
    bool random = role == ULY_PARAM_MATRIX || role == ULY_PARAM_EMBEDDING;
    for (int64_t i = 0; i < count; i++) {
        double value = role == ULY_PARAM_NORM ? 1 : 0;
        if (random)
            value = source->range *
                    uly_random_normal(source->seed, (uint64_t)param, (uint64_t)(first + i));
        out[i] = (float)value;
    }
    return ULY_OK;
}

/* config_path is a file or a folder with one. *out: the caller frees. */
static enum uly_status find_config(const char *config_path, char **out)
{
    if (uly_path_kind(config_path, NULL) == ULY_PATH_FOLDER)
        return uly_path_join(config_path, "config.json", out);
    return uly_strdup(config_path, out);
}

/* A folder with a model in it is never written over. */
static enum uly_status check_is_free(const char *out)
{
    static const char *const names[] = {"config.json", "model.safetensors",
                                        "model.safetensors.index.json"};
    for (int i = 0; i < 3; i++) {
        char *path;
        ULY_TRY(uly_path_join(out, names[i], &path));
        bool there = uly_path_kind(path, NULL) != ULY_PATH_NONE;
        uly_free(path);
        ULY_FAIL_IF(there, ULY_ERR_INVALID,
                    "%s: holds a model already (%s); choose another folder or remove it", out,
                    names[i]);
    }
    return ULY_OK;
}

/* ------------------------------------------------------------------ tokenizer */

/* Copies tokenizer.json and the small files of its kind that lie beside it. */
static enum uly_status copy_tokenizer(const char *tokenizer_path, const char *to)
{
    static const char *const beside[] = {"tokenizer_config.json",
                                         "special_tokens_map.json",
                                         "added_tokens.json",
                                         "chat_template.jinja",
                                         "vocab.json",
                                         "merges.txt"};
    enum { N_BESIDE = sizeof beside / sizeof beside[0] };
    const char *base = uly_path_base(tokenizer_path);
    char *folder = NULL;
    enum uly_status status = uly_strdup(tokenizer_path, &folder);
    if (status == ULY_OK)
        folder[base - tokenizer_path] = '\0';
    for (int i = -1; status == ULY_OK && i < N_BESIDE; i++) {
        char *from = NULL, *target = NULL;
        status =
            i < 0 ? uly_strdup(tokenizer_path, &from) : uly_path_join(folder, beside[i], &from);
        if (status == ULY_OK)
            status = uly_path_join(to, i < 0 ? "tokenizer.json" : beside[i], &target);
        if (status == ULY_OK && (i < 0 || uly_path_kind(from, NULL) == ULY_PATH_FILE))
            status = uly_file_copy(from, target);
        uly_free(from);
        uly_free(target);
    }
    uly_free(folder);
    return status;
}

/* The given tokenizer must be one that this program reads, and its ids must exist in the model. */
static enum uly_status check_tokenizer(const char *folder, const struct uly_model_config *c)
{
    struct uly_tokenizer *tokenizer;
    ULY_TRY(uly_tokenizer_open(folder, &tokenizer));
    int64_t n = uly_tokenizer_vocab_size(tokenizer);
    uly_tokenizer_close(tokenizer);
    ULY_FAIL_IF(n > c->vocab_size, ULY_ERR_INVALID,
                "the tokenizer has ids up to %" PRId64 ", config.json a vocab_size of %" PRId64,
                n - 1, c->vocab_size);
    return ULY_OK;
}

static enum uly_status make_tokenizer(const char *folder, const char *tokenizer_path,
                                      const struct uly_model_config *c, bool *made)
{
    if (tokenizer_path) {
        char *inside = NULL; /* a folder is fine too */
        ULY_TRY(uly_path_join(tokenizer_path, "tokenizer.json", &inside));
        bool is_folder = uly_path_kind(tokenizer_path, NULL) == ULY_PATH_FOLDER;
        enum uly_status status = copy_tokenizer(is_folder ? inside : tokenizer_path, folder);
        uly_free(inside);
        ULY_TRY(status);
        *made = true;
        return check_tokenizer(folder, c);
    }
    *made =
        uly_byte_tokenizer_fits(c->vocab_size, c->bos_token_id, c->eos_token_id, c->pad_token_id);
    if (!*made)
        return ULY_OK;
    return uly_byte_tokenizer_write(folder, c->vocab_size, c->bos_token_id, c->eos_token_id,
                                    c->pad_token_id, c->max_position_embeddings);
}

/* ------------------------------------------------------------------ the whole */

static enum uly_status write_model(const char *out, const char *tokenizer_folder,
                                   const struct uly_config_json *config_json,
                                   const struct uly_model_config *config, uint64_t seed,
                                   struct uly_init_result *result)
{
    struct uly_params params;
    ULY_TRY(uly_params_init(config, &params));
    struct random_source source = {seed, config->initializer_range};
    struct uly_save_options options = {.dtype = config->dtype};
    enum uly_status status = uly_model_folder_write_from(
        out, config_json, tokenizer_folder, &params, random_weights, &source, &options);
    result->n_params = uly_params_count(&params, false);
    uly_params_clear(&params);
    return status;
}

enum uly_status uly_init_model(const char *out, const char *config_path, const char *tokenizer_path,
                               uint64_t seed, struct uly_init_result *result)
{
    enum uly_status status = ULY_OK;
    struct uly_model_config config;
    struct uly_config_json config_json = {0};
    struct uly_init_result r = {0};
    char *config_file = NULL, *staging = NULL;
    bool made_out = false;
    ULY_TRY_GOTO(check_is_free(out), end);
    ULY_TRY_GOTO(find_config(config_path, &config_file), end);
    ULY_TRY_GOTO(uly_config_json_read(config_file, &config, &config_json), end);
    ULY_TRY_GOTO(uly_folder_create(out, &made_out), end);
    ULY_TRY_GOTO(uly_path_join(out, staging_name, &staging), end);
    ULY_TRY_GOTO(uly_folder_remove(staging), end);
    ULY_TRY_GOTO(uly_folder_create(staging, NULL), end);
    ULY_TRY_GOTO(make_tokenizer(staging, tokenizer_path, &config, &r.has_tokenizer), end);
    ULY_TRY_GOTO(write_model(out, staging, &config_json, &config, seed, &r), end);
    *result = r;
end:
    if (staging)
        uly_folder_discard(staging, status != ULY_OK && made_out ? out : NULL);
    uly_config_json_clear(&config_json);
    uly_free(config_file);
    uly_free(staging);
    return status;
}
