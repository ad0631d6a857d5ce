/* SPDX-License-Identifier: MIT */
#include "train/machine.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/mem.h"

/* ------------------------------------------------------------------ memory */

/* The first number of a small file; false where there is none ("max" included). */
static bool read_number(const char *path, int64_t *out)
{
    FILE *f = fopen(path, "r");
    if (!f)
        return false;
    bool found = fscanf(f, "%" SCNd64, out) == 1;
    fclose(f);
    return found;
}

/* The number after "key" at the start of a line ("key 12", "key: 12 kB"). */
static bool read_keyed(const char *path, const char *key, int64_t *out)
{
    FILE *f = fopen(path, "r");
    if (!f)
        return false;
    char line[256];
    bool found = false;
    size_t length = strlen(key);
    while (!found && fgets(line, sizeof line, f))
        if (strncmp(line, key, length) == 0 && (line[length] == ':' || line[length] == ' '))
            found = sscanf(line + length + 1, "%" SCNd64, out) == 1;
    fclose(f);
    return found;
}

static void lower(struct uly_memory_limit *limit, int64_t bytes, const char *name)
{
    if (bytes < limit->available) {
        limit->available = bytes > 0 ? bytes : 0;
        limit->name = name;
    }
}

/* One control group folder: limit less use. File pages of the group can be given back, so they do
 * not count as used. */
static void limit_of_group(const char *folder, bool version2, struct uly_memory_limit *limit)
{
    static const char *const names[2][2] = {{"memory.limit_in_bytes", "memory.usage_in_bytes"},
                                            {"memory.max", "memory.current"}};
    char path[4300];
    int64_t most, used, files = 0;
    snprintf(path, sizeof path, "%s/%s", folder, names[version2][0]);
    if (!read_number(path, &most))
        return;
    snprintf(path, sizeof path, "%s/%s", folder, names[version2][1]);
    if (!read_number(path, &used))
        return;
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    if (!read_keyed(path, "inactive_file", &files))
        files = 0;
    lower(limit, most - used + (files < used ? files : used), "the control group's memory limit");
}

/* A group and all its parents up to the mount point; inside a container the mount point itself is
 * the group. */
static void limit_of_path(const char *mount, char *group, bool version2,
                          struct uly_memory_limit *limit)
{
    char folder[4200];
    for (;;) {
        snprintf(folder, sizeof folder, "%s%s", mount, group);
        limit_of_group(folder, version2, limit);
        char *slash = strrchr(group, '/');
        if (!slash)
            return;
        *slash = 0;
    }
}

static void limit_of_groups(const char *root, struct uly_memory_limit *limit)
{
    char path[4200], line[2048];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "r");
    if (!f)
        return;
    while (fgets(line, sizeof line, f)) { /* hierarchy:controllers:path */
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = 0;
        controllers++;
        if (*controllers == 0) {
            snprintf(path, sizeof path, "%s/sys/fs/cgroup", root);
            limit_of_path(path, group, true, limit);
        } else if (strstr(controllers, "memory")) {
            snprintf(path, sizeof path, "%s/sys/fs/cgroup/memory", root);
            limit_of_path(path, group, false, limit);
        }
    }
    fclose(f);
}

struct uly_memory_limit uly_machine_memory_at(const char *root)
{
    char path[4200];
    int64_t kib;
    struct uly_memory_limit limit = {INT64_MAX, "no limit"};
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    if (read_keyed(path, "MemAvailable", &kib))
        lower(&limit, kib * 1024, "MemAvailable");
    limit_of_groups(root, &limit);
    return limit;
}

struct uly_memory_limit uly_machine_memory(void)
{
    return uly_machine_memory_at("");
}

int64_t uly_machine_peak_rss(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (int64_t)usage.ru_maxrss * 1024 : 0;
}

/* ------------------------------------------------------------------ CPUs */

static void read_mask(cpu_set_t *mask)
{
    CPU_ZERO(mask);
    if (sched_getaffinity(0, sizeof *mask, mask) != 0 || CPU_COUNT(mask) == 0)
        CPU_SET(0, mask);
}

