// The threads' parts of a product, and of each its blocks, one after the other; planning walks through the
// same blocks as running.
#include "kernels/cpu/matmul.h"

#include <math.h>
#include <omp.h>

#include "kernels/cpu/product.h"

#define WORKSPACE_ALIGNMENT 256

// A block has at most so many rows, columns and terms, so that b's block is upcast once for much work, and
// what is made of a block is finished while it is in the cache.
#define BLOCK_ROWS         512
#define BLOCK_COLUMNS      3072
#define BLOCK_TERMS        4096
#define BLOCK_B_ELEMENTS   ((int64_t)8 << 20)
#define BLOCK_COLUMN_GRAIN 64
// Gradients of weights have as many rows as the weights, and their terms are the batch's rows.
#define ACCUMULATED_ROWS  3072
#define ACCUMULATED_TERMS 1024

// ---- parts

// Each thread makes a part of its own, a place in a grid of rows and columns: oneDNN's own threads, which
// share what each lays out, are a tenth to a quarter slower (measured on two, 256 and 1024 rows of 768 and
// 3072 elements).
struct grid {
    int rows, columns;
};

// A thread reads its rows of a and its columns of b. Weights that no cache keeps come from memory, where
// those of a batch have been used lately: a part of such weights is this much dearer than one of a batch.
// Otherwise rows are best, as the thread that has them has often made them. (A weight's gradient has weights
// for rows.)
#define WEIGHTS_COST      8
#define CACHED_WEIGHTS    ((int64_t)1 << 18)
#define PART_COLUMN_GRAIN 16

