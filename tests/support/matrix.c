/* SPDX-License-Identifier: MIT */
#include "support/matrix.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parallel/layout.h"

/* ------------------------------------------------------------------ factors */

enum documents {
    ONE_DOCUMENT,
    BORDER_AT_FIRST, /* a document begins at the first token of a shard */
    BORDER_AT_LAST,  /* at its last token */
    BORDER_BEFORE,   /* one token before that */
    BORDER_AFTER,    /* at its second token */
    BORDER_INSIDE,
    LENGTHS_1_TO_3,
    PRIME_LENGTH,
    FEWER_THAN_RANKS,
    N_DOCUMENTS
};

static const char *const documents_names[] = {"one document",
                                              "border at a shard's first token",
                                              "at its last",
                                              "one before its last",
                                              "one after its first",
                                              "inside",
                                              "lengths 1-3",
                                              "S prime",
                                              "S < P"};
static const int sizes[] = {1, 2, 3, 4, 6, 8};
static const enum uly_dtype dtypes[] = {ULY_DTYPE_F32, ULY_DTYPE_BF16};

struct family {
    const char *name;
    int H, K, D;
    int64_t window;
    bool tied, qkv_bias, qk_norm;
};

/* The hidden size is 24 throughout, so no head size but 3 is E / H. */
static const struct family families[MATRIX_MODELS] = {
    {"Llama (8,2)", 8, 2, 8, 0, false, false, false},
    {"MHA (7,7)", 7, 7, 4, 0, false, false, false},
    {"(28,4)", 28, 4, 4, 0, false, false, false},
    {"MQA (8,1)", 8, 1, 8, 0, false, false, false},
    {"Qwen2 (14,2)", 14, 2, 8, 0, true, true, false},
    {"Qwen3 (8,2)", 8, 2, 10, 0, true, false, true},
    {"Mistral (8,2), window 7", 8, 2, 8, 7, false, false, false},
};

const int matrix_levels[MATRIX_FACTORS] = {
    N_METHODS, sizeof sizes / sizeof *sizes, 2, MATRIX_MODELS, N_DOCUMENTS, MATRIX_DTYPES};

const char *matrix_level_name(enum matrix_factor factor, int level)
{
    static const char *const digits[] = {"0", "1", "2", "3", "4", "5", "6", "7", "8"};
    switch (factor) {
    case MATRIX_METHOD:
        return method_label(level);
    case MATRIX_SP:
        return digits[sizes[level]];
    case MATRIX_DP:
        return digits[level + 1];
    case MATRIX_MODEL:
        return families[level].name;
    case MATRIX_DOCUMENTS:
        return documents_names[level];
    default:
        return uly_dtype_name(dtypes[level]);
    }
}

const char *matrix_text(const int *choice)
{
    static _Thread_local char text[200];
    snprintf(text, sizeof text, "%s, sp %s, dp %s, %s, %s, %s",
             matrix_level_name(MATRIX_METHOD, choice[MATRIX_METHOD]),
             matrix_level_name(MATRIX_SP, choice[MATRIX_SP]),
             matrix_level_name(MATRIX_DP, choice[MATRIX_DP]),
             matrix_level_name(MATRIX_MODEL, choice[MATRIX_MODEL]),
             matrix_level_name(MATRIX_DOCUMENTS, choice[MATRIX_DOCUMENTS]),
             matrix_level_name(MATRIX_DTYPE, choice[MATRIX_DTYPE]));
    return text;
}

static bool grid_of(const int *choice, struct model_grid *out)
{
    const struct family *f = &families[choice[MATRIX_MODEL]];
    return method_grid(choice[MATRIX_METHOD], choice[MATRIX_DP] + 1, sizes[choice[MATRIX_SP]], f->H,
                       f->K, out);
}

bool matrix_valid(const int *choice)
{
    struct model_grid grid;
    bool too_short = choice[MATRIX_DOCUMENTS] == FEWER_THAN_RANKS && sizes[choice[MATRIX_SP]] == 1;
    return grid_of(choice, &grid) && !too_short;
}

/* ------------------------------------------------------------------ documents */

enum { MOST_TOKENS = 64 };

struct rows {
    int64_t S, n_docs, starts[MOST_TOKENS];
    int32_t *ids, *labels;
};

static void add_start(struct rows *r, int64_t start)
{
    if (start > r->starts[r->n_docs - 1] && start < r->S)
        r->starts[r->n_docs++] = start;
}

/* First tokens of the shards' segments but the first, rising. One rank has none: the borders of two ranks then. */
static int shard_borders(const struct model_grid *grid, int64_t S, int64_t *out)
{
    int n = 0, Pu = grid->ulysses * grid->ring == 1 ? 2 : grid->ulysses;
    bool first[MOST_TOKENS] = {false};
    struct uly_segment segment[2];
    for (int ring = 0; ring < grid->ring; ring++)
        for (int u = 0; u < Pu; u++)
            for (int i = uly_layout(S, grid->ring, Pu, ring, u, segment) - 1; i >= 0; i--)
                first[segment[i].start] = true;
    for (int64_t i = 1; i < S; i++)
        if (first[i])
            out[n++] = i;
    return n;
}

