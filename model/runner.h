// Runs a model's operations on a stream, or only sizes them in a dry run. Internal to model/.
//
// A dry run executes the model's own passes without a stream and with placeholders for parameters and
// buffers. Each operation reports how much workspace it needs. So a plan counts what the same code later
// uses, and backends can prepare each shape before the first step.
#ifndef ZERO_MODEL_RUNNER_H
#define ZERO_MODEL_RUNNER_H

#include "base/region.h"
#include "kernels/ops.h"
#include "model/hooks.h"
#include "model/work.h"

struct runner {
    struct device *device;
    struct stream *stream;  // NULL: dry run
    size_t workspace_bytes; // dry run: the largest workspace that an operation asked for
    struct gpt_work *work;  // dry run: the operations are counted here; NULL: nowhere
    int repeats;            // dry run: how many calls the next operation stands for, in `work`
};

// Issues one operation (or sizes it, in a dry run), with its arguments as designated initialisers:
//     RUN(runner, gelu_forward, .out = out, .x = x, .n = n, .type = type);
// Returns from the calling function on failure.
#define RUN(runner, name, ...)                                                                               \
    do {                                                                                                     \
        const struct name##_args args_ = {__VA_ARGS__};                                                      \
        TRY((runner)->stream ? (runner)->device->ops->name((runner)->stream, &args_)                         \
                             : runner_dry_run((runner), OP_##name, &args_));                                 \
    } while (0)

// For RUN: records the workspace that the operation needs, and counts it.
enum status runner_dry_run(struct runner *runner, enum operation operation, const void *args) MUST_CHECK;

// The step of a loop over blocks: 1, but in a dry run from the first block straight to the last. The blocks
// in between issue the operations of the first one (runner_enter_block), unless their windows differ.
static inline int runner_block_step(const struct runner *runner, const struct gpt_config *config) {
    return runner->stream || config->n_layer < 3 || config->n_windows > 1 ? 1 : config->n_layer - 1;
}

// In a dry run, what the block's operations stand for: the first one's also for the blocks in between.
static inline void runner_enter_block(struct runner *runner, int block, const struct gpt_config *config) {
    runner->repeats = block == 0 ? runner_block_step(runner, config) : 1;
}

// A dry run's units: every pointer is DRY_RUN_BUFFER. context: not NULL for gradients with beta_zero.
extern const struct unit_hooks dry_run_hooks;
// A placeholder for any buffer in a dry run: not NULL, aligned, never read or written.
#define DRY_RUN_BUFFER ((void *)(uintptr_t)REGION_ALIGNMENT)
// A region's memory: NULL for index -1, DRY_RUN_BUFFER when table is NULL.
void *buffer_find(const struct region_table *table, int index);

// Gives the stream this workspace unless it already has a larger one.
static inline void stream_use_workspace(struct stream *stream, void *workspace, size_t bytes) {
    if (bytes > stream->workspace_bytes) {
        stream->workspace = workspace;
        stream->workspace_bytes = bytes;
    }
}

// Losses, gradients, and a norm's mean and rstd are fp32; on the oracle, which computes in double, double.
static inline enum dtype accumulation_dtype(enum dtype type) {
    return type == DTYPE_F64 ? DTYPE_F64 : DTYPE_F32;
}

#endif
