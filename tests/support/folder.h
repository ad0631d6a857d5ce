/* SPDX-License-Identifier: MIT
 *
 * Scratch folders and small files for tests of formats. A failure here stops the test.
 */
#ifndef ULY_TESTS_FOLDER_H
#define ULY_TESTS_FOLDER_H

#include <stddef.h>
#include <stdint.h>

enum { TEST_PATH = 512 };

/* Makes a fresh folder below TMPDIR (default /tmp); path: [TEST_PATH]. */
void test_folder_make(char *path);
/* Removes a folder with everything in it. */
void test_folder_remove(const char *path);

/* path = folder/name, [TEST_PATH]; returns path. */
const char *test_path(char *path, const char *folder, const char *name);

void test_write(const char *folder, const char *name, const void *data, size_t bytes);
void test_write_text(const char *folder, const char *name, const char *text);
/* Whole file; NUL after its bytes; freed with free. */
char *test_read(const char *folder, const char *name, size_t *bytes);
int test_exists(const char *folder, const char *name);

/* FNV-1a over every file of a folder (names and bytes), sub-folders not entered. */
uint64_t test_folder_hash(const char *folder);

/* Fails the test unless the calling thread's error message contains all of text's "|"-separated parts. */
void test_error_says(const char *parts);

#endif
