/* SPDX-License-Identifier: MIT
 *
 * Opening and loading a model folder. Most of opening is telling people what is wrong with what they gave: the checks run
 * from the folder to the tensor, and each names what to do instead.
 */
#include "checkpoint/model_folder.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "formats/json.h"
#include "formats/safetensors.h"

enum {
    MAX_INDEX_BYTES = 256 << 20,
    CHUNK = 1 << 20 /* elements converted at a time */
};

struct shard {
    char *name; /* as in the index */
    struct uly_safetensors *st;
};

struct uly_model_folder {
    char *path;
    struct uly_model_config config;
    struct uly_config_json config_json;
    json_t *index; /* model.safetensors.index.json; NULL where one file holds everything */
    struct shard *shards;
    int n_shards;
    int64_t weight_bytes;
};

/* ------------------------------------------------------------------ refusals */

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static bool has_file(const char *folder, const char *name)
{
    char *path;
    if (uly_path_join(folder, name, &path) != ULY_OK)
        return false;
    bool found = uly_path_kind(path, NULL) == ULY_PATH_FILE;
    uly_free(path);
    return found;
}

/* "owner/model" as on the hub: one slash inside, nothing that reads like a path. */
static bool looks_like_hub_name(const char *path)
{
    const char *slash = strchr(path, '/');
    return slash && slash != path && slash[1] && !strchr(slash + 1, '/') && path[0] != '.' &&
           path[0] != '~';
}

static enum uly_status check_is_folder(const char *path)
{
    enum uly_path_kind kind = uly_path_kind(path, NULL);
    if (kind == ULY_PATH_FOLDER)
        return ULY_OK;
    ULY_FAIL_IF(kind == ULY_PATH_NONE && looks_like_hub_name(path), ULY_ERR_INVALID,
                "%s: no such folder; for a model of the hub, download it first (\"hf download %s "
                "--local-dir %s\") and give that folder",
                path, path, uly_path_base(path));
    ULY_FAIL_IF(kind == ULY_PATH_NONE, ULY_ERR_INVALID, "%s: no such folder", path);
    ULY_FAIL_IF(
        ends_with(path, ".gguf"), ULY_ERR_UNSUPPORTED,
        "%s: GGUF files are not supported; give the folder of the original safetensors model",
        path);
    ULY_FAIL(ULY_ERR_INVALID, "%s: is a file; give the model's folder (with config.json)", path);
}

/* A file of the folder whose name begins and ends so, or NULL; the caller frees. */
static char *find_file(const char *folder, const char *begin, const char *end)
{
    struct uly_names names = {0};
    char *found = NULL;
    if (uly_folder_list(folder, &names) != ULY_OK)
        return NULL;
    for (int64_t i = 0; i < names.n && !found; i++)
        if (strncmp(names.list[i], begin, strlen(begin)) == 0 && ends_with(names.list[i], end) &&
            uly_strdup(names.list[i], &found) != ULY_OK)
            break;
    uly_names_clear(&names);
    return found;
}

/* Says what is there instead of the file that is missing (config.json or the weights). */
static enum uly_status missing(const char *folder, const char *what, bool weights)
{
    static const char pickled[] = "pickled weights are not supported; save the model once with "
                                  "Transformers (save_pretrained writes safetensors)";
    static const struct {
        bool weights; /* only tells about missing weights, not about a missing config.json */
        const char *begin, *end, *text;
    } known[] = {
        {false, "", ".gguf", "GGUF is not supported; take the original safetensors folder"},
        {false, "consolidated", ".pth", "take the model's Transformers folder"},
        {true, "pytorch_model", ".bin", pickled},
        {true, "pytorch_model", ".index.json", pickled},
        {true, "", ".h5", "TensorFlow weights are not supported; take the safetensors ones"},
        {true, "", ".msgpack", "Flax weights are not supported; take the safetensors ones"},
        {true, "", ".safetensors",
         "there is no model.safetensors.index.json to say what is where "
         "(a download that was cut short?)"},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        char *name =
            known[i].weights && !weights ? NULL : find_file(folder, known[i].begin, known[i].end);
        if (!name)
            continue;
        enum uly_status status =
            uly_error_record(ULY_ERR_UNSUPPORTED, __FILE__, __LINE__, __func__,
                             "%s: no %s; it has %s: %s", folder, what, name, known[i].text);
        uly_free(name);
        return status;
    }
    ULY_FAIL(ULY_ERR_INVALID, "%s: no %s in this folder", folder, what);
}

/* ------------------------------------------------------------------ opening */

