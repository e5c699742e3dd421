// Checks of Muon's operations: the elementwise momentum (a rule of optimizer_step), matrix_normalize,
// matrix_product, matrix_add_diagonal and muon_step.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/moments.h"
#include "kernels/update.h"
#include "tests/ops/op_check.h"
#include "tests/ops/op_check_optimizer.h"

#define EXPECT_OK(...) assert_int_equal((__VA_ARGS__), STATUS_OK)

// ---- optimizer_step

// At most four roundings of each term on the way to the momentum, and three more to the direction.
static void momentum_call(struct op_bench *bench, size_t n, enum dtype type, bool with_param) {
    struct optimizer_step_args args = {
        .rule = OPTIMIZER_MUON, .n = n, .step = 3, .beta1 = 0.95, .grad_scale = 0.37f, .type = type};
    struct op_call call;
    op_call_begin(&call, bench, optimizer_step, &args, "muon n %zu", n);
    struct op_tensor *grad = op_add_tensor(&call, "grad", &args.grad, DTYPE_F32, OP_READ, op_span(n)),
                     *m = op_add_tensor(&call, "m", &args.state.m, DTYPE_F32, OP_UPDATE, op_span(n)),
                     *param = with_param
                                  ? op_add_tensor(&call, "param", &args.param, type, OP_WRITE, op_span(n))
                                  : NULL;
    op_call_reference(&call);
    for (size_t i = 0; i < n; i++) {
        const double g = fabs(grad->given[i] * (double)args.grad_scale), size = g + fabs(m->given[i]);
        m->allowed[i] = 6 * OP_UNIT * size;
        if (param)
            param->allowed[i] = 10 * OP_UNIT * size;
    }
    op_call_judge(&call);
}

enum { N = 3 * MOMENT_BLOCK + 50, BLOCKS = N / MOMENT_BLOCK + 1 };

static void *put(struct stream *stream, const void *from, size_t bytes) {
    void *memory;
    EXPECT_OK(stream->device->memory_new(stream->device, bytes, "tests", &memory));
    EXPECT_OK(stream->device->copy(stream, memory, from, bytes));
    return memory;
}

static void take(struct stream *stream, void *to, void *memory, size_t bytes) {
    EXPECT_OK(stream->device->copy(stream, to, memory, bytes));
    EXPECT_OK(stream->device->synchronize(stream));
    stream->device->memory_delete(stream->device, memory, bytes);
}

// Two steps from a momentum of zero in a narrow type: what is stored must be the momentum in fp32, encoded.
static void narrow_momentum(struct op_bench *bench, enum dtype state_type) {
    struct stream stream;
    float grad[N], m[N] = {0}, scales[BLOCKS] = {0}, decoded[N], direction[N];
    char codes[N * sizeof(float)] = {0};
    EXPECT_OK(stream_init(&stream, bench->device));
    for (int i = 0; i < N; i++)
        grad[i] = (float)(i % 17 - 8) * 0.01f + 0.003f;
    struct optimizer_step_args args = {.rule = OPTIMIZER_MUON,
                                       .n = N,
                                       .beta1 = 0.95,
                                       .grad_scale = 1,
                                       .type = DTYPE_F32,
                                       .grad_type = DTYPE_F32,
                                       .state_type = state_type};
    args.grad = put(&stream, grad, sizeof grad);
    args.param = put(&stream, m, sizeof m);
    args.state.m = put(&stream, codes, sizeof codes);
    args.state.m_scales = put(&stream, scales, sizeof scales);
    for (args.step = 1; args.step <= 2; args.step++) {
        EXPECT_OK(bench->device->ops->optimizer_step(&stream, &args));
        bench->n_calls[OP_optimizer_step]++;
    }
    take(&stream, direction, args.param, sizeof direction);
    take(&stream, codes, args.state.m, sizeof codes);
    take(&stream, scales, args.state.m_scales, sizeof scales);
    take(&stream, grad, (void *)args.grad, sizeof grad);
    stream_free(&stream);
    moments_load(state_type, FIRST_MOMENT, codes, scales, N, decoded);
    // A code is within an eighth of its value (int8), or a 128th (bf16); the momentum was rounded twice.
    const double off = state_type == DTYPE_I8 ? 0.25 : 1 / 64.0;
    for (int i = 0; i < N; i++) {
        const double g = (double)grad[i], wanted = 0.05 * (1 + 0.95) * g, u = 0.95 * wanted + 0.05 * g;
        if (!(fabs((double)decoded[i] - wanted) <= off * fabs(wanted)) ||
            !(fabs((double)direction[i] - u) <= off * fabs(u)))
            fail_msg("muon, %s momentum, element %d: %g and %g, expected %g and %g", dtype_name(state_type),
                     i, (double)decoded[i], (double)direction[i], wanted, u);
    }
}

