// Walks through the tiles of a thread's product.
#include "kernels/cpu/matmul_tiles.h"

#include "kernels/cpu/product.h"

// The largest tile, in rows, columns and terms of the sum. A tile of b is upcast once for many rows of a, and
// the epilogue finds the tile's product in the cache.
#define TILE_ROWS         512
#define TILE_COLUMNS      3072
#define TILE_TERMS        4096
#define TILE_B_ELEMENTS   ((int64_t)8 << 20)
#define TILE_COLUMN_GRAIN 64
// Weight gradients have as many rows as the weight, and sum over the rows of the batch.
#define ACCUMULATED_ROWS  3072
#define ACCUMULATED_TERMS 1024

// ---- what follows a product

struct linear_epilogue_args matmul_epilogue(const struct tiled_matmul *part, int64_t row, int64_t column) {
    const int64_t first = row * part->out_stride + column;
    return (struct linear_epilogue_args){
        .out = (void *)(uintptr_t)matmul_element(part->out, part->out_type, first),
        .pre_activation = (void *)(uintptr_t)matmul_element(part->pre_activation, part->type, first),
        .residual = matmul_element(part->residual, part->type, first),
        .activation_input = matmul_element(part->activation_input, part->type, first),
        .bias = matmul_element(part->bias, part->type, column),
        .out_stride = part->out_stride,
        .alpha = part->alpha,
        .beta = part->beta,
        .activation = part->activation,
        .accumulate = part->accumulate,
        .type = part->type,
        .out_type = part->out_type,
    };
}

void matmul_rotate(const struct cpu_device *cpu, const struct tiled_matmul *part, int64_t row, int64_t rows,
                   int64_t column, int64_t columns) {
    const struct rope_forward_args *rope = part->rope;
    const int64_t begin = part->column + column, end = begin + columns;
    const size_t first_row = (size_t)(part->row + row);
    const struct parallel_span heads = {(size_t)(begin / rope->D),
                                        (size_t)matmul_least(end / rope->D, rope->H + rope->K)};
    if (heads.begin < heads.end)
        cpu->isa->rotate_part(rope, (struct parallel_span){first_row, first_row + (size_t)rows}, heads);
}

// ---- tile sizes

struct tile_sizes {
    int64_t m, n, k; // of all tiles but the last in each dimension
};

static struct tile_sizes tile_sizes_of(const struct tiled_matmul *t, bool direct) {
    struct tile_sizes sizes;
    if (t->weight_gradient) {
        sizes.m = matmul_tile_size(t->m, ACCUMULATED_ROWS, TILE_COLUMN_GRAIN);
        sizes.k = matmul_tile_size(t->k, ACCUMULATED_TERMS, 1);
    } else {
        // fp32 needs no scratch where oneDNN applies the epilogue, which must see all terms at once.
        const bool whole = direct && t->type == DTYPE_F32;
        sizes.m = whole ? t->m : matmul_tile_size(t->m, TILE_ROWS, 1);
        sizes.k = whole ? t->k : matmul_tile_size(t->k, TILE_TERMS, TILE_COLUMN_GRAIN);
    }
    int64_t columns = TILE_B_ELEMENTS / matmul_least(sizes.k, TILE_B_ELEMENTS / TILE_COLUMN_GRAIN);
    columns = columns / TILE_COLUMN_GRAIN * TILE_COLUMN_GRAIN;
    sizes.n = matmul_tile_size(t->n, matmul_least(columns, TILE_COLUMNS), TILE_COLUMN_GRAIN);
    return sizes;
}

// ---- one tile

// A bump allocator. With base NULL it only counts.
struct scratch {
    char *base;
    size_t used;
};

static void *scratch_take(struct scratch *scratch, size_t bytes) {
    void *start = scratch->base ? scratch->base + scratch->used : NULL;
    scratch->used += matmul_aligned(bytes);
    return start;
}

// A tile's operands and results.
struct tile {
    struct product *product;
    struct product_operands operands;
    float *copies[2]; // of a and b, if the walk copies them
    void *workspace;
};

