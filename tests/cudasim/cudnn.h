// The simulated cuDNN: the interface between its calls, which check descriptors (cudnn.cpp), and the
// arithmetic of a finished graph (cudnn_graph.cpp).
#ifndef CUDASIM_CUDNN_GRAPH_H
#define CUDASIM_CUDNN_GRAPH_H

#include <cstdint>
#include <map>
#include <string>
#include <vector>

extern "C" {
#include "kernels/cuda/cudnn/cudnn.h"
}

namespace cudasim {

struct dnn_tensor {
    int64_t id, dims[4], strides[4], alignment;
    unsigned type; // CUDNN9_DATA_...
    bool is_virtual, by_value;

    int64_t elements() const {
        return dims[0] * dims[1] * dims[2] * dims[3];
    }
    size_t element_bytes() const {
        return type == CUDNN9_DATA_HALF || type == CUDNN9_DATA_BFLOAT16 ? 2
               : type == CUDNN9_DATA_BOOLEAN                            ? 1
                                                                        : 4;
    }
    // Bytes from the first element to the end of the last one.
    size_t extent() const {
        int64_t last = 0;
        for (int i = 0; i < 4; i++)
            last += (dims[i] - 1) * strides[i];
        return size_t(last + 1) * element_bytes();
    }
};

enum dnn_kind { DNN_POINTWISE, DNN_MATMUL, DNN_REDUCTION, DNN_RESHAPE };

struct dnn_operation {
    dnn_kind kind;
    unsigned mode; // of a pointwise operation or reduction
    int64_t axis;
    std::vector<int64_t> inputs; // ids: x, b, t; a, b
    int64_t output;
};

struct dnn_graph {
    std::map<int64_t, dnn_tensor> tensors; // by id
    std::vector<dnn_operation> operations;
};

// Returns the rule that an operation, or the graph, breaks; "" if there is none.
std::string dnn_broken_rule(const dnn_operation &operation, const std::map<int64_t, dnn_tensor> &tensors);
std::string dnn_broken_rule(const dnn_graph &graph);
// Whether cuDNN has an engine for the graph, and the workspace that its kernel needs.
bool dnn_is_supported(const dnn_graph &graph);
// Whether the graph masks keys that are outside a window before the query.
bool dnn_has_window(const dnn_graph &graph);
size_t dnn_workspace(const dnn_graph &graph);
// Computes the graph.
//   data       by id, the memory of all tensors that are not virtual
//   perturbed  rounds one result differently, like an engine that is not deterministic
void dnn_compute(const dnn_graph &graph, const std::map<int64_t, void *> &data, bool perturbed);

} // namespace cudasim

#endif
