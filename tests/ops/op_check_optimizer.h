// The optimizers that tests of optimizer_step go through, and arguments to try them with.
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

// With rule, n and the setting's numbers.
struct optimizer_step_args op_optimizer_args(const struct op_optimizer *optimizer,
                                             const struct op_optimizer_setting *setting, size_t n);

// With moments in bf16 and int8; op_check_moments.c says how they are judged.
void op_check_narrow_moments(struct op_bench *bench);
// Ten million elements in fp32, on a device of host memory.
void op_check_long_span(struct op_bench *bench, const struct op_optimizer *optimizer);
// Whether steps on two devices have the same bits: all rules and types.
void op_check_same_steps(struct op_bench *bench, struct op_bench *other);

#endif
