/* SPDX-License-Identifier: MIT
 *
 * Attention kernels for the instruction set that every CPU of the architecture has (SSE2, NEON).
 */
#define ULY_ATTENTION_TABLE uly_cpu_attention_generic
#define ULY_ATTENTION_NAME  "generic"
#include "backend/cpu/attention_kernels.inc.h"
