// See zero/stages/orthonormal.h. With reflections H_i = I - tau_i w_i w_i^T, A H_0 H_1 ... is lower
// triangular, so that the orthonormal rows are those of ... H_1 H_0. Of b of them, with rows W (b, n),
//   H_0 H_1 ... H_(b-1) = I - W^T T W, T upper triangular.
// T follows from W W^T and the tau_i: for a panel on the host in double, for a block of several panels from
// a product of the device. The rows of W replace those of A.
#include "zero/stages/orthonormal.h"

#include <math.h>
#include <string.h>

#include "base/eigen.h"
#include "kernels/ops.h"

enum { TURNED, SCALED, FACTORS, PANEL_FACTOR, PANEL, FACTOR, GRAM, SCALES, STAGED };

enum status orthonormal_plan(struct orthonormal *o, struct device *device, enum dtype type, int side,
                             struct region_table *table) {
    const size_t n = (size_t)side, width = ORTHONORMAL_PANEL,
                 block = n < ORTHONORMAL_BLOCK ? n : ORTHONORMAL_BLOCK,
                 blocks = (n + ORTHONORMAL_BLOCK - 1) / ORTHONORMAL_BLOCK;
    *o = (struct orthonormal){.device = device, .type = type};
    const struct {
        const char *name;
        enum region_place place;
        enum dtype type;
        size_t elements;
    } regions[] = {
        [TURNED] = {"SOAP: products of a block", device->place, type, block * n},
        [SCALED] = {"SOAP: scaled products of a block", device->place, type, block * n},
        [FACTORS] = {"SOAP: factors of blocks", device->place, type, blocks * block * block},
        [PANEL_FACTOR] = {"SOAP: factor of a panel", device->place, type, width * width},
        [PANEL] = {"SOAP: panel", REGION_HOST, DTYPE_F64, width * n},
        [FACTOR] = {"SOAP: factor of a block", REGION_HOST, DTYPE_F64, block * block},
        [GRAM] = {"SOAP: products of reflections", REGION_HOST, DTYPE_F64, block * block},
        [SCALES] = {"SOAP: scales of reflections", REGION_HOST, DTYPE_F64, block},
        [STAGED] = {"SOAP: panel to copy", REGION_HOST, type,
                    width * n > block * block ? width * n : block * block},
    };
    for (int i = TURNED; i <= STAGED; i++)
        TRY(region_add(table, REGION_WORKSPACE, regions[i].place, regions[i].type, regions[i].elements,
                       &o->regions[i], "%s", regions[i].name));
    return STATUS_OK;
}

void orthonormal_bind(struct orthonormal *o, const struct region_table *table) {
    o->turned = region_data(table, o->regions[TURNED]);
    o->scaled = region_data(table, o->regions[SCALED]);
    o->factors = region_data(table, o->regions[FACTORS]);
    o->panel_factor = region_data(table, o->regions[PANEL_FACTOR]);
    o->panel = region_data(table, o->regions[PANEL]);
    o->factor = region_data(table, o->regions[FACTOR]);
    o->gram = region_data(table, o->regions[GRAM]);
    o->scales = region_data(table, o->regions[SCALES]);
    o->staged = region_data(table, o->regions[STAGED]);
}

static void *at(void *base, enum dtype type, size_t element) {
    return (char *)base + element * dtype_size(type);
}

// ---- products

// Rows of a matrix with n columns, and the reflections of a panel or a block.
struct reflected {
    void *rows;
    int n_rows, n;
    void *panel, *factor; // W (width, n), -T (width, width)
    int width;
};

// W rows^T
static struct linear_forward_args turn(const struct orthonormal *o, const struct reflected *r) {
    return (struct linear_forward_args){.out = o->turned,
                                        .x = r->panel,
                                        .weight = r->rows,
                                        .N = r->width,
                                        .IC = r->n,
                                        .OC = r->n_rows,
                                        .out_stride = r->n_rows,
                                        .type = o->type,
                                        .out_type = o->type};
}

// -T^T (W rows^T), for rows H_0 H_1 ...; with `backward` -T (W rows^T), for rows ... H_1 H_0
static struct linear_backward_args scale(const struct orthonormal *o, const struct reflected *r,
                                         bool backward) {
    return (struct linear_backward_args){.dweight = backward ? NULL : o->scaled,
                                         .dx = backward ? o->scaled : NULL,
                                         .dout = r->factor,
                                         .x = backward ? NULL : o->turned,
                                         .weight = backward ? o->turned : NULL,
                                         .N = r->width,
                                         .IC = r->n_rows,
                                         .OC = r->width,
                                         .dout_stride = r->width,
                                         .beta_zero = true,
                                         .type = o->type};
}

// rows += scaled^T W
static struct linear_backward_args add(const struct orthonormal *o, const struct reflected *r) {
    return (struct linear_backward_args){.dweight = r->rows,
                                         .dout = o->scaled,
                                         .x = r->panel,
                                         .N = r->width,
                                         .IC = r->n,
                                         .OC = r->n_rows,
                                         .dout_stride = r->n_rows,
                                         .type = o->type};
}

