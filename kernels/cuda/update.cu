// Sums in a fixed order, and an update's scalars: work of one thread that the host would otherwise wait for.
#include "kernels/cuda/common.cuh"
#define UPDATE_FUNCTION __host__ __device__ static inline
#include "kernels/update.h"

namespace {

constexpr int SUM_THREADS = 256;
constexpr int SUM_TILE = 2048;

// All threads load a tile, and one adds it: the order of the sum is strict (kernels/ops.h), so its latency is
// that of the additions, about 5 ns each on a data-center GPU.
template <class T>
__global__ void __launch_bounds__(SUM_THREADS)
    sum_in_order(double *out, const T *x, size_t n, bool accumulate) {
    __shared__ double tile[SUM_TILE];
    double sum = accumulate ? *out : 0;
    for (size_t begin = 0; begin < n; begin += SUM_TILE) {
        int length = static_cast<int>(n - begin < SUM_TILE ? n - begin : SUM_TILE);
        __syncthreads(); // the tile before was added
        for (int i = static_cast<int>(threadIdx.x); i < length; i += SUM_THREADS)
            tile[i] = static_cast<double>(x[begin + i]);
        __syncthreads();
        if (threadIdx.x == 0) {
#pragma unroll 16
            for (int i = 0; i < length; i++)
                sum += tile[i];
        }
    }
    if (threadIdx.x == 0)
        *out = sum;
}

__global__ void choose_plan(const update_choose_args args) {
    *args.plan = args.plans[args.previous->skipped ? 1 : 0];
}

__global__ void decide_update(const update_decide_args args) {
    *args.result = update_decision(&args);
}

} // namespace

extern "C" enum status cuda_sum(struct stream *stream, const struct sum_args *args) {
    if (args->type == DTYPE_F64)
        return LAUNCH(stream, sum_in_order<double>, 1, SUM_THREADS, 0, args->out,
                      static_cast<const double *>(args->x), args->n, args->accumulate);
    return LAUNCH(stream, sum_in_order<float>, 1, SUM_THREADS, 0, args->out,
                  static_cast<const float *>(args->x), args->n, args->accumulate);
}

extern "C" enum status cuda_update_choose(struct stream *stream, const struct update_choose_args *args) {
    return LAUNCH(stream, choose_plan, 1, 1, 0, *args);
}

extern "C" enum status cuda_update_decide(struct stream *stream, const struct update_decide_args *args) {
    return LAUNCH(stream, decide_update, 1, 1, 0, *args);
}
