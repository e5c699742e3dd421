// A keyed pseudorandom permutation of 0 .. n - 1 in constant memory: a Feistel network over the next power of
// four, applied repeatedly until the result is below n (cycle walking; Black and Rogaway, "Ciphers with
// arbitrary finite domains", 2002).
#ifndef ZERO_DATA_PERMUTATION_H
#define ZERO_DATA_PERMUTATION_H

#include <stddef.h>
#include <stdint.h>

// The image of i (below n) under the permutation for (seed, epoch).
size_t permutation_at(uint64_t seed, uint64_t epoch, size_t n, size_t i);

#endif
