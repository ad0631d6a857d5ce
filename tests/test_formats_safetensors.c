/* SPDX-License-Identifier: MIT
 *
 * safetensors: exact round trips, conversions, every way in which a header can lie, and mutated headers.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/random.h"
#include "formats/safetensors.h"
#include "support/folder.h"

#define OK(call) assert_int_equal((call), ULY_OK)

static char folder[TEST_PATH], path[TEST_PATH];

static int make_folder(void **state)
{
    (void)state;
    test_folder_make(folder);
    test_path(path, folder, "model.safetensors");
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    test_folder_remove(folder);
    return 0;
}

/* Writes a file of any header text and data. */
static void write_raw(const char *header, size_t header_bytes, const void *data, size_t bytes)
{
    char *file = malloc(8 + header_bytes + bytes);
    for (int i = 0; i < 8; i++)
        file[i] = (char)((uint64_t)header_bytes >> (8 * i));
    memcpy(file + 8, header, header_bytes);
    if (bytes > 0)
        memcpy(file + 8 + header_bytes, data, bytes);
    test_write(folder, "model.safetensors", file, 8 + header_bytes + bytes);
    free(file);
}

static void expect_refusal(const char *says)
{
    struct uly_safetensors *st = NULL;
    enum uly_status status = uly_safetensors_open(path, &st);
    if (status == ULY_OK)
        fail_msg("a file was opened that should be refused with \"%s\"", says);
    assert_null(st);
    assert_int_equal(status, ULY_ERR_FORMAT);
    test_error_says("model.safetensors");
    test_error_says(says);
}

static void refuse_header(const char *header, size_t data_bytes, const char *says)
{
    static const char zeros[64];
    write_raw(header, strlen(header), zeros, data_bytes);
    expect_refusal(says);
}

/* ------------------------------------------------------------------ round trips */

static void write_items(const struct uly_safetensors_item *items, int n, void *const data[])
{
    struct uly_safetensors_writer *w;
    OK(uly_safetensors_writer_open(path, items, n, &w));
    for (int k = 0; k < n; k++) {
        int64_t i = uly_safetensors_writer_order(w, k);
        int64_t bytes = uly_dtype_bytes(items[i].dtype);
        for (int d = 0; d < items[i].n_dim; d++)
            bytes *= items[i].shape[d];
        for (int64_t at = 0; at < bytes; at += 7) /* in uneven pieces */
            OK(uly_safetensors_writer_append(w, (const char *)data[i] + at,
                                             bytes - at < 7 ? bytes - at : 7));
    }
    OK(uly_safetensors_writer_close(w));
}

static void test_round_trip(void **state)
{
    (void)state;
    static const struct uly_safetensors_item items[] = {
        {"b.weight", ULY_DTYPE_BF16, 2, {3, 5}},
        {"a.weight", ULY_DTYPE_BF16, 2, {2, 7}},
        {"z", ULY_DTYPE_F32, 1, {11}},
        {"y", ULY_DTYPE_F64, 3, {2, 1, 3}},
        {"half", ULY_DTYPE_F16, 1, {5}},
        {"scalar", ULY_DTYPE_F32, 0, {0}},
        {"none", ULY_DTYPE_F32, 2, {0, 8}},
        {"ids", ULY_DTYPE_I64, 1, {3}},
        {"odd \"name\"/\xc3\xa9", ULY_DTYPE_U8, 1, {1}},
    };
    /* highest type first, then by name, as the reference library lays them out */
    static const char *const order[] = {
        "ids", "y", "none", "scalar", "z", "a.weight", "b.weight", "half", "odd \"name\"/\xc3\xa9"};
    enum { N = sizeof items / sizeof items[0] };
    static unsigned char bytes[N][64];
    void *data[N];
    for (int i = 0; i < N; i++) {
        data[i] = bytes[i];
        for (int k = 0; k < 64; k++)
            bytes[i][k] = (unsigned char)uly_random_bits(1, (uint64_t)i, (uint64_t)k);
    }
    write_items(items, N, data);
    struct uly_safetensors *st;
    OK(uly_safetensors_open(path, &st));
    assert_int_equal(uly_safetensors_count(st), N);
    assert_string_equal(uly_safetensors_metadata(st, "format"), "pt");
    assert_null(uly_safetensors_metadata(st, "other"));
    assert_null(uly_safetensors_find(st, "missing"));
    for (int i = 0; i < N; i++) {
        const struct uly_safetensors_entry *e = uly_safetensors_find(st, items[i].name);
        unsigned char back[64];
        memset(back, 0xff, sizeof back);
        assert_non_null(e);
        assert_int_equal(e->n_dim, items[i].n_dim);
        for (int d = 0; d < e->n_dim; d++)
            assert_int_equal(e->shape[d], items[i].shape[d]);
        OK(uly_safetensors_read(st, e, items[i].dtype, 0, e->count, back));
        assert_memory_equal(back, bytes[i], (size_t)(e->end - e->begin));
    }
    for (int i = 0; i < N; i++)
        assert_string_equal(uly_safetensors_entry(st, i)->name, order[i]);
    uly_safetensors_close(st);
    size_t n;
    char *file = test_read(folder, "model.safetensors", &n);
    assert_int_equal((unsigned char)file[0] % 8, 0); /* the data starts at a multiple of 8 */
    assert_memory_equal(file + 8,
                        "{\"__metadata__\":{\"format\":\"pt\"},\"ids\":{\"dtype\":\"I64\","
                        "\"shape\":[3],\"data_offsets\":[0,24]},",
                        88);
    free(file);
}

