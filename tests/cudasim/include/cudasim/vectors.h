// CUDA's function and variable qualifiers, and its vector types with the sizes and alignments of a device.
// __shared__ is thread-local, because a block runs on one thread of the operating system.
#ifndef CUDASIM_VECTORS_H
#define CUDASIM_VECTORS_H

#include <cstddef>
#include <cstdint>

#define __global__
#define __device__
#define __host__
#define __shared__      static thread_local
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n)    __attribute__((aligned(n)))
#define __launch_bounds__(...)

#define CUDASIM_VECTOR_TYPES(name, type, align2, align4)                                                     \
    struct name##1 {                                                                                         \
        type x;                                                                                              \
    };                                                                                                       \
    struct __align__(align2) name##2 {                                                                       \
        type x, y;                                                                                           \
    };                                                                                                       \
    struct name##3 {                                                                                         \
        type x, y, z;                                                                                        \
    };                                                                                                       \
    struct __align__(align4) name##4 {                                                                       \
        type x, y, z, w;                                                                                     \
    };                                                                                                       \
    constexpr inline name##1 make_##name##1(type x) {                                                        \
        return {x};                                                                                          \
    }                                                                                                        \
    constexpr inline name##2 make_##name##2(type x, type y) {                                                \
        return {x, y};                                                                                       \
    }                                                                                                        \
    constexpr inline name##3 make_##name##3(type x, type y, type z) {                                        \
        return {x, y, z};                                                                                    \
    }                                                                                                        \
    constexpr inline name##4 make_##name##4(type x, type y, type z, type w) {                                \
        return {x, y, z, w};                                                                                 \
    }

CUDASIM_VECTOR_TYPES(char, signed char, 2, 4)
CUDASIM_VECTOR_TYPES(uchar, unsigned char, 2, 4)
CUDASIM_VECTOR_TYPES(short, short, 4, 8)
CUDASIM_VECTOR_TYPES(ushort, unsigned short, 4, 8)
CUDASIM_VECTOR_TYPES(int, int, 8, 16)
CUDASIM_VECTOR_TYPES(uint, unsigned, 8, 16)
CUDASIM_VECTOR_TYPES(long, long, 16, 16)
CUDASIM_VECTOR_TYPES(ulong, unsigned long, 16, 16)
CUDASIM_VECTOR_TYPES(longlong, long long, 16, 16)
CUDASIM_VECTOR_TYPES(ulonglong, unsigned long long, 16, 16)
CUDASIM_VECTOR_TYPES(float, float, 8, 16)
CUDASIM_VECTOR_TYPES(double, double, 16, 16)
#undef CUDASIM_VECTOR_TYPES

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const {
        return {x, y, z};
    }
};

#endif
