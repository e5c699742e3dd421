// Checks of Adafactor's operations against the reference in double. The bounds follow from fp32 roundings and
// from the units of kernels/exact_sum.h. The exact sums must also be bitwise equal to the reference's,
// however a tensor is split into calls.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "kernels/adafactor.h"
#include "kernels/exact_sum.h"
#include "tests/ops/op_check.h"

#define TINY 0x1p-149

// A tensor, of several rows or of one dimension, and a span of it.
static const struct shape {
    int rows, columns;
    size_t begin, end;
} shapes[] = {
    {1, 1, 0, 1},           {1, 7, 0, 7},           {1, 257, 128, 257},    {1, 3001, 0, 3001},
    {5, 1, 1, 4},           {3, 5, 0, 15},          {3, 5, 2, 13},         {37, 64, 0, 37 * 64},
    {37, 64, 128, 1920},    {9, 130, 128, 896},     {9, 130, 0, 9 * 130},  {40, 129, 77, 79},
    {70, 48, 384, 70 * 48}, {200, 96, 1280, 19072}, {6, 1500, 1408, 8960},
};
#define N_SHAPES (sizeof shapes / sizeof *shapes)

static struct adafactor_span span_of(const struct shape *shape) {
    return (struct adafactor_span){
        .begin = shape->begin, .n = shape->end - shape->begin, .columns = shape->columns};
}

static int longest(const struct shape *shape) {
    return shape->rows > shape->columns ? shape->rows : shape->columns;
}

// Half a coarse unit: the most that rounding to it moves from one number to the fine sum.
static double half_unit(double bound, double n) {
    return exact_units_of(bound, n).coarse * 0x1p-53;
}

// As op_give_extremes, without values that are infinite in fp16: the bounds of the sums must be finite.
static void give_extremes(struct op_tensor *tensor) {
    op_give_extremes(tensor);
    for (size_t i = 0; i < tensor->span; i++)
        if (!isfinite(tensor->given[i]))
            op_give(tensor, i, 6e4);
}

// ---- sums by row and by column

static struct op_tensor *sums_tensor(struct op_call *call, const char *name, double **field, size_t n) {
    struct op_tensor *tensor = op_add_tensor(call, name, field, DTYPE_F64, OP_UPDATE, op_span(n));
    op_scale(tensor, 0, 0); // the sums of other spans are whole units, so the initial value must be too
    return tensor;
}

// relative: bound of the relative error of each sum, before its numbers are rounded to units. many: the most
// squares in one sum. half: half_unit.
static void allow_sums(struct op_tensor *sums, double relative, double many, double half) {
    size_t n = sums->span / 2;
    for (size_t i = 0; i < n; i++) {
        sums->allowed[i] = relative * sums->truth[i] + many * (half + 2 * TINY);
        sums->allowed[n + i] = many * half;
    }
}

static void sums_call(struct op_bench *bench, const struct shape *shape, enum dtype grad_type) {
    struct adafactor_sums_args args = {.span = span_of(shape),
                                       .rows = shape->rows,
                                       .grad_scale = 0.37f,
                                       .type = DTYPE_F32,
                                       .grad_type = grad_type};
    size_t rows = (size_t)shape->rows, columns = (size_t)shape->columns;
    struct op_call call;
    op_call_begin(&call, bench, adafactor_sums, &args, "(%d, %d) [%zu, %zu) grad %s", shape->rows,
                  shape->columns, shape->begin, shape->end, dtype_name(grad_type));
    struct op_tensor *grad =
        op_add_tensor(&call, "grad", &args.grad, grad_type, OP_READ, op_span(args.span.n));
    struct op_tensor *by_column = sums_tensor(&call, "column sums", &args.column_sums, 2 * columns);
    struct op_tensor *by_row = NULL;
    if (shape->rows > 1)
        by_row = sums_tensor(&call, "row sums", &args.row_sums, 2 * rows);
    give_extremes(grad);
    for (size_t i = 0; i < grad->span; i++)
        args.bound += grad->given[i] * grad->given[i];
    op_call_reference(&call);
    double half = half_unit(args.bound, longest(shape));
    allow_sums(by_column, 2 * OP_UNIT, shape->rows, half);
    if (by_row)
        allow_sums(by_row, 2 * OP_UNIT, shape->columns, half);
    op_call_judge(&call);
}

// ---- the same bits, in one call or many

