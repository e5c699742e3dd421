// Checks of attention_decode, with and without rotation of what it loads. The bounds are attention's and
// rotation's.
#include <math.h>
#include <string.h>

#include "tests/ops/op_bounds.h"

static const struct shape {
    int B, positions, H, K, D, window;
    double deviation; // of q and k
} shapes[] = {
    {1, 1, 1, 1, 1, 0, 1},
    {1, 40, 2, 2, 7, 0, 4},
    {9, 70, 3, 3, 16, 0, 1},
    {2, 513, 1, 1, 64, 0, 2},
    {12, 140, 2, 2, 64, 0, 1},
    {2, 9, 2, 1, 2, 0, 1},
    {7, 66, 1, 1, 20, 0, 10},
    {12, 130, 1, 1, 80, 0, 1},
    {4, 33, 2, 2, 128, 0, 2},
    {5, 66, 1, 1, 160, 0, 1},
    {6, 300, 1, 1, 256, 0, 2},
    // groups
    {3, 70, 4, 2, 16, 0, 1},
    {2, 100, 6, 2, 64, 0, 2},
    {9, 70, 8, 2, 7, 0, 4},
    {1, 257, 8, 1, 20, 0, 1},
    {5, 66, 14, 2, 33, 0, 1},
    {1, 66, 6, 1, 256, 0, 1},
    {3, 70, 12, 1, 8, 0, 1},
    // windows
    {9, 70, 1, 1, 16, 1, 1},
    {7, 70, 2, 2, 64, 32, 1},
    {7, 140, 4, 1, 12, 64, 1},
    {5, 140, 6, 2, 20, 100, 2},
    {5, 66, 2, 1, 80, 70, 1},
};
#define N_SHAPES (sizeof shapes / sizeof *shapes)
#define WIDEST   256

// Between rows: odd ones, and those that align rows of some heads to 16 bytes.
static const int gaps[] = {1, 6, 8, 11};

// Cached positions: none, the most there is room for, around the edges of blocks of positions.
static int decode_length(int b, int positions) {
    const int lengths[] = {positions - 1, 0, 63, 1, 64, 62, 31, 127, 128, 32, 126, 129};
    int length = lengths[b % (int)(sizeof lengths / sizeof *lengths)];
    return length < positions ? length : positions - 1;
}

// Where documents begin: in the middle, with the new position, at 0, earlier, one before the last. In a first
// sequence at one of these.
static int decode_first(int b, int positions) {
    const int length = decode_length(b, positions);
    const int starts[] = {length / 2, length, 0, length / 4, length > 0 ? length - 1 : 0};
    return starts[(b + positions) % (int)(sizeof starts / sizeof *starts)];
}

// What is done to q and k first.
enum rotation { NO_ROTATION, ROTATION, NORM, NORM_WITH_WEIGHTS, N_ROTATIONS };
static const char *const rotation_names[] = {"", " rotated", " rotated norm", " rotated norm with weights"};

struct decode_tensors {
    struct op_tensor *q, *k, *keys, *values, *out, *table, *q_weight, *k_weight;
    struct op_tensor *first; // NULL without documents
};

// A head of q or k once it is rotated, and its error, also from rounding it.
struct rotated_head {
    double x[WIDEST], allowed[WIDEST], off[WIDEST]; // allowed: before it is rounded
};

static void rotate_head(const struct attention_decode_args *args, const struct decode_tensors *t, int length,
                        const double *x, const struct op_tensor *weight, struct rotated_head *rotated) {
    const size_t D = (size_t)args->D;
    const struct op_head head = {.x = x,
                                 .weight = weight ? weight->given : NULL,
                                 .table = t->table->given + (size_t)length * D,
                                 .D = D};
    op_allow_rotated(&head, args->rope.norm, rotated->x, rotated->allowed);
    for (size_t d = 0; d < D; d++) {
        const double rounding =
            fmax(dtype_epsilon(args->type) * fabs(rotated->x[d]), dtype_smallest(args->type)) / 2;
        rotated->off[d] = rotated->allowed[d] * (1 + dtype_epsilon(args->type)) + rounding;
    }
}

// Query head h of sequence b, whose new key is the cache's row `length`.
static void allow_head(const struct attention_decode_args *args, const struct decode_tensors *t, size_t b,
                       size_t h, int length) {
    const size_t D = (size_t)args->D, g = h / (size_t)(args->H / args->K);
    const size_t at = (size_t)(args->B - (int)b) * args->cache_batch_stride + g * D;
    struct rotated_head q, k;
    struct op_query query = {.q = t->q->given + b * args->q_stride + h * D,
                             .k = t->keys->truth + at,
                             .v = t->values->truth + at,
                             .k_stride = args->cache_stride,
                             .v_stride = args->cache_stride,
                             .first = op_first_seen(t->first, b, args->window, length),
                             .end = length + 1,
                             .S = length + 1,
                             .D = args->D};
    if (t->table) {
        rotate_head(args, t, length, query.q, t->q_weight, &q);
        rotate_head(args, t, length, t->k->given + b * args->k_stride + g * D, t->k_weight, &k);
        memcpy(t->keys->allowed + at + (size_t)length * args->cache_stride, k.allowed, D * sizeof *k.allowed);
        query.q = q.x;
        query.q_off = q.off;
        query.last_k_off = k.off;
    }
    op_allow_query(&query, t->out->allowed + (b * (size_t)args->H + h) * D, NULL);
}

