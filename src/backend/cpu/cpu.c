/* SPDX-License-Identifier: MIT
 *
 * The backend `cpu`: the operations of cpu:ref.
 */
#include "backend/backend_impl.h"

enum uly_status uly_cpu_init(struct uly_backend *be, const char *isa)
{
    ULY_FAIL_IF(isa, ULY_ERR_UNSUPPORTED, "backend cpu:%s is not built in", isa);
    return uly_cpu_ref_init(be);
}
