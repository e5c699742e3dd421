// Sampling tokens from logits (kernels/ops.h: sample), one block per row. With top_k or top_p, the row is
// first sorted by likelihood in the workspace: a radix sort of (logit bits, token) pairs in four stable
// passes. To draw, each warp sums the weights of its own tokens. The warp in which the running sum exceeds
// a random threshold then searches its tokens for the place. Weights are integers, so every device draws
// the same token.
#include "kernels/cuda/common.cuh"

namespace {

constexpr int MOST_WARPS = 32, FEW_WARPS = 4;               // warps per block; few for small vocabularies
constexpr int FEW_WARPS_VOCABULARY = 16 * FEW_WARPS * WARP; // the largest vocabulary for FEW_WARPS
constexpr int DIGIT_BITS = 8;
constexpr int DIGITS = 1 << DIGIT_BITS;
constexpr int PASSES = 32 / DIGIT_BITS;
constexpr unsigned ALL_LANES = 0xffffffff;

struct alignas(8) candidate {
    uint32_t key; // smaller for a larger logit
    int32_t token;
};
static_assert(sizeof(candidate) == CUDA_CANDIDATE_BYTES, "the size that plans use");

// Returns an integer that is smaller for a larger logit, and equal for +0 and -0.
__device__ inline uint32_t key_of(float logit) {
    uint32_t bits = __float_as_uint(logit + 0.0f);
    return bits & 0x80000000u ? bits : ~bits & 0x7fffffffu;
}

// Each warp processes its own span of a row, in order, 32 elements at a time.
struct warp_span {
    int begin, end;
};

template <int WARPS> __device__ inline warp_span warp_span_of(int warp, int n) {
    int each = (n + WARPS * WARP - 1) / (WARPS * WARP) * WARP;
    int begin = warp * each;
    return {begin < n ? begin : n, begin + each < n ? begin + each : n};
}

__device__ inline int warp_index() {
    return static_cast<int>(threadIdx.x) / WARP;
}
__device__ inline int lane_index() {
    return static_cast<int>(threadIdx.x) % WARP;
}

// ---- the most likely token

// The minimum of the block's values, returned to every thread.
template <int WARPS> __device__ uint64_t block_minimum(uint64_t x, uint64_t *scratch) {
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        uint64_t other = __shfl_xor_sync(ALL_LANES, x, distance);
        x = other < x ? other : x;
    }
    if (lane_index() == 0)
        scratch[warp_index()] = x;
    __syncthreads();
    for (int i = 0; i < WARPS; i++)
        x = scratch[i] < x ? scratch[i] : x;
    __syncthreads();
    return x;
}

// Returns the token with the largest logit; among equal logits, the lowest token. Key and token are
// compared as one 64-bit integer.
template <int WARPS> __device__ int likeliest(const float *logits, int V, uint64_t *scratch) {
    uint64_t best = UINT64_MAX;
    for (int token = static_cast<int>(threadIdx.x); token < V; token += WARPS * WARP) {
        uint64_t one = static_cast<uint64_t>(key_of(logits[token])) << 32 | static_cast<uint32_t>(token);
        best = one < best ? one : best;
    }
    return static_cast<int>(block_minimum<WARPS>(best, scratch) & UINT32_MAX);
}

// ---- sorting by likelihood

// at[w][d]: first the number of warp w's candidates with digit d. Later, the index in the output at which
// the next of these candidates goes.
template <int WARPS> struct counters { uint32_t at[WARPS][DIGITS]; };

