// The simulated cuBLASLt: its objects, its heuristic, and the rules for a product, from NVIDIA's cuBLAS
// manual ("Using the cuBLASLt API") and cublasLt.h. Where the manual defines the outcome
// (CUBLAS_STATUS_NOT_SUPPORTED, no result), the simulator gives that outcome. What would fault, corrupt
// memory or compute something else on a GPU is a finding. Products run in stream order.
#include "tests/cudasim/cublaslt.h"

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <unistd.h>

#include "cudasim.h"
#include "tests/cudasim/finding.h"

// ---- objects

struct cublasLtContext {};

struct cublasLtMatmulDescOpaque_t {
    cublasComputeType_t compute_type;
    cudaDataType_t scale_type;
    int32_t transpose_a, transpose_b;
    uint32_t epilogue;
    void *bias, *aux;
    int64_t aux_stride;
    int32_t bias_type, aux_type; // -1: D's
    int32_t processors;          // 0: all
};

struct cublasLtMatrixLayoutOpaque_t {
    cudaDataType_t type;
    int64_t rows, columns, stride;
};

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
    int works_for[CUDASIM_ALGORITHMS] = {}; // products until it fails
    int processors = 0;                     // of the last product
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

// ---- rules for a product

struct answer {
    cublasStatus_t status;
    std::string fault; // the text of a finding; "": none, since the caller may try another request
};

const answer fine = {CUBLAS_STATUS_SUCCESS, ""}, unsupported = {CUBLAS_STATUS_NOT_SUPPORTED, ""};

answer wrong(const std::string &fault) {
    return {CUBLAS_STATUS_INVALID_VALUE, fault};
}

bool element_type(cudaDataType_t type, int64_t *out) {
    *out = type == CUDA_R_16F ? DTYPE_F16 : type == CUDA_R_16BF ? DTYPE_BF16 : DTYPE_F32;
    return type == CUDA_R_16F || type == CUDA_R_16BF || type == CUDA_R_32F;
}

struct layouts {
    cublasLtMatrixLayout_t a, b, c, d;
};

answer examine_layouts(const cublasLtMatmulDescOpaque_t &desc, const layouts &l, matmul_shape *s) {
    s->transposes_a = desc.transpose_a != CUBLAS_OP_N;
    s->transposes_b = desc.transpose_b != CUBLAS_OP_N;
    s->m = l.d->rows;
    s->n = l.d->columns;
    s->k = s->transposes_a ? l.a->rows : l.a->columns;
    for (const cublasLtMatrixLayoutOpaque_t *layout : {l.a, l.b, l.c, l.d})
        if (layout->rows < 1 || layout->columns < 1 || layout->stride < layout->rows)
            return wrong(text("a matrix of %lld x %lld has the leading dimension %lld",
                              static_cast<long long>(layout->rows), static_cast<long long>(layout->columns),
                              static_cast<long long>(layout->stride)));
    if ((s->transposes_a ? l.a->columns : l.a->rows) != s->m)
        return wrong("op(A) and D differ in their numbers of rows");
    if ((s->transposes_b ? l.b->rows : l.b->columns) != s->n)
        return wrong("op(B) and D differ in their numbers of columns");
    if ((s->transposes_b ? l.b->columns : l.b->rows) != s->k)
        return wrong("op(A)'s columns and op(B)'s rows differ in number");
    if (l.c->rows != s->m || l.c->columns != s->n)
        return wrong("C and D differ in shape");
    s->a_stride = l.a->stride;
    s->b_stride = l.b->stride;
    s->c_stride = l.c->stride;
    s->d_stride = l.d->stride;
    return fine;
}

bool is_gelu(uint32_t epilogue) {
    return epilogue & CUBLASLT_EPILOGUE_GELU || epilogue == CUBLASLT_EPILOGUE_DGELU;
}

// The manual's table of types for CUBLAS_COMPUTE_32F: D has the type of A and B, or fp32; the epilogue's
// operands have the type of D. GELU alone, from 16-bit operands to fp32, is not in the table, but an H200
// takes it.
answer examine_types(const cublasLtMatmulDescOpaque_t &desc, const layouts &l, matmul_shape *s) {
    bool compute =
        desc.compute_type == CUBLAS_COMPUTE_32F || desc.compute_type == CUBLAS_COMPUTE_32F_PEDANTIC;
    if (!compute || desc.scale_type != CUDA_R_32F)
        return unsupported;
    if (!element_type(l.a->type, &s->a_type) || !element_type(l.d->type, &s->d_type))
        return unsupported;
    if (l.b->type != l.a->type || l.c->type != l.d->type)
        return unsupported;
    const bool may_widen = !is_gelu(desc.epilogue) || desc.epilogue == CUBLASLT_EPILOGUE_GELU;
    if (s->d_type != s->a_type && (s->d_type != DTYPE_F32 || !may_widen))
        return unsupported;
    for (int32_t type : {desc.bias_type, desc.aux_type})
        if (type != -1 && type != int32_t(l.d->type))
            return unsupported;
    return fine;
}