/* Of many shards every third has a border, so that documents span whole shards too. */
static void put_borders(struct rows *r, const struct model_grid *grid, enum documents which)
{
    int64_t border[MOST_TOKENS];
    int n = shard_borders(grid, r->S, border);
    for (int i = 0; i<n; i += n> 4 ? 3 : 1) {
        int64_t end = i + 1 < n ? border[i + 1] : r->S;
        int64_t start = which == BORDER_AT_FIRST  ? border[i]
                        : which == BORDER_AT_LAST ? border[i] - 1
                        : which == BORDER_BEFORE  ? border[i] - 2
                        : which == BORDER_AFTER   ? border[i] + 1
                                                  : (border[i] + end) / 2;
        add_start(r, start);
    }
}

/* The rows of a micro-batch. The second one's are fewer, and there is none beside one document. */
static void make_rows(struct rows *r, const struct model_grid *grid, enum documents which,
                      int index)
{
    static const int64_t tokens[N_DOCUMENTS] = {48, 56, 57, 58, 59, 60, 43, 0, 0};
    static const int64_t primes[] = {0, 1, 18, 41, 42};
    *r = (struct rows){.S = tokens[which] - 7 * index, .n_docs = 1};
    if (which == FEWER_THAN_RANKS)
        r->S = index ? 31 : grid->ulysses * grid->ring - 1;
    if (which == PRIME_LENGTH)
        r->S = index ? 47 : 61;
    if (which >= BORDER_AT_FIRST && which <= BORDER_INSIDE)
        put_borders(r, grid, which);
    else if (which == LENGTHS_1_TO_3)
        for (int64_t at = 1, i = 1; at < r->S; i++, at += 1 + i % 3)
            add_start(r, at);
    else if (which == PRIME_LENGTH)
        for (size_t i = 1; i < sizeof primes / sizeof *primes; i++)
            add_start(r, primes[i]);
    else if (which == FEWER_THAN_RANKS && r->S > 2)
        add_start(r, r->S / 2);
}

/* Two micro-batches where there are two replicas, one beside an empty replica for one document. A micro-batch of fewer
 * tokens than ranks has another one beside it always: the gradient of q and k of a token that sees itself alone is zero,
 * and what one computes is rounding, which has no relative error to speak of. */
static int rows_of(const int *choice)
{
    enum documents which = (enum documents)choice[MATRIX_DOCUMENTS];
    if (which == ONE_DOCUMENT)
        return 1;
    return which == FEWER_THAN_RANKS ? 2 : choice[MATRIX_DP] + 1;
}

static void fill_rows(struct rows *r, int64_t V, uint64_t seed)
{
    int64_t valid = 0;
    model_make_rows(r->S, V, r->starts, r->n_docs, seed, &r->ids, &r->labels);
    for (int64_t i = 0; i < r->S; i++)
        valid += r->labels[i] != ULY_IGNORE_LABEL;
    if (valid == 0)
        r->labels[0] = 1; /* a loss to compare, whatever the lengths are */
}

/* ------------------------------------------------------------------ kinds of tensors */

/* The first that a tensor's name contains. */
static const char *const kinds[MATRIX_KINDS] = {
    "q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight", "q_proj.bias",
    "k_proj.bias",   "v_proj.bias",   "q_norm.weight", "k_norm.weight", "gate_proj",
    "up_proj",       "down_proj",     "norm.weight",   "embed_tokens",  "lm_head"};

const char *matrix_kind_name(int kind)
{
    return kinds[kind];
}

static int kind_of(const char *tensor)
{
    for (int i = 0; i < MATRIX_KINDS; i++)
        if (strstr(tensor, kinds[i]))
            return i;
    return 12; /* input_layernorm, post_attention_layernorm */
}

/* ------------------------------------------------------------------ comparing */

/* Results of a case: on its grid, on one rank, and on one rank in float32 (the same as `one` for float32). */
struct results {
    struct model_result got, one, exact;
};

static double l2(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (a[i] - (b ? b[i] : 0)) * (a[i] - (b ? b[i] : 0));
    return isnan(sum) ? HUGE_VAL : sqrt(sum);
}

static double largest(const double *a, const double *b, int64_t n)
{
    double top = 0;
    for (int64_t i = 0; i < n; i++) {
        double x = fabs(a[i] - (b ? b[i] : 0));
        top = isnan(x) ? HUGE_VAL : fmax(top, x);
    }
    return top;
}

/* float32: largest difference, of 1e-5 of the tensor's largest value, or 1e-7 of the largest of all. bfloat16: L2 error
 * against float32, of 1.5 times the error that one rank has; the same floor. */
