// The simulated cuDNN: its backend API's objects and the rules for their attributes, from NVIDIA's "cuDNN
// backend API" reference. What the library answers by an unsupported graph (no engine) is that answer here
// too; an attribute of the wrong type or count, a missing one, an object that is not finalized and the like,
// which the library refuses as a bad parameter, are findings, because callers take a refusal for a shape that
// cuDNN does not compute. Graphs run in stream order (cudnn_graph.cpp).
//
// A machine has cuDNN when the environment variable CUDASIM_CUDNN gives its version, such as 91900.
#include "tests/cudasim/cudnn.h"

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>

#include "cudasim.h"
#include "cudasim_cudnn.h"
#include "tests/cudasim/finding.h"
#include "tests/cudasim/stream.h"

struct cudnnContext {
    CUstream_st *stream;
};

namespace cudasim {

namespace {

// Values that only the simulator and the library know.
constexpr unsigned BAD_PARAM = 2000, NOT_SUPPORTED = 3000;
constexpr size_t tensor_rank = 4;

struct attribute {
    unsigned type;
    int64_t count;
    std::vector<char> bytes;

    template <class T> T value(size_t i = 0) const {
        T out;
        memcpy(&out, bytes.data() + i * sizeof(T), sizeof out);
        return out;
    }
};

struct descriptor {
    unsigned type;
    bool finalized;
    std::map<unsigned, attribute> attributes;
    // results of finalizing
    dnn_tensor tensor;
    dnn_operation operation;
    dnn_graph graph;
    bool deterministic; // of an engine
};

struct library {
    std::mutex mutex;
    std::set<descriptor *> descriptors;
    std::set<cudnnContext *> handles;
    int executions = 0;
    char last_error[256] = "";
};

library &dnn() {
    static library *all = new library;
    return *all;
}

// An attribute that a descriptor takes. `object`: the type of descriptors, for TYPE_BACKEND_DESCRIPTOR.
struct rule {
    unsigned descriptor, name, type;
    int64_t least, most; // elements
    bool required;
    unsigned object;
};

constexpr int64_t any = INT64_MAX;
constexpr unsigned none = ~0u;

#define DESCRIPTOR(name) CUDNN9_BACKEND_##name##_DESCRIPTOR
#define ATTRIBUTE(d, n, t, r)                                                                                \
    { DESCRIPTOR(d), CUDNN9_ATTR_##n, CUDNN9_TYPE_##t, 1, 1, r, none }
#define OBJECT(d, n, r, object)                                                                              \
    { DESCRIPTOR(d), CUDNN9_ATTR_##n, CUDNN9_TYPE_BACKEND_DESCRIPTOR, 1, 1, r, object }
const rule rules[] = {
    ATTRIBUTE(TENSOR, TENSOR_DATA_TYPE, DATA_TYPE, true),
    {DESCRIPTOR(TENSOR), CUDNN9_ATTR_TENSOR_DIMENSIONS, CUDNN9_TYPE_INT64, tensor_rank, tensor_rank, true,
     none},
    {DESCRIPTOR(TENSOR), CUDNN9_ATTR_TENSOR_STRIDES, CUDNN9_TYPE_INT64, tensor_rank, tensor_rank, true, none},
    ATTRIBUTE(TENSOR, TENSOR_UNIQUE_ID, INT64, true),
    ATTRIBUTE(TENSOR, TENSOR_BYTE_ALIGNMENT, INT64, true),
    ATTRIBUTE(TENSOR, TENSOR_IS_VIRTUAL, BOOLEAN, false),
    ATTRIBUTE(TENSOR, TENSOR_IS_BY_VALUE, BOOLEAN, false),
    ATTRIBUTE(POINTWISE, POINTWISE_MODE, POINTWISE_MODE, true),
    ATTRIBUTE(POINTWISE, POINTWISE_MATH_PREC, DATA_TYPE, true),
    ATTRIBUTE(POINTWISE, POINTWISE_AXIS, INT64, false),
    OBJECT(OPERATION_POINTWISE, OPERATION_POINTWISE_PW_DESCRIPTOR, true, DESCRIPTOR(POINTWISE)),
    OBJECT(OPERATION_POINTWISE, OPERATION_POINTWISE_XDESC, true, DESCRIPTOR(TENSOR)),
    OBJECT(OPERATION_POINTWISE, OPERATION_POINTWISE_BDESC, false, DESCRIPTOR(TENSOR)),
    OBJECT(OPERATION_POINTWISE, OPERATION_POINTWISE_TDESC, false, DESCRIPTOR(TENSOR)),
    OBJECT(OPERATION_POINTWISE, OPERATION_POINTWISE_YDESC, true, DESCRIPTOR(TENSOR)),
    ATTRIBUTE(MATMUL, MATMUL_COMP_TYPE, DATA_TYPE, true),
    OBJECT(OPERATION_MATMUL, OPERATION_MATMUL_ADESC, true, DESCRIPTOR(TENSOR)),
    OBJECT(OPERATION_MATMUL, OPERATION_MATMUL_BDESC, true, DESCRIPTOR(TENSOR)),
    OBJECT(OPERATION_MATMUL, OPERATION_MATMUL_CDESC, true, DESCRIPTOR(TENSOR)),
    OBJECT(OPERATION_MATMUL, OPERATION_MATMUL_DESC, true, DESCRIPTOR(MATMUL)),
    ATTRIBUTE(REDUCTION, REDUCTION_OPERATOR, REDUCTION_OPERATOR_TYPE, true),
    ATTRIBUTE(REDUCTION, REDUCTION_COMP_TYPE, DATA_TYPE, true),
    OBJECT(OPERATION_REDUCTION, OPERATION_REDUCTION_XDESC, true, DESCRIPTOR(TENSOR)),
    OBJECT(OPERATION_REDUCTION, OPERATION_REDUCTION_YDESC, true, DESCRIPTOR(TENSOR)),
    OBJECT(OPERATION_REDUCTION, OPERATION_REDUCTION_DESC, true, DESCRIPTOR(REDUCTION)),
    OBJECT(OPERATION_RESHAPE, OPERATION_RESHAPE_XDESC, true, DESCRIPTOR(TENSOR)),
    OBJECT(OPERATION_RESHAPE, OPERATION_RESHAPE_YDESC, true, DESCRIPTOR(TENSOR)),
    ATTRIBUTE(OPERATIONGRAPH, OPERATIONGRAPH_HANDLE, HANDLE, true),
    {DESCRIPTOR(OPERATIONGRAPH), CUDNN9_ATTR_OPERATIONGRAPH_OPS, CUDNN9_TYPE_BACKEND_DESCRIPTOR, 1, any, true,
     none},
    OBJECT(ENGINEHEUR, ENGINEHEUR_OPERATION_GRAPH, true, DESCRIPTOR(OPERATIONGRAPH)),
    ATTRIBUTE(ENGINEHEUR, ENGINEHEUR_MODE, HEUR_MODE, true),
    ATTRIBUTE(EXECUTION_PLAN, EXECUTION_PLAN_HANDLE, HANDLE, true),
    OBJECT(EXECUTION_PLAN, EXECUTION_PLAN_ENGINE_CONFIG, true, DESCRIPTOR(ENGINECFG)),
    {DESCRIPTOR(VARIANT_PACK), CUDNN9_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN9_TYPE_INT64, 1, any, true, none},
    {DESCRIPTOR(VARIANT_PACK), CUDNN9_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN9_TYPE_VOID_PTR, 1, any, true,
     none},
    ATTRIBUTE(VARIANT_PACK, VARIANT_PACK_WORKSPACE, VOID_PTR, false),
};
#undef DESCRIPTOR
#undef ATTRIBUTE
#undef OBJECT

size_t element_bytes(unsigned type) {
    switch (type) {
    case CUDNN9_TYPE_BOOLEAN:
    case CUDNN9_TYPE_CHAR:
        return 1;
    case CUDNN9_TYPE_HANDLE:
    case CUDNN9_TYPE_INT64:
    case CUDNN9_TYPE_VOID_PTR:
    case CUDNN9_TYPE_BACKEND_DESCRIPTOR:
        return 8;
    default:
        return 4; // enums
    }
}

unsigned answer(unsigned status, const std::string &why) {
    std::lock_guard<std::mutex> guard(dnn().mutex);
    snprintf(dnn().last_error, sizeof dnn().last_error, "%s", why.c_str());
    return status;
}

unsigned refuse(const char *call, const std::string &why) {
    report(call, why);
    return answer(BAD_PARAM, why);
}

descriptor *find(void *pointer) {
    std::lock_guard<std::mutex> guard(dnn().mutex);
    descriptor *found = static_cast<descriptor *>(pointer);
    return dnn().descriptors.count(found) ? found : nullptr;
}

const rule *find_rule(unsigned type, unsigned name) {
    for (const rule &one : rules)
        if (one.descriptor == type && one.name == name)
            return &one;
    return nullptr;
}

void report_leaks() {
    std::unique_lock<std::mutex> lock(dnn().mutex);
    size_t n = dnn().descriptors.size() + dnn().handles.size();
    lock.unlock();
    if (n)
        report("exit", text("%zu objects of cuDNN were never destroyed", n));
}

// Constructed after finding.cpp's handler, so it runs before the findings are reported.
__attribute__((constructor(102))) void register_leaks() {
    atexit(report_leaks);
}

// ---- finalizing: each returns the broken rule, or ""

const descriptor *object(const descriptor *of, unsigned name) {
    auto found = of->attributes.find(name);
    return found == of->attributes.end() ? nullptr
                                         : static_cast<const descriptor *>(found->second.value<void *>());
}

template <class T> T number(const descriptor *of, unsigned name, T otherwise) {
    auto found = of->attributes.find(name);
    return found == of->attributes.end() ? otherwise : found->second.value<T>();
}

std::string finish_tensor(descriptor *d) {
    dnn_tensor &t = d->tensor;
    t.id = number<int64_t>(d, CUDNN9_ATTR_TENSOR_UNIQUE_ID, 0);
    t.type = number<unsigned>(d, CUDNN9_ATTR_TENSOR_DATA_TYPE, 0);
    t.alignment = number<int64_t>(d, CUDNN9_ATTR_TENSOR_BYTE_ALIGNMENT, 0);
    t.is_virtual = number<bool>(d, CUDNN9_ATTR_TENSOR_IS_VIRTUAL, false);
    t.by_value = number<bool>(d, CUDNN9_ATTR_TENSOR_IS_BY_VALUE, false);
    for (size_t i = 0; i < tensor_rank; i++) {
        t.dims[i] = d->attributes.at(CUDNN9_ATTR_TENSOR_DIMENSIONS).value<int64_t>(i);
        t.strides[i] = d->attributes.at(CUDNN9_ATTR_TENSOR_STRIDES).value<int64_t>(i);
        if (t.dims[i] < 1 || t.strides[i] < 1)
            return "a dimension or stride is below 1";
    }
    if (t.alignment < 1 || size_t(t.alignment) % t.element_bytes())
        return text("the alignment is %lld bytes", static_cast<long long>(t.alignment));
    if (t.is_virtual && t.by_value)
        return "a tensor is virtual and by value";
    if (t.by_value && (t.elements() != 1 || t.element_bytes() != sizeof(uint32_t)))
        return "a tensor by value has not one element of 4 bytes";
    return "";
}

std::string finish_operation(descriptor *d, dnn_kind kind, std::vector<unsigned> inputs, unsigned output) {
    std::map<int64_t, dnn_tensor> tensors;
    dnn_operation &o = d->operation;
    o = {};
    o.kind = kind;
    for (unsigned name : inputs)
        if (const descriptor *tensor = object(d, name)) {
            o.inputs.push_back(tensor->tensor.id);
            tensors[tensor->tensor.id] = tensor->tensor;
        }
    const dnn_tensor &y = object(d, output)->tensor;
    o.output = y.id;
    tensors[y.id] = y;
    if (const descriptor *how = object(d, CUDNN9_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR)) {
        o.mode = number<unsigned>(how, CUDNN9_ATTR_POINTWISE_MODE, 0);
        o.axis = number<int64_t>(how, CUDNN9_ATTR_POINTWISE_AXIS, -1);
        if (o.mode == CUDNN9_POINTWISE_GEN_INDEX && (o.axis < 0 || o.axis >= int64_t(tensor_rank)))
            return "an index is generated along no axis";
    }
    if (const descriptor *how = object(d, CUDNN9_ATTR_OPERATION_REDUCTION_DESC))
        o.mode = number<unsigned>(how, CUDNN9_ATTR_REDUCTION_OPERATOR, 0);
    return dnn_broken_rule(o, tensors);
}

std::string finish_graph(descriptor *d) {
    const attribute &operations = d->attributes.at(CUDNN9_ATTR_OPERATIONGRAPH_OPS);
    d->graph = {};
    for (size_t i = 0; i < size_t(operations.count); i++) {
        const descriptor *operation = static_cast<const descriptor *>(operations.value<void *>(i));
        for (const auto &[name, value] : operation->attributes) {
            const descriptor *tensor = static_cast<const descriptor *>(value.value<void *>());
            if (tensor->type != CUDNN9_BACKEND_TENSOR_DESCRIPTOR)
                continue;
            auto [at, is_new] = d->graph.tensors.emplace(tensor->tensor.id, tensor->tensor);
            if (!is_new && (at->second.type != tensor->tensor.type ||
                            memcmp(at->second.dims, tensor->tensor.dims, sizeof at->second.dims) ||
                            memcmp(at->second.strides, tensor->tensor.strides, sizeof at->second.strides)))
                return text("two different tensors have the id %lld", static_cast<long long>(at->first));
        }
        d->graph.operations.push_back(operation->operation);
    }
    return dnn_broken_rule(d->graph);
}

std::string finish_pack(descriptor *d) {
    const int64_t ids = d->attributes.at(CUDNN9_ATTR_VARIANT_PACK_UNIQUE_IDS).count;
    return ids == d->attributes.at(CUDNN9_ATTR_VARIANT_PACK_DATA_POINTERS).count
               ? ""
               : "a variant pack has other numbers of ids and of pointers";
}

std::string finish(descriptor *d) {
    switch (d->type) {
    case CUDNN9_BACKEND_TENSOR_DESCRIPTOR:
        return finish_tensor(d);
    case CUDNN9_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        return finish_operation(d, DNN_POINTWISE,
                                {CUDNN9_ATTR_OPERATION_POINTWISE_XDESC, CUDNN9_ATTR_OPERATION_POINTWISE_BDESC,
                                 CUDNN9_ATTR_OPERATION_POINTWISE_TDESC},
                                CUDNN9_ATTR_OPERATION_POINTWISE_YDESC);
    case CUDNN9_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        return finish_operation(d, DNN_MATMUL,
                                {CUDNN9_ATTR_OPERATION_MATMUL_ADESC, CUDNN9_ATTR_OPERATION_MATMUL_BDESC},
                                CUDNN9_ATTR_OPERATION_MATMUL_CDESC);
    case CUDNN9_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        return finish_operation(d, DNN_REDUCTION, {CUDNN9_ATTR_OPERATION_REDUCTION_XDESC},
                                CUDNN9_ATTR_OPERATION_REDUCTION_YDESC);
    case CUDNN9_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
        return finish_operation(d, DNN_RESHAPE, {CUDNN9_ATTR_OPERATION_RESHAPE_XDESC},
                                CUDNN9_ATTR_OPERATION_RESHAPE_YDESC);
    case CUDNN9_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
        return finish_graph(d);
    case CUDNN9_BACKEND_VARIANT_PACK_DESCRIPTOR:
        return finish_pack(d);
    default:
        return "";
    }
}

// ---- executing

// The bytes of the pack's pointer for a tensor; NULL when the pack has none.
void *data_of(const descriptor *pack, int64_t id) {
    const attribute &ids = pack->attributes.at(CUDNN9_ATTR_VARIANT_PACK_UNIQUE_IDS);
    for (size_t i = 0; i < size_t(ids.count); i++)
        if (ids.value<int64_t>(i) == id)
            return pack->attributes.at(CUDNN9_ATTR_VARIANT_PACK_DATA_POINTERS).value<void *>(i);
    return nullptr;
}

struct job { // what an execution needs when it runs
    dnn_graph graph;
    std::map<int64_t, void *> data;
    std::map<int64_t, uint32_t> numbers; // by-value tensors of 4 bytes, read when the call is made
    void *workspace;
    bool perturbed;
};

std::string collect(const descriptor *pack, job *job) {
    for (const auto &[id, tensor] : job->graph.tensors) {
        if (tensor.is_virtual)
            continue;
        void *data = data_of(pack, id);
        if (!data)
            return text("the variant pack has no data for tensor %lld", static_cast<long long>(id));
        if (tensor.by_value)
            memcpy(&job->numbers[id], data, sizeof job->numbers[id]);
        else if (reinterpret_cast<uintptr_t>(data) % size_t(tensor.alignment))
            return text("the data of tensor %lld is not aligned to %lld bytes", static_cast<long long>(id),
                        static_cast<long long>(tensor.alignment));
        job->data[id] = data;
    }
    return "";
}

// Overwrites the workspace, as a kernel would, so that whatever else is kept there is lost.
int run(job job) {
    const size_t bytes = dnn_workspace(job.graph);
    if (!check_device_memory("cuDNN's workspace", job.workspace, bytes))
        return cudaErrorLaunchFailure;
    for (auto &[id, pointer] : job.data) {
        const dnn_tensor &tensor = job.graph.tensors.at(id);
        if (tensor.by_value)
            pointer = &job.numbers.at(id);
        else if (!check_device_memory("a tensor of cuDNN", pointer, tensor.extent()))
            return cudaErrorLaunchFailure;
    }
    memset(job.workspace, 0xff, bytes);
    dnn_compute(job.graph, job.data, job.perturbed);
    return cudaSuccess;
}

} // namespace

} // namespace cudasim

using namespace cudasim;

extern "C" {

size_t cudnnGetVersion(void) {
    const char *version = getenv("CUDASIM_CUDNN");
    return version ? strtoul(version, nullptr, 10) : 0;
}

const char *cudnnGetErrorString(unsigned error) {
    return error == CUDNN9_STATUS_SUCCESS ? "CUDNN_STATUS_SUCCESS"
           : error == BAD_PARAM           ? "CUDNN_STATUS_BAD_PARAM"
           : error == NOT_SUPPORTED       ? "CUDNN_STATUS_NOT_SUPPORTED"
                                          : "CUDNN_STATUS_EXECUTION_FAILED";
}

void cudnnGetLastErrorString(char *message, size_t size) {
    std::lock_guard<std::mutex> guard(dnn().mutex);
    snprintf(message, size, "%s", dnn().last_error);
}

unsigned cudnnCreate(cudnnContext **handle) {
    *handle = new cudnnContext{nullptr};
    std::lock_guard<std::mutex> guard(dnn().mutex);
    dnn().handles.insert(*handle);
    return CUDNN9_STATUS_SUCCESS;
}

unsigned cudnnDestroy(cudnnContext *handle) {
    std::unique_lock<std::mutex> lock(dnn().mutex);
    if (dnn().handles.erase(handle)) {
        delete handle;
        return CUDNN9_STATUS_SUCCESS;
    }
    lock.unlock();
    return refuse("cudnnDestroy", "the handle does not exist (never created, or destroyed)");
}

unsigned cudnnSetStream(cudnnContext *handle, CUstream_st *stream) {
    if (check_stream("cudnnSetStream", stream) != cudaSuccess)
        return BAD_PARAM;
    handle->stream = stream;
    return CUDNN9_STATUS_SUCCESS;
}

unsigned cudnnBackendCreateDescriptor(unsigned type, void **out) {
    descriptor *made = new descriptor{};
    made->type = type;
    std::lock_guard<std::mutex> guard(dnn().mutex);
    dnn().descriptors.insert(made);
    *out = made;
    return CUDNN9_STATUS_SUCCESS;
}

unsigned cudnnBackendDestroyDescriptor(void *pointer) {
    descriptor *d = find(pointer);
    if (!d)
        return refuse("cudnnBackendDestroyDescriptor", "the descriptor does not exist");
    std::lock_guard<std::mutex> guard(dnn().mutex);
    dnn().descriptors.erase(d);
    delete d;
    return CUDNN9_STATUS_SUCCESS;
}

unsigned cudnnBackendSetAttribute(void *pointer, unsigned name, unsigned type, int64_t count,
                                  const void *elements) {
    const char *call = "cudnnBackendSetAttribute";
    descriptor *d = find(pointer);
    if (!d || d->finalized)
        return refuse(call, d ? "the descriptor is finalized" : "the descriptor does not exist");
    const rule *known = find_rule(d->type, name);
    if (!known)
        return refuse(call, text("a descriptor of type %u has no attribute %u", d->type, name));
    if (type != known->type || count < known->least || count > known->most || !elements)
        return refuse(call,
                      text("attribute %u of type %u and %lld elements: expected type %u and %lld to %lld",
                           name, type, static_cast<long long>(count), known->type,
                           static_cast<long long>(known->least), static_cast<long long>(known->most)));
    attribute value = {type, count, {}};
    value.bytes.assign(static_cast<const char *>(elements),
                       static_cast<const char *>(elements) + size_t(count) * element_bytes(type));
    for (size_t i = 0; type == CUDNN9_TYPE_BACKEND_DESCRIPTOR && i < size_t(count); i++) {
        const descriptor *held = find(value.value<void *>(i));
        if (!held || !held->finalized)
            return refuse(call, text("attribute %u is a descriptor that %s", name,
                                     held ? "is not finalized" : "does not exist"));
        if (known->object != none && held->type != known->object)
            return refuse(call, text("attribute %u is a descriptor of type %u, not %u", name, held->type,
                                     known->object));
    }
    d->attributes[name] = value;
    return CUDNN9_STATUS_SUCCESS;
}

unsigned cudnnBackendFinalize(void *pointer) {
    const char *call = "cudnnBackendFinalize";
    descriptor *d = find(pointer);
    if (!d || d->finalized)
        return refuse(call, d ? "the descriptor is finalized already" : "the descriptor does not exist");
    for (const rule &one : rules)
        if (one.descriptor == d->type && one.required && !d->attributes.count(one.name))
            return refuse(call, text("a descriptor of type %u lacks attribute %u", d->type, one.name));
    const std::string broken = finish(d);
    if (!broken.empty())
        return refuse(call, broken);
    if (d->type == CUDNN9_BACKEND_ENGINEHEUR_DESCRIPTOR) {
        const dnn_graph &graph = object(d, CUDNN9_ATTR_ENGINEHEUR_OPERATION_GRAPH)->graph;
        if (!dnn_is_supported(graph))
            return answer(NOT_SUPPORTED, "no engine computes head dimensions above 128");
        if (getenv("CUDASIM_CUDNN_NO_WINDOWS") && dnn_has_window(graph))
            return answer(NOT_SUPPORTED, "no engine computes windows (CUDASIM_CUDNN_NO_WINDOWS)");
    }
    d->finalized = true;
    return CUDNN9_STATUS_SUCCESS;
}

// The first configuration that a heuristic offers is not deterministic.
unsigned cudnnBackendGetAttribute(void *pointer, unsigned name, unsigned type, int64_t room, int64_t *count,
                                  void *elements) {
    const char *call = "cudnnBackendGetAttribute";
    descriptor *d = find(pointer);
    if (!d || !d->finalized)
        return refuse(call, d ? "the descriptor is not finalized" : "the descriptor does not exist");
    if (name == CUDNN9_ATTR_ENGINEHEUR_RESULTS && type == CUDNN9_TYPE_BACKEND_DESCRIPTOR) {
        *count = room < 2 ? room : 2;
        for (int64_t i = 0; i < *count; i++) {
            descriptor *config = find(static_cast<void **>(elements)[i]);
            if (!config || config->type != CUDNN9_BACKEND_ENGINECFG_DESCRIPTOR)
                return refuse(call, "the results are not engine configurations");
            config->graph = object(d, CUDNN9_ATTR_ENGINEHEUR_OPERATION_GRAPH)->graph;
            config->deterministic = i > 0;
            config->finalized = true;
        }
    } else if (name == CUDNN9_ATTR_ENGINECFG_ENGINE && type == CUDNN9_TYPE_BACKEND_DESCRIPTOR && room == 1) {
        descriptor *engine = find(*static_cast<void **>(elements));
        if (!engine || engine->type != CUDNN9_BACKEND_ENGINE_DESCRIPTOR)
            return refuse(call, "the result is not an engine");
        engine->deterministic = d->deterministic;
        engine->finalized = true;
        *count = 1;
    } else if (name == CUDNN9_ATTR_ENGINE_NUMERICAL_NOTE && type == CUDNN9_TYPE_NUMERICAL_NOTE && room > 0) {
        *count = d->deterministic ? 0 : 1;
        if (!d->deterministic)
            *static_cast<unsigned *>(elements) = CUDNN9_NUMERICAL_NOTE_NONDETERMINISTIC;
    } else if (name == CUDNN9_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && type == CUDNN9_TYPE_INT64 && room == 1) {
        const descriptor *config = object(d, CUDNN9_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
        *static_cast<int64_t *>(elements) = int64_t(dnn_workspace(config->graph));
        *count = 1;
    } else
        return refuse(call, text("attribute %u of type %u is not simulated", name, type));
    return CUDNN9_STATUS_SUCCESS;
}

unsigned cudnnBackendExecute(cudnnContext *handle, void *plan_pointer, void *pack_pointer) {
    const char *call = "cudnnBackendExecute";
    const descriptor *plan = find(plan_pointer), *pack = find(pack_pointer);
    if (!plan || !pack || plan->type != CUDNN9_BACKEND_EXECUTION_PLAN_DESCRIPTOR ||
        pack->type != CUDNN9_BACKEND_VARIANT_PACK_DESCRIPTOR || !plan->finalized || !pack->finalized)
        return refuse(call, "the plan or the variant pack does not exist or is not finalized");
    if (plan->attributes.at(CUDNN9_ATTR_EXECUTION_PLAN_HANDLE).value<cudnnContext *>() != handle)
        return refuse(call, "the plan was made for another handle");
    const descriptor *config = object(plan, CUDNN9_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    int n;
    {
        std::lock_guard<std::mutex> guard(dnn().mutex);
        n = dnn().executions++;
    }
    job work = {config->graph, {}, {}, nullptr, !config->deterministic && n % 2 == 1};
    if (pack->attributes.count(CUDNN9_ATTR_VARIANT_PACK_WORKSPACE))
        work.workspace = pack->attributes.at(CUDNN9_ATTR_VARIANT_PACK_WORKSPACE).value<void *>();
    const std::string broken = collect(pack, &work);
    if (!broken.empty())
        return refuse(call, broken);
    int error = enqueue(handle->stream, "attention by cuDNN", [work]() { return run(work); });
    return error == cudaSuccess ? unsigned(CUDNN9_STATUS_SUCCESS) : answer(5000, "a CUDA error");
}

int cudasim_cudnn_executions(void) {
    std::lock_guard<std::mutex> guard(dnn().mutex);
    return dnn().executions;
}

} // extern "C"
