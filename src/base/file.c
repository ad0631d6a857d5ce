/* SPDX-License-Identifier: MIT
 *
 * Files and folders over POSIX calls. One function turns errno into a status, so that no failure
 * loses its path or its reason.
 */
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

enum { BUFFER_BYTES = 1 << 20, MAX_IO = 1 << 30 }; /* Linux moves at most 2 GiB a call */

/* Records "path: cannot <verb>: <reason>". strerror_l, not strerror: a rank may be a thread. */
static enum uly_status system_failure(const char *path, const char *verb, int error)
{
    locale_t locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    char reason[128];
    snprintf(reason, sizeof reason, "%s", locale ? strerror_l(error, locale) : "unknown reason");
    if (locale)
        freelocale(locale);
    bool full = error == ENOSPC || error == EDQUOT;
    ULY_FAIL(full ? ULY_ERR_NO_SPACE : ULY_ERR_IO, "%s: cannot %s: %s", path, verb, reason);
}

/* ------------------------------------------------------------------ paths */

enum uly_path_kind uly_path_kind(const char *path, int64_t *bytes)
{
    struct stat info;
    if (bytes)
        *bytes = 0;
    if (stat(path, &info) != 0)
        return ULY_PATH_NONE;
    if (S_ISDIR(info.st_mode))
        return ULY_PATH_FOLDER;
    if (!S_ISREG(info.st_mode))
        return ULY_PATH_OTHER;
    if (bytes)
        *bytes = (int64_t)info.st_size;
    return ULY_PATH_FILE;
}

enum uly_status uly_path_join(const char *folder, const char *name, char **out)
{
    size_t n = strlen(folder), room = n + strlen(name) + 2;
    char *path;
    ULY_TRY(ULY_ALLOC(&path, room));
    bool slash = n > 0 && folder[n - 1] != '/';
    snprintf(path, room, "%s%s%s", folder, slash ? "/" : "", name);
    *out = path;
    return ULY_OK;
}

