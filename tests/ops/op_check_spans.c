// Checks of the operations on flat spans: sum, sum_squares, add_squares, fill, cast, add, add_spans and
// sum_tree.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/rng.h"
#include "tests/ops/op_check.h"
#include "tests/ref/ref.h"
#include "tests/support/tree_sum.h"

#define EXPECT_OK(...) assert_int_equal((__VA_ARGS__), STATUS_OK)

static const size_t spans[] = {1, 3, 7, 48, 257, 20011};
#define N_SPANS (sizeof spans / sizeof *spans)

void op_give_extremes(struct op_tensor *tensor) {
    static const double extremes[] = {0, -0.0, 0x1p-126, -0x1p-130, 0x1p-149, 1e-20, -1e-8, 7e4, -0x1.8p-24};
    for (size_t i = 0; i < tensor->span; i++)
        if (i % 3 == 2)
            op_give(tensor, i, extremes[i / 3 % (sizeof extremes / sizeof *extremes)]);
}

// ---- sum

// Numbers of all magnitudes: another order of the additions gives other bits.
void check_sum(struct op_bench *bench) {
    static const size_t lengths[] = {1, 2, 257, 2048, 2049, 20011};
    for (int k = 0; k < 24; k++) {
        struct sum_args args = {
            .n = lengths[k % 6], .accumulate = k / 6 % 2, .type = k < 12 ? DTYPE_F32 : DTYPE_F64};
        const enum dtype type = args.type;
        struct op_call call;
        op_call_begin(&call, bench, sum, &args, "n %zu%s", args.n, args.accumulate ? " accumulate" : "");
        struct op_tensor *x = op_add_tensor(&call, "x", &args.x, type, OP_READ, op_span(args.n));
        op_add_tensor(&call, "out", &args.out, DTYPE_F64, args.accumulate ? OP_UPDATE : OP_WRITE, op_span(1))
            ->exact = true;
        for (size_t i = 0; i < args.n; i++)
            op_give(x, i, ldexp(x->given[i], (int)(i * 7 % 60) - 30));
        op_call_reference(&call);
        op_call_judge(&call);
    }
}

// ---- sum_squares

void check_sum_squares(struct op_bench *bench) {
    static const size_t lengths[] = {
        1, 3, 257, SUM_SQUARES_BLOCK, SUM_SQUARES_BLOCK + 1, 2 * SUM_SQUARES_BLOCK + 77};
    FOR_EACH_TYPE(type)
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        size_t n = lengths[k], n_blocks = (n + SUM_SQUARES_BLOCK - 1) / SUM_SQUARES_BLOCK;
        struct sum_squares_args args = {.n = n, .type = type};
        struct op_call call;
        op_call_begin(&call, bench, sum_squares, &args, "n %zu", n);
        struct op_tensor *x = op_add_tensor(&call, "x", &args.x, type, OP_READ, op_span(n));
        struct op_tensor *partial =
            op_add_tensor(&call, "partial", &args.partial, DTYPE_F64, OP_WRITE, op_span(n_blocks));
        op_give_extremes(x);
        for (size_t i = 0; i < n; i += 1001)
            op_give(x, i, type == DTYPE_F16 ? 300 : 1e25); // its square is beyond the type's range
        op_call_reference(&call);
        // Squares of the types' numbers are exact in double; the reference may be as far off as the device.
        for (size_t i = 0; i < n_blocks; i++)
            partial->allowed[i] = 2 * SUM_SQUARES_BLOCK * 0x1p-53 * partial->truth[i];
        op_call_judge(&call);
    }
}

// ---- add_squares