static void test_rows_and_alignment(void **state)
{
    (void)state;
    /* the header's length makes the data start at an odd address */
    static const char header[] =
        "{\"w\":{\"dtype\":\"F32\",\"shape\":[5,3],\"data_offsets\":[0,60]}}";
    float values[15];
    for (int i = 0; i < 15; i++)
        values[i] = (float)(i * i) - 7.5f;
    for (size_t pad = 0; pad < 8; pad++) {
        char padded[80];
        snprintf(padded, sizeof padded, "%s%.*s", header, (int)pad, "        ");
        write_raw(padded, strlen(padded), values, sizeof values);
        struct uly_safetensors *st;
        OK(uly_safetensors_open(path, &st));
        const struct uly_safetensors_entry *e = uly_safetensors_entry(st, 0);
        float row[3] = {NAN, NAN, NAN};
        double wide[15];
        for (int r = 0; r < 5; r++) {
            OK(uly_safetensors_read(st, e, ULY_DTYPE_F32, 3 * r, 3, row));
            assert_memory_equal(row, values + 3 * r, sizeof row);
        }
        OK(uly_safetensors_read(st, e, ULY_DTYPE_F64, 0, 15, wide));
        for (int i = 0; i < 15; i++)
            assert_true(wide[i] == (double)values[i]);
        uly_safetensors_drop_pages(st);
        OK(uly_safetensors_read(st, e, ULY_DTYPE_F32, 12, 3, row));
        assert_memory_equal(row, values + 12, sizeof row);
        uly_safetensors_close(st);
    }
}

/* ------------------------------------------------------------------ conversions */

static void test_conversions(void **state)
{
    (void)state;
    enum { N = 65536 };
    static uint16_t all[N], back[N];
    static float wide[N];
    static double wider[N];
    for (int i = 0; i < N; i++)
        all[i] = (uint16_t)i;
    for (int half = 0; half < 2; half++) { /* every 16-bit value survives the way up and down */
        enum uly_dtype dtype = half ? ULY_DTYPE_F16 : ULY_DTYPE_BF16;
        assert_int_equal(uly_convert(all, dtype, wide, ULY_DTYPE_F32, N), N);
        assert_int_equal(uly_convert(wide, ULY_DTYPE_F32, back, dtype, N), N);
        for (int i = 0; i < N; i++)
            assert_true(back[i] == all[i] || (isnan(wide[i]) && (all[i] ^ back[i]) < 0x400));
        assert_int_equal(uly_convert(all, dtype, wider, ULY_DTYPE_F64, N), N);
        assert_int_equal(uly_convert(wider, ULY_DTYPE_F64, back, dtype, N), N);
        for (int i = 0; i < N; i++)
            assert_true(back[i] == all[i] || (isnan(wide[i]) && (all[i] ^ back[i]) < 0x400));
    }
    float large[600] = {0};
    large[599] = 1e5f; /* fits bfloat16, not float16 */
    assert_int_equal(uly_convert(large, ULY_DTYPE_F32, back, ULY_DTYPE_BF16, 600), 600);
    assert_int_equal(uly_convert(large, ULY_DTYPE_F32, back, ULY_DTYPE_F16, 600), 599);
    large[3] = INFINITY; /* infinite before: no fault of the conversion */
    large[599] = -65504;
    assert_int_equal(uly_convert(large, ULY_DTYPE_F32, back, ULY_DTYPE_F16, 600), 600);
    assert_int_equal(back[3], 0x7c00);
    assert_int_equal(back[599], 0xfbff);
    double huge[3] = {1, -1e39, 3.4028235e38};
    float narrow[3];
    assert_int_equal(uly_convert(huge, ULY_DTYPE_F64, narrow, ULY_DTYPE_F32, 3), 1);
    assert_int_equal(uly_convert(huge + 2, ULY_DTYPE_F64, narrow, ULY_DTYPE_F32, 1), 1);
    assert_int_equal(uly_convert(huge, ULY_DTYPE_F64, narrow, ULY_DTYPE_F32, 0), 0);
}

