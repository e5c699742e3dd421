// Checks of linear_forward and linear_backward. Results are sums of products: error bounds are the number of
// roundings on the longest path times the sum of the terms' magnitudes.
#include <math.h>

#include "tests/ops/op_check.h"

// Rows, inputs, outputs, and the gap between rows of out or dout.
static const struct layer_case {
    int N, IC, OC, gap;
} shapes[] = {
    {1, 1, 1, 0},      {1, 3, 7, 1},     {3, 1, 5, 0},    {7, 48, 3, 2},      {48, 7, 257, 0},
    {5, 257, 16, 0},   {33, 65, 31, 3},  {64, 64, 64, 0}, {129, 48, 100, 28}, {257, 96, 48, 0},
    {80, 64, 128, 16}, {2, 130, 71, 1},  {13, 33, 37, 0}, {32, 40, 101, 3},   {35, 1024, 20, 0},
    {48, 6, 3104, 16}, {37, 7, 3100, 0}, // wide ones, such as logits
};
#define N_SHAPES (sizeof shapes / sizeof *shapes)
#define LARGE    1e4 // times normal numbers: within fp16's range, unlike many sums of products

static const double largest_gelu_slope = 1.13; // of gelu(x) over all x: 1.1290 at 1.4

// Error of evaluating gelu(x) = x / (1 + exp(-2 u)) or 0.5 x (1 + tanh(u)) in fp32: u has four roundings,
// which become two units of the result, because d tanh / d u * u <= 0.45. tanh or exp adds four units, and
// three more operations follow. All are relative to |x| / 2 at least, so 8 units of |x| are a bound for both
// forms.
#define GELU_ROUNDINGS 8

// The error of tanh in the GELU that cuBLASLt fuses into products with 16-bit results, which it does not
// document. These are the largest of tanh.approx of these types in the manual of PTX (bf16: relative, fp16:
// absolute), and more than an H200 was seen to be off by. They count for |x| / 2.
static double fused_tanh_error(const struct op_bench *bench, enum dtype out_type) {
    if (bench->device->place != REGION_DEVICE)
        return 0;
    return out_type == DTYPE_BF16 ? 0x1p-8 : out_type == DTYPE_F16 ? 0x1.03p-11 : 0;
}

// cuBLASLt rounds to a 16-bit result's type between two parts of an epilogue, as PyTorch does and as an H200
// shows: a sum before the bias, where a residual was added before or GELU follows, and GELU's argument.
static double rounding_between(const struct op_bench *bench, enum dtype out_type, double magnitude) {
    return bench->device->place == REGION_DEVICE && out_type != DTYPE_F32
               ? dtype_epsilon(out_type) / 2 * magnitude
               : 0;
}

// Of a result whose truth is the sums with the bias.
static void allow_bias(const struct op_bench *bench, struct op_tensor *result, enum dtype type,
                       const struct op_tensor *bias) {
    for (size_t i = 0; i < result->span; i++)
        result->allowed[i] += rounding_between(
            bench, type, fabs(result->truth[i]) + result->allowed[i] + fabs(bias->given[i % bias->span]));
}

// On entry truth and allowed are those of the activation's argument.
static void allow_activation(const struct op_bench *bench, struct op_tensor *out,
                             const struct linear_forward_args *args, enum activation activation,
                             bool has_pre) {
    for (size_t i = 0; i < out->span; i++) {
        double product = fabs(out->truth[i]), off = out->allowed[i];
        if (has_pre) // the activation may be applied to the rounded pre_activation
            off += dtype_epsilon(args->type) / 2 * (product + off);
        else if (activation == ACTIVATION_GELU)
            off += rounding_between(bench, args->out_type, product + off);
        out->allowed[i] = activation == ACTIVATION_GELU
                              ? largest_gelu_slope * off + GELU_ROUNDINGS * OP_UNIT * (product + off) +
                                    fused_tanh_error(bench, args->out_type) / 2 * (product + off)
                              : (2 * product + off) * off + OP_UNIT * product * product;
        // An argument that is rounded to -infinity becomes -infinity times 0.
        if (activation == ACTIVATION_GELU && rounding_between(bench, args->out_type, product) > 0 &&
            product + off >= op_overflow(args->out_type))
            out->allowed[i] = INFINITY;
    }
}