static void add_rotation(struct op_call *call, struct attention_decode_args *args, enum rotation rotation,
                         int positions, struct decode_tensors *t) {
    const size_t D = (size_t)args->D;
    args->rope.norm = rotation >= NORM;
    args->rope.epsilon = (float)ROPE_EPSILON;
    t->table =
        op_add_tensor(call, "table", &args->rope.table, DTYPE_F32, OP_READ, op_span((size_t)positions * D));
    if (rotation == NORM_WITH_WEIGHTS) {
        t->q_weight = op_add_tensor(call, "q_weight", &args->rope.q_weight, args->type, OP_READ, op_span(D));
        t->k_weight = op_add_tensor(call, "k_weight", &args->rope.k_weight, args->type, OP_READ, op_span(D));
    }
}

// What sequence b does not see becomes NaN: it is not read.
static void hide_positions(const struct attention_decode_args *args, const struct decode_tensors *t, int b,
                           int n_hidden) {
    const size_t KC = (size_t)args->K * (size_t)args->D;
    for (int j = 0; j < n_hidden; j++)
        for (size_t i = 0; i < KC; i++) {
            const size_t at =
                (size_t)(args->B - b) * args->cache_batch_stride + (size_t)j * args->cache_stride + i;
            op_give(t->keys, at, NAN);
            op_give(t->values, at, NAN);
        }
}

// The cache has one sequence more than the call, and the call's are in descending order.
static void decode_call(struct op_bench *bench, enum dtype type, const struct shape *s, int gap,
                        enum rotation rotation, bool documents) {
    struct attention_decode_args args = {
        .B = s->B, .H = s->H, .K = s->K, .D = s->D, .window = s->window, .type = type};
    const int C = s->H * s->D, KC = s->K * s->D;
    const size_t B = (size_t)s->B, H = (size_t)s->H, D = (size_t)s->D;
    args.q_stride = (size_t)(C + 2 * KC + gap);
    args.k_stride = args.q_stride + (size_t)gap;
    args.v_stride = (size_t)(KC + 3 * gap);
    args.cache_stride = (size_t)(2 * KC + gap);
    args.cache_batch_stride = args.cache_stride * (size_t)s->positions + (size_t)gap;
    struct op_call call;
    op_call_begin(&call, bench, attention_decode, &args,
                  "B %d positions %d H %d K %d D %d window %d gap %d%s%s", s->B, s->positions, s->H, s->K,
                  s->D, s->window, gap, rotation_names[rotation], documents ? " documents" : "");
    const struct op_layout cache = {{B + 1, (size_t)s->positions, (size_t)KC},
                                    {args.cache_batch_stride, args.cache_stride, 1}};
    struct decode_tensors t = {0};
    t.q = op_add_tensor(&call, "q", &args.q, type, OP_READ, op_rows(B, (size_t)C, args.q_stride));
    t.k = op_add_tensor(&call, "k", &args.k, type, OP_READ, op_rows(B, (size_t)KC, args.k_stride));
    op_add_tensor(&call, "v", &args.v, type, OP_READ, op_rows(B, (size_t)KC, args.v_stride));
    t.keys = op_add_tensor(&call, "keys", &args.keys, type, OP_UPDATE, cache);
    t.values = op_add_tensor(&call, "values", &args.values, type, OP_UPDATE, cache);
    t.out = op_add_tensor(&call, "out", &args.out, type, OP_WRITE, op_span(B * H * D));
    struct op_tensor *sequences =
        op_add_tensor(&call, "sequences", &args.sequences, DTYPE_I32, OP_READ, op_span(B));
    struct op_tensor *lengths =
        op_add_tensor(&call, "lengths", &args.lengths, DTYPE_I32, OP_READ, op_span(B));
    if (documents)
        t.first = op_add_tensor(&call, "first", &args.first, DTYPE_I32, OP_READ, op_span(B));
    if (rotation != NO_ROTATION)
        add_rotation(&call, &args, rotation, s->positions, &t);
    op_scale(t.q, 0, s->deviation);
    op_scale(t.k, 0, s->deviation);
    op_scale(t.keys, 0, s->deviation);
    t.keys->exact = rotation == NO_ROTATION;
    t.values->exact = true;
    for (int b = 0; b < s->B; b++) {
        int length = decode_length(b, s->positions);
        op_give(sequences, (size_t)b, s->B - b);
        op_give(lengths, (size_t)b, length);
        if (documents)
            op_give(t.first, (size_t)b, decode_first(b, s->positions));
        const int n_hidden = op_first_seen(t.first, (size_t)b, s->window, length);
        args.n_keys += (size_t)(length + 1 - n_hidden);
        hide_positions(&args, &t, b, n_hidden);
    }
    op_call_reference(&call);
    for (size_t b = 0; b < B; b++)
        for (size_t h = 0; h < H; h++)
            allow_head(&args, &t, b, h, decode_length((int)b, s->positions));
    op_call_judge(&call);
}

// Plain rows and gaps between them, each with and without rotation; documents in one of each. Where the run
// is short, the types share a shape's calls in turns.
void check_attention_decode(struct op_bench *bench) {
    FOR_EACH_TYPE(type)
    for (size_t i = 0; i < N_SHAPES; i++)
        for (size_t k = 0; k < 4; k++) {
            const bool is_called = !op_is_short(bench) || (i + k) % N_COMPUTE_DTYPES == (size_t)type;
            const int gap = k % 2 == 0 ? 0 : gaps[i % 4];
            if (is_called && k < 2)
                decode_call(bench, type, &shapes[i], gap, NO_ROTATION, k == 1);
            else if (is_called && shapes[i].D % 2 == 0)
                decode_call(bench, type, &shapes[i], gap, ROTATION + (enum rotation)((i + k) % 3), k == 2);
        }
}
