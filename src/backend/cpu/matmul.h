/* SPDX-License-Identifier: MIT
 *
 * Matrix products of the cpu backend. matmul.c cuts a product into blocks and gives them to the threads; matmul_dnnl.c
 * multiplies a block and holds every call of oneDNN.
 *
 * Blocks. Rows of c are cut every 256, columns into near-equal blocks, the inner dimension every 512 (256 where it runs
 * over rows, so that a weight gradient summed tile by tile has the bits of one summed at once). All of these depend on
 * the shape alone. Two ways to multiply a block:
 *
 *   convert    both operands as float32: b always packed into scratch with an odd stride (oneDNN's small product loses
 *              half its speed on strides of a power of two), a where it is transposed or bfloat16; then dnnl_sgemm.
 *   primitive  oneDNN's matmul on the operands as they lie, for CPUs with bfloat16 instructions.
 *
 * c is float32 while it is summed: c itself where that is its type, else a block in scratch, rounded once at the end.
 */
#ifndef ULY_BACKEND_CPU_MATMUL_H
#define ULY_BACKEND_CPU_MATMUL_H

#include "backend/backend_impl.h"

struct uly_cpu_matmul;
struct uly_dnnl;

/* ------------------------------------------------------------------ matmul.c */

enum uly_status uly_cpu_matmul_create(struct uly_backend *be, struct uly_cpu_matmul **out);
void uly_cpu_matmul_destroy(struct uly_cpu_matmul *mm); /* NULL is fine */
/* Bytes of one thread's scratch. */
int64_t uly_cpu_matmul_scratch_bytes(void);
/* Tries the primitives on a small product and keeps them only where they agree with the other way; call once, when the
 * backend's scratch is there. */
enum uly_status uly_cpu_matmul_check(struct uly_backend *be);
enum uly_status uly_cpu_matmul(struct uly_backend *be, const struct uly_matmul_args *args);

/* ------------------------------------------------------------------ matmul_dnnl.c */

/* c[m][n] = a[m][k] b[k][n] (+ c), float32, row-major, strides in elements. On the calling thread alone if it sees one
 * OpenMP thread (uly_cpu_for takes care of that). */
enum uly_status uly_dnnl_sgemm(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
                               const float *b, int64_t ldb, bool accumulate, float *c, int64_t ldc);

/* A block product that a primitive computes. b is float32 or bfloat16 as a is. */
struct uly_dnnl_key {
    int64_t m, n, k, lda, ldb, ldc;
    bool transpose_a, transpose_b, accumulate;
    enum uly_dtype dtype, c_dtype;
};

/* Primitives made so far, at most a fixed number. Not for two callers at once, except uly_dnnl_run. */
enum uly_status uly_dnnl_create(int n_threads, struct uly_dnnl **out);
void uly_dnnl_destroy(struct uly_dnnl *d); /* NULL is fine */

/* Room for this many more keys: throws all primitives away where there is not. Earlier handles become invalid. */
void uly_dnnl_make_room(struct uly_dnnl *d, int n);
/* The handle of a key's primitive, made where it is new; -1 where the library has none that fits scratch_bytes. */
int uly_dnnl_find(struct uly_dnnl *d, const struct uly_dnnl_key *key, int64_t scratch_bytes);
/* One block; scratch: this thread's, of the size given to uly_dnnl_find, aligned to 64. Threads may run one handle at once. */
enum uly_status uly_dnnl_run(struct uly_dnnl *d, int handle, int thread, const void *a,
                             const void *b, void *c, void *scratch);

#endif
