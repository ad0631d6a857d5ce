/* SPDX-License-Identifier: MIT
 *
 * What a run does with its layout: ranks on several machines (threads that pretend), the warning where a ulysses group
 * spans them, what auto takes as memory shrinks, the rule that compares gradients, and a selfcheck that fails.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "checkpoint/init_model.h"
#include "support/folder.h"
#include "support/model_fixture.h"
#include "train/parity_rule.h"
#include "train/run.h"
#include "train/selfcheck.h"

static char folder[TEST_PATH], told[1 << 14];

/* ------------------------------------------------------------------ a run */

struct run_case {
    const char *extra;           /* options */
    const char *const *machines; /* [ranks]; NULL: as they are */
    int64_t memory;
    FILE *out;
};

/* Attention is most of what this model takes. */
static void write_model(void)
{
    char config[TEST_PATH], model[TEST_PATH], row[8192];
    struct uly_init_result result;
    size_t used = (size_t)snprintf(row, sizeof row, "{\"input_ids\": [1");
    for (int i = 0; i < 512; i++)
        used += (size_t)snprintf(row + used, sizeof row - used, ", %d", 2 + i * i % 37);
    snprintf(row + used, sizeof row - used, "]}\n");
    test_folder_make(folder);
    test_write_text(folder, "rows.jsonl", row);
    test_write_text(folder, "given.json",
                    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", "
                    "\"hidden_size\": 32, \"intermediate_size\": 32, \"num_hidden_layers\": 1, "
                    "\"num_attention_heads\": 16, \"num_key_value_heads\": 4, \"head_dim\": 64, "
                    "\"vocab_size\": 40, \"max_position_embeddings\": 1024, \"hidden_act\": "
                    "\"silu\", \"rms_norm_eps\": 1e-5, \"torch_dtype\": \"float32\"}");
    test_path(config, folder, "given.json");
    if (uly_init_model(test_path(model, folder, "model"), config, NULL, 3, &result) != ULY_OK ||
        uly_init_model(test_path(model, folder, "other"), config, NULL, 4, &result) != ULY_OK)
        fail_msg("%s", uly_error_message());
}

/* Stops before its first step: the layout is chosen, the memory taken, the story told. */
static enum uly_status train(struct uly_comm *world, void *arg)
{
    static const volatile sig_atomic_t stop = 1;
    const struct run_case *c = arg;
    struct uly_train_options values;
    struct uly_options options;
    char line[3 * TEST_PATH + 256], *argv[32];
    int argc = 0;
    snprintf(line, sizeof line,
             "--model %s/model --data %s/rows.jsonl --output-dir %s/out --overwrite-output-dir "
             "--threads 1 --dtype float32 %s",
             folder, folder, folder, c->extra);
    for (char *word = line, *end; *word; word = end) {
        end = word + strcspn(word, " ");
        if (*end)
            *end++ = 0;
        argv[argc++] = word;
    }
    struct uly_run_io io = {.out = c->out, .stop = &stop, .memory = c->memory};
    if (c->machines)
        uly_comm_set_host_names(world, c->machines);
    enum uly_status status = uly_options_init(&options, uly_train_option_table(), &values);
    if (status == ULY_OK)
        status = uly_options_parse(&options, argc, argv);
    if (status == ULY_OK)
        status = uly_train_options_check(&values, false);
    if (status == ULY_OK)
        status = uly_run_train(&options, world, &io);
    uly_options_clear(&options);
    return status;
}

/* The run's status; what rank 0 said is in `told`. */
static enum uly_status run(int ranks, struct run_case c)
{
    c.out = tmpfile();
    assert_non_null(c.out);
    enum uly_status status = uly_comm_run_threads(ranks, train, &c);
    rewind(c.out);
    told[fread(told, 1, sizeof told - 1, c.out)] = 0;
    fclose(c.out);
    return status;
}

static void says(const char *text)
{
    if (!strstr(told, text))
        fail_msg("\"%s\" is not in\n%s", text, told);
}

/* ------------------------------------------------------------------ machines */

