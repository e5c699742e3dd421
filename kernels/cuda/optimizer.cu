// Optimizer steps. A step is one pass over the elements: it reads each element's state once, unscales the
// gradient, updates the state in float, and rounds the parameter to its type. The arithmetic is that of
// kernels/cpu/isa/optimizer.c, rounding by rounding. Every operation is an intrinsic, so the compiler fuses
// only what is written as fused. A CPU with FMA therefore gives the same bits, and a shard may be updated
// on the CPU or the GPU.
// Each rule and each type of moments has its own kernel. The types of gradients and parameters are tested
// at run time; all threads take the same branch.
#define MOMENT_FUNCTION __host__ __device__ static inline
#define EXACT_FUNCTION  __host__ __device__ static inline
#include "kernels/cuda/launch_bounds.cuh"
#include "kernels/cuda/span.cuh"
#define UPDATE_FUNCTION __host__ __device__ static inline
#include "kernels/update.h"

namespace {

template <enum optimizer_rule RULE, int MOMENTS> struct rule_of {
    static constexpr enum optimizer_rule rule = RULE;
    static constexpr int n_moments = MOMENTS;
};

// An optimizer step on one span.
struct call {
    // Two sets of pointers to the same arrays: loads use `from`, stores use `to`. With one set, the
    // compiler would keep the addresses of loads for the stores, which takes up to 8 more registers and
    // spills on sm_80.
    struct optimizer_state from, to;
    void *param;
    const void *grad;
    enum dtype type, grad_type;
    float grad_scale;
    bool reads_moments;
    uint64_t first;
    struct optimizer_constants constants;
    float average_weight;
};

// ---- updating elements

// True for Muon, whose step writes the direction to be orthogonalized to `param` (kernels/ops.h) and leaves
// the master weights unchanged.
template <class Rule> constexpr bool makes_direction = Rule::rule == OPTIMIZER_MUON;

// Returns an element's new weight (with Muon, its direction) from the old weight and the unscaled gradient
// g. Updates its moments m and v.
template <class Rule> __device__ float update(const call &call, float g, float weight, float &m, float &v) {
    const struct optimizer_constants &c = call.constants;
    if (Rule::rule == OPTIMIZER_ADAM || Rule::rule == OPTIMIZER_SGD)
        g = __fmaf_rn(weight, c.coupled_decay, g);
    if (Rule::rule == OPTIMIZER_SGD) {
        m = call.reads_moments ? __fmaf_rn(m, c.momentum, g) : g;
        return __fmaf_rn(-m, c.lr, weight);
    }
    if (Rule::rule == OPTIMIZER_SCHEDULE_FREE) {
        const float z = call.reads_moments ? m : weight,
                    rate = __fmul_rn(c.lr, __fmaf_rn(c.momentum, call.average_weight, c.take1));
        v = __fmaf_rn(__fmaf_rn(g, g, -v), c.take2, v);
        const float direction = __fmaf_rn(weight, c.coupled_decay,
                                          __fdiv_rn(g, __fmaf_rn(__fsqrt_rn(v), c.root_scale, c.epsilon)));
        m = __fmaf_rn(-direction, c.lr, z);
        return __fmaf_rn(-direction, rate, __fmaf_rn(__fsub_rn(z, weight), call.average_weight, weight));
    }
    float towards = __fsub_rn(g, m);
    if (Rule::rule == OPTIMIZER_MUON) {
        m = __fmaf_rn(towards, c.take1, m);
        return __fmaf_rn(__fsub_rn(g, m), c.take1, m);
    }
    if (Rule::rule == OPTIMIZER_LION) {
        float mixed = __fmaf_rn(towards, c.take1, m);
        float direction = mixed > 0 ? c.lr : mixed < 0 ? -c.lr : mixed; // NaN stays NaN
        m = __fmaf_rn(towards, c.take2, m);
        return __fsub_rn(weight, __fmaf_rn(weight, c.decay, direction));
    }
    m = __fmaf_rn(towards, c.take1, m);
    v = __fmaf_rn(__fmaf_rn(g, g, -v), c.take2, v);
    float denominator = __fmaf_rn(__fsqrt_rn(v), c.root_scale, c.epsilon);
    float direction = __fdiv_rn(__fmul_rn(m, c.step_size), denominator);
    return __fsub_rn(weight,
                     Rule::rule == OPTIMIZER_ADAMW ? __fmaf_rn(weight, c.decay, direction) : direction);
}

template <int WIDTH>
__device__ void store_as(enum dtype type, void *to, size_t i, const floats<WIDTH> &value) {
    if (type == DTYPE_BF16)
        store(static_cast<bf16 *>(to) + i, value);
    else if (type == DTYPE_F16)
        store(static_cast<half *>(to) + i, value);
    else
        store(static_cast<float *>(to) + i, value);
}

// Updates the weights of elements [i, i + WIDTH) in memory, and their moments m and v in registers.
template <class Rule, int WIDTH>
__device__ void update_weights(const call &call, size_t i, floats<WIDTH> &m, floats<WIDTH> &v) {
    floats<WIDTH> gradients = load_as<WIDTH>(call.grad_type, call.grad, i);
    floats<WIDTH> weights = {};
    if constexpr (Rule::rule != OPTIMIZER_MUON)
        weights = load<WIDTH>(static_cast<const float *>(call.from.master) + i);
    for (int k = 0; k < WIDTH; k++)
        weights.x[k] =
            update<Rule>(call, __fmul_rn(gradients.x[k], call.grad_scale), weights.x[k], m.x[k], v.x[k]);
    if constexpr (!makes_direction<Rule>)
        store(static_cast<float *>(call.to.master) + i, weights);
    if (call.param)
        store_as(call.type, call.param, i, weights);
}

// ---- fp32 and bf16 moments, element by element

template <int WIDTH>
__device__ void store_moments(const call &, enum moment, float *to, size_t i, const floats<WIDTH> &value) {
    store(to + i, value);
}

template <int WIDTH>
__device__ void store_moments(const call &call, enum moment moment, bf16 *to, size_t i,
                              const floats<WIDTH> &value) {
    elements<uint16_t, WIDTH> rounded;
    for (int k = 0; k < WIDTH; k++)
        rounded.x[k] =
            moment_to_bf16(value.x[k], moment, moment_noise(call.constants.noise_key, call.first + i + k));
    *reinterpret_cast<elements<uint16_t, WIDTH> *>(to + i) = rounded;
}

template <class Rule, class M> struct span_step {
    struct call call;

    template <int WIDTH> __device__ void at(size_t i) const {
        floats<WIDTH> m = {}, v = {};
        if (Rule::n_moments > 0 && call.reads_moments)
            m = load<WIDTH>(static_cast<const M *>(call.from.m) + i);
        if (Rule::n_moments > 1)
            v = load<WIDTH>(static_cast<const M *>(call.from.v) + i);
        update_weights<Rule>(call, i, m, v);
        if (Rule::n_moments > 0)
            store_moments(call, FIRST_MOMENT, static_cast<M *>(call.to.m), i, m);
        if (Rule::n_moments > 1)
            store_moments(call, SECOND_MOMENT, static_cast<M *>(call.to.v), i, v);
    }
};

// ---- int8 moments
// A warp updates a block of MOMENT_BLOCK elements. It keeps the new moments in registers until their scale
// is known.

constexpr int LANE_ELEMENTS = MOMENT_BLOCK / WARP;

// The elements of a block of moments that a lane updates, WIDTH adjacent elements per access. `begin` is
// the block's first element, n the number of elements in the span. Elements from n on are skipped and count
// as zeros.
template <int WIDTH> struct lane_elements {
    static constexpr int accesses = LANE_ELEMENTS / WIDTH;
    size_t begin, n;

    __device__ size_t at(int access) const {
        return begin + (static_cast<size_t>(access) * WARP + threadIdx.x % WARP) * WIDTH;
    }
    __device__ bool has(int access) const {
        return at(access) < n;
    }
};

template <int WIDTH>
__device__ floats<WIDTH> load_codes(enum moment moment, const void *codes, size_t i, float scale) {
    elements<uint8_t, WIDTH> code =
        *reinterpret_cast<const elements<uint8_t, WIDTH> *>(static_cast<const uint8_t *>(codes) + i);
    floats<WIDTH> value;
    for (int k = 0; k < WIDTH; k++)
        value.x[k] = moment_decode(code.x[k], moment, scale);
    return value;
}

// Stores the scale and the codes of the MOMENT_BLOCK values that the warp holds.
template <int WIDTH>
__device__ void store_codes(const call &call, enum moment moment, const lane_elements<WIDTH> &lane,
                            void *codes, void *scales, const floats<WIDTH> *values) {
    uint32_t largest = 0;
    for (int access = 0; access < lane.accesses; access++)
        for (int k = 0; k < WIDTH; k++) {
            uint32_t magnitude = moment_bits(values[access].x[k]) & 0x7fffffffu;
            largest = magnitude > largest ? magnitude : largest;
        }
    float scale = moment_scale(__reduce_max_sync(0xffffffff, largest));
    float inverse = moment_inverse(scale);
    if (threadIdx.x % WARP == 0)
        static_cast<float *>(scales)[lane.begin / MOMENT_BLOCK] = scale;
    for (int access = 0; access < lane.accesses; access++) {
        if (!lane.has(access))
            continue;
        size_t i = lane.at(access);
        elements<uint8_t, WIDTH> code;
        for (int k = 0; k < WIDTH; k++) {
            uint32_t noise = moment_code_noise(moment, call.constants.noise_key, call.first + i + k);
            code.x[k] = moment_encode(values[access].x[k], moment, inverse, noise);
        }
        *reinterpret_cast<elements<uint8_t, WIDTH> *>(static_cast<uint8_t *>(codes) + i) = code;
    }
}

constexpr int BLOCK_THREADS = 256;

// Updates the elements of one block of moments, with one warp. n is the number of elements in the span;
// WIDTH must divide it.
template <class Rule, int WIDTH> __device__ void step_block(const call &call, size_t block, size_t n) {
    lane_elements<WIDTH> lane = {block * MOMENT_BLOCK, n};
    floats<WIDTH> m[lane.accesses] = {}, v[lane.accesses] = {};
    float m_scale = call.reads_moments ? static_cast<const float *>(call.from.m_scales)[block] : 0;
    float v_scale = Rule::n_moments > 1 ? static_cast<const float *>(call.from.v_scales)[block] : 0;
    for (int access = 0; access < lane.accesses; access++) {
        if (!lane.has(access))
            continue;
        size_t i = lane.at(access);
        if (call.reads_moments)
            m[access] = load_codes<WIDTH>(FIRST_MOMENT, call.from.m, i, m_scale);
        if (Rule::n_moments > 1)
            v[access] = load_codes<WIDTH>(SECOND_MOMENT, call.from.v, i, v_scale);
        update_weights<Rule>(call, i, m[access], v[access]);
    }
    __syncwarp(); // every lane has read the old scales
    store_codes(call, FIRST_MOMENT, lane, call.to.m, call.to.m_scales, m);
    if (Rule::n_moments > 1)
        store_codes(call, SECOND_MOMENT, lane, call.to.v, call.to.v_scales, v);
}

template <class Rule, int WIDTH>
__global__ void __launch_bounds__(BLOCK_THREADS) step_blocks(const call call, size_t n) {
    size_t warp = (static_cast<size_t>(blockIdx.x) * BLOCK_THREADS + threadIdx.x) / WARP;
    size_t n_warps = static_cast<size_t>(gridDim.x) * (BLOCK_THREADS / WARP);
    for (size_t block = warp; block < (n + MOMENT_BLOCK - 1) / MOMENT_BLOCK; block += n_warps)
        step_block<Rule, WIDTH>(call, block, n);
}

template <class Rule>
enum status step_int8(const struct stream *stream, const call &call, size_t n, bool aligned) {
    if (n == 0)
        return STATUS_OK;
    int most = SPAN_BLOCKS_PER_PROCESSOR * processors_of(stream);
    int blocks = ceil_divide(n, static_cast<size_t>(MOMENT_BLOCK) * (BLOCK_THREADS / WARP));
    bool wide = aligned && n % LANE_ELEMENTS == 0;
    return launch("optimizer_step", stream, wide ? step_blocks<Rule, LANE_ELEMENTS> : step_blocks<Rule, 1>,
                  blocks < most ? blocks : most, BLOCK_THREADS, 0, call, n);
}

// ---- one span per launch

template <class Rule>
enum status step(const struct stream *stream, const struct optimizer_step_args *args, const call &call) {
    const struct optimizer_state &state = args->state;
    bool aligned = is_aligned(args->param) && is_aligned(args->grad) && is_aligned(state.master) &&
                   is_aligned(state.m) && is_aligned(state.v);
    constexpr int width = widest_access<float>();
    if constexpr (Rule::n_moments > 0 && Rule::rule != OPTIMIZER_SCHEDULE_FREE) {
        if (args->state_type == DTYPE_BF16)
            return over_span<width>("optimizer_step", stream, span_step<Rule, bf16>{call}, args->n, aligned);
        if (args->state_type == DTYPE_I8)
            return step_int8<Rule>(stream, call, args->n, aligned);
    }
    return over_span<width>("optimizer_step", stream, span_step<Rule, float>{call}, args->n, aligned);
}

// ---- many spans in one launch

// Returns the span that contains a tile: the last one whose first tile is not after it.
__device__ const struct optimizer_span &span_of(const struct optimizer_span *spans, int n, uint64_t tile) {
    int low = 0, high = n - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (spans[middle].first_tile <= tile)
            low = middle;
        else
            high = middle - 1;
    }
    return spans[low];
}

