// See zero/stages/newton_schulz.h. Steps alternate between x and y: with an odd number of them the last one
// writes to x what began in y, and to y what was transposed into x.
#include "zero/stages/newton_schulz.h"

#include <stdlib.h>

#include "kernels/ops.h"
#include "kernels/profile.h"

enum { Y, GRAM, SHIFTED, POWER, PARTIAL, WORKSPACE };

static const double a = 3.4445, b = -4.7750, c = 2.0315;

static bool is_tall(struct matrix_shape shape) {
    return shape.rows > shape.columns;
}

// The matrix that the products are of: as many columns as rows or more.
static struct matrix_shape wide_of(struct matrix_shape shape) {
    return is_tall(shape) ? (struct matrix_shape){shape.columns, shape.rows} : shape;
}

// ---- strips

// A product of few rows per thread, or on a GPU one of few tiles for its processors, loses what is saved.
#define STRIP_ROWS_PER_THREAD 96
#define STRIP_ROWS_GPU        2048
#define STRIP_GRAIN           16

int64_t newton_schulz_strip_rows(const struct device *device) {
    if (device->symmetric_products)
        return 1;
    return device->place == REGION_HOST ? (int64_t)STRIP_ROWS_PER_THREAD * device->n_threads : STRIP_ROWS_GPU;
}

// Rows of all strips but the last: nearly equal ones.
static int64_t strip_size(int64_t side, int64_t strip_rows) {
    if (strip_rows <= 0 || side <= strip_rows)
        return side;
    const int64_t n = (side + strip_rows - 1) / strip_rows, rows = (side + n - 1) / n,
                  grain = strip_rows < STRIP_GRAIN ? 1 : STRIP_GRAIN;
    return (rows + grain - 1) / grain * grain;
}

static int64_t least(int64_t x, int64_t y) {
    return x < y ? x : y;
}

double newton_schulz_flops(struct matrix_shape shape, int64_t strip_rows) {
    const struct matrix_shape wide = wide_of(shape);
    const int64_t strip = strip_size(wide.rows, strip_rows);
    double computed = 0; // elements of a symmetric product
    for (int64_t first = 0; first < wide.rows; first += strip) {
        const int64_t rows = least(strip, wide.rows - first);
        computed += (double)rows * (double)(first + rows);
    }
    const double side = (double)wide.rows, columns = (double)wide.columns;
    return NEWTON_SCHULZ_STEPS * 2 * (computed * (columns + side) + side * side * columns);
}

// ---- the products, as calls of the device's operations

// Rows [first, first + rows) of out (n, n) = x y^T, with x and y (n, k), up to the last one's diagonal
// element.
static struct linear_forward_args strip_product(const struct newton_schulz *ns, void *out, const void *x,
                                                const void *y, struct matrix_shape of, int64_t first,
                                                int64_t rows) {
    const size_t size = dtype_size(ns->type);
    return (struct linear_forward_args){.out = (char *)out + (size_t)(first * of.rows) * size,
                                        .x = (const char *)x + (size_t)(first * of.columns) * size,
                                        .weight = y,
                                        .N = (int)rows,
                                        .IC = (int)of.columns,
                                        .OC = (int)(first + rows),
                                        .out_stride = (int)of.rows,
                                        .type = ns->type,
                                        .out_type = ns->type};
}

// The whole of it, on a device with symmetric_products.
static struct linear_forward_args whole_product(const struct newton_schulz *ns, void *out, const void *x,
                                                const void *y, struct matrix_shape of) {
    struct linear_forward_args product = strip_product(ns, out, x, y, of, 0, of.rows);
    product.symmetric = true;
    return product;
}

// B X, as the gradient of an input; B is symmetric.
static struct linear_backward_args step_product(const struct newton_schulz *ns, void *out, const void *power,
                                                const void *x, struct matrix_shape wide) {
    return (struct linear_backward_args){.dx = out,
                                         .dout = power,
                                         .weight = x,
                                         .N = (int)wide.rows,
                                         .IC = (int)wide.columns,
                                         .OC = (int)wide.rows,
                                         .dout_stride = (int)wide.rows,
                                         .type = ns->type};
}

