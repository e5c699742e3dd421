// Internals of the CUDA backend, included by each of its .cu files: its device, kernel launches, element
// types, choosing a template by dtype, 16-byte accesses, and sums over a warp or block in a fixed order.
// Depends on the CUDA runtime only (or tests/cudasim in its place), and on kernels/cuda/ptx.cuh for
// instructions without a C++ name.
#ifndef ZERO_KERNELS_CUDA_COMMON_CUH
#define ZERO_KERNELS_CUDA_COMMON_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <mutex>
#include <vector>

extern "C" {
#include "base/alloc.h"
#include "kernels/cuda/workspace.h"
#include "kernels/device.h"
#include "kernels/matrix.h"
#include "kernels/ops.h"
}
#include "kernels/cuda/ptx.cuh"

// ---- the device, and the launchers of its operations, one for each in kernels/ops.h

extern "C" {
struct matmuls;      // cublaslt/matmul.cu: cuBLASLt and the plans of products
struct cudnns;       // cudnn/device.cu: cuDNN and the plans of attention
struct cuda_tickets; // below: the ticket counters of each open stream

struct cuda_device {
    struct device device; // must be first: cuda_of casts a struct device * to a cuda_device *
    int index;            // the GPU's index in the CUDA runtime
    int n_processors;     // streaming multiprocessors. Only operations whose bits it cannot change use it
    struct cuda_properties properties;
    struct matmuls *matmuls;
    struct cuda_tickets *tickets;
    struct cudnns *cudnns; // NULL until cudnn_support is first called
};

#define CUDA_PROTOTYPE(name)                                                                                 \
    enum status cuda_##name(struct stream *stream, const struct name##_args *args) MUST_CHECK;
OPERATIONS(CUDA_PROTOTYPE)
#undef CUDA_PROTOTYPE

// Computes sum_squares (kernels/ops.h) of each of n_matrices matrices of n elements. The first elements of
// consecutive matrices are `distance` elements apart.
//   partial   [w] (n_matrices, ceil(n / SUM_SQUARES_BLOCK))
enum status cuda_sum_squares_of(struct stream *stream, double *partial, const void *x, size_t n,
                                int n_matrices, size_t distance, enum dtype type) MUST_CHECK;
enum status cuda_mirror(struct stream *stream, const struct mirror_args *args) MUST_CHECK;

// These functions make the plans of a call's matrix products: they choose cuBLASLt's algorithms, for large
// products by measuring. ops->workspace_bytes calls them, so that plans exist before the first step.
enum status cuda_matrix_product_prepare(struct device *device,
                                        const struct matrix_product_args *args) MUST_CHECK;
enum status cuda_linear_forward_prepare(struct device *device,
                                        const struct linear_forward_args *args) MUST_CHECK;
enum status cuda_linear_backward_prepare(struct device *device,
                                         const struct linear_backward_args *args) MUST_CHECK;

enum status matmuls_new(struct matmuls **out) MUST_CHECK; // for the current GPU
void matmuls_delete(struct matmuls *matmuls);

// Attention by cuDNN (cudnn/device.cu), for calls with ATTENTION_CUDNN.
enum status cuda_cudnn_support(struct device *device, const struct attention_shape *shape,
                               struct cudnn_support *out) MUST_CHECK;
// Raises *bytes to the bytes of workspace that cuDNN needs for the call. No-op if *bytes is larger or cuDNN
// does not compute the call.
void cuda_cudnn_workspace(struct device *device, enum operation operation, const void *args, size_t *bytes);
// True if cuDNN computes the call, provided that the stream has the workspace that cuDNN needs.
bool cuda_cudnn_computes(struct device *device, enum operation operation, const void *args);
// Issues the call to cuDNN. *issued is false if this project's kernels must compute it:
// - the call's kernel is not ATTENTION_CUDNN
// - cuDNN does not compute the shape
// - cuDNN needs more workspace than the stream has
enum status cuda_cudnn_forward(struct stream *stream, const struct attention_forward_args *args,
                               bool *issued) MUST_CHECK;
enum status cuda_cudnn_backward(struct stream *stream, const struct attention_backward_args *args,
                                bool *issued) MUST_CHECK;
void cudnns_delete(struct cudnns *cudnns); // NULL is a no-op
}

