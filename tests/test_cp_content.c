/* SPDX-License-Identifier: MIT
 *
 * Where the stage loop brings things, by content. Each query looks at exactly one key, its target: scores fall by
 * thousands away from it, so its weight is exactly 1 and every other one exactly 0. Then the output is the target's value
 * as it was sent, and with a delta that is off by a known amount dq is the target's key, dk the sum of the queries that look
 * at a key, dv the sum of their output gradients. All of these are whole numbers that name token, head and column, and
 * must come out exactly: a row, head or chunk that takes a wrong way shows which one it is.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/random.h"
#include "support/cp_plain.h"

enum { DIM = 4 };
static const double steep = 4096;

static double code(int64_t token, int head, int column)
{
    return (double)(token * 512 + head * 8 + column + 1);
}

/* The key that query q of a head looks at: any that it sees, most of them in other shards. */
static int64_t target(const struct plain_attention *p, int64_t q, int h)
{
    int64_t lo = uly_mask_lo(&p->mask, q);
    return lo + (int64_t)uly_random_below(5, (uint64_t)h, (uint64_t)q, (uint64_t)(q - lo + 1));
}

/* Inputs and, in `want`, what must come out. */
static void fill(struct plain_attention *in, struct plain_attention *want)
{
    int g = in->H / in->K;
    for (int64_t t = 0; t < in->S; t++) {
        for (int h = 0; h < in->H; h++) {
            double *q = in->q + (t * in->H + h) * DIM, *d_o = in->d_o + (t * in->H + h) * DIM;
            /* times (j, j^2, 0, .): -steep (target - j)^2 but for a constant */
            q[0] = 2 * steep * (double)target(in, t, h);
            q[1] = -steep;
            q[2] = code(t, h, 0);
            q[3] = 0;
            for (int d = 0; d < DIM; d++)
                d_o[d] = code(t, h, d);
        }
        for (int h = 0; h < in->K; h++) {
            double *k = in->k + (t * in->K + h) * DIM, *v = in->v + (t * in->K + h) * DIM;
            k[0] = (double)t;
            k[1] = (double)(t * t);
            k[2] = 0;
            k[3] = code(t, h, 0);
            for (int d = 0; d < DIM; d++)
                v[d] = code(t, h, d);
        }
    }
    memset(want->dk, 0, (size_t)(in->S * in->K * DIM) * sizeof *want->dk);
    memset(want->dv, 0, (size_t)(in->S * in->K * DIM) * sizeof *want->dv);
    for (int64_t t = 0; t < in->S; t++)
        for (int h = 0; h < in->H; h++) {
            int64_t at = (t * in->H + h) * DIM, to = (target(in, t, h) * in->K + h / g) * DIM;
            for (int d = 0; d < DIM; d++) {
                want->o[at + d] = in->v[to + d];
                want->dq[at + d] = in->k[to + d];
                want->dk[to + d] += in->q[at + d];
                want->dv[to + d] += in->d_o[at + d];
            }
        }
}

struct job {
    const struct plain_case *c;
    const struct plain_attention *in;
    struct plain_attention *out;
};

static enum uly_status run_rank(struct uly_comm *comm, void *arg)
{
    const struct job *j = arg;
    return plain_run(j->c, j->in, j->out, comm, NULL);
}

static void compare(const struct plain_case *c, const char *what, const double *got,
                    const double *want, int heads)
{
    for (int64_t i = 0; i < c->S * heads * DIM; i++)
        if (got[i] != want[i])
            fail_msg("S %d H %d K %d ulysses %d ring %d n %d query tile %d: %s of token %d head %d "
                     "column %d is %.0f, not %.0f",
                     (int)c->S, c->H, c->K, c->ulysses, c->ring, c->heads_per_stage,
                     (int)c->query_tile, what, (int)(i / (heads * DIM)), (int)(i / DIM % heads),
                     (int)(i % DIM), got[i], want[i]);
}

static void check(struct plain_case c)
{
    struct plain_attention in, out, want;
    c.D = DIM; /* a scale of exactly 1/2 */
    c.delta_shift = -2;
    plain_init(&in, c.S, c.H, c.K, DIM, c.starts, c.n_docs, c.window, 1);
    plain_init(&out, c.S, c.H, c.K, DIM, c.starts, c.n_docs, c.window, 1);
    plain_init(&want, c.S, c.H, c.K, DIM, c.starts, c.n_docs, c.window, 1);
    fill(&in, &want);
    struct job job = {&c, &in, &out};
    assert_int_equal(uly_comm_run_threads(c.ulysses * c.ring, run_rank, &job), ULY_OK);
    compare(&c, "o", out.o, want.o, c.H);
    compare(&c, "dq", out.dq, want.dq, c.H);
    compare(&c, "dk", out.dk, want.dk, c.K);
    compare(&c, "dv", out.dv, want.dv, c.K);
    plain_clear(&in);
    plain_clear(&out);
    plain_clear(&want);
}

/* ulysses, ring */
static const int grids[][2] = {{1, 1}, {2, 1}, {3, 1}, {8, 1}, {1, 2}, {1, 3},
                               {1, 8}, {2, 2}, {3, 2}, {2, 4}, {4, 2}};
static const int shapes[][2] = {{8, 8}, {8, 2}, {7, 7}, {28, 4}, {8, 1}};

static void test_odd_sizes(void **state)
{
    (void)state;
    static const int64_t lengths[] = {1, 2, 3, 7, 16, 31, 61};
    static const int64_t several[] = {0, 1, 2, 6};
    for (size_t g = 0; g < sizeof grids / sizeof *grids; g++)
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
            size_t shape = (g + l) % (sizeof shapes / sizeof *shapes);
            struct plain_case c = plain_case_small(lengths[l], shapes[shape][0], shapes[shape][1]);
            c.ulysses = grids[g][0];
            c.ring = grids[g][1];
            c.heads_per_stage = (g + l) % 2 ? 1 : 0;
            c.query_tile = c.ring == 1 && l % 2 ? 3 : 0;
            c.token_tile = 5;
            if (lengths[l] > 6 && l % 2) {
                c.starts = several;
                c.n_docs = 4;
            }
            c.window = l % 3 == 2 ? 9 : 0;
            check(c);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_odd_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
