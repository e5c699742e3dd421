// Checks of adamw, sgd, sum_squares, fill, cast and add.
#include <math.h>

#include "tests/ops/op_check.h"

static const size_t spans[] = {1, 3, 7, 48, 257, 20011};
#define N_SPANS (sizeof spans / sizeof *spans)

// Zeros of both signs, numbers at and below the smallest normal one, and one beyond fp16 among ordinary
// values.
static void give_extremes(struct op_tensor *tensor) {
    static const double extremes[] = {0, -0.0, 0x1p-126, -0x1p-130, 0x1p-149, 1e-20, -1e-8, 7e4, -0x1.8p-24};
    for (size_t i = 0; i < tensor->span; i++)
        if (i % 3 == 2)
            op_give(tensor, i, extremes[i / 3 % (sizeof extremes / sizeof *extremes)]);
}

// The smallest difference between fp32 numbers: what a result below the normal ones may be off.
#define TINY 0x1p-149

// ---- AdamW

static const struct adamw_setting {
    int64_t step;
    double lr, beta1, beta2, epsilon, weight_decay;
    float grad_scale;
} adamw_settings[] = {
    {1, 6e-4, 0.9, 0.95, 1e-8, 0.1, 1.0f},
    {3, 1e-3, 0.9, 0.999, 1e-8, 0, 0.37f},
    {100000, 1e-2, 0.8, 0.99, 1e-6, 0.01, 1e-3f},
};
#define N_ADAMW_SETTINGS (sizeof adamw_settings / sizeof *adamw_settings)

struct adamw_tensors {
    struct op_tensor *grad, *m, *v, *master;
};

// The moments are weighted sums whose paths have at most five roundings (g's, g^2's, the weight's, product,
// sum). The direction mhat / (sqrt(vhat) + epsilon) is off by mhat's error, by the denominator's, which
// follows from the range of v, and by eight roundings; the update adds four more. Below the normal numbers a
// rounding is TINY / 2 at most, which the division by the denominator enlarges where it comes before it.
static void allow_adamw(const struct adamw_args *args, const struct adamw_tensors *t, size_t i) {
    double g = fabs(t->grad->given[i] * (double)args->grad_scale), master = fabs(t->master->given[i]);
    double m_off = 5 * OP_UNIT * (fabs(t->m->given[i]) + (1 - args->beta1) * g) + 4 * TINY;
    double v_off = 5 * OP_UNIT * (t->v->given[i] + (1 - args->beta2) * g * g) + 4 * TINY;
    double correction1 = 1 - pow(args->beta1, (double)args->step);
    double correction2 = 1 - pow(args->beta2, (double)args->step);
    double v = t->v->truth[i], root = sqrt(v / correction2);
    double lowest = sqrt(fmax(v - v_off, 0) / correction2), highest = sqrt((v + v_off) / correction2);
    double mhat = fabs(t->m->truth[i]) / correction1;
    double direction = mhat / (root + args->epsilon);
    double direction_off = m_off / correction1 / (lowest + args->epsilon) +
                           direction * (highest - lowest) / (lowest + args->epsilon) +
                           8 * OP_UNIT * direction;
    t->m->allowed[i] = m_off;
    t->v->allowed[i] = v_off;
    t->master->allowed[i] =
        args->lr * direction_off +
        4 * OP_UNIT * (args->lr * (direction + args->weight_decay * master) + fabs(t->master->truth[i])) +
        TINY / (lowest + args->epsilon) + 4 * TINY;
}

// Parameters may be bf16 or fp16, of the compute type fp32, or the master weights themselves.
static void adamw_call(struct op_bench *bench, enum dtype type, size_t n, const struct adamw_setting *s,
                       bool with_param) {
    struct adamw_args args = {.n = n,
                              .step = s->step,
                              .lr = s->lr,
                              .beta1 = s->beta1,
                              .beta2 = s->beta2,
                              .epsilon = s->epsilon,
                              .weight_decay = s->weight_decay,
                              .grad_scale = s->grad_scale,
                              .type = type};
    struct op_call call;
    op_call_begin(&call, bench, adamw, &args, "n %zu step %lld%s", n, (long long)s->step,
                  with_param ? " with param" : "");
    struct adamw_tensors t = {.grad = op_tensor(&call, "grad", &args.grad, DTYPE_F32, OP_READ, op_span(n)),
                              .m = op_tensor(&call, "m", &args.m, DTYPE_F32, OP_UPDATE, op_span(n)),
                              .v = op_tensor(&call, "v", &args.v, DTYPE_F32, OP_UPDATE, op_span(n)),
                              .master =
                                  op_tensor(&call, "master", &args.master, DTYPE_F32, OP_UPDATE, op_span(n))};
    struct op_tensor *param = NULL;
    if (with_param)
        param = op_tensor(&call, "param", &args.param, type, OP_WRITE, op_span(n));
    op_scale(t.m, 0, 0.1);
    give_extremes(t.grad);
    give_extremes(t.m);
    for (size_t i = 0; i < n; i++) // some elements are new: nothing in either moment
        op_give(t.v, i, i % 7 == 0 ? 0 : 0.1 * t.v->given[i] * t.v->given[i]);
    for (size_t i = 0; i < n; i += 7)
        op_give(t.m, i, 0);
    give_extremes(t.master);
    op_call_reference(&call);
    for (size_t i = 0; i < n; i++) {
        allow_adamw(&args, &t, i);
        if (with_param)
            param->allowed[i] = t.master->allowed[i] + OP_UNIT * fabs(t.master->truth[i]);
    }
    if (with_param)
        op_same_when_rounded(param, t.master);
    op_call_judge(&call);
}

