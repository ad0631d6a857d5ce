/* SPDX-License-Identifier: MIT
 *
 * The option engine: names to rows, words to values. Everything that can be typed is answered: a
 * name of the table, a name from elsewhere (with what to type here), an option of a part that is
 * not there yet, or the nearest name.
 */
#include "base/options.h"

#include <string.h>

#include "base/mem.h"
#include "base/options_impl.h"

enum { NAME_ROOM = 64 };

/* ------------------------------------------------------------------ names */

static char plain(char c)
{
    return c == '_' ? '-' : c;
}

bool uly_option_same_name(const char *a, const char *b)
{
    while (*a && plain(*a) == plain(*b))
        a++, b++;
    return plain(*a) == plain(*b);
}

/* Edits that make a into b: insert, delete, replace, swap neighbours. */
static int edit_distance(const char *a, const char *b)
{
    int rows[3][NAME_ROOM + 1];
    int n = (int)strnlen(a, NAME_ROOM), m = (int)strnlen(b, NAME_ROOM);
    for (int j = 0; j <= m; j++)
        rows[0][j] = j;
    for (int i = 1; i <= n; i++) {
        int *now = rows[i % 3], *above = rows[(i + 2) % 3], *above2 = rows[(i + 1) % 3];
        now[0] = i;
        for (int j = 1; j <= m; j++) {
            bool same = plain(a[i - 1]) == plain(b[j - 1]);
            int best = above[j - 1] + (same ? 0 : 1);
            best = above[j] + 1 < best ? above[j] + 1 : best;
            best = now[j - 1] + 1 < best ? now[j - 1] + 1 : best;
            if (i > 1 && j > 1 && plain(a[i - 1]) == plain(b[j - 2]) &&
                plain(a[i - 2]) == plain(b[j - 1]) && above2[j - 2] + 1 < best)
                best = above2[j - 2] + 1;
            now[j] = best;
        }
    }
    return rows[n % 3][m];
}

static bool contains(const char *whole, const char *part)
{
    size_t n = strlen(whole), m = strlen(part);
    for (size_t i = 0; i + m <= n; i++) {
        size_t j = 0;
        while (j < m && plain(whole[i + j]) == plain(part[j]))
            j++;
        if (j == m)
            return true;
    }
    return false;
}

const char *uly_nearest_name(const char *typed, const char *const *names, int n)
{
    const char *best = NULL;
    int length = (int)strlen(typed), limit = length < 6 ? 1 : length / 3, best_distance = limit + 1;
    for (int i = 0; i < n; i++) {
        int distance = names[i] ? edit_distance(typed, names[i]) : best_distance;
        if (distance < best_distance) {
            best = names[i];
            best_distance = distance;
        }
    }
    /* "epochs" means num-train-epochs: too far by letters, but all of it is there */
    for (int i = 0; !best && length >= 4 && i < n; i++)
        if (names[i] &&
            (contains(names[i], typed) || (strlen(names[i]) >= 4 && contains(typed, names[i]))))
            best = names[i];
    return best;
}

static void make_label(const char *name, const char *file, struct uly_option_label *out)
{
    if (file)
        snprintf(out->text, sizeof out->text, "%.380s: %.100s", file, name);
    else
        snprintf(out->text, sizeof out->text, "--%.100s", name);
}

/* The answer that fits a name and a value (NULL: only answers for every value). */
static const struct uly_option_answer *find_answer(const struct uly_option_answer *answers,
                                                   const char *name, const char *value)
{
    for (; answers && answers->name; answers++) {
        if (!uly_option_same_name(answers->name, name))
            continue;
        if (!answers->value || (value && uly_option_same_name(answers->value, value)))
            return answers;
    }
    return NULL;
}

