/* SPDX-License-Identifier: MIT
 *
 * Files and folders. Every failure names the path and the system's reason; a full disk (or quota)
 * is ULY_ERR_NO_SPACE, every other one ULY_ERR_IO. What must survive a crash goes through struct
 * uly_file_writer (which syncs on close), then uly_file_rename, then uly_folder_sync.
 */
#ifndef ULY_BASE_FILE_H
#define ULY_BASE_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum uly_path_kind { ULY_PATH_NONE, ULY_PATH_FILE, ULY_PATH_FOLDER, ULY_PATH_OTHER };

/* What a path leads to, symbolic links followed. *bytes (may be NULL): the size of a file, else 0.
 */
enum uly_path_kind uly_path_kind(const char *path, int64_t *bytes);

/* "folder/name"; name alone when folder is "" . The caller frees with uly_free. */
enum uly_status uly_path_join(const char *folder, const char *name, char **out);

/* The last component of a path (a view into it). */
const char *uly_path_base(const char *path);

/* True where both paths exist and lead to the same file or folder. */
bool uly_path_same(const char *a, const char *b);

/* A whole file with a NUL after its bytes (not counted). Refuses folders and files of more than
 * max_bytes. *out: the caller frees with uly_free; *bytes may be NULL. */
enum uly_status uly_file_read(const char *path, int64_t max_bytes, char **out, int64_t *bytes);

/* Writes and syncs a whole file (replaced where it exists). Not atomic: use it on temporary names.
 */
enum uly_status uly_file_write(const char *path, const void *data, int64_t bytes);

enum uly_status uly_file_copy(const char *from, const char *to); /* synced; links followed */
enum uly_status uly_file_rename(const char *from, const char *to);
enum uly_status uly_file_remove(const char *path); /* a missing file is fine */

/* A read-only mapping of a whole file. An empty file has data NULL. */
struct uly_mapping {
    const unsigned char *data; /* [bytes]; valid until uly_file_unmap */
    int64_t bytes;
};
enum uly_status uly_file_map(const char *path, struct uly_mapping *out);
void uly_file_unmap(struct uly_mapping *mapping); /* a zeroed one is fine */
/* Lets go of the pages read so far: they count as resident memory of this process otherwise. They stay readable. */
void uly_file_drop_pages(const struct uly_mapping *mapping);

/* Sequential writing through a buffer of its own. close syncs the file to disk; abort closes
 * without and removes it. */
struct uly_file_writer {
    int fd;
    char *path;            /* owned */
    unsigned char *buffer; /* owned */
    size_t used;
    int64_t bytes; /* written so far, the buffer included */
};
enum uly_status uly_file_writer_open(const char *path, struct uly_file_writer *out);
enum uly_status uly_file_writer_append(struct uly_file_writer *w, const void *data, int64_t bytes);
enum uly_status
uly_file_writer_close(struct uly_file_writer *w);      /* on failure the file is removed */
void uly_file_writer_abort(struct uly_file_writer *w); /* after close it does nothing */

/* Makes the folder and its missing parents. *made (may be NULL): whether the last one was missing.
 */
enum uly_status uly_folder_create(const char *path, bool *made);
enum uly_status uly_folder_sync(const char *path);
/* Removes a folder with its files, one level deep (no sub-folders); a missing one is fine. */
enum uly_status uly_folder_remove(const char *path);

/* Clean-up after a failure: removes the folder and, with `parent`, that folder where it is empty. The calling thread's error
 * record stays as it was. staging may be NULL. */
void uly_folder_discard(const char *staging, const char *parent);

/* Names in a folder, sorted by bytes, without "." and "..". */
struct uly_names {
    char **list; /* owned, n of them */
    int64_t n, room;
};
enum uly_status uly_folder_list(const char *path, struct uly_names *out);
enum uly_status uly_names_add(struct uly_names *names, const char *name);
void uly_names_clear(struct uly_names *names);

#endif
