/* SPDX-License-Identifier: MIT
 *
 * Agreement: do all ranks stand at the same call, with arguments that fit? Every pair of ranks exchanges a record of the
 * call; then all ranks learn of the first difference that anyone found, so that all return the same error and none enters
 * a collective that another one cannot finish.
 */
#include "comm/comm_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { CALL_VALUES = 8, CALL_PARTS = 16, CALL_NAME = 48 };

struct uly_call { /* what one rank tells another about its call */
    char what[CALL_NAME];
    int64_t n_values, n_parts;
    int64_t value[CALL_VALUES];
    int64_t dtype[CALL_PARTS];
    int64_t sends
        [CALL_PARTS]; /* elements to the reader of this record; the last one is a sum where there are more parts */
};

bool uly_comm_check_wanted(void)
{
    const char *text = getenv("ULY_CHECK");
    static const char word[] = "agree";
    size_t length = sizeof word - 1;
    for (const char *p = text; p && *p; p = strchr(p, ','), p = p ? p + 1 : NULL)
        if (strncmp(p, word, length) == 0 && (p[length] == '\0' || p[length] == ','))
            return true;
    return false;
}

enum uly_status uly_comm_set_check(struct uly_comm *comm, bool check)
{
    comm->check = false;
    if (check && !comm->calls)
        ULY_TRY(ULY_ALLOC(&comm->calls, 2 * (int64_t)comm->size));
    comm->check = check;
    return ULY_OK;
}

/* ------------------------------------------------------------------ who failed first */

enum uly_status uly_comm_first_failure(struct uly_comm *comm, const char *what, bool failed,
                                       int *rank, char *text)
{
    unsigned char flag = failed;
    *rank = -1;
    ULY_TRY(comm->ops.gather_host(comm, what, &flag, 1, comm->gathered));
    for (int r = comm->size - 1; r >= 0; r--)
        if (comm->gathered[r])
            *rank = r;
    if (*rank < 0)
        return ULY_OK;
    ULY_TRY(comm->ops.gather_host(comm, what, text, ULY_SMALL_BYTES, comm->gathered));
    memcpy(text, comm->gathered + (int64_t)*rank * ULY_SMALL_BYTES, ULY_SMALL_BYTES);
    text[ULY_SMALL_BYTES - 1] = '\0';
    return ULY_OK;
}

enum uly_status uly_comm_agree_status(struct uly_comm *comm, enum uly_status mine)
{
    char own[ULY_MESSAGE_BYTES], text[ULY_SMALL_BYTES];
    int rank;
    memset(text, 0, sizeof text);
    snprintf(own, sizeof own, "%s", mine == ULY_OK ? "" : uly_error_message());
    snprintf(text, sizeof text, "%.*s", ULY_SMALL_BYTES - 1, own);
    enum uly_status status =
        uly_comm_first_failure(comm, "agreement on a status", mine != ULY_OK, &rank, text);
    if (mine != ULY_OK) {
        if (status != ULY_OK) /* the way there failed too: one's own cause is the one to tell */
            uly_error_record(mine, __FILE__, __LINE__, __func__, "%s", own);
        return mine;
    }
    ULY_TRY(status);
    ULY_FAIL_IF(rank >= 0, ULY_ERR_PEER, "rank %d failed: %s", rank, text);
    return ULY_OK;
}

/* ------------------------------------------------------------------ the call's record */

static void fill_record(struct uly_call *call, int peer, const char *what, const int64_t *values,
                        int n, const struct uly_part *parts, int n_parts)
{
    memset(call, 0, sizeof *call);
    snprintf(call->what, sizeof call->what, "%s", what);
    call->n_values = n;
    call->n_parts = n_parts;
    for (int i = 0; i < n; i++)
        call->value[i] = values[i];
    for (int i = 0; i < n_parts; i++) {
        int at = i < CALL_PARTS ? i : CALL_PARTS - 1;
        call->dtype[at] = (int64_t)parts[i].send.dtype;
        call->sends[at] += parts[i].send_count[peer];
    }
}