/* Refuses a name or value that has an answer. */
static enum uly_status look_for_answer(const struct uly_option_table *table, const char *name,
                                       const char *value, const char *label)
{
    const struct uly_option_answer *later = find_answer(table->later, name, value);
    const char *space = later && later->value ? " " : "";
    const char *shown = later && later->value ? later->value : "";
    ULY_FAIL_IF(later && later->answer, ULY_ERR_USAGE, "%s%s%s is not there yet; %s", label, space,
                shown, later->answer);
    ULY_FAIL_IF(later, ULY_ERR_USAGE, "%s%s%s is not there yet", label, space, shown);
    const struct uly_option_answer *foreign = find_answer(table->foreign, name, value);
    ULY_FAIL_IF(foreign && foreign->value, ULY_ERR_USAGE, "%s %s is not known here: %s", label,
                foreign->value, foreign->answer);
    ULY_FAIL_IF(foreign, ULY_ERR_USAGE, "%s is not an option of ulysses %s: %s", label,
                table->command, foreign->answer);
    return ULY_OK;
}

static const struct uly_option *row_named(const struct uly_option_table *table, const char *name)
{
    for (int i = 0; i < table->n_rows; i++)
        if (uly_option_same_name(table->rows[i].name, name))
            return &table->rows[i];
    return NULL;
}

static enum uly_status unknown(const struct uly_option_table *table, const char *name,
                               const char *label)
{
    enum { MOST = 256 };
    const char *names[MOST];
    int n = 0;
    for (int i = 0; i < table->n_rows && n < MOST; i++)
        if (uly_option_in_force(table, &table->rows[i]) && !table->rows[i].positional)
            names[n++] = table->rows[i].name;
    const char *near = uly_nearest_name(name, names, n);
    ULY_FAIL_IF(near, ULY_ERR_USAGE, "%s is not an option of ulysses %s; did you mean --%s?", label,
                table->command, near);
    ULY_FAIL(ULY_ERR_USAGE, "%s is not an option of ulysses %s; ulysses %s --help lists them",
             label, table->command, table->command);
}

enum uly_status uly_option_find(const struct uly_option_table *table, const char *name,
                                const char *file, const struct uly_option **out)
{
    struct uly_option_label label;
    make_label(name, file, &label);
    const struct uly_option *row = row_named(table, name);
    if (!row) {
        ULY_TRY(look_for_answer(table, name, NULL, label.text));
        return unknown(table, name, label.text);
    }
    ULY_FAIL_IF(!uly_option_in_force(table, row), ULY_ERR_USAGE,
                "%s is an option of another command, not of ulysses %s", label.text,
                table->command);
    *out = row;
    return ULY_OK;
}

/* ------------------------------------------------------------------ values */

static int row_index(const struct uly_option_table *table, const struct uly_option *row)
{
    return (int)(row - table->rows);
}

static enum uly_status set_default(struct uly_options *options, const struct uly_option *row)
{
    void *field = uly_option_field(options, row);
    options->source[row_index(options->table, row)] = ULY_FROM_DEFAULT;
    uly_option_value_clear(row, field);
    if (row->initial)
        return uly_option_value_parse(row, row->initial, row->name, field);
    if (row->type == ULY_OPTION_BOOL)
        *(bool *)field = false;
    /* numbers and choices without a default would be undefined: the table is wrong */
    ULY_BUG_ON(row->type != ULY_OPTION_BOOL && row->type != ULY_OPTION_STRING &&
               row->type != ULY_OPTION_LIST);
    return ULY_OK;
}

enum uly_status uly_options_init(struct uly_options *options, const struct uly_option_table *table,
                                 void *values)
{
    enum uly_status status = ULY_OK;
    *options = (struct uly_options){.table = table, .values = values};
    /* first nothing is owned, so that clear is right wherever the rest fails */
    for (int i = 0; i < table->n_rows; i++) {
        const struct uly_option *row = &table->rows[i];
        if (row->type == ULY_OPTION_STRING)
            *(char **)uly_option_field(options, row) = NULL;
        else if (row->type == ULY_OPTION_LIST)
            *(struct uly_strings *)uly_option_field(options, row) = (struct uly_strings){0};
    }
    ULY_TRY(ULY_ALLOC(&options->source, table->n_rows));
    /* rows of other commands too: they share the struct */
    for (int i = 0; i < table->n_rows; i++)
        ULY_TRY_GOTO(set_default(options, &table->rows[i]), fail);
    return ULY_OK;
fail:
    uly_options_clear(options);
    return status;
}