static void compare_gradients(const struct results *r, bool bf16, struct matrix_measure *out)
{
    const struct model_result *want = &r->exact;
    double (*size)(const double *, const double *, int64_t) = bf16 ? l2 : largest;
    double top = 0;
    for (int p = 0; p < want->n_params; p++)
        top = fmax(top,
                   size(want->grads + want->first[p], NULL, want->first[p + 1] - want->first[p]));
    for (int p = 0; p < want->n_params; p++) {
        int64_t at = want->first[p], n = want->first[p + 1] - at;
        double allowed = fmax(1e-5 * size(want->grads + at, NULL, n), 1e-7 * top);
        if (bf16)
            allowed = fmax(allowed, 1.5 * l2(r->one.grads + at, want->grads + at, n));
        double ratio = size(r->got.grads + at, want->grads + at, n) / allowed;
        int kind = kind_of(want->names[p]);
        out->kind[kind] = fmax(out->kind[kind], ratio);
        if (ratio > out->gradient) {
            out->gradient = ratio;
            memcpy(out->tensor, want->names[p], sizeof out->tensor);
        }
    }
}

/* Each token's loss. float32: 1e-6 of the largest one. bfloat16: no token is further from one rank's loss than 1.5
 * times the furthest that rounding takes one rank's from float32. */
static double compare_tokens(const struct results *r, bool bf16)
{
    double worst = 0, rounding = 0, top = 0;
    for (int64_t i = 0; i < r->one.S; i++) {
        double one = (double)r->one.losses[i], d = fabs((double)r->got.losses[i] - one);
        top = fmax(top, one);
        rounding = fmax(rounding, fabs(one - (double)r->exact.losses[i]));
        worst = isnan(d) ? HUGE_VAL : fmax(worst, d);
    }
    return worst / fmax(1e-6 * top, bf16 ? 1.5 * rounding : 0);
}

static void compare(const struct results *r, bool bf16, struct matrix_measure *out)
{
    *out = (struct matrix_measure){.tensor = "none"};
    for (int i = 0; i < MATRIX_KINDS; i++)
        out->kind[i] = -1;
    double loss = fabs(r->got.loss_sum - r->one.loss_sum) / fabs(r->one.loss_sum);
    out->loss = (isnan(loss) ? HUGE_VAL : loss) / (bf16 ? 1e-3 : 1e-6);
    out->token = compare_tokens(r, bf16);
    compare_gradients(r, bf16, out);
}

/* ------------------------------------------------------------------ a case */

static struct model_case model_of(const int *choice)
{
    const struct family *f = &families[choice[MATRIX_MODEL]];
    struct model_case c = model_case_small(f->H, f->K);
    c.D = f->D;
    c.F = 36;
    c.V = 40;
    c.weight_size = 1;
    c.backend = "cpu";
    c.window = f->window;
    c.tied = f->tied;
    c.qkv_bias = f->qkv_bias;
    c.qk_norm = f->qk_norm;
    /* not factors, as they have nothing to do with the layout: both values all over the matrix */
    c.checkpointing = (choice[MATRIX_DOCUMENTS] + choice[MATRIX_SP]) % 2 ? ULY_CHECKPOINT_NONE
                                                                         : ULY_CHECKPOINT_FULL;
    c.token_tile = choice[MATRIX_DOCUMENTS] % 3 ? 0 : 5;
    return c;
}

static void run_all(struct model_case *c, const struct model_grid *grid, bool bf16,
                    struct results *r)
{
    const struct model_grid alone = {1, 1, 1, 0, 0};
    c->dtype = ULY_DTYPE_F32;
    model_run_on(c, &alone, true, &r->exact);
    c->dtype = bf16 ? ULY_DTYPE_BF16 : ULY_DTYPE_F32;
    if (bf16)
        model_run_on(c, &alone, true, &r->one);
    else
        r->one = r->exact;
    model_run_on(c, grid, true, &r->got);
}

void matrix_measure(const int *choice, struct matrix_measure *out)
{
    bool bf16 = dtypes[choice[MATRIX_DTYPE]] == ULY_DTYPE_BF16;
    enum documents which = (enum documents)choice[MATRIX_DOCUMENTS];
    struct model_case c = model_of(choice);
    struct model_grid grid;
    struct rows rows[2] = {0};
    struct results r;
    int n_rows = rows_of(choice);
    grid_of(choice, &grid);
    for (int i = 0; i < n_rows; i++) {
        make_rows(&rows[i], &grid, which, i);
        fill_rows(&rows[i], c.V, (uint64_t)(5 + i));
    }
    struct uly_batch second = {rows[1].S, rows[1].n_docs, rows[1].starts, rows[1].ids,
                               rows[1].labels};
    c.S = rows[0].S;
    c.n_docs = rows[0].n_docs;
    c.starts = rows[0].starts;
    c.ids = rows[0].ids;
    c.labels = rows[0].labels;
    c.second = n_rows > 1 ? &second : NULL;
    run_all(&c, &grid, bf16, &r);
    compare(&r, bf16, out);
    for (int i = 0; i < n_rows; i++) {
        free(rows[i].ids);
        free(rows[i].labels);
    }
    model_result_clear(&r.got);
    model_result_clear(&r.exact);
    if (bf16)
        model_result_clear(&r.one);
}
