// Checks of embedding, layernorm and cross-entropy. Each bound follows the errors of fp32 arithmetic
// through the formula, to first order, for any order of the sums.
#include <math.h>

#include "tests/ops/op_check.h"

// ---- embedding

static const struct embedding_shape {
    int B, T, C, V, position;
} embedding_shapes[] = {
    {1, 1, 1, 1, 0},      {2, 3, 7, 5, 2},     {1, 7, 48, 3, 1},
    {3, 5, 257, 100, 0},  {4, 48, 100, 11, 3}, // one token is frequent
    {2, 5, 600, 7, 0},                         // several tiles of channels
    {2, 700, 8, 2, 0},                         // one token occurs about a thousand times
    {1, 300, 4, 1000, 0},                      // more tokens than blocks of a small GPU
    {2, 700, 6, 300, 0},                       // tokens that occur a few times each
};
#define N_EMBEDDING_SHAPES (sizeof embedding_shapes / sizeof *embedding_shapes)
#define ROW_GAP(shape)     ((shape)->C % 8 == 0 ? 16 : 5) // between rows with a stride

// Class indices: the first and the last row, and others repeatedly.
static void give_classes(struct op_tensor *tensor, int n_classes) {
    for (size_t i = 0; i < tensor->span; i++)
        op_give(tensor, i, (int)(i % 2 ? n_classes - 1 - (int)i * 3 % n_classes : (int)i * 7 % n_classes));
}

enum embedding_case {
    EMBEDDING_PLAIN,
    EMBEDDING_LARGE,
    EMBEDDING_POSITIONS,
    EMBEDDING_TOKENS,
    EMBEDDING_STRIDE,
    EMBEDDING_ACCUMULATE,
    N_EMBEDDING_CASES
};

// With large embeddings, most of the sums are beyond fp16's range. Sequences may begin at positions of their
// own, in any order. Rows with a stride may be aligned or not.
void check_embedding_forward(struct op_bench *bench) {
    static const char *const names[] = {"", " large", " positions", " without wpe", " stride", " accumulate"};
    FOR_EACH_TYPE(type)
    for (size_t i = 0; i < N_EMBEDDING_CASES * N_EMBEDDING_SHAPES; i++) {
        const struct embedding_shape *s = &embedding_shapes[i / N_EMBEDDING_CASES];
        enum embedding_case one = i % N_EMBEDDING_CASES;
        size_t N = (size_t)s->B * (size_t)s->T, C = (size_t)s->C, P = (size_t)(s->position + s->T + s->B);
        double mean = one == EMBEDDING_LARGE ? 4e4 : 0, deviation = one == EMBEDDING_LARGE ? 5e3 : 1;
        const bool has_wpe = one != EMBEDDING_TOKENS && one != EMBEDDING_ACCUMULATE;
        struct embedding_forward_args args = {.B = s->B,
                                              .T = s->T,
                                              .C = s->C,
                                              .V = s->V,
                                              .out_stride = C + (one >= EMBEDDING_STRIDE ? ROW_GAP(s) : 0),
                                              .accumulate = one == EMBEDDING_ACCUMULATE,
                                              .position = s->position,
                                              .type = type};
        struct op_call call;
        op_call_begin(&call, bench, embedding_forward, &args, "B %d T %d C %d V %d position %d%s", s->B, s->T,
                      s->C, s->V, s->position, names[one]);
        op_scale(op_add_tensor(&call, "wte", &args.wte, type, OP_READ, op_span((size_t)s->V * C)), mean,
                 deviation);
        if (has_wpe)
            op_scale(op_add_tensor(&call, "wpe", &args.wpe, type, OP_READ, op_span(P * C)), mean, deviation);
        give_classes(op_add_tensor(&call, "tokens", &args.tokens, DTYPE_I32, OP_READ, op_span(N)), s->V);
        if (one == EMBEDDING_POSITIONS)
            give_classes(
                op_add_tensor(&call, "positions", &args.positions, DTYPE_I32, OP_READ, op_span((size_t)s->B)),
                s->position + s->B + 1);
        struct op_tensor *out =
            op_add_tensor(&call, "out", &args.out, type, one == EMBEDDING_ACCUMULATE ? OP_UPDATE : OP_WRITE,
                          op_rows(N, C, args.out_stride));
        op_call_magnitudes(&call);
        op_call_reference(&call);
        if (type == DTYPE_F32 || one == EMBEDDING_TOKENS)
            out->exact = true; // at most one addition
        else
            op_allow_roundings(out, 1); // computed in fp32
        op_call_judge(&call);
    }
}

