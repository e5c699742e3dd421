// 8- and 16-bit integers for the vectors of kernels/cpu/simd.h. Bytes are loaded as a vu. Four vu of small
// numbers are packed together, through two vectors of 16-bit numbers (vw), on which half as many instructions
// do the rest.
#ifndef ZERO_KERNELS_CPU_SIMD_BYTES_H
#define ZERO_KERNELS_CPU_SIMD_BYTES_H

#include "kernels/cpu/simd.h"

typedef uint16_t vw __attribute__((vector_size(VF_WIDTH * 4)));

VF_INLINE vu vu_load_bytes(const uint8_t *from) {
#if defined(VF_AVX512)
    return (vu)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)from));
#elif defined(VF_AVX2)
    return (vu)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)from));
#else
    uint8_t bytes __attribute__((vector_size(VF_WIDTH)));
    memcpy(&bytes, from, sizeof bytes);
    return __builtin_convertvector(bytes, vu);
#endif
}

// Sign-extends.
VF_INLINE vu vu_load_signed_bytes(const uint8_t *from) {
#if defined(VF_AVX512)
    return (vu)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)from));
#elif defined(VF_AVX2)
    return (vu)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)from));
#else
    int8_t bytes __attribute__((vector_size(VF_WIDTH)));
    memcpy(&bytes, from, sizeof bytes);
    return (vu) __builtin_convertvector(bytes, vi);
#endif
}

// Per lane: test & mask ? a + b : other.
VF_INLINE vu vu_add_where(vu test, uint32_t mask, vu a, vu b, vu other) {
#if defined(VF_AVX512)
    __mmask16 lanes = _mm512_test_epi32_mask((__m512i)test, _mm512_set1_epi32((int)mask));
    return (vu)_mm512_mask_add_epi32((__m512i)other, lanes, (__m512i)a, (__m512i)b);
#else
    vu lanes = (vu)((test & mask) != 0);
    return (lanes & (a + b)) | (~lanes & other);
#endif
}

VF_INLINE vu vu_max(vu a, vu b) {
#if defined(VF_AVX512)
    return (vu)_mm512_max_epu32((__m512i)a, (__m512i)b);
#elif defined(VF_AVX2)
    return (vu)_mm256_max_epu32((__m256i)a, (__m256i)b);
#else
    vu above = (vu)(a > b);
    return (above & a) | (~above & b);
#endif
}

VF_INLINE uint32_t vu_reduce_max(vu x) {
#if defined(VF_AVX512)
    return _mm512_reduce_max_epu32((__m512i)x);
#else
    uint32_t largest = x[0];
    for (int i = 1; i < VF_WIDTH; i++)
        largest = x[i] > largest ? x[i] : largest;
    return largest;
#endif
}

// Packs two vu of numbers below 2^15. The result is not in their order; vw_store_bytes restores it.
VF_INLINE vw vw_pack(vu a, vu b) {
#if defined(VF_AVX512)
    return (vw)_mm512_packus_epi32((__m512i)a, (__m512i)b);
#elif defined(VF_AVX2)
    return (vw)_mm256_packus_epi32((__m256i)a, (__m256i)b);
#else
    vw packed;
    for (int i = 0; i < VF_WIDTH; i++) {
        packed[i] = (uint16_t)a[i];
        packed[VF_WIDTH + i] = (uint16_t)b[i];
    }
    return packed;
#endif
}

// Stores the 4 VF_WIDTH numbers below 2^8 of vw_pack(a, b) and vw_pack(c, d) in the order a, b, c, d.
VF_INLINE void vw_store_bytes(uint8_t *to, vw ab, vw cd) {
#if defined(VF_AVX512)
    __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i bytes = _mm512_packus_epi16((__m512i)ab, (__m512i)cd);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi32(order, bytes));
#elif defined(VF_AVX2)
    __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i bytes = _mm256_packus_epi16((__m256i)ab, (__m256i)cd);
    _mm256_storeu_si256((__m256i *)(void *)to, _mm256_permutevar8x32_epi32(bytes, order));
#else
    for (int i = 0; i < 2 * VF_WIDTH; i++) {
        to[i] = (uint8_t)ab[i];
        to[2 * VF_WIDTH + i] = (uint8_t)cd[i];
    }
#endif
}

VF_INLINE vw vw_set1(uint16_t x) {
    return x + (vw){0};
}

// Saturating: a - b, or 0 where that would be negative.
VF_INLINE vw vw_subtract(vw a, vw b) {
#if defined(VF_AVX512)
    return (vw)_mm512_subs_epu16((__m512i)a, (__m512i)b);
#elif defined(VF_AVX2)
    return (vw)_mm256_subs_epu16((__m256i)a, (__m256i)b);
#else
    return (a - b) & (vw)(a > b);
#endif
}

#endif
