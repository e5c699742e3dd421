// Rotary position embedding after an optional RMS normalization of each head. A group of lanes has one head
// (rope.cuh). Backward keeps the sums for the weights' gradients in registers, adds them over the block's
// groups in shared memory, and over the blocks as norms do (channel_sums.cuh).
#include "kernels/cuda/layers/rope.cuh"

#include "kernels/cuda/channel_sums.cuh"

namespace {

constexpr int THREADS = CUDA_ROPE_THREADS;

// ---- forward

template <class T> struct forward_call {
    T *out;
    float *rstd; // or NULL
    const T *x, *q_weight, *k_weight;
    const float *table;
    const int32_t *positions;             // or NULL
    size_t x_stride, out_stride, n_heads; // n_heads: of all rows
    int seq_len, H, heads, half_width, position, lanes;
    bool norm;
    float epsilon;
};

template <class T, int WIDTH>
__global__ void __launch_bounds__(THREADS) rope_forward(const forward_call<T> call) {
    size_t thread = static_cast<size_t>(blockIdx.x) * THREADS + threadIdx.x;
    size_t at = thread / static_cast<unsigned>(call.lanes), heads = static_cast<size_t>(call.heads);
    bool exists = at < call.n_heads;
    size_t row = exists ? at / heads : 0;
    int head = exists ? static_cast<int>(at - row * heads) : 0, half_width = call.half_width;
    int t = static_cast<int>(row % static_cast<unsigned>(call.seq_len));
    int start = call.positions ? call.positions[row / static_cast<unsigned>(call.seq_len)] : call.position;
    size_t column = static_cast<size_t>(head) * 2 * half_width;
    const head_rotation<T> rotation = {call.table + static_cast<size_t>(start + t) * 2 * half_width,
                                       head < call.H ? call.q_weight : call.k_weight,
                                       call.epsilon,
                                       call.norm,
                                       half_width,
                                       call.lanes};
    float rstd = rotate_head<WIDTH>(call.out + row * call.out_stride + column,
                                    call.x + row * call.x_stride + column, rotation, exists);
    if (exists && call.norm && call.rstd && thread % static_cast<unsigned>(call.lanes) == 0)
        call.rstd[at] = rstd;
}

// ---- backward

template <class T> struct backward_call {
    T *dx;
    const T *dout, *x, *q_weight, *k_weight; // x: with norm
    const float *rstd, *table;
    size_t dx_stride, dout_stride, x_stride, n_heads;
    int seq_len, H, heads, half_width, lanes;
    bool norm;
};

// Sums over the groups of a block, in their order, of what each lane has of a head: to partial[0, D).
template <int WIDTH, int STEPS>
__device__ inline void add_groups(float *partial, float *shared, const pairs<WIDTH> (&sums)[STEPS], int lanes,
                                  int half_width) {
    int group = static_cast<int>(threadIdx.x) / lanes, lane = static_cast<int>(threadIdx.x) % lanes;
    int D = 2 * half_width;
    __syncthreads(); // the sums before were read
    for (int step = 0; step < STEPS; step++) {
        int i = (step * lanes + lane) * WIDTH;
        for (int k = 0; k < WIDTH && i < half_width; k++) {
            shared[group * D + i + k] = sums[step].low.x[k];
            shared[group * D + half_width + i + k] = sums[step].high.x[k];
        }
    }
    __syncthreads();
    for (int d = static_cast<int>(threadIdx.x); d < D; d += THREADS) {
        float sum = shared[d];
        for (int other = 1; other < THREADS / lanes; other++)
            sum += shared[other * D + d];
        partial[d] = sum;
    }
}

template <int WIDTH>
__device__ inline void add_terms(pairs<WIDTH> &sum, const pairs<WIDTH> &dout, const pairs<WIDTH> &normal,
                                 bool wanted) {
    for (int k = 0; wanted && k < WIDTH; k++) {
        sum.low.x[k] = fmaf(dout.low.x[k], normal.low.x[k], sum.low.x[k]);
        sum.high.x[k] = fmaf(dout.high.x[k], normal.high.x[k], sum.high.x[k]);
    }
}

//   partial   [w] (blocks, 2, D): the sums for dq_weight and dk_weight; NULL without them
template <class T, int WIDTH, int STEPS>
__global__ void __launch_bounds__(THREADS)
    rope_backward(float *partial, const backward_call<T> call, const channel_gradients<2> to) {
    __shared__ float shared[THREADS * 2 * WIDTH * STEPS];
    int lanes = call.lanes, half_width = call.half_width;
    int lane = static_cast<int>(threadIdx.x) % lanes;
    size_t groups = static_cast<size_t>(THREADS / lanes), heads = static_cast<size_t>(call.heads);
    pairs<WIDTH> q_sums[STEPS] = {}, k_sums[STEPS] = {};
    // All threads of a block take as many turns.
    for (size_t begin = blockIdx.x * groups; begin < call.n_heads; begin += gridDim.x * groups) {
        size_t at = begin + threadIdx.x / static_cast<unsigned>(lanes);
        bool exists = at < call.n_heads;
        size_t row = exists ? at / heads : 0;
        int head = exists ? static_cast<int>(at - row * heads) : 0;
        size_t column = static_cast<size_t>(head) * 2 * half_width;
        const T *dout = call.dout + row * call.dout_stride + column;
        const T *weight = head < call.H ? call.q_weight : call.k_weight;
        const float *table =
            call.table + static_cast<size_t>(row % static_cast<unsigned>(call.seq_len)) * 2 * half_width;
        float rstd = call.norm && exists ? call.rstd[at] : 0.0f, sum = 0.0f;
        pairs<WIDTH> gradient[STEPS] = {}, normal[STEPS] = {};
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            int i = (step * lanes + lane) * WIDTH;
            if (!exists || i >= half_width)
                continue;
            gradient[step] = turn(table, i, load_pairs<WIDTH>(dout, i, half_width), -1.0f);
            if (!call.norm)
                continue;
            normal[step] = load_pairs<WIDTH>(call.x + row * call.x_stride + column, i, half_width);
            scale(normal[step], rstd);
            add_terms(q_sums[step], gradient[step], normal[step], head < call.H);
            add_terms(k_sums[step], gradient[step], normal[step], head >= call.H);
            multiply_by_weight(gradient[step], weight, i, half_width);
            for (int k = 0; k < WIDTH; k++)
                sum = fmaf(gradient[step].high.x[k], normal[step].high.x[k],
                           fmaf(gradient[step].low.x[k], normal[step].low.x[k], sum));
        }
        if (call.norm)
            sum = group_sum(sum, lanes) / static_cast<float>(2 * half_width);
        T *dx = call.dx + row * call.dx_stride + column;
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            int i = (step * lanes + lane) * WIDTH;
            if (!exists || i >= half_width)
                continue;
            pairs<WIDTH> &g = gradient[step];
            for (int k = 0; call.norm && k < WIDTH; k++) {
                g.low.x[k] = fmaf(-normal[step].low.x[k], sum, g.low.x[k]) * rstd;
                g.high.x[k] = fmaf(-normal[step].high.x[k], sum, g.high.x[k]) * rstd;
            }
            store_pairs(dx, i, half_width, g);
        }
    }
    if (!partial)
        return;
    float *mine = partial + static_cast<size_t>(blockIdx.x) * 4 * static_cast<size_t>(half_width);
    add_groups<WIDTH, STEPS>(mine, shared, q_sums, lanes, half_width);
    add_groups<WIDTH, STEPS>(mine + 2 * half_width, shared, k_sums, lanes, half_width);
    add_partial_sums<1>(partial, to, 2 * half_width);
}

