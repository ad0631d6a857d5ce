/* SPDX-License-Identifier: MIT
 *
 * The decoder's tables and schedule: embedding, blocks, final norm, head and loss, forward and backward.
 */
#include "model/decoder.h"

#include <math.h>

#include "base/mem.h"
#include "model/decoder_impl.h"
#include "model/rope.h"

/* ------------------------------------------------------------------ making it */

static enum uly_status make(struct uly_memory *memory, enum uly_life life, const char *name,
                            enum uly_dtype dtype, int64_t rows, int64_t columns,
                            struct uly_tensor *out)
{
    return uly_tensor_new(&memory->arena[life], name, dtype, 2, rows, columns, 1, out);
}

static enum uly_status make_kept(struct uly_decoder *d, struct uly_memory *memory)
{
    enum uly_dtype model = d->options.dtype;
    int64_t s = d->max_s, E = d->config->hidden_size, F = d->config->intermediate_size;
    int64_t lse = uly_cp_lse_elements(d->cp);
    bool none = d->options.checkpointing == ULY_CHECKPOINT_NONE && d->options.training;
    enum uly_life life = none ? ULY_LIFE_CHECKPOINTS : ULY_LIFE_ACTIVATIONS;
    for (int i = 0; i < d->n_block_in; i++)
        ULY_TRY(make(memory, d->options.training ? ULY_LIFE_CHECKPOINTS : ULY_LIFE_ACTIVATIONS,
                     "block input", model, s, E, &d->block_in[i]));
    for (int i = 0; i < d->n_kept; i++) {
        struct layer_kept *k = &d->kept[i];
        ULY_TRY(make(memory, life, "attention output", model, s, d->q_width, &k->o));
        ULY_TRY(uly_tensor_new(&memory->arena[life], "log-sum-exp", d->acc, 1, lse, 1, 1, &k->lse));
        if (!none)
            continue;
        ULY_TRY(make(memory, life, "middle residual", model, s, E, &k->mid));
        ULY_TRY(make(memory, life, "gate", model, s, F, &k->gate));
        ULY_TRY(make(memory, life, "up", model, s, F, &k->up));
    }
    return ULY_OK;
}

/* What a token needs outside of the attention sublayer. */
static enum uly_status make_token_buffers(struct uly_decoder *d, struct uly_memory *memory)
{
    struct uly_arena *arena = &memory->arena[ULY_LIFE_ACTIVATIONS];
    int64_t s = d->max_s;
    ULY_TRY(uly_tensor_new(arena, "ids", ULY_DTYPE_I32, 1, s, 1, 1, &d->ids));
    ULY_TRY(uly_tensor_new(arena, "labels", ULY_DTYPE_I32, 1, s, 1, 1, &d->labels));
    ULY_TRY(uly_tensor_new(arena, "token losses", d->acc, 1, s, 1, 1, &d->losses));
    return d->options.training ? make(memory, ULY_LIFE_ACTIVATIONS, "dx", d->options.dtype, s,
                                      d->config->hidden_size, &d->dx)
                               : ULY_OK;
}

static enum uly_status make_layer_buffers(struct uly_decoder *d, struct uly_memory *memory)
{
    struct uly_arena *arena = &memory->arena[ULY_LIFE_ACTIVATIONS];
    int64_t s = d->max_s, half = d->config->head_dim / 2;
    enum uly_dtype dkv = uly_cp_dkv_dtype(d->cp);
    int64_t tables = uly_rope_max_tables(d->config, d->options.max_tokens);
    ULY_TRY(uly_tensor_new(arena, "inv_freq", ULY_DTYPE_F64, 2, tables, half, 1, &d->inv_freq));
    if (uly_rope_limit(d->config) > 0)
        ULY_TRY(uly_tensor_new(arena, "rope tables", ULY_DTYPE_I32, 1, s, 1, 1, &d->rope_table));
    ULY_TRY(uly_tensor_new(arena, "positions", ULY_DTYPE_I64, 1, s, 1, 1, &d->position));
    if (!d->options.training)
        return ULY_OK;
    ULY_TRY(make(memory, ULY_LIFE_ACTIVATIONS, "dk", dkv, s, d->kv_width, &d->dk));
    return make(memory, ULY_LIFE_ACTIVATIONS, "dv", dkv, s, d->kv_width, &d->dv);
}

