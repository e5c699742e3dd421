// The simulated cuDNN's arithmetic: a graph's operations one after the other, by plain loops in fp32, rounded
// where a tensor has 16 bits. It knows matrix products, pointwise operations, reductions and reshapes, not
// attention: what the project's graphs compute is what their descriptors say.
#include "tests/cudasim/cudnn.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "base/dtype.h"
#include "tests/cudasim/finding.h"

namespace cudasim {

namespace {

constexpr int64_t widest_head = 128; // of the engines that are simulated
constexpr int64_t tile_rows = 128, tile_columns = 64;
constexpr size_t counters = 256;

using values = std::vector<float>; // of a tensor, row-major

float rounded(unsigned type, float value) {
    return type == CUDNN9_DATA_HALF       ? f16_to_float(f16_from_float(value))
           : type == CUDNN9_DATA_BFLOAT16 ? bf16_to_float(bf16_from_float(value))
                                          : value;
}

float read(unsigned type, const char *at) {
    uint16_t bits;
    float value;
    if (type == CUDNN9_DATA_FLOAT)
        return memcpy(&value, at, sizeof value), value;
    if (type == CUDNN9_DATA_INT32) {
        int32_t number;
        memcpy(&number, at, sizeof number);
        return float(number);
    }
    memcpy(&bits, at, sizeof bits);
    return type == CUDNN9_DATA_HALF ? f16_to_float(bits) : bf16_to_float(bits);
}

void write(unsigned type, char *at, float value) {
    uint16_t bits = type == CUDNN9_DATA_HALF ? f16_from_float(value) : bf16_from_float(value);
    if (type == CUDNN9_DATA_FLOAT)
        memcpy(at, &value, sizeof value);
    else
        memcpy(at, &bits, sizeof bits);
}

// Calls body(position in row-major order, offset in elements by the strides) for each element.
template <class F> void for_each(const dnn_tensor &t, F body) {
    int64_t position = 0;
    for (int64_t i = 0; i < t.dims[0]; i++)
        for (int64_t j = 0; j < t.dims[1]; j++)
            for (int64_t k = 0; k < t.dims[2]; k++)
                for (int64_t l = 0; l < t.dims[3]; l++)
                    body(position++,
                         i * t.strides[0] + j * t.strides[1] + k * t.strides[2] + l * t.strides[3]);
}

// The position of an element in a tensor that is broadcast to `to`. On the axis of heads several neighbours
// may share one.
int64_t broadcast(const dnn_tensor &from, const dnn_tensor &to, int64_t position) {
    int64_t at[4], result = 0;
    for (int i = 3; i >= 0; i--) {
        at[i] = position % to.dims[i];
        position /= to.dims[i];
    }
    for (int i = 0; i < 4; i++)
        result = result * from.dims[i] + at[i] / (to.dims[i] / from.dims[i]);
    return result;
}

int64_t index_on_axis(const dnn_tensor &t, int64_t position, int64_t axis) {
    for (int64_t i = 3; i > axis; i--)
        position /= t.dims[i];
    return position % t.dims[axis];
}

float apply(unsigned mode, float x, float b, float t) {
    switch (mode) {
    case CUDNN9_POINTWISE_ADD:
        return x + b;
    case CUDNN9_POINTWISE_SUB:
        return x - b;
    case CUDNN9_POINTWISE_MUL:
        return x * b;
    case CUDNN9_POINTWISE_DIV:
        return x / b;
    case CUDNN9_POINTWISE_EXP:
        return expf(x);
    case CUDNN9_POINTWISE_LOG:
        return logf(x);
    case CUDNN9_POINTWISE_CMP_GT:
        return x > b;
    case CUDNN9_POINTWISE_CMP_GE:
        return x >= b;
    default: // BINARY_SELECT; dnn_broken_rule refuses others
        return t != 0 ? x : b;
    }
}

void multiply(const dnn_tensor &a, const dnn_tensor &b, const values &x, const values &y, values *out) {
    const int64_t rows = a.dims[2], inner = a.dims[3], columns = b.dims[3];
    for (int64_t batch = 0; batch < a.dims[0] * a.dims[1]; batch++) {
        const int64_t shared = batch / (a.dims[1] / b.dims[1]); // heads that share one of b's are neighbours
        for (int64_t i = 0; i < rows; i++) {
            float *to = out->data() + (batch * rows + i) * columns;
            for (int64_t k = 0; k < inner; k++) {
                const float factor = x[size_t((batch * rows + i) * inner + k)];
                const float *from = y.data() + (shared * inner + k) * columns;
                for (int64_t j = 0; j < columns; j++)
                    to[j] += factor * from[j];
            }
        }
    }
}

void reduce(unsigned mode, const dnn_tensor &from, const dnn_tensor &to, const values &x, values *out) {
    std::vector<bool> begun(out->size());
    for (int64_t i = 0; i < from.elements(); i++) {
        const size_t at = size_t(broadcast(to, from, i));
        float &sum = (*out)[at];
        const float value = x[size_t(i)];
        sum = !begun[at] ? value : mode == CUDNN9_REDUCE_TENSOR_MAX ? fmaxf(sum, value) : sum + value;
        begun[at] = true;
    }
}

// y's elements in memory order are x's.
void reshape(const dnn_tensor &from, const dnn_tensor &to, const values &x, values *out) {
    values memory(std::max(from.extent() / from.element_bytes(), to.extent() / to.element_bytes()));
    for_each(from, [&](int64_t position, int64_t offset) { memory[size_t(offset)] = x[size_t(position)]; });
    for_each(to,
             [&](int64_t position, int64_t offset) { (*out)[size_t(position)] = memory[size_t(offset)]; });
}

void pointwise(const dnn_operation &operation, const dnn_graph &graph, std::map<int64_t, values> &all,
               values *out) {
    const dnn_tensor &to = graph.tensors.at(operation.output);
    const values *in[3] = {};
    const dnn_tensor *shapes[3] = {};
    for (size_t i = 0; i < operation.inputs.size(); i++) {
        in[i] = &all.at(operation.inputs[i]);
        shapes[i] = &graph.tensors.at(operation.inputs[i]);
    }
    for (int64_t i = 0; i < to.elements(); i++) {
        float operands[3] = {};
        for (int k = 0; k < 3; k++)
            if (in[k])
                operands[k] = (*in[k])[size_t(broadcast(*shapes[k], to, i))];
        (*out)[size_t(i)] = operation.mode == CUDNN9_POINTWISE_GEN_INDEX
                                ? float(index_on_axis(to, i, operation.axis))
                                : apply(operation.mode, operands[0], operands[1], operands[2]);
    }
}

bool is_shared_by_heads(const dnn_tensor &few, const dnn_tensor &many) {
    return many.dims[1] % few.dims[1] == 0;
}

bool is_broadcast(const dnn_tensor &from, const dnn_tensor &to) {
    for (int i = 0; i < 4; i++)
        if (from.dims[i] != to.dims[i] && from.dims[i] != 1)
            return false;
    return true;
}

bool is_known(const dnn_operation &o) {
    const unsigned binary[] = {CUDNN9_POINTWISE_ADD, CUDNN9_POINTWISE_SUB,    CUDNN9_POINTWISE_MUL,
                               CUDNN9_POINTWISE_DIV, CUDNN9_POINTWISE_CMP_GT, CUDNN9_POINTWISE_CMP_GE};
    const unsigned unary[] = {CUDNN9_POINTWISE_EXP, CUDNN9_POINTWISE_LOG, CUDNN9_POINTWISE_GEN_INDEX};
    for (unsigned mode : binary)
        if (o.mode == mode)
            return o.inputs.size() == 2;
    for (unsigned mode : unary)
        if (o.mode == mode)
            return o.inputs.size() == 1;
    return o.mode == CUDNN9_POINTWISE_BINARY_SELECT && o.inputs.size() == 3;
}

// Neighbouring heads are added up: the gradients of a key-value head from those of its query heads.
bool is_sum_of_heads(const dnn_operation &o, const dnn_tensor &from, const dnn_tensor &to) {
    return o.mode == CUDNN9_REDUCE_TENSOR_ADD && from.dims[0] == to.dims[0] && is_shared_by_heads(to, from) &&
           from.dims[2] == to.dims[2] && from.dims[3] == to.dims[3];
}

} // namespace

std::string dnn_broken_rule(const dnn_operation &o, const std::map<int64_t, dnn_tensor> &tensors) {
    const dnn_tensor &x = tensors.at(o.inputs[0]), &y = tensors.at(o.output);
    switch (o.kind) {
    case DNN_MATMUL: {
        const dnn_tensor &b = tensors.at(o.inputs[1]);
        const bool agree = x.dims[0] == b.dims[0] && is_shared_by_heads(b, x) && x.dims[3] == b.dims[2] &&
                           y.dims[0] == x.dims[0] && y.dims[1] == x.dims[1] && y.dims[2] == x.dims[2] &&
                           y.dims[3] == b.dims[3];
        return agree ? "" : "the dimensions of A, B and C do not agree";
    }
    case DNN_REDUCTION:
        return is_broadcast(y, x) || is_sum_of_heads(o, x, y)
                   ? ""
                   : "the result is no reduction of the operand's dimensions";
    case DNN_RESHAPE:
        return x.elements() == y.elements() ? "" : "the reshaped tensor has another number of elements";
    case DNN_POINTWISE:
        break;
    }
    if (!is_known(o))
        return text("pointwise mode %u with %zu operands is not simulated", o.mode, o.inputs.size());
    for (int64_t id : o.inputs)
        if (!is_broadcast(tensors.at(id), y))
            return "an operand does not broadcast to the result";
    return "";
}

// Every virtual tensor is the result of one earlier operation; every other one is written at most once, and
// not read before.
std::string dnn_broken_rule(const dnn_graph &graph) {
    std::set<int64_t> written, used;
    for (const dnn_operation &operation : graph.operations) {
        for (int64_t id : operation.inputs) {
            if (graph.tensors.at(id).is_virtual && !written.count(id))
                return text("the virtual tensor %lld is read before an operation wrote it",
                            static_cast<long long>(id));
            used.insert(id);
        }
        if (used.count(operation.output) || !written.insert(operation.output).second)
            return text("tensor %lld is written twice, or after it was read",
                        static_cast<long long>(operation.output));
    }
    return "";
}

bool dnn_is_supported(const dnn_graph &graph) {
    for (const dnn_operation &operation : graph.operations)
        if (operation.kind == DNN_MATMUL) { // the first: queries times keys
            const dnn_tensor &q = graph.tensors.at(operation.inputs[0]);
            return q.dims[3] <= widest_head && q.element_bytes() == 2;
        }
    return false;
}

bool dnn_has_window(const dnn_graph &graph) {
    for (const dnn_operation &operation : graph.operations)
        if (operation.kind == DNN_POINTWISE && operation.mode == CUDNN9_POINTWISE_CMP_GT)
            return true;
    return false;
}

size_t dnn_workspace(const dnn_graph &graph) {
    size_t bytes = counters;
    const dnn_operation *product = nullptr;
    bool is_backward = false;
    for (const dnn_operation &operation : graph.operations) {
        if (operation.kind == DNN_MATMUL && !product)
            product = &operation;
        is_backward |= operation.kind == DNN_RESHAPE;
        const dnn_tensor &x = graph.tensors.at(operation.inputs[0]), &y = graph.tensors.at(operation.output);
        if (operation.kind == DNN_REDUCTION &&
            x.dims[1] != y.dims[1]) // of each head, before they are added up
            bytes += size_t(x.elements()) * x.element_bytes();
    }
    if (is_backward && product) {
        const dnn_tensor &scores = graph.tensors.at(product->output);
        const int64_t rows = (scores.dims[2] + tile_rows - 1) / tile_rows * tile_rows;
        const int64_t columns = (scores.dims[3] + tile_columns - 1) / tile_columns * tile_columns;
        bytes += size_t(scores.dims[0] * scores.dims[1] * rows * columns) * 2;
    }
    return bytes;
}

void dnn_compute(const dnn_graph &graph, const std::map<int64_t, void *> &data, bool perturbed) {
    std::map<int64_t, values> all;
    for (const auto &[id, tensor] : graph.tensors) {
        all[id].resize(size_t(tensor.elements()));
        if (tensor.is_virtual)
            continue;
        const char *base = static_cast<const char *>(data.at(id));
        for_each(tensor, [&, &t = tensor, &to = all[id]](int64_t position, int64_t offset) {
            to[size_t(position)] = read(t.type, base + offset * int64_t(t.element_bytes()));
        });
    }
    for (const dnn_operation &operation : graph.operations) {
        const dnn_tensor &to = graph.tensors.at(operation.output), &x = graph.tensors.at(operation.inputs[0]);
        values &out = all.at(operation.output);
        std::fill(out.begin(), out.end(), 0.0f);
        const values &first = all.at(operation.inputs[0]);
        if (operation.kind == DNN_MATMUL)
            multiply(x, graph.tensors.at(operation.inputs[1]), first, all.at(operation.inputs[1]), &out);
        else if (operation.kind == DNN_REDUCTION)
            reduce(operation.mode, x, to, first, &out);
        else if (operation.kind == DNN_RESHAPE)
            reshape(x, to, first, &out);
        else
            pointwise(operation, graph, all, &out);
        for (float &value : out)
            value = rounded(to.type, value);
        if (to.is_virtual)
            continue;
        if (perturbed)
            out[0] = out[0] * 1.25f + 1;
        char *base = static_cast<char *>(data.at(operation.output));
        for_each(to, [&](int64_t position, int64_t offset) {
            write(to.type, base + offset * int64_t(to.element_bytes()), out[size_t(position)]);
        });
    }
}

} // namespace cudasim
