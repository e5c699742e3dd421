// SIMD vectors of floats for kernels/cpu/isa, whose files are compiled once per instruction set. A `vf` holds
// VF_WIDTH floats. The operators + - * / and unary minus work on it, also with a float on one side.
// - AVX-512 and AVX2 builds use intrinsics where these are faster. Everything else uses GCC's vector
//   extensions, which gcc and clang compile for any machine.
// - bf16 and fp16 are upcast on load and rounded to nearest even on store. fp16 uses the conversion
//   instructions of AVX2 and AVX-512 machines, and bf16 is rounded by AVX512-BF16 where a build has it.
//   All other conversions use integer arithmetic.
// - Nothing relies on floating-point contraction: fused operations are explicit.
#ifndef ZERO_KERNELS_CPU_SIMD_H
#define ZERO_KERNELS_CPU_SIMD_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/dtype.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#    include <immintrin.h>
#    define VF_AVX512 1
#    define VF_WIDTH  16
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#    include <immintrin.h>
#    define VF_AVX2  1
#    define VF_WIDTH 8
#else
#    define VF_WIDTH 4
#endif

#define VF_INLINE static inline __attribute__((always_inline, unused))

// A loop with a small constant number of iterations that must be unrolled fully, so that the arrays it
// indexes are kept in registers. Always write braces.
#ifdef __clang__
#    define FLAT_LOOP(i, n) _Pragma("clang loop unroll(full)") for (int i = 0; i < (n); i++)
#else
#    define FLAT_LOOP(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)
#endif

typedef float vf __attribute__((vector_size(VF_WIDTH * 4)));
typedef int32_t vi __attribute__((vector_size(VF_WIDTH * 4)));
typedef uint32_t vu __attribute__((vector_size(VF_WIDTH * 4)));
typedef uint16_t vh __attribute__((vector_size(VF_WIDTH * 2))); // the bits of VF_WIDTH bf16 or fp16 numbers
typedef double vd __attribute__((vector_size(VF_WIDTH * 4)));   // VD_WIDTH doubles
#define VD_WIDTH (VF_WIDTH / 2)

// Calls function(DTYPE_F32, DTYPE_BF16 or DTYPE_F16, ...) for the run-time `type`. The callee is VF_INLINE,
// so its first parameter becomes a constant and one source serves all types.
#define VF_DISPATCH(type, function, ...)                                                                     \
    do {                                                                                                     \
        if ((type) == DTYPE_BF16)                                                                            \
            function(DTYPE_BF16, __VA_ARGS__);                                                               \
        else if ((type) == DTYPE_F16)                                                                        \
            function(DTYPE_F16, __VA_ARGS__);                                                                \
        else                                                                                                 \
            function(DTYPE_F32, __VA_ARGS__);                                                                \
    } while (0)

// ---- arithmetic on vectors of floats

VF_INLINE vf vf_set1(float x) {
    return x - (vf){0};
}

VF_INLINE vf vf_zero(void) {
    return (vf){0};
}

VF_INLINE vi vi_set1(int32_t x) {
    return x + (vi){0};
}

// Lane i is i.
VF_INLINE vi vi_iota(void) {
    vi lanes;
    for (int i = 0; i < VF_WIDTH; i++)
        lanes[i] = i;
    return lanes;
}

// Per lane, mask ? yes : no. The lanes of mask are all ones or all zeros, as comparing two vf returns.
VF_INLINE vf vf_select(vi mask, vf yes, vf no) {
    return (vf)((mask & (vi)yes) | (~mask & (vi)no));
}

// Per lane: yes if the sign bit of x is set, otherwise no. Also for -0 and NaN.
VF_INLINE vf vf_select_by_sign(vf x, vf yes, vf no) {
#if defined(VF_AVX512)
    return _mm512_mask_mov_ps(no, _mm512_movepi32_mask((__m512i)x), yes);
#elif defined(VF_AVX2)
    return _mm256_blendv_ps(no, yes, x);
#else
    return vf_select((vi)x < 0, yes, no);
#endif
}

