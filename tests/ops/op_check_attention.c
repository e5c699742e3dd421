// Checks of attention_forward and attention_backward. The bounds follow the errors of fp32 arithmetic through
// the formulas, to first order, element by element.
#include <math.h>
#include <stdlib.h>

#include "tests/ops/op_bounds.h"

// fp32 and the 16-bit types use different tile sizes on tensor cores.
enum shape_for { ALL, NARROW };

static const struct shape {
    int B, T, S, H, K, D, window;
    double deviation; // of q and k: large values give peaked distributions
    enum shape_for types;
} shapes[] = {
    {1, 1, 1, 1, 1, 1, 0, 1, ALL},
    {2, 3, 3, 2, 2, 7, 0, 1, ALL},
    {1, 7, 7, 3, 3, 3, 0, 4, ALL},
    {1, 48, 48, 1, 1, 16, 0, 1, ALL},
    {2, 33, 33, 3, 3, 20, 0, 2, ALL},
    {1, 130, 130, 2, 2, 8, 0, 1, ALL},
    {1, 257, 257, 1, 1, 5, 0, 3, ALL},
    {2, 65, 65, 1, 1, 48, 0, 1, ALL},
    {1, 1, 48, 2, 2, 16, 0, 1, ALL},
    {2, 1, 257, 1, 1, 7, 0, 2, ALL},
    {1, 4, 9, 2, 2, 33, 0, 1, ALL},
    {1, 7, 100, 1, 1, 8, 0, 1, ALL},
    {2, 96, 130, 2, 2, 12, 0, 1, ALL},
    {1, 40, 40, 1, 1, 64, 0, 1, ALL},
    {1, 20, 24, 1, 1, 128, 0, 1, ALL},
    {2, 40, 40, 2, 2, 5, 0, 10, ALL},
    // for GPUs: around the edges of tiles, and the widest heads
    {2, 65, 65, 2, 2, 64, 0, 2, ALL},
    {1, 128, 128, 1, 1, 64, 0, 1, NARROW},
    {1, 200, 200, 1, 1, 64, 0, 10, NARROW},
    {1, 129, 129, 1, 1, 80, 0, 1, NARROW},
    {1, 127, 127, 1, 1, 96, 0, 2, NARROW},
    {1, 64, 64, 2, 2, 128, 0, 1, NARROW},
    {1, 63, 63, 1, 1, 72, 0, 1, NARROW},
    {1, 66, 66, 1, 1, 100, 0, 3, ALL},
    {1, 70, 200, 1, 1, 64, 0, 2, NARROW},
    {3, 1, 129, 2, 2, 64, 0, 1, NARROW},
    {1, 64, 150, 1, 1, 128, 0, 1, ALL},
    {1, 65, 65, 2, 2, 32, 0, 1, NARROW},
    {1, 70, 70, 1, 1, 160, 0, 1, ALL},
    {1, 20, 70, 1, 1, 256, 0, 2, ALL},
    {1, 70, 70, 2, 1, 256, 20, 1, ALL},
    // groups of 2, 3, 4 and 8 query heads; a few queries, and a cache
    {2, 33, 33, 4, 2, 20, 0, 2, ALL},
    {1, 130, 130, 3, 1, 8, 0, 1, ALL},
    {1, 97, 97, 8, 2, 16, 0, 1, ALL},
    {1, 65, 65, 8, 1, 5, 0, 3, ALL},
    {1, 4, 9, 6, 3, 33, 0, 1, ALL},
    {2, 1, 129, 4, 1, 64, 0, 1, ALL},
    {2, 96, 130, 4, 2, 12, 0, 1, ALL},
    {1, 66, 66, 2, 1, 128, 0, 1, NARROW},
    // windows: a query alone, within a tile, of a tile, of several, of everything, of more
    {1, 48, 48, 1, 1, 16, 1, 1, ALL},
    {1, 130, 130, 2, 2, 8, 5, 1, ALL},
    {1, 200, 200, 1, 1, 16, 40, 1, ALL},
    {1, 257, 257, 2, 1, 5, 64, 3, ALL},
    {1, 257, 257, 1, 1, 8, 65, 1, ALL},
    {1, 300, 300, 4, 2, 8, 100, 1, ALL},
    {1, 130, 130, 2, 1, 8, 130, 1, ALL},
    {1, 65, 65, 1, 1, 8, 1000, 1, ALL},
    {2, 40, 300, 2, 1, 12, 50, 1, ALL},
    {1, 3, 100, 2, 1, 8, 10, 1, ALL},
    {2, 1, 257, 2, 2, 7, 64, 1, ALL},
    {1, 70, 70, 2, 1, 160, 20, 1, ALL},
    {1, 66, 66, 2, 1, 100, 7, 1, NARROW},
    // for GPUs: warps of a block that see different tiles
    {1, 270, 270, 4, 2, 64, 40, 1, NARROW},
    {1, 140, 140, 2, 1, 128, 33, 1, NARROW},
};
#define N_SHAPES (sizeof shapes / sizeof *shapes)

