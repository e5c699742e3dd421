// A graph of cuDNN operations, and the plan that executes it. After a failure, further cudnn_add calls do
// nothing, so a graph can be built without checking each call. cudnn_graph_plan then reports the first
// failure.
#ifndef ZERO_KERNELS_CUDA_CUDNN_GRAPH_H
#define ZERO_KERNELS_CUDA_CUDNN_GRAPH_H

#include "kernels/cuda/cudnn/cudnn.h"

enum {
    CUDNN_RANK = 4, // number of dimensions of every tensor
    CUDNN_MOST_DESCRIPTORS = 144,
    CUDNN_MOST_OPERATIONS = 32,
    CUDNN_MOST_CONFIGS = 16,    // maximum number of engine configurations requested from a heuristic
    CUDNN_FIRST_VIRTUAL = 1000, // lowest id of a virtual tensor; ids of tensors with data are smaller
    CUDNN_REASON_BYTES = 320,
};

// What a plan is made for: the GPU of a handle, or a GPU that is only described and need not exist (in
// tests).
struct cudnn_target {
    struct cudnnContext *handle;   // or NULL
    const char *device_properties; // JSON of cuDNN's device-property descriptor; read if handle is NULL
};

struct cudnn_graph {
    const struct cudnn *api;
    struct cudnn_target target;
    void *device_properties; // descriptor, or NULL
    void *descriptors[CUDNN_MOST_DESCRIPTORS], *operations[CUDNN_MOST_OPERATIONS];
    int n_descriptors, n_operations;
    int64_t n_virtual; // number of virtual tensors; their ids count from CUDNN_FIRST_VIRTUAL
    bool failed;
    char reason[CUDNN_REASON_BYTES]; // describes the first failure
    // Set by cudnn_graph_plan.
    void *plan;
    int64_t workspace_bytes;
    int n_engines; // number of engine configurations that the heuristics offered
};

struct cudnn_tensor {
    // Positive: a tensor with data, which cudnn_graph_execute gets under this id. 0: a virtual tensor. It
    // passes values between operations of the graph and has no memory.
    int64_t id;
    int64_t dims[CUDNN_RANK], strides[CUDNN_RANK];
    unsigned type; // CUDNN9_DATA_...
    bool by_value; // the tensor has one element, read from host memory when the plan is executed
};

void cudnn_graph_init(struct cudnn_graph *graph, const struct cudnn *api, struct cudnn_target target);
void cudnn_graph_free(struct cudnn_graph *graph);

// Each cudnn_add function adds one object to the graph. cudnn_add_tensor returns its descriptor; NULL after a
// failure.
void *cudnn_add_tensor(struct cudnn_graph *graph, const struct cudnn_tensor *tensor);
// y = mode(x) or mode(x, b); with BINARY_SELECT, y = t ? x : b. `axis` is read with GEN_INDEX. `compute` is
// the type of the arithmetic.
struct cudnn_pointwise {
    unsigned mode, compute; // CUDNN9_POINTWISE_..., CUDNN9_DATA_...
    int64_t axis;
    void *x, *b, *t, *y; // b, t: NULL if the mode does not use them
};
void cudnn_add_pointwise(struct cudnn_graph *graph, const struct cudnn_pointwise *operation);
void cudnn_add_matmul(struct cudnn_graph *graph, void *a, void *b, void *c);               // c = a b, in fp32
void cudnn_add_reduction(struct cudnn_graph *graph, unsigned reduction, void *x, void *y); // in fp32
void cudnn_add_reshape(struct cudnn_graph *graph, void *x, void *y); // y is x with other dims and strides

// Makes the plan from the first engine configuration, in the order of cuDNN's heuristics, that is
// deterministic and that the library supports on this GPU. Sets `plan` and `workspace_bytes`. Returns
// false, with graph->reason, if there is none.
bool cudnn_graph_plan(struct cudnn_graph *graph);

// Executes the plan on the handle's stream.
//   ids, data   (n) the graph's tensors with positive ids, and their memory
//   workspace   workspace_bytes of device memory
// Returns false, with graph->reason, if the library reports an error.
bool cudnn_graph_execute(struct cudnn_graph *graph, int n, const int64_t *ids, void *const *data,
                         void *workspace);

#endif
