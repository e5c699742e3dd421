// Checks of weighted sums, dropout and the soft-cap of logits.
#include <math.h>
#include <string.h>

#include "tests/ops/op_check.h"

// ---- weighted sums

static const size_t spans[] = {1, 3, 7, 48, 257, MIX_BLOCK, 2 * MIX_BLOCK + 5, 20011};
#define N_SPANS (sizeof spans / sizeof *spans)

static void add_weight(struct op_call *call, const char *name, void *field, enum dtype type, double value) {
    op_give(op_add_tensor(call, name, field, type, OP_READ, op_span(1)), 0, value);
}

void check_mix_forward(struct op_bench *bench) {
    FOR_EACH_TYPE(type)
    for (size_t i = 0; i < 2 * N_SPANS; i++) {
        size_t n = spans[i / 2];
        bool in_place = i % 2;
        struct mix_forward_args args = {.n = n, .type = type};
        struct op_call call;
        op_call_begin(&call, bench, mix_forward, &args, "n %zu%s", n, in_place ? " in place" : "");
        struct op_tensor *x =
            op_add_tensor(&call, "x", &args.x, type, in_place ? OP_UPDATE : OP_READ, op_span(n));
        op_add_tensor(&call, "y", &args.y, type, OP_READ, op_span(n));
        add_weight(&call, "x_weight", &args.x_weight, type, 0.8);
        add_weight(&call, "y_weight", &args.y_weight, type, i % 3 == 0 ? 0 : -1.3);
        struct op_tensor *out = x;
        if (in_place)
            op_alias(x, &args.out);
        else
            out = op_add_tensor(&call, "out", &args.out, type, OP_WRITE, op_span(n));
        op_call_magnitudes(&call);
        op_call_reference(&call);
        op_allow_roundings(out, 2); // a product and the sum
        op_call_judge(&call);
    }
}

//   without   bit 0: dy is NULL; 1: dx_weight; 2: dy_weight
static void mix_backward_call(struct op_bench *bench, enum dtype type, size_t n, bool in_place, bool zeros,
                              unsigned without) {
    struct mix_backward_args args = {.n = n, .dy_zero = zeros, .beta_zero = zeros, .type = type};
    struct op_call call;
    op_call_begin(&call, bench, mix_backward, &args, "n %zu%s%s, gradients left out: %u", n,
                  in_place ? " in place" : "", zeros ? " beta 0" : "", without);
    struct op_tensor *dout =
        op_add_tensor(&call, "dout", &args.dout, type, in_place ? OP_UPDATE : OP_READ, op_span(n));
    op_add_tensor(&call, "x", &args.x, type, OP_READ, op_span(n));
    op_add_tensor(&call, "y", &args.y, type, OP_READ, op_span(n));
    add_weight(&call, "x_weight", &args.x_weight, type, 0.8);
    add_weight(&call, "y_weight", &args.y_weight, type, -1.3);
    struct op_tensor *dx = dout;
    if (in_place)
        op_alias(dout, &args.dx);
    else
        dx = op_add_tensor(&call, "dx", &args.dx, type, OP_WRITE, op_span(n));
    enum op_role sums = zeros ? OP_WRITE : OP_UPDATE;
    struct op_tensor *dy = NULL, *of_weights[2] = {NULL, NULL};
    if (!(without & 1))
        dy = op_add_tensor(&call, "dy", &args.dy, DTYPE_F32, sums, op_span(n));
    if (!(without & 2))
        of_weights[0] = op_add_tensor(&call, "dx_weight", &args.dx_weight, DTYPE_F32, sums, op_span(1));
    if (!(without & 4))
        of_weights[1] = op_add_tensor(&call, "dy_weight", &args.dy_weight, DTYPE_F32, sums, op_span(1));
    op_call_magnitudes(&call);
    op_call_reference(&call);
    op_allow_roundings(dx, 1);
    if (dy)
        op_allow_roundings(dy, 2);
    for (int k = 0; k < 2; k++) // a product, the block's sum; in double all blocks and what was there
        if (of_weights[k])
            op_allow_roundings(of_weights[k], 2 + (double)(n < MIX_BLOCK ? n : MIX_BLOCK));
    op_call_judge(&call);
}

