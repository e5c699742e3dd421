// Checks of rope_forward and rope_backward, with and without normalization of heads. The table holds random
// numbers: the operations do not rely on c^2 + s^2 = 1.
#include <math.h>
#include <stdlib.h>

#include "tests/ops/op_bounds.h"

static const struct shape {
    int B, T, H, K, D, position, x_gap, out_gap; // gaps between rows
} shapes[] = {
    {1, 1, 1, 0, 2, 0, 0, 0},   {2, 3, 2, 1, 6, 2, 3, 0},     {1, 5, 0, 3, 10, 0, 0, 1},
    {2, 7, 3, 3, 16, 1, 48, 0}, {1, 3, 4, 2, 34, 0, 7, 68},   {3, 40, 4, 2, 64, 0, 128, 128},
    {1, 2, 2, 2, 96, 5, 0, 0},  {2, 4, 3, 1, 128, 0, 128, 0}, {1, 2, 1, 1, 256, 0, 0, 0},
};
#define N_SHAPES (sizeof shapes / sizeof *shapes)

enum norm { NO_NORM, NORM, NORM_WITH_WEIGHTS, N_NORMS };
static const char *const norm_names[] = {"", " norm", " norm with weights"};

static double weight_of(const struct op_head *head, size_t d) {
    return head->weight ? fabs(head->weight[d]) : 1;
}

// |c| |y[d]| + |s| |y[its partner]|
static double rotated_magnitude(const struct op_head *head, const double *y, size_t d) {
    size_t half = head->D / 2, i = d % half, partner = d < half ? d + half : d - half;
    return fabs(head->table[2 * i] * y[d]) + fabs(head->table[2 * i + 1] * y[partner]);
}

static double mean_square(const double *x, size_t D) {
    double square = 0;
    for (size_t d = 0; d < D; d++)
        square += x[d] * x[d] / (double)D;
    return square;
}

// As for rmsnorm_forward, with D terms; then rotation has two products and a sum.
double op_allow_rotated(const struct op_head *head, bool norm, double *rotated, double *allowed) {
    size_t D = head->D, half = D / 2;
    double square = mean_square(head->x, D), scale = 1 / sqrt(square + ROPE_EPSILON), off = 0, y[256];
    if (norm)
        off = 1 / sqrt(1 - ((double)D + 2) * OP_UNIT * square / (square + ROPE_EPSILON)) - 1 + 5 * OP_UNIT;
    for (size_t d = 0; d < D; d++)
        y[d] = norm ? head->x[d] * scale * (head->weight ? head->weight[d] : 1) : head->x[d];
    for (size_t d = 0; d < D; d++) {
        const double c = head->table[d % half * 2], s = head->table[d % half * 2 + 1];
        allowed[d] = (off + 2 * OP_UNIT) * rotated_magnitude(head, y, d);
        if (rotated)
            rotated[d] = d < half ? c * y[d] - s * y[d + half] : c * y[d] + s * y[d - half];
    }
    return off * scale;
}

struct forward_case {
    enum norm norm;
    bool in_place, has_rstd, positions;
};

static struct op_layout rows_of(const struct shape *s, int gap) {
    size_t columns = (size_t)((s->H + s->K) * s->D);
    return op_rows((size_t)(s->B * s->T), columns, columns + (size_t)gap);
}

