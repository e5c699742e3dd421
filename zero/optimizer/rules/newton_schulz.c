// See zero/optimizer/rules/newton_schulz.h. Steps alternate between two buffers: the first reads y and
// writes x, the second reads x and writes y. The number of steps is odd, so the last one writes its result
// to x.
#include "zero/optimizer/rules/newton_schulz.h"

#include <assert.h>

#include "kernels/matrix.h"
#include "kernels/ops.h"
#include "kernels/profile.h"

enum { Y, GRAM, POWER, PARTIAL, WORKSPACE }; // indices in newton_schulz.regions

static const double a = 3.4445, b = -4.7750, c = 2.0315;

static bool is_tall(struct matrix_shape shape) {
    return shape.rows > shape.columns;
}

static int64_t side_of(struct matrix_shape shape) {
    return is_tall(shape) ? shape.columns : shape.rows;
}

static int64_t elements_of(struct matrix_shape shape) {
    return shape.rows * shape.columns;
}

double newton_schulz_flops(struct matrix_shape shape, int strip) {
    const double side = (double)side_of(shape), other = (double)elements_of(shape) / side;
    return NEWTON_SCHULZ_STEPS * 2 *
           (symmetric_elements(side_of(shape), strip) * (other + side) + side * side * other);
}

// ---- batches

// cuBLASLt divides a product (side, side) into tiles of about BATCH_TILE x BATCH_TILE elements. A batch has
// as many matrices as have at most BATCH_TILES tiles together, and at least one. BATCH_TILES is 13 tiles for
// each of an H100's multiprocessors. With fewer, more multiprocessors idle at the batch's end
// (benchmarks/gpu.md).
#define BATCH_TILE  128
#define BATCH_TILES 1728

// For how many later matrices of the same shape take_batch tries the distance from the first.
enum { DISTANCES_TRIED = 3 };

int newton_schulz_batch_size(const struct device *device, struct matrix_shape shape) {
    if (device->place == REGION_HOST)
        return 1;
    const int64_t along = (side_of(shape) + BATCH_TILE - 1) / BATCH_TILE, n = BATCH_TILES / (along * along);
    return n < 1 ? 1 : n < NEWTON_SCHULZ_MOST ? (int)n : NEWTON_SCHULZ_MOST;
}

static bool has_shape(const struct newton_schulz_matrix *matrix, struct matrix_shape shape) {
    return matrix->shape.rows == shape.rows && matrix->shape.columns == shape.columns;
}

// Returns how many of n matrices form the batch that begins with matrix 0 and whose matrices are `distance`
// elements apart; at most `most`.
//   take   also removes these matrices, by setting their rows to 0
static int count_batch(struct newton_schulz_matrix *matrices, int n, size_t distance, int most, bool take) {
    const struct newton_schulz_matrix first = matrices[0];
    int found = 0;
    for (int i = 0; i < n && found < most; i++)
        if (has_shape(&matrices[i], first.shape) && matrices[i].at == first.at + (size_t)found * distance) {
            found++;
            if (take)
                matrices[i].shape.rows = 0;
        }
    return found;
}

// Takes the longest batch that begins with matrix 0 of n. A fused tensor has several matrices of one shape,
// so the next matrix of the same shape does not always give the longest batch.
static struct newton_schulz_batch take_batch(const struct device *device,
                                             struct newton_schulz_matrix *matrices, int n) {
    const struct newton_schulz_matrix first = matrices[0];
    const int most = newton_schulz_batch_size(device, first.shape);
    struct newton_schulz_batch batch = {.at = first.at, .shape = first.shape, .n = 1};
    int tried = 0;
    for (int i = 1; i < n && tried < DISTANCES_TRIED && most > 1; i++) {
        if (!has_shape(&matrices[i], first.shape))
            continue;
        const size_t distance = matrices[i].at - first.at;
        const int found = count_batch(matrices, n, distance, most, false);
        if (found > batch.n)
            batch.n = found, batch.distance = distance;
        tried++;
    }
    count_batch(matrices, n, batch.distance, batch.n, true);
    return batch;
}

int newton_schulz_divide(const struct device *device, struct newton_schulz_matrix *matrices, int n,
                         struct newton_schulz_batch *batches) {
    int n_batches = 0;
    for (int i = 0; i < n; i++)
        if (matrices[i].shape.rows > 0)
            batches[n_batches++] = take_batch(device, matrices + i, n - i);
    return n_batches;
}

// Returns the number of elements from one matrix of a batch to the next, in ns->y, ns->gram and ns->power.
// It is padded, so that all matrices have the same alignment.
static size_t distance_of(int64_t elements) {
    return region_padded((size_t)elements);
}

