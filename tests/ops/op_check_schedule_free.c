// Checks of schedule-free AdamW, a rule of optimizer_step, against the reference in double, and that two
// devices give the same bits.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tests/ops/op_check.h"
#include "tests/ops/op_check_optimizer.h"

#define EXPECT_OK(...) assert_int_equal((__VA_ARGS__), STATUS_OK)

static const struct setting {
    int64_t step;
    double lr, beta1, beta2, epsilon, weight_decay;
    float average_weight, grad_scale;
} settings[] = {
    {1, 6e-4, 0.9, 0.95, 1e-8, 0.1, 1, 1},
    {3, 1e-2, 0.98, 0.999, 1e-8, 0, 0.3f, 0.37f},
    {100000, 1e-2, 0.8, 0.99, 1e-6, 0.01, 1e-5f, 1e-3f},
    {2, 0, 0.9, 0.99, 1e-8, 0.1, 0, 1}, // no rate yet: nothing moves
};
enum { N_SETTINGS = sizeof settings / sizeof *settings };

static struct optimizer_step_args args_of(const struct setting *setting, size_t n) {
    return (struct optimizer_step_args){.rule = OPTIMIZER_SCHEDULE_FREE,
                                        .n = n,
                                        .step = setting->step,
                                        .lr = setting->lr,
                                        .beta1 = setting->beta1,
                                        .beta2 = setting->beta2,
                                        .epsilon = setting->epsilon,
                                        .weight_decay = setting->weight_decay,
                                        .average_weight = setting->average_weight,
                                        .grad_scale = setting->grad_scale,
                                        .type = DTYPE_F32,
                                        .grad_type = DTYPE_F32,
                                        .state_type = DTYPE_F32};
}

struct tensors {
    struct op_tensor *grad, *y, *z, *v, *param;
};

// The direction's error: that of v, at most four roundings, through the root; and eight more roundings. y and
// z add four each, relative to their terms.
static void allow(const struct optimizer_step_args *args, const struct tensors *t, size_t i) {
    const double g = t->grad->given[i] * (double)args->grad_scale, y = t->y->given[i],
                 z = args->step > 1 ? t->z->given[i] : y, v = t->v->truth[i],
                 v_off = 6 * OP_UNIT * v + 0x1p-147, correction = 1 - pow(args->beta2, (double)args->step),
                 lowest = sqrt(fmax(v - v_off, 0) / correction) + args->epsilon,
                 root = sqrt(v / correction) + args->epsilon,
                 direction_off = fabs(g) * (1 / lowest - 1 / root) + 10 * OP_UNIT * fabs(g) / lowest +
                                 4 * OP_UNIT * args->weight_decay * fabs(y) + 0x1p-149 / lowest,
                 direction = fabs(g) / root + args->weight_decay * fabs(y);
    t->v->allowed[i] = v_off;
    t->z->allowed[i] =
        args->lr * (direction_off + 4 * OP_UNIT * direction) + 2 * OP_UNIT * fabs(z) + 0x1p-147;
    t->y->allowed[i] =
        t->z->allowed[i] + 4 * OP_UNIT * (fabs(y) + (double)args->average_weight * fabs(z - y));
    if (t->param)
        t->param->allowed[i] = t->y->allowed[i] + OP_UNIT * fabs(t->y->truth[i]);
}

static void step_call(struct op_bench *bench, const struct setting *setting, enum dtype type,
                      enum dtype grad_type, size_t n, bool with_param) {
    struct optimizer_step_args args = args_of(setting, n);
    struct op_call call;
    args.type = type;
    args.grad_type = grad_type;
    op_call_begin(&call, bench, optimizer_step, &args, "schedule-free n %zu step %lld, %s gradients%s", n,
                  (long long)args.step, dtype_name(grad_type), with_param ? ", param" : "");
    struct tensors t = {
        .grad = op_add_tensor(&call, "grad", &args.grad, grad_type, OP_READ, op_span(n)),
        .y = op_add_tensor(&call, "y", &args.state.master, DTYPE_F32, OP_UPDATE, op_span(n)),
        .z = op_add_tensor(&call, "z", &args.state.m, DTYPE_F32, OP_UPDATE, op_span(n)),
        .v = op_add_tensor(&call, "v", &args.state.v, DTYPE_F32, OP_UPDATE, op_span(n)),
        .param = with_param ? op_add_tensor(&call, "param", &args.param, type, OP_WRITE, op_span(n)) : NULL};
    for (size_t i = 0; i < n; i++) {
        op_give(t.v, i, i % 7 == 0 ? 0 : 0.1 * t.v->given[i] * t.v->given[i]);
        if (args.step == 1)
            op_give(t.z, i, (double)NAN); // must not be read
    }
    op_call_reference(&call);
    for (size_t i = 0; i < n; i++)
        allow(&args, &t, i);
    if (t.param)
        op_same_when_rounded(t.param, t.y);
    op_call_judge(&call);
}

void op_check_schedule_free(struct op_bench *bench) {
    static const size_t lengths[] = {1, 15, 77, 257, 20011};
    for (size_t k = 0; k < 5; k++)
        for (size_t s = 0; s < N_SETTINGS; s++)
            FOR_EACH_TYPE(type) {
                step_call(bench, &settings[s], type, DTYPE_F32, lengths[k], true);
                step_call(bench, &settings[s], type, (enum dtype)((k + s) % N_COMPUTE_DTYPES), lengths[k],
                          false);
            }
}

// ---- the same bits

enum { N = 1003, N_ARRAYS = 4 }; // y, z, v; the gradients

// Three steps of a device.
static void steps_on(struct op_bench *bench, float arrays[N_ARRAYS][N]) {
    struct stream stream;
    void *there[N_ARRAYS];
    EXPECT_OK(stream_init(&stream, bench->device));
    for (int k = 0; k < N_ARRAYS; k++) {
        EXPECT_OK(bench->device->memory_new(bench->device, sizeof arrays[k], "tests", &there[k]));
        for (int i = 0; i < N; i++)
            arrays[k][i] = k == 2 ? 0 : (float)((i * 37 + k * 11) % 101 - 50) * 0.0137f;
        EXPECT_OK(bench->device->copy(&stream, there[k], arrays[k], sizeof arrays[k]));
    }
    for (int step = 1; step <= 3; step++) {
        struct optimizer_step_args args = args_of(&settings[1], N);
        args.step = step;
        args.average_weight = 1 / (float)step;
        args.state = (struct optimizer_state){.master = there[0], .m = there[1], .v = there[2]};
        args.grad = there[3];
        EXPECT_OK(bench->device->ops->optimizer_step(&stream, &args));
        bench->n_calls[OP_optimizer_step]++;
    }
    for (int k = 0; k < N_ARRAYS; k++) {
        EXPECT_OK(bench->device->copy(&stream, arrays[k], there[k], sizeof arrays[k]));
        EXPECT_OK(bench->device->synchronize(&stream));
        bench->device->memory_delete(bench->device, there[k], sizeof arrays[k]);
    }
    stream_free(&stream);
}

void op_check_same_schedule_free(struct op_bench *bench, struct op_bench *other) {
    static float mine[N_ARRAYS][N], theirs[N_ARRAYS][N];
    steps_on(bench, mine);
    steps_on(other, theirs);
    assert_memory_equal(mine, theirs, sizeof mine);
}
