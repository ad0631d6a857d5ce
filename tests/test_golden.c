/* SPDX-License-Identifier: MIT
 *
 * The library against Transformers: logits, token losses, loss and every gradient of the tiny models in tests/golden,
 * whose README says what they are. All rows lie end to end in one micro-batch here, while Transformers ran them one by
 * one, so a token that saw its neighbour's document would show.
 *
 * float32: tolerances of docs/numerics.md. bfloat16: the error against Transformers in float32 is at most 1.5 times the
 * one that Transformers itself makes in bfloat16, which golden.json holds.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "checkpoint/model_folder.h"
#include "comm/comm.h"
#include "data/dataset.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "model/decoder.h"

static const double gradient_floor = 1e-3; /* of the largest norm of all gradients */

static const char *const cases[] = {"gqa",   "tied",   "bias",    "llama3", "mistral", "qwen2",
                                    "qwen3", "linear", "dynamic", "yarn",   "longrope"};
enum { N_CASES = sizeof cases / sizeof cases[0], N_BOTH = 4 /* with both ways of checkpointing */ };

struct golden { /* one case: what Transformers says */
    char folder[1024];
    json_t *json;
    struct uly_safetensors *tensors;
    struct uly_dataset rows;
};

struct subject { /* the same model in this library, one rank */
    struct uly_model_folder *folder;
    struct uly_params params;
    struct uly_memory memory;
    struct uly_comm *comm;
    struct uly_mesh mesh;
    struct uly_backend *be;
    struct uly_decoder *decoder;
};

static void check_ok(enum uly_status status, const char *what)
{
    if (status != ULY_OK)
        fail_msg("%s: %s\n%s", what, uly_error_message(), uly_error_trace());
}
#define OK(call) check_ok((call), #call)

/* ------------------------------------------------------------------ reading */

static void *room(int64_t n, size_t size)
{
    assert_in_range(n, 1, 1 << 20);
    return n > 0 && n <= 1 << 20 ? calloc((size_t)n, size) : NULL;
}

static void golden_open(struct golden *g, const char *name, int64_t vocab_size)
{
    const char *top = getenv("ULY_TEST_DATA");
    assert_non_null(top);
    snprintf(g->folder, sizeof g->folder, "%s/%s", top, name);
    char path[1100];
    snprintf(path, sizeof path, "%s/golden.json", g->folder);
    OK(uly_json_read_object(path, 1 << 20, &g->json));
    snprintf(path, sizeof path, "%s/golden.safetensors", g->folder);
    OK(uly_safetensors_open(path, &g->tensors));
    snprintf(path, sizeof path, "%s/rows.jsonl", g->folder);
    const char *paths[] = {path};
    struct uly_data_options options = {.max_length = 128, .vocab_size = vocab_size, .eos_id = -1};
    OK(uly_dataset_read(paths, 1, &options, &g->rows));
}

static void golden_close(struct golden *g)
{
    json_decref(g->json);
    uly_safetensors_close(g->tensors);
    uly_dataset_clear(&g->rows);
}

