// Threads are assigned to NUMA nodes in order and in proportion to their CPUs, on machines that hwloc
// simulates. This machine's own topology can be read.
#include "tests/support/expect.h"

#include "base/processors.h"

static void assert_nodes(const char *machine, int n_slots, const int *expected) {
    struct numa *numa;
    EXPECT_OK(numa_open(machine, &numa));
    for (int slot = 0; slot < n_slots; slot++)
        if (numa_node_of(numa, slot, n_slots) != expected[slot])
            fail_msg("%s: thread %d of %d is on node %d, expected %d", machine, slot, n_slots,
                     numa_node_of(numa, slot, n_slots), expected[slot]);
    numa_bind_thread(numa, numa_n_nodes(numa) - 1); // not this machine: binds nothing
    numa_close(numa);
}

static void test_threads_are_distributed(void **state) {
    (void)state;
    assert_nodes("node:2 core:4 pu:1", 8, (const int[]){0, 0, 0, 0, 1, 1, 1, 1});
    assert_nodes("node:2 core:4 pu:1", 4, (const int[]){0, 0, 1, 1});
    assert_nodes("node:2 core:4 pu:2", 3, (const int[]){0, 0, 1});
    assert_nodes("node:4 core:2 pu:1", 4, (const int[]){0, 1, 2, 3});
    assert_nodes("node:4 core:1 pu:1", 8, (const int[]){0, 0, 1, 1, 2, 2, 3, 3});
    assert_nodes("node:1 core:2 pu:1", 2, (const int[]){0, 0});
}

static void test_this_machine(void **state) {
    (void)state;
    struct numa *numa;
    EXPECT_OK(numa_open(NULL, &numa));
    assert_true(numa_n_nodes(numa) >= 1 && numa_n_processors(numa) >= 1);
    assert_int_equal(numa_node_of(numa, 0, 1), 0);
    numa_bind_thread(numa, 0);
    numa_close(numa);
    EXPECT_FAILURE(STATUS_FAILED, numa_open("node:two", &numa), "topology: node:two");
    numa_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_are_distributed),
        cmocka_unit_test(test_this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