static enum status reflect(const struct orthonormal *o, struct stream *stream, const struct reflected *r,
                           bool backward) {
    const struct ops *ops = o->device->ops;
    const struct linear_forward_args turned = turn(o, r);
    const struct linear_backward_args scaled = scale(o, r, backward), added = add(o, r);
    TRY(ops->linear_forward(stream, &turned));
    TRY(ops->linear_backward(stream, &scaled));
    return ops->linear_backward(stream, &added);
}

// The rows of the panel, or the block, that begins at row i of `rows`.
static int panel_width(int rows, int i) {
    return rows - i < ORTHONORMAL_PANEL ? rows - i : ORTHONORMAL_PANEL;
}

static int block_width(int rows, int i) {
    return rows - i < ORTHONORMAL_BLOCK ? rows - i : ORTHONORMAL_BLOCK;
}

static enum status raise(const struct orthonormal *o, enum operation operation, const void *args,
                         size_t *most) {
    size_t bytes;
    TRY(o->device->ops->workspace_bytes(o->device, operation, args, &bytes));
    *most = bytes > *most ? bytes : *most;
    return STATUS_OK;
}

// Of the products with n_rows rows.
static enum status raise_reflect(const struct orthonormal *o, int width, int n_rows, int n, bool backward,
                                 size_t *most) {
    static char there; // which pointers are NULL is read, and no memory
    struct orthonormal any = *o;
    const struct reflected r = {&there, n_rows, n, &there, &there, width};
    any.turned = any.scaled = &there;
    const struct linear_forward_args turned = turn(&any, &r);
    const struct linear_backward_args scaled = scale(&any, &r, backward), added = add(&any, &r);
    if (n_rows == 0)
        return STATUS_OK;
    TRY(raise(o, OP_linear_forward, &turned, most));
    TRY(raise(o, OP_linear_backward, &scaled, most));
    return raise(o, OP_linear_backward, &added, most);
}

enum status orthonormal_workspace(const struct orthonormal *o, int rows, int n, size_t *bytes) {
    *bytes = 0;
    for (int first = 0; first < rows; first += ORTHONORMAL_BLOCK) {
        const int block = block_width(rows, first);
        for (int i = 0; i < block; i += ORTHONORMAL_PANEL) {
            const int width = panel_width(block, i);
            TRY(raise_reflect(o, width, block - i - width, n, false, bytes));
        }
        TRY(raise_reflect(o, block, block, n, false, bytes)); // products among a block's reflections
        TRY(raise_reflect(o, block, rows - first - block, n, false, bytes));
        TRY(raise_reflect(o, block, n - first, n, true, bytes));
    }
    return STATUS_OK;
}

// ---- a panel, on the host

// Rounds to the device's type: reflections are then orthogonal as they are used.
static void round_row(enum dtype type, double *x, int n) {
    for (int i = 0; i < n && type == DTYPE_F32; i++)
        x[i] = (double)(float)x[i];
}

// Makes row i of the factor: T[0 .. i)[i] = -tau_i T (W w_i), T[i][i] = tau_i, all negated.
static void add_to_factor(const struct orthonormal *o, int width, int i, const double *products, double tau) {
    double *factor = o->factor;
    for (int k = 0; k < i; k++) {
        double sum = 0;
        for (int l = k; l < i; l++)
            sum += factor[k * width + l] * products[l];
        factor[k * width + i] = -tau * sum;
        factor[i * width + k] = 0;
    }
    factor[i * width + i] = -tau;
}

// Replaces the panel's rows, which begin with row `first` of the matrix, by their reflections.
//   scales   [w] (width) tau
static enum status factorize(const struct orthonormal *o, int width, int first, int n, double *scales) {
    for (int i = 0; i < width; i++) {
        double *row = o->panel + (size_t)i * (size_t)n, *w = row + first + i, products[ORTHONORMAL_PANEL];
        const int rest = n - first - i;
        if (!isfinite(vector_reflection(w, rest)))
            return FAIL(STATUS_FAILED, "rows cannot be made orthonormal: row %d of %d columns is not finite",
                        first + i, n);
        memset(row, 0, (size_t)(first + i) * sizeof *row);
        round_row(o->type, w, rest);
        const double square = vector_dot(w, w, rest), tau = square > 0 ? 2 / square : 0;
        scales[i] = tau;
        for (int k = i + 1; k < width; k++) {
            double *other = o->panel + (size_t)k * (size_t)n + first + i;
            vector_add_scaled(other, w, -tau * vector_dot(other, w, rest), rest);
        }
        for (int k = 0; k < i; k++)
            products[k] = vector_dot(o->panel + (size_t)k * (size_t)n + first + i, w, rest);
        add_to_factor(o, width, i, products, tau);
    }
    return STATUS_OK;
}

