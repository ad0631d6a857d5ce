/* SPDX-License-Identifier: MIT
 *
 * Ulysses, the library: attention over sequences that are split over ranks. Every rank gives its
 * tokens' q, k, v and receives its tokens' output, as if one rank had computed all of them; and the
 * same backward. C99, also for C++.
 *
 *   struct ulysses_comm *world;
 *   struct ulysses_attention *attention;
 *   ulysses_comm_world(&world);
 *   struct ulysses_attention_options options = {
 *       .heads = 32, .kv_heads = 8, .head_dim = 128, .max_tokens = 131072, .training = true};
 *   ulysses_attention_create(world, &options, &attention);
 *   ulysses_attention_shard(attention, 131072, &shard);          which tokens are this rank's
 *   ulysses_attention_forward(attention, &mask, &tensors);       q, k, v in; o and lse out
 *   ulysses_attention_backward(attention, &mask, &tensors);      d_o in; dq, dk, dv out
 *   ulysses_attention_destroy(attention);
 *   ulysses_comm_destroy(world);
 *
 * Rules.
 * 1. Shapes are row-major, slowest dimension first. S: tokens of the whole sequence; s: tokens of
 *    it on this rank; H query heads, K key-value heads (H is a multiple of K; query head h reads kv
 *    head h / (H / K)), D head size.
 * 2. "Collective" means that every rank of the communicator makes the call, in the same order, also
 *    a rank whose shard is empty.
 * 3. Every function that can fail returns a status. Arguments are checked first, and the ranks agree
 *    on the outcome: one rank's wrong argument is an error on all of them, none waits for ever, and
 *    the call may be repeated. An error after that (ULYSSES_ERR_COMM, ULYSSES_ERR_PEER in the
 *    middle) leaves the ranks out of step: end the program with ulysses_comm_abort.
 * 4. Memory is made when a handle is created; forward and backward allocate nothing. Data is read
 *    from and written to the caller's memory in place.
 * 5. A communicator and the handles made from it belong to the thread that made them. Handles of
 *    one communicator may be used in turn; those of different ranks run in threads of their own.
 * 6. Nothing is printed, and nothing ends the program, except ulysses_comm_abort.
 */
#ifndef ULY_PUBLIC_ULYSSES_H
#define ULY_PUBLIC_ULYSSES_H

#include <stdbool.h>
#include <stdint.h>

#if defined(__GNUC__)
#define ULYSSES_API __attribute__((visibility("default")))
#else
#define ULYSSES_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------ status */

enum ulysses_status {
    ULYSSES_OK = 0,
    ULYSSES_ERR_USAGE = -1,       /* settings that do not go together */
    ULYSSES_ERR_INVALID = -2,     /* a value out of its range, a missing pointer, a wrong size */
    ULYSSES_ERR_UNSUPPORTED = -3, /* not in this build, or not on this machine */
    ULYSSES_ERR_FORMAT = -4,      /* a malformed file */
    ULYSSES_ERR_IO = -5,
    ULYSSES_ERR_NO_SPACE = -6,
    ULYSSES_ERR_NO_MEMORY = -7,
    ULYSSES_ERR_COMM = -8, /* communication failed, or ranks disagree about an argument */
    ULYSSES_ERR_PEER = -9, /* another rank failed; the message has its number and its message */
    ULYSSES_ERR_INTERNAL = -10
};

/* Constant text of a status; never NULL. */
ULYSSES_API const char *ulysses_status_text(enum ulysses_status status);

/* The calling thread's last error in one line, with the cause and the values; "" when there was
 * none. Owned by the library, valid until the thread's next error. */
ULYSSES_API const char *ulysses_error_message(void);

/* "0.1.0", constant. */
ULYSSES_API const char *ulysses_version(void);

/* ------------------------------------------------------------------ communicator */

/* Ranks that share something. A rank's communicator is used by one thread at a time. */
struct ulysses_comm;

/* One rank, alone. *out: ulysses_comm_destroy. */
ULYSSES_API enum ulysses_status ulysses_comm_self(struct ulysses_comm **out);

/* The processes of MPI_COMM_WORLD. Initialises MPI (MPI_THREAD_FUNNELED) where nobody has; then,
 * and only then, ulysses_comm_destroy ends it, after which MPI cannot start again in this process.
 * ULYSSES_ERR_UNSUPPORTED in a build without MPI. Collective over MPI_COMM_WORLD. */
