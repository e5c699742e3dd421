// Optimizer moments in fewer bits than fp32: bf16, and int8 codes with one scale per block of MOMENT_BLOCK
// elements. These are the definitions, one element at a time, used by tests/ref, kernels/cuda, tests and
// the conversion of states. kernels/cpu/isa/optimizer.c does the same arithmetic with vectors, bit for bit.
// C, C++ and CUDA sources can include this file. CUDA sources define MOMENT_FUNCTION before the include to
// compile the functions for the device too.
//
// Stochastic rounding. An update rounds its new moments up or down at random, so that they are unbiased. If
// they were rounded to nearest, they would stop changing. With beta2 = 0.999, a shrinking second moment
// changes by at most a thousandth of itself per step, while half a unit in the last place is at least 1/512
// of it in bf16 and 1/32 in the int8 codes (Gupta et al., arXiv 1502.02551; for bf16 optimizer states,
// Zamirai et al., arXiv 2010.06192). The noise is a hash of the element's number and the step, so repeating
// a step on any device gives the same bits.
//
// int8. Blockwise 8-bit states as in Dettmers et al. (arXiv 2110.02861): a block's scale is its largest
// magnitude, and a code encodes the ratio value / scale. Differences from the paper:
// - Codes are spaced by octaves, eight per octave. The paper's "dynamic tree" is spaced by decades and
//   needs a table of 256 values. Here a code is the upper bits of a float, which every device computes
//   without a table or a search. Rounded to nearest, the relative error is at most 1/16.
// - Rounding is stochastic, for the reason above. The paper rounds to nearest.
// - Blocks have 128 elements, not 2048. A block then spans fewer orders of magnitude, fits into a warp's
//   registers, and its scale costs 4 / 128 bytes per element.
// - A second moment never becomes zero unless its whole block is zero: the smallest code is 1.125 * 2^-32 of
//   the scale. With a zero, the first moment would be divided by epsilon alone; to avoid that, the paper
//   keeps the states of embeddings in 32 bits. A second moment that is exactly zero gets the smallest code
//   too, which is harmless because its first moment is zero. First moments become zero at 2^-16 of their
//   scale, the square root of 2^-32. So a first moment becomes zero before its second moment reaches the
//   smallest code.
//
// The codes:
// - Second moments: code c in 0..255 is the float of bits(1.0f) + (c - 255) * 2^20, from 1.125 * 2^-32 to 1.
// - First moments: a sign bit, then 0 or a code 1..127, likewise from 1.25 * 2^-16 to 1. Values below code
//   1 are rounded as if there were a next code down, 1.125 * 2^-16, and become 0 instead of it. Rounding at
//   random between 0 and code 1 would now and then make a small first moment far too large for its second.
// - A block of zeros has scale 0. A block that contains an infinity or a NaN has scale NaN and codes 0, and
//   all its elements read as NaN.
#ifndef ZERO_KERNELS_MOMENTS_H
#define ZERO_KERNELS_MOMENTS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/dtype.h"

#ifndef MOMENT_FUNCTION
#    define MOMENT_FUNCTION static inline
#endif

#define MOMENT_BLOCK 128

enum moment { FIRST_MOMENT, SECOND_MOMENT }; // m, signed; v, never negative

// ---- noise for stochastic rounding

// Odd, so that element * MOMENT_STRIDE modulo 2^32 differs between elements less than 2^32 apart.
#define MOMENT_STRIDE     0x9e3779b1u
#define MOMENT_MULTIPLIER 0xd35a2d97u

