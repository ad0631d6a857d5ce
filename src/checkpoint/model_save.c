/* SPDX-License-Identifier: MIT
 *
 * Writing a model folder.
 *
 *   out/.writing/   everything is written, synced and checked here (same file system, so that renames are atomic)
 *   out/            then it moves in: weights, small files, index, config.json; then shards of an older model go
 *
 * Invariants: 1. until the moves begin, nothing of `out` has changed: a full disk or a crash costs only .writing, which the
 * next write removes. 2. New shards never take the name of a file that is there, so the old index keeps meaning the old
 * weights until the new index replaces it; a single model.safetensors, which readers prefer to an index, is replaced in one
 * rename or removed after the new index stands. So at every moment a reader sees one whole model.
 */
#include "checkpoint/model_folder.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "formats/json.h"
#include "formats/safetensors.h"

enum { CHUNK = 1 << 18 /* elements converted at a time */ };
static const int64_t default_shard_bytes = 5000000000;
static const int64_t max_copied_bytes = 128 << 20;
static const char single_name[] = "model.safetensors";
static const char index_name[] = "model.safetensors.index.json";

struct save {
    const char *out;
    char *staging;
    const struct uly_params *params;
    const struct uly_save_options *options;
    int *shard_of; /* [params->n] */
    int n_shards;
    int generation;           /* above 1: a suffix that keeps new names apart from old ones */
    int64_t total_bytes;      /* of all weights */
    struct uly_names weights; /* files of the new model, in shard order */
    struct uly_names others;  /* small files */
    struct uly_names stale;   /* weight files of `out` before */
    float *values;            /* [row chunk] */
    unsigned char *converted; /* [row chunk] in the save type */
    uly_weights_fn read;
    void *context;
};

static int64_t param_count(const struct uly_param *p)
{
    return p->shape[0] * (p->n_dim == 2 ? p->shape[1] : 1);
}

/* ------------------------------------------------------------------ the plan */

/* Fills shards in the table's order, as Transformers does: a tensor that would exceed the limit starts the next one. */
static enum uly_status plan_shards(struct save *s)
{
    int64_t limit =
        s->options->max_shard_bytes > 0 ? s->options->max_shard_bytes : default_shard_bytes;
    int64_t used = 0;
    ULY_TRY(ULY_ALLOC(&s->shard_of, s->params->n));
    s->n_shards = 1;
    for (int i = 0; i < s->params->n; i++) {
        int64_t bytes = param_count(&s->params->list[i]) * uly_dtype_bytes(s->options->dtype);
        if (used > 0 && bytes > limit - used) {
            s->n_shards++;
            used = 0;
        }
        used += bytes;
        s->total_bytes += bytes;
        s->shard_of[i] = s->n_shards - 1;
    }
    return ULY_OK;
}

static void shard_name(const struct save *s, int shard, char *name, size_t bytes)
{
    char suffix[16] = "";
    if (s->generation > 1)
        snprintf(suffix, sizeof suffix, "-r%d", s->generation);
    if (s->n_shards == 1)
        snprintf(name, bytes, "%s", single_name);
    else
        snprintf(name, bytes, "model-%05d-of-%05d%s.safetensors", shard + 1, s->n_shards, suffix);
}

static bool exists_in(const char *folder, const char *name)
{
    char *path;
    if (uly_path_join(folder, name, &path) != ULY_OK)
        return true; /* out of memory: the caller's next step fails and says so */
    bool found = uly_path_kind(path, NULL) != ULY_PATH_NONE;
    uly_free(path);
    return found;
}

/* Chooses names that no file of `out` has (a single file is replaced, see invariant 2). */
static enum uly_status name_shards(struct save *s)
{
    enum { MAX_GENERATION = 1000 };
    char name[96];
    bool taken = true;
    for (s->generation = 0; taken && s->generation < MAX_GENERATION;) {
        s->generation++;
        taken = false;
        for (int i = 0; i < s->n_shards && s->n_shards > 1; i++) {
            shard_name(s, i, name, sizeof name);
            taken = taken || exists_in(s->out, name);
        }
    }
    for (int i = 0; i < s->n_shards; i++) {
        shard_name(s, i, name, sizeof name);
        ULY_TRY(uly_names_add(&s->weights, name));
    }
    return ULY_OK;
}

