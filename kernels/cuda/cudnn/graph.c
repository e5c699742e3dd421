// Loads cuDNN (cudnn.h), and builds graphs from descriptors of its backend API (graph.h). Descriptors are
// created, given attributes and finalized. A graph keeps its descriptors until it is freed, because they
// refer to each other. Those of unused engine configurations are destroyed earlier.
#include "kernels/cuda/cudnn/graph.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

// ---- finding cuDNN (cudnn.h). If the process already has cuDNN's functions, from the simulator or another
// component's library, they are used. Otherwise the library is loaded from disk. The 9 in its name is the
// major version. The second path is for machines whose ld.so does not search the toolkit's folder.
static void *open_library(const char *library) {
    const char *const names[] = {"libcudnn.so.9", "/usr/local/cuda/lib64/libcudnn.so.9"};
    if (library)
        return dlopen(library, RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *opened = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (opened)
            return opened;
    }
    (void)dlerror(); // so that the error reported is that of the plain name, not of the last path tried
    return dlopen(names[0], RTLD_NOW | RTLD_LOCAL);
}

static bool find_functions(void *library, struct cudnn *cudnn, char *reason, size_t size) {
#define CUDNN_FIND(result, name, parameters)                                                                 \
    *(void **)&cudnn->name = dlsym(library, "cudnn" #name);                                                  \
    if (!cudnn->name) {                                                                                      \
        snprintf(reason, size, "this libcudnn has no function cudnn" #name);                                 \
        return false;                                                                                        \
    }
    CUDNN_FUNCTIONS(CUDNN_FIND)
#undef CUDNN_FIND
    return true;
}

const char *cudnn_version_name(size_t version, char *buffer, size_t size) {
    snprintf(buffer, size, "%zu.%zu.%zu", version / 10000, version / 100 % 100, version % 100);
    return buffer;
}

bool cudnn_load(const char *library, struct cudnn *cudnn, char *reason, size_t size) {
    char found[32], oldest[32];
    bool in_process = !library && dlsym(RTLD_DEFAULT, "cudnnBackendExecute");
    void *opened = in_process ? RTLD_DEFAULT : open_library(library);
    if (!opened && !in_process) {
        snprintf(reason, size, "%s was not found (%s)", library ? library : "libcudnn.so.9", dlerror());
        return false;
    }
    if (!find_functions(opened, cudnn, reason, size))
        return false;
    size_t version = cudnn->GetVersion();
    if (version >= CUDNN_OLDEST)
        return true;
    snprintf(reason, size, "its version is %s, and %s or newer is needed",
             version < 10000 ? "8 or older" : cudnn_version_name(version, found, sizeof found),
             cudnn_version_name(CUDNN_OLDEST, oldest, sizeof oldest));
    return false;
}

// ---- descriptors

enum {
    ALIGNMENT = 16,  // bytes, of every tensor's first element
    MOST_NOTES = 64, // maximum number of numerical notes read from an engine
};

// ---- calls that record the graph's first failure

static bool fail(struct cudnn_graph *graph, const char *what, unsigned error) {
    char detail[CUDNN_REASON_BYTES / 2] = "";
    if (graph->failed)
        return false;
    graph->api->GetLastErrorString(detail, sizeof detail);
    detail[strcspn(detail, "\r\n")] = 0;
    snprintf(graph->reason, sizeof graph->reason, "%s: %s%s%s", what, graph->api->GetErrorString(error),
             detail[0] ? ": " : "", detail);
    graph->failed = true;
    return false;
}

static void *create(struct cudnn_graph *graph, unsigned type) {
    void *descriptor = NULL;
    if (graph->failed)
        return NULL;
    if (graph->n_descriptors == CUDNN_MOST_DESCRIPTORS) {
        snprintf(graph->reason, sizeof graph->reason, "more than %d descriptors", CUDNN_MOST_DESCRIPTORS);
        graph->failed = true;
        return NULL;
    }
    unsigned error = graph->api->BackendCreateDescriptor(type, &descriptor);
    if (error != CUDNN9_STATUS_SUCCESS) {
        fail(graph, "creating a descriptor", error);
        return NULL;
    }
    graph->descriptors[graph->n_descriptors++] = descriptor;
    return descriptor;
}

static void set(struct cudnn_graph *graph, void *descriptor, unsigned name, unsigned type, int64_t count,
                const void *elements) {
    char what[64];
    if (graph->failed)
        return;
    unsigned error = graph->api->BackendSetAttribute(descriptor, name, type, count, elements);
    snprintf(what, sizeof what, "attribute %u", name);
    if (error != CUDNN9_STATUS_SUCCESS)
        fail(graph, what, error);
}

static void set_descriptor(struct cudnn_graph *graph, void *descriptor, unsigned name, void *value) {
    set(graph, descriptor, name, CUDNN9_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static bool finalize(struct cudnn_graph *graph, void *descriptor, const char *what) {
    if (graph->failed)
        return false;
    unsigned error = graph->api->BackendFinalize(descriptor);
    return error == CUDNN9_STATUS_SUCCESS || fail(graph, what, error);
}

// ---- building a graph

void cudnn_graph_init(struct cudnn_graph *graph, const struct cudnn *api, struct cudnn_target target) {
    *graph = (struct cudnn_graph){.api = api, .target = target};
    if (target.handle)
        return;
    const char *json = target.device_properties;
    graph->device_properties = create(graph, CUDNN9_BACKEND_DEVICEPROP_DESCRIPTOR);
    set(graph, graph->device_properties, CUDNN9_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN9_TYPE_CHAR,
        (int64_t)strlen(json), json);
    finalize(graph, graph->device_properties, "device properties");
}

void cudnn_graph_free(struct cudnn_graph *graph) {
    while (graph->n_descriptors > 0)
        (void)graph->api->BackendDestroyDescriptor(graph->descriptors[--graph->n_descriptors]);
}

void *cudnn_add_tensor(struct cudnn_graph *graph, const struct cudnn_tensor *tensor) {
    const int64_t alignment = ALIGNMENT,
                  id = tensor->id > 0 ? tensor->id : CUDNN_FIRST_VIRTUAL + graph->n_virtual++;
    const bool is_virtual = tensor->id == 0;
    void *descriptor = create(graph, CUDNN9_BACKEND_TENSOR_DESCRIPTOR);
    set(graph, descriptor, CUDNN9_ATTR_TENSOR_DATA_TYPE, CUDNN9_TYPE_DATA_TYPE, 1, &tensor->type);
    set(graph, descriptor, CUDNN9_ATTR_TENSOR_DIMENSIONS, CUDNN9_TYPE_INT64, CUDNN_RANK, tensor->dims);
    set(graph, descriptor, CUDNN9_ATTR_TENSOR_STRIDES, CUDNN9_TYPE_INT64, CUDNN_RANK, tensor->strides);
    set(graph, descriptor, CUDNN9_ATTR_TENSOR_UNIQUE_ID, CUDNN9_TYPE_INT64, 1, &id);
    set(graph, descriptor, CUDNN9_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN9_TYPE_INT64, 1, &alignment);
    set(graph, descriptor, CUDNN9_ATTR_TENSOR_IS_VIRTUAL, CUDNN9_TYPE_BOOLEAN, 1, &is_virtual);
    set(graph, descriptor, CUDNN9_ATTR_TENSOR_IS_BY_VALUE, CUDNN9_TYPE_BOOLEAN, 1, &tensor->by_value);
    finalize(graph, descriptor, "tensor");
    return descriptor;
}

static void add_operation(struct cudnn_graph *graph, void *operation, const char *what) {
    if (!finalize(graph, operation, what))
        return;
    if (graph->n_operations == CUDNN_MOST_OPERATIONS) {
        snprintf(graph->reason, sizeof graph->reason, "more than %d operations", CUDNN_MOST_OPERATIONS);
        graph->failed = true;
        return;
    }
    graph->operations[graph->n_operations++] = operation;
}

void cudnn_add_pointwise(struct cudnn_graph *graph, const struct cudnn_pointwise *operation) {
    void *how = create(graph, CUDNN9_BACKEND_POINTWISE_DESCRIPTOR);
    set(graph, how, CUDNN9_ATTR_POINTWISE_MODE, CUDNN9_TYPE_POINTWISE_MODE, 1, &operation->mode);
    set(graph, how, CUDNN9_ATTR_POINTWISE_MATH_PREC, CUDNN9_TYPE_DATA_TYPE, 1, &operation->compute);
    if (operation->mode == CUDNN9_POINTWISE_GEN_INDEX)
        set(graph, how, CUDNN9_ATTR_POINTWISE_AXIS, CUDNN9_TYPE_INT64, 1, &operation->axis);
    finalize(graph, how, "pointwise operation");
    void *node = create(graph, CUDNN9_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_descriptor(graph, node, CUDNN9_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    set_descriptor(graph, node, CUDNN9_ATTR_OPERATION_POINTWISE_XDESC, operation->x);
    if (operation->b)
        set_descriptor(graph, node, CUDNN9_ATTR_OPERATION_POINTWISE_BDESC, operation->b);
    if (operation->t)
        set_descriptor(graph, node, CUDNN9_ATTR_OPERATION_POINTWISE_TDESC, operation->t);
    set_descriptor(graph, node, CUDNN9_ATTR_OPERATION_POINTWISE_YDESC, operation->y);
    add_operation(graph, node, "pointwise node");
}

void cudnn_add_matmul(struct cudnn_graph *graph, void *a, void *b, void *c) {
    const unsigned compute = CUDNN9_DATA_FLOAT;
    void *how = create(graph, CUDNN9_BACKEND_MATMUL_DESCRIPTOR);
    set(graph, how, CUDNN9_ATTR_MATMUL_COMP_TYPE, CUDNN9_TYPE_DATA_TYPE, 1, &compute);
    finalize(graph, how, "matrix product");
    void *node = create(graph, CUDNN9_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_descriptor(graph, node, CUDNN9_ATTR_OPERATION_MATMUL_ADESC, a);
    set_descriptor(graph, node, CUDNN9_ATTR_OPERATION_MATMUL_BDESC, b);
    set_descriptor(graph, node, CUDNN9_ATTR_OPERATION_MATMUL_CDESC, c);
    set_descriptor(graph, node, CUDNN9_ATTR_OPERATION_MATMUL_DESC, how);
    add_operation(graph, node, "matrix product node");
}

void cudnn_add_reduction(struct cudnn_graph *graph, unsigned reduction, void *x, void *y) {
    const unsigned compute = CUDNN9_DATA_FLOAT;
    void *how = create(graph, CUDNN9_BACKEND_REDUCTION_DESCRIPTOR);
    set(graph, how, CUDNN9_ATTR_REDUCTION_OPERATOR, CUDNN9_TYPE_REDUCTION_OPERATOR_TYPE, 1, &reduction);
    set(graph, how, CUDNN9_ATTR_REDUCTION_COMP_TYPE, CUDNN9_TYPE_DATA_TYPE, 1, &compute);
    finalize(graph, how, "reduction");
    void *node = create(graph, CUDNN9_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_descriptor(graph, node, CUDNN9_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_descriptor(graph, node, CUDNN9_ATTR_OPERATION_REDUCTION_YDESC, y);
    set_descriptor(graph, node, CUDNN9_ATTR_OPERATION_REDUCTION_DESC, how);
    add_operation(graph, node, "reduction node");
}

void cudnn_add_reshape(struct cudnn_graph *graph, void *x, void *y) {
    void *node = create(graph, CUDNN9_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_descriptor(graph, node, CUDNN9_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_descriptor(graph, node, CUDNN9_ATTR_OPERATION_RESHAPE_YDESC, y);
    add_operation(graph, node, "reshape node");
}

// ---- making and executing the plan of a graph

static void *finish_graph(struct cudnn_graph *graph) {
    void *whole = create(graph, CUDNN9_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    if (graph->target.handle)
        set(graph, whole, CUDNN9_ATTR_OPERATIONGRAPH_HANDLE, CUDNN9_TYPE_HANDLE, 1, &graph->target.handle);
    set(graph, whole, CUDNN9_ATTR_OPERATIONGRAPH_OPS, CUDNN9_TYPE_BACKEND_DESCRIPTOR, graph->n_operations,
        graph->operations);
    finalize(graph, whole, "operation graph");
    return whole;
}

// Writes the engine configurations that the heuristic `mode` offers for the graph `whole` to `configs`, in
// the heuristic's order. Returns their number. It is 0, with graph->failed set, if the heuristic refuses
// the graph. The caller may then clear the failure and try another heuristic.
static int64_t find_configs(struct cudnn_graph *graph, void *whole, unsigned mode,
                            void *configs[CUDNN_MOST_CONFIGS]) {
    int64_t n_configs = 0;
    void *heuristic = create(graph, CUDNN9_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_descriptor(graph, heuristic, CUDNN9_ATTR_ENGINEHEUR_OPERATION_GRAPH, whole);
    set(graph, heuristic, CUDNN9_ATTR_ENGINEHEUR_MODE, CUDNN9_TYPE_HEUR_MODE, 1, &mode);
    if (graph->device_properties)
        set_descriptor(graph, heuristic, CUDNN9_ATTR_ENGINEHEUR_DEVICEPROP, graph->device_properties);
    if (!finalize(graph, heuristic, "engine heuristics"))
        return 0;
    for (int i = 0; i < CUDNN_MOST_CONFIGS; i++)
        configs[i] = create(graph, CUDNN9_BACKEND_ENGINECFG_DESCRIPTOR);
    if (graph->failed)
        return 0;
    unsigned error = graph->api->BackendGetAttribute(heuristic, CUDNN9_ATTR_ENGINEHEUR_RESULTS,
                                                     CUDNN9_TYPE_BACKEND_DESCRIPTOR, CUDNN_MOST_CONFIGS,
                                                     &n_configs, configs);
    if (error != CUDNN9_STATUS_SUCCESS)
        fail(graph, "engine heuristics", error);
    return graph->failed ? 0 : n_configs < CUDNN_MOST_CONFIGS ? n_configs : CUDNN_MOST_CONFIGS;
}

static bool is_deterministic(struct cudnn_graph *graph, void *config) {
    unsigned notes[MOST_NOTES];
    int64_t n = 0;
    void *engine = create(graph, CUDNN9_BACKEND_ENGINE_DESCRIPTOR);
    if (graph->failed ||
        graph->api->BackendGetAttribute(config, CUDNN9_ATTR_ENGINECFG_ENGINE, CUDNN9_TYPE_BACKEND_DESCRIPTOR,
                                        1, &n, &engine) != CUDNN9_STATUS_SUCCESS ||
        graph->api->BackendGetAttribute(engine, CUDNN9_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN9_TYPE_NUMERICAL_NOTE,
                                        MOST_NOTES, &n, notes) != CUDNN9_STATUS_SUCCESS)
        return false;
    for (int64_t i = 0; i < n; i++)
        if (notes[i] == CUDNN9_NUMERICAL_NOTE_NONDETERMINISTIC)
            return false;
    return true;
}

static bool build_plan(struct cudnn_graph *graph, void *config) {
    int64_t n;
    void *plan = create(graph, CUDNN9_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    if (graph->target.handle)
        set(graph, plan, CUDNN9_ATTR_EXECUTION_PLAN_HANDLE, CUDNN9_TYPE_HANDLE, 1, &graph->target.handle);
    else
        set_descriptor(graph, plan, CUDNN9_ATTR_EXECUTION_PLAN_DEVICEPROP, graph->device_properties);
    set_descriptor(graph, plan, CUDNN9_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    if (!finalize(graph, plan, "execution plan"))
        return false;
    unsigned error = graph->api->BackendGetAttribute(plan, CUDNN9_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                                     CUDNN9_TYPE_INT64, 1, &n, &graph->workspace_bytes);
    if (error != CUDNN9_STATUS_SUCCESS)
        return fail(graph, "workspace of the execution plan", error);
    graph->plan = plan;
    return true;
}

bool cudnn_graph_plan(struct cudnn_graph *graph) {
    const unsigned modes[] = {CUDNN9_HEUR_MODE_A, CUDNN9_HEUR_MODE_FALLBACK};
    char reason[CUDNN_REASON_BYTES] = "no deterministic engine supports it";
    void *whole = finish_graph(graph);
    for (size_t m = 0; m < sizeof modes / sizeof *modes && !graph->failed; m++) {
        void *configs[CUDNN_MOST_CONFIGS];
        int n_kept = graph->n_descriptors;
        int64_t n_configs = find_configs(graph, whole, modes[m], configs);
        graph->n_engines += (int)n_configs;
        for (int64_t i = 0; i < n_configs && !graph->failed; i++)
            if (is_deterministic(graph, configs[i]) && build_plan(graph, configs[i]))
                return true;
            else if (graph->failed) { // this configuration cannot run here; the next one may
                memcpy(reason, graph->reason, sizeof reason);
                graph->failed = false;
            }
        if (graph->failed && n_configs == 0) {
            memcpy(reason, graph->reason, sizeof reason);
            graph->failed = false;
        }
        while (graph->n_descriptors > n_kept)
            (void)graph->api->BackendDestroyDescriptor(graph->descriptors[--graph->n_descriptors]);
    }
    if (!graph->failed)
        memcpy(graph->reason, reason, sizeof reason);
    graph->failed = true;
    return false;
}

bool cudnn_graph_execute(struct cudnn_graph *graph, int n, const int64_t *ids, void *const *data,
                         void *workspace) {
    void *pack = create(graph, CUDNN9_BACKEND_VARIANT_PACK_DESCRIPTOR);
    set(graph, pack, CUDNN9_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN9_TYPE_VOID_PTR, n, data);
    set(graph, pack, CUDNN9_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN9_TYPE_INT64, n, ids);
    set(graph, pack, CUDNN9_ATTR_VARIANT_PACK_WORKSPACE, CUDNN9_TYPE_VOID_PTR, 1, &workspace);
    if (finalize(graph, pack, "variant pack")) {
        unsigned error = graph->api->BackendExecute(graph->target.handle, graph->plan, pack);
        if (error != CUDNN9_STATUS_SUCCESS)
            fail(graph, "execution", error);
    }
    if (pack)
        (void)graph->api->BackendDestroyDescriptor(graph->descriptors[--graph->n_descriptors]);
    return !graph->failed;
}