using bf16 = __nv_bfloat16;
using half = __half;

constexpr int WARP = CUDA_WARP;
constexpr float LOG2_E = 1.44269504f;

// ---- errors of the CUDA runtime

// Returns STATUS_FAILED from the current function unless the CUDA call succeeds.
#define TRY_CUDA(call)                                                                                       \
    do {                                                                                                     \
        cudaError_t error_ = (call);                                                                         \
        if (error_ != cudaSuccess)                                                                           \
            return FAIL(STATUS_FAILED, "CUDA: %s: %s", #call, cudaGetErrorString(error_));                   \
    } while (0)

// ---- launching kernels

static inline const cuda_device *cuda_of(const struct device *device) {
    return reinterpret_cast<const cuda_device *>(device);
}

static inline const cuda_properties *properties_of(const struct device *device) {
    return &cuda_of(device)->properties;
}

static inline int processors_of(const struct stream *stream) {
    return cuda_of(stream->device)->n_processors;
}

static inline cudaStream_t queue_of(const struct stream *stream) {
    return static_cast<cudaStream_t>(stream->queue);
}

// Makes the device's GPU the current one of the calling thread.
static inline enum status cuda_enter(const struct device *device) {
    TRY_CUDA(cudaSetDevice(cuda_of(device)->index));
    return STATUS_OK;
}

// The maximum number of blocks in each dimension of a grid, equal on all supported GPUs (CUDA C++
// Programming Guide, "Technical Specifications per Compute Capability").
constexpr unsigned MOST_GRID_X = 0x7fffffff, MOST_GRID_Y = 65535, MOST_GRID_Z = 65535;

static inline enum status check_grid(const char *name, dim3 grid) {
    if (grid.x <= MOST_GRID_X && grid.y <= MOST_GRID_Y && grid.z <= MOST_GRID_Z)
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "CUDA: launching %s needs a grid of %u x %u x %u blocks, and GPUs have at most %u x %u x %u; "
                "use a smaller micro-batch or model",
                name, grid.x, grid.y, grid.z, MOST_GRID_X, MOST_GRID_Y, MOST_GRID_Z);
}

// Counts a launch, for device_launches. The addition is atomic, since several threads issue work.
static inline void count_launch(const struct stream *stream) {
    __atomic_fetch_add(&stream->device->n_launches, 1, __ATOMIC_RELAXED);
}

constexpr size_t DEFAULT_SHARED_BYTES = 48 << 10; // kernels with more dynamic shared memory must opt in

template <class... Parameters, class... Arguments>
enum status launch(const char *name, const struct stream *stream, void (*kernel)(Parameters...), dim3 grid,
                   dim3 block, size_t shared_bytes, const Arguments &...arguments) {
    TRY(check_grid(name, grid));
    TRY(cuda_enter(stream->device));
    if (shared_bytes > DEFAULT_SHARED_BYTES)
        TRY_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(shared_bytes)));
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = queue_of(stream);
    cudaError_t error = cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
    if (error != cudaSuccess)
        return FAIL(STATUS_FAILED, "CUDA: launching %s: %s", name, cudaGetErrorString(error));
    count_launch(stream);
    return STATUS_OK;
}

// LAUNCH(stream, kernel, grid, block, shared_bytes, arguments...) launches a kernel and returns a status. Put
// a template with several arguments in parentheses.
#define LAUNCH(stream, kernel, ...) launch(#kernel, stream, kernel, __VA_ARGS__)

static inline int ceil_divide(size_t n, size_t by) {
    return static_cast<int>((n + by - 1) / by);
}

// ---- ticket counters

