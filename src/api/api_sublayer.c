/* SPDX-License-Identifier: MIT
 *
 * The public fused sublayer: checks, and the caller's memory lent to model/sublayer.h.
 */
#include <math.h>
#include <string.h>

#include "api/api_impl.h"
#include "base/mem.h"
#include "model/config.h"
#include "model/sublayer.h"
#include "ulysses/sublayer.h"

enum { N_W = ULY_SUBLAYER_WEIGHTS, SUM_ROOM = 1 << 16 }; /* elements a rank in an all-reduce */

enum array { A_X, A_Y, A_O, A_LSE, A_DY, A_DX, N_TENSORS };

static const char *const weight_names[N_W] = {"norm", "wq", "wk", "wv",     "wo",    "bq",
                                              "bk",   "bv", "bo", "q_norm", "k_norm"};
static const char *const gradient_names[N_W] = {
    "the gradient of norm", "the gradient of wq",     "the gradient of wk",    "the gradient of wv",
    "the gradient of wo",   "the gradient of bq",     "the gradient of bk",    "the gradient of bv",
    "the gradient of bo",   "the gradient of q_norm", "the gradient of k_norm"};

struct ulysses_sublayer {
    struct uly_api_core core;
    struct uly_sublayer_options options;
    struct uly_sublayer *sublayer;
    struct uly_tensor sum_room; /* [ranks * SUM_ROOM] float32 */
    int64_t lse_elements;
    struct uly_api_window tensor[N_TENSORS], weight[N_W], grad[N_W]; /* of the call at hand */
};

/* ------------------------------------------------------------------ making it */

static enum uly_status check_options(const struct ulysses_sublayer_options *o, const void *out)
{
    ULY_TRY(uly_api_check_options(o ? &o->attention : NULL, out));
    ULY_FAIL_IF(o->hidden < 1, ULY_ERR_INVALID, "hidden %lld", (long long)o->hidden);
    ULY_FAIL_IF(!isfinite(o->norm_eps) || o->norm_eps < 0, ULY_ERR_INVALID, "norm_eps %g",
                o->norm_eps);
    ULY_FAIL_IF(!isfinite(o->rope_theta) || o->rope_theta < 0 || !isfinite(o->rope_scale),
                ULY_ERR_INVALID, "rope_theta %g, rope_scale %g", o->rope_theta, o->rope_scale);
    ULY_FAIL_IF(o->inv_freq && o->rope_theta != 0, ULY_ERR_USAGE,
                "both rope_theta and inv_freq are given");
    ULY_FAIL_IF(o->attention.head_dim % 2 != 0 || o->attention.head_dim > ULY_MAX_HEAD_DIM,
                ULY_ERR_UNSUPPORTED, "head_dim %d: the sublayer's is even and at most %d",
                o->attention.head_dim, ULY_MAX_HEAD_DIM);
    for (int i = 0; o->inv_freq && i < o->attention.head_dim / 2; i++)
        ULY_FAIL_IF(!isfinite(o->inv_freq[i]), ULY_ERR_INVALID, "inv_freq[%d] is %g", i,
                    o->inv_freq[i]);
    return ULY_OK;
}

/* FNV-1a over the bits. */
static uint64_t print_of(uint64_t print, double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (print ^ bits) * UINT64_C(1099511628211);
}

static enum uly_status same_options(struct uly_comm *comm, const struct ulysses_sublayer_options *o)
{
    uint64_t rope = UINT64_C(14695981039346656037), eps = print_of(rope, o->norm_eps);
    rope = print_of(print_of(rope, o->rope_theta), o->rope_scale);
    for (int i = 0; o->inv_freq && i < o->attention.head_dim / 2; i++)
        rope = print_of(rope, o->inv_freq[i]);
    const struct uly_api_word words[] = {
        {"hidden", o->hidden},
        {"qkv_bias", o->qkv_bias},
        {"out_bias", o->out_bias},
        {"qk_norm", o->qk_norm},
        {"the fingerprint of norm_eps", (int64_t)(eps >> 1)},
        {"the fingerprint of the rotation", (int64_t)(rope >> 1)},
    };
    ULY_TRY(uly_api_same_options(comm, &o->attention));
    return uly_api_same(comm, "sublayer options", words, (int)(sizeof words / sizeof *words));
}

