/* SPDX-License-Identifier: MIT
 *
 * A data set while it grows: documents are added one by one, their tokens appended to one array, and cut into pieces.
 */
#ifndef ULY_DATA_BUILDER_H
#define ULY_DATA_BUILDER_H

#include "data/dataset.h"

struct uly_dataset_builder {
    struct uly_dataset *data; /* borrowed */
    const struct uly_data_options *options;
    int64_t n_ids, id_room, n_labels, label_room, document_room, piece_room;
};

/* Adds a document of n > 0 tokens (labels NULL, or [n] as given) by the rule for its length. from_text: EOS is appended if
 * absent. On failure nothing has been added; ULY_ERR_FORMAT where the document is too long (a bad row). */
enum uly_status uly_builder_add(struct uly_dataset_builder *builder, const char *where,
                                bool from_text, int32_t file, int64_t line, const int32_t *ids,
                                const int32_t *labels, int64_t n);

#endif
