/* SPDX-License-Identifier: MIT
 *
 * One option's value: text to field, field to text. Both directions are exact: what is written
 * parses to the same value.
 */
#include "base/options_impl.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"

/* snprintf that appends; used where a text is made of optional parts. */
static void append(char *buffer, size_t bytes, const char *text)
{
    size_t used = strlen(buffer);
    if (used < bytes)
        snprintf(buffer + used, bytes - used, "%s", text);
}

/* The fewest digits that give the number back. */
static void double_text(double x, char *buffer, size_t bytes)
{
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(buffer, bytes, "%.*g", digits, x);
        if (strtod(buffer, NULL) == x)
            return;
    }
}

static const char *const type_texts[] = {
#define X(name, type, text) text,
    ULY_OPTION_TYPE_LIST(X)
#undef X
};

const char *uly_option_takes(const struct uly_option *row, char *buffer, size_t bytes)
{
    char low[40], high[40];
    buffer[0] = '\0';
    if (row->type == ULY_OPTION_CHOICE) {
        for (int i = 0; row->choices[i]; i++) {
            append(buffer, bytes, i ? "|" : "");
            append(buffer, bytes, row->choices[i]);
        }
        return buffer;
    }
    append(buffer, bytes, type_texts[row->type]);
    if (row->min != row->max) {
        double_text(row->min, low, sizeof low);
        double_text(row->max, high, sizeof high);
        if (row->min > -HUGE_VAL) {
            append(buffer, bytes, row->above_min ? " above " : ", at least ");
            append(buffer, bytes, low);
        }
        if (row->max < HUGE_VAL) {
            append(buffer, bytes, row->min > -HUGE_VAL ? " and at most " : ", at most ");
            append(buffer, bytes, high);
        }
    }
    if (row->word) {
        append(buffer, bytes, ", or ");
        append(buffer, bytes, row->word);
    }
    return buffer;
}

static enum uly_status wrong(const struct uly_option *row, const char *text, const char *label)
{
    char takes[400];
    ULY_FAIL(ULY_ERR_USAGE, "%s takes %s, not \"%s\"", label,
             uly_option_takes(row, takes, sizeof takes), text);
}

static bool in_range(const struct uly_option *row, double x)
{
    if (row->min == row->max)
        return true;
    return x <= row->max && (row->above_min ? x > row->min : x >= row->min);
}

static bool parse_bool(const char *text, bool *out)
{
    static const char *const words[] = {"true", "false", "yes", "no", "1", "0"};
    for (int i = 0; i < 6; i++)
        if (strcasecmp(text, words[i]) == 0) {
            *out = i % 2 == 0;
            return true;
        }
    return false;
}

static bool parse_int(const char *text, int64_t *out)
{
    char *end;
    errno = 0;
    long long x = strtoll(text, &end, 10);
    if (end == text || *end || errno || isspace((unsigned char)*text))
        return false;
    *out = x;
    return true;
}

/* A plain decimal number: no hexadecimal, no infinity, no NaN. *end: what follows it. */
static bool parse_number(const char *text, double *out, const char **end)
{
    char *stop;
    if (!*text || !strchr("+-.0123456789", *text) || strncasecmp(text, "0x", 2) == 0)
        return false;
    *out = strtod(text, &stop);
    *end = stop;
    return stop != text && isfinite(*out);
}

static const struct {
    const char *name;
    double factor;
} byte_units[] = {
    {"", 1},
    {"B", 1},
    {"KB", 1e3},
    {"MB", 1e6},
    {"GB", 1e9},
    {"TB", 1e12},
    {"KiB", 1024},
    {"MiB", 1048576.0},
    {"GiB", 1073741824.0},
    {"TiB", 1099511627776.0},
};
enum { N_BYTE_UNITS = sizeof byte_units / sizeof byte_units[0] };

static bool parse_bytes(const char *text, int64_t *out)
{
    const char *unit;
    double x;
    if (parse_int(text, out)) /* exact beyond 2^53 */
        return *out >= 0;
    if (!parse_number(text, &x, &unit))
        return false;
    for (int i = 0; i < N_BYTE_UNITS; i++)
        if (strcasecmp(unit, byte_units[i].name) == 0) {
            x *= byte_units[i].factor;
            if (!(x >= 0 && x < 0x1p62))
                return false;
            *out = (int64_t)x;
            return true;
        }
    return false;
}

/* mm:ss or hh:mm:ss after the first number. */
static bool parse_clock(const char *rest, double x, double *out)
{
    double part;
    for (int colons = 0; *rest == ':' && colons < 2; colons++) {
        if (!isdigit((unsigned char)rest[1]) || !parse_number(rest + 1, &part, &rest) || part >= 60)
            return false;
        x = 60 * x + part;
    }
    *out = x;
    return *rest == '\0';
}

/* 90, 45s, 30m, 1.5h, 2d, 3h50m, mm:ss, hh:mm:ss. */
static bool parse_seconds(const char *text, double *out)
{
    static const char units[] = "dhms";
    static const double factors[] = {86400, 3600, 60, 1};
    double sum = 0, x;
    int last = -1;
    for (const char *rest = text; last < 0 || *rest;) {
        if (!parse_number(rest, &x, &rest) || x < 0)
            return false;
        if (last < 0 && *rest == ':')
            return parse_clock(rest, x, out);
        const char *unit = *rest ? strchr(units, *rest) : units + 3;
        if (!unit || unit - units <= last) /* units fall: 3h50m, not 50m3h */
            return false;
        last = (int)(unit - units);
        sum += x * factors[last];
        rest += *rest != '\0';
    }
    *out = sum;
    return true;
}