#define SHAPE_FORMAT     "B %d T %d H %d K %d D %d window %d"
#define SHAPE_NUMBERS(s) (s)->B, (s)->T, (s)->H, (s)->K, (s)->D, (s)->window

// Gaps between rows: none; odd ones; and gaps that align rows of some heads to 16 bytes.
static const int gaps[] = {1, 6, 8, 11};
#define GAP(i) gaps[(i) % (sizeof gaps / sizeof *gaps)]

// Lengths of documents: within a tile, of a tile, of several.
static const int documents[] = {40, 1, 64, 5, 100, 23, 96};
#define DOCUMENT(i) documents[(i) % (sizeof documents / sizeof *documents)]

// Rows of q, k or v are part of a wider tensor.
static struct op_layout strided(int B, int positions, int columns, size_t stride, size_t batch_stride) {
    return (struct op_layout){{(size_t)B, (size_t)positions, (size_t)columns}, {batch_stride, stride, 1}};
}

// The dot product of two rows, and that of the absolute values.
struct dot {
    double sum, magnitude;
};

static struct dot dot_of(const double *a, const double *b, int D) {
    struct dot p = {0, 0};
    for (int d = 0; d < D; d++) {
        p.sum += a[d] * b[d];
        p.magnitude += fabs(a[d] * b[d]);
    }
    return p;
}

// The scaled score of a query and a key, and its error in fp32: D products and additions, the scale and its
// own rounding.
struct score {
    double value, off;
};

// Documents of lengths 1, `length`, length / 2 + 1, 2 and length + 7, in turn; sequences begin within the
// first. The queries are the last T of S positions.
static void give_documents(struct op_tensor *first, int B, int T, int S, int length) {
    const int lengths[] = {1, length, length / 2 + 1, 2, length + 7};
    for (int b = 0; b < B; b++)
        for (int s = 0, start = 0, document = b, left = lengths[b % 5]; s < S; s++, left--) {
            if (left == 0) {
                start = s;
                left = lengths[++document % 5];
            }
            if (s >= S - T)
                op_give(first, (size_t)(b * T + s - (S - T)), start);
        }
}

int op_first_seen(const struct op_tensor *first, size_t at, int window, int own) {
    const int of_document = first ? (int)first->given[at] : 0;
    const int of_window = window > 0 && own >= window ? own - window + 1 : 0;
    return of_document > of_window ? of_document : of_window;
}

static struct score score_of(const double *q, const double *k, int D) {
    struct dot p = dot_of(q, k, D);
    return (struct score){p.sum / sqrt(D), (D + 3) * OP_UNIT * p.magnitude / sqrt(D)};
}

static struct weight_rounding rounding_of(const struct op_bench *bench, enum dtype type, int D) {
    bool multiplies = bench->device->place == REGION_DEVICE ? type != DTYPE_F32
                                                            : bench->multiplies_bf16 && type == DTYPE_BF16;
    if (!multiplies)
        return (struct weight_rounding){0};
    double smallest = dtype_smallest(type) / 2;
    return (struct weight_rounding){.relative = dtype_epsilon(type) / 2,
                                    .absolute = smallest,
                                    .absolute_ds = bench->by_cudnn ? smallest : smallest / sqrt(D),
                                    .flushed = bench->device->place == REGION_HOST ? 0x1p-126 : 0};
}

// ---- forward

// A running maximum may be this much below the true one, so exp's argument may be that much larger.
#define MAXIMUM_SLACK 8

// What the errors of the query and of its last key add to that of a score.
static double inexact(const struct op_query *a, int j) {
    const double *k = a->k + (size_t)j * a->k_stride;
    double off = 0;
    for (int d = 0; a->q_off && d < a->D; d++)
        off += a->q_off[d] * fabs(k[d]) + (j == a->end - 1 ? fabs(a->q[d]) * a->last_k_off[d] : 0);
    return off / sqrt(a->D);
}

