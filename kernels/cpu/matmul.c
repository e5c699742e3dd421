// Matrix products. The output is divided among the threads. Each thread computes its rows and columns in
// tiles that fit in the cache. For each tile:
//   1. upcast the operands where needed, or copy those that oneDNN reads slowly
//   2. multiply with oneDNN (onednn.h), with sums in fp32
//   3. apply the epilogue: bias, residual, activation, rounding
// On AMX, isa/matmul.c computes a thread's product instead. The division among threads depends on the
// product's shape and the number of threads only.
#include "kernels/cpu/matmul.h"

#include <math.h>
#include <stdatomic.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/onednn.h"
#include "kernels/matrix.h"

struct matmul_operand {
    const void *data;
    int64_t row, column; // strides in elements; one of them is 1
};

// out (m, n) = epilogue(alpha a b), with a (m, k) and b (k, n) of `type`. struct linear_epilogue_args
// explains the pointers; a NULL pointer leaves its term out, and beta is the residual's factor.
//   weight_gradient   out is fp32, there is no epilogue, and the sums run over the k rows of a batch
//   accumulate        the product is added to out, which is fp32
struct tiled_matmul {
    int64_t m, n, k;
    struct matmul_operand a, b;
    void *out;
    int64_t out_stride; // between rows of out, pre_activation, residual and activation_input
    void *pre_activation;
    const void *residual, *activation_input, *bias;
    float alpha, beta;
    enum activation activation; // applied to out; with activation_input, its derivative multiplies out
    bool weight_gradient, accumulate;
    bool is_cached;            // a and b were used recently, so they count as cached whatever their size
    enum dtype type, out_type; // out_type: type, or fp32
};

#define MATMUL_ALIGNMENT 256 // of scratch, in bytes

static inline size_t matmul_aligned(size_t bytes) {
    return (bytes + MATMUL_ALIGNMENT - 1) / MATMUL_ALIGNMENT * MATMUL_ALIGNMENT;
}

static inline const void *matmul_element(const void *tensor, enum dtype type, int64_t index) {
    return tensor ? (const char *)tensor + index * (int64_t)dtype_size(type) : NULL;
}

// Returns the size of the tiles if n elements are divided into the fewest tiles of at most `most`, of equal
// size, rounded up to a multiple of `grain`. 0 if n is 0.
static inline int64_t matmul_tile_size(int64_t n, int64_t most, int64_t grain) {
    int64_t n_tiles = n > most ? (n + most - 1) / most : 1, mine = (n + n_tiles - 1) / n_tiles;
    return (mine + grain - 1) / grain * grain;
}

static inline int64_t matmul_least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

struct tile_sizes {
    int64_t m, n, k; // rows, columns and terms of a tile; the last tile in each dimension may be smaller
};

struct place {
    int64_t m, n, k; // indices of a tile's first element
};

// Maximum size of a tile: rows, columns and terms of the sum. Tiles are large, so that a tile of b, upcast
// once, serves many rows of a. They are small enough that the epilogue finds the product of a tile in the
// cache. A tile of b has at most TILE_B_ELEMENTS elements. The columns of a tile are a multiple of
// TILE_COLUMN_GRAIN.
#define TILE_ROWS         512
#define TILE_COLUMNS      3072
#define TILE_TERMS        4096
#define TILE_B_ELEMENTS   ((int64_t)8 << 20)
#define TILE_COLUMN_GRAIN 64
// Limits for weight gradients, which have as many rows as the weight and sum over the rows of the batch.
#define ACCUMULATED_ROWS  3072
#define ACCUMULATED_TERMS 1024

// ---- epilogues

