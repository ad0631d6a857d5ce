/* SPDX-License-Identifier: MIT
 *
 * Model folders: exact round trips over shards and types, what opening and checking refuse, and that writing either gives a
 * whole new model or leaves what was there.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"
#include "checkpoint/model_folder.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "support/folder.h"

#define OK(call) assert_int_equal((call), ULY_OK)

#define CONFIG(tied, dtype)                                                                        \
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": 12, " \
    "\"intermediate_size\": 20, \"num_hidden_layers\": 2, \"num_attention_heads\": 6, "            \
    "\"num_key_value_heads\": 3, \"head_dim\": 4, \"vocab_size\": 31, \"my_key\": 1.50, "          \
    "\"tie_word_embeddings\": " tied ", \"torch_dtype\": \"" dtype "\"}"

static char root[TEST_PATH];

static int make_root(void **state)
{
    (void)state;
    test_folder_make(root);
    return 0;
}

static int remove_root(void **state)
{
    (void)state;
    test_folder_remove(root);
    return 0;
}

/* ------------------------------------------------------------------ making folders */

/* Weights that every type holds exactly, different everywhere. */
static enum uly_status make_values(void *context, const struct uly_params *params, int param,
                                   int64_t first, int64_t count, float *out)
{
    const uint64_t *seed = context;
    (void)params;
    for (int64_t i = 0; i < count; i++)
        out[i] = (float)((int)uly_random_below(*seed, (uint64_t)param, (uint64_t)(first + i), 255) -
                         127) /
                 64.0f;
    return ULY_OK;
}

static enum uly_status write_folder(const char *out, const char *config, uint64_t seed,
                                    enum uly_dtype dtype, int64_t shard_bytes, const char *copy)
{
    struct uly_model_config c;
    struct uly_params params;
    struct uly_config_json kept = {(char *)(uintptr_t)config, (int64_t)strlen(config)};
    struct uly_save_options options = {dtype, shard_bytes};
    OK(uly_config_json_parse(kept.text, kept.bytes, "config.json", &c));
    OK(uly_params_init(&c, &params));
    enum uly_status status =
        uly_model_folder_write_from(out, &kept, copy, &params, make_values, &seed, &options);
    uly_params_clear(&params);
    return status;
}

/* A model in memory. */
struct loaded {
    struct uly_model_folder *folder;
    struct uly_params params;
    struct uly_memory memory;
    struct uly_backend *be;
};

static void load(const char *path, enum uly_dtype dtype, bool training, struct loaded *m)
{
    memset(m, 0, sizeof *m);
    OK(uly_backend_create("cpu:ref", 1, &m->be));
    OK(uly_model_folder_open(path, &m->folder));
    OK(uly_params_init(uly_model_folder_config(m->folder), &m->params));
    uly_memory_init(&m->memory, &uly_host_space);
    OK(uly_params_make_tensors(&m->params, dtype, training, &m->memory));
    OK(uly_memory_reserve(&m->memory));
    OK(uly_model_folder_load(m->folder, &m->params, m->be));
}

static void unload(struct loaded *m)
{
    uly_params_clear(&m->params);
    uly_memory_clear(&m->memory);
    uly_model_folder_close(m->folder);
    uly_backend_destroy(m->be);
}

/* Every weight of a folder has the value that make_values gives for the seed. */
static void check_weights(const char *path, uint64_t seed, enum uly_dtype dtype, bool training)
{
    struct loaded m;
    load(path, dtype, training, &m);
    for (int i = 0; i < m.params.n; i++) {
        const struct uly_param *p = &m.params.list[i];
        int64_t n = uly_tensor_count(&p->weight);
        float *expected = malloc((size_t)n * sizeof *expected), *is = malloc((size_t)n * 4);
        double *raw = malloc((size_t)n * sizeof *raw);
        OK(make_values(&seed, &m.params, i, 0, n, expected));
        for (int which = 0; which < (training ? 2 : 1); which++) {
            struct uly_tensor t = which ? p->master : p->weight;
            memset(raw, 0xff, (size_t)n * sizeof *raw);
            OK(uly_tensor_read(m.be, t, raw));
            assert_int_equal(uly_convert(raw, t.dtype, is, ULY_DTYPE_F32, n), n);
            assert_memory_equal(is, expected, (size_t)n * sizeof *is);
        }
        free(expected);
        free(is);
        free(raw);
    }
    unload(&m);
}