const char *uly_path_base(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

bool uly_path_same(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* ------------------------------------------------------------------ reading */

/* Opens a regular file for reading; *bytes: its size. */
static enum uly_status open_for_reading(const char *path, int *fd, int64_t *bytes)
{
    int f = open(path, O_RDONLY | O_CLOEXEC);
    if (f < 0)
        return system_failure(path, "open", errno);
    struct stat info;
    if (fstat(f, &info) != 0) {
        int error = errno;
        close(f);
        return system_failure(path, "inspect", error);
    }
    if (!S_ISREG(info.st_mode)) {
        close(f);
        ULY_FAIL(ULY_ERR_IO, "%s: is %s, not a file", path,
                 S_ISDIR(info.st_mode) ? "a folder" : "a device or pipe");
    }
    *fd = f;
    *bytes = (int64_t)info.st_size;
    return ULY_OK;
}

enum uly_status uly_file_read(const char *path, int64_t max_bytes, char **out, int64_t *bytes)
{
    enum uly_status status = ULY_OK;
    char *text = NULL;
    int fd = -1;
    int64_t n = 0, done = 0;
    ULY_TRY(open_for_reading(path, &fd, &n));
    if (n > max_bytes)
        ULY_FAIL_GOTO(end, ULY_ERR_FORMAT, "%s: has %lld bytes; at most %lld are expected here",
                      path, (long long)n, (long long)max_bytes);
    ULY_TRY_GOTO(ULY_ALLOC(&text, n + 1), end);
    while (done < n) {
        size_t ask = n - done < MAX_IO ? (size_t)(n - done) : (size_t)MAX_IO;
        ssize_t got = read(fd, text + done, ask);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            status = system_failure(path, "read", errno);
            goto end;
        }
        if (got == 0)
            ULY_FAIL_GOTO(end, ULY_ERR_IO, "%s: ends after %lld of %lld bytes", path,
                          (long long)done, (long long)n);
        done += got;
    }
    *out = text;
    if (bytes)
        *bytes = n;
    text = NULL;
end:
    uly_free(text);
    close(fd);
    return status;
}

enum uly_status uly_file_map(const char *path, struct uly_mapping *out)
{
    int fd = -1;
    int64_t n = 0;
    ULY_TRY(open_for_reading(path, &fd, &n));
    void *p = NULL;
    if (n > 0)
        p = mmap(NULL, (size_t)n, PROT_READ, MAP_PRIVATE, fd, 0);
    int error = errno;
    close(fd);
    if (p == MAP_FAILED)
        return system_failure(path, "map", error);
    out->data = p;
    out->bytes = n;
    return ULY_OK;
}

void uly_file_unmap(struct uly_mapping *mapping)
{
    if (mapping->data)
        munmap((void *)(uintptr_t)mapping->data, (size_t)mapping->bytes);
    mapping->data = NULL;
    mapping->bytes = 0;
}

void uly_file_drop_pages(const struct uly_mapping *mapping)
{
    if (mapping->data) /* only advice: a failure changes nothing */
        (void)madvise((void *)(uintptr_t)mapping->data, (size_t)mapping->bytes, MADV_DONTNEED);
}

/* ------------------------------------------------------------------ writing */

/* Only what is ours to remove: never a device that somebody named as output. */
static void remove_partial(const char *path)
{
    struct stat info;
    if (lstat(path, &info) == 0 && S_ISREG(info.st_mode))
        unlink(path);
}

enum uly_status uly_file_writer_open(const char *path, struct uly_file_writer *out)
{
    enum uly_status status = ULY_OK;
    struct uly_file_writer w = {.fd = -1};
    ULY_TRY_GOTO(uly_strdup(path, &w.path), failed);
    ULY_TRY_GOTO(ULY_ALLOC(&w.buffer, BUFFER_BYTES), failed);
    w.fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (w.fd < 0) {
        status = system_failure(path, "create", errno);
        goto failed;
    }
    *out = w;
    return ULY_OK;
failed:
    uly_free(w.path);
    uly_free(w.buffer);
    return status;
}

static enum uly_status write_all(const struct uly_file_writer *w, const unsigned char *data,
                                 int64_t bytes)
{
    while (bytes > 0) {
        ssize_t n = write(w->fd, data, bytes < MAX_IO ? (size_t)bytes : (size_t)MAX_IO);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return system_failure(w->path, "write", errno);
        data += n;
        bytes -= n;
    }
    return ULY_OK;
}

enum uly_status uly_file_writer_append(struct uly_file_writer *w, const void *data, int64_t bytes)
{
    if (bytes > (int64_t)(BUFFER_BYTES - w->used)) {
        ULY_TRY(write_all(w, w->buffer, (int64_t)w->used));
        w->used = 0;
    }
    if (bytes > BUFFER_BYTES) {
        ULY_TRY(write_all(w, data, bytes));
    } else if (bytes > 0) {
        memcpy(w->buffer + w->used, data, (size_t)bytes);
        w->used += (size_t)bytes;
    }
    w->bytes += bytes;
    return ULY_OK;
}

static void writer_release(struct uly_file_writer *w, bool remove)
{
    if (w->fd >= 0)
        close(w->fd);
    if (remove && w->path)
        remove_partial(w->path);
    uly_free(w->path);
    uly_free(w->buffer);
    *w = (struct uly_file_writer){.fd = -1};
}

/* fsync of a pipe or device says EINVAL: there is nothing to sync. */
static enum uly_status sync_fd(int fd, const char *path)
{
    if (fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP)
        return system_failure(path, "sync", errno);
    return ULY_OK;
}

enum uly_status uly_file_writer_close(struct uly_file_writer *w)
{
    enum uly_status status = write_all(w, w->buffer, (int64_t)w->used);
    if (status == ULY_OK)
        status = sync_fd(w->fd, w->path);
    if (status == ULY_OK) { /* network file systems report a full disk here */
        int fd = w->fd;
        w->fd = -1;
        if (close(fd) != 0)
            status = system_failure(w->path, "close", errno);
    }
    writer_release(w, status != ULY_OK);
    return status;
}

void uly_file_writer_abort(struct uly_file_writer *w)
{
    if (w->path)
        writer_release(w, true);
}

enum uly_status uly_file_write(const char *path, const void *data, int64_t bytes)
{
    struct uly_file_writer w;
    ULY_TRY(uly_file_writer_open(path, &w));
    enum uly_status status = uly_file_writer_append(&w, data, bytes);
    if (status != ULY_OK) {
        uly_file_writer_abort(&w);
        return status;
    }
    return uly_file_writer_close(&w);
}

enum uly_status uly_file_copy(const char *from, const char *to)
{
    struct uly_mapping source = {0};
    ULY_TRY(uly_file_map(from, &source));
    enum uly_status status = uly_file_write(to, source.data, source.bytes);
    uly_file_unmap(&source);
    return status;
}

enum uly_status uly_file_rename(const char *from, const char *to)
{
    if (rename(from, to) != 0)
        return system_failure(from, "rename", errno);
    return ULY_OK;
}

enum uly_status uly_file_remove(const char *path)
{
    if (unlink(path) != 0 && errno != ENOENT)
        return system_failure(path, "remove", errno);
    return ULY_OK;
}

/* ------------------------------------------------------------------ folders */

enum uly_status uly_folder_create(const char *path, bool *made)
{
    enum uly_status status = ULY_OK;
    bool last = false;
    char *part;
    ULY_TRY(uly_strdup(path, &part));
    for (char *p = part; status == ULY_OK && *p; p++) {
        bool border = (p[1] == '/' || p[1] == '\0') && *p != '/';
        if (!border)
            continue;
        char keep = p[1];
        p[1] = '\0';
        last = mkdir(part, 0777) == 0;
        if (!last && errno != EEXIST)
            status = system_failure(part, "create the folder", errno);
        else if (!last && uly_path_kind(part, NULL) != ULY_PATH_FOLDER)
            status = uly_error_record(ULY_ERR_IO, __FILE__, __LINE__, __func__,
                                      "%s: is there and is not a folder", part);
        p[1] = keep;
    }
    uly_free(part);
    if (made && status == ULY_OK)
        *made = last;
    return status;
}

enum uly_status uly_folder_sync(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return system_failure(path, "open", errno);
    enum uly_status status = sync_fd(fd, path);
    close(fd);
    return status;
}

enum uly_status uly_folder_remove(const char *path)
{
    enum uly_status status = ULY_OK;
    struct uly_names names = {0};
    if (uly_path_kind(path, NULL) == ULY_PATH_NONE)
        return ULY_OK;
    ULY_TRY(uly_folder_list(path, &names));
    for (int64_t i = 0; status == ULY_OK && i < names.n; i++) {
        char *file;
        status = uly_path_join(path, names.list[i], &file);
        if (status == ULY_OK) {
            status = uly_file_remove(file);
            uly_free(file);
        }
    }
    uly_names_clear(&names);
    if (status == ULY_OK && rmdir(path) != 0 && errno != ENOENT)
        return system_failure(path, "remove", errno);
    return status;
}

void uly_folder_discard(const char *staging, const char *parent)
{
    enum uly_status status = uly_error_status();
    char cause[2048];
    snprintf(cause, sizeof cause, "%s", uly_error_message());
    if (staging && uly_folder_remove(staging) != ULY_OK)
        (void)uly_error_record(status, __FILE__, __LINE__, __func__, "%s", cause);
    if (parent)
        (void)rmdir(parent); /* refused by the system where it is not empty */
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

enum uly_status uly_folder_list(const char *path, struct uly_names *out)
{
    enum uly_status status = ULY_OK;
    struct uly_names names = {0};
    DIR *folder = opendir(path);
    if (!folder)
        return system_failure(path, "list", errno);
    for (;;) {
        errno = 0;
        struct dirent *entry = readdir(folder);
        if (!entry && errno) {
            status = system_failure(path, "list", errno);
            goto end;
        }
        if (!entry)
            break;
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            ULY_TRY_GOTO(uly_names_add(&names, entry->d_name), end);
    }
    if (names.n > 0)
        qsort(names.list, (size_t)names.n, sizeof *names.list, compare_names);
    *out = names;
end:
    closedir(folder);
    if (status != ULY_OK)
        uly_names_clear(&names);
    return status;
}

enum uly_status uly_names_add(struct uly_names *names, const char *name)
{
    if (names->n == names->room) {
        int64_t room = names->room ? 2 * names->room : 16;
        void *list = names->list;
        ULY_TRY(uly_realloc(&list, (size_t)room, sizeof *names->list));
        names->list = list;
        names->room = room;
    }
    ULY_TRY(uly_strdup(name, &names->list[names->n]));
    names->n++;
    return ULY_OK;
}

void uly_names_clear(struct uly_names *names)
{
    for (int64_t i = 0; i < names->n; i++)
        uly_free(names->list[i]);
    uly_free(names->list);
    *names = (struct uly_names){0};
}
