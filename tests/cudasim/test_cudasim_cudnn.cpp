// Tests the simulated cuDNN, whose findings a wrong descriptor must give, and how kernels/cuda/cudnn uses it:
// which calls are cuDNN's and which are flash's. Their results are checked against the reference in
// tests/ops/test_kernels_cuda.c.
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

extern "C" {
#include <cmocka.h>

#include "kernels/cuda/cudnn/graph.h"
#include "kernels/device.h"
#include "kernels/ops.h"
}

#include "cudasim.h"
#include "cudasim_cudnn.h"

namespace {

struct device *gpu;
cudnn api;
cudnnContext *handle;

void require(enum status status) {
    if (status != STATUS_OK)
        fail_msg("%s", status_message());
}

int begin(void **) {
    char reason[CUDNN_REASON_BYTES];
    setenv("CUDASIM_CUDNN", "91900", 1);
    return cuda_device_open(0, &gpu) == STATUS_OK && cudnn_load(nullptr, &api, reason, sizeof reason) &&
                   api.Create(&handle) == CUDNN9_STATUS_SUCCESS
               ? 0
               : -1;
}

int end(void **) {
    device_close(gpu);
    return api.Destroy(handle) == CUDNN9_STATUS_SUCCESS ? 0 : -1;
}

// ---- which calls are cuDNN's

constexpr int B = 2, T = 40, H = 2, D = 16;
constexpr size_t C = size_t(H) * D, elements = size_t(B) * T * 3 * C;

// The calls of a training step on one tensor of q, k and v, `offset` bytes past an aligned address.
struct calls {
    struct stream stream = {};
    void *memory;
    size_t bytes = elements * 4 * 5 + 64;
    attention_forward_args forward = {};
    attention_backward_args backward = {};

    calls(enum dtype type, size_t offset, size_t workspace, enum attention_kernel kernel = ATTENTION_CUDNN) {
        const size_t size = dtype_size(type);
        require(stream_init(&stream, gpu));
        require(gpu->memory_new(gpu, bytes, "the test", &memory));
        require(gpu->memory_new(gpu, workspace, "the test", &stream.workspace));
        stream.workspace_bytes = workspace;
        char *q = static_cast<char *>(memory) + offset, *rest = q + elements * size,
             *dq = rest + elements * size;
        forward.out = rest;
        forward.lse = rest + C * B * T * size;
        forward.q = q;
        forward.k = q + C * size;
        forward.v = q + 2 * C * size;
        forward.q_stride = forward.k_stride = forward.v_stride = 3 * C;
        forward.q_batch_stride = forward.k_batch_stride = forward.v_batch_stride = T * 3 * C;
        backward.q_stride = backward.k_stride = backward.v_stride = 3 * C;
        backward.q_batch_stride = backward.k_batch_stride = backward.v_batch_stride = T * 3 * C;
        forward.B = backward.B = B;
        forward.T = forward.S = backward.T = T;
        forward.H = forward.K = backward.H = backward.K = H;
        forward.D = backward.D = D;
        forward.kernel = backward.kernel = kernel;
        forward.type = backward.type = type;
        backward.q = forward.q;
        backward.k = forward.k;
        backward.v = forward.v;
        backward.out = forward.out;
        backward.lse = forward.lse;
        backward.dout = q;
        backward.dq = dq;
        backward.dk = dq + C * size;
        backward.dv = dq + 2 * C * size;
    }
    ~calls() {
        gpu->memory_delete(gpu, stream.workspace, stream.workspace_bytes);
        gpu->memory_delete(gpu, memory, bytes);
        stream_free(&stream);
    }
    calls(const calls &) = delete;
    calls &operator=(const calls &) = delete;