/* Weight files in `out` that belong to the model there: by their usual names. */
static enum uly_status find_stale(struct save *s)
{
    struct uly_names names = {0};
    ULY_TRY(uly_folder_list(s->out, &names));
    enum uly_status status = ULY_OK;
    for (int64_t i = 0; status == ULY_OK && i < names.n; i++) {
        int a, b, end = 0;
        const char *name = names.list[i];
        bool shard = sscanf(name, "model-%5d-of-%5d%n", &a, &b, &end) == 2 && end > 0 &&
                     strlen(name) > sizeof ".safetensors" &&
                     strcmp(name + strlen(name) - 12, ".safetensors") == 0;
        if (shard || strcmp(name, single_name) == 0 || strcmp(name, index_name) == 0)
            status = uly_names_add(&s->stale, name);
    }
    uly_names_clear(&names);
    return status;
}

/* ------------------------------------------------------------------ weights */

static enum uly_status write_param(struct save *s, struct uly_safetensors_writer *w, int param)
{
    const struct uly_param *p = &s->params->list[param];
    enum uly_dtype dtype = s->options->dtype;
    int64_t width = p->n_dim == 2 ? p->shape[1] : 1, rows = p->shape[0];
    int64_t step = width < CHUNK ? CHUNK / width : 1;
    for (int64_t row = 0; row < rows; row += step) {
        int64_t n = (rows - row < step ? rows - row : step) * width;
        ULY_TRY(s->read(s->context, s->params, param, row * width, n, s->values));
        int64_t good = uly_convert(s->values, ULY_DTYPE_F32, s->converted, dtype, n);
        ULY_FAIL_IF(good < n, ULY_ERR_INVALID,
                    "%s: element %" PRId64 " is %g, too large for %s: save in another type",
                    p->name, row * width + good, (double)s->values[good], uly_dtype_name(dtype));
        ULY_TRY(uly_safetensors_writer_append(w, s->converted, n * uly_dtype_bytes(dtype)));
    }
    return ULY_OK;
}

/* Opens what was written with the checks of any foreign file, and compares names and shapes. */
static enum uly_status check_shard(const char *path, const struct uly_safetensors_item *items,
                                   int64_t n)
{
    struct uly_safetensors *st;
    ULY_TRY(uly_safetensors_open(path, &st));
    bool same = uly_safetensors_count(st) == n;
    for (int64_t i = 0; same && i < n; i++) {
        const struct uly_safetensors_entry *e = uly_safetensors_find(st, items[i].name);
        same = e && e->n_dim == items[i].n_dim &&
               memcmp(e->shape, items[i].shape, (size_t)e->n_dim * sizeof e->shape[0]) == 0;
    }
    uly_safetensors_close(st);
    ULY_FAIL_IF(!same, ULY_ERR_INTERNAL, "%s: what was written is not what was meant", path);
    return ULY_OK;
}

static enum uly_status write_shard(struct save *s, int shard)
{
    enum uly_status status = ULY_OK;
    struct uly_safetensors_item *items = NULL;
    struct uly_safetensors_writer *w = NULL;
    int *param_of = NULL;
    char *path = NULL;
    int64_t n = 0;
    ULY_TRY_GOTO(ULY_ALLOC(&items, s->params->n), end);
    ULY_TRY_GOTO(ULY_ALLOC(&param_of, s->params->n), end);
    ULY_TRY_GOTO(uly_path_join(s->staging, s->weights.list[shard], &path), end);
    for (int i = 0; i < s->params->n; i++) {
        const struct uly_param *p = &s->params->list[i];
        if (s->shard_of[i] != shard)
            continue;
        param_of[n] = i;
        items[n++] = (struct uly_safetensors_item){
            p->name, s->options->dtype, p->n_dim, {p->shape[0], p->shape[1], 1}};
    }
    ULY_TRY_GOTO(uly_safetensors_writer_open(path, items, n, &w), end);
    for (int64_t k = 0; k < n; k++)
        ULY_TRY_GOTO(write_param(s, w, param_of[uly_safetensors_writer_order(w, k)]), end);
    status = uly_safetensors_writer_close(w);
    w = NULL;
    if (status == ULY_OK)
        ULY_TRY_GOTO(check_shard(path, items, n), end);
end:
    uly_safetensors_writer_abort(w);
    uly_free(items);
    uly_free(param_of);
    uly_free(path);
    return status;
}

static enum uly_status write_weights(struct save *s)
{
    int64_t room = CHUNK;
    for (int i = 0; i < s->params->n; i++)
        if (s->params->list[i].n_dim == 2 && s->params->list[i].shape[1] > room)
            room = s->params->list[i].shape[1];
    ULY_TRY(ULY_ALLOC(&s->values, room));
    ULY_TRY(uly_alloc((size_t)room, sizeof(float), (void **)&s->converted));
    for (int shard = 0; shard < s->n_shards; shard++)
        ULY_TRY(write_shard(s, shard));
    return ULY_OK;
}

