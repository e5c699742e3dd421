// Adafactor's sums and step, and LAMB's sums, element by element; formulas in kernels/ops.h. With DTYPE_F64
// nothing is rounded, and all goes to the coarse sums.
#include <math.h>

#include "kernels/exact_sum.h"
#include "tests/ref/ref.h"

struct exact_term {
    double coarse, fine;
};

static struct exact_term split(double square, const struct exact_units *units, enum dtype type) {
    if (type == DTYPE_F64)
        return (struct exact_term){square, 0};
    struct exact_term term;
    term.coarse = (square + units->coarse) - units->coarse;
    term.fine = (square - term.coarse + units->fine) - units->fine;
    return term;
}

// Devices sum squares of fp32 numbers exactly, so the reference rounds to fp32 first.
static double rounded(double x, enum dtype type) {
    return type == DTYPE_F64 ? x : (double)(float)x;
}

static double gradient(const void *grad, enum dtype grad_type, enum dtype type, size_t i, float grad_scale) {
    return rounded(ref_load(grad, type == DTYPE_F64 ? type : grad_type, i) * (double)grad_scale, type);
}

static void add(double *sums, size_t n, size_t i, struct exact_term term) {
    sums[i] += term.coarse;
    sums[n + i] += term.fine;
}

enum status ref_adafactor_sums(struct stream *stream, const struct adafactor_sums_args *a) {
    size_t rows = (size_t)a->rows, columns = (size_t)a->span.columns;
    struct exact_units units = exact_units_of(a->bound, rows > columns ? (double)rows : (double)columns);
    (void)stream;
    for (size_t i = 0; i < a->span.n; i++) {
        double g = gradient(a->grad, a->grad_type, a->type, i, a->grad_scale);
        struct exact_term term = split(g * g, &units, a->type);
        size_t element = a->span.begin + i;
        if (a->row_sums)
            add(a->row_sums, rows, element / columns, term);
        add(a->column_sums, columns, element % columns, term);
    }
    return STATUS_OK;
}

static double update(const struct adafactor_direction *d, const struct adafactor_span *span, enum dtype type,
                     size_t i) {
    enum dtype wide = ref_wide(type);
    size_t element = span->begin + i, columns = (size_t)span->columns;
    double scale = ref_load(d->column_scales, wide, element % columns);
    if (d->row_scales)
        scale = rounded(scale * ref_load(d->row_scales, wide, element / columns), wide);
    scale = scale > (double)d->largest_scale ? (double)d->largest_scale : scale; // NaN stays NaN
    return rounded(gradient(d->grad, d->grad_type, type, i, d->grad_scale) * scale, wide);
}

enum status ref_adafactor_norms(struct stream *stream, const struct adafactor_norms_args *a) {
    struct exact_units of_update = exact_units_of(a->update_bound, (double)a->elements);
    struct exact_units of_weights = exact_units_of(ADAFACTOR_WEIGHTS_BOUND, (double)a->elements);
    (void)stream;
    for (size_t i = 0; i < a->span.n; i++) {
        double u = update(&a->direction, &a->span, a->type, i), weight = ref_load(a->master, a->type, i);
        double square = weight * weight;
        add(a->sums, 1, 0, split(u * u, &of_update, a->type));
        square = square > ADAFACTOR_WEIGHTS_BOUND ? ADAFACTOR_WEIGHTS_BOUND : square; // NaN stays NaN
        add(a->sums + 2, 1, 0, split(square, &of_weights, a->type));
    }
    return STATUS_OK;
}

enum status ref_adafactor_step(struct stream *stream, const struct adafactor_step_args *a) {
    enum dtype wide = ref_wide(a->type);
    (void)stream;
    for (size_t i = 0; i < a->span.n; i++) {
        double weight = ref_load(a->master, wide, i);
        weight -= a->step_size * update(&a->direction, &a->span, a->type, i) + a->decay * weight;
        ref_store(a->master, wide, i, weight);
        if (a->param)
            ref_store(a->param, a->type, i, ref_load(a->master, wide, i));
    }
    return STATUS_OK;
}

enum status ref_exact_squares(struct stream *stream, const struct exact_squares_args *a) {
    const struct exact_units units = exact_units_of(EXACT_SQUARES_BOUND, (double)a->elements);
    (void)stream;
    for (size_t i = 0; i < a->n; i++) {
        const double x = ref_load(a->x, a->type, i);
        // NaN stays NaN
        const double square = x * x > EXACT_SQUARES_BOUND ? EXACT_SQUARES_BOUND : x * x;
        const struct exact_term term = split(square, &units, a->type);
        a->sums[0] += term.coarse;
        a->sums[1] += term.fine;
        if (a->type != DTYPE_F64)
            a->sums[2] += (square - term.coarse - term.fine + units.finest) - units.finest;
    }
    return STATUS_OK;
}