void check_adamw(struct op_bench *bench) {
    FOR_EACH_TYPE(type)
    for (size_t i = 0; i < N_SPANS; i++)
        for (size_t k = 0; k < N_ADAMW_SETTINGS; k++) {
            adamw_call(bench, type, spans[i], &adamw_settings[k], true);
            adamw_call(bench, type, spans[i], &adamw_settings[k], false);
        }
    for (size_t n = 1; n <= 257; n++) // every tail that a shard may end with
        adamw_call(bench, (enum dtype)(n % N_COMPUTE_DTYPES), n, &adamw_settings[1], true);
}

// ---- SGD

static void sgd_call(struct op_bench *bench, enum dtype type, size_t n, int64_t step, bool with_momentum,
                     bool with_param) {
    struct sgd_args args = {.n = n,
                            .step = step,
                            .lr = 0.05,
                            .momentum = with_momentum ? 0.9 : 0,
                            .weight_decay = step == 2 ? 0.01 : 0,
                            .grad_scale = 0.7f,
                            .type = type};
    struct op_call call;
    op_call_begin(&call, bench, sgd, &args, "n %zu step %lld%s%s", n, (long long)step,
                  with_momentum ? " with momentum" : "", with_param ? " with param" : "");
    struct op_tensor *grad = op_tensor(&call, "grad", &args.grad, DTYPE_F32, OP_READ, op_span(n));
    struct op_tensor *master = op_tensor(&call, "master", &args.master, DTYPE_F32, OP_UPDATE, op_span(n));
    struct op_tensor *m = NULL, *param = NULL;
    give_extremes(grad);
    give_extremes(master);
    if (with_momentum) {
        m = op_tensor(&call, "m", &args.m, DTYPE_F32, OP_UPDATE, op_span(n));
        for (size_t i = 0; step == 1 && i < n; i++)
            op_give(m, i, (double)NAN); // not to be read
    }
    if (with_param)
        param = op_tensor(&call, "param", &args.param, type, OP_WRITE, op_span(n));
    op_call_reference(&call);
    for (size_t i = 0; i < n; i++) {
        // The longest path: grad, scaled, decay's sum, momentum's sum, lr and its product, the subtraction.
        double before = with_momentum && step > 1 ? fabs(m->given[i]) : 0, w = fabs(master->given[i]);
        double direction =
            fabs(grad->given[i] * (double)args.grad_scale) + args.weight_decay * w + args.momentum * before;
        if (with_momentum)
            m->allowed[i] = 5 * OP_UNIT * direction + 4 * TINY;
        master->allowed[i] = 7 * OP_UNIT * args.lr * direction + OP_UNIT * w + 4 * TINY;
        if (with_param)
            param->allowed[i] = master->allowed[i] + OP_UNIT * fabs(master->truth[i]);
    }
    if (with_param)
        op_same_when_rounded(param, master);
    op_call_judge(&call);
}

void check_sgd(struct op_bench *bench) {
    FOR_EACH_TYPE(type)
    for (size_t i = 0; i < N_SPANS; i++)
        for (int variant = 0; variant < 8; variant++)
            sgd_call(bench, type, spans[i], 1 + variant % 2, variant & 2, variant & 4);
}

// ---- sum_squares

