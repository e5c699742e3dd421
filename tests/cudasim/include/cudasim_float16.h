// Shared by the simulator's cuda_bf16.h and cuda_fp16.h: a 16-bit floating-point type and a pair of such
// numbers. The format parameter names the raw struct and converts bits to and from float. NaN becomes 0x7fff,
// as on a device. The types are trivial, so arrays of them in __shared__ memory need no constructor. They
// have no arithmetic: kernels compute in float.
#ifndef ZERO_CUDASIM_FLOAT16_H
#define ZERO_CUDASIM_FLOAT16_H

#include <cmath>
#include <cstdint>
#include <cstring>

#include <cuda_runtime.h>

namespace cudasim {

template <class To, class From> inline To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From), "a reinterpretation, no conversion");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

// The conversions have no branches, because products and casts of whole training runs use them.
// bfloat16: the upper half of a float.
inline float bfloat16_decode(uint16_t bits) {
    return bits_as<float>(static_cast<uint32_t>(bits) << 16);
}

inline uint16_t bfloat16_encode(float value) {
    uint32_t bits = bits_as<uint32_t>(value);
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : rounded);
}

// Half: a sign, 5 bits of exponent (bias 15; a float's is 127) and 10 of mantissa. Subnormals are multiples
// of 2^-24: with the exponent of 2^-14 the mantissa has that unit, and 2^-14 is then subtracted.
inline float half_decode(uint16_t bits) {
    uint32_t magnitude = (bits & 0x7fffu) << 13;
    uint32_t normal = magnitude + (112u << 23);
    uint32_t special = magnitude + (224u << 23);
    uint32_t subnormal = bits_as<uint32_t>(bits_as<float>(magnitude + (113u << 23)) - 0x1p-14f);
    uint32_t value = magnitude < 1u << 23 ? subnormal : magnitude < 31u << 23 ? normal : special;
    return bits_as<float>(value | (bits & 0x8000u) << 16);
}

// A float between 1/2 and 1 has the unit 2^-24, that of subnormal halves, so adding 1/2 rounds to it.
inline uint16_t half_encode(float value) {
    uint32_t bits = bits_as<uint32_t>(value);
    uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t normal = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
    uint32_t subnormal = bits_as<uint32_t>(bits_as<float>(magnitude) + 0.5f) - bits_as<uint32_t>(0.5f);
    uint32_t finite = magnitude < 113u << 23 ? subnormal : normal;
    uint32_t rounded = (magnitude < 143u << 23 ? finite : 0x7c00u) | sign;
    return static_cast<uint16_t>(magnitude > 0x7f800000u ? 0x7fffu : rounded);
}

template <class Format> struct alignas(2) float16 {
    using raw = typename Format::raw;

    float16() = default;
    float16(const raw &other) : bits(other.x) {}
    float16(float value) : bits(Format::encode(value)) {}
    operator raw() const {
        return raw{bits};
    }
    operator float() const {
        return Format::decode(bits);
    }

  private:
    uint16_t bits;
};

template <class Format> struct alignas(4) float16_pair {
    using element = float16<Format>;

    element x, y;

    float16_pair() = default;
    float16_pair(const element &low, const element &high) : x(low), y(high) {}
};

} // namespace cudasim

#endif
