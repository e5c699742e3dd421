#include "tests/cudasim/device.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cudasim.h"
#include "tests/cudasim/block.h"
#include "tests/cudasim/finding.h"
#include "tests/cudasim/memory.h"
#include "tests/cudasim/stream.h"

namespace cudasim {

namespace {

// Few, so that kernels that size their grid by the number of multiprocessors have to loop.
constexpr int n_multiprocessors = 4;

unsigned environment_seed(const char *name) {
    const char *value = getenv(name);
    return value ? unsigned(strtoul(value, nullptr, 0)) : 0;
}

std::atomic<unsigned> &order() {
    static std::atomic<unsigned> seed(environment_seed("CUDASIM_ORDER"));
    return seed;
}

// Reads the variable on each call, because tests change it.
cudaError_t absence() {
    const char *value = getenv("CUDASIM_NO_DEVICE");
    if (!value || !*value || !strcmp(value, "0"))
        return cudaSuccess;
    return strcmp(value, "driver") ? cudaErrorNoDevice : cudaErrorInsufficientDriver;
}

// CUDASIM_DEVICES: how many GPUs the machine has. They differ by address only: a process uses one, and its
// memory is its own.
int device_count() {
    const char *value = getenv("CUDASIM_DEVICES");
    return value ? atoi(value) : 1;
}

thread_local int current_device = 0;

} // namespace

cudaError_t device_error() {
    cudaError_t absent = absence();
    return absent != cudaSuccess ? absent : sticky_error();
}

int device_capability() {
    const char *value = getenv("CUDASIM_CAPABILITY");
    int major = 9, minor = 0;
    if (value)
        sscanf(value, "%d.%d", &major, &minor);
    return major * 10 + minor;
}

size_t device_memory_bytes() {
    const char *value = getenv("CUDASIM_MEMORY");
    if (!value)
        return size_t(8) << 30;
    char *end;
    size_t bytes = strtoull(value, &end, 0);
    switch (*end) {
    case 'G':
        return bytes << 30;
    case 'M':
        return bytes << 20;
    case 'K':
        return bytes << 10;
    default:
        return bytes;
    }
}

unsigned order_seed() {
    return order();
}

} // namespace cudasim

using namespace cudasim;

extern "C" {

void cudasim_order(unsigned seed) {
    order() = seed;
}

cudaError_t cudaDriverGetVersion(int *version) {
    *version = absence() == cudaSuccess ? CUDART_VERSION : 0;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count) {
    *count = absence() == cudaSuccess ? device_count() : 0;
    return remember(absence());
}

cudaError_t cudaSetDevice(int device) {
    if (device_error() != cudaSuccess)
        return remember(device_error());
    if (device < 0 || device >= device_count())
        return remember(cudaErrorInvalidDevice);
    current_device = device;
    return remember(cudaSuccess);
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int device) {
    if (absence() != cudaSuccess)
        return remember(absence());
    if (device < 0 || device >= device_count())
        return remember(cudaErrorInvalidDevice);
    if (snprintf(text, size_t(length), "0000:%02x:00.0", device + 1) >= length)
        return remember(cudaErrorInvalidValue);
    return remember(cudaSuccess);
}

cudaError_t cudaGetDevice(int *device) {
    *device = current_device;
    return remember(device_error());
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device) {
    if (absence() != cudaSuccess)
        return remember(absence());
    if (device < 0 || device >= device_count())
        return remember(cudaErrorInvalidDevice);
    *properties = {};
    properties->pciBusID = device + 1;
    const char *name = getenv("CUDASIM_NAME");
    snprintf(properties->name, sizeof properties->name, "%s", name ? name : "simulated GPU");
    properties->totalGlobalMem = device_memory_bytes();
    properties->sharedMemPerBlock = default_shared_limit;
    properties->sharedMemPerBlockOptin = shared_limit;
    properties->sharedMemPerMultiprocessor = shared_limit + 1024;
    properties->regsPerBlock = 65536;
    properties->warpSize = threads_per_warp;
    properties->maxThreadsPerBlock = max_threads;
    properties->maxThreadsPerMultiProcessor = 2048;
    properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = max_threads;
    properties->maxThreadsDim[2] = 64;
    properties->maxGridSize[0] = 0x7fffffff;
    properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
    properties->major = device_capability() / 10;
    properties->minor = device_capability() % 10;
    properties->multiProcessorCount = n_multiprocessors;
    properties->memoryBusWidth = 64;
    properties->l2CacheSize = 1 << 20;
    properties->canMapHostMemory = properties->unifiedAddressing = 1;
    properties->asyncEngineCount = 2;
    return remember(cudaSuccess);
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
    cudaDeviceProp properties;
    cudaError_t error = cudaGetDeviceProperties(&properties, device);
    if (error != cudaSuccess)
        return error;
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
        *value = properties.maxThreadsPerBlock;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = int(properties.sharedMemPerBlock);
        break;
    case cudaDevAttrWarpSize:
        *value = properties.warpSize;
        break;
    case cudaDevAttrMaxRegistersPerBlock:
        *value = properties.regsPerBlock;
        break;
    case cudaDevAttrClockRate:
    case cudaDevAttrMemoryClockRate:
        *value = 1000000; // kHz
        break;
    case cudaDevAttrMultiProcessorCount:
        *value = properties.multiProcessorCount;
        break;
    case cudaDevAttrGlobalMemoryBusWidth:
        *value = properties.memoryBusWidth;
        break;
    case cudaDevAttrL2CacheSize:
        *value = properties.l2CacheSize;
        break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
        *value = properties.maxThreadsPerMultiProcessor;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value = properties.major;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = properties.minor;
        break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *value = int(properties.sharedMemPerMultiprocessor);
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = int(properties.sharedMemPerBlockOptin);
        break;
    default:
        return remember(cudaErrorInvalidValue);
    }
    return remember(cudaSuccess);
}

} // extern "C"
