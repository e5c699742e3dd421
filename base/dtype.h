// Element types and their conversions. bf16 is a float32 cut to its upper 16 bits, rounded to nearest even.
#ifndef ZERO_BASE_DTYPE_H
#define ZERO_BASE_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum dtype {
    DTYPE_F32 = 0,
    DTYPE_BF16,
    DTYPE_F64, // kernels/ref only: the oracle's own precision
    DTYPE_I32,
    DTYPE_U16,
    DTYPE_U8,
    N_DTYPES,
};

static inline size_t dtype_size(enum dtype type) {
    static const unsigned char sizes[N_DTYPES] = {4, 2, 8, 4, 2, 1};
    return sizes[type];
}

static inline const char *dtype_name(enum dtype type) {
    static const char *const names[N_DTYPES] = {"fp32", "bf16", "fp64", "int32", "uint16", "uint8"};
    return names[type];
}

// The distance from 1 to the next value: what tolerances are made of.
static inline double dtype_epsilon(enum dtype type) {
    return type == DTYPE_BF16 ? 0x1p-7 : type == DTYPE_F32 ? 0x1p-23 : 0x1p-52;
}

static inline float bf16_to_float(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// Round to nearest even; NaN stays a (quiet) NaN.
static inline uint16_t bf16_from_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x0040u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

#endif
