// The layout of a checkpoint's data files: which file holds an element of a unit, and where. Two forms:
//   regular   computed from the partition. A rank's file has its spans in order: of each span all
//             kinds in turn, and after the first span of a unit the unit's factors
//   listed    each span as a manifest lists it
// Lookups are logarithmic in the number of spans of a unit. Used by the checkpoint modules only.
#ifndef ZERO_ZERO_CHECKPOINT_LAYOUT_H
#define ZERO_ZERO_CHECKPOINT_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "model/params.h"
#include "zero/partition/partition.h"

// What a checkpoint keeps of each unit, in file order. AdamW has the first three, SGD with momentum the first
// two; Adafactor has master weights and factors, which are not elements of the unit:
// zero/partition/second_moments.h says how many a unit has.
enum checkpoint_kind {
    CHECKPOINT_MASTER,
    CHECKPOINT_M,
    CHECKPOINT_V,
    CHECKPOINT_SECOND_MOMENTS,
    N_CHECKPOINT_KINDS
};
const char *checkpoint_kind_name(enum checkpoint_kind kind); // "master", "m", "v", "factors"
// How many values a unit has of a kind.
size_t checkpoint_kind_elements(const struct params *params, enum checkpoint_kind kind, int unit);

// Elements [begin, end) of a kind of a unit.
struct checkpoint_span {
    int unit;
    enum checkpoint_kind kind;
    size_t begin, end;
    int file;        // index of the data file; that of a rank is its rank
    uint64_t offset; // bytes
};

struct checkpoint_layout {
    const struct params *params;
    int n_kinds; // of master, m, v
    bool has_factors;
    // Regular:
    const struct partition *partition; // NULL where spans are listed
    struct partition made;             // *partition, where the layout made it
    uint64_t *offsets;    // (partition->n_spans) where a span's first kind begins in its owner's file
    uint64_t *file_bytes; // (partition->world)
    // Listed:
    struct checkpoint_span *spans; // sorted by kind, unit and begin
    int n_spans;
    int *first_span; // (N_CHECKPOINT_KINDS * n_units + 1) of each kind and unit
};

// A regular layout of the caller's partition, which stays the caller's; or of the one that partition_init
// makes.
enum status checkpoint_layout_init(struct checkpoint_layout *layout, const struct params *params,
                                   const struct partition *partition, int n_kinds,
                                   bool has_factors) MUST_CHECK;
enum status checkpoint_layout_make(struct checkpoint_layout *layout, const struct params *params,
                                   enum partition_kind kind, int world, int n_kinds,
                                   bool has_factors) MUST_CHECK;
// A listed layout, which takes over `spans` (malloc), also after a failure. STATUS_INVALID, with `source`
// named, unless the spans cover every element of every kind once.
enum status checkpoint_layout_list(struct checkpoint_layout *layout, const struct params *params, int n_kinds,
                                   bool has_factors, struct checkpoint_span *spans, int n_spans,
                                   const char *source) MUST_CHECK;
void checkpoint_layout_free(struct checkpoint_layout *layout); // zeroed before: fine

bool checkpoint_layout_holds(const struct checkpoint_layout *layout, int kind);
// The span from this element (begin == element) to the last one that follows it in the same file. False when
// the unit has no such element.
bool checkpoint_layout_find(const struct checkpoint_layout *layout, enum checkpoint_kind kind, int unit,
                            size_t element, struct checkpoint_span *out);
// Iterates over the spans of one rank's file in file order (rank -1: of all ranks). *cursor starts as zero.
// False after the last span. Regular layouts only.
struct checkpoint_layout_cursor {
    int span, kind;
};
bool checkpoint_layout_next(const struct checkpoint_layout *layout, int rank,
                            struct checkpoint_layout_cursor *cursor, struct checkpoint_span *out);

// A digest of all spans and their owners. The manifest stores it, so that a version of the program whose
// partition_init divides differently refuses the checkpoint instead of reading wrong values.
uint64_t checkpoint_partition_digest(const struct partition *partition);

#endif
