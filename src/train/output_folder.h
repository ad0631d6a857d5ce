/* SPDX-License-Identifier: MIT
 *
 * The folder that a run writes to. It is looked at early, so that a run that cannot end well does not start, and touched
 * late, so that a refused run leaves nothing behind.
 *
 *   uly_output_check(dir, model, overwrite);   before any work; writes nothing
 *   uly_output_claim(dir, overwrite, bytes, &output);   makes it, locks it, looks again
 *   uly_output_release(&output);
 */
#ifndef ULY_TRAIN_OUTPUT_FOLDER_H
#define ULY_TRAIN_OUTPUT_FOLDER_H

#include <stdint.h>

#include "base/status.h"

struct uly_output {
    char *lock_path; /* owned */
    int lock;        /* file that holds the lock; -1 none */
};

/* ULY_ERR_INVALID where dir holds a run or a model (and overwrite is off) or is the model's own folder; ULY_ERR_IO where
 * it is no folder or cannot be made or written. */
enum uly_status uly_output_check(const char *dir, const char *model, bool overwrite);

/* bytes: what the final model takes; ULY_ERR_NO_SPACE where the disk has less. ULY_ERR_INVALID where another run holds the
 * lock. With overwrite the old run's metrics, options and stop file are removed; its model stays until it is replaced. */
enum uly_status uly_output_claim(const char *dir, bool overwrite, int64_t bytes,
                                 struct uly_output *out);
void uly_output_release(struct uly_output *output); /* one with lock -1 is fine */

#endif
