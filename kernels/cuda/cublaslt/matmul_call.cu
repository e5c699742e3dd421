// A matrix product as calls of cuBLASLt: its descriptors, the algorithms that the library offers for it, and
// issuing it with one of them. matmul.cu keeps the plans, matmul_measure.cu times their candidates; both
// build on this file.
//
// Split sums (split-K) are allowed where D is fp32, with partial sums in the compute type that are added in a
// separate step (CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE): reproducible, no atomics. They are not allowed
// where D has 16 bits, because the operand that the epilogue adds would then be rounded once more.
//
// fp32 is CUBLAS_COMPUTE_32F: no TF32.
#include "kernels/cuda/cublaslt/matmul.cuh"

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

// ---- descriptors

enum status describe_epilogue(const cublaslt &lt, const matmul &problem, cublasLtMatmulDesc_t description) {
    cublasLtEpilogue_t epilogue = static_cast<cublasLtEpilogue_t>(problem.epilogue);
    TRY(set(lt, description, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    // The heuristic reads the alignment of these pointers, not what they point to.
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

// ---- batches

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

enum status matmul_describe(const cublaslt &lt, matmul_plan *plan) {
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

void matmul_plan_free(const cublaslt &lt, matmul_plan *plan) {
    if (plan->description)
        (void)lt.MatmulDescDestroy(plan->description);
    for (cublasLtMatrixLayout_t layout : {plan->a, plan->b, plan->c, plan->d})
        if (layout)
            (void)lt.MatrixLayoutDestroy(layout);
}

// ---- candidates

namespace {

enum status describe_preference(const cublaslt &lt, const matmul &problem, uint64_t workspace_bytes,
                                cublasLtMatmulPreference_t preference) {
    uint32_t reductions =
        problem.d_type == DTYPE_F32 ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_NONE;
    // C and D are always aligned to their own elements, whatever alignment the operands share.
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

enum status matmul_find_candidates(const matmuls *matmuls, const matmul_plan *plan, uint64_t workspace_bytes,
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
    (void)lt.MatmulPreferenceDestroy(preference); // only frees memory
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

bool matmul_suits(const matmuls *matmuls, const matmul_plan *plan, const cublasLtMatmulAlgo_t &algorithm,
                  uint64_t workspace_bytes) {
    cublasLtMatmulHeuristicResult_t result = {};
    const cublasStatus_t answer = matmuls->lt.MatmulAlgoCheck(matmuls->handle, plan->description, plan->a,
                                                              plan->b, plan->c, plan->d, &algorithm, &result);
    return answer == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= workspace_bytes;
}

// ---- issuing

enum status matmul_enqueue(struct stream *stream, matmul_plan *plan, const cublasLtMatmulAlgo_t &algorithm,
                           const matmul_operands &operands, void *workspace) {
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