static void test_read_checks(void **state)
{
    (void)state;
    static const char header[] =
        "{\"big\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
        "\"codes\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[8,12]},"
        "\"ids\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[12,16]}}";
    float values[4] = {1, 70000, 0, 0};
    write_raw(header, sizeof header - 1, values, 16);
    struct uly_safetensors *st;
    OK(uly_safetensors_open(path, &st));
    uint16_t out[4];
    const struct uly_safetensors_entry *big = uly_safetensors_find(st, "big");
    OK(uly_safetensors_read(st, big, ULY_DTYPE_BF16, 0, 2, out));
    assert_int_equal(uly_safetensors_read(st, big, ULY_DTYPE_F16, 0, 2, out), ULY_ERR_INVALID);
    test_error_says("big|element 1|float16");
    const struct uly_safetensors_entry *codes = uly_safetensors_find(st, "codes");
    assert_int_equal(uly_safetensors_read(st, codes, ULY_DTYPE_F32, 0, 4, values),
                     ULY_ERR_UNSUPPORTED);
    test_error_says("codes|I8");
    const struct uly_safetensors_entry *ids = uly_safetensors_find(st, "ids");
    assert_int_equal(uly_safetensors_read(st, ids, ULY_DTYPE_F32, 0, 1, values),
                     ULY_ERR_UNSUPPORTED);
    test_error_says("ids|I32|float32");
    uly_safetensors_close(st);
}

/* ------------------------------------------------------------------ files that lie */

#define T(shape, range) "{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" range "}"