void check_embedding_backward(struct op_bench *bench) {
    FOR_EACH_TYPE(type)
    for (size_t i = 0; i < 6 * N_EMBEDDING_SHAPES; i++) {
        const struct embedding_shape *s = &embedding_shapes[i / 6];
        bool beta_zero = i % 6 == 1, has_dwpe = i % 6 < 3 || i % 6 == 5, has_dwte = i % 6 < 5;
        bool has_stride = i % 6 == 2 || i % 6 == 4;
        size_t N = (size_t)s->B * (size_t)s->T, C = (size_t)s->C;
        struct embedding_backward_args args = {.B = s->B,
                                               .T = s->T,
                                               .C = s->C,
                                               .V = s->V,
                                               .dout_stride = C + (has_stride ? ROW_GAP(s) : 0),
                                               .P = s->T + s->position,
                                               .beta_zero = beta_zero,
                                               .type = type};
        struct op_call call;
        op_call_begin(&call, bench, embedding_backward, &args, "B %d T %d C %d V %d P %d%s%s%s%s", s->B, s->T,
                      s->C, s->V, args.P, beta_zero ? " beta 0" : "", has_dwpe ? "" : " without dwpe",
                      has_dwte ? "" : " without dwte", has_stride ? " stride" : "");
        op_add_tensor(&call, "dout", &args.dout, type, OP_READ, op_rows(N, C, args.dout_stride));
        give_classes(op_add_tensor(&call, "tokens", &args.tokens, DTYPE_I32, OP_READ, op_span(N)), s->V);
        struct op_tensor *dwte = NULL, *dwpe = NULL;
        if (has_dwte)
            dwte = op_add_tensor(&call, "dwte", &args.dwte, DTYPE_F32, OP_UPDATE, op_span((size_t)s->V * C));
        if (has_dwpe)
            dwpe = op_add_tensor(&call, "dwpe", &args.dwpe, DTYPE_F32, beta_zero ? OP_WRITE : OP_UPDATE,
                                 op_span((size_t)args.P * C));
        op_call_magnitudes(&call);
        op_call_reference(&call);
        if (dwte)
            op_allow_roundings(dwte, (double)N); // a token may fill the batch
        if (dwpe)
            op_allow_roundings(dwpe, s->B);
        op_call_judge(&call);
    }
}

// ---- layernorm

static const struct layernorm_shape {
    int N, C;
    double mean, deviation; // of x
} layernorm_shapes[] = {
    {1, 1, 0, 1},       {1, 3, 0, 1},    {3, 7, 0, 1},    {7, 48, 0, 10},
    {5, 257, 0, 1e-3},  {3, 96, 50, 1},  {257, 33, 1, 1}, {130, 128, 0, 1},
    {3, 1000, -3, 0.1}, {2, 2304, 0, 1}, // rows longer than a warp handles
    {1, 20992, 0, 1},                    // rows larger than shared memory
};
#define N_LAYERNORM_SHAPES (sizeof layernorm_shapes / sizeof *layernorm_shapes)
#define EPSILON            1e-5

// Errors of a row's mean, and (relative) of its rstd, in fp32. The mean is a sum of C terms and a division.
// The variance is a sum of C squares of differences, each with two roundings and one for the square; the
// error of the mean adds its square. epsilon, square root and reciprocal are three more roundings.
struct row_errors {
    double mean, rstd;
};

static struct row_errors errors_of_row(const double *x, size_t C) {
    double mean = 0, magnitude = 0, variance = 0;
    for (size_t c = 0; c < C; c++) {
        mean += x[c] / (double)C;
        magnitude += fabs(x[c]) / (double)C;
    }
    for (size_t c = 0; c < C; c++)
        variance += (x[c] - mean) * (x[c] - mean) / (double)C;
    struct row_errors errors = {.mean = ((double)C + 1) * OP_UNIT * magnitude};
    double off =
        ((double)C + 4) * OP_UNIT * (variance + errors.mean * errors.mean) + errors.mean * errors.mean;
    errors.rstd = 1 / sqrt(1 - off / (variance + EPSILON)) - 1 + 3 * OP_UNIT;
    return errors;
}

