// An optimizer step in one pass: each element's states are read once, updated in float and written once.
// Gradients are upcast and parameters rounded in the same pass. kernels/cuda/optimizer.cu does the same
// arithmetic, rounding for rounding.
// Loops are compiled for each rule and moment type. The types of gradients and parameters are tested per
// vector, which is free while the loops wait for memory. With int8 moments, arithmetic takes as long as
// memory accesses. So these loops are compiled a second time without the tests, for fp32 gradients and a
// NULL param.
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd.h"
#include "kernels/update.h"

// The arguments of one call, in the form the loops use. Each thread copies them, so that the compiler knows
// that no store aliases them.
struct step_call {
    struct optimizer_step_args args;
    struct optimizer_constants constants;
    bool reads_moments;
};

// ---- the arithmetic of the rules

struct moments {
    vf m, v;
};

// True if the step reads m. A compile-time constant, except for SGD, where it depends on the call. Not used
// for schedule-free AdamW.
VF_INLINE bool reads_moments(enum optimizer_rule rule, const struct step_call *call) {
    return rule != OPTIMIZER_SGD || call->reads_moments;
}

// Updates the moments with the unscaled gradients g. Returns what finish_step needs besides m, as its
// argument `begun`: sqrt(v) for AdamW and Adam, m for SGD, lr times the sign for Lion, the direction for
// Muon.
VF_INLINE vf update_moments(enum optimizer_rule rule, const struct step_call *call, vf g, vf weight,
                            struct moments *at) {
    const struct optimizer_constants *c = &call->constants;
    if (rule == OPTIMIZER_ADAM || rule == OPTIMIZER_SGD)
        g = vf_fma(weight, vf_set1(c->coupled_decay), g);
    if (rule == OPTIMIZER_SGD)
        return at->m = reads_moments(rule, call) ? vf_fma(at->m, vf_set1(c->momentum), g) : g;
    vf towards = g - at->m;
    if (rule == OPTIMIZER_MUON) {
        at->m = vf_fma(towards, vf_set1(c->take1), at->m);
        return vf_fma(g - at->m, vf_set1(c->take1), at->m); // Muon's direction
    }
    if (rule == OPTIMIZER_LION) {
        vf mixed = vf_fma(towards, vf_set1(c->take1), at->m), lr = vf_set1(c->lr);
        at->m = vf_fma(towards, vf_set1(c->take2), at->m);
        return vf_select(mixed > 0, lr, vf_select(mixed < 0, -lr, mixed)); // NaN stays NaN
    }
    at->m = vf_fma(towards, vf_set1(c->take1), at->m);
    at->v = vf_fma(vf_fma(g, g, -at->v), vf_set1(c->take2), at->v);
    return vf_sqrt(at->v);
}

VF_INLINE vf finish_weights(enum optimizer_rule rule, const struct step_call *call, vf weight, vf m,
                            vf begun) {
    const struct optimizer_constants *c = &call->constants;
    if (rule == OPTIMIZER_SGD)
        return vf_fnma(begun, vf_set1(c->lr), weight);
    vf direction = begun;
    if (rule != OPTIMIZER_LION)
        direction = m * c->step_size / vf_fma(begun, vf_set1(c->root_scale), vf_set1(c->epsilon));
    return weight - (rule == OPTIMIZER_ADAM ? direction : vf_fma(weight, vf_set1(c->decay), direction));
}

// update_moments, with gradients and weights loaded from memory.
VF_INLINE vf begin_step(enum optimizer_rule rule, const struct step_call *call, size_t i, int lanes,
                        struct moments *at) {
    const struct optimizer_step_args *args = &call->args;
    vf g = vf_get_part(args->grad_type, args->grad, i, lanes) * args->grad_scale;
    if (rule == OPTIMIZER_MUON)
        return update_moments(rule, call, g, vf_zero(), at);
    return update_moments(rule, call, g, vf_get_part(DTYPE_F32, args->state.master, i, lanes), at);
}

