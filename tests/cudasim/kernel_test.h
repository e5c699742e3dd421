// Shared by the simulator's own tests: a stream, launches, and arrays on the device.
#ifndef CUDASIM_KERNEL_TEST_H
#define CUDASIM_KERNEL_TEST_H

#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <vector>

extern "C" {
#include <cmocka.h>
}

#include <cuda_runtime.h>

#include "cudasim.h"

// A stream. The destructor waits for its work and destroys it.
struct test_stream {
    cudaStream_t at = nullptr;
    test_stream() {
        assert_int_equal(cudaStreamCreateWithFlags(&at, cudaStreamNonBlocking), cudaSuccess);
    }
    ~test_stream() {
        cudaStreamSynchronize(at);
        cudaStreamDestroy(at);
    }
    test_stream(const test_stream &) = delete;
    operator cudaStream_t() const {
        return at;
    }
    cudaError_t finish() const {
        return cudaStreamSynchronize(at);
    }
};

template <class... Parameters, class... Arguments>
cudaError_t launch_shared(cudaStream_t stream, size_t shared_bytes, void (*kernel)(Parameters...), dim3 grid,
                          dim3 block, Arguments... arguments) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

template <class... Parameters, class... Arguments>
cudaError_t launch(cudaStream_t stream, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                   Arguments... arguments) {
    return launch_shared(stream, 0, kernel, grid, block, arguments...);
}

template <class T> struct device_array {
    T *at = nullptr;
    size_t n;
    explicit device_array(size_t n_) : n(n_) {
        assert_int_equal(cudaMalloc(reinterpret_cast<void **>(&at), n * sizeof(T)), cudaSuccess);
    }
    device_array(const test_stream &stream, const std::vector<T> &values) : device_array(values.size()) {
        assert_int_equal(cudaMemcpyAsync(at, values.data(), n * sizeof(T), cudaMemcpyHostToDevice, stream),
                         cudaSuccess);
    }
    ~device_array() {
        cudaFree(at);
    }
    device_array(const device_array &) = delete;
    operator T *() const {
        return at;
    }
    std::vector<T> read(const test_stream &stream) const {
        std::vector<T> values(n);
        assert_int_equal(cudaMemcpyAsync(values.data(), at, n * sizeof(T), cudaMemcpyDeviceToHost, stream),
                         cudaSuccess);
        assert_int_equal(stream.finish(), cudaSuccess);
        return values;
    }
};

#endif