/* ------------------------------------------------------------------ round trips */

static void test_round_trips(void **state)
{
    (void)state;
    static const enum uly_dtype dtypes[] = {ULY_DTYPE_F32, ULY_DTYPE_BF16, ULY_DTYPE_F16};
    static const char *const configs[] = {CONFIG("false", "float32"), CONFIG("true", "bfloat16")};
    static const int64_t shard_bytes[] = {0, 1, 1200, 100000};
    char out[TEST_PATH], again[TEST_PATH];
    for (int d = 0; d < 3; d++)
        for (int c = 0; c < 2; c++)
            for (int s = 0; s < 4; s++) {
                test_path(out, root, "trip");
                test_path(again, root, "again");
                OK(write_folder(out, configs[c], 5, dtypes[d], shard_bytes[s], NULL));
                check_weights(out, 5, ULY_DTYPE_F32, true);
                check_weights(out, 5, ULY_DTYPE_BF16, true); /* master apart */
                check_weights(out, 5, ULY_DTYPE_F64, false);
                /* through tensors, in the same type and shards: the same bytes */
                struct loaded m;
                struct uly_save_options options = {dtypes[d], shard_bytes[s]};
                load(out, ULY_DTYPE_BF16, true, &m);
                OK(uly_model_folder_write(again, m.folder, &m.params, m.be, &options));
                unload(&m);
                assert_true(test_folder_hash(out) == test_folder_hash(again));
                test_folder_remove(out);
                test_folder_remove(again);
            }
}

/* The file's full precision reaches the float32 master; the bfloat16 weight is rounded from it. */
static enum uly_status thirds(void *context, const struct uly_params *params, int param,
                              int64_t first, int64_t count, float *out)
{
    (void)context;
    (void)params;
    for (int64_t i = 0; i < count; i++)
        out[i] = (float)(param + 1) / (3.0f + (float)(first + i));
    return ULY_OK;
}

static void test_master_precision(void **state)
{
    (void)state;
    static const char config[] = CONFIG("true", "float32");
    char out[TEST_PATH];
    struct uly_model_config c;
    struct uly_params params;
    struct uly_config_json kept = {(char *)(uintptr_t)config, sizeof config - 1};
    struct uly_save_options options = {.dtype = ULY_DTYPE_F32};
    OK(uly_config_json_parse(kept.text, kept.bytes, "config.json", &c));
    OK(uly_params_init(&c, &params));
    test_path(out, root, "thirds");
    OK(uly_model_folder_write_from(out, &kept, NULL, &params, thirds, NULL, &options));
    uly_params_clear(&params);
    struct loaded m;
    load(out, ULY_DTYPE_BF16, true, &m);
    float master[12];
    uint16_t weight[12];
    int norm = m.params.final_norm;
    OK(uly_tensor_read(m.be, m.params.list[norm].master, master));
    OK(uly_tensor_read(m.be, m.params.list[norm].weight, weight));
    for (int i = 0; i < 12; i++) {
        float exact = (float)(norm + 1) / (3.0f + (float)i);
        assert_true(master[i] == exact);
        assert_int_equal(weight[i], uly_f32_to_bf16(exact));
    }
    unload(&m);
    test_folder_remove(out);
}

/* ------------------------------------------------------------------ the layout of a folder */

