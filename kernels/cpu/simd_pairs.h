// Pairs of bf16, for kernels/cpu/isa: a vu of VF_WIDTH pairs, the first number of each in the lower half.
#ifndef ZERO_KERNELS_CPU_SIMD_PAIRS_H
#define ZERO_KERNELS_CPU_SIMD_PAIRS_H

#include <stdbool.h>

#include "kernels/cpu/simd.h"

// Where the processor multiplies pairs (VF_PAIRS), subnormal numbers count as 0.

#if defined(VF_AVX512) && defined(__AVX512BF16__)
#    define VF_PAIRS 1
#else
#    define VF_PAIRS 0
#endif

// Matrix units multiply pairs (isa/matrix_units.h). Processors that have them multiply vectors of pairs at a
// quarter of fp32's rate.
#if VF_PAIRS && (defined(__AMX_BF16__) || defined(__AMXBF16__)) // gcc's name, and clang 14's
#    define VF_MATRIX_UNITS 1
#else
#    define VF_MATRIX_UNITS 0
#endif

// True if numbers of this type are multiplied in pairs: by tiles.h, and by vectors.
VF_INLINE bool multiplies_pairs(enum dtype type) {
    return VF_PAIRS && type == DTYPE_BF16;
}
VF_INLINE bool vectors_multiply_pairs(enum dtype type) {
    return multiplies_pairs(type) && !VF_MATRIX_UNITS;
}

// sum + first a * first b + second a * second b
VF_INLINE vf vf_add_pair_products(vu a, vu b, vf sum) {
#if VF_PAIRS
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
#else
    sum = vf_fma((vf)(a << 16), (vf)(b << 16), sum);
    return vf_fma((vf)(a & 0xffff0000u), (vf)(b & 0xffff0000u), sum);
#endif
}

// Pairs of neighbours in the order a, b: the memory layout of a and b stored as bf16.
VF_INLINE vu vu_from_neighbours(vf a, vf b) {
#if VF_PAIRS
    return (vu)_mm512_cvtne2ps_pbh(b, a);
#else
    vu pairs;
    vh halves[2] = {vf_downcast_bf16(a), vf_downcast_bf16(b)};
    memcpy(&pairs, halves, sizeof pairs);
    return pairs;
#endif
}

#if VF_PAIRS
// Pairs of number i of the lower half and number i of the upper.
VF_INLINE vu vu_interleave_halves(__m512i halves) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23,
                                           7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return (vu)_mm512_permutexvar_epi16(order, halves);
}
#endif

// Pairs of lane i of a and lane i of b.
VF_INLINE vu vu_from_two(vf a, vf b) {
#if VF_PAIRS
    return vu_interleave_halves((__m512i)_mm512_cvtne2ps_pbh(b, a));
#else
    return __builtin_convertvector(vf_downcast_bf16(a), vu) | __builtin_convertvector(vf_downcast_bf16(b), vu)
                                                                  << 16;
#endif
}

VF_INLINE vu vu_from_pairs(vh first, vh second) {
#if VF_PAIRS
    const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512((__m256i)first), (__m256i)second, 1);
    return vu_interleave_halves(both);
#else
    return __builtin_convertvector(first, vu) | __builtin_convertvector(second, vu) << 16;
#endif
}

// The pairs of n numbers, n at most 2 VF_WIDTH; zeros past them.
VF_INLINE vu vu_load_pairs(const uint16_t *from, int n) {
    vu pairs = {0};
    if (n == 2 * VF_WIDTH) {
        memcpy(&pairs, from, sizeof pairs);
        return pairs;
    }
#if defined(VF_AVX512)
    return (vu)_mm512_maskz_loadu_epi16(((__mmask32)1 << n) - 1, from);
#else
    memcpy(&pairs, from, (size_t)n * sizeof *from);
    return pairs;
#endif
}

#endif
