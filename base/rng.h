// Counter-based random numbers: each value is a pure function of (seed, stream, counter), so any rank can
// draw any element without drawing the ones before it. Philox 4x32-10 (Salmon et al., SC 2011).
#ifndef ZERO_BASE_RNG_H
#define ZERO_BASE_RNG_H

#include <stdint.h>

// Streams make the uses of one seed independent. Parameter tensor i draws from RNG_STREAM_INIT + i.
enum rng_stream {
    RNG_STREAM_SHUFFLE = 1,
    RNG_STREAM_SAMPLE = 2,
    RNG_STREAM_MIXTURE = 3,
    RNG_STREAM_INIT = 1 << 16,
};

// Sets `out` to the four random 32-bit words of (seed, stream, counter).
void rng_block(uint64_t seed, uint32_t stream, uint64_t counter, uint32_t out[4]);
// Uniform in [0, 1) with 53 random bits.
double rng_uniform(uint64_t seed, uint32_t stream, uint64_t counter);
// Uniform in [0, bound), bound > 0, by a 64-bit multiply-high: the bias is at most bound / 2^64.
uint64_t rng_below(uint64_t seed, uint32_t stream, uint64_t counter, uint64_t bound);
// Standard normal, by Box-Muller in double; uses one counter per value.
double rng_normal(uint64_t seed, uint32_t stream, uint64_t counter);

#endif
