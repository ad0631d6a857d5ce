/* SPDX-License-Identifier: MIT
 *
 * The largest differences of many cases of the parity matrix, as tables in Markdown.
 */
#ifndef ULY_TESTS_MATRIX_TABLE_H
#define ULY_TESTS_MATRIX_TABLE_H

#include "support/matrix.h"

struct matrix_table;

struct matrix_table *matrix_table_new(void);
void matrix_table_free(struct matrix_table *table);
void matrix_table_add(struct matrix_table *table, const int *choice,
                      const struct matrix_measure *m);

/* Two tables: per method, model and dtype the largest differences; per method, dtype and kind of tensor the largest one.
 * False where the file cannot be written. */
bool matrix_table_write(const struct matrix_table *table, const char *path);

#endif