// ---- launching

enum status check_width(int D) {
    if (D <= CUDA_ROPE_WIDTH)
        return STATUS_OK;
    return FAIL(STATUS_UNSUPPORTED, "CUDA: rotary embedding: heads of %d elements are too wide, at most %d",
                D, CUDA_ROPE_WIDTH);
}

// The fields that both calls have, from the arguments of either.
template <class Call, class Args> void describe_heads(Call &call, const Args *args, int width) {
    call.x = static_cast<decltype(call.x)>(args->x);
    call.q_weight = static_cast<decltype(call.q_weight)>(args->q_weight);
    call.k_weight = static_cast<decltype(call.k_weight)>(args->k_weight);
    call.rstd = static_cast<decltype(call.rstd)>(args->rstd);
    call.table = static_cast<const float *>(args->table);
    call.x_stride = args->x_stride;
    call.seq_len = args->T;
    call.H = args->H;
    call.heads = args->H + args->K;
    call.n_heads =
        static_cast<size_t>(args->B) * static_cast<size_t>(args->T) * static_cast<size_t>(call.heads);
    call.half_width = args->D / 2;
    call.lanes = rope_lanes(call.half_width, width);
    call.norm = args->norm;
}

template <class T, int WIDTH>
enum status launch_forward(struct stream *stream, const struct rope_forward_args *args) {
    forward_call<T> call = {};
    describe_heads(call, args, WIDTH);
    call.out = static_cast<T *>(args->out);
    call.positions = args->positions;
    call.out_stride = args->out_stride;
    call.position = args->position;
    call.epsilon = args->epsilon;
    return LAUNCH(stream, (rope_forward<T, WIDTH>),
                  ceil_divide(call.n_heads, static_cast<size_t>(THREADS / call.lanes)), THREADS, 0, call);
}