// Each open stream has CUDA_TICKETS counters in device memory, by which the blocks of a kernel find out
// which of them finishes last. They are zero before and after every kernel. device.cu adds a stream's
// counters when it opens the stream and removes them when it closes it.
struct cuda_tickets {
    struct entry {
        void *queue;  // the stream
        unsigned *at; // its counters
    };
    std::mutex mutex; // streams are opened and used by several threads
    std::vector<entry> of_stream;
};

static inline unsigned *tickets_of(const struct stream *stream) {
    struct cuda_tickets *tickets = cuda_of(stream->device)->tickets;
    std::lock_guard<std::mutex> guard(tickets->mutex);
    for (const cuda_tickets::entry &entry : tickets->of_stream)
        if (entry.queue == stream->queue)
            return entry.at;
    return nullptr;
}

// ---- element types; arithmetic is in float

__device__ inline float upcast(float x) {
    return x;
}
__device__ inline float upcast(bf16 x) {
    return __bfloat162float(x);
}
__device__ inline float upcast(half x) {
    return __half2float(x);
}

// downcast rounds to nearest, ties to even.
template <class T> __device__ inline T downcast(float x);
template <> __device__ inline float downcast<float>(float x) {
    return x;
}
template <> __device__ inline bf16 downcast<bf16>(float x) {
    return __float2bfloat16_rn(x);
}
template <> __device__ inline half downcast<half>(float x) {
    return __float2half_rn(x);
}

// Calls f(T()), where T is the C++ type of the dtype `type`.
template <class F> enum status with_type(enum dtype type, F f) {
    switch (type) {
    case DTYPE_BF16:
        return f(bf16());
    case DTYPE_F16:
        return f(half());
    default:
        return f(float());
    }
}

// ---- accesses of 16 bytes

template <class T> struct alignas(16) pack {
    static constexpr int size = 16 / sizeof(T);
    T x[size];
};

template <class T> __device__ inline pack<T> load_pack(const T *from) {
    return *reinterpret_cast<const pack<T> *>(from);
}

template <class T> __device__ inline void store_pack(T *to, const pack<T> &value) {
    *reinterpret_cast<pack<T> *>(to) = value;
}

// True if a pointer is aligned for packs, or NULL.
static inline bool is_aligned(const void *pointer) {
    return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

// ---- sums, in an order fixed by the number of threads

// lanes_sum and lanes_max return the sum or the maximum over a group of LANES adjacent lanes of a warp.
// Every lane of the group gets the result. LANES is a power of two.
template <int LANES, class S> __device__ inline S lanes_sum(S x) {
    for (int distance = LANES / 2; distance > 0; distance /= 2)
        x += __shfl_xor_sync(0xffffffff, x, distance);
    return x;
}

template <int LANES> __device__ inline float lanes_max(float x) {
    for (int distance = LANES / 2; distance > 0; distance /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, distance));
    return x;
}

template <class S> __device__ inline S warp_sum(S x) {
    return lanes_sum<WARP>(x);
}

__device__ inline float warp_max(float x) {
    return lanes_max<WARP>(x);
}

// block_sum and block_max return the sum or the maximum over the THREADS threads of a one-dimensional
// block. Every thread gets the result. THREADS is a multiple of 32. `scratch` is shared memory with one
// element per warp; it may be reused when the call returns.
template <int THREADS, class S> __device__ inline S block_sum(S x, S *scratch) {
    constexpr int n_warps = THREADS / WARP;
    x = warp_sum(x);
    if (threadIdx.x % WARP == 0)
        scratch[threadIdx.x / WARP] = x;
    __syncthreads();
    x = 0;
    for (int i = 0; i < n_warps; i++)
        x += scratch[i];
    __syncthreads();
    return x;
}

template <int THREADS> __device__ inline float block_max(float x, float *scratch) {
    x = warp_max(x);
    if (threadIdx.x % WARP == 0)
        scratch[threadIdx.x / WARP] = x;
    __syncthreads();
    for (int i = 0; i < THREADS / WARP; i++)
        x = fmaxf(x, scratch[i]);
    __syncthreads();
    return x;
}

#endif
