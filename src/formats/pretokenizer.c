/* SPDX-License-Identifier: MIT */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "formats/pretokenizer.h"

#include <pcre2.h>
#include <string.h>

#include "base/mem.h"
#include "formats/json.h"

enum { MAX_STEPS = 8, JIT_STACK_FIRST = 64 << 10, JIT_STACK_MOST = 64 << 20 };

struct step {
    bool byte_level;
    bool prefix;      /* ByteLevel: a space before the text, where it has none */
    pcre2_code *code; /* owned; NULL where a ByteLevel does not split */
};

struct uly_pretokenizer {
    struct step steps[MAX_STEPS];
    int n;
    pcre2_match_data
        *match; /* one match at a time: steps take turns, and read their offsets at once */
    pcre2_match_context *limits;
    pcre2_jit_stack *stack;
    unsigned char *prefixed; /* work space of the prefix space */
    int64_t prefixed_room;
};

/* ------------------------------------------------------------------ reading */

static enum uly_status compile(const char *pattern, const char *name, pcre2_code **out)
{
    char *translated;
    int error;
    PCRE2_SIZE at;
    PCRE2_UCHAR text[128] = "";
    ULY_TRY(uly_pattern_translate(pattern, name, &translated));
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)translated, PCRE2_ZERO_TERMINATED,
                                     PCRE2_UTF | PCRE2_UCP, &error, &at, NULL);
    uly_free(translated);
    if (!code) {
        pcre2_get_error_message(error, text, sizeof text);
        ULY_FAIL(ULY_ERR_FORMAT, "%s: regular expression \"%.200s\": %s", name, pattern,
                 (const char *)text);
    }
    uint32_t matches_nothing = 0;
    pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &matches_nothing);
    if (matches_nothing) {
        pcre2_code_free(code);
        ULY_FAIL(ULY_ERR_UNSUPPORTED,
                 "%s: regular expression \"%.200s\" matches empty text, which is not supported",
                 name, pattern);
    }
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* where it fails, matching is only slower */
    *out = code;
    return ULY_OK;
}

static enum uly_status read_split(const json_t *node, const char *name, struct step *step)
{
    const char *behavior = "", *pattern = NULL;
    bool invert = false;
    ULY_TRY(uly_json_get_string(node, "behavior", name, &behavior));
    ULY_TRY(uly_json_get_bool(node, "invert", name, &invert));
    const json_t *object = json_object_get(node, "pattern");
    ULY_TRY(uly_json_get_string(object, "Regex", name, &pattern));
    ULY_FAIL_IF(!pattern || invert || strcmp(behavior, "Isolated") != 0, ULY_ERR_UNSUPPORTED,
                "%s: pre-tokenizer Split with behavior %s%s%s is not supported yet (a Regex with "
                "Isolated is)",
                name, behavior, invert ? ", inverted," : "", pattern ? "" : " and no Regex");
    return compile(pattern, name, &step->code);
}