static enum uly_status open_config(struct uly_model_folder *f)
{
    char *path;
    ULY_FAIL_IF(has_file(f->path, "adapter_config.json"), ULY_ERR_UNSUPPORTED,
                "%s: is an adapter (adapter_config.json); merge it into its base model first "
                "(merge_and_unload in PEFT) and give the merged folder",
                f->path);
    if (!has_file(f->path, "config.json"))
        return missing(f->path, "config.json", false);
    ULY_TRY(uly_path_join(f->path, "config.json", &path));
    enum uly_status status = uly_config_json_read(path, &f->config, &f->config_json);
    uly_free(path);
    return status;
}

/* Opens a weight file of the folder as the next shard. */
static enum uly_status open_shard(struct uly_model_folder *f, const char *name)
{
    enum uly_status status = ULY_OK;
    char *path = NULL;
    struct shard *s = &f->shards[f->n_shards];
    ULY_TRY_GOTO(uly_strdup(name, &s->name), end);
    f->n_shards++;
    ULY_TRY_GOTO(uly_path_join(f->path, name, &path), end);
    int64_t bytes;
    if (uly_path_kind(path, &bytes) != ULY_PATH_FILE)
        ULY_FAIL_GOTO(end, ULY_ERR_IO,
                      "%s: missing, though the index names it (a download that was cut short?)",
                      path);
    f->weight_bytes += bytes;
    ULY_TRY_GOTO(uly_safetensors_open(path, &s->st), end);
end:
    uly_free(path);
    return status;
}

/* Names come from outside: they must stay in the folder. Sub-folders are legal. */
static bool stays_inside(const char *name)
{
    if (!*name || *name == '/')
        return false;
    for (const char *p = name; p; p = strchr(p, '/')) {
        p += *p == '/';
        if (strncmp(p, "..", 2) == 0 && (p[2] == '/' || p[2] == '\0'))
            return false;
    }
    return true;
}

static const struct shard *find_shard(const struct uly_model_folder *f, const char *name)
{
    for (int i = 0; i < f->n_shards; i++)
        if (strcmp(f->shards[i].name, name) == 0)
            return &f->shards[i];
    return NULL;
}

static enum uly_status open_shards(struct uly_model_folder *f, const char *index_path)
{
    ULY_TRY(uly_json_read_object(index_path, MAX_INDEX_BYTES, &f->index));
    json_t *map = json_object_get(f->index, "weight_map"), *file;
    ULY_FAIL_IF(!json_is_object(map) || json_object_size(map) == 0, ULY_ERR_FORMAT,
                "%s: no \"weight_map\"", index_path);
    ULY_TRY(ULY_ALLOC(&f->shards, json_object_size(map))); /* at most a file a tensor */
    const char *tensor;
    json_object_foreach(map, tensor, file)
    {
        const char *name = json_string_value(file);
        ULY_FAIL_IF(!name || !stays_inside(name), ULY_ERR_FORMAT,
                    "%s: tensor %s: file \"%s\" is not inside the folder", index_path, tensor,
                    name ? name : "(no name)");
        if (!find_shard(f, name))
            ULY_TRY(open_shard(f, name));
        const struct shard *s = find_shard(f, name);
        ULY_FAIL_IF(!uly_safetensors_find(s->st, tensor), ULY_ERR_FORMAT,
                    "%s: tensor %s: is not in %s, where the index puts it", index_path, tensor,
                    name);
    }
    return ULY_OK;
}

/* One file beats an index, as in Transformers. */
static enum uly_status open_weights(struct uly_model_folder *f)
{
    if (has_file(f->path, "model.safetensors")) {
        ULY_TRY(ULY_ALLOC(&f->shards, 1));
        return open_shard(f, "model.safetensors");
    }
    if (!has_file(f->path, "model.safetensors.index.json"))
        return missing(f->path, "model.safetensors", true);
    char *path;
    ULY_TRY(uly_path_join(f->path, "model.safetensors.index.json", &path));
    enum uly_status status = open_shards(f, path);
    uly_free(path);
    return status;
}

enum uly_status uly_model_folder_open(const char *path, struct uly_model_folder **out)
{
    enum uly_status status = ULY_OK;
    struct uly_model_folder *f = NULL;
    ULY_TRY(check_is_folder(path));
    ULY_TRY(ULY_ALLOC(&f, 1));
    ULY_TRY_GOTO(uly_strdup(path, &f->path), failed);
    ULY_TRY_GOTO(open_config(f), failed);
    ULY_TRY_GOTO(open_weights(f), failed);
    *out = f;
    return ULY_OK;
failed:
    uly_model_folder_close(f);
    return status;
}

void uly_model_folder_close(struct uly_model_folder *f)
{
    if (!f)
        return;
    for (int i = 0; i < f->n_shards; i++) {
        uly_safetensors_close(f->shards[i].st);
        uly_free(f->shards[i].name);
    }
    uly_free(f->shards);
    json_decref(f->index);
    uly_config_json_clear(&f->config_json);
    uly_free(f->path);
    uly_free(f);
}

