// Token and position embeddings. Backward sums each row of dwte in order of (b, t), without floating-point
// atomics. A first kernel counts the occurrences of tokens, so that rows of absent tokens cost nothing.
// Each of its blocks owns some tokens of the vocabulary, reads all tokens of the batch, and clears its own
// counts, so no fill is needed before. In a second kernel, a block takes a token that occurs, finds its
// places in the batch, and adds their rows of dout, in order.
#include "kernels/cuda/span.cuh"

namespace {

// ---- forward

constexpr int FORWARD_THREADS = 256;

// One warp per row. positions: the position of each sequence's first row, or NULL: `position` for all
// sequences.
template <class T, int WIDTH>
__global__ void __launch_bounds__(FORWARD_THREADS)
    embedding_forward(T *out, size_t out_stride, bool accumulate, const T *wte, const T *wpe,
                      const int32_t *tokens, int N, int seq_len, int C, int position,
                      const int32_t *positions) {
    int row = static_cast<int>(blockIdx.x) * (FORWARD_THREADS / WARP) + static_cast<int>(threadIdx.x) / WARP;
    if (row >= N)
        return;
    size_t channels = static_cast<size_t>(C);
    wte += static_cast<size_t>(tokens[row]) * channels;
    if (positions)
        position = positions[row / seq_len];
    if (wpe)
        wpe += static_cast<size_t>(position + row % seq_len) * channels;
    out += static_cast<size_t>(row) * out_stride;
#pragma unroll 2
    for (int c = static_cast<int>(threadIdx.x) % WARP * WIDTH; c < C; c += WARP * WIDTH) {
        floats<WIDTH> sum = load<WIDTH>(wte + c), other = {};
        if (wpe)
            other = load<WIDTH>(wpe + c);
        else if (accumulate)
            other = load<WIDTH>(out + c);
        for (int k = 0; k < WIDTH && (wpe || accumulate); k++)
            sum.x[k] += other.x[k];
        store(out + c, sum);
    }
}

// ---- backward: which tokens occur

// Where a token of the vocabulary occurs in the batch. A place is an index in the batch's N tokens.
// `from_end` counts from the end, so that a maximum over it finds the first place. All fields are 0 if the
// token is absent.
struct alignas(16) occurrence { // 16 bytes, so that one load reads it
    int count;
    int from_end; // N minus the first place
    int last;     // the last place
    int counted;  // the place that was counted most recently
};
static_assert(sizeof(occurrence) == CUDA_OCCURRENCE_BYTES, "the size that plans use");

// The workspace. For each owner (a counting block): the number of distinct tokens found, these tokens in
// any order, and the occurrence of every token that it owns. For each place: the place of the same token
// that was counted before it.
struct occurrences {
    int *n_tokens;               // (OWNERS)
    int *tokens;                 // (OWNERS, owned)
    struct occurrence *of_token; // (OWNERS, owned)
    int *counted_before;         // (N); meaningless for each token's first counted place
    int owned;                   // vocabulary tokens per owner: V / OWNERS, rounded up
};
constexpr int OWNERS = CUDA_TOKEN_OWNERS;

__device__ inline struct occurrence *occurrence_of(const occurrences &found, int token) {
    return found.of_token + static_cast<size_t>(token % OWNERS) * static_cast<size_t>(found.owned) +
           token / OWNERS;
}

constexpr int COUNT_THREADS = 256;

// Counts the occurrences of the tokens that `owner` owns. Called by one block.
__device__ inline void count_owned(const occurrences &found, int owner, const int32_t *tokens, int N) {
    size_t first = static_cast<size_t>(owner) * static_cast<size_t>(found.owned);
    for (int i = static_cast<int>(threadIdx.x); i < found.owned; i += COUNT_THREADS)
        found.of_token[first + i] = {};
    if (threadIdx.x == 0)
        found.n_tokens[owner] = 0;
    __syncthreads();
#pragma unroll 8
    for (int place = static_cast<int>(threadIdx.x); place < N; place += COUNT_THREADS) {
        int token = tokens[place];
        if (token % OWNERS != owner)
            continue;
        struct occurrence *occurrence = occurrence_of(found, token);
        if (atomicAdd(&occurrence->count, 1) == 0)
            found.tokens[first + atomicAdd(&found.n_tokens[owner], 1)] = token;
        atomicMax(&occurrence->from_end, N - place);
        atomicMax(&occurrence->last, place);
        found.counted_before[place] = atomicExch(&occurrence->counted, place);
    }
}

// ---- backward: rows of dwte

constexpr int ROW_THREADS = 128;
constexpr int SCANNED = 4 * ROW_THREADS; // tokens that a block searches at a time
constexpr int IN_FLIGHT = 16;            // rows of dout loaded before the first is added
// There are two ways to find a token's places. One thread can follow the chain of places that
// counted_before forms, or the whole block can search the batch. Following CHAINED places takes about as
// long as searching SCANNED tokens.
constexpr int CHAINED = 4;

// Writes the places of `token` in [begin, begin + SCANNED), as far as they are below `end`, to `places`, in
// order. Returns their number to every thread.
__device__ int find_places(int *places, int *warp_counts, const int32_t *tokens, int begin, int end,
                           int token) {
    constexpr int each = SCANNED / ROW_THREADS;
    int warp = static_cast<int>(threadIdx.x) / WARP, lane = static_cast<int>(threadIdx.x) % WARP;
    int mine = begin + static_cast<int>(threadIdx.x) * each;
    bool matches[each];
    int n = 0;
    for (int k = 0; k < each; k++) {
        matches[k] = mine + k < end && tokens[mine + k] == token;
        n += matches[k];
    }
    int up_to = n; // matches of this lane and lower ones
    for (int distance = 1; distance < WARP; distance *= 2) {
        int lower = __shfl_up_sync(0xffffffff, up_to, distance);
        up_to += lane >= distance ? lower : 0;
    }
    __syncthreads(); // all threads have used the previous call's places
    if (lane == WARP - 1)
        warp_counts[warp] = up_to;
    __syncthreads();
    int at = up_to - n, total = 0;
    for (int i = 0; i < ROW_THREADS / WARP; i++) {
        at += i < warp ? warp_counts[i] : 0;
        total += warp_counts[i];
    }
    for (int k = 0; k < each; k++)
        if (matches[k])
            places[at++] = mine + k;
    __syncthreads();
    return total;
}

// True if following the chain of a token is faster than searching the batch. Chains of more than
// ROW_THREADS places are never followed, since each thread of the block sorts one place.
__device__ inline bool is_short(const struct occurrence &occurrence, int first) {
    int searches = (occurrence.last - first) / SCANNED + 1;
    return occurrence.count <= ROW_THREADS && occurrence.count <= CHAINED * searches;
}

// Writes all places of a token, at most ROW_THREADS, to `places`, in order. Returns their number.
__device__ int follow_chain(int *places, const occurrences &found, const struct occurrence &occurrence) {
    int mine = static_cast<int>(threadIdx.x), n = occurrence.count, place = 0, earlier = 0;
    __syncthreads(); // all threads have used the previous call's places
    if (mine == 0)
        for (int i = 0, at = occurrence.counted; i < n; i++) {
            places[i] = at;
            if (i + 1 < n)
                at = found.counted_before[at];
        }
    __syncthreads();
    if (mine < n) {
        place = places[mine];
        for (int i = 0; i < n; i++)
            earlier += places[i] < place;
    }
    __syncthreads(); // all threads have read the unsorted places
    if (mine < n)
        places[earlier] = place;
    __syncthreads();
    return n;
}

// sum += the rows of dout at the given places, in order.
template <int WIDTH, class T>
__device__ inline void add_rows(floats<WIDTH> &sum, const T *dout, size_t dout_stride, const int *places,
                                int n) {
    for (int i = 0; i < n; i += IN_FLIGHT) {
        floats<WIDTH> rows[IN_FLIGHT];
        for (int k = 0; k < IN_FLIGHT; k++)
            if (i + k < n)
                rows[k] = load<WIDTH>(dout + static_cast<size_t>(places[i + k]) * dout_stride);
        for (int k = 0; k < IN_FLIGHT; k++)
            for (int j = 0; i + k < n && j < WIDTH; j++)
                sum.x[j] += rows[k].x[j];
    }
}

// blockIdx.y selects a tile of ROW_THREADS * WIDTH channels. blockIdx.x modulo OWNERS selects an owner.
// Blocks with the same owner divide its tokens among them.
template <class T, int WIDTH>
__global__ void __launch_bounds__(ROW_THREADS)
    add_token_rows(float *dwte, const occurrences found, const T *dout, size_t dout_stride,
                   const int32_t *tokens, int N, int C) {
    __shared__ int places[SCANNED], warp_counts[ROW_THREADS / WARP];
    int c = (static_cast<int>(blockIdx.y) * ROW_THREADS + static_cast<int>(threadIdx.x)) * WIDTH;
    bool inside = c < C;
    size_t channels = static_cast<size_t>(C);
    int owner = static_cast<int>(blockIdx.x) % OWNERS, stride = static_cast<int>(gridDim.x) / OWNERS;
    const int *owned = found.tokens + static_cast<size_t>(owner) * static_cast<size_t>(found.owned);
    for (int i = static_cast<int>(blockIdx.x) / OWNERS; i < found.n_tokens[owner]; i += stride) {
        int token = owned[i];
        struct occurrence occurrence = *occurrence_of(found, token);
        int first = N - occurrence.from_end;
        float *to = dwte + static_cast<size_t>(token) * channels + c;
        floats<WIDTH> sum;
        if (inside)
            sum = load<WIDTH>(to);
        bool chained = is_short(occurrence, first);
        for (int begin = first; begin <= occurrence.last; begin += chained ? N : SCANNED) {
            int n = chained ? follow_chain(places, found, occurrence)
                            : find_places(places, warp_counts, tokens, begin, occurrence.last + 1, token);
            if (inside)
                add_rows(sum, dout + c, dout_stride, places, n);
        }
        if (inside)
            store(to, sum);
    }
}

// ---- backward: rows of dwpe

template <class T> struct position_rows_step {
    float *dwpe;
    const T *dout;
    int B;
    size_t C, batch;                // elements of a row, and of a sequence: T * C
    size_t dout_stride, dout_batch; // elements of dout between rows, and between sequences
    bool beta_zero;                 // dwpe is overwritten instead of added to

    template <int WIDTH> __device__ void at(size_t i) const {
        floats<WIDTH> sum = {};
        if (!beta_zero)
            sum = load<WIDTH>(dwpe + i);
        const T *row_of_first = dout + (dout_stride == C ? i : i / C * dout_stride + i % C);
#pragma unroll 4
        for (int b = 0; b < B && i < batch; b++) {
            floats<WIDTH> row = load<WIDTH>(row_of_first + static_cast<size_t>(b) * dout_batch);
            for (int k = 0; k < WIDTH; k++)
                sum.x[k] += row.x[k];
        }
        store(dwpe + i, sum);
    }
};

// The first OWNERS blocks count the tokens. The other blocks compute the first n elements of dwpe, an
// unrelated task that shares the launch to save one.
template <class T, int WIDTH>
__global__ void __launch_bounds__(COUNT_THREADS)
    count_tokens(const occurrences found, const int32_t *tokens, int N, const position_rows_step<T> positions,
                 size_t n) {
    int block = static_cast<int>(blockIdx.x);
    if (block < OWNERS)
        return count_owned(found, block, tokens, N);
    size_t first = static_cast<size_t>(block - OWNERS) * COUNT_THREADS + threadIdx.x;
    size_t stride = static_cast<size_t>(static_cast<int>(gridDim.x) - OWNERS) * COUNT_THREADS;
    walk<WIDTH>(positions, first, stride, n);
}

constexpr int TOKEN_BLOCKS_PER_PROCESSOR = 16;

template <class Type>
enum status launch_counting(struct stream *stream, const struct embedding_backward_args *args,
                            const occurrences &found) {
    constexpr int width = widest_access<float>();
    int N = args->B * args->T;
    size_t C = static_cast<size_t>(args->C), T = static_cast<size_t>(args->T);
    size_t n = static_cast<size_t>(args->beta_zero ? args->P : args->T) * C;
    if (!args->dwpe)
        n = 0; // launch no blocks for dwpe
    position_rows_step<Type> step = {static_cast<float *>(args->dwpe),
                                     static_cast<const Type *>(args->dout),
                                     args->B,
                                     C,
                                     T * C,
                                     args->dout_stride,
                                     T * args->dout_stride,
                                     args->beta_zero};
    bool aligned =
        is_aligned(step.dout) && is_aligned(step.dwpe) && C % width == 0 && args->dout_stride % width == 0;
    int blocks = span_blocks(stream, n, aligned ? width : 1);
    return LAUNCH(stream, (aligned ? count_tokens<Type, width> : count_tokens<Type, 1>), OWNERS + blocks,
                  COUNT_THREADS, 0, found, args->tokens, N, step, n);
}

template <class T, int WIDTH>
enum status launch_backward(struct stream *stream, const struct embedding_backward_args *args) {
    int N = args->B * args->T;
    const T *dout = static_cast<const T *>(args->dout);
    float *dwte = static_cast<float *>(args->dwte);
    int owned = ceil_divide(static_cast<size_t>(args->V), OWNERS);
    int *n_tokens = static_cast<int *>(stream->workspace), *found_tokens = n_tokens + OWNERS;
    size_t tokens = static_cast<size_t>(owned) * OWNERS;
    struct occurrence *of_token = reinterpret_cast<struct occurrence *>(found_tokens + tokens);
    occurrences found = {n_tokens, found_tokens, of_token, reinterpret_cast<int *>(of_token + tokens), owned};
    TRY(launch_counting<T>(stream, args, found));
    if (!dwte)
        return STATUS_OK;
    int rows = N < args->V ? N : args->V, most = TOKEN_BLOCKS_PER_PROCESSOR * processors_of(stream);
    int each = ceil_divide(static_cast<size_t>(rows < most ? rows : most), OWNERS); // blocks per owner
    int tiles = ceil_divide(static_cast<size_t>(args->C), ROW_THREADS * WIDTH);
    return LAUNCH(stream, (add_token_rows<T, WIDTH>), dim3(each * OWNERS, tiles), ROW_THREADS, 0, dwte, found,
                  dout, args->dout_stride, args->tokens, N, args->C);
}

} // namespace