// Adds x in two spans, the second one first. The sum must have the bits of the reference's
// in one pass.
static void add_squares_call(struct op_bench *bench, struct stream *stream, const float *x, size_t n,
                             size_t cut) {
    struct device *device = stream->device;
    int64_t expected[EXACT_WORDS] = {0}, words[EXACT_WORDS];
    void *values, *sum;
    EXPECT_OK(ref_add_squares(NULL, &(struct add_squares_args){.sum = expected, .x = x, .n = n}));
    EXPECT_OK(device->memory_new(device, n * sizeof *x, "tests", &values));
    EXPECT_OK(device->memory_new(device, sizeof words, "tests", &sum));
    EXPECT_OK(device->copy(stream, values, x, n * sizeof *x));
    EXPECT_OK(
        device->ops->fill(stream, &(struct fill_args){.out = sum, .n = 2 * EXACT_WORDS, .type = DTYPE_F32}));
    for (int second = 1; second >= 0; second--) {
        const struct add_squares_args args = {
            .sum = sum, .x = (const float *)values + (second ? cut : 0), .n = second ? n - cut : cut};
        EXPECT_OK(device->ops->add_squares(stream, &args));
        op_count_call(bench, OP_add_squares, n);
    }
    EXPECT_OK(device->copy(stream, words, sum, sizeof words));
    EXPECT_OK(device->synchronize(stream));
    const double got = exact_value(words), wanted = exact_value(expected);
    assert_memory_equal(&got, &wanted, sizeof got);
    device->memory_delete(device, values, n * sizeof *x);
    device->memory_delete(device, sum, sizeof words);
}

static void add_squares_on(struct op_bench *bench, struct device *device) {
    enum { MOST = 300 * SQUARES_LEAF + 77 };
    static const size_t lengths[] = {1, 77, SQUARES_LEAF, 3 * SQUARES_LEAF + 5, MOST};
    static const float special[] = {0x1p-149f, 1e30f, 3e38f, 0, -1e-20f, INFINITY, NAN};
    float *x = malloc(MOST * sizeof *x);
    struct stream stream;
    assert_non_null(x);
    EXPECT_OK(stream_init(&stream, device));
    for (size_t k = 0; k <= sizeof special / sizeof *special; k++) {
        for (size_t i = 0; i < MOST; i++)
            x[i] = ldexpf((float)rng_normal(5, (uint32_t)k, i), (int)(i * 7 % 60) - 30);
        if (k > 0)
            x[0] = special[k - 1];
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
            add_squares_call(bench, &stream, x, lengths[i], lengths[i] / 2 / SQUARES_LEAF * SQUARES_LEAF);
    }
    stream_free(&stream);
    free(x);
}

void check_add_squares(struct op_bench *bench) {
    add_squares_on(bench, bench->device);
    for (int i = 0; i < OP_OTHERS; i++)
        if (bench->others[i] && bench->others[i] != bench->device)
            add_squares_on(bench, bench->others[i]);
}

// ---- fill and cast

static void fill_call(struct op_bench *bench, enum dtype type, size_t n, float value) {
    struct fill_args args = {.n = n, .value = value, .type = type};
    struct op_call call;
    op_call_begin(&call, bench, fill, &args, "n %zu value %g", n, (double)value);
    op_add_tensor(&call, "out", &args.out, type, OP_WRITE, op_span(n))->exact = true;
    op_call_reference(&call);
    op_call_judge(&call);
}

void check_fill(struct op_bench *bench) {
    static const float values[] = {0, 1, -3.14159265f, 0x1p-130f, -0x1.8p-24f, 65519, 65520, INFINITY};
    FOR_EACH_TYPE(type) {
        for (size_t i = 0; i < N_SPANS; i++)
            for (size_t k = 0; k < sizeof values / sizeof *values; k++)
                fill_call(bench, type, spans[i], values[k]);
        fill_call(bench, type, 300007, 2); // more than a small GPU's blocks handle in one pass
    }
}

// For bf16 and fp16: ties that round up and down to even, the last value before infinity and those after it,
// subnormal numbers. And NaN.
static void give_cast_inputs(struct op_tensor *x) {
    static const double values[] = {
        0x1.01p0,    0x1.03p0,   0x1.0100020p0, 0x1.00fffep0, -0x1.01p0,   -0x1.03p0,       0x1.fffffep127,
        0x1.fep127,  0x1.ffp127, INFINITY,      -INFINITY,    (double)NAN, 0x1p-149,        0x1.8p-133,
        -0x1.4p-130, 0.0,        -0.0,          0x1.002p0,    0x1.006p0,   0x1.002002p0,    0x1.001ffep0,
        -0x1.002p0,  -0x1.006p0, 65504,         65519,        65520,       -65520,          1e6,
        0x1.ffep-15, 0x1p-14,    0x1p-24,       0x1p-25,      0x1.8p-24,   -0x1.000002p-25,
    };
    for (size_t i = 0; i < x->span; i++)
        if (x->span < 100 || i % 2)
            op_give(x, i, values[i / 2 % (sizeof values / sizeof *values)]);
}

