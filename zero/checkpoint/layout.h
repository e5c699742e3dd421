// The layout of a checkpoint's data files: which file holds an element of a unit, and where. It follows from
// the partition. A rank's file has its spans in order: for each span all kinds in turn, the average last. Of
// moments only those that exist take place: those of tensors that have them.
// Lookups are logarithmic in the number of spans of a unit. Used by the checkpoint modules only.
#ifndef ZERO_ZERO_CHECKPOINT_LAYOUT_H
#define ZERO_ZERO_CHECKPOINT_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "model/params.h"
#include "zero/partition/partition.h"

// What a checkpoint keeps of each element, in file order. AdamW has the first three, SGD with momentum the
// first two. Any optimizer may have an average of the weights.
enum checkpoint_kind {
    CHECKPOINT_MASTER,
    CHECKPOINT_M,
    CHECKPOINT_V,
    CHECKPOINT_AVERAGE,
    N_CHECKPOINT_KINDS
};
const char *checkpoint_kind_name(enum checkpoint_kind kind); // "master", "m", "v", "average"

// Which kinds a checkpoint has.
struct checkpoint_kinds {
    int n;            // the first n of master, m, v
    bool has_average; // and the average of the weights
    // (n_params) How many moments each tensor has, at most n - 1: Muon's matrices have m alone, frozen
    // tensors none. Padding has those of the tensor before it. NULL: all have n - 1.
    const unsigned char *n_moments;
};

// Elements [begin, end) of a kind of a unit.
struct checkpoint_span {
    int unit;
    enum checkpoint_kind kind;
    size_t begin, end;
    int file;        // index of the data file; a rank's file has the rank's number. -1: moments that do not
                     // exist, which read as zeros
    uint64_t offset; // bytes
};

struct checkpoint_layout {
    const struct params *params;
    struct checkpoint_kinds kinds;
    const struct partition *partition;
    struct partition own_partition; // backs `partition` if the layout computed it
    uint64_t *offsets;    // (partition->n_spans) where a span's first kind begins in its owner's file
    uint64_t *file_bytes; // (partition->world)
};

// Makes a layout of the caller's partition, which must outlive the layout; or of the one that
// partition_init gives for (kind, world). kinds->n_moments must outlive every layout.
void checkpoint_layout_init(struct checkpoint_layout *layout, const struct params *params,
                            const struct partition *partition, const struct checkpoint_kinds *kinds);
void checkpoint_layout_make(struct checkpoint_layout *layout, const struct params *params,
                            enum partition_kind kind, int world, const struct checkpoint_kinds *kinds);
void checkpoint_layout_free(struct checkpoint_layout *layout); // a zeroed layout is fine

bool checkpoint_layout_holds(const struct checkpoint_layout *layout, int kind);
// Finds the span that starts at `element` (out->begin == element) and reaches as far as the values are
// consecutive in one file, or do not exist. False when the unit has no such element.
bool checkpoint_layout_find(const struct checkpoint_layout *layout, enum checkpoint_kind kind, int unit,
                            size_t element, struct checkpoint_span *out);
// Iterates over the spans of one rank's file in file order (rank -1: of all ranks). Zero *cursor to start.
// Returns false after the last span.
struct checkpoint_layout_cursor {
    int span, kind;
    size_t element; // of the kind, the next
};
bool checkpoint_layout_next(const struct checkpoint_layout *layout, int rank,
                            struct checkpoint_layout_cursor *cursor, struct checkpoint_span *out);

// Digest of all spans and their owners. The manifest stores it, so that a version of the program whose
// partition_init divides units differently refuses the checkpoint instead of reading wrong values.
uint64_t checkpoint_partition_digest(const struct partition *partition);

#endif
