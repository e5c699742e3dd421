// The simulated cuBLASLt: its objects, its heuristic, and running a product, from NVIDIA's cuBLAS manual
// ("Using the cuBLASLt API") and cublasLt.h. Where the manual defines the outcome
// (CUBLAS_STATUS_NOT_SUPPORTED, no result), the simulator gives that outcome. What would fault, corrupt
// memory or compute something else on a GPU is a finding. Products run in stream order.
#include "tests/cudasim/cublaslt.h"
#include "tests/cudasim/cublaslt_rules.h"

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <unistd.h>

#include "cudasim.h"
#include "tests/cudasim/finding.h"

// ---- objects

struct cublasLtContext {};

struct cublasLtMatmulPreferenceOpaque_t {
    uint64_t workspace_bytes;
    uint32_t reductions;
    uint32_t alignments[4]; // of A, B, C, D
};

namespace cudasim {

namespace {

constexpr uint32_t default_alignment = 256;
constexpr uintptr_t widest_access = 16, workspace_alignment = 16;

struct library {
    std::mutex mutex;
    std::set<const void *> objects;
    int runs[1024][CUDASIM_ALGORITHMS] = {}; // by epilogue
    unsigned delays[CUDASIM_ALGORITHMS] = {};
    cudasim_failure failures[CUDASIM_ALGORITHMS] = {};
    int works_for[CUDASIM_ALGORITHMS] = {};     // products until it fails
    int most_matrices[CUDASIM_ALGORITHMS] = {}; // that it takes at once; 0: any number
};

library &lt() {
    static library *all = new library;
    return *all;
}

template <class T> cublasStatus_t create(T **out, const T &value) {
    std::lock_guard<std::mutex> guard(lt().mutex);
    *out = new T(value);
    lt().objects.insert(*out);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t refuse(const char *call, cublasStatus_t status, const std::string &why) {
    report(call, why);
    return status;
}

bool exists(const char *call, const char *what, const void *object) {
    std::unique_lock<std::mutex> lock(lt().mutex);
    if (lt().objects.count(object))
        return true;
    lock.unlock();
    report(call, text("the %s does not exist (never created, or destroyed)", what));
    return false;
}

template <class T> cublasStatus_t destroy(const char *call, const char *what, T *object) {
    if (!exists(call, what, object))
        return CUBLAS_STATUS_INVALID_VALUE;
    std::lock_guard<std::mutex> guard(lt().mutex);
    lt().objects.erase(object);
    delete object;
    return CUBLAS_STATUS_SUCCESS;
}

void report_leaks() {
    std::unique_lock<std::mutex> lock(lt().mutex);
    size_t n = lt().objects.size();
    lock.unlock();
    if (n)
        report("exit", text("%zu objects of cuBLASLt were never destroyed", n));
}

// Constructed after finding.cpp's handler, so it runs before the findings are reported.
__attribute__((constructor(102))) void register_leaks() {
    atexit(report_leaks);
}

template <class T> cublasStatus_t assign(const char *call, T *to, const void *value, size_t bytes) {
    if (!value || bytes != sizeof *to)
        return refuse(call, CUBLAS_STATUS_INVALID_VALUE,
                      text("the attribute has %zu bytes, not %zu", sizeof *to, bytes));
    memcpy(to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

// ---- algorithms: what cublasLtMatmulAlgo_t holds

bool exist(const char *call, cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const layouts &l) {
    return exists(call, "handle", handle) && exists(call, "description", desc) &&
           exists(call, "layout of A", l.a) && exists(call, "layout of B", l.b) &&
           exists(call, "layout of C", l.c) && exists(call, "layout of D", l.d);
}

struct algorithm {
    uint64_t number, shape; // shape: a hash
    uint32_t alignments[4]; // required of A, B, C, D
};
static_assert(sizeof(algorithm) <= sizeof(cublasLtMatmulAlgo_t),
              "an algorithm must fit into cublasLtMatmulAlgo_t");

uint64_t hash(const matmul_shape &s) {
    uint64_t value = 0xcbf29ce484222325u;
    for (size_t i = 0; i < sizeof s; i++)
        value = (value ^ reinterpret_cast<const unsigned char *>(&s)[i]) * 0x100000001b3u;
    return value;
}

bool takes(int number, const matmul_batch &batch) {
    std::lock_guard<std::mutex> guard(lt().mutex);
    return lt().most_matrices[number] == 0 || batch.n <= lt().most_matrices[number];
}

// The widest access that the promised alignment of the pointer, the leading dimension and the distance of
// matrices allow.
uint32_t widest(uint32_t promised, int64_t stride, int64_t distance, int64_t type) {
    uint32_t alignment = widest_access;
    while (promised % alignment || uint64_t(stride | distance) * dtype_size(dtype(type)) % alignment)
        alignment /= 2;
    return alignment;
}

} // namespace

} // namespace cudasim

using namespace cudasim;

extern "C" {

int cudasim_cublaslt_runs(int epilogue, int algorithm) {
    std::lock_guard<std::mutex> guard(lt().mutex);
    int n = 0;
    for (int e = 0; e < 1024; e++)
        for (int a = 0; a < CUDASIM_ALGORITHMS; a++)
            if ((epilogue == 0 || epilogue == e) && (algorithm == -1 || algorithm == a))
                n += lt().runs[e][a];
    return n;
}

void cudasim_cublaslt_limit(int algorithm, int most_matrices) {
    std::lock_guard<std::mutex> guard(lt().mutex);
    lt().most_matrices[algorithm] = most_matrices;
}

void cudasim_cublaslt_delay(int algorithm, unsigned microseconds) {
    std::lock_guard<std::mutex> guard(lt().mutex);
    lt().delays[algorithm] = microseconds;
}

void cudasim_cublaslt_fail(int algorithm, enum cudasim_failure how, int after) {
    std::lock_guard<std::mutex> guard(lt().mutex);
    lt().failures[algorithm] = how;
    lt().works_for[algorithm] = after;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    int gpu;
    if (cudaGetDevice(&gpu) != cudaSuccess)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    return create(handle, {});
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    return destroy("cublasLtDestroy", "handle", handle);
}

// Of the toolkit whose runtime is simulated.
cublasStatus_t cublasLtGetProperty(libraryPropertyType type, int *value) {
    *value = type == MAJOR_VERSION   ? CUDART_VERSION / 1000
             : type == MINOR_VERSION ? CUDART_VERSION % 1000 / 10
                                     : 0;
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasLtGetStatusString(cublasStatus_t status) {
    switch (status) {
#define CUDASIM_CUBLAS_TEXT(name, value, text)                                                               \
    case name:                                                                                               \
        return text;
        CUDASIM_CUBLAS_STATUSES(CUDASIM_CUBLAS_TEXT)
#undef CUDASIM_CUBLAS_TEXT
    }
    return "unknown";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *description, cublasComputeType_t compute_type,
                                        cudaDataType_t scale_type) {
    return create(description, {compute_type, scale_type, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT,
                                nullptr, nullptr, 0, -1, -1});
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
    return destroy("cublasLtMatmulDescDestroy", "description", description);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t attribute, const void *value,
                                              size_t bytes) {
    const char *call = "cublasLtMatmulDescSetAttribute";
    if (!exists(call, "description", description))
        return CUBLAS_STATUS_INVALID_VALUE;
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return assign(call, &description->transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return assign(call, &description->transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return assign(call, &description->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return assign(call, &description->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        return assign(call, &description->aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        return assign(call, &description->aux_stride, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
        return assign(call, &description->aux_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        return assign(call, &description->bias_type, value, bytes);
    }
    return refuse(call, CUBLAS_STATUS_INVALID_VALUE, text("the attribute %d is not simulated", attribute));
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t leading_dimension) {
    return create(layout, {type, int64_t(rows), int64_t(columns), leading_dimension, 1, 0});
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    return destroy("cublasLtMatrixLayoutDestroy", "layout", layout);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void *value,
                                                size_t bytes) {
    const char *call = "cublasLtMatrixLayoutSetAttribute";
    if (!exists(call, "layout", layout))
        return CUBLAS_STATUS_INVALID_VALUE;
    switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
        return assign(call, &layout->n_matrices, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
        return assign(call, &layout->distance, value, bytes);
    }
    return refuse(call, CUBLAS_STATUS_INVALID_VALUE, text("the attribute %d is not simulated", attribute));
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
    return create(preference, {0,
                               CUBLASLT_REDUCTION_SCHEME_MASK,
                               {default_alignment, default_alignment, default_alignment, default_alignment}});
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    return destroy("cublasLtMatmulPreferenceDestroy", "preference", preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t bytes) {
    const char *call = "cublasLtMatmulPreferenceSetAttribute";
    if (!exists(call, "preference", preference))
        return CUBLAS_STATUS_INVALID_VALUE;
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return assign(call, &preference->workspace_bytes, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return assign(call, &preference->reductions, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return assign(call, &preference->alignments[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES],
                      value, bytes);
    }
    return refuse(call, CUBLAS_STATUS_INVALID_VALUE, text("the attribute %d is not simulated", attribute));
}

// Like the real heuristic, it ignores the alignment of bias and aux, which only the pointers in the
// description would show.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int n_wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *n_results) {
    const char *call = "cublasLtMatmulAlgoGetHeuristic";
    layouts l = {a, b, c, d};
    *n_results = 0;
    if (!exist(call, handle, description, l) || !exists(call, "preference", preference))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (n_wanted < 1)
        return refuse(call, CUBLAS_STATUS_INVALID_VALUE, "at least one result must be requested");
    matmul_shape s;
    matmul_batch batch;
    answer examined = examine(*description, l, &s, &batch);
    if (!examined.fault.empty())
        return refuse(call, examined.status, examined.fault);
    if (examined.status != CUBLAS_STATUS_SUCCESS)
        return examined.status;
    algorithm made = {};
    made.shape = hash(s);
    const int64_t strides[] = {s.a_stride, s.b_stride, s.c_stride, s.d_stride},
                  distances[] = {batch.a_distance, batch.b_distance, batch.c_distance, batch.d_distance};
    for (int i = 0; i < 4; i++) {
        int64_t type = i < 2 ? s.a_type : s.d_type;
        made.alignments[i] = widest(preference->alignments[i], strides[i], distances[i], type);
        if (made.alignments[i] < dtype_size(dtype(type)))
            return CUBLAS_STATUS_SUCCESS; // no results: no access is wide enough for an element
    }
    for (int i = 0; i < CUDASIM_ALGORITHMS && *n_results < n_wanted; i++) {
        bool reduces = preference->reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
        size_t bytes = matmul_workspace(s, i);
        if ((i == CUDASIM_SPLIT && !reduces) || bytes > preference->workspace_bytes || !takes(i, batch))
            continue;
        cublasLtMatmulHeuristicResult_t *result = &results[(*n_results)++];
        *result = {};
        made.number = uint64_t(i);
        memcpy(&result->algo, &made, sizeof made);
        result->workspaceSize = bytes;
        result->wavesCount = 1;
    }
    return CUBLAS_STATUS_SUCCESS;
}

// An algorithm that was chosen for one number of matrices may compute another.
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *chosen,
                                       cublasLtMatmulHeuristicResult_t *result) {
    const layouts l = {a, b, c, d};
    matmul_shape s;
    matmul_batch batch;
    algorithm made;
    if (!exist("cublasLtMatmulAlgoCheck", handle, description, l) ||
        examine(*description, l, &s, &batch).status != CUBLAS_STATUS_SUCCESS)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&made, chosen, sizeof made);
    if (made.number >= CUDASIM_ALGORITHMS || made.shape != hash(s))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!takes(int(made.number), batch))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    result->workspaceSize = matmul_workspace(s, int(made.number));
    return CUBLAS_STATUS_SUCCESS;
}

} // extern "C"

// ---- running

namespace cudasim {

namespace {

struct range {
    const char *what;
    const void *begin;
    size_t bytes;
    bool written;
    uintptr_t alignment; // in addition to what the algorithm requires of A, B, C and D
};

bool overlap(const range &x, const range &y) {
    uintptr_t a = reinterpret_cast<uintptr_t>(x.begin), b = reinterpret_cast<uintptr_t>(y.begin);
    return x.bytes && y.bytes && a < b + y.bytes && b < a + x.bytes;
}

size_t span(const cublasLtMatrixLayoutOpaque_t *layout, int64_t type) {
    return size_t((layout->n_matrices - 1) * layout->distance + (layout->columns - 1) * layout->stride +
                  layout->rows) *
           dtype_size(dtype(type));
}

// The memory that a product accesses. Fills at most seven ranges and returns their number.
int ranges_of(const matmul_shape &s, const matmul_operands &o, const layouts &l, const void *workspace,
              size_t workspace_bytes, range (&out)[7]) {
    int n = 0;
    size_t size = dtype_size(dtype(s.d_type));
    out[n++] = {"A", o.a, span(l.a, s.a_type), false, 1};
    out[n++] = {"B", o.b, span(l.b, s.a_type), false, 1};
    out[n++] = {"D", o.d, span(l.d, s.d_type), true, 1};
    if (o.beta != 0 && o.c != o.d)
        out[n++] = {"C", o.c, span(l.c, s.d_type), false, 1};
    if (epilogue_reads_bias(s.epilogue))
        out[n++] = {"the bias", o.bias, size_t(s.m) * size, false, widest_access};
    if (s.epilogue == CUBLASLT_EPILOGUE_BGRADB)
        out[n++] = {"the bias gradient", o.bias, size_t(s.n) * size, true, widest_access};
    if (epilogue_has_aux(s.epilogue))
        out[n++] = {"the auxiliary matrix", o.aux, size_t((s.n - 1) * s.aux_stride + s.m) * size,
                    epilogue_writes_aux(s.epilogue), widest_access};
    if (workspace_bytes)
        out[n++] = {"the workspace", workspace, workspace_bytes, true, workspace_alignment};
    return n;
}

// The first rule that the call breaks, or "".
std::string broken_rule(const matmul_shape &s, const matmul_batch &batch, const matmul_operands &o,
                        const algorithm &made, const range *ranges, int n_ranges) {
    if (made.number >= CUDASIM_ALGORITHMS || made.shape != hash(s))
        return "the algorithm was chosen for another problem";
    if (!takes(int(made.number), batch))
        return text("the algorithm does not take %lld matrices at once", static_cast<long long>(batch.n));
    for (int i = 0; i < n_ranges; i++)
        if (!ranges[i].begin)
            return text("%s is NULL", ranges[i].what);
    const void *const pointers[] = {o.a, o.b, o.beta != 0 ? o.c : nullptr, o.d};
    for (int i = 0; i < 4; i++)
        if (reinterpret_cast<uintptr_t>(pointers[i]) % made.alignments[i])
            return text("%c is not aligned to the %u bytes that the heuristic was promised", "ABCD"[i],
                        made.alignments[i]);
    for (int i = 0; i < n_ranges; i++)
        if (reinterpret_cast<uintptr_t>(ranges[i].begin) % ranges[i].alignment)
            return text("%s is not aligned to %zu bytes", ranges[i].what, size_t(ranges[i].alignment));
    if (o.beta != 0 && o.c == o.d && s.c_stride != s.d_stride)
        return "C is D, but their leading dimensions differ";
    for (int i = 0; i < n_ranges; i++)
        for (int j = 0; j < i; j++)
            if ((ranges[i].written || ranges[j].written) && overlap(ranges[i], ranges[j]))
                return text("%s and %s overlap", ranges[j].what, ranges[i].what);
    return "";
}

} // namespace

} // namespace cudasim

extern "C" cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                                         const void *alpha, const void *a, cublasLtMatrixLayout_t a_layout,
                                         const void *b, cublasLtMatrixLayout_t b_layout, const void *beta,
                                         const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                                         cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *chosen,
                                         void *workspace, size_t workspace_bytes, cudaStream_t stream) {
    const char *call = "cublasLtMatmul";
    layouts l = {a_layout, b_layout, c_layout, d_layout};
    if (!exist(call, handle, description, l))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!chosen || !alpha || !beta)
        return refuse(call, CUBLAS_STATUS_INVALID_VALUE, "the algorithm, alpha or beta is NULL");
    matmul_shape s;
    matmul_batch batch;
    answer examined = examine(*description, l, &s, &batch);
    if (examined.status != CUBLAS_STATUS_SUCCESS)
        return refuse(call, examined.status,
                      examined.fault.empty() ? "the heuristic does not offer this product" : examined.fault);
    algorithm made;
    memcpy(&made, chosen, sizeof made);
    matmul_operands o = {a, b, c, d, description->bias, description->aux, 0, 0, false};
    for (uint32_t alignment : made.alignments)
        o.narrow |= alignment < widest_access;
    memcpy(&o.alpha, alpha, sizeof o.alpha);
    memcpy(&o.beta, beta, sizeof o.beta);
    size_t needed = made.number < CUDASIM_ALGORITHMS ? matmul_workspace(s, int(made.number)) : 0;
    if (needed > workspace_bytes)
        return refuse(call, CUBLAS_STATUS_INVALID_VALUE,
                      text("the algorithm needs a workspace of %zu bytes, not %zu", needed, workspace_bytes));
    range ranges[7];
    int n_ranges = ranges_of(s, o, l, workspace, workspace_bytes, ranges);
    std::string broken = broken_rule(s, batch, o, made, ranges, n_ranges);
    if (!broken.empty())
        return refuse(call, CUBLAS_STATUS_INVALID_VALUE, broken);
    unsigned delay;
    cudasim_failure failure;
    {
        std::lock_guard<std::mutex> guard(lt().mutex);
        lt().runs[s.epilogue][made.number]++;
        delay = lt().delays[made.number];
        failure = lt().works_for[made.number]-- > 0 ? CUDASIM_WORKS : lt().failures[made.number];
    }
    if (failure == CUDASIM_REFUSES)
        return CUBLAS_STATUS_EXECUTION_FAILED;
    int error = enqueue(stream, call, [=]() -> int {
        for (int i = 0; i < n_ranges; i++)
            if (!check_device_memory((std::string(call) + ", " + ranges[i].what).c_str(), ranges[i].begin,
                                     ranges[i].bytes))
                return cudaErrorIllegalAddress;
        if (failure == CUDASIM_FAULTS)
            return cudaErrorIllegalAddress;
        if (delay)
            usleep(delay);
        multiply(s, batch, o, int(made.number), workspace);
        return cudaSuccess;
    });
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