static const struct linear_extra {
    const char *name;
    bool residual;
    enum activation activation;
    bool has_pre, to_fp32;
    bool large; // x is large, so that some sums are beyond fp16
} extras[] = {
    {"", false, ACTIVATION_NONE, false, false, false},
    {" + residual", true, ACTIVATION_NONE, false, false, false},
    {" gelu", false, ACTIVATION_GELU, false, false, false},
    {" gelu, pre", false, ACTIVATION_GELU, true, false, false},
    {" to fp32", false, ACTIVATION_NONE, false, true, false},
    {" + residual to fp32", true, ACTIVATION_NONE, false, true, false},
    {" gelu to fp32", false, ACTIVATION_GELU, false, true, false},
    {", large", false, ACTIVATION_NONE, false, false, true},
    {" + residual, large", true, ACTIVATION_NONE, false, false, true},
    {" gelu, large", false, ACTIVATION_GELU, false, false, true},
    {" to fp32, large", false, ACTIVATION_NONE, false, true, true},
    {" relu^2", false, ACTIVATION_RELU_SQUARED, false, false, false},
    {" relu^2, pre", false, ACTIVATION_RELU_SQUARED, true, false, false},
    {" relu^2 to fp32", false, ACTIVATION_RELU_SQUARED, false, true, false},
};
#define N_EXTRAS (sizeof extras / sizeof *extras)

static void forward_call(struct op_bench *bench, enum dtype type, const struct layer_case *s,
                         const struct linear_extra *extra, bool bias) {
    enum activation activation = extra->activation;
    size_t N = (size_t)s->N, IC = (size_t)s->IC, OC = (size_t)s->OC;
    int gap = activation || extra->residual ? 0 : s->gap;
    struct linear_forward_args args = {.N = s->N,
                                       .IC = s->IC,
                                       .OC = s->OC,
                                       .out_stride = s->OC + gap,
                                       .activation = activation,
                                       .type = type,
                                       .out_type = extra->to_fp32 ? DTYPE_F32 : type};
    struct op_call call;
    op_call_begin(&call, bench, linear_forward, &args, "N %d IC %d OC %d stride %d%s%s", s->N, s->IC, s->OC,
                  args.out_stride, bias ? " + bias" : "", extra->name);
    call.types[1] = &args.out_type;
    op_scale(op_add_tensor(&call, "x", &args.x, type, OP_READ, op_span(N * IC)), 0, extra->large ? LARGE : 1);
    op_add_tensor(&call, "weight", &args.weight, type, OP_READ, op_span(OC * IC));
    struct op_tensor *bias_tensor = NULL;
    if (bias)
        bias_tensor = op_add_tensor(&call, "bias", &args.bias, type, OP_READ, op_span(OC));
    if (extra->residual)
        op_add_tensor(&call, "residual", &args.residual, type, OP_READ, op_span(N * OC));
    struct op_tensor *pre = NULL, *out = op_add_tensor(&call, "out", &args.out, args.out_type, OP_WRITE,
                                                       op_rows(N, OC, OC + (size_t)gap));
    if (extra->has_pre)
        pre = op_add_tensor(&call, "pre_activation", &args.pre_activation, type, OP_WRITE, op_span(N * OC));

    args.activation = ACTIVATION_NONE; // magnitude and truth before the activation
    op_call_magnitudes(&call);
    op_call_reference(&call);
    // A path has one product, up to IC additions, bias and residual.
    op_allow_roundings(out, s->IC + 3);
    if (pre)
        op_allow_roundings(pre, s->IC + 3);
    if (bias && (activation == ACTIVATION_GELU || extra->residual)) {
        allow_bias(bench, out, args.out_type, bias_tensor);
        if (pre)
            allow_bias(bench, pre, type, bias_tensor);
    }
    if (activation)
        allow_activation(bench, out, &args, activation, pre);
    args.activation = activation;
    if (activation)
        op_call_reference(&call);
    op_call_judge(&call);
}

void check_linear_forward(struct op_bench *bench) {
    FOR_EACH_TYPE(type)
    for (size_t i = 0; i < N_SHAPES; i++)
        for (size_t extra = 0; extra < 2 * N_EXTRAS; extra++)
            if (op_has_turn(type, i + extra))
                forward_call(bench, type, &shapes[i], &extras[extra / 2], extra % 2);
}

// On entry dx->truth and dx->allowed are those of the matrix product, which may be rounded to dx->type before
// it is multiplied by the activation's derivative.
static void allow_slope(struct op_tensor *dx, const struct op_tensor *pre, enum activation activation) {
    for (size_t i = 0; i < dx->span; i++) {
        double product = fabs(dx->truth[i]), off = dx->allowed[i];
        off += dtype_epsilon(dx->type) / 2 * (product + off);
        dx->allowed[i] = activation == ACTIVATION_GELU
                             ? largest_gelu_slope * off + product * op_gelu_slope_off(pre->given[i])
                             : 2 * fabs(pre->given[i]) * (off + OP_UNIT * product);
    }
}

enum dbias { NO_DBIAS, ADDS_DBIAS, WRITES_DBIAS };

