// Times the candidate algorithms of one matrix product against each other, in scratch memory that is freed
// afterwards. Only algorithms that give the same bits as the first may win; matmul.cu explains why.
//
// The data are chosen to tell algorithms apart. The terms of every sum come in pairs that cancel, far apart
// in the sum and spread over a wide range of magnitudes. What remains is the rounding error alone. It differs
// in its leading digits for another tree of additions or another width of accumulators, in any output type.
// Half of the rows of D get a nonzero bias, addend and argument of GELU's derivative, which does the same for
// the epilogue's arithmetic.
#include "kernels/cuda/cublaslt/matmul.cuh"

namespace {

constexpr int ROUNDS = 3, RUNS_PER_ROUND = 4;
constexpr float MUST_GAIN = 0.98f; // of the best time so far: a smaller gain is noise
constexpr int THREADS = 256, BLOCKS = 512;

// ---- the data

// Uniform bits for element (i, j).
__device__ inline uint32_t bits_at(uint32_t seed, uint32_t i, uint32_t j) {
    uint32_t x = seed ^ (i * 0x9e3779b9u) ^ (j * 0x85ebca6bu + 0x7f4a7c15u);
    x = (x ^ (x >> 16)) * 0x21f0aaadu;
    x = (x ^ (x >> 15)) * 0x735a2d97u;
    return x ^ (x >> 15);
}

// How to fill A or B: each has one dimension of k terms that the product sums over.
struct operand_pattern {
    int64_t rows, columns, stride;
    bool sums_over_rows; // else over columns
    bool has_signs;      // in one of A and B, the two elements of a pair have opposite signs
    uint32_t seed;
    uint64_t k, step; // step: coprime to k, about 0.6 k; it separates the elements of a pair
};

template <class T> __global__ void __launch_bounds__(THREADS) fill_operand(T *x, const operand_pattern f) {
    int64_t n = f.rows * f.columns;
    for (int64_t at = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; at < n;
         at += static_cast<int64_t>(gridDim.x) * THREADS) {
        int64_t column = at / f.rows, row = at - column * f.rows;
        uint64_t term = static_cast<uint64_t>(f.sums_over_rows ? row : column);
        uint32_t other = static_cast<uint32_t>(f.sums_over_rows ? column : row);
        uint64_t place = term * f.step % f.k; // 2 i and 2 i + 1 are a pair
        uint32_t bits = bits_at(f.seed, other, static_cast<uint32_t>(place / 2));
        float value = ldexpf(1.0f + static_cast<float>(bits & 0xffff) / 65536.0f,
                             static_cast<int>((bits >> 16) % 20) - 14);
        bool negative = ((bits >> 30) & 1) != (f.has_signs ? place % 2 : 0);
        bool alone = place + 1 == f.k && f.k % 2 == 1;
        x[column * f.stride + row] = downcast<T>(alone ? 0.0f : negative ? -value : value);
    }
}

// Uniform in [-4, 4) in odd rows, zero in even ones.
template <class T>
__global__ void __launch_bounds__(THREADS) fill_addend(T *x, int64_t rows, int64_t columns, int64_t stride) {
    int64_t n = rows * columns;
    for (int64_t at = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; at < n;
         at += static_cast<int64_t>(gridDim.x) * THREADS) {
        int64_t column = at / rows, row = at - column * rows;
        uint32_t bits = bits_at(0, static_cast<uint32_t>(row), static_cast<uint32_t>(column));
        float value = static_cast<float>(bits >> 8) * 0x1p-21f - 4.0f;
        x[column * stride + row] = downcast<T>(row % 2 ? value : 0.0f);
    }
}

// Sets *different to 1 if x and y differ. The size of every type is a multiple of two bytes.
__global__ void __launch_bounds__(THREADS)
    compare(int *different, const uint16_t *x, const uint16_t *y, size_t n) {
    for (size_t i = static_cast<size_t>(blockIdx.x) * THREADS + threadIdx.x; i < n;
         i += static_cast<size_t>(gridDim.x) * THREADS)
        if (x[i] != y[i])
            *different = 1; // every writer writes the same value
}

uint64_t step_for(uint64_t k) {
    uint64_t step = k * 5 / 8 | 1;
    for (;; step += 2) {
        uint64_t a = step, b = k;
        while (b) {
            uint64_t rest = a % b;
            a = b;
            b = rest;
        }
        if (a == 1)
            return step;
    }
}

// ---- the measurement's buffers

struct output {
    void *now, *first; // of the algorithm under test, and of the first candidate
    size_t bytes;
};

struct measurement {
    struct stream stream;
    cudaEvent_t begin, end;
    void *memory;
    matmul_plan *plan;
    matmul_operands operands;
    void *workspace;
    int *different;
    output outputs[3]; // D, and the outputs of the epilogue
    int n_outputs;
};

// Of the last matrix, and the distances of those before it.
size_t span_bytes(int64_t rows, int64_t columns, int64_t stride, int32_t type, int64_t before = 0) {
    return static_cast<size_t>(before + (columns - 1) * stride + rows) *
           dtype_size(static_cast<enum dtype>(type));
}

void *take_output(measurement *c, scratch_layout *scratch, size_t bytes) {
    output *out = &c->outputs[c->n_outputs++];
    *out = {scratch->take(bytes), scratch->take(bytes), bytes};
    return out->now;
}

// Places every buffer of a run in one allocation at `base` and returns its size. base NULL: only the size.
size_t lay_out(struct device *device, measurement *c, char *base) {
    const matmul &p = c->plan->problem;
    scratch_layout scratch = {base, 0};
    const int64_t others = p.n_matrices - 1;
    c->n_outputs = 0;
    c->operands = {};
    c->operands.a = scratch.take(span_bytes(p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.a_stride,
                                            p.type, others * p.a_distance));
    c->operands.b = scratch.take(span_bytes(p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.b_stride,
                                            p.type, others * p.b_distance));
    c->operands.d =
        take_output(c, &scratch, span_bytes(p.m, p.n, p.d_stride, p.d_type, others * p.d_distance));
    if (p.addend == MATMUL_ADDS_C)
        c->operands.c = scratch.take(span_bytes(p.m, p.n, p.c_stride, p.c_type, others * p.c_distance));
    if (matmul_has_bias(p)) {
        size_t bytes = span_bytes(matmul_writes_bias(p) ? p.n : p.m, 1, 0, p.bias_type);
        c->operands.bias = matmul_writes_bias(p) ? take_output(c, &scratch, bytes) : scratch.take(bytes);
    }
    if (matmul_has_aux(p)) {
        size_t bytes = span_bytes(p.m, p.n, p.aux_stride, p.aux_type);
        c->operands.aux = matmul_writes_aux(p) ? take_output(c, &scratch, bytes) : scratch.take(bytes);
    }
    c->workspace = scratch.take(cuda_product_workspace(properties_of(device), p.m, p.n));
    c->different = static_cast<int *>(scratch.take(sizeof *c->different));
    return scratch.used;
}

// Of a batch, each matrix alike.
enum status fill(const measurement *c, const void *x, const operand_pattern &f, int64_t distance) {
    const matmul &p = c->plan->problem;
    for (int64_t i = 0; i < p.n_matrices; i++)
        TRY(with_type(static_cast<enum dtype>(p.type), [&](auto element) {
            using T = decltype(element);
            return LAUNCH(&c->stream, fill_operand<T>, BLOCKS, THREADS, 0,
                          static_cast<T *>(const_cast<void *>(x)) + i * distance, f);
        }));
    return STATUS_OK;
}

enum status fill(const struct stream *stream, const void *x, int32_t type, int64_t rows, int64_t columns,
                 int64_t stride) {
    return with_type(static_cast<enum dtype>(type), [&](auto element) {
        using T = decltype(element);
        return LAUNCH(stream, fill_addend<T>, BLOCKS, THREADS, 0, static_cast<T *>(const_cast<void *>(x)),
                      rows, columns, stride);
    });
}

enum status fill_inputs(measurement *c) {
    const matmul &p = c->plan->problem;
    operand_pattern f = {};
    f.k = static_cast<uint64_t>(p.k);
    f.step = step_for(f.k);
    operand_pattern a = f, b = f;
    a.rows = p.transpose_a ? p.k : p.m;
    a.columns = p.transpose_a ? p.m : p.k;
    a.stride = p.a_stride;
    a.sums_over_rows = p.transpose_a;
    a.has_signs = true;
    a.seed = 1;
    b.rows = p.transpose_b ? p.n : p.k;
    b.columns = p.transpose_b ? p.k : p.n;
    b.stride = p.b_stride;
    b.sums_over_rows = !p.transpose_b;
    b.seed = 2;
    TRY(fill(c, c->operands.a, a, p.a_distance));
    TRY(fill(c, c->operands.b, b, p.b_distance));
    for (int64_t i = 0; c->operands.c && i < p.n_matrices; i++)
        TRY(fill(&c->stream,
                 static_cast<const char *>(c->operands.c) +
                     static_cast<size_t>(i * p.c_distance) * dtype_size(static_cast<enum dtype>(p.c_type)),
                 p.c_type, p.m, p.n, p.c_stride));
    if (matmul_has_bias(p) && !matmul_writes_bias(p))
        TRY(fill(&c->stream, c->operands.bias, p.bias_type, p.m, 1, p.m));
    if (matmul_has_aux(p) && !matmul_writes_aux(p))
        TRY(fill(&c->stream, c->operands.aux, p.aux_type, p.m, p.n, p.aux_stride));
    return STATUS_OK;
}

enum status run(measurement *c, const cublasLtMatmulAlgo_t &algorithm) {
    return matmul_enqueue(&c->stream, c->plan, algorithm, c->operands, c->workspace);
}

// Gives the outputs the contents that every candidate's run starts from.
enum status reset_outputs(measurement *c) {
    const matmul &p = c->plan->problem;
    for (int i = 0; i < c->n_outputs; i++)
        TRY_CUDA(cudaMemsetAsync(c->outputs[i].now, 0, c->outputs[i].bytes, queue_of(&c->stream)));
    if (p.addend == MATMUL_ADDS_D)
        TRY(fill(&c->stream, c->operands.d, p.d_type, p.m, p.n, p.d_stride));
    return STATUS_OK;
}

// Waits for a candidate's work. A candidate that cuBLASLt refuses to issue, or that fails on the GPU, is not
// usable; its failure is forgotten. STATUS_FAILED when the GPU stays unusable, as after an illegal access.
//   issued   what issuing the work gave
enum status settle(measurement *c, enum status issued, bool *usable) {
    cudaError_t error = cudaStreamSynchronize(queue_of(&c->stream));
    *usable = issued == STATUS_OK && error == cudaSuccess;
    if (*usable)
        return STATUS_OK;
    status_clear();
    (void)cudaGetLastError(); // clears an error that does not stay
    cudaError_t now = cudaStreamSynchronize(queue_of(&c->stream));
    const matmul &p = c->plan->problem;
    if (now != cudaSuccess)
        return FAIL(STATUS_FAILED,
                    "trying cuBLASLt's algorithms for a %s matrix product of %lld x %lld x %lld left the GPU "
                    "unusable for this process: %s; start again, with another version of cuBLASLt if it "
                    "repeats",
                    dtype_name(static_cast<enum dtype>(p.type)), static_cast<long long>(p.m),
                    static_cast<long long>(p.n), static_cast<long long>(p.k), cudaGetErrorString(now));
    return STATUS_OK;
}

// One run of a candidate from the start, waited for.
enum status try_candidate(measurement *c, const cublasLtMatmulAlgo_t &algorithm, bool *usable) {
    TRY(reset_outputs(c));
    return settle(c, run(c, algorithm), usable);
}

enum status keep_as_first(measurement *c) {
    for (int i = 0; i < c->n_outputs; i++)
        TRY_CUDA(cudaMemcpyAsync(c->outputs[i].first, c->outputs[i].now, c->outputs[i].bytes,
                                 cudaMemcpyDeviceToDevice, queue_of(&c->stream)));
    return STATUS_OK;
}

enum status equals_first(measurement *c, bool *equal) {
    int different = 0;
    TRY_CUDA(cudaMemsetAsync(c->different, 0, sizeof *c->different, queue_of(&c->stream)));
    for (int i = 0; i < c->n_outputs; i++)
        TRY(LAUNCH(&c->stream, compare, BLOCKS, THREADS, 0, c->different,
                   static_cast<const uint16_t *>(c->outputs[i].now),
                   static_cast<const uint16_t *>(c->outputs[i].first), c->outputs[i].bytes / 2));
    TRY_CUDA(cudaMemcpyAsync(&different, c->different, sizeof different, cudaMemcpyDeviceToHost,
                             queue_of(&c->stream)));
    TRY_CUDA(cudaStreamSynchronize(queue_of(&c->stream)));
    *equal = different == 0;
    return STATUS_OK;
}

// *ms: the time of a few runs; unchanged where the candidate failed.
enum status time_round(measurement *c, const cublasLtMatmulAlgo_t &algorithm, bool *usable, float *ms) {
    TRY_CUDA(cudaEventRecord(c->begin, queue_of(&c->stream)));
    enum status issued = STATUS_OK;
    for (int i = 0; i < RUNS_PER_ROUND && issued == STATUS_OK; i++)
        issued = run(c, algorithm);
    TRY_CUDA(cudaEventRecord(c->end, queue_of(&c->stream)));
    TRY(settle(c, issued, usable));
    if (*usable)
        TRY_CUDA(cudaEventElapsedTime(ms, c->begin, c->end));
    return STATUS_OK;
}

// Finds the candidates that work and give the bits of the first one that does: *first, or -1 if none works.
enum status find_usable(measurement *c, const cublasLtMatmulAlgo_t *candidates, int n_candidates,
                        bool *usable, int *first) {
    *first = -1;
    TRY(fill_inputs(c));
    for (int i = 0; i < n_candidates; i++) {
        TRY(try_candidate(c, candidates[i], &usable[i]));
        if (!usable[i])
            continue;
        if (*first >= 0) {
            TRY(equals_first(c, &usable[i]));
            continue;
        }
        *first = i;
        TRY(keep_as_first(c));
    }
    return STATUS_OK;
}

enum status compare_candidates(measurement *c, const cublasLtMatmulAlgo_t *candidates, int n_candidates,
                               int *chosen) {
    bool usable[MATMUL_CANDIDATES];
    float best[MATMUL_CANDIDATES];
    TRY(find_usable(c, candidates, n_candidates, usable, chosen));
    if (c->plan->problem.n_matrices > 1 && *chosen != 0) // no other defines its bits
        n_candidates = 0;
    for (int round = 0; round < ROUNDS; round++) // in turn, so that other load slows all candidates alike
        for (int i = 0; i < n_candidates; i++) {
            float ms = 0;
            if (!usable[i])
                continue;
            TRY(time_round(c, candidates[i], &usable[i], &ms));
            if (round == 0 || ms < best[i])
                best[i] = ms;
        }
    int first = *chosen;
    *chosen = -1;
    for (int i = first; i >= 0 && i < n_candidates; i++)
        if (usable[i] && (*chosen < 0 || best[i] < MUST_GAIN * best[*chosen]))
            *chosen = i;
    return STATUS_OK;
}

// Leaves c->memory NULL where the GPU has not enough memory: then nothing is measured.
enum status measurement_init(measurement *c, struct device *device, size_t bytes) {
    TRY(stream_init(&c->stream, device));
    TRY_CUDA(cudaEventCreate(&c->begin));
    TRY_CUDA(cudaEventCreate(&c->end));
    cudaError_t error = cudaMalloc(&c->memory, bytes);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError(); // clears it
        c->memory = nullptr;
        return STATUS_OK;
    }
    TRY_CUDA(error);
    return STATUS_OK;
}

void measurement_free(measurement *c) {
    if (c->begin)
        (void)cudaEventDestroy(c->begin);
    if (c->end)
        (void)cudaEventDestroy(c->end);
    (void)cudaFree(c->memory);
    stream_free(&c->stream);
}

} // namespace

enum status matmul_measure(struct device *device, matmul_plan *plan, const cublasLtMatmulAlgo_t *candidates,
                           int n_candidates, int *chosen) {
    measurement c = {};
    c.plan = plan;
    *chosen = 0;
    enum status status = measurement_init(&c, device, lay_out(device, &c, nullptr));
    if (status == STATUS_OK && c.memory) {
        lay_out(device, &c, static_cast<char *>(c.memory));
        status = compare_candidates(&c, candidates, n_candidates, chosen);
    }
    measurement_free(&c);
    return status;
}
