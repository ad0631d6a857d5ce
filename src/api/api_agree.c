/* SPDX-License-Identifier: MIT
 *
 * What a rank checks by itself, and what the ranks compare, before a handle is made and before a call
 * exchanges anything: then a wrong argument is an error everywhere, and nobody waits for ever.
 */
#include <math.h>
#include <string.h>

#include "api/api_impl.h"
#include "parallel/layout.h"

/* The ring and ulysses sizes that the options and the number of ranks make. */
static enum uly_status choose_sizes(const struct ulysses_attention_options *o, int ranks, int *ring,
                                    int *ulysses)
{
    int r = o->ring_size ? o->ring_size : 1;
    ULY_FAIL_IF(o->ring_size < 0 || o->ulysses_size < 0, ULY_ERR_INVALID,
                "ring_size %d, ulysses_size %d", o->ring_size, o->ulysses_size);
    if (!o->ring_size && o->ulysses_size && ranks % o->ulysses_size == 0)
        r = ranks / o->ulysses_size;
    int u = o->ulysses_size ? o->ulysses_size : ranks / r;
    ULY_FAIL_IF((int64_t)r * u != ranks, ULY_ERR_USAGE,
                "ring_size %d x ulysses_size %d is not the %d ranks of the communicator", r, u,
                ranks);
    *ring = r;
    *ulysses = u;
    return ULY_OK;
}

/* Far above what is used, and low enough for products of two of them to stay exact. */
enum { MAX_HEADS = 65536, MAX_THREADS = 4096 };
#define MAX_TOKENS (1LL << 50)

enum uly_status uly_api_check_options(const struct ulysses_attention_options *o, const void *out)
{
    ULY_FAIL_IF(!o || !out, ULY_ERR_INVALID, "%s is NULL", o ? "out" : "options");
    ULY_FAIL_IF(o->heads < 1 || o->kv_heads < 1 || o->head_dim < 1, ULY_ERR_INVALID,
                "heads %d, kv_heads %d, head_dim %d: all are at least 1", o->heads, o->kv_heads,
                o->head_dim);
    ULY_FAIL_IF(o->heads % o->kv_heads != 0, ULY_ERR_USAGE,
                "%d query heads cannot share %d kv heads: heads is a multiple of kv_heads",
                o->heads, o->kv_heads);
    ULY_FAIL_IF(o->heads > MAX_HEADS || o->head_dim > MAX_HEADS, ULY_ERR_INVALID,
                "heads %d, head_dim %d: both are at most %d", o->heads, o->head_dim, MAX_HEADS);
    ULY_FAIL_IF(o->max_tokens < 1 || o->max_tokens > MAX_TOKENS, ULY_ERR_INVALID,
                "max_tokens %lld, it is 1 to %lld", (long long)o->max_tokens, MAX_TOKENS);
    ULY_FAIL_IF(!isfinite(o->scale), ULY_ERR_INVALID, "scale %g", o->scale);
    ULY_FAIL_IF(o->dtype != ULYSSES_FLOAT32 && o->dtype != ULYSSES_BFLOAT16, ULY_ERR_INVALID,
                "dtype %d is neither ULYSSES_FLOAT32 nor ULYSSES_BFLOAT16", (int)o->dtype);
    ULY_FAIL_IF(o->heads_per_stage < 0 || o->query_tile < 0 || o->threads < 0, ULY_ERR_INVALID,
                "heads_per_stage %d, query_tile %lld, threads %d: none is negative",
                o->heads_per_stage, (long long)o->query_tile, o->threads);
    ULY_FAIL_IF(o->threads > MAX_THREADS, ULY_ERR_INVALID, "threads %d, at most %d", o->threads,
                MAX_THREADS);
    return ULY_OK;
}

enum uly_status uly_api_same_options(struct uly_comm *comm,
                                     const struct ulysses_attention_options *o)
{
    uint64_t scale;
    memcpy(&scale, &o->scale, sizeof scale);
    const struct uly_api_word words[] = {
        {"heads", o->heads},
        {"kv_heads", o->kv_heads},
        {"head_dim", o->head_dim},
        {"the upper bits of scale", (int64_t)(scale >> 32)},
        {"the lower bits of scale", (int64_t)(scale & UINT32_MAX)},
        {"dtype", (int64_t)o->dtype},
        {"max_tokens", o->max_tokens},
        {"ulysses_size", o->ulysses_size},
        {"ring_size", o->ring_size},
        {"heads_per_stage", o->heads_per_stage},
        {"query_tile", o->query_tile},
        {"serial", o->serial},
        {"training", o->training},
    };
    return uly_api_same(comm, "attention options", words, (int)(sizeof words / sizeof *words));
}