void op_check_muon_momentum(struct op_bench *bench) {
    static const size_t lengths[] = {1, 15, 128, 257, 20011};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        FOR_EACH_TYPE(type) {
            momentum_call(bench, lengths[i], type, true);
            momentum_call(bench, lengths[i], type, false);
        }
    narrow_momentum(bench, DTYPE_BF16);
    narrow_momentum(bench, DTYPE_I8);
}

// ---- matrices

// A batch of several matrices, whose places are aligned for wide accesses or not.
struct batch {
    int n;
    size_t gap; // between matrices
};
static const struct batch batches[] = {{1, 0}, {3, 8}, {2, 1}};
enum { N_BATCHES = sizeof batches / sizeof *batches };

static struct op_layout batch_layout(const struct batch *batch, size_t elements) {
    return op_rows((size_t)batch->n, elements, elements + batch->gap);
}

// The reference divides by the norm; a device multiplies by its reciprocal, rounded. Squares are exact in
// double, and their sums at most as many roundings off as they have terms.
static void normalize_call(struct op_bench *bench, enum dtype type, size_t n, const struct batch *batch,
                           bool in_place, double epsilon) {
    const size_t partials = (n + SUM_SQUARES_BLOCK - 1) / SUM_SQUARES_BLOCK, distance = n + batch->gap;
    struct matrix_normalize_args args = {.n = n,
                                         .n_matrices = batch->n,
                                         .out_distance = distance,
                                         .x_distance = distance,
                                         .epsilon = epsilon,
                                         .type = type};
    struct op_call call;
    op_call_begin(&call, bench, matrix_normalize, &args, "n %zu, %d matrices", n, batch->n);
    struct op_tensor *x = op_add_tensor(&call, "x", &args.x, type, in_place ? OP_UPDATE : OP_READ,
                                        batch_layout(batch, n)),
                     *out = x,
                     *partial = op_add_tensor(&call, "partial", &args.partial, DTYPE_F64, OP_WRITE,
                                              op_span((size_t)batch->n * partials));
    if (in_place)
        op_alias(x, &args.out);
    else
        out = op_add_tensor(&call, "out", &args.out, type, OP_WRITE, batch_layout(batch, n));
    op_call_reference(&call);
    for (size_t i = 0; i < (size_t)batch->n * partials; i++)
        partial->allowed[i] = 2 * SUM_SQUARES_BLOCK * 0x1p-53 * partial->truth[i];
    for (size_t i = 0; i < (size_t)batch->n * distance - batch->gap; i++)
        out->allowed[i] = 3 * OP_UNIT * fabs(out->truth[i]) + 0x1p-149;
    op_call_judge(&call);
}

void check_matrix_normalize(struct op_bench *bench) {
    static const size_t lengths[] = {1, 7, 4096, SUM_SQUARES_BLOCK, 2 * SUM_SQUARES_BLOCK + 77};
    FOR_EACH_TYPE(type)
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++)
        for (int in_place = 0; in_place < 2; in_place++)
            for (size_t i = 0; i < N_BATCHES; i++)
                normalize_call(bench, type, lengths[k], &batches[i], in_place, k == 1 ? 1e3 : 1e-7);
}

// Around the sizes of the CPU's blocks and of what it multiplies at a time, in rows, columns and terms.
static const struct product_case {
    int rows, columns, inner;
} product_shapes[] = {{1, 1, 1},     {5, 7, 3},      {48, 64, 31},  {64, 48, 100},
                      {97, 33, 515}, {33, 130, 192}, {130, 257, 2}, {64, 96, 160}};
static const int strips[] = {0, 1, 16, 40, 1000};

enum addend { NO_ADDEND, OWN_ADDEND, ADDS_X, ADDS_Y, N_ADDENDS };
enum stored { PLAIN, X_TRANSPOSED, Y_TRANSPOSED, N_STORED };

static void make_symmetric(struct op_tensor *squares, size_t n, const struct batch *batch) {
    for (int matrix = 0; matrix < batch->n; matrix++) {
        double *square = squares->given + (size_t)matrix * (n * n + batch->gap);
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < i; j++)
                square[j * n + i] = square[i * n + j];
    }
}