enum uly_status uly_model_folder_override(struct uly_model_folder *f, const char *overrides)
{
    return uly_config_json_override(&f->config_json, overrides, &f->config);
}

const struct uly_model_config *uly_model_folder_config(const struct uly_model_folder *f)
{
    return &f->config;
}

const struct uly_config_json *uly_model_folder_config_json(const struct uly_model_folder *f)
{
    return &f->config_json;
}

const char *uly_model_folder_path(const struct uly_model_folder *f)
{
    return f->path;
}

int64_t uly_model_folder_weight_bytes(const struct uly_model_folder *f)
{
    return f->weight_bytes;
}

int uly_model_folder_shards(const struct uly_model_folder *f)
{
    return f->n_shards;
}

/* ------------------------------------------------------------------ checking */

/* Where a tensor lies; NULL where the folder has none of that name. */
static const struct uly_safetensors_entry *
find_tensor(const struct uly_model_folder *f, const char *name, struct uly_safetensors **st)
{
    const struct shard *s = &f->shards[0];
    if (f->index) {
        const json_t *map = json_object_get(f->index, "weight_map");
        const char *file = json_string_value(json_object_get(map, name));
        if (!file)
            return NULL;
        s = find_shard(f, file);
    }
    *st = s->st;
    return uly_safetensors_find(s->st, name);
}

static const char *shape_text(const int64_t *shape, int n_dim, char *buffer, size_t bytes)
{
    size_t used = (size_t)snprintf(buffer, bytes, "[");
    for (int i = 0; i < n_dim && used < bytes; i++)
        used +=
            (size_t)snprintf(buffer + used, bytes - used, "%s%" PRId64, i ? ", " : "", shape[i]);
    if (used < bytes)
        snprintf(buffer + used, bytes - used, "]");
    return buffer;
}

/* first_rows: the folder's tensor may have more. */
static enum uly_status check_tensor(const struct uly_model_folder *f, const struct uly_param *p,
                                    bool first_rows)
{
    struct uly_safetensors *st = NULL;
    const struct uly_safetensors_entry *e = find_tensor(f, p->name, &st);
    ULY_FAIL_IF(!e && strcmp(p->name, "lm_head.weight") == 0, ULY_ERR_FORMAT,
                "%s: tensor lm_head.weight is missing, and config.json does not tie it to the "
                "embedding (tie_word_embeddings is false)",
                f->path);
    ULY_FAIL_IF(!e, ULY_ERR_FORMAT, "%s: tensor %s is missing", f->path, p->name);
    bool same = e->n_dim == p->n_dim;
    for (int i = 0; same && i < p->n_dim; i++)
        same = e->shape[i] == p->shape[i] || (first_rows && i == 0 && e->shape[i] > p->shape[i]);
    char is[200], wanted[64];
    ULY_FAIL_IF(!same, ULY_ERR_FORMAT, "%s: tensor %s has shape %s, config.json makes it %s",
                uly_safetensors_path(st), p->name, shape_text(e->shape, e->n_dim, is, sizeof is),
                shape_text(p->shape, p->n_dim, wanted, sizeof wanted));
    enum uly_dtype dtype;
    ULY_TRY(uly_safetensors_dtype(st, e, &dtype));
    bool is_float = dtype == ULY_DTYPE_F32 || dtype == ULY_DTYPE_BF16 || dtype == ULY_DTYPE_F16 ||
                    dtype == ULY_DTYPE_F64;
    ULY_FAIL_IF(!is_float, ULY_ERR_UNSUPPORTED,
                "%s: tensor %s: %s values are no weights (quantised?)", uly_safetensors_path(st),
                p->name, e->dtype);
    return ULY_OK;
}

enum uly_status uly_model_folder_check(const struct uly_model_folder *f,
                                       const struct uly_params *params)
{
    for (int i = 0; i < params->n; i++)
        ULY_TRY(check_tensor(f, &params->list[i], false));
    return ULY_OK;
}

static bool is_param(const struct uly_params *params, const char *name)
{
    for (int i = 0; i < params->n; i++)
        if (strcmp(params->list[i].name, name) == 0)
            return true;
    return false;
}

/* Whether a stored tensor holds the same numbers as parameter `name` (a tied head that was saved as well). */
static bool repeats_tensor(const struct uly_model_folder *f, const struct uly_safetensors *st,
                           const struct uly_safetensors_entry *e, const char *name)
{
    enum { BLOCK = 4096 };
    float a[BLOCK], b[BLOCK];
    struct uly_safetensors *other_st = NULL;
    const struct uly_safetensors_entry *other = find_tensor(f, name, &other_st);
    if (!other || other->count != e->count)
        return false;
    for (int64_t i = 0; i < e->count; i += BLOCK) {
        int64_t n = e->count - i < BLOCK ? e->count - i : BLOCK;
        if (uly_safetensors_read(st, e, ULY_DTYPE_F32, i, n, a) != ULY_OK ||
            uly_safetensors_read(other_st, other, ULY_DTYPE_F32, i, n, b) != ULY_OK ||
            memcmp(a, b, (size_t)n * sizeof *a) != 0)
            return false;
    }
    return true;
}