/* Keys sorted, as save_pretrained writes them. */
static enum uly_status write_index(const struct save *s)
{
    char *path;
    ULY_TRY(uly_path_join(s->staging, index_name, &path));
    json_t *map = json_object();
    for (int i = 0; i < s->params->n; i++)
        json_object_set_new(map, s->params->list[i].name,
                            json_string(s->weights.list[s->shard_of[i]]));
    json_t *index = json_pack("{s:{s:I, s:I}, s:o}", "metadata", "total_parameters",
                              (json_int_t)uly_params_count(s->params, false), "total_size",
                              (json_int_t)s->total_bytes, "weight_map", map);
    enum uly_status status = uly_json_write_sorted(index, path);
    json_decref(index);
    uly_free(path);
    return status;
}

/* ------------------------------------------------------------------ small files */

/* What does not come along: weights of any kind, what is written anew, and the traces of another run. */
static bool is_copied(const char *name)
{
    static const char *const names[] = {"config.json",
                                        "trainer_state.json",
                                        "scheduler.pt",
                                        "metrics.jsonl",
                                        "options.json",
                                        "memory.json",
                                        "lock",
                                        "stop",
                                        "latest",
                                        "scaler.pt",
                                        "training_args.bin",
                                        "all_results.json",
                                        "eval_results.json",
                                        "train_results.json"};
    static const char *const ends[] = {".safetensors", ".index.json", ".bin",  ".pt",   ".pth",
                                       ".gguf",        ".h5",         ".ot",   ".onnx", ".msgpack",
                                       ".ckpt",        ".npz",        ".part", ".tmp"};
    size_t n = strlen(name);
    if (name[0] == '.')
        return false;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0)
            return false;
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        size_t m = strlen(ends[i]);
        if (n >= m && strcmp(name + n - m, ends[i]) == 0)
            return false;
    }
    return true;
}

static enum uly_status copy_one(struct save *s, const char *folder, const char *name)
{
    enum uly_status status = ULY_OK;
    char *from = NULL, *to = NULL;
    int64_t bytes;
    ULY_TRY_GOTO(uly_path_join(folder, name, &from), end);
    if (uly_path_kind(from, &bytes) != ULY_PATH_FILE || bytes > max_copied_bytes)
        goto end;
    ULY_TRY_GOTO(uly_path_join(s->staging, name, &to), end);
    ULY_TRY_GOTO(uly_file_copy(from, to), end);
    ULY_TRY_GOTO(uly_names_add(&s->others, name), end);
end:
    uly_free(from);
    uly_free(to);
    return status;
}

static enum uly_status copy_small_files(struct save *s, const char *folder)
{
    struct uly_names names = {0};
    if (!folder || uly_path_same(folder, s->out))
        return ULY_OK;
    ULY_TRY(uly_folder_list(folder, &names));
    enum uly_status status = ULY_OK;
    for (int64_t i = 0; status == ULY_OK && i < names.n; i++)
        if (is_copied(names.list[i]))
            status = copy_one(s, folder, names.list[i]);
    uly_names_clear(&names);
    return status;
}

/* ------------------------------------------------------------------ moving in */

static enum uly_status move_in(const struct save *s, const char *name)
{
    enum uly_status status = ULY_OK;
    char *from = NULL, *to = NULL;
    ULY_TRY_GOTO(uly_path_join(s->staging, name, &from), end);
    ULY_TRY_GOTO(uly_path_join(s->out, name, &to), end);
    ULY_TRY_GOTO(uly_file_rename(from, to), end);
end:
    uly_free(from);
    uly_free(to);
    return status;
}

static bool is_listed(const struct uly_names *names, const char *name)
{
    for (int64_t i = 0; i < names->n; i++)
        if (strcmp(names->list[i], name) == 0)
            return true;
    return false;
}

static enum uly_status remove_stale(const struct save *s)
{
    for (int64_t i = 0; i < s->stale.n; i++) {
        const char *name = s->stale.list[i];
        bool kept = strcmp(name, index_name) == 0 ? s->n_shards > 1 : is_listed(&s->weights, name);
        if (kept)
            continue;
        char *path;
        ULY_TRY(uly_path_join(s->out, name, &path));
        enum uly_status status = uly_file_remove(path);
        uly_free(path);
        ULY_TRY(status);
    }
    return ULY_OK;
}

