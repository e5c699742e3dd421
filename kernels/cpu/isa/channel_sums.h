// Per-channel sums over rows, for the gradients of norm weights. The rows are divided into parts, which
// threads take whole. To keep rounding errors small, the rows of a block are summed first, and the sums of
// the block are then added to the totals of its part. In the end the totals are added in order of the parts.
// The parts follow from the number of rows alone, so the bits do not depend on the number of threads. A
// part's memory holds its totals, then the sums of its current block, channel_sums_padded(channels) floats
// each.
#ifndef ZERO_KERNELS_CPU_ISA_CHANNEL_SUMS_H
#define ZERO_KERNELS_CPU_ISA_CHANNEL_SUMS_H

#include "base/parallel.h"
#include "kernels/cpu/simd.h"

#define CHANNEL_SUMS_ROWS  64 // rows per block
#define CHANNEL_SUMS_PARTS 64 // at most

// Returns how many parts `rows` rows are divided into (by parallel_span_of).
static inline int channel_sums_parts(size_t rows) {
    const size_t blocks = (rows + CHANNEL_SUMS_ROWS - 1) / CHANNEL_SUMS_ROWS;
    return blocks < CHANNEL_SUMS_PARTS ? (int)blocks : CHANNEL_SUMS_PARTS;
}

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

// Adds the totals of all parts, which are `stride` floats apart, to the gradient. With beta_zero, the
// gradient is overwritten. No-op if it is NULL.
VF_INLINE void channel_sums_add(float *gradient, bool beta_zero, const float *totals, size_t stride,
                                int n_parts, struct parallel_span channels) {
    for (size_t c = channels.begin; gradient && c < channels.end; c++) {
        float sum = totals[c];
        for (int part = 1; part < n_parts; part++)
            sum += totals[(size_t)part * stride + c];
        gradient[c] = beta_zero ? sum : gradient[c] + sum;
    }
}

#endif
