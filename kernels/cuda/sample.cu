// Drawing tokens from logits (kernels/ops.h: sample), a block a row. Where top_k or top_p cuts, the row is
// first brought into order of likelihood by a radix sort in the workspace: four stable passes over pairs of
// the logit's bits and the token. A draw then needs the sums of the weights by warp, and one warp that walks
// to the place: the weights are whole numbers, so it is the place that every device finds.
#include "kernels/cuda/common.cuh"

namespace {

constexpr int MOST_WARPS = 32, FEW_WARPS = 4;               // of a row's block
constexpr int FEW_WARPS_VOCABULARY = 16 * FEW_WARPS * WARP; // up to which few suffice
constexpr int DIGIT_BITS = 8;
constexpr int DIGITS = 1 << DIGIT_BITS;
constexpr int PASSES = 32 / DIGIT_BITS;
constexpr unsigned ALL_LANES = 0xffffffff;

struct alignas(8) candidate {
    uint32_t key; // smaller for the likelier
    int32_t token;
};
static_assert(sizeof(candidate) == CUDA_CANDIDATE_BYTES, "as plans count it");

// The float's bits, turned so that they grow as it falls; zeros of both signs are one.
__device__ inline uint32_t key_of(float logit) {
    uint32_t bits = __float_as_uint(logit + 0.0f);
    return bits & 0x80000000u ? bits : ~bits & 0x7fffffffu;
}

// Each warp has its own stretch of a row, whole steps of 32: what it does, it does in order.
struct stretch {
    int begin, end;
};

template <int WARPS> __device__ inline stretch stretch_of(int warp, int n) {
    int each = (n + WARPS * WARP - 1) / (WARPS * WARP) * WARP;
    int begin = warp * each;
    return {begin < n ? begin : n, begin + each < n ? begin + each : n};
}

__device__ inline int this_warp() {
    return static_cast<int>(threadIdx.x) / WARP;
}
__device__ inline int this_lane() {
    return static_cast<int>(threadIdx.x) % WARP;
}

// ---- the likeliest

// The smallest of the block's values, to every thread.
template <int WARPS> __device__ uint64_t block_minimum(uint64_t x, uint64_t *scratch) {
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        uint64_t other = __shfl_xor_sync(ALL_LANES, x, distance);
        x = other < x ? other : x;
    }
    if (this_lane() == 0)
        scratch[this_warp()] = x;
    __syncthreads();
    for (int i = 0; i < WARPS; i++)
        x = scratch[i] < x ? scratch[i] : x;
    __syncthreads();
    return x;
}

// Keys above, tokens below: of equals the lower token.
template <int WARPS> __device__ int likeliest(const float *logits, int V, uint64_t *scratch) {
    uint64_t best = UINT64_MAX;
    for (int token = static_cast<int>(threadIdx.x); token < V; token += WARPS * WARP) {
        uint64_t one = static_cast<uint64_t>(key_of(logits[token])) << 32 | static_cast<uint32_t>(token);
        best = one < best ? one : best;
    }
    return static_cast<int>(block_minimum<WARPS>(best, scratch) & UINT32_MAX);
}

// ---- order of likelihood

// Where each warp's next candidate of a digit goes.
template <int WARPS> struct counters { uint32_t at[WARPS][DIGITS]; };

// Turns counts into the places where they begin, in order of digit, then warp.
template <int WARPS> __device__ void counts_to_places(counters<WARPS> &counters, uint32_t *warp_sums) {
    constexpr int each = DIGITS / WARP;
    int first = static_cast<int>(threadIdx.x) * each;
    uint32_t sum = 0;
    for (int i = first; i < first + each; i++)
        sum += counters.at[i % WARPS][i / WARPS];
    uint32_t up_to = sum; // with this thread's
    for (int distance = 1; distance < WARP; distance *= 2) {
        uint32_t lower = __shfl_up_sync(ALL_LANES, up_to, distance);
        up_to += this_lane() >= distance ? lower : 0;
    }
    if (this_lane() == WARP - 1)
        warp_sums[this_warp()] = up_to;
    __syncthreads();
    uint32_t place = up_to - sum;
    for (int i = 0; i < this_warp(); i++)
        place += warp_sums[i];
    for (int i = first; i < first + each; i++) {
        uint32_t count = counters.at[i % WARPS][i / WARPS];
        counters.at[i % WARPS][i / WARPS] = place;
        place += count;
    }
    __syncthreads();
}

