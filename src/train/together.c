/* SPDX-License-Identifier: MIT */
#include "train/together.h"

enum uly_status uly_agree(struct uly_comm *comm, enum uly_status mine)
{
    int rank = uly_comm_rank(comm), size = uly_comm_size(comm);
    /* the lowest rank that failed and its status in one number: status is -10 ... 0 */
    int64_t key = mine == ULY_OK ? (int64_t)size * 16 : (int64_t)rank * 16 - (int64_t)mine;
    ULY_TRY(uly_all_reduce_i64(comm, &key, 1, ULY_REDUCE_MIN));
    if (key == (int64_t)size * 16)
        return ULY_OK;
    if (key / 16 == rank)
        return mine;
    ULY_FAIL((enum uly_status)(-(key % 16)), "%s", "");
}
