// Flat spans of elements: loading and storing WIDTH elements of any type as floats, and a kernel that applies
// a step to a span. A step is a struct with the call's pointers and
//   template <int WIDTH> __device__ void at(size_t i) const
// which processes elements [i, i + WIDTH).
#ifndef ZERO_KERNELS_CUDA_SPAN_CUH
#define ZERO_KERNELS_CUDA_SPAN_CUH

#include "kernels/cuda/common.cuh"

template <int WIDTH> struct floats { float x[WIDTH]; };

template <class T, int WIDTH> struct alignas(WIDTH * sizeof(T)) elements {
    static_assert(WIDTH * sizeof(T) <= 16, "fits in one access");
    T x[WIDTH];
};

// Loads WIDTH elements in one access. The address must be aligned to the access's size in bytes.
template <int WIDTH, class T> __device__ inline floats<WIDTH> load(const T *from) {
    const elements<T, WIDTH> stored = *reinterpret_cast<const elements<T, WIDTH> *>(from);
    floats<WIDTH> value;
    for (int i = 0; i < WIDTH; i++)
        value.x[i] = upcast(stored.x[i]);
    return value;
}

// Like load, for a type known only at run time. Loads elements [i, i + WIDTH) of the tensor `from`.
template <int WIDTH> __device__ inline floats<WIDTH> load_as(enum dtype type, const void *from, size_t i) {
    if (type == DTYPE_BF16)
        return load<WIDTH>(static_cast<const bf16 *>(from) + i);
    if (type == DTYPE_F16)
        return load<WIDTH>(static_cast<const half *>(from) + i);
    return load<WIDTH>(static_cast<const float *>(from) + i);
}

template <class T, int WIDTH> __device__ inline elements<T, WIDTH> rounded(const floats<WIDTH> &value) {
    elements<T, WIDTH> stored;
    for (int i = 0; i < WIDTH; i++)
        stored.x[i] = downcast<T>(value.x[i]);
    return stored;
}

template <int WIDTH, class T> __device__ inline void store(T *to, const floats<WIDTH> &value) {
    *reinterpret_cast<elements<T, WIDTH> *>(to) = rounded<T>(value);
}

// Like store, but the compiler cannot split an access of 16 bytes. Near a branch or other stores, it splits
// some calls of `store` into eight stores of 2 bytes, which took twice the time on an H200.
template <int WIDTH, class T> __device__ inline void store_whole(T *to, const floats<WIDTH> &value) {
    if constexpr (WIDTH * sizeof(T) == sizeof(uint4)) {
        const elements<T, WIDTH> stored = rounded<T>(value);
        uint4 words;
        memcpy(&words, &stored, sizeof words);
        store_words(to, words);
    } else {
        store(to, value);
    }
}

// The number of elements of the widest of these types that fit in 16 bytes. With this WIDTH, WIDTH elements
// of each type are a single access.
template <class... T> constexpr int widest_access() {
    size_t widest = 1;
    for (size_t size : {sizeof(T)...})
        widest = size > widest ? size : widest;
    return static_cast<int>(16 / widest);
}

constexpr int SPAN_THREADS = 256;
// Four times the blocks that a multiprocessor runs at once, so that all multiprocessors finish at about the
// same time.
constexpr int SPAN_BLOCKS_PER_PROCESSOR = 32;

// Applies the step to the elements of [0, n) that the calling thread processes. It is thread `first`,
// counted from 0, of `stride` threads.
template <int WIDTH, class Step>
__device__ inline void walk(const Step &step, size_t first, size_t stride, size_t n) {
    for (size_t i = first; i < n / WIDTH; i += stride)
        step.template at<WIDTH>(i * WIDTH);
    for (size_t i = n / WIDTH * WIDTH + first; i < n; i += stride)
        step.template at<1>(i);
}

template <int WIDTH, class Step>
__global__ void __launch_bounds__(SPAN_THREADS) walk_span(const Step step, size_t n) {
    walk<WIDTH>(step, static_cast<size_t>(blockIdx.x) * SPAN_THREADS + threadIdx.x,
                static_cast<size_t>(gridDim.x) * SPAN_THREADS, n);
}

// Returns the number of blocks to launch for n elements, if a thread processes `width` elements at a time.
static inline int span_blocks(const struct stream *stream, size_t n, int width) {
    int most = SPAN_BLOCKS_PER_PROCESSOR * processors_of(stream);
    int blocks = ceil_divide(n, static_cast<size_t>(SPAN_THREADS) * static_cast<size_t>(width));
    return blocks < most ? blocks : most;
}

// Applies `step` to [0, n).
//   name      name of the operation in error messages
//   aligned   whether all pointers of the step are aligned to 16 bytes. If so, a thread processes WIDTH
//             elements at a time, otherwise one
template <int WIDTH, class Step>
enum status over_span(const char *name, const struct stream *stream, const Step &step, size_t n,
                      bool aligned) {
    if (n == 0)
        return STATUS_OK;
    return launch(name, stream, aligned ? walk_span<WIDTH, Step> : walk_span<1, Step>,
                  span_blocks(stream, n, aligned ? WIDTH : 1), SPAN_THREADS, 0, step, n);
}

#endif
