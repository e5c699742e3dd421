// An exact sum of numbers >= 0 in double: a fixed-point number that is wide enough for all of them (Kulisch,
// "Computer Arithmetic and Validity", 2008). Integer additions give the same bits in any order, so threads,
// GPU blocks, offload, spans and ranks may add as they come. Valid in C and C++; CUDA sources define
// EXACT_FUNCTION before the include to compile the functions for the GPU as well.
#ifndef ZERO_KERNELS_EXACT_SUM_H
#define ZERO_KERNELS_EXACT_SUM_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifndef EXACT_FUNCTION
#    define EXACT_FUNCTION static inline
#endif

// A sum has EXACT_LIMBS limbs of 32 bits, each in 64 bits: a limb holds the carries of up to 2^31 additions,
// over all ranks. Bit 0 of limb 0 is 2^EXACT_LEAST, the square of the smallest fp32 number. Two words follow:
// how many of the numbers were infinite, and how many NaN.
#define EXACT_LIMBS    18
#define EXACT_INFINITE EXACT_LIMBS
#define EXACT_NAN      (EXACT_LIMBS + 1)
#define EXACT_WORDS    (EXACT_LIMBS + 2)
#define EXACT_LEAST    (-298)

// What a number adds to the words of a sum: part[i] to word first + i.
struct exact_parts {
    int first, n;
    uint64_t part[3];
};

// value: a multiple of 2^EXACT_LEAST, at least 0 and below 2^277; or not finite.
EXACT_FUNCTION struct exact_parts exact_parts_of(double value) {
    struct exact_parts parts = {0, 0, {0, 0, 0}};
    uint64_t bits;
    if (value == 0)
        return parts;
    if (value - value != 0) {
        parts.first = value != value ? EXACT_NAN : EXACT_INFINITE;
        parts.n = 1;
        parts.part[0] = 1;
        return parts;
    }
    memcpy(&bits, &value, sizeof bits);
    uint64_t mantissa = (bits & ((UINT64_C(1) << 52) - 1)) | UINT64_C(1) << 52;
    int shift = (int)(bits >> 52) - 1075 - EXACT_LEAST; // value = mantissa 2^(shift + EXACT_LEAST)
    if (shift < 0) {
        mantissa >>= -shift; // bits that are 0
        shift = 0;
    }
    const int by = shift % 32;
    parts.first = shift / 32;
    parts.n = 3;
    parts.part[0] = (mantissa << by) & 0xffffffff;
    parts.part[1] = (mantissa >> (32 - by)) & 0xffffffff;
    parts.part[2] = mantissa >> 32 >> (32 - by);
    return parts;
}

// Returns the sum, rounded once to the nearest double.
//   words   (EXACT_WORDS)
EXACT_FUNCTION double exact_value(const int64_t *words) {
    uint64_t digits[EXACT_LIMBS + 3] = {0}; // of 32 bits, two zeros before the lowest
    int64_t carry = 0;
    if (words[EXACT_NAN] > 0)
        return NAN;
    if (words[EXACT_INFINITE] > 0)
        return INFINITY;
    for (int i = 0; i < EXACT_LIMBS; i++) {
        const int64_t limb = words[i] + carry;
        digits[i + 2] = (uint64_t)limb & 0xffffffff;
        carry = limb >> 32;
    }
    digits[EXACT_LIMBS + 2] = (uint64_t)carry;
    int top = EXACT_LIMBS + 2;
    while (top > 2 && digits[top] == 0)
        top--;
    if (digits[top] == 0)
        return 0;
    // The leading 64 bits. The lowest of them also says whether any bit below is set, which is what rounding
    // to 53 bits needs.
    uint64_t leading = digits[top] << 32 | digits[top - 1], next = digits[top - 2], below = 0;
    int exponent = 32 * (top - 3) + EXACT_LEAST;
    for (int i = 0; i < top - 2; i++)
        below |= digits[i];
    for (; leading >> 63 == 0; exponent--) {
        leading = leading << 1 | next >> 31;
        next = next << 1 & 0xffffffff;
    }
    return ldexp((double)(leading | (next | below ? 1 : 0)), exponent);
}

#endif