static void layernorm_forward_call(struct op_bench *bench, enum dtype type, const struct layernorm_shape *s,
                                   bool statistics, bool in_place) {
    size_t N = (size_t)s->N, C = (size_t)s->C;
    struct layernorm_forward_args args = {.N = s->N, .C = s->C, .epsilon = (float)EPSILON, .type = type};
    struct op_call call;
    op_call_begin(&call, bench, layernorm_forward, &args, "N %d C %d mean %g%s%s", s->N, s->C, s->mean,
                  statistics ? " with mean and rstd" : "", in_place ? " in place" : "");
    struct op_tensor *x =
        op_add_tensor(&call, "x", &args.x, type, in_place ? OP_UPDATE : OP_READ, op_span(N * C));
    op_scale(x, s->mean, s->deviation);
    struct op_tensor *weight = op_add_tensor(&call, "weight", &args.weight, type, OP_READ, op_span(C));
    op_add_tensor(&call, "bias", &args.bias, type, OP_READ, op_span(C));
    struct op_tensor *out = x, *mean = NULL, *rstd = NULL;
    if (in_place)
        op_alias(x, &args.out);
    else
        out = op_add_tensor(&call, "out", &args.out, type, OP_WRITE, op_span(N * C));
    if (statistics) {
        mean = op_add_tensor(&call, "mean", &args.mean, DTYPE_F32, OP_WRITE, op_span(N));
        rstd = op_add_tensor(&call, "rstd", &args.rstd, DTYPE_F32, OP_WRITE, op_span(N));
    }
    op_call_reference(&call);
    for (size_t n = 0; n < N; n++) {
        struct row_errors off = errors_of_row(x->given + n * C, C);
        double row_mean = 0, variance = 0;
        for (size_t c = 0; c < C; c++)
            row_mean += x->given[n * C + c] / (double)C;
        for (size_t c = 0; c < C; c++)
            variance += pow(x->given[n * C + c] - row_mean, 2) / (double)C;
        double row_rstd = 1 / sqrt(variance + EPSILON);
        for (size_t c = 0; c < C; c++) {
            double normal = fabs(x->given[n * C + c] - row_mean) * row_rstd;
            // The mean's error, the difference's rounding, rstd's error, the product's rounding; then the
            // weight's product and the bias's sum.
            double normal_off = off.mean * row_rstd + normal * (off.rstd + 2 * OP_UNIT);
            double scaled = fabs(weight->given[c]);
            out->allowed[n * C + c] =
                scaled * normal_off + OP_UNIT * scaled * normal + OP_UNIT * fabs(out->truth[n * C + c]);
        }
        if (statistics) {
            mean->allowed[n] = off.mean;
            rstd->allowed[n] = off.rstd * row_rstd;
        }
    }
    op_call_judge(&call);
}

void check_layernorm_forward(struct op_bench *bench) {
    FOR_EACH_TYPE(type)
    for (size_t i = 0; i < N_LAYERNORM_SHAPES; i++) {
        layernorm_forward_call(bench, type, &layernorm_shapes[i], true, false);
        layernorm_forward_call(bench, type, &layernorm_shapes[i], false, false);
        layernorm_forward_call(bench, type, &layernorm_shapes[i], true, true);
    }
}

enum residual { NO_RESIDUAL, SEPARATE, IN_PLACE };

struct layernorm_case {
    enum residual residual;
    bool beta_zero, recomputes;
    bool no_dweight, no_dbias;
};