static void test_index(void **state)
{
    (void)state;
    char out[TEST_PATH], path[TEST_PATH];
    json_t *index;
    struct uly_model_folder *f;
    test_path(out, root, "index");
    OK(write_folder(out, CONFIG("true", "float32"), 1, ULY_DTYPE_BF16, 2000, NULL));
    assert_false(test_exists(out, "model.safetensors"));
    OK(uly_json_read_object(test_path(path, out, "model.safetensors.index.json"), 1 << 20, &index));
    OK(uly_model_folder_open(out, &f));
    struct uly_params params;
    OK(uly_params_init(uly_model_folder_config(f), &params));
    json_t *map = json_object_get(index, "weight_map"), *file;
    json_t *metadata = json_object_get(index, "metadata");
    int64_t n = uly_params_count(&params, false);
    assert_int_equal(json_object_size(map), params.n); /* the tied head once */
    assert_null(json_object_get(map, "lm_head.weight"));
    assert_int_equal(json_integer_value(json_object_get(metadata, "total_size")), 2 * n);
    assert_int_equal(json_integer_value(json_object_get(metadata, "total_parameters")), n);
    const char *name, *previous = "";
    int64_t largest = 0;
    json_object_foreach(map, name, file)
    {
        int64_t bytes;
        assert_true(strcmp(previous, name) < 0);
        previous = name;
        assert_true(uly_path_kind(test_path(path, out, json_string_value(file)), &bytes) ==
                    ULY_PATH_FILE);
        largest = bytes > largest ? bytes : largest;
    }
    assert_true(largest < 2000 + 1500); /* the limit is for the data; headers come on top */
    assert_true(uly_model_folder_shards(f) > 2);
    char *text = test_read(out, "model.safetensors.index.json", NULL);
    assert_int_equal(text[strlen(text) - 1], '\n');
    assert_memory_equal(text, "{\n  \"metadata\": {", 17);
    free(text);
    uly_params_clear(&params);
    uly_model_folder_close(f);
    json_decref(index);
    test_folder_remove(out);
}

/* Shards with odd names, in a sub-folder, behind symbolic links; a head that a tied model stored all the same. */
static void test_names_from_index(void **state)
{
    (void)state;
    char out[TEST_PATH], from[TEST_PATH], to[TEST_PATH], sub[TEST_PATH];
    test_path(out, root, "odd");
    OK(write_folder(out, CONFIG("false", "float32"), 3, ULY_DTYPE_F32, 6000, NULL));
    test_path(sub, out, "sub dir");
    assert_int_equal(mkdir(sub, 0777), 0);
    char *text = test_read(out, "model.safetensors.index.json", NULL), edited[8192] = "";
    static const char first[] = "model-00001-of-";
    for (char *p = text; *p;) { /* the first shard moves to "sub dir/consolidated ..." */
        char one[2] = {*p, '\0'};
        bool hit = strncmp(p, first, sizeof first - 1) == 0;
        strncat(edited, hit ? "sub dir/consolidated " : one, sizeof edited - strlen(edited) - 1);
        p += hit ? (int)sizeof first - 1 : 1;
    }
    free(text);
    struct uly_names names = {0};
    OK(uly_folder_list(out, &names));
    for (int64_t i = 0; i < names.n; i++)
        if (strncmp(names.list[i], first, sizeof first - 1) == 0) {
            char moved[TEST_PATH];
            snprintf(moved, sizeof moved, "consolidated %s", names.list[i] + sizeof first - 1);
            test_path(from, out, names.list[i]);
            assert_int_equal(rename(from, test_path(to, sub, "real")), 0);
            assert_int_equal(symlink("real", test_path(from, sub, moved)), 0);
        }
    uly_names_clear(&names);
    test_write_text(out, "model.safetensors.index.json", edited);
    check_weights(out, 3, ULY_DTYPE_F32, false);
    test_folder_remove(out);
}

