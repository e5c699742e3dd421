// The device's arithmetic. Roundings that IEEE 754 fixes are exact; the fast approximations (__expf and the
// like) are the host's own functions, which lie inside the errors that CUDA allows for them.
#ifndef CUDASIM_ARITHMETIC_H
#define CUDASIM_ARITHMETIC_H

#include <cmath>
#include <cstdint>
#include <cstring>

#include "cudasim/kernel.h"

// ---- bits

inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}
inline int __popcll(unsigned long long x) {
    return __builtin_popcountll(x);
}
inline int __ffs(int x) {
    return __builtin_ffs(x);
}
inline int __ffsll(long long x) {
    return __builtin_ffsll(x);
}
inline int __clz(int x) {
    return x ? __builtin_clz(unsigned(x)) : 32;
}
inline int __clzll(long long x) {
    return x ? __builtin_clzll((unsigned long long)x) : 64;
}
inline unsigned __brev(unsigned x) {
    unsigned reversed = 0;
    for (int bit = 0; bit < 32; bit++)
        reversed |= (x >> bit & 1) << (31 - bit);
    return reversed;
}
inline unsigned __umulhi(unsigned a, unsigned b) {
    return unsigned((uint64_t(a) * b) >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}
inline int __mulhi(int a, int b) {
    return int((int64_t(a) * b) >> 32);
}
// Bytes of y:x chosen by the four low nibbles of the selector (sign replication of bit 3 included).
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    uint64_t bytes = uint64_t(y) << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        unsigned nibble = selector >> (4 * i) & 15;
        unsigned byte = unsigned(bytes >> (8 * (nibble & 7))) & 255;
        if (nibble & 8)
            byte = byte & 128 ? 255 : 0;
        result |= byte << (8 * i);
    }
    return result;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return unsigned(((uint64_t(high) << 32 | low) << (shift & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return unsigned((uint64_t(high) << 32 | low) >> (shift & 31));
}

#define CUDASIM_REINTERPRET(name, to, from)                                                                  \
    inline to name(from x) {                                                                                 \
        to result;                                                                                           \
        static_assert(sizeof(to) == sizeof(from), "same size");                                              \
        memcpy(&result, &x, sizeof x);                                                                       \
        return result;                                                                                       \
    }
CUDASIM_REINTERPRET(__int_as_float, float, int)
CUDASIM_REINTERPRET(__float_as_int, int, float)
CUDASIM_REINTERPRET(__uint_as_float, float, unsigned)
CUDASIM_REINTERPRET(__float_as_uint, unsigned, float)
CUDASIM_REINTERPRET(__longlong_as_double, double, long long)
CUDASIM_REINTERPRET(__double_as_longlong, long long, double)
#undef CUDASIM_REINTERPRET

// ---- minimum and maximum, for the pairs of types for which CUDA has them

#define CUDASIM_MIN_MAX(type, a_type, b_type)                                                                \
    constexpr inline type min(a_type a, b_type b) {                                                          \
        return (type)a < (type)b ? (type)a : (type)b;                                                        \
    }                                                                                                        \
    constexpr inline type max(a_type a, b_type b) {                                                          \
        return (type)a > (type)b ? (type)a : (type)b;                                                        \
    }
CUDASIM_MIN_MAX(int, int, int)
CUDASIM_MIN_MAX(unsigned, unsigned, unsigned)
CUDASIM_MIN_MAX(unsigned, int, unsigned)
CUDASIM_MIN_MAX(unsigned, unsigned, int)
CUDASIM_MIN_MAX(long, long, long)
CUDASIM_MIN_MAX(unsigned long, unsigned long, unsigned long)
CUDASIM_MIN_MAX(unsigned long, long, unsigned long)
CUDASIM_MIN_MAX(unsigned long, unsigned long, long)
CUDASIM_MIN_MAX(long long, long long, long long)
CUDASIM_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
CUDASIM_MIN_MAX(unsigned long long, long long, unsigned long long)
CUDASIM_MIN_MAX(unsigned long long, unsigned long long, long long)
#undef CUDASIM_MIN_MAX
// As fminf and fmaxf: the other operand where one is NaN.
#define CUDASIM_MIN_MAX(type, a_type, b_type)                                                                \
    inline type min(a_type a, b_type b) {                                                                    \
        return type(a) < type(b) || b != b ? type(a) : type(b);                                              \
    }                                                                                                        \
    inline type max(a_type a, b_type b) {                                                                    \
        return type(a) > type(b) || b != b ? type(a) : type(b);                                              \
    }
CUDASIM_MIN_MAX(float, float, float)
CUDASIM_MIN_MAX(double, double, double)
CUDASIM_MIN_MAX(double, float, double)
CUDASIM_MIN_MAX(double, double, float)
#undef CUDASIM_MIN_MAX

// ---- arithmetic with a fixed rounding

inline float __fadd_rn(float a, float b) {
    return a + b;
}
inline float __fsub_rn(float a, float b) {
    return a - b;
}
inline float __fmul_rn(float a, float b) {
    return a * b;
}
inline float __fdiv_rn(float a, float b) {
    return a / b;
}
inline float __fmaf_rn(float a, float b, float c) {
    return std::fma(a, b, c);
}
inline float __frcp_rn(float a) {
    return 1.0f / a;
}
inline float __fsqrt_rn(float a) {
    return std::sqrt(a);
}
inline float __frsqrt_rn(float a) {
    return float(1.0 / std::sqrt(double(a)));
}
inline double __dadd_rn(double a, double b) {
    return a + b;
}
inline double __dsub_rn(double a, double b) {
    return a - b;
}
inline double __dmul_rn(double a, double b) {
    return a * b;
}
inline double __ddiv_rn(double a, double b) {
    return a / b;
}
inline double __dsqrt_rn(double a) {
    return std::sqrt(a);
}
inline double __fma_rn(double a, double b, double c) {
    return std::fma(a, b, c);
}

// ---- conversions with a named rounding

inline int __float2int_rn(float a) {
    return int(std::nearbyint(a));
}
inline int __float2int_rz(float a) {
    return int(a);
}
inline int __float2int_rd(float a) {
    return int(std::floor(a));
}
inline int __float2int_ru(float a) {
    return int(std::ceil(a));
}
inline unsigned __float2uint_rn(float a) {
    return unsigned(std::nearbyint(a));
}
inline float __int2float_rn(int a) {
    return float(a);
}
inline float __uint2float_rn(unsigned a) {
    return float(a);
}
inline float __double2float_rn(double a) {
    return float(a);
}
inline float __ll2float_rn(long long a) {
    return float(a);
}
inline double __ll2double_rn(long long a) {
    return double(a);
}

// ---- functions that C does not have, and the fast ones

inline float rsqrtf(float a) {
    return 1.0f / std::sqrt(a);
}
inline double rsqrt(double a) {
    return 1.0 / std::sqrt(a);
}
inline float __saturatef(float a) {
    return a > 0.0f ? (a < 1.0f ? a : 1.0f) : 0.0f;
}
inline float __fdividef(float a, float b) {
    return a / b;
}
inline float fdividef(float a, float b) {
    return a / b;
}
// glibc declares __expf, __logf, __sinf and others with C linkage for its own use; these calls mean CUDA's.
#define __expf(x)    std::exp(float(x))
#define __exp10f(x)  std::pow(10.0f, float(x))
#define __logf(x)    std::log(float(x))
#define __log2f(x)   std::log2(float(x))
#define __log10f(x)  std::log10(float(x))
#define __powf(x, y) std::pow(float(x), float(y))
#define __sinf(x)    std::sin(float(x))
#define __cosf(x)    std::cos(float(x))
#define __tanhf(x)   std::tanh(float(x))

#endif
