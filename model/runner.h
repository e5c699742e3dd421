// Runs a model's operations on a stream, or only sizes them in a dry run. Internal to model/.
//
// A dry run executes the model's own passes without a stream, and with placeholders for parameters and
// buffers. For each operation, the backend reports how much workspace it needs. So the planned workspace is
// that of the code that later runs, and backends can prepare each shape before the first step.
#ifndef ZERO_MODEL_RUNNER_H
#define ZERO_MODEL_RUNNER_H

#include "base/region.h"
#include "kernels/ops.h"
#include "model/trace.h"
#include "model/work.h"

// The operations that a dry run has already sized, so that it sizes each only once: all blocks issue the
// same operations, and a backend may take long to size one. A size depends on the arguments, not on the
// memory that they point to.
#define RUNNER_SIZED_MOST 64
#define RUNNER_ARGS_MOST  512 // bytes
struct runner_sized {
    struct {
        enum operation operation;
        size_t bytes;
        unsigned char args[RUNNER_ARGS_MOST];
    } list[RUNNER_SIZED_MOST]; // the operations added last; a new one overwrites the oldest
    int64_t n;                 // number of operations added so far
};

struct runner {
    struct device *device;
    struct stream *stream;      // NULL: dry run
    size_t workspace_bytes;     // dry run: the largest workspace of any operation
    struct runner_sized *sized; // dry run without a trace: the operations sized so far
    struct gpt_work *work;      // dry run: if not NULL, counts the operations
    // Dry run: if not NULL, receives the FLOPs of the operations. The dry run then neither requests
    // workspace nor counts operations.
    struct trace *trace;
};

// Issues one operation or, in a dry run, sizes it. The arguments are designated initialisers:
//     RUN(runner, gelu_forward, .out = out, .x = x, .n = n, .type = type);
// Returns from the calling function on failure.
#define RUN(runner, name, ...) RUN_ARGS(runner, name, ((struct name##_args){__VA_ARGS__}))
#define RUN_ARGS(runner, name, args)                                                                         \
    do {                                                                                                     \
        const struct name##_args args_ = args;                                                               \
        _Static_assert(sizeof args_ <= RUNNER_ARGS_MOST, "RUNNER_ARGS_MOST is too small");                   \
        TRY((runner)->stream ? (runner)->device->ops->name((runner)->stream, &args_)                         \
                             : runner_dry_run((runner), OP_##name, &args_, sizeof args_));                   \
    } while (0)

// What RUN does in a dry run. With runner->trace, adds the operation's FLOPs to the trace's last event.
// Otherwise requests the workspace that the operation needs, and counts the operation in runner->work.
enum status runner_dry_run(struct runner *runner, enum operation operation, const void *args,
                           size_t bytes) MUST_CHECK;

// The context of a dry run's hooks. All addresses that the hooks return are DRY_RUN_BUFFER.
struct dry_run {
    bool beta_zero;      // beta_zero of the units' views
    struct trace *trace; // if not NULL, the hooks append each acquire and release to it
};
struct unit_hooks dry_run_hooks(struct dry_run *run);
// A placeholder for any buffer in a dry run: not NULL, aligned, never read or written.
#define DRY_RUN_BUFFER ((void *)(uintptr_t)REGION_ALIGNMENT)
// Returns a region's memory: NULL if index is -1, DRY_RUN_BUFFER if table is NULL.
void *buffer_find(const struct region_table *table, int index);

// Pointers, each with the region to whose memory it is set once the region table is bound. Zero-initialize
// the list.
struct buffer_list {
    struct listed_buffer {
        int region;
        void *pointer; // address of the pointer to set; the pointer must not move
    } * list;
    int n, capacity;
};
// Adds a region to the table, and lists `pointer`, the address of the pointer to set. No-op for 0 elements.
enum status buffer_add(struct buffer_list *buffers, struct region_table *table, enum region_kind kind,
                       enum region_place place, enum dtype type, size_t elements, void *pointer,
                       const char *name) MUST_CHECK;
// Lists another pointer, to be set to the memory of the region that was listed last.
void buffer_share(struct buffer_list *buffers, void *pointer);
// Sets all listed pointers to the memory of their regions. table NULL: sets them to DRY_RUN_BUFFER.
void buffers_find(const struct buffer_list *buffers, const struct region_table *table);

// Gives the stream this workspace unless it already has a larger one.
static inline void stream_use_workspace(struct stream *stream, void *workspace, size_t bytes) {
    if (bytes > stream->workspace_bytes) {
        stream->workspace = workspace;
        stream->workspace_bytes = bytes;
    }
}

// Returns the dtype of losses, parameters' gradients, lse, and a norm's mean and rstd: fp32, or double if
// the compute type is double (tests/ref).
static inline enum dtype accumulation_dtype(enum dtype type) {
    return type == DTYPE_F64 ? DTYPE_F64 : DTYPE_F32;
}

#endif