static void test_copied_files(void **state)
{
    (void)state;
    char from[TEST_PATH], out[TEST_PATH];
    test_path(from, root, "from");
    test_path(out, root, "out");
    OK(write_folder(from, CONFIG("false", "float32"), 1, ULY_DTYPE_F32, 0, NULL));
    static const char *const copied[] = {"tokenizer.json", "chat_template.jinja", "README.md",
                                         "generation_config.json", "vocab.txt"};
    static const char *const left[] = {
        "pytorch_model.bin", "metrics.jsonl", "optimizer.pt",   "trainer_state.json",
        "options.json",      "x.gguf",        ".gitattributes", "pytorch_model.bin.index.json",
        "other.safetensors"};
    for (size_t i = 0; i < sizeof copied / sizeof copied[0]; i++)
        test_write_text(from, copied[i], copied[i]);
    for (size_t i = 0; i < sizeof left / sizeof left[0]; i++)
        test_write_text(from, left[i], "foreign");
    OK(uly_folder_create(out, NULL));
    test_write_text(out, "metrics.jsonl", "mine\n");
    struct loaded m;
    struct uly_save_options options = {.dtype = ULY_DTYPE_F32};
    load(from, ULY_DTYPE_F32, false, &m);
    OK(uly_model_folder_write(out, m.folder, &m.params, m.be, &options));
    for (size_t i = 0; i < sizeof copied / sizeof copied[0]; i++) {
        char *text = test_read(out, copied[i], NULL);
        assert_string_equal(text, copied[i]);
        free(text);
    }
    for (size_t i = 0; i < sizeof left / sizeof left[0]; i++)
        if (strcmp(left[i], "metrics.jsonl") != 0)
            assert_false(test_exists(out, left[i]));
    char *text = test_read(out, "metrics.jsonl", NULL);
    assert_string_equal(text, "mine\n");
    free(text);
    /* into its own input folder: nothing is copied onto itself, the model stays whole */
    OK(uly_model_folder_write(from, m.folder, &m.params, m.be, &options));
    unload(&m);
    check_weights(from, 1, ULY_DTYPE_F32, false);
    test_folder_remove(from);
    test_folder_remove(out);
}

/* ------------------------------------------------------------------ writing over an older model */

static int count_shards(const char *folder)
{
    struct uly_names names = {0};
    int n = 0;
    OK(uly_folder_list(folder, &names));
    for (int64_t i = 0; i < names.n; i++)
        n += strstr(names.list[i], ".safetensors") && !strstr(names.list[i], ".json");
    uly_names_clear(&names);
    return n;
}

static void test_replacing(void **state)
{
    (void)state;
    char out[TEST_PATH];
    /* sizes of shards one after the other; each model must be the new one, with no file of an older one */
    static const int64_t sizes[] = {3000, 0, 3000, 3000, 1, 3000, 0, 0};
    int shards_of_3000 = 0;
    test_path(out, root, "replaced");
    for (uint64_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        OK(write_folder(out, CONFIG("false", "float32"), i, ULY_DTYPE_F32, sizes[i], NULL));
        check_weights(out, i, ULY_DTYPE_F32, false);
        bool single = sizes[i] == 0;
        assert_int_equal(test_exists(out, "model.safetensors"), single);
        assert_int_equal(test_exists(out, "model.safetensors.index.json"), !single);
        int n = count_shards(out);
        if (sizes[i] == 3000) {
            assert_true(shards_of_3000 == 0 || n == shards_of_3000);
            shards_of_3000 = n;
        }
        assert_true(single ? n == 1 : n > 1);
        assert_false(test_exists(out, ".writing"));
    }
    test_folder_remove(out);
}

struct stopper {
    uint64_t seed;
    int at_param; /* fails here */
};

static enum uly_status failing(void *context, const struct uly_params *params, int param,
                               int64_t first, int64_t count, float *out)
{
    struct stopper *s = context;
    ULY_FAIL_IF(param == s->at_param, ULY_ERR_NO_SPACE, "no space, says the test");
    return make_values(&s->seed, params, param, first, count, out);
}

static enum uly_status infinite(void *context, const struct uly_params *params, int param,
                                int64_t first, int64_t count, float *out)
{
    (void)context;
    (void)params;
    for (int64_t i = 0; i < count; i++)
        out[i] = param == 1 && first + i == 5 ? 1e5f : 1;
    return ULY_OK;
}

