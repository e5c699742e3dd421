// Which source each row of a data mixture comes from. It is a pure function of (seed, row), so a resumed run
// needs only the step number, and every rank computes the same.
//
// Rows are not drawn at random. Sources are the leaves of a balanced binary tree. At each node, a Bresenham
// line divides the arriving rows in proportion p : 1 - p. Of the first k rows, floor(k p + phase) go left;
// the phase in [0, 1) is keyed by the seed. Among any first k rows, a source thus has its share of k, to
// within MIXTURE_DISCREPANCY rows, and its rows are evenly spread. (Megatron's blended index has the same
// error bound, but stores an entry per row. Independent draws would be off by about the square root of k.)
#ifndef ZERO_DATA_ORDER_H
#define ZERO_DATA_ORDER_H

#include <stddef.h>
#include <stdint.h>

#define MIXTURE_MAX_SOURCES 256
#define MIXTURE_DISCREPANCY 9 // 1 + log2(MIXTURE_MAX_SOURCES)

struct mixture {
    int n;
    // For the node between sources i - 1 and i, in units of 2^-64: the fraction of rows that go left, and the
    // phase.
    uint64_t left[MIXTURE_MAX_SOURCES], phase[MIXTURE_MAX_SOURCES];
};

// Prepares a mixture of n sources.
//   weights   (n) finite and above 0, with a finite sum; only their proportions matter. 1 <= n <=
//             MIXTURE_MAX_SOURCES
void mixture_init(struct mixture *mixture, const double *weights, int n, uint64_t seed);
// Returns the source of a row, counted from 0.
//   index   [out] number of earlier rows from the same source
int mixture_at(const struct mixture *mixture, uint64_t row, uint64_t *index);
// Returns how many of the first n_rows rows come from this source.
uint64_t mixture_count(const struct mixture *mixture, int source, uint64_t n_rows);

// A keyed pseudorandom permutation of 0 .. n - 1 in constant memory: a Feistel network over the next power of
// four, applied repeatedly until the result is below n (cycle walking; Black and Rogaway, "Ciphers with
// arbitrary finite domains", 2002).
// Returns the image of i (below n) under the permutation for (seed, epoch).
size_t permutation_at(uint64_t seed, uint64_t epoch, size_t n, size_t i);

#endif
