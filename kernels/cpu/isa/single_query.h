// Attention of one position, for the query heads that share a key-value head. Nothing is packed; each key and
// value is read from memory once for all of these heads. Used for decoding, and for few queries that continue
// a key-value cache.
#ifndef ZERO_KERNELS_CPU_ISA_SINGLE_QUERY_H
#define ZERO_KERNELS_CPU_ISA_SINGLE_QUERY_H

#include <stddef.h>

#include "kernels/cpu/cpu.h"

// n_heads query heads at one position, which sees positions [first, end) of k and v. The rows of q and out of
// consecutive heads are adjacent, D elements each.
struct single_query {
    const void *q, *k, *v;           // [r] type
    void *out;                       // [w] type
    float *lse;                      // [w] the first head's log of the sum of exp of its scores, or NULL
    size_t q_at, k_at, v_at, out_at; // index of the first head's first element; for k and v, at position 0
    size_t k_stride, v_stride;       // between positions of k and of v
    size_t lse_stride;               // between the heads' lse
    int n_heads, first, end, D;
};

// Computes out and lse, from positions [first, end) of k and v.
// Determinism: a head's bits depend on its own query, keys and values only, not on the other heads.
//   memory   [w] scratch of single_query_floats(n_heads, D) floats
void CPU_OP(attend_single_query)(const struct single_query *args, enum dtype type, float *memory);
size_t CPU_OP(single_query_floats)(int n_heads, int D);

// Divides the query heads of a key-value head among tasks if there are fewer key-value heads than threads.
// Returns the number of tasks per key-value head, at most `group`.
static inline int group_parts(size_t n_groups, int group, int n_threads) {
    const size_t wanted = ((size_t)n_threads + n_groups - 1) / n_groups;
    return wanted < (size_t)group ? (int)wanted : group;
}

// Query heads [begin, end) of a key-value head.
struct group_span {
    int begin, end;
};

static inline struct group_span group_span_of(int group, int part, int n_parts) {
    return (struct group_span){group * part / n_parts, group * (part + 1) / n_parts};
}

// Maximum number of query heads per task.
static inline int group_part_heads(int group, int n_parts) {
    return (group + n_parts - 1) / n_parts;
}

#endif
