/* SPDX-License-Identifier: MIT
 *
 * Every method as tests go through them: names, and their grid for a number of ranks and a head shape.
 */
#ifndef ULY_TESTS_METHODS_H
#define ULY_TESTS_METHODS_H

#include "support/model_fixture.h"

enum { N_METHODS = 10 };

const char *method_label(int method);

/* The grid of dp replicas of sp ranks; false where the method does not fit (usp has sizes of its own; a stage has no more
 * heads than a rank). */
bool method_grid(int method, int dp, int sp, int H, int K, struct model_grid *out);

#endif