// The epilogue for the part of a product that begins at element (row, column). The caller sets c, c_stride,
// rows and columns.
static struct linear_epilogue_args matmul_epilogue(const struct tiled_matmul *part, int64_t row,
                                                   int64_t column) {
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

// ---- tile sizes for oneDNN

static struct tile_sizes tile_sizes_of(const struct tiled_matmul *t, bool direct) {
    struct tile_sizes sizes;
    if (t->weight_gradient) {
        sizes.m = matmul_tile_size(t->m, ACCUMULATED_ROWS, TILE_COLUMN_GRAIN);
        sizes.k = matmul_tile_size(t->k, ACCUMULATED_TERMS, 1);
    } else {
        // fp32 needs no scratch if oneDNN applies the epilogue, but then one product must sum all terms.
        const bool whole = direct && t->type == DTYPE_F32;
        sizes.m = whole ? t->m : matmul_tile_size(t->m, TILE_ROWS, 1);
        sizes.k = whole ? t->k : matmul_tile_size(t->k, TILE_TERMS, TILE_COLUMN_GRAIN);
    }
    int64_t columns = TILE_B_ELEMENTS / matmul_least(sizes.k, TILE_B_ELEMENTS / TILE_COLUMN_GRAIN);
    columns = columns / TILE_COLUMN_GRAIN * TILE_COLUMN_GRAIN;
    sizes.n = matmul_tile_size(t->n, matmul_least(columns, TILE_COLUMNS), TILE_COLUMN_GRAIN);
    return sizes;
}

// ---- one tile of a product by oneDNN

// A bump allocator. With base NULL, it only counts the bytes.
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
    enum dtype product_type;    // of the operands that oneDNN multiplies: type of the matmul, or fp32
    struct matmul_operand a, b; // strides of the operands, or of their copies in scratch; data is not used
    bool copies_a, copies_b;    // operands are copied to scratch: upcast, or with a better row stride
    bool direct;   // oneDNN writes to out or pre_activation and applies the epilogue except activations
    char *scratch; // NULL in a dry run
    size_t scratch_bytes; // maximum that a tile has used so far
};

// True if oneDNN should multiply operands of this 16-bit type directly. False if they are to be upcast
// because fp32 products are faster. Upcasting changes neither the products nor the precision of a sum.
static bool multiplies_16_bit(const struct cpu_device *cpu, enum dtype type) {
    return type == DTYPE_F16 || cpu->device.fast_bf16;
}

// Returns the strides of the copy of a tile (rows, columns) of an operand. The dimension that is contiguous
// stays the same.
static struct matmul_operand copy_strides(const struct matmul_operand *operand, int64_t rows,
                                          int64_t columns) {
    if (operand->column == 1)
        return (struct matmul_operand){.row = product_row(columns), .column = 1};
    return (struct matmul_operand){.row = 1, .column = product_row(rows)};
}