VF_INLINE void finish_step(enum optimizer_rule rule, const struct step_call *call, size_t i, int lanes, vf m,
                           vf begun) {
    const struct optimizer_step_args *args = &call->args;
    if (rule == OPTIMIZER_MUON) {
        if (args->param)
            vf_put_part(args->type, args->param, i, begun, lanes);
        return;
    }
    vf weight = vf_get_part(DTYPE_F32, args->state.master, i, lanes);
    weight = finish_weights(rule, call, weight, m, begun);
    vf_put_part(DTYPE_F32, args->state.master, i, weight, lanes);
    if (args->param)
        vf_put_part(args->type, args->param, i, weight, lanes);
}

// ---- prefetching

// Prefetch distance in bytes. In loops with square roots and divisions, hardware prefetching does not look
// far enough ahead to keep memory busy.
#define PREFETCH_BYTES 2048

VF_INLINE void prefetch_at(const void *array, size_t byte) {
    __builtin_prefetch((const char *)array + byte + PREFETCH_BYTES);
}

VF_INLINE void fetch_weights(enum optimizer_rule rule, const struct optimizer_step_args *args, size_t i) {
    prefetch_at(args->grad, i * (args->grad_type == DTYPE_F32 ? sizeof(float) : sizeof(uint16_t)));
    if (rule != OPTIMIZER_MUON)
        prefetch_at(args->state.master, i * sizeof(float));
    if (args->param)
        prefetch_at(args->param, i * (args->type == DTYPE_F32 ? sizeof(float) : sizeof(uint16_t)));
}

VF_INLINE void fetch_moments(int n_moments, enum dtype type, const struct optimizer_step_args *args,
                             size_t i) {
    if (n_moments > 0)
        prefetch_at(args->state.m, i * dtype_size(type));
    if (n_moments > 1)
        prefetch_at(args->state.v, i * dtype_size(type));
}

// Prefetches the scales, which are read too rarely for hardware prefetching to detect.
VF_INLINE void fetch_scales(int n_moments, const struct optimizer_step_args *args, size_t i) {
    enum { AHEAD_BLOCKS = 32 };
    size_t byte = (i / MOMENT_BLOCK + AHEAD_BLOCKS) * sizeof(float);
    __builtin_prefetch((const char *)args->state.m_scales + byte);
    if (n_moments > 1)
        __builtin_prefetch((const char *)args->state.v_scales + byte);
}

// ---- moment encodings of kernels/moments.h, with their noise

// Returns the inputs of the noise hash for one vector: the elements' indices in the model times
// MOMENT_STRIDE, plus the step's key. From one vector to the next, they grow by VF_WIDTH * MOMENT_STRIDE.
VF_INLINE vu numbers_of(const struct step_call *call, size_t i) {
    return (vu)vi_iota() * MOMENT_STRIDE +
           ((uint32_t)(call->args.first + i) * MOMENT_STRIDE + call->constants.noise_key);
}

VF_INLINE vu noise_of(vu numbers) {
    return (numbers ^ numbers >> 17) * MOMENT_MULTIPLIER;
}

VF_INLINE vh to_bf16(vf value, enum moment moment, vu noise) {
    vu rounded = ((vu)value + (moment == FIRST_MOMENT ? noise & 0xffffu : noise >> 16)) >> 16;
    vu nan = (vu)(value != value);
    return vh_from_vu((rounded & ~nan) | (0x7fc0u & nan));
}

VF_INLINE vf decode(const uint8_t *codes, enum moment moment, float scale) {
    vu zero = (vu){0} + (MOMENT_CODE_ZERO(moment) << MOMENT_CODE_SHIFT);
    if (moment == SECOND_MOMENT)
        return (vf)((vu_load_bytes(codes) << MOMENT_CODE_SHIFT) + zero) * scale;
    vu code = vu_load_signed_bytes(codes), ratio = code << MOMENT_CODE_SHIFT & 0x87ffffffu;
    return (vf)vu_add_where(code, 0x7fu, ratio, zero, ratio) * scale;
}