// -|x|
VF_INLINE vf vf_negative(vf x) {
    return (vf)((vu)x | 0x80000000u);
}

// vf_max and vf_min: maximum and minimum per lane. Where a or b is NaN, the result is b.
VF_INLINE vf vf_max(vf a, vf b) {
#if defined(VF_AVX512)
    return _mm512_max_ps(a, b);
#elif defined(VF_AVX2)
    return _mm256_max_ps(a, b);
#else
    return vf_select(a > b, a, b);
#endif
}

VF_INLINE vf vf_min(vf a, vf b) {
#if defined(VF_AVX512)
    return _mm512_min_ps(a, b);
#elif defined(VF_AVX2)
    return _mm256_min_ps(a, b);
#else
    return vf_select(a < b, a, b);
#endif
}

// a * b + c, rounded once where the machine has FMA.
VF_INLINE vf vf_fma(vf a, vf b, vf c) {
#if defined(VF_AVX512)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(VF_AVX2)
    return _mm256_fmadd_ps(a, b, c);
#elif defined(__FP_FAST_FMAF)
    vf sum;
    for (int i = 0; i < VF_WIDTH; i++)
        sum[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return sum;
#else
    return a * b + c;
#endif
}

// c - a * b, rounded as in vf_fma
VF_INLINE vf vf_fnma(vf a, vf b, vf c) {
    return vf_fma(-a, b, c);
}

VF_INLINE vf vf_sqrt(vf x) {
#if defined(VF_AVX512)
    return _mm512_sqrt_ps(x);
#elif defined(VF_AVX2)
    return _mm256_sqrt_ps(x);
#else
    vf root;
    for (int i = 0; i < VF_WIDTH; i++)
        root[i] = sqrtf(x[i]);
    return root;
#endif
}

// The first n lanes of x, and the remaining lanes of `other`. n may be below 0 or above VF_WIDTH.
VF_INLINE vf vf_first(vf x, int n, vf other) {
#if defined(VF_AVX512)
    return _mm512_mask_mov_ps(other, _mm512_cmpgt_epi32_mask((__m512i)vi_set1(n), (__m512i)vi_iota()), x);
#else
    return vf_select(vi_iota() < vi_set1(n), x, other);
#endif
}

// Reductions over the lanes, by halves: the upper half is folded onto the lower until one lane is left.
VF_INLINE float vf_reduce_add(vf x) {
#if defined(VF_AVX512) || defined(VF_AVX2)
#    if defined(VF_AVX512)
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
#    else
    __m256 half = x;
#    endif
    __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    quarter = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return quarter[0] + quarter[1];
#else
    return (x[0] + x[2]) + (x[1] + x[3]);
#endif
}

VF_INLINE float vf_reduce_max(vf x) {
#if defined(VF_AVX512) || defined(VF_AVX2)
#    if defined(VF_AVX512)
    __m256 half = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
#    else
    __m256 half = x;
#    endif
    __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    quarter = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return quarter[0] > quarter[1] ? quarter[0] : quarter[1];
#else
    float a = x[0] > x[2] ? x[0] : x[2], b = x[1] > x[3] ? x[1] : x[3];
    return a > b ? a : b;
#endif
}

// e^x within 2 ulp. Infinity above 88.73; NaN stays NaN. Below -87.34 (and for -inf) the result is 0 rather
// than subnormal: subnormals take processors a hundred times as long, and masked scores would produce many.
// Method: x = n ln 2 + r with |r| <= ln 2 / 2; e^r by the minimax polynomial of degree 6 (relative error
// 2^-26 with rounded coefficients); times 2^n.
VF_INLINE vf vf_exp(vf x) {
    const vf lowest = vf_set1(-87.33654f);
    vf clamped = vf_min(vf_set1(89.0f), x);
#if !defined(VF_AVX512)
    clamped = vf_max(lowest, clamped);
#endif
    const vf shift = vf_set1(0x1.8p23f); // x + shift rounds x to an integer, in the low bits
    vf shifted = vf_fma(clamped, vf_set1(0x1.715476p0f), shift);
    vf n = shifted - shift;
    vf r = vf_fnma(n, vf_set1(0x1.62e4p-1f), clamped);
    r = vf_fnma(n, vf_set1(0x1.7f7d1cp-20f), r);
    vf p = vf_set1(0x1.6ae73cp-10f);
    p = vf_fma(p, r, vf_set1(0x1.12678ap-7f));
    p = vf_fma(p, r, vf_set1(0x1.555822p-5f));
    p = vf_fma(p, r, vf_set1(0x1.55541ap-3f));
    p = vf_fma(p, r, vf_set1(0x1.fffffcp-2f));
    p = vf_fma(p, r, vf_set1(1.0f));
    p = vf_fma(p, r, vf_set1(1.0f));
#if defined(VF_AVX512)
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, lowest, _CMP_NLT_UQ), p, n);
#else
    // Multiplies by 2^n in two factors, since 2^n itself may exceed the range of a float.
    vi exponent = (vi)shifted - (vi)shift;
    vi half = exponent >> 1, rest = exponent - half;
    return vf_select(x < lowest, vf_zero(), p * (vf)((half + 127) << 23) * (vf)((rest + 127) << 23));
