// The dropout mask (kernels/ops_layers.h: dropout_forward), shared by all backends. C, C++ and CUDA sources
// can include this file. Each row has a 64-bit key, from the finalizer of SplitMix64 (Steele et al., OOPSLA
// 2014). The 32 bits of an element are a hash of its column and the row's key.
#ifndef ZERO_KERNELS_DROPOUT_H
#define ZERO_KERNELS_DROPOUT_H

#include <stdbool.h>
#include <stdint.h>

#ifndef DROPOUT_FUNCTION
#    define DROPOUT_FUNCTION static inline
#endif

DROPOUT_FUNCTION uint64_t dropout_mixed(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

// The key of the row at `position` of a sequence.
DROPOUT_FUNCTION uint64_t dropout_row(uint64_t key, uint64_t sequence, uint32_t position) {
    return dropout_mixed(dropout_mixed(key ^ dropout_mixed(sequence)) + position);
}

// The hash of an element. On entry x is the element's column, on exit the hash; `row` is dropout_row() of its
// row. A macro, since x may also be a vector of columns. The constants are from Wellons' "hash prospector".
#define DROPOUT_HASH(x, row)                                                                                 \
    do {                                                                                                     \
        (x) = (x)*0x9e3779b9u + (uint32_t)(row);                                                             \
        (x) = ((x) ^ (x) >> 16) * 0x21f0aaadu;                                                               \
        (x) ^= (uint32_t)((row) >> 32);                                                                      \
        (x) = ((x) ^ (x) >> 15) * 0x735a2d97u;                                                               \
        (x) ^= (x) >> 15;                                                                                    \
    } while (0)

DROPOUT_FUNCTION uint32_t dropout_bits(uint64_t row, uint32_t column) {
    uint32_t x = column;
    DROPOUT_HASH(x, row);
    return x;
}

// An element is kept if the upper 24 bits of its hash are at least this threshold.
DROPOUT_FUNCTION uint32_t dropout_threshold(float p) {
    return (uint32_t)((double)p * (1 << 24) + 0.5);
}

DROPOUT_FUNCTION bool dropout_keeps(uint64_t row, uint32_t column, uint32_t threshold) {
    return dropout_bits(row, column) >> 8 >= threshold;
}

#endif
