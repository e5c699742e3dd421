// Plans for matrix products, one per problem: cuBLASLt's descriptors and the chosen algorithm.
//
// The choice of an algorithm must not change a bit of any result. Every rank, every ZeRO stage, a resumed run
// and a repeated run must compute the same numbers, so timing must never choose between different results. It
// does not:
// - The result is defined by the first candidate of cuBLASLt's heuristic that works (one that fails during
//   measurement fails on every GPU of its model). That candidate is a function of the library, the GPU
//   model and the problem. The problem has the sizes, strides and types of the call, and an alignment
//   capped at 16 bytes: buffers of different ZeRO stages have different addresses, but all are aligned to
//   at least that. The workspace is a function of the sizes. NVIDIA documents that the same calls give the
//   same bits on the same GPU model, with a workspace per stream ("Results reproducibility" in the cuBLAS
//   manual).
// - Measuring may replace it only by an algorithm that gives the same bits, on data whose results consist of
//   rounding errors alone. Another order of summation, instruction or epilogue shows in nearly every element
//   of such data. The remaining candidates differ in speed only, so no result reveals whether measuring
//   happened or what it found.
// - A matrix must get the same bits in every batch, since the number of matrices per batch depends on how
//   many ranks share the work. So the algorithm chosen for a single matrix defines the bits of a batch, too.
//   It computes each matrix of a batch with the same tiles, which tests verify; another algorithm may replace
//   it only as above.
#include "kernels/cuda/cublaslt/matmul.cuh"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

struct matmul_plan {
    matmul problem;
    matmul_plan *next;
    bool supported;
    cublasLtMatmulDesc_t description;
    cublasLtMatrixLayout_t a, b, c, d;
    cublasLtMatmulAlgo_t algorithm; // set if supported
};

struct matmuls {
    cublaslt lt;
    cublasLtHandle_t handle;
    matmul_plan *plans;
};

constexpr int MATMUL_CANDIDATES = 8;

// ---- loading cuBLASLt (cublaslt.cuh). If the process already has cuBLASLt's functions, from the simulator
// or another component's library, they are used. Otherwise the library is loaded from disk.
namespace {

constexpr int TOOLKIT_MAJOR = CUDART_VERSION / 1000;

// The library's structs may change between major versions, so only the version that the program was built
// with is tried: first in the folders that ld.so searches, then in the toolkit's default folder.
void *open_library() {
    char name[64];
    const char *const formats[] = {"libcublasLt.so.%d", "/usr/local/cuda/lib64/libcublasLt.so.%d"};
    for (const char *format : formats) {
        snprintf(name, sizeof name, format, TOOLKIT_MAJOR);
        if (void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL))
            return library;
    }
    return nullptr;
}

} // namespace

