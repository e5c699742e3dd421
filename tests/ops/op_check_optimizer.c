// Checks of optimizer_step: every rule with fp32 moments against the reference in double, element by element.
// Moments in bf16 and int8: op_check_moments.c.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/moments.h"
#include "tests/ops/op_check.h"
#include "tests/ops/op_check_optimizer.h"

// The smallest difference between fp32 numbers: the error of a subnormal result.
#define TINY 0x1p-149

const struct op_optimizer op_optimizers[N_OP_OPTIMIZERS] = {
    {"adamw", OPTIMIZER_ADAMW, 2},           {"adam", OPTIMIZER_ADAM, 2}, {"sgd", OPTIMIZER_SGD, 0},
    {"sgd with momentum", OPTIMIZER_SGD, 1}, {"lion", OPTIMIZER_LION, 1},
};

const struct op_optimizer_setting op_optimizer_settings[N_OP_OPTIMIZER_SETTINGS] = {
    {1, 6e-4, 0.9, 0.95, 1e-8, 0.1, 1.0f},
    {3, 1e-3, 0.9, 0.999, 1e-8, 0, 0.37f},
    {100000, 1e-2, 0.8, 0.99, 1e-6, 0.01, 1e-3f},
};

struct optimizer_step_args op_optimizer_args(const struct op_optimizer *optimizer,
                                             const struct op_optimizer_setting *setting, size_t n) {
    return (struct optimizer_step_args){.rule = optimizer->rule,
                                        .n = n,
                                        .step = setting->step,
                                        .lr = setting->lr,
                                        .beta1 = setting->beta1,
                                        .beta2 = setting->beta2,
                                        .epsilon = setting->epsilon,
                                        .weight_decay = setting->weight_decay,
                                        .grad_scale = setting->grad_scale};
}

// ---- error bounds

// 1 - beta^step of both betas
#define CORRECTION(args)                                                                                     \
    { 1 - pow((args)->beta1, (double)(args)->step), 1 - pow((args)->beta2, (double)(args)->step) }

// One element: the magnitudes before the step, and the exact results.
struct element {
    double g, weight, m, v;                    // g: unscaled, coupled weight decay included
    double new_weight, new_m, new_v;           // in double
    double weight_off, m_off, v_off, g_rounds; // g_rounds: roundings of the gradient, before the moments
};

// A moment is a weighted sum with at most four roundings on any path, after those of the gradient: of the
// difference, of 1 - beta, of the fused sum, and of g^2. The error of the direction mhat / (sqrt(vhat) +
// epsilon) is that of mhat, that of the denominator, which follows from the range of v, and eight roundings.
// The update adds four more. A rounding to a subnormal number is at most TINY / 2; the division enlarges it
// if it comes later.
static void allow_adam(const struct optimizer_step_args *args, const double correction[2],
                       struct element *e) {
    e->m_off = (4 + e->g_rounds) * OP_UNIT * (e->m + (1 - args->beta1) * e->g) + 4 * TINY;
    e->v_off = (3 + 2 * e->g_rounds) * OP_UNIT * (e->v + (1 - args->beta2) * e->g * e->g) + 4 * TINY;
    double root = sqrt(e->new_v / correction[1]);
    double lowest = sqrt(fmax(e->new_v - e->v_off, 0) / correction[1]);
    double highest = sqrt((e->new_v + e->v_off) / correction[1]);
    double mhat = fabs(e->new_m) / correction[0], direction = mhat / (root + args->epsilon);
    double direction_off = e->m_off / correction[0] / (lowest + args->epsilon) +
                           direction * (highest - lowest) / (lowest + args->epsilon) +
                           8 * OP_UNIT * direction;
    double decay = args->rule == OPTIMIZER_ADAMW ? args->weight_decay * e->weight : 0;
    e->weight_off = args->lr * direction_off +
                    4 * OP_UNIT * (args->lr * (direction + decay) + fabs(e->new_weight)) +
                    TINY / (lowest + args->epsilon) + 4 * TINY;
}