// Returns the upper 12 bits of the float value / scale, rounded by adding the noise to its bits. The sign bit
// of a second moment is 0.
VF_INLINE vu rounded_ratio(vf value, float inverse, vu noise) {
    return ((vu)(value * inverse) + noise) >> MOMENT_CODE_SHIFT;
}

VF_INLINE vw code_of(vw ratio, enum moment moment) {
    vw zero = vw_set1(MOMENT_CODE_ZERO(moment));
    if (moment == SECOND_MOMENT)
        return vw_subtract(ratio, zero);
    return vw_subtract(ratio & 0x7ff, zero) | (ratio >> 4 & 0x80);
}

// ---- spans of fp32 and bf16 moments

VF_INLINE void put_moments(enum dtype type, enum moment moment, void *to, size_t i, vf value, vu noise,
                           int lanes) {
    if (type == DTYPE_F32)
        vf_put_part(type, to, i, value, lanes);
    else
        vh_store_part((uint16_t *)to + i, to_bf16(value, moment, noise), lanes);
}

// Schedule-free AdamW (kernels/ops.h). beta1 (1 - c) - 1 is computed as -((1 - beta1) + beta1 c), which
// does not cancel.
VF_INLINE void schedule_free_vector(const struct step_call *call, size_t i, int lanes) {
    const struct optimizer_step_args *args = &call->args;
    const struct optimizer_constants *c = &call->constants;
    const vf average = vf_set1(args->average_weight), lr = vf_set1(c->lr),
             rate = lr * vf_fma(vf_set1(c->momentum), average, vf_set1(c->take1)),
             g = vf_get_part(args->grad_type, args->grad, i, lanes) * args->grad_scale;
    vf y = vf_get_part(DTYPE_F32, args->state.master, i, lanes),
       z = call->reads_moments ? vf_get_part(DTYPE_F32, args->state.m, i, lanes) : y,
       v = vf_get_part(DTYPE_F32, args->state.v, i, lanes);
    v = vf_fma(vf_fma(g, g, -v), vf_set1(c->take2), v);
    const vf direction = vf_fma(y, vf_set1(c->coupled_decay),
                                g / vf_fma(vf_sqrt(v), vf_set1(c->root_scale), vf_set1(c->epsilon)));
    y = vf_fnma(direction, rate, vf_fma(z - y, average, y));
    vf_put_part(DTYPE_F32, args->state.master, i, y, lanes);
    vf_put_part(DTYPE_F32, args->state.m, i, vf_fnma(direction, lr, z), lanes);
    vf_put_part(DTYPE_F32, args->state.v, i, v, lanes);
    if (args->param)
        vf_put_part(args->type, args->param, i, y, lanes);
}

VF_INLINE void step_vector(enum optimizer_rule rule, int n_moments, enum dtype type,
                           const struct step_call *call, size_t i, int lanes) {
    const struct optimizer_step_args *args = &call->args;
    struct moments at = {vf_zero(), vf_zero()};
    if (rule == OPTIMIZER_SCHEDULE_FREE) {
        schedule_free_vector(call, i, lanes);
        return;
    }
    if (n_moments > 0 && reads_moments(rule, call))
        at.m = vf_get_part(type, args->state.m, i, lanes);
    if (n_moments > 1)
        at.v = vf_get_part(type, args->state.v, i, lanes);
    vf begun = begin_step(rule, call, i, lanes, &at);
    finish_step(rule, call, i, lanes, at.m, begun);
    vu noise = type == DTYPE_BF16 ? noise_of(numbers_of(call, i)) : (vu){0};
    if (n_moments > 0)
        put_moments(type, FIRST_MOMENT, args->state.m, i, at.m, noise, lanes);
    if (n_moments > 1)
        put_moments(type, SECOND_MOMENT, args->state.v, i, at.v, noise, lanes);
}

