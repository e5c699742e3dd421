// Six rounds, each keyed by Philox of (epoch, round, half).
#include "data/permutation.h"

#include "base/rng.h"

#define ROUNDS 6

size_t permutation_at(uint64_t seed, uint64_t epoch, size_t n, size_t i) {
    int half_bits = 1;
    while (half_bits < 32 && (uint64_t)1 << (2 * half_bits) < n)
        half_bits++;
    uint64_t mask = ((uint64_t)1 << half_bits) - 1, value = i;
    do {
        uint64_t left = value >> half_bits, right = value & mask;
        for (uint64_t round = 0; round < ROUNDS; round++) {
            uint32_t word[4];
            // Seed and epoch are the key; the right half and the round are the counter.
            rng_block(seed ^ (epoch * 0x9E3779B97F4A7C15u), RNG_STREAM_SHUFFLE, round << 32 | right, word);
            uint64_t next = left ^ (word[0] & mask);
            left = right;
            right = next;
        }
        value = left << half_bits | right;
    } while (value >= n);
    return value;
}