int uly_machine_cpus(void)
{
    cpu_set_t mask;
    read_mask(&mask);
    return CPU_COUNT(&mask);
}

struct cpu {
    int id;
    int64_t package, core;
};

/* Packages apart, hardware threads of a core side by side: a contiguous part is then as close
 * together as can be. */
static int compare_cpus(const void *pa, const void *pb)
{
    const struct cpu *a = pa, *b = pb;
    if (a->package != b->package)
        return a->package < b->package ? -1 : 1;
    if (a->core != b->core)
        return a->core < b->core ? -1 : 1;
    return a->id - b->id;
}

static int list_cpus(const cpu_set_t *mask, struct cpu *list)
{
    int n = 0;
    for (int id = 0; id < CPU_SETSIZE; id++) {
        if (!CPU_ISSET((size_t)id, mask))
            continue;
        char path[128];
        struct cpu cpu = {id, 0, id};
        const char *const folder = "/sys/devices/system/cpu/cpu";
        snprintf(path, sizeof path, "%s%d/topology/physical_package_id", folder, id);
        read_number(path, &cpu.package);
        snprintf(path, sizeof path, "%s%d/topology/core_id", folder, id);
        read_number(path, &cpu.core);
        list[n++] = cpu;
    }
    qsort(list, (size_t)n, sizeof *list, compare_cpus);
    return n;
}

enum uly_status uly_machine_pin(int index, int count)
{
    cpu_set_t mask, part;
    struct cpu list[CPU_SETSIZE];
    read_mask(&mask);
    int n = list_cpus(&mask, list);
    CPU_ZERO(&part);
    if (count >= n) {
        CPU_SET((size_t)list[index % n].id, &part);
    } else {
        for (int i = index * n / count; i < (index + 1) * n / count; i++)
            CPU_SET((size_t)list[i].id, &part);
    }
    ULY_FAIL_IF(sched_setaffinity(0, sizeof part, &part) != 0, ULY_ERR_IO,
                "cannot bind this rank to its CPUs: %s", strerror(errno));
    return ULY_OK;
}

static int threads_of_environment(void)
{
    const char *text = getenv("OMP_NUM_THREADS"); /* "4" or "4,2": the first level counts */
    long n = text ? strtol(text, NULL, 10) : 0;
    return n > 0 && n <= 4096 ? (int)n : 0;
}

/* A mask may always be widened up to the cpuset, so asking for everything and looking tells the cpuset. */
static int allowed_cpus(void)
{
    cpu_set_t before, everything, after;
    read_mask(&before);
    memset(&everything, 0xff, sizeof everything);
    if (sched_setaffinity(0, sizeof everything, &everything) != 0)
        return CPU_COUNT(&before);
    read_mask(&after);
    sched_setaffinity(0, sizeof before, &before);
    return CPU_COUNT(&after);
}

enum uly_status uly_machine_count_threads(struct uly_comm *world, int asked,
                                          struct uly_machine_threads *out)
{
    int size = uly_comm_size(world), rank = uly_comm_rank(world);
    const int *hosts = uly_comm_hosts(world);
    cpu_set_t mine, *all = NULL;
    ULY_TRY(ULY_ALLOC(&all, size));
    read_mask(&mine);
    enum uly_status status = uly_all_gather_host(world, &mine, sizeof mine, all);
    if (status == ULY_OK) {
        int sharing = 0;
        for (int r = 0; r < size; r++) {
            if (hosts[r] != hosts[rank])
                continue;
            cpu_set_t both;
            CPU_AND(&both, &all[r], &mine);
            sharing += CPU_COUNT(&both) > 0;
        }
        int cpus = CPU_COUNT(&mine), chosen = asked > 0 ? asked : threads_of_environment();
        if (chosen == 0)
            chosen = cpus / sharing > 1 ? cpus / sharing : 1;
        *out = (struct uly_machine_threads){
            .threads = chosen, .cpus = cpus, .sharing = sharing, .cpus_allowed = allowed_cpus()};
    }
    uly_free(all);
    return status;
}
