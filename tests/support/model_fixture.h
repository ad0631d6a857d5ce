/* SPDX-License-Identifier: MIT
 *
 * A small random model and one or two micro-batches, run over any grid of ranks: losses, logits, loss sum and every
 * gradient, summed over ranks, as plain arrays.
 */
#ifndef ULY_TESTS_MODEL_FIXTURE_H
#define ULY_TESTS_MODEL_FIXTURE_H

#include "model/decoder.h"

enum { MODEL_MAX_RANKS = 16 };

struct model_case {
    int H, K, D, layers;
    int64_t E, F, V;
    bool tied, qkv_bias, o_bias, mlp_bias, llama3, qk_norm;
    enum uly_rope_type rope;        /* sizes as in model_rope_of; llama3 above is ULY_ROPE_LLAMA3 */
    int64_t window;                 /* 0: none */
    uint32_t layers_without_window; /* bit l: layer l sees everything all the same */
    const char *backend;
    enum uly_dtype dtype;
    enum uly_checkpointing checkpointing;
    int heads_per_stage, token_tile, threads;
    double weight_size; /* of matrices and biases, times 1 / sqrt(E) */
    uint64_t seed;
    /* the micro-batch */
    int64_t S, n_docs;
    const int64_t *starts;
    const int32_t *ids, *labels;
    const struct uly_batch *
        second; /* another micro-batch, or NULL; with dp 2 the second replica's (empty where NULL) */
    bool logits; /* wanted too */
    int slow;    /* above 0: ranks sleep at random at the borders of layers, seeded by it */
    /* weight `nudge_index` of parameter `nudge_param` gets this much more (finite differences) */
    int nudge_param;
    int64_t nudge_index;
    double nudge;
};

/* How a case lies over ranks. */
struct model_grid {
    int dp, ulysses, ring;
    int heads_per_stage; /* 0: all of a rank's */
    int64_t query_tile;  /* 0: the whole shard */
};

/* Tokens of the second micro-batch come after those of the first. */
struct model_result {
    int n_params;
    char (*names)[96]; /* [n_params] */
    int64_t *first;    /* [n_params + 1] where each parameter's gradient lies */
    double *grads;     /* all gradients end to end */
    int64_t S;         /* of both micro-batches */
    float *losses;     /* [S] per token */
    float *logits;     /* [S, V] where the case wants them, else NULL */
    double loss_sum;
    int64_t n_valid;
    int64_t exchanges[MODEL_MAX_RANKS]; /* that each rank entered with the ranks of its replica */
};

/* The case's configuration, and its weights: a function of (parameter, element) alone, rounded to bfloat16 first, so that
 * every dtype starts equal. Masters too, where they are tensors of their own. */
struct uly_model_config model_config_of(const struct model_case *c);
void model_fill_weights(const struct model_case *c, struct uly_params *params);

/* Settings of a rope type for heads of D: the original length (of dynamic the maximum of positions) is
 * MODEL_ROPE_ORIGINAL, so that documents of a few dozen tokens lie on both sides of it. */
enum { MODEL_ROPE_ORIGINAL = 16 };
struct uly_rope_config model_rope_of(enum uly_rope_type type, int D);

/* Defaults of a case: float64 on cpu:ref, full checkpointing, weights of size 1.5, no documents yet. */
struct model_case model_case_small(int H, int K);

/* Ids and labels with uneven masks for S tokens and documents; the caller frees both with free(). */
void model_make_rows(int64_t S, int64_t V, const int64_t *starts, int64_t n_docs, uint64_t seed,
                     int32_t **ids, int32_t **labels);

/* Runs forward and backward with loss factor 1 / n_valid over the grid's ranks, as threads; the case's heads_per_stage is
 * not used. Fails the test on any error. with_grads false: forward only. The caller clears the result. */
void model_run_on(const struct model_case *c, const struct model_grid *grid, bool with_grads,
                  struct model_result *out);
/* The same with ulysses ranks only, and the case's heads_per_stage. */
void model_run(const struct model_case *c, int ranks, bool with_grads, struct model_result *out);
void model_result_clear(struct model_result *r);

/* Worst difference between two results by design.md section 10's float32 rule, as a multiple of the allowed one: for each
 * tensor, max difference over max(relative * its largest value, floor * the largest of all). Names the tensor. */
double model_worst_gradient(const struct model_result *got, const struct model_result *want,
                            double relative, double floor, const char **name);

#endif