__device__ inline bool all_aligned(const struct optimizer_span &span) {
    const struct optimizer_state &state = span.state;
    uintptr_t bits = reinterpret_cast<uintptr_t>(span.param) | reinterpret_cast<uintptr_t>(span.grad) |
                     reinterpret_cast<uintptr_t>(state.master) | reinterpret_cast<uintptr_t>(state.m) |
                     reinterpret_cast<uintptr_t>(state.v);
    return bits % 16 == 0;
}

// Updates elements [begin, end) of a span with fp32 or bf16 moments, with the threads of a block.
template <class Rule, class M, int WIDTH>
__device__ void step_tile(const span_step<Rule, M> &step, size_t begin, size_t end) {
    size_t whole = begin + (end - begin) / WIDTH * WIDTH;
    for (size_t i = begin + threadIdx.x * WIDTH; i < whole; i += BLOCK_THREADS * WIDTH)
        step.template at<WIDTH>(i);
    for (size_t i = whole + threadIdx.x; i < end; i += BLOCK_THREADS)
        step.template at<1>(i);
}

// Updates elements [begin, end) of a span of n elements with int8 moments. Each warp of the thread block
// takes one block of moments at a time.
template <class Rule, int WIDTH>
__device__ void step_tile_blocks(const call &call, size_t begin, size_t end, size_t n) {
    static_assert(OPTIMIZER_TILE % MOMENT_BLOCK == 0, "no block of moments is split");
    for (size_t block = begin / MOMENT_BLOCK + threadIdx.x / WARP; block * MOMENT_BLOCK < end;
         block += BLOCK_THREADS / WARP)
        step_block<Rule, WIDTH>(call, block, n);
}

