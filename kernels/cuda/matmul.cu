// Plans for matrix products: cuBLASLt's descriptors and the algorithm that was chosen, one plan a problem.
//
// The choice must not change a bit. Every rank, every ZeRO stage, a resumed run and tomorrow's run have to
// compute the same numbers, and a clock never reads the same twice, so the clock must not choose between
// results. It does not:
// - What cuBLASLt's heuristic names first defines the result. It is a function of the library, the GPU model
//   and the problem; and the problem holds the sizes, strides and types of the call, an alignment cut to 16
//   bytes (buffers of ZeRO's stages lie at different addresses, all of them aligned to more), and a workspace
//   that is a function of the sizes. NVIDIA documents that the same calls give the same bits on the same
//   model of GPU, with one stream's own workspace ("Results reproducibility" in the cuBLAS manual).
// - Measuring (matmul_measure.cu) may replace it only by an algorithm that gives the same bits: on data whose
//   results are nothing but the rounding errors of their sums, so that another order of summation, another
//   instruction or another epilogue shows in nearly every element. Who is left after that differs in speed
//   alone, and whether measuring happened at all, or what it found, cannot be told from any result.
// Split sums (split-K) are allowed where D is fp32, by way of partial sums in the compute type that are added
// in a step of their own (CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE): reproducible, no atomics. Where D has 16
// bits they are not, for then what the epilogue adds is rounded once more.
//
// fp32 is CUBLAS_COMPUTE_32F: no TF32.
#include "kernels/cuda/matmul.cuh"

#include <new>