static void forward_call(struct op_bench *bench, enum dtype type, const struct shape *s,
                         struct forward_case one) {
    size_t D = (size_t)s->D, heads = (size_t)(s->H + s->K), rows = (size_t)(s->B * s->T);
    size_t x_stride = heads * D + (size_t)s->x_gap;
    size_t out_stride = one.in_place ? x_stride : heads * D + (size_t)s->out_gap;
    struct rope_forward_args args = {.B = s->B,
                                     .T = s->T,
                                     .H = s->H,
                                     .K = s->K,
                                     .D = s->D,
                                     .x_stride = x_stride,
                                     .out_stride = out_stride,
                                     .position = s->position,
                                     .norm = one.norm != NO_NORM,
                                     .epsilon = (float)ROPE_EPSILON,
                                     .type = type};
    struct op_call call;
    op_call_begin(&call, bench, rope_forward, &args, "B %d T %d H %d K %d D %d position %d%s%s%s%s", s->B,
                  s->T, s->H, s->K, s->D, s->position, norm_names[one.norm], one.in_place ? " in place" : "",
                  one.has_rstd ? " rstd" : "", one.positions ? " positions" : "");
    struct op_tensor *x =
        op_add_tensor(&call, "x", &args.x, type, one.in_place ? OP_UPDATE : OP_READ, rows_of(s, s->x_gap));
    struct op_tensor *out = x, *rstd = NULL, *weights[2] = {NULL, NULL}, *positions = NULL;
    if (one.in_place)
        op_alias(x, &args.out);
    else
        out = op_add_tensor(&call, "out", &args.out, type, OP_WRITE, rows_of(s, s->out_gap));
    size_t P = (size_t)(s->position + s->T + s->B);
    struct op_tensor *table = op_add_tensor(&call, "table", &args.table, DTYPE_F32, OP_READ, op_span(P * D));
    if (one.norm == NORM_WITH_WEIGHTS) {
        weights[0] = op_add_tensor(&call, "q_weight", &args.q_weight, type, OP_READ, op_span(D));
        weights[1] = op_add_tensor(&call, "k_weight", &args.k_weight, type, OP_READ, op_span(D));
    }
    if (one.has_rstd)
        rstd = op_add_tensor(&call, "rstd", &args.rstd, DTYPE_F32, OP_WRITE, op_span(rows * heads));
    if (one.positions) {
        positions =
            op_add_tensor(&call, "positions", &args.positions, DTYPE_I32, OP_READ, op_span((size_t)s->B));
        for (int b = 0; b < s->B; b++)
            op_give(positions, (size_t)b, s->position + (s->B - b) % 3 % (s->B + 1));
    }
    op_call_reference(&call);
    for (size_t row = 0; row < rows; row++)
        for (size_t h = 0; h < heads; h++) {
            size_t b = row / (size_t)s->T;
            size_t at = row % (size_t)s->T + (positions ? (size_t)positions->given[b] : (size_t)s->position);
            const struct op_tensor *weight = weights[h < (size_t)s->H ? 0 : 1];
            const struct op_head head = {.x = x->given + row * x_stride + h * D,
                                         .weight = weight ? weight->given : NULL,
                                         .table = table->given + at * D,
                                         .D = D};
            const double rstd_off =
                op_allow_rotated(&head, one.norm != NO_NORM, NULL, out->allowed + row * out_stride + h * D);
            if (rstd)
                rstd->allowed[row * heads + h] = rstd_off;
        }
    op_call_judge(&call);
}

void check_rope_forward(struct op_bench *bench) {
    FOR_EACH_TYPE(type)
    for (size_t i = 0; i < N_SHAPES; i++) {
        forward_call(bench, type, &shapes[i], (struct forward_case){NO_NORM, false, false, false});
        forward_call(bench, type, &shapes[i], (struct forward_case){NO_NORM, true, false, true});
        forward_call(bench, type, &shapes[i], (struct forward_case){NORM, false, false, true});
        forward_call(bench, type, &shapes[i], (struct forward_case){NORM_WITH_WEIGHTS, true, true, false});
    }
}

// ---- backward

// The sums of all heads for the weights' gradients, and what backward's bound needs of the tensors.
struct backward_tensors {
    struct op_tensor *dx, *dout, *x, *rstd, *table, *weights[2], *dweights[2];
};

// Rotation: g has two roundings of its magnitude. Then as rmsnorm_backward with D terms.
static void allow_backward(const struct backward_tensors *t, const struct rope_backward_args *args,
                           size_t row, size_t h) {
    size_t D = (size_t)args->D, heads = (size_t)(args->H + args->K), kind = h < (size_t)args->H ? 0 : 1;
    double n = (double)args->B * args->T * (kind == 0 ? args->H : args->K), g[256], mean = 0;
    const struct op_head head = {.weight = t->weights[kind] ? t->weights[kind]->given : NULL,
                                 .table = t->table->given + row % (size_t)args->T * D,
                                 .D = D};
    double *allowed = t->dx->allowed + row * args->dx_stride + h * D;
    for (size_t d = 0; d < D; d++)
        g[d] = rotated_magnitude(&head, t->dout->given + row * args->dout_stride + h * D, d);
    for (size_t d = 0; d < D && !args->norm; d++)
        allowed[d] = 2 * OP_UNIT * g[d];
    if (!args->norm)
        return;
    const double *x = t->x->given + row * args->x_stride + h * D;
    double rstd = t->rstd->given[row * heads + h];
    for (size_t d = 0; d < D; d++)
        mean += g[d] * weight_of(&head, d) * fabs(x[d] * rstd) / (double)D;
    for (size_t d = 0; d < D; d++) {
        double normal = fabs(x[d] * rstd);
        allowed[d] = OP_UNIT * ((double)D + 11) * rstd * (g[d] * weight_of(&head, d) + normal * mean);
        if (t->dweights[kind])
            t->dweights[kind]->allowed[d] += OP_UNIT * (n + 5) * g[d] * normal;
    }
}