static void test_machines(void **state)
{
    static const char *const two[] = {"east", "east", "west", "west"};
    static const char *const uneven[] = {"east", "west", "west", "west"};
    (void)state;
    assert_int_equal(run(4, (struct run_case){.extra = "", .machines = two}), ULY_OK);
    says("(method usp, ulysses-size 2, ring-size 2, heads-per-stage 8)");
    says("auto: a ulysses group of 4 would span machines; the ring does; stages of 8 heads fit");
    says("replica 0: ranks 0-1 on east, ranks 2-3 on west");
    assert_null(strstr(told, "span machines, so"));
    assert_int_equal(run(4, (struct run_case){.extra = "--method ulysses", .machines = two}),
                     ULY_OK);
    says("(method ulysses, ulysses-size 4, ring-size 1, heads-per-stage 4)");
    says("warning   ulysses ranks 0-3 span machines, so their exchanges cross the network (ranks a "
         "machine: east 2, west 2); --method usp --ulysses-size 2 --ring-size 2 keeps each group "
         "on one");
    assert_int_equal(
        run(4, (struct run_case){.extra = "--method upipe --sp-size 2", .machines = uneven}),
        ULY_OK);
    says("warning   ulysses ranks 0-1 span machines, so their exchanges cross the network (ranks a "
         "machine: east 1, west 3); --method usp --ulysses-size 1 --ring-size 2 keeps each group "
         "on one");
    assert_int_equal(run(4, (struct run_case){.extra = "--method usp", .machines = uneven}),
                     ULY_OK);
    says("(method usp, ulysses-size 1, ring-size 4, heads-per-stage 4)");
}

/* ------------------------------------------------------------------ memory */

/* "heads-per-stage 4, query-tile 129)" of the layout line. */
static void stage_told(char *out, size_t bytes)
{
    const char *at = strstr(told, "heads-per-stage "), *end = at ? strchr(at, ')') : NULL;
    assert_non_null(end);
    snprintf(out, bytes, "%.*s", (int)(end - at), at);
}

/* The stages that runs take as memory shrinks by a fiftieth each, until one is refused. */
static void shrink(int ranks, const char *option, const char *const *want)
{
    char before[64] = "", now[64];
    int i = 0;
    for (int64_t memory = (int64_t)40 << 20;; memory -= memory / 50) {
        struct run_case c = {.extra = option, .memory = memory};
        assert_true(memory > 1 << 20);
        enum uly_status status = run(ranks, c);
        if (status != ULY_OK) {
            assert_int_equal(status, ULY_ERR_NO_MEMORY);
            break;
        }
        stage_told(now, sizeof now);
        if (strcmp(now, before) == 0)
            continue;
        if (!want[i])
            fail_msg("after %s: %s", before, now);
        assert_string_equal(now, want[i]);
        memcpy(before, now, sizeof before);
        if (i++ > 0)
            says(" would need ");
    }
    assert_null(want[i]);
    if (ranks == 1) /* of several, one has the message */
        test_error_says("does not fit|the limit given|--heads-per-stage");
}

static void test_memory(void **state)
{
    static const char *const one[] = {"heads-per-stage 16", "heads-per-stage 4",
                                      "heads-per-stage 1", "heads-per-stage 1, query-tile 129",
                                      NULL};
    static const char *const two[] = {"heads-per-stage 8", "heads-per-stage 4", "heads-per-stage 1",
                                      "heads-per-stage 1, query-tile 65", NULL};
    static const char *const kept[] = {"heads-per-stage 5", "heads-per-stage 5, query-tile 129",
                                       NULL};
    static const char *const named[] = {"heads-per-stage 1", NULL};
    (void)state;
    shrink(1, "", one);
    shrink(2, "", two);
    shrink(1, "--heads-per-stage 5", kept);
    shrink(1, "--method upipe", named);
}

/* ------------------------------------------------------------------ the rule */

