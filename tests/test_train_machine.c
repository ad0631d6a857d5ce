/* SPDX-License-Identifier: MIT
 *
 * Limits of memory read from files as Linux writes them; pinning; numbers as people read them; the output folder.
 */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "train/machine.h"
#include "train/output_folder.h"
#include "train/text.h"

struct place {
    char root[64];
};

static void put(const struct place *p, const char *path, const char *text)
{
    char full[512], *slash;
    snprintf(full, sizeof full, "%s/%s", p->root, path);
    slash = strrchr(full, '/');
    *slash = 0;
    assert_int_equal(uly_folder_create(full, NULL), ULY_OK);
    *slash = '/';
    assert_int_equal(uly_file_write(full, text, (int64_t)strlen(text)), ULY_OK);
}

static int begin(void **state)
{
    struct place *p = NULL;
    assert_int_equal(ULY_ALLOC(&p, 1), ULY_OK);
    snprintf(p->root, sizeof p->root, "/tmp/uly_machine_XXXXXX");
    assert_non_null(mkdtemp(p->root));
    *state = p;
    return 0;
}

static int end(void **state)
{
    struct place *p = *state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", p->root);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    pclose(f);
    uly_free(p);
    return 0;
}

static void test_meminfo_alone(void **state)
{
    struct place *p = *state;
    put(p, "proc/meminfo", "MemTotal:       100 kB\nMemFree: 3 kB\nMemAvailable:   77 kB\n");
    struct uly_memory_limit limit = uly_machine_memory_at(p->root);
    assert_int_equal(limit.available, 77 * 1024);
    assert_string_equal(limit.name, "MemAvailable");
}

static void test_group_version_2(void **state)
{
    struct place *p = *state;
    put(p, "proc/meminfo", "MemAvailable: 4000 kB\n");
    put(p, "proc/self/cgroup", "0::/a/b\n");
    /* the own group has no limit, its parent has one; file pages of the group count as free */
    put(p, "sys/fs/cgroup/a/b/memory.max", "max\n");
    put(p, "sys/fs/cgroup/a/b/memory.current", "5\n");
    put(p, "sys/fs/cgroup/a/memory.max", "1000000\n");
    put(p, "sys/fs/cgroup/a/memory.current", "400000\n");
    put(p, "sys/fs/cgroup/a/memory.stat", "anon 1\nfile 9\ninactive_file 150000\n");
    struct uly_memory_limit limit = uly_machine_memory_at(p->root);
    assert_int_equal(limit.available, 750000);
    assert_non_null(strstr(limit.name, "control group"));
}