// ---- planning

static enum status raise(struct newton_schulz *ns, enum operation operation, const void *args) {
    size_t bytes;
    TRY(ns->device->ops->workspace_bytes(ns->device, operation, args, &bytes));
    if (ns->workspace_bytes < bytes)
        ns->workspace_bytes = bytes;
    return STATUS_OK;
}

static enum status raise_symmetric(struct newton_schulz *ns, struct matrix_shape of) {
    static char there; // cost and workspace read which pointers are NULL, and no memory
    if (ns->device->symmetric_products) {
        const struct linear_forward_args product = whole_product(ns, &there, &there, &there, of);
        return raise(ns, OP_linear_forward, &product);
    }
    const int64_t strip = strip_size(of.rows, ns->strip_rows);
    for (int64_t first = 0; first < of.rows; first += strip) {
        const struct linear_forward_args product =
            strip_product(ns, &there, &there, &there, of, first, least(strip, of.rows - first));
        TRY(raise(ns, OP_linear_forward, &product));
    }
    return STATUS_OK;
}

static enum status raise_workspace(struct newton_schulz *ns, struct matrix_shape shape) {
    static char there;
    const struct matrix_shape wide = wide_of(shape);
    const struct linear_backward_args step = step_product(ns, &there, &there, &there, wide);
    TRY(raise_symmetric(ns, wide));
    TRY(raise_symmetric(ns, (struct matrix_shape){wide.rows, wide.rows}));
    return raise(ns, OP_linear_backward, &step);
}

// A product (side, side) is divided into tiles by cuBLASLt. All lanes together have about two for each of an
// H100's multiprocessors: products of some lanes run beside the short kernels of others (benchmarks/gpu.md).
#define LANES_TILE    128
#define LANES_TILES   264
#define LANES_SHARING 4 // of more lanes, about so many run a product at a time

static int lanes_on(const struct device *device, int64_t side) {
    if (device->place == REGION_HOST)
        return 1;
    const int64_t along = (side + LANES_TILE - 1) / LANES_TILE, n = LANES_TILES / (along * along);
    return (int)(n < 1 ? 1 : least(n, NEWTON_SCHULZ_MOST_LANES));
}

// A region of all lanes.
static enum status add_region(struct newton_schulz *ns, struct region_table *table, int region,
                              enum dtype type, size_t elements, const char *name) {
    ns->lane_bytes[region] = region_padded(elements * dtype_size(type));
    return region_add(table, REGION_WORKSPACE, ns->device->place, type,
                      (size_t)(ns->n_lanes - 1) * (ns->lane_bytes[region] / dtype_size(type)) + elements,
                      &ns->regions[region], "Muon: %s", name);
}

enum status newton_schulz_plan(struct newton_schulz *ns, struct device *device, enum dtype type,
                               const struct matrix_shape *shapes, int n_shapes, struct region_table *table) {
    size_t area = 0;
    int64_t side = 0;
    *ns = (struct newton_schulz){
        .device = device, .type = type, .strip_rows = newton_schulz_strip_rows(device)};
    for (int i = 0; i < n_shapes; i++) {
        const size_t n = (size_t)(shapes[i].rows * shapes[i].columns);
        area = n > area ? n : area;
        side = wide_of(shapes[i]).rows > side ? wide_of(shapes[i]).rows : side;
        TRY(raise_workspace(ns, shapes[i]));
    }
    ns->n_lanes = lanes_on(device, side);
    const size_t square = (size_t)(side * side);
    TRY(add_region(ns, table, Y, type, area, "matrix"));
    TRY(add_region(ns, table, GRAM, type, square, "Gram matrix"));
    TRY(add_region(ns, table, SHIFTED, type, square, "factor of the polynomial"));
    TRY(add_region(ns, table, POWER, type, square, "polynomial"));
    TRY(add_region(ns, table, PARTIAL, DTYPE_F64, (area + SUM_SQUARES_BLOCK - 1) / SUM_SQUARES_BLOCK,
                   "sums of squares"));
    return add_region(ns, table, WORKSPACE, DTYPE_U8, ns->workspace_bytes, "workspace of products");
}