void check_mix_backward(struct op_bench *bench) {
    FOR_EACH_TYPE(type)
    for (size_t i = 0; i < 4 * N_SPANS; i++) {
        mix_backward_call(bench, type, spans[i / 4], i % 2, i / 2 % 2, 0);
        mix_backward_call(bench, type, spans[i / 4], i % 2, i / 2 % 2, 1 + (unsigned)(i + i / 4) % 7);
    }
}

// ---- dropout

static const struct dropout_shape {
    int N, C, rows_per_sequence;
    float p;
} dropout_shapes[] = {{1, 1, 1, 0.5f},    {3, 7, 2, 0.1f},    {6, 48, 3, 0.3f}, {1, 257, 8, 0.1f},
                      {70, 100, 7, 0.9f}, {9, 768, 4, 0.25f}, {4, 31, 4, 0},    {140, 129, 20, 0.2f}};
#define N_DROPOUT_SHAPES (sizeof dropout_shapes / sizeof *dropout_shapes)

// Integers of 64 bits, as the bits of doubles. Their order is that of no batch.
static void add_sequences(struct op_call *call, void *field, const struct dropout_shape *s) {
    size_t n = ((size_t)s->N + (size_t)s->rows_per_sequence - 1) / (size_t)s->rows_per_sequence;
    struct op_tensor *tensor = op_add_tensor(call, "sequences", field, DTYPE_F64, OP_READ, op_span(n));
    for (size_t i = 0; i < n; i++) {
        uint64_t sequence = 0x1234567890u * (i * 7 % n) + i;
        memcpy(&tensor->given[i], &sequence, sizeof sequence);
    }
}

enum dropout_case {
    DROPOUT_PLAIN,
    DROPOUT_IN_PLACE,
    DROPOUT_RESIDUAL,
    DROPOUT_INTO_RESIDUAL,
    N_DROPOUT_CASES
};

// A wrong mask exceeds the bounds: an element is off by itself.
void check_dropout_forward(struct op_bench *bench) {
    static const char *const names[] = {"", " in place", " residual", " residual in place"};
    FOR_EACH_TYPE(type)
    for (size_t i = 0; i < N_DROPOUT_CASES * N_DROPOUT_SHAPES; i++) {
        const struct dropout_shape *s = &dropout_shapes[i / N_DROPOUT_CASES];
        enum dropout_case one = i % N_DROPOUT_CASES;
        size_t n = (size_t)s->N * (size_t)s->C;
        struct dropout_forward_args args = {.N = s->N,
                                            .C = s->C,
                                            .rows_per_sequence = s->rows_per_sequence,
                                            .key = 0xfedcba9876543210u + i,
                                            .p = s->p,
                                            .type = type};
        struct op_call call;
        op_call_begin(&call, bench, dropout_forward, &args, "N %d C %d p %g%s", s->N, s->C, (double)s->p,
                      names[one]);
        add_sequences(&call, &args.sequences, s);
        struct op_tensor *x = op_add_tensor(&call, "x", &args.x, type,
                                            one == DROPOUT_IN_PLACE ? OP_UPDATE : OP_READ, op_span(n));
        struct op_tensor *residual = NULL, *out = NULL;
        if (one == DROPOUT_RESIDUAL || one == DROPOUT_INTO_RESIDUAL)
            residual = op_add_tensor(&call, "residual", &args.residual, type,
                                     one == DROPOUT_RESIDUAL ? OP_READ : OP_UPDATE, op_span(n));
        if (one == DROPOUT_IN_PLACE || one == DROPOUT_INTO_RESIDUAL)
            op_alias(out = one == DROPOUT_IN_PLACE ? x : residual, &args.out);
        else
            out = op_add_tensor(&call, "out", &args.out, type, OP_WRITE, op_span(n));
        op_call_magnitudes(&call);
        op_call_reference(&call);
        op_allow_roundings(out, 3); // 1 / (1 - p), the product, the sum
        op_call_judge(&call);
    }
}