void check_cast(struct op_bench *bench) {
    FOR_EACH_TYPE(type)
    FOR_EACH_TYPE(out_type)
    for (size_t i = 0; i < N_SPANS; i++) {
        struct cast_args args = {.n = spans[i], .type = type, .out_type = out_type};
        struct op_call call;
        op_call_begin(&call, bench, cast, &args, "to %s n %zu", dtype_name(out_type), spans[i]);
        call.types[1] = &args.out_type;
        give_cast_inputs(op_add_tensor(&call, "x", &args.x, type, OP_READ, op_span(spans[i])));
        op_add_tensor(&call, "out", &args.out, out_type, OP_WRITE, op_span(spans[i]))->exact = true;
        op_call_reference(&call);
        op_call_judge(&call);
    }
    for (enum dtype through = DTYPE_BF16; through <= DTYPE_F16; through++)
        for (size_t i = 0; i < N_SPANS; i++) {
            struct cast_args args = {.n = spans[i], .through = through};
            struct op_call call;
            op_call_begin(&call, bench, cast, &args, "through %s n %zu", dtype_name(through), spans[i]);
            call.types[1] = &args.out_type;
            struct op_tensor *x = op_add_tensor(&call, "x", &args.x, DTYPE_F32, OP_UPDATE, op_span(spans[i]));
            op_alias(x, &args.out);
            give_cast_inputs(x);
            x->exact = true;
            op_call_reference(&call);
            op_call_judge(&call);
        }
}

// ---- add

void check_add(struct op_bench *bench) {
    FOR_EACH_TYPE(type)
    for (size_t i = 0; i < N_SPANS; i++)
        for (int in_place = 0; in_place < 2; in_place++) {
            struct add_args args = {.n = spans[i], .type = type};
            struct op_call call;
            op_call_begin(&call, bench, add, &args, "n %zu%s", spans[i], in_place ? " in place" : "");
            struct op_tensor *x = op_add_tensor(&call, "x", &args.x, DTYPE_F32,
                                                in_place ? OP_UPDATE : OP_READ, op_span(spans[i]));
            struct op_tensor *y = op_add_tensor(&call, "y", &args.y, type, OP_READ, op_span(spans[i]));
            struct op_tensor *out = x;
            if (in_place)
                op_alias(x, &args.out);
            else
                out = op_add_tensor(&call, "out", &args.out, DTYPE_F32, OP_WRITE, op_span(spans[i]));
            op_give_extremes(x);
            op_give_extremes(y);
            out->exact = true; // rounding the sum of two floats first to double does not change the result
            op_call_reference(&call);
            op_call_judge(&call);
        }
}

// Lengths with accesses of 16 bytes (where memory is aligned), with a last one that is shorter, and without.
void check_add_spans(struct op_bench *bench) {
    static const size_t lengths[][ADD_SPANS_MOST] = {
        {1}, {7, 1, 3, 257}, {48}, {2304, 768, 3072, 768}, {64, 4, 20012}, {8, 3}, {16, 6, 4}};
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        struct add_span to[ADD_SPANS_MOST] = {{0}};
        struct add_spans_args args = {.spans = to, .type = DTYPE_F32};
        struct op_call call;
        size_t n = 0;
        for (; args.n_spans < ADD_SPANS_MOST && lengths[k][args.n_spans] > 0; args.n_spans++)
            n += to[args.n_spans].n = lengths[k][args.n_spans];
        op_call_begin(&call, bench, add_spans, &args, "%d spans, n %zu", args.n_spans, n);
        op_give_extremes(op_add_tensor(&call, "x", &args.x, DTYPE_F32, OP_READ, op_span(n)));
        for (int i = 0; i < args.n_spans; i++) {
            struct op_tensor *out =
                op_add_tensor(&call, "out", &to[i].out, DTYPE_F32, OP_UPDATE, op_span(to[i].n));
            op_give_extremes(out);
            out->exact = true; // as in check_add
        }
        op_call_reference(&call);
        op_call_judge(&call);
    }
}