namespace {

// Below this many multiplications a product takes about as long as starting it, whatever the algorithm.
constexpr double MEASURED_FROM = 1 << 27;

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

// ---- describing

enum status describe_epilogue(const cublaslt &lt, const matmul &problem, cublasLtMatmulDesc_t description) {
    cublasLtEpilogue_t epilogue = static_cast<cublasLtEpilogue_t>(problem.epilogue);
    TRY(set(lt, description, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    // The heuristic looks at how these are aligned and never at what is there.
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

enum status describe(const cublaslt &lt, const matmul &problem, matmul_plan *plan) {
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
    return describe_epilogue(lt, problem, plan->description);
}

enum status describe_preference(const cublaslt &lt, const matmul &problem, uint64_t workspace_bytes,
                                cublasLtMatmulPreference_t preference) {
    uint32_t reductions =
        problem.d_type == DTYPE_F32 ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_NONE;
    // An element is aligned to itself, however little the operands have in common.
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

// ---- asking

// The algorithms that cuBLASLt has for it, the one that it believes fastest first; none is an answer too.
enum status ask(const matmuls *matmuls, const matmul_plan *plan, uint64_t workspace_bytes,
                cublasLtMatmulAlgo_t (&candidates)[MATMUL_CANDIDATES], int *n_candidates) {
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
    (void)lt.MatmulPreferenceDestroy(preference); // frees memory, no more
    TRY(status);
    // A fusion that it refuses comes as either of these, or as no result.
    if (answer == CUBLAS_STATUS_NOT_SUPPORTED || answer == CUBLAS_STATUS_INVALID_VALUE)
        n_results = 0;
    else if (answer != CUBLAS_STATUS_SUCCESS)
        return FAIL(STATUS_FAILED, "cuBLASLt: asking for algorithms: %s", lt.GetStatusString(answer));
    *n_candidates = 0;
    for (int i = 0; i < n_results; i++)
        if (results[i].state == CUBLAS_STATUS_SUCCESS && results[i].workspaceSize <= workspace_bytes)
            candidates[(*n_candidates)++] = results[i].algo;
    return STATUS_OK;
}

enum status fill_plan(struct device *device, matmul_plan *plan, bool measure) {
    const matmuls *matmuls = cuda_of(device)->matmuls;
    const matmul &problem = plan->problem;
    cublasLtMatmulAlgo_t candidates[MATMUL_CANDIDATES];
    int n_candidates = 0, chosen = 0;
    TRY(describe(matmuls->lt, problem, plan));
    TRY(ask(matmuls, plan, cuda_product_workspace(properties_of(device), problem.m, problem.n), candidates,
            &n_candidates));
    plan->supported = n_candidates > 0;
    double products =
        static_cast<double>(problem.m) * static_cast<double>(problem.n) * static_cast<double>(problem.k);
    if (measure && n_candidates > 1 && products >= MEASURED_FROM)
        TRY(matmul_measure(device, plan, candidates, n_candidates, &chosen));
    if (plan->supported)
        plan->algorithm = candidates[chosen];
    return STATUS_OK;
}

void delete_plan(const cublaslt &lt, matmul_plan *plan) {
    if (plan->description)
        (void)lt.MatmulDescDestroy(plan->description);
    for (cublasLtMatrixLayout_t layout : {plan->a, plan->b, plan->c, plan->d})
        if (layout)
            (void)lt.MatrixLayoutDestroy(layout);
    delete plan;
}

enum status find_plan(struct device *device, const matmul &problem, bool measure, matmul_plan **out) {
    matmuls *matmuls = cuda_of(device)->matmuls;
    for (matmul_plan *plan = matmuls->plans; plan; plan = plan->next)
        if (memcmp(&plan->problem, &problem, sizeof problem) == 0) {
            *out = plan;
            return STATUS_OK;
        }
    matmul_plan *plan = new (std::nothrow) matmul_plan();
    if (!plan)
        return FAIL(STATUS_FAILED, "out of memory for a matrix product's plan");
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

enum status matmul_enqueue(struct stream *stream, matmul_plan *plan, const cublasLtMatmulAlgo_t &algorithm,
                           const matmul_operands &operands, void *workspace) {
    const matmuls *matmuls = cuda_of(stream->device)->matmuls;
    const matmul &problem = plan->problem;
    const cublaslt &lt = matmuls->lt;
    const float one = 1, beta = problem.addend == MATMUL_ADDS_NOTHING ? 0 : 1;
    const void *c = problem.addend == MATMUL_ADDS_C ? operands.c : operands.d;
    TRY(cuda_enter(stream->device));
    if (matmul_has_bias(problem))
        TRY(set(lt, plan->description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &operands.bias,
                sizeof operands.bias));
    if (matmul_has_aux(problem))
        TRY(set(lt, plan->description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &operands.aux,
                sizeof operands.aux));
    TRY_CUBLASLT(lt, Matmul(matmuls->handle, plan->description, &one, operands.a, plan->a, operands.b,
                            plan->b, &beta, c, plan->c, operands.d, plan->d, &algorithm, workspace,
                            cuda_product_workspace(properties_of(stream->device), problem.m, problem.n),
                            queue_of(stream)));
    return STATUS_OK;
}

enum status matmul_run(struct stream *stream, const matmul &problem, const matmul_operands &operands,
                       void *workspace) {
    matmul_plan *plan;
    TRY(find_plan(stream->device, problem, false, &plan));
    if (!plan->supported)
        return FAIL(
            STATUS_UNSUPPORTED,
            "cuBLASLt has no %s matrix product of %lld x %lld x %lld, aligned to %d bytes, on this GPU",
            dtype_name(static_cast<enum dtype>(problem.type)), static_cast<long long>(problem.m),
            static_cast<long long>(problem.n), static_cast<long long>(problem.k), problem.alignment);
    return matmul_enqueue(stream, plan, plan->algorithm, operands, workspace);
}

extern "C" enum status matmuls_new(struct matmuls **out) {
    struct matmuls *matmuls = new (std::nothrow) struct matmuls();
    if (!matmuls)
        return FAIL(STATUS_FAILED, "out of memory for cuBLASLt");
    *out = matmuls;
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
    delete matmuls;
}