/* Number at a path of keys below the top, e.g. "bfloat16_errors_of_transformers", "logits", NULL. */
static double golden_number(const struct golden *g, const char *first, const char *second,
                            const char *third)
{
    const json_t *value = json_object_get(g->json, first);
    if (second != NULL)
        value = json_object_get(value, second);
    if (third != NULL)
        value = json_object_get(value, third);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

/* The caller frees; *n may be NULL. */
static float *golden_tensor(const struct golden *g, const char *name, int64_t *n)
{
    const struct uly_safetensors_entry *entry = uly_safetensors_find(g->tensors, name);
    if (entry == NULL)
        fail_msg("%s has no tensor %s", g->folder, name);
    float *out = room(entry->count, sizeof *out);
    OK(uly_safetensors_read(g->tensors, entry, ULY_DTYPE_F32, 0, entry->count, out));
    if (n != NULL)
        *n = entry->count;
    return out;
}

/* ------------------------------------------------------------------ running */

static void subject_open(struct subject *s, const char *path, const char *backend,
                         enum uly_dtype dtype, enum uly_checkpointing checkpointing)
{
    memset(s, 0, sizeof *s);
    OK(uly_model_folder_open(path, &s->folder));
    const struct uly_model_config *config = uly_model_folder_config(s->folder);
    OK(uly_backend_create(backend, 2, &s->be));
    OK(uly_comm_self(&s->comm));
    OK(uly_mesh_init(s->comm, 1, 1, 1, &s->mesh));
    OK(uly_params_init(config, &s->params));
    uly_memory_init(&s->memory, uly_backend_space(s->be));
    OK(uly_params_make_tensors(&s->params, dtype, true, &s->memory));
    struct uly_decoder_options options = {
        .dtype = dtype, .max_tokens = 256, .checkpointing = checkpointing, .training = true};
    OK(uly_decoder_create(config, &s->params, &s->mesh, s->be, &options, &s->memory, &s->decoder));
    OK(uly_memory_reserve(&s->memory));
    OK(uly_model_folder_load(s->folder, &s->params, s->be));
    OK(uly_fill(s->be, s->params.grads, 0.0));
}

static void subject_close(struct subject *s)
{
    uly_decoder_destroy(s->decoder);
    uly_memory_clear(&s->memory);
    uly_params_clear(&s->params);
    uly_mesh_clear(&s->mesh);
    uly_comm_destroy(s->comm);
    uly_backend_destroy(s->be);
    uly_model_folder_close(s->folder);
}

/* Rows [first, first + n) end to end; the caller frees ids, labels and starts. */
static struct uly_batch make_batch(const struct uly_dataset *rows, int64_t first, int64_t n)
{
    int64_t S = 0;
    for (int64_t i = first; i < first + n; i++)
        S += rows->pieces[i].length;
    int32_t *ids = room(S, sizeof *ids);
    int32_t *labels = room(S, sizeof *labels);
    int64_t *starts = room(n, sizeof *starts);
    int64_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        starts[i] = at;
        uly_dataset_piece(rows, first + i, ids + at, labels + at);
        at += rows->pieces[first + i].length;
    }
    return (struct uly_batch){.S = S, .n_docs = n, .starts = starts, .ids = ids, .labels = labels};
}

static void free_batch(struct uly_batch *batch)
{
    free((void *)(uintptr_t)batch->ids);
    free((void *)(uintptr_t)batch->labels);
    free((void *)(uintptr_t)batch->starts);
}

/* ------------------------------------------------------------------ comparing */

static double norm(const float *a, const float *b, int64_t n) /* |a - b|, or |a| without b */
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        double d = b == NULL ? (double)a[i] : (double)a[i] - (double)b[i];
        sum += d * d;
    }
    return sqrt(sum);
}

static void check_at_most(double value, double limit, const char *name, const char *what,
                          const char *where)
{
    if (!(value <= limit))
        fail_msg("%s %s, %s: error %.3g, at most %.3g", name, where, what, value, limit);
}

static const char *const bf16_errors = "bfloat16_errors_of_transformers";

static void compare_logits(const struct golden *g, struct subject *s, bool bf16, const char *name,
                           const char *where)
{
    int64_t row = (int64_t)golden_number(g, "logits_row", NULL, NULL);
    struct uly_batch batch = make_batch(&g->rows, row, 1);
    int64_t n;
    float *want = golden_tensor(g, "logits", &n);
    float *got = room(n, sizeof *got);
    for (int64_t i = 0; i < n; i++)
        got[i] = NAN;
    OK(uly_decoder_logits(s->decoder, &batch, got));
    double largest = 0.0;
    for (int64_t i = 0; i < n; i++)
        largest = fabs((double)got[i] - (double)want[i]) > largest || isnan(got[i])
                      ? fabs((double)got[i] - (double)want[i])
                      : largest;
    if (bf16)
        check_at_most(norm(got, want, n) / norm(want, NULL, n),
                      1.5 * golden_number(g, bf16_errors, "logits", NULL), name, "logits", where);
    else
        check_at_most(largest, 1e-4, name, "logits", where);
    free(got);
    free(want);
    free_batch(&batch);
}

/* Sum of the losses over valid labels, and token by token. */
static void compare_losses(const struct golden *g, struct subject *s, const struct uly_batch *batch,
                           bool bf16, const char *name, const char *where)
{
    const json_t *list = json_object_get(g->json, "token_losses");
    assert_int_equal(json_array_size(list), batch->S);
    float *want = room(batch->S, sizeof *want);
    float *got = room(batch->S, sizeof *got);
    for (int64_t i = 0; i < batch->S; i++) {
        want[i] = (float)json_number_value(json_array_get(list, (size_t)i));
        got[i] = NAN;
    }
    double sum = (double)NAN;
    OK(uly_decoder_forward(s->decoder, batch, &sum, got));
    double mean = golden_number(g, "loss", NULL, NULL);
    double n_valid = golden_number(g, "n_valid", NULL, NULL);
    check_at_most(fabs(sum / n_valid - mean) / mean, bf16 ? 1e-3 : 1e-5, name, "loss", where);
    for (int64_t i = 0; i < batch->S; i++)
        if (batch->labels[i] == ULY_IGNORE_LABEL)
            assert_float_equal(got[i], 0.0f, 0.0f);
    check_at_most(norm(got, want, batch->S) / norm(want, NULL, batch->S),
                  bf16 ? 1.5 * golden_number(g, bf16_errors, "token_losses", NULL) : 1e-5, name,
                  "token losses", where);
    free(want);
    free(got);
}