// Relative error of the weight p_j = exp(s_j - maximum) / sum: the score's error, the rounding of the
// difference (twice, because earlier terms are rescaled when the running maximum rises), and eight roundings
// of two evaluations of exp. Each rescaling costs six roundings, at most once in sixteen keys: within S / 2.
// The sums of p and of p v add S roundings each, and the division one. v is multiplied by p sum, which is in
// [0, 1].
void op_allow_query(const struct op_query *a, double *out, double *lse) {
    double *weights = malloc(2 * (size_t)a->end * sizeof *weights), *off = weights + a->end;
    double maximum = -INFINITY, sum = 0, sum_off = 0;
    for (int j = a->first; j < a->end; j++) {
        struct score score = score_of(a->q, a->k + (size_t)j * a->k_stride, a->D);
        weights[j] = score.value;
        off[j] = score.off + inexact(a, j);
        maximum = fmax(maximum, score.value);
    }
    for (int j = a->first; j < a->end; j++) {
        off[j] += OP_UNIT * (2 * (maximum - weights[j] + MAXIMUM_SLACK) + 8 + 0.5 * a->S);
        weights[j] = exp(weights[j] - maximum);
        sum += weights[j];
    }
    for (int j = a->first; j < a->end; j++)
        sum_off += weights[j] / sum * (off[j] + a->S * OP_UNIT);
    for (int d = 0; d < a->D; d++) {
        double allowed = 0;
        for (int j = a->first; j < a->end; j++) {
            double v = fabs(a->v[(size_t)j * a->v_stride + (size_t)d]);
            // exp may flush subnormal results to 0
            allowed +=
                v * (weights[j] / sum * (off[j] + sum_off + a->rounding.relative + (a->S + 3) * OP_UNIT) +
                     a->rounding.absolute / sum + 0x1p-125);
        }
        out[d] = allowed;
    }
    if (lse)
        *lse = sum_off + 2 * OP_UNIT * (fabs(maximum) + log(sum) + MAXIMUM_SLACK);
    free(weights);
}

// Query i of head h of sequence b.
static void allow_forward(const struct op_bench *bench, const struct attention_forward_args *args,
                          const struct op_tensor *const qkv[3], const struct op_tensor *starts,
                          struct op_tensor *out, struct op_tensor *lse, const int at[3]) {
    size_t b = (size_t)at[0], h = (size_t)at[1], i = (size_t)at[2];
    size_t T = (size_t)args->T, H = (size_t)args->H, D = (size_t)args->D;
    const size_t g = h / (H / (size_t)args->K);
    const int own = args->S - args->T + at[2];
    const struct op_query query = {.q = qkv[0]->given + b * args->q_batch_stride + i * args->q_stride + h * D,
                                   .k = qkv[1]->given + b * args->k_batch_stride + g * D,
                                   .v = qkv[2]->given + b * args->v_batch_stride + g * D,
                                   .k_stride = args->k_stride,
                                   .v_stride = args->v_stride,
                                   .first = op_first_seen(starts, b * T + i, args->window, own),
                                   .end = own + 1,
                                   .S = args->S,
                                   .D = args->D,
                                   .rounding = rounding_of(bench, args->type, args->D)};
    op_allow_query(&query, out->allowed + ((b * T + i) * H + h) * D,
                   lse ? lse->allowed + (b * H + h) * T + i : NULL);
}

// Documents change no arithmetic, so that of wide heads a host's devices need the widest only.
static bool has_documents(const struct op_bench *bench, const struct shape *shape) {
    return !bench->by_cudnn && (shape->D <= 64 || shape->D == 256 || bench->device->place == REGION_DEVICE);
}

static bool is_for(const struct op_bench *bench, const struct shape *shape, enum dtype type) {
    if (bench->by_cudnn)
        return type != DTYPE_F32 && shape->S == shape->T && shape->D % 8 == 0 && shape->D <= 128;
    return type != DTYPE_F32 || shape->types == ALL;
}

