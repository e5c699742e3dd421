// The structs of the checkpoint format: what is written, and what an opened checkpoint holds. The functions
// are in zero/checkpoint/checkpoint.h; the JSON is in zero/checkpoint/manifest.h.
#ifndef ZERO_ZERO_CHECKPOINT_FORMAT_H
#define ZERO_ZERO_CHECKPOINT_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"
#include "data/tokenizer/tokenizer.h"
#include "model/params.h"
#include "options/config.h"
#include "zero/checkpoint/files.h"
#include "zero/checkpoint/layout.h"
#include "zero/checkpoint/run_state.h"
#include "zero/comm/comm.h"
#include "zero/optimizer/rules/loss_scale.h"

#define CHECKPOINT_CHUNK (1 << 20)

// The source of values. `read` copies the fp32 values [begin, end) of one kind of a ZeRO unit to host memory:
// a device copy and its synchronization, or a memcpy. When a checkpoint is written, the values are within one
// span that this rank owns. They are read in file order, at most CHECKPOINT_CHUNK elements at a time.
struct optimizer_groups;
struct checkpoint_source {
    void *context;
    enum status (*read)(void *context, enum checkpoint_kind kind, int unit, size_t begin, size_t end,
                        float *out);
    bool has_average; // for reading: averages of the weights exist
    // For reading all kinds: the optimizer groups of the run that wrote the moments. NULL: the reader's own
    // groups.
    const struct optimizer_groups *written_by;
};

// The attention kernel that a run chose (`attention` in options/schema.def).
struct checkpoint_attention {
    enum config_attention kernel; // AUTO: none, as the run was on the CPU
    char cudnn[32];               // with CUDNN, its version: "9.19.0"; else ""
};

// What checkpoint_write writes.
struct checkpoint_contents {
    struct comm *comm;                 // all its ranks write together
    const struct partition *partition; // decides which rank writes what
    int64_t step;                      // optimizer steps done
    int64_t tokens;                    // tokens trained on
    const struct config *config;       // resolved
    const struct params *params;
    const struct tokenizer *tokenizer; // copied into the folder; NULL: none
    enum dtype compute;                // the resolved precision.compute
    const char *device;                // describes the arithmetic that rounds the results
    struct checkpoint_attention attention;
    struct checkpoint_kinds kinds;
    const struct run_state *run; // NULL: nothing is recorded
    struct checkpoint_source source;
};

// An opened checkpoint, fully checked. Callers must not change it.
struct checkpoint {
    char *path; // path of the folder
    int64_t step, tokens;
    struct config config; // resolved, as it was written
    struct params params; // the parameter table for its model sizes
    enum dtype compute;
    char *device; // device of rank 0
    struct checkpoint_attention attention;
    char *version;                 // version of the program that wrote it
    char *optimizer;               // "adamw", "sgd", ...
    struct checkpoint_kinds kinds; // as in checkpoint_contents
    unsigned char *n_moments;      // (n_params) backs kinds.n_moments, or NULL
    int world;                     // number of ranks that wrote it
    enum partition_kind partition;
    struct run_state run;
    char *tokenizer;               // "bytes", the path of the copy in the folder, or NULL
    uint64_t tokenizer_checksum;   // tokenizer_checksum; 0 without a tokenizer
    struct checkpoint_file *files; // the ranks' files first
    int n_files;
    struct checkpoint_layout layout;
    struct checkpoint_files *open; // the cache of open ones
};

#endif