static void *at_lane(const struct newton_schulz *ns, const struct region_table *table, int region, int lane) {
    return (char *)region_data(table, ns->regions[region]) + (size_t)lane * ns->lane_bytes[region];
}

enum status newton_schulz_bind(struct newton_schulz *ns, const struct region_table *table) {
    ns->lanes = calloc((size_t)ns->n_lanes, sizeof *ns->lanes);
    if (!ns->lanes)
        return FAIL(STATUS_FAILED, "out of memory for the lanes of Newton-Schulz iterations");
    for (int i = 0; i < ns->n_lanes; i++) {
        struct newton_schulz_lane *lane = &ns->lanes[i];
        TRY(event_init(&lane->done, ns->device));
        if (i > 0)
            TRY(stream_init(&lane->stream, ns->device));
        lane->stream.device = ns->device;
        lane->stream.workspace = at_lane(ns, table, WORKSPACE, i);
        lane->stream.workspace_bytes = ns->workspace_bytes;
        lane->stream.n_sharing = ns->n_lanes < LANES_SHARING ? ns->n_lanes : LANES_SHARING;
        lane->y = at_lane(ns, table, Y, i);
        lane->gram = at_lane(ns, table, GRAM, i);
        lane->shifted = at_lane(ns, table, SHIFTED, i);
        lane->power = at_lane(ns, table, POWER, i);
        lane->partial = at_lane(ns, table, PARTIAL, i);
    }
    return STATUS_OK;
}

void newton_schulz_free(struct newton_schulz *ns) {
    for (int i = 0; ns->lanes && i < ns->n_lanes; i++) {
        if (i > 0) {
            stream_drain(&ns->lanes[i].stream); // a step that failed left work on it
            stream_free(&ns->lanes[i].stream);
        }
        event_free(&ns->lanes[i].done);
    }
    free(ns->lanes);
    *ns = (struct newton_schulz){0};
}

// ---- running

static enum status normalize(const struct newton_schulz *ns, struct newton_schulz_lane *lane, void *out,
                             const void *x, size_t n) {
    const struct sum_squares_args squares = {.partial = lane->partial, .x = x, .n = n, .type = ns->type};
    TRY(ns->device->ops->sum_squares(&lane->stream, &squares));
    const struct matrix_normalize_args args = {.out = out,
                                               .x = x,
                                               .partial = lane->partial,
                                               .n = n,
                                               .epsilon = NEWTON_SCHULZ_EPSILON,
                                               .type = ns->type};
    return ns->device->ops->matrix_normalize(&lane->stream, &args);
}

static enum status transpose(const struct newton_schulz *ns, struct stream *stream, void *out, const void *x,
                             struct matrix_shape shape, int64_t out_stride, int64_t x_stride) {
    const struct matrix_transpose_args args = {.out = out,
                                               .x = x,
                                               .rows = (int)shape.rows,
                                               .columns = (int)shape.columns,
                                               .out_stride = (int)out_stride,
                                               .x_stride = (int)x_stride,
                                               .type = ns->type};
    return ns->device->ops->matrix_transpose(stream, &args);
}