// Which calls of shape i are made: with plain rows, with gaps between the rows, and with documents. Where the
// run is short, the types share them in turns.
//   narrow   only 16-bit types are checked
enum shape_call { CALL_PLAIN, CALL_GAPS, CALL_DOCUMENTS };
static bool is_called(const struct op_bench *bench, size_t i, enum shape_call call, enum dtype type,
                      bool narrow) {
    const size_t n_types = narrow ? 2 : N_COMPUTE_DTYPES;
    return !op_is_short(bench) || (i + call) % n_types == (size_t)type % n_types;
}

static enum attention_kernel kernel_of(const struct op_bench *bench) {
    return bench->by_cudnn ? ATTENTION_CUDNN : ATTENTION_FLASH;
}

//   document   length of documents (give_documents); 0: none
static void forward_call(struct op_bench *bench, enum dtype type, const struct shape *s, bool with_lse,
                         int gap, int document) {
    struct attention_forward_args args = {
        .B = s->B, .T = s->T, .S = s->S, .H = s->H, .K = s->K, .D = s->D, .window = s->window, .type = type};
    args.kernel = kernel_of(bench);
    const int C = s->H * s->D, KC = s->K * s->D;
    args.q_stride = (size_t)(C + 2 * gap);
    args.q_batch_stride = args.q_stride * (size_t)s->T + (size_t)gap;
    args.k_stride = (size_t)(KC + gap);
    args.k_batch_stride = args.k_stride * (size_t)(s->S + gap);
    args.v_stride = (size_t)(KC + 3 * gap);
    args.v_batch_stride = args.v_stride * (size_t)s->S + 2 * (size_t)gap;
    struct op_call call;
    op_call_begin(&call, bench, attention_forward, &args, SHAPE_FORMAT " S %d gap %d document %d%s",
                  SHAPE_NUMBERS(s), s->S, gap, document, with_lse ? " with lse" : "");
    struct op_tensor *q = op_add_tensor(&call, "q", &args.q, type, OP_READ,
                                        strided(s->B, s->T, C, args.q_stride, args.q_batch_stride));
    struct op_tensor *k = op_add_tensor(&call, "k", &args.k, type, OP_READ,
                                        strided(s->B, s->S, KC, args.k_stride, args.k_batch_stride));
    struct op_tensor *v = op_add_tensor(&call, "v", &args.v, type, OP_READ,
                                        strided(s->B, s->S, KC, args.v_stride, args.v_batch_stride));
    op_scale(q, 0, s->deviation);
    op_scale(k, 0, s->deviation);
    size_t rows = (size_t)s->B * (size_t)s->T;
    struct op_tensor *out = op_add_tensor(&call, "out", &args.out, type, OP_WRITE, op_span(rows * (size_t)C));
    struct op_tensor *lse = NULL, *first = NULL;
    if (document > 0) {
        first = op_add_tensor(&call, "first", &args.first, DTYPE_I32, OP_READ, op_span(rows));
        give_documents(first, s->B, s->T, s->S, document);
    }
    if (with_lse)
        lse = op_add_tensor(&call, "lse", &args.lse, DTYPE_F32, OP_WRITE, op_span(rows * (size_t)s->H));
    op_call_reference(&call);
    const struct op_tensor *const qkv[3] = {q, k, v};
    for (int b = 0; b < s->B; b++)
        for (int h = 0; h < s->H; h++)
            for (int i = 0; i < s->T; i++)
                allow_forward(bench, &args, qkv, first, out, lse, (const int[3]){b, h, i});
    op_call_judge(&call);
}

void check_attention_forward(struct op_bench *bench) {
    FOR_EACH_TYPE(type)
    for (size_t i = 0; i < N_SHAPES; i++) {
        const struct shape *shape = &shapes[i];
        const bool narrow = !is_for(bench, shape, DTYPE_F32);
        if (!is_for(bench, shape, type))
            continue;
        if (is_called(bench, i, CALL_PLAIN, type, narrow))
            forward_call(bench, type, shape, true, 0, 0);
        if (is_called(bench, i, CALL_GAPS, type, narrow))
            forward_call(bench, type, shape, i % 2, bench->by_cudnn ? 2 * shape->H * shape->D : GAP(i), 0);
        if (is_called(bench, i, CALL_DOCUMENTS, type, narrow) && has_documents(bench, shape))
            forward_call(bench, type, shape, i % 2 == 0, GAP(i + 1), DOCUMENT(i));
    }
}

// ---- backward

struct backward_tensors {
    struct op_tensor *q, *k, *v, *dout, *out, *lse, *dq, *dk, *dv;
    struct op_tensor *first;  // NULL without documents
    const int32_t *documents; // its values
};

