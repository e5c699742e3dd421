// Checks of qkv_forward: few rows and many, heads across tiles and threads, columns after the heads. The
// table holds random numbers: the operation does not rely on c^2 + s^2 = 1.
#include <math.h>
#include <stdlib.h>

#include "tests/ops/op_bounds.h"

static const struct shape {
    int B, T, IC, H, K, D, more, gap, position; // more: columns after the heads; gap: between rows
} shapes[] = {
    {1, 3, 7, 1, 0, 2, 0, 0, 2},      {2, 16, 9, 2, 1, 6, 6, 3, 0},     {3, 13, 20, 3, 3, 16, 48, 0, 1},
    {1, 40, 33, 4, 2, 34, 68, 5, 0},  {2, 70, 64, 4, 2, 64, 128, 0, 0}, {1, 37, 12, 0, 3, 80, 240, 8, 3},
    {1, 5, 40, 2, 2, 128, 256, 0, 4}, {1, 35, 6, 31, 8, 80, 100, 0, 0},
};
#define N_SHAPES (sizeof shapes / sizeof *shapes)

static const struct qkv_case {
    bool norm, has_weights, in_place, has_rstd, has_bias, positions;
} cases[] = {
    {.in_place = true},
    {.in_place = true, .has_bias = true, .positions = true},
    {.has_bias = true},
    {.norm = true, .positions = true},
    {.norm = true, .has_weights = true, .has_rstd = true, .has_bias = true},
};
#define N_CASES (sizeof cases / sizeof *cases)

struct tensors {
    struct op_tensor *x, *weight, *bias, *projected, *rotated, *rstd, *table, *norms[2], *positions;
};

// A row's sums, in double, and their errors before they are rounded to a type.
static void sum_row(const struct tensors *t, const struct shape *s, size_t OC, size_t row, double *sums,
                    double *off) {
    const size_t IC = (size_t)s->IC;
    for (size_t column = 0; column < OC; column++) {
        double magnitude = t->bias ? fabs(t->bias->given[column]) : 0;
        sums[column] = t->bias ? t->bias->given[column] : 0;
        for (size_t i = 0; i < IC; i++) {
            const double product = t->x->given[row * IC + i] * t->weight->given[column * IC + i];
            sums[column] += product;
            magnitude += fabs(product);
        }
        off[column] = ((double)IC + 3) * OP_UNIT * magnitude;
    }
}

// What an error of a head's elements becomes by normalization: y = x rstd weight, and rstd changes with all
// of them. To first order, with a tenth for the rest. Returns that of rstd.
static double normalized_off(const struct op_head *head, double *off) {
    double square = 0, product = 0;
    for (size_t d = 0; d < head->D; d++) {
        square += head->x[d] * head->x[d] / (double)head->D;
        product += fabs(head->x[d]) * off[d] / (double)head->D;
    }
    const double rstd = 1 / sqrt(square + ROPE_EPSILON);
    for (size_t d = 0; d < head->D; d++)
        off[d] = 1.1 * rstd * (head->weight ? fabs(head->weight[d]) : 1) *
                 (off[d] + fabs(head->x[d]) * rstd * rstd * product);
    return 1.1 * rstd * rstd * rstd * product;
}

// One head of a row. off: of its elements before they are rounded; changed.
static void allow_head(const struct tensors *t, const struct qkv_forward_args *args,
                       const struct op_head *head, size_t row, size_t h, double *off) {
    const size_t D = head->D, heads = (size_t)(args->rope.H + args->rope.K), half = D / 2;
    double *allowed = t->rotated->allowed + row * args->rope.out_stride + h * D;
    const double rstd_off = op_allow_rotated(head, args->rope.norm, NULL, allowed);
    for (size_t d = 0; d < D; d++) // half of fp16's smallest number where it is more
        off[d] += dtype_epsilon(args->rope.type) / 2 * (fabs(head->x[d]) + off[d]) + 0x1p-25;
    const double rstd_moves = args->rope.norm ? normalized_off(head, off) : 0;
    for (size_t d = 0; d < D; d++)
        allowed[d] += fabs(head->table[d % half * 2]) * off[d] +
                      fabs(head->table[d % half * 2 + 1]) * off[d < half ? d + half : d - half];
    if (t->rstd)
        t->rstd->allowed[row * heads + h] = rstd_off + rstd_moves;
}

static void allow_row(const struct tensors *t, const struct qkv_forward_args *args, const struct shape *s,
                      size_t row, double *sums, double *off) {
    const size_t D = (size_t)s->D, T = (size_t)s->T, OC = (size_t)args->linear.OC,
                 heads = (size_t)(s->H + s->K), first = row * args->rope.x_stride;
    const size_t position =
        row % T + (t->positions ? (size_t)t->positions->given[row / T] : (size_t)s->position);
    sum_row(t, s, OC, row, sums, off);
    for (size_t column = t->rotated == t->projected ? heads * D : 0; column < OC; column++)
        t->projected->allowed[first + column] = off[column];
    for (size_t h = 0; h < heads; h++) {
        const struct op_tensor *norm = t->norms[h < (size_t)s->H ? 0 : 1];
        const struct op_head head = {.x = sums + h * D,
                                     .weight = norm ? norm->given : NULL,
                                     .table = t->table->given + position * D,
                                     .D = D};
        allow_head(t, args, &head, row, h, off + h * D);
    }
}

