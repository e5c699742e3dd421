// The layout of a checkpoint's data files: which file stores an element of a ZeRO unit, and where. It
// follows from the partition. A rank's file has the rank's spans in order. For each span it has all kinds
// of values in turn (enum checkpoint_kind). Moments take space only for tensors that have them.
// Lookups are logarithmic in the number of spans of a unit. Used by the checkpoint modules only.
#ifndef ZERO_ZERO_CHECKPOINT_LAYOUT_H
#define ZERO_ZERO_CHECKPOINT_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "model/params.h"
#include "zero/partition/partition.h"

// What a checkpoint stores of each element, in file order. AdamW has the first three, SGD with momentum the
// first two. Any optimizer may also have an average of the weights.
enum checkpoint_kind {
    CHECKPOINT_MASTER,
    CHECKPOINT_M,
    CHECKPOINT_V,
    CHECKPOINT_AVERAGE,
    N_CHECKPOINT_KINDS
};
const char *checkpoint_kind_name(enum checkpoint_kind kind); // "master", "m", "v", "average"

// Which kinds of values a checkpoint has.
struct checkpoint_kinds {
    int n;            // number of kinds: the first n of master, m, v
    bool has_average; // also the average of the weights
    // (n_params) The number of moments of each tensor, at most n - 1: Muon's matrices have only m, frozen
    // tensors none. Padding counts as part of the tensor before it. NULL: every tensor has n - 1.
    const unsigned char *n_moments;
};

// Elements [begin, end) of one kind of a ZeRO unit, contiguous in one file or in none.
struct checkpoint_span {
    int unit;
    enum checkpoint_kind kind;
    size_t begin, end;
    // Index of the data file, which is the rank that wrote it. -1: the tensors lack this moment, so that it
    // is in no file and reads as zeros.
    int file;
    uint64_t offset; // offset of `begin` in the file, in bytes
};

struct checkpoint_layout {
    const struct params *params;
    struct checkpoint_kinds kinds;
    const struct partition *partition;
    struct partition own_partition; // computed by checkpoint_layout_make; `partition` then points to it
    uint64_t *offsets;    // (partition->n_spans) where each span's first kind begins in its owner's file
    uint64_t *file_bytes; // (partition->world) size of each rank's file
};

// checkpoint_layout_init takes the caller's partition, which must outlive the layout.
// checkpoint_layout_make computes the partition from `kind` and `world`. kinds->n_moments must outlive the
// layout in both cases.
void checkpoint_layout_init(struct checkpoint_layout *layout, const struct params *params,
                            const struct partition *partition, const struct checkpoint_kinds *kinds);
void checkpoint_layout_make(struct checkpoint_layout *layout, const struct params *params,
                            enum partition_kind kind, int world, const struct checkpoint_kinds *kinds);
void checkpoint_layout_free(struct checkpoint_layout *layout); // zeroed layout: no-op

// True if the checkpoint stores values of this kind.
bool checkpoint_layout_holds(const struct checkpoint_layout *layout, int kind);
// Finds the span that starts at `element` (out->begin == element). It extends as far as the values are
// contiguous in one file, or all absent. False if the unit has no such element.
bool checkpoint_layout_find(const struct checkpoint_layout *layout, enum checkpoint_kind kind, int unit,
                            size_t element, struct checkpoint_span *out);
// Iterates over the spans of one rank's file in file order (rank -1: all ranks). Zero *cursor to start.
// Returns false after the last span.
struct checkpoint_layout_cursor {
    int span;       // index of the partition's span
    int kind;       // index among the kinds that the checkpoint has
    size_t element; // the next element of that kind
};
bool checkpoint_layout_next(const struct checkpoint_layout *layout, int rank,
                            struct checkpoint_layout_cursor *cursor, struct checkpoint_span *out);

// Returns a digest of all spans and their owners, for the manifest. A version of the program whose
// partition_init divides units differently then rejects the checkpoint instead of reading wrong values.
uint64_t checkpoint_partition_digest(const struct partition *partition);

#endif
