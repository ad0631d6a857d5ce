/* SPDX-License-Identifier: MIT
 *
 * The table as a page: for a terminal, and as Markdown for docs/.
 */
#include <string.h>

#include "base/options_impl.h"

enum { HELP_COLUMN = 34, HELP_WIDTH = 96 };

/* What stands in brackets; empty where there is nothing worth a word, as for a flag that is off. */
static void default_text(const struct uly_option *row, char *buffer, size_t bytes)
{
    const char *text = row->shown ? row->shown : row->initial;
    buffer[0] = '\0';
    if (text && *text)
        snprintf(buffer, bytes, "%s", text);
    else if (row->required)
        snprintf(buffer, bytes, "required");
}

static void value_name(const struct uly_option *row, char *buffer, size_t bytes)
{
    buffer[0] = '\0';
    if (row->metavar)
        snprintf(buffer, bytes, "%s", row->metavar);
    else if (row->type == ULY_OPTION_CHOICE)
        uly_option_takes(row, buffer, bytes);
    else if (row->type != ULY_OPTION_BOOL)
        snprintf(buffer, bytes, "%s", row->type == ULY_OPTION_BYTES ? "SIZE" : "N");
}

static void option_head(const struct uly_option *row, char *buffer, size_t bytes)
{
    char value[400];
    value_name(row, value, sizeof value);
    snprintf(buffer, bytes, "%s%s%s%s%s", row->positional ? "" : "--", row->name,
             !row->positional && *value ? " " : "", row->positional ? "" : value,
             row->type == ULY_OPTION_LIST ? "..." : "");
}

/* Words of text from column `at`, lines broken before HELP_WIDTH and continued at `indent`; returns
 * the column after. */
static int put_wrapped(const char *text, int at, int indent, FILE *out)
{
    while (*text) {
        int length = (int)strcspn(text, " ");
        if (at > indent && at + 1 + length > HELP_WIDTH) {
            fprintf(out, "\n%*s", indent, "");
            at = indent;
        }
        if (at > indent) {
            fputc(' ', out);
            at++;
        }
        fwrite(text, 1, (size_t)length, out);
        at += length;
        text += length;
        text += strspn(text, " ");
    }
    return at;
}

static void put_row(const struct uly_option *row, FILE *out)
{
    char head[512], text[512], closing[540];
    option_head(row, head, sizeof head);
    default_text(row, text, sizeof text);
    int used = fprintf(out, "  %s", head);
    if (used >= HELP_COLUMN) {
        fputc('\n', out);
        used = 0;
    }
    fprintf(out, "%*s", HELP_COLUMN - used, "");
    used = put_wrapped(row->help, HELP_COLUMN, HELP_COLUMN, out);
    snprintf(closing, sizeof closing, "[%s]", text);
    if (*text)
        put_wrapped(closing, used, HELP_COLUMN, out);
    fputc('\n', out);
}

/* Names of parts to come, each once, as a line of text. */
static void put_later(const struct uly_option_table *table, const char *quote, FILE *out)
{
    char item[200];
    const struct uly_option_answer *first = table->later;
    int at = 0;
    for (const struct uly_option_answer *later = first; later && later->name; later++) {
        snprintf(item, sizeof item, "%s--%s%s%s%s%s", quote, later->name, later->value ? " " : "",
                 later->value ? later->value : "", quote, later[1].name ? "," : "");
        at = put_wrapped(item, at, 0, out);
    }
    fputc('\n', out);
}

void uly_options_help(const struct uly_option_table *table, FILE *out)
{
    const char *group = "";
    fprintf(out, "usage: %s\n\n", table->usage);
    put_wrapped(table->about, 0, 0, out);
    fputc('\n', out);
    for (int i = 0; i < table->n_rows; i++) {
        const struct uly_option *row = &table->rows[i];
        if (!uly_option_in_force(table, row))
            continue;
        if (row->group && strcmp(group, row->group) != 0)
            fprintf(out, "\n%s:\n", group = row->group);
        put_row(row, out);
    }
    fputs("\nA hyphen and an underscore in a name are the same; --name=value works too.\n", out);
    if (table->config_file)
        fprintf(out, "--%s takes a JSON object with the same names; the command line beats it.\n",
                table->config_file);
    if (table->later && table->later->name) {
        fputs("\nNot there yet:\n", out);
        put_later(table, "", out);
    }
}

/* A cell of a Markdown table: a bar would end it. */
static void put_cell(const char *text, FILE *out)
{
    for (; *text; text++) {
        if (*text == '|')
            fputc('\\', out);
        fputc(*text, out);
    }
}

void uly_options_markdown(const struct uly_option_table *table, FILE *out)
{
    char head[512], text[512];
    const char *group = "";
    fprintf(out, "```\n%s\n```\n\n%s\n", table->usage, table->about);
    for (int i = 0; i < table->n_rows; i++) {
        const struct uly_option *row = &table->rows[i];
        if (!uly_option_in_force(table, row))
            continue;
        if (row->group && strcmp(group, row->group) != 0)
            fprintf(out, "\n### %s\n\n| option | default | meaning |\n|---|---|---|\n",
                    group = row->group);
        option_head(row, head, sizeof head);
        default_text(row, text, sizeof text);
        fputs("| `", out);
        put_cell(head, out);
        fputs(*text ? "` | `" : "` | ", out);
        put_cell(text, out);
        fputs(*text ? "` | " : " | ", out);
        put_cell(row->help, out);
        fputs(" |\n", out);
    }
    if (table->later && table->later->name) {
        fputs("\n### Not there yet\n\nRefused by name: ", out);
        put_later(table, "`", out);
    }
    if (table->foreign_in_page) {
        fputs("\n### Names from elsewhere\n\n| typed | answer |\n|---|---|\n", out);
        for (const struct uly_option_answer *answer = table->foreign; answer->name; answer++) {
            fprintf(out, "| `--%s%s%s` | ", answer->name, answer->value ? " " : "",
                    answer->value ? answer->value : "");
            put_cell(answer->answer, out);
            fputs(" |\n", out);
        }
    }
}