constexpr int TILE_WIDTH = widest_access<float>(); // elements per access

template <class Rule> constexpr bool IS_SCHEDULE_FREE = Rule::rule == OPTIMIZER_SCHEDULE_FREE;

template <class Rule, class M>
__global__ void __launch_bounds__(BLOCK_THREADS,
                                  IS_SCHEDULE_FREE<Rule> ? pinned_blocks(PINNED_SCHEDULE_FREE, 0) : 0)
    step_spans(const optimizer_spans_args args) {
    if (args.result->skipped)
        return;
    for (size_t tile = blockIdx.x; tile < args.n_tiles; tile += gridDim.x) {
        const struct optimizer_span &span = span_of(args.spans, args.n_spans, tile);
        const call call = {span.state,
                           span.state,
                           span.param,
                           span.grad,
                           args.type,
                           args.grad_type,
                           args.result->grad_scale,
                           (Rule::rule != OPTIMIZER_SGD && Rule::rule != OPTIMIZER_SCHEDULE_FREE) ||
                               (Rule::n_moments > 0 && args.plan->step > 1),
                           span.first,
                           args.plan->constants[span.group],
                           args.plan->average_weight};
        size_t begin = (tile - span.first_tile) * OPTIMIZER_TILE, end = begin + OPTIMIZER_TILE;
        end = end < span.n ? end : span.n;
        bool aligned = all_aligned(span);
        if constexpr (sizeof(M) > 1) {
            if (aligned)
                step_tile<Rule, M, TILE_WIDTH>({call}, begin, end);
            else
                step_tile<Rule, M, 1>({call}, begin, end);
        } else if (aligned && span.n % LANE_ELEMENTS == 0) {
            step_tile_blocks<Rule, LANE_ELEMENTS>(call, begin, end, span.n);
        } else {
            step_tile_blocks<Rule, 1>(call, begin, end, span.n);
        }
    }
}