static void layernorm_backward_call(struct op_bench *bench, enum dtype type, const struct layernorm_shape *s,
                                    struct layernorm_case one) {
    const enum residual residual = one.residual;
    const bool beta_zero = one.beta_zero, recomputes = one.recomputes;
    size_t N = (size_t)s->N, C = (size_t)s->C;
    struct layernorm_backward_args args = {.N = s->N, .C = s->C, .beta_zero = beta_zero, .type = type};
    struct op_call call;
    op_call_begin(&call, bench, layernorm_backward, &args, "N %d C %d mean %g%s%s%s%s%s", s->N, s->C, s->mean,
                  residual == NO_RESIDUAL ? ""
                  : residual == SEPARATE  ? " with dresidual"
                                          : " dresidual in place",
                  beta_zero ? " beta 0" : "", recomputes ? " with out" : "",
                  one.no_dweight ? " without dweight" : "", one.no_dbias ? " without dbias" : "");
    struct op_tensor *dout = op_add_tensor(&call, "dout", &args.dout, type, OP_READ, op_span(N * C));
    struct op_tensor *x = op_add_tensor(&call, "x", &args.x, type, OP_READ, op_span(N * C));
    op_scale(x, s->mean, s->deviation);
    struct op_tensor *weight = op_add_tensor(&call, "weight", &args.weight, type, OP_READ, op_span(C));
    struct op_tensor *mean = op_add_tensor(&call, "mean", &args.mean, DTYPE_F32, OP_READ, op_span(N));
    struct op_tensor *rstd = op_add_tensor(&call, "rstd", &args.rstd, DTYPE_F32, OP_READ, op_span(N));
    op_scale(mean, s->mean, s->deviation / sqrt((double)C));
    for (size_t n = 0; n < N; n++)
        op_give(rstd, n, (1 + 0.1 * rstd->given[n]) / s->deviation);
    struct op_tensor *dx = op_add_tensor(&call, "dx", &args.dx, type,
                                         residual == IN_PLACE ? OP_UPDATE : OP_WRITE, op_span(N * C));
    if (residual == IN_PLACE)
        op_alias(dx, &args.dresidual);
    else if (residual == SEPARATE)
        op_add_tensor(&call, "dresidual", &args.dresidual, type, OP_READ, op_span(N * C));
    enum op_role sums = beta_zero ? OP_WRITE : OP_UPDATE;
    struct op_tensor *dweight = NULL, *dbias = NULL, *again = NULL;
    if (!one.no_dweight)
        dweight = op_add_tensor(&call, "dweight", &args.dweight, DTYPE_F32, sums, op_span(C));
    if (!one.no_dbias)
        dbias = op_add_tensor(&call, "dbias", &args.dbias, DTYPE_F32, sums, op_span(C));
    if (recomputes) {
        op_add_tensor(&call, "bias", &args.bias, type, OP_READ, op_span(C));
        again = op_add_tensor(&call, "out", &args.out, type, OP_WRITE, op_span(N * C));
    }
    op_call_reference(&call);

    // normal has two roundings; a path from dout to dx goes through two products, a sum of C terms, a
    // division, normal's product and three more: C + 10 at most. dweight: normal, a product, N additions.
    for (size_t n = 0; n < N; n++) {
        double sum = 0, normal_sum = 0;
        for (size_t c = 0; c < C; c++) {
            double dnormal = fabs(dout->given[n * C + c] * weight->given[c]);
            sum += dnormal / (double)C;
            normal_sum += dnormal * fabs((x->given[n * C + c] - mean->given[n]) * rstd->given[n]) / (double)C;
        }
        for (size_t c = 0; c < C; c++) {
            double normal = fabs((x->given[n * C + c] - mean->given[n]) * rstd->given[n]);
            double out = fabs(dout->given[n * C + c]);
            double magnitude = rstd->given[n] * (out * fabs(weight->given[c]) + sum + normal * normal_sum);
            dx->allowed[n * C + c] = OP_UNIT * (((double)C + 10) * magnitude + fabs(dx->truth[n * C + c]));
            if (again) // normal, the weight's product and the bias's sum
                again->allowed[n * C + c] =
                    OP_UNIT * (3 * fabs(weight->given[c]) * normal + fabs(again->truth[n * C + c]));
            if (dweight)
                dweight->allowed[c] += OP_UNIT * ((double)N + 4) * out * normal;
            if (dbias)
                dbias->allowed[c] += OP_UNIT * ((double)N + 1) * out;
        }
    }
    struct op_tensor *const gradients[] = {dweight, dbias};
    for (size_t k = 0; k < 2 && !beta_zero; k++)
        for (size_t c = 0; gradients[k] && c < C; c++)
            gradients[k]->allowed[c] += OP_UNIT * ((double)N + 1) * fabs(gradients[k]->given[c]);
    op_call_judge(&call);
}