static enum uly_status make_attention_tiles(struct uly_decoder *d, struct uly_memory *memory)
{
    enum uly_life life = ULY_LIFE_SCRATCH;
    enum uly_dtype model = d->options.dtype;
    bool training = d->options.training;
    int64_t T = d->tile;
    ULY_TRY(make(memory, life, "tile q", model, T, d->q_width, &d->q_t));
    ULY_TRY(make(memory, life, "tile k", model, T, d->kv_width, &d->k_t));
    ULY_TRY(make(memory, life, "tile v", model, T, d->kv_width, &d->v_t));
    if (training)
        ULY_TRY(make(memory, life, "tile dO", model, T, d->q_width, &d->d_o_t));
    if (training && d->config->qk_norm)
        ULY_TRY(make(memory, life, "tile before norm", model, T, d->q_width, &d->d_raw_t));
    return ULY_OK;
}

/* Attention, MLP and loss tiles are never live together: their room is shared. */
static enum uly_status make_tiles(struct uly_decoder *d, struct uly_memory *memory)
{
    struct uly_arena *arena = &memory->arena[ULY_LIFE_SCRATCH];
    enum uly_life life = ULY_LIFE_SCRATCH;
    enum uly_dtype model = d->options.dtype;
    int64_t T = d->tile, E = d->config->hidden_size, F = d->config->intermediate_size;
    bool training = d->options.training;
    ULY_TRY(make(memory, life, "tile h", model, T, E, &d->h_t));
    if (training)
        ULY_TRY(make(memory, life, "tile dh", d->acc, T, E, &d->dh_t));
    int64_t mark = uly_arena_mark(arena);
    ULY_TRY(make_attention_tiles(d, memory));
    if (d->options.attention_only)
        return ULY_OK;
    uly_arena_release(arena, mark);
    ULY_TRY(make(memory, life, "tile mid", model, T, E, &d->mid_t));
    ULY_TRY(make(memory, life, "tile gate", model, T, F, &d->gate_t));
    ULY_TRY(make(memory, life, "tile up", model, T, F, &d->up_t));
    ULY_TRY(make(memory, life, "tile act", model, T, F, &d->act_t));
    uly_arena_release(arena, mark);
    int64_t V = d->config->vocab_size;
    ULY_TRY(make(memory, life, "tile logits", d->acc, d->loss_tile, V, &d->logits_t));
    if (model == d->acc)
        d->dlogits_t = d->logits_t; /* in place */
    else if (training)
        ULY_TRY(make(memory, life, "tile dlogits", model, d->loss_tile, V, &d->dlogits_t));
    uly_arena_release(arena, mark);
    return ULY_OK;
}

/* Rows of a token-wise pass: enough numeric tiles for the threads, few enough to stay in cache. */
static int64_t choose_tile(const struct uly_decoder *d)
{
    int64_t threads = uly_backend_threads(d->be), tile = threads < 2   ? 2
                                                         : threads > 8 ? 8
                                                                       : threads;
    tile *= ULY_TILE;
    if (d->options.token_tile > 0)
        tile = d->options.token_tile;
    return tile < d->max_s || d->max_s == 0 ? tile : d->max_s;
}

/* Logits of a tile take at most 128 MiB, but no fewer than 32 rows go at a time. */
static int64_t choose_loss_tile(const struct uly_decoder *d)
{
    int64_t rows = ULY_TILE, V = d->config->vocab_size;
    while (rows > 32 && rows * V > (int64_t)1 << 25)
        rows /= 2;
    while (rows * 2 <= d->tile && rows * 2 * V <= (int64_t)1 << 23)
        rows *= 2;
    return rows < d->tile ? rows : d->tile;
}

