// The order of training data: which source of a mixture each row comes from (mixture_at), and in which
// order the sequences of a source are visited (permutation_at). Both are pure functions of a seed and an
// index, so a resumed run needs only the step number, and all ranks agree.
//
// The source of a row is not drawn at random. The sources are the leaves of a balanced binary tree, and
// each row descends from the root to a leaf. Of the first k rows that reach a node, floor(k * p + phase) go
// left: p is the left subtree's fraction of the node's weight, and the phase, in [0, 1), depends on the
// seed and the node. So the rows of each source are evenly spread: among the first k rows, their number is
// k times the source's share, to within MIXTURE_DISCREPANCY rows. (With independent draws, the error would
// be about the square root of k. Megatron's blended index also bounds the error, but stores an entry per
// row.)
#ifndef ZERO_DATA_ORDER_H
#define ZERO_DATA_ORDER_H

#include <stddef.h>
#include <stdint.h>

#define MIXTURE_MAX_SOURCES 256
#define MIXTURE_DISCREPANCY 9 // maximum of this error, in rows: 1 + log2(MIXTURE_MAX_SOURCES)

struct mixture {
    int n;
    // Element i of both arrays belongs to the tree node whose right subtree begins with source i. The values
    // are in units of 2^-64.
    //   left    fraction of the node's rows that go left
    //   phase   the node's phase
    uint64_t left[MIXTURE_MAX_SOURCES], phase[MIXTURE_MAX_SOURCES];
};

// Prepares a mixture of n sources.
//   weights   (n) finite and above 0, with a finite sum; only their proportions matter
//   n         1 to MIXTURE_MAX_SOURCES
void mixture_init(struct mixture *mixture, const double *weights, int n, uint64_t seed);
// Returns the index of the source of a row. Rows count from 0.
//   index   [out] number of earlier rows from the same source
int mixture_at(const struct mixture *mixture, uint64_t row, uint64_t *index);
// Returns how many of the first n_rows rows come from this source.
uint64_t mixture_count(const struct mixture *mixture, int source, uint64_t n_rows);

// Returns the image of i (below n) under a pseudorandom permutation of 0 .. n - 1 that is chosen by (seed,
// epoch). Uses constant memory: a Feistel network permutes the numbers below a power of four that is at
// least n. The network is applied once or more, until the result is below n (cycle walking; Black and
// Rogaway, "Ciphers with arbitrary finite domains", 2002).
size_t permutation_at(uint64_t seed, uint64_t epoch, size_t n, size_t i);

#endif