extern "C" enum status cuda_embedding_forward(struct stream *stream,
                                              const struct embedding_forward_args *args) {
    int N = args->B * args->T;
    return with_type(args->type, [&](auto zero) {
        using T = decltype(zero);
        constexpr int width = widest_access<T>();
        bool aligned = is_aligned(args->out) && is_aligned(args->wte) && is_aligned(args->wpe) &&
                       args->C % width == 0 && args->out_stride % width == 0;
        return LAUNCH(stream, (aligned ? embedding_forward<T, width> : embedding_forward<T, 1>),
                      ceil_divide(static_cast<size_t>(N), FORWARD_THREADS / WARP), FORWARD_THREADS, 0,
                      static_cast<T *>(args->out), args->out_stride, args->accumulate,
                      static_cast<const T *>(args->wte), static_cast<const T *>(args->wpe), args->tokens, N,
                      args->T, args->C, args->position, args->positions);
    });
}

// A thread adds two channels of a row. With more channels per thread, fewer threads would add the rows of a
// token. A token that occurs often would then have too few loads in flight.
extern "C" enum status cuda_embedding_backward(struct stream *stream,
                                               const struct embedding_backward_args *args) {
    return with_type(args->type, [&](auto zero) {
        using T = decltype(zero);
        bool aligned = is_aligned(args->dout) && is_aligned(args->dwte) && args->C % 2 == 0 &&
                       args->dout_stride % 2 == 0;
        return aligned ? launch_backward<T, 2>(stream, args) : launch_backward<T, 1>(stream, args);
    });
}