// The arrays of a call in host memory; on a device with memory of its own they are copied there.
struct arrays {
    size_t elements;
    float *grad, *master, *row_scales, *column_scales;
    double *row_sums, *column_sums, *norms;
};

static void *allocate(size_t n, size_t size) {
    void *memory = calloc(n, size);
    assert_non_null(memory);
    return memory;
}

static void arrays_init(struct arrays *arrays, const struct shape *shape) {
    size_t rows = (size_t)shape->rows, columns = (size_t)shape->columns, n = rows * columns;
    *arrays = (struct arrays){.elements = n,
                              .grad = allocate(n, sizeof(float)),
                              .master = allocate(n, sizeof(float)),
                              .row_scales = allocate(rows, sizeof(float)),
                              .column_scales = allocate(columns, sizeof(float)),
                              .row_sums = allocate(2 * rows, sizeof(double)),
                              .column_sums = allocate(2 * columns, sizeof(double)),
                              .norms = allocate(4, sizeof(double))};
    for (size_t i = 0; i < n; i++) {
        // Sizes fall by a hundred from row to row; a few numbers are so small that only the fine unit holds
        // them.
        double size = pow(10, -2.0 * (double)(i / columns % 5)) * (i % 11 == 3 ? 1e-15 : 1);
        arrays->grad[i] = (float)(size * rng_normal(40, 1, i));
        arrays->master[i] = (float)rng_normal(40, 2, i);
    }
    for (size_t i = 0; i < rows; i++)
        arrays->row_scales[i] = i % 9 == 4 ? INFINITY : (float)exp(rng_normal(40, 3, i));
    for (size_t i = 0; i < columns; i++)
        arrays->column_scales[i] = (float)exp(rng_normal(40, 4, i));
}

static void arrays_free(struct arrays *arrays) {
    free(arrays->grad), free(arrays->master), free(arrays->row_scales), free(arrays->column_scales);
    free(arrays->row_sums), free(arrays->column_sums), free(arrays->norms);
}

static void *to_device(struct device *device, struct stream *stream, const void *from, size_t bytes) {
    void *memory;
    assert_int_equal(device->memory_new(device, bytes, "tests", &memory), STATUS_OK);
    assert_int_equal(device->copy(stream, memory, from, bytes), STATUS_OK);
    return memory;
}

static void from_device(struct device *device, struct stream *stream, void *to, void *memory, size_t bytes) {
    assert_int_equal(device->copy(stream, to, memory, bytes), STATUS_OK);
    assert_int_equal(device->synchronize(stream), STATUS_OK);
    device->memory_delete(device, memory, bytes);
}

static void give_workspace(struct stream *stream, enum operation operation, const void *args) {
    struct device *device = stream->device;
    assert_int_equal(device->ops->workspace_bytes(device, operation, args, &stream->workspace_bytes),
                     STATUS_OK);
    assert_int_equal(device->memory_new(device, stream->workspace_bytes, "tests", &stream->workspace),
                     STATUS_OK);
}

static void free_stream(struct stream *stream) {
    stream->device->memory_delete(stream->device, stream->workspace, stream->workspace_bytes);
    stream_free(stream);
}

// Sums in calls of `length` elements each, the last first.
static void sum_in_spans(struct device *device, const struct shape *shape, size_t length, double bound,
                         struct arrays *arrays) {
    struct stream stream;
    size_t n = arrays->elements, rows = (size_t)shape->rows, columns = (size_t)shape->columns;
    assert_int_equal(stream_init(&stream, device), STATUS_OK);
    float *grad = to_device(device, &stream, arrays->grad, n * sizeof *grad);
    memset(arrays->row_sums, 0, 2 * rows * sizeof(double));
    memset(arrays->column_sums, 0, 2 * columns * sizeof(double));
    double *row_sums = to_device(device, &stream, arrays->row_sums, 2 * rows * sizeof(double));
    double *column_sums = to_device(device, &stream, arrays->column_sums, 2 * columns * sizeof(double));
    struct adafactor_sums_args args = {.row_sums = shape->rows > 1 ? row_sums : NULL,
                                       .column_sums = column_sums,
                                       .span = {.n = n, .columns = shape->columns},
                                       .rows = shape->rows,
                                       .bound = bound,
                                       .grad_scale = 0.37f,
                                       .type = DTYPE_F32};
    give_workspace(&stream, OP_adafactor_sums, &args);
    for (size_t end = n; end > 0; end = args.span.begin) {
        args.span.begin = (end - 1) / length * length;
        args.span.n = end - args.span.begin;
        args.grad = grad + args.span.begin;
        assert_int_equal(device->ops->adafactor_sums(&stream, &args), STATUS_OK);
    }
    from_device(device, &stream, arrays->row_sums, row_sums, 2 * rows * sizeof(double));
    from_device(device, &stream, arrays->column_sums, column_sums, 2 * columns * sizeof(double));
    from_device(device, &stream, arrays->grad, grad, n * sizeof *grad);
    free_stream(&stream);
}