VF_INLINE void step_span(enum optimizer_rule rule, int n_moments, enum dtype type,
                         const struct step_call *call, struct parallel_span range) {
    size_t i = range.begin;
    for (; i + VF_WIDTH <= range.end; i += VF_WIDTH) {
        fetch_weights(rule, &call->args, i);
        fetch_moments(n_moments, type, &call->args, i);
        step_vector(rule, n_moments, type, call, i, VF_WIDTH);
    }
    if (i < range.end)
        step_vector(rule, n_moments, type, call, i, (int)(range.end - i));
}

// ---- blocks of int8 moments

// All new moments of a block are computed before the first is stored, since their maximum gives the scale.

enum { VECTORS = MOMENT_BLOCK / VF_WIDTH, GROUP = 4 * VF_WIDTH }; // GROUP: elements that are encoded together

// Pointers to a block's MOMENT_BLOCK codes of m and of v. v is NULL for rules without second moments.
struct codes {
    uint8_t *m, *v;
};

VF_INLINE struct codes codes_at(int n_moments, const struct optimizer_step_args *args, size_t begin) {
    return (struct codes){.m = (uint8_t *)args->state.m + begin,
                          .v = n_moments > 1 ? (uint8_t *)args->state.v + begin : NULL};
}

// A block's scales before the update and, per lane, the largest bits of its new moments so far.
struct scales {
    float m, v;
    vu m_largest, v_largest;
};

VF_INLINE struct scales scales_at(enum optimizer_rule rule, int n_moments, const struct step_call *call,
                                  size_t begin) {
    const float *m = call->args.state.m_scales, *v = call->args.state.v_scales;
    size_t block = begin / MOMENT_BLOCK;
    return (struct scales){.m = reads_moments(rule, call) ? m[block] : 0, .v = n_moments > 1 ? v[block] : 0};
}

// Computes the new moments of one vector: element k of the block that begins at `begin`.
VF_INLINE vf begin_part(enum optimizer_rule rule, int n_moments, const struct step_call *call,
                        const struct codes *codes, size_t begin, size_t k, int lanes, struct scales *scales,
                        struct moments *new) {
    struct moments at = {vf_zero(), vf_zero()};
    if (reads_moments(rule, call))
        at.m = decode(codes->m + k, FIRST_MOMENT, scales->m);
    if (n_moments > 1)
        at.v = decode(codes->v + k, SECOND_MOMENT, scales->v);
    vf begun = begin_step(rule, call, begin + k, lanes, &at);
    scales->m_largest = vu_max(scales->m_largest, (vu)at.m & 0x7fffffffu);
    if (n_moments > 1)
        scales->v_largest = vu_max(scales->v_largest, (vu)at.v);
    new[k / VF_WIDTH] = at;
    return begun;
}

// moment_inverse of a block's new scales.
struct inverses {
    float m, v;
};

VF_INLINE float put_scale(void *scales, size_t begin, vu largest) {
    float scale = moment_scale(vu_reduce_max(largest) & 0x7fffffffu);
    ((float *)scales)[begin / MOMENT_BLOCK] = scale;
    return moment_inverse(scale);
}

VF_INLINE struct inverses put_scales(int n_moments, const struct step_call *call, size_t begin,
                                     const struct scales *scales) {
    const struct optimizer_state *state = &call->args.state;
    return (struct inverses){.m = put_scale(state->m_scales, begin, scales->m_largest),
                             .v = n_moments > 1 ? put_scale(state->v_scales, begin, scales->v_largest) : 0};
}

// The noise of the vectors that are encoded together. It consists of halves of hashes. Two vectors
// MOMENT_PAIR elements apart share a hash: the first uses the lower half for m and the upper for v, the
// second the reverse.
struct noise {
    vu m[4], v[4];
};

