// The rate that steps are compared with: measured again when a step exceeds it, and then never below that
// step.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/log.h"
#include "tests/support/expect.h"
#include "trainer/machine.h"

#define SLOW 1e6 // FLOP/s, as if measured while the machine was taken
#define FAST 1e18

#define N_EMBD    64
#define WEIGHTS   ((size_t)(N_EMBD * 4 * N_EMBD))
#define MATRICES  ((size_t)(64 * 5 * N_EMBD)) // at least 64 rows are measured, of x and of out
#define WORKSPACE ((size_t)8 << 20)

static struct run run;
static struct config config;
static float *weights, *matrices; // the run's memory

// As a run's, with room for so many numbers of activations.
static enum status lay_out(size_t activations) {
    struct region_table *table = &run.memory.table;
    int params, others, workspace;
    if (run.memory.device)
        region_memory_free(&run.memory);
    region_memory_init(&run.memory, run.machine.device);
    TRY(region_add(table, REGION_PARAMS, REGION_HOST, DTYPE_F32, WEIGHTS, &params, "params"));
    TRY(region_add(table, REGION_ACTIVATIONS, REGION_HOST, DTYPE_F32, activations, &others, "activations"));
    TRY(region_add(table, REGION_WORKSPACE, REGION_HOST, DTYPE_U8, WORKSPACE, &workspace, "workspace"));
    TRY(region_memory_allocate(&run.memory));
    weights = region_data(table, params);
    matrices = region_data(table, others);
    for (size_t i = 0; i < WEIGHTS; i++)
        weights[i] = (float)(i % 251);
    return STATUS_OK;
}

static int set_up(void **unused) {
    (void)unused;
    static const char text[] =
        "{\"model\": {\"n_embd\": 64, \"n_head\": 4}, \"train\": {\"micro_batch_size\": 2, "
        "\"seq_len\": 16}}";
    log_set_level(LOG_QUIET);
    run.config = &config;
    run.type = DTYPE_F32;
    run.comm = comm_open_self();
    return config_parse(&config, text, sizeof text - 1, "test") == STATUS_OK &&
                   device_open("cpu", 1, 0, &run.machine.device) == STATUS_OK &&
                   lay_out(MATRICES) == STATUS_OK
               ? 0
               : -1;
}

static int tear_down(void **unused) {
    (void)unused;
    region_memory_free(&run.memory);
    device_close(run.machine.device);
    config_free(&config);
    return comm_close(run.comm, STATUS_OK) == STATUS_OK ? 0 : -1;
}

static void test_a_slower_step_changes_nothing(void **unused) {
    (void)unused;
    run.machine.gemm_rate = SLOW;
    EXPECT_OK(machine_check_rate(&run, SLOW));
    assert_true(run.machine.gemm_rate == SLOW);
}

static void test_a_faster_step_has_the_rate_measured(void **unused) {
    (void)unused;
    run.machine.gemm_rate = run.machine.limits.flops_per_s = SLOW;
    EXPECT_OK(machine_check_rate(&run, 2 * SLOW));
    assert_true(run.machine.gemm_rate > 10 * SLOW); // measured: any processor multiplies faster than this
    assert_true(run.machine.limits.flops_per_s == run.machine.gemm_rate);
}

static void test_the_rate_is_at_least_that_of_the_step(void **unused) {
    (void)unused;
    run.machine.gemm_rate = SLOW;
    EXPECT_OK(machine_check_rate(&run, FAST));
    assert_true(run.machine.gemm_rate == FAST);
}

// A measurement takes no memory that the plan does not have: weights are read, activations overwritten.
static void test_it_is_measured_in_the_runs_memory(void **unused) {
    (void)unused;
    EXPECT_OK(lay_out(MATRICES));
    run.machine.gemm_rate = SLOW;
    EXPECT_OK(machine_check_rate(&run, 2 * SLOW));
    for (size_t i = 0; i < WEIGHTS; i++)
        assert_true(weights[i] == (float)(i % 251));
    bool written = false;
    for (size_t i = 0; i < MATRICES; i++)
        written = written || matrices[i] != 0;
    assert_true(written);
}

static void test_a_run_with_less_memory_takes_the_steps_rate(void **unused) {
    (void)unused;
    EXPECT_OK(lay_out(MATRICES / 2));
    run.machine.gemm_rate = SLOW;
    EXPECT_OK(machine_check_rate(&run, 2 * SLOW));
    assert_true(run.machine.gemm_rate == 2 * SLOW);
    EXPECT_OK(lay_out(MATRICES));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_slower_step_changes_nothing),
        cmocka_unit_test(test_a_faster_step_has_the_rate_measured),
        cmocka_unit_test(test_the_rate_is_at_least_that_of_the_step),
        cmocka_unit_test(test_it_is_measured_in_the_runs_memory),
        cmocka_unit_test(test_a_run_with_less_memory_takes_the_steps_rate),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
