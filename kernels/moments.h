// Optimizer moments in fewer bits than fp32: bf16, and int8 codes with one scale per block of MOMENT_BLOCK
// elements. These are the definitions, one element at a time, used by tests/ref, kernels/cuda, tests and
// the conversion of states. kernels/cpu/isa/optimizer.c does the same arithmetic with vectors, bit for bit.
// Valid in C and C++. CUDA sources define MOMENT_FUNCTION before the include to compile the functions for the
// device too.
//
// Stochastic rounding. An update rounds its new moments up or down at random, so that they are unbiased.
// Rounded to nearest they would stop changing: with beta2 = 0.999 a shrinking second moment changes
// by at most a thousandth of itself per step, while half a unit in the last place is a 512th in bf16 and a
// 32nd to a 16th in the int8 codes (Gupta et al., arXiv 1502.02551; for bf16 optimizer states, Zamirai et
// al., arXiv 2010.06192). The noise is a hash of the element's number and the step, so repeating a step on
// any device gives the same bits.
//
// int8. Blockwise 8-bit states as in Dettmers et al. (arXiv 2110.02861): a block's scale is its largest
// magnitude, and a code encodes the ratio value / scale. Differences from the paper:
// - Codes are spaced by octaves, eight per octave. The paper's "dynamic tree" is spaced by decades and needs
//   a table of 256 values. Here a code is the upper bits of a float, which every device computes without a
//   table or a search. The largest relative error is 1/16 throughout.
// - Rounding is stochastic, for the reason above. The paper rounds to nearest; its coarser steps still move,
//   since their error reaches half of a value.
// - Blocks have 128 elements, not 2048. A block then spans fewer orders of magnitude, fits into a warp's
//   registers, and its scale costs 4 / 128 bytes per element.
// - A second moment never becomes zero beside larger ones. A zero would divide the first moment by epsilon
//   alone, which is why the paper keeps embeddings in 32 bits. The smallest code of a second moment is 2^-32
//   of the scale. That is as good as zero for a second moment that is zero, since its first moment is zero
//   too. The first moment's range is the square root of the second's, so a first moment reaches zero before
//   its second reaches the bottom.
//
// The codes:
// - Second moments: code c in 0..255 is the float of bits(1.0f) + (c - 255) * 2^20, from 1.125 * 2^-32 to 1.
// - First moments: a sign bit, then 0 or a code 1..127, likewise from 1.25 * 2^-16 to 1. Values below are
//   rounded to 0 as if 1.125 * 2^-16, the next code down, existed. Rounding at random between 0 and code 1
//   would now and then make a small first moment many times too large for its second.
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

// ---- noise

#define MOMENT_STRIDE     0x9e3779b1u // odd: element * MOMENT_STRIDE is distinct for distinct elements
#define MOMENT_MULTIPLIER 0xd35a2d97u

// A hash in which every bit of x affects every bit of the result (C. Wellons, "Prospecting for Hash
// Functions", 2018). It makes an element's noise at one step independent of that at any other.
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

// ---- bf16

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

// Adds the noise to the bits that are truncated. Infinity stays infinity, as its lower bits are zero; NaN
// becomes 0x7fc0.
MOMENT_FUNCTION uint16_t moment_to_bf16(float value, enum moment moment, uint32_t noise) {
    if (value != value)
        return 0x7fc0;
    return (uint16_t)((moment_bits(value) + (moment == FIRST_MOMENT ? noise & 0xffffu : noise >> 16)) >> 16);
}

// ---- int8

// Codes are the upper 12 bits of value / scale as a float. Code 0 corresponds to MOMENT_CODE_ZERO.
#define MOMENT_CODE_SHIFT 20
#define MOMENT_CODE_ZERO(moment)                                                                             \
    ((0x3f800000u >> MOMENT_CODE_SHIFT) - ((moment) == FIRST_MOMENT ? 127u : 255u))
#define MOMENT_NEAREST (1u << (MOMENT_CODE_SHIFT - 1)) // used as noise: rounds to nearest
// The smallest scale of a block that is not all zero: above it every code decodes to a distinct float.
#define MOMENT_LEAST_SCALE 0x1p-110f

// The noise for a code: at least 8 and at most 2^20 - 8, so that a value one or two roundings away from a
// code's own value still gets that code. Two elements MOMENT_PAIR apart share one hash: m of one element and
// v of the other use the same half of it.
#define MOMENT_PAIR 16
MOMENT_FUNCTION uint32_t moment_code_noise(enum moment moment, uint32_t key, uint64_t element) {
    uint32_t noise = moment_noise(key, element & ~(uint64_t)MOMENT_PAIR);
    bool upper = (moment == SECOND_MOMENT) != ((element & MOMENT_PAIR) != 0);
    return (upper ? noise >> 16 : noise & 0xffffu) << 4 | 8u;
}

// A block's scale. largest: the maximum of its elements' bits without signs, so that NaN exceeds any number.
// Scales are limited such that moment_inverse is neither infinite nor zero for a finite block that has a
// nonzero element.
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

// noise: moment_code_noise() or MOMENT_NEAREST. value / scale exceeds 1 by at most two roundings, so no code
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

// ---- spans, on the host

// `state` holds n elements of fp32, bf16 or int8; `scales` is used with int8 only.

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
