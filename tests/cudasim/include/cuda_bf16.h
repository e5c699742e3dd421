// The simulator's cuda_bf16.h: __nv_bfloat16 and __nv_bfloat162 under the toolkit's names and with its
// rounding (to nearest, ties to even).
#ifndef ZERO_CUDASIM_CUDA_BF16_H
#define ZERO_CUDASIM_CUDA_BF16_H

#include "cudasim_float16.h"

struct alignas(2) __nv_bfloat16_raw {
    unsigned short x;
};

namespace cudasim {
struct bfloat16_format {
    using raw = __nv_bfloat16_raw;
    static constexpr unsigned infinity = 0x7f80;
    static uint16_t encode(float value) {
        return bfloat16_encode(value);
    }
    static float decode(uint16_t bits) {
        return bfloat16_decode(bits);
    }
};
} // namespace cudasim

using __nv_bfloat16 = cudasim::float16<cudasim::bfloat16_format>;
using __nv_bfloat162 = cudasim::float16_pair<cudasim::bfloat16_format>;
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

inline unsigned short __bfloat16_as_ushort(const __nv_bfloat16 a) {
    return static_cast<__nv_bfloat16_raw>(a).x;
}

inline __nv_bfloat16 __ushort_as_bfloat16(const unsigned short bits) {
    return __nv_bfloat16_raw{bits};
}

inline float __bfloat162float(const __nv_bfloat16 a) {
    return a;
}

inline __nv_bfloat16 __float2bfloat16_rn(const float a) {
    return a;
}

inline __nv_bfloat16 __float2bfloat16(const float a) {
    return a;
}

inline __nv_bfloat16 __double2bfloat16(const double a) {
    return a;
}

inline __nv_bfloat162 __floats2bfloat162_rn(const float low, const float high) {
    return {low, high};
}

inline __nv_bfloat162 __float22bfloat162_rn(const float2 a) {
    return {a.x, a.y};
}

inline __nv_bfloat162 __float2bfloat162_rn(const float a) {
    return {a, a};
}

inline float2 __bfloat1622float2(const __nv_bfloat162 a) {
    return make_float2(a.x, a.y);
}

inline __nv_bfloat162 __halves2bfloat162(const __nv_bfloat16 low, const __nv_bfloat16 high) {
    return {low, high};
}

inline __nv_bfloat162 make_bfloat162(const __nv_bfloat16 low, const __nv_bfloat16 high) {
    return {low, high};
}

inline __nv_bfloat162 __bfloat162bfloat162(const __nv_bfloat16 a) {
    return {a, a};
}

inline __nv_bfloat16 __low2bfloat16(const __nv_bfloat162 a) {
    return a.x;
}

inline __nv_bfloat16 __high2bfloat16(const __nv_bfloat162 a) {
    return a.y;
}

#endif
