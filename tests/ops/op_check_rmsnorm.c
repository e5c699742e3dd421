// Checks of rmsnorm_forward and rmsnorm_backward. Each bound follows the errors of fp32 arithmetic through
// the formula, to first order, for any order of the sums.
#include <math.h>

#include "tests/ops/op_check.h"

static const struct shape {
    int N, C;
    double deviation; // of x
} shapes[] = {
    {1, 1, 1},     {1, 3, 1},     {3, 7, 1},      {7, 48, 10},  {5, 257, 1e-3}, {3, 96, 50},
    {257, 33, 1},  {130, 128, 1}, {3, 1000, 0.1}, {2, 2304, 1}, // rows longer than a warp handles
    {1, 20992, 1},                                              // rows larger than shared memory
};
#define N_SHAPES (sizeof shapes / sizeof *shapes)
#define EPSILON  1e-5

// The relative error of a row's rstd: each square has one rounding, and the sum C; the division, epsilon,
// square root and reciprocal follow.
static double rstd_off(const double *x, size_t C) {
    double square = 0;
    for (size_t c = 0; c < C; c++)
        square += x[c] * x[c] / (double)C;
    double off = ((double)C + 2) * OP_UNIT * square;
    return 1 / sqrt(1 - off / (square + EPSILON)) - 1 + 3 * OP_UNIT;
}

static double rstd_of(const double *x, size_t C) {
    double square = 0;
    for (size_t c = 0; c < C; c++)
        square += x[c] * x[c] / (double)C;
    return 1 / sqrt(square + EPSILON);
}

static void forward_call(struct op_bench *bench, enum dtype type, const struct shape *s, bool has_rstd,
                         bool in_place, bool has_weight) {
    size_t N = (size_t)s->N, C = (size_t)s->C;
    struct rmsnorm_forward_args args = {.N = s->N, .C = s->C, .epsilon = (float)EPSILON, .type = type};
    struct op_call call;
    op_call_begin(&call, bench, rmsnorm_forward, &args, "N %d C %d%s%s%s", s->N, s->C,
                  has_rstd ? " with rstd" : "", in_place ? " in place" : "",
                  has_weight ? "" : " without weight");
    struct op_tensor *x =
        op_add_tensor(&call, "x", &args.x, type, in_place ? OP_UPDATE : OP_READ, op_span(N * C));
    op_scale(x, 0, s->deviation);
    struct op_tensor *out = x, *rstd = NULL;
    const struct op_tensor *weight =
        has_weight ? op_add_tensor(&call, "weight", &args.weight, type, OP_READ, op_span(C)) : NULL;
    if (in_place)
        op_alias(x, &args.out);
    else
        out = op_add_tensor(&call, "out", &args.out, type, OP_WRITE, op_span(N * C));
    if (has_rstd)
        rstd = op_add_tensor(&call, "rstd", &args.rstd, DTYPE_F32, OP_WRITE, op_span(N));
    op_call_reference(&call);
    for (size_t n = 0; n < N; n++) {
        double row_rstd = rstd_of(x->given + n * C, C), off = rstd_off(x->given + n * C, C);
        for (size_t c = 0; c < C; c++) { // the products with rstd and with the weight
            double scaled = fabs(x->given[n * C + c]) * row_rstd * (weight ? fabs(weight->given[c]) : 1);
            out->allowed[n * C + c] = scaled * (off + 2 * OP_UNIT);
        }
        if (rstd)
            rstd->allowed[n] = off * row_rstd;
    }
    op_call_judge(&call);
}

void check_rmsnorm_forward(struct op_bench *bench) {
    FOR_EACH_TYPE(type)
    for (size_t i = 0; i < N_SHAPES; i++) {
        forward_call(bench, type, &shapes[i], true, false, true);
        forward_call(bench, type, &shapes[i], false, false, false);
        forward_call(bench, type, &shapes[i], true, true, true);
    }
}

enum residual { NO_RESIDUAL, SEPARATE, IN_PLACE };

struct backward_case {
    enum residual residual;
    bool beta_zero, recomputes, weight, no_dweight;
};

