/* SPDX-License-Identifier: MIT
 *
 * The rank grid: world = dp * ring * ulysses, rank order dp outermost, ulysses innermost, so that
 * the ranks that exchange most sit on one machine. sp = ring * ulysses ranks share each sequence:
 * a ulysses group shares its heads, and the ranks of equal ulysses rank form a ring.
 */
#ifndef ULY_PARALLEL_MESH_H
#define ULY_PARALLEL_MESH_H

#include "comm/comm.h"

struct uly_mesh {
    struct uly_comm *world; /* borrowed */
    struct uly_comm *sp; /* ranks of this replica, rank = ring_rank * ulysses_size + ulysses_rank */
    struct uly_comm *ulysses; /* ranks that share heads, of one ring rank; rank = ulysses_rank */
    struct uly_comm *ring;    /* ranks with the same heads, of one ulysses rank; rank = ring_rank */
    int dp_size, ring_size, ulysses_size;
    int dp_rank, ring_rank, ulysses_rank;
};

/* Collective over world. ULY_ERR_USAGE, with the sizes, where world's size is not dp_size *
 * ring_size * ulysses_size. The caller clears it before it destroys world. */
enum uly_status uly_mesh_init(struct uly_comm *world, int dp_size, int ring_size, int ulysses_size,
                              struct uly_mesh *out);
void uly_mesh_clear(struct uly_mesh *mesh);

#endif
