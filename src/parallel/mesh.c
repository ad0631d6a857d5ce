/* SPDX-License-Identifier: MIT */
#include "parallel/mesh.h"

#include <string.h>

enum uly_status uly_mesh_init(struct uly_comm *world, int dp_size, int ring_size, int ulysses_size,
                              struct uly_mesh *out)
{
    int size = uly_comm_size(world), rank = uly_comm_rank(world);
    ULY_FAIL_IF(dp_size < 1 || ring_size < 1 || ulysses_size < 1 ||
                    (int64_t)dp_size * ring_size * ulysses_size != size,
                ULY_ERR_USAGE, "dp %d x ring %d x ulysses %d is not the %d ranks there are",
                dp_size, ring_size, ulysses_size, size);
    struct uly_mesh mesh = {
        .world = world, .dp_size = dp_size, .ring_size = ring_size, .ulysses_size = ulysses_size};
    int sp_size = ring_size * ulysses_size;
    mesh.dp_rank = rank / sp_size;
    mesh.ring_rank = rank % sp_size / ulysses_size;
    mesh.ulysses_rank = rank % ulysses_size;
    enum uly_status status = ULY_OK;
    ULY_TRY_GOTO(uly_comm_split(world, mesh.dp_rank, rank, &mesh.sp), fail);
    ULY_TRY_GOTO(
        uly_comm_split(world, mesh.dp_rank * ring_size + mesh.ring_rank, rank, &mesh.ulysses),
        fail);
    ULY_TRY_GOTO(
        uly_comm_split(world, mesh.dp_rank * ulysses_size + mesh.ulysses_rank, rank, &mesh.ring),
        fail);
    *out = mesh;
    return ULY_OK;
fail:
    uly_mesh_clear(&mesh);
    return status;
}

void uly_mesh_clear(struct uly_mesh *mesh)
{
    uly_comm_destroy(mesh->ring);
    uly_comm_destroy(mesh->ulysses);
    uly_comm_destroy(mesh->sp);
    memset(mesh, 0, sizeof *mesh);
}