answer examine_epilogue(const cublasLtMatmulDescOpaque_t &desc, matmul_shape *s) {
    s->processors = desc.processors;
    s->epilogue = desc.epilogue;
    s->aux_stride = desc.aux_stride;
    switch (desc.epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
    case CUBLASLT_EPILOGUE_BGRADB:
        return fine;
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU:
        return s->aux_stride % 8 == 0 && s->aux_stride >= s->m ? fine
                                                               : answer{CUBLAS_STATUS_INVALID_VALUE, ""};
    default:
        return wrong(text("the epilogue %u is not simulated", desc.epilogue));
    }
}

answer examine(const cublasLtMatmulDescOpaque_t &desc, const layouts &l, matmul_shape *s) {
    *s = {};
    answer a = examine_layouts(desc, l, s);
    if (a.status == CUBLAS_STATUS_SUCCESS)
        a = examine_types(desc, l, s);
    if (a.status == CUBLAS_STATUS_SUCCESS)
        a = examine_epilogue(desc, s);
    return a;
}

bool exist(const char *call, cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const layouts &l) {
    return exists(call, "handle", handle) && exists(call, "description", desc) &&
           exists(call, "layout of A", l.a) && exists(call, "layout of B", l.b) &&
           exists(call, "layout of C", l.c) && exists(call, "layout of D", l.d);
}

// ---- algorithms: what cublasLtMatmulAlgo_t holds

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

// The widest access that the promised alignment of the pointer and the leading dimension allow.
uint32_t widest(uint32_t promised, int64_t stride, int64_t type) {
    uint32_t alignment = widest_access;
    while (promised % alignment || uint64_t(stride) * dtype_size(dtype(type)) % alignment)
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

int cudasim_cublaslt_processors(void) {
    std::lock_guard<std::mutex> guard(lt().mutex);
    return lt().processors;
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
                                nullptr, nullptr, 0, -1, -1, 0});
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
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET:
        return assign(call, &description->processors, value, bytes);
    }
    return refuse(call, CUBLAS_STATUS_INVALID_VALUE, text("the attribute %d is not simulated", attribute));
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t leading_dimension) {
    return create(layout, {type, int64_t(rows), int64_t(columns), leading_dimension});
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    return destroy("cublasLtMatrixLayoutDestroy", "layout", layout);
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
    answer examined = examine(*description, l, &s);
    if (!examined.fault.empty())
        return refuse(call, examined.status, examined.fault);
    if (examined.status != CUBLAS_STATUS_SUCCESS)
        return examined.status;
    algorithm made = {};
    made.shape = hash(s);
    const int64_t strides[] = {s.a_stride, s.b_stride, s.c_stride, s.d_stride};
    for (int i = 0; i < 4; i++) {
        int64_t type = i < 2 ? s.a_type : s.d_type;
        made.alignments[i] = widest(preference->alignments[i], strides[i], type);
        if (made.alignments[i] < dtype_size(dtype(type)))
            return CUBLAS_STATUS_SUCCESS; // no results: no access is wide enough for an element
    }
    for (int i = 0; i < CUDASIM_ALGORITHMS && *n_results < n_wanted; i++) {
        bool reduces = preference->reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
        size_t bytes = matmul_workspace(s, i);
        if ((i == CUDASIM_SPLIT && !reduces) || bytes > preference->workspace_bytes)
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
    return size_t((layout->columns - 1) * layout->stride + layout->rows) * dtype_size(dtype(type));
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
std::string broken_rule(const matmul_shape &s, const matmul_operands &o, const algorithm &made,
                        const range *ranges, int n_ranges) {
    if (made.number >= CUDASIM_ALGORITHMS || made.shape != hash(s))
        return "the algorithm was chosen for another problem";
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
    answer examined = examine(*description, l, &s);
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
    std::string broken = broken_rule(s, o, made, ranges, n_ranges);
    if (!broken.empty())
        return refuse(call, CUBLAS_STATUS_INVALID_VALUE, broken);
    unsigned delay;
    cudasim_failure failure;
    {
        std::lock_guard<std::mutex> guard(lt().mutex);
        lt().runs[s.epilogue][made.number]++;
        lt().processors = int(s.processors);
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
        multiply(s, o, int(made.number), workspace);
        return cudaSuccess;
    });
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
