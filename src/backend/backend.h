/* SPDX-License-Identifier: MIT
 *
 * Backend: all arithmetic, as one table of operations at the grain of a layer. Nothing above this header does arithmetic
 * on tensors or turns one into an address.
 *
 *   struct uly_backend *be;
 *   uly_backend_create("cpu", threads, &be);
 *   uly_matmul(be, &(struct uly_matmul_args){.a = x, .b = w, .c = y, .transpose_b = true});
 *   uly_backend_destroy(be);
 *
 * The functions below check shapes, types and bounds once (ULY_ERR_INVALID names the operation and the shapes) and then
 * call the table; implementations trust their arguments. `cpu:ref` is the specification: plain loops, double
 * accumulators, every dtype also float64. `cpu` takes float32 and bfloat16.
 *
 * Types. "model" is the dtype of weights and activations: float32, bfloat16 (or float64 in cpu:ref). "acc" is float32, or
 * float64 where model is float64: gradients of parameters, moments, LSE, delta. Every operation computes in float32 or
 * better and rounds once where it stores. Results do not depend on the number of threads, bit for bit.
 *
 * Letters as in docs/design.md: s rows (tokens) of this call, E hidden, F MLP, V vocabulary, H heads, D head size.
 * A tensor argument marked optional is absent when its arena is NULL.
 */
#ifndef ULY_BACKEND_BACKEND_H
#define ULY_BACKEND_BACKEND_H

#include "base/tensor.h"

struct uly_backend;

/* ------------------------------------------------------------------ life */

/* name: "cpu", "cpu:ref", or "cpu:generic" / "cpu:avx2" / "cpu:avx512" (a vector width forced; "cpu" takes the best that
 * this CPU has, or what the environment variable ULY_CPU_ISA names: generic, avx2, avx512). n_threads >= 1.
 * ULY_ERR_UNSUPPORTED for a name or an instruction set that this machine lacks. *out: the caller destroys it. */
enum uly_status uly_backend_create(const char *name, int n_threads, struct uly_backend **out);
void uly_backend_destroy(struct uly_backend *be); /* NULL is fine */

const char *uly_backend_name(const struct uly_backend *be); /* e.g. "cpu (avx2, 2 threads)" */
int uly_backend_threads(const struct uly_backend *be);
const struct uly_mem_space *uly_backend_space(const struct uly_backend *be);
bool uly_backend_supports(const struct uly_backend *be, enum uly_dtype model);
/* Bytes of working memory that the backend holds by itself (per-thread scratch, bounded, independent of lengths). */
int64_t uly_backend_scratch_bytes(const struct uly_backend *be);

/* A long operation calls this now and then, from the calling thread, so that communication progresses. */
typedef void (*uly_poke_fn)(void *context);
void uly_backend_set_poke(struct uly_backend *be, uly_poke_fn poke, void *context);

/* The address of a tensor's first element. Only backends and communicators may call it, and tests. */
static inline void *uly_tensor_address(struct uly_tensor t)
{
    return t.arena->base + t.offset;
}

/* ------------------------------------------------------------------ data in, data out */

/* Host memory to tensor and back: dense, row-major, same dtype, uly_tensor_count elements. */
enum uly_status uly_tensor_write(struct uly_backend *be, struct uly_tensor t, const void *host);
enum uly_status uly_tensor_read(struct uly_backend *be, struct uly_tensor t, void *host);

/* Every element = value. */
enum uly_status uly_fill(struct uly_backend *be, struct uly_tensor t, double value);

/* dst = src, converted to dst's dtype (float types); same shape, any strides. */
enum uly_status uly_cast(struct uly_backend *be, struct uly_tensor src, struct uly_tensor dst);

/* dst += src; dst is acc or model, src any float type; same shape. */
enum uly_status uly_add(struct uly_backend *be, struct uly_tensor src, struct uly_tensor dst);

/* t *= factor (acc tensors). */
enum uly_status uly_scale(struct uly_backend *be, struct uly_tensor t, double factor);

/* *out = sum of squares in double, in an order that depends on the count alone. */
enum uly_status uly_sum_squares(struct uly_backend *be, struct uly_tensor t, double *out);

/* ------------------------------------------------------------------ matrix product */

/* c[m, n] = op(a)[m, k] op(b)[k, n] (+ c) (+ bias): one rounding, at the store. op is the transpose where asked.
 *   forward   y[s, N]  = x[s, K] W[N, K]'      transpose_b
 *   backward  dx[s, K] = dy[s, N] W[N, K]      neither
 *   weights   dW[N, K] += dy[s, N]' x[s, K]    transpose_a, accumulate, c is acc
 * a and b are model; c is model or acc. 2-D (or 3-D read as [rows, the rest]), any row stride. k = 0 gives c = bias, or
 * leaves c alone when accumulating; m or n = 0 does nothing. */
