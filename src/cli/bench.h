/* SPDX-License-Identifier: MIT
 *
 * What the parts of `ulysses bench` share.
 */
#ifndef ULY_CLI_BENCH_H
#define ULY_CLI_BENCH_H

#include "backend/backend.h"
#include "comm/comm.h"
#include "cli/cli.h"

struct uly_bench_options {
    char *what;
    bool json;
    int64_t nproc, threads;
    int dtype;    /* 0 float32, 1 bfloat16 */
    int64_t size; /* gemm: m = n = k */
    int64_t seq, heads, kv_heads, head_dim, window;
    int64_t bytes;   /* alltoall: to each other rank */
    int64_t steps;   /* step */
    int64_t repeats; /* the best counts */
    int checkpointing;
};

enum uly_dtype uly_bench_dtype(const struct uly_bench_options *options);

/* A line of results: "name": value, in order; printed as JSON or as a table. */
struct uly_bench_result {
    struct {
        const char *name; /* constant text */
        const char *text; /* a word instead of a number; NULL for numbers */
        double value;
        bool whole; /* an integer */
    } item[24];
    int n;
};
void uly_bench_add(struct uly_bench_result *r, const char *name, double value);
void uly_bench_add_int(struct uly_bench_result *r, const char *name, int64_t value);
void uly_bench_add_text(struct uly_bench_result *r, const char *name, const char *text);

/* Tensors of uniform numbers in [-0.5, 0.5) times scale, dense, any float type. */
enum uly_status uly_bench_fill(struct uly_backend *be, struct uly_tensor t, uint64_t stream,
                               double scale);
/* Rate of the library's product of size cubed with the backend's threads: best of repeats, flops a second / 1e9. */
enum uly_status uly_bench_gemm_rate(struct uly_backend *be, enum uly_dtype dtype, int64_t size,
                                    int64_t repeats, double *gflops);

/* Each fills a result on rank 0. */
enum uly_status uly_bench_gemm(const struct uly_bench_options *options, struct uly_backend *be,
                               struct uly_bench_result *out);
enum uly_status uly_bench_attention(const struct uly_bench_options *options, struct uly_backend *be,
                                    struct uly_bench_result *out);
enum uly_status uly_bench_alltoall(const struct uly_bench_options *options, struct uly_comm *world,
                                   struct uly_backend *be, struct uly_bench_result *out);
enum uly_status uly_bench_step(const struct uly_bench_options *options, struct uly_comm *world,
                               struct uly_backend *be, struct uly_bench_result *out);

#endif