static enum uly_status build_alone(struct ulysses_sublayer *l,
                                   const struct ulysses_sublayer_options *o)
{
    const struct ulysses_attention_options *a = &o->attention;
    double inv_freq[ULY_MAX_HEAD_DIM / 2] = {0}; /* zeros: angles of 0, no rotation */
    for (int i = 0; i < a->head_dim / 2; i++)
        if (o->inv_freq || o->rope_theta != 0)
            inv_freq[i] = o->inv_freq ? o->inv_freq[i] : pow(o->rope_theta, -2.0 * i / a->head_dim);
    l->options = (struct uly_sublayer_options){.E = o->hidden,
                                               .H = a->heads,
                                               .K = a->kv_heads,
                                               .D = a->head_dim,
                                               .qkv_bias = o->qkv_bias,
                                               .o_bias = o->out_bias,
                                               .qk_norm = o->qk_norm,
                                               .eps = o->norm_eps,
                                               .scale = a->scale,
                                               .inv_freq = inv_freq,
                                               .rope_scale = o->rope_scale != 0 ? o->rope_scale : 1,
                                               .dtype = (enum uly_dtype)a->dtype,
                                               .max_tokens = a->max_tokens,
                                               .heads_per_stage = a->heads_per_stage,
                                               .query_tile = a->query_tile,
                                               .serial = a->serial,
                                               .training = a->training};
    ULY_TRY(uly_api_core_backend(&l->core, a));
    struct uly_memory *memory = &l->core.memory;
    ULY_TRY(uly_sublayer_create(&l->options, &l->core.mesh, l->core.be, memory, &l->sublayer));
    l->options.inv_freq = NULL;
    l->lse_elements = uly_sublayer_lse_elements(l->sublayer);
    if (a->training)
        ULY_TRY(uly_tensor_new(&memory->arena[ULY_LIFE_COMM], "gradients, summed", ULY_DTYPE_F32, 1,
                               (int64_t)uly_comm_size(l->core.mesh.sp) * SUM_ROOM, 1, 1,
                               &l->sum_room));
    return uly_memory_reserve(memory);
}

static enum uly_status create(struct ulysses_comm *comm, const struct ulysses_sublayer_options *o,
                              struct ulysses_sublayer **out)
{
    struct ulysses_sublayer *l = NULL;
    ULY_FAIL_IF(!comm, ULY_ERR_INVALID, "comm is NULL");
    ULY_TRY(uly_comm_agree_status(comm->comm, check_options(o, out)));
    ULY_TRY(same_options(comm->comm, o));
    enum uly_status status = ULY_ALLOC(&l, 1);
    ULY_TRY_GOTO(uly_comm_agree_status(comm->comm, status), fail);
    ULY_TRY_GOTO(uly_api_core_open(&l->core, comm->comm, &o->attention), fail);
    ULY_TRY_GOTO(uly_comm_agree_status(comm->comm, build_alone(l, o)), fail);
    *out = l;
    return ULY_OK;
fail:
    ulysses_sublayer_destroy(l);
    return status;
}

enum ulysses_status ulysses_sublayer_create(struct ulysses_comm *comm,
                                            const struct ulysses_sublayer_options *options,
                                            struct ulysses_sublayer **out)
{
    return uly_api_status(create(comm, options, out));
}

void ulysses_sublayer_destroy(struct ulysses_sublayer *sublayer)
{
    if (!sublayer)
        return;
    uly_sublayer_destroy(sublayer->sublayer);
    uly_api_core_clear(&sublayer->core);
    uly_free(sublayer);
}

enum ulysses_status ulysses_sublayer_shard(const struct ulysses_sublayer *sublayer, int64_t S,
                                           struct ulysses_shard *out)
{
    return uly_api_core_shard(sublayer ? &sublayer->core : NULL, S, out);
}

int64_t ulysses_sublayer_bytes(const struct ulysses_sublayer *sublayer)
{
    return sublayer ? uly_api_core_bytes(&sublayer->core) : 0;
}

int64_t ulysses_sublayer_lse_elements(const struct ulysses_sublayer *sublayer)
{
    return sublayer ? sublayer->lse_elements : 0;
}

/* ------------------------------------------------------------------ a call */

struct call {
    const struct ulysses_sublayer_tensors *t;
    const struct ulysses_sublayer_weights *w;
    const struct ulysses_sublayer_gradients *g; /* NULL in the forward */
    bool backward;
};

static const void *weight_at(const struct call *c, int i)
{
    const struct ulysses_sublayer_weights *w = c->w;
    const void *const all[N_W] = {w->norm, w->wq, w->wk, w->wv,     w->wo,    w->bq,
                                  w->bk,   w->bv, w->bo, w->q_norm, w->k_norm};
    return all[i];
}