// One stable pass, by the digit at `shift`. candidate_at(i): the i-th of n before it.
template <int WARPS, class At>
__device__ void sort_pass(candidate *to, At candidate_at, int n, int shift, counters<WARPS> &counters,
                          uint32_t *warp_sums) {
    stretch mine = stretch_of<WARPS>(this_warp(), n);
    uint32_t *at = counters.at[this_warp()];
    for (int digit = this_lane(); digit < DIGITS; digit += WARP)
        at[digit] = 0;
    __syncwarp();
    for (int i = mine.begin + this_lane(); i < mine.end; i += WARP)
        atomicAdd(&at[candidate_at(i).key >> shift & (DIGITS - 1)], 1u);
    __syncthreads();
    counts_to_places(counters, warp_sums);
    for (int i = mine.begin + this_lane(); i - this_lane() < mine.end; i += WARP) {
        bool inside = i < mine.end;
        candidate one = {};
        if (inside)
            one = candidate_at(i);
        uint32_t digit = inside ? one.key >> shift & (DIGITS - 1) : DIGITS;
        unsigned same = __match_any_sync(ALL_LANES, digit);
        unsigned before = same & ((1u << this_lane()) - 1);
        if (inside)
            to[at[digit] + static_cast<uint32_t>(__popc(before))] = one;
        __syncwarp();
        if (inside && before == 0)
            at[digit] += static_cast<uint32_t>(__popc(same));
        __syncwarp();
    }
    __syncthreads();
}

// Gives the row in order, in one of the two buffers.
template <int WARPS>
__device__ const candidate *sort_by_likelihood(const float *logits, int V, candidate *to, candidate *other) {
    __shared__ counters<WARPS> counters;
    __shared__ uint32_t warp_sums[WARPS];
    auto from_logits = [=](int i) { return candidate{key_of(logits[i]), i}; };
    sort_pass(to, from_logits, V, 0, counters, warp_sums);
    for (int pass = 1; pass < PASSES; pass++) {
        candidate *last = to;
        auto from_last = [=](int i) { return last[i]; };
        sort_pass(other, from_last, V, pass * DIGIT_BITS, counters, warp_sums);
        to = other;
        other = last;
    }
    return to;
}

// ---- the draw

// The n tokens that may be drawn, in the order in which their weights are summed.
struct choice {
    const float *logits;
    const candidate *sorted; // or NULL: in order of the tokens
    int n;
    double largest, temperature;

    __device__ int token(int i) const {
        return sorted ? sorted[i].token : i;
    }
    __device__ uint64_t weight(int i) const {
        double e = exp((static_cast<double>(logits[token(i)]) - largest) / temperature);
        return e > 0 ? static_cast<uint64_t>(e / SAMPLE_WEIGHT_UNIT) : 0;
    }
};

// sums[w]: the weights of warp w's stretch. The total to every thread.
template <int WARPS> __device__ uint64_t sum_weights(const choice &choice, uint64_t *sums) {
    stretch mine = stretch_of<WARPS>(this_warp(), choice.n);
    uint64_t sum = 0, total = 0;
    for (int i = mine.begin + this_lane(); i < mine.end; i += WARP)
        sum += choice.weight(i);
    sum = warp_sum(sum);
    if (this_lane() == 0)
        sums[this_warp()] = sum;
    __syncthreads();
    for (int i = 0; i < WARPS; i++)
        total += sums[i];
    return total;
}

struct place {
    int i;
    uint64_t sum; // up to and with it
};