// lse and out from attention_forward, rounded to their types.
static void give_forward(const struct attention_backward_args *args, const struct op_bench *bench,
                         struct backward_tensors *t) {
    struct attention_forward_args forward = {.out = t->out->truth,
                                             .lse = t->lse->truth,
                                             .q = t->q->given,
                                             .k = t->k->given,
                                             .v = t->v->given,
                                             .q_stride = args->q_stride,
                                             .q_batch_stride = args->q_batch_stride,
                                             .k_stride = args->k_stride,
                                             .k_batch_stride = args->k_batch_stride,
                                             .v_stride = args->v_stride,
                                             .v_batch_stride = args->v_batch_stride,
                                             .K = args->K,
                                             .window = args->window,
                                             .first = t->documents,
                                             .B = args->B,
                                             .T = args->T,
                                             .S = args->T,
                                             .H = args->H,
                                             .D = args->D,
                                             .type = DTYPE_F64};
    op_reference_call(bench, OP_attention_forward, &forward);
    for (size_t i = 0; i < t->out->span; i++)
        op_give(t->out, i, t->out->truth[i]);
    for (size_t i = 0; i < t->lse->span; i++)
        op_give(t->lse, i, t->lse->truth[i]);
}

// Offsets of a query's row in q and out, and of a key's in k and v.
struct pair_at {
    size_t q, k, v, out;
};

// What all pairs of a query share: lse, and dout . out.
struct query_sums {
    double lse;
    struct dot delta;
};

// Adds the errors of one pair of query i and key j <= i. Relative error of p = exp(s - lse):
// the score's error, that of lse (two roundings, if exp is computed as a power of 2), the rounding of the
// difference, and four roundings of exp. ds = p (dp - delta) has that error and those of its products over D.
// Each is a term of a sum of at most T products, of dk and dv over the heads of a group, which is scaled.
static void allow_pair(const struct attention_backward_args *args, const struct backward_tensors *t,
                       struct weight_rounding rounding, struct pair_at at, struct query_sums sums) {
    const size_t qi = at.q, kj = at.k, vj = at.v, out_i = at.out;
    int D = args->D;
    struct score score = score_of(t->q->given + qi, t->k->given + kj, D);
    struct dot dp = dot_of(t->dout->given + out_i, t->v->given + vj, D);
    const struct dot delta = sums.delta;
    const double lse = sums.lse;
    double p = exp(score.value - lse), ds = p * fabs(dp.sum - delta.sum);
    // exp may flush subnormal results to 0
    double p_off = p * (score.off + OP_UNIT * (fabs(score.value - lse) + 2 * fabs(lse) + 4)) + 0x1p-125;
    double ds_off = p_off * fabs(dp.sum - delta.sum) +
                    p * (D + 2) * OP_UNIT * (dp.magnitude + delta.magnitude) + 2 * OP_UNIT * ds;
    p_off += p * rounding.relative + rounding.absolute;
    ds_off += ds * rounding.relative;
    double in_sum = (args->T * (args->H / args->K) + 4) * OP_UNIT, scale = 1 / sqrt(D);
    double scaled_off = scale * (ds_off + in_sum * ds) + rounding.absolute_ds;
    for (int d = 0; d < D; d++) {
        const double flushed = rounding.flushed;
        t->dq->allowed[qi + (size_t)d] += scaled_off * fabs(t->k->given[kj + (size_t)d]) + flushed;
        t->dk->allowed[kj + (size_t)d] +=
            (scaled_off + scale * rounding.head_sums * ds) * fabs(t->q->given[qi + (size_t)d]) + flushed;
        t->dv->allowed[vj + (size_t)d] +=
            (p_off + (in_sum + rounding.head_sums) * p) * fabs(t->dout->given[out_i + (size_t)d]) + flushed;
    }
}

