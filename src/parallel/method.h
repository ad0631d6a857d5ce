/* SPDX-License-Identifier: MIT
 *
 * From a method's name to the sizes of the stage loop, and from sizes to a name. A pure function: what was asked, the
 * model's heads and the machines of the ranks go in; ulysses size, ring size, heads a stage and query tile come out, or a
 * refusal that names the options and the sizes that would work. The same on every rank.
 *
 *   method    ulysses, ring   heads a stage             refused
 *   ulysses   P, 1            all                       another number of heads (that is upipe); a ring size above 1
 *   upipe     P, 1            1, or as given            a ring size above 1
 *   ring      1, P            a kv group, or as given   a ulysses size above 1
 *   usp       as given; else  a kv group, or as given   sizes that do not multiply to P
 *             the largest ulysses size that stays inside a machine and is at most the number of kv heads
 *   auto      chosen, as far as not given
 *
 * A kv group is the query heads that share a kv head, H / K (or all of a rank's heads, where it has fewer). A query tile
 * goes with ring size 1 only.
 */
#ifndef ULY_PARALLEL_METHOD_H
#define ULY_PARALLEL_METHOD_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum uly_method {
    ULY_METHOD_AUTO,
    ULY_METHOD_ULYSSES,
    ULY_METHOD_UPIPE,
    ULY_METHOD_RING,
    ULY_METHOD_USP
};
const char *uly_method_name(enum uly_method method);

struct uly_method_request {
    enum uly_method method;
    int64_t sp_size;                     /* P: ranks that share a sequence */
    int64_t ulysses_size, ring_size;     /* 0: not given */
    int64_t heads_per_stage, query_tile; /* 0: not given */
    int H, K; /* of the model; H = 0: not known yet, the sizes are checked as far as they can be */
    const int
        *hosts; /* [world] machine of each rank (uly_comm_hosts), borrowed; NULL: all on one */
    int world;  /* ranks in all, a multiple of P */
};

struct uly_method_choice {
    enum uly_method method; /* never auto: the name of what was chosen */
    int ulysses_size, ring_size;
    int heads_per_stage; /* 1 ... ceil(H / ulysses_size); under auto the most that memory may allow */
    int64_t query_tile; /* as given; 0: the whole shard */
    char reason[200];   /* why auto chose these degrees; "" where nothing was chosen */
};

/* ULY_ERR_USAGE names the options, their values and what would work. H = 0: only the checks are made, and *out is left
 * alone. */
enum uly_status uly_method_resolve(const struct uly_method_request *request,
                                   struct uly_method_choice *out);

/* ------------------------------------------------------------------ stages and memory */

struct uly_method_stage {
    int heads; /* heads_per_stage */
    int64_t query_tile;
};
enum { ULY_METHOD_STAGES = 4 };

/* What may be tried in turn until it fits into memory, the fastest first: under auto all of a rank's heads, a kv group,
 * one head, one head with query tiles of a quarter of the shard (ring size 1 only), as far as not given; else what the
 * choice says. shard: the most tokens of a rank. Returns how many are in out. */
int uly_method_stages(const struct uly_method_request *request,
                      const struct uly_method_choice *choice, int64_t shard,
                      struct uly_method_stage out[ULY_METHOD_STAGES]);

/* The name of a setting: heads = all of a rank's heads with ring size 1 is ulysses, and so on. */
enum uly_method uly_method_of(int H, int ulysses_size, int ring_size, int heads);

/* The divisors of n for messages, as "1, 2, 4", or in pairs as "1 x 4, 2 x 2, 4 x 1", as far as the buffer goes. */
const char *uly_divisors(int64_t n, bool pairs, char *buffer, size_t bytes);

/* Query heads that share a kv head, as far as one rank has them: the stage of ring and usp. */
int uly_method_kv_group(int H, int K, int ulysses_size);

/* ------------------------------------------------------------------ machines */

/* First rank of the first ulysses group (ranks k * ulysses_size ... of the world) that lies on several machines; -1 where
 * each is on one. hosts: [world]; NULL: one machine. */
int uly_method_spanning_group(const int *hosts, int world, int ulysses_size);

#endif
