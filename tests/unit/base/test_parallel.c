// parallel_run: each part runs once and is visible to the caller, whatever the number of parts, the order of
// calls, how late workers are, and how many threads call.
#include "tests/support/expect.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/parallel.h"
#include "base/processors.h"

#define MAX_PARTS 40

struct counts {
    int *runs; // (n_parts) not atomic: one part is run by one thread, and the caller sees it
    int expected_parts, delay_us, delayed_part;
};

static void count(const void *context, int part, int n_parts) {
    const struct counts *counts = context;
    assert_int_equal(n_parts, counts->expected_parts);
    if (part == counts->delayed_part)
        usleep((useconds_t)counts->delay_us);
    counts->runs[part]++;
}

static void expect_each_once(int n_parts, int delayed_part, int delay_us) {
    int runs[MAX_PARTS] = {0};
    parallel_run(n_parts, count, &(struct counts){runs, n_parts, delay_us, delayed_part});
    for (int part = 0; part < MAX_PARTS; part++)
        assert_int_equal(runs[part], part < n_parts ? 1 : 0);
}

static void test_each_part_runs_once(void **state) {
    (void)state;
    for (int round = 0; round < 200; round++)
        for (int n_parts = 1; n_parts <= 9; n_parts++)
            expect_each_once((n_parts * 7 + round) % 9 + 1, -1, 0);
    expect_each_once(MAX_PARTS, -1, 0);
    expect_each_once(2, -1, 0);
}

// Workers fall asleep between calls, and callers while they wait.
static void test_late_parts(void **state) {
    (void)state;
    for (int part = 0; part < 4; part++) {
        expect_each_once(4, part, 3000);
        usleep(3000);
        expect_each_once(3, part, 3000);
    }
}

static void nest(const void *context, int part, int n_parts) {
    (void)part;
    (void)n_parts;
    atomic_int *total = *(atomic_int *const *)context;
    int runs[3] = {0};
    parallel_run(3, count, &(struct counts){runs, 3, 0, -1});
    atomic_fetch_add(total, runs[0] + runs[1] + runs[2]);
}

static void test_nested(void **state) {
    (void)state;
    atomic_int total = 0, *pointer = &total;
    parallel_run(5, nest, &pointer);
    assert_int_equal(atomic_load(&total), 15);
    expect_each_once(5, -1, 0);
}

static void *call_often(void *unused) {
    (void)unused;
    for (int i = 0; i < 300; i++)
        expect_each_once(1 + i % 4, -1, 0);
    return NULL;
}

// Each has its own workers, which end with it.
static void test_several_callers(void **state) {
    (void)state;
    pthread_t threads[3];
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 3; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, call_often, NULL), 0);
        call_often(NULL);
        for (int i = 0; i < 3; i++)
            assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
}

struct identities {
    pthread_t *threads;  // (n_parts)
    atomic_int *signals; // SIGUSR1 is not blocked on this many
};

static void identify(const void *context, int part, int n_parts) {
    (void)n_parts;
    const struct identities *identities = context;
    sigset_t blocked;
    identities->threads[part] = pthread_self();
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    atomic_fetch_add(identities->signals, !sigismember(&blocked, SIGUSR1));
    assert_false(sigismember(&blocked, SIGSEGV));
}

static void test_on_each_thread(void **state) {
    (void)state;
    pthread_t first[4], again[4];
    atomic_int unblocked = 0;
    parallel_run_on_each(4, identify, &(struct identities){first, &unblocked});
    parallel_run_on_each(4, identify, &(struct identities){again, &unblocked});
    assert_true(pthread_equal(first[0], pthread_self()));
    for (int i = 0; i < 4; i++) {
        assert_true(pthread_equal(first[i], again[i]));
        for (int j = 0; j < i; j++)
            assert_false(pthread_equal(first[i], first[j]));
    }
    assert_int_equal(atomic_load(&unblocked), 2); // the caller's, twice
}

static void test_spans_cover(void **state) {
    (void)state;
    for (size_t n = 0; n < 70; n++)
        for (int n_parts = 1; n_parts < 9; n_parts++) {
            size_t at = 0;
            for (int part = 0; part < n_parts; part++) {
                struct parallel_span span = parallel_span_of(n, 16, part, n_parts);
                assert_int_equal(span.begin, at);
                assert_true(span.end == n || span.end % 16 == 0);
                at = span.end;
            }
            assert_int_equal(at, n);
        }
}

static void test_number_of_threads(void **state) {
    (void)state;
    unsetenv("OMP_NUM_THREADS");
    assert_int_equal(processors_threads(7), 7);
    assert_int_equal(parallel_threads(), processors_usable());
    setenv("OMP_NUM_THREADS", "3,2", 1);
    assert_int_equal(processors_threads(7), 3);
    assert_int_equal(parallel_threads(), 3);
    setenv("OMP_NUM_THREADS", "many", 1);
    assert_int_equal(processors_threads(7), 7);
    unsetenv("OMP_NUM_THREADS");
    parallel_set_threads(5);
    assert_int_equal(parallel_threads(), 5);
}

// What the ranks of a machine get of its CPUs, by their masks.
static void test_division_of_processors(void **state) {
    (void)state;
    const struct processors_mask low = {{0xf}}, high = {{0, 0xf0}}, all = {{0xff, ~(uint64_t)0}},
                                 one = {{0, 0, 1}};
    const struct {
        struct processors_mask masks[4];
        int n, together, parts[4];
    } cases[] = {
        {{low}, 1, 4, {4}},
        {{low, low}, 2, 4, {2, 2}}, // a set smaller than the machine, which the launcher did not divide
        {{low, low, low, low}, 4, 4, {1, 1, 1, 1}},
        {{low, low, low}, 3, 4, {1, 1, 1}},
        {{one, one, one, one}, 4, 1, {1, 1, 1, 1}}, // fewer than ranks
        {{low, high}, 2, 8, {4, 4}},                // divided by the launcher
        {{low, low, high, high}, 4, 8, {2, 2, 2, 2}},
        {{all, low}, 2, 72, {70, 2}}, // in part
        {{{{0}}, {{0}}}, 2, 1, {1, 1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int k = 0; k < cases[i].n; k++) {
            int together;
            assert_int_equal(processors_divide(cases[i].masks, cases[i].n, k, &together), cases[i].parts[k]);
            assert_int_equal(together, cases[i].together);
        }
    struct processors_mask mine;
    int together;
    processors_get_mask(&mine);
    assert_int_equal(processors_divide(&mine, 1, 0, &together), processors_usable());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_part_runs_once),
        cmocka_unit_test(test_late_parts),
        cmocka_unit_test(test_nested),
        cmocka_unit_test(test_several_callers),
        cmocka_unit_test(test_on_each_thread),
        cmocka_unit_test(test_spans_cover),
        cmocka_unit_test(test_number_of_threads),
        cmocka_unit_test(test_division_of_processors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
