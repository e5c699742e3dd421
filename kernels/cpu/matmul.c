// Matrix products. The output is divided into cells, of which each thread computes some. The sums of a cell
// are computed in tiles of terms. For each tile:
//   1. upcast the operands where needed, or copy those that oneDNN reads slowly
//   2. multiply with oneDNN (onednn.h), with sums in fp32
//   3. after the last tile, apply the epilogue: bias, residual, activation, rounding
// On AMX, isa/matmul.c computes the product instead, and each thread has a rectangle of the output.
//
// Determinism: the bits do not depend on the number of threads. oneDNN divides a sum by sizes that depend on
// the rows and columns of the call, so the calls are the same for any number of threads: cells depend on the
// product alone. On AMX, the order of a sum depends on the number of its terms only.
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

// Returns the number of tiles of `size` that n elements take.
static inline int64_t tiles_in(int64_t n, int64_t size) {
    return (n + size - 1) / size;
}

// Returns the size of the tiles if n elements are divided into the fewest tiles of at most `most`, of equal
// size, rounded up to a multiple of `grain`. 0 if n is 0.
static inline int64_t matmul_tile_size(int64_t n, int64_t most, int64_t grain) {
    const int64_t n_tiles = n > most ? tiles_in(n, most) : 1;
    return tiles_in(tiles_in(n, n_tiles), grain) * grain;
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

// ---- cells, and tiles of their terms, for oneDNN

// Cells are of nearly equal size: about 256 x 768, at which oneDNN is as fast as in whole products, or
// smaller if that gives too few cells to occupy the threads. Where rows allow it, the number of cells is a
// multiple of 4, so that two or four threads have as many each. Maximum numbers of terms per tile:
// - TILE_TERMS: if the sums of a tile are in scratch
// - ACCUMULATED_TERMS: if they are in `out`, to which each tile adds. This is less, to keep copies small.
#define TILE_TERMS        4096
#define ACCUMULATED_TERMS 1024
#define CELL_ROW_GRAIN    8
#define CELL_COLUMN_GRAIN 64
#define LEAST_EVEN_ROWS   128 // cells are not made smaller than this for the sake of their number

// Returns the sizes of a cell of an output (m, n), neither of which is 0.
static struct tile_sizes cell_sizes(int64_t m, int64_t n) {
    // The first row that gives enough cells applies, or the last row.
    static const struct {
        int rows, columns, enough;
    } most[] = {{256, 768, 8}, {128, 768, 4}, {128, 384, 4}, {64, 384, 4}, {64, 192, 4}, {64, 64, 0}};
    for (int i = 0;; i++) {
        struct tile_sizes cell = {.n = matmul_tile_size(n, most[i].columns, CELL_COLUMN_GRAIN)};
        const int64_t columns = tiles_in(n, cell.n), rows = tiles_in(m, most[i].rows),
                      grain = columns % 4 == 0   ? 1
                              : columns % 2 == 0 ? 2
                                                 : 4,
                      even_rows = tiles_in(rows, grain) * grain, is_even = m / even_rows >= LEAST_EVEN_ROWS;
        cell.m = matmul_tile_size(m, tiles_in(m, is_even ? even_rows : rows), CELL_ROW_GRAIN);
        if (tiles_in(m, cell.m) * columns >= most[i].enough)
            return cell;
    }
}

// Cells are numbered down the columns, so that a thread that computes consecutive ones copies b only once for
// all of a column.
static int64_t cells_of(const struct tiled_matmul *t, const struct tile_sizes *cell) {
    return tiles_in(t->m, cell->m) * tiles_in(t->n, cell->n);
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

// A thread's walk through the tiles of its cells.
struct walk {
    const struct tiled_matmul *matmul;
    struct cpu_device *cpu;
    struct product_cache *products;
    struct tile_sizes sizes;
    enum dtype product_type;    // of the operands that oneDNN multiplies: type of the matmul, or fp32
    struct matmul_operand a, b; // strides of the operands, or of their copies in scratch; data is not used
    bool copies_a, copies_b;    // operands are copied to scratch: upcast, or with a better row stride
    struct place copied_a, copied_b; // the tiles of which scratch has copies; -1: none
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
// stays the same, or is the columns if `by_rows`.
static struct matmul_operand copy_strides(const struct matmul_operand *operand, bool by_rows, int64_t rows,
                                          int64_t columns) {
    if (by_rows || operand->column == 1)
        return (struct matmul_operand){.row = product_row(columns), .column = 1};
    return (struct matmul_operand){.row = 1, .column = product_row(rows)};
}

// Where oneDNN reads fp32 operands in place (product_reads_in_place), they are copied if a copy is multiplied
// enough faster: if it is used at least so many times, or if the rows of b share cache sets.
#define COPY_USES        128
#define TRANSPOSE_B_USES 512

static bool gains_by_copy_of_a(const struct tiled_matmul *t, int64_t columns) {
    return t->a.column != 1 && columns >= COPY_USES;
}

// The copy of a tile of b serves a column of cells.
static bool gains_by_copy_of_b(const struct tiled_matmul *t) {
    const bool shares_sets = t->b.row * (int64_t)sizeof(float) % 2048 == 0;
    return shares_sets || t->m >= (t->b.column == 1 ? COPY_USES : TRANSPOSE_B_USES);
}

static int64_t terms_of(const struct walk *walk) {
    const struct tiled_matmul *t = walk->matmul;
    if (t->weight_gradient)
        return matmul_tile_size(t->k, ACCUMULATED_TERMS, 1);
    if (!walk->direct || t->type != DTYPE_F32)
        return matmul_tile_size(t->k, TILE_TERMS, CELL_COLUMN_GRAIN);
    return walk->copies_b ? matmul_tile_size(t->k, ACCUMULATED_TERMS, CELL_COLUMN_GRAIN) : t->k;
}

static void multiply_in(struct walk *walk, enum dtype type) {
    const struct tiled_matmul *t = walk->matmul;
    struct tile_sizes *sizes = &walk->sizes;
    const bool upcasts = type != t->type,
               in_place = type == DTYPE_F32 && product_reads_in_place(sizes->m, sizes->n);
    walk->product_type = type;
    walk->copies_a = upcasts || (in_place && gains_by_copy_of_a(t, sizes->n));
    walk->copies_b = upcasts || (in_place && gains_by_copy_of_b(t));
    walk->copied_a = walk->copied_b = (struct place){-1, -1, -1};
    sizes->k = terms_of(walk);
    walk->a = walk->copies_a ? copy_strides(&t->a, in_place, sizes->m, sizes->k) : t->a;
    walk->b = walk->copies_b ? copy_strides(&t->b, in_place, sizes->k, sizes->n) : t->b;
}

static struct walk walk_of(const struct tiled_matmul *matmul, struct cpu_device *cpu, int thread) {
    const bool is_16_bit = matmul->type != DTYPE_F32,
               has_factors = matmul->alpha != 1 || (matmul->residual && matmul->beta != 1);
    struct walk walk = {
        .matmul = matmul,
        .cpu = cpu,
        .products = cpu->products[thread],
        .sizes = cell_sizes(matmul->m, matmul->n),
        .direct = matmul->weight_gradient ||
                  (!has_factors && (!is_16_bit || (matmul->out_type == DTYPE_F32 && !matmul->bias &&
                                                   !matmul->residual && !matmul->activation))),
    };
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
        .has_bias = walk->direct && t->bias && at.k == 0,
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
        .to_stride = to->column == 1 ? to->row : to->column,
        .transposes = from->column != to->column,
        .type = walk->matmul->type,
    };
    walk->cpu->isa->linear_upcast(&args);
}

// Copies a tile's operands to scratch, if the walk copies them and an earlier tile did not leave the same
// copy there.
static void copy_operands(struct walk *walk, struct place at, struct tile *tile) {
    const struct tiled_matmul *t = walk->matmul;
    const struct product_shape shape = shape_at(walk, at);
    struct product_operands *operands = &tile->operands;
    if (walk->copies_a) {
        if (walk->copied_a.m != at.m || walk->copied_a.k != at.k)
            copy_operand(walk, &t->a, operands->a, shape.m, shape.k, &walk->a, tile->copies[0]);
        operands->a = tile->copies[0];
        walk->copied_a = at;
    }
    if (walk->copies_b) {
        if (walk->copied_b.n != at.n || walk->copied_b.k != at.k)
            copy_operand(walk, &t->b, operands->b, shape.k, shape.n, &walk->b, tile->copies[1]);
        operands->b = tile->copies[1];
        walk->copied_b = at;
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

// ---- all cells of a thread by oneDNN

// Computes a tile, or only counts its scratch if `runs` is false.
static enum status visit_tile(struct walk *walk, struct place at, bool runs) {
    struct tile tile = {0};
    TRY(tile_at(walk, at, &tile));
    if (!runs)
        return STATUS_OK;
    copy_operands(walk, at, &tile);
    TRY(product_run(walk->products, tile.product, &tile.operands, tile.workspace));
    if (at.k + walk->sizes.k >= walk->matmul->k && needs_epilogue(walk))
        apply_epilogue(walk, at, &tile);
    return STATUS_OK;
}

// Visits the tiles of the cells [begin, end) of one column. If `out` holds the sums and b is copied, each
// tile of b is copied once, for all cells. Otherwise one cell is finished before the next.
static enum status visit_column(struct walk *walk, int64_t column, int64_t begin, int64_t end, bool runs) {
    const int64_t n_tiles = tiles_in(walk->matmul->k, walk->sizes.k), n_cells = end - begin;
    const bool by_terms = walk->direct && walk->copies_b;
    for (int64_t i = 0; i < n_cells * n_tiles; i++) {
        const int64_t cell = by_terms ? i % n_cells : i / n_tiles,
                      tile = by_terms ? i / n_cells : i % n_tiles;
        TRY(visit_tile(walk,
                       (struct place){.m = (begin + cell) * walk->sizes.m,
                                      .n = column * walk->sizes.n,
                                      .k = tile * walk->sizes.k},
                       runs));
    }
    return STATUS_OK;
}

// Computes the cells of one thread.
//   bytes   NULL: the cells are computed. Otherwise a dry run: nothing is computed, and *bytes is raised
//     to the scratch that the thread needs
static enum status visit_cells(struct cpu_device *cpu, const struct tiled_matmul *matmul,
                               struct parallel_span cells, int thread, char *scratch, size_t *bytes) {
    struct walk walk = walk_of(matmul, cpu, thread);
    const int64_t per_column = tiles_in(matmul->m, walk.sizes.m);
    walk.scratch = scratch;
    for (int64_t cell = (int64_t)cells.begin, n; cell < (int64_t)cells.end; cell += n) {
        const int64_t first = cell % per_column;
        n = matmul_least(per_column - first, (int64_t)cells.end - cell);
        TRY(visit_column(&walk, cell / per_column, first, first + n, !bytes));
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

// ---- division among threads on AMX

static int threads_of(const struct device *device, const struct tiled_matmul *matmul) {
    return cpu_threads(device, (size_t)(matmul->m * matmul->n));
}

// The output is divided into a grid of rectangles, one per thread.
struct grid {
    int rows, columns;
};

// Relative costs of reading, to choose the grid. A thread reads its rows of a and its columns of b. Weights
// too large for the caches come from memory, while activations were used recently: reading uncached weights
// costs 8 times as much as reading activations. In a weight gradient, the cost applies to the rows, which are
// those of the weight. Among grids of equal cost, the one with the fewest columns is chosen, since the thread
// that reads a row has often produced it.
// PACKED_COST applies to cached operands, since b is packed before the products and a during them.
#define WEIGHTS_COST        8
#define CACHED_WEIGHTS      ((int64_t)1 << 18) // elements; larger weights do not stay in the caches
#define PACKED_COST         2
#define THREAD_COLUMN_GRAIN 16

static int cost_of_weights(const struct tiled_matmul *t) {
    const int64_t n_weights = t->n * (t->weight_gradient ? t->m : t->k);
    return n_weights <= CACHED_WEIGHTS ? 1 : t->is_cached ? PACKED_COST : WEIGHTS_COST;
}

static struct grid grid_of(const struct tiled_matmul *t, int n_threads) {
    const int of_weights = cost_of_weights(t);
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

// oneDNN runs on the calling thread. That is 10 to 25% faster than its own threading, which shares packed
// operands (measured with two threads, 256 and 1024 rows of 768 and 3072 elements).

// How a product is divided: on AMX into a grid, otherwise into cells.
struct division {
    bool on_amx;
    int n_threads;
    struct grid grid;
    size_t n_cells;
};

static struct division divide(const struct device *device, const struct tiled_matmul *matmul) {
    struct division division = {.on_amx = matmul_is_on_amx((const struct cpu_device *)device, matmul),
                                .n_threads = threads_of(device, matmul)};
    if (division.on_amx) {
        division.grid = grid_of(matmul, division.n_threads);
    } else if (matmul->m > 0 && matmul->n > 0) {
        const struct tile_sizes cell = cell_sizes(matmul->m, matmul->n);
        division.n_cells = (size_t)cells_of(matmul, &cell);
        if (division.n_cells < (size_t)division.n_threads)
            division.n_threads = (int)division.n_cells;
    }
    return division;
}

// Computes what one thread computes, or raises *bytes to the scratch for it.
//   bytes   NULL: computes
static enum status run_part(struct cpu_device *cpu, const struct tiled_matmul *matmul,
                            const struct division *division, int thread, char *scratch, size_t *bytes) {
    if (!division->on_amx) {
        const struct parallel_span cells =
            parallel_span_of(division->n_cells, 1, thread, division->n_threads);
        return cells.begin < cells.end ? visit_cells(cpu, matmul, cells, thread, scratch, bytes) : STATUS_OK;
    }
    const struct tiled_matmul mine = thread_product(matmul, division->grid, thread);
    if (bytes)
        matmul_amx_size(cpu, &mine, bytes);
    else
        matmul_amx_run(cpu, &mine, scratch);
    return STATUS_OK;
}

// Raises *bytes to the workspace that tiled_matmul_run needs for this product.
static enum status tiled_matmul_workspace(struct device *device, const struct tiled_matmul *matmul,
                                          size_t *bytes) {
    const struct division division = divide(device, matmul);
    size_t of_thread = 0;
    for (int thread = 0; thread < division.n_threads; thread++)
        TRY(run_part((struct cpu_device *)device, matmul, &division, thread, NULL, &of_thread));
    of_thread *= (size_t)division.n_threads;
    *bytes = of_thread > *bytes ? of_thread : *bytes;
    return STATUS_OK;
}

struct run_call {
    struct stream *stream;
    const struct tiled_matmul *matmul;
    struct division division;
    size_t workspace_of_part;
    atomic_int *worst; // the worst enum status of all threads
};

static void run_on_thread(const void *context, int thread, int n_threads) {
    (void)n_threads;
    const struct run_call *call = context;
    char *scratch = call->stream->workspace;
    if (scratch)
        scratch += (size_t)thread * call->workspace_of_part;
    int status = (int)run_part((struct cpu_device *)call->stream->device, call->matmul, &call->division,
                               thread, scratch, NULL);
    int worst = atomic_load(call->worst);
    while (status > worst && !atomic_compare_exchange_weak(call->worst, &worst, status))
        ;
}

static enum status tiled_matmul_run(struct stream *stream, const struct tiled_matmul *matmul) {
    const struct division division = divide(stream->device, matmul);
    atomic_int worst = STATUS_OK;
    const struct run_call call = {
        .stream = stream,
        .matmul = matmul,
        .division = division,
        // This may be more than the product needs, since the workspace is sized for other operations too.
        .workspace_of_part =
            stream->workspace_bytes / (size_t)division.n_threads / MATMUL_ALIGNMENT * MATMUL_ALIGNMENT,
        .worst = &worst,
    };
    parallel_run(division.n_threads, run_on_thread, &call);
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
