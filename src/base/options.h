/* SPDX-License-Identifier: MIT
 *
 * Options of a command from one table: a row makes the parser, the --help text, the JSON config
 * file, the options.json of a run and the page in docs/. Values land in a struct of the caller's;
 * the table says where.
 *
 *   struct uly_train_options values;
 *   struct uly_options options;
 *   ULY_TRY(uly_options_init(&options, table, &values));          defaults
 *   ULY_TRY_GOTO(uly_options_parse(&options, argc, argv), out);   config file, command line
 *   if (options.help)
 *       uly_options_help(table, stdout);
 *   ...
 *   out: uly_options_clear(&options);                             strings in values too
 *
 * On the command line: --name value, --name=value; a hyphen and an underscore are the same; a bool
 * takes no value or true or false; a list takes values up to the next option and may be given
 * again; "--" ends the options. In a JSON file the keys are the same names; null means the default;
 * the command line beats the file. Whatever is wrong is ULY_ERR_USAGE with the option, the value
 * and what would be right.
 */
#ifndef ULY_BASE_OPTIONS_H
#define ULY_BASE_OPTIONS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

struct uly_strings { /* a list option's value; owned by the options */
    char **items;    /* [n] */
    int n;
};

/* X(name, C type of the field, what to say when a text does not fit) */
#define ULY_OPTION_TYPE_LIST(X)                                                                    \
    X(ULY_OPTION_BOOL, bool, "true or false")                                                      \
    X(ULY_OPTION_INT, int64_t, "a whole number")                                                   \
    X(ULY_OPTION_DOUBLE, double, "a number")                                                       \
    X(ULY_OPTION_STRING, char *, "a text")                                                         \
    X(ULY_OPTION_CHOICE, int, "one of the words")                                                  \
    X(ULY_OPTION_BYTES, int64_t, "a size such as 500MB, 80GiB or 4096")                            \
    X(ULY_OPTION_SECONDS, double, "a time such as 90, 45s, 30m, 3h50m or 01:30:00")                \
    X(ULY_OPTION_LIST, struct uly_strings, "one or more values")

enum uly_option_type {
#define X(name, type, text) name,
    ULY_OPTION_TYPE_LIST(X)
#undef X
};

/* A string's field is NULL where nothing was given; a choice's is the index into choices. */
struct uly_option {
    const char *name; /* with hyphens, without the leading two; capitals for a positional one */
    enum uly_option_type type;
    size_t offset;       /* of the field; ULY_OPTION_AT checks its type */
    const char *initial; /* the default, as text; NULL: nothing, false, an empty list */
    const char
        *shown; /* what help calls the default where that says more than `initial`; may be NULL */
    const char *metavar; /* what help calls the value; may be NULL */
    const char *group;   /* heading in help; rows of a group follow each other */
    const char *help;
    double min, max; /* of a number, both included; no check when min == max */
    bool above_min;  /* min itself is out of range */
    const char
        *word; /* a word that a number's place takes, e.g. "auto"; it stands for word_value */
    int64_t word_value;         /* not subject to min and max */
    const char *const *choices; /* NULL-terminated */
    const char *when_true,
        *when_false;   /* the choices that true (or no value) and false stand for; may be NULL */
    unsigned commands; /* bits: the commands that have this row; 0: all that share the rows */
    bool required, positional;
    bool unsaved; /* left out of options.json */
};

/* Type, offset and the compile-time check that the field has the type's C type:
 * {.name = "seed", ULY_OPTION_AT(ULY_OPTION_INT, int64_t, struct s, seed), ...}. */
#define ULY_OPTION_AT(kind, ctype, s, field)                                                       \
    .type = (kind),                                                                                \
    .offset = offsetof(s, field) + 0 * sizeof(char[_Generic(((s *)0)->field, ctype : 1, default    \
                                                            : -1)])

/* A name, or a name with one value, that is answered instead of accepted. */
struct uly_option_answer {
    const char *name;   /* with hyphens */
    const char *value;  /* NULL: whatever the value */
    const char *answer; /* foreign: what to type; later: what there is instead, or NULL */
};

struct uly_option_table {
    const char *command; /* "train" */
    const char *usage;   /* first line of help, e.g. "ulysses train --model DIR ..." */
    const char *about;   /* a sentence or two */
    const struct uly_option *rows;
    int n_rows;
    unsigned command_bit; /* rows with commands == 0 or this bit are in force */
    const struct uly_option_answer
        *foreign; /* names people bring from elsewhere; ends with a NULL name */
    const struct uly_option_answer *later; /* options of parts that are not there yet; the same */
    const char *config_file; /* name of the option that names a config file, or NULL */
    bool foreign_in_page;    /* the Markdown page lists the foreign names */
};

enum uly_option_source { ULY_FROM_DEFAULT, ULY_FROM_FILE, ULY_FROM_COMMAND_LINE };

struct uly_options {
    const struct uly_option_table *table;
    void *values;          /* borrowed: the struct that the table describes */
    unsigned char *source; /* owned [n_rows], enum uly_option_source */
    bool help;             /* --help (or -h) was given: nothing else was checked */
    bool help_markdown;    /* --help-markdown: the table of docs/ */
};

/* Sets every field to its default. values: at least as large as the table's struct, contents
 * overwritten. */
enum uly_status uly_options_init(struct uly_options *options, const struct uly_option_table *table,
                                 void *values);
/* Frees what the options own, the strings and lists in values included (these are set to NULL). */
void uly_options_clear(struct uly_options *options);

/* argv: the words after the command's name. Reads the config file if one is named, then the words,
 * then looks for required options that are missing. */
enum uly_status uly_options_parse(struct uly_options *options, int argc, char *const *argv);

/* One value as if given with this source; the text replaces a scalar, and extends a list only
 * within one source. */
enum uly_status uly_options_set(struct uly_options *options, const char *name, const char *text,
                                enum uly_option_source source);

/* A JSON object with option names as keys. An unknown key, a wrong type and broken JSON name the
 * file. */
enum uly_status uly_options_read_json(struct uly_options *options, const char *path);

/* The values in force (whatever the caller made of the fields since) as a file that
 * uly_options_read_json takes. Options without a value and unsaved ones are left out. Keys have
 * underscores. */
enum uly_status uly_options_write_json(const struct uly_options *options, const char *path);

/* Where the value came from; ULY_BUG_ON for a name that is not in the table. */
enum uly_option_source uly_options_source(const struct uly_options *options, const char *name);

/* The value as text in the form the command line takes ("" when there is none; a list with spaces);
 * buffer: the caller's. */
const char *uly_options_text(const struct uly_options *options, const char *name, char *buffer,
                             size_t bytes);

void uly_options_help(const struct uly_option_table *table, FILE *out);
void uly_options_markdown(const struct uly_option_table *table, FILE *out);

/* The entry of names (n of them, NULL entries skipped) nearest to a mistyped one, hyphens and
 * underscores equal, or NULL where none is near enough to be meant. */
const char *uly_nearest_name(const char *typed, const char *const *names, int n);

#endif