void check_layernorm_backward(struct op_bench *bench) {
    FOR_EACH_TYPE(type)
    for (size_t i = 0; i < N_LAYERNORM_SHAPES; i++) {
        static const struct layernorm_case cases[] = {
            {.residual = NO_RESIDUAL},
            {.residual = SEPARATE, .beta_zero = true},
            {.residual = IN_PLACE, .recomputes = true},
            {.residual = SEPARATE, .no_dweight = true},
            {.residual = IN_PLACE, .beta_zero = true, .no_dbias = true},
            {.residual = IN_PLACE, .recomputes = true, .no_dweight = true, .no_dbias = true},
        };
        for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
            layernorm_backward_call(bench, type, &layernorm_shapes[i], cases[k]);
    }
}

// ---- cross-entropy

static const struct cross_entropy_shape {
    int N, V, logits_gap, dlogits_gap;
    double deviation;
    float scale; // 1 / tokens, or a loss scale beyond fp16's range
} cross_entropy_shapes[] = {
    {1, 1, 0, 0, 1, 1},
    {1, 3, 0, 0, 1, 1.0f / 37},
    {3, 7, 1, 2, 1, 0x1p18f},
    {7, 48, 0, 0, 5, 0x1p17f},
    {5, 257, 7, 0, 1, 1.0f / 37},
    {4, 999, 0, 9, 30, 65536.0f / 37},
    {70, 300, 20, 20, 2, 1.0f / 37},
    {3, 4101, 3, 3, 2, 1.0f / 37},
};
#define N_CROSS_ENTROPY_SHAPES (sizeof cross_entropy_shapes / sizeof *cross_entropy_shapes)

enum gradient { NO_GRADIENT, GRADIENT_SEPARATE, GRADIENT_IN_PLACE };

static const struct loss_options {
    const char *name;
    float soft_cap, label_smoothing, z_loss;
    bool overflows; // a logit of the first row is infinite, and one of the last
    bool weighted;  // every third target has weight 0
} loss_options[] = {{"", 0, 0, 0, false, false},
                    {", capped", 15, 0, 0, false, false},
                    {", smoothed", 0, 0.1f, 0, false, false},
                    {", z-loss", 0, 0, 1e-2f, false, false},
                    {", capped, smoothed, z-loss", 5, 0.2f, 1e-3f, false, false},
                    {", capped, overflowing", 5, 0, 0, true, false},
                    {", weighted", 0, 0, 0, false, true},
                    {", weighted, overflowing", 0, 0, 0, true, true},
                    {", weighted, capped, smoothed, z-loss, overflowing", 5, 0.2f, 1e-3f, true, true},
                    {", weighted, smoothed", 0, 0.1f, 0, false, true}};
#define N_LOSS_OPTIONS (sizeof loss_options / sizeof *loss_options)

// With options each logit has an error of its own, CAP_ROUNDINGS units of it: the quotient, tanh (four units)
// and the product. It adds to the errors that are explained below; z multiplies that of lse by 2 lse. The
// slope 1 - tanh^2 has an absolute error.
#define CAP_ROUNDINGS 8
static void allow_with_options(const struct cross_entropy_args *args, const double *row, size_t target,
                               double scale, double *loss, double *dlogits) {
    size_t V = (size_t)args->V;
    double cap = (double)args->soft_cap, e = (double)args->label_smoothing, z = (double)args->z_loss;
    double largest = 0, maximum = -INFINITY, sum = 0, sum_off = ((double)V + 1) * OP_UNIT;
    for (size_t v = 0; v < V; v++) {
        double logit = cap > 0 ? cap * tanh(row[v] / cap) : row[v];
        largest = fmax(largest, fabs(logit));
        maximum = fmax(maximum, logit);
    }
    double logit_off = cap > 0 ? CAP_ROUNDINGS * OP_UNIT * largest : 0;
    for (size_t v = 0; v < V; v++)
        sum += exp((cap > 0 ? cap * tanh(row[v] / cap) : row[v]) - maximum);
    for (size_t v = 0; v < V; v++) {
        double logit = cap > 0 ? cap * tanh(row[v] / cap) : row[v];
        sum_off += exp(logit - maximum) / sum * (OP_UNIT * (maximum - logit + 4) + 2 * logit_off);
    }
    double lse = maximum + log(sum), lse_off = sum_off + logit_off + OP_UNIT * (fabs(lse) + largest);
    double mean_off = ((double)V + 2) * OP_UNIT * largest + logit_off;
    *loss = 2 * lse_off + logit_off + e * mean_off + 2 * z * fabs(lse) * lse_off +
            4 * OP_UNIT * (fabs(lse) + largest);
    for (size_t v = 0; dlogits && v < V; v++) {
        double logit = cap > 0 ? cap * tanh(row[v] / cap) : row[v];
        double p = exp(logit - maximum) / sum, more = 1 + 2 * z * lse;
        double d = fabs(more * p) + (v == target) + e / (double)V;
        double off = fabs(more) * p * (sum_off + 2 * logit_off + OP_UNIT * (maximum - logit + 8)) +
                     2 * z * lse_off * p;
        dlogits[v] =
            fabs(scale) * (off + (4 + 2 * CAP_ROUNDINGS) * OP_UNIT * d + (1 + fabs(more)) * 0x1p-125);
    }
}

