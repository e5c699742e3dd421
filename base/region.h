// The table of memory regions: every buffer of a run is a row here before it exists. The plan prints the
// table, the trainer allocates exactly it (one arena per kind and place), and metrics compare the two. Relies
// on base/arena for the memory itself.
#ifndef ZERO_BASE_REGION_H
#define ZERO_BASE_REGION_H

#include <stdbool.h>

#include "base/dtype.h"
#include "base/status.h"

// What a region holds. Each kind is one arena per place, so a kind is also a lifetime.
// X(constant, name in plans and metrics)
#define REGION_KINDS(X)                                                                                      \
    X(REGION_PARAMS, "params")               /* weights in the compute type */                               \
    X(REGION_GRADS, "grads")                 /* gradients, fp32 */                                           \
    X(REGION_MASTER, "master")               /* fp32 weights, where the compute type is narrower */          \
    X(REGION_MOMENTS, "moments")             /* optimizer state */                                           \
    X(REGION_COMMUNICATION, "communication") /* units gathered or about to be reduced; exchange of ranks */  \
    X(REGION_ACTIVATIONS, "activations")     /* kept from forward for backward */                            \
    X(REGION_LOGITS, "logits")               /* the classifier's block of rows */                            \
    X(REGION_WORKSPACE, "workspace") /* scratch of operations and of backward, reused unit by unit */        \
    X(REGION_DATA, "data")           /* token batches, losses, norms */

#define REGION_ENUM(constant, name) constant,
enum region_kind { REGION_KINDS(REGION_ENUM) N_REGION_KINDS };
#undef REGION_ENUM

enum region_place { REGION_HOST, REGION_DEVICE, N_REGION_PLACES };

#define REGION_ALIGNMENT 256 // bytes; each region starts at a multiple of it

struct region {
    char name[48];
    enum region_kind kind;
    enum region_place place;
    enum dtype type;
    size_t elements;
    size_t bytes;   // elements x size of type, without the padding to REGION_ALIGNMENT
    size_t offset;  // in its arena
    void *data;     // NULL until region_table_bind
    bool elsewhere; // allocated by its user: counted here, never bound
};

struct region_table {
    struct region *regions;
    int n_regions, capacity;
    size_t arena_bytes[N_REGION_KINDS][N_REGION_PLACES]; // with padding: what is allocated
};

void region_table_init(struct region_table *table);
void region_table_free(struct region_table *table); // frees the rows, never the memory that they point to

// Adds a row and gives its index, by which region_data finds the memory once it is bound. STATUS_FAILED when
// the table cannot grow; STATUS_INVALID when the size overflows size_t.
enum status region_add(struct region_table *table, enum region_kind kind, enum region_place place,
                       enum dtype type, size_t elements, int *index, const char *name_format, ...) MUST_CHECK
    __attribute__((format(printf, 7, 8)));

// Adds a row for bytes that its user allocates: they count, but in no arena.
enum status region_add_elsewhere(struct region_table *table, enum region_kind kind, enum region_place place,
                                 size_t bytes, const char *name) MUST_CHECK;

// Sets `data` of every region of (kind, place) from the arena's first byte (aligned to REGION_ALIGNMENT).
void region_table_bind(struct region_table *table, enum region_kind kind, enum region_place place,
                       void *base);

const char *region_kind_name(enum region_kind kind);
void *region_data(const struct region_table *table, int index);
// The sum of `bytes` over the regions of a kind and place, of a kind, of a place, of all.
size_t region_bytes(const struct region_table *table, enum region_kind kind, enum region_place place);
size_t region_kind_bytes(const struct region_table *table, enum region_kind kind);
size_t region_place_bytes(const struct region_table *table, enum region_place place);
size_t region_total_bytes(const struct region_table *table);

#endif