#endif
}

// 2^x within 2 ulp. Infinity from 128 (in some builds from 127.5); NaN stays NaN; 0 below -126. Cheaper than
// vf_exp where log2 e can be folded into a factor of x. The minimax polynomial of degree 6 on [-1/2, 1/2] has
// a relative error of 2^-29.
VF_INLINE vf vf_exp2(vf x) {
    const vf lowest = vf_set1(-126.0f), shift = vf_set1(0x1.8p23f);
#if !defined(VF_AVX512)
    vf clamped = vf_max(lowest, vf_min(vf_set1(128.0f), x));
#else
    vf clamped = x;
#endif
    vf shifted = clamped + shift, n = shifted - shift, r = clamped - n;
    vf p = vf_set1(0x1.41fbc6p-13f);
    p = vf_fma(p, r, vf_set1(0x1.5f3e5ep-10f));
    p = vf_fma(p, r, vf_set1(0x1.3b2d4ep-7f));
    p = vf_fma(p, r, vf_set1(0x1.c6aee8p-5f));
    p = vf_fma(p, r, vf_set1(0x1.ebfbdcp-3f));
    p = vf_fma(p, r, vf_set1(0x1.62e43p-1f));
    p = vf_fma(p, r, vf_set1(1.0f));
#if defined(VF_AVX512)
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, lowest, _CMP_NLT_UQ), p, n);
#else
    vi exponent = (vi)shifted - (vi)shift;
    return vf_select(x < lowest, vf_zero(), p * (vf)((exponent + 127) << 23));
#endif
}

// 1 / x within 1 ulp, for x in [1, 2]. On AVX-512 machines a division costs as much as a dozen
// multiplications.
VF_INLINE vf vf_reciprocal(vf x) {
#if defined(VF_AVX512)
    vf guess = _mm512_rcp14_ps(x);
    return vf_fma(vf_fnma(x, guess, vf_set1(1.0f)), guess, guess);
#else
    return 1.0f / x;
#endif
}

// ---- vectors of doubles

VF_INLINE vd vd_set1(double x) {
    return x - (vd){0};
}

// Converts the lower (half 0) or upper (half 1) lanes to double, exactly.
VF_INLINE vd vd_upcast(vf x, int half) {
#if defined(VF_AVX512)
    return _mm512_cvtps_pd(half ? _mm512_extractf32x8_ps(x, 1) : _mm512_castps512_ps256(x));
#elif defined(VF_AVX2)
    return _mm256_cvtps_pd(half ? _mm256_extractf128_ps(x, 1) : _mm256_castps256_ps128(x));
#else
    vd wide;
    for (int i = 0; i < VD_WIDTH; i++)
        wide[i] = (double)x[half * VD_WIDTH + i];
    return wide;
#endif
}