static enum uly_status parse_choice(const struct uly_option *row, const char *text,
                                    const char *label, int *out)
{
    bool flag;
    if (row->when_true && parse_bool(text, &flag))
        text = flag ? row->when_true : row->when_false ? row->when_false : text;
    for (int i = 0; row->choices[i]; i++)
        if (uly_option_same_name(text, row->choices[i])) {
            *out = i;
            return ULY_OK;
        }
    return wrong(row, text, label);
}

static enum uly_status add_item(struct uly_strings *list, const char *text)
{
    void *items = list->items;
    ULY_TRY(uly_realloc(&items, (size_t)list->n + 1, sizeof *list->items));
    list->items = items;
    ULY_TRY(uly_strdup(text, &list->items[list->n]));
    list->n++;
    return ULY_OK;
}

enum uly_status uly_option_value_parse(const struct uly_option *row, const char *text,
                                       const char *label, void *field)
{
    bool flag = false, ok = false, is_word = row->word && strcasecmp(text, row->word) == 0;
    int64_t whole = row->word_value;
    double number = (double)row->word_value;
    const char *end = "";
    char *copy;
    switch (row->type) {
    case ULY_OPTION_BOOL:
        ok = parse_bool(text, &flag);
        if (ok)
            *(bool *)field = flag;
        break;
    case ULY_OPTION_INT:
    case ULY_OPTION_BYTES:
        ok = is_word ||
             ((row->type == ULY_OPTION_INT ? parse_int(text, &whole) : parse_bytes(text, &whole)) &&
              in_range(row, (double)whole));
        if (ok)
            *(int64_t *)field = whole;
        break;
    case ULY_OPTION_DOUBLE:
    case ULY_OPTION_SECONDS:
        ok =
            is_word || ((row->type == ULY_OPTION_DOUBLE ? parse_number(text, &number, &end) && !*end
                                                        : parse_seconds(text, &number)) &&
                        in_range(row, number));
        if (ok)
            *(double *)field = number;
        break;
    case ULY_OPTION_STRING:
        ok = *text != '\0';
        if (ok) {
            ULY_TRY(uly_strdup(text, &copy));
            uly_option_value_clear(row, field);
            *(char **)field = copy;
        }
        break;
    case ULY_OPTION_CHOICE:
        return parse_choice(row, text, label, field);
    case ULY_OPTION_LIST:
        ok = *text != '\0';
        if (ok)
            ULY_TRY(add_item(field, text));
        break;
    }
    return ok ? ULY_OK : wrong(row, text, label);
}

void uly_option_value_clear(const struct uly_option *row, void *field)
{
    if (row->type == ULY_OPTION_STRING) {
        char **string = field;
        uly_free(*string);
        *string = NULL;
    } else if (row->type == ULY_OPTION_LIST) {
        struct uly_strings *list = field;
        for (int i = 0; i < list->n; i++)
            uly_free(list->items[i]);
        uly_free(list->items);
        *list = (struct uly_strings){0};
    }
}

/* In the largest unit that divides it; decimal ones first, as sizes of shards are given. */
static void bytes_text(int64_t x, char *buffer, size_t bytes)
{
    static const int order[] = {5, 9, 4, 8, 3, 7, 2, 6}; /* TB TiB GB GiB MB MiB KB KiB */
    for (int i = 0; i < 8; i++) {
        int64_t factor = (int64_t)byte_units[order[i]].factor;
        if (x >= factor && x % factor == 0) {
            snprintf(buffer, bytes, "%lld%s", (long long)(x / factor), byte_units[order[i]].name);
            return;
        }
    }
    snprintf(buffer, bytes, "%lld", (long long)x);
}

static void list_text(const struct uly_strings *list, int item, char *buffer, size_t bytes)
{
    buffer[0] = '\0';
    for (int i = 0; i < list->n; i++)
        if (item < 0 || item == i) {
            append(buffer, bytes, item < 0 && i ? " " : "");
            append(buffer, bytes, list->items[i]);
        }
}

const char *uly_option_value_text(const struct uly_option *row, const void *field, int item,
                                  char *buffer, size_t bytes)
{
    const char *text = NULL;
    double number = 0;
    switch (row->type) {
    case ULY_OPTION_BOOL:
        text = *(const bool *)field ? "true" : "false";
        break;
    case ULY_OPTION_INT:
    case ULY_OPTION_BYTES:
        if (row->word && *(const int64_t *)field == row->word_value)
            text = row->word;
        else if (row->type == ULY_OPTION_BYTES)
            bytes_text(*(const int64_t *)field, buffer, bytes);
        else
            snprintf(buffer, bytes, "%lld", (long long)*(const int64_t *)field);
        break;
    case ULY_OPTION_DOUBLE:
    case ULY_OPTION_SECONDS:
        number = *(const double *)field;
        if (row->word && number == (double)row->word_value)
            text = row->word;
        else
            double_text(number, buffer, bytes);
        break;
    case ULY_OPTION_STRING:
        text = *(char *const *)field ? *(char *const *)field : "";
        break;
    case ULY_OPTION_CHOICE:
        text = row->choices[*(const int *)field];
        break;
    case ULY_OPTION_LIST:
        list_text(field, item, buffer, bytes);
        break;
    }
    if (text)
        snprintf(buffer, bytes, "%s", text);
    return buffer;
}
