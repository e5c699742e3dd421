// Per-channel sums over rows that are divided among threads, for the gradients of norm weights. To keep
// rounding errors small, the rows of a block are summed first. The sums of the block are then added to the
// thread's totals. In the end the totals are added in thread order. So the bits depend on the number of
// threads. A thread's memory holds its totals, then the sums of its current block,
// channel_sums_padded(channels) floats each.
#ifndef ZERO_KERNELS_CPU_ISA_CHANNEL_SUMS_H
#define ZERO_KERNELS_CPU_ISA_CHANNEL_SUMS_H

#include "base/parallel.h"
#include "kernels/cpu/simd.h"

#define CHANNEL_SUMS_ROWS 64 // rows per block

// Floats per array: whole cache lines, with room for the last whole vector.
VF_INLINE size_t channel_sums_padded(size_t channels) {
    return (channels + 63) / 64 * 64;
}

// total += block, block = 0, for n floats
VF_INLINE void channel_sums_flush(float *total, float *block, size_t n) {
    for (size_t i = 0; i < n; i += VF_WIDTH) {
        vf_store(total + i, vf_load(total + i) + vf_load(block + i));
        vf_store(block + i, vf_zero());
    }
}

// Adds the totals of all threads, which are `stride` floats apart, to the gradient. With beta_zero, the
// gradient is overwritten. No-op if it is NULL.
VF_INLINE void channel_sums_add(float *gradient, bool beta_zero, const float *totals, size_t stride,
                                int n_threads, struct parallel_span channels) {
    for (size_t c = channels.begin; gradient && c < channels.end; c++) {
        float sum = totals[c];
        for (int thread = 1; thread < n_threads; thread++)
            sum += totals[(size_t)thread * stride + c];
        gradient[c] = beta_zero ? sum : gradient[c] + sum;
    }
}

#endif
