// Element types and conversions between them. bf16 is the upper 16 bits of an fp32; fp16 is IEEE 754 half
// precision. Conversions from fp32 round to nearest, ties to even. Valid in C and C++.
#ifndef ZERO_BASE_DTYPE_H
#define ZERO_BASE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

// The first three are the compute types: types that parameters and activations may have.
enum dtype {
    DTYPE_F32 = 0,
    DTYPE_BF16,
    DTYPE_F16,
    DTYPE_F64, // for sums of losses and norms; only the reference, tests/ref, has tensors of this type
    DTYPE_I32,
    DTYPE_U8,
    DTYPE_I8, // quantized optimizer moments: kernels/moments.h
    N_DTYPES,
};
#define N_COMPUTE_DTYPES (DTYPE_F16 + 1)

static inline size_t dtype_size(enum dtype type) {
    static const unsigned char sizes[N_DTYPES] = {4, 2, 2, 8, 4, 1, 1};
    return sizes[type];
}

static inline const char *dtype_name(enum dtype type) {
    static const char *const names[N_DTYPES] = {"fp32", "bf16", "fp16", "fp64", "int32", "uint8", "int8"};
    return names[type];
}

// Finds the compute type called `name`. Returns false, and leaves *type unchanged, if there is none.
static inline bool dtype_from_name(const char *name, enum dtype *type) {
    for (int i = 0; i < N_COMPUTE_DTYPES; i++)
        if (strcmp(name, dtype_name((enum dtype)i)) == 0) {
            *type = (enum dtype)i;
            return true;
        }
    return false;
}

// dtype_epsilon is machine epsilon: the distance from 1 to the next larger value. dtype_smallest is the
// smallest positive (subnormal) value. Floating-point types only. Tests derive their tolerances from both.
static inline double dtype_epsilon(enum dtype type) {
    static const double epsilons[DTYPE_F64 + 1] = {0x1p-23, 0x1p-7, 0x1p-10, 0x1p-52};
    return epsilons[type];
}

static inline double dtype_smallest(enum dtype type) {
    static const double smallest[DTYPE_F64 + 1] = {0x1p-149, 0x1p-133, 0x1p-24, 0x1p-1074};
    return smallest[type];
}

static inline float bf16_to_float(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// Rounds to nearest, ties to even. NaN becomes a quiet NaN.
static inline uint16_t bf16_from_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x0040u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Exact: every fp16 value is an fp32 value.
static inline float f16_to_float(uint16_t x) {
    uint32_t sign = (uint32_t)(x & 0x8000u) << 16, exponent = x >> 10 & 0x1fu, fraction = x & 0x3ffu, bits;
    float value;
    if (exponent == 0) { // zero and subnormals: multiples of 2^-24
        value = (float)fraction * 0x1p-24f;
        return sign ? -value : value;
    }
    bits = sign | (exponent == 0x1f ? 0x7f800000u : (exponent + 112) << 23) | fraction << 13;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// Rounds to nearest, ties to even, subnormals included. Magnitudes from 65520 up become infinity; NaN becomes
// a quiet NaN. Bit-identical to the conversion instructions of CPUs and, except for NaN, of GPUs.
static inline uint16_t f16_from_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x477ff000u)
        return (uint16_t)(sign | 0x7c00u);
    // Below 2^-14, fp16 values are 2^-24 apart, as are fp32 values in [0.5, 1). So adding 0.5 rounds to fp16.
    if (magnitude < 0x38800000u) {
        float sum = 0.5f + (value < 0 ? -value : value);
        memcpy(&bits, &sum, sizeof bits);
        return (uint16_t)(sign | (bits - 0x3f000000u));
    }
    return (uint16_t)(sign | (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13);
}

#endif