static void compare_gradients(const struct golden *g, struct subject *s, bool bf16,
                              const char *name, const char *where)
{
    double largest = 0.0;
    for (int i = 0; i < s->params.n; i++) {
        int64_t n;
        float *want = golden_tensor(g, s->params.list[i].name, &n);
        largest = fmax(largest, norm(want, NULL, n));
        free(want);
    }
    for (int i = 0; i < s->params.n; i++) {
        const struct uly_param *p = &s->params.list[i];
        int64_t n;
        float *want = golden_tensor(g, p->name, &n);
        assert_int_equal(uly_tensor_count(&p->grad), n);
        float *got = room(n, sizeof *got);
        OK(uly_tensor_read(s->be, p->grad, got));
        double limit = bf16 ? 1.5 * golden_number(g, bf16_errors, "gradients", p->name) : 1e-4;
        double scale = fmax(norm(want, NULL, n), gradient_floor * largest);
        check_at_most(norm(got, want, n) / scale, limit, name, p->name, where);
        free(got);
        free(want);
    }
}

static void compare(const char *name, const char *backend, enum uly_dtype dtype,
                    enum uly_checkpointing checkpointing)
{
    struct golden g;
    struct subject s;
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", getenv("ULY_TEST_DATA"), name);
    subject_open(&s, path, backend, dtype, checkpointing);
    golden_open(&g, name, uly_model_folder_config(s.folder)->vocab_size);
    char where[128];
    snprintf(where, sizeof where, "%s %s checkpointing %d", backend, uly_dtype_name(dtype),
             (int)checkpointing);
    bool bf16 = dtype == ULY_DTYPE_BF16;

    compare_logits(&g, &s, bf16, name, where);
    struct uly_batch batch = make_batch(&g.rows, 0, g.rows.n_pieces);
    compare_losses(&g, &s, &batch, bf16, name, where);
    double sum = (double)NAN;
    OK(uly_decoder_backward(s.decoder, &batch, 1.0 / golden_number(&g, "n_valid", NULL, NULL),
                            &sum));
    compare_gradients(&g, &s, bf16, name, where);
    free_batch(&batch);

    /* the same rows one by one: gradients add up to the same */
    OK(uly_fill(s.be, s.params.grads, 0.0));
    for (int64_t i = 0; i < g.rows.n_pieces; i++) {
        batch = make_batch(&g.rows, i, 1);
        OK(uly_decoder_backward(s.decoder, &batch, 1.0 / golden_number(&g, "n_valid", NULL, NULL),
                                &sum));
        free_batch(&batch);
    }
    compare_gradients(&g, &s, bf16, name, "row by row");
    golden_close(&g);
    subject_close(&s);
}

static void compare_all(const char *backend, enum uly_dtype dtype)
{
    for (int i = 0; i < N_CASES; i++) {
        if (i < N_BOTH || i % 2 == 0)
            compare(cases[i], backend, dtype, ULY_CHECKPOINT_NONE);
        if (i < N_BOTH || i % 2 == 1)
            compare(cases[i], backend, dtype, ULY_CHECKPOINT_FULL);
    }
}

static void test_float32(void **state)
{
    (void)state;
    compare_all("cpu", ULY_DTYPE_F32);
}

static void test_bfloat16(void **state)
{
    (void)state;
    compare_all("cpu", ULY_DTYPE_BF16);
}

static void test_reference_float32(void **state)
{
    (void)state;
    compare_all("cpu:ref", ULY_DTYPE_F32);
}

static void test_reference_bfloat16(void **state)
{
    (void)state;
    compare_all("cpu:ref", ULY_DTYPE_BF16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_float32),
        cmocka_unit_test(test_reference_bfloat16),
        cmocka_unit_test(test_float32),
        cmocka_unit_test(test_bfloat16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