// out (n, n) = x y^T, which is symmetric, with x and y (n, k).
static enum status symmetric_product(const struct newton_schulz *ns, struct stream *stream, void *out,
                                     const void *x, const void *y, struct matrix_shape of) {
    if (ns->device->symmetric_products) {
        const struct linear_forward_args product = whole_product(ns, out, x, y, of);
        return ns->device->ops->linear_forward(stream, &product);
    }
    const int64_t strip = strip_size(of.rows, ns->strip_rows);
    for (int64_t first = 0; first < of.rows; first += strip) {
        const int64_t rows = least(strip, of.rows - first);
        const struct linear_forward_args product = strip_product(ns, out, x, y, of, first, rows);
        TRY(ns->device->ops->linear_forward(stream, &product));
        if (first > 0)
            TRY(transpose(ns, stream, (char *)out + (size_t)first * dtype_size(ns->type), product.out,
                          (struct matrix_shape){rows, first}, of.rows, of.rows));
    }
    return STATUS_OK;
}

static enum status step(const struct newton_schulz *ns, struct newton_schulz_lane *lane, void *out,
                        const void *x, struct matrix_shape wide) {
    const struct ops *ops = ns->device->ops;
    struct stream *stream = &lane->stream;
    const struct matrix_shape square = {wide.rows, wide.rows};
    const struct matrix_shift_args shifted = {
        .out = lane->shifted, .x = lane->gram, .n = (int)wide.rows, .scale = c, .shift = b, .type = ns->type};
    const struct matrix_shift_args diagonal = {
        .out = lane->power, .x = lane->power, .n = (int)wide.rows, .scale = 1, .shift = a, .type = ns->type};
    const struct linear_backward_args last = step_product(ns, out, lane->power, x, wide);
    TRY(symmetric_product(ns, stream, lane->gram, x, x, wide));
    TRY(ops->matrix_shift(stream, &shifted));
    TRY(symmetric_product(ns, stream, lane->power, lane->shifted, lane->gram, square));
    TRY(ops->matrix_shift(stream, &diagonal));
    return ops->linear_backward(stream, &last);
}

static enum status orthogonalize(const struct newton_schulz *ns, struct newton_schulz_lane *lane,
                                 const struct newton_schulz_matrix *matrix) {
    const struct matrix_shape shape = matrix->shape, wide = wide_of(shape);
    struct stream *stream = &lane->stream;
    void *x = matrix->x, *from = lane->y, *to = x;
    TRY(normalize(ns, lane, lane->y, x, (size_t)(shape.rows * shape.columns)));
    if (is_tall(shape)) {
        TRY(transpose(ns, stream, x, lane->y, shape, shape.rows, shape.columns));
        from = x;
        to = lane->y;
    }
    for (int i = 0; i < NEWTON_SCHULZ_STEPS; i++) {
        TRY(step(ns, lane, to, from, wide));
        void *next = from;
        from = to;
        to = next;
    }
    return is_tall(shape) ? transpose(ns, stream, x, lane->y, wide, wide.rows, wide.columns) : STATUS_OK;
}

// The other lanes begin after what was issued to the stream, which goes on when they are done.
static enum status orthogonalize_all(const struct newton_schulz *ns, struct stream *stream,
                                     const struct newton_schulz_matrix *matrices, int n) {
    const int n_lanes = n < ns->n_lanes ? n : ns->n_lanes;
    struct newton_schulz_lane *lanes = ns->lanes;
    lanes[0].stream.queue = stream->queue;
    if (n_lanes > 1)
        TRY(event_record(&lanes[0].done, stream));
    for (int i = 1; i < n_lanes; i++)
        TRY(event_wait(&lanes[0].done, &lanes[i].stream));
    for (int i = 0; i < n; i++)
        TRY(orthogonalize(ns, &lanes[i % n_lanes], &matrices[i]));
    for (int i = 1; i < n_lanes; i++) {
        TRY(event_record(&lanes[i].done, &lanes[i].stream));
        TRY(event_wait(&lanes[i].done, stream));
    }
    return STATUS_OK;
}

enum status newton_schulz_run(const struct newton_schulz *ns, struct stream *stream,
                              const struct newton_schulz_matrix *matrices, int n) {
    TRY(profile_scope_begin(stream, "newton_schulz"));
    const enum status status = orthogonalize_all(ns, stream, matrices, n), ended = profile_scope_end(stream);
    return status == STATUS_OK ? ended : status;
}
