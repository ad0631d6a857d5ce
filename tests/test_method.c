/* SPDX-License-Identifier: MIT
 *
 * From a method to its sizes: every row of the table in method.h, every refusal with its text, what auto chooses on several
 * machines, and the grid of ranks that follows.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "parallel/layout.h"
#include "parallel/mesh.h"
#include "parallel/method.h"

static struct uly_method_choice choice;

static struct uly_method_request ask(enum uly_method method, int P, int H, int K)
{
    return (struct uly_method_request){.method = method, .sp_size = P, .H = H, .K = K, .world = P};
}

static void gives(struct uly_method_request q, enum uly_method method, int Pu, int Pr, int n)
{
    if (uly_method_resolve(&q, &choice) != ULY_OK)
        fail_msg("%s", uly_error_message());
    if (choice.method != method || choice.ulysses_size != Pu || choice.ring_size != Pr ||
        choice.heads_per_stage != n || choice.query_tile != q.query_tile)
        fail_msg("%s, %d ranks, %d heads (%d kv): %s %d x %d, %d heads a stage, not %s %d x %d, %d",
                 uly_method_name(q.method), (int)q.sp_size, q.H, q.K,
                 uly_method_name(choice.method), choice.ulysses_size, choice.ring_size,
                 choice.heads_per_stage, uly_method_name(method), Pu, Pr, n);
}

static void refuses(struct uly_method_request q, const char *text)
{
    struct uly_method_choice before, after;
    memset(&before, 0x5a, sizeof before);
    after = before;
    enum uly_status status = uly_method_resolve(&q, &after);
    if (status != ULY_ERR_USAGE || strcmp(uly_error_message(), text) != 0)
        fail_msg("%d \"%s\", not \"%s\"", status, uly_error_message(), text);
    assert_memory_equal(&after, &before, sizeof after);
}

/* ------------------------------------------------------------------ the table */

static void test_named_methods(void **state)
{
    (void)state;
    gives(ask(ULY_METHOD_ULYSSES, 8, 32, 8), ULY_METHOD_ULYSSES, 8, 1, 4);
    gives(ask(ULY_METHOD_ULYSSES, 8, 28, 4), ULY_METHOD_ULYSSES, 8, 1, 4);
    gives(ask(ULY_METHOD_ULYSSES, 1, 7, 7), ULY_METHOD_ULYSSES, 1, 1, 7);
    gives(ask(ULY_METHOD_UPIPE, 8, 32, 8), ULY_METHOD_UPIPE, 8, 1, 1);
    gives(ask(ULY_METHOD_RING, 8, 32, 8), ULY_METHOD_RING, 1, 8, 4);
    gives(ask(ULY_METHOD_RING, 3, 7, 7), ULY_METHOD_RING, 1, 3, 1);
    gives(ask(ULY_METHOD_RING, 4, 8, 1), ULY_METHOD_RING, 1, 4, 8);
    gives(ask(ULY_METHOD_USP, 8, 32, 8), ULY_METHOD_USP, 8, 1, 4);
    gives(ask(ULY_METHOD_USP, 8, 32, 4), ULY_METHOD_USP, 4, 2, 8);
    gives(ask(ULY_METHOD_USP, 6, 8, 4), ULY_METHOD_USP, 3, 2, 2);
    gives(ask(ULY_METHOD_USP, 5, 8, 4), ULY_METHOD_USP, 1, 5, 2);
    struct uly_method_request q = ask(ULY_METHOD_UPIPE, 4, 28, 4);
    for (q.heads_per_stage = 1; q.heads_per_stage <= 7; q.heads_per_stage++)
        gives(q, ULY_METHOD_UPIPE, 4, 1, (int)q.heads_per_stage);
    q.query_tile = 100;
    q.heads_per_stage = 3;
    gives(q, ULY_METHOD_UPIPE, 4, 1, 3);
    q = ask(ULY_METHOD_RING, 4, 28, 4);
    q.heads_per_stage = 28;
    gives(q, ULY_METHOD_RING, 1, 4, 28);
    q = ask(ULY_METHOD_USP, 8, 28, 4);
    q.ring_size = 4;
    gives(q, ULY_METHOD_USP, 2, 4, 7);
    q.ring_size = 0;
    q.ulysses_size = 8; /* a rank has 4 heads at most: fewer than a kv group */
    gives(q, ULY_METHOD_USP, 8, 1, 4);
    q = ask(ULY_METHOD_ULYSSES, 2, 7, 7);
    q.heads_per_stage = 4; /* all of them may be said */
    q.ulysses_size = 2;
    q.ring_size = 1;
    gives(q, ULY_METHOD_ULYSSES, 2, 1, 4);
    q = ask(ULY_METHOD_USP, 4, 8, 2); /* tiles leave no room for a ring */
    q.query_tile = 64;
    gives(q, ULY_METHOD_USP, 4, 1, 2);
}

