// Divides a product among threads and into tiles. The workspace is sized by a dry run over the same tiles.
#include "kernels/cpu/matmul.h"

#include <math.h>
#include <stdatomic.h>

#include "kernels/cpu/product.h"
#include "kernels/symmetric.h"

#define WORKSPACE_ALIGNMENT 256

// The largest tile, in rows, columns and terms of the sum. A tile of b is upcast once for many rows of a, and
// the epilogue finds the tile's product in the cache.
#define TILE_ROWS         512
#define TILE_COLUMNS      3072
#define TILE_TERMS        4096
#define TILE_B_ELEMENTS   ((int64_t)8 << 20)
#define TILE_COLUMN_GRAIN 64
// Of many columns, on matrix units: what fits into a second-level cache (sums_densely).
#define DENSE_TILE_ROWS    640
#define DENSE_TILE_COLUMNS 384
#define DENSE_TERMS        2048
// Weight gradients have as many rows as the weight, and sum over the rows of the batch.
#define ACCUMULATED_ROWS  3072
#define ACCUMULATED_TERMS 1024

// ---- division among threads

// Each thread computes one cell of a grid of rows and columns. That is 10 to 25% faster than oneDNN's own
// threads, which share packed operands (measured with two threads, 256 and 1024 rows of 768 and 3072
// elements).
struct grid {
    int rows, columns;
};

// A thread reads its rows of a and its columns of b. Weights too large for the caches come from memory, while
// activations were used recently: reading uncached weights costs 8 times as much as reading activations.
// Otherwise dividing by rows is best, since the thread that reads a row has often produced it. (In a weight
// gradient the rows are the weight's.)
#define WEIGHTS_COST        8
#define CACHED_WEIGHTS      ((int64_t)1 << 18)
#define THREAD_COLUMN_GRAIN 16

