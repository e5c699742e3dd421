// Plans for matrix products, one per problem: cuBLASLt's descriptors and the chosen algorithm.
//
// The choice must not change a bit. Every rank, every ZeRO stage, a resumed run and a repeated run must
// compute the same numbers, so timing must never choose between different results. It does not:
// - The first candidate of cuBLASLt's heuristic that works defines the result: one that fails while it is
//   measured fails on every GPU of its model. It is a function of the library, the GPU model and the problem.
//   The problem holds the sizes, strides and types of the call, and an alignment capped at 16 bytes (buffers
//   of different ZeRO stages have different addresses, all aligned to more); the workspace is a function of
//   the sizes. NVIDIA documents that the same calls give the same bits on the same GPU model, with a
//   workspace per stream ("Results reproducibility" in the cuBLAS manual).
// - Measuring (matmul_measure.cu) may replace it only by an algorithm that gives the same bits, on data whose
//   results consist of rounding errors alone: another order of summation, another instruction or another
//   epilogue shows in nearly every element. The remaining candidates differ in speed only, so no result
//   reveals whether measuring happened or what it found.
// - A matrix has the same bits in every batch (which ranks share the work decides how many there are). The
//   algorithm that was chosen for one matrix defines them: it computes each of a batch by the same tiles,
//   which tests compare, and another may replace it only as above.
#include "kernels/cuda/cublaslt/matmul.cuh"

#include <new>

namespace {

enum status find_plan(struct device *device, const matmul &problem, bool measure, matmul_plan **out);

// Products with fewer multiplications than this take about as long as a launch, whatever the algorithm.
constexpr double MEASURED_FROM = 1 << 27;

// Of a batch: that of one matrix, and then those of the heuristic.
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
        return FAIL(STATUS_FAILED, "out of host memory for the plan of a matrix product");
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
    struct matmuls *matmuls = new (std::nothrow) struct matmuls();
    if (!matmuls)
        return FAIL(STATUS_FAILED, "out of host memory for cuBLASLt's plans");
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
