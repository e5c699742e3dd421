// How an optimizer's moments are kept in fewer bits than fp32: bf16, and 8-bit codes with a scale for each
// block. The definitions, one element at a time, for kernels/ref, kernels/cuda, tests, and the conversion of
// states; kernels/cpu/isa/optimizer.c does the same arithmetic with vectors, bit for bit. Valid in C and in
// C++; in CUDA, where the includer defines MOMENT_FUNCTION to say so, on the device too.
//
// Stochastic rounding. An update stores its moments rounded up or down at random, so that the mean is right.
// To nearest they would stand still: with beta2 = 0.999 a second moment changes by at most a thousandth of
// itself a step while it shrinks, and half a step of bf16 is a 512th, of the codes below a 32nd to a 16th
// (Gupta et al., arXiv 1502.02551; for bf16 optimizer states, Zamirai et al., arXiv 2010.06192). The noise is
// a hash of the element's number and the step, so a step is the same wherever and however often it is taken.
//
// int8. Blockwise 8-bit states as of Dettmers et al. (arXiv 2110.02861): a block's scale is its largest
// magnitude, and a code is a value's share of the scale. Where this differs from the paper:
// - Codes step through octaves, eight to an octave, where the paper's "dynamic tree" steps through decades
//   with a table of 256 values: a code is then the upper bits of a float, which every device can make without
//   a table or a search, and the largest relative error is 1/16 throughout.
// - Rounding is stochastic, for the reason above. The paper rounds to nearest; its coarser steps move because
//   the error there is up to half of a value.
// - Blocks are of 128 elements, not 2048: a block's range is then narrower, a warp's registers hold it, and
//   the scales cost 4 / 128 of a byte.
// - A second moment never becomes zero beside larger ones, which would divide a first moment by epsilon: the
//   fault for which the paper keeps embeddings in 32 bits. Its smallest code is 2^-32 of the scale, which for
//   one that is zero is as good: its first moment is zero too. The first moment's range is the root of the
//   second's, so that a first moment is zero before its second is at the bottom.
//
// The codes. Second moments: code c in 0..255 is the float of bits(1.0f) + (c - 255) * 2^20, from 1.125 *
// 2^-32 to 1. First moments: a sign bit, 0, and codes 1..127 likewise from 1.25 * 2^-16 to 1; below that they
// become 0 as if the next code down were, which is 1.125 * 2^-16: rounded at random between 0 and code 1, a
// small one would now and then be many times too large for its second moment. A block of zeros has the scale
// 0. One that holds an infinity or a NaN has the scale NaN and codes 0, and reads as NaN throughout.
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

#define MOMENT_STRIDE     0x9e3779b1u // what an element's number is multiplied by: odd, so no two meet
#define MOMENT_MULTIPLIER 0xd35a2d97u