static void test_bad_headers(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t data;
        const char *says;
    } cases[] = {
        {"{\"w\":" T("[2]", "[0,8]") "}", 7, "file is 69 bytes|asks for 70|truncated"},
        {"{\"w\":" T("[2]", "[0,8]") "}", 9, "1 bytes after the last tensor"},
        {"{\"w\":" T("[2]", "[0,8]") ",\"v\":" T("[2]", "[4,12]") "}", 12,
         "w and v overlap|byte 4"},
        {"{\"w\":" T("[2]", "[0,8]") ",\"v\":" T("[2]", "[0,8]") "}", 8, "overlap"},
        {"{\"w\":" T("[2]", "[0,8]") ",\"v\":" T("[1]", "[12,16]") "}", 16, "v|gap of 4 bytes"},
        {"{\"w\":" T("[1]", "[4,8]") "}", 8, "gap of 4"},
        {"{\"w\":" T("[2]", "[8,0]") "}", 8, "no range"},
        {"{\"w\":" T("[2]", "[-8,0]") "}", 8, "no range"},
        {"{\"w\":" T("[3]", "[0,8]") "}", 8, "make 12 bytes|data_offsets 8"},
        {"{\"w\":" T("[4611686018427387904,4]", "[0,0]") "}", 0, "overflows"},
        {"{\"w\":" T("[4611686018427387904,2,0]", "[0,0]") "}", 0, "overflows"},
        {"{\"w\":" T("[9223372036854775807]", "[0,8]") "}", 8, "overflows"},
        {"{\"w\":" T("[99999999999999999999]", "[0,8]") "}", 8, "model.safetensors:1"},
        {"{\"w\":" T("[2]", "[0,9223372036854775807]") "}", 8, "make 8 bytes"},
        {"{\"w\":" T("[-2]", "[0,8]") "}", 8, "dimension 0"},
        {"{\"w\":" T("[2.0]", "[0,8]") "}", 8, "dimension 0"},
        {"{\"w\":" T("[\"2\"]", "[0,8]") "}", 8, "dimension 0"},
        {"{\"w\":" T("2", "[0,8]") "}", 8, "no shape"},
        {"{\"w\":" T("[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, "9 dimensions"},
        {"{\"w\":" T("[2]", "[0,8,8]") "}", 8, "not two integers"},
        {"{\"w\":" T("[2]", "[0]") "}", 8, "not two integers"},
        {"{\"w\":" T("[2]", "[0,8.0]") "}", 8, "not two integers"},
        {"{\"w\":" T("[2]", "null") "}", 8, "not two integers"},
        {"{\"w\":{\"dtype\":\"F31\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
         "w|unknown dtype|F31"},
        {"{\"w\":{\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "no dtype"},
        {"{\"w\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "no dtype"},
        {"{\"w\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, "no shape"},
        {"{\"w\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "not two integers"},
        {"{\"w\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2, "end inside a byte"},
        {"{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}}", 8,
         "unknown key \"x\""},
        {"{\"w\":[]}", 0, "entry is an array"},
        {"{\"w\":" T("[2]", "[0,8]") ",\"w\":" T("[2]", "[8,16]") "}", 16, "duplicate"},
        {"{\"__metadata__\":{\"format\":1}}", 0, "__metadata__|format|not a string"},
        {"{\"__metadata__\":[]}", 0, "__metadata__"},
        {"{\"w\":", 0, "model.safetensors:1"},
        {"{\"w\\u0000x\":" T("[2]", "[0,8]") "}", 8, "model.safetensors:1"},
        {"{\"\xff\":" T("[2]", "[0,8]") "}", 8, "model.safetensors:1"},
        {"[]", 0, "does not start with '{'"},
        {" {}", 0, "does not start with '{'"},
        {"", 0, "does not start with '{'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        refuse_header(cases[i].header, cases[i].data, cases[i].says);
}

static void test_bad_lengths(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {UINT64_C(1) << 63, UINT64_MAX, UINT64_C(1) << 31,
                                       101000000,         100000001,  3};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        unsigned char file[10] = {0};
        for (int k = 0; k < 8; k++)
            file[k] = (unsigned char)(lengths[i] >> (8 * k));
        memcpy(file + 8, "{}", 2);
        test_write(folder, "model.safetensors", file, sizeof file);
        expect_refusal(lengths[i] > 100000000 ? "above the format's limit" : "truncated");
    }
    for (size_t n = 0; n < 8; n++) {
        test_write(folder, "model.safetensors", "\2\0\0\0\0\0\0", n);
        expect_refusal("too few");
    }
    test_write_text(folder, "model.safetensors",
                    "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 99\n");
    expect_refusal("Git-LFS pointer|git lfs pull");
    unlink(path);
    struct uly_safetensors *st;
    assert_int_equal(uly_safetensors_open(path, &st), ULY_ERR_IO);
    test_error_says("model.safetensors|No such file");
    assert_int_equal(uly_safetensors_open(folder, &st), ULY_ERR_IO);
    test_error_says("is a folder");
}

/* Legal things that readers have been known to refuse. */
static void test_legal_oddities(void **state)
{
    (void)state;
    static const char *const headers[] = {
        "{}",
        "{\"__metadata__\":{}}",
        "{\"__metadata__\":{\"format\":\"pt\"}}   ",
        "{\"w\":" T("[0,8]", "[0,0]") ",\"v\":" T("[8,0]", "[0,0]") "}",
        "{\"w\":" T("[0]", "[8,8]") ",\"v\":" T("[2]", "[0,8]") ",\"u\":" T("[0]", "[0,0]") "}",
        "{\"w\":" T("[]", "[0,4]") "}",
        "{\"w\":{\"dtype\":\"F8_E4M3\",\"shape\":[3],\"data_offsets\":[0,3]}}",
        "{\"w\":{\"dtype\":\"F4\",\"shape\":[2,3],\"data_offsets\":[0,3]}}",
    };
    static const size_t data[] = {0, 0, 0, 0, 8, 4, 3, 3};
    static const char zeros[8];
    for (size_t i = 0; i < sizeof headers / sizeof headers[0]; i++) {
        struct uly_safetensors *st;
        write_raw(headers[i], strlen(headers[i]), zeros, data[i]);
        if (uly_safetensors_open(path, &st) != ULY_OK)
            fail_msg("%s: %s", headers[i], uly_error_message());
        uly_safetensors_close(st);
    }
}

/* Headers of sizes around usual buffer sizes: blanks before the closing brace. */
static void test_header_sizes(void **state)
{
    (void)state;
    static const size_t sizes[] = {1023,  1024,  1025,   4095,   4096,    4097,
                                   99990, 99999, 100000, 100001, 1 << 20, (1 << 20) + 1};
    static const char start[] = "{\"w\":" T("[2]", "[0,8]");
    float values[2] = {3, -4}, back[2];
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char *header = malloc(sizes[i]);
        memset(header, ' ', sizes[i]);
        memcpy(header, start, sizeof start - 1);
        header[sizes[i] - 1] = '}';
        write_raw(header, sizes[i], values, sizeof values);
        free(header);
        struct uly_safetensors *st;
        OK(uly_safetensors_open(path, &st));
        OK(uly_safetensors_read(st, uly_safetensors_entry(st, 0), ULY_DTYPE_F32, 0, 2, back));
        assert_memory_equal(back, values, sizeof values);
        uly_safetensors_close(st);
    }
}

/* ------------------------------------------------------------------ writing badly */

static void test_writer_misuse(void **state)
{
    (void)state;
    static const struct uly_safetensors_item twice[] = {{"w", ULY_DTYPE_F32, 1, {2}},
                                                        {"w", ULY_DTYPE_F32, 1, {2}}};
    static const struct uly_safetensors_item huge[] = {
        {"w", ULY_DTYPE_F32, 2, {1LL << 40, 1 << 30}}};
    struct uly_safetensors_writer *w = NULL;
    unlink(path);
    assert_int_equal(uly_safetensors_writer_open(path, twice, 2, &w), ULY_ERR_INVALID);
    test_error_says("w is written twice");
    assert_int_equal(uly_safetensors_writer_open(path, huge, 1, &w), ULY_ERR_INVALID);
    assert_false(test_exists(folder, "model.safetensors"));
    float values[3] = {1, 2, 3};
    OK(uly_safetensors_writer_open(path, twice, 1, &w));
    assert_int_equal(uly_safetensors_writer_append(w, values, 12), ULY_ERR_INTERNAL);
    OK(uly_safetensors_writer_append(w, values, 4));
    assert_int_equal(uly_safetensors_writer_close(w), ULY_ERR_INTERNAL);
    assert_false(test_exists(folder, "model.safetensors"));
    OK(uly_safetensors_writer_open(path, NULL, 0, &w)); /* nothing to write is legal */
    OK(uly_safetensors_writer_close(w));
    struct uly_safetensors *st;
    OK(uly_safetensors_open(path, &st));
    assert_int_equal(uly_safetensors_count(st), 0);
    uly_safetensors_close(st);
    assert_int_equal(uly_safetensors_writer_open("/no/such/folder/x", twice, 1, &w), ULY_ERR_IO);
    test_error_says("/no/such/folder/x|No such file");
    struct uly_file_writer full; /* a full disk is a status of its own */
    OK(uly_file_writer_open("/dev/full", &full));
    OK(uly_file_writer_append(&full, values, 12));
    assert_int_equal(uly_file_writer_close(&full), ULY_ERR_NO_SPACE);
    test_error_says("/dev/full|No space left");
    assert_true(uly_path_kind("/dev/full", NULL) == ULY_PATH_OTHER); /* and no device is removed */
}

/* ------------------------------------------------------------------ mutations */

/* Whatever a mutated file says, opening either fails cleanly or gives entries that can be read. */
static void open_mutated(const char *file, size_t bytes)
{
    struct uly_safetensors *st = NULL;
    static double out[64];
    test_write(folder, "model.safetensors", file, bytes);
    if (uly_safetensors_open(path, &st) != ULY_OK) {
        assert_true(uly_error_message()[0] != '\0');
        return;
    }
    for (int64_t i = 0; i < uly_safetensors_count(st); i++) {
        const struct uly_safetensors_entry *e = uly_safetensors_entry(st, i);
        enum uly_dtype dtype;
        assert_non_null(uly_safetensors_find(st, e->name));
        if (uly_safetensors_dtype(st, e, &dtype) == ULY_OK && e->count <= 64)
            (void)uly_safetensors_read(st, e, dtype, 0, e->count, out);
    }
    uly_safetensors_close(st);
}

static void test_mutations(void **state)
{
    (void)state;
    static const char header[] = "{\"__metadata__\":{\"format\":\"pt\"},\"a\":" T(
        "[2,3]",
        "[0,24]") ",\"b\":{\"dtype\":"
                  "\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]},\"c\":" T("[0]", "[32,32]") "}";
    static const char letters[] = "0123456789,:[]{}\"-.eE \\ufFB";
    enum { HEADER = sizeof header - 1, BYTES = 8 + HEADER + 32, ROUNDS = 6000 };
    char file[BYTES + 8];
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t at = 0;
        memset(file, 0, sizeof file);
        file[0] = (char)(HEADER & 0xff);
        file[1] = (char)(HEADER >> 8);
        memcpy(file + 8, header, HEADER);
        int n_changes = 1 + (int)uly_random_below(3, (uint64_t)round, at++, 4);
        size_t bytes = BYTES;
        for (int c = 0; c < n_changes; c++) {
            uint64_t place = uly_random_below(3, (uint64_t)round, at++, BYTES);
            uint64_t kind = uly_random_below(3, (uint64_t)round, at++, 8);
            uint64_t value = uly_random_bits(3, (uint64_t)round, at++);
            if (kind == 0)
                bytes = (size_t)place; /* cut */
            else if (kind == 1)
                file[place] = (char)value;
            else if (kind == 2)
                file[place % 8] = (char)value; /* the length */
            else if (kind == 3)
                memmove(file + place, file + place / 2, 8);
            else
                file[8 + place % HEADER] = letters[value % (sizeof letters - 1)];
        }
        open_mutated(file, bytes);
    }
}

/* The k-th allocation fails, for every k: an error each time, nothing leaks (the sanitizer build sees it). */
static void test_allocation_failures(void **state)
{
    (void)state;
    static const char header[] = "{\"a\":" T("[2]", "[0,8]") "}";
    static const struct uly_safetensors_item item = {"w", ULY_DTYPE_F32, 1, {2}};
    write_raw(header, sizeof header - 1, "12345678", 8);
    enum uly_status status = ULY_ERR_NO_MEMORY;
    long k = 0;
    while (status != ULY_OK) {
        struct uly_safetensors *st = NULL;
        uly_alloc_fail_at(++k);
        status = uly_safetensors_open(path, &st);
        uly_alloc_fail_at(0);
        if (status != ULY_OK)
            assert_int_equal(status, ULY_ERR_NO_MEMORY);
        uly_safetensors_close(st);
    }
    assert_true(k > 3);
    for (k = 1, status = ULY_ERR_NO_MEMORY; status != ULY_OK; k++) {
        struct uly_safetensors_writer *w = NULL;
        uly_alloc_fail_at(k);
        status = uly_safetensors_writer_open(path, &item, 1, &w);
        uly_alloc_fail_at(0);
        uly_safetensors_writer_abort(w);
    }
    assert_true(k > 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),          cmocka_unit_test(test_rows_and_alignment),
        cmocka_unit_test(test_conversions),         cmocka_unit_test(test_read_checks),
        cmocka_unit_test(test_bad_headers),         cmocka_unit_test(test_bad_lengths),
        cmocka_unit_test(test_legal_oddities),      cmocka_unit_test(test_header_sizes),
        cmocka_unit_test(test_writer_misuse),       cmocka_unit_test(test_mutations),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
