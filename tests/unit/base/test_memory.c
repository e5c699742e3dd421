// Memory: the table of regions, arenas, and the available memory that the system reports.
#include "tests/support/expect.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/region.h"

static void test_regions(void **state) {
    (void)state;
    struct region_table table;
    int first, second, third, other;
    region_table_init(&table);
    EXPECT_OK(region_add(&table, REGION_PARAMS, REGION_HOST, DTYPE_BF16, 100, &first, "block %d", 0));
    EXPECT_OK(region_add(&table, REGION_PARAMS, REGION_HOST, DTYPE_F32, 64, &second, "block %d", 1));
    EXPECT_OK(region_add(&table, REGION_GRADS, REGION_HOST, DTYPE_F32, 10, &other, "grads"));
    EXPECT_OK(region_add(&table, REGION_PARAMS, REGION_HOST, DTYPE_U8, 0, &third, "nothing"));
    assert_string_equal(table.regions[second].name, "block 1");
    assert_int_equal(table.regions[first].bytes, 200);
    assert_int_equal(table.regions[second].offset, 256);
    assert_int_equal(table.regions[third].offset, 512);
    assert_int_equal(table.regions[other].offset, 0);
    assert_int_equal(table.arena_bytes[REGION_PARAMS][REGION_HOST], 512);
    assert_int_equal(region_kind_bytes(&table, REGION_PARAMS), 456);
    assert_int_equal(region_total_bytes(&table), 496);
    assert_string_equal(region_kind_name(REGION_MOMENTS), "moments");
    assert_null(region_data(&table, second));

    static char params[512];
    region_table_bind(&table, REGION_PARAMS, REGION_HOST, params);
    assert_ptr_equal(region_data(&table, first), params);
    assert_ptr_equal(region_data(&table, second), params + 256);
    assert_null(region_data(&table, other)); // another kind
    region_table_free(&table);
}

static void test_many_regions_do_not_overlap(void **state) {
    (void)state;
    struct region_table table;
    region_table_init(&table);
    for (int i = 0; i < 500; i++) {
        int index;
        EXPECT_OK(region_add(&table, (enum region_kind)(i % N_REGION_KINDS), REGION_HOST,
                             (enum dtype)(i % N_DTYPES), (size_t)(i * 37 % 1000), &index, "region %d", i));
        assert_int_equal(index, i);
    }
    for (int kind = 0; kind < N_REGION_KINDS; kind++) {
        size_t end = 0;
        for (int i = kind; i < 500; i += N_REGION_KINDS) {
            assert_true(table.regions[i].offset >= end && table.regions[i].offset % REGION_ALIGNMENT == 0);
            end = table.regions[i].offset + table.regions[i].bytes;
        }
        assert_true(table.arena_bytes[kind][REGION_HOST] >= end);
    }
    region_table_free(&table);
}

static void test_regions_that_are_too_large(void **state) {
    (void)state;
    struct region_table table;
    int index;
    region_table_init(&table);
    EXPECT_FAILURE(STATUS_INVALID,
                   region_add(&table, REGION_LOGITS, REGION_HOST, DTYPE_F32, SIZE_MAX / 2, &index, "logits"),
                   "logits", "larger than");
    EXPECT_OK(region_add(&table, REGION_LOGITS, REGION_HOST, DTYPE_U8, SIZE_MAX / 2, &index, "half"));
    EXPECT_OK(region_add(&table, REGION_LOGITS, REGION_HOST, DTYPE_U8, SIZE_MAX / 4, &index, "quarter"));
    EXPECT_FAILURE(STATUS_INVALID,
                   region_add(&table, REGION_LOGITS, REGION_HOST, DTYPE_U8, SIZE_MAX / 2, &index, "one more"),
                   "one more");
    assert_int_equal(table.n_regions, 2);
    region_table_free(&table);
}