// Each bit of x in every bit of the result (C. Wellons, "Prospecting for Hash Functions", 2018): it makes an
// element's noise at one step independent of that at any other.
MOMENT_FUNCTION uint32_t moment_mix(uint32_t x) {
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

MOMENT_FUNCTION uint32_t moment_noise_key(int64_t step) {
    return moment_mix((uint32_t)step + moment_mix((uint32_t)((uint64_t)step >> 32) + 0x85ebca6bu));
}

// 32 bits for an element's step: of bf16, the lower half is for m, the upper for v. Elements 2^32 apart share
// theirs. The key is well mixed, so that a third of its mixing is enough to tell elements of one step apart.
MOMENT_FUNCTION uint32_t moment_noise(uint32_t key, uint64_t element) {
    uint32_t x = (uint32_t)element * MOMENT_STRIDE + key;
    return (x ^ x >> 17) * MOMENT_MULTIPLIER;
}

// ---- bf16: noise is added to the bits that are cut off

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

// An infinity stays, as its lower bits are zero, and NaN is 0x7fc0.
MOMENT_FUNCTION uint16_t moment_to_bf16(float value, enum moment moment, uint32_t noise) {
    if (value != value)
        return 0x7fc0;
    return (uint16_t)((moment_bits(value) + (moment == FIRST_MOMENT ? noise & 0xffffu : noise >> 16)) >> 16);
}

// ---- int8

// A value's share of the scale, as a float's bits, is cut to its upper 12; those of code 0 are subtracted.
#define MOMENT_CODE_SHIFT 20
#define MOMENT_CODE_ZERO(moment)                                                                             \
    ((0x3f800000u >> MOMENT_CODE_SHIFT) - ((moment) == FIRST_MOMENT ? 127u : 255u))
#define MOMENT_NEAREST (1u << (MOMENT_CODE_SHIFT - 1)) // in place of noise
// Of a block that is not all zero: from here on each code has a float of its own.
#define MOMENT_LEAST_SCALE 0x1p-110f

// The noise for a code, below 2^20 by at least 8, and at least 8: a value that a rounding or two put beside a
// code's own gets that code. Of elements MOMENT_PAIR apart one's m has what the other's v has, so that two
// need one hash.
#define MOMENT_PAIR 16
MOMENT_FUNCTION uint32_t moment_code_noise(enum moment moment, uint32_t key, uint64_t element) {
    uint32_t noise = moment_noise(key, element & ~(uint64_t)MOMENT_PAIR);
    bool upper = (moment == SECOND_MOMENT) != ((element & MOMENT_PAIR) != 0);
    return (upper ? noise >> 16 : noise & 0xffffu) << 4 | 8u;
}

// A block's scale, from the largest of its elements' bits without their signs (so that NaN counts as more
// than any number), and what its elements are multiplied by to have their share of it. Scales are never so
// large or small that this were infinite or zero; zero says that all codes are 0.
MOMENT_FUNCTION float moment_scale(uint32_t largest) {
    if (largest >= 0x7f800000u)
        return moment_float(0x7fc00000u);
    float scale = moment_float(largest);
    return largest != 0 && scale < MOMENT_LEAST_SCALE ? MOMENT_LEAST_SCALE : scale;
}

MOMENT_FUNCTION float moment_inverse(float scale) {
    return scale > 0 ? 1.0f / scale : 0.0f;
}

// `noise` is moment_code_noise() or MOMENT_NEAREST. No share is above 1 by more than two roundings, so no
// code is above the top one.
MOMENT_FUNCTION uint8_t moment_encode(float value, enum moment moment, float inverse, uint32_t noise) {
    if (inverse == 0)
        return 0;
    uint32_t share = (moment_bits(value * inverse) + noise) >> MOMENT_CODE_SHIFT, magnitude = share & 0x7ffu;
    uint32_t code = magnitude > MOMENT_CODE_ZERO(moment) ? magnitude - MOMENT_CODE_ZERO(moment) : 0;
    return (uint8_t)(moment == FIRST_MOMENT ? code | (share >> 4 & 0x80u) : code);
}

MOMENT_FUNCTION float moment_decode(uint8_t code, enum moment moment, float scale) {
    uint32_t magnitude = moment == FIRST_MOMENT ? code & 0x7fu : code;
    uint32_t share = (magnitude + MOMENT_CODE_ZERO(moment)) << MOMENT_CODE_SHIFT;
    if (moment == FIRST_MOMENT)
        share = (magnitude == 0 ? 0 : share) | (uint32_t)(code & 0x80u) << 24;
    return moment_float(share) * scale;
}

// ---- spans, on the host. `state` holds n elements of fp32, bf16 or int8, with `scales` for int8.

// To floats; exact but for the rounding of a product by the scale.
void moments_load(enum dtype type, enum moment moment, const void *state, const float *scales, size_t n,
                  float *values);
// To the nearest; what moments_load gave becomes what it came from.
void moments_store(enum dtype type, enum moment moment, const float *values, size_t n, void *state,
                   float *scales);
// As an optimizer's step stores them: key is moment_noise_key() of the step, first the number of the first
// element.
void moments_store_step(enum dtype type, enum moment moment, const float *values, size_t n, uint32_t key,
                        uint64_t first, void *state, float *scales);

#endif
