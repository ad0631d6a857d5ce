/* SPDX-License-Identifier: MIT */
#include "support/matrix_table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct worst {
    int64_t cases;
    double loss, token, gradient;
    char tensor[96];
};

struct matrix_table {
    int64_t cases, failed;
    struct worst by_model[N_METHODS][MATRIX_MODELS][MATRIX_DTYPES];
    double by_kind[N_METHODS][MATRIX_DTYPES][MATRIX_KINDS];
};

struct matrix_table *matrix_table_new(void)
{
    struct matrix_table *t = calloc(1, sizeof *t);
    ULY_BUG_ON(!t);
    return t;
}

void matrix_table_free(struct matrix_table *table)
{
    free(table);
}

void matrix_table_add(struct matrix_table *table, const int *choice, const struct matrix_measure *m)
{
    int method = choice[MATRIX_METHOD], dtype = choice[MATRIX_DTYPE];
    struct worst *w = &table->by_model[method][choice[MATRIX_MODEL]][dtype];
    table->cases++;
    table->failed += !(m->loss <= 1 && m->token <= 1 && m->gradient <= 1);
    w->cases++;
    w->loss = fmax(w->loss, m->loss);
    w->token = fmax(w->token, m->token);
    if (m->gradient >= w->gradient) {
        w->gradient = m->gradient;
        memcpy(w->tensor, m->tensor, sizeof w->tensor);
    }
    for (int k = 0; k < MATRIX_KINDS; k++)
        table->by_kind[method][dtype][k] = fmax(table->by_kind[method][dtype][k], m->kind[k]);
}

/* "model.layers.1.self_attn.q_proj.weight" to "1.self_attn.q_proj.weight" */
static const char *short_name(const char *tensor)
{
    return strncmp(tensor, "model.layers.", 13) == 0 ? tensor + 13 : tensor;
}

static void write_by_model(const struct matrix_table *t, FILE *f)
{
    fprintf(f, "| method | model | dtype | cases | loss | token's loss | gradient | tensor |\n"
               "|---|---|---|--:|--:|--:|--:|---|\n");
    for (int method = 0; method < N_METHODS; method++)
        for (int model = 0; model < MATRIX_MODELS; model++)
            for (int dtype = 0; dtype < MATRIX_DTYPES; dtype++) {
                const struct worst *w = &t->by_model[method][model][dtype];
                if (w->cases > 0)
                    fprintf(f, "| %s | %s | %s | %d | %.2f | %.2f | %.2f | %s |\n",
                            matrix_level_name(MATRIX_METHOD, method),
                            matrix_level_name(MATRIX_MODEL, model),
                            matrix_level_name(MATRIX_DTYPE, dtype), (int)w->cases, w->loss,
                            w->token, w->gradient, short_name(w->tensor));
            }
}

static void write_by_kind(const struct matrix_table *t, FILE *f)
{
    fprintf(f, "| tensor |");
    for (int method = 0; method < N_METHODS; method++)
        fprintf(f, " %s |", matrix_level_name(MATRIX_METHOD, method));
    fprintf(f, "\n|---|");
    for (int method = 0; method < N_METHODS; method++)
        fprintf(f, "--:|");
    for (int k = 0; k < MATRIX_KINDS; k++) {
        fprintf(f, "\n| %s |", matrix_kind_name(k));
        for (int method = 0; method < N_METHODS; method++)
            fprintf(f, " %.2f, %.2f |", t->by_kind[method][0][k], t->by_kind[method][1][k]);
    }
    fprintf(f, "\n");
}

bool matrix_table_write(const struct matrix_table *table, const char *path)
{
    FILE *f = fopen(path, "w");
    if (!f)
        return false;
    fprintf(f, "%d cases, %d outside what is allowed.\n\n", (int)table->cases, (int)table->failed);
    write_by_model(table, f);
    fprintf(f, "\nThe largest gradient difference by kind of tensor: float32, bfloat16.\n\n");
    write_by_kind(table, f);
    return fclose(f) == 0;
}
