/* SPDX-License-Identifier: MIT
 *
 * One end for all ranks. After work that each rank did for itself, all ranks call uly_agree with their own status: where
 * one failed, all return the status of the lowest such rank, so that every process ends with the same exit status; only
 * that rank keeps its message, the others' records have an empty one. So the cause is printed once.
 */
#ifndef ULY_TRAIN_TOGETHER_H
#define ULY_TRAIN_TOGETHER_H

#include "comm/comm.h"

/* Collective. */
enum uly_status uly_agree(struct uly_comm *comm, enum uly_status mine);

/* Records an error that all ranks have come to by themselves (they saw the same reduced value): rank 0 has the message. */
#define ULY_FAIL_TOGETHER(comm, status, ...)                                                       \
    do {                                                                                           \
        if (uly_comm_rank(comm) == 0)                                                              \
            ULY_FAIL((status), __VA_ARGS__);                                                       \
        ULY_FAIL((status), "%s", "");                                                              \
    } while (0)

#endif