static void allow_sgd(const struct optimizer_step_args *args, bool with_momentum, struct element *e) {
    double direction = e->g + (with_momentum && args->step > 1 ? args->beta1 * e->m : 0);
    e->m_off = (2 + e->g_rounds) * OP_UNIT * direction + 4 * TINY;
    e->weight_off = (4 + e->g_rounds) * OP_UNIT * args->lr * direction + OP_UNIT * e->weight + 4 * TINY;
}

// Where the sign of the sum is within its error, either sign and zero are correct.
static void allow_lion(const struct optimizer_step_args *args, double g, double m, struct element *e) {
    double mixed = args->beta1 * m + (1 - args->beta1) * g;
    double off = (4 + e->g_rounds) * OP_UNIT * (e->m + (1 - args->beta1) * (e->g + e->m)) + 4 * TINY;
    e->m_off = (4 + e->g_rounds) * OP_UNIT * (e->m + (1 - args->beta2) * (e->g + e->m)) + 4 * TINY;
    bool either = isfinite(off) && fabs(mixed) <= off && (g != 0 || m != 0);
    e->weight_off = 4 * OP_UNIT * (args->lr * (1 + args->weight_decay * e->weight) + fabs(e->new_weight)) +
                    4 * TINY + (either ? 2 * args->lr : 0);
}

// Computes the element's bounds from the other fields.
static void allow(const struct optimizer_step_args *args, const double correction[2], int n_moments,
                  double grad, double weight, double m, struct element *e) {
    double scaled = grad * (double)args->grad_scale;
    bool coupled = args->rule == OPTIMIZER_ADAM || args->rule == OPTIMIZER_SGD;
    e->g = fabs(scaled) + (coupled ? args->weight_decay * fabs(weight) : 0);
    e->g_rounds = coupled ? 3 : 1;
    e->weight = fabs(weight);
    e->m = fabs(m);
    if (args->rule == OPTIMIZER_SGD)
        allow_sgd(args, n_moments > 0, e);
    else if (args->rule == OPTIMIZER_LION)
        allow_lion(args, scaled, m, e);
    else
        allow_adam(args, correction, e);
}

struct tensors {
    struct op_tensor *grad, *master, *m, *v; // before
    struct op_tensor *param;
};

static void allow_element(const struct optimizer_step_args *args, const double correction[2],
                          const struct tensors *t, size_t i) {
    struct element e = {.v = t->v ? t->v->given[i] : 0,
                        .new_weight = t->master->truth[i],
                        .new_m = t->m ? t->m->truth[i] : 0,
                        .new_v = t->v ? t->v->truth[i] : 0};
    allow(args, correction, t->m != NULL, t->grad->given[i], t->master->given[i], t->m ? t->m->given[i] : 0,
          &e);
    t->master->allowed[i] = e.weight_off;
    if (t->m)
        t->m->allowed[i] = e.m_off;
    if (t->v)
        t->v->allowed[i] = e.v_off;
    if (t->param)
        t->param->allowed[i] = e.weight_off + OP_UNIT * fabs(e.new_weight);
}

// ---- calls

// Variants of a call.
struct variant {
    const struct op_optimizer *optimizer;
    const struct op_optimizer_setting *setting;
    enum dtype type, grad_type;
    bool with_param, infinite; // infinite: some gradients are infinities and NaN
};

static void describe(struct op_call *call, const struct variant *variant, struct optimizer_step_args *args,
                     struct tensors *t) {
    size_t n = args->n;
    t->grad = op_add_tensor(call, "grad", &args->grad, variant->grad_type, OP_READ, op_span(n));
    t->master = op_add_tensor(call, "master", &args->state.master, DTYPE_F32, OP_UPDATE, op_span(n));
    if (variant->optimizer->n_moments > 0)
        t->m = op_add_tensor(call, "m", &args->state.m, DTYPE_F32, OP_UPDATE, op_span(n));
    if (variant->optimizer->n_moments > 1)
        t->v = op_add_tensor(call, "v", &args->state.v, DTYPE_F32, OP_UPDATE, op_span(n));
    if (variant->with_param)
        t->param = op_add_tensor(call, "param", &args->param, variant->type, OP_WRITE, op_span(n));
}

