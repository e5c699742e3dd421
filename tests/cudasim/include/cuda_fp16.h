// The simulator's cuda_fp16.h: __half and __half2 under the toolkit's names and with its rounding (to
// nearest, ties to even; subnormals kept, infinity from 65520 on).
#ifndef ZERO_CUDASIM_CUDA_FP16_H
#define ZERO_CUDASIM_CUDA_FP16_H

#include "cudasim_float16.h"

struct alignas(2) __half_raw {
    unsigned short x;
};

namespace cudasim {
struct half_format {
    using raw = __half_raw;
    static constexpr unsigned infinity = 0x7c00;
    static uint16_t encode(float value) {
        return half_encode(value);
    }
    static float decode(uint16_t bits) {
        return half_decode(bits);
    }
};
} // namespace cudasim

using __half = cudasim::float16<cudasim::half_format>;
using __half2 = cudasim::float16_pair<cudasim::half_format>;
using half = __half;
using half2 = __half2;

inline unsigned short __half_as_ushort(const __half a) {
    return static_cast<__half_raw>(a).x;
}

inline __half __ushort_as_half(const unsigned short bits) {
    return __half_raw{bits};
}

inline float __half2float(const __half a) {
    return a;
}

inline __half __float2half_rn(const float a) {
    return a;
}

inline __half __float2half(const float a) {
    return a;
}

inline __half __double2half(const double a) {
    return a;
}

inline __half2 __floats2half2_rn(const float low, const float high) {
    return {low, high};
}

inline __half2 __float22half2_rn(const float2 a) {
    return {a.x, a.y};
}

inline __half2 __float2half2_rn(const float a) {
    return {a, a};
}

inline float2 __half22float2(const __half2 a) {
    return make_float2(a.x, a.y);
}

inline __half2 __halves2half2(const __half low, const __half high) {
    return {low, high};
}

inline __half2 make_half2(const __half low, const __half high) {
    return {low, high};
}

inline __half2 __half2half2(const __half a) {
    return {a, a};
}

inline __half __low2half(const __half2 a) {
    return a.x;
}

inline __half __high2half(const __half2 a) {
    return a.y;
}

#endif
