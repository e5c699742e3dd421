// Runs a model's operations on a stream, or only sizes them in a dry run. Internal to model/.
//
// A dry run executes the model's own passes without a stream and with placeholders for parameters and
// buffers. Each operation reports how much workspace it needs. So a plan counts what the same code later
// uses, and backends can prepare each shape before the first step.
#ifndef ZERO_MODEL_RUNNER_H
#define ZERO_MODEL_RUNNER_H

#include "base/region.h"
#include "kernels/ops.h"
#include "model/trace.h"
#include "model/work.h"

// The operations whose workspace a dry run has already requested. Blocks repeat their operations, and a
// backend may take long to answer. The answer depends on the arguments, not on the memory that they point to.
#define RUNNER_SIZED_MOST 64
#define RUNNER_ARGS_MOST  512 // bytes
struct runner_sized {
    struct {
        enum operation operation;
        size_t bytes;
        unsigned char args[RUNNER_ARGS_MOST];
    } list[RUNNER_SIZED_MOST]; // the newest ones
    int64_t n;
};

struct runner {
    struct device *device;
    struct stream *stream;      // NULL: dry run
    size_t workspace_bytes;     // dry run: the largest workspace of any operation
    struct runner_sized *sized; // dry run, unless it records a trace: the requests so far
    struct gpt_work *work;      // dry run: counts the operations; NULL: does not count
    struct trace *trace; // dry run: records the FLOPs of operations, and requests no workspace; or NULL
};

// Issues one operation (or sizes it, in a dry run), with its arguments as designated initialisers:
//     RUN(runner, gelu_forward, .out = out, .x = x, .n = n, .type = type);
// Returns from the calling function on failure.
#define RUN(runner, name, ...) RUN_ARGS(runner, name, ((struct name##_args){__VA_ARGS__}))
#define RUN_ARGS(runner, name, args)                                                                         \
    do {                                                                                                     \
        const struct name##_args args_ = args;                                                               \
        _Static_assert(sizeof args_ <= RUNNER_ARGS_MOST, "a dry run remembers the arguments");               \
        TRY((runner)->stream ? (runner)->device->ops->name((runner)->stream, &args_)                         \
                             : runner_dry_run((runner), OP_##name, &args_, sizeof args_));                   \
    } while (0)

// For RUN: records the workspace that the operation needs, and counts it.
enum status runner_dry_run(struct runner *runner, enum operation operation, const void *args,
                           size_t bytes) MUST_CHECK;

// The units of a dry run: every pointer is DRY_RUN_BUFFER.
struct dry_run {
    bool beta_zero;      // beta is 0 for gradients
    struct trace *trace; // records the events; or NULL
};
struct unit_hooks dry_run_hooks(struct dry_run *run);
// A placeholder for any buffer in a dry run: not NULL, aligned, never read or written.
#define DRY_RUN_BUFFER ((void *)(uintptr_t)REGION_ALIGNMENT)
// A region's memory: NULL for index -1, DRY_RUN_BUFFER when table is NULL.
void *buffer_find(const struct region_table *table, int index);

// Regions of the table, and the pointers to set once the table is bound. Zero-initialize it.
struct buffer_list {
    struct listed_buffer {
        int region;
        void *pointer; // address of the pointer, which must not move
    } * list;
    int n, capacity;
};
// Adds a region to the table, and lists `pointer`, the address of the pointer to set. No-op for 0 elements.
enum status buffer_add(struct buffer_list *buffers, struct region_table *table, enum region_kind kind,
                       enum region_place place, enum dtype type, size_t elements, void *pointer,
                       const char *name) MUST_CHECK;
// Lists another pointer to the last region.
void buffer_share(struct buffer_list *buffers, void *pointer);
// Sets all pointers. table NULL: to a dry run's buffer.
void buffers_find(const struct buffer_list *buffers, const struct region_table *table);

// Gives the stream this workspace unless it already has a larger one.
static inline void stream_use_workspace(struct stream *stream, void *workspace, size_t bytes) {
    if (bytes > stream->workspace_bytes) {
        stream->workspace = workspace;
        stream->workspace_bytes = bytes;
    }
}

// fp32, the dtype of losses, gradients, and a norm's mean and rstd. For the oracle, which computes in double,
// double.
static inline enum dtype accumulation_dtype(enum dtype type) {
    return type == DTYPE_F64 ? DTYPE_F64 : DTYPE_F32;
}

#endif