template <class Rule>
enum status launch_spans(const struct stream *stream, const struct optimizer_spans_args *args) {
    size_t most = static_cast<size_t>(SPAN_BLOCKS_PER_PROCESSOR * processors_of(stream));
    int blocks = static_cast<int>(args->n_tiles < most ? args->n_tiles : most);
    void (*kernel)(const optimizer_spans_args) = step_spans<Rule, float>;
    if constexpr (Rule::n_moments > 0 && Rule::rule != OPTIMIZER_SCHEDULE_FREE)
        kernel = args->state_type == DTYPE_BF16 ? step_spans<Rule, bf16>
                 : args->state_type == DTYPE_I8 ? step_spans<Rule, uint8_t>
                                                : kernel;
    return launch("optimizer_spans", stream, kernel, blocks, BLOCK_THREADS, 0, *args);
}

// ---- Muon: updating the weights by the orthogonalized direction

template <class U> struct muon_span {
    void *param;
    float *master;
    const U *update;
    enum dtype type;
    float rate, decay;

    template <int WIDTH> __device__ void at(size_t i) const {
        floats<WIDTH> direction = load<WIDTH>(update + i), weights = load<WIDTH>(master + i);
        for (int k = 0; k < WIDTH; k++)
            weights.x[k] =
                __fsub_rn(weights.x[k], __fmaf_rn(weights.x[k], decay, __fmul_rn(direction.x[k], rate)));
        store(master + i, weights);
        if (param)
            store_as(type, param, i, weights);
    }
};