static enum uly_status commit(const struct save *s)
{
    for (int64_t i = 0; i < s->weights.n; i++)
        ULY_TRY(move_in(s, s->weights.list[i]));
    for (int64_t i = 0; i < s->others.n; i++)
        ULY_TRY(move_in(s, s->others.list[i]));
    ULY_TRY(uly_folder_sync(
        s->out)); /* names of weights reach the disk before those that point to them */
    if (s->n_shards > 1)
        ULY_TRY(move_in(s, index_name));
    ULY_TRY(move_in(s, "config.json"));
    ULY_TRY(uly_folder_sync(s->out));
    ULY_TRY(remove_stale(s));
    ULY_TRY(uly_folder_remove(s->staging));
    return uly_folder_sync(s->out);
}

/* ------------------------------------------------------------------ the whole */

static enum uly_status stage(struct save *s, const struct uly_config_json *config,
                             const char *copy_from)
{
    char *path;
    bool made;
    ULY_TRY(uly_folder_remove(s->staging)); /* what a crashed write left */
    ULY_TRY(uly_folder_create(s->staging, &made));
    ULY_TRY(plan_shards(s));
    ULY_TRY(name_shards(s));
    ULY_TRY(find_stale(s));
    ULY_TRY(copy_small_files(s, copy_from));
    ULY_TRY(uly_path_join(s->staging, "config.json", &path));
    enum uly_status status = uly_config_json_write(config, s->options->dtype, path);
    uly_free(path);
    ULY_TRY(status);
    ULY_TRY(write_weights(s));
    if (s->n_shards > 1)
        ULY_TRY(write_index(s));
    return uly_folder_sync(s->staging);
}

enum uly_status uly_model_folder_write_from(const char *out, const struct uly_config_json *config,
                                            const char *copy_from, const struct uly_params *params,
                                            uly_weights_fn weights, void *context,
                                            const struct uly_save_options *options)
{
    enum uly_status status = ULY_OK;
    struct save s = {
        .out = out, .params = params, .options = options, .read = weights, .context = context};
    bool made = false;
    ULY_FAIL_IF(options->dtype != ULY_DTYPE_F32 && options->dtype != ULY_DTYPE_BF16 &&
                    options->dtype != ULY_DTYPE_F16,
                ULY_ERR_UNSUPPORTED, "weights cannot be saved in %s",
                uly_dtype_name(options->dtype));
    ULY_TRY(uly_folder_create(out, &made));
    ULY_TRY_GOTO(uly_path_join(out, ".writing", &s.staging), end);
    ULY_TRY_GOTO(stage(&s, config, copy_from), end);
    ULY_TRY_GOTO(commit(&s), end);
end:
    if (status != ULY_OK)
        uly_folder_discard(s.staging, made ? out : NULL);
    uly_names_clear(&s.weights);
    uly_names_clear(&s.others);
    uly_names_clear(&s.stale);
    uly_free(s.staging);
    uly_free(s.shard_of);
    uly_free(s.values);
    uly_free(s.converted);
    return status;
}

/* ------------------------------------------------------------------ weights from tensors */

struct tensor_source {
    struct uly_backend *be;
    void *buffer; /* room for `room` elements of any float type */
    int64_t room;
};

static enum uly_status read_tensor(void *context, const struct uly_params *params, int param,
                                   int64_t first, int64_t count, float *out)
{
    struct tensor_source *source = context;
    const struct uly_param *p = &params->list[param];
    struct uly_tensor t = uly_tensor_exists(&p->master) ? p->master : p->weight;
    int64_t width = uly_tensor_width(&t);
    ULY_BUG_ON(first % width || count % width);
    if (count > source->room) {
        void *buffer = source->buffer;
        ULY_TRY(uly_realloc(&buffer, (size_t)count, sizeof(double)));
        source->buffer = buffer;
        source->room = count;
    }
    struct uly_tensor part = uly_tensor_rows(t, first / width, count / width);
    ULY_TRY(uly_tensor_read(source->be, part, source->buffer));
    int64_t good = uly_convert(source->buffer, t.dtype, out, ULY_DTYPE_F32, count);
    ULY_FAIL_IF(good < count, ULY_ERR_INVALID, "%s: element %" PRId64 " is too large for float32",
                p->name, first + good);
    return ULY_OK;
}

enum uly_status uly_model_folder_write(const char *out, const struct uly_model_folder *source,
                                       const struct uly_params *params, struct uly_backend *be,
                                       const struct uly_save_options *options)
{
    struct tensor_source tensors = {.be = be};
    enum uly_status status = uly_model_folder_write_from(out, uly_model_folder_config_json(source),
                                                         uly_model_folder_path(source), params,
                                                         read_tensor, &tensors, options);
    uly_free(tensors.buffer);
    return status;
}