// ---- sum_tree

// The reference adds in double. The order of sums is fixed and so is each rounding, so the device must give
// the bits of the definition in fp32, which must be as close to the reference as roundings allow.
static void expect_bits(struct op_call *call, const struct sum_tree_args *args, const struct op_tensor *x,
                        size_t stride, const struct op_tensor *own, struct op_tensor *out) {
    float of_ranks[MOST_RANKS];
    for (size_t i = 0; i < args->n; i++) {
        for (int rank = 0, row = 0; rank < args->count; rank++)
            of_ranks[rank] =
                (float)(rank == args->rank ? own->given[i] : x->given[(size_t)row++ * stride + i]);
        float sum = expected_tree_sum(of_ranks, args->count);
        if (args->accumulate)
            sum = (float)out->given[i] + sum;
        if ((double)sum != out->truth[i] &&
            !(fabs((double)sum - out->truth[i]) <= 8 * OP_UNIT * out->magnitude[i])) {
            printf("# %s: the reference has %.9g for element %zu, expected %.9g\n", call->label,
                   out->truth[i], i, (double)sum);
            call->bench->n_wrong++;
        }
        out->truth[i] = (double)sum;
    }
    out->exact = true;
}

// The numbers of rank args.rank, and those of the others, `stride` apart.
static struct {
    const void *own, *others;
    size_t stride;
    const void *x[MOST_RANKS];
} contributions;

static void point_at_contributions(void *sum) {
    struct sum_tree_args *args = sum;
    const char *next = contributions.others;
    for (int rank = 0; rank < args->count; rank++) {
        contributions.x[rank] = rank == args->rank ? contributions.own : next;
        next += rank == args->rank ? 0 : contributions.stride * dtype_size(args->type);
    }
    args->x = contributions.x;
}

static void sum_tree_call(struct op_bench *bench, struct sum_tree_args args, size_t stride, bool in_place) {
    struct op_call call;
    op_call_begin(&call, bench, sum_tree, &args, "rank %d of %d, n %zu%s%s", args.rank, args.count, args.n,
                  args.accumulate ? " accumulate" : "", in_place ? " in place" : "");
    call.arrange = point_at_contributions;
    contributions.stride = stride;
    struct op_tensor *x = op_add_tensor(&call, "x", &contributions.others, args.type, OP_READ,
                                        op_rows((size_t)args.count - 1, args.n, stride));
    struct op_tensor *own = op_add_tensor(&call, "own", &contributions.own, args.type,
                                          in_place ? OP_UPDATE : OP_READ, op_span(args.n));
    struct op_tensor *out = own;
    if (in_place)
        op_alias(own, &args.out);
    else
        out = op_add_tensor(&call, "out", &args.out, DTYPE_F32, args.accumulate ? OP_UPDATE : OP_WRITE,
                            op_span(args.n));
    op_give_extremes(x);
    op_give_extremes(own);
    op_call_magnitudes(&call);
    op_call_reference(&call);
    expect_bits(&call, &args, x, stride, own, out);
    op_call_judge(&call);
}

void check_sum_tree(struct op_bench *bench) {
    static const int counts[] = {2, 3, 4, 5, 6, 7, 8, 13, 64};
    static const size_t lengths[] = {1, 257, 3001};
    FOR_EACH_TYPE(type)
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            const int count = counts[c], ranks[] = {0, count / 2, count - 1};
            for (int r = 0; r < 3; r++) {
                struct sum_tree_args args = {
                    .n = lengths[i], .count = count, .rank = ranks[r], .accumulate = r == 1, .type = type};
                sum_tree_call(bench, args, (lengths[i] + 7) / 8 * 8 + (size_t)(8 * r),
                              type == DTYPE_F32 && r == 2);
            }
        }
}
