/* SPDX-License-Identifier: MIT
 *
 * The fused attention sublayer of a transformer over a sequence that is split over ranks:
 *
 *   y = x + attention(norm(x)) Wo' + bo
 *
 * with RMS norm, projections to q, k, v (and biases), an RMS norm of every q and k head where asked
 * for, rotary positions that restart in each document, and grouped heads. Each head is projected
 * straight into the buffer in which it is exchanged, stage by stage, so that q, k and v of all heads
 * never exist at once; the backward makes them again. The rules of ulysses.h hold.
 *
 * A handle is for a shape; weights come with each call, so one handle serves all layers.
 *
 *   ulysses_sublayer_create(comm, &options, &sublayer);
 *   ulysses_sublayer_forward(sublayer, &mask, &weights, &tensors);              x in; y, o, lse out
 *   ulysses_sublayer_backward(sublayer, &mask, &weights, &tensors, &gradients); dy in; dx out
 *   ulysses_sublayer_all_reduce(sublayer, gradients.wq, n);                     over the ranks
 */
#ifndef ULY_PUBLIC_SUBLAYER_H
#define ULY_PUBLIC_SUBLAYER_H

#include "ulysses/ulysses.h"

#ifdef __cplusplus
extern "C" {
#endif

/* 0, false and NULL are the defaults. The same on every rank (compared). */
struct ulysses_sublayer_options {
    struct ulysses_attention_options attention; /* head_dim is even here, and at most 512 */
    int64_t hidden;                             /* E */
    double norm_eps;                            /* of all norms */
    bool qkv_bias, out_bias;                    /* bq, bk, bv; bo */
    bool qk_norm;                               /* q_norm, k_norm */
    /* Rotation of q and k, halves paired (x[i] with x[i + D/2]), by position in the document times
     * inv_freq[i]. */
    double rope_theta;      /* inv_freq[i] = rope_theta^(-2i / D); 0: no rotation */
    const double *inv_freq; /* [D / 2] instead of rope_theta; copied */
    double rope_scale;      /* factor of cosine and sine; 0: 1 */
};

struct ulysses_sublayer;

/* As ulysses_attention_create. */
ULYSSES_API enum ulysses_status
ulysses_sublayer_create(struct ulysses_comm *comm, const struct ulysses_sublayer_options *options,
                        struct ulysses_sublayer **out);
/* NULL is fine; collective under MPI. */
ULYSSES_API void ulysses_sublayer_destroy(struct ulysses_sublayer *sublayer);

/* As the functions of the same names for attention. */
ULYSSES_API enum ulysses_status ulysses_sublayer_shard(const struct ulysses_sublayer *sublayer,
                                                       int64_t S, struct ulysses_shard *out);
ULYSSES_API int64_t ulysses_sublayer_bytes(const struct ulysses_sublayer *sublayer);
ULYSSES_API int64_t ulysses_sublayer_lse_elements(const struct ulysses_sublayer *sublayer);

/* Weights of a layer, the same on every rank, in the handle's dtype, dense, [out, in]; owned by the
 * caller. Those that the options do not ask for are NULL. */
struct ulysses_sublayer_weights {
    const void *norm;            /* [E] */
    const void *wq;              /* [H * D, E] */
    const void *wk, *wv;         /* [K * D, E] */
    const void *wo;              /* [E, H * D] */
    const void *bq;              /* [H * D] */
    const void *bk, *bv;         /* [K * D] */
    const void *bo;              /* [E] */
    const void *q_norm, *k_norm; /* [D] */
};

/* Gradients of the weights, of their shapes, float32: ADDED to, from this rank's tokens only; sum
 * them over the ranks (ulysses_sublayer_all_reduce) after the last layer, or call. NULL: not
 * wanted. */
struct ulysses_sublayer_gradients {
    float *norm, *wq, *wk, *wv, *wo, *bq, *bk, *bv, *bo, *q_norm, *k_norm;
};

/* One rank's tensors: as struct ulysses_attention_tensors. */
struct ulysses_sublayer_tensors {
    enum ulysses_dtype dtype; /* the handle's */
    int64_t tokens;           /* s */
    const void *x;            /* [s, E] */
    void *y;                  /* [s, E] forward writes it; backward does not look at it */
    void *o;    /* [s, H * D] attention output: forward writes it, backward uses it up */
    float *lse; /* forward writes it, backward reads it */
    int64_t lse_elements;
    /* backward only */
    const void *dy; /* [s, E] gradient of y */
    void *dx;       /* [s, E] gradient of x, written; may be dy */
};

/* Collective. */
ULYSSES_API enum ulysses_status
ulysses_sublayer_forward(struct ulysses_sublayer *sublayer, const struct ulysses_mask *mask,
                         const struct ulysses_sublayer_weights *weights,
                         const struct ulysses_sublayer_tensors *tensors);

/* Collective. x, o, lse, weights and mask as the forward had or left them. */
ULYSSES_API enum ulysses_status
ulysses_sublayer_backward(struct ulysses_sublayer *sublayer, const struct ulysses_mask *mask,
                          const struct ulysses_sublayer_weights *weights,
                          const struct ulysses_sublayer_tensors *tensors,
                          const struct ulysses_sublayer_gradients *gradients);

/* x[i] = sum over the ranks of x[i], n floats, added in the order of the ranks: the same bits on
 * all. Collective; n is the same on every rank. */
ULYSSES_API enum ulysses_status ulysses_sublayer_all_reduce(struct ulysses_sublayer *sublayer,
                                                            float *x, int64_t n);

#ifdef __cplusplus
}
#endif

#endif