// a * b + c, rounded once in AVX2 and AVX-512 builds; elsewhere twice, unless a * b is exact.
VF_INLINE vd vd_fma(vd a, vd b, vd c) {
#if defined(VF_AVX512)
    return _mm512_fmadd_pd(a, b, c);
#elif defined(VF_AVX2)
    return _mm256_fmadd_pd(a, b, c);
#else
    return a * b + c;
#endif
}

VF_INLINE vd vd_load(const double *from) {
    vd x;
    memcpy(&x, from, sizeof x);
    return x;
}

VF_INLINE void vd_store(double *to, vd x) {
    memcpy(to, &x, sizeof x);
}

// ---- loads and stores of fp32

// Loads and stores of fp32, at any alignment. The _part forms access only the first n elements
// (0 <= n <= VF_WIDTH); loads set the other lanes to 0.

VF_INLINE vf vf_load(const float *from) {
    vf x;
    memcpy(&x, from, sizeof x);
    return x;
}

VF_INLINE void vf_store(float *to, vf x) {
    memcpy(to, &x, sizeof x);
}

// A non-temporal store, which bypasses the caches. `to` must be aligned to the size of a vector. Other
// threads see the data after stream_fence().
VF_INLINE void vf_stream(float *to, vf x) {
#if defined(VF_AVX512)
    _mm512_stream_ps(to, x);
#elif defined(VF_AVX2)
    _mm256_stream_ps(to, x);
#else
    vf_store(to, x);
#endif
}

VF_INLINE void stream_fence(void) {
#if defined(VF_AVX512) || defined(VF_AVX2)
    _mm_sfence();
#endif
}

VF_INLINE vf vf_load_part(const float *from, int n) {
#if defined(VF_AVX512)
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), from);
#elif defined(VF_AVX2)
    return _mm256_maskload_ps(from, (__m256i)(vi_iota() < vi_set1(n)));
#else
    vf x = vf_zero();
    for (int i = 0; i < n; i++)
        x[i] = from[i];
    return x;
#endif
}

// Loads n pairs and separates their first numbers from their second numbers.
VF_INLINE void vf_load_pairs(const float *from, int n, vf *first, vf *second) {
    const int n_low = 2 * n < VF_WIDTH ? 2 * n : VF_WIDTH;
    const vf low = vf_load_part(from, n_low),
             high = n_low < 2 * n ? vf_load_part(from + VF_WIDTH, 2 * n - VF_WIDTH) : vf_zero();
#if defined(VF_AVX512)
    const __m512i even = (__m512i)(vi_iota() * 2);
    *first = _mm512_permutex2var_ps(low, even, high);
    *second = _mm512_permutex2var_ps(low, _mm512_add_epi32(even, _mm512_set1_epi32(1)), high);
#elif defined(VF_AVX2) // deinterleaves within 128-bit halves, then reorders the 64-bit quarters
    const __m256 even = _mm256_shuffle_ps(low, high, 0x88), odd = _mm256_shuffle_ps(low, high, 0xdd);
    *first = (vf)_mm256_permute4x64_pd((__m256d)even, 0xd8);
    *second = (vf)_mm256_permute4x64_pd((__m256d)odd, 0xd8);
#else
    for (int i = 0; i < VF_WIDTH; i++) {
        const int k = 2 * i;
        (*first)[i] = k < VF_WIDTH ? low[k] : high[k - VF_WIDTH];
        (*second)[i] = k < VF_WIDTH ? low[k + 1] : high[k + 1 - VF_WIDTH];
    }
#endif
}

VF_INLINE void vf_store_part(float *to, vf x, int n) {
#if defined(VF_AVX512)
    _mm512_mask_storeu_ps(to, (__mmask16)((1u << n) - 1), x);
#elif defined(VF_AVX2)
    _mm256_maskstore_ps(to, (__m256i)(vi_iota() < vi_set1(n)), x);
#else
    for (int i = 0; i < n; i++)
        to[i] = x[i];
#endif
}

// ---- conversion from and to bf16 and fp16