static enum uly_status make_lists(struct uly_decoder *d)
{
    int L = d->config->num_hidden_layers;
    bool none = d->options.checkpointing == ULY_CHECKPOINT_NONE && d->options.training;
    d->n_block_in = d->options.training ? L + 1 : 2;
    d->n_kept = none ? L : 1;
    d->most_heads =
        d->config->num_attention_heads + d->config->num_key_value_heads + d->mesh->ulysses_size;
    ULY_TRY(ULY_ALLOC(&d->block_in, d->n_block_in));
    ULY_TRY(ULY_ALLOC(&d->kept, d->n_kept));
    ULY_TRY(ULY_ALLOC(&d->view_ints, (size_t)ULY_DECODER_VIEWS * 2 * (size_t)d->most_heads));
    return uly_alloc((size_t)d->max_s, 8, &d->host_room);
}

static enum uly_status make_everything(struct uly_decoder *d, struct uly_memory *memory)
{
    const struct uly_model_config *c = d->config;
    struct uly_cp_options options = {.H = c->num_attention_heads,
                                     .K = c->num_key_value_heads,
                                     .D = c->head_dim,
                                     .heads_per_stage = d->options.heads_per_stage,
                                     .query_tile = d->options.query_tile,
                                     .scale = d->options.scale != 0 ? d->options.scale
                                                                    : 1 / sqrt((double)c->head_dim),
                                     .serial = d->options.serial,
                                     .model = d->options.dtype,
                                     .training = d->options.training,
                                     .max_tokens = d->options.max_tokens,
                                     .token_tile = d->tile};
    ULY_TRY(make_lists(d));
    ULY_TRY(uly_cp_create(&options, d->mesh, d->be, memory, &d->cp));
    if (!d->options.attention_only) {
        ULY_TRY(make_kept(d, memory));
        ULY_TRY(make_token_buffers(d, memory));
    }
    ULY_TRY(make_layer_buffers(d, memory));
    return make_tiles(d, memory);
}

enum uly_status uly_decoder_create(const struct uly_model_config *config, struct uly_params *params,
                                   struct uly_mesh *mesh, struct uly_backend *be,
                                   const struct uly_decoder_options *options,
                                   struct uly_memory *memory, struct uly_decoder **out)
{
    ULY_FAIL_IF(!uly_backend_supports(be, options->dtype), ULY_ERR_UNSUPPORTED,
                "backend %s has no %s", uly_backend_name(be), uly_dtype_name(options->dtype));
    struct uly_decoder *d;
    ULY_TRY(ULY_ALLOC(&d, 1));
    d->config = config;
    d->params = params;
    d->mesh = mesh;
    d->be = be;
    d->options = *options;
    d->acc = options->dtype == ULY_DTYPE_F64 ? ULY_DTYPE_F64 : ULY_DTYPE_F32;
    d->max_s = uly_layout_max_count(options->max_tokens, mesh->ring_size, mesh->ulysses_size);
    d->q_width = config->num_attention_heads * config->head_dim;
    d->rope_scale = uly_rope_scale(config);
    d->kv_width = config->num_key_value_heads * config->head_dim;
    d->tile = choose_tile(d);
    d->loss_tile = choose_loss_tile(d);
    enum uly_status status = make_everything(d, memory);
    if (status != ULY_OK) {
        uly_decoder_destroy(d);
        return status;
    }
    *out = d;
    return ULY_OK;
}

void uly_decoder_destroy(struct uly_decoder *d)
{
    if (!d)
        return;
    uly_cp_destroy(d->cp);
    uly_free(d->block_in);
    uly_free(d->kept);
    uly_free(d->view_ints);
    uly_free(d->host_room);
    uly_free(d);
}

