/* SPDX-License-Identifier: MIT */
#include "data/row.h"

#include <string.h>

#include "backend/backend.h"
#include "base/mem.h"
#include "formats/json.h"

/* Kinds of rows, by the keys that make them. The first of a kind's keys that is there names it; a row of two kinds is
 * refused, since either reading of it would be a guess. */
struct kind {
    const char *keys[3]; /* all must be there */
    const char *name;
    const char *status;  /* NULL: taken */
    const char *convert; /* a jq filter that makes a row with "text" of it */
};

/* A preference row has a "prompt" too, so it comes before prompt and completion. */
static const struct kind kinds[] = {
    {{"text"}, "text", NULL, NULL},
    {{"input_ids"}, "input_ids", NULL, NULL},
    {{"messages"},
     "messages",
     "are not there yet",
     "{text: ([.messages[].content] | join(\"\\n\"))}"},
    {{"chosen", "rejected"},
     "chosen and rejected (preferences)",
     "are not trained on",
     "{text: (.prompt + .chosen)}"},
    {{"prompt", "completion"},
     "prompt and completion",
     "are not there yet",
     "{text: (.prompt + .completion)}"},
    {{"instruction", "output"},
     "instruction and output (alpaca)",
     "are not taken",
     "{text: ([.instruction, .input // \"\", .output] | join(\"\\n\"))}"},
    {{"conversations"},
     "conversations (ShareGPT)",
     "are not taken",
     "{text: ([.conversations[].value] | join(\"\\n\"))}"},
};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

static bool is_kind(const json_t *object, const struct kind *kind)
{
    for (int i = 0; i < 3 && kind->keys[i]; i++)
        if (!uly_json_has(object, kind->keys[i]))
            return false;
    return true;
}

/* The one kind that a row is. */
static enum uly_status find_kind(const json_t *object, const char *where, const struct kind **out)
{
    const struct kind *found = NULL;
    for (int i = 0; i < N_KINDS; i++) {
        if (!is_kind(object, &kinds[i]))
            continue;
        ULY_FAIL_IF(found, ULY_ERR_UNSUPPORTED,
                    "%s: two kinds of row in one: %s, and %s; keep the keys of one of them", where,
                    found->name, kinds[i].name);
        found = &kinds[i];
    }
    ULY_FAIL_IF(!found, ULY_ERR_FORMAT, "%s: the row has neither \"text\" nor \"input_ids\"",
                where);
    ULY_FAIL_IF(found->status, ULY_ERR_UNSUPPORTED,
                "%s: rows with %s %s; make text of them: jq -c '%s' rows.jsonl > text.jsonl", where,
                found->name, found->status, found->convert);
    *out = found;
    return ULY_OK;
}

/* ------------------------------------------------------------------ keys that are not used */

static bool is_listed(const char *list, const char *key)
{
    size_t n = strlen(key);
    for (const char *at = list; *at;) {
        size_t length = strcspn(at, ",");
        if (length == n && memcmp(at, key, n) == 0)
            return true;
        at += length;
        at += strspn(at, ", ");
    }
    return false;
}

static void list_key(char *list, size_t bytes, const char *key)
{
    size_t used = strlen(list), n = strlen(key);
    if (used + n + sizeof ", , ..." > bytes || is_listed(list, key)) {
        bool full = !is_listed(list, key) && !is_listed(list, "...");
        if (full && used + sizeof ", ..." <= bytes)
            snprintf(list + used, bytes - used, "%s...", used ? ", " : "");
        return;
    }
    snprintf(list + used, bytes - used, "%s%s", used ? ", " : "", key);
}

static void list_extra_keys(json_t *object, bool is_text, char *list, size_t bytes)
{
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        bool used = strcmp(key, is_text ? "text" : "input_ids") == 0 ||
                    (!is_text && strcmp(key, "labels") == 0);
        if (!used && !json_is_null(value)) /* tables write null for what a row does not have */
            list_key(list, bytes, key);
    }
}

/* ------------------------------------------------------------------ values */

