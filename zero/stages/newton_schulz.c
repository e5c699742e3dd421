// See zero/stages/newton_schulz.h. Steps alternate between x and y; the normalized matrix starts where the
// last step then writes x.
#include "zero/stages/newton_schulz.h"

#include "kernels/ops.h"

enum { Y, GRAM, SHIFTED, POWER, SUMS, PARTIAL };

static const double a = 3.4445, b = -4.7750, c = 2.0315;

static int64_t side_of(struct matrix_shape shape) {
    return shape.rows < shape.columns ? shape.rows : shape.columns;
}

static bool is_tall(struct matrix_shape shape) {
    return shape.rows > shape.columns;
}

double newton_schulz_flops(struct matrix_shape shape) {
    const double side = (double)side_of(shape), area = (double)shape.rows * (double)shape.columns;
    return NEWTON_SCHULZ_STEPS * 2 * side * (2 * area + side * side);
}

// ---- the products, as calls of the device's operations

// out (m, n) = x (m, k) w (n, k)^T
static struct linear_forward_args product(const struct newton_schulz *ns, void *out, const void *x,
                                          const void *w, int64_t m, int64_t n, int64_t k) {
    return (struct linear_forward_args){.out = out,
                                        .x = x,
                                        .weight = w,
                                        .N = (int)m,
                                        .IC = (int)k,
                                        .OC = (int)n,
                                        .out_stride = (int)n,
                                        .type = ns->type,
                                        .out_type = ns->type};
}

// X^T X in fp32, as the gradient of a weight.
static struct linear_backward_args tall_gram(const struct newton_schulz *ns, const void *x,
                                             struct matrix_shape shape) {
    return (struct linear_backward_args){.dweight = ns->sums,
                                         .dout = x,
                                         .x = x,
                                         .N = (int)shape.rows,
                                         .IC = (int)shape.columns,
                                         .OC = (int)shape.columns,
                                         .dout_stride = (int)shape.columns,
                                         .beta_zero = true,
                                         .type = ns->type};
}

// B X, as the gradient of an input; B is symmetric.
static struct linear_backward_args wide_step(const struct newton_schulz *ns, void *out, const void *x,
                                             struct matrix_shape shape) {
    return (struct linear_backward_args){.dx = out,
                                         .dout = ns->power,
                                         .weight = x,
                                         .N = (int)shape.rows,
                                         .IC = (int)shape.columns,
                                         .OC = (int)shape.rows,
                                         .dout_stride = (int)shape.rows,
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

// Reads which pointers are NULL, and no memory.
static enum status raise_workspace(struct newton_schulz *ns, struct matrix_shape shape) {
    static char there;
    struct newton_schulz any = *ns;
    any.sums = any.power = any.gram = any.shifted = &there;
    const int64_t rows = shape.rows, columns = shape.columns, side = side_of(shape);
    const struct linear_forward_args gram = product(&any, &there, &there, &there, rows, rows, columns),
                                     power = product(&any, &there, &there, &there, side, side, side),
                                     step = product(&any, &there, &there, &there, rows, columns, columns);
    const struct linear_backward_args tall = tall_gram(&any, &there, shape),
                                      wide = wide_step(&any, &there, &there, shape);
    TRY(raise(ns, OP_linear_forward, &power));
    TRY(is_tall(shape) ? raise(ns, OP_linear_backward, &tall) : raise(ns, OP_linear_forward, &gram));
    return is_tall(shape) ? raise(ns, OP_linear_forward, &step) : raise(ns, OP_linear_backward, &wide);
}

static bool is_narrow(enum dtype type) {
    return dtype_size(type) < sizeof(float);
}

enum status newton_schulz_plan(struct newton_schulz *ns, struct device *device, enum dtype type,
                               const struct matrix_shape *shapes, int n_shapes, struct region_table *table) {
    size_t area = 0, square = 0, tall = 0;
    *ns = (struct newton_schulz){.device = device, .type = type};
    for (int i = 0; i < n_shapes; i++) {
        const size_t side = (size_t)side_of(shapes[i]), n = (size_t)(shapes[i].rows * shapes[i].columns);
        area = n > area ? n : area;
        square = side * side > square ? side * side : square;
        if (is_tall(shapes[i]) && side * side > tall)
            tall = side * side;
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
        [SUMS] = {"Muon: Gram matrix in fp32", DTYPE_F32, is_narrow(type) ? tall : 0},
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
    ns->sums = is_narrow(ns->type) ? region_data(table, ns->regions[SUMS]) : ns->gram;
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

static enum status make_gram(const struct newton_schulz *ns, struct stream *stream, const void *x,
                             struct matrix_shape shape) {
    const struct ops *ops = ns->device->ops;
    if (!is_tall(shape)) {
        const struct linear_forward_args gram =
            product(ns, ns->gram, x, x, shape.rows, shape.rows, shape.columns);
        return ops->linear_forward(stream, &gram);
    }
    const struct linear_backward_args gram = tall_gram(ns, x, shape);
    const struct cast_args cast = {.out = ns->gram,
                                   .x = ns->sums,
                                   .n = (size_t)(shape.columns * shape.columns),
                                   .type = DTYPE_F32,
                                   .out_type = ns->type};
    TRY(ops->linear_backward(stream, &gram));
    return ns->sums == ns->gram ? STATUS_OK : ops->cast(stream, &cast);
}

static enum status step(const struct newton_schulz *ns, struct stream *stream, void *out, const void *x,
                        struct matrix_shape shape) {
    const struct ops *ops = ns->device->ops;
    const int64_t side = side_of(shape);
    const struct matrix_shift_args shifted = {
        .out = ns->shifted, .x = ns->gram, .n = (int)side, .scale = c, .shift = b, .type = ns->type};
    const struct matrix_shift_args diagonal = {
        .out = ns->power, .x = ns->power, .n = (int)side, .scale = 1, .shift = a, .type = ns->type};
    const struct linear_forward_args power = product(ns, ns->power, ns->shifted, ns->gram, side, side, side);
    TRY(make_gram(ns, stream, x, shape));
    TRY(ops->matrix_shift(stream, &shifted));
    TRY(ops->linear_forward(stream, &power));
    TRY(ops->matrix_shift(stream, &diagonal));
    if (is_tall(shape)) {
        const struct linear_forward_args last =
            product(ns, out, x, ns->power, shape.rows, shape.columns, shape.columns);
        return ops->linear_forward(stream, &last);
    }
    const struct linear_backward_args last = wide_step(ns, out, x, shape);
    return ops->linear_backward(stream, &last);
}

enum status newton_schulz_run(const struct newton_schulz *ns, const struct stream *stream, void *x,
                              struct matrix_shape shape) {
    struct stream own = *stream;
    void *from = NEWTON_SCHULZ_STEPS % 2 ? ns->y : x;
    own.workspace = ns->workspace;
    own.workspace_bytes = ns->workspace_bytes;
    TRY(normalize(ns, &own, from, x, (size_t)(shape.rows * shape.columns)));
    for (int i = 0; i < NEWTON_SCHULZ_STEPS; i++) {
        void *to = from == x ? ns->y : x;
        TRY(step(ns, &own, to, from, shape));
        from = to;
    }
    return STATUS_OK;
}
