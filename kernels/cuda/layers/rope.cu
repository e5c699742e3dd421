// Rotary position embedding after an optional RMS normalization of each head. A group of lanes processes
// one head (rope.cuh). With norm, backward keeps a group's sums for a weight's gradient in registers. It
// adds up the sums of a block's groups in shared memory, and then those of all blocks (channel_sums.cuh).
#include "kernels/cuda/layers/rope.cuh"

#include "kernels/cuda/channel_sums.cuh"

namespace {

constexpr int THREADS = CUDA_ROPE_THREADS;

// A head, given by its index `at` among n heads: heads [first, end) of every row, row after row. Indices
// have 32 bits, since 32-bit divisions are several times as fast as 64-bit ones; check_heads limits n.
struct head_place {
    bool exists;
    unsigned row;
    int head; // index of the head within its row

    __device__ head_place(unsigned at, unsigned n, int first, int end)
        : exists(at < n), row(exists ? at / static_cast<unsigned>(end - first) : 0),
          head(exists ? first + static_cast<int>(at - row * static_cast<unsigned>(end - first)) : first) {}

    // Offset of the head's first element in a tensor whose rows are `stride` elements apart.
    __device__ size_t offset(size_t stride, int half_width) const {
        return row * stride + 2 * static_cast<size_t>(head) * static_cast<size_t>(half_width);
    }
};

// ---- forward

template <class T> struct forward_call {
    T *out;
    float *rstd; // may be NULL
    const T *x, *q_weight, *k_weight;
    const float *table;
    const int32_t *positions; // position of each sequence's first row; NULL: `position` for all
    size_t x_stride, out_stride;
    unsigned n_rows;
    int seq_len, H, heads, half_width, lane_bits, position;
    float epsilon;
};

template <class T, int WIDTH, bool NORM>
__global__ void __launch_bounds__(THREADS) rope_forward(const forward_call<T> call) {
    const head_lanes of(call.lane_bits, call.half_width);
    const unsigned at = blockIdx.x * (THREADS >> call.lane_bits) + of.group;
    const head_place place(at, call.n_rows * static_cast<unsigned>(call.heads), 0, call.heads);
    const unsigned sequence = place.row / static_cast<unsigned>(call.seq_len);
    const unsigned t = place.row - sequence * static_cast<unsigned>(call.seq_len);
    const int start = call.positions ? call.positions[sequence] : call.position;
    head_part<WIDTH> x =
        load_head<WIDTH>(call.x + place.offset(call.x_stride, call.half_width), of, place.exists);
    const head_part<WIDTH> angles = load_angles<WIDTH>(call.table, static_cast<unsigned>(start) + t, of);
    if constexpr (NORM) {
        const float rstd =
            normalize(x, place.head < call.H ? call.q_weight : call.k_weight, call.epsilon, of);
        if (place.exists && call.rstd && of.lane == 0)
            call.rstd[at] = rstd;
    }
    if (place.exists)
        store_head(call.out + place.offset(call.out_stride, call.half_width), rotate_head(angles, x, 1.0f),
                   of);
}

// ---- backward

template <class T> struct backward_call {
    T *dx;
    const T *dout, *x, *q_weight, *k_weight; // x, weights and rstd: read with norm only
    const float *rstd, *table;
    size_t dx_stride, dout_stride, x_stride;
    unsigned n_rows;
    int seq_len, H, heads, half_width, lane_bits;
};

template <class T, int WIDTH>
__global__ void __launch_bounds__(THREADS) rope_backward(const backward_call<T> call) {
    const head_lanes of(call.lane_bits, call.half_width);
    const head_place place(blockIdx.x * (THREADS >> call.lane_bits) + of.group,
                           call.n_rows * static_cast<unsigned>(call.heads), 0, call.heads);
    const head_part<WIDTH> gradient =
        load_head<WIDTH>(call.dout + place.offset(call.dout_stride, call.half_width), of, place.exists);
    const head_part<WIDTH> angles =
        load_angles<WIDTH>(call.table, place.row % static_cast<unsigned>(call.seq_len), of);
    if (place.exists)
        store_head(call.dx + place.offset(call.dx_stride, call.half_width),
                   rotate_head(angles, gradient, -1.0f), of);
}

// Adds up the sums of a block's groups, in order, and writes the totals to partial[0, D).
template <int WIDTH>
__device__ inline void add_groups(float *partial, float *shared, const head_part<WIDTH> &sums,
                                  const head_lanes &of) {
    int group = static_cast<int>(of.group), D = 2 * of.half_width;
    __syncthreads(); // all threads have read the previous call's sums
    for (int step = 0; step < ROPE_STEPS<WIDTH>; step++)
        for (int k = 0; k < WIDTH && of.has<WIDTH>(step); k++) {
            shared[group * D + of.first<WIDTH>(step) + k] = sums.low[step].x[k];
            shared[group * D + of.half_width + of.first<WIDTH>(step) + k] = sums.high[step].x[k];
        }
    __syncthreads();
    for (int d = static_cast<int>(threadIdx.x); d < D; d += THREADS) {
        float sum = shared[d];
        for (int other = 1; other < (THREADS >> of.bits); other++)
            sum += shared[other * D + d];
        partial[d] = sum;
    }
}

template <int WIDTH>
__device__ inline void add_terms(head_part<WIDTH> &sum, const head_part<WIDTH> &dout,
                                 const head_part<WIDTH> &normal) {
    for (int step = 0; step < ROPE_STEPS<WIDTH>; step++)
        for (int k = 0; k < WIDTH; k++) {
            sum.low[step].x[k] = fmaf(dout.low[step].x[k], normal.low[step].x[k], sum.low[step].x[k]);
            sum.high[step].x[k] = fmaf(dout.high[step].x[k], normal.high[step].x[k], sum.high[step].x[k]);
        }
}

// Computes dx of one head, with norm, and adds the head's terms of the weight's gradient to `sums`. All
// lanes of the warp must call it.
template <class T, int WIDTH>
__device__ inline void norm_backward(head_part<WIDTH> &sums, const backward_call<T> &call, const T *weight,
                                     const head_place &place, const head_lanes &of) {
    head_part<WIDTH> gradient =
        load_head<WIDTH>(call.dout + place.offset(call.dout_stride, call.half_width), of, place.exists);
    head_part<WIDTH> normal =
        load_head<WIDTH>(call.x + place.offset(call.x_stride, call.half_width), of, place.exists);
    const size_t at = place.row * static_cast<size_t>(call.heads) + static_cast<size_t>(place.head);
    const float rstd = place.exists ? call.rstd[at] : 0.0f;
    gradient = rotate_head(
        load_angles<WIDTH>(call.table, place.row % static_cast<unsigned>(call.seq_len), of), gradient, -1.0f);
    scale(normal, rstd);
    add_terms(sums, gradient, normal);
    multiply_by_weight(gradient, weight, of);
    const float mean = head_dot(gradient, normal, of) / static_cast<float>(2 * call.half_width);
    for (int step = 0; step < ROPE_STEPS<WIDTH>; step++)
        for (int k = 0; k < WIDTH; k++) {
            float &low = gradient.low[step].x[k], &high = gradient.high[step].x[k];
            low = fmaf(-normal.low[step].x[k], mean, low) * rstd;
            high = fmaf(-normal.high[step].x[k], mean, high) * rstd;
        }
    if (place.exists)
        store_head(call.dx + place.offset(call.dx_stride, call.half_width), gradient, of);
}

// Processes the query heads of all rows, then the key heads, so that a thread holds the sums of one weight at
// a time.
//   partial   [w] (blocks, 2, D): each block's sums for dq_weight and dk_weight; NULL if neither is wanted
template <class T, int WIDTH>
__global__ void __launch_bounds__(THREADS, CUDA_ROPE_BLOCKS)
    rope_norm_backward(float *partial, const backward_call<T> call, const channel_gradients<2> to) {
    __shared__ float shared[THREADS * 2 * WIDTH * ROPE_STEPS<WIDTH>];
    const head_lanes of(call.lane_bits, call.half_width);
    const unsigned groups = THREADS >> call.lane_bits;
    const int D = 2 * call.half_width;
    for (int keys = 0; keys < 2; keys++) {
        const int first = keys ? call.H : 0, end = keys ? call.heads : call.H;
        const unsigned n = call.n_rows * static_cast<unsigned>(end - first);
        head_part<WIDTH> sums = {};
        // All threads of a block make the same number of iterations, since all lanes of a warp must call
        // norm_backward.
        for (unsigned begin = blockIdx.x * groups; begin < n; begin += gridDim.x * groups)
            norm_backward(sums, call, keys ? call.k_weight : call.q_weight,
                          head_place(begin + of.group, n, first, end), of);
        if (partial)
            add_groups(partial + (2 * static_cast<size_t>(blockIdx.x) + static_cast<size_t>(keys)) *
                                     static_cast<size_t>(D),
                       shared, sums, of);
    }
    if (partial)
        add_partial_sums<1>(partial, to, D);
}

// ---- launching

template <class Args> size_t heads_of(const Args *args) {
    return static_cast<size_t>(args->B) * static_cast<size_t>(args->T) *
           static_cast<size_t>(args->H + args->K);
}

template <class Args> enum status check_heads(const Args *args) {
    if (args->D > CUDA_ROPE_WIDTH)
        return FAIL(STATUS_UNSUPPORTED,
                    "CUDA: rotary embedding: heads of %d elements are too wide, at most %d are supported; "
                    "use more heads (n_head) or device=cpu",
                    args->D, CUDA_ROPE_WIDTH);
    if (heads_of(args) > INT32_MAX)
        return FAIL(
            STATUS_UNSUPPORTED,
            "CUDA: rotary embedding: %zu heads at once, at most %d are supported; use a smaller micro-batch",
            heads_of(args), INT32_MAX);
    return STATUS_OK;
}

// Copies the fields that forward and backward calls share from the arguments of either.
template <class Call, class Args> void describe_heads(Call &call, const Args *args, int width) {
    call.x = static_cast<decltype(call.x)>(args->x);
    call.q_weight = static_cast<decltype(call.q_weight)>(args->q_weight);
    call.k_weight = static_cast<decltype(call.k_weight)>(args->k_weight);
    call.rstd = static_cast<decltype(call.rstd)>(args->rstd);
    call.table = static_cast<const float *>(args->table);
    call.x_stride = args->x_stride;
    call.n_rows = static_cast<unsigned>(args->B) * static_cast<unsigned>(args->T);
    call.seq_len = args->T;
    call.H = args->H;
    call.heads = args->H + args->K;
    call.half_width = args->D / 2;
    call.lane_bits = rope_lane_bits(call.half_width, width);
}

// The number of blocks to launch if each group of lanes takes one head.
template <class Args> int blocks_of(const Args *args, int lane_bits) {
    return ceil_divide(heads_of(args), static_cast<size_t>(THREADS >> lane_bits));
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
    return LAUNCH(stream, (args->norm ? rope_forward<T, WIDTH, true> : rope_forward<T, WIDTH, false>),
                  blocks_of(args, call.lane_bits), THREADS, 0, call);
}

template <class T, int WIDTH>
enum status launch_backward(struct stream *stream, const struct rope_backward_args *args) {
    backward_call<T> call = {};
    describe_heads(call, args, WIDTH);
    call.dx = static_cast<T *>(args->dx);
    call.dout = static_cast<const T *>(args->dout);
    call.dx_stride = args->dx_stride;
    call.dout_stride = args->dout_stride;
    if (!args->norm)
        return LAUNCH(stream, (rope_backward<T, WIDTH>), blocks_of(args, call.lane_bits), THREADS, 0, call);
    bool sums = args->dq_weight || args->dk_weight;
    channel_gradients<2> to = {{static_cast<float *>(args->dq_weight), static_cast<float *>(args->dk_weight)},
                               args->beta_zero,
                               tickets_of(stream)};
    return LAUNCH(stream, (rope_norm_backward<T, WIDTH>), cuda_rope_backward_blocks(args), THREADS, 0,
                  sums ? static_cast<float *>(stream->workspace) : nullptr, call, to);
}

} // namespace

