/* SPDX-License-Identifier: MIT
 *
 * The kernels for any CPU: four lanes, no flags of its own.
 */
#include "backend/cpu/kernels.h"

#define ULY_CPU_KERNELS      uly_cpu_kernels_generic
#define ULY_CPU_KERNELS_TEXT "generic"
#include "backend/cpu/kernels.inc.h"