/* The first thing in which the peer's record does not fit; "" where all fits. */
static void compare(const struct uly_comm *comm, const struct uly_call *mine,
                    const struct uly_call *theirs, int peer, const char *const *names,
                    const struct uly_part *parts, char *text)
{
    int64_t expected[CALL_PARTS] = {0};
    for (int i = 0; i < mine->n_parts; i++)
        expected[i < CALL_PARTS ? i : CALL_PARTS - 1] += parts[i].recv_count[peer];
    if (memcmp(mine->what, theirs->what, CALL_NAME) != 0) {
        snprintf(text, ULY_SMALL_BYTES, "rank %d is at %.*s, rank %d at %.*s", comm->rank,
                 CALL_NAME, mine->what, peer, CALL_NAME, theirs->what);
        return;
    }
    if (mine->n_values != theirs->n_values || mine->n_parts != theirs->n_parts) {
        snprintf(text, ULY_SMALL_BYTES, "%s: %lld parts on rank %d, %lld on rank %d", mine->what,
                 (long long)mine->n_parts, comm->rank, (long long)theirs->n_parts, peer);
        return;
    }
    for (int i = 0; i < mine->n_values; i++)
        if (mine->value[i] != theirs->value[i]) {
            snprintf(text, ULY_SMALL_BYTES, "%s: %s is %lld on rank %d and %lld on rank %d",
                     mine->what, names[i], (long long)mine->value[i], comm->rank,
                     (long long)theirs->value[i], peer);
            return;
        }
    for (int i = 0; i < mine->n_parts && i < CALL_PARTS; i++) {
        if (mine->dtype[i] != theirs->dtype[i]) {
            snprintf(text, ULY_SMALL_BYTES, "%s, part %d: %s on rank %d and %s on rank %d",
                     mine->what, i, uly_dtype_name((enum uly_dtype)mine->dtype[i]), comm->rank,
                     uly_dtype_name((enum uly_dtype)theirs->dtype[i]), peer);
            return;
        }
        if (theirs->sends[i] != expected[i]) {
            snprintf(text, ULY_SMALL_BYTES,
                     "%s, part %d: rank %d sends %lld elements, rank %d expects %lld", mine->what,
                     i, peer, (long long)theirs->sends[i], comm->rank, (long long)expected[i]);
            return;
        }
    }
}

/* A record to each peer and one from each, as bytes in host memory. */
static enum uly_status swap_records(struct uly_comm *comm, const char *what, struct uly_call *out,
                                    struct uly_call *in)
{
    int64_t *offset = comm->host_index, *count = comm->host_index + comm->size;
    int64_t bytes = (int64_t)comm->size * (int64_t)sizeof(struct uly_call);
    struct uly_arena from = {.base = (unsigned char *)out}, to = {.base = (unsigned char *)in};
    struct uly_slot *slot;
    for (int r = 0; r < comm->size; r++) {
        offset[r] = (int64_t)r * (int64_t)sizeof(struct uly_call);
        count[r] = (int64_t)sizeof(struct uly_call);
    }
    struct uly_part part = {.send = {&from, 0, ULY_DTYPE_U8, 1, {bytes, 1, 1}, 1},
                            .recv = {&to, 0, ULY_DTYPE_U8, 1, {bytes, 1, 1}, 1},
                            .send_offset = offset,
                            .send_count = count,
                            .recv_offset = offset,
                            .recv_count = count};
    ULY_TRY(uly_comm_start_raw(comm, true, what, &part, 1, &slot));
    return uly_comm_wait_raw(comm, slot);
}

enum uly_status uly_comm_check_call(struct uly_comm *comm, const char *what,
                                    const char *const *names, const int64_t *values, int n,
                                    const struct uly_part *parts, int n_parts)
{
    if (!comm->check || comm->size == 1)
        return ULY_OK;
    ULY_BUG_ON(n > CALL_VALUES);
    struct uly_call *out = comm->calls, *in = comm->calls + comm->size;
    char text[ULY_SMALL_BYTES];
    int rank;
    memset(text, 0, sizeof text);
    for (int r = 0; r < comm->size; r++)
        fill_record(&out[r], r, what, values, n, parts, n_parts);
    ULY_TRY(swap_records(comm, what, out, in));
    for (int r = 0; r < comm->size && !text[0]; r++)
        compare(comm, &out[r], &in[r], r, names, parts, text);
    ULY_TRY(uly_comm_first_failure(comm, what, text[0] != '\0', &rank, text));
    ULY_FAIL_IF(rank >= 0, ULY_ERR_COMM, "ranks disagree: %s", text);
    return ULY_OK;
}

enum uly_status uly_comm_check_same(struct uly_comm *comm, const char *what, int64_t value)
{
    static const char *const names[] = {"the value"};
    return uly_comm_check_call(comm, what, names, &value, 1, NULL, 0);
}