static void test_group_version_1(void **state)
{
    struct place *p = *state;
    put(p, "proc/meminfo", "MemAvailable: 4000 kB\n");
    put(p, "proc/self/cgroup", "5:cpu:/x\n4:memory:/job\n0::/\n");
    put(p, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", "600000\n");
    put(p, "sys/fs/cgroup/memory/job/memory.usage_in_bytes", "700000\n");
    /* over its limit: nothing is left, not less than nothing */
    assert_int_equal(uly_machine_memory_at(p->root).available, 0);
    put(p, "sys/fs/cgroup/memory/job/memory.usage_in_bytes", "100000\n");
    assert_int_equal(uly_machine_memory_at(p->root).available, 500000);
    /* inside a container the group's own path is not there, the mount point is */
    put(p, "proc/self/cgroup", "4:memory:/docker/0123\n");
    put(p, "sys/fs/cgroup/memory/memory.limit_in_bytes", "300000\n");
    put(p, "sys/fs/cgroup/memory/memory.usage_in_bytes", "1000\n");
    assert_int_equal(uly_machine_memory_at(p->root).available, 299000);
}

static void test_nothing_known(void **state)
{
    struct place *p = *state;
    assert_true(uly_machine_memory_at(p->root).available == INT64_MAX);
}

static void test_pin_parts(void **state)
{
    (void)state;
    cpu_set_t before, seen, now;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    int n = uly_machine_cpus();
    assert_int_equal(n, CPU_COUNT(&before));
    for (int count = 1; count <= n + 1; count++) { /* parts do not meet and leave nothing out */
        CPU_ZERO(&seen);
        int sum = 0;
        for (int i = 0; i < count; i++) {
            assert_int_equal(uly_machine_pin(i, count), ULY_OK);
            assert_int_equal(sched_getaffinity(0, sizeof now, &now), 0);
            assert_true(CPU_COUNT(&now) >= 1);
            sum += CPU_COUNT(&now);
            CPU_OR(&seen, &seen, &now);
            assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
        }
        assert_true(CPU_EQUAL(&seen, &before));
        assert_int_equal(sum, count > n ? count : n);
    }
}

static void test_threads(void **state)
{
    (void)state;
    struct uly_comm *self;
    struct uly_machine_threads t;
    char *old = getenv("OMP_NUM_THREADS");
    char kept[32] = "";
    snprintf(kept, sizeof kept, "%s", old ? old : "");
    assert_int_equal(uly_comm_self(&self), ULY_OK);
    setenv("OMP_NUM_THREADS", "5,2", 1);
    assert_int_equal(uly_machine_count_threads(self, 3, &t), ULY_OK);
    assert_int_equal(t.threads, 3);
    assert_int_equal(uly_machine_count_threads(self, 0, &t), ULY_OK);
    assert_int_equal(t.threads, 5);
    unsetenv("OMP_NUM_THREADS");
    assert_int_equal(uly_machine_count_threads(self, 0, &t), ULY_OK);
    assert_int_equal(t.threads, uly_machine_cpus());
    assert_int_equal(t.sharing, 1);
    assert_true(t.cpus_allowed >= t.cpus);
    if (old)
        setenv("OMP_NUM_THREADS", kept, 1);
    uly_comm_destroy(self);
}

static void test_text(void **state)
{
    (void)state;
    struct uly_text t;
    assert_string_equal(uly_text_count(0, &t), "0");
    assert_string_equal(uly_text_count(999, &t), "999");
    assert_string_equal(uly_text_count(1000, &t), "1,000");
    assert_string_equal(uly_text_count(-1234567, &t), "-1,234,567");
    assert_string_equal(uly_text_count(INT64_MAX, &t), "9,223,372,036,854,775,807");
    assert_string_equal(uly_text_bytes(999, &t), "999 B");
    assert_string_equal(uly_text_bytes(1536, &t), "1.50 KiB");
    assert_string_equal(uly_text_bytes((int64_t)17 << 30, &t), "17.0 GiB");
    assert_string_equal(uly_text_seconds(1.26, &t), "1.3 s");
    assert_string_equal(uly_text_seconds(59.7, &t), "1 min 0 s");
    assert_string_equal(uly_text_seconds(7380, &t), "2 h 3 min");
    assert_string_equal(uly_text_seconds(100000, &t), "1 d 3 h");
}

static void test_output_folder(void **state)
{
    struct place *p = *state;
    char model[96], out[96], deep[112], file[96], path[128];
    struct uly_output first, second = {NULL, -1};
    snprintf(model, sizeof model, "%s/model", p->root);
    snprintf(out, sizeof out, "%s/out", p->root);
    snprintf(deep, sizeof deep, "%s/a/b/c/", out);
    snprintf(file, sizeof file, "%s/file", p->root);
    put(p, "model/config.json", "{}");
    put(p, "file", "x");
    /* a look changes nothing */
    assert_int_equal(uly_output_check(deep, model, false), ULY_OK);
    assert_int_equal(uly_path_kind(out, NULL), ULY_PATH_NONE);
    assert_int_equal(uly_output_check(model, model, true), ULY_ERR_INVALID);
    assert_int_equal(uly_output_check(file, model, false), ULY_ERR_IO);
    snprintf(path, sizeof path, "%s/below", file);
    assert_int_equal(uly_output_check(path, model, false), ULY_ERR_IO);
    /* more than any disk has: refused, and the folder it made for the look is gone again */
    assert_int_equal(uly_output_claim(out, false, INT64_MAX, &first), ULY_ERR_NO_SPACE);
    assert_int_equal(uly_path_kind(out, NULL), ULY_PATH_NONE);
    assert_int_equal(uly_output_claim(out, false, 1, &first), ULY_OK);
    assert_int_equal(uly_output_claim(out, false, 1, &second), ULY_ERR_INVALID);
    assert_non_null(strstr(uly_error_message(), "in use by another run"));
    /* the refused one has not taken the lock's file away */
    assert_int_equal(uly_output_claim(out, false, 1, &second), ULY_ERR_INVALID);
    uly_output_release(&first);
    /* a run in it */
    put(p, "out/metrics.jsonl", "{}\n");
    put(p, "out/stop", "");
    assert_int_equal(uly_output_check(out, model, false), ULY_ERR_INVALID);
    assert_non_null(strstr(uly_error_message(), "metrics.jsonl"));
    assert_int_equal(uly_output_claim(out, false, 1, &first), ULY_ERR_INVALID);
    assert_int_equal(uly_output_check(out, model, true), ULY_OK);
    assert_int_equal(uly_output_claim(out, true, 1, &first), ULY_OK);
    snprintf(path, sizeof path, "%s/stop", out);
    assert_int_equal(uly_path_kind(path, NULL), ULY_PATH_NONE);
    snprintf(path, sizeof path, "%s/metrics.jsonl", out);
    assert_int_equal(uly_path_kind(path, NULL), ULY_PATH_NONE);
    uly_output_release(&first);
    assert_int_equal(rmdir(out), 0); /* nothing of the lock is left */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_meminfo_alone, begin, end),
        cmocka_unit_test_setup_teardown(test_group_version_2, begin, end),
        cmocka_unit_test_setup_teardown(test_group_version_1, begin, end),
        cmocka_unit_test_setup_teardown(test_nothing_known, begin, end),
        cmocka_unit_test(test_pin_parts),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_text),
        cmocka_unit_test_setup_teardown(test_output_folder, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
