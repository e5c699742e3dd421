// Checks of GELU, squared ReLU and SwiGLU.
#include <math.h>

#include "tests/ops/op_check.h"

// ---- elementwise: GELU and squared ReLU

static const size_t spans[] = {1, 3, 7, 48, 257, 20011};
#define N_SPANS (sizeof spans / sizeof *spans)

// Small, ordinary and far values of either sign, and zeros.
static void give_inputs(struct op_tensor *x) {
    for (size_t i = 0; i < x->span; i++)
        op_give(x, i,
                x->given[i] * (i % 5 == 0    ? 1e-4
                               : i % 5 == 1  ? 5
                               : i % 31 == 2 ? 100
                               : i % 31 == 7 ? 0
                                             : 1));
}

// The error bound of a result, from its input and, in backward, the gradient.
typedef double error_bound(double x, double dout, double truth);

// x and out: addresses of the argument struct's pointers.
static void check_forward(struct op_call *call, void *x_field, void *out_field, size_t n, bool in_place,
                          error_bound *bound) {
    const enum dtype type = *call->types[0];
    struct op_tensor *x = op_add_tensor(call, "x", x_field, type, in_place ? OP_UPDATE : OP_READ, op_span(n));
    struct op_tensor *out = x;
    if (in_place)
        op_alias(x, out_field);
    else
        out = op_add_tensor(call, "out", out_field, type, OP_WRITE, op_span(n));
    give_inputs(x);
    op_call_reference(call);
    for (size_t k = 0; k < n; k++)
        out->allowed[k] = bound(x->given[k], 1, out->truth[k]);
    op_call_judge(call);
}

static void check_backward(struct op_call *call, void *x_field, void *dout_field, void *dx_field, size_t n,
                           bool in_place, error_bound *bound) {
    const enum dtype type = *call->types[0];
    struct op_tensor *x = op_add_tensor(call, "x", x_field, type, OP_READ, op_span(n));
    struct op_tensor *dout =
        op_add_tensor(call, "dout", dout_field, type, in_place ? OP_UPDATE : OP_READ, op_span(n));
    struct op_tensor *dx = dout;
    if (in_place)
        op_alias(dout, dx_field);
    else
        dx = op_add_tensor(call, "dx", dx_field, type, OP_WRITE, op_span(n));
    give_inputs(x);
    op_call_reference(call);
    for (size_t k = 0; k < n; k++)
        dx->allowed[k] = bound(x->given[k], dout->given[k], dx->truth[k]);
    op_call_judge(call);
}

#define CHECK_ELEMENTWISE(name, check, ...)                                                                  \
    void check_##name(struct op_bench *bench) {                                                              \
        FOR_EACH_TYPE(type)                                                                                  \
        for (size_t i = 0; i < 2 * N_SPANS; i++) {                                                           \
            const size_t n = spans[i / 2];                                                                   \
            const bool in_place = i % 2;                                                                     \
            struct name##_args args = {.n = n, .type = type};                                                \
            struct op_call call;                                                                             \
            op_call_begin(&call, bench, name, &args, "n %zu%s", n, in_place ? " in place" : "");             \
            check(&call, &args.x, __VA_ARGS__, n, in_place, name##_bound);                                   \
        }                                                                                                    \
    }

// See GELU_ROUNDINGS in op_check_linear.c.
static double gelu_forward_bound(double x, double dout, double truth) {
    (void)dout, (void)truth;
    return 8 * OP_UNIT * fabs(x);
}

// gelu'(x) = s + x 2 u' s (1 - s), s = 1 / (1 + exp(-2 u)). The argument 2 u has four roundings, which exp
// multiplies by |2 u|; exp itself adds four, and eight more operations follow. The bound is relative for each
// term, and absolute for s.
double op_gelu_slope_off(double x) {
    double u = sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
    double du = sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
    double s_by_rest = 1 / (2 + exp(2 * u) + exp(-2 * u)); // s (1 - s)
    return OP_UNIT * (8 + (12 + 4 * fabs(2 * u)) * (fabs(x * 2 * du) + 1) * s_by_rest);
}

static double gelu_backward_bound(double x, double dout, double truth) {
    (void)truth;
    return fabs(dout) * op_gelu_slope_off(x);
}

// One product.
static double relu_squared_forward_bound(double x, double dout, double truth) {
    (void)x, (void)dout;
    return OP_UNIT * fabs(truth);
}

static double relu_squared_backward_bound(double x, double dout, double truth) {
    return relu_squared_forward_bound(x, dout, truth);
}

CHECK_ELEMENTWISE(gelu_forward, check_forward, &args.out)
CHECK_ELEMENTWISE(gelu_backward, check_backward, &args.dout, &args.dx)
CHECK_ELEMENTWISE(relu_squared_forward, check_forward, &args.out)
CHECK_ELEMENTWISE(relu_squared_backward, check_backward, &args.dout, &args.dx)

