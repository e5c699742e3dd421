// Tests how kernels/cuda/cublaslt/linear.cu uses cuBLASLt: which fusions run, that results are the same
// without them, and that measuring algorithms changes no bit.
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

extern "C" {
#include <cmocka.h>

#include "base/rng.h"
#include "kernels/ops.h"
}

#include <cublasLt.h>

#include "cudasim.h"
#include "cudasim_cublaslt.h"

namespace {

struct device *gpu;

void require(enum status status) {
    if (status != STATUS_OK)
        fail_msg("%s", status_message());
}

int open_gpu(void **) {
    return cuda_device_open(0, &gpu) == STATUS_OK ? 0 : -1;
}

int close_gpu(void **) {
    device_close(gpu);
    return 0;
}

// A tensor on the device, `offset` elements past a 256-byte aligned address.
class tensor {
  public:
    tensor(enum dtype type, size_t n, uint32_t seed, size_t offset = 0)
        : bytes((n + offset) * dtype_size(type)), first(offset * dtype_size(type)) {
        require(gpu->memory_new(gpu, bytes, "the test", &memory));
        std::vector<char> image(bytes);
        for (size_t i = 0; i < n; i++) {
            float value = float(rng_normal(7, seed, i));
            uint16_t half = type == DTYPE_BF16 ? bf16_from_float(value) : f16_from_float(value);
            const void *from = &half;
            if (type == DTYPE_F32)
                from = &value;
            memcpy(&image[first + i * dtype_size(type)], from, dtype_size(type));
        }
        copy(memory, image.data());
    }
    ~tensor() {
        gpu->memory_delete(gpu, memory, bytes);
    }
    tensor(const tensor &) = delete;
    tensor &operator=(const tensor &) = delete;
    void *at() const {
        return static_cast<char *>(memory) + first;
    }
    std::vector<char> read() const {
        std::vector<char> image(bytes);
        copy(image.data(), memory);
        return std::vector<char>(image.begin() + ptrdiff_t(first), image.end());
    }

  private:
    void copy(void *to, const void *from) const {
        struct stream stream;
        require(stream_init(&stream, gpu));
        require(gpu->copy(&stream, to, from, bytes));
        require(gpu->synchronize(&stream));
        stream_free(&stream);
    }

    void *memory;
    size_t bytes, first;
};

template <class Args>
void run(enum operation operation, enum status (*call)(struct stream *, const Args *), const Args &args) {
    struct stream stream;
    require(stream_init(&stream, gpu));
    require(gpu->ops->workspace_bytes(gpu, operation, &args, &stream.workspace_bytes));
    require(gpu->memory_new(gpu, stream.workspace_bytes, "the test", &stream.workspace));
    require(call(&stream, &args));
    require(gpu->synchronize(&stream));
    gpu->memory_delete(gpu, stream.workspace, stream.workspace_bytes);
    stream_free(&stream);
}

void forward(const struct linear_forward_args &args) {
    run(OP_linear_forward, gpu->ops->linear_forward, args);
}

void backward(const struct linear_backward_args &args) {
    run(OP_linear_backward, gpu->ops->linear_backward, args);
}

// ---- fusions

enum { N = 64, IC = 48, OC = 80 };

class runs {
  public:
    explicit runs(int epilogue_of_interest)
        : epilogue(epilogue_of_interest), before(count()), all(count_all()) {}
    // Checks the number of products since the construction, with this epilogue and with any.
    void expect(int with_it, int with_any) const {
        assert_int_equal(count() - before, with_it);
        assert_int_equal(count_all() - all, with_any);
        assert_int_equal(cudasim_findings(), 0);
    }

