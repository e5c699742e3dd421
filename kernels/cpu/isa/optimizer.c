// An optimizer's step in one pass: each element's state is read once, updated in float and written once, the
// gradient widened and the parameter rounded on the way. kernels/cuda/optimizer.cu does the same arithmetic,
// rounding for rounding. The rule and the moments' type are known when a loop is compiled; the types of
// gradients and parameters are asked for again at each vector, which memory leaves time for.
#include <omp.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd.h"
#include "kernels/optimizer_constants.h"

// One call, as its loops see it. Each thread copies it, so that no store through a pointer can be thought to
// change it.
struct call {
    struct optimizer_step_args args;
    struct optimizer_constants constants;
    bool reads_moments;
};

// ---- arithmetic

struct moments {
    vf m, v;
};

// The new weights, from the old ones and the unscaled gradients; the moments are updated.
VF_INLINE vf update(enum optimizer_rule rule, const struct call *call, vf g, vf weight, struct moments *at) {
    const struct optimizer_constants *c = &call->constants;
    if (rule == OPTIMIZER_ADAM || rule == OPTIMIZER_SGD)
        g = vf_fma(weight, vf_set1(c->coupled_decay), g);
    if (rule == OPTIMIZER_SGD) {
        at->m = call->reads_moments ? vf_fma(at->m, vf_set1(c->momentum), g) : g;
        return vf_fnma(at->m, vf_set1(c->lr), weight);
    }
    vf towards = g - at->m, direction;
    if (rule == OPTIMIZER_LION) {
        vf mixed = vf_fma(towards, vf_set1(c->take1), at->m), lr = vf_set1(c->lr);
        at->m = vf_fma(towards, vf_set1(c->take2), at->m);
        direction = vf_select(mixed > 0, lr, vf_select(mixed < 0, -lr, mixed)); // NaN stays
        return weight - vf_fma(weight, vf_set1(c->decay), direction);
    }
    at->m = vf_fma(towards, vf_set1(c->take1), at->m);
    at->v = vf_fma(vf_fma(g, g, -at->v), vf_set1(c->take2), at->v);
    direction = at->m * c->step_size / vf_fma(vf_sqrt(at->v), vf_set1(c->root_scale), vf_set1(c->epsilon));
    return weight - (rule == OPTIMIZER_ADAMW ? vf_fma(weight, vf_set1(c->decay), direction) : direction);
}

// Reads gradients and weights, and writes the new weights.
VF_INLINE void update_weights(enum optimizer_rule rule, const struct call *call, size_t i, int lanes,
                              struct moments *at) {
    const struct optimizer_step_args *args = &call->args;
    vf g = vf_get_part(args->grad_type, args->grad, i, lanes) * args->grad_scale;
    vf weight = vf_get_part(DTYPE_F32, args->from.master, i, lanes);
    weight = update(rule, call, g, weight, at);
    vf_put_part(DTYPE_F32, args->to.master, i, weight, lanes);
    if (args->param)
        vf_put_part(args->type, args->param, i, weight, lanes);
}

// ---- moments as kernels/moments.h defines them, with its noise

VF_INLINE vu noise_of(const struct call *call, size_t i) {
    uint32_t first = (uint32_t)(call->args.first + i) * MOMENT_STRIDE + call->constants.noise_key;
    vu x = (vu)vi_iota() * MOMENT_STRIDE + first;
    x = (x ^ x >> 17) * MOMENT_MULTIPLIER;
    return x ^ x >> 15;
}

VF_INLINE vh to_bf16(vf value, enum moment moment, vu noise) {
    vu rounded = ((vu)value + (moment == FIRST_MOMENT ? noise & 0xffffu : noise >> 16)) >> 16;
    vu nan = (vu)(value != value);
    return vh_from_vu((rounded & ~nan) | (0x7fc0u & nan));
}

VF_INLINE vf decode(vu code, enum moment moment, float scale) {
    vu magnitude = moment == FIRST_MOMENT ? code & 0x7fu : code;
    vu share = ((magnitude + MOMENT_CODE_ZERO(moment)) << MOMENT_CODE_SHIFT) & (vu)(magnitude != 0);
    return (vf)(moment == FIRST_MOMENT ? share | (code << 24 & 0x80000000u) : share) * scale;
}

