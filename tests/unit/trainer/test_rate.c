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
#include "trainer/trainer_internal.h"

#define SLOW 1e6 // FLOP/s, as if measured while the machine was taken
#define FAST 1e18

static struct trainer trainer;
static struct config config;

static int set_up(void **unused) {
    (void)unused;
    static const char text[] =
        "{\"model\": {\"n_embd\": 64, \"n_head\": 4}, \"train\": {\"micro_batch_size\": 2, "
        "\"seq_len\": 16}}";
    log_set_level(LOG_QUIET);
    trainer.config = &config;
    trainer.type = DTYPE_F32;
    trainer.comm = comm_open_self();
    return config_parse(&config, text, sizeof text - 1, "test") == STATUS_OK &&
                   device_open("cpu", 1, 0, &trainer.device) == STATUS_OK
               ? 0
               : -1;
}

static int tear_down(void **unused) {
    (void)unused;
    device_close(trainer.device);
    config_free(&config);
    return comm_close(trainer.comm, STATUS_OK) == STATUS_OK ? 0 : -1;
}

static void test_a_slower_step_changes_nothing(void **unused) {
    (void)unused;
    trainer.gemm_rate = SLOW;
    EXPECT_OK(trainer_check_rate(&trainer, SLOW));
    assert_true(trainer.gemm_rate == SLOW);
}

static void test_a_faster_step_has_the_rate_measured(void **unused) {
    (void)unused;
    trainer.gemm_rate = trainer.limits.flops_per_s = SLOW;
    EXPECT_OK(trainer_check_rate(&trainer, 2 * SLOW));
    assert_true(trainer.gemm_rate > 10 * SLOW); // measured: any processor multiplies faster than this
    assert_true(trainer.limits.flops_per_s == trainer.gemm_rate);
}

static void test_the_rate_is_at_least_that_of_the_step(void **unused) {
    (void)unused;
    trainer.gemm_rate = SLOW;
    EXPECT_OK(trainer_check_rate(&trainer, FAST));
    assert_true(trainer.gemm_rate == FAST);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_slower_step_changes_nothing),
        cmocka_unit_test(test_a_faster_step_has_the_rate_measured),
        cmocka_unit_test(test_the_rate_is_at_least_that_of_the_step),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