static struct grid grid_of(const struct matmul *t, int n_threads) {
    struct grid best = {1, n_threads};
    double least_cost = HUGE_VAL;
    int64_t n_weights = t->n * (t->weight_gradient ? t->m : t->k);
    int of_weights = n_weights > CACHED_WEIGHTS ? WEIGHTS_COST : 1;
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

static const void *element_of(const void *tensor, enum dtype type, int64_t index) {
    return tensor ? (const char *)tensor + index * (int64_t)dtype_size(type) : NULL;
}

// The product of one place in the grid; m or n is 0 where there are more threads than pieces.
static struct matmul part_of_grid(const struct matmul *t, struct grid grid, int thread) {
    struct cpu_range rows = cpu_thread_range((size_t)t->m, 1, thread / grid.columns, grid.rows);
    struct cpu_range columns =
        cpu_thread_range((size_t)t->n, PART_COLUMN_GRAIN, thread % grid.columns, grid.columns);
    int64_t m = (int64_t)rows.begin, n = (int64_t)columns.begin, first = m * t->out_stride + n;
    struct matmul part = *t;
    part.m = (int64_t)rows.end - m;
    part.n = (int64_t)columns.end - n;
    part.a.data = element_of(t->a.data, t->type, m * t->a.row);
    part.b.data = element_of(t->b.data, t->type, n * t->b.column);
    part.out = (void *)(uintptr_t)element_of(t->out, t->out_type, first);
    part.pre_gelu = (void *)(uintptr_t)element_of(t->pre_gelu, t->type, first);
    part.residual = element_of(t->residual, t->type, first);
    part.gelu_input = element_of(t->gelu_input, t->type, first);
    part.bias = element_of(t->bias, t->type, n);
    return part;
}

// ---- blocks

struct blocks {
    int64_t m, n, k; // sizes of all but the last of each
};

// The size of the fewest equal parts of n, in whole pieces of grain, that are at most `most` long. 0 of 0.
static int64_t part_of(int64_t n, int64_t most, int64_t grain) {
    int64_t n_parts = n > most ? (n + most - 1) / most : 1, part = (n + n_parts - 1) / n_parts;
    return (part + grain - 1) / grain * grain;
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static struct blocks blocks_of(const struct matmul *t) {
    struct blocks blocks;
    if (t->weight_gradient) {
        blocks.m = part_of(t->m, ACCUMULATED_ROWS, BLOCK_COLUMN_GRAIN);
        blocks.k = part_of(t->k, ACCUMULATED_TERMS, 1);
    } else {
        // fp32 needs no scratch, and oneDNN, which finishes it, must have all terms at once.
        bool wide = t->type == DTYPE_F32;
        blocks.m = wide ? t->m : part_of(t->m, BLOCK_ROWS, 1);
        blocks.k = wide ? t->k : part_of(t->k, BLOCK_TERMS, BLOCK_COLUMN_GRAIN);
    }
    int64_t columns = BLOCK_B_ELEMENTS / least(blocks.k, BLOCK_B_ELEMENTS / BLOCK_COLUMN_GRAIN);
    columns = columns / BLOCK_COLUMN_GRAIN * BLOCK_COLUMN_GRAIN;
    blocks.n = part_of(t->n, least(columns, BLOCK_COLUMNS), BLOCK_COLUMN_GRAIN);
    return blocks;
}

// ---- one block

// Scratch pieces one after the other. With base NULL it only counts.
struct scratch {
    char *base;
    size_t used;
};

static void *scratch_take(struct scratch *scratch, size_t bytes) {
    void *piece = scratch->base ? scratch->base + scratch->used : NULL;
    scratch->used += (bytes + WORKSPACE_ALIGNMENT - 1) / WORKSPACE_ALIGNMENT * WORKSPACE_ALIGNMENT;
    return piece;
}

// Where a block's operands and results are.
struct block {
    struct product *product;
    struct product_operands operands;
    float *upcast[2]; // of a and b
    void *workspace;
};

// A thread's walk through the blocks of its part.
struct walk {
    const struct matmul *matmul;
    struct cpu_device *cpu;
    struct product_cache *products;
    struct blocks blocks;
    enum dtype multiplied;
    struct matmul_operand a, b; // strides of what is multiplied
    bool direct;                // oneDNN writes to out or pre_gelu, and finishes but for GELU
    bool plans;                 // nothing runs
    char *scratch;              // NULL: pieces are only counted
    size_t scratch_bytes;       // the most that a block has taken
};

// Narrow products are upcast where that is faster, which changes no product and no sum's precision.
static bool multiplies_narrow(const struct cpu_device *cpu, enum dtype type) {
    return type == DTYPE_F16 || cpu->fast_bf16_products || product_has_matrix_units();
}

// Narrow operands that are multiplied in fp32 are upcast.
static bool upcasts(const struct walk *walk) {
    return walk->multiplied != walk->matmul->type;
}

// The strides of an operand's block of so many rows and columns once it is upcast: what lies side by side
// stays so.
static struct matmul_operand upcast_strides(const struct matmul_operand *operand, int64_t rows,
                                            int64_t columns) {
    if (operand->column == 1)
        return (struct matmul_operand){.row = product_row(columns), .column = 1};
    return (struct matmul_operand){.row = 1, .column = product_row(rows)};
}

static void multiply_in(struct walk *walk, enum dtype type) {
    const struct matmul *t = walk->matmul;
    const struct blocks *blocks = &walk->blocks;
    walk->multiplied = type;
    walk->a = upcasts(walk) ? upcast_strides(&t->a, blocks->m, blocks->k) : t->a;
    walk->b = upcasts(walk) ? upcast_strides(&t->b, blocks->k, blocks->n) : t->b;
}

static struct walk walk_of(const struct matmul *matmul, struct cpu_device *cpu, int thread) {
    bool narrow = matmul->type != DTYPE_F32;
    struct walk walk = {
        .matmul = matmul,
        .cpu = cpu,
        .products = cpu->products[thread],
        .blocks = blocks_of(matmul),
        .direct = matmul->weight_gradient || !narrow ||
                  (matmul->out_type == DTYPE_F32 && !matmul->bias && !matmul->residual && !matmul->gelu),
    };
    multiply_in(&walk, narrow && multiplies_narrow(cpu, matmul->type) ? matmul->type : DTYPE_F32);
    return walk;
}

struct place {
    int64_t m, n, k; // where a block begins
};

static const void *element_at(const struct walk *walk, const void *tensor, int64_t index) {
    return element_of(tensor, walk->matmul->type, index);
}

static enum product_finish finish_of(const struct walk *walk, struct place at) {
    const struct matmul *t = walk->matmul;
    if (t->accumulate || at.k > 0)
        return PRODUCT_ACCUMULATE;
    if (walk->direct && t->residual)
        return PRODUCT_RESIDUAL;
    return PRODUCT_PLAIN;
}

static struct product_shape shape_at(const struct walk *walk, struct place at) {
    const struct matmul *t = walk->matmul;
    int64_t m = least(walk->blocks.m, t->m - at.m), n = least(walk->blocks.n, t->n - at.n);
    int64_t k = least(walk->blocks.k, t->k - at.k);
    return (struct product_shape){
        .m = m,
        .n = n,
        .k = k,
        .a_row = walk->a.row,
        .a_column = walk->a.column,
        .b_row = walk->b.row,
        .b_column = walk->b.column,
        .c_row = walk->direct ? t->out_stride : product_row(n),
        .type = walk->multiplied,
        .has_bias = walk->direct && t->bias,
        .finish = finish_of(walk, at),
    };
}

// The product at a place. A type that oneDNN cannot multiply here is upcast from then on.
static enum status find_product(struct walk *walk, struct place at, struct product **out) {
    struct product_shape shape = shape_at(walk, at);
    TRY(product_find(walk->products, &shape, out));
    if (!product_is_supported(*out) && walk->multiplied != DTYPE_F32) {
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

static enum status block_at(struct walk *walk, struct place at, struct block *out) {
    const struct matmul *t = walk->matmul;
    const struct blocks *blocks = &walk->blocks;
    struct scratch scratch = {walk->scratch, 0};
    int64_t first = at.m * t->out_stride + at.n;
    TRY(find_product(walk, at, &out->product));
    if (walk->direct) {
        out->operands.c = (float *)(t->pre_gelu ? t->pre_gelu : t->out) + first;
        out->operands.bias = (const float *)element_at(walk, t->bias, at.n);
        out->operands.residual = (const float *)element_at(walk, t->residual, first);
    } else {
        out->operands.c = take_fp32(&scratch, blocks->m * product_row(blocks->n));
    }
    out->operands.a = element_at(walk, t->a.data, at.m * t->a.row + at.k * t->a.column);
    out->operands.b = element_at(walk, t->b.data, at.k * t->b.row + at.n * t->b.column);
    if (upcasts(walk)) {
        const struct matmul_operand *a = &walk->a, *b = &walk->b;
        out->upcast[0] = take_fp32(&scratch, a->column == 1 ? blocks->m * a->row : blocks->k * a->column);
        out->upcast[1] = take_fp32(&scratch, b->column == 1 ? blocks->k * b->row : blocks->n * b->column);
    }
    out->workspace = scratch_take(&scratch, product_workspace_bytes(out->product));
    if (scratch.used > walk->scratch_bytes)
        walk->scratch_bytes = scratch.used;
    return STATUS_OK;
}

// A block of so many rows and columns whose strides are `from`, into one whose strides are `to`.
static void upcast_operand(const struct walk *walk, const struct matmul_operand *from, const void *block,
                           int64_t rows, int64_t columns, const struct matmul_operand *to, float *to_fp32) {
    bool by_rows = from->column == 1;
    struct linear_upcast_args args = {
        .from = block,
        .to = to_fp32,
        .rows = by_rows ? rows : columns,
        .columns = by_rows ? columns : rows,
        .from_stride = by_rows ? from->row : from->column,
        .to_stride = by_rows ? to->row : to->column,
        .type = walk->matmul->type,
    };
    walk->cpu->isa->linear_upcast(&args);
}

// Upcasts what is multiplied in fp32; `kept`: that was done for the block before.
static void upcast_operands(const struct walk *walk, struct place at, struct block *block, bool a_kept,
                            bool b_kept) {
    const struct matmul *t = walk->matmul;
    struct product_shape shape = shape_at(walk, at);
    struct product_operands *operands = &block->operands;
    if (!a_kept)
        upcast_operand(walk, &t->a, operands->a, shape.m, shape.k, &walk->a, block->upcast[0]);
    if (!b_kept)
        upcast_operand(walk, &t->b, operands->b, shape.k, shape.n, &walk->b, block->upcast[1]);
    operands->a = block->upcast[0];
    operands->b = block->upcast[1];
}

static void finish_block(const struct walk *walk, struct place at, const struct block *block) {
    const struct matmul *t = walk->matmul;
    int64_t first = at.m * t->out_stride + at.n, n = least(walk->blocks.n, t->n - at.n);
    size_t out_size = dtype_size(t->out_type);
    struct linear_epilogue_args epilogue = {
        .c = block->operands.c,
        .out = (char *)t->out + (size_t)first * out_size,
        .gelu_input = element_at(walk, t->gelu_input, first),
        .rows = least(walk->blocks.m, t->m - at.m),
        .columns = n,
        .c_stride = walk->direct ? t->out_stride : product_row(n),
        .out_stride = t->out_stride,
        .gelu = t->gelu,
        .type = t->type,
        .out_type = t->out_type,
    };
    if (!walk->direct) {
        finish.bias = element_at(walk, t->bias, at.n);
        finish.residual = element_at(walk, t->residual, first);
        finish.pre_gelu = (void *)(uintptr_t)element_at(walk, t->pre_gelu, first);
    }
    walk->cpu->isa->linear_epilogue(&epilogue);
}

// Whether oneDNN leaves something to do.
static bool needs_finish(const struct walk *walk) {
    const struct matmul *t = walk->matmul;
    return !walk->direct || t->gelu || t->gelu_input;
}

// ---- all blocks

static enum status visit(struct walk *walk, struct place at) {
    const struct matmul *t = walk->matmul;
    struct block block = {0};
    TRY(block_at(walk, at, &block));
    if (walk->plans)
        return STATUS_OK;
    // Blocks that differ in columns alone share a, and those that differ in rows alone share b.
    bool one_k = walk->blocks.k >= t->k, one_m = walk->blocks.m >= t->m;
    if (upcasts(walk))
        upcast_operands(walk, at, &block, one_k && one_m && at.n > 0, one_k && at.m > 0);
    TRY(product_run(walk->products, block.product, &block.operands, block.workspace));
    if (at.k + walk->blocks.k >= t->k && needs_finish(walk))
        finish_block(walk, at, &block);
    return STATUS_OK;
}

static enum status visit_all(struct walk *walk) {
    const struct matmul *t = walk->matmul;
    struct place at;
    for (at.n = 0; at.n < t->n; at.n += walk->blocks.n)
        for (at.m = 0; at.m < t->m; at.m += walk->blocks.m)
            for (at.k = 0; at.k < t->k; at.k += walk->blocks.k)
                TRY(visit(walk, at));
    return STATUS_OK;
}

// ---- all threads

static int threads_of(const struct device *device, const struct matmul *matmul) {
    return cpu_threads(device, (size_t)(matmul->m * matmul->n));
}

// Bytes of one thread's scratch: as much for each.
static enum status plan(struct device *device, const struct matmul *matmul, size_t *bytes) {
    int n_threads = threads_of(device, matmul);
    struct grid grid = grid_of(matmul, n_threads);
    *bytes = 0;
    for (int thread = 0; thread < n_threads; thread++) {
        struct matmul part = part_of_grid(matmul, grid, thread);
        struct walk walk = walk_of(&part, (struct cpu_device *)device, thread);
        walk.plans = true;
        TRY(visit_all(&walk));
        *bytes = walk.scratch_bytes > *bytes ? walk.scratch_bytes : *bytes;
    }
    return STATUS_OK;
}

enum status matmul_workspace(struct device *device, const struct matmul *matmul, size_t *bytes) {
    size_t of_thread, all;
    TRY(plan(device, matmul, &of_thread));
    all = of_thread * (size_t)threads_of(device, matmul);
    *bytes = all > *bytes ? all : *bytes;
    return STATUS_OK;
}

enum status matmul_run(struct stream *stream, const struct matmul *matmul) {
    struct device *device = stream->device;
    int n_threads = threads_of(device, matmul), worst = STATUS_OK;
    struct grid grid = grid_of(matmul, n_threads);
    // At least as planned: the workspace serves other operations too.
    size_t of_thread =
        stream->workspace_bytes / (size_t)n_threads / WORKSPACE_ALIGNMENT * WORKSPACE_ALIGNMENT;
#pragma omp parallel num_threads(n_threads) reduction(max : worst)
    // Where the system gives fewer threads (OMP_THREAD_LIMIT), they take several parts.
    for (int thread = omp_get_thread_num(); thread < n_threads; thread += omp_get_num_threads()) {
        struct matmul part = part_of_grid(matmul, grid, thread);
        struct walk walk = walk_of(&part, (struct cpu_device *)device, thread);
        walk.scratch = stream->workspace ? (char *)stream->workspace + (size_t)thread * of_thread : NULL;
        int status = (int)visit_all(&walk);
        worst = status > worst ? status : worst;
    }
    return (enum status)worst;
}
