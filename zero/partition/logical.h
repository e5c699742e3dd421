// Logical ranks: how many ranks a run's sums are defined for (train.logical_ranks, L). The run's bits are
// those of L ranks, on any number of ranks R that can take their places: R is L, or a power of two that
// divides L. Each rank then plays S = L / R logical ranks, one after another: number j of rank r is logical
// rank j R + r.
//
// A leaf is what a logical rank adds to one sum over ranks. The tree over L leaves (zero/comm/sum_tree.h) has
// two parts: the collective over R ranks sums the leaves of one j, and a binary counter of partial sums,
// which are sharded like the collective's result, adds these sums for j = 0, 1, ... S - 1. As in a binary
// number, each partial sum covers a power of two of them, and equal ones are added at once:
//
//   j = 0   partial 0 = leaves of 0
//   j = 1   partial 0 = leaves of 0 and 1
//   j = 2   partial 0, and partial 1 = leaves of 2
//   j = 3   partial 1 = leaves of 2 and 3, then partial 0 = leaves of 0 to 3
//
// There are two orders of micro-batches. A leaf is a logical rank's whole step, if gradients are reduced once
// per step; or its micro-batch, if they are reduced after every micro-batch. Then the sum over leaves is
// added to the shard, in order of micro-batches.
#ifndef ZERO_ZERO_PARTITION_LOGICAL_H
#define ZERO_ZERO_PARTITION_LOGICAL_H

#include <stdbool.h>
#include <stdint.h>

#define LOGICAL_MOST_PARTIALS 16 // of the binary counter: 2^16 logical ranks per rank

struct logical {
    int n, world; // L and R
    bool every;   // gradients are reduced after every micro-batch
};

static inline int logical_per_rank(const struct logical *logical) {
    return logical->n / logical->world;
}

// A micro-batch of a rank, in its order of the step.
struct logical_micro_batch {
    int j;           // which of the rank's logical ranks computes it
    int64_t k;       // its number among the micro-batches of that logical rank
    bool is_reduced; // the leaf is complete after it
    int partial;     // the partial sum to which the leaf is reduced
    bool adds;       // the leaf is added to that partial sum; false: overwrites it
    int n_folds;     // how many times the last partial sum is then added to the one before
    bool adds_shard; // then partial 0 is added to the shard, which has the earlier micro-batches
};

static inline int logical_ones(int j) {
    int ones = 0;
    for (; j > 0; j /= 2)
        ones += j % 2;
    return ones;
}

// The partial sum of the leaves of j. j / 2 partial sums of pairs exist before, in as many places as j / 2
// has ones.
static inline int logical_partial(int j) {
    return logical_ones(j / 2);
}

// How many partial sums a rank needs; 0: it computes one logical rank.
static inline int logical_partials(const struct logical *logical) {
    int n = 0;
    for (int j = 1; j < logical_per_rank(logical); j++)
        n = logical_partial(j) >= n ? logical_partial(j) + 1 : n;
    return n;
}

// Micro-batch i of a rank's S K in a step, K per logical rank.
static inline struct logical_micro_batch logical_micro_batch_of(const struct logical *logical, int64_t i,
                                                                int64_t per_logical_rank) {
    const int S = logical_per_rank(logical);
    struct logical_micro_batch at = {.j = (int)(logical->every ? i % S : i / per_logical_rank),
                                     .k = logical->every ? i / S : i % per_logical_rank};
    at.is_reduced = logical->every || at.k == per_logical_rank - 1;
    at.partial = logical_partial(at.j);
    at.adds = S == 1 ? logical->every && at.k > 0 : at.j % 2 == 1;
    if (at.j == S - 1) // the counter ends: everything is added
        at.n_folds = at.partial;
    else
        for (int bits = at.j / 2; at.j % 2 == 1 && bits % 2 == 1; bits /= 2)
            at.n_folds++;
    at.adds_shard = S > 1 && at.j == S - 1 && logical->every && at.k > 0;
    return at;
}

// Whether partial 0 is the shard. It is not where the shard has earlier micro-batches, to which the sum of
// the leaves is added when it is complete.
static inline bool logical_is_in_shard(const struct logical *logical, const struct logical_micro_batch *at) {
    return logical_per_rank(logical) == 1 || !logical->every || at->k == 0;
}

// The first row of the micro-batch, of `rows` rows, in the global batch of the step.
static inline int64_t logical_first_row(const struct logical *logical, const struct logical_micro_batch *at,
                                        int rank, int64_t rows) {
    return (at->k * logical->n + (int64_t)at->j * logical->world + rank) * rows;
}

#endif