/* A write that fails anywhere leaves the folder as it was. */
static void test_failed_writes(void **state)
{
    (void)state;
    static const char config[] = CONFIG("false", "float32");
    char out[TEST_PATH], fresh[TEST_PATH];
    struct uly_model_config c;
    struct uly_params params;
    struct uly_config_json kept = {(char *)(uintptr_t)config, sizeof config - 1};
    struct uly_save_options options = {ULY_DTYPE_F32, 3000};
    OK(uly_config_json_parse(kept.text, kept.bytes, "config.json", &c));
    OK(uly_params_init(&c, &params));
    test_path(out, root, "old");
    test_path(fresh, root, "fresh");
    OK(write_folder(out, config, 1, ULY_DTYPE_F32, 3000, NULL));
    uint64_t hash = test_folder_hash(out);
    for (int at = 0; at < params.n; at++) {
        struct stopper s = {2, at};
        for (int i = 0; i < 2; i++) {
            assert_int_equal(uly_model_folder_write_from(i ? fresh : out, &kept, NULL, &params,
                                                         failing, &s, &options),
                             ULY_ERR_NO_SPACE);
            test_error_says("no space, says the test");
        }
        assert_true(test_folder_hash(out) == hash);
        assert_false(test_exists(out, ".writing"));
        assert_false(test_exists(root, "fresh"));
    }
    options.dtype = ULY_DTYPE_F16;
    assert_int_equal(
        uly_model_folder_write_from(out, &kept, NULL, &params, infinite, NULL, &options),
        ULY_ERR_INVALID);
    test_error_says("model.layers.0.input_layernorm.weight|element 5|100000|float16");
    options.dtype = ULY_DTYPE_F64;
    assert_int_equal(
        uly_model_folder_write_from(out, &kept, NULL, &params, infinite, NULL, &options),
        ULY_ERR_UNSUPPORTED);
    test_error_says("float64");
    assert_true(test_folder_hash(out) == hash);
    /* what a killed write left behind is in nobody's way */
    char staging[TEST_PATH];
    assert_int_equal(mkdir(test_path(staging, out, ".writing"), 0777), 0);
    test_write_text(staging, "model-00001-of-00002.safetensors", "half a file");
    check_weights(out, 1, ULY_DTYPE_F32, false);
    OK(write_folder(out, config, 4, ULY_DTYPE_F32, 3000, NULL));
    check_weights(out, 4, ULY_DTYPE_F32, false);
    assert_false(test_exists(out, ".writing"));
    test_write_text(root, "file", "x"); /* a folder that cannot be */
    test_path(fresh, root, "file");
    assert_int_equal(write_folder(fresh, config, 1, ULY_DTYPE_F32, 0, NULL), ULY_ERR_IO);
    test_error_says("file|not a folder");
    uly_params_clear(&params);
    test_folder_remove(out);
}

/* The k-th allocation of a write fails, for every k; then of an open. */
static void test_allocation_failures(void **state)
{
    (void)state;
    char out[TEST_PATH];
    test_path(out, root, "alloc");
    OK(write_folder(out, CONFIG("true", "float32"), 1, ULY_DTYPE_F32, 3000, NULL));
    enum uly_status status = ULY_ERR_NO_MEMORY;
    for (long k = 1; status != ULY_OK; k++) {
        struct uly_model_folder *f = NULL;
        uly_alloc_fail_at(k);
        status = uly_model_folder_open(out, &f);
        uly_alloc_fail_at(0);
        uly_model_folder_close(f);
        assert_true(k < 2000);
    }
    struct uly_model_folder *f;
    struct uly_params params;
    uint64_t seed = 1;
    struct uly_save_options options = {ULY_DTYPE_F32, 3000};
    OK(uly_model_folder_open(out, &f));
    OK(uly_params_init(uly_model_folder_config(f), &params));
    const struct uly_config_json *config = uly_model_folder_config_json(f);
    status = ULY_ERR_NO_MEMORY;
    for (long k = 1; status != ULY_OK; k++) {
        uly_alloc_fail_at(k);
        status =
            uly_model_folder_write_from(out, config, NULL, &params, make_values, &seed, &options);
        uly_alloc_fail_at(0);
        check_weights(out, 1, ULY_DTYPE_F32, false); /* old or new: both hold these values */
        assert_true(k < 2000);
    }
    uly_params_clear(&params);
    uly_model_folder_close(f);
    test_folder_remove(out);
}

