// Per-channel sums over all rows, for the gradients of norm weights. Each block of a kernel sums its own
// rows. Of every NORM_GROUP blocks, the last to finish adds up the sums of its group. The last of these
// blocks adds up the groups' sums. The order of summation depends on the sizes only.
#ifndef ZERO_KERNELS_CUDA_CHANNEL_SUMS_CUH
#define ZERO_KERNELS_CUDA_CHANNEL_SUMS_CUH

#include "kernels/cuda/span.cuh"

// The layout of C per-channel sums. A thread holds WIDTH adjacent channels. It stores them in planes, at
// most four channels in each. Plane 0 has every thread's first four channels, plane 1 every thread's next
// four, and so on. So adjacent threads access adjacent addresses, which avoids bank conflicts in shared
// memory.
template <int WIDTH> struct planes {
    static constexpr int plane = WIDTH < 4 ? WIDTH : 4;
    static constexpr int count = WIDTH / plane;

    // place: the index at which the thread that holds channels [c, c + WIDTH) stores its channels of plane
    // k. channel: the inverse, that is, the channel stored at index `place`.
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

// Increments the counter *ticket once per block. Returns true, to all threads, in the block that is the
// last of n to do so. That block then sees the earlier writes of the other n - 1 blocks through __ldcg, and
// the counter is zero again.
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

// Returns the sum of partial[block * step + i] over n blocks, added in the blocks' order.
__device__ inline float sum_of_blocks(const float *partial, size_t step, int n, int i) {
    float sum = __ldcg(partial + i);
    for (int block = 1; block < n; block++)
        sum += __ldcg(partial + static_cast<size_t>(block) * step + i);
    return sum;
}

// The gradients to which the per-channel sums over all rows are added.
template <int SUMS> struct channel_gradients {
    float *of[SUMS];   // (C) each; NULL: this sum is dropped
    bool beta_zero;    // gradients are overwritten instead of added to
    unsigned *tickets; // a counter per group of NORM_GROUP blocks, then one that counts the groups
};

// Adds up the sums of all blocks, and adds the result to the gradients. Every thread of every block calls
// this once the block's own sums, (SUMS, C) in planes, are in row blockIdx.x of `partial`.
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