// A hash in which every bit of x affects every bit of the result (C. Wellons, "Prospecting for Hash
// Functions", 2018). It makes an element's noise at one step independent of its noise at any other step.
MOMENT_FUNCTION uint32_t moment_mix(uint32_t x) {
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

// The step's key, for moment_noise and moment_code_noise.
MOMENT_FUNCTION uint32_t moment_noise_key(int64_t step) {
    return moment_mix((uint32_t)step + moment_mix((uint32_t)((uint64_t)step >> 32) + 0x85ebca6bu));
}

// 32 bits of noise for one element at one step. In bf16, m uses the lower half and v the upper half. Elements
// 2^32 apart get the same noise. One round of xor, shift and multiply is enough, since the key is well mixed.
MOMENT_FUNCTION uint32_t moment_noise(uint32_t key, uint64_t element) {
    uint32_t x = (uint32_t)element * MOMENT_STRIDE + key;
    return (x ^ x >> 17) * MOMENT_MULTIPLIER;
}

// ---- bf16 moments

MOMENT_FUNCTION uint32_t moment_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

MOMENT_FUNCTION float moment_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// Rounds to bf16: adds 16 bits of noise to the lower 16 bits of the value, then truncates them. Infinity
// stays infinity, as its lower bits are zero; NaN becomes 0x7fc0.
MOMENT_FUNCTION uint16_t moment_to_bf16(float value, enum moment moment, uint32_t noise) {
    if (value != value)
        return 0x7fc0;
    return (uint16_t)((moment_bits(value) + (moment == FIRST_MOMENT ? noise & 0xffffu : noise >> 16)) >> 16);
}

// ---- int8 moments

// A code is the upper 12 bits of the float value / scale, without the sign, minus MOMENT_CODE_ZERO; not below
// 0. First moments keep the sign in bit 7.
#define MOMENT_CODE_SHIFT 20
#define MOMENT_CODE_ZERO(moment)                                                                             \
    ((0x3f800000u >> MOMENT_CODE_SHIFT) - ((moment) == FIRST_MOMENT ? 127u : 255u))
#define MOMENT_NEAREST (1u << (MOMENT_CODE_SHIFT - 1)) // used as noise: rounds to nearest
// The smallest scale of a block that is not all zero. From this scale up, every code decodes to a different
// float.
#define MOMENT_LEAST_SCALE 0x1p-110f

// The noise for a code: at least 8 and at most 2^20 - 8, so that a value that differs by one or two
// roundings from what a code decodes to still gets that code. Two elements MOMENT_PAIR apart share one
// hash: m of one element and v of the other use the same half of it.
#define MOMENT_PAIR 16
MOMENT_FUNCTION uint32_t moment_code_noise(enum moment moment, uint32_t key, uint64_t element) {
    uint32_t noise = moment_noise(key, element & ~(uint64_t)MOMENT_PAIR);
    bool upper = (moment == SECOND_MOMENT) != ((element & MOMENT_PAIR) != 0);
    return (upper ? noise >> 16 : noise & 0xffffu) << 4 | 8u;
}

// Returns a block's scale. `largest` is the maximum of the bits of its elements, without signs and compared
// as integers, so that NaN exceeds any number. Scales are limited such that moment_inverse is neither
// infinite nor zero for a finite block that has a nonzero element.
MOMENT_FUNCTION float moment_scale(uint32_t largest) {
    if (largest >= 0x7f800000u)
        return moment_float(0x7fc00000u);
    float scale = moment_float(largest);
    return largest != 0 && scale < MOMENT_LEAST_SCALE ? MOMENT_LEAST_SCALE : scale;
}

// The factor that turns a value into value / scale; 0 makes all codes 0.
MOMENT_FUNCTION float moment_inverse(float scale) {
    return scale > 0 ? 1.0f / scale : 0.0f;
}

// Returns the code of a value. `inverse` is moment_inverse of its block's scale; `noise` is
// moment_code_noise() or MOMENT_NEAREST. value / scale exceeds 1 by at most two roundings, so no code
// overflows.
MOMENT_FUNCTION uint8_t moment_encode(float value, enum moment moment, float inverse, uint32_t noise) {
    if (inverse == 0)
        return 0;
    uint32_t ratio = (moment_bits(value * inverse) + noise) >> MOMENT_CODE_SHIFT, magnitude = ratio & 0x7ffu;
    uint32_t code = magnitude > MOMENT_CODE_ZERO(moment) ? magnitude - MOMENT_CODE_ZERO(moment) : 0;
    return (uint8_t)(moment == FIRST_MOMENT ? code | (ratio >> 4 & 0x80u) : code);
}

MOMENT_FUNCTION float moment_decode(uint8_t code, enum moment moment, float scale) {
    uint32_t magnitude = moment == FIRST_MOMENT ? code & 0x7fu : code;
    uint32_t ratio = (magnitude + MOMENT_CODE_ZERO(moment)) << MOMENT_CODE_SHIFT;
    if (moment == FIRST_MOMENT)
        ratio = (magnitude == 0 ? 0 : ratio) | (uint32_t)(code & 0x80u) << 24;
    return moment_float(ratio) * scale;
}

// ---- encoding and decoding of spans, on the host

// In these functions, `state` has n elements of `type`: fp32, bf16 or int8. `scales` is used with int8 only.

// Decodes to floats; exact except for the rounding of code * scale.
void moments_load(enum dtype type, enum moment moment, const void *state, const float *scales, size_t n,
                  float *values);
// Encodes, rounding to nearest. Encoding what moments_load decoded gives the original codes.
void moments_store(enum dtype type, enum moment moment, const float *values, size_t n, void *state,
                   float *scales);
// Encodes with stochastic rounding, as an optimizer step does.
//   key    moment_noise_key() of the step
//   first  index of the first element within the model; in int8 a multiple of MOMENT_BLOCK
void moments_store_step(enum dtype type, enum moment moment, const float *values, size_t n, uint32_t key,
                        uint64_t first, void *state, float *scales);

#endif