// Whether there is such a product: a symmetric one is x x^T or x^T x, and what is also added is not
// transposed.
static bool has_product(enum stored stored, enum addend addend, int strip) {
    if (strip)
        return stored != PLAIN && addend <= OWN_ADDEND;
    return !(addend == ADDS_X && stored == X_TRANSPOSED) && !(addend == ADDS_Y && stored == Y_TRANSPOSED);
}

static void product_call(struct op_bench *bench, enum dtype type, const struct product_case *shape,
                         const struct batch *batch, enum stored stored, enum addend addend, int strip) {
    const int columns = strip ? shape->rows : shape->columns, inner = addend == ADDS_X   ? columns
                                                                      : addend == ADDS_Y ? shape->rows
                                                                                         : shape->inner;
    const size_t rows = (size_t)shape->rows, n = (size_t)columns, k = (size_t)inner;
    struct matrix_product_args args = {.rows = shape->rows,
                                       .columns = columns,
                                       .inner = inner,
                                       .n_matrices = batch->n,
                                       .out_distance = rows * n + batch->gap,
                                       .x_distance = rows * k + batch->gap,
                                       .y_distance = k * n + batch->gap,
                                       .addend_distance = rows * n + batch->gap,
                                       .x_transposed = stored == X_TRANSPOSED,
                                       .y_transposed = stored == Y_TRANSPOSED,
                                       .strip = strip,
                                       .alpha = addend ? 2.0315 : 1,
                                       .beta = 4.775,
                                       .type = type};
    struct op_call call;
    op_call_begin(&call, bench, matrix_product, &args,
                  "%d x %d x %d, stored %d, addend %d, strip %d, batch %d", args.rows, columns, inner,
                  (int)stored, (int)addend, strip, batch->n);
    struct op_tensor *x = op_add_tensor(&call, "x", &args.x, type, OP_READ, batch_layout(batch, rows * k)),
                     *y = x, *added = NULL;
    if (strip)
        op_alias(x, &args.y);
    else
        y = op_add_tensor(&call, "y", &args.y, type, OP_READ, batch_layout(batch, k * n));
    if (addend == ADDS_X || addend == ADDS_Y)
        op_alias(addend == ADDS_X ? x : y, &args.addend);
    else if (addend == OWN_ADDEND)
        added = op_add_tensor(&call, "addend", &args.addend, type, OP_READ, batch_layout(batch, rows * n));
    if (strip && added)
        make_symmetric(added, rows, batch);
    struct op_tensor *out =
        op_add_tensor(&call, "out", &args.out, type, OP_WRITE, batch_layout(batch, rows * n));
    op_call_magnitudes(&call);
    args.beta = -args.beta; // whose absolute value counted
    op_call_reference(&call);
    op_allow_roundings(out, inner + 4); // a product, its sums, and two factors with a sum
    op_call_judge(&call);
}

// All ways to store and to add, and all strips; the batches in turn.
static void product_calls(struct op_bench *bench, enum dtype type, size_t shape) {
    enum { N_STRIPS = sizeof strips / sizeof *strips };
    for (size_t i = 0; i < (size_t)N_STRIPS * N_ADDENDS * N_STORED; i++) {
        const enum stored stored = (enum stored)(i % N_STORED);
        const enum addend addend = (enum addend)(i / N_STORED % N_ADDENDS);
        const int strip = strips[i / N_STORED / N_ADDENDS];
        if (has_product(stored, addend, strip) && op_has_turn(type, shape + i))
            product_call(bench, type, &product_shapes[shape], &batches[(shape + i / N_STORED) % N_BATCHES],
                         stored, addend, strip);
    }
}

void check_matrix_product(struct op_bench *bench) {
    FOR_EACH_TYPE(type)
    for (size_t i = 0; i < sizeof product_shapes / sizeof *product_shapes; i++)
        product_calls(bench, type, i);
}

void check_matrix_add_diagonal(struct op_bench *bench) {
    static const int sizes[] = {1, 5, 64, 131, 300};
    FOR_EACH_TYPE(type)
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        const size_t n = (size_t)sizes[k];
        const struct batch *batch = &batches[k % N_BATCHES];
        struct matrix_add_diagonal_args args = {.n = sizes[k],
                                                .n_matrices = batch->n,
                                                .distance = n * n + batch->gap,
                                                .value = 3.4375, // exact in all types
                                                .type = type};
        struct op_call call;
        op_call_begin(&call, bench, matrix_add_diagonal, &args, "n %zu, batch %d", n, batch->n);
        struct op_tensor *x = op_add_tensor(&call, "x", &args.x, type, OP_UPDATE, batch_layout(batch, n * n));
        op_call_reference(&call);
        op_allow_roundings(x, 1);
        op_call_judge(&call);
    }
}