/* ------------------------------------------------------------------ refusals */

static void refuse_open(const char *path, const char *says)
{
    struct uly_model_folder *f = NULL;
    enum uly_status status = uly_model_folder_open(path, &f);
    if (status == ULY_OK)
        fail_msg("%s was opened that should be refused with \"%s\"", path, says);
    assert_null(f);
    test_error_says(says);
}

static void test_wrong_folders(void **state)
{
    (void)state;
    char path[TEST_PATH];
    static const char config[] = CONFIG("false", "float32");
    refuse_open("meta-llama/Llama-3.2-1B", "no such folder|hf download meta-llama/Llama-3.2-1B");
    refuse_open("/no/such/folder", "/no/such/folder: no such folder");
    test_write_text(root, "model.gguf", "GGUF");
    refuse_open(test_path(path, root, "model.gguf"), "GGUF|safetensors");
    test_write_text(root, "plain", "x");
    refuse_open(test_path(path, root, "plain"), "is a file");
    unlink(path);
    refuse_open(root, "no config.json|model.gguf|GGUF");
    unlink(test_path(path, root, "model.gguf"));
    refuse_open(root, "no config.json in this folder");
    test_write_text(root, "consolidated.00.pth", "x");
    refuse_open(root, "no config.json|consolidated.00.pth|Transformers folder");
    unlink(test_path(path, root, "consolidated.00.pth"));
    test_write_text(root, "adapter_config.json", "{}");
    refuse_open(root, "adapter|merge");
    unlink(test_path(path, root, "adapter_config.json"));
    test_write_text(root, "config.json", config);
    refuse_open(root, "no model.safetensors in this folder");
    static const char *const others[][2] = {{"pytorch_model.bin", "pickled|save_pretrained"},
                                            {"pytorch_model.bin.index.json", "pickled"},
                                            {"q4.gguf", "GGUF"},
                                            {"tf_model.h5", "TensorFlow"},
                                            {"flax_model.msgpack", "Flax"},
                                            {"model-00001-of-00002.safetensors", "cut short"}};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        test_write_text(root, others[i][0], "x");
        refuse_open(root, others[i][1]);
        test_error_says(others[i][0]);
        unlink(test_path(path, root, others[i][0]));
    }
    test_write_text(root, "model.safetensors",
                    "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n");
    refuse_open(root, "model.safetensors|Git-LFS");
    unlink(test_path(path, root, "model.safetensors"));
    test_write_text(root, "config.json", "{\"architectures\": [\"FalconForCausalLM\"]}");
    refuse_open(root, "FalconForCausalLM|LlamaForCausalLM");
    unlink(test_path(path, root, "config.json"));
}