// ---- SwiGLU

static const struct gated_shape {
    int N, F;
} gated_shapes[] = {{1, 1}, {3, 7}, {5, 16}, {2, 48}, {1, 257}, {7, 1000}, {40, 512}};
#define N_GATED_SHAPES (sizeof gated_shapes / sizeof *gated_shapes)

// silu(z) = z s with s = 1 / (1 + exp(-z)). The argument of exp has two roundings, which exp multiplies by
// |z|; exp itself adds four, the sum and the division three, two more operations follow. exp may flush
// results below 2^-125 to 0.
#define FLUSHED 0x1p-125
static double silu_off(double z) {
    double s = 1 / (1 + exp(-z));
    return fabs(z) * (OP_UNIT * (11 + 2 * fabs(z)) * s + FLUSHED);
}

// silu'(z) = s + z s (1 - s): the errors of s, and for s (1 - s) twice as many.
static double silu_slope_off(double z) {
    double s = 1 / (1 + exp(-z)), rest = 1 / (2 + exp(z) + exp(-z));
    return OP_UNIT * ((12 + 2 * fabs(z)) * s + fabs(z) * (22 + 4 * fabs(z)) * rest) + (1 + fabs(z)) * FLUSHED;
}

static void allow_product(struct op_tensor *tensor, size_t i, double factor, double off) {
    tensor->allowed[i] = fabs(factor) * off + 2 * OP_UNIT * fabs(tensor->truth[i]);
}

void check_swiglu_forward(struct op_bench *bench) {
    FOR_EACH_TYPE(type)
    for (size_t i = 0; i < N_GATED_SHAPES; i++) {
        const struct gated_shape *s = &gated_shapes[i];
        size_t N = (size_t)s->N, F = (size_t)s->F;
        struct swiglu_forward_args args = {.N = s->N, .F = s->F, .type = type};
        struct op_call call;
        op_call_begin(&call, bench, swiglu_forward, &args, "N %d F %d", s->N, s->F);
        struct op_tensor *x = op_add_tensor(&call, "x", &args.x, type, OP_READ, op_span(N * 2 * F));
        struct op_tensor *out = op_add_tensor(&call, "out", &args.out, type, OP_WRITE, op_span(N * F));
        give_inputs(x);
        op_call_reference(&call);
        for (size_t k = 0; k < N * F; k++) {
            size_t at = k / F * 2 * F + k % F;
            allow_product(out, k, x->given[at + F], silu_off(x->given[at]));
        }
        op_call_judge(&call);
    }
}

enum recomputed { NO_OUT, OUT_SEPARATE, OUT_IN_PLACE, N_RECOMPUTED };

static void swiglu_backward_call(struct op_bench *bench, enum dtype type, const struct gated_shape *s,
                                 enum recomputed recomputed) {
    static const char *const names[] = {"", " with out", " with out in place"};
    size_t N = (size_t)s->N, F = (size_t)s->F;
    struct swiglu_backward_args args = {.N = s->N, .F = s->F, .type = type};
    struct op_call call;
    op_call_begin(&call, bench, swiglu_backward, &args, "N %d F %d%s", s->N, s->F, names[recomputed]);
    struct op_tensor *x = op_add_tensor(&call, "x", &args.x, type, OP_READ, op_span(N * 2 * F));
    struct op_tensor *dout = op_add_tensor(&call, "dout", &args.dout, type,
                                           recomputed == OUT_IN_PLACE ? OP_UPDATE : OP_READ, op_span(N * F));
    struct op_tensor *dx = op_add_tensor(&call, "dx", &args.dx, type, OP_WRITE, op_span(N * 2 * F));
    struct op_tensor *out = NULL;
    if (recomputed == OUT_IN_PLACE) {
        out = dout;
        op_alias(dout, &args.out);
    } else if (recomputed == OUT_SEPARATE) {
        out = op_add_tensor(&call, "out", &args.out, type, OP_WRITE, op_span(N * F));
    }
    give_inputs(x);
    op_call_reference(&call);
    for (size_t k = 0; k < N * F; k++) {
        size_t at = k / F * 2 * F + k % F;
        double gate = x->given[at], up = x->given[at + F];
        allow_product(dx, at, dout->given[k] * up, silu_slope_off(gate));
        allow_product(dx, at + F, dout->given[k], silu_off(gate));
        if (out)
            allow_product(out, k, up, silu_off(gate));
    }
    op_call_judge(&call);
}

void check_swiglu_backward(struct op_bench *bench) {
    FOR_EACH_TYPE(type)
    for (size_t i = 0; i < N_GATED_SHAPES * N_RECOMPUTED; i++)
        swiglu_backward_call(bench, type, &gated_shapes[i / N_RECOMPUTED],
                             (enum recomputed)(i % N_RECOMPUTED));
}