void check_sum_squares(struct op_bench *bench) {
    static const size_t lengths[] = {
        1, 3, 257, SUM_SQUARES_BLOCK, SUM_SQUARES_BLOCK + 1, 2 * SUM_SQUARES_BLOCK + 77};
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        size_t n = lengths[k], n_blocks = (n + SUM_SQUARES_BLOCK - 1) / SUM_SQUARES_BLOCK;
        struct sum_squares_args args = {.n = n, .type = DTYPE_F32};
        struct op_call call;
        op_call_begin(&call, bench, sum_squares, &args, "n %zu", n);
        struct op_tensor *x = op_tensor(&call, "x", &args.x, DTYPE_F32, OP_READ, op_span(n));
        struct op_tensor *partial =
            op_tensor(&call, "partial", &args.partial, DTYPE_F64, OP_WRITE, op_span(n_blocks));
        give_extremes(x);
        for (size_t i = 0; i < n; i += 1001)
            op_give(x, i, 1e25); // its square is beyond fp32
        op_call_reference(&call);
        // Squares of fp32 numbers are exact in double; the reference may be off as much as the device.
        for (size_t i = 0; i < n_blocks; i++)
            partial->allowed[i] = 2 * SUM_SQUARES_BLOCK * 0x1p-53 * partial->truth[i];
        op_call_judge(&call);
    }
}

// ---- fill and cast

static void fill_call(struct op_bench *bench, enum dtype type, size_t n, float value) {
    struct fill_args args = {.n = n, .value = value, .type = type};
    struct op_call call;
    op_call_begin(&call, bench, fill, &args, "n %zu value %g", n, (double)value);
    op_tensor(&call, "out", &args.out, type, OP_WRITE, op_span(n))->exact = true;
    op_call_reference(&call);
    op_call_judge(&call);
}

void check_fill(struct op_bench *bench) {
    static const float values[] = {0, 1, -3.14159265f, 0x1p-130f, -0x1.8p-24f, 65519, 65520, INFINITY};
    FOR_EACH_TYPE(type) {
        for (size_t i = 0; i < N_SPANS; i++)
            for (size_t k = 0; k < sizeof values / sizeof *values; k++)
                fill_call(bench, type, spans[i], values[k]);
        fill_call(bench, type, 300007, 2); // more than one round of a small GPU's blocks
    }
}

// For bf16 and for fp16: ties to even above and below, the last value before infinity and those after,
// subnormal numbers; NaN.
static void give_cast_inputs(struct op_tensor *x) {
    static const double values[] = {
        0x1.01p0,    0x1.03p0,   0x1.0100020p0, 0x1.00fffep0, -0x1.01p0,   -0x1.03p0,       0x1.fffffep127,
        0x1.fep127,  0x1.ffp127, INFINITY,      -INFINITY,    (double)NAN, 0x1p-149,        0x1.8p-133,
        -0x1.4p-130, 0.0,        -0.0,          0x1.002p0,    0x1.006p0,   0x1.002002p0,    0x1.001ffep0,
        -0x1.002p0,  -0x1.006p0, 65504,         65519,        65520,       -65520,          1e6,
        0x1.ffep-15, 0x1p-14,    0x1p-24,       0x1p-25,      0x1.8p-24,   -0x1.000002p-25,
    };
    for (size_t i = 0; i < x->span; i++)
        if (x->span < 100 || i % 2)
            op_give(x, i, values[i / 2 % (sizeof values / sizeof *values)]);
}

void check_cast(struct op_bench *bench) {
    FOR_EACH_TYPE(type)
    FOR_EACH_TYPE(out_type)
    for (size_t i = 0; i < N_SPANS; i++) {
        struct cast_args args = {.n = spans[i], .type = type, .out_type = out_type};
        struct op_call call;
        op_call_begin(&call, bench, cast, &args, "to %s n %zu", dtype_name(out_type), spans[i]);
        call.out_type = &args.out_type;
        give_cast_inputs(op_tensor(&call, "x", &args.x, type, OP_READ, op_span(spans[i])));
        op_tensor(&call, "out", &args.out, out_type, OP_WRITE, op_span(spans[i]))->exact = true;
        op_call_reference(&call);
        op_call_judge(&call);
    }
}

// ---- add

void check_add(struct op_bench *bench) {
    FOR_EACH_TYPE(type)
    for (size_t i = 0; i < N_SPANS; i++)
        for (int in_place = 0; in_place < 2; in_place++) {
            struct add_args args = {.n = spans[i], .type = type};
            struct op_call call;
            op_call_begin(&call, bench, add, &args, "n %zu%s", spans[i], in_place ? " in place" : "");
            struct op_tensor *x =
                op_tensor(&call, "x", &args.x, DTYPE_F32, in_place ? OP_UPDATE : OP_READ, op_span(spans[i]));
            struct op_tensor *y = op_tensor(&call, "y", &args.y, type, OP_READ, op_span(spans[i]));
            struct op_tensor *out = x;
            if (in_place)
                op_alias(x, &args.out);
            else
                out = op_tensor(&call, "out", &args.out, DTYPE_F32, OP_WRITE, op_span(spans[i]));
            give_extremes(x);
            give_extremes(y);
            out->exact = true; // the sum of two floats is exact in double or rounds the same way once more
            op_call_reference(&call);
            op_call_judge(&call);
        }
}
