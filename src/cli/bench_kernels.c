/* SPDX-License-Identifier: MIT
 *
 * Rates of the matrix product and of attention, each beside the physical limit of this machine's instructions.
 */
#include <float.h>

#include "backend/peak.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/random.h"
#include "cli/bench.h"

/* ------------------------------------------------------------------ data */

enum { PIECE = 1 << 16 };

static enum uly_status fill_piece(struct uly_backend *be, struct uly_tensor t, uint64_t stream,
                                  int64_t first, double scale, void *room)
{
    int64_t n = uly_tensor_count(&t);
    for (int64_t i = 0; i < n; i++) {
        double x = scale * (uly_random_uniform(1, stream, (uint64_t)(first + i)) - 0.5);
        if (t.dtype == ULY_DTYPE_BF16)
            ((uint16_t *)room)[i] = uly_f32_to_bf16((float)x);
        else
            ((float *)room)[i] = (float)x;
    }
    return uly_tensor_write(be, t, room);
}

enum uly_status uly_bench_fill(struct uly_backend *be, struct uly_tensor t, uint64_t stream,
                               double scale)
{
    int64_t count = uly_tensor_count(&t);
    struct uly_tensor flat = uly_tensor_reshape(t, 1, count, 1, 1);
    float *room;
    enum uly_status status = ULY_OK;
    ULY_TRY(ULY_ALLOC(&room, PIECE));
    for (int64_t first = 0; first < count && status == ULY_OK; first += PIECE) {
        int64_t n = count - first < PIECE ? count - first : PIECE;
        status = fill_piece(be, uly_tensor_rows(flat, first, n), stream, first, scale, room);
    }
    uly_free(room);
    return status;
}

/* ------------------------------------------------------------------ matrix product */

static enum uly_status time_gemm(struct uly_backend *be, struct uly_memory *memory,
                                 enum uly_dtype dtype, int64_t size, int64_t repeats, double *best)
{
    struct uly_arena *arena = &memory->arena[ULY_LIFE_ACTIVATIONS];
    struct uly_tensor a, b, c;
    ULY_TRY(uly_tensor_new(arena, "a", dtype, 2, size, size, 1, &a));
    ULY_TRY(uly_tensor_new(arena, "b", dtype, 2, size, size, 1, &b));
    ULY_TRY(uly_tensor_new(arena, "c", dtype, 2, size, size, 1, &c));
    ULY_TRY(uly_memory_reserve(memory));
    ULY_TRY(uly_bench_fill(be, a, 1, 1));
    ULY_TRY(uly_bench_fill(be, b, 2, 1));
    struct uly_matmul_args args = {.a = a, .b = b, .c = c, .transpose_b = true};
    *best = DBL_MAX;
    for (int64_t i = 0; i <= repeats; i++) { /* the first one warms up */
        double begin = uly_seconds();
        ULY_TRY(uly_matmul(be, &args));
        double seconds = uly_seconds() - begin;
        if (i > 0 && seconds < *best)
            *best = seconds;
    }
    return ULY_OK;
}

enum uly_status uly_bench_gemm_rate(struct uly_backend *be, enum uly_dtype dtype, int64_t size,
                                    int64_t repeats, double *gflops)
{
    struct uly_memory memory;
    double best = 0;
    uly_memory_init(&memory, uly_backend_space(be));
    enum uly_status status = time_gemm(be, &memory, dtype, size, repeats, &best);
    uly_memory_clear(&memory);
    *gflops = 2.0 * (double)size * (double)size * (double)size / best * 1e-9;
    return status;
}

enum uly_status uly_bench_gemm(const struct uly_bench_options *o, struct uly_backend *be,
                               struct uly_bench_result *out)
{
    enum uly_dtype dtype = uly_bench_dtype(o);
    double gflops;
    ULY_TRY(uly_bench_gemm_rate(be, dtype, o->size, o->repeats, &gflops));
    double peak = uly_cpu_peak_gflops(be, dtype);
    uly_bench_add_int(out, "size", o->size);
    uly_bench_add(out, "gflops", gflops);
    uly_bench_add(out, "peak_gflops", peak);
    uly_bench_add(out, "ratio", gflops / peak);
    return ULY_OK;
}

