// Sums by channel over the rows that threads share, on two levels: blocks of rows into a thread's total, and
// the totals in thread order. Rounding errors grow slowly, and the order is fixed. For the gradients of
// norms' weights. A thread's memory has its totals first, then the sums of the current block, each
// channel_sums_padded(channels) floats.
#ifndef ZERO_KERNELS_CPU_ISA_CHANNEL_SUMS_H
#define ZERO_KERNELS_CPU_ISA_CHANNEL_SUMS_H

#include "base/parallel.h"
#include "kernels/cpu/simd.h"

#define CHANNEL_SUMS_ROWS 64 // per block

// Whole cache lines, with room for the last whole vector.
VF_INLINE size_t channel_sums_padded(size_t channels) {
    return (channels + 63) / 64 * 64;
}

// total += block, block = 0
VF_INLINE void channel_sums_flush(float *total, float *block, size_t n) {
    for (size_t i = 0; i < n; i += VF_WIDTH) {
        vf_store(total + i, vf_load(total + i) + vf_load(block + i));
        vf_store(block + i, vf_zero());
    }
}

// Adds the threads' totals, `stride` floats apart, to channels of the gradient.
VF_INLINE void channel_sums_add(float *gradient, bool beta_zero, const float *totals, size_t stride,
                                int n_threads, struct parallel_span channels) {
    for (size_t c = channels.begin; c < channels.end; c++) {
        float sum = totals[c];
        for (int thread = 1; thread < n_threads; thread++)
            sum += totals[(size_t)thread * stride + c];
        gradient[c] = beta_zero ? sum : gradient[c] + sum;
    }
}

#endif