template <class U, int WIDTH>
__global__ void __launch_bounds__(SPAN_THREADS) muon_step(const muon_step_args args) {
    if (args.result->skipped)
        return;
    const struct optimizer_constants &c = args.plan->constants[args.group];
    const muon_span<U> step = {
        args.param, static_cast<float *>(args.master), static_cast<const U *>(args.update),
        args.type,  __fmul_rn(c.lr, args.scale),       c.decay};
    walk<WIDTH>(step, static_cast<size_t>(blockIdx.x) * SPAN_THREADS + threadIdx.x,
                static_cast<size_t>(gridDim.x) * SPAN_THREADS, args.n);
}

// ---- deciding on the GPU, with one thread, whether to update, so that the host need not wait for the sums

__global__ void decide_update(const update_decide_args args) {
    *args.result = update_decision(&args);
}

enum status no_kernel(enum optimizer_rule rule) {
    return FAIL(STATUS_UNSUPPORTED, "the GPU has no kernel for optimizer rule %d", static_cast<int>(rule));
}

} // namespace

extern "C" enum status cuda_optimizer_spans(struct stream *stream, const struct optimizer_spans_args *args) {
    if (args->n_tiles == 0)
        return STATUS_OK;
    switch (args->rule) {
    case OPTIMIZER_ADAMW:
        return launch_spans<rule_of<OPTIMIZER_ADAMW, 2>>(stream, args);
    case OPTIMIZER_ADAM:
        return launch_spans<rule_of<OPTIMIZER_ADAM, 2>>(stream, args);
    case OPTIMIZER_SGD:
        return args->n_moments > 0 ? launch_spans<rule_of<OPTIMIZER_SGD, 1>>(stream, args)
                                   : launch_spans<rule_of<OPTIMIZER_SGD, 0>>(stream, args);
    case OPTIMIZER_MUON:
        return launch_spans<rule_of<OPTIMIZER_MUON, 1>>(stream, args);
    case OPTIMIZER_SCHEDULE_FREE:
        return launch_spans<rule_of<OPTIMIZER_SCHEDULE_FREE, 2>>(stream, args);
    case OPTIMIZER_LION:
        return launch_spans<rule_of<OPTIMIZER_LION, 1>>(stream, args);
    default:
        return no_kernel(args->rule);
    }
}