static void test_names(void **state)
{
    (void)state;
    assert_int_equal(uly_method_of(28, 8, 1, 4), ULY_METHOD_ULYSSES);
    assert_int_equal(uly_method_of(28, 8, 1, 3), ULY_METHOD_UPIPE);
    assert_int_equal(uly_method_of(28, 1, 8, 28), ULY_METHOD_RING);
    assert_int_equal(uly_method_of(28, 2, 4, 14), ULY_METHOD_USP);
    assert_int_equal(uly_method_of(4, 1, 1, 4), ULY_METHOD_ULYSSES);
    assert_int_equal(uly_method_kv_group(28, 4, 4), 7);
    assert_int_equal(uly_method_kv_group(28, 4, 8), 4);
    assert_int_equal(uly_method_kv_group(5, 5, 2), 1);
}

/* ------------------------------------------------------------------ refusals */

static void test_sizes_refused(void **state)
{
    (void)state;
    struct uly_method_request q = ask(ULY_METHOD_USP, 8, 32, 8);
    q.ulysses_size = 3;
    refuses(q, "--ulysses-size 3 does not divide --sp-size 8; these do: 1, 2, 4, 8");
    q.ring_size = 2;
    refuses(q, "--ulysses-size 3 * --ring-size 2 is 6, but --sp-size is 8; these work (ulysses x "
               "ring): 1 x 8, 2 x 4, 4 x 2, 8 x 1");
    q.H = q.K = 0; /* the same before the model is known */
    refuses(q, "--ulysses-size 3 * --ring-size 2 is 6, but --sp-size is 8; these work (ulysses x "
               "ring): 1 x 8, 2 x 4, 4 x 2, 8 x 1");
    q = ask(ULY_METHOD_AUTO, 6, 32, 8);
    q.ring_size = 4;
    refuses(q, "--ring-size 4 does not divide --sp-size 6; these do: 1, 2, 3, 6");
    q.ring_size = -1;
    refuses(q, "--sp-size 6, --ulysses-size 0, --ring-size -1, --heads-per-stage 0, --query-tile "
               "0: sizes begin at 1");
    q = ask(ULY_METHOD_AUTO, 2, 7, 3);
    refuses(q, "7 query heads are not a multiple of 3 kv heads");
}

static void test_methods_refused(void **state)
{
    (void)state;
    struct uly_method_request q = ask(ULY_METHOD_ULYSSES, 8, 32, 8);
    q.ring_size = 2;
    refuses(q, "--method ulysses has no ring, but --ring-size is 2; 1 works, and --method usp "
               "takes 1, 2, 4, 8");
    q.method = ULY_METHOD_UPIPE;
    refuses(q, "--method upipe has no ring, but --ring-size is 2; 1 works, and --method usp takes "
               "1, 2, 4, 8");
    q.ring_size = 0;
    q.ulysses_size = 4;
    refuses(q, "--method upipe takes all 8 ranks of --sp-size, but --ulysses-size is 4; --method "
               "usp takes 1, 2, 4, 8");
    q.method = ULY_METHOD_RING;
    refuses(q, "--method ring exchanges no heads, but --ulysses-size is 4; 1 works, and --method "
               "usp takes 1, 2, 4, 8");
    q.ulysses_size = 0;
    q.ring_size = 2;
    refuses(q, "--method ring takes all 8 ranks of --sp-size, but --ring-size is 2; --method usp "
               "takes 1, 2, 4, 8");
}

static void test_stages_refused(void **state)
{
    (void)state;
    struct uly_method_request q = ask(ULY_METHOD_UPIPE, 8, 28, 4);
    q.heads_per_stage = 5;
    refuses(q, "--heads-per-stage 5 is more than the 4 of a rank (28 heads over --ulysses-size 8); "
               "1 ... 4 work");
    q.method = ULY_METHOD_ULYSSES;
    q.heads_per_stage = 2;
    refuses(q, "--method ulysses takes all 4 heads of a rank in one stage, but --heads-per-stage "
               "is 2: that is --method upipe");
    q = ask(ULY_METHOD_RING, 4, 28, 4);
    q.query_tile = 64;
    refuses(q, "--query-tile 64 needs --ring-size 1, and --method ring makes it 4");
    q.method = ULY_METHOD_USP;
    q.ring_size = 2;
    refuses(q, "--query-tile 64 needs --ring-size 1, and it is 2: with a ring, a stage's queries "
               "are held whole");
    q.ring_size = 0;
    q.ulysses_size = 2;
    refuses(q, "--query-tile 64 needs --ring-size 1, and --sp-size 4 with --ulysses-size 2 makes "
               "it 2; --ulysses-size 4 works");
}

