/* SPDX-License-Identifier: MIT
 *
 * What the operator costs: its buffers and the bytes that it sends, against the formulas of docs/operator.md, which are
 * worked out here a second time from the heads and the mask, one by one.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#include "parallel/layout.h"
#include "support/cp_plain.h"

enum { MAX_HEADS = 64, MAX_RANKS = 8 };

/* Who needs which kv heads when, from the definition of stages alone. */
struct heads {
    int owned[MAX_RANKS];        /* query heads of each ulysses rank */
    int kv_sent[MAX_RANKS];      /* kv heads that come to it, over all stages */
    int kv_stage_sum[MAX_RANKS]; /* kv heads that it attends with, summed over stages */
    int q_all, q_mine, kv_all,
        slots; /* most of a stage: query heads of all ranks, of one; kv heads in or out; resident */
    bool shared;   /* some kv head goes to several ranks */
    bool overlaps; /* some stage follows another with the same kv heads on every rank */
    int n_stages;
};

static int most(int a, int b)
{
    return a > b ? a : b;
}

static struct heads count_heads(int H, int K, int Pu, int n)
{
    struct heads x = {0};
    int g = H / K, largest = (H + Pu - 1) / Pu, users[MAX_HEADS] = {0};
    n = n ? n : largest;
    x.n_stages = (largest + n - 1) / n;
    /* needed[t][r][kv] of the stage before, this one and the next */
    bool(*needed)[MAX_RANKS][MAX_HEADS] = calloc((size_t)x.n_stages + 2, sizeof *needed);
    assert_non_null(needed);
    for (int t = 0; t < x.n_stages; t++) {
        int q_sum = 0;
        for (int r = 0, first = 0; r < Pu; r++) {
            int own = H / Pu + (r < H % Pu), kv = 0, q = 0;
            for (int h = t * n; h < (t + 1) * n && h < own; h++, q++)
                needed[t + 1][r][(first + h) / g] = true;
            for (int k = 0; k < K; k++)
                kv += needed[t + 1][r][k];
            x.owned[r] = own;
            x.kv_stage_sum[r] += kv;
            x.slots = most(x.slots, kv);
            x.q_mine = most(x.q_mine, q);
            q_sum += q;
            first += own;
        }
        x.q_all = most(x.q_all, q_sum);
    }
    int done_before = 0;
    for (int t = 1; t <= x.n_stages; t++) {
        int came = 0, done = 0;
        for (int r = 0; r < Pu; r++)
            for (int k = 0; k < K; k++) {
                bool is_new = needed[t][r][k] && !needed[t - 1][r][k];
                came += is_new;
                x.kv_sent[r] += is_new;
                users[k] += is_new;
                done += needed[t][r][k] && !needed[t + 1][r][k];
            }
        x.kv_all = most(x.kv_all, most(came, done));
        x.overlaps = x.overlaps || (t > 1 && came == 0 && done_before == 0);
        done_before = done;
    }
    for (int k = 0; k < K; k++)
        x.shared = x.shared || users[k] > 1;
    free(needed);
    return x;
}

/* ------------------------------------------------------------------ buffers */

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Bytes of a tensor in an arena: tensors start at multiples of 64. */
static int64_t room(int64_t elements, int64_t size)
{
    return (elements * size + 63) / 64 * 64;
}