static void norms_in_spans(struct device *device, const struct shape *shape, size_t length, double bound,
                           struct arrays *arrays) {
    struct stream stream;
    size_t n = arrays->elements, rows = (size_t)shape->rows, columns = (size_t)shape->columns;
    assert_int_equal(stream_init(&stream, device), STATUS_OK);
    memset(arrays->norms, 0, 4 * sizeof(double));
    float *grad = to_device(device, &stream, arrays->grad, n * sizeof *grad);
    float *master = to_device(device, &stream, arrays->master, n * sizeof *master);
    float *row_scales = to_device(device, &stream, arrays->row_scales, rows * sizeof *row_scales);
    float *column_scales = to_device(device, &stream, arrays->column_scales, columns * sizeof *column_scales);
    double *sums = to_device(device, &stream, arrays->norms, 4 * sizeof *sums);
    struct adafactor_norms_args args = {.sums = sums,
                                        .direction = {.row_scales = shape->rows > 1 ? row_scales : NULL,
                                                      .column_scales = column_scales,
                                                      .largest_scale = ADAFACTOR_LARGEST_SCALE,
                                                      .grad_scale = 0.37f},
                                        .span = {.columns = shape->columns},
                                        .elements = n,
                                        .update_bound = bound,
                                        .type = DTYPE_F32};
    for (size_t end = n; end > 0; end = args.span.begin) {
        args.span.begin = (end - 1) / length * length;
        args.span.n = end - args.span.begin;
        args.direction.grad = grad + args.span.begin;
        args.master = master + args.span.begin;
        assert_int_equal(device->ops->adafactor_norms(&stream, &args), STATUS_OK);
    }
    from_device(device, &stream, arrays->norms, sums, 4 * sizeof *sums);
    from_device(device, &stream, arrays->grad, grad, n * sizeof *grad);
    from_device(device, &stream, arrays->master, master, n * sizeof *master);
    from_device(device, &stream, arrays->row_scales, row_scales, rows * sizeof *row_scales);
    from_device(device, &stream, arrays->column_scales, column_scales, columns * sizeof *column_scales);
    free_stream(&stream);
}

static void expect_same(struct op_bench *bench, const char *what, const struct shape *shape, size_t length,
                        const double *got, const double *wanted, size_t n) {
    if (memcmp(got, wanted, n * sizeof *got) == 0)
        return;
    bench->n_wrong++;
    print_error("%s, %s of (%d, %d) in spans of %zu differ in bits from the reference\n",
                bench->device->description, what, shape->rows, shape->columns, length);
}

static double sum_of_squares(const float *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sum;
}

// Whole tensors, split at multiples of 128 as among ranks, and elsewhere. Large enough for several blocks and
// threads.
static const struct shape cut_shapes[] = {{.rows = 1, .columns = 300},
                                          {.rows = 33, .columns = 257},
                                          {.rows = 130, .columns = 160},
                                          {.rows = 20, .columns = 1100}};
#define N_CUT_SHAPES (sizeof cut_shapes / sizeof *cut_shapes)
static const size_t lengths[] = {SIZE_MAX, 128, 1001};
#define N_LENGTHS (sizeof lengths / sizeof *lengths)

static void compare_sums(struct op_bench *bench, const struct shape *shape) {
    struct arrays wanted, got;
    size_t rows = (size_t)shape->rows, columns = (size_t)shape->columns;
    arrays_init(&wanted, shape);
    double bound = sum_of_squares(wanted.grad, wanted.elements);
    sum_in_spans(bench->reference, shape, SIZE_MAX, bound, &wanted);
    for (size_t k = 0; k < N_LENGTHS; k++) {
        arrays_init(&got, shape);
        sum_in_spans(bench->device, shape, lengths[k], bound, &got);
        expect_same(bench, "row sums", shape, lengths[k], got.row_sums, wanted.row_sums, 2 * rows);
        expect_same(bench, "column sums", shape, lengths[k], got.column_sums, wanted.column_sums,
                    2 * columns);
        arrays_free(&got);
    }
    // Small rows are not lost: the squares of a row 10^-8 the size of another are below the coarse unit, but
    // its sum is right.
    for (size_t row = 0; row < rows && rows > 1; row++) {
        double truth = 0, sum = wanted.row_sums[row] + wanted.row_sums[rows + row];
        for (size_t c = 0; c < columns; c++) {
            double g = (double)(wanted.grad[row * columns + c] * 0.37f);
            truth += g * g;
        }
        assert_true(fabs(sum - truth) <= 1e-9 * truth);
    }
    arrays_free(&wanted);
}

