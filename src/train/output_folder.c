/* SPDX-License-Identifier: MIT */
#include "train/output_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "train/text.h"

/* Files that say that a folder has been used: by a run, or as a model folder. */
static const char *const run_files[] = {"metrics.jsonl", "options.json", "config.json",
                                        "model.safetensors", "model.safetensors.index.json"};
static const char *const stale_files[] = {"metrics.jsonl", "options.json", "stop"};

enum {
    COUNT_RUN_FILES = sizeof run_files / sizeof *run_files,
    COUNT_STALE_FILES = sizeof stale_files / sizeof *stale_files
};

static enum uly_status has_file(const char *dir, const char *name, bool *found)
{
    char *path;
    ULY_TRY(uly_path_join(dir, name, &path));
    *found = uly_path_kind(path, NULL) != ULY_PATH_NONE;
    uly_free(path);
    return ULY_OK;
}

static enum uly_status refuse_used(const char *dir)
{
    for (int i = 0; i < COUNT_RUN_FILES; i++) {
        bool found;
        ULY_TRY(has_file(dir, run_files[i], &found));
        ULY_FAIL_IF(found, ULY_ERR_INVALID,
                    "output-dir %s has a run or a model in it (%s); name another folder, or add "
                    "--overwrite-output-dir",
                    dir, run_files[i]);
    }
    return ULY_OK;
}

/* The nearest folder above path that exists decides whether path can be made. */
static enum uly_status check_parent(const char *path)
{
    char *parent;
    ULY_TRY(uly_strdup(path, &parent));
    enum uly_status status = ULY_OK;
    for (;;) {
        char *slash = strrchr(parent, '/');
        if (!slash)
            memcpy(parent, ".", 2);
        else if (slash == parent)
            slash[1] = 0;
        else
            *slash = 0;
        enum uly_path_kind kind = uly_path_kind(parent, NULL);
        if (kind == ULY_PATH_NONE && slash && slash != parent)
            continue;
        if (kind != ULY_PATH_FOLDER)
            ULY_FAIL_GOTO(out, ULY_ERR_IO, "output-dir %s cannot be made: %s is no folder", path,
                          parent);
        if (access(parent, W_OK | X_OK) != 0)
            ULY_FAIL_GOTO(out, ULY_ERR_IO, "output-dir %s cannot be made: %s: %s", path, parent,
                          strerror(errno));
        break;
    }
out:
    uly_free(parent);
    return status;
}

enum uly_status uly_output_check(const char *dir, const char *model, bool overwrite)
{
    enum uly_path_kind kind = uly_path_kind(dir, NULL);
    ULY_FAIL_IF(!*dir, ULY_ERR_USAGE, "output-dir is empty");
    ULY_FAIL_IF(uly_path_same(dir, model), ULY_ERR_INVALID,
                "output-dir %s is the model's own folder; name another one", dir);
    if (kind == ULY_PATH_NONE)
        return check_parent(dir);
    ULY_FAIL_IF(kind != ULY_PATH_FOLDER, ULY_ERR_IO, "output-dir %s is no folder", dir);
    ULY_FAIL_IF(access(dir, W_OK | X_OK) != 0, ULY_ERR_IO, "output-dir %s is not writable: %s", dir,
                strerror(errno));
    return overwrite ? ULY_OK : refuse_used(dir);
}

static enum uly_status take_lock(const char *dir, struct uly_output *output)
{
    ULY_TRY(uly_path_join(dir, ".ulysses.lock", &output->lock_path));
    output->lock = open(output->lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    ULY_FAIL_IF(output->lock < 0,
                errno == ENOSPC || errno == EDQUOT ? ULY_ERR_NO_SPACE : ULY_ERR_IO,
                "output-dir %s cannot be written: %s", dir, strerror(errno));
    if (flock(output->lock, LOCK_EX | LOCK_NB) == 0)
        return ULY_OK;
    close(output->lock); /* the other run's file: it stays */
    output->lock = -1;
    ULY_FAIL(ULY_ERR_INVALID, "output-dir %s is in use by another run (%s is locked)", dir,
             output->lock_path);
}

static enum uly_status check_space(const char *dir, int64_t bytes)
{
    struct statvfs fs;
    struct uly_text need, have;
    if (statvfs(dir, &fs) != 0)
        return ULY_OK; /* not every file system says; the writing itself will */
    int64_t free_bytes = (int64_t)fs.f_bavail * (int64_t)fs.f_frsize;
    ULY_FAIL_IF(free_bytes < bytes, ULY_ERR_NO_SPACE,
                "output-dir %s has %s of space left, and the model takes %s", dir,
                uly_text_bytes(free_bytes, &have), uly_text_bytes(bytes, &need));
    return ULY_OK;
}

static enum uly_status remove_stale(const char *dir)
{
    for (int i = 0; i < COUNT_STALE_FILES; i++) {
        char *path;
        ULY_TRY(uly_path_join(dir, stale_files[i], &path));
        enum uly_status status = uly_file_remove(path);
        uly_free(path);
        ULY_TRY(status);
    }
    return ULY_OK;
}

enum uly_status uly_output_claim(const char *dir, bool overwrite, int64_t bytes,
                                 struct uly_output *out)
{
    enum uly_status status = ULY_OK;
    struct uly_output output = {NULL, -1};
    bool made = false;
    ULY_TRY(uly_folder_create(dir, &made));
    ULY_TRY_GOTO(take_lock(dir, &output), fail);
    if (!overwrite)
        ULY_TRY_GOTO(refuse_used(dir), fail); /* another run may have come and gone meanwhile */
    ULY_TRY_GOTO(check_space(dir, bytes), fail);
    ULY_TRY_GOTO(remove_stale(dir), fail);
    *out = output;
    return ULY_OK;
fail:
    uly_output_release(&output);
    if (made)
        rmdir(dir); /* empty again: a refused run leaves nothing */
    return status;
}

void uly_output_release(struct uly_output *output)
{
    if (output->lock >= 0) {
        unlink(output->lock_path);
        close(output->lock);
    }
    uly_free(output->lock_path);
    output->lock_path = NULL;
    output->lock = -1;
}