/* ------------------------------------------------------------------ auto */

/* hosts: a digit a rank. */
static void auto_gives(const char *hosts, int sp, int H, int K, int Pu, const char *reason)
{
    int machine[64], world = (int)strlen(hosts);
    for (int r = 0; r < world; r++)
        machine[r] = hosts[r] - '0';
    struct uly_method_request q = ask(ULY_METHOD_AUTO, sp, H, K);
    q.hosts = machine;
    q.world = world;
    int n = (H + Pu - 1) / Pu;
    gives(q, uly_method_of(H, Pu, sp / Pu, n), Pu, sp / Pu, n);
    if (!strstr(choice.reason, reason))
        fail_msg("the reason \"%s\" does not say \"%s\"", choice.reason, reason);
}

static void test_auto(void **state)
{
    (void)state;
    auto_gives("0", 1, 32, 8, 1, "one rank");
    auto_gives("00", 2, 32, 8, 2, "32 heads over 2 ranks, at most 16 each");
    auto_gives("00000000", 8, 32, 8, 8, "32 heads over 8 ranks, at most 4 each");
    auto_gives("0000000000000000", 16, 32, 8, 8, "16 ulysses ranks would be sent the 8 kv heads");
    auto_gives("00000000", 8, 28, 4, 4,
               "28 heads over 8 ulysses ranks would leave 12 % of their time unused");
    auto_gives("00000000", 8, 8, 1, 1, "2 ulysses ranks would be sent the 1 kv head several");
    auto_gives("000", 3, 4, 2, 1, "4 heads over 3 ulysses ranks would leave 33 %");
    auto_gives("000", 3, 32, 32, 3, "at most 11 each"); /* 3 % is no reason */
    auto_gives("00000000", 8, 2, 2, 2, "2 heads over 4 ulysses ranks would leave 50 %");
    /* machines: a group stays inside */
    auto_gives("00001111", 8, 32, 8, 4, "a ulysses group of 8 would span machines");
    auto_gives("0123", 4, 32, 8, 1, "a ulysses group of 2 would span machines");
    auto_gives("00001111", 4, 32, 8, 4, "32 heads over 4 ranks"); /* two replicas, one each */
    auto_gives("000111", 6, 32, 8, 3, "a ulysses group of 6 would span machines");
    auto_gives("00011111", 8, 32, 8, 1, "a ulysses group of 2 would span machines");
    auto_gives("0000111122223333", 8, 32, 8, 4, "a ulysses group of 8 would span machines");
}

static void test_auto_keeps_what_is_given(void **state)
{
    (void)state;
    struct uly_method_request q = ask(ULY_METHOD_AUTO, 8, 32, 8);
    q.ring_size = 4;
    gives(q, ULY_METHOD_USP, 2, 4, 16);
    assert_string_equal(choice.reason, "");
    q.ring_size = 0;
    q.ulysses_size = 1;
    gives(q, ULY_METHOD_RING, 1, 8, 32);
    q.ulysses_size = 0;
    q.heads_per_stage = 3;
    gives(q, ULY_METHOD_UPIPE, 8, 1, 3);
    q = ask(ULY_METHOD_AUTO, 8, 28, 4);
    q.query_tile = 16; /* would be 4 x 2 */
    gives(q, ULY_METHOD_ULYSSES, 8, 1, 4);
}

/* usp takes the ranks of a machine */
static void test_usp_machines(void **state)
{
    static const int two[] = {0, 0, 0, 0, 1, 1, 1, 1}, each[] = {0, 1, 2, 3, 4, 5, 6, 7};
    (void)state;
    struct uly_method_request q = ask(ULY_METHOD_USP, 8, 32, 8);
    q.hosts = two;
    gives(q, ULY_METHOD_USP, 4, 2, 4);
    q.K = 2;
    gives(q, ULY_METHOD_USP, 2, 4, 16);
    q.hosts = each;
    gives(q, ULY_METHOD_USP, 1, 8, 16);
    assert_int_equal(uly_method_spanning_group(two, 8, 4), -1);
    assert_int_equal(uly_method_spanning_group(two, 8, 8), 0);
    assert_int_equal(uly_method_spanning_group(two, 6, 3), 3);
    assert_int_equal(uly_method_spanning_group(NULL, 8, 8), -1);
}

/* ------------------------------------------------------------------ stages that may be tried */

