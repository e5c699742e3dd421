// See zero/stages/newton_schulz.h. Steps alternate between x and y: with an odd number of them the last one
// writes to x what began in y, and to y what was transposed into x.
#include "zero/stages/newton_schulz.h"

#include "kernels/ops.h"
#include "kernels/profile.h"

enum { Y, GRAM, SHIFTED, POWER, PARTIAL };

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
static struct linear_backward_args step_product(const struct newton_schulz *ns, void *out, const void *x,
                                                struct matrix_shape wide) {
    return (struct linear_backward_args){.dx = out,
                                         .dout = ns->power,
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
    struct newton_schulz any = *ns;
    any.power = &there;
    const struct matrix_shape wide = wide_of(shape);
    const struct linear_backward_args step = step_product(&any, &there, &there, wide);
    TRY(raise_symmetric(ns, wide));
    TRY(raise_symmetric(ns, (struct matrix_shape){wide.rows, wide.rows}));
    return raise(ns, OP_linear_backward, &step);
}

enum status newton_schulz_plan(struct newton_schulz *ns, struct device *device, enum dtype type,
                               const struct matrix_shape *shapes, int n_shapes, struct region_table *table) {
    size_t area = 0, square = 0;
    *ns = (struct newton_schulz){
        .device = device, .type = type, .strip_rows = newton_schulz_strip_rows(device)};
    for (int i = 0; i < n_shapes; i++) {
        const size_t side = (size_t)wide_of(shapes[i]).rows, n = (size_t)(shapes[i].rows * shapes[i].columns);
        area = n > area ? n : area;
        square = side * side > square ? side * side : square;
        TRY(raise_workspace(ns, shapes[i]));
    }
    const struct {
        const char *name;
        enum dtype type;
        size_t elements;
    } regions[] = {
        [Y] = {"Muon: matrix", type, area},
        [GRAM] = {"Muon: Gram matrix", type, square},
        [SHIFTED] = {"Muon: factor of the polynomial", type, square},
        [POWER] = {"Muon: polynomial", type, square},
        [PARTIAL] = {"Muon: sums of squares", DTYPE_F64, (area + SUM_SQUARES_BLOCK - 1) / SUM_SQUARES_BLOCK},
    };
    for (int i = Y; i <= PARTIAL; i++)
        TRY(region_add(table, REGION_WORKSPACE, device->place, regions[i].type, regions[i].elements,
                       &ns->regions[i], "%s", regions[i].name));
    return region_add(table, REGION_WORKSPACE, device->place, DTYPE_U8, ns->workspace_bytes,
                      &ns->workspace_region, "Muon: workspace of products");
}

void newton_schulz_bind(struct newton_schulz *ns, const struct region_table *table) {
    ns->y = region_data(table, ns->regions[Y]);
    ns->gram = region_data(table, ns->regions[GRAM]);
    ns->shifted = region_data(table, ns->regions[SHIFTED]);
    ns->power = region_data(table, ns->regions[POWER]);
    ns->partial = region_data(table, ns->regions[PARTIAL]);
    ns->workspace = region_data(table, ns->workspace_region);
}

// ---- running

static enum status normalize(const struct newton_schulz *ns, struct stream *stream, void *out, const void *x,
                             size_t n) {
    const struct sum_squares_args squares = {.partial = ns->partial, .x = x, .n = n, .type = ns->type};
    TRY(ns->device->ops->sum_squares(stream, &squares));
    const struct matrix_normalize_args args = {.out = out,
                                               .x = x,
                                               .partial = ns->partial,
                                               .n = n,
                                               .epsilon = NEWTON_SCHULZ_EPSILON,
                                               .type = ns->type};
    return ns->device->ops->matrix_normalize(stream, &args);
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

static enum status step(const struct newton_schulz *ns, struct stream *stream, void *out, const void *x,
                        struct matrix_shape wide) {
    const struct ops *ops = ns->device->ops;
    const struct matrix_shape square = {wide.rows, wide.rows};
    const struct matrix_shift_args shifted = {
        .out = ns->shifted, .x = ns->gram, .n = (int)wide.rows, .scale = c, .shift = b, .type = ns->type};
    const struct matrix_shift_args diagonal = {
        .out = ns->power, .x = ns->power, .n = (int)wide.rows, .scale = 1, .shift = a, .type = ns->type};
    const struct linear_backward_args last = step_product(ns, out, x, wide);
    TRY(symmetric_product(ns, stream, ns->gram, x, x, wide));
    TRY(ops->matrix_shift(stream, &shifted));
    TRY(symmetric_product(ns, stream, ns->power, ns->shifted, ns->gram, square));
    TRY(ops->matrix_shift(stream, &diagonal));
    return ops->linear_backward(stream, &last);
}

static enum status orthogonalize(const struct newton_schulz *ns, struct stream *stream, void *x,
                                 struct matrix_shape shape) {
    const struct matrix_shape wide = wide_of(shape);
    void *from = ns->y, *to = x;
    TRY(normalize(ns, stream, ns->y, x, (size_t)(shape.rows * shape.columns)));
    if (is_tall(shape)) {
        TRY(transpose(ns, stream, x, ns->y, shape, shape.rows, shape.columns));
        from = x;
        to = ns->y;
    }
    for (int i = 0; i < NEWTON_SCHULZ_STEPS; i++) {
        TRY(step(ns, stream, to, from, wide));
        void *next = from;
        from = to;
        to = next;
    }
    return is_tall(shape) ? transpose(ns, stream, x, ns->y, wide, wide.rows, wide.columns) : STATUS_OK;
}

enum status newton_schulz_run(const struct newton_schulz *ns, const struct stream *stream, void *x,
                              struct matrix_shape shape) {
    struct stream own = *stream;
    own.workspace = ns->workspace;
    own.workspace_bytes = ns->workspace_bytes;
    profile_scope(ns->device, "newton_schulz");
    const enum status status = orthogonalize(ns, &own, x, shape);
    profile_scope(ns->device, NULL);
    return status;
}
