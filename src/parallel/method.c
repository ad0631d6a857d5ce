/* SPDX-License-Identifier: MIT
 *
 * Degrees first, heads a stage second. How auto chooses degrees: of the ulysses sizes that divide P, four rules in turn,
 * each of which keeps the best of what the one before left.
 *
 *   1. A ulysses group stays on one machine: its exchanges stop the computation, a ring's are hidden behind it.
 *   2. Heads balance. Ranks wait for the one with most heads, so the share of useful time is H / (Pu * ceil(H / Pu));
 *      within a sixteenth of the best counts as equal.
 *   3. No more ulysses ranks than kv heads: beyond that, kv heads are sent several times.
 *   4. The largest ulysses size: its ranks all see every token, so they balance whatever the documents and windows are,
 *      while a ring's balance for one document; and what a rank sends falls with the size, while a ring's grows.
 *
 * A ring size of P with one ulysses rank passes rules 1 to 3 with any model, so something is always left.
 */
#include "parallel/method.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "parallel/layout.h"

static const char *const names[] = {"auto", "ulysses", "upipe", "ring", "usp"};

const char *uly_method_name(enum uly_method method)
{
    return names[method];
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static bool one_machine_only(enum uly_method method)
{
    return method == ULY_METHOD_ULYSSES || method == ULY_METHOD_UPIPE;
}

int uly_method_kv_group(int H, int K, int ulysses_size)
{
    int group = H / K, all = (int)ceil_div(H, ulysses_size);
    return group < all ? group : all;
}

enum uly_method uly_method_of(int H, int ulysses_size, int ring_size, int heads)
{
    if (ring_size == 1)
        return heads == ceil_div(H, ulysses_size) ? ULY_METHOD_ULYSSES : ULY_METHOD_UPIPE;
    return ulysses_size == 1 ? ULY_METHOD_RING : ULY_METHOD_USP;
}

int uly_method_spanning_group(const int *hosts, int world, int ulysses_size)
{
    for (int r = 0; hosts && r < world; r++) {
        int first = r - r % ulysses_size;
        if (hosts[r] != hosts[first])
            return first;
    }
    return -1;
}

/* ------------------------------------------------------------------ refusals */

const char *uly_divisors(int64_t n, bool pairs, char *buffer, size_t bytes)
{
    size_t used = 0;
    buffer[0] = '\0';
    for (int64_t d = 1; d <= n && used < bytes; d++) {
        if (n % d != 0)
            continue;
        used += (size_t)snprintf(buffer + used, bytes - used, "%s%" PRId64, d > 1 ? ", " : "", d);
        if (pairs && used < bytes)
            used += (size_t)snprintf(buffer + used, bytes - used, " x %" PRId64, n / d);
    }
    return buffer;
}

/* Sizes that do not fit P, whatever the method. */
static enum uly_status check_sizes(const struct uly_method_request *q)
{
    char list[160];
    int64_t P = q->sp_size, Pu = q->ulysses_size, Pr = q->ring_size;
    ULY_FAIL_IF(P < 1 || Pu < 0 || Pr < 0 || q->heads_per_stage < 0 || q->query_tile < 0,
                ULY_ERR_USAGE,
                "--sp-size %" PRId64 ", --ulysses-size %" PRId64 ", --ring-size %" PRId64
                ", --heads-per-stage %" PRId64 ", --query-tile %" PRId64 ": sizes begin at 1",
                P, Pu, Pr, q->heads_per_stage, q->query_tile);
    ULY_FAIL_IF(Pu && Pr && Pu * Pr != P, ULY_ERR_USAGE,
                "--ulysses-size %" PRId64 " * --ring-size %" PRId64 " is %" PRId64
                ", but --sp-size is %" PRId64 "; these work (ulysses x ring): %s",
                Pu, Pr, Pu * Pr, P, uly_divisors(P, true, list, sizeof list));
    ULY_FAIL_IF(Pu && P % Pu, ULY_ERR_USAGE,
                "--ulysses-size %" PRId64 " does not divide --sp-size %" PRId64 "; these do: %s",
                Pu, P, uly_divisors(P, false, list, sizeof list));
    ULY_FAIL_IF(Pr && P % Pr, ULY_ERR_USAGE,
                "--ring-size %" PRId64 " does not divide --sp-size %" PRId64 "; these do: %s", Pr,
                P, uly_divisors(P, false, list, sizeof list));
    ULY_FAIL_IF(q->query_tile && Pr > 1, ULY_ERR_USAGE,
                "--query-tile %" PRId64 " needs --ring-size 1, and it is %" PRId64
                ": with a ring, a stage's queries are held whole",
                q->query_tile, Pr);
    return ULY_OK;
}

/* A method that contradicts the sizes given with it. */
static enum uly_status check_method(const struct uly_method_request *q)
{
    char list[160];
    const char *name = uly_method_name(q->method);
    int64_t P = q->sp_size, Pu = q->ulysses_size, Pr = q->ring_size;
    ULY_FAIL_IF(one_machine_only(q->method) && Pr > 1, ULY_ERR_USAGE,
                "--method %s has no ring, but --ring-size is %" PRId64
                "; 1 works, and --method usp takes %s",
                name, Pr, uly_divisors(P, false, list, sizeof list));
    ULY_FAIL_IF(one_machine_only(q->method) && Pu && Pu != P, ULY_ERR_USAGE,
                "--method %s takes all %" PRId64
                " ranks of --sp-size, but --ulysses-size is %" PRId64 "; --method usp takes %s",
                name, P, Pu, uly_divisors(P, false, list, sizeof list));
    ULY_FAIL_IF(q->method == ULY_METHOD_RING && Pu > 1, ULY_ERR_USAGE,
                "--method ring exchanges no heads, but --ulysses-size is %" PRId64
                "; 1 works, and --method usp takes %s",
                Pu, uly_divisors(P, false, list, sizeof list));
    ULY_FAIL_IF(q->method == ULY_METHOD_RING && Pr && Pr != P, ULY_ERR_USAGE,
                "--method ring takes all %" PRId64
                " ranks of --sp-size, but --ring-size is %" PRId64 "; --method usp takes %s",
                P, Pr, uly_divisors(P, false, list, sizeof list));
    ULY_FAIL_IF(q->method == ULY_METHOD_RING && q->query_tile && P > 1, ULY_ERR_USAGE,
                "--query-tile %" PRId64 " needs --ring-size 1, and --method ring makes it %" PRId64,
                q->query_tile, P);
    return ULY_OK;
}

static enum uly_status check_heads(const struct uly_method_request *q, int ulysses_size)
{
    int64_t all = ceil_div(q->H, ulysses_size), n = q->heads_per_stage;
    ULY_FAIL_IF(n > all, ULY_ERR_USAGE,
                "--heads-per-stage %" PRId64 " is more than the %" PRId64
                " of a rank (%d heads over --ulysses-size %d); 1 ... %" PRId64 " work",
                n, all, q->H, ulysses_size, all);
    ULY_FAIL_IF(q->method == ULY_METHOD_ULYSSES && n && n != all, ULY_ERR_USAGE,
                "--method ulysses takes all %" PRId64
                " heads of a rank in one stage, but --heads-per-stage is %" PRId64
                ": that is --method upipe",
                all, n);
    return ULY_OK;
}

/* ------------------------------------------------------------------ degrees */

enum { RULE_MACHINE, RULE_BALANCE, RULE_KV, RULE_SIZE, N_RULES };
enum { MAX_CANDIDATES = 256 }; /* no number below 2^20 has more divisors (240) */

struct candidate {
    int Pu;
    int lost_by; /* the rule that took it out; -1: none has */
};

/* What a rule wants to be small. */
static double cost_of(const struct uly_method_request *q, int rule, int Pu)
{
    switch (rule) {
    case RULE_MACHINE:
        return uly_method_spanning_group(q->hosts, q->world, Pu) >= 0;
    case RULE_BALANCE: /* the useless share of time */
        return 1 - (double)q->H / ((double)Pu * (double)ceil_div(q->H, Pu));
    case RULE_KV:
        return Pu > q->K;
    default:
        return -Pu;
    }
}

static void apply_rule(const struct uly_method_request *q, int rule, struct candidate *list, int n)
{
    double best = HUGE_VAL, slack = rule == RULE_BALANCE ? 1.0 / 16 : 0;
    for (int i = 0; i < n; i++)
        if (list[i].lost_by < 0)
            best = fmin(best, cost_of(q, rule, list[i].Pu));
    for (int i = 0; i < n; i++)
        if (list[i].lost_by < 0 && cost_of(q, rule, list[i].Pu) > best + slack)
            list[i].lost_by = rule;
}

/* Why not more ulysses ranks; where all are, how the heads fall. */
static void give_reason(const struct uly_method_request *q, const struct candidate *list, int n,
                        int Pu, struct uly_method_choice *out)
{
    const struct candidate *larger = NULL; /* the next larger size that was possible */
    int heads = (int)ceil_div(q->H, Pu);
    for (int i = 0; i < n; i++)
        if (list[i].Pu > Pu && !larger)
            larger = &list[i];
    if (q->sp_size == 1)
        snprintf(out->reason, sizeof out->reason, "one rank has the whole sequence");
    else if (!larger)
        snprintf(out->reason, sizeof out->reason, "%d head%s over %d ranks, at most %d each", q->H,
                 q->H == 1 ? "" : "s", Pu, heads);
    else if (larger->lost_by == RULE_MACHINE)
        snprintf(out->reason, sizeof out->reason,
                 "a ulysses group of %d would span machines; the ring does", larger->Pu);
    else if (larger->lost_by == RULE_BALANCE)
        snprintf(out->reason, sizeof out->reason,
                 "%d heads over %d ulysses ranks would leave %.0f %% of their time unused", q->H,
                 larger->Pu, 100 * cost_of(q, RULE_BALANCE, larger->Pu));
    else
        snprintf(out->reason, sizeof out->reason,
                 "%d ulysses ranks would be sent the %d kv head%s several times", larger->Pu, q->K,
                 q->K == 1 ? "" : "s");
}

static void choose_degrees(const struct uly_method_request *q, struct uly_method_choice *out)
{
    struct candidate list[MAX_CANDIDATES];
    int n = 0;
    for (int64_t Pu = 1; Pu <= q->sp_size && n < MAX_CANDIDATES; Pu++) {
        /* tiles do not go with a ring */
        if (q->sp_size % Pu == 0 && (!q->query_tile || Pu == q->sp_size))
            list[n++] = (struct candidate){(int)Pu, -1};
    }
    for (int rule = 0; rule < N_RULES; rule++)
        apply_rule(q, rule, list, n);
    for (int i = 0; i < n; i++)
        if (list[i].lost_by < 0)
            out->ulysses_size = list[i].Pu;
    give_reason(q, list, n, out->ulysses_size, out);
}

/* The largest that divides P, is at most K, and leaves each group on one machine. */
static int usp_ulysses_size(const struct uly_method_request *q)
{
    int best = 1;
    if (q->query_tile)
        return (int)q->sp_size;
    for (int Pu = 2; Pu <= q->K && Pu <= q->sp_size; Pu++)
        if (q->sp_size % Pu == 0 && uly_method_spanning_group(q->hosts, q->world, Pu) < 0)
            best = Pu;
    return best;
}

static void set_degrees(const struct uly_method_request *q, struct uly_method_choice *out)
{
    if (one_machine_only(q->method))
        out->ulysses_size = (int)q->sp_size;
    else if (q->method == ULY_METHOD_RING)
        out->ulysses_size = 1;
    else if (q->ulysses_size)
        out->ulysses_size = (int)q->ulysses_size;
    else if (q->ring_size)
        out->ulysses_size = (int)(q->sp_size / q->ring_size);
    else if (q->method == ULY_METHOD_USP)
        out->ulysses_size = usp_ulysses_size(q);
    else
        choose_degrees(q, out);
    out->ring_size = (int)(q->sp_size / out->ulysses_size);
}

/* ------------------------------------------------------------------ the whole */

static int default_heads(const struct uly_method_request *q, int Pu)
{
    switch (q->method) {
    case ULY_METHOD_UPIPE:
        return 1;
    case ULY_METHOD_RING:
    case ULY_METHOD_USP:
        return uly_method_kv_group(q->H, q->K, Pu);
    default:
        return (int)ceil_div(q->H, Pu);
    }
}

enum uly_status uly_method_resolve(const struct uly_method_request *request,
                                   struct uly_method_choice *out)
{
    const struct uly_method_request *q = request;
    struct uly_method_choice choice = {.method = q->method};
    ULY_TRY(check_sizes(q));
    ULY_TRY(check_method(q));
    if (q->H == 0)
        return ULY_OK;
    ULY_FAIL_IF(q->H < 1 || q->K < 1 || q->H % q->K, ULY_ERR_USAGE,
                "%d query heads are not a multiple of %d kv heads", q->H, q->K);
    set_degrees(q, &choice);
    ULY_FAIL_IF(q->query_tile && choice.ring_size > 1, ULY_ERR_USAGE,
                "--query-tile %" PRId64 " needs --ring-size 1, and --sp-size %" PRId64
                " with --ulysses-size %d makes it %d; --ulysses-size %" PRId64 " works",
                q->query_tile, q->sp_size, choice.ulysses_size, choice.ring_size, q->sp_size);
    ULY_TRY(check_heads(q, choice.ulysses_size));
    choice.heads_per_stage =
        q->heads_per_stage ? (int)q->heads_per_stage : default_heads(q, choice.ulysses_size);
    choice.query_tile = q->query_tile;
    if (q->method == ULY_METHOD_AUTO)
        choice.method =
            uly_method_of(q->H, choice.ulysses_size, choice.ring_size, choice.heads_per_stage);
    *out = choice;
    return ULY_OK;
}

int uly_method_stages(const struct uly_method_request *request,
                      const struct uly_method_choice *choice, int64_t shard,
                      struct uly_method_stage out[ULY_METHOD_STAGES])
{
    const struct uly_method_request *q = request;
    int all = choice->heads_per_stage,
        group = uly_method_kv_group(q->H, q->K, choice->ulysses_size);
    int n = 0;
    out[n++] = (struct uly_method_stage){all, choice->query_tile};
    if (q->method != ULY_METHOD_AUTO)
        return n;
    if (!q->heads_per_stage && group < all && group > 1)
        out[n++] = (struct uly_method_stage){group, choice->query_tile};
    if (!q->heads_per_stage && all > 1)
        out[n++] = (struct uly_method_stage){1, choice->query_tile};
    int64_t tile = ceil_div(shard, 4);
    if (tile > ULY_TILE) /* whole numeric tiles, so that a token meets the same kernel calls */
        tile = ceil_div(tile, ULY_TILE) * ULY_TILE;
    if (!q->query_tile && choice->ring_size == 1 && tile < shard) {
        out[n] = (struct uly_method_stage){out[n - 1].heads, tile};
        n++;
    }
    return n;
}
