// The simulator's cuda_fp16.h: __half and __half2 with the toolkit's names and rounding (to nearest, ties to
// even; subnormals kept, infinity from 65520 on).
#ifndef ZERO_CUDASIM_CUDA_FP16_H
#define ZERO_CUDASIM_CUDA_FP16_H

#include "cudasim_float16.h"

struct alignas(2) __half_raw {
    unsigned short x;
};

namespace cudasim {
struct half_format {
    using raw = __half_raw;
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

inline float __half2float(const __half a) {
    return a;
}

inline __half __float2half_rn(const float a) {
    return a;
}

inline __half2 __floats2half2_rn(const float low, const float high) {
    return {low, high};
}

#endif