// ---- the products of an iteration

// The n matrices of a batch, or intermediate results for them. Consecutive ones are `distance` elements
// apart.
struct matrices {
    void *first;
    size_t distance;
};

// What the products of an iteration have in common.
struct step {
    const struct newton_schulz *ns;
    struct matrix_shape shape;
    int n;
    struct matrices gram, power;
};

static struct step step_of(const struct newton_schulz *ns, const struct newton_schulz_batch *batch) {
    const size_t square = distance_of(side_of(batch->shape) * side_of(batch->shape));
    return (struct step){ns, batch->shape, batch->n, {ns->gram, square}, {ns->power, square}};
}

// out = x y
static struct matrix_product_args product(const struct step *step, struct matrices out, struct matrices x,
                                          struct matrices y, int64_t inner) {
    return (struct matrix_product_args){.out = out.first,
                                        .x = x.first,
                                        .y = y.first,
                                        .inner = (int)inner,
                                        .n_matrices = step->n,
                                        .out_distance = out.distance,
                                        .x_distance = x.distance,
                                        .y_distance = y.distance,
                                        .alpha = 1,
                                        .type = step->ns->type};
}

// out = x x^T or, with `transposed`, x^T x
static struct matrix_product_args square(const struct step *step, struct matrices out, struct matrices x,
                                         int64_t inner, bool transposed) {
    struct matrix_product_args args = product(step, out, x, x, inner);
    args.rows = args.columns = (int)side_of(step->shape);
    args.x_transposed = transposed;
    args.y_transposed = !transposed;
    args.strip = step->ns->device->symmetric_strips[step->ns->type];
    return args;
}

// A = X X^T; for tall matrices X^T X
static struct matrix_product_args gram_product(const struct step *step, struct matrices x) {
    const int64_t side = side_of(step->shape);
    return square(step, step->gram, x, elements_of(step->shape) / side, is_tall(step->shape));
}

// B = c A A + b A, computed as c A A^T + b A, because A is symmetric.
static struct matrix_product_args power_product(const struct step *step) {
    struct matrix_product_args args = square(step, step->power, step->gram, side_of(step->shape), false);
    args.addend = step->gram.first;
    args.addend_distance = step->gram.distance;
    args.alpha = c;
    args.beta = b;
    return args;
}

// out = B X; for tall matrices X B
static struct matrix_product_args last_product(const struct step *step, struct matrices out,
                                               struct matrices x) {
    const bool tall = is_tall(step->shape);
    struct matrix_product_args args =
        product(step, out, tall ? x : step->power, tall ? step->power : x, side_of(step->shape));
    args.rows = (int)step->shape.rows;
    args.columns = (int)step->shape.columns;
    return args;
}

// ---- planning

static enum status raise(const struct newton_schulz *ns, struct matrix_product_args product, size_t *most) {
    size_t bytes;
    TRY(ns->device->ops->workspace_bytes(ns->device, OP_matrix_product, &product, &bytes));
    *most = *most < bytes ? bytes : *most;
    return STATUS_OK;
}

// Finds the kernels for a batch's products, and raises *most to their largest workspace.
static enum status find_products(const struct newton_schulz *ns, const struct newton_schulz_batch *batch,
                                 size_t *most) {
    static _Alignas(REGION_ALIGNMENT) char there; // an address with the alignment of regions
    struct step step = step_of(ns, batch);
    const struct matrices of_buffer = {&there, batch->distance},
                          own = {&there, distance_of(elements_of(batch->shape))};
    step.gram.first = step.power.first = &there;
    TRY(raise(ns, gram_product(&step, own), most));
    TRY(raise(ns, gram_product(&step, of_buffer), most));
    TRY(raise(ns, power_product(&step), most));
    TRY(raise(ns, last_product(&step, own, of_buffer), most));
    return raise(ns, last_product(&step, of_buffer, own), most);
}

enum status newton_schulz_prepare(const struct newton_schulz *ns, const struct newton_schulz_batch *batch) {
    size_t bytes = 0;
    TRY(find_products(ns, batch, &bytes));
    assert(bytes <= ns->workspace_bytes);
    return STATUS_OK;
}

static size_t most_of(size_t x, size_t y) {
    return x > y ? x : y;
}