VF_INLINE struct noise noise_of_group(const struct step_call *call, size_t begin, size_t k) {
    enum { APART = MOMENT_PAIR / VF_WIDTH }; // in vectors; if 4, the two vectors are in different groups
    struct noise noise;
    bool second_group = APART == 4 && (k & MOMENT_PAIR);
    vu numbers = numbers_of(call, begin + (second_group ? k - MOMENT_PAIR : k));
    for (size_t j = 0; j < 4; j++, numbers += VF_WIDTH * MOMENT_STRIDE) {
        if (APART < 4 && (j & APART)) {
            noise.m[j] = noise.v[j - APART % 4];
            noise.v[j] = noise.m[j - APART % 4];
            continue;
        }
        vu hash = noise_of(numbers), lower = (hash << 4 & 0xffff0u) | 8u,
           upper = (hash >> 12 & 0xffff0u) | 8u;
        noise.m[j] = second_group ? upper : lower;
        noise.v[j] = second_group ? lower : upper;
    }
    return noise;
}

VF_INLINE void put_group(int n_moments, const struct step_call *call, const struct codes *codes, size_t begin,
                         size_t k, struct inverses inverses, const struct moments *new) {
    vu m[4], v[4];
    struct noise noise = noise_of_group(call, begin, k);
    for (size_t j = 0; j < 4; j++) {
        m[j] = rounded_ratio(new[k / VF_WIDTH + j].m, inverses.m, noise.m[j]);
        v[j] = rounded_ratio(new[k / VF_WIDTH + j].v, inverses.v, noise.v[j]);
    }
    vw_store_bytes(codes->m + k, code_of(vw_pack(m[0], m[1]), FIRST_MOMENT),
                   code_of(vw_pack(m[2], m[3]), FIRST_MOMENT));
    if (n_moments > 1)
        vw_store_bytes(codes->v + k, code_of(vw_pack(v[0], v[1]), SECOND_MOMENT),
                       code_of(vw_pack(v[2], v[3]), SECOND_MOMENT));
}

// Called after a block has been encoded. If the inverse of m or v is zero, sets all its codes to zero.
VF_INLINE void close_block(int n_moments, const struct codes *codes, struct inverses inverses) {
    if (inverses.m == 0)
        memset(codes->m, 0, MOMENT_BLOCK);
    if (n_moments > 1 && inverses.v == 0)
        memset(codes->v, 0, MOMENT_BLOCK);
}

// Updates the last block of a span if it has n < MOMENT_BLOCK elements. Works on full-size copies of its
// codes.
VF_INLINE void step_short_block(enum optimizer_rule rule, int n_moments, const struct step_call *call,
                                size_t begin, size_t n) {
    uint8_t m_copy[MOMENT_BLOCK] = {0}, v_copy[MOMENT_BLOCK] = {0};
    struct moments new[VECTORS];
    struct codes codes = {m_copy, v_copy}, there = codes_at(n_moments, &call->args, begin);
    struct scales scales = scales_at(rule, n_moments, call, begin);
    memset(new, 0, sizeof new);
    memcpy(m_copy, there.m, n);
    if (n_moments > 1)
        memcpy(v_copy, there.v, n);
    for (size_t k = 0; k < n; k += VF_WIDTH) {
        int lanes = n - k < VF_WIDTH ? (int)(n - k) : VF_WIDTH;
        vf begun = begin_part(rule, n_moments, call, &codes, begin, k, lanes, &scales, new);
        finish_step(rule, call, begin + k, lanes, new[k / VF_WIDTH].m, begun);
    }
    struct inverses inverses = put_scales(n_moments, call, begin, &scales);
    for (size_t k = 0; k < MOMENT_BLOCK; k += GROUP)
        put_group(n_moments, call, &codes, begin, k, inverses, new);
    close_block(n_moments, &codes, inverses);
    memcpy(there.m, m_copy, n);
    if (n_moments > 1)
        memcpy(there.v, v_copy, n);
}