/* ------------------------------------------------------------------ attention */

struct attention {
    struct uly_tensor q, k, v, o, lse, d_o, delta, dq, dk, dv;
    int64_t *offset; /* owned [6, heads]; the next five are views: places of query heads, */
    int64_t *stride; /* ... */
    int64_t *kv_offset, *kv_stride; /* of kv heads, */
    int64_t *column, *apart;        /* and of a head's column in LSE and delta */
    int *kv_of;                     /* owned */
    int64_t start;
    struct uly_mask mask;
};

static enum uly_status make_attention(const struct uly_bench_options *o, struct uly_memory *memory,
                                      struct attention *a)
{
    struct uly_arena *arena = &memory->arena[ULY_LIFE_ACTIVATIONS];
    enum uly_dtype model = uly_bench_dtype(o), acc = ULY_DTYPE_F32;
    int64_t S = o->seq, H = o->heads, K = o->kv_heads, D = o->head_dim;
    ULY_TRY(uly_tensor_new(arena, "q", model, 3, S, H, D, &a->q));
    ULY_TRY(uly_tensor_new(arena, "k", model, 3, S, K, D, &a->k));
    ULY_TRY(uly_tensor_new(arena, "v", model, 3, S, K, D, &a->v));
    ULY_TRY(uly_tensor_new(arena, "o", model, 3, S, H, D, &a->o));
    ULY_TRY(uly_tensor_new(arena, "do", model, 3, S, H, D, &a->d_o));
    ULY_TRY(uly_tensor_new(arena, "lse", acc, 2, S, H, 1, &a->lse));
    ULY_TRY(uly_tensor_new(arena, "delta", acc, 2, S, H, 1, &a->delta));
    ULY_TRY(uly_tensor_new(arena, "dq", acc, 3, S, H, D, &a->dq));
    ULY_TRY(uly_tensor_new(arena, "dk", acc, 3, S, K, D, &a->dk));
    ULY_TRY(uly_tensor_new(arena, "dv", acc, 3, S, K, D, &a->dv));
    ULY_TRY(ULY_ALLOC(&a->offset, 6 * H));
    ULY_TRY(ULY_ALLOC(&a->kv_of, H));
    a->stride = a->offset + H;
    a->kv_offset = a->offset + 2 * H;
    a->kv_stride = a->offset + 3 * H;
    a->column = a->offset + 4 * H;
    a->apart = a->offset + 5 * H;
    for (int64_t h = 0; h < H; h++) {
        a->offset[h] = h * D;
        a->stride[h] = H * D;
        a->column[h] = h;
        a->apart[h] = H;
        a->kv_offset[h] = h * D;
        a->kv_stride[h] = K * D;
        a->kv_of[h] = (int)(h * K / H);
    }
    a->mask = (struct uly_mask){.S = S, .starts = &a->start, .n_docs = 1, .window = o->window};
    return ULY_OK;
}

static struct uly_heads heads(struct uly_tensor t, int64_t n, int64_t dim, const int64_t *offset,
                              const int64_t *stride)
{
    return (struct uly_heads){t, (int)n, t.shape[0], (int)dim, offset, stride};
}