static void compare_norms(struct op_bench *bench, const struct shape *shape) {
    struct arrays wanted, got;
    arrays_init(&wanted, shape);
    double bound = sum_of_squares(wanted.grad, wanted.elements) * 0x1p46;
    norms_in_spans(bench->reference, shape, SIZE_MAX, bound, &wanted);
    for (size_t k = 0; k < N_LENGTHS; k++) {
        arrays_init(&got, shape);
        norms_in_spans(bench->device, shape, lengths[k], bound, &got);
        expect_same(bench, "norms", shape, lengths[k], got.norms, wanted.norms, 4);
        arrays_free(&got);
    }
    arrays_free(&wanted);
}

// A bound that is not finite means gradients that are not finite: every sum must be NaN.
static void sums_that_are_not_finite(struct op_bench *bench) {
    const struct shape shape = {.rows = 33, .columns = 257};
    struct arrays arrays;
    arrays_init(&arrays, &shape);
    sum_in_spans(bench->device, &shape, SIZE_MAX, HUGE_VAL, &arrays);
    for (size_t i = 0; i < 2 * 33; i++)
        assert_true(isnan(arrays.row_sums[i]));
    for (size_t i = 0; i < 2 * 257; i++)
        assert_true(isnan(arrays.column_sums[i]));
    arrays_free(&arrays);
}

void check_adafactor_sums(struct op_bench *bench) {
    FOR_EACH_TYPE(grad_type)
    for (size_t i = 0; i < N_SHAPES; i++)
        sums_call(bench, &shapes[i], grad_type);
    for (size_t i = 0; i < N_CUT_SHAPES; i++)
        compare_sums(bench, &cut_shapes[i]);
    sums_that_are_not_finite(bench);
}

// ---- the update

struct direction_tensors {
    struct op_tensor *grad, *row_scales, *column_scales;
};

// Ordinary scales, infinite ones (rows without gradients), and some beyond largest_scale.
static struct direction_tensors describe_direction(struct op_call *call, struct adafactor_direction *args,
                                                   const struct shape *shape, enum dtype grad_type) {
    struct direction_tensors d = {.grad = op_add_tensor(call, "grad", &args->grad, grad_type, OP_READ,
                                                        op_span(shape->end - shape->begin))};
    *args = (struct adafactor_direction){.largest_scale = 20.0f, .grad_scale = 0.37f, .grad_type = grad_type};
    d.column_scales = op_add_tensor(call, "column scales", &args->column_scales, DTYPE_F32, OP_READ,
                                    op_span((size_t)shape->columns));
    for (size_t i = 0; i < d.column_scales->span; i++)
        op_give(d.column_scales, i, i % 5 == 3 ? 1e-30 : exp(d.column_scales->given[i]));
    give_extremes(d.grad);
    if (shape->rows == 1)
        return d;
    d.row_scales = op_add_tensor(call, "row scales", &args->row_scales, DTYPE_F32, OP_READ,
                                 op_span((size_t)shape->rows));
    for (size_t i = 0; i < d.row_scales->span; i++)
        op_give(d.row_scales, i, i % 5 == 2 ? (double)INFINITY : exp(d.row_scales->given[i]));
    return d;
}

// Returns the update and sets its error bound: four roundings, and tiny numbers enlarged by a scale.
static double update_of(const struct adafactor_direction *args, const struct direction_tensors *d,
                        const struct adafactor_span *span, size_t i, double *off) {
    size_t element = span->begin + i, columns = (size_t)span->columns;
    double scale = d->column_scales->given[element % columns];
    scale *= d->row_scales ? d->row_scales->given[element / columns] : 1;
    scale = fmin(scale, (double)args->largest_scale);
    double g = fabs(d->grad->given[i] * (double)args->grad_scale);
    *off = 4 * OP_UNIT * g * scale + TINY * (g + scale + 1);
    return g * scale;
}

