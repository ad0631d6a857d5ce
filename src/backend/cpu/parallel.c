/* SPDX-License-Identifier: MIT
 *
 * Work items on OpenMP threads. oneDNN has OpenMP inside, so a matrix product called outside a parallel region, or in one
 * of a single thread, would start threads of its own: every item runs with the library's thread number set to 1. The
 * number belongs to the calling thread and is put back afterwards.
 *
 * A build without OpenMP has no threads here but the library still may, so its setting is found by name.
 */
#include "backend/cpu/cpu_impl.h"

#ifdef _OPENMP
#include <omp.h>

static int set_library_threads(int n)
{
    int old = omp_get_max_threads();
    omp_set_num_threads(n);
    return old;
}
#else
#include <dlfcn.h>

static int set_library_threads(int n)
{
    int (*get)(void);
    void (*set)(int);
    void *get_symbol = dlsym(RTLD_DEFAULT, "omp_get_max_threads");
    void *set_symbol = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
    if (get_symbol == NULL || set_symbol == NULL)
        return n;
    memcpy(&get, &get_symbol, sizeof get);
    memcpy(&set, &set_symbol, sizeof set);
    int old = get();
    set(n);
    return old;
}
#endif

static void poke(struct uly_backend *be)
{
    if (be->poke != NULL)
        be->poke(be->poke_context);
}

static void run_alone(struct uly_backend *be, int64_t n, uly_cpu_item_fn fn, void *context)
{
    int old = set_library_threads(1);
    for (int64_t i = 0; i < n; i++) {
        fn(context, i, 0);
        if (i + 1 < n)
            poke(be);
    }
    set_library_threads(old);
}

void uly_cpu_for(struct uly_backend *be, int64_t n, uly_cpu_item_fn fn, void *context)
{
#ifdef _OPENMP
    if (be->n_threads > 1 && n > 1) {
#pragma omp parallel num_threads(be->n_threads)
        {
            int thread = omp_get_thread_num();
            omp_set_num_threads(1); /* of this region's tasks only */
            if (thread == 0)
                poke(be); /* at least once, even if the others are faster to every item */
#pragma omp for schedule(dynamic, 1)
            for (int64_t i = 0; i < n; i++) {
                fn(context, i, thread);
                if (thread == 0)
                    poke(be);
            }
        }
        return;
    }
#endif
    run_alone(be, n, fn, context);
}