static void check_buffers(const struct plain_case *c)
{
    struct plain_measures measured[MAX_RANKS];
    double e[4];
    struct heads h = count_heads(c->H, c->K, c->ulysses, c->heads_per_stage);
    int Pu = c->ulysses, Pr = c->ring, P = Pu * Pr;
    int64_t D = c->D, m = c->model == ULY_DTYPE_BF16 ? 2 : 4, a = 4;
    int64_t s = 0, W = 0; /* of the rank, and the ring rank, that has most */
    for (int i = 0; i < Pr; i++) {
        int64_t joined = 0;
        for (int j = 0; j < Pu; j++) {
            s = larger(s, uly_layout_count(c->S, Pr, Pu, i, j));
            joined += uly_layout_count(c->S, Pr, Pu, i, j);
        }
        W = larger(W, joined);
    }
    bool tiled = c->query_tile > 0 && c->query_tile < s;
    int64_t T = tiled ? c->query_tile : s, R = Pu * T < W ? Pu * T : W;
    int lanes = Pu > 1 && !c->serial && (tiled || h.overlaps) ? 2 : 1;
    int64_t home = h.shared ? a : m;
    int64_t q = h.q_mine * R, slots = h.slots;
    /* head side */
    int64_t resident = 2 * room(slots * W * D, m) + 2 * room(slots * W * D, a);
    int64_t head_lane = 3 * room(q * D, m) + room(q * D, a) + room(q, a);
    int64_t rounded = Pu > 1 && home != a ? 2 * room(slots * R * D, m) : 0;
    int64_t head =
        resident + (tiled ? larger(lanes * head_lane, rounded) : lanes * head_lane + rounded);
    /* token side */
    int64_t token_lane = 2 * room(h.q_all * T * D, m) + room(h.q_all * T, a);
    int64_t keys = 2 * room(h.kv_all * T * D, m), back = 2 * room(h.kv_all * T * D, home);
    int64_t token = 0;
    if (Pu > 1)
        token = tiled ? larger(lanes * token_lane, larger(keys, back))
                      : lanes * token_lane + larger(keys, back);
    int blocks = Pr == 1 ? 0 : Pr == 2 || c->serial ? 1 : 2;
    token += blocks * (2 * room(slots * W * D, m) + 2 * room(slots * W * D, a));
    token += Pr > 1 ? 2 * room(slots * W * D, a) : 0;
    plain_errors(c, e, measured);
    for (int r = 0; r < P; r++) {
        assert_int_equal(measured[r].head_bytes, head);
        assert_int_equal(measured[r].token_bytes, token);
    }
}

/* Measures without reserving: the shape of Llama-3-8B, a million tokens over 8 ranks, one head a stage. */
static enum uly_status measure_llama(struct uly_comm *comm, void *arg)
{
    double *units =
        arg; /* [8] buffers of each rank over u, the bytes of s hidden states in bfloat16 */
    const int64_t S = 1 << 20, s = S / 8, E = 4096;
    struct uly_backend *be;
    struct uly_memory memory;
    struct uly_mesh mesh;
    struct uly_cp_attention *cp;
    struct uly_cp_options options = {.H = 32,
                                     .K = 8,
                                     .D = 128,
                                     .heads_per_stage = 1,
                                     .query_tile = s / 4,
                                     .scale = 1,
                                     .model = ULY_DTYPE_BF16,
                                     .training = true,
                                     .max_tokens = S,
                                     .token_tile = 512};
    ULY_TRY(uly_backend_create("cpu", 1, &be));
    uly_memory_init(&memory, uly_backend_space(be));
    ULY_TRY(uly_mesh_init(comm, 1, 1, 8, &mesh));
    ULY_TRY(uly_cp_create(&options, &mesh, be, &memory, &cp));
    units[uly_comm_rank(comm)] = (double)uly_memory_planned_bytes(&memory) / (double)(s * E * 2);
    uly_cp_destroy(cp);
    uly_mesh_clear(&mesh);
    uly_memory_clear(&memory);
    uly_backend_destroy(be);
    return ULY_OK;
}

/* k, v 0.5; dK, dV 1.0; query tiles in flight 0.875; delta 0.02 (docs/operator.md). */
static void test_llama_in_units(void **state)
{
    (void)state;
    double units[8];
    assert_int_equal(uly_comm_run_threads(8, measure_llama, units), ULY_OK);
    for (int r = 0; r < 8; r++)
        assert_true(units[r] > 2.375 && units[r] < 2.4);
}

/* ------------------------------------------------------------------ bytes */

