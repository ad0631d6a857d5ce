/* SPDX-License-Identifier: MIT */
#include "support/methods.h"

enum { ALL_HEADS = 0, KV_GROUP = -1 }; /* instead of a number of heads */

struct method {
    const char *label;
    int ulysses, ring; /* 0: all ranks */
    int heads;         /* a stage */
    int64_t query_tile;
};

static const struct method methods[N_METHODS] = {
    {"ulysses", 0, 1, ALL_HEADS, 0},
    {"upipe n=1", 0, 1, 1, 0},
    {"upipe n=2", 0, 1, 2, 0},
    {"upipe n=3", 0, 1, 3, 0},
    {"upipe n=1, query tile 3", 0, 1, 1, 3},
    {"ring", 1, 0, ALL_HEADS, 0},
    {"ring, n = a kv group", 1, 0, KV_GROUP, 0},
    {"usp 2x2, n = a kv group", 2, 2, KV_GROUP, 0},
    {"usp 2x4, n=1", 2, 4, 1, 0},
    {"usp 4x2", 4, 2, ALL_HEADS, 0},
};

const char *method_label(int method)
{
    return methods[method].label;
}

bool method_grid(int method, int dp, int sp, int H, int K, struct model_grid *out)
{
    const struct method *m = &methods[method];
    struct model_grid g = {.dp = dp, .query_tile = m->query_tile};
    g.ulysses = m->ulysses ? m->ulysses : sp;
    g.ring = m->ring ? m->ring : sp;
    int most = (H + g.ulysses - 1) / g.ulysses;
    g.heads_per_stage = m->heads == KV_GROUP ? H / K : m->heads;
    if (m->heads == KV_GROUP && g.heads_per_stage > most)
        g.heads_per_stage = most;
    *out = g;
    return g.ulysses * g.ring == sp && g.heads_per_stage <= most;
}
