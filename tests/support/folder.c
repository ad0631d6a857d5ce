/* SPDX-License-Identifier: MIT */
#include "support/folder.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/status.h"

void test_folder_make(char *path)
{
    const char *root = getenv("TMPDIR");
    snprintf(path, TEST_PATH, "%s/ulysses-test-XXXXXX", root && *root ? root : "/tmp");
    assert_non_null(mkdtemp(path));
}

void test_folder_remove(const char *path)
{
    DIR *folder = opendir(path);
    struct dirent *entry;
    char child[TEST_PATH];
    while (folder && (entry = readdir(folder)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        test_path(child, path, entry->d_name);
        struct stat info;
        if (lstat(child, &info) == 0 && S_ISDIR(info.st_mode))
            test_folder_remove(child);
        else
            unlink(child);
    }
    if (folder)
        closedir(folder);
    rmdir(path);
}

const char *test_path(char *path, const char *folder, const char *name)
{
    size_t n = (size_t)snprintf(path, TEST_PATH, "%.250s/%.250s", folder, name);
    assert_true(n < TEST_PATH);
    return path;
}

void test_write(const char *folder, const char *name, const void *data, size_t bytes)
{
    char path[TEST_PATH];
    FILE *file = fopen(test_path(path, folder, name), "wb");
    assert_non_null(file);
    if (bytes > 0)
        assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

void test_write_text(const char *folder, const char *name, const char *text)
{
    test_write(folder, name, text, strlen(text));
}

char *test_read(const char *folder, const char *name, size_t *bytes)
{
    char path[TEST_PATH];
    FILE *file = fopen(test_path(path, folder, name), "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    long n = ftell(file);
    rewind(file);
    char *text = malloc((size_t)n + 1);
    assert_non_null(text);
    if (n > 0)
        assert_int_equal(fread(text, 1, (size_t)n, file), (size_t)n);
    text[n] = '\0';
    fclose(file);
    if (bytes)
        *bytes = (size_t)n;
    return text;
}

int test_exists(const char *folder, const char *name)
{
    char path[TEST_PATH];
    struct stat info;
    return lstat(test_path(path, folder, name), &info) == 0;
}

static uint64_t mix(uint64_t hash, const char *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ (unsigned char)data[i]) * 0x100000001b3u;
    return hash;
}

uint64_t test_folder_hash(const char *folder)
{
    DIR *d = opendir(folder);
    uint64_t sum = 0; /* of each file's hash: the order of readdir does not matter */
    struct dirent *entry;
    assert_non_null(d);
    while ((entry = readdir(d)) != NULL) {
        char path[TEST_PATH];
        struct stat info;
        if (stat(test_path(path, folder, entry->d_name), &info) != 0 || !S_ISREG(info.st_mode))
            continue;
        size_t bytes;
        char *text = test_read(folder, entry->d_name, &bytes);
        uint64_t hash = mix(0xcbf29ce484222325u, entry->d_name, strlen(entry->d_name) + 1);
        sum += mix(hash, text, bytes);
        free(text);
    }
    closedir(d);
    return sum;
}

void test_error_says(const char *parts)
{
    char copy[512];
    snprintf(copy, sizeof copy, "%s", parts);
    for (char *p = copy; p;) {
        char *bar = strchr(p, '|');
        if (bar)
            *bar = '\0';
        if (!strstr(uly_error_message(), p))
            fail_msg("\"%s\" is not in the message \"%s\"", p, uly_error_message());
        p = bar ? bar + 1 : NULL;
    }
    if (strchr(uly_error_message(), '\n'))
        fail_msg("the message has more than one line: \"%s\"", uly_error_message());
}
