// The device's arithmetic functions. Where IEEE 754 fixes the rounding, results are exact. __fdividef is the
// host's division, which is within the error that CUDA allows.
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
inline int __ffs(int x) {
    return __builtin_ffs(x);
}

inline unsigned __float_as_uint(float x) {
    unsigned bits;
    memcpy(&bits, &x, sizeof x);
    return bits;
}

// ---- minimum and maximum

constexpr inline int min(int a, int b) {
    return a < b ? a : b;
}

constexpr inline int max(int a, int b) {
    return a > b ? a : b;
}

// ---- arithmetic with a fixed rounding

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
inline float __fsqrt_rn(float a) {
    return std::sqrt(a);
}
inline double __dadd_rn(double a, double b) {
    return a + b;
}
inline double __dsub_rn(double a, double b) {
    return a - b;
}
inline double __fma_rn(double a, double b, double c) {
    return std::fma(a, b, c);
}

// ---- approximations

inline float __fdividef(float a, float b) {
    return a / b;
}

#endif
