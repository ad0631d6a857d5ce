/* SPDX-License-Identifier: MIT */
#ifndef ULY_FORMATS_UTF8_H
#define ULY_FORMATS_UTF8_H

#include <stdint.h>

/* Reads one code point at p (n bytes left, n > 0). Returns its length in bytes (1 to 4), or 0 where the bytes are not valid
 * UTF-8: cut short, overlong, a surrogate, above U+10FFFF. */
static inline int uly_utf8_read(const unsigned char *p, int64_t n, int64_t *code_point)
{
    static const int64_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    if (p[0] < 0x80) {
        *code_point = p[0];
        return 1;
    }
    int length = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    if (p[0] < 0xc2 || p[0] > 0xf4 || length > n)
        return 0;
    int64_t c = p[0] & (0x7f >> length);
    for (int i = 1; i < length; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | (p[i] & 0x3f);
    }
    if (c < least[length] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        return 0;
    *code_point = c;
    return length;
}

/* Writes a code point as UTF-8; returns 1 to 4 bytes. */
static inline int uly_utf8_write(int64_t c, unsigned char *out)
{
    if (c < 0x80) {
        out[0] = (unsigned char)c;
        return 1;
    }
    int length = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = length - 1; i > 0; i--, c >>= 6)
        out[i] = (unsigned char)(0x80 | (c & 0x3f));
    out[0] = (unsigned char)((0xf0 << (4 - length)) | c);
    return length;
}

/* Bytes of the longest valid prefix. */
static inline int64_t uly_utf8_valid_prefix(const unsigned char *p, int64_t n)
{
    int64_t at = 0, ignored;
    while (at < n) {
        int length = uly_utf8_read(p + at, n - at, &ignored);
        if (length == 0)
            break;
        at += length;
    }
    return at;
}

#endif
