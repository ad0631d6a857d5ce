/* SPDX-License-Identifier: MIT
 *
 * The parity matrix: method x ranks of a sequence x replicas x model x documents x dtype. A case is a level of each
 * factor. Small models of two layers, with the shape of heads and the switches of a family; uneven masks; no clipping.
 * What is compared, by design.md section 10, is loss, loss token by token, and every gradient tensor.
 */
#ifndef ULY_TESTS_MATRIX_H
#define ULY_TESTS_MATRIX_H

#include "support/all_pairs.h"
#include "support/methods.h"

enum matrix_factor {
    MATRIX_METHOD,
    MATRIX_SP,
    MATRIX_DP,
    MATRIX_MODEL,
    MATRIX_DOCUMENTS,
    MATRIX_DTYPE,
    MATRIX_FACTORS,
    MATRIX_LAYOUT_FACTORS = MATRIX_DTYPE /* all but the last */
};
enum { MATRIX_MODELS = 7, MATRIX_DTYPES = 2 };

extern const int matrix_levels[MATRIX_FACTORS];
const char *matrix_level_name(enum matrix_factor factor, int level);

/* Whether the ranks, the heads and the method go together. */
bool matrix_valid(const int *choice);

/* Tensors of a model by what they are: rows of a table. */
enum { MATRIX_KINDS = 15 };
const char *matrix_kind_name(int kind);

/* Differences as multiples of what is allowed: fine up to 1. */
struct matrix_measure {
    double loss, token, gradient;
    char tensor[96];           /* with the largest gradient difference */
    double kind[MATRIX_KINDS]; /* the largest of each kind; -1: there is none */
};

/* Runs the case on its grid and on one rank (bfloat16: and on one rank in float32) and compares. */
void matrix_measure(const int *choice, struct matrix_measure *out);

/* "method, sp, ...", for messages: static text of this thread. */
const char *matrix_text(const int *choice);

#endif