// Replaces the counts by the index in the output of each warp's first candidate with that digit (an
// exclusive prefix sum, in order of digit, then warp).
template <int WARPS> __device__ void counts_to_places(counters<WARPS> &counters, uint32_t *warp_sums) {
    constexpr int each = DIGITS / WARP;
    int first = static_cast<int>(threadIdx.x) * each;
    uint32_t sum = 0;
    for (int i = first; i < first + each; i++)
        sum += counters.at[i % WARPS][i / WARPS];
    uint32_t up_to = sum; // prefix sum over the warp's lanes, this one included
    for (int distance = 1; distance < WARP; distance *= 2) {
        uint32_t lower = __shfl_up_sync(ALL_LANES, up_to, distance);
        up_to += lane_index() >= distance ? lower : 0;
    }
    if (lane_index() == WARP - 1)
        warp_sums[warp_index()] = up_to;
    __syncthreads();
    uint32_t place = up_to - sum;
    for (int i = 0; i < warp_index(); i++)
        place += warp_sums[i];
    for (int i = first; i < first + each; i++) {
        uint32_t count = counters.at[i % WARPS][i / WARPS];
        counters.at[i % WARPS][i / WARPS] = place;
        place += count;
    }
    __syncthreads();
}

// One pass of the sort: stable, by the digit that begins at bit `shift` of the key. candidate_at(i) returns
// candidate i of n, in the order of the previous pass.
template <int WARPS, class At>
__device__ void sort_pass(candidate *to, At candidate_at, int n, int shift, counters<WARPS> &counters,
                          uint32_t *warp_sums) {
    warp_span mine = warp_span_of<WARPS>(warp_index(), n);
    uint32_t *at = counters.at[warp_index()];
    for (int digit = lane_index(); digit < DIGITS; digit += WARP)
        at[digit] = 0;
    __syncwarp();
    for (int i = mine.begin + lane_index(); i < mine.end; i += WARP)
        atomicAdd(&at[candidate_at(i).key >> shift & (DIGITS - 1)], 1u);
    __syncthreads();
    counts_to_places(counters, warp_sums);
    for (int i = mine.begin + lane_index(); i - lane_index() < mine.end; i += WARP) {
        bool inside = i < mine.end;
        candidate one = {};
        if (inside)
            one = candidate_at(i);
        uint32_t digit = inside ? one.key >> shift & (DIGITS - 1) : DIGITS;
        unsigned same = __match_any_sync(ALL_LANES, digit);
        unsigned before = same & ((1u << lane_index()) - 1);
        if (inside)
            to[at[digit] + static_cast<uint32_t>(__popc(before))] = one;
        __syncwarp();
        if (inside && before == 0)
            at[digit] += static_cast<uint32_t>(__popc(same));
        __syncwarp();
    }
    __syncthreads();
}

// Sorts the row's V tokens by likelihood. Returns the sorted row, which is in `to` or `other`.
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

// ---- drawing a token

// The n tokens to draw from, in the order in which their weights are summed.
struct choice {
    const float *logits;
    const candidate *sorted; // the tokens by likelihood; NULL: in order of the tokens
    int n;
    double largest, temperature; // largest: the row's largest logit
    uint64_t least;              // smaller weights count as 0

    __device__ int token(int i) const {
        return sorted ? sorted[i].token : i;
    }
    __device__ uint64_t weight(int i) const {
        double e = exp((static_cast<double>(logits[token(i)]) - largest) / temperature);
        uint64_t units = e > 0 ? static_cast<uint64_t>(e / SAMPLE_WEIGHT_UNIT) : 0;
        return units < least ? 0 : units;
    }
};

// Writes the sum of the weights of warp w's tokens to sums[w], for every warp. Returns the total to every
// thread.
template <int WARPS> __device__ uint64_t sum_weights(const choice &choice, uint64_t *sums) {
    warp_span mine = warp_span_of<WARPS>(warp_index(), choice.n);
    uint64_t sum = 0, total = 0;
    for (int i = mine.begin + lane_index(); i < mine.end; i += WARP)
        sum += choice.weight(i);
    sum = warp_sum(sum);
    if (lane_index() == 0)
        sums[warp_index()] = sum;
    __syncthreads();
#pragma unroll 4 // if fully unrolled, the loads would take too many registers
    for (int i = 0; i < WARPS; i++)
        total += sums[i];
    return total;
}