static void backward_call(struct op_bench *bench, enum dtype type, const struct shape *s, int gap,
                          int document) {
    const size_t B = (size_t)s->B, T = (size_t)s->T, H = (size_t)s->H, D = (size_t)s->D, C = H * D;
    const size_t K = (size_t)s->K, between = (size_t)gap;
    struct attention_backward_args args = {
        .B = s->B, .T = s->T, .H = s->H, .K = s->K, .D = s->D, .window = s->window, .type = type};
    args.kernel = kernel_of(bench);
    args.q_stride = C + between;
    args.q_batch_stride = args.q_stride * T + between;
    args.k_stride = K * D + 2 * between;
    args.k_batch_stride = args.k_stride * T;
    args.v_stride = K * D + 3 * between;
    args.v_batch_stride = args.v_stride * T + 2 * between;
    struct op_call call;
    op_call_begin(&call, bench, attention_backward, &args, SHAPE_FORMAT " gap %d document %d",
                  SHAPE_NUMBERS(s), gap, document);
    const struct op_layout q_layout = strided(s->B, s->T, (int)C, args.q_stride, args.q_batch_stride),
                           k_layout = strided(s->B, s->T, (int)(K * D), args.k_stride, args.k_batch_stride),
                           v_layout = strided(s->B, s->T, (int)(K * D), args.v_stride, args.v_batch_stride);
    struct backward_tensors t = {
        .q = op_add_tensor(&call, "q", &args.q, type, OP_READ, q_layout),
        .k = op_add_tensor(&call, "k", &args.k, type, OP_READ, k_layout),
        .v = op_add_tensor(&call, "v", &args.v, type, OP_READ, v_layout),
        .dout = op_add_tensor(&call, "dout", &args.dout, type, OP_READ, op_span(B * T * C)),
        .out = op_add_tensor(&call, "out", &args.out, type, OP_READ, op_span(B * T * C)),
        .lse = op_add_tensor(&call, "lse", &args.lse, DTYPE_F32, OP_READ, op_span(B * H * T)),
        .dq = op_add_tensor(&call, "dq", &args.dq, type, OP_WRITE, q_layout),
        .dk = op_add_tensor(&call, "dk", &args.dk, type, OP_WRITE, k_layout),
        .dv = op_add_tensor(&call, "dv", &args.dv, type, OP_WRITE, v_layout),
    };
    int32_t starts[B * T];
    if (document > 0) {
        t.first = op_add_tensor(&call, "first", &args.first, DTYPE_I32, OP_READ, op_span(B * T));
        give_documents(t.first, s->B, s->T, s->T, document);
        for (size_t i = 0; i < B * T; i++)
            starts[i] = (int32_t)t.first->given[i];
        t.documents = starts;
    }
    op_scale(t.q, 0, s->deviation);
    op_scale(t.k, 0, s->deviation);
    give_forward(&args, bench, &t);
    op_call_reference(&call);
    struct weight_rounding rounding = rounding_of(bench, type, s->D);
    if (bench->by_cudnn && s->K < s->H)
        rounding.head_sums = dtype_epsilon(type) / 2;
    for (size_t b = 0; b < B; b++)
        for (size_t h = 0; h < H; h++)
            for (size_t i = 0; i < T; i++) {
                const size_t out_i = ((b * T + i) * H + h) * D;
                const struct query_sums sums = {t.lse->given[(b * H + h) * T + i],
                                                dot_of(t.dout->given + out_i, t.out->given + out_i, s->D)};
                for (size_t j = (size_t)op_first_seen(t.first, b * T + i, s->window, (int)i); j <= i; j++) {
                    const size_t at = h / (H / K) * D; // of the key-value head
                    const struct pair_at pair = {b * args.q_batch_stride + i * args.q_stride + h * D,
                                                 b * args.k_batch_stride + j * args.k_stride + at,
                                                 b * args.v_batch_stride + j * args.v_stride + at, out_i};
                    allow_pair(&args, &t, rounding, pair, sums);
                }
            }
    op_call_judge(&call);
}

void check_attention_backward(struct op_bench *bench) {
    FOR_EACH_TYPE(type)
    for (size_t i = 0; i < N_SHAPES; i++) {
        const struct shape *shape = &shapes[i];
        const bool narrow = !is_for(bench, shape, DTYPE_F32);
        if (shape->S != shape->T || !is_for(bench, shape, type))
            continue;
        if (is_called(bench, i, CALL_PLAIN, type, narrow))
            backward_call(bench, type, shape, 0, 0);
        if (is_called(bench, i, CALL_GAPS, type, narrow))
            backward_call(bench, type, shape, i % 2 && !bench->by_cudnn ? GAP(i) : 2 * shape->H * shape->D,
                          0);
        if (is_called(bench, i, CALL_DOCUMENTS, type, narrow) && has_documents(bench, shape))
            backward_call(bench, type, shape, GAP(i + 1), DOCUMENT(i));
    }
}