static float *gradient_at(const struct call *c, int i)
{
    const struct ulysses_sublayer_gradients *g = c->g;
    if (!g)
        return NULL;
    float *const all[N_W] = {g->norm, g->wq, g->wk, g->wv,     g->wo,    g->bq,
                             g->bk,   g->bv, g->bo, g->q_norm, g->k_norm};
    return all[i];
}

/* Weights that are there and wanted, and no others, into the list. */
static enum uly_status list_weights(const struct ulysses_sublayer *l, const struct call *c,
                                    struct uly_api_array *arrays, int *n)
{
    for (int i = 0; i < N_W; i++) {
        int64_t shape[2];
        if (!uly_sublayer_shape(l->sublayer, (enum uly_sublayer_weight)i, shape)) {
            ULY_FAIL_IF(weight_at(c, i) || gradient_at(c, i), ULY_ERR_INVALID,
                        "%s is given, the handle was created without it", weight_names[i]);
            continue;
        }
        int64_t count = shape[0] * (shape[1] ? shape[1] : 1);
        arrays[(*n)++] = (struct uly_api_array){weight_names[i], weight_at(c, i), count,
                                                l->options.dtype, false};
        if (gradient_at(c, i))
            arrays[(*n)++] = (struct uly_api_array){gradient_names[i], gradient_at(c, i), count,
                                                    ULY_DTYPE_F32, true};
    }
    return ULY_OK;
}

static enum uly_status check_call(const struct ulysses_sublayer *l, const struct ulysses_mask *mask,
                                  const struct call *c)
{
    const struct uly_sublayer_options *o = &l->options;
    struct uly_api_array arrays[N_TENSORS + 2 * N_W];
    int n = 0;
    int64_t s, lse = l->lse_elements;
    ULY_FAIL_IF(!c->t || !c->w || (c->backward && !c->g), ULY_ERR_INVALID,
                "tensors, weights or gradients is NULL");
    ULY_FAIL_IF(c->backward && !o->training, ULY_ERR_USAGE,
                "backward of a handle that was created without training");
    ULY_TRY(uly_api_check_mask(mask, o->max_tokens));
    ULY_FAIL_IF((int)c->t->dtype != (int)o->dtype, ULY_ERR_INVALID,
                "the tensors are of dtype %d, the handle of %d (%s)", (int)c->t->dtype,
                (int)o->dtype, uly_dtype_name(o->dtype));
    ULY_TRY(uly_api_core_tokens(&l->core, mask->tokens, c->t->tokens, &s));
    ULY_FAIL_IF(c->t->lse_elements < lse, ULY_ERR_INVALID,
                "lse has room for %lld elements, not %lld", (long long)c->t->lse_elements,
                (long long)lse);
    int64_t sE = s * o->E, sHD = s * o->H * o->D;
    arrays[n++] = (struct uly_api_array){"x", c->t->x, sE, o->dtype, false};
    arrays[n++] = (struct uly_api_array){"o", c->t->o, sHD, o->dtype, true};
    arrays[n++] = (struct uly_api_array){"lse", c->t->lse, lse, ULY_DTYPE_F32, !c->backward};
    if (c->backward)
        arrays[n++] = (struct uly_api_array){"dx", c->t->dx, sE, o->dtype, true};
    else
        arrays[n++] = (struct uly_api_array){"y", c->t->y, sE, o->dtype, true};
    if (c->backward && c->t->dy != c->t->dx) /* in place is fine */
        arrays[n++] = (struct uly_api_array){"dy", c->t->dy, sE, o->dtype, false};
    ULY_TRY(list_weights(l, c, arrays, &n));
    return uly_api_check_arrays(arrays, n);
}

static struct uly_tensor look(const struct ulysses_sublayer *l, struct uly_api_window *window,
                              const void *memory, enum uly_dtype dtype, int64_t rows,
                              int64_t columns)
{
    uly_api_window_set(window, uly_backend_space(l->core.be), memory, dtype, rows,
                       columns ? columns : 1, 1);
    window->t.n_dim = columns ? 2 : 1;
    return window->t;
}

