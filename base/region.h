// The table of memory regions: every buffer of a run has a row here before it is allocated. `./train plan`
// prints its sums by kind, and metrics report planned and measured bytes. The table itself holds no buffers.
// kernels/region_memory.h allocates them, as one arena per kind and place; the owners of external regions
// allocate those.
#ifndef ZERO_BASE_REGION_H
#define ZERO_BASE_REGION_H

#include <stdbool.h>

#include "base/dtype.h"
#include "base/status.h"

// What a region holds. Each kind has one arena per place, so its regions are allocated and freed together.
// X(constant, name in plans and metrics)
#define REGION_KINDS(X)                                                                                      \
    X(REGION_PARAMS, "params")               /* weights in the compute type */                               \
    X(REGION_GRADS, "grads")                 /* gradients, fp32 */                                           \
    X(REGION_MASTER, "master")               /* fp32 weights, where the compute type is narrower */          \
    X(REGION_MOMENTS, "moments")             /* optimizer states m and v, with the scales of int8 ones */    \
    X(REGION_AVERAGE, "average")             /* average of the weights: train.ema */                         \
    X(REGION_COMMUNICATION, "communication") /* gathered units, gradients to reduce, exchange buffers */     \
    X(REGION_ACTIVATIONS, "activations")     /* saved by forward for backward */                             \
    X(REGION_LOGITS, "logits")               /* logits and their gradients, in training per tile of rows */  \
    X(REGION_WORKSPACE, "workspace")         /* scratch memory of operations and of backward */              \
    X(REGION_DATA, "data")                   /* token batches, losses, norms, and other small buffers */

#define REGION_ENUM(constant, name) constant,
enum region_kind { REGION_KINDS(REGION_ENUM) N_REGION_KINDS };
#undef REGION_ENUM

enum region_place { REGION_HOST, REGION_DEVICE, N_REGION_PLACES };

#define REGION_ALIGNMENT 256 // bytes; each region starts at a multiple of it

// n, rounded up to a multiple of REGION_ALIGNMENT.
static inline size_t region_padded(size_t n) {
    return (n + REGION_ALIGNMENT - 1) / REGION_ALIGNMENT * REGION_ALIGNMENT;
}

struct region {
    char name[48];
    enum region_kind kind;
    enum region_place place;
    enum dtype type;
    size_t elements;
    size_t bytes;  // elements x size of type, without the padding to REGION_ALIGNMENT
    size_t offset; // in its arena, in bytes
    void *data;    // NULL until region_table_bind
    bool external; // allocated by its owner, outside the arenas; counted in the totals, never bound
};

struct region_table {
    struct region *regions;
    int n_regions, capacity;
    size_t arena_bytes[N_REGION_KINDS][N_REGION_PLACES]; // size of each arena, with padding
};

void region_table_init(struct region_table *table);
void region_table_free(struct region_table *table); // frees the rows, not the memory that they point to

// Adds a region. Its name is formatted as by printf.
//   index   [out] the region's index, with which region_data finds its memory after region_table_bind
// STATUS_INVALID: the size in bytes, or that of its arena, overflows size_t.
enum status region_add(struct region_table *table, enum region_kind kind, enum region_place place,
                       enum dtype type, size_t elements, int *index, const char *name_format, ...) MUST_CHECK
    __attribute__((format(printf, 7, 8)));

// Adds a region that its owner allocates. It counts towards the totals, but not towards any arena.
enum status region_add_external(struct region_table *table, enum region_kind kind, enum region_place place,
                                size_t bytes, const char *name) MUST_CHECK;

// Points every region of (kind, place), except external ones, into the arena that starts at `base`, which is
// aligned to REGION_ALIGNMENT. base NULL: the arena is empty.
void region_table_bind(struct region_table *table, enum region_kind kind, enum region_place place,
                       void *base);

const char *region_kind_name(enum region_kind kind);
void *region_data(const struct region_table *table, int index); // NULL before binding
// Total bytes of all regions, or of those with this kind, place, or both.
size_t region_bytes(const struct region_table *table, enum region_kind kind, enum region_place place);
size_t region_kind_bytes(const struct region_table *table, enum region_kind kind);
size_t region_place_bytes(const struct region_table *table, enum region_place place);
size_t region_total_bytes(const struct region_table *table);

#endif
