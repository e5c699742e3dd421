// Walks through the tiles of a thread's product on matrix units.
#include "kernels/cpu/matmul_units.h"

#include "kernels/cpu/matmul_tiles.h"

// A product of at most ALL_TERMS terms is summed at once, for B_ELEMENTS of b that stay in the second-level
// cache. Others in tiles of TERMS, whose sums stay there, or nearly: more of them, so that b is read less
// often, are worth more than a little room. So are products whose terms are in different rows of a, each in a
// page of its own. Measured with products of 592 to 4096 rows.
#define ALL_TERMS  1024
#define B_ELEMENTS ((int64_t)512 << 10)
#define TERMS      256
#define COLUMNS    768
#define SUMS       ((int64_t)512 << 10)
// Packed tiles of b are kept for the next rows, up to this many elements.
#define KEPT_ELEMENTS ((int64_t)4 << 20)

struct tiles {
    int64_t m, n, k; // of all tiles but the last in each dimension
};

// The rows that `most` elements fill, in whole grains.
static int64_t rows_of(int64_t most, int64_t columns) {
    const int64_t rows = most / (columns > 0 ? columns : 1) / UNIT_PRODUCT_GRAIN * UNIT_PRODUCT_GRAIN;
    return rows > UNIT_PRODUCT_GRAIN ? rows : UNIT_PRODUCT_GRAIN;
}

static struct tiles tiles_of(const struct tiled_matmul *t) {
    if (t->k <= (t->a.column == 1 ? ALL_TERMS : TERMS))
        return (struct tiles){
            .m = t->m,
            .n = matmul_tile_size(t->n, rows_of(B_ELEMENTS, t->k), UNIT_PRODUCT_GRAIN),
            .k = t->k,
        };
    struct tiles tiles = {
        .n = matmul_tile_size(t->n, COLUMNS, UNIT_PRODUCT_GRAIN),
        .k = matmul_tile_size(t->k, TERMS, UNIT_PRODUCT_GRAIN),
    };
    tiles.m = matmul_tile_size(t->m, rows_of(SUMS, tiles.n), UNIT_PRODUCT_GRAIN);
    return tiles;
}

// A thread's walk through its tiles, and its scratch.
struct walk {
    const struct tiled_matmul *matmul;
    const struct cpu_device *cpu;
    struct tiles tiles;
    bool sums_at_once;   // all terms
    int64_t kept;        // packed tiles of b
    size_t packed_bytes; // of one of them
    float *left, *sums;
    char *right;
};

// Divides scratch, or with NULL only counts. Returns the bytes in *used.
static struct walk walk_of(const struct cpu_device *cpu, const struct tiled_matmul *matmul, char *scratch,
                           size_t *used) {
    struct walk walk = {.matmul = matmul, .cpu = cpu, .tiles = tiles_of(matmul)};
    const struct tiles *tiles = &walk.tiles;
    const int64_t k_tiles = tiles->k > 0 ? (matmul->k + tiles->k - 1) / tiles->k : 0,
                  rows = matmul_tile_size(tiles->m, tiles->m, UNIT_PRODUCT_GRAIN);
    walk.sums_at_once = k_tiles <= 1;
    walk.kept = tiles->n * matmul->k <= KEPT_ELEMENTS ? k_tiles : 1;
    walk.packed_bytes = matmul_aligned(cpu->isa->unit_product_right_bytes(tiles->k, tiles->n));
    const size_t left = matmul_aligned(cpu->isa->unit_product_left_bytes(tiles->k)),
                 right = walk.packed_bytes * (size_t)walk.kept,
                 sums = (size_t)((walk.sums_at_once ? 2 * UNIT_PRODUCT_GRAIN : rows) * tiles->n);
    *used = left + right + sums * sizeof(float);
    if (scratch) {
        walk.left = (float *)(void *)scratch;
        walk.right = scratch + left;
        walk.sums = (float *)(void *)(walk.right + right);
    }
    return walk;
}

struct place {
    int64_t m, n, k; // of a tile's first element
};

// A tile whose rows are to be rotated.
struct rotation {
    const struct walk *walk;
    const struct place *at;
    int64_t columns;
};

static void rotate_rows(const void *context, int64_t row, int64_t rows) {
    const struct rotation *rotation = context;
    matmul_rotate(rotation->walk->cpu, rotation->walk->matmul, rotation->at->m + row, rows, rotation->at->n,
                  rotation->columns);
}

static void visit(const struct walk *walk, const struct place *at) {
    const struct tiled_matmul *t = walk->matmul;
    const struct tiles *tiles = &walk->tiles;
    const struct cpu_isa *isa = walk->cpu->isa;
    const struct linear_epilogue_args epilogue = matmul_epilogue(t, at->m, at->n);
    const int64_t n = matmul_least(tiles->n, t->n - at->n), k = matmul_least(tiles->k, t->k - at->k);
    const bool finishes = at->k + k >= t->k, keeps_all = walk->kept * tiles->k >= t->k;
    const struct rotation rotation = {walk, at, n};
    const struct unit_product_args args = {
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
        .finish_rows = finishes && t->rope ? rotate_rows : NULL,
        .context = &rotation,
        .left = walk->left,
        .right = (float *)(void *)(walk->right +
                                   (keeps_all ? (size_t)(at->k / tiles->k) * walk->packed_bytes : 0)),
    };
    if (at->m == 0 || !keeps_all)
        isa->unit_product_pack(&args);
    isa->unit_product_run(&args);
}

bool matmul_is_on_units(const struct cpu_device *cpu, const struct tiled_matmul *part) {
    return part->type == DTYPE_BF16 && cpu->isa->unit_product_run;
}

void matmul_units_size(const struct cpu_device *cpu, const struct tiled_matmul *part, size_t *bytes) {
    size_t used;
    walk_of(cpu, part, NULL, &used);
    *bytes = used > *bytes ? used : *bytes;
}

void matmul_units_run(const struct cpu_device *cpu, const struct tiled_matmul *part, char *scratch) {
    size_t used;
    const struct walk walk = walk_of(cpu, part, scratch, &used);
    struct place at;
    for (at.n = 0; at.n < part->n; at.n += walk.tiles.n)
        for (at.m = 0; at.m < part->m; at.m += walk.tiles.m)
            for (at.k = 0; at.k < part->k; at.k += walk.tiles.k)
                visit(&walk, &at);
}
