// What a kernel may call: its place in the grid, barriers, shuffles, votes and atomics, as the CUDA C++
// programming guide defines them.
#ifndef CUDASIM_KERNEL_H
#define CUDASIM_KERNEL_H

#include <cstring>
#include <type_traits>

#include "cudasim.h"
#include "cudasim/collectives.h"
#include "cudasim/vectors.h"

// Constant for the running thread, so the compiler may keep them in registers across a barrier. The runtime
// sets them when it switches threads.
extern "C" {
extern __thread const uint3 threadIdx, blockIdx;
extern __thread const dim3 blockDim, gridDim;
}
constexpr int warpSize = 32;

namespace cudasim {

template <class T> uint64_t to_bits(T value) {
    static_assert(std::is_trivially_copyable<T>::value && (sizeof(T) <= 8), "a value of at most 64 bits");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    return bits;
}

template <class T> T from_bits(uint64_t bits) {
    T value;
    memcpy(static_cast<void *>(&value), &bits, sizeof value);
    return value;
}

} // namespace cudasim

// ---- barriers

inline void __syncthreads(const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
    cudasim::block_barrier(file, line);
}
inline void __syncwarp(unsigned mask = 0xffffffff) {
    cudasim::warp_barrier(mask);
}

// ---- within a warp

template <class T> T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
    return cudasim::from_bits<T>(
        cudasim::shuffle(cudasim::SHUFFLE_INDEX, mask, cudasim::to_bits(value), lane, width));
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    return cudasim::from_bits<T>(
        cudasim::shuffle(cudasim::SHUFFLE_UP, mask, cudasim::to_bits(value), int(delta), width));
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
    return cudasim::from_bits<T>(
        cudasim::shuffle(cudasim::SHUFFLE_XOR, mask, cudasim::to_bits(value), lane_mask, width));
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
    return cudasim::ballot(mask, predicate != 0);
}
template <class T> unsigned __match_any_sync(unsigned mask, T value) {
    return cudasim::warp_match(mask, cudasim::to_bits(value));
}

inline unsigned __reduce_max_sync(unsigned mask, unsigned value) {
    return cudasim::warp_maximum(mask, value);
}

// ---- memory order, and reads that bypass the first cache

inline void __threadfence() {
    cudasim::fence();
}
template <class T> T __ldcg(const T *address) {
    return *address;
}

// ---- atomics, relaxed as on a device

namespace cudasim {

template <class T> struct same_type { using type = T; };
template <class T> using given = typename same_type<T>::type; // keeps an argument out of deduction

template <class T, class Change> T atomic_update(T *address, Change change) {
    using word = typename std::conditional<sizeof(T) == 8, uint64_t, uint32_t>::type;
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "32 or 64 bits");
    word *bits = reinterpret_cast<word *>(address);
    word old = __atomic_load_n(bits, __ATOMIC_RELAXED), changed;
    do {
        changed = word(to_bits(T(change(from_bits<T>(old)))));
    } while (!__atomic_compare_exchange_n(bits, &old, changed, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return from_bits<T>(old);
}

} // namespace cudasim

template <class T> T atomicAdd(T *address, cudasim::given<T> value) {
    if constexpr (std::is_integral<T>::value)
        return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
    else
        return cudasim::atomic_update(address, [=](T old) { return old + value; });
}
template <class T> T atomicMax(T *address, cudasim::given<T> value) {
    static_assert(std::is_integral<T>::value, "an integer");
    return cudasim::atomic_update(address, [=](T old) { return old > value ? old : value; });
}
template <class T> T atomicExch(T *address, cudasim::given<T> value) {
    return cudasim::atomic_update(address, [=](T) { return value; });
}

#endif