static const struct backward_variant {
    bool dx, dweight, beta_zero;
    enum dbias dbias;
    enum activation activation;
    double deviation; // of dout
} backward_variants[] = {
    {true, true, false, ADDS_DBIAS, ACTIVATION_NONE, 1},
    {true, true, false, ADDS_DBIAS, ACTIVATION_GELU, 1},
    {true, true, true, ADDS_DBIAS, ACTIVATION_GELU, 1},
    {true, false, false, NO_DBIAS, ACTIVATION_RELU_SQUARED, 1},
    {true, true, false, ADDS_DBIAS, ACTIVATION_NONE, LARGE},
    {true, false, false, NO_DBIAS, ACTIVATION_NONE, 1},
    {true, false, false, NO_DBIAS, ACTIVATION_GELU, 1},
    {false, true, false, NO_DBIAS, ACTIVATION_NONE, 1},
    {false, true, true, NO_DBIAS, ACTIVATION_NONE, 1},
    {false, true, false, WRITES_DBIAS, ACTIVATION_NONE, 1},
    {false, false, false, ADDS_DBIAS, ACTIVATION_NONE, 1},
    {false, false, false, WRITES_DBIAS, ACTIVATION_NONE, 1},
};
#define N_BACKWARD_VARIANTS (sizeof backward_variants / sizeof *backward_variants)

static void backward_call(struct op_bench *bench, enum dtype type, const struct layer_case *s,
                          const struct backward_variant *variant) {
    const bool dx = variant->dx, dweight = variant->dweight, beta_zero = variant->beta_zero;
    const enum dbias dbias = variant->dbias;
    const enum activation activation = variant->activation;
    size_t N = (size_t)s->N, IC = (size_t)s->IC, OC = (size_t)s->OC;
    struct linear_backward_args args = {.N = s->N,
                                        .IC = s->IC,
                                        .OC = s->OC,
                                        .dout_stride = s->OC + s->gap,
                                        .beta_zero = beta_zero,
                                        .writes_dbias = dbias == WRITES_DBIAS,
                                        .type = type};
    struct op_call call;
    op_call_begin(&call, bench, linear_backward, &args, "N %d IC %d OC %d stride %d%s%s%s%s%s deviation %g",
                  s->N, s->IC, s->OC, args.dout_stride, dx ? " dx" : "", dweight ? " dweight" : "",
                  beta_zero ? " beta 0" : "",
                  dbias == NO_DBIAS     ? ""
                  : dbias == ADDS_DBIAS ? " dbias"
                                        : " dbias written",
                  activation == ACTIVATION_GELU           ? " gelu"
                  : activation == ACTIVATION_RELU_SQUARED ? " relu^2"
                                                          : "",
                  variant->deviation);
    op_scale(op_add_tensor(&call, "dout", &args.dout, type, OP_READ, op_rows(N, OC, OC + (size_t)s->gap)), 0,
             variant->deviation);
    op_add_tensor(&call, "x", &args.x, type, OP_READ, op_span(N * IC));
    op_add_tensor(&call, "weight", &args.weight, type, OP_READ, op_span(OC * IC));
    struct op_tensor *dx_tensor = NULL, *dweight_tensor = NULL, *dbias_tensor = NULL;
    if (dx)
        dx_tensor = op_add_tensor(&call, "dx", &args.dx, type, OP_WRITE, op_span(N * IC));
    if (dweight)
        dweight_tensor = op_add_tensor(&call, "dweight", &args.dweight, DTYPE_F32,
                                       beta_zero ? OP_WRITE : OP_UPDATE, op_span(OC * IC));
    if (dbias)
        dbias_tensor = op_add_tensor(&call, "dbias", &args.dbias, DTYPE_F32,
                                     beta_zero || args.writes_dbias ? OP_WRITE : OP_UPDATE, op_span(OC));
    op_call_magnitudes(&call);
    op_call_reference(&call);
    // As in forward, with one addition to what was there before.
    if (dx)
        op_allow_roundings(dx_tensor, s->OC + 1);
    if (dweight)
        op_allow_roundings(dweight_tensor, s->N + 2);
    if (dbias)
        op_allow_roundings(dbias_tensor, s->N + 1);
    if (activation) {
        args.activation = activation;
        allow_slope(
            dx_tensor,
            op_add_tensor(&call, "pre_activation", &args.pre_activation, type, OP_READ, op_span(N * IC)),
            activation);
        op_call_reference(&call);
    }
    op_call_judge(&call);
}

void check_linear_backward(struct op_bench *bench) {
    FOR_EACH_TYPE(type)
    for (size_t i = 0; i < N_SHAPES; i++)
        for (size_t k = 0; k < N_BACKWARD_VARIANTS; k++)
            if (op_has_turn(type, i + k))
                backward_call(bench, type, &shapes[i], &backward_variants[k]);
}