static struct grid grid_of(const struct tiled_matmul *t, int n_threads) {
    struct grid best = {1, n_threads};
    double least_cost = HUGE_VAL;
    int64_t n_weights = t->n * (t->weight_gradient ? t->m : t->k);
    int of_weights = n_weights > CACHED_WEIGHTS && !t->is_cached ? WEIGHTS_COST : 1;
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

// The product of some rows and columns of `out`, from (row, column) on.
static struct tiled_matmul part_of(const struct tiled_matmul *t, int64_t row, int64_t rows, int64_t column,
                                   int64_t columns) {
    const int64_t first = row * t->out_stride + column;
    struct tiled_matmul part = *t;
    part.m = rows;
    part.n = columns;
    part.a.data = element_of(t->a.data, t->type, row * t->a.row);
    part.b.data = element_of(t->b.data, t->type, column * t->b.column);
    part.out = (void *)(uintptr_t)element_of(t->out, t->out_type, first);
    part.pre_activation = (void *)(uintptr_t)element_of(t->pre_activation, t->type, first);
    part.residual = element_of(t->residual, t->type, first);
    part.activation_input = element_of(t->activation_input, t->type, first);
    part.bias = element_of(t->bias, t->type, column);
    return part;
}

// The product of one thread's cell; m or n is 0 when there are more threads than grains.
static struct tiled_matmul thread_product(const struct tiled_matmul *t, struct grid grid, int thread) {
    const struct parallel_span rows = parallel_span_of((size_t)t->m, 1, thread / grid.columns, grid.rows);
    const struct parallel_span columns =
        parallel_span_of((size_t)t->n, THREAD_COLUMN_GRAIN, thread % grid.columns, grid.columns);
    return part_of(t, (int64_t)rows.begin, (int64_t)(rows.end - rows.begin), (int64_t)columns.begin,
                   (int64_t)(columns.end - columns.begin));
}

// ---- tiles

struct tile_sizes {
    int64_t m, n, k; // of all tiles but the last in each dimension
};

// The size that divides n into the fewest equal tiles of at most `most`, rounded up to a multiple of grain. 0
// for n = 0.
static int64_t tile_size(int64_t n, int64_t most, int64_t grain) {
    int64_t n_tiles = n > most ? (n + most - 1) / most : 1, mine = (n + n_tiles - 1) / n_tiles;
    return (mine + grain - 1) / grain * grain;
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

// Matrix units: results of many columns, as logits and wide layers have, are summed densely, in a scratch
// where their epilogue finds them. oneDNN takes 1.2 times as long for tiles of more columns, and 1.5 times
// for fp32 sums in their own rows, far apart (product_is_fast_dense; 592 x 50257 x 768). With more terms it
// gains nothing.
static bool sums_densely(const struct tiled_matmul *t) {
    return product_has_matrix_units() && !t->weight_gradient && t->type == DTYPE_BF16 && t->b.row == 1 &&
           t->n > TILE_COLUMNS && t->k <= DENSE_TERMS;
}

static struct tile_sizes tile_sizes_of(const struct tiled_matmul *t, bool direct) {
    struct tile_sizes sizes;
    if (sums_densely(t))
        return (struct tile_sizes){tile_size(t->m, DENSE_TILE_ROWS, PRODUCT_DENSE_ROWS), DENSE_TILE_COLUMNS,
                                   t->k};
    if (t->weight_gradient) {
        sizes.m = tile_size(t->m, ACCUMULATED_ROWS, TILE_COLUMN_GRAIN);
        sizes.k = tile_size(t->k, ACCUMULATED_TERMS, 1);
    } else {
        // fp32 needs no scratch where oneDNN applies the epilogue, which must see all terms at once.
        const bool whole = direct && t->type == DTYPE_F32;
        sizes.m = whole ? t->m : tile_size(t->m, TILE_ROWS, 1);
        sizes.k = whole ? t->k : tile_size(t->k, TILE_TERMS, TILE_COLUMN_GRAIN);
    }
    int64_t columns = TILE_B_ELEMENTS / least(sizes.k, TILE_B_ELEMENTS / TILE_COLUMN_GRAIN);
    columns = columns / TILE_COLUMN_GRAIN * TILE_COLUMN_GRAIN;
    sizes.n = tile_size(t->n, least(columns, TILE_COLUMNS), TILE_COLUMN_GRAIN);
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
    scratch->used += (bytes + WORKSPACE_ALIGNMENT - 1) / WORKSPACE_ALIGNMENT * WORKSPACE_ALIGNMENT;
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
    enum dtype product_type;    // of the operands that oneDNN multiplies: the matmul\'s, or fp32
    struct matmul_operand a, b; // their strides
    bool copies_a, copies_b;    // into scratch: upcast, or with rows at a better distance
    bool direct; // oneDNN writes to out or pre_activation and applies the epilogue except activations
    bool dense;  // if not direct: sums may be dense. Other products of layers gain little (benchmarks/cpu.md)
    bool dry_run;         // only sizes the scratch
    char *scratch;        // NULL in a dry run
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
        sizes->m = tile_size(t->m, TILE_ROWS, TILE_COLUMN_GRAIN);
    walk->a = walk->copies_a ? copy_strides(&t->a, sizes->m, sizes->k) : t->a;
    walk->b = walk->copies_b ? copy_strides(&t->b, sizes->k, sizes->n) : t->b;
}

static struct walk walk_of(const struct tiled_matmul *matmul, struct cpu_device *cpu, int thread) {
    const bool is_16_bit = matmul->type != DTYPE_F32,
               has_factors = matmul->alpha != 1 || (matmul->residual && matmul->beta != 1),
               dense = sums_densely(matmul);
    struct walk walk = {
        .matmul = matmul,
        .cpu = cpu,
        .products = cpu->products[thread],
        .direct =
            matmul->weight_gradient || (!has_factors && !dense &&
                                        (!is_16_bit || (matmul->out_type == DTYPE_F32 && !matmul->bias &&
                                                        !matmul->residual && !matmul->activation))),
        .dense = dense || matmul->is_cached,
    };
    walk.sizes = tile_sizes_of(matmul, walk.direct);
    multiply_in(&walk, is_16_bit && multiplies_16_bit(cpu, matmul->type) ? matmul->type : DTYPE_F32);
    return walk;
}

struct tile_place {
    int64_t m, n, k; // of the tile's first element
};

static const void *element_at(const struct walk *walk, const void *tensor, int64_t index) {
    return element_of(tensor, walk->matmul->type, index);
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
    int64_t m = least(walk->sizes.m, t->m - at.m), n = least(walk->sizes.n, t->n - at.n);
    int64_t k = least(walk->sizes.k, t->k - at.k);
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
        shape.c_row = walk->dense && product_is_fast_dense(&shape) ? n : product_row(n);
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

static void apply_epilogue(const struct walk *walk, struct tile_place at, const struct tile *tile) {
    const struct tiled_matmul *t = walk->matmul;
    int64_t first = at.m * t->out_stride + at.n, n = least(walk->sizes.n, t->n - at.n);
    size_t out_size = dtype_size(t->out_type);
    struct linear_epilogue_args epilogue = {
        .c = tile->operands.c,
        .out = (char *)t->out + (size_t)first * out_size,
        .activation_input = element_at(walk, t->activation_input, first),
        .rows = least(walk->sizes.m, t->m - at.m),
        .columns = n,
        .c_stride = shape_at(walk, at).c_row,
        .out_stride = t->out_stride,
        .alpha = t->alpha,
        .beta = t->beta,
        .activation = t->activation,
        .type = t->type,
        .out_type = t->out_type,
    };
    if (!walk->direct) {
        epilogue.bias = element_at(walk, t->bias, at.n);
        epilogue.residual = element_at(walk, t->residual, first);
        epilogue.pre_activation = (void *)(uintptr_t)element_at(walk, t->pre_activation, first);
    }
    walk->cpu->isa->linear_epilogue(&epilogue);
}

// True if part of the epilogue is left to linear_epilogue.
static bool needs_epilogue(const struct walk *walk) {
    const struct tiled_matmul *t = walk->matmul;
    return !walk->direct || t->activation != ACTIVATION_NONE;
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
    if (at.k + walk->sizes.k >= t->k && needs_epilogue(walk))
        apply_epilogue(walk, at, &tile);
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

// ---- all threads

static int threads_of(const struct device *device, const struct tiled_matmul *matmul) {
    return cpu_threads(device, (size_t)(matmul->m * matmul->n));
}

// Raises *bytes to the scratch that one thread needs for a part.
static enum status size_part(struct device *device, const struct tiled_matmul *part, int thread,
                             size_t *bytes) {
    struct walk walk = walk_of(part, (struct cpu_device *)device, thread);
    walk.dry_run = true;
    TRY(visit_all(&walk));
    *bytes = walk.scratch_bytes > *bytes ? walk.scratch_bytes : *bytes;
    return STATUS_OK;
}

// Raises *bytes to the workspace of all threads.
static void size_all(struct device *device, const struct tiled_matmul *matmul, size_t of_thread,
                     size_t *bytes) {
    const size_t all = of_thread * (size_t)threads_of(device, matmul);
    *bytes = all > *bytes ? all : *bytes;
}

enum status tiled_matmul_workspace(struct device *device, const struct tiled_matmul *matmul, size_t *bytes) {
    const int n_threads = threads_of(device, matmul);
    const struct grid grid = grid_of(matmul, n_threads);
    size_t of_thread = 0;
    for (int thread = 0; thread < n_threads; thread++) {
        const struct tiled_matmul mine = thread_product(matmul, grid, thread);
        TRY(size_part(device, &mine, thread, &of_thread));
    }
    size_all(device, matmul, of_thread, bytes);
    return STATUS_OK;
}

struct run_call {
    struct stream *stream;
    const struct tiled_matmul *matmul;
    struct grid grid;    // of tiled_matmul_run
    int64_t strip;       // of tiled_symmetric_run
    atomic_size_t *next; // its next task
    size_t workspace_of_part;
    atomic_int *worst; // enum status
};

static void run_part(const struct run_call *call, const struct tiled_matmul *part, int thread) {
    struct walk walk = walk_of(part, (struct cpu_device *)call->stream->device, thread);
    if (call->stream->workspace)
        walk.scratch = (char *)call->stream->workspace + (size_t)thread * call->workspace_of_part;
    int status = (int)visit_all(&walk), worst = atomic_load(call->worst);
    while (status > worst && !atomic_compare_exchange_weak(call->worst, &worst, status))
        ;
}

static enum status run_all(struct run_call *call, void (*run)(const void *context, int part, int n_parts)) {
    atomic_int worst = STATUS_OK;
    const int n_threads = threads_of(call->stream->device, call->matmul);
    call->worst = &worst;
    // At least what tiled_*_workspace asked for: the workspace serves other operations too.
    call->workspace_of_part =
        call->stream->workspace_bytes / (size_t)n_threads / WORKSPACE_ALIGNMENT * WORKSPACE_ALIGNMENT;
    parallel_run(n_threads, run, call);
    return (enum status)atomic_load(&worst);
}

static void run_cell(const void *context, int part, int n_parts) {
    (void)n_parts;
    const struct run_call *call = context;
    const struct tiled_matmul mine = thread_product(call->matmul, call->grid, part);
    run_part(call, &mine, part);
}

enum status tiled_matmul_run(struct stream *stream, const struct tiled_matmul *matmul) {
    struct run_call call = {.stream = stream, .matmul = matmul};
    call.grid = grid_of(matmul, threads_of(stream->device, matmul));
    return run_all(&call, run_cell);
}

// ---- symmetric products

// A strip is divided by rows if there are few strips for the threads.
#define STRIP_TASKS_PER_THREAD 4
#define STRIP_TASK_ROWS        64

// Rows [row, row + rows) of a strip.
struct strip_task {
    int64_t column, columns, row, rows;
};

static int64_t rows_of_tasks(const struct tiled_matmul *t, int64_t strip, int n_threads) {
    const int64_t columns = symmetric_columns(t->n, strip);
    const double rows =
        symmetric_elements(t->n, strip) / (double)(STRIP_TASKS_PER_THREAD * n_threads * columns);
    return rows < STRIP_TASK_ROWS ? STRIP_TASK_ROWS : (int64_t)rows;
}

// The task of a number, from the longest strip to the shortest. False past the last one.
static bool strip_task_at(const struct tiled_matmul *t, int64_t strip, int64_t task_rows, size_t number,
                          struct strip_task *out) {
    const int64_t columns = symmetric_columns(t->n, strip);
    for (int64_t first = 0; first < t->n; first += columns) {
        const int64_t length = t->n - first, rows = tile_size(length, task_rows, SYMMETRIC_GRAIN),
                      n = (length + rows - 1) / rows, i = (int64_t)number;
        if (i < n) {
            *out = (struct strip_task){.column = first,
                                       .columns = least(columns, length),
                                       .row = first + i * rows,
                                       .rows = least(rows, length - i * rows)};
            return true;
        }
        number -= (size_t)n;
    }
    return false;
}

// What a task has below the diagonal block of its strip, to the other side of the diagonal.
static void mirror(const struct cpu_isa *isa, const struct tiled_matmul *t, const struct strip_task *task) {
    const int64_t below = task->column + task->columns, row = task->row > below ? task->row : below;
    if (row >= task->row + task->rows)
        return;
    isa->mirror(&(struct mirror_args){
        .out = (void *)(uintptr_t)element_of(t->out, t->out_type, task->column * t->out_stride + row),
        .x = element_of(t->out, t->out_type, row * t->out_stride + task->column),
        .rows = (int)(task->row + task->rows - row),
        .columns = (int)task->columns,
        .stride = (size_t)t->out_stride,
        .type = t->out_type,
    });
}

enum status tiled_symmetric_workspace(struct device *device, const struct tiled_matmul *matmul, int64_t strip,
                                      size_t *bytes) {
    const int n_threads = threads_of(device, matmul);
    const int64_t task_rows = rows_of_tasks(matmul, strip, n_threads);
    size_t of_thread = 0;
    struct strip_task task;
    for (size_t i = 0; strip_task_at(matmul, strip, task_rows, i, &task); i++) {
        const struct tiled_matmul part = part_of(matmul, task.row, task.rows, task.column, task.columns);
        for (int thread = 0; thread < n_threads; thread++)
            TRY(size_part(device, &part, thread, &of_thread));
    }
    size_all(device, matmul, of_thread, bytes);
    return STATUS_OK;
}

static void run_tasks(const void *context, int thread, int n_threads) {
    const struct run_call *call = context;
    const struct tiled_matmul *t = call->matmul;
    const int64_t task_rows = rows_of_tasks(t, call->strip, n_threads);
    struct strip_task task;
    while (strip_task_at(t, call->strip, task_rows, atomic_fetch_add(call->next, 1), &task)) {
        const struct tiled_matmul part = part_of(t, task.row, task.rows, task.column, task.columns);
        run_part(call, &part, thread);
        mirror(cpu_isa_of(call->stream->device), t, &task);
    }
}

enum status tiled_symmetric_run(struct stream *stream, const struct tiled_matmul *matmul, int64_t strip) {
    atomic_size_t next = 0;
    struct run_call call = {.stream = stream, .matmul = matmul, .strip = strip, .next = &next};
    return run_all(&call, run_tasks);
}