ULYSSES_API enum ulysses_status ulysses_comm_world(struct ulysses_comm **out);

/* Runs fn(comm, arg) on n >= 1 ranks, each a thread of this process, and waits for all. comm lives
 * until fn returns and is not destroyed by it. A rank that returns an error ends the others' waits
 * (ULYSSES_ERR_PEER). Returns ULYSSES_OK, or the status of the rank that failed first, whose
 * message becomes the caller's. */
typedef enum ulysses_status (*ulysses_rank_fn)(struct ulysses_comm *comm, void *arg);
ULYSSES_API enum ulysses_status ulysses_comm_run_threads(int n, ulysses_rank_fn fn, void *arg);

/* Ranks that give the same color >= 0 form a communicator, ordered by (key, rank): groups that each
 * share a sequence of their own. Collective over comm. *out: destroy before comm. */
ULYSSES_API enum ulysses_status ulysses_comm_split(struct ulysses_comm *comm, int color, int key,
                                                   struct ulysses_comm **out);

/* NULL is fine. Collective under MPI. Its handles and splits go first. */
ULYSSES_API void ulysses_comm_destroy(struct ulysses_comm *comm);

/* Ends every process of the world with this exit status; between threads it marks the world as
 * aborted and returns, and the waits of all ranks end in ULYSSES_ERR_PEER. Any rank may call it. */
ULYSSES_API void ulysses_comm_abort(struct ulysses_comm *comm, int exit_status);

/* 0 of NULL, as all that only tells a number of a handle. */
ULYSSES_API int ulysses_comm_rank(const struct ulysses_comm *comm);
ULYSSES_API int ulysses_comm_size(const struct ulysses_comm *comm);

/* A wait that takes longer ends in ULYSSES_ERR_COMM and names the ranks waited for. 0: wait for
 * ever (the default). Inherited by what is split or created from comm afterwards. */
ULYSSES_API void ulysses_comm_set_timeout(struct ulysses_comm *comm, double seconds);

/* ------------------------------------------------------------------ which tokens are whose */

struct ulysses_segment {
    int64_t start, count; /* tokens of the whole sequence */
};

/* The tokens of one rank, in the order of the rows of its tensors: segment 0, then segment 1. */
struct ulysses_shard {
    int n_segments; /* 0 (no tokens), 1 or 2 */
    struct ulysses_segment segment[2];
    int64_t tokens; /* s, the sum of the counts */
};

/* The shard of `rank` (0 ... ring_size * ulysses_size - 1) of a sequence of S >= 0 tokens. Without
 * a ring: contiguous near-equal parts in the order of the ranks. With one: two pieces, one early
 * and one late, so that causal work is shared evenly. Nothing is padded; a shard may be empty. No
 * communication: any rank may ask for any. */
ULYSSES_API enum ulysses_status ulysses_layout(int64_t S, int ring_size, int ulysses_size, int rank,
                                               struct ulysses_shard *out);

/* *out = the most tokens that any rank holds of any sequence of at most max_tokens tokens. */
ULYSSES_API enum ulysses_status ulysses_layout_most(int64_t max_tokens, int ring_size,
                                                    int ulysses_size, int64_t *out);

/* ------------------------------------------------------------------ attention */

enum ulysses_dtype {
    ULYSSES_FLOAT32 = 0,
    ULYSSES_BFLOAT16 = 1 /* the upper 16 bits of a float32, as uint16_t */
};

/* Who sees whom, in tokens of the whole sequence: key k is visible to query q where
 * max(start of q's document, q - window + 1) <= k <= q. The same on every rank (compared: a
 * difference is ULYSSES_ERR_COMM). The array is borrowed for the call. */
struct ulysses_mask {
    int64_t tokens;            /* S, 1 ... max_tokens */
    const int64_t *doc_starts; /* [n_docs] first tokens of the documents, rising from 0 */
    int64_t n_docs;            /* 0: one document */
    int64_t window;            /* 0: none */
};

