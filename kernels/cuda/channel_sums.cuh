// Per-channel sums over all rows, for the gradients of norm weights: within a block, then over the blocks of
// a kernel. The blocks that finish last add the blocks' sums, in an order that depends on the sizes only.
#ifndef ZERO_KERNELS_CUDA_CHANNEL_SUMS_CUH
#define ZERO_KERNELS_CUDA_CHANNEL_SUMS_CUH

#include "kernels/cuda/span.cuh"

// Per-channel sums are stored in planes of four floats per thread, so that a warp's 16-byte accesses use
// every bank of shared memory once.
template <int WIDTH> struct planes {
    static constexpr int plane = WIDTH < 4 ? WIDTH : 4;
    static constexpr int count = WIDTH / plane;

    // The index of elements [k * plane, (k + 1) * plane) of the WIDTH from channel c on, and its inverse.
    __device__ static int place(int c, int k, int C) {
        return k * (C / count) + c / count;
    }
    __device__ static int channel(int place, int C) {
        int within = place % (C / count);
        return within / plane * WIDTH + place / (C / count) * plane + within % plane;
    }
    __device__ static void add(float *sums, int c, int C, const floats<WIDTH> &terms) {
        for (int k = 0; k < count; k++) {
            floats<plane> sum = load<plane>(sums + place(c, k, C));
            for (int j = 0; j < plane; j++)
                sum.x[j] += terms.x[k * plane + j];
            store(sums + place(c, k, C), sum);
        }
    }
    __device__ static void clear(float *sums, int c, int C) {
        for (int k = 0; k < count; k++)
            store(sums + place(c, k, C), floats<plane>{});
    }
};

// Increments the counter `ticket`. Returns to all threads of the block whether this block is the last of n.
// If so, the earlier writes of the other n - 1 blocks are visible to __ldcg, and the counter is zero again.
__device__ inline bool is_last_of(unsigned *ticket, int n) {
    __shared__ bool last;
    __threadfence(); // publishes this thread's writes before the increment
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0) {
        last = atomicAdd(ticket, 1u) + 1 == static_cast<unsigned>(n);
        if (last)
            *ticket = 0;
    }
    __syncthreads();
    __threadfence();
    return last;
}

// Element i of the sums of `n` blocks, which are `step` floats apart, added in order.
__device__ inline float sum_of_blocks(const float *partial, size_t step, int n, int i) {
    float sum = __ldcg(partial + i);
    for (int block = 1; block < n; block++)
        sum += __ldcg(partial + static_cast<size_t>(block) * step + i);
    return sum;
}

// Where the sums over all rows go. A NULL pointer means that those sums are not wanted.
template <int SUMS> struct channel_gradients {
    float *of[SUMS]; // (C) each
    bool beta_zero;
    unsigned *tickets; // counters: one per NORM_GROUP blocks, then one for those counters
};

// Adds the sums of all blocks to the gradients. Every thread of every block calls this, after the block's own
// sums, (SUMS, C) in planes, are in partial[blockIdx.x].
template <int WIDTH, int SUMS>
__device__ inline void add_partial_sums(float *partial, const channel_gradients<SUMS> &to, int C) {
    int n_blocks = static_cast<int>(gridDim.x), n_threads = static_cast<int>(blockDim.x * blockDim.y);
    int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
    int n_groups = (n_blocks + NORM_GROUP - 1) / NORM_GROUP;
    int group = static_cast<int>(blockIdx.x) / NORM_GROUP, first = group * NORM_GROUP;
    int n = n_blocks - first < NORM_GROUP ? n_blocks - first : NORM_GROUP;
    size_t block_sums = SUMS * static_cast<size_t>(C);
    float *group_sums = partial + static_cast<size_t>(first) * block_sums;
    if (!is_last_of(&to.tickets[group], n))
        return;
    for (int i = thread; i < SUMS * C; i += n_threads)
        group_sums[i] = sum_of_blocks(group_sums, block_sums, n, i);
    if (!is_last_of(&to.tickets[n_groups], n_groups))
        return;
    for (int i = thread; i < SUMS * C; i += n_threads) {
        float sum = sum_of_blocks(partial, NORM_GROUP * block_sums, n_groups, i);
        float *gradient = nullptr;
        for (int k = 0; k < SUMS; k++)
            gradient = i / C == k ? to.of[k] : gradient;
        if (!gradient)
            continue;
        gradient += planes<WIDTH>::channel(i % C, C);
        *gradient = to.beta_zero ? sum : *gradient + sum;
    }
}

#endif
