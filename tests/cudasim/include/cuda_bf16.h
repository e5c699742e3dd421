// The simulator's cuda_bf16.h: __nv_bfloat16 and __nv_bfloat162 with the toolkit's names and rounding (to
// nearest, ties to even).
#ifndef ZERO_CUDASIM_CUDA_BF16_H
#define ZERO_CUDASIM_CUDA_BF16_H

#include "cudasim_float16.h"

struct alignas(2) __nv_bfloat16_raw {
    unsigned short x;
};

namespace cudasim {
struct bfloat16_format {
    using raw = __nv_bfloat16_raw;
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

inline float __bfloat162float(const __nv_bfloat16 a) {
    return a;
}

inline __nv_bfloat16 __float2bfloat16_rn(const float a) {
    return a;
}

inline __nv_bfloat162 __floats2bfloat162_rn(const float low, const float high) {
    return {low, high};
}

#endif
