// Tests the simulated device: its properties, the limits of launches and memory, and machines without a
// device.
#include <cstdlib>
#include <cstring>

#include "tests/cudasim/kernel_test.h"

namespace {

__global__ void nothing() {}

__global__ void with_static_shared(int *out) {
    __shared__ int values[2048];
    values[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x] = values[threadIdx.x];
}

void limits_of_a_launch(void **) {
    test_stream stream;
    assert_int_equal(launch(stream, nothing, 1, 1024), cudaSuccess);
    assert_int_equal(launch(stream, nothing, dim3(1, 1, 65535), 1), cudaSuccess);
    assert_int_equal(launch(stream, nothing, dim3(1, 65536), 1), cudaErrorInvalidConfiguration);
    assert_int_equal(launch(stream, nothing, 0, 1), cudaErrorInvalidConfiguration);
    assert_int_equal(launch(stream, nothing, 1, 0), cudaErrorInvalidConfiguration);
    assert_int_equal(launch(stream, nothing, 1, 1025), cudaErrorInvalidConfiguration);
    assert_int_equal(launch(stream, nothing, 1, dim3(32, 33)), cudaErrorInvalidConfiguration);
    assert_int_equal(launch(stream, nothing, 1, dim3(1, 1, 65)), cudaErrorInvalidConfiguration);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    assert_int_equal(stream.finish(), cudaSuccess);
    assert_int_equal(cudasim_findings(), 0);
}

void limits_of_shared_memory(void **) {
    test_stream stream;
    const int most = 227 * 1024, fixed = 2048 * 4;
    assert_int_equal(launch_shared(stream, 48 * 1024, nothing, 1, 1), cudaSuccess);
    assert_int_equal(launch_shared(stream, 48 * 1024 + 1, nothing, 1, 1), cudaErrorInvalidValue);
    assert_int_equal(cudaFuncSetAttribute(nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, most + 1),
                     cudaErrorInvalidValue);
    assert_int_equal(cudaFuncSetAttribute(nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, most),
                     cudaSuccess);
    assert_int_equal(launch_shared(stream, most, nothing, 1, 1), cudaSuccess);
    assert_int_equal(launch_shared(stream, most + 1, nothing, 1, 1), cudaErrorInvalidValue);
    // The kernel's own __shared__ variables count too.
    device_array<int> out(64);
    cudaFuncAttributes attributes;
    assert_int_equal(cudaFuncGetAttributes(&attributes, with_static_shared), cudaSuccess);
    assert_int_equal(attributes.sharedSizeBytes, fixed);
    assert_int_equal(launch_shared(stream, 48 * 1024 - fixed, with_static_shared, 1, 64, out.at),
                     cudaSuccess);
    assert_int_equal(launch_shared(stream, 48 * 1024 - fixed + 1, with_static_shared, 1, 64, out.at),
                     cudaErrorInvalidValue);
    assert_int_equal(cudaFuncSetAttribute(with_static_shared, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          most - fixed + 1),
                     cudaErrorInvalidValue);
    (void)cudaGetLastError();
    assert_int_equal(stream.finish(), cudaSuccess);
}

void limit_of_memory(void **) {
    setenv("CUDASIM_MEMORY", "1M", 1);
    size_t available, total;
    assert_int_equal(cudaMemGetInfo(&available, &total), cudaSuccess);
    assert_int_equal(total, 1 << 20);
    assert_int_equal(available, 1 << 20);
    void *first, *second, *none;
    assert_int_equal(cudaMalloc(&first, 600 << 10), cudaSuccess);
    assert_int_equal(cudaMalloc(&none, 600 << 10), cudaErrorMemoryAllocation);
    assert_null(none);
    assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
    assert_int_equal(cudaGetLastError(), cudaSuccess); // cleared by the call before
    assert_int_equal(cudaMalloc(&second, 424 << 10), cudaSuccess);
    assert_int_equal(cudaMemGetInfo(&available, &total), cudaSuccess);
    assert_int_equal(available, 0);
    assert_int_equal(cudaFree(first), cudaSuccess);
    assert_int_equal(cudaMalloc(&first, 600 << 10), cudaSuccess);
    assert_int_equal(cudaFree(first), cudaSuccess);
    assert_int_equal(cudaFree(second), cudaSuccess);
    unsetenv("CUDASIM_MEMORY");
    assert_int_equal(cudaMalloc(&none, size_t(9) << 30), cudaErrorMemoryAllocation);
    assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
}

// New memory is filled with NaN, and aligned to 256 bytes and to no more.
void memory_is_poisoned_and_aligned(void **) {
    test_stream stream;
    device_array<unsigned> x(1000);
    for (unsigned word : x.read(stream))
        assert_int_equal(word, 0xffffffff);
    assert_int_equal(reinterpret_cast<uintptr_t>(x.at) % 512, 256);
    void *nothing_at_all = &stream;
    assert_int_equal(cudaMalloc(&nothing_at_all, 0), cudaSuccess);
    assert_null(nothing_at_all);
    assert_int_equal(cudaFree(nullptr), cudaSuccess);
}

void pointer_attributes(void **) {
    device_array<int> device(4);
    int host[4];
    void *pinned;
    cudaPointerAttributes attributes;
    assert_int_equal(cudaPointerGetAttributes(&attributes, device.at + 3), cudaSuccess);
    assert_int_equal(attributes.type, cudaMemoryTypeDevice);
    assert_ptr_equal(attributes.devicePointer, device.at + 3);
    assert_int_equal(cudaPointerGetAttributes(&attributes, host), cudaSuccess);
    assert_int_equal(attributes.type, cudaMemoryTypeUnregistered);
    assert_int_equal(cudaHostRegister(host, sizeof host, cudaHostRegisterPortable), cudaSuccess);
    assert_int_equal(cudaHostRegister(host + 1, 4, cudaHostRegisterPortable),
                     cudaErrorHostMemoryAlreadyRegistered);
    assert_int_equal(cudaPointerGetAttributes(&attributes, host + 1), cudaSuccess);
    assert_int_equal(attributes.type, cudaMemoryTypeHost);
    assert_int_equal(cudaHostUnregister(host), cudaSuccess);
    assert_int_equal(cudaHostAlloc(&pinned, 100, cudaHostAllocDefault), cudaSuccess);
    assert_int_equal(cudaPointerGetAttributes(&attributes, pinned), cudaSuccess);
    assert_int_equal(attributes.type, cudaMemoryTypeHost);
    assert_int_equal(cudaFreeHost(pinned), cudaSuccess);
    (void)cudaGetLastError();
}

void addresses_are_not_reused_soon(void **) {
    void *freed[64], *next;
    for (void *&memory : freed) {
        assert_int_equal(cudaMalloc(&memory, 100000), cudaSuccess);
        assert_int_equal(cudaFree(memory), cudaSuccess);
    }
    assert_int_equal(cudaMalloc(&next, 100000), cudaSuccess);
    for (void *memory : freed)
        assert_ptr_not_equal(memory, next);
    assert_int_equal(cudaFree(next), cudaSuccess);
    // Host memory can be registered any number of times.
    for (int i = 0; i < 300; i++) {
        assert_int_equal(cudaHostRegister(freed, 8, 0), cudaSuccess);
        assert_int_equal(cudaHostUnregister(freed), cudaSuccess);
    }
}

void properties_and_attributes_of_the_device(void **) {
    int count, value;
    cudaDeviceProp properties;
    assert_int_equal(cudaGetDeviceCount(&count), cudaSuccess);
    assert_int_equal(count, 1);
    assert_int_equal(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
    assert_string_equal(properties.name, "simulated GPU");
    assert_int_equal(properties.major * 10 + properties.minor, 90);
    assert_int_equal(cudaGetDeviceProperties(&properties, 1), cudaErrorInvalidDevice);
    assert_int_equal(cudaSetDevice(1), cudaErrorInvalidDevice);
    assert_int_equal(cudaSetDevice(0), cudaSuccess);
    setenv("CUDASIM_CAPABILITY", "8.6", 1);
    assert_int_equal(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMinor, 0), cudaSuccess);
    assert_int_equal(value, 6);
    unsetenv("CUDASIM_CAPABILITY");
    assert_int_equal(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0), cudaSuccess);
    assert_int_equal(value, 227 * 1024);
    assert_string_equal(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation");
    assert_string_equal(cudaGetErrorString(cudaErrorNoDevice), "no CUDA-capable device is detected");
    (void)cudaGetLastError();
}

void machine_without_a_device(void **) {
    int count = -1, version = -1;
    void *memory;
    cudaStream_t stream;
    setenv("CUDASIM_NO_DEVICE", "1", 1);
    assert_int_equal(cudaGetDeviceCount(&count), cudaErrorNoDevice);
    assert_int_equal(count, 0);
    assert_int_equal(cudaMalloc(&memory, 16), cudaErrorNoDevice);
    assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaErrorNoDevice);
    setenv("CUDASIM_NO_DEVICE", "driver", 1);
    assert_int_equal(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver);
    assert_int_equal(cudaDriverGetVersion(&version), cudaSuccess);
    assert_int_equal(version, 0);
    unsetenv("CUDASIM_NO_DEVICE");
    assert_int_equal(cudaGetLastError(), cudaErrorInsufficientDriver);
    assert_int_equal(cudaGetDeviceCount(&count), cudaSuccess);
    assert_int_equal(cudasim_findings(), 0);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(limits_of_a_launch),
        cmocka_unit_test(limits_of_shared_memory),
        cmocka_unit_test(limit_of_memory),
        cmocka_unit_test(memory_is_poisoned_and_aligned),
        cmocka_unit_test(pointer_attributes),
        cmocka_unit_test(addresses_are_not_reused_soon),
        cmocka_unit_test(properties_and_attributes_of_the_device),
        cmocka_unit_test(machine_without_a_device),
    };
    return cmocka_run_group_tests_name("the simulated device", tests, nullptr, nullptr);
}
