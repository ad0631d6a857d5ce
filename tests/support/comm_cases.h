/* SPDX-License-Identifier: MIT
 *
 * What every communicator must do, as functions that each rank runs; the same for threads of one process and for
 * processes under MPI. A case returns ULY_OK, or an error whose record says what was wrong. Checking of arguments may be on
 * or off, the chunk of any size. Cases leave the communicator usable and its settings as they were.
 */
#ifndef ULY_TESTS_COMM_CASES_H
#define ULY_TESTS_COMM_CASES_H

#include "comm/comm.h"

struct comm_case {
    const char *name;
    uly_rank_fn fn; /* arg: NULL */
};

/* The last one has fn NULL. */
extern const struct comm_case comm_cases[];     /* exchange, small data, agreement, split */
extern const struct comm_case comm_sum_cases[]; /* all_reduce and all_gather on tensors */

#define CHECK(condition, ...) ULY_FAIL_IF(!(condition), ULY_ERR_INTERNAL, __VA_ARGS__)

/* ------------------------------------------------------------------ one exchange whose content can be checked */

enum { ROOM_PARTS = 3, ROOM_RANKS = 16 };

/* What moves between two ranks is a function of (seed, sender, receiver, part) alone, so both ends can tell it. */
struct room {
    struct uly_arena arena;
    struct uly_part parts[ROOM_PARTS];
    int n_parts;
    int rank, size;
    uint64_t seed;
    int64_t index[ROOM_PARTS][4][ROOM_RANKS]; /* offsets and counts of the parts */
};

/* Tensors of n_parts parts with random counts below `most` elements (a third of them 0) and gaps between the blocks. Sent
 * elements are filled, all others hold bytes of 0xff. */
enum uly_status room_open(struct room *room, const struct uly_comm *comm, uint64_t seed,
                          int n_parts, int64_t most);
/* Every byte received is the sender's, every other byte of both tensors is as it was. */
enum uly_status room_check(const struct room *room);
void room_close(struct room *room);

#endif