    // How many of the two calls cuDNN got.
    int by_cudnn() {
        const int before = cudasim_cudnn_executions();
        require(gpu->ops->attention_forward(&stream, &forward));
        require(gpu->ops->attention_backward(&stream, &backward));
        require(gpu->synchronize(&stream));
        return cudasim_cudnn_executions() - before;
    }
};

constexpr size_t enough = size_t(1) << 20;

void test_which_calls_are_cudnns(void **) {
    const attention_shape shape = {B, T, H, H, D, 0, DTYPE_BF16};
    cudnn_support support;
    require(gpu->cudnn_support(gpu, &shape, &support));
    assert_true(support.usable);
    assert_string_equal(support.version, "9.19.0");
    assert_int_equal(calls(DTYPE_BF16, 0, enough, ATTENTION_FLASH).by_cudnn(), 0);
    assert_int_equal(calls(DTYPE_BF16, 0, enough).by_cudnn(), 2);
    assert_int_equal(calls(DTYPE_F16, 0, enough).by_cudnn(), 2);
    assert_int_equal(calls(DTYPE_BF16, 16, enough).by_cudnn(), 2);
    assert_int_equal(calls(DTYPE_F32, 0, enough).by_cudnn(), 0);
    assert_int_equal(calls(DTYPE_BF16, 8, enough).by_cudnn(), 0); // not aligned to 16 bytes
    assert_int_equal(calls(DTYPE_BF16, 0, 2048).by_cudnn(), 1);   // room for forward's workspace only
    calls grouped(DTYPE_BF16, 0, enough); // one key-value head for both query heads, a window, other strides
    grouped.forward.K = grouped.backward.K = 1;
    grouped.forward.window = grouped.backward.window = T / 2;
    grouped.forward.v_stride = grouped.backward.v_stride = 2 * C;
    assert_int_equal(grouped.by_cudnn(), 2);
    grouped.backward.k_stride -= 4; // rows that are not aligned to 16 bytes
    assert_int_equal(grouped.by_cudnn(), 1);
    calls cached(DTYPE_BF16, 0, enough);
    cached.forward.T = T - 1;
    cached.forward.q_batch_stride -= 3 * C;
    assert_int_equal(cached.by_cudnn(), 1);
}

void test_workspace(void **) {
    calls c(DTYPE_BF16, 0, enough, ATTENTION_FLASH);
    size_t flash, both;
    require(gpu->ops->workspace_bytes(gpu, OP_attention_backward, &c.backward, &flash));
    c.backward.kernel = ATTENTION_CUDNN;
    require(gpu->ops->workspace_bytes(gpu, OP_attention_backward, &c.backward, &both));
    assert_int_equal(flash, sizeof(float) * B * T * H);
    // delta, padded, and (B, H, T, T) of 16 bits with T padded to 128 and 64, and counters
    assert_int_equal(both, 768 + size_t(2) * B * H * 128 * 64 + 256);
    c.backward.K = 1; // and the gradients of k and v of each query head
    require(gpu->ops->workspace_bytes(gpu, OP_attention_backward, &c.backward, &both));
    assert_int_equal(both, 768 + size_t(2) * B * H * (128 * 64 + 2 * T * D) + 256);
}

void test_shapes_that_are_refused(void **) {
    const attention_shape wide = {1, 8, 1, 1, 256, 0, DTYPE_BF16}, odd = {1, 8, 1, 1, 20, 0, DTYPE_BF16},
                          single = {1, 1, 1, 1, 16, 0, DTYPE_BF16}, fp32 = {1, 8, 1, 1, 16, 0, DTYPE_F32};
    cudnn_support support;
    require(gpu->cudnn_support(gpu, &wide, &support));
    assert_false(support.usable);
    assert_non_null(strstr(support.reason, "no engine computes head dimensions above 128"));
    for (const attention_shape &shape : {odd, single, fp32}) {
        require(gpu->cudnn_support(gpu, &shape, &support));
        assert_false(support.usable);
        assert_non_null(strstr(support.reason, "multiples of 8"));
    }
    assert_int_equal(cudasim_findings(), 0);
}

void test_loading(void **) {
    cudnn other;
    char reason[CUDNN_REASON_BYTES];
    assert_false(cudnn_load("libcudnn-of-no-machine.so.9", &other, reason, sizeof reason));
    assert_non_null(strstr(reason, "libcudnn-of-no-machine.so.9 was not found"));
    assert_false(cudnn_load("libm.so.6", &other, reason, sizeof reason));
    assert_non_null(strstr(reason, "no function cudnnGetVersion"));
    setenv("CUDASIM_CUDNN", "90700", 1);
    assert_false(cudnn_load(nullptr, &other, reason, sizeof reason));
    assert_string_equal(reason, "its version is 9.7.0, and 9.12.0 or newer is needed");
    setenv("CUDASIM_CUDNN", "91900", 1);
}

// ---- findings

constexpr unsigned SUCCESS = CUDNN9_STATUS_SUCCESS;

void expect_finding(unsigned status, const char *text) {
    assert_int_not_equal(status, SUCCESS);
    assert_int_equal(cudasim_findings(), 1);
    if (!strstr(cudasim_last_finding(), text))
        fail_msg("the finding is \"%s\", expected \"%s\"", cudasim_last_finding(), text);
    cudasim_reset();
}

void *create(unsigned type) {
    void *made;
    assert_int_equal(api.BackendCreateDescriptor(type, &made), SUCCESS);
    return made;
}

void destroy(void *descriptor) {
    assert_int_equal(api.BackendDestroyDescriptor(descriptor), SUCCESS);
}

void test_wrong_attributes(void **) {
    const int64_t dims[] = {1, 1, 8, 8}, zero_stride[] = {64, 64, 0, 1}, id = 1, alignment = 16;
    const unsigned type = CUDNN9_DATA_HALF;
    void *tensor = create(CUDNN9_BACKEND_TENSOR_DESCRIPTOR);
    auto set = [&](unsigned name, unsigned kind, int64_t count, const void *value) {
        return api.BackendSetAttribute(tensor, name, kind, count, value);
    };
    expect_finding(set(CUDNN9_ATTR_TENSOR_DIMENSIONS, CUDNN9_TYPE_INT64, 3, dims), "4 to 4");
    expect_finding(set(CUDNN9_ATTR_TENSOR_DATA_TYPE, CUDNN9_TYPE_INT64, 1, &id), "expected type 1");
    expect_finding(set(CUDNN9_ATTR_MATMUL_COMP_TYPE, CUDNN9_TYPE_DATA_TYPE, 1, &type),
                   "has no attribute 1500");
    assert_int_equal(set(CUDNN9_ATTR_TENSOR_DIMENSIONS, CUDNN9_TYPE_INT64, 4, dims), SUCCESS);
    assert_int_equal(set(CUDNN9_ATTR_TENSOR_STRIDES, CUDNN9_TYPE_INT64, 4, zero_stride), SUCCESS);
    assert_int_equal(set(CUDNN9_ATTR_TENSOR_DATA_TYPE, CUDNN9_TYPE_DATA_TYPE, 1, &type), SUCCESS);
    assert_int_equal(set(CUDNN9_ATTR_TENSOR_UNIQUE_ID, CUDNN9_TYPE_INT64, 1, &id), SUCCESS);
    expect_finding(api.BackendFinalize(tensor), "lacks attribute 900");
    assert_int_equal(set(CUDNN9_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN9_TYPE_INT64, 1, &alignment), SUCCESS);
    expect_finding(api.BackendFinalize(tensor), "a dimension or stride is below 1");
    void *node = create(CUDNN9_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    expect_finding(api.BackendSetAttribute(node, CUDNN9_ATTR_OPERATION_RESHAPE_XDESC,
                                           CUDNN9_TYPE_BACKEND_DESCRIPTOR, 1, &tensor),
                   "is not finalized");
    assert_int_equal(set(CUDNN9_ATTR_TENSOR_STRIDES, CUDNN9_TYPE_INT64, 4, dims), SUCCESS);
    assert_int_equal(api.BackendFinalize(tensor), SUCCESS);
    expect_finding(set(CUDNN9_ATTR_TENSOR_UNIQUE_ID, CUDNN9_TYPE_INT64, 1, &id), "is finalized");
    expect_finding(api.BackendFinalize(tensor), "finalized already");
    void *pointwise = create(CUDNN9_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    expect_finding(api.BackendSetAttribute(pointwise, CUDNN9_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
                                           CUDNN9_TYPE_BACKEND_DESCRIPTOR, 1, &tensor),
                   "of type 17, not 0");
    destroy(pointwise);
    destroy(node);
    destroy(tensor);
    expect_finding(api.BackendDestroyDescriptor(tensor), "does not exist");
}

// A graph of one product, q k^T, that callers break.
struct product {
    cudnn_graph graph;
    void *q, *k, *s;

    explicit product(int64_t inner = D) {
        cudnn_target target = {};
        target.handle = handle;
        cudnn_graph_init(&graph, &api, target);
        q = tensor(1, T, D, CUDNN9_DATA_BFLOAT16);
        k = tensor(2, inner, T, CUDNN9_DATA_BFLOAT16);
        s = tensor(3, T, T, CUDNN9_DATA_FLOAT);
    }
    ~product() {
        cudnn_graph_free(&graph);
    }
    product(const product &) = delete;
    product &operator=(const product &) = delete;
    void *tensor(int64_t id, int64_t rows, int64_t columns, unsigned type) {
        cudnn_tensor made = {};
        made.id = id;
        made.dims[0] = made.dims[1] = 1;
        made.dims[2] = rows;
        made.dims[3] = columns;
        made.strides[0] = made.strides[1] = rows * columns;
        made.strides[2] = columns;
        made.strides[3] = 1;
        made.type = type;
        return cudnn_add_tensor(&graph, &made);
    }
};

void test_wrong_graphs(void **) {
    {
        product p(D + 1);
        cudnn_add_matmul(&p.graph, p.q, p.k, p.s);
        expect_finding(p.graph.failed, "the dimensions of A, B and C do not agree");
        assert_false(cudnn_graph_plan(&p.graph));
        assert_non_null(strstr(p.graph.reason, "CUDNN_STATUS_BAD_PARAM"));
    }
    {
        product p;
        cudnn_tensor heads = {};
        heads.id = 4;
        heads.dims[0] = 1, heads.dims[1] = 3, heads.dims[2] = D, heads.dims[3] = T;
        heads.strides[0] = 3 * D * T, heads.strides[1] = D * T, heads.strides[2] = T, heads.strides[3] = 1;
        heads.type = CUDNN9_DATA_BFLOAT16;
        cudnn_add_matmul(&p.graph, p.q, cudnn_add_tensor(&p.graph, &heads), p.s);
        expect_finding(p.graph.failed, "the dimensions of A, B and C do not agree");
    }
    {
        product p;
        cudnn_add_matmul(&p.graph, p.tensor(0, T, D, CUDNN9_DATA_BFLOAT16), p.k, p.s);
        assert_false(cudnn_graph_plan(&p.graph));
        expect_finding(p.graph.failed, "is read before an operation wrote it");
    }
    {
        product p;
        cudnn_add_matmul(&p.graph, p.q, p.k, p.s);
        cudnn_add_matmul(&p.graph, p.q, p.k, p.s);
        assert_false(cudnn_graph_plan(&p.graph));
        expect_finding(p.graph.failed, "is written twice");
    }
    {
        product p;
        cudnn_pointwise exponential = {};
        exponential.mode = CUDNN9_POINTWISE_EXP;
        exponential.x = p.tensor(3, T, T, CUDNN9_DATA_HALF);
        exponential.y = p.tensor(4, T, T, CUDNN9_DATA_FLOAT);
        cudnn_add_matmul(&p.graph, p.q, p.k, p.s);
        cudnn_add_pointwise(&p.graph, &exponential);
        assert_false(cudnn_graph_plan(&p.graph));
        expect_finding(p.graph.failed, "two different tensors have the id 3");
    }
    {
        product p;
        cudnn_pointwise wrong = {};
        wrong.mode = CUDNN9_POINTWISE_SUB;
        wrong.x = p.s;
        wrong.y = p.tensor(4, T, T, CUDNN9_DATA_FLOAT);
        cudnn_add_pointwise(&p.graph, &wrong);
        expect_finding(p.graph.failed, "pointwise mode 9 with 1 operands");
    }
}

void test_wrong_executions(void **) {
    struct stream stream;
    void *memory;
    require(stream_init(&stream, gpu));
    require(gpu->memory_new(gpu, enough, "the test", &memory));
    char *at = static_cast<char *>(memory);
    assert_int_equal(api.SetStream(handle, static_cast<CUstream_st *>(stream.queue)), SUCCESS);
    product p;
    cudnn_add_matmul(&p.graph, p.q, p.k, p.s);
    assert_true(cudnn_graph_plan(&p.graph));
    auto execute = [&](int n, char *q, char *s, void *workspace) {
        const int64_t ids[] = {1, 2, 3};
        void *const data[] = {q, at + 4096, s};
        p.graph.failed = false;
        return !cudnn_graph_execute(&p.graph, n, ids, data, workspace);
    };
    auto faults = [&](char *q, char *s, void *workspace) { // when it runs
        assert_false(execute(3, q, s, workspace));
        const unsigned status = gpu->synchronize(&stream);
        status_clear();
        return status;
    };
    assert_false(execute(3, at, at + 8192, at + 65536));
    require(gpu->synchronize(&stream));
    expect_finding(execute(2, at, at + 8192, at + 65536), "no data for tensor 3");
    expect_finding(execute(3, at + 8, at + 8192, at + 65536), "not aligned to 16 bytes");
    expect_finding(faults(at, at + 8192, nullptr), "cuDNN's workspace");
    expect_finding(faults(at, at + 8192, at + enough - 128), "cuDNN's workspace");
    expect_finding(faults(at, at + enough - 256, at + 65536), "a tensor of cuDNN");
    gpu->memory_delete(gpu, memory, enough);
    stream_free(&stream);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_which_calls_are_cudnns),  cmocka_unit_test(test_workspace),
        cmocka_unit_test(test_shapes_that_are_refused), cmocka_unit_test(test_loading),
        cmocka_unit_test(test_wrong_attributes),        cmocka_unit_test(test_wrong_graphs),
        cmocka_unit_test(test_wrong_executions),
    };
    return cmocka_run_group_tests_name("cuDNN on the host", tests, begin, end);
}