void uly_options_clear(struct uly_options *options)
{
    if (!options->source)
        return;
    for (int i = 0; i < options->table->n_rows; i++) {
        const struct uly_option *row = &options->table->rows[i];
        uly_option_value_clear(row, uly_option_field(options, row));
    }
    uly_free(options->source);
    options->source = NULL;
}

enum uly_status uly_option_assign(struct uly_options *options, const char *name, const char *text,
                                  const char *file, bool extend)
{
    const struct uly_option_table *table = options->table;
    const struct uly_option *row;
    struct uly_option_label label;
    ULY_TRY(uly_option_find(table, name, file, &row));
    make_label(row->name, file, &label);
    if (!text)
        return set_default(options, row);
    ULY_TRY(look_for_answer(table, row->name, text, label.text));
    void *field = uly_option_field(options, row);
    if (row->type == ULY_OPTION_LIST && !extend)
        uly_option_value_clear(row, field);
    ULY_TRY(uly_option_value_parse(row, text, label.text, field));
    options->source[row_index(table, row)] = file ? ULY_FROM_FILE : ULY_FROM_COMMAND_LINE;
    return ULY_OK;
}

enum uly_status uly_options_set(struct uly_options *options, const char *name, const char *text,
                                enum uly_option_source source)
{
    const struct uly_option *row;
    ULY_TRY(uly_option_find(options->table, name, NULL, &row));
    int i = row_index(options->table, row);
    ULY_TRY(uly_option_assign(options, name, text, NULL, options->source[i] == source));
    options->source[i] = (unsigned char)source;
    return ULY_OK;
}

enum uly_option_source uly_options_source(const struct uly_options *options, const char *name)
{
    const struct uly_option *row = row_named(options->table, name);
    ULY_BUG_ON(!row);
    return (enum uly_option_source)options->source[row_index(options->table, row)];
}

const char *uly_options_text(const struct uly_options *options, const char *name, char *buffer,
                             size_t bytes)
{
    const struct uly_option *row = row_named(options->table, name);
    ULY_BUG_ON(!row);
    return uly_option_value_text(row, uly_option_field(options, row), -1, buffer, bytes);
}

/* ------------------------------------------------------------------ the command line */

static bool is_option(const char *word)
{
    return word[0] == '-' && word[1] == '-' && word[2];
}

/* "--name=value" or "--name": the name into `name`; *value: what follows the sign, or NULL. */
static enum uly_status split_word(const char *word, char *name, const char **value)
{
    const char *sign = strchr(word, '=');
    size_t length = sign ? (size_t)(sign - word) - 2 : strlen(word) - 2;
    ULY_FAIL_IF(length >= NAME_ROOM, ULY_ERR_USAGE, "unknown option %.80s...", word);
    memcpy(name, word + 2, length);
    name[length] = '\0';
    *value = sign ? sign + 1 : NULL;
    return ULY_OK;
}

/* May the option stand without a value? Then what it means. */
static const char *bare_meaning(const struct uly_option *row)
{
    return row->type == ULY_OPTION_BOOL || row->when_true ? "true" : NULL;
}

static bool is_bool_word(const char *word)
{
    bool ignored;
    const struct uly_option row = {.type = ULY_OPTION_BOOL};
    return uly_option_value_parse(&row, word, "", &ignored) == ULY_OK;
}

/* Does the word after a row's name belong to it? */
static bool takes_word(const struct uly_option *row, const char *word)
{
    if (!word || is_option(word) || strcmp(word, "--") == 0)
        return false;
    return row->type != ULY_OPTION_BOOL || is_bool_word(word);
}

