// Checks of squared ReLU and SwiGLU. (GELU's are in op_check_layers.c.)
#include <math.h>

#include "tests/ops/op_check.h"

// ---- squared ReLU

static const int spans[] = {1, 3, 48, 257, 20011};
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

void check_relu_squared_forward(struct op_bench *bench) {
    FOR_EACH_TYPE(type)
    for (size_t i = 0; i < 2 * N_SPANS; i++) {
        size_t n = (size_t)spans[i / 2];
        bool in_place = i % 2;
        struct relu_squared_forward_args args = {.n = n, .type = type};
        struct op_call call;
        op_call_begin(&call, bench, relu_squared_forward, &args, "n %zu%s", n, in_place ? " in place" : "");
        struct op_tensor *x =
            op_add_tensor(&call, "x", &args.x, type, in_place ? OP_UPDATE : OP_READ, op_span(n));
        struct op_tensor *out = x;
        if (in_place)
            op_alias(x, &args.out);
        else
            out = op_add_tensor(&call, "out", &args.out, type, OP_WRITE, op_span(n));
        give_inputs(x);
        op_call_reference(&call);
        for (size_t k = 0; k < n; k++) // one product
            out->allowed[k] = OP_UNIT * fabs(out->truth[k]);
        op_call_judge(&call);
    }
}

void check_relu_squared_backward(struct op_bench *bench) {
    FOR_EACH_TYPE(type)
    for (size_t i = 0; i < 2 * N_SPANS; i++) {
        size_t n = (size_t)spans[i / 2];
        bool in_place = i % 2;
        struct relu_squared_backward_args args = {.n = n, .type = type};
        struct op_call call;
        op_call_begin(&call, bench, relu_squared_backward, &args, "n %zu%s", n, in_place ? " in place" : "");
        struct op_tensor *x = op_add_tensor(&call, "x", &args.x, type, OP_READ, op_span(n));
        struct op_tensor *dout =
            op_add_tensor(&call, "dout", &args.dout, type, in_place ? OP_UPDATE : OP_READ, op_span(n));
        struct op_tensor *dx = dout;
        if (in_place)
            op_alias(dout, &args.dx);
        else
            dx = op_add_tensor(&call, "dx", &args.dx, type, OP_WRITE, op_span(n));
        give_inputs(x);
        op_call_reference(&call);
        for (size_t k = 0; k < n; k++)
            dx->allowed[k] = OP_UNIT * fabs(dx->truth[k]);
        op_call_judge(&call);
    }
}

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
