// The optimizers that tests of optimizer_step cover, and arguments for them.
#ifndef ZERO_TESTS_OPS_OP_CHECK_OPTIMIZER_H
#define ZERO_TESTS_OPS_OP_CHECK_OPTIMIZER_H

#include "tests/ops/op_check.h"

enum { N_OP_OPTIMIZERS = 5, N_OP_OPTIMIZER_SETTINGS = 3 };

extern const struct op_optimizer {
    const char *name;
    enum optimizer_rule rule;
    int n_moments;
} op_optimizers[N_OP_OPTIMIZERS];

extern const struct op_optimizer_setting {
    int64_t step;
    double lr, beta1, beta2, epsilon, weight_decay;
    float grad_scale;
} op_optimizer_settings[N_OP_OPTIMIZER_SETTINGS];

// Arguments with rule, n and the numbers of the setting.
struct optimizer_step_args op_optimizer_args(const struct op_optimizer *optimizer,
                                             const struct op_optimizer_setting *setting, size_t n);

// Moments in bf16 and int8; see op_check_moments.c.
void op_check_small_moments(struct op_bench *bench);
// Muon's momentum; see op_check_muon.c.
void op_check_muon_momentum(struct op_bench *bench);
// Schedule-free AdamW, whose states are always fp32; see op_check_schedule_free.c.
void op_check_schedule_free(struct op_bench *bench);
void op_check_same_schedule_free(struct op_bench *bench, struct op_bench *other);
// Checks a step over ten million elements in fp32, on a device that works in host memory.
void op_check_long_span(struct op_bench *bench, const struct op_optimizer *optimizer);
// Checks that steps on two devices give the same bits, for all rules and types.
void op_check_same_steps(struct op_bench *bench, struct op_bench *other);

#endif
