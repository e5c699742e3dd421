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

#define CHECKPOINT_CHUNK (1 << 20) // elements read or written at a time

struct optimizer_groups;
// The source of the values that a checkpoint stores, or that a run loads. `read` copies the values of
// elements [begin, end) of a ZeRO unit, of one kind, to host memory as fp32. When a checkpoint is written,
// the elements are within one span that this rank owns. They are read in file order, at most
// CHECKPOINT_CHUNK at a time.
struct checkpoint_source {
    void *context;
    enum status (*read)(void *context, enum checkpoint_kind kind, int unit, size_t begin, size_t end,
                        float *out);
    // The other members are used only when a run loads values.
    bool has_average; // `read` can read averages of the weights
    // The optimizer groups of the run that wrote the moments. NULL: those of the run that loads them.
    const struct optimizer_groups *written_by;
};

// The attention kernel that a run chose (`attention` in options/schema.def).
struct checkpoint_attention {
    enum config_attention kernel; // AUTO: the run was on the CPU, which offers no choice
    char cudnn[32];               // with CUDNN, its version: "9.19.0"; else ""
};

// What checkpoint_write writes.
struct checkpoint_contents {
    struct comm *comm;                 // all its ranks write together
    const struct partition *partition; // decides which rank writes what
    int64_t step;                      // optimizer steps done
    int64_t tokens;                    // tokens trained on
    const struct config *config;       // resolved: all defaults are filled in
    const struct params *params;
    const struct tokenizer *tokenizer; // copied into the folder; NULL: none
    enum dtype compute;                // the resolved precision.compute
    const char *device;                // device->arithmetic: what determines rounding (kernels/device.h)
    const char *fingerprint;           // rank 0's (kernels/fingerprint.h); NULL: none is recorded
    struct checkpoint_attention attention;
    struct checkpoint_kinds kinds;
    const struct run_state *run; // NULL: no state of the run is recorded
    struct checkpoint_source source;
};

// An opened checkpoint, fully checked. Callers must not change it.
struct checkpoint {
    char *path; // path of the folder
    int64_t step, tokens;
    struct config config; // the config in the manifest, all defaults filled in
    struct params params; // the parameter table for its model sizes
    enum dtype compute;
    char *device;      // as in checkpoint_contents, of rank 0
    char *fingerprint; // NULL: an earlier version of the program, which recorded none, wrote the checkpoint
    struct checkpoint_attention attention;
    char *version;                 // version of the program that wrote it
    char *optimizer;               // "adamw", "sgd", ...
    struct checkpoint_kinds kinds; // as in checkpoint_contents
    unsigned char *n_moments;      // (n_params) the array that kinds.n_moments points to
    int world;                     // number of ranks that wrote it
    int64_t logical_ranks;         // the run's config->logical_ranks
    enum partition_kind partition;
    struct run_state run;
    char *tokenizer;               // "bytes", the path of the copy in the folder, or NULL
    uint64_t tokenizer_checksum;   // the result of tokenizer_checksum(); 0 without a tokenizer
    struct checkpoint_file *files; // (n_files) one per rank, in rank order, then the tokenizer's
    int n_files;
    struct checkpoint_layout layout;
    struct checkpoint_files *open; // cache of open file descriptors
};

#endif
