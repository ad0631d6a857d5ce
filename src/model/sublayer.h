/* SPDX-License-Identifier: MIT
 *
 * The attention sublayer by itself, y = x + Attention(norm(x)): one layer of a decoder without the
 * rest of it, whose input, output and weights are the caller's tensors, named anew for every call.
 * One sublayer serves all layers of a shape.
 */
#ifndef ULY_MODEL_SUBLAYER_H
#define ULY_MODEL_SUBLAYER_H

#include "backend/backend.h"
#include "parallel/mesh.h"

struct uly_sublayer_options {
    int64_t E;
    int H, K, D;
    bool qkv_bias, o_bias, qk_norm;
    double eps;   /* of the norms */
    double scale; /* of q k'; 0: 1 / sqrt(D) */
    /* rotation: angles are position in the document times inv_freq, cos and sin times rope_scale */
    const double *inv_freq; /* [D/2], copied */
    double rope_scale;
    enum uly_dtype dtype;
    int64_t max_tokens;
    int heads_per_stage;
    int64_t query_tile;
    bool serial, training;
};

enum uly_sublayer_weight {                      /* with its shape */
                           ULY_SUBLAYER_NORM,   /* [E] */
                           ULY_SUBLAYER_Q,      /* [H*D, E] */
                           ULY_SUBLAYER_K,      /* [K*D, E] */
                           ULY_SUBLAYER_V,      /* [K*D, E] */
                           ULY_SUBLAYER_O,      /* [E, H*D] */
                           ULY_SUBLAYER_Q_BIAS, /* [H*D], and so on: where the option is set */
                           ULY_SUBLAYER_K_BIAS,
                           ULY_SUBLAYER_V_BIAS,
                           ULY_SUBLAYER_O_BIAS,
                           ULY_SUBLAYER_Q_NORM, /* [D] */
                           ULY_SUBLAYER_K_NORM, /* [D] */
                           ULY_SUBLAYER_WEIGHTS
};

struct uly_sublayer;

/* Makes its buffers in memory (measuring). mesh, be: borrowed. D must be even. */
enum uly_status uly_sublayer_create(const struct uly_sublayer_options *options,
                                    struct uly_mesh *mesh, struct uly_backend *be,
                                    struct uly_memory *memory, struct uly_sublayer **out);
void uly_sublayer_destroy(struct uly_sublayer *sublayer); /* NULL is fine */

/* Shape of a weight, columns 0 for a vector; false where the options have no such weight. */
bool uly_sublayer_shape(const struct uly_sublayer *sublayer, enum uly_sublayer_weight which,
                        int64_t shape[2]);
/* Elements of lse, and which heads it is for: as uly_cp_lse_elements. */
int64_t uly_sublayer_lse_elements(const struct uly_sublayer *sublayer);

/* The tensors of a call; s tokens on this rank. Dense. */
struct uly_sublayer_tensors {
    struct uly_tensor weight[ULY_SUBLAYER_WEIGHTS]; /* model */
    struct uly_tensor grad[ULY_SUBLAYER_WEIGHTS];   /* acc, added to; absent: not wanted */
    struct uly_tensor x;                            /* [s, E] model */
    struct uly_tensor y;                            /* [s, E] model; forward */
    struct uly_tensor o;   /* [s, H*D] model: forward writes it, backward uses it up */
    struct uly_tensor lse; /* [lse elements] acc */
    struct uly_tensor dx;  /* [s, E] model; backward: gradient of y in, gradient of x out */
};

/* Collective over the mesh's sp ranks. The mask's window is this call's. Gradients of weights are
 * of this rank's tokens only. */
enum uly_status uly_sublayer_forward(struct uly_sublayer *sublayer, const struct uly_mask *mask,
                                     const struct uly_sublayer_tensors *tensors);
enum uly_status uly_sublayer_backward(struct uly_sublayer *sublayer, const struct uly_mask *mask,
                                      const struct uly_sublayer_tensors *tensors);

#endif