// Returns the lower 16 bits of each lane. The upper 16 must be 0.
VF_INLINE vh vh_from_vu(vu x) {
#if defined(VF_AVX512)
    return (vh)_mm512_cvtepi32_epi16((__m512i)x);
#elif defined(VF_AVX2)
    __m256i packed = _mm256_packus_epi32((__m256i)x, (__m256i)x);
    return (vh)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
#else
    return __builtin_convertvector(x, vh);
#endif
}

VF_INLINE vf vf_upcast_bf16(vh half) {
#if defined(VF_AVX512)
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)half), 16);
#elif defined(VF_AVX2)
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)half), 16);
#else
    return (vf)(__builtin_convertvector(half, vu) << 16);
#endif
}

// Rounds to nearest even. The result for a NaN is a quiet NaN.
VF_INLINE vh vf_downcast_bf16(vf x) {
#if defined(VF_AVX512) && defined(__AVX512BF16__)
    // One instruction instead of nine. Not used if a lane is subnormal, which it would treat as 0.
    enum { SUBNORMAL = 0x20 };
    if (__builtin_expect(_mm512_fpclass_ps_mask(x, SUBNORMAL) == 0, 1))
        return (vh)_mm512_cvtneps_pbh(x);
#endif
    vu bits = (vu)x;
    vu rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
#if defined(VF_AVX512)
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    __m512i quiet = _mm512_or_si512(_mm512_srli_epi32((__m512i)bits, 16), _mm512_set1_epi32(0x40));
    return vh_from_vu((vu)_mm512_mask_mov_epi32((__m512i)rounded, nan, quiet));
#else
    vu nan = (vu)(x != x);
    return vh_from_vu((nan & ((bits >> 16) | 0x40u)) | (~nan & rounded));
#endif
}

VF_INLINE vf vf_upcast_f16(vh half) {
#if defined(VF_AVX512)
    return _mm512_cvtph_ps((__m256i)half);
#elif defined(VF_AVX2)
    return _mm256_cvtph_ps((__m128i)half);
#else
    vu bits = __builtin_convertvector(half, vu), sign = (bits & 0x8000u) << 16;
    vi magnitude = (vi)(bits & 0x7fffu);
    vi normal = (magnitude << 13) + (112 << 23);
    vi infinite = (magnitude << 13) | 0x7f800000; // or NaN
    vi subnormal = (vi)(__builtin_convertvector(magnitude, vf) * 0x1p-24f);
    vf value = vf_select(magnitude < 0x400, (vf)subnormal, (vf)normal);
    return (vf)((vu)vf_select(magnitude >= 0x7c00, (vf)infinite, value) | sign);
#endif
}

// Rounds to nearest even, by the method that f16_from_float explains.
VF_INLINE vh vf_downcast_f16(vf x) {
#if defined(VF_AVX512)
    return (vh)_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(VF_AVX2)
    return (vh)_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
#else
    vi bits = (vi)x, magnitude = bits & 0x7fffffff, last = (magnitude >> 13) & 1;
    vi normal = (magnitude - (112 << 23) + 0xfff + last) >> 13;
    vi subnormal = (vi)((vf)magnitude + 0.5f) - 0x3f000000;
    vi infinite = vi_set1(0x7c00), nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
    vf value = vf_select(magnitude < 0x38800000, (vf)subnormal, (vf)normal);
    value = vf_select(magnitude >= 0x477ff000, (vf)infinite, value);
    value = vf_select(magnitude > 0x7f800000, (vf)nan, value);
    return __builtin_convertvector((vu)value | ((vu)(bits >> 16) & 0x8000u), vh);
#endif
}

VF_INLINE vf vf_upcast(enum dtype type, vh half) {
    return type == DTYPE_F16 ? vf_upcast_f16(half) : vf_upcast_bf16(half);
}

VF_INLINE vh vf_downcast(enum dtype type, vf x) {
    return type == DTYPE_F16 ? vf_downcast_f16(x) : vf_downcast_bf16(x);
}