struct backward_case {
    enum norm norm;
    bool in_place, beta_zero;
    bool no_dq_weight, no_dk_weight;
};

static void add_norm_tensors(struct op_call *call, struct rope_backward_args *args,
                             struct backward_tensors *t, const struct shape *s, struct backward_case one) {
    size_t D = (size_t)s->D, n_heads = (size_t)(s->B * s->T * (s->H + s->K));
    t->x = op_add_tensor(call, "x", &args->x, args->type, OP_READ, rows_of(s, s->x_gap));
    t->rstd = op_add_tensor(call, "rstd", &args->rstd, DTYPE_F32, OP_READ, op_span(n_heads));
    op_scale(t->rstd, 1, 0.1);
    if (one.norm == NORM)
        return;
    enum op_role role = one.beta_zero ? OP_WRITE : OP_UPDATE;
    t->weights[0] = op_add_tensor(call, "q_weight", &args->q_weight, args->type, OP_READ, op_span(D));
    t->weights[1] = op_add_tensor(call, "k_weight", &args->k_weight, args->type, OP_READ, op_span(D));
    if (!one.no_dq_weight)
        t->dweights[0] = op_add_tensor(call, "dq_weight", &args->dq_weight, DTYPE_F32, role, op_span(D));
    if (!one.no_dk_weight)
        t->dweights[1] = op_add_tensor(call, "dk_weight", &args->dk_weight, DTYPE_F32, role, op_span(D));
}

static void backward_call(struct op_bench *bench, enum dtype type, const struct shape *s,
                          struct backward_case one) {
    size_t D = (size_t)s->D, heads = (size_t)(s->H + s->K), rows = (size_t)(s->B * s->T);
    size_t columns = heads * D;
    struct rope_backward_args args = {
        .B = s->B,
        .T = s->T,
        .H = s->H,
        .K = s->K,
        .D = s->D,
        .x_stride = columns + (size_t)s->x_gap,
        .dout_stride = columns + (size_t)s->out_gap,
        .dx_stride = columns + (size_t)(one.in_place ? s->out_gap : s->x_gap),
        .norm = one.norm != NO_NORM,
        .beta_zero = one.beta_zero,
        .type = type,
    };
    struct op_call call;
    op_call_begin(&call, bench, rope_backward, &args, "B %d T %d H %d K %d D %d%s%s%s%s%s", s->B, s->T, s->H,
                  s->K, s->D, norm_names[one.norm], one.in_place ? " in place" : "",
                  one.beta_zero ? " beta 0" : "", one.no_dq_weight ? " without dq_weight" : "",
                  one.no_dk_weight ? " without dk_weight" : "");
    struct backward_tensors t = {.dx = NULL};
    t.dout = op_add_tensor(&call, "dout", &args.dout, type, one.in_place ? OP_UPDATE : OP_READ,
                           rows_of(s, s->out_gap));
    t.dx = t.dout;
    if (one.in_place)
        op_alias(t.dout, &args.dx);
    else
        t.dx = op_add_tensor(&call, "dx", &args.dx, type, OP_WRITE, rows_of(s, s->x_gap));
    t.table = op_add_tensor(&call, "table", &args.table, DTYPE_F32, OP_READ, op_span((size_t)s->T * D));
    if (args.norm)
        add_norm_tensors(&call, &args, &t, s, one);
    op_call_reference(&call);
    for (size_t row = 0; row < rows; row++)
        for (size_t h = 0; h < heads; h++)
            allow_backward(&t, &args, row, h);
    for (size_t k = 0; k < 2 && !one.beta_zero; k++)
        for (size_t d = 0; t.dweights[k] && d < D; d++)
            t.dweights[k]->allowed[d] += OP_UNIT * (double)(rows * heads + 1) * fabs(t.dweights[k]->given[d]);
    op_call_judge(&call);
}

void check_rope_backward(struct op_bench *bench) {
    FOR_EACH_TYPE(type)
    for (size_t i = 0; i < N_SHAPES; i++) {
        static const struct backward_case cases[] = {
            {.norm = NO_NORM},
            {.norm = NO_NORM, .in_place = true},
            {.norm = NORM, .in_place = true},
            {.norm = NORM_WITH_WEIGHTS, .beta_zero = true},
            {.norm = NORM_WITH_WEIGHTS, .in_place = true},
            {.norm = NORM_WITH_WEIGHTS, .no_dq_weight = true},
            {.norm = NORM_WITH_WEIGHTS, .beta_zero = true, .no_dk_weight = true},
            {.norm = NORM_WITH_WEIGHTS, .in_place = true, .no_dq_weight = true, .no_dk_weight = true},
        };
        for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
            backward_call(bench, type, &shapes[i], cases[k]);
    }
}