// Updates a span, block by block, with software pipelining: a block's new moments are encoded while the next
// block is updated, and the square roots of a group (GROUP elements) are all issued before its first
// division. Out-of-order execution alone looks only a few hundred instructions ahead, so operations on
// different vectors would hardly overlap.
VF_INLINE void step_blocks(enum optimizer_rule rule, int n_moments, const struct step_call *call,
                           struct parallel_span range) {
    struct moments even[VECTORS], odd[VECTORS], *new = even, *last = odd;
    struct codes last_codes = {0};
    struct inverses inverses = {0};
    size_t i = range.begin;
    for (; i + MOMENT_BLOCK <= range.end; i += MOMENT_BLOCK) {
        struct codes codes = codes_at(n_moments, &call->args, i);
        struct scales scales = scales_at(rule, n_moments, call, i);
        fetch_scales(n_moments, &call->args, i);
        for (size_t k = 0; k < MOMENT_BLOCK; k += GROUP) {
            fetch_moments(n_moments, DTYPE_I8, &call->args, i + k);
            vf begun[4];
            for (size_t j = 0; j < 4; j++) {
                size_t at = k + j * VF_WIDTH;
                fetch_weights(rule, &call->args, i + at);
                begun[j] = begin_part(rule, n_moments, call, &codes, i, at, VF_WIDTH, &scales, new);
            }
            if (i > range.begin)
                put_group(n_moments, call, &last_codes, i - MOMENT_BLOCK, k, inverses, last);
            for (size_t j = 0; j < 4; j++) {
                size_t at = k + j * VF_WIDTH;
                finish_step(rule, call, i + at, VF_WIDTH, new[at / VF_WIDTH].m, begun[j]);
            }
        }
        if (i > range.begin)
            close_block(n_moments, &last_codes, inverses);
        inverses = put_scales(n_moments, call, i, &scales);
        last_codes = codes;
        struct moments *swapped = new;
        new = last;
        last = swapped;
    }
    if (i > range.begin) {
        for (size_t k = 0; k < MOMENT_BLOCK; k += GROUP)
            put_group(n_moments, call, &last_codes, i - MOMENT_BLOCK, k, inverses, last);
        close_block(n_moments, &last_codes, inverses);
    }
    if (i < range.end)
        step_short_block(rule, n_moments, call, i, range.end - i);
}

// ---- optimizer_step

// One function per rule and moment type, so that each gets its own register allocation.
#define STEP(name, rule, n_moments)                                                                          \
    static __attribute__((noinline)) void name##_fp32(const struct step_call *shared,                        \
                                                      struct parallel_span range) {                          \
        const struct step_call call = *shared;                                                               \
        step_span(rule, n_moments, DTYPE_F32, &call, range);                                                 \
    }                                                                                                        \
    static __attribute__((noinline)) void name##_bf16(const struct step_call *shared,                        \
                                                      struct parallel_span range) {                          \
        const struct step_call call = *shared;                                                               \
        step_span(rule, n_moments, DTYPE_BF16, &call, range);                                                \
    }                                                                                                        \
    static __attribute__((noinline)) void name##_int8(const struct step_call *shared,                        \
                                                      struct parallel_span range) {                          \
        struct step_call call = *shared;                                                                     \
        if (call.args.grad_type == DTYPE_F32 && !call.args.param) {                                          \
            call.args.grad_type = DTYPE_F32; /* as constants, these leave no branches in the loop */         \
            call.args.param = NULL;                                                                          \
            step_blocks(rule, n_moments, &call, range);                                                      \
        } else {                                                                                             \
            step_blocks(rule, n_moments, &call, range);                                                      \
        }                                                                                                    \
    }