enum status cublaslt_load(struct cublaslt *lt) {
    void *library = RTLD_DEFAULT;
    if (!dlsym(library, "cublasLtCreate") && !(library = open_library()))
        return FAIL(
            STATUS_UNSUPPORTED,
            "device \"cuda\": libcublasLt.so.%d was not found (%s); install cuBLAS of CUDA %d (package "
            "libcublas-%d-0 or newer, or the whole toolkit), name its folder in LD_LIBRARY_PATH, or "
            "use device=cpu",
            TOOLKIT_MAJOR, dlerror(), TOOLKIT_MAJOR, TOOLKIT_MAJOR);
#define CUBLASLT_FIND(name)                                                                                  \
    lt->name = reinterpret_cast<decltype(lt->name)>(dlsym(library, "cublasLt" #name));                       \
    if (!lt->name)                                                                                           \
        return FAIL(STATUS_UNSUPPORTED,                                                                      \
                    "device \"cuda\": this libcublasLt has no function cublasLt" #name                       \
                    "; install cuBLAS of CUDA %d, or use device=cpu",                                        \
                    TOOLKIT_MAJOR);
    CUBLASLT_FUNCTIONS(CUBLASLT_FIND)
#undef CUBLASLT_FIND
    return STATUS_OK;
}

// ---- a product as calls of cuBLASLt: its descriptors, the algorithms on offer, and issuing it with one of
// them
//
// Split sums (split-K) are allowed where D is fp32, if the partial sums are in the compute type and are
// added in a separate step (CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE). That is reproducible, as it uses no
// atomics. They are not allowed where D has 16 bits, because the operand that the epilogue adds would then
// be rounded once more.
//
// The compute type is CUBLAS_COMPUTE_32F, which does not use TF32.
namespace {

cudaDataType_t data_type(int32_t type) {
    return type == DTYPE_F16 ? CUDA_R_16F : type == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

enum status set(const cublaslt &lt, cublasLtMatmulDesc_t description,
                cublasLtMatmulDescAttributes_t attribute, const void *value, size_t bytes) {
    TRY_CUBLASLT(lt, MatmulDescSetAttribute(description, attribute, value, bytes));
    return STATUS_OK;
}

enum status set(const cublaslt &lt, cublasLtMatmulPreference_t preference,
                cublasLtMatmulPreferenceAttributes_t attribute, const void *value, size_t bytes) {
    TRY_CUBLASLT(lt, MatmulPreferenceSetAttribute(preference, attribute, value, bytes));
    return STATUS_OK;
}

// ---- descriptors of a product

enum status describe_epilogue(const cublaslt &lt, const matmul &problem, cublasLtMatmulDesc_t description) {
    cublasLtEpilogue_t epilogue = static_cast<cublasLtEpilogue_t>(problem.epilogue);
    TRY(set(lt, description, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    // The heuristic reads the alignment of these pointers and does not dereference them.
    void *aligned = reinterpret_cast<void *>(static_cast<uintptr_t>(MATMUL_ALIGNMENT));
    if (matmul_has_bias(problem)) {
        TRY(set(lt, description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &aligned, sizeof aligned));
        cudaDataType_t type = data_type(problem.bias_type);
        if (problem.bias_type != problem.d_type)
            TRY(set(lt, description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type));
    }
    if (matmul_has_aux(problem)) {
        TRY(set(lt, description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aligned, sizeof aligned));
        TRY(set(lt, description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &problem.aux_stride,
                sizeof problem.aux_stride));
        cudaDataType_t type = data_type(problem.aux_type);
        if (problem.aux_type != problem.d_type)
            TRY(set(lt, description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, &type, sizeof type));
    }
    return STATUS_OK;
}

// ---- descriptors of a batch

enum status set(const cublaslt &lt, cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute,
                const void *value, size_t bytes) {
    TRY_CUBLASLT(lt, MatrixLayoutSetAttribute(layout, attribute, value, bytes));
    return STATUS_OK;
}

enum status describe_batch(const cublaslt &lt, const matmul &problem, const matmul_plan *plan) {
    const struct {
        cublasLtMatrixLayout_t layout;
        int64_t distance;
    } matrices[] = {{plan->a, problem.a_distance},
                    {plan->b, problem.b_distance},
                    {plan->c, problem.c_distance},
                    {plan->d, problem.d_distance}};
    const int32_t n = static_cast<int32_t>(problem.n_matrices);
    for (const auto &of : matrices) {
        TRY(set(lt, of.layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &n, sizeof n));
        TRY(set(lt, of.layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &of.distance,
                sizeof of.distance));
    }
    return STATUS_OK;
}

} // namespace

// Makes the descriptors of plan->problem. matmul_plan_free destroys them, even after a failed call.
static enum status matmul_describe(const cublaslt &lt, matmul_plan *plan) {
    const matmul &problem = plan->problem;
    TRY_CUBLASLT(lt, MatmulDescCreate(&plan->description, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    cublasOperation_t a = problem.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t b = problem.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    TRY(set(lt, plan->description, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a));
    TRY(set(lt, plan->description, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b));
    uint64_t m = static_cast<uint64_t>(problem.m), n = static_cast<uint64_t>(problem.n);
    uint64_t k = static_cast<uint64_t>(problem.k);
    TRY_CUBLASLT(lt, MatrixLayoutCreate(&plan->a, data_type(problem.type), problem.transpose_a ? k : m,
                                        problem.transpose_a ? m : k, problem.a_stride));
    TRY_CUBLASLT(lt, MatrixLayoutCreate(&plan->b, data_type(problem.type), problem.transpose_b ? n : k,
                                        problem.transpose_b ? k : n, problem.b_stride));
    TRY_CUBLASLT(lt, MatrixLayoutCreate(&plan->c, data_type(problem.c_type), m, n, problem.c_stride));
    TRY_CUBLASLT(lt, MatrixLayoutCreate(&plan->d, data_type(problem.d_type), m, n, problem.d_stride));
    if (problem.n_matrices > 1)
        TRY(describe_batch(lt, problem, plan));
    return describe_epilogue(lt, problem, plan->description);
}

static void matmul_plan_free(const cublaslt &lt, matmul_plan *plan) {
    if (plan->description)
        (void)lt.MatmulDescDestroy(plan->description);
    for (cublasLtMatrixLayout_t layout : {plan->a, plan->b, plan->c, plan->d})
        if (layout)
            (void)lt.MatrixLayoutDestroy(layout);
}

// ---- candidate algorithms

namespace {

enum status describe_preference(const cublaslt &lt, const matmul &problem, uint64_t workspace_bytes,
                                cublasLtMatmulPreference_t preference) {
    uint32_t reductions =
        problem.d_type == DTYPE_F32 ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_NONE;
    // C and D are always aligned to their own elements, even if the operands' common alignment is lower.
    uint32_t ab = static_cast<uint32_t>(problem.alignment), cd = ab;
    if (cd < dtype_size(static_cast<enum dtype>(problem.d_type)))
        cd = static_cast<uint32_t>(dtype_size(static_cast<enum dtype>(problem.d_type)));
    TRY(set(lt, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
            sizeof workspace_bytes));
    TRY(set(lt, preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions));
    TRY(set(lt, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &ab, sizeof ab));
    TRY(set(lt, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &ab, sizeof ab));
    TRY(set(lt, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &cd, sizeof cd));
    return set(lt, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &cd, sizeof cd);
}

} // namespace

// Finds the algorithms that cuBLASLt offers for a plan (after matmul_describe), in the order of its
// heuristic, which expects the first to be the fastest. *n_candidates is 0 if it offers none.
static enum status matmul_find_candidates(const matmuls *matmuls, const matmul_plan *plan,
                                          uint64_t workspace_bytes,
                                          cublasLtMatmulAlgo_t (&candidates)[MATMUL_CANDIDATES],
                                          int *n_candidates) {
    const cublaslt &lt = matmuls->lt;
    cublasLtMatmulPreference_t preference;
    TRY_CUBLASLT(lt, MatmulPreferenceCreate(&preference));
    enum status status = describe_preference(lt, plan->problem, workspace_bytes, preference);
    cublasLtMatmulHeuristicResult_t results[MATMUL_CANDIDATES] = {};
    int n_results = 0;
    cublasStatus_t answer = CUBLAS_STATUS_SUCCESS;
    if (status == STATUS_OK)
        answer = lt.MatmulAlgoGetHeuristic(matmuls->handle, plan->description, plan->a, plan->b, plan->c,
                                           plan->d, preference, MATMUL_CANDIDATES, results, &n_results);
    (void)lt.MatmulPreferenceDestroy(preference); // ignores the status: it only frees memory
    TRY(status);
    // The library reports an unsupported fusion as either of these statuses, or as no result.
    if (answer == CUBLAS_STATUS_NOT_SUPPORTED || answer == CUBLAS_STATUS_INVALID_VALUE)
        n_results = 0;
    else if (answer != CUBLAS_STATUS_SUCCESS)
        return FAIL(STATUS_FAILED, "cuBLASLt: cublasLtMatmulAlgoGetHeuristic: %s",
                    lt.GetStatusString(answer));
    *n_candidates = 0;
    for (int i = 0; i < n_results; i++)
        if (results[i].state == CUBLAS_STATUS_SUCCESS && results[i].workspaceSize <= workspace_bytes)
            candidates[(*n_candidates)++] = results[i].algo;
    return STATUS_OK;
}

// True if an algorithm that was chosen for one matrix can compute the batch of a plan (after
// matmul_describe).
static bool matmul_suits(const matmuls *matmuls, const matmul_plan *plan,
                         const cublasLtMatmulAlgo_t &algorithm, uint64_t workspace_bytes) {
    cublasLtMatmulHeuristicResult_t result = {};
    const cublasStatus_t answer = matmuls->lt.MatmulAlgoCheck(matmuls->handle, plan->description, plan->a,
                                                              plan->b, plan->c, plan->d, &algorithm, &result);
    return answer == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= workspace_bytes;
}

// ---- issuing a product

// Issues a plan's product (after matmul_describe) with the given algorithm, in stream order.
static enum status matmul_enqueue(struct stream *stream, matmul_plan *plan,
                                  const cublasLtMatmulAlgo_t &algorithm, const matmul_operands &operands,
                                  void *workspace) {
    const matmuls *matmuls = cuda_of(stream->device)->matmuls;
    const matmul &problem = plan->problem;
    const cublaslt &lt = matmuls->lt;
    const float beta = problem.addend == MATMUL_ADDS_NOTHING ? 0 : operands.beta;
    const void *c = problem.addend == MATMUL_ADDS_C ? operands.c : operands.d;
    TRY(cuda_enter(stream->device));
    if (matmul_has_bias(problem))
        TRY(set(lt, plan->description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &operands.bias,
                sizeof operands.bias));
    if (matmul_has_aux(problem))
        TRY(set(lt, plan->description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &operands.aux,
                sizeof operands.aux));
    TRY_CUBLASLT(lt,
                 Matmul(matmuls->handle, plan->description, &operands.alpha, operands.a, plan->a, operands.b,
                        plan->b, &beta, c, plan->c, operands.d, plan->d, &algorithm, workspace,
                        cuda_product_workspace(properties_of(stream->device), problem.m, problem.n),
                        queue_of(stream)));
    count_launch(stream);
    return STATUS_OK;
}

// ---- measuring: times the candidate algorithms of one matrix product against each other, in scratch memory
// that is freed afterwards. Only algorithms that give the same bits as the first may win; the top of this
// file says why.
//
// The data are chosen to tell algorithms apart. The terms of every sum come in pairs that cancel. The two
// terms are far apart in the sum, and pairs vary widely in magnitude. Only the rounding error remains.
// Another tree of additions or another accumulator width changes its leading digits, in any output type. Half
// of the rows of D get a nonzero bias, addend and argument of GELU's derivative, so that another arithmetic
// of the epilogue changes bits, too.
namespace {

constexpr int ROUNDS = 3, RUNS_PER_ROUND = 4;
constexpr float MUST_GAIN = 0.98f; // new time / best time so far must be below this; the rest is noise
constexpr int THREADS = 256, BLOCKS = 512;

// ---- the data to measure with

// Returns 32 uniformly distributed bits for element (i, j).
__device__ inline uint32_t bits_at(uint32_t seed, uint32_t i, uint32_t j) {
    uint32_t x = seed ^ (i * 0x9e3779b9u) ^ (j * 0x85ebca6bu + 0x7f4a7c15u);
    x = (x ^ (x >> 16)) * 0x21f0aaadu;
    x = (x ^ (x >> 15)) * 0x735a2d97u;
    return x ^ (x >> 15);
}

// How to fill A or B. The product sums over the operand's rows or over its columns, of which there are k.
// Number t of these is at place t * step % k. Places 2 i and 2 i + 1 are a pair and get equal magnitudes.
struct operand_pattern {
    int64_t rows, columns, stride;
    bool sums_over_rows; // otherwise over columns
    bool has_signs;      // the two elements of a pair have opposite signs; in A only
    uint32_t seed;
    uint64_t k, step; // step: coprime to k and about 0.6 k, so that the elements of a pair are far apart
};

template <class T> __global__ void __launch_bounds__(THREADS) fill_operand(T *x, const operand_pattern f) {
    int64_t n = f.rows * f.columns;
    for (int64_t at = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; at < n;
         at += static_cast<int64_t>(gridDim.x) * THREADS) {
        int64_t column = at / f.rows, row = at - column * f.rows;
        uint64_t term = static_cast<uint64_t>(f.sums_over_rows ? row : column);
        uint32_t other = static_cast<uint32_t>(f.sums_over_rows ? column : row);
        uint64_t place = term * f.step % f.k; // places 2 i and 2 i + 1 are a pair
        uint32_t bits = bits_at(f.seed, other, static_cast<uint32_t>(place / 2));
        float value = ldexpf(1.0f + static_cast<float>(bits & 0xffff) / 65536.0f,
                             static_cast<int>((bits >> 16) % 20) - 14);
        bool negative = ((bits >> 30) & 1) != (f.has_signs ? place % 2 : 0);
        bool alone = place + 1 == f.k && f.k % 2 == 1;
        x[column * f.stride + row] = downcast<T>(alone ? 0.0f : negative ? -value : value);
    }
}

// Fills x with uniform random numbers in [-4, 4) in odd rows, and zeros in even rows.
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

// Sets *different to 1 if x and y differ in one of their n 16-bit words. The size of every type is a
// multiple of two bytes.
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
    void *now, *first; // results of the algorithm under test, and of the first candidate that works
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

// Bytes from the first element of a matrix, or of a batch of them, to the end of its last element.
//   before   elements between the starts of the first and the last matrix; 0 without a batch
size_t span_bytes(int64_t rows, int64_t columns, int64_t stride, int32_t type, int64_t before = 0) {
    return static_cast<size_t>(before + (columns - 1) * stride + rows) *
           dtype_size(static_cast<enum dtype>(type));
}

void *take_output(measurement *c, scratch_layout *scratch, size_t bytes) {
    output *out = &c->outputs[c->n_outputs++];
    *out = {scratch->take(bytes), scratch->take(bytes), bytes};
    return out->now;
}

// Places every buffer of a measurement in one allocation, which begins at `base`. Returns the allocation's
// size in bytes. With base NULL, it only computes the size.
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

// Fills an operand. All matrices of a batch get the same data.
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

// Resets the outputs to the contents that every candidate's run starts from.
enum status reset_outputs(measurement *c) {
    const matmul &p = c->plan->problem;
    for (int i = 0; i < c->n_outputs; i++)
        TRY_CUDA(cudaMemsetAsync(c->outputs[i].now, 0, c->outputs[i].bytes, queue_of(&c->stream)));
    if (p.addend == MATMUL_ADDS_D)
        TRY(fill(&c->stream, c->operands.d, p.d_type, p.m, p.n, p.d_stride));
    return STATUS_OK;
}

// Waits for a candidate's work. A candidate that cuBLASLt refuses to issue, or that fails on the GPU, is not
// usable; its error is cleared. Returns STATUS_FAILED if the GPU stays unusable, as after an illegal access.
//   issued   status of issuing the work
enum status settle(measurement *c, enum status issued, bool *usable) {
    cudaError_t error = cudaStreamSynchronize(queue_of(&c->stream));
    *usable = issued == STATUS_OK && error == cudaSuccess;
    if (*usable)
        return STATUS_OK;
    status_clear();
    (void)cudaGetLastError(); // clears a recoverable error
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

// Runs a candidate once, from the initial contents, and waits for it.
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

// Runs a candidate RUNS_PER_ROUND times and measures the time.
//   ms   [out] milliseconds of all these runs; unchanged if the candidate failed
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

// Finds the candidates that work and give the bits of the first one that works. *first is that one, or -1 if
// none works.
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
    // The first candidate defines a batch's bits. If it does not work, no other may replace it.
    if (c->plan->problem.n_matrices > 1 && *chosen != 0)
        n_candidates = 0;
    // Candidates take turns, so that other load on the GPU slows all of them alike.
    for (int round = 0; round < ROUNDS; round++)
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

// Leaves c->memory NULL if the GPU has too little memory. Then the caller measures nothing.
enum status measurement_init(measurement *c, struct device *device, size_t bytes) {
    TRY(stream_init(&c->stream, device));
    TRY_CUDA(cudaEventCreate(&c->begin));
    TRY_CUDA(cudaEventCreate(&c->end));
    cudaError_t error = cudaMalloc(&c->memory, bytes);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError(); // clears the error
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

// Chooses the fastest candidate among those that work and give the same bits as the first one that works. A
// candidate that fails is left out. The run ends only if the GPU is unusable afterwards.
//   n_candidates   at most MATMUL_CANDIDATES
//   chosen         [out] index of the chosen candidate. -1 if no candidate works or, for a batch, the first
//                  one does not. 0 if the GPU has too little memory to measure
static enum status matmul_measure(struct device *device, matmul_plan *plan,
                                  const cublasLtMatmulAlgo_t *candidates, int n_candidates, int *chosen) {
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

// ---- finding and making plans

namespace {

enum status find_plan(struct device *device, const matmul &problem, bool measure, matmul_plan **out);

// Products with fewer multiplications than this take about as long as a launch, whatever the algorithm.
constexpr double MEASURED_FROM = 1 << 27;

// Puts the algorithm of a single matrix before the candidates of a batch, since it defines the bits. If it
// cannot compute the batch, *n_candidates becomes 0.
enum status add_first_of_batch(struct device *device, const matmul_plan *plan, bool measure,
                               uint64_t workspace_bytes,
                               cublasLtMatmulAlgo_t (&candidates)[MATMUL_CANDIDATES], int *n_candidates) {
    const matmuls *matmuls = cuda_of(device)->matmuls;
    matmul one = plan->problem;
    matmul_plan *alone;
    one.n_matrices = 1;
    one.a_distance = one.b_distance = one.c_distance = one.d_distance = 0;
    TRY(find_plan(device, one, measure, &alone));
    if (!alone->supported || !matmul_suits(matmuls, plan, alone->algorithm, workspace_bytes)) {
        *n_candidates = 0;
        return STATUS_OK;
    }
    if (*n_candidates < MATMUL_CANDIDATES)
        ++*n_candidates;
    for (int i = *n_candidates - 1; i > 0; i--)
        candidates[i] = candidates[i - 1];
    candidates[0] = alone->algorithm;
    return STATUS_OK;
}

enum status fill_plan(struct device *device, matmul_plan *plan, bool measure) {
    const matmuls *matmuls = cuda_of(device)->matmuls;
    const matmul &problem = plan->problem;
    cublasLtMatmulAlgo_t candidates[MATMUL_CANDIDATES];
    int n_candidates = 0, chosen = 0;
    TRY(matmul_describe(matmuls->lt, plan));
    const uint64_t workspace_bytes = cuda_product_workspace(properties_of(device), problem.m, problem.n);
    TRY(matmul_find_candidates(matmuls, plan, workspace_bytes, candidates, &n_candidates));
    if (problem.n_matrices > 1)
        TRY(add_first_of_batch(device, plan, measure, workspace_bytes, candidates, &n_candidates));
    double products = static_cast<double>(problem.m) * static_cast<double>(problem.n) *
                      static_cast<double>(problem.k) * static_cast<double>(problem.n_matrices);
    if (measure && n_candidates > 0 && products >= MEASURED_FROM)
        TRY(matmul_measure(device, plan, candidates, n_candidates, &chosen));
    plan->supported = n_candidates > 0 && chosen >= 0;
    if (plan->supported)
        plan->algorithm = candidates[chosen];
    return STATUS_OK;
}

void delete_plan(const cublaslt &lt, matmul_plan *plan) {
    matmul_plan_free(lt, plan);
    free(plan);
}

enum status find_plan(struct device *device, const matmul &problem, bool measure, matmul_plan **out) {
    matmuls *matmuls = cuda_of(device)->matmuls;
    for (matmul_plan *plan = matmuls->plans; plan; plan = plan->next)
        if (memcmp(&plan->problem, &problem, sizeof problem) == 0) {
            *out = plan;
            return STATUS_OK;
        }
    matmul_plan *plan = static_cast<matmul_plan *>(allocate(1, sizeof *plan));
    plan->problem = problem;
    enum status status = fill_plan(device, plan, measure);
    if (status != STATUS_OK) {
        delete_plan(matmuls->lt, plan);
        return status;
    }
    plan->next = matmuls->plans;
    matmuls->plans = plan;
    *out = plan;
    return STATUS_OK;
}

} // namespace

enum status matmul_find(struct device *device, const matmul &problem, bool measure, bool *supported) {
    matmul_plan *plan;
    TRY(find_plan(device, problem, measure, &plan));
    *supported = plan->supported;
    return STATUS_OK;
}

enum status matmul_run(struct stream *stream, const matmul &problem, const matmul_operands &operands,
                       void *workspace) {
    matmul_plan *plan;
    TRY(find_plan(stream->device, problem, false, &plan));
    if (!plan->supported)
        return FAIL(STATUS_UNSUPPORTED,
                    "cuBLASLt offers no %s matrix product of %lld x %lld x %lld with operands aligned to %d "
                    "bytes on this GPU",
                    dtype_name(static_cast<enum dtype>(problem.type)), static_cast<long long>(problem.m),
                    static_cast<long long>(problem.n), static_cast<long long>(problem.k), problem.alignment);
    return matmul_enqueue(stream, plan, plan->algorithm, operands, workspace);
}

extern "C" enum status matmuls_new(struct matmuls **out) {
    struct matmuls *matmuls = *out = static_cast<struct matmuls *>(allocate(1, sizeof *matmuls));
    TRY(cublaslt_load(&matmuls->lt));
    TRY_CUBLASLT(matmuls->lt, Create(&matmuls->handle));
    return STATUS_OK;
}

extern "C" void matmuls_delete(struct matmuls *matmuls) {
    if (!matmuls)
        return;
    while (matmul_plan *plan = matmuls->plans) {
        matmuls->plans = plan->next;
        delete_plan(matmuls->lt, plan);
    }
    if (matmuls->handle)
        (void)matmuls->lt.Destroy(matmuls->handle);
    free(matmuls);
}