struct uly_matmul_args {
    struct uly_tensor a, b, c;
    bool transpose_a, transpose_b;
    bool accumulate;
    struct uly_tensor bias; /* optional, model, [n] */
};
enum uly_status uly_matmul(struct uly_backend *be, const struct uly_matmul_args *args);

/* out[N] += column sums of x[s, N]; out is acc, x model or acc. The gradient of a bias. */
enum uly_status uly_column_sum(struct uly_backend *be, struct uly_tensor x, struct uly_tensor out);

/* ------------------------------------------------------------------ token-wise */

/* y = x * w / sqrt(mean(x^2) + eps), row by row over the last dimension (Zhang and Sennrich 2019; Transformers'
 * LlamaRMSNorm, except that the product with w is made before the rounding). x, y: [s, E] model, w: [E] model. y may be x. */
struct uly_rmsnorm_fwd_args {
    struct uly_tensor x, w, y;
    double eps;
};
enum uly_status uly_rmsnorm_fwd(struct uly_backend *be, const struct uly_rmsnorm_fwd_args *args);

/* With r = 1 / sqrt(mean(x^2) + eps), g = dy * w: dx += r * (g - x * r^2 * mean(g * x)); dw += sum over rows of dy * x * r.
 * x: [s, E] model; dy: [s, E] model or acc; dx: [s, E] model or acc, ADDED to, one rounding; dw: [E] acc, optional. */
struct uly_rmsnorm_bwd_args {
    struct uly_tensor x, w, dy, dx, dw;
    double eps;
};
enum uly_status uly_rmsnorm_bwd(struct uly_backend *be, const struct uly_rmsnorm_bwd_args *args);

/* y = silu(gate) * up, all [s, F] model; y may be gate or up. */
enum uly_status uly_swiglu_fwd(struct uly_backend *be, struct uly_tensor gate, struct uly_tensor up,
                               struct uly_tensor y);
/* dgate = dy * up * silu'(gate), dup = dy * silu(gate); all [s, F] model; dgate may be gate, dup may be up or dy. */
enum uly_status uly_swiglu_bwd(struct uly_backend *be, struct uly_tensor gate, struct uly_tensor up,
                               struct uly_tensor dy, struct uly_tensor dgate,
                               struct uly_tensor dup);

/* x[i] = table[ids[i]]; ids: [s] int32 in [0, V), table: [V, E] model, x: [s, E] model. */
enum uly_status uly_embed_fwd(struct uly_backend *be, struct uly_tensor ids,
                              struct uly_tensor table, struct uly_tensor x);
/* dtable[ids[i]] += dx[i], rows in rising i; dtable: [V, E] acc. */
enum uly_status uly_embed_bwd(struct uly_backend *be, struct uly_tensor ids, struct uly_tensor dx,
                              struct uly_tensor dtable);

/* ------------------------------------------------------------------ heads on the move */

/* Where heads lie in a tensor: element (row i, head h, d) is at offset[h] + i * stride[h] + d, in elements from the
 * tensor's first one. Covers token rows, send blocks of several ranks and slots alike. */
struct uly_heads {
    struct uly_tensor t;
    int n;                 /* heads; may be 0 */
    int64_t rows;          /* rows of every head; may be 0 */
    int dim;               /* D */
    const int64_t *offset; /* [n], borrowed for the call */
    const int64_t *stride; /* [n], borrowed for the call */
};

enum uly_rope_mode { ULY_ROPE_NONE, ULY_ROPE_FORWARD, ULY_ROPE_INVERSE };

/* dst (+)= rope(src + bias), head by head; dtypes of src and dst may differ (float types), arithmetic in float32 or
 * better. src and dst may be the same places, not overlapping ones.
 * Rotation, Transformers' "rotate_half" pairing: with c, s = cos, sin of position * inv_freq[i], i < D/2,
 *   y[i] = x[i] c - x[i + D/2] s,  y[i + D/2] = x[i + D/2] c + x[i] s;  ULY_ROPE_INVERSE: s -> -s. y is then times
 * rope_scale (not 1 for yarn and longrope). Angles: position * inv_freq in double, reduced before the sine, so that
 * positions of millions stay exact to float32. With a table, row i has frequencies of its own, inv_freq[table[i]]: rope
 * types that depend on the length of a row's document (dynamic, longrope). */