static enum uly_status time_attention(const struct uly_bench_options *o, struct uly_backend *be,
                                      struct attention *a, double *forward, double *backward)
{
    int64_t H = o->heads, K = o->kv_heads, D = o->head_dim;
    double scale = 0.125;
    struct uly_attention_fwd_args f = {.q = heads(a->q, H, D, a->offset, a->stride),
                                       .k = heads(a->k, K, D, a->kv_offset, a->kv_stride),
                                       .v = heads(a->v, K, D, a->kv_offset, a->kv_stride),
                                       .o = heads(a->o, H, D, a->offset, a->stride),
                                       .lse = heads(a->lse, H, 1, a->column, a->apart),
                                       .kv_of = a->kv_of,
                                       .mask = &a->mask,
                                       .scale = scale};
    struct uly_heads d_o = heads(a->d_o, H, D, a->offset, a->stride);
    struct uly_heads delta = heads(a->delta, H, 1, a->column, a->apart);
    struct uly_attention_bwd_args b = {.q = f.q,
                                       .k = f.k,
                                       .v = f.v,
                                       .d_o = d_o,
                                       .lse = f.lse,
                                       .delta = delta,
                                       .dq = heads(a->dq, H, D, a->offset, a->stride),
                                       .dk = heads(a->dk, K, D, a->kv_offset, a->kv_stride),
                                       .dv = heads(a->dv, K, D, a->kv_offset, a->kv_stride),
                                       .kv_of = a->kv_of,
                                       .mask = &a->mask,
                                       .scale = scale};
    *forward = *backward = DBL_MAX;
    for (int64_t i = 0; i <= o->repeats; i++) {
        double begin = uly_seconds();
        ULY_TRY(uly_attention_fwd(be, &f));
        double middle = uly_seconds();
        ULY_TRY(uly_head_dot(be, &f.o, &d_o, &delta));
        double after = uly_seconds();
        ULY_TRY(uly_attention_bwd(be, &b));
        double end = uly_seconds();
        if (i > 0 && middle - begin < *forward)
            *forward = middle - begin;
        if (i > 0 && end - after < *backward)
            *backward = end - after;
    }
    return ULY_OK;
}

static enum uly_status measure_attention(const struct uly_bench_options *o, struct uly_backend *be,
                                         struct uly_memory *memory, struct attention *a,
                                         double *forward, double *backward)
{
    ULY_TRY(make_attention(o, memory, a));
    ULY_TRY(uly_memory_reserve(memory));
    ULY_TRY(uly_bench_fill(be, a->q, 1, 4));
    ULY_TRY(uly_bench_fill(be, a->k, 2, 4));
    ULY_TRY(uly_bench_fill(be, a->v, 3, 1));
    ULY_TRY(uly_bench_fill(be, a->d_o, 4, 1));
    return time_attention(o, be, a, forward, backward);
}

/* Pairs (query, key) that see each other; the causal half is S * S / 2 by convention, a window's area is counted. */
static double visible_pairs(const struct uly_bench_options *o)
{
    double S = (double)o->seq, W = (double)o->window;
    if (o->window == 0 || o->window >= o->seq)
        return S * S / 2;
    return W * (W + 1) / 2 + (S - W) * W;
}

enum uly_status uly_bench_attention(const struct uly_bench_options *o, struct uly_backend *be,
                                    struct uly_bench_result *out)
{
    struct uly_memory memory;
    struct attention a = {0};
    enum uly_dtype dtype = uly_bench_dtype(o);
    double forward = 0, backward = 0, gemm;
    uly_memory_init(&memory, uly_backend_space(be));
    enum uly_status status = measure_attention(o, be, &memory, &a, &forward, &backward);
    uly_free(a.offset);
    uly_free(a.kv_of);
    uly_memory_clear(&memory);
    ULY_TRY(status);
    ULY_TRY(uly_bench_gemm_rate(be, dtype, o->size, o->repeats, &gemm));
    double peak = uly_cpu_peak_gflops(be, dtype);
    double flops = 4 * visible_pairs(o) * (double)o->head_dim * (double)o->heads * 1e-9;
    uly_bench_add_int(out, "seq", o->seq);
    uly_bench_add_int(out, "heads", o->heads);
    uly_bench_add_int(out, "kv_heads", o->kv_heads);
    uly_bench_add_int(out, "head_dim", o->head_dim);
    uly_bench_add_int(out, "window", o->window);
    uly_bench_add(out, "forward_gflops", flops / forward);
    uly_bench_add(out, "backward_gflops", 2.5 * flops / backward);
    uly_bench_add(out, "gemm_gflops", gemm);
    uly_bench_add(out, "peak_gflops", peak);
    uly_bench_add(out, "forward_ratio", flops / forward / peak);
    uly_bench_add(out, "backward_ratio", 2.5 * flops / backward / peak);
    return ULY_OK;
}