static void give(const struct variant *variant, const struct optimizer_step_args *args,
                 const struct tensors *t) {
    static const double infinite[] = {INFINITY, -INFINITY, (double)NAN};
    op_give_extremes(t->grad);
    op_give_extremes(t->master);
    for (size_t i = 0; variant->infinite && i < args->n; i += 5)
        op_give(t->grad, i, infinite[i % 3]);
    if (t->m) {
        op_scale(t->m, 0, 0.1);
        op_give_extremes(t->m);
        for (size_t i = 0; i < args->n; i += 7)
            op_give(t->m, i, 0); // some elements are new: both moments are zero
        for (size_t i = 0; args->rule == OPTIMIZER_SGD && args->step == 1 && i < args->n; i++)
            op_give(t->m, i, (double)NAN); // must not be read
    }
    for (size_t i = 0; t->v && i < args->n; i++)
        op_give(t->v, i, i % 7 == 0 ? 0 : 0.1 * t->v->given[i] * t->v->given[i]);
}

// The parameters are in any compute dtype, fp32 included, or absent: then the master weights are the
// parameters.
static void step_call(struct op_bench *bench, size_t n, const struct variant *variant) {
    struct optimizer_step_args args = op_optimizer_args(variant->optimizer, variant->setting, n);
    args.type = variant->type;
    args.grad_type = variant->grad_type;
    struct op_call call;
    op_call_begin(&call, bench, optimizer_step, &args, "%s n %zu step %lld, %s gradients%s%s",
                  variant->optimizer->name, n, (long long)args.step, dtype_name(args.grad_type),
                  variant->with_param ? ", param" : "", variant->infinite ? ", infinities" : "");
    struct tensors t = {0};
    describe(&call, variant, &args, &t);
    give(variant, &args, &t);
    op_call_reference(&call);
    const double correction[2] = CORRECTION(&args);
    for (size_t i = 0; i < n; i++)
        allow_element(&args, correction, &t, i);
    if (t.param)
        op_same_when_rounded(t.param, t.master);
    op_call_judge(&call);
}

static struct variant variant_of(size_t k, const struct op_optimizer *optimizer) {
    return (struct variant){.optimizer = optimizer,
                            .type = (enum dtype)(k % N_COMPUTE_DTYPES),
                            .grad_type = (enum dtype)(k / 3 % N_COMPUTE_DTYPES),
                            .with_param = k / 9 % 4 < 3,
                            .setting = &op_optimizer_settings[(k + k / 9) % N_OP_OPTIMIZER_SETTINGS],
                            .infinite = k / 2 % 2 == 0};
}

// Where the run is short, each variant has one of the settings, in turns, and of the tails there is each
// fifth: all lengths modulo an access.
void check_optimizer_step(struct op_bench *bench) {
    const size_t every_setting = op_is_short(bench) ? N_OP_OPTIMIZER_SETTINGS : 1;
    const size_t every_length = op_is_short(bench) ? 5 : 1;
    for (size_t rule = 0; rule < N_OP_OPTIMIZERS; rule++) {
        // All variants, at a length with whole vectors and a tail.
        for (size_t k = 0; k < 36; k++)
            for (size_t setting = k / 5 % every_setting; setting < N_OP_OPTIMIZER_SETTINGS;
                 setting += every_setting) {
                struct variant variant = variant_of(k, &op_optimizers[rule]);
                variant.setting = &op_optimizer_settings[setting];
                step_call(bench, 77, &variant);
            }
        for (size_t n = 1; n <= 257; n += every_length) { // every tail
            struct variant variant = variant_of(n, &op_optimizers[rule]);
            step_call(bench, n, &variant);
        }
        for (size_t k = 0; k < 12; k++) {
            struct variant variant = variant_of(7 * k, &op_optimizers[rule]);
            step_call(bench, 20011, &variant);
        }
    }
    op_check_small_moments(bench);
    op_check_muon_momentum(bench);
    op_check_schedule_free(bench);
}

// ---- one long span

enum { LONG = 10000019, CHUNK = 65536 }; // a prime length, judged a chunk at a time
enum { GRAD, WEIGHT, M, V, N_ARRAYS };