static void test_rule(void **state)
{
    struct model_case c = model_case_small(2, 1);
    struct uly_model_config config = model_config_of(&c);
    struct uly_params params;
    struct uly_memory memory;
    struct uly_backend *be;
    struct uly_parity result;
    float *want = NULL;
    (void)state;
    assert_int_equal(uly_backend_create("cpu:ref", 1, &be), ULY_OK);
    uly_memory_init(&memory, uly_backend_space(be));
    assert_int_equal(uly_params_init(&config, &params), ULY_OK);
    assert_int_equal(uly_params_make_tensors(&params, ULY_DTYPE_F32, true, &memory), ULY_OK);
    assert_int_equal(uly_memory_reserve(&memory), ULY_OK);
    float *grads = uly_tensor_address(params.grads);
    for (int64_t i = 0; i < uly_tensor_count(&params.grads); i++)
        grads[i] = i % 2 ? 0.5f : -0.5f;
    const struct uly_param *head = &params.list[params.head], *v = &params.list[params.layers[1].v];
    float *in_head = uly_tensor_address(head->grad), *in_v = uly_tensor_address(v->grad);
    int64_t last = uly_tensor_count(&head->grad) - 1;
    in_head[last] = -64;
    assert_int_equal(uly_parity_keep(&params, be, &want), ULY_OK);
    assert_int_equal(uly_parity_compare(&params, be, want, &result), ULY_OK);
    assert_true(result.excess == 0 && result.difference == 0);
    assert_string_equal(result.name, "");
    /* 1e-5 of the tensor's 0.5 is less than 1e-7 of the 64 of all: 6.4e-6 are allowed */
    in_v[3] += 0x1p-18f; /* 3.8e-6 */
    assert_int_equal(uly_parity_compare(&params, be, want, &result), ULY_OK);
    assert_true(fabs(result.excess - 0x1p-18 / 6.4e-6) < 1e-9);
    assert_string_equal(result.name, "model.layers.1.self_attn.v_proj.weight");
    in_v[3] += 0x1p-18f;
    assert_int_equal(uly_parity_compare(&params, be, want, &result), ULY_OK);
    assert_true(result.excess > 1 && result.excess < 1.2);
    assert_true(fabs(result.difference - 0x1p-16) < 1e-12);
    in_head[last] += 0x1p-10f; /* 1.5 of what is allowed there */
    assert_int_equal(uly_parity_compare(&params, be, want, &result), ULY_OK);
    assert_true(fabs(result.excess - 0x1p-10 / 64e-5) < 1e-9);
    assert_string_equal(result.name, "lm_head.weight");
    in_v[0] = (float)NAN; /* never equal */
    assert_int_equal(uly_parity_compare(&params, be, want, &result), ULY_OK);
    assert_true(isinf(result.excess) != 0);
    assert_string_equal(result.name, v->name);
    uly_free(want);
    uly_params_clear(&params);
    uly_memory_clear(&memory);
    uly_backend_destroy(be);
}

/* ------------------------------------------------------------------ selfcheck */

struct check_case {
    const char *last; /* the model of the last rank, in the folder */
    FILE *out;
};

static enum uly_status check(struct uly_comm *world, void *arg)
{
    const struct check_case *c = arg;
    char model[TEST_PATH];
    bool is_last = uly_comm_rank(world) == uly_comm_size(world) - 1;
    test_path(model, folder, is_last ? c->last : "model");
    struct uly_selfcheck_options options = {.model = model, .layers = 2, .threads = 1};
    struct uly_run_io io = {.out = c->out};
    return uly_selfcheck(&options, world, &io);
}

static int lines_with(const char *begin)
{
    int n = 0;
    for (const char *at = told; at; at = strchr(at, '\n')) {
        at += *at == '\n';
        n += strncmp(at, begin, strlen(begin)) == 0;
    }
    return n;
}

/* A rank with other weights is what any fault of a layout looks like: every line fails, and so does the whole. */
static void test_selfcheck_fails(void **state)
{
    static const char *const last[] = {"model", "other"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct check_case c = {last[i], tmpfile()};
        assert_non_null(c.out);
        enum uly_status status = uly_comm_run_threads(3, check, &c);
        rewind(c.out);
        told[fread(told, 1, sizeof told - 1, c.out)] = 0;
        fclose(c.out);
        assert_int_equal(status, i ? ULY_ERR_INVALID : ULY_OK);
        /* 3 x 1: 1, a kv group of 4, all 6, tiles; 1 x 3: 1, 4, 16 */
        assert_int_equal(lines_with("pass  "), i ? 0 : 7);
        assert_int_equal(lines_with("FAIL  "), i ? 7 : 0);
    }
}

static int set_up(void **state)
{
    (void)state;
    write_model();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    test_folder_remove(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_machines),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_rule),
        cmocka_unit_test(test_selfcheck_fails),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