/* Looks at the caller's arrays for the length of a call. */
static struct uly_sublayer_tensors bind(struct ulysses_sublayer *l, const struct call *c)
{
    const struct uly_sublayer_options *o = &l->options;
    const struct ulysses_sublayer_tensors *t = c->t;
    struct uly_sublayer_tensors in = {0};
    int64_t s = t->tokens;
    for (int i = 0; i < N_W; i++) {
        int64_t shape[2];
        if (!uly_sublayer_shape(l->sublayer, (enum uly_sublayer_weight)i, shape))
            continue;
        in.weight[i] = look(l, &l->weight[i], weight_at(c, i), o->dtype, shape[0], shape[1]);
        if (gradient_at(c, i))
            in.grad[i] = look(l, &l->grad[i], gradient_at(c, i), ULY_DTYPE_F32, shape[0], shape[1]);
    }
    in.x = look(l, &l->tensor[A_X], t->x, o->dtype, s, o->E);
    in.o = look(l, &l->tensor[A_O], t->o, o->dtype, s, (int64_t)o->H * o->D);
    in.lse = look(l, &l->tensor[A_LSE], t->lse, ULY_DTYPE_F32, l->lse_elements, 0);
    if (c->backward)
        in.dx = look(l, &l->tensor[A_DX], t->dx, o->dtype, s, o->E);
    else
        in.y = look(l, &l->tensor[A_Y], t->y, o->dtype, s, o->E);
    return in;
}

static enum uly_status run(struct ulysses_sublayer *l, const struct ulysses_mask *mask,
                           const struct call *c)
{
    ULY_FAIL_IF(!l, ULY_ERR_INVALID, "sublayer is NULL");
    ULY_TRY(uly_comm_agree_status(l->core.mesh.sp, check_call(l, mask, c)));
    ULY_TRY(uly_api_same_call(l->core.mesh.sp, mask, c->backward));
    struct uly_mask inner = uly_api_mask(mask);
    struct uly_sublayer_tensors in = bind(l, c);
    if (!c->backward)
        return uly_sublayer_forward(l->sublayer, &inner, &in);
    if (c->t->dy != c->t->dx) {
        struct uly_tensor dy =
            look(l, &l->tensor[A_DY], c->t->dy, l->options.dtype, c->t->tokens, l->options.E);
        ULY_TRY(uly_cast(l->core.be, dy, in.dx));
    }
    return uly_sublayer_backward(l->sublayer, &inner, &in);
}

enum ulysses_status ulysses_sublayer_forward(struct ulysses_sublayer *sublayer,
                                             const struct ulysses_mask *mask,
                                             const struct ulysses_sublayer_weights *weights,
                                             const struct ulysses_sublayer_tensors *tensors)
{
    struct call call = {tensors, weights, NULL, false};
    return uly_api_status(run(sublayer, mask, &call));
}

enum ulysses_status ulysses_sublayer_backward(struct ulysses_sublayer *sublayer,
                                              const struct ulysses_mask *mask,
                                              const struct ulysses_sublayer_weights *weights,
                                              const struct ulysses_sublayer_tensors *tensors,
                                              const struct ulysses_sublayer_gradients *gradients)
{
    struct call call = {tensors, weights, gradients, true};
    return uly_api_status(run(sublayer, mask, &call));
}

static enum uly_status check_sum(const struct ulysses_sublayer *l, const float *x, int64_t n)
{
    const struct uly_api_array array = {"x", x, n, ULY_DTYPE_F32, true};
    ULY_FAIL_IF(!l->options.training, ULY_ERR_USAGE,
                "all_reduce of a handle that was created without training");
    ULY_FAIL_IF(n < 0, ULY_ERR_INVALID, "%lld elements", (long long)n);
    return uly_api_check_arrays(&array, 1);
}

static enum uly_status all_reduce(struct ulysses_sublayer *l, float *x, int64_t n)
{
    ULY_FAIL_IF(!l, ULY_ERR_INVALID, "sublayer is NULL");
    struct uly_comm *comm = l->core.mesh.sp;
    const struct uly_api_word words[] = {{"the number of elements", n}};
    ULY_TRY(uly_comm_agree_status(comm, check_sum(l, x, n)));
    ULY_TRY(uly_api_same(comm, "all_reduce", words, 1));
    struct uly_tensor t = look(l, &l->tensor[A_X], x, ULY_DTYPE_F32, n, 0);
    return n == 0 ? ULY_OK : uly_all_reduce(comm, l->core.be, t, l->sum_room);
}

enum ulysses_status ulysses_sublayer_all_reduce(struct ulysses_sublayer *sublayer, float *x,
                                                int64_t n)
{
    return uly_api_status(all_reduce(sublayer, x, n));
}