static bool needs_warning(const struct uly_model_folder *f, const struct uly_params *params,
                          const struct uly_safetensors *st, const struct uly_safetensors_entry *e)
{
    /* tables that old versions of Transformers stored; they are made again from config.json */
    if (is_param(params, e->name) || ends_with(e->name, "rotary_emb.inv_freq"))
        return false;
    return strcmp(e->name, "lm_head.weight") != 0 ||
           !repeats_tensor(f, st, e, params->list[params->embedding].name);
}

void uly_model_folder_warn_unused(const struct uly_model_folder *f, const struct uly_params *params)
{
    enum { NAMED = 4 };
    char list[512] = "";
    size_t used = 0;
    int64_t n = 0;
    for (int i = 0; i < f->n_shards; i++)
        for (int64_t k = 0; k < uly_safetensors_count(f->shards[i].st); k++) {
            const struct uly_safetensors_entry *e = uly_safetensors_entry(f->shards[i].st, k);
            if (!needs_warning(f, params, f->shards[i].st, e))
                continue;
            if (n++ < NAMED && used < sizeof list)
                used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "",
                                         e->name);
        }
    if (n > 0)
        uly_log(ULY_LOG_WARN, "checkpoint", "%s: %" PRId64 " tensor%s not used: %s%s", f->path, n,
                n > 1 ? "s are" : " is", list, n > NAMED ? ", ..." : "");
}

/* ------------------------------------------------------------------ loading */

/* Fills a tensor from its entry, a piece of whole rows at a time, in the tensor's own type. */
static enum uly_status load_tensor(struct uly_safetensors *st,
                                   const struct uly_safetensors_entry *e, struct uly_tensor t,
                                   struct uly_backend *be, void *buffer)
{
    int64_t width = uly_tensor_width(&t), rows = t.shape[0];
    int64_t step = width < CHUNK ? CHUNK / width : 1;
    for (int64_t row = 0; row < rows; row += step) {
        int64_t n = rows - row < step ? rows - row : step;
        ULY_TRY(uly_safetensors_read(st, e, t.dtype, row * width, n * width, buffer));
        ULY_TRY(uly_tensor_write(be, uly_tensor_rows(t, row, n), buffer));
    }
    return ULY_OK;
}

static bool same_tensor(const struct uly_tensor *a, const struct uly_tensor *b)
{
    return a->arena == b->arena && a->offset == b->offset;
}

static enum uly_status load_param(const struct uly_model_folder *f, const struct uly_param *p,
                                  struct uly_backend *be, void *buffer)
{
    struct uly_safetensors *st = NULL;
    const struct uly_safetensors_entry *e = find_tensor(f, p->name, &st);
    ULY_TRY(load_tensor(st, e, p->weight, be, buffer));
    if (uly_tensor_exists(&p->master) && !same_tensor(&p->master, &p->weight))
        ULY_TRY(load_tensor(st, e, p->master, be, buffer));
    if (e->count > CHUNK)
        uly_safetensors_drop_pages(st);
    return ULY_OK;
}

static enum uly_status load_all(const struct uly_model_folder *f, struct uly_params *params,
                                struct uly_backend *be)
{
    enum uly_status status = ULY_OK;
    void *buffer = NULL;
    int64_t room = CHUNK;
    for (int i = 0; i < params->n; i++) /* one row may be longer than a chunk */
        if (params->list[i].n_dim == 2 && params->list[i].shape[1] > room)
            room = params->list[i].shape[1];
    ULY_TRY(uly_alloc((size_t)room, sizeof(double), &buffer));
    for (int i = 0; i < params->n; i++)
        ULY_TRY_GOTO(load_param(f, &params->list[i], be, buffer), end);
end:
    uly_free(buffer);
    return status;
}

enum uly_status uly_model_folder_load(const struct uly_model_folder *f, struct uly_params *params,
                                      struct uly_backend *be)
{
    ULY_TRY(uly_model_folder_check(f, params));
    return load_all(f, params, be);
}

enum uly_status uly_model_folder_load_first(const struct uly_model_folder *f,
                                            struct uly_params *params, struct uly_backend *be)
{
    for (int i = 0; i < params->n; i++) {
        bool table = i == params->embedding || i == params->head;
        ULY_TRY(check_tensor(f, &params->list[i], table));
    }
    return load_all(f, params, be);
}
