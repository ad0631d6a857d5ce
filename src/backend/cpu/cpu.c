/* SPDX-License-Identifier: MIT
 *
 * The backend `cpu`: choice of the instruction set, working memory, the table. It starts from cpu:ref's table and replaces
 * what it does better.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/attention.h"
#include "backend/cpu/cpu_impl.h"
#include "backend/cpu/features.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/matmul.h"
#include "backend/cpu/ops.h"
#include "base/mem.h"

/* ------------------------------------------------------------------ instruction set */

struct isa {
    const char *name;
    bool present; /* on this CPU, and built in */
    const struct uly_cpu_kernels *kernels;
    const struct uly_cpu_attention_kernels *attention;
};

enum { N_ISAS = 3 };

/* Widest first. */
static void list_isas(struct isa out[N_ISAS])
{
    out[0] = (struct isa){"avx512", false, NULL, NULL};
    out[1] = (struct isa){"avx2", false, NULL, NULL};
    out[2] = (struct isa){"generic", true, &uly_cpu_kernels_generic, &uly_cpu_attention_generic};
#if defined(__x86_64__)
    out[0].present = uly_cpu_has_avx512();
    out[0].kernels = &uly_cpu_kernels_avx512;
    out[0].attention = &uly_cpu_attention_avx512;
    out[1].present = uly_cpu_has_avx2();
    out[1].kernels = &uly_cpu_kernels_avx2;
    out[1].attention = &uly_cpu_attention_avx2;
#endif
}

/* name: as given to uly_cpu_init. *out: the first of the list that is wanted and present. */
static enum uly_status choose_isa(const char *name, struct isa *out)
{
    struct isa isas[N_ISAS];
    const char *asked_by = "the backend's name";
    list_isas(isas);
    if (name == NULL) {
        name = getenv("ULY_CPU_ISA");
        asked_by = "ULY_CPU_ISA";
    }
    bool any = name == NULL || *name == '\0';
    for (int i = 0; i < N_ISAS; i++) {
        if (!any && strcmp(name, isas[i].name) != 0)
            continue;
        if (isas[i].present) {
            *out = isas[i];
            return ULY_OK;
        }
        ULY_FAIL_IF(!any, ULY_ERR_UNSUPPORTED, "%s asks for %s, which this CPU lacks", asked_by,
                    name);
    }
    ULY_FAIL(ULY_ERR_UNSUPPORTED, "%s asks for %s: it is generic, avx2 or avx512", asked_by, name);
}

/* ------------------------------------------------------------------ life */

void uly_cpu_destroy(struct uly_backend *be)
{
    struct uly_cpu *cpu = be->impl;
    if (cpu == NULL)
        return;
    uly_cpu_matmul_destroy(cpu->matmul);
    uly_free(cpu->row_stats);
    uly_free(cpu->scratch_block);
    uly_free(cpu);
    be->impl = NULL;
}

static enum uly_status reserve_scratch(struct uly_backend *be)
{
    struct uly_cpu *cpu = be->impl;
    int64_t matmul = uly_cpu_matmul_scratch_bytes(), attention = uly_cpu_attention_scratch_bytes();
    int64_t bytes = ((matmul > attention ? matmul : attention) + 63) / 64 * 64;
    int64_t total = bytes * be->n_threads + 64;
    ULY_TRY(uly_alloc((size_t)total, 1, &cpu->scratch_block));
    uintptr_t address = (uintptr_t)cpu->scratch_block;
    cpu->scratch = (unsigned char *)cpu->scratch_block + (64 - address % 64) % 64;
    cpu->scratch_stride = bytes;
    ULY_TRY(ULY_ALLOC(&cpu->row_stats, ULY_CPU_STAT_ROWS));
    be->scratch_bytes = total + ULY_CPU_STAT_ROWS * (int64_t)sizeof *cpu->row_stats;
    return ULY_OK;
}

static enum uly_status cpu_attention_fwd(struct uly_backend *be,
                                         const struct uly_attention_fwd_args *args)
{
    return uly_cpu_attention_fwd(be, uly_cpu_of(be)->attention, args);
}

static enum uly_status cpu_attention_bwd(struct uly_backend *be,
                                         const struct uly_attention_bwd_args *args)
{
    return uly_cpu_attention_bwd(be, uly_cpu_of(be)->attention, args);
}

static void fill_table(struct uly_backend_ops *ops)
{
    ops->destroy = uly_cpu_destroy;
    ops->write = uly_cpu_write;
    ops->read = uly_cpu_read;
    ops->fill = uly_cpu_fill;
    ops->cast = uly_cpu_cast;
    ops->add = uly_cpu_add;
    ops->scale = uly_cpu_scale;
    ops->sum_squares = uly_cpu_sum_squares;
    ops->matmul = uly_cpu_matmul;
    ops->column_sum = uly_cpu_column_sum;
    ops->rmsnorm_fwd = uly_cpu_rmsnorm_fwd;
    ops->rmsnorm_bwd = uly_cpu_rmsnorm_bwd;
    ops->swiglu_fwd = uly_cpu_swiglu_fwd;
    ops->swiglu_bwd = uly_cpu_swiglu_bwd;
    ops->embed_fwd = uly_cpu_embed_fwd;
    ops->embed_bwd = uly_cpu_embed_bwd;
    ops->head_move = uly_cpu_head_move;
    ops->head_dot = uly_cpu_head_dot;
    ops->attention_fwd = cpu_attention_fwd;
    ops->attention_bwd = cpu_attention_bwd;
    ops->cross_entropy = uly_cpu_cross_entropy;
    ops->adamw = uly_cpu_adamw;
}

enum uly_status uly_cpu_init(struct uly_backend *be, const char *isa)
{
    struct isa chosen;
    struct uly_cpu *cpu;
    ULY_TRY(choose_isa(isa, &chosen));
    ULY_TRY(uly_cpu_ref_init(be));
    ULY_TRY(ULY_ALLOC(&cpu, 1));
    cpu->kernels = chosen.kernels;
    cpu->attention = chosen.attention;
    cpu->ref = be->ops;
    be->impl = cpu;
    fill_table(&be->ops); /* from here on destroy frees what there is */
    snprintf(be->name, sizeof be->name, "cpu (%s, %d thread%s)", chosen.name, be->n_threads,
             be->n_threads == 1 ? "" : "s");
    be->dtypes = 1u << ULY_DTYPE_F32 | 1u << ULY_DTYPE_BF16;
    ULY_TRY(reserve_scratch(be));
    ULY_TRY(uly_cpu_matmul_create(be, &cpu->matmul));
    ULY_TRY(uly_cpu_matmul_check(be));
    return ULY_OK;
}