void uly_decoder_set_progress(struct uly_decoder *d, uly_progress_fn progress, void *context)
{
    d->progress = progress;
    d->progress_context = context;
}

/* ------------------------------------------------------------------ pieces of the schedule */

struct uly_heads uly_decoder_view(const struct uly_decoder *d, int view, struct uly_tensor t, int n,
                                  const int *place)
{
    ULY_BUG_ON(n > d->most_heads || view >= ULY_DECODER_VIEWS);
    int64_t *offset = d->view_ints + (int64_t)view * 2 * d->most_heads;
    int64_t *stride = offset + d->most_heads, D = d->config->head_dim;
    for (int i = 0; i < n; i++) {
        offset[i] = (place ? place[i] : i) * D;
        stride[i] = t.stride;
    }
    return (struct uly_heads){t, n, t.shape[0], d->config->head_dim, offset, stride};
}

enum uly_status uly_linear_fwd(struct uly_decoder *d, struct uly_tensor x, struct uly_tensor w,
                               struct uly_tensor bias, bool accumulate, struct uly_tensor y)
{
    return uly_matmul(
        d->be,
        &(struct uly_matmul_args){
            .a = x, .b = w, .c = y, .transpose_b = true, .accumulate = accumulate, .bias = bias});
}

enum uly_status uly_linear_grads(struct uly_decoder *d, struct uly_tensor dy, struct uly_tensor x,
                                 struct uly_tensor dw, struct uly_tensor db)
{
    if (uly_tensor_exists(&db))
        ULY_TRY(uly_column_sum(d->be, dy, db));
    if (!uly_tensor_exists(&dw))
        return ULY_OK;
    return uly_matmul(d->be,
                      &(struct uly_matmul_args){
                          .a = dy, .b = x, .c = dw, .transpose_a = true, .accumulate = true});
}

enum uly_status uly_linear_dx(struct uly_decoder *d, struct uly_tensor dy, struct uly_tensor w,
                              bool accumulate, struct uly_tensor dx)
{
    return uly_matmul(
        d->be, &(struct uly_matmul_args){.a = dy, .b = w, .c = dx, .accumulate = accumulate});
}

enum uly_status uly_norm(struct uly_decoder *d, struct uly_tensor x, int norm, struct uly_tensor y)
{
    return uly_rmsnorm_fwd(
        d->be, &(struct uly_rmsnorm_fwd_args){
                   .x = x, .w = uly_weight(d, norm), .y = y, .eps = d->config->rms_norm_eps});
}

enum uly_status uly_norm_bwd(struct uly_decoder *d, struct uly_tensor x, int norm,
                             struct uly_tensor dy, struct uly_tensor dx)
{
    return uly_rmsnorm_bwd(d->be, &(struct uly_rmsnorm_bwd_args){.x = x,
                                                                 .w = uly_weight(d, norm),
                                                                 .dy = dy,
                                                                 .dx = dx,
                                                                 .dw = uly_grad(d, norm),
                                                                 .eps = d->config->rms_norm_eps});
}

static enum uly_status report(struct uly_decoder *d, const char *phase, int layer)
{
    if (!d->progress)
        return ULY_OK;
    return d->progress(d->progress_context, phase, layer, d->config->num_hidden_layers);
}

/* ------------------------------------------------------------------ a micro-batch in */