/* 0, false and NULL are the defaults. The same on every rank (compared). */
struct ulysses_attention_options {
    int heads, kv_heads, head_dim; /* H, K, D */
    double scale;                  /* of q k'; 0: 1 / sqrt(D) */
    enum ulysses_dtype dtype;      /* of q, k, v, o and their gradients */
    int64_t max_tokens;            /* the longest S of this handle */
    int ulysses_size; /* ranks that share heads; 0: all that ring_size leaves. Rank r of the
                         communicator is ulysses rank r % ulysses_size */
    int ring_size;    /* ranks that pass keys and values on; 0: 1. ring_size * ulysses_size is the
                         number of ranks */
    int heads_per_stage; /* query heads of a rank at a time, 1 ... ceil(H / ulysses_size): few heads
                            need less memory, many need fewer messages; 0: all */
    int64_t query_tile;  /* tokens of a rank whose queries are in flight together, less memory still
                            (ring_size 1 only); 0: all */
    bool serial;   /* no exchange is in flight while attention is computed: fewer buffers, more
                            waiting, the same bits */
    bool training; /* backward will be called: its buffers are made */
    int threads;   /* of this rank; 0: 1 */
    const char *backend; /* NULL: "cpu". "cpu:ref": plain loops, slow, to compare with */
};

struct ulysses_attention;

/* Makes everything that the handle will need, collective over comm, whose ranks share each
 * sequence. comm is borrowed and must outlive the handle. ULYSSES_ERR_USAGE for sizes that do not
 * go together, ULYSSES_ERR_NO_MEMORY where the buffers cannot be had. *out:
 * ulysses_attention_destroy; set only on success. */
ULYSSES_API enum ulysses_status
ulysses_attention_create(struct ulysses_comm *comm, const struct ulysses_attention_options *options,
                         struct ulysses_attention **out);
ULYSSES_API void ulysses_attention_destroy(struct ulysses_attention *attention); /* NULL is fine;
                                                                    collective under MPI */

/* The shard of this rank of a sequence of S tokens, 0 ... max_tokens. */
ULYSSES_API enum ulysses_status ulysses_attention_shard(const struct ulysses_attention *attention,
                                                        int64_t S, struct ulysses_shard *out);

/* Bytes of the buffers of this handle on this rank. */
ULYSSES_API int64_t ulysses_attention_bytes(const struct ulysses_attention *attention);

/* Query heads that this rank computes, first ... first + count - 1 (count may be 0). */
ULYSSES_API void ulysses_attention_owned_heads(const struct ulysses_attention *attention,
                                               int *first, int *count);

/* Elements of tensors.lse on this rank: [owned heads, tokens of the ulysses group] for max_tokens. */
ULYSSES_API int64_t ulysses_attention_lse_elements(const struct ulysses_attention *attention);

/* One rank's tensors. All are dense, in host memory, owned by the caller; those written must not
 * overlap any other. Pointers of an empty shard may be NULL. */
struct ulysses_attention_tensors {
    enum ulysses_dtype dtype; /* of all but lse: the handle's (else ULYSSES_ERR_INVALID) */
    int64_t tokens;           /* s, rows of each: the shard's (else ULYSSES_ERR_INVALID) */
    const void *q;            /* [s, H, D] */
    const void *k, *v;        /* [s, K, D] */
    void *o;                  /* [s, H, D]: forward writes it, backward reads it */
    /* Log-sum-exp (natural logarithm) of the scores of each query, of the heads that this rank
     * computes, not of its tokens: [owned heads, n], dense, row i query head first + i, with n the
     * tokens of the ranks of its ulysses group, in the order of the ranks and of their shards
     * (without a ring: all S). Forward writes it, the backward of the same call reads it. */
    float *lse;
    int64_t lse_elements; /* room of lse: at least ulysses_attention_lse_elements */
    /* backward only */
    const void *d_o; /* [s, H, D] gradient of o */
    void *dq;        /* [s, H, D] written */
    void *dk, *dv;   /* [s, K, D] written */
};

/* o = softmax(scale * q k' + mask) v. Collective. Reads q, k, v; writes o, lse. */
ULYSSES_API enum ulysses_status
ulysses_attention_forward(struct ulysses_attention *attention, const struct ulysses_mask *mask,
                          const struct ulysses_attention_tensors *tensors);

/* The gradients of q, k, v from d_o. Collective. Needs q, k, v, o, lse and the mask of the forward
 * as they were; other forwards may lie between. ULYSSES_ERR_USAGE for a handle without training. */
ULYSSES_API enum ulysses_status
ulysses_attention_backward(struct ulysses_attention *attention, const struct ulysses_mask *mask,
                           const struct ulysses_attention_tensors *tensors);

#ifdef __cplusplus
}
#endif

#endif
