/* SPDX-License-Identifier: MIT
 *
 * What every communicator has in common: its object, the slots of exchanges in flight, the check of arguments that needs
 * no other rank, splitting, machines, counters.
 */
#include "comm/comm_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

enum { DEFAULT_PARTS = 4, DEFAULT_IN_FLIGHT = 2, MAX_PARTS = 1 << 20, MAX_IN_FLIGHT = 1024 };

static const int64_t default_chunk = INT64_C(1) << 30; /* also the largest: below INT_MAX */

/* ------------------------------------------------------------------ life */

static enum uly_status check_table(const struct uly_comm_ops *ops)
{
#define X(entry) +1
    enum { N_ENTRIES = 0 ULY_COMM_OPS_LIST(X) };
#undef X
    _Static_assert(sizeof(struct uly_comm_ops) == N_ENTRIES * sizeof(void (*)(void)),
                   "an entry of the table is missing from its list");
#define X(entry)                                                                                   \
    ULY_FAIL_IF(!ops->entry, ULY_ERR_INTERNAL, "a communicator lacks its operation " #entry);
    ULY_COMM_OPS_LIST(X)
#undef X
    return ULY_OK;
}

enum uly_status uly_comm_new(const struct uly_comm_ops *ops, int rank, int size,
                             struct uly_comm **out)
{
    struct uly_comm *comm = NULL;
    enum uly_status status = ULY_OK;
    ULY_TRY(check_table(ops));
    ULY_TRY(ULY_ALLOC(&comm, 1));
    comm->ops = *ops;
    comm->rank = rank;
    comm->size = size;
    comm->root = comm;
    comm->chunk = default_chunk;
    ULY_TRY_GOTO(ULY_ALLOC(&comm->hosts, size), failed);
    ULY_TRY_GOTO(ULY_ALLOC(&comm->host_names, size), failed);
    ULY_TRY_GOTO(ULY_ALLOC(&comm->host_index, 4 * (int64_t)size), failed);
    ULY_TRY_GOTO(ULY_ALLOC(&comm->index, 4 * (int64_t)size), failed);
    ULY_TRY_GOTO(ULY_ALLOC(&comm->gathered, (int64_t)size * ULY_SMALL_BYTES), failed);
    ULY_TRY_GOTO(ULY_ALLOC(&comm->waiting, size), failed);
    *out = comm;
    return ULY_OK;
failed:
    uly_comm_destroy(comm);
    return status;
}

enum uly_status uly_comm_finish(struct uly_comm *comm)
{
    return uly_comm_reserve(comm, DEFAULT_PARTS, DEFAULT_IN_FLIGHT);
}

void uly_comm_destroy(struct uly_comm *comm)
{
    if (!comm)
        return;
    comm->ops.destroy(comm);
    for (struct uly_comm *c = comm->root; c != comm && c; c = c->next)
        if (c->next == comm) {
            c->next = comm->next;
            break;
        }
    uly_free(comm->hosts);
    uly_free(comm->host_names);
    uly_free(comm->slots);
    uly_free(comm->parts);
    uly_free(comm->host_index);
    uly_free(comm->index);
    uly_free(comm->gathered);
    uly_free(comm->waiting);
    uly_free(comm->calls);
    uly_free(comm);
}

void uly_comm_abort(struct uly_comm *comm, int exit_code)
{
    comm->ops.abort(comm, exit_code);
}

int uly_comm_rank(const struct uly_comm *comm)
{
    return comm->rank;
}

int uly_comm_size(const struct uly_comm *comm)
{
    return comm->size;
}

void uly_comm_set_timeout(struct uly_comm *comm, double seconds)
{
    comm->timeout = seconds > 0 ? seconds : 0;
}

void uly_comm_set_chunk(struct uly_comm *comm, int64_t bytes)
{
    if (bytes < 1)
        bytes = 1;
    comm->chunk = bytes < default_chunk ? bytes : default_chunk;
}

enum uly_status uly_comm_reserve(struct uly_comm *comm, int n_parts, int in_flight)
{
    struct uly_slot *slots = NULL;
    struct uly_part *parts = NULL;
    enum uly_status status = ULY_OK;
    ULY_FAIL_IF(n_parts < 1 || n_parts > MAX_PARTS || in_flight < 1 || in_flight > MAX_IN_FLIGHT,
                ULY_ERR_INVALID, "room for %d exchanges of %d parts asked for", in_flight, n_parts);
    for (int i = 0; comm->slots && i <= comm->n_slots; i++)
        ULY_FAIL_IF(comm->slots[i].busy, ULY_ERR_INTERNAL,
                    "room for exchanges asked for while %s is in flight", comm->slots[i].what);
    ULY_TRY_GOTO(ULY_ALLOC(&slots, in_flight + 1), failed);
    ULY_TRY_GOTO(ULY_ALLOC(&parts, (int64_t)(in_flight + 1) * n_parts), failed);
    ULY_TRY_GOTO(comm->ops.reserve(comm, in_flight, n_parts), failed);
    for (int i = 0; i <= in_flight; i++) {
        slots[i].index = i;
        slots[i].parts = parts + (int64_t)i * n_parts;
    }
    uly_free(comm->slots);
    uly_free(comm->parts);
    comm->slots = slots;
    comm->parts = parts;
    comm->n_slots = in_flight;
    comm->max_parts = n_parts;
    return ULY_OK;
failed:
    uly_free(slots);
    uly_free(parts);
    return status;
}

/* ------------------------------------------------------------------ machines */

void uly_comm_own_host(char name[ULY_HOST_BYTES])
{
    memset(name, 0, ULY_HOST_BYTES);
    if (gethostname(name, ULY_HOST_BYTES - 1) != 0 || !name[0])
        snprintf(name, ULY_HOST_BYTES, "localhost");
}

void uly_comm_number_hosts(struct uly_comm *comm)
{
    int n = 0;
    for (int r = 0; r < comm->size; r++) {
        int first = 0;
        while (strcmp(comm->host_names[first], comm->host_names[r]) != 0)
            first++;
        comm->hosts[r] = first == r ? n++ : comm->hosts[first];
    }
}

const int *uly_comm_hosts(const struct uly_comm *comm)
{
    return comm->hosts;
}

const char *uly_comm_host_name(const struct uly_comm *comm, int rank)
{
    ULY_BUG_ON(rank < 0 || rank >= comm->size);
    return comm->host_names[rank];
}

void uly_comm_set_host_names(struct uly_comm *comm, const char *const *names)
{
    for (int r = 0; r < comm->size; r++)
        snprintf(comm->host_names[r], ULY_HOST_BYTES, "%s", names[r]);
    uly_comm_number_hosts(comm);
}

/* ------------------------------------------------------------------ split */

/* This rank's part of the division, from every rank's (color, key) in `pairs`. members: [size], filled. */
static void split_plan(const struct uly_comm *comm, const int (*pairs)[2], int *members,
                       struct uly_split *out)
{
    int color = pairs[comm->rank][0], n = 0;
    for (int r = 0; r < comm->size; r++) {
        if (pairs[r][0] != color)
            continue;
        int at = n++; /* insertion keeps equal keys in rank order */
        for (; at > 0 && pairs[members[at - 1]][1] > pairs[r][1]; at--)
            members[at] = members[at - 1];
        members[at] = r;
    }
    *out = (struct uly_split){color, pairs[comm->rank][1], 0, n, members};
    while (members[out->rank] != comm->rank)
        out->rank++;
}

static enum uly_status split_child(struct uly_comm *comm, const struct uly_split *split,
                                   struct uly_comm **out)
{
    struct uly_comm *child = NULL;
    enum uly_status status = uly_comm_new(&comm->ops, split->rank, split->size, &child);
    if (status == ULY_OK)
        status = uly_comm_set_check(child, comm->check);
    ULY_TRY_GOTO(uly_comm_agree_status(comm, status), failed);
    child->root = comm->root;
    child->timeout = comm->timeout;
    child->chunk = comm->chunk;
    for (int i = 0; i < split->size; i++)
        memcpy(child->host_names[i], comm->host_names[split->members[i]], ULY_HOST_BYTES);
    uly_comm_number_hosts(child);
    status = comm->ops.split(comm, split, child);
    if (status == ULY_OK)
        status = uly_comm_finish(child);
    if (status == ULY_OK) { /* in the list only when it can be advanced */
        child->next = comm->root->next;
        comm->root->next = child;
    }
    ULY_TRY_GOTO(uly_comm_agree_status(comm, status), failed);
    *out = child;
    return ULY_OK;
failed:
    uly_comm_destroy(child);
    return status;
}

enum uly_status uly_comm_split(struct uly_comm *comm, int color, int key, struct uly_comm **out)
{
    int *members = NULL;
    int(*pairs)[2] = (int(*)[2])(void *)comm->gathered;
    int mine[2] = {color, key};
    struct uly_split split;
    enum uly_status status = ULY_OK;
    if (color < 0)
        status = uly_error_record(ULY_ERR_INVALID, __FILE__, __LINE__, __func__,
                                  "a communicator cannot be split by the color %d", color);
    else
        status = ULY_ALLOC(&members, comm->size);
    ULY_TRY_GOTO(uly_comm_agree_status(comm, status), done);
    ULY_TRY_GOTO(uly_all_gather_host(comm, mine, sizeof mine, pairs), done);
    split_plan(comm, (const int(*)[2])pairs, members, &split);
    ULY_TRY_GOTO(split_child(comm, &split, out), done);
done:
    uly_free(members);
    return status;
}

/* ------------------------------------------------------------------ exchange */

static enum uly_status break_all(struct uly_comm *comm, enum uly_status status)
{
    struct uly_comm *root = comm->root;
    if (root->broken == ULY_OK) {
        root->broken = status;
        snprintf(root->broken_text, sizeof root->broken_text, "%s", uly_error_message());
    }
    return status;
}

enum uly_status uly_comm_start_raw(struct uly_comm *comm, bool host, const char *what,
                                   const struct uly_part *parts, int n_parts, struct uly_slot **out)
{
    ULY_FAIL_IF(comm->root->broken != ULY_OK, comm->root->broken, "%s", comm->root->broken_text);
    ULY_FAIL_IF(n_parts > comm->max_parts, ULY_ERR_INTERNAL,
                "%s has %d parts, room was reserved for %d", what, n_parts, comm->max_parts);
    int i = host ? comm->n_slots : 0;
    while (!host && i < comm->n_slots && comm->slots[i].busy)
        i++;
    ULY_FAIL_IF(!host && i == comm->n_slots, ULY_ERR_INTERNAL,
                "%s would be exchange %d in flight, room was reserved for %d", what, i + 1, i);
    struct uly_slot *slot = &comm->slots[i];
    ULY_BUG_ON(slot->busy);
    double begin = uly_seconds();
    slot->busy = true;
    slot->what = what;
    slot->n_parts = n_parts;
    slot->sequence = comm->sequence++;
    if (n_parts > 0) /* parts may be NULL then */
        memcpy(slot->parts, parts, (size_t)n_parts * sizeof *parts);
    enum uly_status status = comm->ops.start(comm, slot);
    comm->counters.seconds += uly_seconds() - begin;
    if (status != ULY_OK)
        return break_all(comm, status);
    *out = slot;
    return ULY_OK;
}

enum uly_status uly_comm_wait_raw(struct uly_comm *comm, struct uly_slot *slot)
{
    slot->busy = false;
    ULY_FAIL_IF(comm->root->broken != ULY_OK, comm->root->broken, "%s", comm->root->broken_text);
    double begin = uly_seconds();
    enum uly_status status = comm->ops.wait(comm, slot);
    comm->counters.seconds += uly_seconds() - begin;
    return status == ULY_OK ? ULY_OK : break_all(comm, status);
}

static void count_exchange(struct uly_comm *comm, const struct uly_part *parts, int n_parts)
{
    comm->counters.exchanges++;
    for (int i = 0; i < n_parts; i++)
        for (int r = 0; r < comm->size; r++)
            if (r != comm->rank)
                comm->counters.bytes +=
                    parts[i].send_count[r] * uly_dtype_bytes(parts[i].send.dtype);
}

enum uly_status uly_comm_exchange_raw(struct uly_comm *comm, const char *what,
                                      const struct uly_part *part)
{
    struct uly_slot *slot;
    count_exchange(comm, part, 1);
    ULY_TRY(uly_comm_start_raw(comm, false, what, part, 1, &slot));
    return uly_comm_wait_raw(comm, slot);
}

/* One direction of a part: every peer's range lies in the tensor. *any: something moves. */
static enum uly_status check_ranges(const struct uly_comm *comm, const char *what, int part,
                                    const char *direction, const struct uly_tensor *t,
                                    const int64_t *offset, const int64_t *count, bool *any)
{
    int64_t room = uly_tensor_exists(t) ? uly_tensor_count(t) : 0;
    *any = false;
    for (int r = 0; r < comm->size; r++) {
        if (count[r] == 0)
            continue;
        *any = true;
        ULY_FAIL_IF(
            count[r] < 0 || offset[r] < 0 || offset[r] > room || count[r] > room - offset[r],
            ULY_ERR_INVALID,
            "%s, part %d, %s, rank %d: %lld elements from %lld on in a tensor of %lld", what, part,
            direction, r, (long long)count[r], (long long)offset[r], (long long)room);
    }
    ULY_FAIL_IF(*any && !t->arena->base, ULY_ERR_INTERNAL,
                "%s, part %d, %s: the tensor has no memory yet", what, part, direction);
    ULY_FAIL_IF(*any && !uly_tensor_is_dense(t), ULY_ERR_INVALID,
                "%s, part %d, %s: the tensor is not dense", what, part, direction);
    return ULY_OK;
}

enum uly_status uly_comm_check_part(const struct uly_comm *comm, const char *what, int i,
                                    const struct uly_part *part)
{
    bool sends, receives;
    ULY_TRY(check_ranges(comm, what, i, "sent", &part->send, part->send_offset, part->send_count,
                         &sends));
    ULY_TRY(check_ranges(comm, what, i, "received", &part->recv, part->recv_offset,
                         part->recv_count, &receives));
    ULY_FAIL_IF(part->send.dtype != part->recv.dtype, ULY_ERR_INVALID,
                "%s, part %d: %s is sent and %s received", what, i,
                uly_dtype_name(part->send.dtype), uly_dtype_name(part->recv.dtype));
    ULY_FAIL_IF(part->send_count[comm->rank] != part->recv_count[comm->rank], ULY_ERR_INVALID,
                "%s, part %d: rank %d sends itself %lld elements and expects %lld", what, i,
                comm->rank, (long long)part->send_count[comm->rank],
                (long long)part->recv_count[comm->rank]);
    ULY_FAIL_IF(sends && receives && uly_tensor_overlap(&part->send, &part->recv), ULY_ERR_INVALID,
                "%s, part %d: the tensors sent and received overlap", what, i);
    return ULY_OK;
}

enum uly_status uly_exchange_start(struct uly_comm *comm, const char *what,
                                   const struct uly_part *parts, int n_parts,
                                   struct uly_request *out)
{
    ULY_FAIL_IF(n_parts < 0, ULY_ERR_INVALID, "%s has %d parts", what, n_parts);
    for (int i = 0; i < n_parts; i++)
        ULY_TRY(uly_comm_check_part(comm, what, i, &parts[i]));
    ULY_TRY(uly_comm_check_call(comm, what, NULL, NULL, 0, parts, n_parts));
    struct uly_slot *slot;
    ULY_TRY(uly_comm_start_raw(comm, false, what, parts, n_parts, &slot));
    count_exchange(comm, parts, n_parts);
    *out = (struct uly_request){slot->index, slot->sequence};
    return ULY_OK;
}

enum uly_status uly_exchange_wait(struct uly_comm *comm, struct uly_request *request)
{
    int i = request->slot;
    ULY_FAIL_IF(i < 0 || i >= comm->n_slots || !comm->slots[i].busy ||
                    comm->slots[i].sequence != request->sequence,
                ULY_ERR_INTERNAL, "no exchange %lld is in flight", (long long)request->sequence);
    return uly_comm_wait_raw(comm, &comm->slots[i]);
}

void uly_comm_poke(void *comm)
{
    struct uly_comm *c = comm;
    if (c->root->broken != ULY_OK)
        return;
    double begin = uly_seconds();
    for (struct uly_comm *each = c->root; each; each = each->next) {
        enum uly_status status = each->ops.poke(each);
        if (status != ULY_OK) { /* the next start or wait reports it */
            break_all(c, status);
            break;
        }
    }
    c->counters.seconds += uly_seconds() - begin;
}

void uly_comm_copy_own(const struct uly_comm *comm, const struct uly_slot *slot)
{
    for (int i = 0; i < slot->n_parts; i++) {
        int64_t bytes;
        const unsigned char *src = uly_part_send(&slot->parts[i], comm->rank, &bytes);
        unsigned char *dst = uly_part_recv(&slot->parts[i], comm->rank, &bytes);
        if (bytes > 0)
            memcpy(dst, src, (size_t)bytes);
    }
}

enum uly_status uly_comm_timed_out(struct uly_comm *comm, const struct uly_slot *slot)
{
    char ranks[256];
    int used = 0;
    ranks[0] = '\0';
    for (int r = 0; r < comm->size; r++)
        if (comm->waiting[r] && used < (int)sizeof ranks - 16)
            used +=
                snprintf(ranks + used, sizeof ranks - (size_t)used, "%s%d", used ? ", " : "", r);
    ULY_FAIL(ULY_ERR_COMM, "%s (collective %lld) on rank %d of %d waited %g seconds for ranks %s",
             slot->what, (long long)slot->sequence, comm->rank, comm->size, comm->timeout, ranks);
}

/* ------------------------------------------------------------------ counters */

struct uly_comm_counters uly_comm_counters(const struct uly_comm *comm)
{
    return comm->counters;
}

void uly_comm_reset_counters(struct uly_comm *comm)
{
    memset(&comm->counters, 0, sizeof comm->counters);
}