enum status newton_schulz_plan(struct newton_schulz *ns, const struct newton_schulz_batch *kinds, int n_kinds,
                               struct region_table *table) {
    size_t own = 0, gram = 0, partial = 0;
    for (int i = 0; i < n_kinds; i++) {
        const struct matrix_shape shape = kinds[i].shape;
        const struct newton_schulz_batch one = {.shape = shape, .n = 1};
        const int64_t elements = elements_of(shape), side = side_of(shape);
        const int batch = newton_schulz_batch_size(ns->device, shape);
        const size_t n = (size_t)(kinds[i].n < batch ? kinds[i].n : batch);
        TRY(find_products(ns, &one, &ns->workspace_bytes));
        ns->most_elements = most_of(ns->most_elements, n * distance_of(elements));
        own = most_of(own, (n - 1) * distance_of(elements) + (size_t)elements);
        gram = most_of(gram, (n - 1) * distance_of(side * side) + (size_t)(side * side));
        partial = most_of(partial, n * sum_squares_partials((size_t)elements));
    }
    const struct {
        const char *name;
        enum dtype type;
        size_t elements;
    } regions[] = {[Y] = {"matrices", ns->type, own},
                   [GRAM] = {"Gram matrices", ns->type, gram},
                   [POWER] = {"polynomials", ns->type, gram},
                   [PARTIAL] = {"sums of squares", DTYPE_F64, partial},
                   [WORKSPACE] = {"workspace of products", DTYPE_U8, ns->workspace_bytes}};
    for (int i = Y; i <= WORKSPACE; i++)
        TRY(region_add(table, REGION_WORKSPACE, ns->device->place, regions[i].type, regions[i].elements,
                       &ns->regions[i], "Muon: %s", regions[i].name));
    return STATUS_OK;
}

void newton_schulz_bind(struct newton_schulz *ns, const struct region_table *table) {
    ns->y = region_data(table, ns->regions[Y]);
    ns->gram = region_data(table, ns->regions[GRAM]);
    ns->power = region_data(table, ns->regions[POWER]);
    ns->partial = region_data(table, ns->regions[PARTIAL]);
    ns->workspace = region_data(table, ns->regions[WORKSPACE]);
}

// ---- running

static enum status normalize(const struct newton_schulz *ns, struct stream *stream,
                             const struct newton_schulz_batch *batch, struct matrices out,
                             struct matrices x) {
    const struct matrix_normalize_args args = {.out = out.first,
                                               .x = x.first,
                                               .partial = ns->partial,
                                               .n = (size_t)elements_of(batch->shape),
                                               .n_matrices = batch->n,
                                               .out_distance = out.distance,
                                               .x_distance = x.distance,
                                               .epsilon = NEWTON_SCHULZ_EPSILON,
                                               .type = ns->type};
    return ns->device->ops->matrix_normalize(stream, &args);
}

static enum status run_step(const struct step *step, struct stream *stream, struct matrices out,
                            struct matrices x) {
    const struct ops *ops = step->ns->device->ops;
    const struct matrix_product_args gram = gram_product(step, x), power = power_product(step),
                                     last = last_product(step, out, x);
    const struct matrix_add_diagonal_args diagonal = {.x = step->power.first,
                                                      .n = (int)side_of(step->shape),
                                                      .n_matrices = step->n,
                                                      .distance = step->power.distance,
                                                      .value = a,
                                                      .type = step->ns->type};
    TRY(ops->matrix_product(stream, &gram));
    TRY(ops->matrix_product(stream, &power));
    TRY(ops->matrix_add_diagonal(stream, &diagonal));
    return ops->matrix_product(stream, &last);
}

static enum status orthogonalize(const struct newton_schulz *ns, struct stream *stream, void *buffer,
                                 const struct newton_schulz_batch *batch) {
    const struct step step = step_of(ns, batch);
    const struct matrices x = {(char *)buffer + batch->at * dtype_size(ns->type), batch->distance},
                          y = {ns->y, distance_of(elements_of(batch->shape))};
    static_assert(NEWTON_SCHULZ_STEPS % 2 == 1, "the last step writes to x");
    TRY(normalize(ns, stream, batch, y, x));
    for (int i = 0; i < NEWTON_SCHULZ_STEPS; i++)
        TRY(i % 2 ? run_step(&step, stream, y, x) : run_step(&step, stream, x, y));
    return STATUS_OK;
}

enum status newton_schulz_run(const struct newton_schulz *ns, struct stream *stream, void *buffer,
                              const struct newton_schulz_batch *batch) {
    struct stream own = *stream; // the caller's stream, but with the workspace of these products
    own.workspace = ns->workspace;
    own.workspace_bytes = ns->workspace_bytes;
    TRY(profile_scope_begin(stream, "newton_schulz"));
    const enum status status = orthogonalize(ns, &own, buffer, batch), ended = profile_scope_end(stream);
    return status == STATUS_OK ? ended : status;
}