VF_INLINE vh vh_load_part(const uint16_t *from, int n) {
    vh half = {0};
    if (n == VF_WIDTH) {
        memcpy(&half, from, sizeof half);
        return half;
    }
#if defined(VF_AVX512)
    return (vh)_mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1), from);
#else
    for (int i = 0; i < n; i++)
        half[i] = from[i];
    return half;
#endif
}

VF_INLINE void vh_store_part(uint16_t *to, vh half, int n) {
    if (n == VF_WIDTH) {
        memcpy(to, &half, sizeof half);
        return;
    }
#if defined(VF_AVX512)
    _mm256_mask_storeu_epi16(to, (__mmask16)((1u << n) - 1), (__m256i)half);
#else
    for (int i = 0; i < n; i++)
        to[i] = half[i];
#endif
}

// ---- loads and stores of a type that is a parameter

// Loads and stores of elements [index, index + VF_WIDTH) of a tensor, or of the first n of them, with
// conversion from or to `type`. After inlining, `type` is a constant: DTYPE_F32, DTYPE_BF16 or DTYPE_F16 (see
// VF_DISPATCH).

VF_INLINE vf vf_get(enum dtype type, const void *tensor, size_t index) {
    if (type == DTYPE_F32)
        return vf_load((const float *)tensor + index);
    vh half;
    memcpy(&half, (const uint16_t *)tensor + index, sizeof half);
    return vf_upcast(type, half);
}

VF_INLINE void vf_put(enum dtype type, void *tensor, size_t index, vf x) {
    if (type == DTYPE_F32) {
        vf_store((float *)tensor + index, x);
    } else {
        vh half = vf_downcast(type, x);
        memcpy((uint16_t *)tensor + index, &half, sizeof half);
    }
}

// With a constant n == VF_WIDTH, vf_get_part and vf_put_part compile to vf_get and vf_put. So one inline
// function with a parameter n serves both the body of a loop and its tail.
VF_INLINE vf vf_get_part(enum dtype type, const void *tensor, size_t index, int n) {
    if (n == VF_WIDTH)
        return vf_get(type, tensor, index);
    return type == DTYPE_F32 ? vf_load_part((const float *)tensor + index, n)
                             : vf_upcast(type, vh_load_part((const uint16_t *)tensor + index, n));
}

VF_INLINE void vf_put_part(enum dtype type, void *tensor, size_t index, vf x, int n) {
    if (n == VF_WIDTH)
        vf_put(type, tensor, index, x);
    else if (type == DTYPE_F32)
        vf_store_part((float *)tensor + index, x, n);
    else
        vh_store_part((uint16_t *)tensor + index, vf_downcast(type, x), n);
}

// Stores one element.
VF_INLINE void vf_put_one(enum dtype type, void *tensor, size_t index, float x) {
    if (type == DTYPE_F32)
        ((float *)tensor)[index] = x;
    else
        ((uint16_t *)tensor)[index] = type == DTYPE_F16 ? f16_from_float(x) : bf16_from_float(x);
}

VF_INLINE void *vf_offset(enum dtype type, const void *tensor, size_t index) {
    return (char *)tensor + index * dtype_size(type);
}

// for (VF_LOOP(i, lanes, n)) visits [0, n) in steps of VF_WIDTH; `lanes` is the number of elements left, at
// most VF_WIDTH. Use it for loops that are not hot. A hot loop has its body in a VF_INLINE function, which is
// called separately for the tail.
#define VF_LOOP(i, lanes, n)                                                                                 \
    size_t i = 0, lanes = (n) < VF_WIDTH ? (n) : VF_WIDTH;                                                   \
    i < (n);                                                                                                 \
    i += VF_WIDTH, lanes = (n)-i < VF_WIDTH ? (n)-i : VF_WIDTH

// ---- pairs of bf16: a vu of VF_WIDTH pairs, the first number of each in the lower half

// Instructions that multiply pairs (VF_PAIRS) treat subnormal numbers as 0.

#if defined(VF_AVX512) && defined(__AVX512BF16__)
#    define VF_PAIRS 1
#else
#    define VF_PAIRS 0
#endif