/* Keys of ring rank c, of each of its chunks the range from the first to the last that some query of ring rank i sees. */
static int64_t rows_seen(const struct plain_case *c, int i, int from)
{
    struct uly_segment q[2], k[2];
    struct uly_mask mask = {c->S, c->starts, c->n_docs, c->window};
    int nq = uly_layout_chunks(c->S, c->ring, c->ulysses, i, q);
    int nk = uly_layout_chunks(c->S, c->ring, c->ulysses, from, k);
    int64_t rows = 0;
    for (int x = 0; x < nk; x++) {
        int64_t first = -1, last = -2;
        for (int64_t key = k[x].start; key < k[x].start + k[x].count; key++) {
            bool seen = false;
            for (int y = 0; y < nq; y++)
                for (int64_t t = q[y].start; t < q[y].start + q[y].count; t++)
                    seen = seen || (uly_mask_lo(&mask, t) <= key && key <= t);
            if (seen) {
                first = first < 0 ? key : first;
                last = key;
            }
        }
        rows += last - first + 1;
    }
    return rows;
}

static struct plain_measures formula(const struct plain_case *c, int i, int j)
{
    struct heads h = count_heads(c->H, c->K, c->ulysses, c->heads_per_stage);
    struct plain_measures x = {0};
    int64_t D = c->D, m = c->model == ULY_DTYPE_BF16 ? 2 : 4, a = 4, home = h.shared ? a : m;
    int64_t s = uly_layout_count(c->S, c->ring, c->ulysses, i, j), W = 0, kv_of_others = 0;
    for (int r = 0; r < c->ulysses; r++) {
        W += uly_layout_count(c->S, c->ring, c->ulysses, i, r);
        kv_of_others += r == j ? 0 : h.kv_sent[r];
    }
    int64_t away = s * (c->H - h.owned[j]), back = (W - s) * h.owned[j];
    x.ulysses_forward = (away + 2 * s * kv_of_others + back) * D * m;
    x.ulysses_backward = (2 * away + 2 * s * kv_of_others + back) * D * m + away * a +
                         2 * (W - s) * h.kv_sent[j] * D * home;
    for (int other = 0; other < c->ring; other++)
        if (other != i) {
            int64_t given = 2 * rows_seen(c, other, i) * h.kv_stage_sum[j] * D;
            int64_t taken = 2 * rows_seen(c, i, other) * h.kv_stage_sum[j] * D;
            x.ring_forward += given * m;
            x.ring_backward += given * m + taken * a;
        }
    return x;
}

static void check_bytes(const struct plain_case *c)
{
    struct plain_measures measured[MAX_RANKS];
    double e[4];
    plain_errors(c, e, measured);
    for (int r = 0; r < c->ulysses * c->ring; r++) {
        struct plain_measures want = formula(c, r / c->ulysses, r % c->ulysses);
        assert_int_equal(measured[r].ulysses_forward, want.ulysses_forward);
        assert_int_equal(measured[r].ulysses_backward, want.ulysses_backward);
        assert_int_equal(measured[r].ring_forward, want.ring_forward);
        assert_int_equal(measured[r].ring_backward, want.ring_backward);
    }
}

/* ------------------------------------------------------------------ over settings */

typedef void (*check_fn)(const struct plain_case *c);

static void over_settings(check_fn check)
{
    static const int64_t several[] = {0, 1, 11, 12, 40};
    static const int shapes[][2] = {{8, 8}, {8, 2}, {7, 7}, {28, 4}, {8, 1}, {32, 8}};
    /* ulysses, ring, heads a stage, query tile, window */
    static const int settings[][5] = {
        {1, 1, 0, 0, 0},  {2, 1, 0, 0, 0}, {8, 1, 0, 0, 0}, {4, 1, 1, 0, 0}, {3, 1, 1, 0, 0},
        {4, 1, 1, 3, 0},  {8, 1, 1, 2, 9}, {1, 2, 0, 0, 0}, {1, 4, 1, 0, 0}, {2, 2, 2, 0, 0},
        {2, 4, 1, 0, 13}, {4, 2, 1, 0, 0}, {1, 1, 1, 5, 0}, {1, 8, 0, 0, 5}, {5, 1, 0, 0, 0}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t k = 0; k < sizeof settings / sizeof *settings; k++) {
            struct plain_case c = plain_case_small(61 + (int64_t)k, shapes[i][0], shapes[i][1]);
            c.ulysses = settings[k][0];
            c.ring = settings[k][1];
            c.heads_per_stage = settings[k][2];
            if (c.heads_per_stage > (c.H + c.ulysses - 1) / c.ulysses)
                c.heads_per_stage = 1;
            c.query_tile = settings[k][3];
            c.window = settings[k][4];
            c.starts = several;
            c.n_docs = k % 2 ? 1 : 5;
            c.D = 6;
            c.serial = (i + k) % 5 == 0;
            c.backend = "cpu";
            c.model = (i + k) % 2 ? ULY_DTYPE_F32 : ULY_DTYPE_BF16;
            check(&c);
        }
}