// A thread's walk through the tiles of its product.
struct walk {
    const struct tiled_matmul *matmul;
    struct cpu_device *cpu;
    struct product_cache *products;
    struct tile_sizes sizes;
    enum dtype product_type;    // of the operands that oneDNN multiplies: the matmul's, or fp32
    struct matmul_operand a, b; // their strides
    bool copies_a, copies_b;    // into scratch: upcast, or with rows at a better distance
    bool direct;   // oneDNN writes to out or pre_activation and applies the epilogue except activations
    bool dry_run;  // only sizes the scratch
    char *scratch; // NULL in a dry run
    size_t scratch_bytes; // the most that a tile has used
};

// 16-bit operands are upcast where fp32 products are faster. That changes no product and no precision of a
// sum.
static bool multiplies_16_bit(const struct cpu_device *cpu, enum dtype type) {
    return type == DTYPE_F16 || cpu->fast_bf16_products || product_has_matrix_units();
}

// The strides of an operand's tile (rows, columns) after copying; the contiguous dimension stays the same.
static struct matmul_operand copy_strides(const struct matmul_operand *operand, int64_t rows,
                                          int64_t columns) {
    if (operand->column == 1)
        return (struct matmul_operand){.row = product_row(columns), .column = 1};
    return (struct matmul_operand){.row = 1, .column = product_row(rows)};
}

static void multiply_in(struct walk *walk, enum dtype type) {
    const struct tiled_matmul *t = walk->matmul;
    struct tile_sizes *sizes = &walk->sizes;
    // Weight gradients sum over the rows of both operands, in tiles of few rows.
    const bool upcasts = type != t->type, sums_rows = t->weight_gradient && type == DTYPE_F32;
    walk->product_type = type;
    walk->copies_a = upcasts || (sums_rows && product_is_slow_at(t->a.column, t->n));
    walk->copies_b = upcasts || (sums_rows && product_is_slow_at(t->b.row, t->n));
    if (walk->copies_a && !upcasts)
        sizes->m = matmul_tile_size(t->m, TILE_ROWS, TILE_COLUMN_GRAIN);
    walk->a = walk->copies_a ? copy_strides(&t->a, sizes->m, sizes->k) : t->a;
    walk->b = walk->copies_b ? copy_strides(&t->b, sizes->k, sizes->n) : t->b;
}

static struct walk walk_of(const struct tiled_matmul *matmul, struct cpu_device *cpu, int thread) {
    const bool is_16_bit = matmul->type != DTYPE_F32,
               has_factors = matmul->alpha != 1 || (matmul->residual && matmul->beta != 1);
    struct walk walk = {
        .matmul = matmul,
        .cpu = cpu,
        .products = cpu->products[thread],
        .direct = matmul->weight_gradient ||
                  (!has_factors && (!is_16_bit || (matmul->out_type == DTYPE_F32 && !matmul->bias &&
                                                   !matmul->residual && !matmul->activation))),
    };
    walk.sizes = tile_sizes_of(matmul, walk.direct);
    multiply_in(&walk, is_16_bit && multiplies_16_bit(cpu, matmul->type) ? matmul->type : DTYPE_F32);
    return walk;
}

struct tile_place {
    int64_t m, n, k; // of the tile's first element
};

static const void *element_at(const struct walk *walk, const void *tensor, int64_t index) {
    return matmul_element(tensor, walk->matmul->type, index);
}

static enum product_epilogue epilogue_of(const struct walk *walk, struct tile_place at) {
    const struct tiled_matmul *t = walk->matmul;
    if (t->accumulate || at.k > 0)
        return PRODUCT_ACCUMULATE;
    if (walk->direct && t->residual)
        return PRODUCT_RESIDUAL;
    return PRODUCT_PLAIN;
}