static void backward_call(struct op_bench *bench, enum dtype type, const struct shape *s,
                          struct backward_case one) {
    size_t N = (size_t)s->N, C = (size_t)s->C;
    struct rmsnorm_backward_args args = {.N = s->N, .C = s->C, .beta_zero = one.beta_zero, .type = type};
    struct op_call call;
    op_call_begin(&call, bench, rmsnorm_backward, &args, "N %d C %d%s%s%s%s", s->N, s->C,
                  one.residual == NO_RESIDUAL ? ""
                  : one.residual == SEPARATE  ? " with dresidual"
                                              : " dresidual in place",
                  one.beta_zero ? " beta 0" : "", one.recomputes ? " with out" : "",
                  !one.weight      ? " without weight"
                  : one.no_dweight ? " without dweight"
                                   : "");
    struct op_tensor *dout = op_add_tensor(&call, "dout", &args.dout, type, OP_READ, op_span(N * C));
    struct op_tensor *x = op_add_tensor(&call, "x", &args.x, type, OP_READ, op_span(N * C));
    op_scale(x, 0, s->deviation);
    struct op_tensor *rstd = op_add_tensor(&call, "rstd", &args.rstd, DTYPE_F32, OP_READ, op_span(N));
    for (size_t n = 0; n < N; n++)
        op_give(rstd, n, (1 + 0.1 * rstd->given[n]) / s->deviation);
    struct op_tensor *dx = op_add_tensor(&call, "dx", &args.dx, type,
                                         one.residual == IN_PLACE ? OP_UPDATE : OP_WRITE, op_span(N * C));
    if (one.residual == IN_PLACE)
        op_alias(dx, &args.dresidual);
    else if (one.residual == SEPARATE)
        op_add_tensor(&call, "dresidual", &args.dresidual, type, OP_READ, op_span(N * C));
    struct op_tensor *weight = NULL, *dweight = NULL, *again = NULL;
    if (one.weight)
        weight = op_add_tensor(&call, "weight", &args.weight, type, OP_READ, op_span(C));
    if (one.weight && !one.no_dweight)
        dweight = op_add_tensor(&call, "dweight", &args.dweight, DTYPE_F32,
                                one.beta_zero ? OP_WRITE : OP_UPDATE, op_span(C));
    if (one.recomputes)
        again = op_add_tensor(&call, "out", &args.out, type, OP_WRITE, op_span(N * C));
    op_call_reference(&call);

    // A path from dout to dx goes through the weight's product, xhat and its product, a sum of C terms, a
    // division, xhat's product again and two more: C + 8 at most. dweight: xhat, a product, N additions.
    for (size_t n = 0; n < N; n++) {
        double normal_sum = 0, row_rstd = rstd->given[n];
        for (size_t c = 0; c < C; c++)
            normal_sum += fabs(dout->given[n * C + c] * (weight ? weight->given[c] : 1) *
                               x->given[n * C + c] * row_rstd) /
                          (double)C;
        for (size_t c = 0; c < C; c++) {
            size_t i = n * C + c;
            double normal = fabs(x->given[i] * row_rstd), out = fabs(dout->given[i]);
            double w = weight ? fabs(weight->given[c]) : 1;
            double magnitude = row_rstd * (out * w + normal * normal_sum);
            dx->allowed[i] = OP_UNIT * (((double)C + 8) * magnitude + fabs(dx->truth[i]));
            if (again)
                again->allowed[i] = 2 * OP_UNIT * w * normal;
            if (dweight)
                dweight->allowed[c] += OP_UNIT * ((double)N + 3) * out * normal;
        }
    }
    for (size_t c = 0; dweight && c < C && !one.beta_zero; c++)
        dweight->allowed[c] += OP_UNIT * ((double)N + 1) * fabs(dweight->given[c]);
    op_call_judge(&call);
}

void check_rmsnorm_backward(struct op_bench *bench) {
    FOR_EACH_TYPE(type)
    for (size_t i = 0; i < N_SHAPES; i++) {
        static const struct backward_case cases[] = {
            {.residual = NO_RESIDUAL, .weight = true},
            {.residual = SEPARATE, .beta_zero = true, .weight = true},
            {.residual = IN_PLACE, .recomputes = true, .weight = true},
            {.residual = IN_PLACE, .recomputes = true},
            {.residual = IN_PLACE, .recomputes = true, .weight = true, .no_dweight = true},
        };
        for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
            backward_call(bench, type, &shapes[i], cases[k]);
    }
}