extern "C" enum status cuda_optimizer_step(struct stream *stream, const struct optimizer_step_args *args) {
    call call = {args->state,         args->state,
                 args->param,         args->grad,
                 args->type,          args->grad_type,
                 args->grad_scale,    optimizer_reads_moments(args),
                 args->first,         optimizer_constants_of(args),
                 args->average_weight};
    switch (args->rule) {
    case OPTIMIZER_ADAMW:
        return step<rule_of<OPTIMIZER_ADAMW, 2>>(stream, args, call);
    case OPTIMIZER_ADAM:
        return step<rule_of<OPTIMIZER_ADAM, 2>>(stream, args, call);
    case OPTIMIZER_SGD:
        return args->state.m ? step<rule_of<OPTIMIZER_SGD, 1>>(stream, args, call)
                             : step<rule_of<OPTIMIZER_SGD, 0>>(stream, args, call);
    case OPTIMIZER_MUON:
        return step<rule_of<OPTIMIZER_MUON, 1>>(stream, args, call);
    case OPTIMIZER_SCHEDULE_FREE:
        return step<rule_of<OPTIMIZER_SCHEDULE_FREE, 2>>(stream, args, call);
    case OPTIMIZER_LION:
        return step<rule_of<OPTIMIZER_LION, 1>>(stream, args, call);
    default:
        return no_kernel(args->rule);
    }
}

extern "C" enum status cuda_muon_step(struct stream *stream, const struct muon_step_args *args) {
    const bool aligned = is_aligned(args->param) && is_aligned(args->master) && is_aligned(args->update);
    if (args->n == 0)
        return STATUS_OK;
    return with_type(args->update_type, [&](auto zero) {
        using U = decltype(zero);
        constexpr int width = widest_access<float>();
        return LAUNCH(stream, (aligned ? muon_step<U, width> : muon_step<U, 1>),
                      span_blocks(stream, args->n, aligned ? width : 1), SPAN_THREADS, 0, *args);
    });
}

extern "C" enum status cuda_update_decide(struct stream *stream, const struct update_decide_args *args) {
    return LAUNCH(stream, decide_update, 1, 1, 0, *args);
}