// p_v = exp(l_v - maximum) / sum. Relative error of a term: the rounding of the difference, which exp
// multiplies by |l_v - maximum|, and four roundings of exp. The sum adds V roundings and the errors of its
// terms, weighted by p; p_v has both errors. The logarithm turns the relative error of the sum into an
// absolute error of the loss.
static void allow_cross_entropy(const struct cross_entropy_args *args, const struct op_tensor *logits,
                                const struct op_tensor *targets, struct op_tensor *losses,
                                struct op_tensor *dlogits, double scale, size_t n) {
    const double *row = logits->given + n * (size_t)args->logits_stride;
    size_t V = (size_t)args->V, target = (size_t)targets->given[n];
    double maximum = -INFINITY, sum = 0, sum_off = ((double)V + 1) * OP_UNIT;
    if (args->soft_cap != 0 || args->label_smoothing != 0 || args->z_loss != 0) {
        allow_with_options(args, row, target, scale, &losses->allowed[n],
                           dlogits ? dlogits->allowed + n * (size_t)args->dlogits_stride : NULL);
        return;
    }
    for (size_t v = 0; v < V; v++)
        maximum = fmax(maximum, row[v]);
    for (size_t v = 0; v < V; v++)
        sum += exp(row[v] - maximum);
    for (size_t v = 0; v < V; v++)
        sum_off += exp(row[v] - maximum) / sum * OP_UNIT * (maximum - row[v] + 4);
    losses->allowed[n] = sum_off + 3 * OP_UNIT * (log(sum) + fabs(maximum) + fabs(row[target]));
    for (size_t v = 0; dlogits && v < V; v++) {
        double p = exp(row[v] - maximum) / sum, onehot = v == target ? 1 : 0;
        double off = p * (sum_off + OP_UNIT * (maximum - row[v] + 4 + 3)) + 2 * OP_UNIT * fabs(p - onehot);
        // exp may flush subnormal results to 0
        dlogits->allowed[n * (size_t)args->dlogits_stride + v] = fabs(scale) * (off + 0x1p-125);
    }
}

// A weight multiplies the loss and the gradient, and so their errors: the loss after it was rounded, the
// gradient by way of its scale, which rounds once. With weight 0 both are exactly 0.
static void allow_weighted(const struct cross_entropy_args *args, const struct op_tensor *logits,
                           const struct op_tensor *targets, const struct op_tensor *weights,
                           struct op_tensor *losses, struct op_tensor *dlogits, double scale, size_t n) {
    const double weight = weights ? weights->given[n] : 1;
    if (weight == 0)
        return;
    allow_cross_entropy(args, logits, targets, losses, dlogits, scale * weight, n);
    losses->allowed[n] = losses->allowed[n] * weight + (weights ? OP_UNIT * fabs(losses->truth[n]) : 0);
    for (size_t v = 0; v < (size_t)args->V && dlogits && weights; v++) {
        const size_t at = n * (size_t)args->dlogits_stride + v;
        dlogits->allowed[at] += OP_UNIT * fabs(dlogits->truth[at]);
    }
}