// Returns the index i at which the sum of the weights up to and including i first exceeds the threshold.
// The threshold must be below the total of `sums`; otherwise 0 may be returned.
template <int WARPS> __device__ int place_of(const choice &choice, const uint64_t *sums, uint64_t threshold) {
    __shared__ int found;
    int warp = 0;
    uint64_t before = 0;
    while (warp < WARPS && before + sums[warp] <= threshold)
        before += sums[warp++];
    __syncthreads(); // all threads have read the previous result
    if (threadIdx.x == 0)
        found = 0;
    __syncthreads();
    warp_span span = warp_span_of<WARPS>(warp, choice.n);
    bool searching = warp == warp_index();
    for (int i = span.begin; searching && i < span.end; i += WARP) {
        uint64_t weight = i + lane_index() < span.end ? choice.weight(i + lane_index()) : 0, sum = weight;
        for (int distance = 1; distance < WARP; distance *= 2) {
            uint64_t lower = __shfl_up_sync(ALL_LANES, sum, distance);
            sum += lane_index() >= distance ? lower : 0;
        }
        sum += before;
        unsigned exceeds = __ballot_sync(ALL_LANES, sum > threshold);
        if (exceeds && lane_index() == __ffs(static_cast<int>(exceeds)) - 1)
            found = i + lane_index();
        searching = exceeds == 0;
        before = __shfl_sync(ALL_LANES, sum, WARP - 1);
    }
    __syncthreads();
    return found;
}

struct settings {
    int V, top_k;
    size_t logits_stride;
    double temperature, top_p, min_p;
};

// Launch bounds require only one block per multiprocessor: there are few rows, and with fewer registers the
// kernel would spill.
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
    choice choice = {logits, nullptr, settings.V, static_cast<double>(logits[first]), settings.temperature,
                     0};
    bool cut_to_k = settings.top_k > 0 && settings.top_k < settings.V;
    if (cut_to_k || settings.top_p < 1) {
        workspace += 2 * row * V;
        choice.sorted = sort_by_likelihood<WARPS>(logits, settings.V, workspace, workspace + V);
    }
    if (cut_to_k)
        choice.n = settings.top_k;
    auto least = static_cast<uint64_t>(ceil(settings.min_p / SAMPLE_WEIGHT_UNIT));
    // The first iteration cuts to top_p, if requested; the last one draws. This is a loop, because one call
    // site of sum_weights and place_of takes fewer registers than two.
    for (bool cuts_to_p = settings.top_p < 1;; cuts_to_p = false) {
        choice.least = cuts_to_p ? 0 : least;
        uint64_t total = sum_weights<WARPS>(choice, sums);
        double part = cuts_to_p ? ceil(settings.top_p * static_cast<double>(total))
                                : uniforms[row] * static_cast<double>(total);
        auto threshold = static_cast<uint64_t>(part);
        if (cuts_to_p)
            threshold = threshold > 0 ? threshold - 1 : 0;
        else // the product may have been rounded up to `total`
            threshold = threshold < total ? threshold : total - 1;
        int i = place_of<WARPS>(choice, sums, threshold);
        choice.n = i + 1;
        if (!cuts_to_p) {
            if (threadIdx.x == 0)
                tokens[row] = choice.token(i);
            return;
        }
    }
}

} // namespace

extern "C" enum status cuda_sample(struct stream *stream, const struct sample_args *args) {
    settings settings = {args->V,           args->top_k, static_cast<size_t>(args->logits_stride),
                         args->temperature, args->top_p, args->min_p};
    bool few = args->V <= FEW_WARPS_VOCABULARY;
    return LAUNCH(stream, (few ? sample<FEW_WARPS> : sample<MOST_WARPS>), args->N,
                  (few ? FEW_WARPS : MOST_WARPS) * WARP, 0, args->tokens,
                  static_cast<const float *>(args->logits), args->uniforms, settings,
                  static_cast<candidate *>(stream->workspace));
}