enum uly_status uly_api_check_mask(const struct ulysses_mask *mask, int64_t max_tokens)
{
    int64_t before = -1;
    ULY_FAIL_IF(!mask, ULY_ERR_INVALID, "mask is NULL");
    ULY_FAIL_IF(mask->tokens < 1 || mask->tokens > max_tokens, ULY_ERR_INVALID,
                "a sequence of %lld tokens, the handle is made for 1 to %lld",
                (long long)mask->tokens, (long long)max_tokens);
    ULY_FAIL_IF(mask->n_docs < 0 || mask->window < 0, ULY_ERR_INVALID, "n_docs %lld, window %lld",
                (long long)mask->n_docs, (long long)mask->window);
    ULY_FAIL_IF(mask->n_docs > mask->tokens, ULY_ERR_INVALID,
                "%lld documents in a sequence of %lld tokens", (long long)mask->n_docs,
                (long long)mask->tokens);
    ULY_FAIL_IF(mask->n_docs > 0 && !mask->doc_starts, ULY_ERR_INVALID,
                "doc_starts is NULL, n_docs is %lld", (long long)mask->n_docs);
    ULY_FAIL_IF(mask->n_docs > 0 && mask->doc_starts[0] != 0, ULY_ERR_INVALID,
                "the first document starts at token %lld, not 0", (long long)mask->doc_starts[0]);
    for (int64_t i = 0; i < mask->n_docs; i++) {
        ULY_FAIL_IF(mask->doc_starts[i] <= before || mask->doc_starts[i] >= mask->tokens,
                    ULY_ERR_INVALID,
                    "document %lld starts at token %lld, after %lld, in a sequence of %lld tokens",
                    (long long)i, (long long)mask->doc_starts[i], (long long)before,
                    (long long)mask->tokens);
        before = mask->doc_starts[i];
    }
    return ULY_OK;
}

enum uly_status uly_api_same_call(struct uly_comm *comm, const struct ulysses_mask *mask,
                                  bool backward)
{
    uint64_t print = UINT64_C(14695981039346656037); /* FNV-1a over words */
    for (int64_t i = 0; i < mask->n_docs; i++)
        print = (print ^ (uint64_t)mask->doc_starts[i]) * UINT64_C(1099511628211);
    const struct uly_api_word words[] = {
        {"the direction (1: backward)", backward},
        {"the mask's tokens", mask->tokens},
        {"the mask's n_docs", mask->n_docs},
        {"the mask's window", mask->window},
        {"the fingerprint of the mask's doc_starts", (int64_t)(print >> 1)},
    };
    return uly_api_same(comm, "attention", words, (int)(sizeof words / sizeof *words));
}

struct uly_mask uly_api_mask(const struct ulysses_mask *mask)
{
    static const int64_t one_document[] = {0};
    return (struct uly_mask){.S = mask->tokens,
                             .starts = mask->n_docs ? mask->doc_starts : one_document,
                             .n_docs = mask->n_docs ? mask->n_docs : 1,
                             .window = mask->window};
}

/* ------------------------------------------------------------------ what every handle has */

enum uly_status uly_api_core_open(struct uly_api_core *core, struct uly_comm *comm,
                                  const struct ulysses_attention_options *options)
{
    int ring, ulysses;
    ULY_TRY(choose_sizes(options, uly_comm_size(comm), &ring, &ulysses));
    core->max_tokens = options->max_tokens;
    return uly_mesh_init(comm, 1, ring, ulysses, &core->mesh);
}

enum uly_status uly_api_core_backend(struct uly_api_core *core,
                                     const struct ulysses_attention_options *options)
{
    enum uly_dtype dtype = (enum uly_dtype)options->dtype;
    ULY_TRY(uly_backend_create(options->backend ? options->backend : "cpu",
                               options->threads ? options->threads : 1, &core->be));
    ULY_FAIL_IF(!uly_backend_supports(core->be, dtype), ULY_ERR_UNSUPPORTED, "backend %s has no %s",
                uly_backend_name(core->be), uly_dtype_name(dtype));
    uly_backend_set_poke(core->be, uly_comm_poke, core->mesh.ulysses);
    uly_memory_init(&core->memory, uly_backend_space(core->be));
    return ULY_OK;
}

void uly_api_core_clear(struct uly_api_core *core)
{
    uly_memory_clear(&core->memory);
    uly_backend_destroy(core->be);
    uly_mesh_clear(&core->mesh);
}

static enum uly_status check_shard(const struct uly_api_core *core, int64_t S)
{
    ULY_FAIL_IF(!core, ULY_ERR_INVALID, "the handle is NULL");
    ULY_FAIL_IF(S > core->max_tokens, ULY_ERR_INVALID,
                "a sequence of %lld tokens, the handle is made for at most %lld", (long long)S,
                (long long)core->max_tokens);
    return ULY_OK;
}

enum ulysses_status uly_api_core_shard(const struct uly_api_core *core, int64_t S,
                                       struct ulysses_shard *out)
{
    enum ulysses_status status = uly_api_status(check_shard(core, S));
    if (status != ULYSSES_OK)
        return status;
    const struct uly_mesh *mesh = &core->mesh;
    return ulysses_layout(S, mesh->ring_size, mesh->ulysses_size, uly_comm_rank(mesh->sp), out);
}

int64_t uly_api_core_bytes(const struct uly_api_core *core)
{
    return uly_memory_planned_bytes(&core->memory) + uly_backend_scratch_bytes(core->be);
}

enum uly_status uly_api_core_tokens(const struct uly_api_core *core, int64_t S, int64_t given,
                                    int64_t *s)
{
    const struct uly_mesh *mesh = &core->mesh;
    int64_t n = uly_layout_count(S, mesh->ring_size, mesh->ulysses_size, mesh->ring_rank,
                                 mesh->ulysses_rank);
    ULY_FAIL_IF(given != n, ULY_ERR_INVALID,
                "tensors of %lld tokens, rank %d of %d holds %lld of the sequence's %lld",
                (long long)given, uly_comm_rank(mesh->sp), uly_comm_size(mesh->sp), (long long)n,
                (long long)S);
    *s = n;
    return ULY_OK;
}