/* The option at argv[0] with the words that belong to it; *used: how many words. */
static enum uly_status parse_option(struct uly_options *options, int argc, char *const *argv,
                                    int *used)
{
    char name[NAME_ROOM];
    const char *value;
    const struct uly_option *row;
    *used = 1;
    ULY_TRY(split_word(argv[0], name, &value));
    ULY_TRY(uly_option_find(options->table, name, NULL, &row));
    int index = row_index(options->table, row);
    bool extend = options->source[index] == ULY_FROM_COMMAND_LINE;
    if (value)
        return uly_option_assign(options, name, value, NULL, extend);
    const char *bare = bare_meaning(row);
    if (*used >= argc || !takes_word(row, argv[*used])) {
        char takes[400];
        ULY_FAIL_IF(!bare, ULY_ERR_USAGE, "--%s needs a value: %s", row->name,
                    uly_option_takes(row, takes, sizeof takes));
        return uly_option_assign(options, name, bare, NULL, extend);
    }
    do {
        ULY_TRY(uly_option_assign(options, name, argv[(*used)++], NULL, extend));
        extend = true;
    } while (row->type == ULY_OPTION_LIST && *used < argc && takes_word(row, argv[*used]));
    return ULY_OK;
}

static enum uly_status parse_positional(struct uly_options *options, const char *word, int nth)
{
    const struct uly_option_table *table = options->table;
    for (int i = 0; i < table->n_rows; i++) {
        const struct uly_option *row = &table->rows[i];
        if (!row->positional || !uly_option_in_force(table, row) || nth-- > 0)
            continue;
        ULY_TRY(uly_option_value_parse(row, word, row->name, uly_option_field(options, row)));
        options->source[i] = ULY_FROM_COMMAND_LINE;
        return ULY_OK;
    }
    ULY_FAIL(ULY_ERR_USAGE, "unexpected word \"%s\" after ulysses %s; options start with --", word,
             table->command);
}

static enum uly_status parse_words(struct uly_options *options, int argc, char *const *argv)
{
    int n_positional = 0;
    bool options_ended = false;
    for (int i = 0; i < argc;) {
        int used = 1;
        if (!options_ended && strcmp(argv[i], "--") == 0)
            options_ended = true;
        else if (!options_ended && is_option(argv[i]))
            ULY_TRY(parse_option(options, argc - i, argv + i, &used));
        else if (!options_ended && argv[i][0] == '-' && argv[i][1])
            ULY_FAIL(ULY_ERR_USAGE, "unknown option %s; options of ulysses %s start with --",
                     argv[i], options->table->command);
        else
            ULY_TRY(parse_positional(options, argv[i], n_positional++));
        i += used;
    }
    return ULY_OK;
}

/* The config file is read before anything else, wherever it stands; the last one named counts. */
static enum uly_status read_config_file(struct uly_options *options, int argc, char *const *argv)
{
    const char *path = NULL, *value;
    char name[NAME_ROOM];
    for (int i = 0; options->table->config_file && i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (!is_option(argv[i]) || split_word(argv[i], name, &value) != ULY_OK ||
            !uly_option_same_name(name, options->table->config_file))
            continue;
        if (value || (i + 1 < argc && !is_option(argv[i + 1])))
            path = value ? value : argv[i + 1];
    }
    return path ? uly_options_read_json(options, path) : ULY_OK;
}

static enum uly_status check_required(const struct uly_options *options)
{
    const struct uly_option_table *table = options->table;
    for (int i = 0; i < table->n_rows; i++) {
        const struct uly_option *row = &table->rows[i];
        if (!row->required || !uly_option_in_force(table, row) ||
            options->source[i] != ULY_FROM_DEFAULT)
            continue;
        ULY_FAIL(ULY_ERR_USAGE, "%s%s is missing: ulysses %s needs %s", row->positional ? "" : "--",
                 row->name, table->command, row->metavar ? row->metavar : "it");
    }
    return ULY_OK;
}

enum uly_status uly_options_parse(struct uly_options *options, int argc, char *const *argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        options->help =
            options->help || strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0;
        options->help_markdown =
            options->help_markdown ||
            (is_option(argv[i]) && uly_option_same_name(argv[i] + 2, "help-markdown"));
    }
    if (options->help || options->help_markdown)
        return ULY_OK;
    ULY_TRY(read_config_file(options, argc, argv));
    ULY_TRY(parse_words(options, argc, argv));
    return check_required(options);
}
