/* SPDX-License-Identifier: MIT */
#include "comm_cases.h"

#include <string.h>

#include "base/random.h"

enum { GAP = 3 };

static const enum uly_dtype dtypes[ROOM_PARTS] = {ULY_DTYPE_I64, ULY_DTYPE_BF16, ULY_DTYPE_U8};

static int64_t count_of(const struct room *room, int from, int to, int part, int64_t most)
{
    uint64_t pair = (uint64_t)((part * ROOM_RANKS + from) * ROOM_RANKS + to);
    if (uly_random_below(room->seed, 1, pair, 3) == 0)
        return 0;
    return (int64_t)uly_random_below(room->seed, 2, pair, (uint64_t)most);
}

/* Byte k of what `from` sends `to`: a global index, spread over the bytes of elements of any width. */
static unsigned char byte_of(const struct room *room, int from, int to, int part, int64_t k)
{
    uint64_t pair = (uint64_t)((part * ROOM_RANKS + from) * ROOM_RANKS + to);
    uint64_t x = (room->seed * 31 + pair) * UINT64_C(1000003) + (uint64_t)k;
    return (unsigned char)((x * UINT64_C(0x9e3779b97f4a7c15)) >> 56);
}

/* Offsets of one direction, with gaps; returns the elements of the whole tensor. */
static int64_t lay_out(const int64_t *count, int64_t *offset, int size)
{
    int64_t at = GAP;
    for (int r = 0; r < size; r++) {
        offset[r] = at;
        at += count[r] + GAP;
    }
    return at;
}

enum uly_status room_open(struct room *room, const struct uly_comm *comm, uint64_t seed,
                          int n_parts, int64_t most)
{
    memset(room, 0, sizeof *room);
    room->rank = uly_comm_rank(comm);
    room->size = uly_comm_size(comm);
    room->seed = seed;
    room->n_parts = n_parts;
    CHECK(room->size <= ROOM_RANKS, "%d ranks are more than the test knows", room->size);
    uly_arena_init(&room->arena, "room", &uly_host_space);
    for (int p = 0; p < n_parts; p++) {
        int64_t(*index)[ROOM_RANKS] = room->index[p];
        struct uly_part *part = &room->parts[p];
        for (int r = 0; r < room->size; r++) {
            index[1][r] = count_of(room, room->rank, r, p, most);
            index[3][r] = count_of(room, r, room->rank, p, most);
        }
        int64_t out = lay_out(index[1], index[0], room->size);
        int64_t in = lay_out(index[3], index[2], room->size);
        ULY_TRY(uly_tensor_new(&room->arena, "send", dtypes[p], 1, out, 1, 1, &part->send));
        ULY_TRY(uly_tensor_new(&room->arena, "recv", dtypes[p], 1, in, 1, 1, &part->recv));
        part->send_offset = index[0];
        part->send_count = index[1];
        part->recv_offset = index[2];
        part->recv_count = index[3];
    }
    ULY_TRY(uly_arena_reserve(&room->arena));
    memset(room->arena.base, 0xff, (size_t)room->arena.high);
    for (int p = 0; p < n_parts; p++)
        for (int r = 0; r < room->size; r++) {
            int64_t unit = uly_dtype_bytes(dtypes[p]);
            unsigned char *base = uly_tensor_address(room->parts[p].send);
            for (int64_t k = 0; k < room->index[p][1][r] * unit; k++)
                base[room->index[p][0][r] * unit + k] = byte_of(room, room->rank, r, p, k);
        }
    return ULY_OK;
}

/* One tensor: the block of each peer and the gaps before, between and after. */
static enum uly_status check_tensor(const struct room *room, int p, bool sent)
{
    const struct uly_tensor *t = sent ? &room->parts[p].send : &room->parts[p].recv;
    const int64_t *offset = room->index[p][sent ? 0 : 2], *count = room->index[p][sent ? 1 : 3];
    const unsigned char *base = uly_tensor_address(*t);
    int64_t unit = uly_dtype_bytes(t->dtype), at = 0;
    for (int r = 0; r < room->size; r++) {
        for (; at < offset[r] * unit; at++)
            CHECK(base[at] == 0xff, "part %d, byte %lld before rank %d's block was written", p,
                  (long long)at, r);
        for (int64_t k = 0; k < count[r] * unit; k++, at++) {
            unsigned char expected =
                sent ? byte_of(room, room->rank, r, p, k) : byte_of(room, r, room->rank, p, k);
            CHECK(base[at] == expected, "part %d, %s, rank %d, byte %lld of %lld: %d, not %d", p,
                  sent ? "sent" : "received", r, (long long)k, (long long)(count[r] * unit),
                  base[at], expected);
        }
    }
    for (; at < uly_tensor_count(t) * unit; at++)
        CHECK(base[at] == 0xff, "part %d, byte %lld after the last block was written", p,
              (long long)at);
    return ULY_OK;
}

enum uly_status room_check(const struct room *room)
{
    for (int p = 0; p < room->n_parts; p++) {
        ULY_TRY(check_tensor(room, p, true));
        ULY_TRY(check_tensor(room, p, false));
    }
    return ULY_OK;
}

void room_close(struct room *room)
{
    uly_arena_clear(&room->arena);
}