// AMX multiplies pairs in tiles (isa/amx.h). Processors with AMX multiply vectors of pairs at a quarter of
// fp32's rate, so vector code does not use pairs there.
#if VF_PAIRS && (defined(__AMX_BF16__) || defined(__AMXBF16__)) // gcc's name, and clang 14's
#    define VF_AMX 1
#else
#    define VF_AMX 0
#endif

// True if tiles.h multiplies numbers of this type in pairs.
VF_INLINE bool multiplies_pairs(enum dtype type) {
    return VF_PAIRS && type == DTYPE_BF16;
}
// True if vector code multiplies numbers of this type in pairs, too.
VF_INLINE bool vectors_multiply_pairs(enum dtype type) {
    return multiplies_pairs(type) && !VF_AMX;
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

// Rounds the lanes of a, then those of b, to bf16 and pairs adjacent ones: the result is a and b, one after
// the other, as bf16 in memory.
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
// Returns pairs: pair i is number i of the lower half, then number i of the upper half.
VF_INLINE vu vu_interleave_halves(__m512i halves) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23,
                                           7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return (vu)_mm512_permutexvar_epi16(order, halves);
}
#endif

// Returns pairs: pair i is lane i of a, then lane i of b, both rounded to bf16.
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

// Loads n <= 2 VF_WIDTH numbers as pairs of adjacent numbers. The other numbers become 0.
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

// ---- transposition of vectors

// INTERLEAVE(a, b, i): VF_WIDTH / 2 lanes of a and of b from lane i on, alternately: a[i], b[i], and so on.

#if VF_WIDTH == 16
#    define INTERLEAVE(a, b, i)                                                                              \
        (vf) {                                                                                               \
            a[i], b[i], a[i + 1], b[i + 1], a[i + 2], b[i + 2], a[i + 3], b[i + 3], a[i + 4], b[i + 4],      \
                a[i + 5], b[i + 5], a[i + 6], b[i + 6], a[i + 7], b[i + 7]                                   \
        }
#elif VF_WIDTH == 8
#    define INTERLEAVE(a, b, i)                                                                              \
        (vf) {                                                                                               \
            a[i], b[i], a[i + 1], b[i + 1], a[i + 2], b[i + 2], a[i + 3], b[i + 3]                           \
        }
#else
#    define INTERLEAVE(a, b, i)                                                                              \
        (vf) {                                                                                               \
            a[i], b[i], a[i + 1], b[i + 1]                                                                   \
        }
#endif

// Transposes VF_WIDTH vectors by perfect shuffles: each pass interleaves the first half of the rows with the
// second half. That rotates the bits of the element index (row, lane) by one, and log2(VF_WIDTH) passes swap
// row and lane.
VF_INLINE void transpose_vectors(vf rows[VF_WIDTH]) {
    for (int pass = 1; pass < VF_WIDTH; pass *= 2) {
        vf next[VF_WIDTH];
        FLAT_LOOP(i, VF_WIDTH / 2) {
            vf a = rows[i], b = rows[i + VF_WIDTH / 2];
            next[2 * i] = INTERLEAVE(a, b, 0);
            next[2 * i + 1] = INTERLEAVE(a, b, VF_WIDTH / 2);
        }
        FLAT_LOOP(i, VF_WIDTH) {
            rows[i] = next[i];
        }
    }
}

// ---- vectors of 8- and 16-bit integers

// Bytes are loaded as a vu. Four vu of small numbers are packed into two
// vectors of 16-bit numbers (vw), so that the remaining steps take half as many instructions.

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

// Loads VF_WIDTH signed bytes and sign-extends them.
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

// Packs two vu of numbers below 2^15. With AVX2 and AVX-512 the numbers change their order, which
// vw_store_bytes restores.
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

// ab = vw_pack(a, b) and cd = vw_pack(c, d) hold 4 VF_WIDTH numbers below 2^8. Stores them as bytes, in the
// order a, b, c, d.
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

// Saturating subtraction: a - b, or 0 if that would be negative.
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