extern "C" enum status cuda_rope_forward(struct stream *stream, const struct rope_forward_args *args) {
    TRY(check_heads(args));
    return with_type(args->type, [&](auto zero) {
        using T = decltype(zero);
        constexpr int width = widest_access<T>();
        bool aligned = is_aligned(args->out) && is_aligned(args->x) && is_aligned(args->table) &&
                       is_aligned(args->q_weight) && is_aligned(args->k_weight) &&
                       rope_rows_align(args->D / 2, width, args->x_stride | args->out_stride);
        return aligned ? launch_forward<T, width>(stream, args) : launch_forward<T, 1>(stream, args);
    });
}

extern "C" enum status cuda_rope_backward(struct stream *stream, const struct rope_backward_args *args) {
    TRY(check_heads(args));
    return with_type(args->type, [&](auto zero) {
        using T = decltype(zero);
        constexpr int width = widest_access<T>();
        size_t strides = args->dx_stride | args->dout_stride | (args->norm ? args->x_stride : 0);
        bool aligned = is_aligned(args->dx) && is_aligned(args->dout) && is_aligned(args->x) &&
                       is_aligned(args->table) && is_aligned(args->q_weight) && is_aligned(args->k_weight) &&
                       rope_rows_align(args->D / 2, width, strides);
        return aligned ? launch_backward<T, width>(stream, args) : launch_backward<T, 1>(stream, args);
    });
}
