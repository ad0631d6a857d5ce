/* SPDX-License-Identifier: MIT
 *
 * Shared by the files of the option engine: one value as text, and the names of a table.
 */
#ifndef ULY_BASE_OPTIONS_IMPL_H
#define ULY_BASE_OPTIONS_IMPL_H

#include "base/options.h"

/* How messages call an option: "--max-length", or for a key of a file "run.json: max_length". */
struct uly_option_label {
    char text[512];
};

static inline void *uly_option_field(const struct uly_options *options,
                                     const struct uly_option *row)
{
    return (char *)options->values + row->offset;
}

static inline bool uly_option_in_force(const struct uly_option_table *table,
                                       const struct uly_option *row)
{
    return row->commands == 0 || (row->commands & table->command_bit) != 0;
}

/* Equal but for hyphens against underscores. */
bool uly_option_same_name(const char *a, const char *b);

/* Parses text into the field; a string or list item is copied; a list is extended by one item. The
 * field is unchanged on failure. The error says what the option takes. */
enum uly_status uly_option_value_parse(const struct uly_option *row, const char *text,
                                       const char *label, void *field);

/* Frees what the field owns and leaves it empty (NULL, n = 0); nothing to do for scalars. */
void uly_option_value_clear(const struct uly_option *row, void *field);

/* The value as text, one list item when item >= 0; returns buffer. */
const char *uly_option_value_text(const struct uly_option *row, const void *field, int item,
                                  char *buffer, size_t bytes);

/* "a whole number, at least 1, or auto", "none|full". */
const char *uly_option_takes(const struct uly_option *row, char *buffer, size_t bytes);

/* The value with the source, after the answers of the table were looked through. file: NULL for the
 * command line. */
enum uly_status uly_option_assign(struct uly_options *options, const char *name, const char *text,
                                  const char *file, bool extend);

/* The row of a name that is in force; otherwise the error says what to type instead. */
enum uly_status uly_option_find(const struct uly_option_table *table, const char *name,
                                const char *file, const struct uly_option **out);

#endif