enum status orthonormal_fetch(const struct orthonormal *o, struct stream *stream, const void *from, size_t n,
                              double *to) {
    TRY(o->device->copy(stream, o->staged, from, n * dtype_size(o->type)));
    TRY(o->device->synchronize(stream));
    for (size_t i = 0; i < n; i++)
        to[i] = o->type == DTYPE_F64 ? ((const double *)o->staged)[i] : (double)((const float *)o->staged)[i];
    return STATUS_OK;
}

enum status orthonormal_store(const struct orthonormal *o, struct stream *stream, void *to, size_t n,
                              const double *from) {
    for (size_t i = 0; i < n; i++)
        if (o->type == DTYPE_F64)
            ((double *)o->staged)[i] = from[i];
        else
            ((float *)o->staged)[i] = (float)from[i];
    TRY(o->device->copy(stream, to, o->staged, n * dtype_size(o->type)));
    return o->device->synchronize(stream); // before the buffer is used again
}

// Brings the panel to the host, and its reflections and factor back.
static enum status factorize_panel(const struct orthonormal *o, struct stream *stream,
                                   const struct reflected *r, int first, double *scales) {
    const size_t elements = (size_t)r->width * (size_t)r->n, square = (size_t)r->width * (size_t)r->width;
    if (o->progress)
        o->progress(o->progress_context);
    TRY(orthonormal_fetch(o, stream, r->panel, elements, o->panel));
    TRY(factorize(o, r->width, first, r->n, scales));
    TRY(orthonormal_store(o, stream, r->panel, elements, o->panel));
    return orthonormal_store(o, stream, r->factor, square, o->factor);
}

// ---- blocks

static struct reflected block_at(const struct orthonormal *o, void *a, int rows, int n, int i) {
    return (struct reflected){.n = n,
                              .panel = at(a, o->type, (size_t)i * (size_t)n),
                              .factor = at(o->factors, o->type, (size_t)i * ORTHONORMAL_BLOCK),
                              .width = block_width(rows, i)};
}

// The factor of a block, from the products of its reflections.
static enum status make_factor(const struct orthonormal *o, struct stream *stream,
                               const struct reflected *block) {
    const int width = block->width;
    const size_t square = (size_t)width * (size_t)width;
    struct reflected among = *block;
    among.rows = block->panel;
    among.n_rows = width;
    const struct linear_forward_args products = turn(o, &among);
    TRY(o->device->ops->linear_forward(stream, &products));
    TRY(orthonormal_fetch(o, stream, o->turned, square, o->gram));
    for (int i = 0; i < width; i++)
        add_to_factor(o, width, i, o->gram + (size_t)i * (size_t)width, o->scales[i]);
    return orthonormal_store(o, stream, block->factor, square, o->factor);
}

// Replaces a block's rows, which begin with row `first` of the matrix, by their reflections.
static enum status factorize_block(const struct orthonormal *o, struct stream *stream,
                                   const struct reflected *block, int first) {
    const bool is_panel = block->width <= ORTHONORMAL_PANEL;
    for (int i = 0; i < block->width; i += ORTHONORMAL_PANEL) {
        struct reflected r = *block;
        r.panel = at(block->panel, o->type, (size_t)i * (size_t)r.n);
        r.factor = is_panel ? block->factor : o->panel_factor;
        r.width = panel_width(block->width, i);
        r.n_rows = block->width - i - r.width;
        r.rows = at(r.panel, o->type, (size_t)r.width * (size_t)r.n);
        TRY(factorize_panel(o, stream, &r, first + i, o->scales + i));
        if (r.n_rows > 0)
            TRY(reflect(o, stream, &r, false));
    }
    return is_panel ? STATUS_OK : make_factor(o, stream, block);
}

enum status orthonormal_run(const struct orthonormal *o, struct stream *stream, void *a, int rows, int n,
                            void *out) {
    const struct fill_args zeros = {.out = out, .n = (size_t)n * (size_t)n, .type = o->type};
    const struct matrix_add_diagonal_args identity = {
        .x = out, .n = n, .n_matrices = 1, .value = 1, .type = o->type};
    for (int i = 0; i < rows; i += ORTHONORMAL_BLOCK) {
        struct reflected r = block_at(o, a, rows, n, i);
        TRY(factorize_block(o, stream, &r, i));
        r.n_rows = rows - i - r.width;
        r.rows = at(a, o->type, (size_t)(i + r.width) * (size_t)n);
        if (r.n_rows > 0)
            TRY(reflect(o, stream, &r, false));
    }
    TRY(o->device->ops->fill(stream, &zeros));
    TRY(o->device->ops->matrix_add_diagonal(stream, &identity));
    // The rows before a block's are those of the identity, which its reflections do not touch.
    for (int i = (rows - 1) / ORTHONORMAL_BLOCK * ORTHONORMAL_BLOCK; i >= 0; i -= ORTHONORMAL_BLOCK) {
        struct reflected r = block_at(o, a, rows, n, i);
        r.n_rows = n - i;
        r.rows = at(out, o->type, (size_t)i * (size_t)n);
        TRY(reflect(o, stream, &r, true));
    }
    return STATUS_OK;
}