// ---- muon_step

// Plan and result are read by the device, so they are in its memory: the operation's numbers are compared
// with the formula, not by op_call_judge.
enum { STEPPED = OP_THREADED + 3 };

//   master   [out] (STEPPED)
static void step_call(struct op_bench *bench, struct device *device, enum dtype type, enum dtype update_type,
                      bool with_param, bool skipped, float *master) {
    static float before[STEPPED], update[STEPPED], unused_update[STEPPED];
    static uint16_t narrow[STEPPED];
    static char param[STEPPED * sizeof(float)];
    const size_t master_bytes = STEPPED * sizeof *master;
    struct stream stream;
    struct update_plan plan = {0};
    const struct optimizer_step_args constants = {.step = 1, .lr = 0.02, .weight_decay = 0.1};
    const struct update_result result = {.skipped = skipped};
    plan.constants[2] = optimizer_constants_of(&constants);
    memset(param, 0, sizeof param);
    for (int i = 0; i < STEPPED; i++) {
        before[i] = master[i] = (float)(i % 31 - 15) * 0.013f;
        update[i] = (float)(i % 7 - 3) * 0.125f; // exact in 16 bits
        narrow[i] = update_type == DTYPE_F16 ? f16_from_float(update[i]) : bf16_from_float(update[i]);
    }
    EXPECT_OK(stream_init(&stream, device));
    const size_t update_bytes = STEPPED * dtype_size(update_type), param_bytes = STEPPED * dtype_size(type);
    struct muon_step_args args = {.n = STEPPED, .group = 2, .scale = 5.5f, .type = type};
    args.update_type = update_type;
    args.master = put(&stream, master, master_bytes);
    args.update = put(&stream, update_type == DTYPE_F32 ? (void *)update : narrow, update_bytes);
    args.param = with_param ? put(&stream, param, param_bytes) : NULL;
    args.plan = put(&stream, &plan, sizeof plan);
    args.result = put(&stream, &result, sizeof result);
    EXPECT_OK(device->ops->muon_step(&stream, &args));
    op_count_call(bench, OP_muon_step, STEPPED);
    if (with_param)
        take(&stream, param, args.param, param_bytes);
    struct update_result unused;
    take(&stream, master, args.master, master_bytes);
    take(&stream, unused_update, (void *)args.update, update_bytes);
    take(&stream, &plan, (void *)args.plan, sizeof plan);
    take(&stream, &unused, (void *)args.result, sizeof unused);
    stream_free(&stream);
    for (int i = 0; i < STEPPED; i++) {
        const double w = (double)before[i], u = (double)update[i],
                     wanted = skipped ? w : w - 0.02 * 5.5 * u - 0.02 * 0.1 * w,
                     allowed = 6 * OP_UNIT * (0.11 * fabs(u) + fabs(w));
        float stored = skipped ? 0 : master[i], got;
        memcpy(&got, param + (size_t)i * sizeof got, sizeof got);
        if (with_param && type != DTYPE_F32) {
            uint16_t bits;
            memcpy(&bits, param + (size_t)i * sizeof bits, sizeof bits);
            stored = (float)op_round(type, (double)stored);
            got = type == DTYPE_F16 ? f16_to_float(bits) : bf16_to_float(bits);
        }
        if (!(fabs((double)master[i] - wanted) <= allowed) || (with_param && got != stored))
            fail_msg("muon_step, element %d: %.9g, expected %.9g; as a parameter %g", i, (double)master[i],
                     wanted, (double)got);
    }
}

void check_muon_step(struct op_bench *bench) {
    static float first[STEPPED], again[STEPPED];
    FOR_EACH_TYPE(type)
    FOR_EACH_TYPE(update_type)
    for (int k = 0; k < 3; k++) {
        step_call(bench, bench->device, type, update_type, k > 0, k == 2, first);
        for (int i = 0; i < OP_OTHERS; i++)
            if (bench->others[i]) {
                step_call(bench, bench->others[i], type, update_type, k > 0, k == 2, again);
                assert_memory_equal(again, first, sizeof first);
            }
    }
}