static void test_buffers(void **state)
{
    (void)state;
    over_settings(check_buffers);
}

static void test_bytes(void **state)
{
    (void)state;
    over_settings(check_bytes);
}

/* Even shapes against the formulas as they are published: an all-to-all of M numbers a rank sends M (P - 1) / P (Jacobs et
 * al. 2023); a causal zigzag ring sends 3/4 of all keys to all. The sum over ranks, bfloat16. */
static void test_published(void **state)
{
    (void)state;
    for (int P = 2; P <= 8; P *= 2)
        for (int method = 0; method < 3; method++) {
            struct plain_measures x[MAX_RANKS];
            double e[4];
            struct plain_case c = plain_case_small(256, 32, 8);
            int64_t S = c.S, H = c.H, K = c.K, D = 8;
            c.D = (int)D;
            c.ulysses = method < 2 ? P : 1;
            c.ring = method < 2 ? 1 : P;
            c.heads_per_stage = method == 1 ? 1 : 0;
            c.backend = "cpu";
            c.model = ULY_DTYPE_BF16;
            plain_errors(&c, e, x);
            int64_t forward = 0, backward = 0;
            for (int r = 0; r < P; r++) {
                forward += x[r].ulysses_forward + x[r].ring_forward;
                backward += x[r].ulysses_backward + x[r].ring_backward;
            }
            int64_t out =
                S * D * (P - 1) / P; /* numbers that leave their rank when a head is exchanged */
            if (method < 2) {
                assert_int_equal(forward, 2 * (2 * H + 2 * K) * out);
                assert_int_equal(backward, 2 * (3 * H + 4 * K) * out + 4 * H * out / D);
            } else {
                int64_t kv = 2 * K * S * D * (P - 1) * 3 / 4;
                assert_int_equal(forward, 2 * kv);
                assert_int_equal(backward, 2 * kv + 4 * kv);
            }
            printf("%-8s P %d: forward %8lld, backward %8lld bytes; Megatron-LM forward %8lld\n",
                   method == 0   ? "ulysses"
                   : method == 1 ? "upipe"
                                 : "ring",
                   P, (long long)forward, (long long)backward,
                   (long long)(4 * S * H * D * 2 * (P - 1)));
        }
}

/* With a window, ring traffic does not grow with the length. */
static void test_window_traffic(void **state)
{
    (void)state;
    int64_t before = -1;
    for (int64_t S = 128; S <= 1024; S *= 2) {
        struct plain_measures x[MAX_RANKS];
        double e[4];
        struct plain_case c = plain_case_small(S, 2, 2);
        int64_t sum = 0;
        c.ring = 4;
        c.window = 9;
        c.backend = "cpu";
        c.model = ULY_DTYPE_F32;
        plain_errors(&c, e, x);
        for (int r = 0; r < 4; r++)
            sum += x[r].ring_forward;
        assert_int_equal(sum, (2 * 4 - 2) * (c.window - 1) * 2 * c.K * c.D * 4);
        assert_true(before < 0 || sum == before);
        before = sum;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_buffers),        cmocka_unit_test(test_llama_in_units),
        cmocka_unit_test(test_bytes),          cmocka_unit_test(test_published),
        cmocka_unit_test(test_window_traffic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
