// Divides a product among threads. The workspace is sized by a dry run over the same tiles.
#include "kernels/cpu/matmul.h"

#include <math.h>
#include <stdatomic.h>

#include "kernels/cpu/matmul_tiles.h"
#include "kernels/symmetric.h"

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

static int threads_of(const struct device *device, const struct tiled_matmul *matmul) {
    return cpu_threads(device, (size_t)(matmul->m * matmul->n));
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
        TRY(matmul_tiles_size((struct cpu_device *)device, &mine, thread, &of_thread));
    }
    size_all(device, matmul, of_thread, bytes);
    return STATUS_OK;
}

// The most columns of a thread's cell.
static size_t most_columns(const struct tiled_matmul *t, size_t grain, int n_cells) {
    const size_t n_grains = ((size_t)t->n + grain - 1) / grain, cells = (size_t)n_cells;
    return (n_grains + cells - 1) / cells * grain;
}

bool tiled_matmul_rotates_evenly(const struct device *device, const struct tiled_matmul *matmul) {
    const int cells = grid_of(matmul, threads_of(device, matmul)).columns;
    return most_columns(matmul, column_grain(matmul), cells) <=
           most_columns(matmul, THREAD_COLUMN_GRAIN, cells);
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
    char *scratch = call->stream->workspace;
    if (scratch)
        scratch += (size_t)thread * call->workspace_of_part;
    int status = (int)matmul_tiles_run((struct cpu_device *)call->stream->device, part, thread, scratch);
    int worst = atomic_load(call->worst);
    while (status > worst && !atomic_compare_exchange_weak(call->worst, &worst, status))
        ;
}

static enum status run_all(struct run_call *call, void (*run)(const void *context, int part, int n_parts)) {
    atomic_int worst = STATUS_OK;
    const int n_threads = threads_of(call->stream->device, call->matmul);
    call->worst = &worst;
    // At least what tiled_*_workspace asked for: the workspace serves other operations too.
    call->workspace_of_part =
        call->stream->workspace_bytes / (size_t)n_threads / MATMUL_ALIGNMENT * MATMUL_ALIGNMENT;
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
        const int64_t length = t->n - first, rows = matmul_tile_size(length, task_rows, SYMMETRIC_GRAIN),
                      n = (length + rows - 1) / rows, i = (int64_t)number;
        if (i < n) {
            *out = (struct strip_task){.column = first,
                                       .columns = matmul_least(columns, length),
                                       .row = first + i * rows,
                                       .rows = matmul_least(rows, length - i * rows)};
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
        .out = (void *)(uintptr_t)matmul_element(t->out, t->out_type, task->column * t->out_stride + row),
        .x = matmul_element(t->out, t->out_type, row * t->out_stride + task->column),
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
            TRY(matmul_tiles_size((struct cpu_device *)device, &part, thread, &of_thread));
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