void check_dropout_backward(struct op_bench *bench) {
    FOR_EACH_TYPE(type)
    for (size_t i = 0; i < 2 * N_DROPOUT_SHAPES; i++) {
        const struct dropout_shape *s = &dropout_shapes[i / 2];
        bool in_place = i % 2;
        size_t n = (size_t)s->N * (size_t)s->C;
        struct dropout_backward_args args = {.N = s->N,
                                             .C = s->C,
                                             .rows_per_sequence = s->rows_per_sequence,
                                             .key = 0x0123456789abcdefu + i,
                                             .p = s->p,
                                             .type = type};
        struct op_call call;
        op_call_begin(&call, bench, dropout_backward, &args, "N %d C %d p %g%s", s->N, s->C, (double)s->p,
                      in_place ? " in place" : "");
        add_sequences(&call, &args.sequences, s);
        struct op_tensor *dout =
            op_add_tensor(&call, "dout", &args.dout, type, in_place ? OP_UPDATE : OP_READ, op_span(n));
        struct op_tensor *dx = dout;
        if (in_place)
            op_alias(dout, &args.dx);
        else
            dx = op_add_tensor(&call, "dx", &args.dx, type, OP_WRITE, op_span(n));
        op_call_magnitudes(&call);
        op_call_reference(&call);
        op_allow_roundings(dx, 2); // 1 / (1 - p), the product
        op_call_judge(&call);
    }
}

// ---- soft-cap

static const struct cap_shape {
    int N, V, gap;
    float cap;
} cap_shapes[] = {{1, 1, 0, 15},   {3, 7, 2, 5},      {2, 48, 16, 30},
                  {5, 257, 7, 15}, {1, 20011, 5, 15}, {70, 30, 2, 1}};
#define N_CAP_SHAPES (sizeof cap_shapes / sizeof *cap_shapes)

// The quotient, tanh (six units), the product. A quotient below the normal numbers has an absolute error,
// which the product multiplies by the cap.
#define CAP_ROUNDINGS 8

void check_soft_cap(struct op_bench *bench) {
    FOR_EACH_TYPE(type)
    for (size_t i = 0; i < 2 * N_CAP_SHAPES; i++) {
        const struct cap_shape *s = &cap_shapes[i / 2];
        bool in_place = i % 2;
        struct op_layout rows = op_rows((size_t)s->N, (size_t)s->V, (size_t)(s->V + s->gap));
        struct soft_cap_args args = {
            .N = s->N, .V = s->V, .stride = s->V + s->gap, .cap = s->cap, .type = type};
        struct op_call call;
        op_call_begin(&call, bench, soft_cap, &args, "N %d V %d stride %d cap %g%s", s->N, s->V, args.stride,
                      (double)s->cap, in_place ? " in place" : "");
        struct op_tensor *x = op_add_tensor(&call, "x", &args.x, type, in_place ? OP_UPDATE : OP_READ, rows);
        struct op_tensor *out = x;
        if (in_place)
            op_alias(x, &args.out);
        else
            out = op_add_tensor(&call, "out", &args.out, type, OP_WRITE, rows);
        op_scale(x, 0, 10);
        op_give_extremes(x);
        op_call_reference(&call);
        for (size_t k = 0; k < out->span; k++)
            out->allowed[k] = CAP_ROUNDINGS * OP_UNIT * fabs(out->truth[k]) + (double)s->cap * 0x1p-149;
        op_call_judge(&call);
    }
}
