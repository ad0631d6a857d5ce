/* SPDX-License-Identifier: MIT */
#ifndef ULY_MODEL_BATCH_H
#define ULY_MODEL_BATCH_H

#include <stdint.h>

/* One micro-batch of one replica: a sequence of S tokens made of documents laid end to end.
 * Attention does not cross documents, positions restart in each. The same on every rank of the
 * replica; each rank takes its own shard. All arrays are host memory, borrowed. S = 0 (with no
 * documents) is an empty micro-batch: the ranks still enter every collective. */
struct uly_batch {
    int64_t S;
    int64_t n_docs;
    const int64_t *starts; /* [n_docs] first token of each document, rising, starts[0] = 0 */
    const int32_t *ids;    /* [S] in [0, vocab_size) */
    const int32_t *labels; /* [S] already shifted: the id that token i should predict, or
                              ULY_IGNORE_LABEL (-100); the last token of a document has none */
};

#endif