VF_INLINE vu encode(vf value, enum moment moment, float inverse, vu noise) {
    vu share = (vu)(value * inverse), magnitude = share & 0x7fffffffu;
    noise = (moment == FIRST_MOMENT ? noise << 4 & 0xffff0u : noise >> 12 & 0xffff0u) | 8u;
    vi code = (vi)((magnitude + noise) >> MOMENT_CODE_SHIFT) - (int32_t)MOMENT_CODE_ZERO(moment);
    code = vi_max(code, vi_set1(1));
    if (moment == SECOND_MOMENT)
        return (vu)(code & (value != 0));
    return (vu)(code & ((vi)magnitude >= (int32_t)MOMENT_LEAST_SHARE)) | (share >> 24 & 0x80u);
}

// ---- spans of fp32 and bf16 moments

VF_INLINE vf get_moments(enum dtype type, const struct call *call, const void *from, size_t i, int lanes) {
    return call->reads_moments ? vf_get_part(type, from, i, lanes) : vf_zero();
}

VF_INLINE void put_moments(enum dtype type, enum moment moment, void *to, size_t i, vf value, vu noise,
                           int lanes) {
    if (type == DTYPE_F32)
        vf_put_part(type, to, i, value, lanes);
    else
        vh_store_part((uint16_t *)to + i, to_bf16(value, moment, noise), lanes);
}

VF_INLINE void step_vector(enum optimizer_rule rule, int n_moments, enum dtype type, const struct call *call,
                           size_t i, int lanes) {
    const struct optimizer_step_args *args = &call->args;
    struct moments at = {vf_zero(), vf_zero()};
    if (n_moments > 0)
        at.m = get_moments(type, call, args->from.m, i, lanes);
    if (n_moments > 1)
        at.v = get_moments(type, call, args->from.v, i, lanes);
    update_weights(rule, call, i, lanes, &at);
    vu noise = type == DTYPE_BF16 ? noise_of(call, i) : (vu){0};
    if (n_moments > 0)
        put_moments(type, FIRST_MOMENT, args->to.m, i, at.m, noise, lanes);
    if (n_moments > 1)
        put_moments(type, SECOND_MOMENT, args->to.v, i, at.v, noise, lanes);
}

VF_INLINE void step_span(enum optimizer_rule rule, int n_moments, enum dtype type, const struct call *call,
                         struct cpu_range range) {
    size_t i = range.begin;
    for (; i + VF_WIDTH <= range.end; i += VF_WIDTH)
        step_vector(rule, n_moments, type, call, i, VF_WIDTH);
    if (i < range.end)
        step_vector(rule, n_moments, type, call, i, (int)(range.end - i));
}

// ---- blocks of int8 moments: the new ones are all known before the first is stored

VF_INLINE float put_scale(void *scales, size_t block, vi largest) {
    float scale = moment_scale((uint32_t)vi_reduce_max(largest));
    ((float *)scales)[block] = scale;
    return moment_inverse(scale);
}

VF_INLINE vi larger(vi largest, vf value) {
    return vi_max(largest, (vi)value & 0x7fffffff);
}

VF_INLINE void put_codes(int n_moments, const struct call *call, const struct moments *at, size_t begin,
                         size_t n, float m_inverse, float v_inverse, bool some_zero) {
    for (size_t k = 0; k < n; k += VF_WIDTH) {
        const struct moments *here = &at[k / VF_WIDTH];
        size_t i = begin + k;
        int lanes = n - k < VF_WIDTH ? (int)(n - k) : VF_WIDTH;
        vu noise = noise_of(call, i), code = encode(here->m, FIRST_MOMENT, m_inverse, noise);
        code = some_zero && m_inverse == 0 ? (vu){0} : code;
        vu_store_bytes_part((uint8_t *)call->args.to.m + i, code, lanes);
        if (n_moments > 1) {
            code = encode(here->v, SECOND_MOMENT, v_inverse, noise);
            code = some_zero && v_inverse == 0 ? (vu){0} : code;
            vu_store_bytes_part((uint8_t *)call->args.to.v + i, code, lanes);
        }
    }
}

