/* SPDX-License-Identifier: MIT
 *
 * ranks: 1 2 3 4 6 8
 *
 * The trainer under mpirun: three optimizer steps and an evaluation on every grid dp x sp of the ranks there are, for every
 * head shape, equal to the same steps on one rank.
 */
#include <stdio.h>

#include "base/log.h"
#include "support/parity.h"

static const int shapes[][2] = {{8, 8}, {8, 2}, {7, 7}, {6, 2}, {28, 4}};

static enum uly_status check(const struct model_case *c, struct uly_comm *world,
                             struct uly_comm *self, bool is_reference_rank)
{
    struct parity_result want, got;
    int size = uly_comm_size(world);
    ULY_TRY(parity_run(c, self, 1, 1, &want));
    for (int dp = 1; dp <= 2; dp++) {
        if (size % dp != 0)
            continue;
        ULY_TRY(parity_run(c, world, dp, size / dp, &got));
        const char *difference = parity_difference(&got, &want);
        ULY_FAIL_IF(difference, ULY_ERR_INTERNAL, "H %d K %d dp %d sp %d: %s", c->H, c->K, dp,
                    size / dp, difference);
        if (is_reference_rank)
            printf("H %d K %d dp %d sp %d: loss %.7f %.7f %.7f, equal\n", c->H, c->K, dp, size / dp,
                   got.loss[0], got.loss[1], got.loss[2]);
        parity_clear(&got);
    }
    parity_clear(&want);
    return ULY_OK;
}

static enum uly_status check_all(struct uly_comm *world)
{
    struct uly_comm *self;
    enum uly_status status = ULY_OK;
    ULY_TRY(uly_comm_self(&self));
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes && status == ULY_OK; i++) {
        struct model_case c = model_case_small(shapes[i][0], shapes[i][1]);
        c.backend = "cpu";
        c.dtype = ULY_DTYPE_F32;
        c.qkv_bias = c.o_bias = c.mlp_bias = i % 2;
        c.tied = i == 2;
        status = check(&c, world, self, uly_comm_rank(world) == 0);
    }
    uly_comm_destroy(self);
    return status;
}

int main(void)
{
    struct uly_comm *world;
    enum uly_status status = uly_comm_mpi(&world);
    if (status == ULY_OK) {
        uly_log_set_rank(uly_comm_rank(world), uly_comm_size(world));
        status = check_all(world);
        if (status != ULY_OK) {
            fprintf(stderr, "rank %d: %s\n%s", uly_comm_rank(world), uly_error_message(),
                    uly_error_trace());
            uly_comm_abort(world, 1);
        }
        uly_comm_destroy(world);
    }
    return uly_status_exit_code(status);
}
