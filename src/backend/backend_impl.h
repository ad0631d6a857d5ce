/* SPDX-License-Identifier: MIT
 *
 * For authors of backends: the table, and the object that carries it. A backend's create function fills a table with every
 * entry (a NULL entry is refused), usually by copying cpu:ref's and overriding what it does better.
 */
#ifndef ULY_BACKEND_BACKEND_IMPL_H
#define ULY_BACKEND_BACKEND_IMPL_H

#include "backend/backend.h"

struct uly_backend_ops {
    void (*destroy)(
        struct uly_backend *be); /* frees be->impl; the object itself is freed by the wrapper */
    enum uly_status (*write)(struct uly_backend *be, struct uly_tensor t, const void *host);
    enum uly_status (*read)(struct uly_backend *be, struct uly_tensor t, void *host);
    enum uly_status (*fill)(struct uly_backend *be, struct uly_tensor t, double value);
    enum uly_status (*cast)(struct uly_backend *be, struct uly_tensor src, struct uly_tensor dst);
    enum uly_status (*add)(struct uly_backend *be, struct uly_tensor src, struct uly_tensor dst);
    enum uly_status (*scale)(struct uly_backend *be, struct uly_tensor t, double factor);
    enum uly_status (*sum_squares)(struct uly_backend *be, struct uly_tensor t, double *out);
    enum uly_status (*matmul)(struct uly_backend *be, const struct uly_matmul_args *args);
    enum uly_status (*column_sum)(struct uly_backend *be, struct uly_tensor x,
                                  struct uly_tensor out);
    enum uly_status (*rmsnorm_fwd)(struct uly_backend *be, const struct uly_rmsnorm_fwd_args *args);
    enum uly_status (*rmsnorm_bwd)(struct uly_backend *be, const struct uly_rmsnorm_bwd_args *args);
    enum uly_status (*swiglu_fwd)(struct uly_backend *be, struct uly_tensor gate,
                                  struct uly_tensor up, struct uly_tensor y);
    enum uly_status (*swiglu_bwd)(struct uly_backend *be, struct uly_tensor gate,
                                  struct uly_tensor up, struct uly_tensor dy,
                                  struct uly_tensor dgate, struct uly_tensor dup);
    enum uly_status (*embed_fwd)(struct uly_backend *be, struct uly_tensor ids,
                                 struct uly_tensor table, struct uly_tensor x);
    enum uly_status (*embed_bwd)(struct uly_backend *be, struct uly_tensor ids,
                                 struct uly_tensor dx, struct uly_tensor dtable);
    enum uly_status (*head_move)(struct uly_backend *be, const struct uly_head_move_args *args);
    enum uly_status (*head_dot)(struct uly_backend *be, const struct uly_heads *a,
                                const struct uly_heads *b, const struct uly_heads *out);
    enum uly_status (*attention_fwd)(struct uly_backend *be,
                                     const struct uly_attention_fwd_args *args);
    enum uly_status (*attention_bwd)(struct uly_backend *be,
                                     const struct uly_attention_bwd_args *args);
    enum uly_status (*cross_entropy)(struct uly_backend *be,
                                     const struct uly_cross_entropy_args *args);
    enum uly_status (*adamw)(struct uly_backend *be, const struct uly_adamw_args *args);
};

struct uly_backend {
    struct uly_backend_ops ops;
    char name[64];
    int n_threads;
    const struct uly_mem_space *space;
    unsigned dtypes; /* bit 1 << dtype set where the model dtype is supported */
    int64_t scratch_bytes;
    uly_poke_fn poke; /* may be NULL */
    void *poke_context;
    void *impl; /* the backend's own state, owned */
};

/* cpu:ref: fills be->ops, name, space, dtypes. */
enum uly_status uly_cpu_ref_init(struct uly_backend *be);

/* cpu: starts from uly_cpu_ref_init and overrides. isa: "generic", "avx2", "avx512" or NULL for the best. */
enum uly_status uly_cpu_init(struct uly_backend *be, const char *isa);

#endif
