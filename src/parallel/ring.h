/* SPDX-License-Identifier: MIT
 *
 * Which keys travel in a ring. At step t ring rank i sends its keys and values straight to rank i + t and receives
 * those of rank i - t (Liu et al. 2023 pass them along from neighbour to neighbour; straight exchanges need no store
 * and forward). Of each of the sender's two chunks only the range that some query of the receiver sees is sent: of a
 * causal sequence low chunks go to everyone and high ones to half of the ranks, 3/4 of all to all; with a window W at
 * most W - 1 keys before each of the receiver's two chunks, whatever S is.
 */
#ifndef ULY_PARALLEL_RING_H
#define ULY_PARALLEL_RING_H

#include "backend/backend.h"
#include "parallel/layout.h"

/* The keys of ring rank `sender` that ring rank `receiver` needs: ranges of global tokens in rising order, one for each
 * of the sender's chunks at most, empty ones left out; returns how many. Rounded out to the layout's tile, so that the
 * same rows meet the same kernel calls whatever the mask is. mask: the whole sequence, borrowed. */
int uly_ring_visible(const struct uly_mask *mask, int ring_size, int ulysses_size, int receiver,
                     int sender, struct uly_segment out[2]);

#endif
