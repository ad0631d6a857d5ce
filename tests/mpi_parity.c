/* SPDX-License-Identifier: MIT
 *
 * ranks: 1 2 3 4 6 8
 *
 * The trainer under mpirun: three optimizer steps and an evaluation by every method, equal to the same steps on one rank.
 * Head shapes, methods and replicas go round, so that each method meets several shapes and both numbers of replicas; all
 * of them together are in test_matrix.c, over threads.
 */
#include <stdio.h>

#include "base/log.h"
#include "support/methods.h"
#include "support/parity.h"

static const int shapes[][2] = {{8, 8}, {8, 2}, {7, 7}, {6, 2}, {28, 4}};

static enum uly_status check(const struct model_case *c, struct uly_comm *world,
                             struct uly_comm *self, int round, bool is_reference_rank)
{
    const struct model_grid alone = {1, 1, 1, 0, 0};
    struct parity_result want, got;
    int size = uly_comm_size(world);
    ULY_TRY(parity_run(c, self, &alone, &want));
    for (int i = 0; i < 2 * N_METHODS; i++) {
        struct model_grid grid;
        int method = i / 2, dp = i % 2 + 1;
        if ((method + round) % (2 * dp) != dp - 1 || size % dp != 0 ||
            !method_grid(method, dp, size / dp, c->H, c->K, &grid))
            continue;
        ULY_TRY(parity_run(c, world, &grid, &got));
        const char *difference = parity_difference(&got, &want);
        ULY_FAIL_IF(difference, ULY_ERR_INTERNAL, "H %d K %d dp %d sp %d %s: %s", c->H, c->K, dp,
                    size / dp, method_label(method), difference);
        if (is_reference_rank)
            printf("H %d K %d dp %d sp %d %s: loss %.7f %.7f %.7f, equal\n", c->H, c->K, dp,
                   size / dp, method_label(method), got.loss[0], got.loss[1], got.loss[2]);
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
        c.qk_norm = i == 1;
        c.window = i == 3 ? 9 : 0;
        status = check(&c, world, self, (int)i, uly_comm_rank(world) == 0);
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