static struct product_shape shape_at(const struct walk *walk, struct tile_place at) {
    const struct tiled_matmul *t = walk->matmul;
    int64_t m = matmul_least(walk->sizes.m, t->m - at.m), n = matmul_least(walk->sizes.n, t->n - at.n);
    int64_t k = matmul_least(walk->sizes.k, t->k - at.k);
    struct product_shape shape = {
        .m = m,
        .n = n,
        .k = k,
        .a_row = walk->a.row,
        .a_column = walk->a.column,
        .b_row = walk->b.row,
        .b_column = walk->b.column,
        .c_row = t->out_stride,
        .type = walk->product_type,
        .has_bias = walk->direct && t->bias,
        .epilogue = epilogue_of(walk, at),
    };
    if (!walk->direct)
        shape.c_row = product_row(n);
    return shape;
}

// The oneDNN product of a tile. Switches to fp32 for all further tiles if oneDNN lacks the type on this
// processor.
static enum status find_product(struct walk *walk, struct tile_place at, struct product **out) {
    struct product_shape shape = shape_at(walk, at);
    TRY(product_find(walk->products, &shape, out));
    if (!product_is_supported(*out) && walk->product_type != DTYPE_F32) {
        multiply_in(walk, DTYPE_F32);
        shape = shape_at(walk, at);
        TRY(product_find(walk->products, &shape, out));
    }
    char library[32];
    if (!product_is_supported(*out))
        return FAIL(STATUS_UNSUPPORTED, "%s has no matrix product for this processor",
                    product_library(library, sizeof library));
    return STATUS_OK;
}

static float *take_fp32(struct scratch *scratch, int64_t elements) {
    return scratch_take(scratch, (size_t)elements * sizeof(float));
}

static enum status tile_at(struct walk *walk, struct tile_place at, struct tile *out) {
    const struct tiled_matmul *t = walk->matmul;
    const struct tile_sizes *sizes = &walk->sizes;
    struct scratch scratch = {walk->scratch, 0};
    int64_t first = at.m * t->out_stride + at.n;
    TRY(find_product(walk, at, &out->product));
    if (walk->direct) {
        out->operands.c = (float *)(t->pre_activation ? t->pre_activation : t->out) + first;
        out->operands.bias = (const float *)element_at(walk, t->bias, at.n);
        out->operands.residual = (const float *)element_at(walk, t->residual, first);
    } else {
        out->operands.c = take_fp32(&scratch, sizes->m * product_row(sizes->n));
    }
    out->operands.a = element_at(walk, t->a.data, at.m * t->a.row + at.k * t->a.column);
    out->operands.b = element_at(walk, t->b.data, at.k * t->b.row + at.n * t->b.column);
    const struct matmul_operand *a = &walk->a, *b = &walk->b;
    if (walk->copies_a)
        out->copies[0] = take_fp32(&scratch, a->column == 1 ? sizes->m * a->row : sizes->k * a->column);
    if (walk->copies_b)
        out->copies[1] = take_fp32(&scratch, b->column == 1 ? sizes->k * b->row : sizes->n * b->column);
    out->workspace = scratch_take(&scratch, product_workspace_bytes(out->product));
    if (scratch.used > walk->scratch_bytes)
        walk->scratch_bytes = scratch.used;
    return STATUS_OK;
}

// Copies a tile (rows, columns) with strides `from` into one with strides `to`, in fp32.
static void copy_operand(const struct walk *walk, const struct matmul_operand *from, const void *tile,
                         int64_t rows, int64_t columns, const struct matmul_operand *to, float *to_fp32) {
    bool by_rows = from->column == 1;
    struct linear_upcast_args args = {
        .from = tile,
        .to = to_fp32,
        .rows = by_rows ? rows : columns,
        .columns = by_rows ? columns : rows,
        .from_stride = by_rows ? from->row : from->column,
        .to_stride = by_rows ? to->row : to->column,
        .type = walk->matmul->type,
    };
    walk->cpu->isa->linear_upcast(&args);
}

