// Optimizer steps in one pass: each element's state is read once, the gradient unscaled, the state updated in
// float, and the parameter rounded to its type. The arithmetic is that of kernels/cpu/isa/optimizer.c,
// rounding for rounding: every operation is named, so that no compiler fuses others than those that it fuses,
// and the CPU with FMA gives the same bits (a shard may be updated on either).
#include "kernels/cuda/span.cuh"
#include "kernels/optimizer_constants.h"

namespace {

template <class T> struct adamw_step {
    T *param;
    float *master, *m, *v;
    const float *grad;
    float grad_scale;
    struct adamw_constants constants;

    template <int WIDTH> __device__ void at(size_t i) const {
        floats<WIDTH> gradients = load<WIDTH>(grad + i), weights = load<WIDTH>(master + i);
        floats<WIDTH> means = load<WIDTH>(m + i), squares = load<WIDTH>(v + i);
        for (int k = 0; k < WIDTH; k++) {
            float g = __fmul_rn(gradients.x[k], grad_scale);
            float mean = __fmaf_rn(__fsub_rn(g, means.x[k]), constants.take1, means.x[k]);
            float square = __fmaf_rn(__fmaf_rn(g, g, -squares.x[k]), constants.take2, squares.x[k]);
            float denominator = __fmaf_rn(__fsqrt_rn(square), constants.root_scale, constants.epsilon);
            float direction = __fdiv_rn(__fmul_rn(mean, constants.step_size), denominator);
            float change = __fmaf_rn(weights.x[k], constants.decay, direction);
            weights.x[k] = __fsub_rn(weights.x[k], change);
            means.x[k] = mean;
            squares.x[k] = square;
        }
        store(m + i, means);
        store(v + i, squares);
        store(master + i, weights);
        if (param)
            store(param + i, weights);
    }
};

template <class T> struct sgd_step {
    T *param;
    float *master, *m;
    const float *grad;
    float grad_scale;
    bool first; // m holds nothing yet
    struct sgd_constants constants;

    template <int WIDTH> __device__ void at(size_t i) const {
        floats<WIDTH> directions = load<WIDTH>(grad + i), weights = load<WIDTH>(master + i);
        for (int k = 0; k < WIDTH; k++)
            directions.x[k] =
                __fmaf_rn(weights.x[k], constants.decay, __fmul_rn(directions.x[k], grad_scale));
        if (m && !first) {
            floats<WIDTH> before = load<WIDTH>(m + i);
            for (int k = 0; k < WIDTH; k++)
                directions.x[k] = __fmaf_rn(before.x[k], constants.momentum, directions.x[k]);
        }
        if (m)
            store(m + i, directions);
        for (int k = 0; k < WIDTH; k++)
            weights.x[k] = __fmaf_rn(-directions.x[k], constants.lr, weights.x[k]);
        store(master + i, weights);
        if (param)
            store(param + i, weights);
    }
};

} // namespace

extern "C" enum status cuda_adamw(struct stream *stream, const struct adamw_args *args) {
    bool aligned = is_aligned(args->param) && is_aligned(args->master) && is_aligned(args->m) &&
                   is_aligned(args->v) && is_aligned(args->grad);
    return with_type(args->type, [&](auto zero) {
        using T = decltype(zero);
        adamw_step<T> step = {static_cast<T *>(args->param),
                              static_cast<float *>(args->master),
                              static_cast<float *>(args->m),
                              static_cast<float *>(args->v),
                              static_cast<const float *>(args->grad),
                              args->grad_scale,
                              adamw_constants_of(args)};
        return over_span<widest_access<float>()>("adamw", stream, step, args->n, aligned);
    });
}

extern "C" enum status cuda_sgd(struct stream *stream, const struct sgd_args *args) {
    bool aligned =
        is_aligned(args->param) && is_aligned(args->master) && is_aligned(args->m) && is_aligned(args->grad);
    return with_type(args->type, [&](auto zero) {
        using T = decltype(zero);
        sgd_step<T> step = {static_cast<T *>(args->param),
                            static_cast<float *>(args->master),
                            static_cast<float *>(args->m),
                            static_cast<const float *>(args->grad),
                            args->grad_scale,
                            args->step == 1,
                            sgd_constants_of(args)};
        return over_span<widest_access<float>()>("sgd", stream, step, args->n, aligned);
    });
}
