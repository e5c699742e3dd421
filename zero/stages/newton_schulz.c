// See zero/stages/newton_schulz.h. Steps alternate between x and y: with an odd number of them the last one
// writes to x what began in y, and to y what was transposed into x.
#include "zero/stages/newton_schulz.h"

#include <stdlib.h>

#include "kernels/ops.h"
#include "kernels/profile.h"
#include "kernels/symmetric.h"

enum { Y, GRAM, POWER, PARTIAL, WORKSPACE };

static const double a = 3.4445, b = -4.7750, c = 2.0315;

static bool is_tall(struct matrix_shape shape) {
    return shape.rows > shape.columns;
}

// The matrix that the products are of: as many columns as rows or more.
static struct matrix_shape wide_of(struct matrix_shape shape) {
    return is_tall(shape) ? (struct matrix_shape){shape.columns, shape.rows} : shape;
}

double newton_schulz_flops(struct matrix_shape shape, int strip) {
    const struct matrix_shape wide = wide_of(shape);
    const double side = (double)wide.rows, columns = (double)wide.columns;
    return NEWTON_SCHULZ_STEPS * 2 *
           (symmetric_elements(wide.rows, strip) * (columns + side) + side * side * columns);
}

// ---- the products of a step

// A = X X^T
static struct matrix_product_args gram_product(const struct newton_schulz *ns, void *gram, const void *x,
                                               struct matrix_shape wide) {
    return (struct matrix_product_args){.out = gram,
                                        .x = x,
                                        .y = x,
                                        .rows = (int)wide.rows,
                                        .columns = (int)wide.rows,
                                        .inner = (int)wide.columns,
                                        .y_transposed = true,
                                        .strip = ns->device->symmetric_strip,
                                        .alpha = 1,
                                        .type = ns->type};
}

// B = c A A + b A; A = A^T
static struct matrix_product_args power_product(const struct newton_schulz *ns, void *power, const void *gram,
                                                struct matrix_shape wide) {
    struct matrix_product_args product =
        gram_product(ns, power, gram, (struct matrix_shape){wide.rows, wide.rows});
    product.addend = gram;
    product.alpha = c;
    product.beta = b;
    return product;
}

// B X + a X
static struct matrix_product_args step_product(const struct newton_schulz *ns, void *out, const void *power,
                                               const void *x, struct matrix_shape wide) {
    return (struct matrix_product_args){.out = out,
                                        .x = power,
                                        .y = x,
                                        .addend = x,
                                        .rows = (int)wide.rows,
                                        .columns = (int)wide.columns,
                                        .inner = (int)wide.rows,
                                        .alpha = 1,
                                        .beta = a,
                                        .type = ns->type};
}

// ---- planning

static enum status raise(struct newton_schulz *ns, struct matrix_product_args product) {
    size_t bytes;
    TRY(ns->device->ops->workspace_bytes(ns->device, OP_matrix_product, &product, &bytes));
    if (ns->workspace_bytes < bytes)
        ns->workspace_bytes = bytes;
    return STATUS_OK;
}

static enum status raise_workspace(struct newton_schulz *ns, struct matrix_shape shape) {
    static _Alignas(REGION_ALIGNMENT) char there; // for its address, as aligned as regions are
    const struct matrix_shape wide = wide_of(shape);
    TRY(raise(ns, gram_product(ns, &there, &there, wide)));
    TRY(raise(ns, power_product(ns, &there, &there, wide)));
    return raise(ns, step_product(ns, &there, &there, &there, wide));
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
    return n < 1 ? 1 : n < NEWTON_SCHULZ_MOST_LANES ? (int)n : NEWTON_SCHULZ_MOST_LANES;
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
    *ns = (struct newton_schulz){.device = device, .type = type};
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
                             struct matrix_shape shape) {
    const struct matrix_transpose_args args = {.out = out,
                                               .x = x,
                                               .rows = (int)shape.rows,
                                               .columns = (int)shape.columns,
                                               .out_stride = (int)shape.rows,
                                               .x_stride = (int)shape.columns,
                                               .type = ns->type};
    return ns->device->ops->matrix_transpose(stream, &args);
}

static enum status step(const struct newton_schulz *ns, struct newton_schulz_lane *lane, void *out,
                        const void *x, struct matrix_shape wide) {
    const struct ops *ops = ns->device->ops;
    const struct matrix_product_args gram = gram_product(ns, lane->gram, x, wide),
                                     power = power_product(ns, lane->power, lane->gram, wide),
                                     last = step_product(ns, out, lane->power, x, wide);
    TRY(ops->matrix_product(&lane->stream, &gram));
    TRY(ops->matrix_product(&lane->stream, &power));
    return ops->matrix_product(&lane->stream, &last);
}

static enum status orthogonalize(const struct newton_schulz *ns, struct newton_schulz_lane *lane,
                                 const struct newton_schulz_matrix *matrix) {
    const struct matrix_shape shape = matrix->shape, wide = wide_of(shape);
    struct stream *stream = &lane->stream;
    void *x = matrix->x, *from = lane->y, *to = x;
    TRY(normalize(ns, lane, lane->y, x, (size_t)(shape.rows * shape.columns)));
    if (is_tall(shape)) {
        TRY(transpose(ns, stream, x, lane->y, shape));
        from = x;
        to = lane->y;
    }
    for (int i = 0; i < NEWTON_SCHULZ_STEPS; i++) {
        TRY(step(ns, lane, to, from, wide));
        void *next = from;
        from = to;
        to = next;
    }
    return is_tall(shape) ? transpose(ns, stream, x, lane->y, wide) : STATUS_OK;
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