// In place, half of the gap between rows is padding that becomes zero; otherwise all of it.
static void cross_entropy_call(struct op_bench *bench, enum dtype type, enum dtype logits_type,
                               const struct cross_entropy_shape *s, enum gradient gradient,
                               const struct loss_options *options) {
    bool in_place = gradient == GRADIENT_IN_PLACE;
    size_t N = (size_t)s->N, V = (size_t)s->V;
    int dlogits_gap = in_place ? s->logits_gap : s->dlogits_gap;
    struct cross_entropy_args args = {.N = s->N,
                                      .V = s->V,
                                      .n_zeros = in_place ? dlogits_gap / 2 : dlogits_gap,
                                      .logits_stride = s->V + s->logits_gap,
                                      .dlogits_stride = s->V + dlogits_gap,
                                      .scale = s->scale,
                                      .soft_cap = options->soft_cap,
                                      .label_smoothing = options->label_smoothing,
                                      .z_loss = options->z_loss,
                                      .type = type,
                                      .logits_type = logits_type};
    struct op_call call;
    op_call_begin(&call, bench, cross_entropy, &args, "N %d V %d strides %d %d zeros %d logits %s%s%s", s->N,
                  s->V, args.logits_stride, args.dlogits_stride, args.n_zeros, dtype_name(logits_type),
                  gradient == NO_GRADIENT ? " without dlogits"
                  : in_place              ? " in place"
                                          : "",
                  options->name);
    struct op_tensor *logits =
        op_add_tensor(&call, "logits", &args.logits, logits_type, in_place ? OP_UPDATE : OP_READ,
                      op_rows(N, V + (size_t)(in_place ? args.n_zeros : 0), (size_t)args.logits_stride));
    op_scale(logits, 3, s->deviation);
    if (options->overflows) {
        op_give(logits, (N - 1) * (size_t)args.logits_stride + V - 1, -INFINITY);
        op_give(logits, V / 2, INFINITY);
    }
    struct op_tensor *targets =
        op_add_tensor(&call, "targets", &args.targets, DTYPE_I32, OP_READ, op_span(N));
    give_classes(targets, s->V);
    struct op_tensor *weights = NULL;
    if (options->weighted) {
        weights = op_add_tensor(&call, "weights", &args.weights, DTYPE_F32, OP_READ, op_span(N));
        for (size_t n = 0; n < N; n++) // those of rows whose logits overflow are 0
            op_give(weights, n,
                    n % 3 == 0 || (options->overflows && n + 1 == N) ? 0 : 0.3 * (double)(n % 5 + 1));
    }
    struct op_tensor *losses = op_add_tensor(&call, "losses", &args.losses, DTYPE_F32, OP_WRITE, op_span(N));
    struct op_tensor *dlogits = NULL;
    double scale = (double)s->scale;
    if (s->N % 2 == 1) { // the scale is in memory, and another one than in the arguments
        op_give(op_add_tensor(&call, "scale_from", &args.scale_from, DTYPE_F32, OP_READ, op_span(1)), 0,
                3 * scale);
        scale *= 3;
    }
    if (gradient == GRADIENT_IN_PLACE) {
        dlogits = logits;
        op_alias(logits, &args.dlogits);
    } else if (gradient == GRADIENT_SEPARATE) {
        dlogits = op_add_tensor(&call, "dlogits", &args.dlogits, type, OP_WRITE,
                                op_rows(N, V + (size_t)args.n_zeros, (size_t)args.dlogits_stride));
    }
    op_call_reference(&call);
    for (size_t n = 0; n < N; n++)
        allow_weighted(&args, logits, targets, weights, losses, dlogits, scale, n);
    op_call_judge(&call);
}

void check_cross_entropy(struct op_bench *bench) {
    FOR_EACH_TYPE(type)
    for (size_t i = 0; i < N_CROSS_ENTROPY_SHAPES; i++) {
        const struct cross_entropy_shape *s = &cross_entropy_shapes[i];
        cross_entropy_call(bench, type, DTYPE_F32, s, NO_GRADIENT, &loss_options[0]);
        cross_entropy_call(bench, type, DTYPE_F32, s, NO_GRADIENT, &loss_options[1 + i % 4]);
        for (size_t k = 0; k < N_LOSS_OPTIONS; k++)
            cross_entropy_call(bench, type, k % 2 ? type : DTYPE_F32, s,
                               k % 2 ? GRADIENT_IN_PLACE : GRADIENT_SEPARATE, &loss_options[k]);
        cross_entropy_call(bench, type, type, s, GRADIENT_IN_PLACE, &loss_options[0]);
    }
}