// Numbers of all magnitudes, without the cost of rng_normal: random sign and fraction, and an exponent of
// about 2^-40 to 2^2. One in 16 is zero, one in 16 subnormal.
static float long_value(int array, size_t i) {
    uint32_t bits = moment_mix((uint32_t)i * N_ARRAYS + (uint32_t)array), kind = moment_mix(bits) % 16;
    uint32_t exponent = kind == 1 ? 0 : 87 + bits % 43;
    float value = kind == 0 ? 0 : moment_float((bits & 0x807fffffu) | exponent << 23);
    return array == V ? fabsf(value) * 0x1p-4f : value;
}

static void judge_long(const struct optimizer_step_args *args, int n_moments, size_t first, size_t n,
                       float *const arrays[], double *const before[], double *const after[]) {
    const double correction[2] = CORRECTION(args);
    for (size_t i = 0; i < n; i++) {
        struct element e = {.v = n_moments > 1 ? before[V][i] : 0,
                            .new_weight = after[WEIGHT][i],
                            .new_m = n_moments > 0 ? after[M][i] : 0,
                            .new_v = n_moments > 1 ? after[V][i] : 0};
        allow(args, correction, n_moments, before[GRAD][i], before[WEIGHT][i],
              n_moments > 0 ? before[M][i] : 0, &e);
        double offs[N_ARRAYS] = {0, e.weight_off, e.m_off, e.v_off};
        for (int k = WEIGHT; k <= WEIGHT + n_moments; k++) {
            double got = (double)arrays[k][first + i], wanted = after[k][i];
            if (!(fabs(got - wanted) <= offs[k] * (1 + 2 * OP_UNIT) + OP_UNIT * fabs(wanted) + TINY))
                fail_msg("array %d, element %zu: %.9g, expected %.9g, allowed %.3g", k, first + i, got,
                         wanted, offs[k]);
        }
    }
}

void op_check_long_span(struct op_bench *bench, const struct op_optimizer *optimizer) {
    struct stream stream;
    float *arrays[N_ARRAYS];
    double *before[N_ARRAYS], *after[N_ARRAYS];
    assert_int_equal(stream_init(&stream, bench->device), STATUS_OK);
    for (int k = 0; k < N_ARRAYS; k++) {
        void *memory;
        assert_int_equal(bench->device->memory_new(bench->device, LONG * sizeof(float), "tests", &memory),
                         STATUS_OK);
        arrays[k] = memory;
        before[k] = malloc(CHUNK * sizeof(double));
        after[k] = malloc(CHUNK * sizeof(double));
        assert_true(before[k] && after[k]);
        for (size_t i = 0; i < LONG; i++)
            arrays[k][i] = long_value(k, i);
    }
    struct optimizer_step_args args = op_optimizer_args(optimizer, &op_optimizer_settings[1], LONG);
    args.state = (struct optimizer_state){
        .master = arrays[WEIGHT], .m = optimizer->n_moments > 0 ? arrays[M] : NULL, .v = arrays[V]};
    args.grad = arrays[GRAD];
    assert_int_equal(bench->device->ops->optimizer_step(&stream, &args), STATUS_OK);
    for (size_t first = 0; first < LONG; first += CHUNK) {
        size_t n = LONG - first < CHUNK ? LONG - first : CHUNK;
        for (int k = 0; k < N_ARRAYS; k++)
            for (size_t i = 0; i < n; i++)
                before[k][i] = after[k][i] = (double)long_value(k, first + i);
        struct optimizer_step_args wide = args;
        wide.n = n;
        wide.type = DTYPE_F64;
        wide.state = (struct optimizer_state){
            .master = after[WEIGHT], .m = optimizer->n_moments > 0 ? after[M] : NULL, .v = after[V]};
        wide.grad = before[GRAD];
        op_reference_call(bench, OP_optimizer_step, &wide);
        judge_long(&args, optimizer->n_moments, first, n, arrays, before, after);
    }
    for (int k = 0; k < N_ARRAYS; k++) {
        bench->device->memory_delete(bench->device, arrays[k], LONG * sizeof(float));
        free(before[k]), free(after[k]);
    }
    stream_free(&stream);
}