struct uly_head_move_args {
    struct uly_heads src, dst;
    bool accumulate;            /* add to what dst holds */
    struct uly_tensor bias;     /* optional, model, [n * D], added before the rotation */
    enum uly_rope_mode rope;    /* NONE: positions and inv_freq are not read */
    struct uly_tensor position; /* [rows] int64 */
    struct uly_tensor inv_freq; /* [D/2] float64; with a table [tables, D/2], dense */
    struct uly_tensor table;    /* optional, [rows] int32, each in [0, tables) */
    double rope_scale;
};
enum uly_status uly_head_move(struct uly_backend *be, const struct uly_head_move_args *args);

/* delta(i, h) = sum over d of o * do, into acc; o and do [rows, n, D] by their views, delta: a view with dim 1. */
enum uly_status uly_head_dot(struct uly_backend *be, const struct uly_heads *a,
                             const struct uly_heads *b, const struct uly_heads *out);

/* ------------------------------------------------------------------ attention */

/* Who sees whom, in global order: key k is visible to query q iff lo(q) <= k <= q, with lo(q) = max(start of q's
 * document, q - window + 1). starts: [n_docs] rising, starts[0] = 0; all borrowed, the same on every rank. */
struct uly_mask {
    int64_t S;
    const int64_t *starts;
    int64_t n_docs;
    int64_t window; /* 0: none */
};

/* First visible key of query q. */
int64_t uly_mask_lo(const struct uly_mask *mask, int64_t q);

/* o = softmax(scale * q k' + mask) v and its log-sum-exp (natural logarithm), in tiles: never a rows x rows matrix. Query
 * row i is global row q_first + i, key row j is k_first + j. Query head h reads kv head kv_of[h]. A query that sees no key
 * of this call gets output 0 and LSE -inf; a hidden key's weight is exactly 0.
 * merge: o and lse hold the result over other keys, and become that over both (log-sum-exp weights, right also where one
 * or both are -inf and where they are far apart); o is then acc.
 * q, k, v: model, n and n_kv heads; o: n heads, model or acc; lse: n heads with dim 1, acc. */
struct uly_attention_fwd_args {
    struct uly_heads q, k, v, o, lse;
    const int *kv_of; /* [q.n] */
    const struct uly_mask *mask;
    int64_t q_first, k_first;
    double scale;
    bool merge;
};
enum uly_status uly_attention_fwd(struct uly_backend *be,
                                  const struct uly_attention_fwd_args *args);

/* From the global LSE and delta = rowsum(do * o): with p = exp(scale q k' - lse), ds = p * (do v' - delta) * scale:
 *   dq += ds k,  dk += ds' q,  dv += p' do      (all three are ADDED to; acc)
 * Summed over the query heads of a kv head in rising order. Shapes as in the forward; delta like lse. A query with LSE
 * -inf contributes nothing. */
struct uly_attention_bwd_args {
    struct uly_heads q, k, v, d_o, lse, delta;
    struct uly_heads dq, dk, dv;
    const int *kv_of;
    const struct uly_mask *mask;
    int64_t q_first, k_first;
    double scale;
};
enum uly_status uly_attention_bwd(struct uly_backend *be,
                                  const struct uly_attention_bwd_args *args);

/* ------------------------------------------------------------------ loss, optimizer */

enum { ULY_IGNORE_LABEL = -100 };

/* For each row: loss[i] = logsumexp(logits[i]) - logits[i][label], 0 where the label is ULY_IGNORE_LABEL; and
 * dlogits[i] = (softmax(logits[i]) - onehot(label)) * factor, 0 where ignored. logits: [s, V] acc; labels: [s] int32;
 * loss: [s] acc; dlogits: [s, V] model, optional, may be logits' own place when the dtypes agree. */
struct uly_cross_entropy_args {
    struct uly_tensor logits, labels, loss, dlogits;
    double factor;
};
enum uly_status uly_cross_entropy(struct uly_backend *be,
                                  const struct uly_cross_entropy_args *args);

/* AdamW as in PyTorch (Loshchilov and Hutter 2019), one pass; step counts from 1; g = grad * grad_factor:
 *   p *= 1 - lr * weight_decay;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;
 *   p -= lr * (m / (1 - b1^step)) / (sqrt(v / (1 - b2^step)) + eps)
 * master, m, v, grad: [n] acc; model: [n] model, optional (absent where master is the model's own tensor), gets master
 * rounded. */
struct uly_adamw_args {
    struct uly_tensor master, m, v, grad, model;
    double lr, beta1, beta2, eps, weight_decay, grad_factor;
    int64_t step;
};
enum uly_status uly_adamw(struct uly_backend *be, const struct uly_adamw_args *args);

#endif