// Tiles that differ in columns only share a; those that differ in rows only share b: their copies are kept.
static void copy_operands(const struct walk *walk, struct tile_place at, struct tile *tile) {
    const struct tiled_matmul *t = walk->matmul;
    const bool one_k = walk->sizes.k >= t->k, one_m = walk->sizes.m >= t->m;
    struct product_shape shape = shape_at(walk, at);
    struct product_operands *operands = &tile->operands;
    if (walk->copies_a) {
        if (!(one_k && one_m && at.n > 0))
            copy_operand(walk, &t->a, operands->a, shape.m, shape.k, &walk->a, tile->copies[0]);
        operands->a = tile->copies[0];
    }
    if (walk->copies_b) {
        if (!(one_k && at.m > 0))
            copy_operand(walk, &t->b, operands->b, shape.k, shape.n, &walk->b, tile->copies[1]);
        operands->b = tile->copies[1];
    }
}

// Of rows of a tile, from tile row `row` on.
static void apply_epilogue(const struct walk *walk, struct tile_place at, const struct tile *tile,
                           int64_t row, int64_t rows) {
    const struct tiled_matmul *t = walk->matmul;
    const struct product_shape shape = shape_at(walk, at);
    struct linear_epilogue_args epilogue = matmul_epilogue(t, at.m + row, at.n);
    epilogue.c = tile->operands.c + row * shape.c_row;
    epilogue.c_stride = shape.c_row;
    epilogue.rows = rows;
    epilogue.columns = shape.n;
    if (walk->direct) {
        epilogue.bias = epilogue.residual = NULL;
        epilogue.pre_activation = NULL;
    }
    walk->cpu->isa->linear_epilogue(&epilogue);
}

// True if part of the epilogue is left to linear_epilogue.
static bool needs_epilogue(const struct walk *walk) {
    const struct tiled_matmul *t = walk->matmul;
    return !walk->direct || t->activation != ACTIVATION_NONE;
}

// What is left to do once all terms of a tile are summed. With rotation some rows at a time, which stay in
// the second-level cache. Fewer would be read again while their lines are still being fetched for the
// epilogue's stores.
#define ROTATED_ROWS 128
static void finish(const struct walk *walk, struct tile_place at, const struct tile *tile) {
    const struct tiled_matmul *t = walk->matmul;
    const int64_t m = matmul_least(walk->sizes.m, t->m - at.m), step = t->rope ? ROTATED_ROWS : m;
    for (int64_t row = 0; row < m; row += step) {
        const int64_t rows = matmul_least(step, m - row);
        if (needs_epilogue(walk))
            apply_epilogue(walk, at, tile, row, rows);
        if (t->rope)
            matmul_rotate(walk->cpu, t, at.m + row, rows, at.n, matmul_least(walk->sizes.n, t->n - at.n));
    }
}

// ---- all tiles

static enum status visit(struct walk *walk, struct tile_place at) {
    const struct tiled_matmul *t = walk->matmul;
    struct tile tile = {0};
    TRY(tile_at(walk, at, &tile));
    if (walk->dry_run)
        return STATUS_OK;
    copy_operands(walk, at, &tile);
    TRY(product_run(walk->products, tile.product, &tile.operands, tile.workspace));
    if (at.k + walk->sizes.k >= t->k)
        finish(walk, at, &tile);
    return STATUS_OK;
}

static enum status visit_all(struct walk *walk) {
    const struct tiled_matmul *t = walk->matmul;
    struct tile_place at;
    for (at.n = 0; at.n < t->n; at.n += walk->sizes.n)
        for (at.m = 0; at.m < t->m; at.m += walk->sizes.m)
            for (at.k = 0; at.k < t->k; at.k += walk->sizes.k)
                TRY(visit(walk, at));
    return STATUS_OK;
}

enum status matmul_tiles_size(struct cpu_device *cpu, const struct tiled_matmul *part, int thread,
                              size_t *bytes) {
    struct walk walk = walk_of(part, cpu, thread);
    walk.dry_run = true;
    TRY(visit_all(&walk));
    *bytes = walk.scratch_bytes > *bytes ? walk.scratch_bytes : *bytes;
    return STATUS_OK;
}

enum status matmul_tiles_run(struct cpu_device *cpu, const struct tiled_matmul *part, int thread,
                             char *scratch) {
    struct walk walk = walk_of(part, cpu, thread);
    walk.scratch = scratch;
    return visit_all(&walk);
}