static void test_bad_index(void **state)
{
    (void)state;
    char out[TEST_PATH], path[TEST_PATH];
    test_path(out, root, "bad");
    OK(write_folder(out, CONFIG("false", "float32"), 1, ULY_DTYPE_F32, 0, NULL));
    char part[TEST_PATH];
    test_path(path, out, "model.safetensors");
    assert_int_equal(rename(path, test_path(part, out, "part.safetensors")), 0);
    static const char *const cases[][2] = {
        {"{", "index.json:1"},
        {"[]", "an array"},
        {"{}", "no \"weight_map\""},
        {"{\"weight_map\": {}}", "no \"weight_map\""},
        {"{\"weight_map\": {\"a\": 1}}", "tensor a|not inside"},
        {"{\"weight_map\": {\"a\": \"../x.safetensors\"}}", "../x.safetensors|not inside"},
        {"{\"weight_map\": {\"a\": \"b/../../x\"}}", "b/../../x|not inside"},
        {"{\"weight_map\": {\"a\": \"b/..\"}}", "not inside"},
        {"{\"weight_map\": {\"a\": \"/etc/passwd\"}}", "/etc/passwd|not inside"},
        {"{\"weight_map\": {\"a\": \"\"}}", "not inside"},
        {"{\"weight_map\": {\"a\": \"none.safetensors\"}}", "none.safetensors|missing|cut short"},
        {"{\"weight_map\": {\"a\": \"part.safetensors\"}}", "tensor a|part.safetensors"},
        {"{\"weight_map\": {\"a\": \"config.json\"}}", "config.json|safetensors"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        test_write_text(out, "model.safetensors.index.json", cases[i][0]);
        refuse_open(out, cases[i][1]);
    }
    test_folder_remove(out);
}

/* Writes a folder whose weights are the parameters of `stored` and whose config.json is `config`, then checks it. */
static enum uly_status check_against(const char *out, const char *stored, const char *config)
{
    struct uly_model_folder *f;
    struct uly_params params;
    OK(write_folder(out, stored, 1, ULY_DTYPE_F32, 0, NULL));
    test_write_text(out, "config.json", config);
    OK(uly_model_folder_open(out, &f));
    OK(uly_params_init(uly_model_folder_config(f), &params));
    enum uly_status status = uly_model_folder_check(f, &params);
    uly_params_clear(&params);
    uly_model_folder_close(f);
    test_folder_remove(out);
    return status;
}

#define SMALL(layers, F, more)                                                                     \
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": 8, "  \
    "\"intermediate_size\": " F ", \"num_hidden_layers\": " layers                                 \
    ", \"num_attention_heads\": 2, "                                                               \
    "\"vocab_size\": 11" more "}"

static void test_check(void **state)
{
    (void)state;
    char out[TEST_PATH];
    test_path(out, root, "check");
    OK(check_against(out, SMALL("1", "6", ""), SMALL("1", "6", "")));
    OK(check_against(out, SMALL("1", "6", ""), SMALL("1", "6", ", \"tie_word_embeddings\": true")));
    assert_int_equal(
        check_against(out, SMALL("1", "6", ", \"tie_word_embeddings\": true"), SMALL("1", "6", "")),
        ULY_ERR_FORMAT);
    test_error_says("lm_head.weight is missing|tie_word_embeddings");
    assert_int_equal(check_against(out, SMALL("1", "6", ""), SMALL("2", "6", "")), ULY_ERR_FORMAT);
    test_error_says("model.layers.1.input_layernorm.weight is missing");
    assert_int_equal(check_against(out, SMALL("1", "6", ""), SMALL("1", "7", "")), ULY_ERR_FORMAT);
    test_error_says("model.layers.0.mlp.gate_proj.weight|[6, 8]|[7, 8]");
    assert_int_equal(
        check_against(out, SMALL("1", "6", ""), SMALL("1", "6", ", \"attention_bias\": true")),
        ULY_ERR_FORMAT);
    test_error_says("self_attn.q_proj.bias is missing");
}

/* A quantised tensor under a parameter's name. */
static void test_stored_types(void **state)
{
    (void)state;
    static const char config[] = SMALL("1", "6", ", \"tie_word_embeddings\": true");
    char out[TEST_PATH], path[TEST_PATH];
    struct uly_model_config c;
    struct uly_params params;
    test_path(out, root, "types");
    OK(uly_folder_create(out, NULL));
    test_write_text(out, "config.json", config);
    OK(uly_config_json_parse(config, sizeof config - 1, "config.json", &c));
    OK(uly_params_init(&c, &params));
    for (int round = 0; round < 2; round++) { /* F64 is read; integers are refused */
        struct uly_safetensors_item items[32];
        struct uly_safetensors_writer *w;
        double values[512];
        for (int i = 0; i < params.n; i++) {
            const struct uly_param *p = &params.list[i];
            items[i] = (struct uly_safetensors_item){p->name,
                                                     round ? ULY_DTYPE_I32 : ULY_DTYPE_F64,
                                                     p->n_dim,
                                                     {p->shape[0], p->shape[1], 1}};
        }
        for (int i = 0; i < 512; i++)
            values[i] = 1.5 * i;
        OK(uly_safetensors_writer_open(test_path(path, out, "model.safetensors"), items, params.n,
                                       &w));
        for (int k = 0; k < params.n; k++) {
            const struct uly_param *p = &params.list[uly_safetensors_writer_order(w, k)];
            OK(uly_safetensors_writer_append(w, values,
                                             p->shape[0] * p->shape[1] * (round ? 4 : 8)));
        }
        OK(uly_safetensors_writer_close(w));
        if (round == 0) {
            struct loaded m;
            float back[8];
            load(out, ULY_DTYPE_F32, false, &m);
            OK(uly_tensor_read(m.be, m.params.list[m.params.final_norm].weight, back));
            for (int i = 0; i < 8; i++)
                assert_float_equal(back[i], 1.5f * (float)i, 0);
            unload(&m);
        } else {
            struct uly_model_folder *f;
            OK(uly_model_folder_open(out, &f));
            assert_int_equal(uly_model_folder_check(f, &params), ULY_ERR_UNSUPPORTED);
            test_error_says("model.embed_tokens.weight|I32");
            uly_model_folder_close(f);
        }
    }
    uly_params_clear(&params);
    test_folder_remove(out);
}

/* Unused tensors are one warning; a repeated tied head and old rope tables are none. */
static void test_unused(void **state)
{
    (void)state;
    char out[TEST_PATH];
    struct uly_model_folder *f;
    struct uly_params params;
    static const char *const configs[] = {SMALL("1", "6", ""),
                                          SMALL("1", "6", ", \"mlp_bias\": true")};
    test_path(out, root, "unused");
    for (int i = 0; i < 2; i++) {
        OK(write_folder(out, configs[i], 1, ULY_DTYPE_F32, 0, NULL));
        /* tied now: the head is stored, with other values than the embedding's */
        test_write_text(out, "config.json", SMALL("1", "6", ", \"tie_word_embeddings\": true"));
        OK(uly_model_folder_open(out, &f));
        OK(uly_params_init(uly_model_folder_config(f), &params));
        OK(uly_model_folder_check(f, &params));
        int before = uly_log_warnings();
        uly_model_folder_warn_unused(f, &params);
        assert_int_equal(uly_log_warnings() - before, 1);
        uly_params_clear(&params);
        uly_model_folder_close(f);
    }
    test_folder_remove(out);
    /* the same values: embedding and head are ones everywhere */
    static const char untied[] = SMALL("1", "6", "");
    struct uly_config_json kept = {(char *)(uintptr_t)untied, sizeof untied - 1};
    struct uly_save_options options = {.dtype = ULY_DTYPE_F32};
    struct uly_model_config c;
    OK(uly_config_json_parse(kept.text, kept.bytes, "config.json", &c));
    OK(uly_params_init(&c, &params));
    OK(uly_model_folder_write_from(out, &kept, NULL, &params, infinite, NULL, &options));
    uly_params_clear(&params);
    test_write_text(out, "config.json", SMALL("1", "6", ", \"tie_word_embeddings\": true"));
    OK(uly_model_folder_open(out, &f));
    OK(uly_params_init(uly_model_folder_config(f), &params));
    int before = uly_log_warnings();
    uly_model_folder_warn_unused(f, &params);
    assert_int_equal(uly_log_warnings(), before);
    uly_params_clear(&params);
    uly_model_folder_close(f);
    test_folder_remove(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trips),   cmocka_unit_test(test_master_precision),
        cmocka_unit_test(test_index),         cmocka_unit_test(test_names_from_index),
        cmocka_unit_test(test_copied_files),  cmocka_unit_test(test_replacing),
        cmocka_unit_test(test_failed_writes), cmocka_unit_test(test_allocation_failures),
        cmocka_unit_test(test_wrong_folders), cmocka_unit_test(test_bad_index),
        cmocka_unit_test(test_check),         cmocka_unit_test(test_stored_types),
        cmocka_unit_test(test_unused),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
