// Inside the model: what gpt.c (training) and generate.c (the key-value cache) share. Not for other folders.
#ifndef ZERO_MODEL_BLOCK_H
#define ZERO_MODEL_BLOCK_H

#include "base/region.h"
#include "kernels/ops.h"
#include "model/gpt.h"

// Where operations go. Without a stream it is a dry run: nothing runs, but every operation is asked how
// much workspace it will need, so that a plan is made by the very code that it is for.
struct runner {
    struct device *device;
    struct stream *stream;  // NULL: dry run
    size_t workspace_bytes; // the largest asked for in a dry run
};

// The distance from one block that a pass visits to the next: 1, but in a dry run only the first and the
// last block are visited. Those between ask for what the first asks for.
static inline int runner_block_step(const struct runner *runner, int n_layer) {
    return runner->stream || n_layer < 3 ? 1 : n_layer - 1;
}

enum status runner_dry_run(struct runner *runner, enum operation operation, const void *args) MUST_CHECK;

// Runs (or, in a dry run, sizes) one operation, with its arguments as designated initialisers.
#define RUN(runner, name, ...)                                                                               \
    do {                                                                                                     \
        const struct name##_args args_ = {__VA_ARGS__};                                                      \
        TRY((runner)->stream ? (runner)->device->ops->name((runner)->stream, &args_)                         \
                             : runner_dry_run((runner), OP_##name, &args_));                                 \
    } while (0)

extern const struct unit_hooks dry_run_hooks;

// What stands for a buffer in a dry run: not NULL, never read.
#define DRY_RUN_BUFFER ((void *)(uintptr_t)REGION_ALIGNMENT)

// The parts of a block's activations that recomputation tells apart: up to attention's output, and the rest;
// and of both what a pass over kept elements makes again.
enum block_part {
    BLOCK_ATTENTION = 1,
    BLOCK_MLP = 2,
    BLOCK_NORMS = 4,
    BLOCK_GELU = 8,
    BLOCK_ALL = BLOCK_ATTENTION | BLOCK_MLP | BLOCK_NORMS | BLOCK_GELU
};

// A block's activations, in order of their making. X(name, elements, type, part, only backward reads it);
// rows = B T.
#define BLOCK_BUFFERS(X)                                                                                     \
    X(ln1, rows *C, type, BLOCK_NORMS, false)                                                                \
    X(ln1_mean, rows, accumulation, BLOCK_ATTENTION, true)                                                   \
    X(ln1_rstd, rows, accumulation, BLOCK_ATTENTION, true)                                                   \
    X(qkv, rows * 3 * C, type, BLOCK_ATTENTION, false)                                                       \
    X(attention, rows *C, type, BLOCK_ATTENTION, false)                                                      \
    X(lse, rows *H, accumulation, BLOCK_ATTENTION, true)                                                     \
    X(middle, rows *C, type, BLOCK_MLP, false) /* residual stream between attention and MLP */               \
    X(ln2, rows *C, type, BLOCK_NORMS, false)                                                                \
    X(ln2_mean, rows, accumulation, BLOCK_MLP, true)                                                         \
    X(ln2_rstd, rows, accumulation, BLOCK_MLP, true)                                                         \
    X(fc, rows * 4 * C, type, BLOCK_MLP, true) /* before GELU */                                             \
    X(gelu, rows * 4 * C, type, BLOCK_GELU, false)

#define BLOCK_POINTER(name, elements, type, part, backward) void *name;
#define BLOCK_INDEX(name, elements, type, part, backward)   int name;
struct block_buffers {
    BLOCK_BUFFERS(BLOCK_POINTER)
};
struct block_regions {
    BLOCK_BUFFERS(BLOCK_INDEX)
};
#undef BLOCK_POINTER
#undef BLOCK_INDEX

// Adds the buffers of a block's parts (a set of enum block_part) and writes their indices; `label` names
// them in the plan. With for_backward false, those that only backward reads are left out: their index is -1
// and their pointer NULL.
enum status block_regions_add(struct region_table *table, struct device *device,
                              const struct gpt_config *config, enum dtype type, size_t rows, unsigned parts,
                              bool for_backward, const char *label, struct block_regions *out) MUST_CHECK;
// table NULL: buffers of a dry run.
void block_buffers_find(const struct block_regions *regions, const struct region_table *table,
                        struct block_buffers *out);
// A region's memory; table NULL: a dry run's.
void *buffer_find(const struct region_table *table, int index);

// Where one block keeps the keys and values of sequences that grow (generation): each sequence's are
// (positions, 2 C), keys and then values, and row b of a pass belongs to sequence sequences[b], of which
// lengths[b] positions are there already.
struct block_cache {
    void *keys_values; // NULL: no cache
    size_t stride;     // elements from one sequence's to the next one's
    const int *sequences, *lengths;
};

// One block on rows = B T positions: out = x + attention + MLP. x and out: (B, T, C). With a cache, B or T is
// 1; the keys and values of the T positions go behind those that are there, and the queries see all up to
// their own.
struct block_args {
    const struct gpt_config *config;
    enum dtype type;
    int B, T;
    const void *params; // of the unit or, for one group, of that group
    const struct param *table;
    const struct block_buffers *buffers;
    const void *x;
    void *out;
    struct block_cache cache;
};
// In order of the groups: up to attention's output, the residual stream between attention and MLP, the MLP up
// to GELU's output, and out (which nothing else touches).
enum status block_group_forward(struct runner *runner, const struct block_args *args,
                                enum block_group group) MUST_CHECK;
// The same between the hooks' acquire and release of the group; args->params is of the unit as it was
// acquired. `next`: the group after it, or the unit after this one.
enum status block_group_lent_forward(struct runner *runner, const struct unit_hooks *hooks,
                                     const struct block_args *args, int unit,
                                     enum block_group group) MUST_CHECK;

static inline enum status group_acquire(const struct unit_hooks *hooks, struct stream *stream, int unit,
                                        enum block_group group, enum gpt_pass pass, struct gpt_next next,
                                        struct unit_view *view) {
    return hooks->group_acquire ? hooks->group_acquire(hooks->context, stream, unit, group, pass, next, view)
                                : STATUS_OK;
}

static inline enum status group_release(const struct unit_hooks *hooks, struct stream *stream, int unit,
                                        enum block_group group, enum gpt_pass pass) {
    return hooks->group_release ? hooks->group_release(hooks->context, stream, unit, group, pass) : STATUS_OK;
}

// Gives the stream this workspace unless it has a larger one already.
static inline void stream_use_workspace(struct stream *stream, void *workspace, size_t bytes) {
    if (bytes > stream->workspace_bytes) {
        stream->workspace = workspace;
        stream->workspace_bytes = bytes;
    }
}

// The address of a unit's tensor `index` (enum *_param) in a span of `type`.
static inline void *param_at(const void *span, const struct param *table, int index, enum dtype type) {
    return (char *)(uintptr_t)span + table[index].offset * dtype_size(type);
}

// Statistics, losses and gradients are fp32, or double where the oracle computes in double.
static inline enum dtype accumulation_dtype(enum dtype type) {
    return type == DTYPE_F64 ? DTYPE_F64 : DTYPE_F32;
}

#endif
