// Counter-based random numbers: each value is a pure function of (seed, stream, counter), so that any rank
// can draw any element without drawing those before it. Philox 4x32-10 (Salmon et al., SC 2011).
#ifndef ZERO_BASE_RNG_H
#define ZERO_BASE_RNG_H

#include <stdint.h>

// Streams keep uses of one seed apart. Parameter tensors use RNG_STREAM_INIT + tensor index.
enum rng_stream {
    RNG_STREAM_SHUFFLE = 1,
    RNG_STREAM_SAMPLE = 2,
    RNG_STREAM_INIT = 1 << 16,
};

// Four 32-bit words for (seed, stream, counter).
void rng_block(uint64_t seed, uint32_t stream, uint64_t counter, uint32_t out[4]);
// Uniform in [0, 1) with 53 bits.
double rng_uniform(uint64_t seed, uint32_t stream, uint64_t counter);
// Uniform in [0, bound), bound > 0, without modulo bias worth speaking of (64-bit multiply-high).
uint64_t rng_below(uint64_t seed, uint32_t stream, uint64_t counter, uint64_t bound);
// Standard normal (Box-Muller in double; one counter a value).
double rng_normal(uint64_t seed, uint32_t stream, uint64_t counter);

#endif
