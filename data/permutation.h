// A keyed permutation of 0 .. n - 1 that needs no memory: a Feistel network on the next power of four, walked
// until it lands below n (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).
#ifndef ZERO_DATA_PERMUTATION_H
#define ZERO_DATA_PERMUTATION_H

#include <stddef.h>
#include <stdint.h>

// Where position i (below n) goes in the permutation of this seed and epoch.
size_t permutation_at(uint64_t seed, uint64_t epoch, size_t n, size_t i);

#endif