  private:
    int count() const {
        return cudasim_cublaslt_runs(epilogue, -1);
    }
    static int count_all() {
        return cudasim_cublaslt_runs(0, -1);
    }
    int epilogue, before, all;
};

struct forward_args_of {
    bool bias, gelu, pre_gelu, residual;
    int epilogue; // expected where GELU is fused
};

void test_forward_fusions(void **) {
    const forward_args_of calls[] = {
        {false, false, false, false, CUBLASLT_EPILOGUE_DEFAULT},
        {true, false, false, false, CUBLASLT_EPILOGUE_BIAS},
        {true, false, false, true, CUBLASLT_EPILOGUE_BIAS},
        {false, false, false, true, CUBLASLT_EPILOGUE_DEFAULT},
        {true, true, false, false, CUBLASLT_EPILOGUE_GELU_BIAS},
        {false, true, false, false, CUBLASLT_EPILOGUE_GELU},
        {true, true, true, false, CUBLASLT_EPILOGUE_GELU_AUX_BIAS},
        {false, true, true, false, CUBLASLT_EPILOGUE_GELU_AUX},
    };
    for (enum dtype type : {DTYPE_F32, DTYPE_BF16, DTYPE_F16})
        for (const forward_args_of &call : calls) {
            tensor out(type, N * OC, 1), pre_gelu(type, N * OC, 2), x(type, N * IC, 3),
                weight(type, OC * IC, 4);
            tensor bias(type, OC, 5), residual(type, N * OC, 6);
            struct linear_forward_args args = {};
            args.out = out.at();
            args.pre_activation = call.pre_gelu ? pre_gelu.at() : nullptr;
            args.x = x.at();
            args.weight = weight.at();
            args.bias = call.bias ? bias.at() : nullptr;
            args.residual = call.residual ? residual.at() : nullptr;
            args.N = N;
            args.IC = IC;
            args.OC = args.out_stride = OC;
            args.activation = call.gelu ? ACTIVATION_GELU : ACTIVATION_NONE;
            args.type = args.out_type = type;
            // In fp32 the library's GELU is not used: its accuracy is not documented.
            bool fuses = type != DTYPE_F32 || !call.gelu;
            runs counted(fuses ? call.epilogue : int(CUBLASLT_EPILOGUE_DEFAULT));
            forward(args);
            counted.expect(1, 1);
        }
}

void test_backward_fusions(void **) {
    for (enum dtype type : {DTYPE_F32, DTYPE_BF16, DTYPE_F16}) {
        tensor dx(type, N * IC, 1), dweight(DTYPE_F32, OC * IC, 2), dbias(DTYPE_F32, OC, 3);
        tensor dout(type, N * OC, 4), x(type, N * IC, 5), weight(type, OC * IC, 6), pre_gelu(type, N * IC, 7);
        struct linear_backward_args args = {};
        args.dx = dx.at();
        args.dweight = dweight.at();
        args.dbias = dbias.at();
        args.dout = dout.at();
        args.x = x.at();
        args.weight = weight.at();
        args.pre_activation = pre_gelu.at();
        args.activation = ACTIVATION_GELU;
        args.N = N;
        args.IC = IC;
        args.OC = args.dout_stride = OC;
        args.type = type;
        runs bias_gradients(CUBLASLT_EPILOGUE_BGRADB), gelu_gradients(CUBLASLT_EPILOGUE_DGELU);
        backward(args);
        bias_gradients.expect(1, 2);
        gelu_gradients.expect(type != DTYPE_F32, 2);
        args.dx = args.dweight = nullptr; // dbias alone is summed without a product
        runs none(CUBLASLT_EPILOGUE_BGRADB);
        backward(args);
        none.expect(0, 0);
    }
}

// The matrices of a batch are one product, where the algorithm for one of them takes as many; else as many
// products. The bits are the same.
void test_batches(void **) {
    constexpr int side = 24, n = 5;
    tensor x(DTYPE_BF16, n * side * side, 1), y(DTYPE_BF16, n * side * side, 2);
    tensor together(DTYPE_BF16, n * side * side, 3), apart(DTYPE_BF16, n * side * side, 4);
    struct matrix_product_args args = {};
    args.x = x.at();
    args.y = args.addend = y.at();
    args.rows = args.columns = args.inner = side;
    args.n_matrices = n;
    args.out_distance = args.x_distance = args.y_distance = args.addend_distance = side * side;
    args.alpha = args.beta = 1;
    args.type = DTYPE_BF16;
    args.out = together.at();
    runs one(CUBLASLT_EPILOGUE_DEFAULT);
    run(OP_matrix_product, gpu->ops->matrix_product, args);
    one.expect(1, 1);
    device_close(gpu); // which forgets its plans
    require(device_open("cuda", 1, 0, &gpu));
    cudasim_cublaslt_limit(CUDASIM_IN_ORDER, n - 1);
    args.out = apart.at();
    runs several(CUBLASLT_EPILOGUE_DEFAULT);
    run(OP_matrix_product, gpu->ops->matrix_product, args);
    several.expect(n, n);
    cudasim_cublaslt_limit(CUDASIM_IN_ORDER, 0);
    assert_true(together.read() == apart.read());
}

// Without fusion (here because the bias is misaligned) and with many rows, some rows are processed at a time,
// the last time fewer. The bits are those of the fused epilogue.
void test_rows_at_a_time(void **) {
    constexpr int rows = 1100, inputs = 8, outputs = 1024;
    for (enum dtype type : {DTYPE_BF16, DTYPE_F16}) {
        tensor fused(type, size_t(rows) * outputs, 1), unfused(type, size_t(rows) * outputs, 2);
        tensor x(type, size_t(rows) * inputs, 3), weight(type, size_t(outputs) * inputs, 4);
        tensor bias(type, outputs, 5), moved_bias(type, outputs, 5, 1);
        struct linear_forward_args args = {};
        args.out = fused.at();
        args.x = x.at();
        args.weight = weight.at();
        args.bias = bias.at();
        args.N = rows;
        args.IC = inputs;
        args.OC = args.out_stride = outputs;
        args.type = args.out_type = type;
        runs once(CUBLASLT_EPILOGUE_BIAS);
        forward(args);
        once.expect(1, 1);
        args.out = unfused.at();
        args.bias = moved_bias.at();
        runs twice(CUBLASLT_EPILOGUE_DEFAULT);
        forward(args);
        twice.expect(2, 2);
        assert_true(fused.read() == unfused.read());
    }
}

// ---- measuring

enum { LARGE = 512 }; // m = n = k: large enough to be measured

// The result of a product of this type on a device opened for it, and the algorithm that ran.
std::vector<char> large_product(enum dtype type, bool backwards, int *algorithm) {
    device_close(gpu);
    require(cuda_device_open(0, &gpu));
    constexpr size_t n = size_t(LARGE) * LARGE;
    tensor x(type, n, 1), y(type, n, 2), bias(type, LARGE, 3), dbias(DTYPE_F32, LARGE, 4);
    tensor out(backwards ? DTYPE_F32 : type, n, 5);
    struct linear_forward_args forward_args = {};
    forward_args.out = out.at();
    forward_args.x = x.at();
    forward_args.weight = y.at();
    forward_args.bias = bias.at();
    forward_args.N = forward_args.IC = forward_args.OC = forward_args.out_stride = LARGE;
    forward_args.type = forward_args.out_type = type;
    struct linear_backward_args backward_args = {};
    backward_args.dweight = out.at();
    backward_args.dbias = dbias.at();
    backward_args.dout = x.at();
    backward_args.x = y.at();
    backward_args.N = backward_args.IC = backward_args.OC = backward_args.dout_stride = LARGE;
    backward_args.type = type;
    size_t bytes;
    require(backwards ? gpu->ops->workspace_bytes(gpu, OP_linear_backward, &backward_args, &bytes)
                      : gpu->ops->workspace_bytes(gpu, OP_linear_forward, &forward_args, &bytes));
    int before[CUDASIM_ALGORITHMS];
    for (int i = 0; i < CUDASIM_ALGORITHMS; i++)
        before[i] = cudasim_cublaslt_runs(0, i);
    backwards ? backward(backward_args) : forward(forward_args);
    *algorithm = -1;
    for (int i = 0; i < CUDASIM_ALGORITHMS; i++)
        if (cudasim_cublaslt_runs(0, i) != before[i]) {
            assert_int_equal(*algorithm, -1); // one call, one product
            assert_int_equal(cudasim_cublaslt_runs(0, i), before[i] + 1);
            *algorithm = i;
        }
    assert_int_equal(cudasim_findings(), 0);
    return out.read();
}

void delay(unsigned in_order, unsigned in_blocks) {
    cudasim_cublaslt_delay(CUDASIM_IN_ORDER, in_order);
    cudasim_cublaslt_delay(CUDASIM_IN_BLOCKS, in_blocks);
}

std::vector<char> expect_chosen(enum dtype type, bool backwards, unsigned in_order, unsigned in_blocks,
                                int expected) {
    int algorithm;
    delay(in_order, in_blocks);
    std::vector<char> result = large_product(type, backwards, &algorithm);
    delay(0, 0);
    assert_int_equal(algorithm, expected);
    return result;
}

// The fastest algorithm with the first one's bits wins; faster ones with other bits do not.
void test_measuring(void **) {
    constexpr unsigned slow = 40000, slower = 80000;
    std::vector<char> first = expect_chosen(DTYPE_BF16, false, slow, slower, CUDASIM_IN_ORDER);
    assert_true(first == expect_chosen(DTYPE_BF16, false, slower, slow, CUDASIM_IN_BLOCKS));
    expect_chosen(DTYPE_F32, false, slower, slow, CUDASIM_IN_BLOCKS);
    expect_chosen(DTYPE_F16, false, slower, slow, CUDASIM_IN_BLOCKS);
    expect_chosen(DTYPE_BF16, true, slower, slow, CUDASIM_IN_BLOCKS); // a split sum is among the candidates
}

void fail_all(enum cudasim_failure how, int after) {
    for (int i = 0; i < CUDASIM_ALGORITHMS; i++)
        cudasim_cublaslt_fail(i, how, after);
}

// A candidate that fails while it is measured is not used, however late it fails; the next one that works
// defines the bits.
void test_failing_candidates(void **) {
    cudasim_cublaslt_fail(CUDASIM_IN_ORDER, CUDASIM_REFUSES, 5); // while it is timed: IN_BLOCKS has its bits
    std::vector<char> first = expect_chosen(DTYPE_BF16, false, 0, 10000, CUDASIM_IN_BLOCKS);
    cudasim_cublaslt_fail(CUDASIM_IN_ORDER, CUDASIM_REFUSES, 0);
    assert_true(first != expect_chosen(DTYPE_BF16, false, 0, 0, CUDASIM_INTERLEAVED));
    fail_all(CUDASIM_WORKS, 0);
    assert_string_equal(status_message(), "");
}

// The status of preparing a large product, on a device opened for it.
enum status prepare_large(void) {
    device_close(gpu);
    require(cuda_device_open(0, &gpu));
    constexpr size_t n = size_t(LARGE) * LARGE;
    tensor x(DTYPE_BF16, n, 1), weight(DTYPE_BF16, n, 2), out(DTYPE_BF16, n, 3);
    struct linear_forward_args args = {};
    args.out = out.at();
    args.x = x.at();
    args.weight = weight.at();
    args.N = args.IC = args.OC = args.out_stride = LARGE;
    args.type = args.out_type = DTYPE_BF16;
    struct stream stream;
    require(stream_init(&stream, gpu));
    enum status status = gpu->ops->workspace_bytes(gpu, OP_linear_forward, &args, &stream.workspace_bytes);
    if (status == STATUS_OK) {
        require(gpu->memory_new(gpu, stream.workspace_bytes, "the test", &stream.workspace));
        status = gpu->ops->linear_forward(&stream, &args);
        gpu->memory_delete(gpu, stream.workspace, stream.workspace_bytes);
    }
    stream_free(&stream);
    return status;
}

void test_no_candidate_works(void **) {
    fail_all(CUDASIM_REFUSES, 0);
    assert_int_equal(prepare_large(), STATUS_UNSUPPORTED);
    assert_non_null(strstr(status_message(), "512 x 512 x 512"));
    status_clear();
    fail_all(CUDASIM_WORKS, 0);
}

// After a fault on the device nothing works any more: the message says so, and of which product. In a process
// of its own, whose device memory cannot even be freed.
void test_a_candidate_that_faults(void **) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        cudasim_cublaslt_fail(CUDASIM_IN_BLOCKS, CUDASIM_FAULTS, 0);
        bool failed = prepare_large() == STATUS_FAILED;
        bool says = strstr(status_message(), "bf16 matrix product of 512 x 512 x 512") &&
                    strstr(status_message(), "unusable for this process");
        _exit(failed && says ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

// ---- grids

// A batch beyond a grid's third dimension is refused by its name before the launch.
void test_grid_limits(void **) {
    constexpr int B = 65536, D = 8;
    tensor q(DTYPE_BF16, size_t(B) * D, 1), out(DTYPE_BF16, size_t(B) * D, 2);
    struct attention_forward_args args = {};
    args.out = out.at();
    args.k = args.v = args.q = q.at();
    args.q_stride = args.q_batch_stride = args.k_stride = args.k_batch_stride = D;
    args.v_stride = args.v_batch_stride = D;
    args.T = args.S = args.H = args.K = 1;
    args.D = D;
    args.type = DTYPE_BF16;
    struct stream stream;
    require(stream_init(&stream, gpu));
    if (getenv("ZERO_TESTS_FULL")) { // minutes of threads, on a simulator with a sanitizer
        args.B = B - 1;
        require(gpu->ops->attention_forward(&stream, &args));
    }
    args.B = B;
    assert_int_equal(gpu->ops->attention_forward(&stream, &args), STATUS_INVALID);
    assert_non_null(strstr(status_message(), "a grid of 1 x 1 x 65536 blocks"));
    assert_non_null(strstr(status_message(), "65535"));
    status_clear();
    require(gpu->synchronize(&stream));
    stream_free(&stream);
    assert_int_equal(cudasim_findings(), 0);
}

// Without memory for measuring, the first algorithm is used.
void test_no_memory_for_measuring(void **) {
    setenv("CUDASIM_MEMORY", "19M", 1); // enough for one copy of the tensors and the workspace
    expect_chosen(DTYPE_BF16, false, 1000, 0, CUDASIM_IN_ORDER);
    unsetenv("CUDASIM_MEMORY");
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_a_candidate_that_faults), // before OpenMP has threads, which a fork lacks
        cmocka_unit_test(test_forward_fusions),
        cmocka_unit_test(test_backward_fusions),
        cmocka_unit_test(test_rows_at_a_time),
        cmocka_unit_test(test_batches),
        cmocka_unit_test(test_measuring),
        cmocka_unit_test(test_no_memory_for_measuring),
        cmocka_unit_test(test_failing_candidates),
        cmocka_unit_test(test_no_candidate_works),
        cmocka_unit_test(test_grid_limits),
    };
    return cmocka_run_group_tests_name("linear layers on a simulated GPU", tests, open_gpu, close_gpu);
}