template <class T, int WIDTH>
enum status launch_backward(struct stream *stream, const struct rope_backward_args *args) {
    constexpr int steps = (CUDA_ROPE_WIDTH / 2 + WARP * WIDTH - 1) / (WARP * WIDTH);
    backward_call<T> call = {};
    describe_heads(call, args, WIDTH);
    call.dx = static_cast<T *>(args->dx);
    call.dout = static_cast<const T *>(args->dout);
    call.dx_stride = args->dx_stride;
    call.dout_stride = args->dout_stride;
    bool sums = args->dq_weight || args->dk_weight;
    channel_gradients<2> to = {{static_cast<float *>(args->dq_weight), static_cast<float *>(args->dk_weight)},
                               args->beta_zero,
                               tickets_of(stream)};
    int blocks = sums ? cuda_rope_backward_blocks(properties_of(stream->device), args)
                      : ceil_divide(call.n_heads, static_cast<size_t>(THREADS / call.lanes));
    return LAUNCH(stream, (rope_backward<T, WIDTH, steps>), blocks, THREADS, 0,
                  sums ? static_cast<float *>(stream->workspace) : nullptr, call, to);
}

} // namespace

extern "C" enum status cuda_rope_forward(struct stream *stream, const struct rope_forward_args *args) {
    TRY(check_width(args->D));
    return with_type(args->type, [&](auto zero) {
        using T = decltype(zero);
        constexpr int width = widest_access<T>();
        bool aligned = is_aligned(args->out) && is_aligned(args->x) && is_aligned(args->q_weight) &&
                       is_aligned(args->k_weight) &&
                       rope_rows_align(args->D / 2, width, args->x_stride | args->out_stride);
        return aligned ? launch_forward<T, width>(stream, args) : launch_forward<T, 1>(stream, args);
    });
}

extern "C" enum status cuda_qkv_forward(struct stream *stream, const struct qkv_forward_args *args) {
    TRY(cuda_linear_forward(stream, &args->linear));
    return cuda_rope_forward(stream, &args->rope);
}

extern "C" enum status cuda_rope_backward(struct stream *stream, const struct rope_backward_args *args) {
    TRY(check_width(args->D));
    return with_type(args->type, [&](auto zero) {
        using T = decltype(zero);
        constexpr int width = widest_access<T>();
        size_t strides = args->dx_stride | args->dout_stride | (args->norm ? args->x_stride : 0);
        bool aligned = is_aligned(args->dx) && is_aligned(args->dout) && is_aligned(args->x) &&
                       is_aligned(args->q_weight) && is_aligned(args->k_weight) &&
                       rope_rows_align(args->D / 2, width, strides);
        return aligned ? launch_backward<T, width>(stream, args) : launch_backward<T, 1>(stream, args);
    });
}