/* ids or labels: integers in [0, vocab_size), labels also the one that is ignored. */
static enum uly_status read_ids(const json_t *object, const char *key, const char *where,
                                int64_t vocab_size, int32_t **out, int64_t *n)
{
    const json_t *array = json_object_get(object, key);
    bool is_label = strcmp(key, "labels") == 0;
    ULY_FAIL_IF(!json_is_array(array), ULY_ERR_FORMAT, "%s: \"%s\" is %s, not a list of integers",
                where, key, uly_json_type_text(array));
    *n = (int64_t)json_array_size(array);
    ULY_TRY(ULY_ALLOC(out, *n));
    for (int64_t i = 0; i < *n; i++) {
        const json_t *item = json_array_get(array, (size_t)i);
        ULY_FAIL_IF(!json_is_integer(item), ULY_ERR_FORMAT,
                    "%s: item %lld of \"%s\" is %s, not an integer", where, (long long)i, key,
                    uly_json_type_text(item));
        int64_t id = json_integer_value(item);
        bool ignored = is_label && id == ULY_IGNORE_LABEL;
        ULY_FAIL_IF(!ignored && (id < 0 || id >= vocab_size), ULY_ERR_FORMAT,
                    "%s: item %lld of \"%s\" is %lld, not one of the model's %lld tokens%s", where,
                    (long long)i, key, (long long)id, (long long)vocab_size,
                    is_label ? " nor -100" : "");
        (*out)[i] = (int32_t)id;
    }
    return ULY_OK;
}

/* A mask of ones says nothing; one with a 0 would hide tokens, which is done by leaving them out here. */
static enum uly_status check_mask(const json_t *object, const char *where)
{
    const json_t *mask = json_object_get(object, "attention_mask");
    for (size_t i = 0; i < json_array_size(mask); i++) {
        const json_t *item = json_array_get(mask, i);
        ULY_FAIL_IF(!json_is_integer(item) || json_integer_value(item) != 1, ULY_ERR_FORMAT,
                    "%s: item %zu of \"attention_mask\" is not 1; leave padding out of the row",
                    where, i);
    }
    return ULY_OK;
}

static enum uly_status read_input_ids(const json_t *object, const char *where, int64_t vocab_size,
                                      struct uly_row *out)
{
    int64_t n_labels;
    ULY_TRY(read_ids(object, "input_ids", where, vocab_size, &out->ids, &out->n));
    ULY_FAIL_IF(out->n == 0, ULY_ERR_FORMAT, "%s: \"input_ids\" is empty", where);
    ULY_TRY(check_mask(object, where));
    if (!uly_json_has(object, "labels"))
        return ULY_OK;
    ULY_TRY(read_ids(object, "labels", where, vocab_size, &out->labels, &n_labels));
    ULY_FAIL_IF(n_labels != out->n, ULY_ERR_FORMAT,
                "%s: \"labels\" has %lld items, \"input_ids\" %lld", where, (long long)n_labels,
                (long long)out->n);
    return ULY_OK;
}

static enum uly_status read_text(const json_t *object, const char *where, struct uly_row *out)
{
    const json_t *text = json_object_get(object, "text");
    ULY_FAIL_IF(!json_is_string(text), ULY_ERR_FORMAT, "%s: \"text\" is %s, not a string", where,
                uly_json_type_text(text));
    ULY_FAIL_IF(json_string_length(text) == 0, ULY_ERR_FORMAT, "%s: \"text\" is empty", where);
    ULY_FAIL_IF(uly_json_has(object, "labels"), ULY_ERR_FORMAT,
                "%s: \"labels\" belong to \"input_ids\", not to \"text\"", where);
    out->text = json_string_value(text);
    out->bytes = (int64_t)json_string_length(text);
    return ULY_OK;
}

enum uly_status uly_row_parse(const char *line, int64_t bytes, const char *where,
                              int64_t vocab_size, char *extra_keys, size_t extra_bytes,
                              struct uly_row *out)
{
    json_error_t error;
    const struct kind *kind;
    *out = (struct uly_row){0};
    out->object = json_loadb(line, (size_t)bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    ULY_FAIL_IF(!out->object, ULY_ERR_FORMAT, "%s: broken JSON at byte %d of the line: %s", where,
                error.position, error.text);
    ULY_FAIL_IF(!json_is_object(out->object), ULY_ERR_FORMAT,
                "%s: a row is an object such as {\"text\": \"...\"}, not a list", where);
    ULY_TRY(find_kind(out->object, where, &kind));
    bool is_text = strcmp(kind->name, "text") == 0;
    if (is_text)
        ULY_TRY(read_text(out->object, where, out));
    else
        ULY_TRY(read_input_ids(out->object, where, vocab_size, out));
    list_extra_keys(out->object, is_text, extra_keys, extra_bytes);
    return ULY_OK;
}

void uly_row_clear(struct uly_row *row)
{
    json_decref(row->object);
    uly_free(row->ids);
    uly_free(row->labels);
    *row = (struct uly_row){0};
}