static void tries(struct uly_method_request q, int64_t shard, const char *want)
{
    struct uly_method_stage stage[ULY_METHOD_STAGES];
    char text[128] = "";
    size_t used = 0;
    assert_int_equal(uly_method_resolve(&q, &choice), ULY_OK);
    int n = uly_method_stages(&q, &choice, shard, stage);
    for (int i = 0; i < n; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%d/%d", i ? " " : "",
                                 stage[i].heads, (int)stage[i].query_tile);
    assert_string_equal(text, want);
}

static void test_stages(void **state)
{
    (void)state;
    struct uly_method_request q = ask(ULY_METHOD_AUTO, 2, 32, 8);
    tries(q, 1000, "16/0 4/0 1/0 1/250");
    tries(q, 1027, "16/0 4/0 1/0 1/512");
    tries(q, 100000, "16/0 4/0 1/0 1/25088");
    tries(q, 1, "16/0 4/0 1/0");
    tries(q, 0, "16/0 4/0 1/0");
    q.query_tile = 99;
    tries(q, 1000, "16/99 4/99 1/99");
    q.query_tile = 0;
    q.heads_per_stage = 3;
    tries(q, 1000, "3/0 3/250");
    q = ask(ULY_METHOD_AUTO, 8, 32, 8);
    tries(q, 1000, "4/0 1/0 1/250"); /* a rank has one kv group */
    q = ask(ULY_METHOD_AUTO, 8, 8, 8);
    tries(q, 1000, "1/0 1/250");
    q = ask(ULY_METHOD_AUTO, 2, 7, 7);
    q.ring_size = 1;
    tries(q, 1000, "4/0 1/0 1/250");
    q = ask(ULY_METHOD_AUTO, 8, 28, 4); /* 4 x 2: no tiles beside a ring */
    tries(q, 1000, "7/0 1/0");
    tries(ask(ULY_METHOD_ULYSSES, 2, 32, 8), 1000, "16/0");
    tries(ask(ULY_METHOD_UPIPE, 2, 32, 8), 1000, "1/0");
    tries(ask(ULY_METHOD_USP, 4, 32, 2), 1000, "16/0");
}

/* ------------------------------------------------------------------ the grid on machines */

static const char *const machine_names[] = {"a", "a", "a", "a", "b", "b", "b", "b"};

static bool on_one_machine(const struct uly_comm *comm)
{
    for (int r = 1; r < uly_comm_size(comm); r++)
        if (uly_comm_hosts(comm)[r] != 0)
            return false;
    return true;
}

/* Ulysses ranks are neighbours, so a group that fits lies on one machine, and the ring crosses. */
static enum uly_status check_grid(struct uly_comm *world, void *arg)
{
    struct uly_mesh mesh;
    (void)arg;
    uly_comm_set_host_names(world, machine_names);
    ULY_TRY(uly_mesh_init(world, 1, 2, 4, &mesh));
    bool ulysses = on_one_machine(mesh.ulysses), ring = on_one_machine(mesh.ring);
    int same_head = uly_comm_size(mesh.ring) == 2 && uly_comm_rank(mesh.ring) == mesh.ring_rank;
    uly_mesh_clear(&mesh);
    ULY_FAIL_IF(!ulysses || ring || !same_head, ULY_ERR_INTERNAL,
                "ulysses group on one machine %d, "
                "ring on one machine %d, ring of 2 %d",
                ulysses, ring, same_head);
    ULY_TRY(uly_mesh_init(world, 2, 1, 4, &mesh)); /* replicas */
    ulysses = on_one_machine(mesh.sp) && on_one_machine(mesh.ulysses);
    uly_mesh_clear(&mesh);
    ULY_FAIL_IF(!ulysses, ULY_ERR_INTERNAL, "a replica spans machines");
    ULY_TRY(uly_mesh_init(world, 1, 1, 8, &mesh));
    ulysses = on_one_machine(mesh.ulysses);
    uly_mesh_clear(&mesh);
    ULY_FAIL_IF(ulysses, ULY_ERR_INTERNAL, "eight ranks on two machines look like one");
    return ULY_OK;
}

static void test_grid(void **state)
{
    (void)state;
    if (uly_comm_run_threads(8, check_grid, NULL) != ULY_OK)
        fail_msg("%s", uly_error_message());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_named_methods),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_sizes_refused),
        cmocka_unit_test(test_methods_refused),
        cmocka_unit_test(test_stages_refused),
        cmocka_unit_test(test_auto),
        cmocka_unit_test(test_auto_keeps_what_is_given),
        cmocka_unit_test(test_usp_machines),
        cmocka_unit_test(test_stages),
        cmocka_unit_test(test_grid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
