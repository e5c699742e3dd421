// Divides a product among threads. The workspace is sized by a dry run over the same tiles.
#include "kernels/cpu/matmul.h"

#include <math.h>
#include <stdatomic.h>

#include "kernels/cpu/matmul_tiles.h"
#include "kernels/cpu/matmul_units.h"

// ---- division among threads

static int threads_of(const struct device *device, const struct tiled_matmul *matmul) {
    return cpu_threads(device, (size_t)(matmul->m * matmul->n));
}

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
#define PACKED_COST         2 // matrix units: columns of b are packed before products, and rows of a beside them
#define THREAD_COLUMN_GRAIN 16

static int cost_of_weights(const struct device *device, const struct tiled_matmul *t) {
    const int64_t n_weights = t->n * (t->weight_gradient ? t->m : t->k);
    if (n_weights <= CACHED_WEIGHTS)
        return 1;
    if (!t->is_cached)
        return WEIGHTS_COST;
    return matmul_is_on_units((const struct cpu_device *)device, t) ? PACKED_COST : 1;
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

// The product of some rows and columns of `out`, from (row, column) on.
static struct tiled_matmul part_of(const struct tiled_matmul *t, int64_t row, int64_t rows, int64_t column,
                                   int64_t columns) {
    const int64_t first = row * t->out_stride + column;
    struct tiled_matmul part = *t;
    part.m = rows;
    part.n = columns;
    part.row += row;
    part.column += column;
    part.a.data = matmul_element(t->a.data, t->type, row * t->a.row);
    part.b.data = matmul_element(t->b.data, t->type, column * t->b.column);
    part.out = (void *)(uintptr_t)matmul_element(t->out, t->out_type, first);
    part.pre_activation = (void *)(uintptr_t)matmul_element(t->pre_activation, t->type, first);
    part.residual = matmul_element(t->residual, t->type, first);
    part.activation_input = matmul_element(t->activation_input, t->type, first);
    part.bias = matmul_element(t->bias, t->type, column);
    return part;
}

// A thread rotates whole heads.
static size_t column_grain(const struct tiled_matmul *t) {
    size_t grain = THREAD_COLUMN_GRAIN;
    while (t->rope && grain % (size_t)t->rope->D != 0)
        grain += THREAD_COLUMN_GRAIN;
    return grain;
}

// The product of one thread's cell; m or n is 0 when there are more threads than grains.
static struct tiled_matmul thread_product(const struct tiled_matmul *t, struct grid grid, int thread) {
    const struct parallel_span rows = parallel_span_of((size_t)t->m, 1, thread / grid.columns, grid.rows);
    const struct parallel_span columns =
        parallel_span_of((size_t)t->n, column_grain(t), thread % grid.columns, grid.columns);
    return part_of(t, (int64_t)rows.begin, (int64_t)(rows.end - rows.begin), (int64_t)columns.begin,
                   (int64_t)(columns.end - columns.begin));
}

// ---- all threads

enum status tiled_matmul_workspace(struct device *device, const struct tiled_matmul *matmul, size_t *bytes) {
    struct cpu_device *cpu = (struct cpu_device *)device;
    const int n_threads = threads_of(device, matmul);
    const struct grid grid = grid_of(device, matmul);
    size_t of_thread = 0;
    for (int thread = 0; thread < n_threads; thread++) {
        const struct tiled_matmul mine = thread_product(matmul, grid, thread);
        if (matmul_is_on_units(cpu, &mine))
            matmul_units_size(cpu, &mine, &of_thread);
        else
            TRY(matmul_tiles_size(cpu, &mine, thread, &of_thread));
    }
    of_thread *= (size_t)n_threads;
    *bytes = of_thread > *bytes ? of_thread : *bytes;
    return STATUS_OK;
}

// The most columns of a thread's cell.
static size_t most_columns(const struct tiled_matmul *t, size_t grain, int n_cells) {
    const size_t n_grains = ((size_t)t->n + grain - 1) / grain, cells = (size_t)n_cells;
    return (n_grains + cells - 1) / cells * grain;
}

bool tiled_matmul_rotates_evenly(const struct device *device, const struct tiled_matmul *matmul) {
    const int cells = grid_of(device, matmul).columns;
    return most_columns(matmul, column_grain(matmul), cells) <=
           most_columns(matmul, THREAD_COLUMN_GRAIN, cells);
}

struct run_call {
    struct stream *stream;
    const struct tiled_matmul *matmul;
    struct grid grid;
    size_t workspace_of_part;
    atomic_int *worst; // enum status
};

static void run_cell(const void *context, int thread, int n_threads) {
    (void)n_threads;
    const struct run_call *call = context;
    struct cpu_device *cpu = (struct cpu_device *)call->stream->device;
    const struct tiled_matmul mine = thread_product(call->matmul, call->grid, thread);
    char *scratch = call->stream->workspace;
    if (scratch)
        scratch += (size_t)thread * call->workspace_of_part;
    if (matmul_is_on_units(cpu, &mine)) {
        matmul_units_run(cpu, &mine, scratch);
        return;
    }
    int status = (int)matmul_tiles_run(cpu, &mine, thread, scratch);
    int worst = atomic_load(call->worst);
    while (status > worst && !atomic_compare_exchange_weak(call->worst, &worst, status))
        ;
}

enum status tiled_matmul_run(struct stream *stream, const struct tiled_matmul *matmul) {
    const int n_threads = threads_of(stream->device, matmul);
    atomic_int worst = STATUS_OK;
    const struct run_call call = {
        .stream = stream,
        .matmul = matmul,
        .grid = grid_of(stream->device, matmul),
        // At least what tiled_matmul_workspace asked for: the workspace serves other operations too.
        .workspace_of_part =
            stream->workspace_bytes / (size_t)n_threads / MATMUL_ALIGNMENT * MATMUL_ALIGNMENT,
        .worst = &worst,
    };
    parallel_run(n_threads, run_cell, &call);
    return (enum status)atomic_load(&worst);
}