static void multiply_in(struct walk *walk, enum dtype type) {
    const struct tiled_matmul *t = walk->matmul;
    struct tile_sizes *sizes = &walk->sizes;
    // A weight gradient sums over the rows of dout and of x, which oneDNN reads slowly at some strides.
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

static const void *element_at(const struct walk *walk, const void *tensor, int64_t index) {
    return matmul_element(tensor, walk->matmul->type, index);
}

static enum product_epilogue epilogue_of(const struct walk *walk, struct place at) {
    const struct tiled_matmul *t = walk->matmul;
    if (t->accumulate || at.k > 0)
        return PRODUCT_ACCUMULATE;
    if (walk->direct && t->residual)
        return PRODUCT_RESIDUAL;
    return PRODUCT_PLAIN;
}

static struct product_shape shape_at(const struct walk *walk, struct place at) {
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

// Finds the oneDNN matrix product for a tile. If oneDNN does not support walk->product_type on this
// processor, switches to fp32 for this tile and all later ones.
static enum status find_product(struct walk *walk, struct place at, struct product **out) {
    struct product_shape shape = shape_at(walk, at);
    TRY(product_find(walk->products, &shape, out));
    if (!product_is_supported(*out) && walk->product_type != DTYPE_F32) {
        multiply_in(walk, DTYPE_F32);
        shape = shape_at(walk, at);
        TRY(product_find(walk->products, &shape, out));
    }
    char library[64];
    if (!product_is_supported(*out))
        return FAIL(STATUS_UNSUPPORTED, "%s has no matrix product for this processor",
                    product_library(library, sizeof library));
    return STATUS_OK;
}

static float *take_fp32(struct scratch *scratch, int64_t elements) {
    return scratch_take(scratch, (size_t)elements * sizeof(float));
}

static enum status tile_at(struct walk *walk, struct place at, struct tile *out) {
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

// Copies a tile (rows, columns) from strides `from` to strides `to`, in fp32.
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

// Copies a tile's operands to scratch, if the walk copies them and the previous tile did not leave the same
// copy there. The copy of b serves all tiles of the same columns if one tile has all terms of the sums. The
// copy of a serves all tiles if one tile also has all rows.
static void copy_operands(const struct walk *walk, struct place at, struct tile *tile) {
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

static void apply_epilogue(const struct walk *walk, struct place at, const struct tile *tile) {
    const struct tiled_matmul *t = walk->matmul;
    const struct product_shape shape = shape_at(walk, at);
    struct linear_epilogue_args epilogue = matmul_epilogue(t, at.m, at.n);
    epilogue.c = tile->operands.c;
    epilogue.c_stride = shape.c_row;
    epilogue.rows = shape.m;
    epilogue.columns = shape.n;
    if (walk->direct) {
        epilogue.bias = epilogue.residual = NULL;
        epilogue.pre_activation = NULL;
    }
    walk->cpu->isa->linear_epilogue(&epilogue);
}

// True if linear_epilogue must apply part of the epilogue.
static bool needs_epilogue(const struct walk *walk) {
    const struct tiled_matmul *t = walk->matmul;
    return !walk->direct || t->activation != ACTIVATION_NONE;
}

// ---- all tiles of one thread's product by oneDNN

// Walks through the tiles of one thread's product.
//   bytes   NULL: the product is computed. Otherwise a dry run: nothing is computed, and *bytes is raised
//     to the scratch that the thread needs
static enum status visit_tiles(struct cpu_device *cpu, const struct tiled_matmul *part, int thread,
                               char *scratch, size_t *bytes) {
    struct walk walk = walk_of(part, cpu, thread);
    struct place at;
    walk.scratch = scratch;
    for (at.n = 0; at.n < part->n; at.n += walk.sizes.n)
        for (at.m = 0; at.m < part->m; at.m += walk.sizes.m)
            for (at.k = 0; at.k < part->k; at.k += walk.sizes.k) {
                struct tile tile = {0};
                TRY(tile_at(&walk, at, &tile));
                if (bytes)
                    continue;
                copy_operands(&walk, at, &tile);
                TRY(product_run(walk.products, tile.product, &tile.operands, tile.workspace));
                if (at.k + walk.sizes.k >= part->k && needs_epilogue(&walk))
                    apply_epilogue(&walk, at, &tile);
            }
    if (bytes && walk.scratch_bytes > *bytes)
        *bytes = walk.scratch_bytes;
    return STATUS_OK;
}

// ---- one thread's product on AMX, in tiles

// Tile sizes on AMX, measured with products of 592 to 4096 rows:
// - A product of at most ALL_TERMS terms is summed at once, with tiles of up to B_ELEMENTS elements of b,
//   which stay in the second-level cache.
// - Longer sums are split into tiles of TERMS terms. If a is transposed, all sums of more than TERMS terms
//   are split, since the terms of a sum are then in different rows, each in a page of its own. A tile has up
//   to SUMS sums, a little more than that cache holds, since larger tiles read b less often.
#define ALL_TERMS  1024
#define B_ELEMENTS ((int64_t)512 << 10)
#define TERMS      256
#define COLUMNS    768
#define SUMS       ((int64_t)512 << 10)
// The packed tiles of b for one range of columns are kept, to be multiplied by further rows of a, if they
// have at most this many elements in all.
#define KEPT_ELEMENTS ((int64_t)4 << 20)

// The number of rows of `columns` elements that fit in `most` elements, rounded down to whole grains of
// AMX_PRODUCT_GRAIN rows. At least one grain.
static int64_t rows_of(int64_t most, int64_t columns) {
    const int64_t rows = most / (columns > 0 ? columns : 1) / AMX_PRODUCT_GRAIN * AMX_PRODUCT_GRAIN;
    return rows > AMX_PRODUCT_GRAIN ? rows : AMX_PRODUCT_GRAIN;
}

static struct tile_sizes tiles_of(const struct tiled_matmul *t) {
    if (t->k <= (t->a.column == 1 ? ALL_TERMS : TERMS))
        return (struct tile_sizes){
            .m = t->m,
            .n = matmul_tile_size(t->n, rows_of(B_ELEMENTS, t->k), AMX_PRODUCT_GRAIN),
            .k = t->k,
        };
    struct tile_sizes tiles = {
        .n = matmul_tile_size(t->n, COLUMNS, AMX_PRODUCT_GRAIN),
        .k = matmul_tile_size(t->k, TERMS, AMX_PRODUCT_GRAIN),
    };
    tiles.m = matmul_tile_size(t->m, rows_of(SUMS, tiles.n), AMX_PRODUCT_GRAIN);
    return tiles;
}

// The state of a thread's walk through its tiles, with its scratch.
struct amx_walk {
    const struct tiled_matmul *matmul;
    const struct cpu_device *cpu;
    struct tile_sizes tiles;
    bool sums_at_once;   // all terms of the sums are in one tile
    int64_t kept;        // number of packed tiles of b that `right` holds
    size_t packed_bytes; // bytes of one packed tile of b
    float *left, *sums;
    char *right;
};

// Divides `scratch` among the walk's buffers; with NULL it only counts their bytes.
//   used   [out] bytes of the buffers
static struct amx_walk amx_walk_of(const struct cpu_device *cpu, const struct tiled_matmul *matmul,
                                   char *scratch, size_t *used) {
    struct amx_walk walk = {.matmul = matmul, .cpu = cpu, .tiles = tiles_of(matmul)};
    const struct tile_sizes *tiles = &walk.tiles;
    const int64_t k_tiles = tiles->k > 0 ? (matmul->k + tiles->k - 1) / tiles->k : 0,
                  rows = matmul_tile_size(tiles->m, tiles->m, AMX_PRODUCT_GRAIN);
    walk.sums_at_once = k_tiles <= 1;
    walk.kept = tiles->n * matmul->k <= KEPT_ELEMENTS ? k_tiles : 1;
    walk.packed_bytes = matmul_aligned(cpu->isa->amx_product_right_bytes(tiles->k, tiles->n));
    const size_t left = matmul_aligned(cpu->isa->amx_product_left_bytes(tiles->k)),
                 right = walk.packed_bytes * (size_t)walk.kept,
                 sums = (size_t)((walk.sums_at_once ? 2 * AMX_PRODUCT_GRAIN : rows) * tiles->n);
    *used = left + right + sums * sizeof(float);
    if (scratch) {
        walk.left = (float *)(void *)scratch;
        walk.right = scratch + left;
        walk.sums = (float *)(void *)(walk.right + right);
    }
    return walk;
}

static void amx_visit(const struct amx_walk *walk, const struct place *at) {
    const struct tiled_matmul *t = walk->matmul;
    const struct tile_sizes *tiles = &walk->tiles;
    const struct cpu_isa *isa = walk->cpu->isa;
    const struct linear_epilogue_args epilogue = matmul_epilogue(t, at->m, at->n);
    const int64_t n = matmul_least(tiles->n, t->n - at->n), k = matmul_least(tiles->k, t->k - at->k);
    const bool finishes = at->k + k >= t->k, keeps_all = walk->kept * tiles->k >= t->k;
    const struct amx_product_args args = {
        .a = matmul_element(t->a.data, t->type, at->m * t->a.row + at->k * t->a.column),
        .b = matmul_element(t->b.data, t->type, at->k * t->b.row + at->n * t->b.column),
        .a_row = t->a.row,
        .a_column = t->a.column,
        .b_row = t->b.row,
        .b_column = t->b.column,
        .m = matmul_least(tiles->m, t->m - at->m),
        .n = n,
        .k = k,
        .sums = walk->sums,
        .keeps_sums = !walk->sums_at_once,
        .add = at->k > 0,
        .epilogue = finishes ? &epilogue : NULL,
        .left = walk->left,
        .right = (float *)(void *)(walk->right +
                                   (keeps_all ? (size_t)(at->k / tiles->k) * walk->packed_bytes : 0)),
    };
    if (at->m == 0 || !keeps_all)
        isa->amx_product_pack(&args);
    isa->amx_product_run(&args);
}

// True if the product is in bf16 and the device's instruction set has AMX.
static bool matmul_is_on_amx(const struct cpu_device *cpu, const struct tiled_matmul *part) {
    return part->type == DTYPE_BF16 && cpu->isa->amx_product_run;
}

static void matmul_amx_size(const struct cpu_device *cpu, const struct tiled_matmul *part, size_t *bytes) {
    size_t used;
    amx_walk_of(cpu, part, NULL, &used);
    *bytes = used > *bytes ? used : *bytes;
}

static void matmul_amx_run(const struct cpu_device *cpu, const struct tiled_matmul *part, char *scratch) {
    size_t used;
    const struct amx_walk walk = amx_walk_of(cpu, part, scratch, &used);
    struct place at;
    for (at.n = 0; at.n < part->n; at.n += walk.tiles.n)
        for (at.m = 0; at.m < part->m; at.m += walk.tiles.m)
            for (at.k = 0; at.k < part->k; at.k += walk.tiles.k)
                amx_visit(&walk, &at);
}

// ---- division among threads

static int threads_of(const struct device *device, const struct tiled_matmul *matmul) {
    return cpu_threads(device, (size_t)(matmul->m * matmul->n));
}

// The output is divided into a grid of rectangles, one per thread. That is 10 to 25% faster than oneDNN's own
// threading, which shares packed operands (measured with two threads, 256 and 1024 rows of 768 and 3072
// elements).
struct grid {
    int rows, columns;
};

// Relative costs of reading, to choose the grid. A thread reads its rows of a and its columns of b. Weights
// too large for the caches come from memory, while activations were used recently: reading uncached weights
// costs 8 times as much as reading activations. In a weight gradient, the cost applies to the rows, which are
// those of the weight. Among grids of equal cost, the one with the fewest columns is chosen, since the thread
// that reads a row has often produced it.
// PACKED_COST applies to cached operands on AMX, where b is packed before the products and a during them.
#define WEIGHTS_COST        8
#define CACHED_WEIGHTS      ((int64_t)1 << 18) // elements; larger weights do not stay in the caches
#define PACKED_COST         2
#define THREAD_COLUMN_GRAIN 16

static int cost_of_weights(const struct device *device, const struct tiled_matmul *t) {
    const int64_t n_weights = t->n * (t->weight_gradient ? t->m : t->k);
    if (n_weights <= CACHED_WEIGHTS)
        return 1;
    if (!t->is_cached)
        return WEIGHTS_COST;
    return matmul_is_on_amx((const struct cpu_device *)device, t) ? PACKED_COST : 1;
}

static struct grid grid_of(const struct device *device, const struct tiled_matmul *t) {
    const int n_threads = threads_of(device, t), of_weights = cost_of_weights(device, t);
    struct grid best = {1, n_threads};
    double least_cost = HUGE_VAL;
    for (int columns = 1; columns <= n_threads; columns++) {
        if (n_threads % columns != 0)
            continue;
        double m = (double)t->m * columns / n_threads, n = (double)t->n / columns;
        double cost = t->weight_gradient ? of_weights * m + n : m + of_weights * n;
        if (cost < least_cost) {
            least_cost = cost;
            best = (struct grid){n_threads / columns, columns};
        }
    }
    return best;
}

// The product restricted to a range of rows and columns of `out`.
static struct tiled_matmul part_of(const struct tiled_matmul *t, int64_t row, int64_t rows, int64_t column,
                                   int64_t columns) {
    const int64_t first = row * t->out_stride + column;
    struct tiled_matmul part = *t;
    part.m = rows;
    part.n = columns;
    part.a.data = matmul_element(t->a.data, t->type, row * t->a.row);
    part.b.data = matmul_element(t->b.data, t->type, column * t->b.column);
    part.out = (void *)(uintptr_t)matmul_element(t->out, t->out_type, first);
    part.pre_activation = (void *)(uintptr_t)matmul_element(t->pre_activation, t->type, first);
    part.residual = matmul_element(t->residual, t->type, first);
    part.activation_input = matmul_element(t->activation_input, t->type, first);
    part.bias = matmul_element(t->bias, t->type, column);
    return part;
}

// The product of one thread's rectangle. m or n is 0 if the output is too small for all threads.
static struct tiled_matmul thread_product(const struct tiled_matmul *t, struct grid grid, int thread) {
    const struct parallel_span rows = parallel_span_of((size_t)t->m, 1, thread / grid.columns, grid.rows);
    const struct parallel_span columns =
        parallel_span_of((size_t)t->n, THREAD_COLUMN_GRAIN, thread % grid.columns, grid.columns);
    return part_of(t, (int64_t)rows.begin, (int64_t)(rows.end - rows.begin), (int64_t)columns.begin,
                   (int64_t)(columns.end - columns.begin));
}

// ---- running a product on all threads

// Raises *bytes to the workspace that tiled_matmul_run needs for this product.
static enum status tiled_matmul_workspace(struct device *device, const struct tiled_matmul *matmul,
                                          size_t *bytes) {
    struct cpu_device *cpu = (struct cpu_device *)device;
    const int n_threads = threads_of(device, matmul);
    const struct grid grid = grid_of(device, matmul);
    size_t of_thread = 0;
    for (int thread = 0; thread < n_threads; thread++) {
        const struct tiled_matmul mine = thread_product(matmul, grid, thread);
        if (matmul_is_on_amx(cpu, &mine))
            matmul_amx_size(cpu, &mine, &of_thread);
        else
            TRY(visit_tiles(cpu, &mine, thread, NULL, &of_thread));
    }
    of_thread *= (size_t)n_threads;
    *bytes = of_thread > *bytes ? of_thread : *bytes;
    return STATUS_OK;
}

struct run_call {
    struct stream *stream;
    const struct tiled_matmul *matmul;
    struct grid grid;
    size_t workspace_of_part;
    atomic_int *worst; // the worst enum status of all threads
};

static void run_cell(const void *context, int thread, int n_threads) {
    (void)n_threads;
    const struct run_call *call = context;
    struct cpu_device *cpu = (struct cpu_device *)call->stream->device;
    const struct tiled_matmul mine = thread_product(call->matmul, call->grid, thread);
    char *scratch = call->stream->workspace;
    if (scratch)
        scratch += (size_t)thread * call->workspace_of_part;
    if (matmul_is_on_amx(cpu, &mine)) {
        matmul_amx_run(cpu, &mine, scratch);
        return;
    }
    int status = (int)visit_tiles(cpu, &mine, thread, scratch, NULL);
    int worst = atomic_load(call->worst);
    while (status > worst && !atomic_compare_exchange_weak(call->worst, &worst, status))
        ;
}

static enum status tiled_matmul_run(struct stream *stream, const struct tiled_matmul *matmul) {
    const int n_threads = threads_of(stream->device, matmul);
    atomic_int worst = STATUS_OK;
    const struct run_call call = {
        .stream = stream,
        .matmul = matmul,
        .grid = grid_of(stream->device, matmul),
        // This may be more than the product needs, since the workspace is sized for other operations too.
        .workspace_of_part =
            stream->workspace_bytes / (size_t)n_threads / MATMUL_ALIGNMENT * MATMUL_ALIGNMENT,
        .worst = &worst,
    };
    parallel_run(n_threads, run_cell, &call);
    return (enum status)atomic_load(&worst);
}

// ---- linear layers

static struct tiled_matmul forward_product(const struct linear_forward_args *args) {
    return (struct tiled_matmul){
        .m = args->N,
        .n = args->OC,
        .k = args->IC,
        .a = {args->x, args->IC, 1},
        .b = {args->weight, 1, args->IC}, // transposed
        .out = args->out,
        .out_stride = args->out_stride,
        .pre_activation = args->pre_activation,
        .residual = args->residual,
        .bias = args->bias,
        .alpha = 1,
        .beta = 1,
        .activation = args->activation,
        .type = args->type,
        .out_type = args->out_type,
    };
}

enum status cpu_linear_forward_workspace(struct device *device, const struct linear_forward_args *args,
                                         size_t *bytes) {
    const struct tiled_matmul product = forward_product(args);
    *bytes = 0;
    return tiled_matmul_workspace(device, &product, bytes);
}

enum status cpu_linear_forward(struct stream *stream, const struct linear_forward_args *args) {
    struct tiled_matmul product = forward_product(args);
    return tiled_matmul_run(stream, &product);
}

static struct tiled_matmul dx_product(const struct linear_backward_args *args) {
    return (struct tiled_matmul){
        .m = args->N,
        .n = args->IC,
        .k = args->OC,
        .a = {args->dout, args->dout_stride, 1},
        .b = {args->weight, args->IC, 1},
        .out = args->dx,
        .out_stride = args->IC,
        .activation_input = args->pre_activation,
        .alpha = 1,
        .activation = args->pre_activation ? args->activation : ACTIVATION_NONE,
        .type = args->type,
        .out_type = args->type,
    };
}

static struct tiled_matmul dweight_product(const struct linear_backward_args *args) {
    return (struct tiled_matmul){
        .m = args->OC,
        .n = args->IC,
        .k = args->N,
        .a = {args->dout, 1, args->dout_stride}, // transposed
        .b = {args->x, args->IC, 1},
        .out = args->dweight,
        .out_stride = args->IC,
        .alpha = 1,
        .weight_gradient = true,
        .accumulate = !args->beta_zero,
        .type = args->type,
        .out_type = DTYPE_F32,
    };
}

enum status cpu_linear_backward_workspace(struct device *device, const struct linear_backward_args *args,
                                          size_t *bytes) {
    struct tiled_matmul dx = dx_product(args), dweight = dweight_product(args);
    *bytes = 0;
    if (args->dx)
        TRY(tiled_matmul_workspace(device, &dx, bytes));
    // The caller sizes the workspace once, for calls with and without beta_zero.
    for (int accumulate = 0; accumulate < 2 && args->dweight; accumulate++) {
        dweight.accumulate = accumulate;
        TRY(tiled_matmul_workspace(device, &dweight, bytes));
    }
    return STATUS_OK;
}

enum status cpu_linear_backward(struct stream *stream, const struct linear_backward_args *args) {
    struct tiled_matmul dx = dx_product(args), dweight = dweight_product(args);
    if (args->dx)
        TRY(tiled_matmul_run(stream, &dx));
    if (args->dweight)
        TRY(tiled_matmul_run(stream, &dweight));
    if (args->dbias)
        cpu_isa_of(stream->device)
            ->add_column_sums(stream, args->dbias, args->dout, args->N, args->OC, args->dout_stride,
                              args->beta_zero || args->writes_dbias, args->type);
    return STATUS_OK;
}

// ---- matrix_product

static struct tiled_matmul matrix_matmul(const struct matrix_product_args *args) {
    return (struct tiled_matmul){
        .m = args->rows,
        .n = args->columns,
        .k = args->inner,
        .a = {args->x, args->x_transposed ? 1 : args->inner, args->x_transposed ? args->rows : 1},
        .b = {args->y, args->y_transposed ? 1 : args->columns, args->y_transposed ? args->inner : 1},
        .out = args->out,
        .out_stride = args->columns,
        .residual = args->addend,
        .alpha = (float)args->alpha,
        .beta = (float)args->beta,
        .is_cached = true,
        .type = args->type,
        .out_type = args->type,
    };
}

enum status cpu_matrix_product_workspace(struct device *device, const struct matrix_product_args *args,
                                         size_t *bytes) {
    const struct tiled_matmul matmul = matrix_matmul(args);
    *bytes = 0;
    return tiled_matmul_workspace(device, &matmul, bytes);
}

enum status cpu_matrix_product(struct stream *stream, const struct matrix_product_args *args) {
    const struct tiled_matmul matmul = matrix_matmul(args);
    return tiled_matmul_run(stream, &matmul);
}