// Where the running sum first exceeds the threshold, below the total of `sums`; place 0 where it never does.
template <int WARPS>
__device__ place place_of(const choice &choice, const uint64_t *sums, uint64_t threshold) {
    __shared__ int found;
    __shared__ uint64_t found_sum;
    int warp = 0;
    uint64_t before = 0;
    while (warp < WARPS && before + sums[warp] <= threshold)
        before += sums[warp++];
    __syncthreads(); // what was found last has been read
    if (threadIdx.x == 0) {
        found = 0;
        found_sum = 0;
    }
    __syncthreads();
    stretch stretch = stretch_of<WARPS>(warp, choice.n);
    bool searching = warp == this_warp();
    for (int i = stretch.begin; searching && i < stretch.end; i += WARP) {
        uint64_t weight = i + this_lane() < stretch.end ? choice.weight(i + this_lane()) : 0, sum = weight;
        for (int distance = 1; distance < WARP; distance *= 2) {
            uint64_t lower = __shfl_up_sync(ALL_LANES, sum, distance);
            sum += this_lane() >= distance ? lower : 0;
        }
        sum += before;
        unsigned exceeds = __ballot_sync(ALL_LANES, sum > threshold);
        if (exceeds && this_lane() == __ffs(static_cast<int>(exceeds)) - 1) {
            found = i + this_lane();
            found_sum = sum;
        }
        searching = exceeds == 0;
        before = __shfl_sync(ALL_LANES, sum, WARP - 1);
    }
    __syncthreads();
    return {found, found_sum};
}

struct settings {
    int V, top_k;
    size_t logits_stride;
    double temperature, top_p;
};

// One block a processor is enough to ask for: rows are few, and fewer registers would spill.
template <int WARPS>
__global__ void __launch_bounds__(WARPS *WARP, 1)
    sample(int32_t *tokens, const float *logits, const double *uniforms, const settings settings,
           candidate *workspace) {
    __shared__ uint64_t sums[WARPS];
    size_t row = blockIdx.x, V = static_cast<size_t>(settings.V);
    logits += row * settings.logits_stride;
    int first = likeliest<WARPS>(logits, settings.V, sums);
    if (settings.temperature <= 0) {
        if (threadIdx.x == 0)
            tokens[row] = first;
        return;
    }
    choice choice = {logits, nullptr, settings.V, static_cast<double>(logits[first]), settings.temperature};
    bool cut_to_k = settings.top_k > 0 && settings.top_k < settings.V;
    if (cut_to_k || settings.top_p < 1) {
        workspace += 2 * row * V;
        choice.sorted = sort_by_likelihood<WARPS>(logits, settings.V, workspace, workspace + V);
    }
    if (cut_to_k)
        choice.n = settings.top_k;
    uint64_t total = sum_weights<WARPS>(choice, sums);
    if (settings.top_p < 1) {
        uint64_t wanted = static_cast<uint64_t>(ceil(settings.top_p * static_cast<double>(total)));
        total = place_of<WARPS>(choice, sums, wanted > 0 ? wanted - 1 : 0).sum;
    }
    uint64_t threshold = static_cast<uint64_t>(uniforms[row] * static_cast<double>(total));
    threshold = threshold < total ? threshold : total - 1; // where the total was rounded up
    int i = place_of<WARPS>(choice, sums, threshold).i;
    if (threadIdx.x == 0)
        tokens[row] = choice.token(i);
}

} // namespace

extern "C" enum status cuda_sample(struct stream *stream, const struct sample_args *args) {
    settings settings = {args->V, args->top_k, static_cast<size_t>(args->logits_stride), args->temperature,
                         args->top_p};
    bool few = args->V <= FEW_WARPS_VOCABULARY;
    return LAUNCH(stream, (few ? sample<FEW_WARPS> : sample<MOST_WARPS>), args->N,
                  (few ? FEW_WARPS : MOST_WARPS) * WARP, 0, args->tokens,
                  static_cast<const float *>(args->logits), args->uniforms, settings,
                  static_cast<candidate *>(stream->workspace));
}