VF_INLINE void step_block(enum optimizer_rule rule, int n_moments, const struct call *call, size_t begin,
                          size_t n) {
    const struct optimizer_step_args *args = &call->args;
    const uint8_t *m_from = args->from.m, *v_from = args->from.v;
    struct moments at[MOMENT_BLOCK / VF_WIDTH];
    vi m_largest = {0}, v_largest = {0};
    size_t block = begin / MOMENT_BLOCK;
    float m_scale = call->reads_moments ? ((const float *)args->from.m_scales)[block] : 0;
    float v_scale = n_moments > 1 ? ((const float *)args->from.v_scales)[block] : 0;
    for (size_t k = 0; k < n; k += VF_WIDTH) {
        struct moments *here = &at[k / VF_WIDTH];
        size_t i = begin + k;
        int lanes = n - k < VF_WIDTH ? (int)(n - k) : VF_WIDTH;
        here->m = call->reads_moments ? decode(vu_load_bytes_part(m_from + i, lanes), FIRST_MOMENT, m_scale)
                                      : vf_zero();
        here->v =
            n_moments > 1 ? decode(vu_load_bytes_part(v_from + i, lanes), SECOND_MOMENT, v_scale) : vf_zero();
        update_weights(rule, call, i, lanes, here);
        m_largest = larger(m_largest, here->m);
        if (n_moments > 1)
            v_largest = larger(v_largest, here->v);
    }
    float m_inverse = put_scale(args->to.m_scales, block, m_largest);
    float v_inverse = n_moments > 1 ? put_scale(args->to.v_scales, block, v_largest) : 0;
    // Of a block whose inverse is zero all codes are.
    if (m_inverse != 0 && (n_moments < 2 || v_inverse != 0))
        put_codes(n_moments, call, at, begin, n, m_inverse, v_inverse, false);
    else
        put_codes(n_moments, call, at, begin, n, m_inverse, v_inverse, true);
}

VF_INLINE void step_blocks(enum optimizer_rule rule, int n_moments, const struct call *call,
                           struct cpu_range range) {
    size_t i = range.begin;
    for (; i + MOMENT_BLOCK <= range.end; i += MOMENT_BLOCK)
        step_block(rule, n_moments, call, i, MOMENT_BLOCK);
    if (i < range.end)
        step_block(rule, n_moments, call, i, range.end - i);
}

// ---- the operation

VF_INLINE void step_range(enum optimizer_rule rule, int n_moments, const struct call *call,
                          struct cpu_range range) {
    if (n_moments == 0 || call->args.state_type == DTYPE_F32)
        step_span(rule, n_moments, DTYPE_F32, call, range);
    else if (call->args.state_type == DTYPE_BF16)
        step_span(rule, n_moments, DTYPE_BF16, call, range);
    else
        step_blocks(rule, n_moments, call, range);
}

static void step_share(const struct call *shared, struct cpu_range range) {
    const struct call copy = *shared, *call = &copy;
    switch (call->args.rule) {
    case OPTIMIZER_ADAMW:
        step_range(OPTIMIZER_ADAMW, 2, call, range);
        break;
    case OPTIMIZER_ADAM:
        step_range(OPTIMIZER_ADAM, 2, call, range);
        break;
    case OPTIMIZER_SGD:
        if (call->args.from.m)
            step_range(OPTIMIZER_SGD, 1, call, range);
        else
            step_range(OPTIMIZER_SGD, 0, call, range);
        break;
    default:
        step_range(OPTIMIZER_LION, 1, call, range);
    }
}

enum status CPU_OP(optimizer_step)(struct stream *stream, const struct optimizer_step_args *args) {
    const struct call call = {.args = *args,
                              .constants = optimizer_constants_of(args),
                              .reads_moments = optimizer_reads_moments(args)};
#pragma omp parallel num_threads(cpu_threads(stream->device, args->n))
    step_share(&call, cpu_thread_range(args->n, 1024, omp_get_thread_num(), omp_get_num_threads()));
    return STATUS_OK;
}
