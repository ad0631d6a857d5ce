/* SPDX-License-Identifier: MIT
 *
 * Regular expressions of tokenizers, from Oniguruma's words into PCRE2's. The dialects agree on nearly everything that
 * tokenizers use; the differences below would change ids silently. So only constructs that are known to mean the same
 * pass, and these are spelled out:
 *
 *   \s \S       Unicode White_Space. PCRE2's own \s also takes U+180E, which left that property long ago.
 *   \p{L} \p{N} PCRE2 knows the Unicode version that it was built with (14 in Debian 12), the tokenizers library a newer
 *               one: letters and numbers assigned since are added by hand (Unicode 15 to 16).
 */
#include "formats/pretokenizer.h"

#include <ctype.h>
#include <string.h>

#include "base/mem.h"

#define X(a, b) "\\x{" #a "}-\\x{" #b "}"
static const char space_ranges[] = "\\t-\\r\\x20\\x{85}\\x{a0}\\x{1680}" X(
    2000, 200a) "\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";

static const char letter_ranges[] = "\\p{L}" X(1c89, 1c8a) X(a7cb, a7cd) X(a7da, a7dc)
    X(105c0, 105f3) X(10d4a, 10d65) X(10d6f, 10d85) X(10ec2, 10ec4) X(1123f, 11240)
        X(11380, 11389) "\\x{1138b}\\x{1138e}" X(11390, 113b5) "\\x{113b7}\\x{113d1}\\x{113d3}" X(
            11bc0, 11be0) "\\x{11f02}" X(11f04, 11f10) X(11f12, 11f33) "\\x{1342f}" X(13441, 13446)
            X(13460, 143fa) X(16100, 1611d)
                X(16d40, 16d6c) "\\x{18cff}\\x{1b132}\\x{1b155}" X(1df25, 1df2a) X(1e030, 1e06d)
                    X(1e4d0, 1e4eb) X(1e5d0, 1e5ed) "\\x{1e5f0}\\x{2b739}" X(2ebf0, 2ee5d)
                        X(31350, 323af);

static const char number_ranges[] =
    "\\p{N}" X(10d40, 10d49) X(116d0, 116e3) X(11bf0, 11bf9) X(11f50, 11f59) X(16130, 16139)
        X(16d70, 16d79) X(1ccf0, 1ccf9) X(1d2c0, 1d2d3) X(1e4f0, 1e4f9) X(1e5f1, 1e5fa);
#undef X

struct translation {
    const char *pattern, *name;
    const char *at;
    char *out;
    size_t used;
    bool in_class;
};

/* out was made large enough for the longest replacement of every byte */
static void put(struct translation *t, const char *text)
{
    size_t n = strlen(text);
    memcpy(t->out + t->used, text, n + 1);
    t->used += n;
}

static void put_bytes(struct translation *t, int n)
{
    memcpy(t->out + t->used, t->at, (size_t)n);
    t->used += (size_t)n;
    t->out[t->used] = '\0';
    t->at += n;
}

static void put_set(struct translation *t, const char *ranges, bool negated)
{
    if (!t->in_class)
        put(t, negated ? "[^" : "[");
    put(t, ranges);
    if (!t->in_class)
        put(t, "]");
}

static enum uly_status refuse(const struct translation *t, int n)
{
    ULY_FAIL(ULY_ERR_UNSUPPORTED,
             "%s: regular expression \"%.200s\": \"%.*s\" is not supported yet", t->name,
             t->pattern, n, t->at);
}

static enum uly_status translate_escape(struct translation *t)
{
    const char *p = t->at;
    if (p[1] == 's' || (p[1] == 'S' && !t->in_class)) {
        put_set(t, space_ranges, p[1] == 'S');
        t->at += 2;
    } else if (strncmp(p, "\\p{L}", 5) == 0 || strncmp(p, "\\p{N}", 5) == 0) {
        put_set(t, p[3] == 'L' ? letter_ranges : number_ranges, false);
        t->at += 5;
    } else if (p[1] == 'p' || p[1] == 'P') {
        const char *end = strchr(p, '}');
        return refuse(t, end ? (int)(end - p) + 1 : 2);
    } else if (p[1] && (strchr("rnt", p[1]) || ispunct((unsigned char)p[1]))) {
        put_bytes(t, 2);
    } else {
        return refuse(t, p[1] ? 2 : 1);
    }
    return ULY_OK;
}

/* "[" or "[^" and a "]" that stands for itself after it. */
static void open_class(struct translation *t)
{
    t->in_class = true;
    put_bytes(t, 1);
    if (*t->at == '^')
        put_bytes(t, 1);
}

static enum uly_status translate_group(struct translation *t)
{
    static const char *const known[] = {"(?:", "(?i:", "(?!", "(?="};
    if (t->at[1] != '?') {
        put_bytes(t, 1);
        return ULY_OK;
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strncmp(t->at, known[i], strlen(known[i])) == 0) {
            put_bytes(t, (int)strlen(known[i]));
            return ULY_OK;
        }
    return refuse(t, 3);
}

static enum uly_status translate_one(struct translation *t)
{
    const char *p = t->at;
    if (*p == '\\')
        return translate_escape(t);
    if (t->in_class) {
        /* a class in a class and && mean set operations to Oniguruma only; an empty class is an error to it */
        if (*p == '[' || strncmp(p, "&&", 2) == 0 || (*p == ']' && (p[-1] == '[' || p[-1] == '^')))
            return refuse(t, *p == '&' ? 2 : 1);
        t->in_class = *p != ']';
        put_bytes(t, 1);
        return ULY_OK;
    }
    if (*p == '[') {
        open_class(t);
        return ULY_OK;
    }
    if (*p == '(')
        return translate_group(t);
    /* ^ and $ are borders of lines there, of the text here; {n,m}+ is possessive here only */
    if (*p == '^' || *p == '$' || (*p == '}' && p[1] == '+'))
        return refuse(t, *p == '}' ? 2 : 1);
    put_bytes(t, 1);
    return ULY_OK;
}

enum uly_status uly_pattern_translate(const char *pattern, const char *name, char **out)
{
    struct translation t = {.pattern = pattern, .name = name, .at = pattern};
    ULY_TRY(ULY_ALLOC(&t.out, strlen(pattern) * sizeof letter_ranges + 8));
    while (*t.at) {
        enum uly_status status = translate_one(&t);
        if (status != ULY_OK) {
            uly_free(t.out);
            return status;
        }
    }
    *out = t.out;
    return ULY_OK;
}
