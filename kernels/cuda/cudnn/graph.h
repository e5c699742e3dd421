// A graph of cuDNN operations, and the plan that executes it. After a failure, further calls do nothing, so a
// graph can be built without checking each call; cudnn_graph_plan reports the first failure.
#ifndef ZERO_KERNELS_CUDA_CUDNN_GRAPH_H
#define ZERO_KERNELS_CUDA_CUDNN_GRAPH_H

#include "kernels/cuda/cudnn/cudnn.h"

enum {
    CUDNN_RANK = 4,
    CUDNN_MOST_DESCRIPTORS = 144,
    CUDNN_MOST_OPERATIONS = 32,
    CUDNN_MOST_CONFIGS = 16,    // engine configurations tried per heuristic
    CUDNN_FIRST_VIRTUAL = 1000, // ids of tensors with data are smaller
    CUDNN_REASON_BYTES = 320,
};

// The target of a plan: a GPU, given by a handle, or a description of a GPU, without one (tests).
struct cudnn_target {
    struct cudnnContext *handle;   // or NULL
    const char *device_properties; // JSON of cuDNN's device-property descriptor, read without a handle
};

struct cudnn_graph {
    const struct cudnn *api;
    struct cudnn_target target;
    void *device_properties; // descriptor, or NULL
    void *descriptors[CUDNN_MOST_DESCRIPTORS], *operations[CUDNN_MOST_OPERATIONS];
    int n_descriptors, n_operations;
    int64_t n_virtual; // number of virtual tensors; ids count from CUDNN_FIRST_VIRTUAL
    bool failed;
    char reason[CUDNN_REASON_BYTES]; // of the first failure
    // set by cudnn_graph_plan
    void *plan;
    int64_t workspace_bytes;
    int n_engines; // configurations that the heuristics offered
};

struct cudnn_tensor {
    int64_t id; // positive: data, named in the variant pack; 0: virtual, a value between operations
    int64_t dims[CUDNN_RANK], strides[CUDNN_RANK];
    unsigned type; // CUDNN9_DATA_...
    bool by_value; // one element, read from host memory when the plan is executed
};

void cudnn_graph_init(struct cudnn_graph *graph, const struct cudnn *api, struct cudnn_target target);
void cudnn_graph_free(struct cudnn_graph *graph);

// Each cudnn_add function adds one object to the graph. cudnn_add_tensor returns its descriptor; NULL after a
// failure.
void *cudnn_add_tensor(struct cudnn_graph *graph, const struct cudnn_tensor *tensor);
// y = mode(x) or mode(x, b); with BINARY_SELECT, y = t ? x : b. `axis` is for GEN_INDEX. Arithmetic in
// `compute`.
struct cudnn_pointwise {
    unsigned mode, compute; // CUDNN9_POINTWISE_..., CUDNN9_DATA_...
    int64_t axis;
    void *x, *b, *t, *y; // b, t: NULL if the mode does not use them
};
void cudnn_add_pointwise(struct cudnn_graph *graph, const struct cudnn_pointwise *operation);
void cudnn_add_matmul(struct cudnn_graph *graph, void *a, void *b, void *c);               // c = a b, in fp32
void cudnn_add_reduction(struct cudnn_graph *graph, unsigned reduction, void *x, void *y); // in fp32
void cudnn_add_reshape(struct cudnn_graph *graph, void *x, void *y); // y is x with other dims and strides

// Builds the plan of the first engine configuration, in the order of cuDNN's heuristics, that is
// deterministic and runs on this GPU and library. Sets `plan` and `workspace_bytes`. Returns false, with a
// reason, if there is none.
bool cudnn_graph_plan(struct cudnn_graph *graph);

// Executes the plan on the handle's stream.
//   ids, data   (n) the graph's tensors with positive ids, and their memory
//   workspace   workspace_bytes of device memory
// Returns false, with graph->reason, when the library refuses.
bool cudnn_graph_execute(struct cudnn_graph *graph, int n, const int64_t *ids, void *const *data,
                         void *workspace);

#endif
