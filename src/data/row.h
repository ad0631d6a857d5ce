/* SPDX-License-Identifier: MIT
 *
 * One line of a .jsonl file as a row: what kind it is, whether its values are right, and what to do with kinds that are
 * not taken.
 */
#ifndef ULY_DATA_ROW_H
#define ULY_DATA_ROW_H

#include <jansson.h>
#include <stdint.h>

#include "base/status.h"

struct uly_row {
    json_t *object;   /* owned */
    const char *text; /* a view into object, [bytes]; NULL for a row of input_ids */
    int64_t bytes;
    int32_t *ids, *labels; /* owned, [n]; labels NULL where the row has none */
    int64_t n;
};

/* line: [bytes], without its end. where: "file:line", for messages. extra_keys: [extra_bytes], a list of ignored keys with
 * ", " between them, to which new ones are added while there is room. ULY_ERR_FORMAT: the row is bad (a skippable error);
 * ULY_ERR_UNSUPPORTED: a known kind of row that is refused by name. *out is cleared by the caller, whatever the result. */
enum uly_status uly_row_parse(const char *line, int64_t bytes, const char *where,
                              int64_t vocab_size, char *extra_keys, size_t extra_bytes,
                              struct uly_row *out);
void uly_row_clear(struct uly_row *row);

#endif