static enum uly_status read_byte_level(const json_t *node, const char *name, struct step *step)
{
    /* GPT-2's pattern, which the tokenizers library builds in */
    static const char words[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+"
                                "|\\s+(?!\\S)|\\s+";
    bool use_regex = true;
    step->byte_level = true;
    step->prefix = true;
    ULY_TRY(uly_json_get_bool(node, "use_regex", name, &use_regex));
    ULY_TRY(uly_json_get_bool(node, "add_prefix_space", name, &step->prefix));
    return use_regex ? compile(words, name, &step->code) : ULY_OK;
}

static enum uly_status read_step(struct uly_pretokenizer *p, const json_t *node, const char *name)
{
    const char *type = "none";
    ULY_TRY(uly_json_get_string(node, "type", name, &type));
    ULY_FAIL_IF(p->n == MAX_STEPS, ULY_ERR_UNSUPPORTED, "%s: more than %d pre-tokenizers", name,
                (int)MAX_STEPS);
    ULY_FAIL_IF(p->n > 0 && p->steps[p->n - 1].byte_level, ULY_ERR_UNSUPPORTED,
                "%s: pre-tokenizer %s after ByteLevel is not supported yet", name, type);
    struct step *step = &p->steps[p->n++];
    if (strcmp(type, "Split") == 0)
        return read_split(node, name, step);
    if (strcmp(type, "ByteLevel") == 0)
        return read_byte_level(node, name, step);
    ULY_FAIL(ULY_ERR_UNSUPPORTED,
             "%s: pre-tokenizer %s is not supported yet (ByteLevel, or a Sequence of Split and "
             "ByteLevel, is)",
             name, type);
}

static enum uly_status read_steps(struct uly_pretokenizer *p, const json_t *node, const char *name)
{
    const char *type = "none";
    ULY_TRY(uly_json_get_string(node, "type", name, &type));
    if (strcmp(type, "Sequence") != 0) {
        ULY_TRY(read_step(p, node, name));
    } else {
        const json_t *list = json_object_get(node, "pretokenizers"), *item;
        size_t i;
        json_array_foreach(list, i, item) ULY_TRY(read_step(p, item, name));
    }
    ULY_FAIL_IF(p->n == 0 || !p->steps[p->n - 1].byte_level, ULY_ERR_UNSUPPORTED,
                "%s: a pre-tokenizer without ByteLevel at its end is not supported yet", name);
    return ULY_OK;
}

enum uly_status uly_pretokenizer_create(const json_t *node, const char *name,
                                        struct uly_pretokenizer **out)
{
    enum uly_status status = ULY_OK;
    struct uly_pretokenizer *p;
    ULY_TRY(ULY_ALLOC(&p, 1));
    p->match = pcre2_match_data_create(1, NULL);
    p->limits = pcre2_match_context_create(NULL);
    p->stack =
        pcre2_jit_stack_create(JIT_STACK_FIRST, JIT_STACK_MOST, NULL); /* NULL: no JIT here */
    if (!p->match || !p->limits)
        ULY_FAIL_GOTO(failed, ULY_ERR_NO_MEMORY, "%s: no memory for regular expressions", name);
    pcre2_jit_stack_assign(p->limits, NULL, p->stack);
    pcre2_set_match_limit(p->limits, UINT32_MAX); /* a run of a million spaces is no attack */
    ULY_TRY_GOTO(read_steps(p, node, name), failed);
    *out = p;
    return ULY_OK;
failed:
    uly_pretokenizer_destroy(p);
    return status;
}

void uly_pretokenizer_destroy(struct uly_pretokenizer *p)
{
    if (!p)
        return;
    for (int i = 0; i < p->n; i++)
        pcre2_code_free(p->steps[i].code);
    pcre2_match_data_free(p->match);
    pcre2_match_context_free(p->limits);
    pcre2_jit_stack_free(p->stack);
    uly_free(p->prefixed);
    uly_free(p);
}

/* ------------------------------------------------------------------ running */

/* Next match at or after `from`; *begin = bytes where there is none. */
static enum uly_status find_match(struct uly_pretokenizer *p, const pcre2_code *code,
                                  const unsigned char *text, int64_t bytes, int64_t from,
                                  int64_t *begin, int64_t *end)
{
    uint32_t options = PCRE2_NO_UTF_CHECK; /* the text was checked once */
    int rc = pcre2_match(code, text, (size_t)bytes, (size_t)from, options, p->match, p->limits);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(code, text, (size_t)bytes, (size_t)from, options | PCRE2_NO_JIT, p->match,
                         p->limits);
    *begin = *end = bytes;
    if (rc == PCRE2_ERROR_NOMATCH)
        return ULY_OK;
    if (rc < 0) {
        PCRE2_UCHAR reason[128] = "";
        pcre2_get_error_message(rc, reason, sizeof reason);
        ULY_FAIL(ULY_ERR_UNSUPPORTED, "splitting text failed at byte %lld: %s", (long long)from,
                 (const char *)reason);
    }
    const PCRE2_SIZE *offsets = pcre2_get_ovector_pointer(p->match);
    *begin = (int64_t)offsets[0];
    *end = (int64_t)offsets[1];
    return ULY_OK;
}

static enum uly_status run_step(struct uly_pretokenizer *p, int i, const unsigned char *text,
                                int64_t bytes, uly_piece_fn piece, void *context);

/* Matches and what lies between them are pieces of their own; each goes to the next step. */
static enum uly_status split(struct uly_pretokenizer *p, int i, const unsigned char *text,
                             int64_t bytes, uly_piece_fn piece, void *context)
{
    for (int64_t at = 0; at < bytes;) {
        int64_t begin = 0, end = 0;
        ULY_TRY(find_match(p, p->steps[i].code, text, bytes, at, &begin, &end));
        if (begin > at)
            ULY_TRY(run_step(p, i + 1, text + at, begin - at, piece, context));
        if (end > begin)
            ULY_TRY(run_step(p, i + 1, text + begin, end - begin, piece, context));
        at = end;
    }
    return ULY_OK;
}

static enum uly_status with_prefix(struct uly_pretokenizer *p, const unsigned char **text,
                                   int64_t *bytes)
{
    if (*bytes + 1 > p->prefixed_room) {
        int64_t room = 2 * *bytes + 64;
        void *buffer = p->prefixed;
        ULY_TRY(uly_realloc(&buffer, (size_t)room, 1));
        p->prefixed = buffer;
        p->prefixed_room = room;
    }
    p->prefixed[0] = ' ';
    memcpy(p->prefixed + 1, *text, (size_t)*bytes);
    *text = p->prefixed;
    *bytes += 1;
    return ULY_OK;
}

static enum uly_status run_step(struct uly_pretokenizer *p, int i, const unsigned char *text,
                                int64_t bytes, uly_piece_fn piece, void *context)
{
    if (i == p->n)
        return piece(context, text, bytes);
    if (p->steps[i].prefix && text[0] != ' ') /* only the last step has one: the buffer is free */
        ULY_TRY(with_prefix(p, &text, &bytes));
    if (p->steps[i].code)
        return split(p, i, text, bytes, piece, context);
    return run_step(p, i + 1, text, bytes, piece, context);
}

enum uly_status uly_pretokenizer_run(struct uly_pretokenizer *p, const unsigned char *text,
                                     int64_t bytes, uly_piece_fn piece, void *context)
{
    return bytes > 0 ? run_step(p, 0, text, bytes, piece, context) : ULY_OK;
}