static void test_arena(void **state) {
    (void)state;
    static const size_t sizes[] = {1, 4096, (2u << 20) - 1, 2u << 20, (2u << 20) + 1, 7654321};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct arena arena;
        EXPECT_OK(arena_init(&arena, sizes[i], "parameters"));
        assert_int_equal(arena.bytes, sizes[i]);
        assert_true(arena.mapped_bytes >= sizes[i] && arena.mapped_bytes < sizes[i] + (2u << 20));
        assert_int_equal((uintptr_t)arena.data % (2u << 20), 0);
        unsigned char *data = arena.data;
        for (size_t j = 0; j < sizes[i]; j++) {
            if (data[j] != 0)
                fail_msg("byte %zu of a new arena is %d", j, data[j]);
            data[j] = 0xa5;
        }
        arena_free(&arena);
        assert_null(arena.data);
        arena_free(&arena);
    }
    struct arena none;
    EXPECT_OK(arena_init(&none, 0, "nothing"));
    assert_null(none.data);
    arena_free(&none);
}

static void test_arena_beyond_memory(void **state) {
    (void)state;
    struct arena arena;
    EXPECT_FAILURE(STATUS_FAILED, arena_init(&arena, (size_t)1 << 50, "activations"), "activations",
                   "1.00 PiB", "1125899906842624", "available", "train.micro_batch_size");
    assert_null(arena.data);
    EXPECT_FAILURE(STATUS_FAILED, arena_init(&arena, SIZE_MAX, "activations"), "activations");
    arena_free(&arena);
}

static void write_text(const char *folder, const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    *strrchr(path, '/') = '\0';
    EXPECT_OK(file_make_folders(path));
    path[strlen(path)] = '/';
    EXPECT_OK(file_write_all(path, text, strlen(text)));
}

// A simulated /proc and /sys/fs/cgroup: the memory of the machine, then ever tighter cgroup limits.
static void test_available(void **state) {
    (void)state;
    char folder[256];
    const char *parent = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/zero-memory-XXXXXX", parent ? parent : "/tmp");
    assert_non_null(mkdtemp(folder));
    assert_true(memory_available_in(folder, folder) == UINT64_MAX);
    write_text(folder, "meminfo", "MemTotal:       99999 kB\nMemFree: 5 kB\nMemAvailable:   50000 kB\n");
    assert_int_equal(memory_available_in(folder, folder), 50000 << 10);
    write_text(folder, "memory/memory.limit_in_bytes", "9223372036854771712\n"); // cgroup v1: no limit
    write_text(folder, "memory/memory.usage_in_bytes", "4096\n");
    assert_int_equal(memory_available_in(folder, folder), 50000 << 10);
    write_text(folder, "memory/memory.limit_in_bytes", "41000000\n");
    assert_int_equal(memory_available_in(folder, folder), 41000000 - 4096);
    write_text(folder, "self/cgroup", "4:memory:/old\n3:cpu:/elsewhere\n0::/batch/job\n");
    write_text(folder, "memory/old/memory.limit_in_bytes", "40000000\n");
    assert_int_equal(memory_available_in(folder, folder), 40000000);
    write_text(folder, "batch/job/memory.max", "max\n");
    write_text(folder, "batch/memory.max", "30000000\n");
    write_text(folder, "batch/memory.current", "12000000\n");
    assert_int_equal(memory_available_in(folder, folder), 18000000);
    write_text(folder, "batch/memory.stat", "anon 7000000\ninactive_file 3000000\nactive_file 2000000\n");
    assert_int_equal(memory_available_in(folder, folder), 23000000);
    write_text(folder, "memory.max", "1000000\n");
    assert_int_equal(memory_available_in(folder, folder), 1000000);
    write_text(folder, "memory.current", "2000000\n");
    assert_int_equal(memory_available_in(folder, folder), 0);
    EXPECT_OK(file_remove_tree(folder));
    assert_true(memory_available_bytes() > 0);
}

// As under ulimit -v.
static void test_address_space(void **state) {
    (void)state;
    struct rlimit before, tight;
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%lu", &pages), 1);
    fclose(file);
    const uint64_t more = (uint64_t)64 << 20;
    tight = before;
    tight.rlim_cur = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + more;
    assert_int_equal(setrlimit(RLIMIT_AS, &tight), 0);
    uint64_t left = memory_address_space_left(), available = memory_available_bytes();
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
    assert_in_range(left, more / 2, more);
    assert_true(available <= more);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_regions),
        cmocka_unit_test(test_many_regions_do_not_overlap),
        cmocka_unit_test(test_regions_that_are_too_large),
        cmocka_unit_test(test_arena),
        cmocka_unit_test(test_available),
        cmocka_unit_test(test_address_space),
        cmocka_unit_test(test_arena_beyond_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