STEP(adamw, OPTIMIZER_ADAMW, 2)
STEP(adam, OPTIMIZER_ADAM, 2)
STEP(momentum, OPTIMIZER_SGD, 1)
STEP(lion, OPTIMIZER_LION, 1)
STEP(muon, OPTIMIZER_MUON, 1)

static __attribute__((noinline)) void sgd(const struct step_call *shared, struct parallel_span range) {
    const struct step_call call = *shared;
    step_span(OPTIMIZER_SGD, 0, DTYPE_F32, &call, range);
}

static __attribute__((noinline)) void schedule_free(const struct step_call *shared,
                                                    struct parallel_span range) {
    const struct step_call call = *shared;
    step_span(OPTIMIZER_SCHEDULE_FREE, 2, DTYPE_F32, &call, range);
}

typedef void step_function(const struct step_call *shared, struct parallel_span range);

static step_function *step_of(const struct optimizer_step_args *args) {
    static step_function *const steps[N_OPTIMIZER_RULES][3] = {
        [OPTIMIZER_ADAMW] = {adamw_fp32, adamw_bf16, adamw_int8},
        [OPTIMIZER_ADAM] = {adam_fp32, adam_bf16, adam_int8},
        [OPTIMIZER_SGD] = {momentum_fp32, momentum_bf16, momentum_int8},
        [OPTIMIZER_LION] = {lion_fp32, lion_bf16, lion_int8},
        [OPTIMIZER_MUON] = {muon_fp32, muon_bf16, muon_int8},
    };
    if (args->rule == OPTIMIZER_SGD && !args->state.m)
        return sgd;
    if (args->rule == OPTIMIZER_SCHEDULE_FREE)
        return schedule_free;
    return steps[args->rule][args->state_type == DTYPE_I8 ? 2 : args->state_type == DTYPE_BF16 ? 1 : 0];
}

static void run_step(const void *context, struct parallel_span span) {
    const struct step_call *call = context;
    step_of (&call->args)(call, span);
}

enum status CPU_OP(optimizer_step)(struct stream *stream, const struct optimizer_step_args *args) {
    const struct step_call call = {.args = *args,
                                   .constants = optimizer_constants_of(args),
                                   .reads_moments = optimizer_reads_moments(args)};
    if (!step_of(args))
        return FAIL(STATUS_UNSUPPORTED, "the CPU has no kernel for optimizer rule %d", (int)args->rule);
    cpu_parallel(stream->device, args->n, args->n, 1024, run_step, &call);
    return STATUS_OK;
}

// ---- Muon: weights updated with the orthogonalized direction

VF_INLINE void muon_vector(enum dtype update_type, const struct muon_step_args *args, size_t i, int lanes) {
    const struct optimizer_constants *c = &args->plan->constants[args->group];
    vf update = vf_get_part(update_type, args->update, i, lanes),
       weight = vf_get_part(DTYPE_F32, args->master, i, lanes),
       moved = vf_fma(weight, vf_set1(c->decay), update * (c->lr * args->scale));
    vf_put_part(DTYPE_F32, args->master, i, weight - moved, lanes);
    if (args->param)
        vf_put_part(args->type, args->param, i, weight - moved, lanes);
}

VF_INLINE void muon_range(enum dtype update_type, const struct muon_step_args *args,
                          struct parallel_span range) {
    size_t i = range.begin;
    for (; i + VF_WIDTH <= range.end; i += VF_WIDTH)
        muon_vector(update_type, args, i, VF_WIDTH);
    if (i < range.end)
        muon_vector(update_type, args, i, (int)(range.end - i));
}

static void muon_span(const void *context, struct parallel_span span) {
    const struct muon_step_args *args = context;
    VF_DISPATCH(args->update_type, muon_range, args, span);
}

enum status CPU_OP(muon_step)(struct stream *stream, const struct muon_step_args *args) {
    if (!args->result->skipped)
        cpu_parallel(stream->device, args->n, args->n, 1024, muon_span, args);
    return STATUS_OK;
}
