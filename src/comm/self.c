/* SPDX-License-Identifier: MIT
 *
 * One rank: an exchange is a copy of the rank's own block.
 */
#include "comm/comm_impl.h"

static enum uly_status self_reserve(struct uly_comm *comm, int n_slots, int max_parts)
{
    (void)comm, (void)n_slots, (void)max_parts;
    return ULY_OK;
}

static enum uly_status self_start(struct uly_comm *comm, struct uly_slot *slot)
{
    uly_comm_copy_own(comm, slot);
    return ULY_OK;
}

static enum uly_status self_wait(struct uly_comm *comm, struct uly_slot *slot)
{
    (void)comm, (void)slot;
    return ULY_OK;
}

static enum uly_status self_poke(struct uly_comm *comm)
{
    (void)comm;
    return ULY_OK;
}

static enum uly_status self_split(struct uly_comm *comm, const struct uly_split *split,
                                  struct uly_comm *child)
{
    (void)comm, (void)split, (void)child;
    return ULY_OK;
}

/* There is no other rank to end; the caller ends the process itself. */
static void self_abort(struct uly_comm *comm, int exit_code)
{
    (void)comm, (void)exit_code;
}

static void self_destroy(struct uly_comm *comm)
{
    (void)comm;
}

static const struct uly_comm_ops self_ops = {
    .reserve = self_reserve,
    .start = self_start,
    .wait = self_wait,
    .poke = self_poke,
    .gather_host = uly_comm_gather_by_exchange,
    .split = self_split,
    .abort = self_abort,
    .destroy = self_destroy,
};

enum uly_status uly_comm_self(struct uly_comm **out)
{
    struct uly_comm *comm = NULL;
    enum uly_status status = ULY_OK;
    ULY_TRY(uly_comm_new(&self_ops, 0, 1, &comm));
    uly_comm_own_host(comm->host_names[0]);
    uly_comm_number_hosts(comm);
    ULY_TRY_GOTO(uly_comm_finish(comm), failed);
    *out = comm;
    return ULY_OK;
failed:
    uly_comm_destroy(comm);
    return status;
}