static void add_tensors(struct op_call *call, struct qkv_forward_args *args, struct tensors *t,
                        const struct shape *s, const struct qkv_case *one) {
    const enum dtype type = args->rope.type;
    const size_t rows = (size_t)(s->B * s->T), D = (size_t)s->D, heads = (size_t)(s->H + s->K),
                 IC = (size_t)s->IC, OC = (size_t)args->linear.OC;
    t->x = op_add_tensor(call, "x", &args->linear.x, type, OP_READ, op_span(rows * IC));
    t->weight = op_add_tensor(call, "weight", &args->linear.weight, type, OP_READ, op_span(OC * IC));
    op_scale(t->weight, 0, 1 / sqrt((double)IC));
    if (one->has_bias)
        t->bias = op_add_tensor(call, "bias", &args->linear.bias, type, OP_READ, op_span(OC));
    t->projected = op_add_tensor(call, "projected", &args->linear.out, type, OP_WRITE,
                                 op_rows(rows, OC, args->rope.x_stride));
    op_alias(t->projected, &args->rope.x);
    t->rotated = t->projected;
    if (one->in_place)
        op_alias(t->projected, &args->rope.out);
    else
        t->rotated = op_add_tensor(call, "rotated", &args->rope.out, type, OP_WRITE,
                                   op_rows(rows, heads * D, args->rope.out_stride));
    t->table = op_add_tensor(call, "table", &args->rope.table, DTYPE_F32, OP_READ,
                             op_span((size_t)(s->position + s->T + s->B) * D));
    if (one->has_weights) {
        t->norms[0] = op_add_tensor(call, "q_weight", &args->rope.q_weight, type, OP_READ, op_span(D));
        t->norms[1] = op_add_tensor(call, "k_weight", &args->rope.k_weight, type, OP_READ, op_span(D));
    }
    if (one->has_rstd)
        t->rstd = op_add_tensor(call, "rstd", &args->rope.rstd, DTYPE_F32, OP_WRITE, op_span(rows * heads));
    if (one->positions) {
        t->positions = op_add_tensor(call, "positions", &args->rope.positions, DTYPE_I32, OP_READ,
                                     op_span((size_t)s->B));
        for (int b = 0; b < s->B; b++)
            op_give(t->positions, (size_t)b, s->position + (s->B - b) % 3 % (s->B + 1));
    }
}

static void qkv_call(struct op_bench *bench, enum dtype type, const struct shape *s,
                     const struct qkv_case *one) {
    const int rotated = (s->H + s->K) * s->D, OC = rotated + s->more, stride = OC + s->gap;
    struct qkv_forward_args args = {
        .linear =
            {.N = s->B * s->T, .IC = s->IC, .OC = OC, .out_stride = stride, .type = type, .out_type = type},
        .rope = {.B = s->B,
                 .T = s->T,
                 .H = s->H,
                 .K = s->K,
                 .D = s->D,
                 .x_stride = (size_t)stride,
                 .out_stride = (size_t)(one->in_place ? stride : rotated + s->gap),
                 .position = s->position,
                 .norm = one->norm,
                 .epsilon = (float)ROPE_EPSILON,
                 .type = type},
    };
    struct op_call call;
    op_call_init(&call, bench, OP_qkv_forward, "qkv_forward", &args, &args.linear.type,
                 "B %d T %d IC %d H %d K %d D %d + %d%s%s%s%s", s->B, s->T, s->IC, s->H, s->K, s->D, s->more,
                 one->norm ? " norm" : "", one->has_weights ? " with weights" : "",
                 one->in_place ? " in place" : "", one->has_bias ? " + bias" : "");
    call.types[1] = &args.linear.out_type;
    call.types[2] = &args.rope.type;
    struct tensors t = {.x = NULL};
    add_tensors(&call, &args, &t, s, one);
    op_call_reference(&call);
    double *sums = malloc(2 * (size_t)OC * sizeof *sums);
    for (size_t row = 0; sums && row < (size_t)args.linear.N; row++)
        allow_row(&t, &args, s, row, sums, sums + OC);
    free(sums);
    op_call_judge(&call);
}

void check_qkv_forward(struct op_bench *bench) {
    FOR_EACH_TYPE(type)
    for (size_t i = 0; i < N_SHAPES; i++)
        for (size_t k = 0; k < N_CASES; k++)
            if (op_has_turn(type, i + k))
                qkv_call(bench, type, &shapes[i], &cases[k]);
}
