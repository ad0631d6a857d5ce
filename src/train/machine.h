/* SPDX-License-Identifier: MIT
 *
 * What this machine gives to a run: memory (the system's and the control group's limit), CPUs of
 * the process's mask, and the threads that follow from them. Linux only, read from /proc and /sys;
 * what cannot be read counts as no limit.
 */
#ifndef ULY_TRAIN_MACHINE_H
#define ULY_TRAIN_MACHINE_H

#include "comm/comm.h"

struct uly_memory_limit {
    int64_t available; /* bytes that this process may still take: the smallest of all limits */
    const char *name;  /* which limit that is, for messages; constant text */
};

/* MemAvailable, and what is left under every control group limit from this process's group up
 * (version 2 or 1). */
struct uly_memory_limit uly_machine_memory(void);
/* The same from files of a test: root stands before /proc and /sys. */
struct uly_memory_limit uly_machine_memory_at(const char *root);

/* Highest resident size of this process so far, bytes. */
int64_t uly_machine_peak_rss(void);

/* CPUs of this process's affinity mask, at least 1. */
int uly_machine_cpus(void);

/* Pins this process to its part of its present mask: part `index` of `count`, whole cores together,
 * so that the ranks of a machine do not meet. With more parts than CPUs, parts share CPUs in turn.
 */
enum uly_status uly_machine_pin(int index, int count);

struct uly_machine_threads {
    int threads;      /* of this rank */
    int cpus;         /* in this rank's mask */
    int sharing;      /* ranks of this machine whose masks overlap this one's, itself included */
    int cpus_allowed; /* that this process could be moved to: what a launcher's binding hides */
};

/* asked: --threads, 0 when not given: then OMP_NUM_THREADS, else cpus / sharing, at least 1.
 * Collective. */
enum uly_status uly_machine_count_threads(struct uly_comm *world, int asked,
                                          struct uly_machine_threads *out);

#endif
