// Optimizer steps in one pass: each element's state is read once, updated in float and written once, the
// parameter rounded to its type on the way. kernels/cuda/optimizer.cu does the same arithmetic, rounding for
// rounding.
#include <omp.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd.h"
#include "kernels/optimizer_constants.h"

VF_INLINE void adamw_step(enum dtype type, const struct adamw_args *args,
                          const struct adamw_constants *constants, size_t i, int lanes) {
    vf g = vf_get_part(DTYPE_F32, args->grad, i, lanes) * args->grad_scale;
    vf m = vf_get_part(DTYPE_F32, args->m, i, lanes), v = vf_get_part(DTYPE_F32, args->v, i, lanes);
    vf master = vf_get_part(DTYPE_F32, args->master, i, lanes);
    m = vf_fma(g - m, vf_set1(constants->take1), m);
    v = vf_fma(vf_fma(g, g, -v), vf_set1(constants->take2), v);
    vf denominator = vf_fma(vf_sqrt(v), vf_set1(constants->root_scale), vf_set1(constants->epsilon));
    vf change = vf_fma(master, vf_set1(constants->decay), m * constants->step_size / denominator);
    master -= change;
    vf_put_part(DTYPE_F32, args->m, i, m, lanes);
    vf_put_part(DTYPE_F32, args->v, i, v, lanes);
    vf_put_part(DTYPE_F32, args->master, i, master, lanes);
    if (args->param)
        vf_put_part(type, args->param, i, master, lanes);
}

VF_INLINE void adamw_range(enum dtype type, const struct adamw_args *args,
                           const struct adamw_constants *constants, struct cpu_range range) {
    size_t i = range.begin;
    for (; i + VF_WIDTH <= range.end; i += VF_WIDTH)
        adamw_step(type, args, constants, i, VF_WIDTH);
    if (i < range.end)
        adamw_step(type, args, constants, i, (int)(range.end - i));
}

enum status CPU_OP(adamw)(struct stream *stream, const struct adamw_args *args) {
    const struct adamw_constants constants = adamw_constants_of(args);
#pragma omp parallel num_threads(cpu_threads(stream->device, args->n))
    {
        struct cpu_range range = cpu_thread_range(args->n, 1024, omp_get_thread_num(), omp_get_num_threads());
        VF_DISPATCH(args->type, adamw_range, args, &constants, range);
    }
    return STATUS_OK;
}

VF_INLINE void sgd_step(enum dtype type, const struct sgd_args *args, const struct sgd_constants *constants,
                        size_t i, int lanes) {
    vf master = vf_get_part(DTYPE_F32, args->master, i, lanes);
    vf g = vf_get_part(DTYPE_F32, args->grad, i, lanes) * args->grad_scale;
    g = vf_fma(master, vf_set1(constants->decay), g);
    if (args->m) {
        if (args->step > 1)
            g = vf_fma(vf_get_part(DTYPE_F32, args->m, i, lanes), vf_set1(constants->momentum), g);
        vf_put_part(DTYPE_F32, args->m, i, g, lanes);
    }
    master = vf_fnma(g, vf_set1(constants->lr), master);
    vf_put_part(DTYPE_F32, args->master, i, master, lanes);
    if (args->param)
        vf_put_part(type, args->param, i, master, lanes);
}

VF_INLINE void sgd_range(enum dtype type, const struct sgd_args *args, const struct sgd_constants *constants,
                         struct cpu_range range) {
    size_t i = range.begin;
    for (; i + VF_WIDTH <= range.end; i += VF_WIDTH)
        sgd_step(type, args, constants, i, VF_WIDTH);
    if (i < range.end)
        sgd_step(type, args, constants, i, (int)(range.end - i));
}

enum status CPU_OP(sgd)(struct stream *stream, const struct sgd_args *args) {
    const struct sgd_constants constants = sgd_constants_of(args);
#pragma omp parallel num_threads(cpu_threads(stream->device, args->n))
    {
        struct cpu_range range = cpu_thread_range(args->n, 1024, omp_get_thread_num(), omp_get_num_threads());
        VF_DISPATCH(args->type, sgd_range, args, &constants, range);
    }
    return STATUS_OK;
}