static void norms_call(struct op_bench *bench, const struct shape *shape, enum dtype grad_type) {
    struct adafactor_norms_args args = {
        .span = span_of(shape), .elements = (size_t)shape->rows * (size_t)shape->columns, .type = DTYPE_F32};
    double n = (double)args.span.n, many = (double)args.elements, off_sum = 0;
    struct op_call call;
    op_call_begin(&call, bench, adafactor_norms, &args, "(%d, %d) [%zu, %zu) grad %s", shape->rows,
                  shape->columns, shape->begin, shape->end, dtype_name(grad_type));
    struct direction_tensors d = describe_direction(&call, &args.direction, shape, grad_type);
    struct op_tensor *master =
        op_add_tensor(&call, "master", &args.master, DTYPE_F32, OP_READ, d.grad->layout);
    struct op_tensor *sums = sums_tensor(&call, "sums", &args.sums, 4);
    op_give_extremes(master);
    if (master->span > 2000)
        op_give(master, 1717, 1e30); // beyond the bound: the whole sum is capped
    for (size_t i = 0; i < args.span.n; i++) {
        double off, u = update_of(&args.direction, &d, &args.span, i, &off);
        args.update_bound += 2 * u * u;
        off_sum += 2 * u * off + off * off;
    }
    op_call_reference(&call);
    double half = half_unit(args.update_bound, many);
    double half_of_weights = half_unit(ADAFACTOR_WEIGHTS_BOUND, many);
    sums->allowed[0] = off_sum + n * half;
    sums->allowed[1] = n * half;
    sums->allowed[2] = n * half_of_weights + 0x1p-50 * sums->truth[2]; // the reference's own roundings
    sums->allowed[3] = n * half_of_weights;
    op_call_judge(&call);
}

void check_adafactor_norms(struct op_bench *bench) {
    FOR_EACH_TYPE(grad_type)
    for (size_t i = 0; i < N_SHAPES; i++)
        norms_call(bench, &shapes[i], grad_type);
    for (size_t i = 0; i < N_CUT_SHAPES; i++)
        compare_norms(bench, &cut_shapes[i]);
}

// ---- the step

static void step_call(struct op_bench *bench, const struct shape *shape, enum dtype type,
                      enum dtype grad_type, bool with_param) {
    struct adafactor_step_args args = {
        .span = span_of(shape), .step_size = 0.013, .decay = with_param ? 1e-3 : 0, .type = type};
    struct op_call call;
    op_call_begin(&call, bench, adafactor_step, &args, "(%d, %d) [%zu, %zu) grad %s%s", shape->rows,
                  shape->columns, shape->begin, shape->end, dtype_name(grad_type),
                  with_param ? " with param" : "");
    struct direction_tensors d = describe_direction(&call, &args.direction, shape, grad_type);
    struct op_tensor *master =
        op_add_tensor(&call, "master", &args.master, DTYPE_F32, OP_UPDATE, d.grad->layout);
    struct op_tensor *param = NULL;
    if (with_param)
        param = op_add_tensor(&call, "param", &args.param, type, OP_WRITE, d.grad->layout);
    op_give_extremes(master);
    if (args.span.n > 4) { // infinite and NaN gradients give infinite and NaN weights
        op_give(d.grad, 3, (double)-INFINITY);
        op_give(d.grad, 4, (double)NAN);
    }
    op_call_reference(&call);
    for (size_t i = 0; i < args.span.n; i++) {
        double off, u = update_of(&args.direction, &d, &args.span, i, &off);
        // Roundings of the step size and of the product; then both terms and the weight are added.
        master->allowed[i] =
            args.step_size * (off + 2 * OP_UNIT * u) +
            4 * OP_UNIT *
                (args.step_size * u + args.decay * fabs(master->given[i]) + fabs(master->truth[i])) +
            4 * TINY;
        if (with_param)
            param->allowed[i] = master->allowed[i] + OP_UNIT * fabs(master->truth[i]);
    }
    if (with_param)
        op_same_when_rounded(param, master);
    op_call_judge(&call);
}

void check_adafactor_step(struct op_bench *bench) {
    FOR_EACH_TYPE(type)
    for (size_t i = 0; i < N_SHAPES; i++)
        for (int with_param = 0; with_param < 2; with_param++)
            step_call(bench, &shapes[i], type, (enum dtype)((i + type) % N_COMPUTE_DTYPES), with_param);
}