/* Index of the document that holds a token: the last start at or before it. */
static int64_t document_of(const struct uly_batch *batch, int64_t token)
{
    int64_t low = 0, high = batch->n_docs - 1;
    while (low < high) {
        int64_t middle = low + (high - low + 1) / 2;
        if (batch->starts[middle] <= token)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static void fill_positions(const struct uly_batch *batch, struct uly_segment segment, int64_t *out)
{
    int64_t doc = segment.count > 0 ? document_of(batch, segment.start) : 0;
    for (int64_t i = 0; i < segment.count; i++) {
        int64_t token = segment.start + i;
        while (doc + 1 < batch->n_docs && batch->starts[doc + 1] <= token)
            doc++;
        out[i] = token - batch->starts[doc];
    }
}

static int64_t document_length(const struct uly_batch *batch, int64_t doc)
{
    return (doc + 1 < batch->n_docs ? batch->starts[doc + 1] : batch->S) - batch->starts[doc];
}

/* The tables of rope.h: one, or as many as the documents' lengths ask for. */
static enum uly_status write_frequencies(struct uly_decoder *d, const struct uly_batch *batch)
{
    double inv_freq[ULY_MAX_HEAD_DIM / 2];
    int64_t limit = uly_rope_limit(d->config), longer = 0, written = 1;
    uly_rope_inv_freq(d->config, limit, inv_freq);
    ULY_TRY(uly_tensor_write(d->be, uly_tensor_rows(d->inv_freq, 0, 1), inv_freq));
    for (int64_t doc = 0; limit > 0 && doc < batch->n_docs; doc++) {
        int64_t length = document_length(batch, doc);
        int64_t table = uly_rope_table_of(d->config, length, longer);
        longer += length > limit;
        if (table < written)
            continue;
        uly_rope_inv_freq(d->config, length, inv_freq);
        ULY_TRY(uly_tensor_write(d->be, uly_tensor_rows(d->inv_freq, table, 1), inv_freq));
        written = table + 1;
    }
    return ULY_OK;
}

/* The table of each token of a segment, whose first row is d->s. */
static enum uly_status write_tables(struct uly_decoder *d, const struct uly_batch *batch,
                                    struct uly_segment segment)
{
    int32_t *out = d->host_room;
    int64_t limit = uly_rope_limit(d->config), longer = 0, end = segment.start + segment.count;
    if (!uly_tensor_exists(&d->rope_table))
        return ULY_OK;
    for (int64_t doc = 0; doc < batch->n_docs && batch->starts[doc] < end; doc++) {
        int64_t length = document_length(batch, doc), first = batch->starts[doc];
        int32_t table = (int32_t)uly_rope_table_of(d->config, length, longer);
        longer += length > limit;
        for (int64_t i = first > segment.start ? first : segment.start;
             i < first + length && i < end; i++)
            out[i - segment.start] = table;
    }
    return uly_tensor_write(d->be, uly_tensor_rows(d->rope_table, d->s, segment.count), out);
}

static enum uly_status check_batch(const struct uly_decoder *d, const struct uly_batch *batch)
{
    ULY_FAIL_IF(batch->S < 0 || batch->S > d->options.max_tokens, ULY_ERR_INVALID,
                "a micro-batch of %lld tokens, the decoder was made for %lld", (long long)batch->S,
                (long long)d->options.max_tokens);
    ULY_FAIL_IF(batch->S > 0 && (batch->n_docs < 1 || batch->starts[0] != 0), ULY_ERR_INVALID,
                "the first document of a micro-batch must start at token 0");
    for (int64_t i = 1; i < batch->n_docs; i++)
        ULY_FAIL_IF(batch->starts[i] < batch->starts[i - 1] || batch->starts[i] > batch->S,
                    ULY_ERR_INVALID, "document %lld starts at token %lld, outside %lld ... %lld",
                    (long long)i, (long long)batch->starts[i], (long long)batch->starts[i - 1],
                    (long long)batch->S);
    return ULY_OK;
}

enum uly_status uly_decoder_enter(struct uly_decoder *d, const struct uly_batch *batch)
{
    const struct uly_mesh *m = d->mesh;
    ULY_TRY(check_batch(d, batch));
    d->mask = (struct uly_mask){.S = batch->S, .starts = batch->starts, .n_docs = batch->n_docs};
    d->n_segments = uly_layout(batch->S, m->ring_size, m->ulysses_size, m->ring_rank,
                               m->ulysses_rank, d->segment);
    ULY_TRY(write_frequencies(d, batch));
    d->s = 0;
    for (int i = 0; i < d->n_segments; i++) {
        struct uly_segment g = d->segment[i];
        fill_positions(batch, g, (int64_t *)d->host_room);
        ULY_TRY(uly_tensor_write(d->be, uly_tensor_rows(d->position, d->s, g.count), d->host_room));
        ULY_TRY(write_tables(d, batch, g));
        if (!d->options.attention_only) {
            struct uly_tensor ids = uly_tensor_rows(d->ids, d->s, g.count);
            struct uly_tensor labels = uly_tensor_rows(d->labels, d->s, g.count);
            ULY_TRY(uly_tensor_write(d->be, ids, batch->ids + g.start));
            ULY_TRY(uly_tensor_write(d->be, labels, batch->labels + g.start));
        }
        d->s += g.count;
    }
    return ULY_OK;
}

/* ------------------------------------------------------------------ forward */

static enum uly_status forward_blocks(struct uly_decoder *d)
{
    struct uly_tensor ids = uly_tensor_rows(d->ids, 0, d->s);
    ULY_TRY(uly_embed_fwd(d->be, ids, uly_weight(d, d->params->embedding),
                          uly_tensor_rows(uly_block_in(d, 0), 0, d->s)));
    for (int layer = 0; layer < d->config->num_hidden_layers; layer++) {
        ULY_TRY(report(d, "forward", layer));
        ULY_TRY(uly_attention_sublayer_fwd(d, layer));
        ULY_TRY(uly_mlp_sublayer_fwd(d, layer));
    }
    return report(d, "loss", 0);
}

/* Logits of rows [row, row + n) into the tile; the normalised rows stay in h_t. */
static enum uly_status head_tile(struct uly_decoder *d, int64_t row, int64_t n)
{
    struct uly_tensor x = uly_tensor_rows(uly_block_in(d, d->config->num_hidden_layers), row, n);
    struct uly_tensor h = uly_tensor_rows(d->h_t, 0, n);
    ULY_TRY(uly_norm(d, x, d->params->final_norm, h));
    return uly_linear_fwd(d, h, uly_weight(d, d->params->head), (struct uly_tensor){0}, false,
                          uly_tensor_rows(d->logits_t, 0, n));
}

/* Loss of a tile; with a factor, both gradients in the same pass: dx of these rows and the head's. */
static enum uly_status loss_tile(struct uly_decoder *d, int64_t row, int64_t n, bool backward,
                                 double factor)
{
    struct uly_cross_entropy_args args = {.logits = uly_tensor_rows(d->logits_t, 0, n),
                                          .labels = uly_tensor_rows(d->labels, row, n),
                                          .loss = uly_tensor_rows(d->losses, row, n),
                                          .factor = factor};
    ULY_TRY(head_tile(d, row, n));
    if (!backward)
        return uly_cross_entropy(d->be, &args);
    args.dlogits = uly_tensor_rows(d->dlogits_t, 0, n);
    ULY_TRY(uly_cross_entropy(d->be, &args));
    struct uly_tensor h = uly_tensor_rows(d->h_t, 0, n), dh = uly_tensor_rows(d->dh_t, 0, n);
    struct uly_tensor dx = uly_tensor_rows(d->dx, row, n);
    ULY_TRY(
        uly_linear_grads(d, args.dlogits, h, uly_grad(d, d->params->head), (struct uly_tensor){0}));
    ULY_TRY(uly_linear_dx(d, args.dlogits, uly_weight(d, d->params->head), false, dh));
    ULY_TRY(uly_fill(d->be, dx, 0));
    return uly_norm_bwd(d, uly_tensor_rows(uly_block_in(d, d->config->num_hidden_layers), row, n),
                        d->params->final_norm, dh, dx);
}

/* Sums the token losses in token order, in double; losses (optional) gets them by global index. */
static enum uly_status collect_losses(struct uly_decoder *d, double *loss_sum, float *losses)
{
    int64_t at = 0;
    double sum = 0;
    ULY_TRY(uly_tensor_read(d->be, uly_tensor_rows(d->losses, 0, d->s), d->host_room));
    for (int i = 0; i < d->n_segments; i++)
        for (int64_t j = 0; j < d->segment[i].count; j++, at++) {
            double x = d->acc == ULY_DTYPE_F64 ? ((double *)d->host_room)[at]
                                               : (double)((float *)d->host_room)[at];
            sum += x;
            if (losses)
                losses[d->segment[i].start + j] = (float)x;
        }
    *loss_sum = sum;
    return ULY_OK;
}

static enum uly_status all_loss_tiles(struct uly_decoder *d, bool backward, double factor)
{
    for (int64_t row = 0; row < d->s; row += d->loss_tile) {
        int64_t left = d->s - row;
        ULY_TRY(loss_tile(d, row, left < d->loss_tile ? left : d->loss_tile, backward, factor));
    }
    return ULY_OK;
}

enum uly_status uly_decoder_forward(struct uly_decoder *d, const struct uly_batch *batch,
                                    double *loss_sum, float *losses)
{
    ULY_TRY(uly_decoder_enter(d, batch));
    ULY_TRY(forward_blocks(d));
    ULY_TRY(all_loss_tiles(d, false, 0));
    return collect_losses(d, loss_sum, losses);
}

enum uly_status uly_decoder_logits(struct uly_decoder *d, const struct uly_batch *batch,
                                   float *logits)
{
    int64_t V = d->config->vocab_size, at = 0;
    double *room;
    enum uly_status status = ULY_OK;
    ULY_TRY(uly_decoder_enter(d, batch));
    ULY_TRY(forward_blocks(d));
    ULY_TRY(ULY_ALLOC(&room, V));
    for (int i = 0; i < d->n_segments; i++)
        for (int64_t j = 0; j < d->segment[i].count; j++, at++) {
            ULY_TRY_GOTO(head_tile(d, at, 1), done);
            ULY_TRY_GOTO(uly_tensor_read(d->be, uly_tensor_rows(d->logits_t, 0, 1), room), done);
            float *out = logits + (d->segment[i].start + j) * V;
            for (int64_t v = 0; v < V; v++)
                out[v] = d->acc == ULY_DTYPE_F64 ? (float)room[v] : ((float *)room)[v];
        }
done:
    uly_free(room);
    return status;
}

/* ------------------------------------------------------------------ backward */

static enum uly_status backward_blocks(struct uly_decoder *d)
{
    int L = d->config->num_hidden_layers;
    for (int layer = L - 1; layer >= 0; layer--) {
        ULY_TRY(report(d, "backward", layer));
        /* the last layer's O and LSE are still there from the forward */
        if (d->options.checkpointing == ULY_CHECKPOINT_FULL && layer < L - 1)
            ULY_TRY(uly_attention_sublayer_fwd(d, layer));
        ULY_TRY(uly_mlp_sublayer_bwd(d, layer));
        ULY_TRY(uly_attention_sublayer_bwd(d, layer));
    }
    struct uly_tensor grad = uly_grad(d, d->params->embedding);
    if (!uly_tensor_exists(&grad))
        return ULY_OK;
    return uly_embed_bwd(d->be, uly_tensor_rows(d->ids, 0, d->s), uly_tensor_rows(d->dx, 0, d->s),
                         grad);
}

enum uly_status uly_decoder_backward(struct uly_decoder *d, const struct uly_batch *batch,
                                     double loss_factor, double *loss_sum)
{
    ULY_FAIL_IF(!d->options.training, ULY_ERR_INVALID, "this decoder was made without training");
    ULY_TRY(uly_decoder_enter(d, batch));
    ULY_TRY(forward_blocks(d));
    ULY_TRY(all_loss_tiles(d, true, loss_factor));
    ULY_TRY(collect_losses(d, loss_sum, NULL));
    return backward_blocks(d);
}
