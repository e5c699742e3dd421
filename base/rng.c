// Philox 4x32 with ten rounds; constants from Table 2 of Salmon et al. (SC 2011).
#include "base/rng.h"

#include <math.h>

void rng_block(uint64_t seed, uint32_t stream, uint64_t counter, uint32_t out[4]) {
    uint32_t x0 = (uint32_t)counter, x1 = (uint32_t)(counter >> 32), x2 = stream, x3 = 0;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * x0, p1 = (uint64_t)0xCD9E8D57u * x2;
        uint32_t y0 = (uint32_t)(p1 >> 32) ^ x1 ^ k0, y2 = (uint32_t)(p0 >> 32) ^ x3 ^ k1;
        x1 = (uint32_t)p1;
        x3 = (uint32_t)p0;
        x0 = y0;
        x2 = y2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = x0;
    out[1] = x1;
    out[2] = x2;
    out[3] = x3;
}

static double uniform_from(uint32_t high, uint32_t low) {
    return (double)((((uint64_t)high << 32) | low) >> 11) * 0x1p-53;
}

double rng_uniform(uint64_t seed, uint32_t stream, uint64_t counter) {
    uint32_t r[4];
    rng_block(seed, stream, counter, r);
    return uniform_from(r[0], r[1]);
}

// The upper 64 bits of a 128-bit product, from 32-bit halves: standard C has no 128-bit integers.
static uint64_t multiply_high(uint64_t a, uint64_t b) {
    uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    uint64_t middle = a1 * b0 + (a0 * b0 >> 32);
    uint64_t carry = a0 * b1 + (uint32_t)middle;
    return a1 * b1 + (middle >> 32) + (carry >> 32);
}

uint64_t rng_below(uint64_t seed, uint32_t stream, uint64_t counter, uint64_t bound) {
    uint32_t r[4];
    rng_block(seed, stream, counter, r);
    uint64_t word = ((uint64_t)r[0] << 32) | r[1];
    return multiply_high(word, bound);
}

double rng_normal(uint64_t seed, uint32_t stream, uint64_t counter) {
    uint32_t r[4];
    rng_block(seed, stream, counter, r);
    // 1 - u keeps the logarithm's argument in (0, 1].
    double radius = sqrt(-2.0 * log(1.0 - uniform_from(r[0], r[1])));
    return radius * cos(6.283185307179586476925 * uniform_from(r[2], r[3]));
}
