/* SPDX-License-Identifier: MIT
 *
 * Numbers as people read them. Each function writes into the buffer it is given and returns it.
 */
#ifndef ULY_TRAIN_TEXT_H
#define ULY_TRAIN_TEXT_H

#include <stdint.h>

struct uly_text { /* room for one number; a value per call: (struct uly_text){0} will do */
    char text[32];
};

const char *uly_text_count(int64_t n, struct uly_text *buffer); /* 1,234,567 */
const char *uly_text_bytes(int64_t n, struct uly_text *buffer); /* 1.53 GiB */
const char *uly_text_seconds(double seconds,
                             struct uly_text *buffer); /* 48 s, 12 min 5 s, 3 h 20 min, 2 d 4 h */

#endif
