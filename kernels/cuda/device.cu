// A GPU as a device (kernels/device.h): its memory, copies, streams, events and table of operations. A
// process uses one GPU. Every call into the CUDA runtime first makes that GPU current for the calling thread.
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/cublaslt/cublaslt.cuh"

#include <stdio.h>
#include <stdlib.h>

extern "C" {
#include "base/text.h"
}

namespace {

// The width in columns of a strip of a symmetric product (matrix_product_args.strip). Narrower strips have
// too few tiles to fill the multiprocessors, which costs more time than they save.
constexpr int SYMMETRIC_STRIP = 2048;

// The lowest supported compute capability, 8.0, times 10. Older GPUs lack bf16 mma.sync and cp.async, which
// the kernels use.
constexpr int LOWEST_CAPABILITY = 80;

// ---- memory

enum status memory_new(struct device *device, size_t bytes, const char *purpose, void **out) {
    *out = nullptr;
    if (bytes == 0)
        return STATUS_OK;
    TRY(cuda_enter(device));
    cudaError_t error = cudaMalloc(out, bytes);
    if (error == cudaErrorMemoryAllocation) {
        size_t available = 0, total = 0;
        char wanted[32], there[32];
        (void)cudaGetLastError(); // clears the error, which the message below reports
        TRY_CUDA(cudaMemGetInfo(&available, &total));
        return FAIL(STATUS_FAILED,
                    "%s need %s of GPU memory, and %s are free; use a smaller micro-batch, "
                    "recompute=block, a higher ZeRO stage or a smaller model",
                    purpose, text_bytes(wanted, sizeof wanted, static_cast<double>(bytes)),
                    text_bytes(there, sizeof there, static_cast<double>(available)));
    }
    TRY_CUDA(error);
    // The memory is zeroed in a stream of its own. The legacy default stream would wait for the work of
    // every blocking stream.
    cudaStream_t stream;
    TRY_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    TRY_CUDA(cudaMemsetAsync(*out, 0, bytes, stream));
    TRY_CUDA(cudaStreamSynchronize(stream));
    TRY_CUDA(cudaStreamDestroy(stream));
    return STATUS_OK;
}

void memory_delete(struct device *device, void *memory, size_t bytes) {
    (void)bytes;
    if (memory && cuda_enter(device) == STATUS_OK)
        (void)cudaFree(memory); // a failure here cannot be handled; earlier failures were reported
}

enum status memory_available(struct device *device, size_t *bytes) {
    size_t total;
    TRY(cuda_enter(device));
    TRY_CUDA(cudaMemGetInfo(bytes, &total));
    return STATUS_OK;
}

enum status pin(struct device *device, void *memory, size_t bytes) {
    TRY(cuda_enter(device));
    TRY_CUDA(cudaHostRegister(memory, bytes, cudaHostRegisterPortable));
    return STATUS_OK;
}

void unpin(struct device *device, void *memory) {
    if (cuda_enter(device) == STATUS_OK)
        (void)cudaHostUnregister(memory);
}

// ---- streams and events

enum status copy(struct stream *stream, void *to, const void *from, size_t bytes) {
    if (bytes == 0)
        return STATUS_OK;
    TRY(cuda_enter(stream->device));
    TRY_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, queue_of(stream)));
    return STATUS_OK;
}

enum status synchronize(struct stream *stream) {
    TRY(cuda_enter(stream->device));
    TRY_CUDA(cudaStreamSynchronize(queue_of(stream)));
    return STATUS_OK;
}

enum status tickets_add(struct cuda_tickets *tickets, void *queue) {
    void *memory = nullptr;
    TRY_CUDA(cudaMalloc(&memory, CUDA_TICKETS * sizeof(unsigned)));
    {
        std::lock_guard<std::mutex> guard(tickets->mutex);
        tickets->of_stream.push_back({queue, static_cast<unsigned *>(memory)});
    }
    TRY_CUDA(cudaMemsetAsync(memory, 0, CUDA_TICKETS * sizeof(unsigned), static_cast<cudaStream_t>(queue)));
    return STATUS_OK;
}

void tickets_remove(struct cuda_tickets *tickets, void *queue) {
    std::lock_guard<std::mutex> guard(tickets->mutex);
    for (size_t i = 0; i < tickets->of_stream.size(); i++)
        if (tickets->of_stream[i].queue == queue) {
            (void)cudaFree(tickets->of_stream[i].at);
            tickets->of_stream.erase(tickets->of_stream.begin() + static_cast<ptrdiff_t>(i));
            return;
        }
}

void stream_close(struct device *device, void *queue) {
    if (cuda_enter(device) != STATUS_OK)
        return;
    (void)cudaStreamSynchronize(static_cast<cudaStream_t>(queue)); // its ticket counters may still be in use
    tickets_remove(cuda_of(device)->tickets, queue);
    (void)cudaStreamDestroy(static_cast<cudaStream_t>(queue));
}

enum status stream_open(struct device *device, void **queue) {
    TRY(cuda_enter(device));
    TRY_CUDA(cudaStreamCreateWithFlags(reinterpret_cast<cudaStream_t *>(queue), cudaStreamNonBlocking));
    enum status status = tickets_add(cuda_of(device)->tickets, *queue);
    if (status != STATUS_OK) {
        stream_close(device, *queue);
        *queue = nullptr;
    }
    return status;
}

enum status event_open(struct device *device, void **mark) {
    TRY(cuda_enter(device));
    TRY_CUDA(cudaEventCreateWithFlags(reinterpret_cast<cudaEvent_t *>(mark), cudaEventDisableTiming));
    return STATUS_OK;
}

enum status timer_open(struct device *device, void **mark) {
    TRY(cuda_enter(device));
    TRY_CUDA(cudaEventCreate(reinterpret_cast<cudaEvent_t *>(mark)));
    return STATUS_OK;
}

enum status timer_seconds(const struct event *from, const struct event *to, double *seconds) {
    float ms = 0;
    TRY(cuda_enter(from->device));
    TRY_CUDA(
        cudaEventElapsedTime(&ms, static_cast<cudaEvent_t>(from->mark), static_cast<cudaEvent_t>(to->mark)));
    *seconds = static_cast<double>(ms) * 1e-3;
    return STATUS_OK;
}

void event_close(struct device *device, void *mark) {
    if (cuda_enter(device) == STATUS_OK)
        (void)cudaEventDestroy(static_cast<cudaEvent_t>(mark));
}

enum status event_record_on(struct event *event, struct stream *stream) {
    TRY(cuda_enter(stream->device));
    TRY_CUDA(cudaEventRecord(static_cast<cudaEvent_t>(event->mark), queue_of(stream)));
    return STATUS_OK;
}

enum status event_wait_on(struct event *event, struct stream *stream) {
    TRY(cuda_enter(stream->device));
    TRY_CUDA(cudaStreamWaitEvent(queue_of(stream), static_cast<cudaEvent_t>(event->mark), 0));
    return STATUS_OK;
}

enum status event_synchronize_on(struct event *event) {
    TRY(cuda_enter(event->device));
    TRY_CUDA(cudaEventSynchronize(static_cast<cudaEvent_t>(event->mark)));
    return STATUS_OK;
}

enum status event_query_of(const struct event *event, bool *happened) {
    TRY(cuda_enter(event->device));
    const cudaError_t error = cudaEventQuery(static_cast<cudaEvent_t>(event->mark));
    *happened = error == cudaSuccess;
    if (error != cudaErrorNotReady)
        TRY_CUDA(error);
    return STATUS_OK;
}

enum status enter(struct device *device) {
    return cuda_enter(device);
}

enum status identify(struct device *device, char out[DEVICE_IDENTITY_BYTES]) {
    TRY_CUDA(cudaDeviceGetPCIBusId(out, DEVICE_IDENTITY_BYTES, cuda_of(device)->index));
    return STATUS_OK;
}

// ---- graphs

// The capture is thread-local, so that the threads that communicate may allocate memory and wait for the
// GPU meanwhile.
enum status graph_begin_on(struct stream *stream) {
    TRY(cuda_enter(stream->device));
    TRY_CUDA(cudaStreamBeginCapture(queue_of(stream), cudaStreamCaptureModeThreadLocal));
    return STATUS_OK;
}

enum status graph_end_on(struct stream *stream, void **work) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    *work = nullptr;
    cudaError_t error = cudaStreamEndCapture(queue_of(stream), &graph);
    if (error == cudaSuccess)
        error = cudaGraphInstantiateWithFlags(&exec, graph, 0);
    if (graph)
        (void)cudaGraphDestroy(graph);
    if (error != cudaSuccess)
        return FAIL(STATUS_FAILED, "CUDA: capturing a graph: %s", cudaGetErrorString(error));
    *work = exec;
    return STATUS_OK;
}

enum status graph_launch_on(struct stream *stream, void *work) {
    TRY(cuda_enter(stream->device));
    TRY_CUDA(cudaGraphLaunch(static_cast<cudaGraphExec_t>(work), queue_of(stream)));
    return STATUS_OK;
}

void graph_close(struct device *device, void *work) {
    if (cuda_enter(device) == STATUS_OK)
        (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(work));
}

// ---- the table of operations

enum status workspace_bytes(struct device *device, enum operation operation, const void *args,
                            size_t *bytes) {
    *bytes = cuda_workspace_bytes(properties_of(device), operation, args);
    TRY(cuda_enter(device));
    switch (operation) {
    case OP_linear_forward:
        return cuda_linear_forward_prepare(device, static_cast<const linear_forward_args *>(args));
    case OP_matrix_product:
        return cuda_matrix_product_prepare(device, static_cast<const matrix_product_args *>(args));
    case OP_attention_forward:
    case OP_attention_backward:
        cuda_cudnn_workspace(device, operation, args, bytes);
        return STATUS_OK;
    case OP_linear_backward:
        return cuda_linear_backward_prepare(device, static_cast<const linear_backward_args *>(args));
    default:
        return STATUS_OK;
    }
}

int launches(struct device *device, enum operation operation, const void *args) {
    return cuda_launches(operation, args, cuda_cudnn_computes(device, operation, args));
}

struct ops make_ops() {
    struct ops ops = {};
#define ENTRY(name) ops.name = cuda_##name;
    OPERATIONS(ENTRY)
#undef ENTRY
    ops.workspace_bytes = workspace_bytes;
    ops.launches = launches;
    return ops;
}

const struct ops cuda_ops = make_ops();

// The functions are in the order of the members of struct gpu_functions.
const struct gpu_functions functions = {memory_available,
                                        pin,
                                        unpin,
                                        stream_open,
                                        stream_close,
                                        event_open,
                                        event_close,
                                        event_record_on,
                                        event_wait_on,
                                        event_synchronize_on,
                                        graph_begin_on,
                                        graph_end_on,
                                        graph_launch_on,
                                        graph_close,
                                        event_query_of,
                                        enter,
                                        identify,
                                        timer_open,
                                        timer_seconds};

// ---- opening and closing the device

enum status count_gpus(int *count) {
    cudaError_t error = cudaGetDeviceCount(count);
    if (error == cudaErrorInsufficientDriver) {
        int driver = 0, runtime = 0;
        (void)cudaDriverGetVersion(&driver);
        (void)cudaRuntimeGetVersion(&runtime);
        if (driver == 0)
            return FAIL(STATUS_UNSUPPORTED,
                        "device \"cuda\": this machine has no NVIDIA driver (libcuda.so.1 was not "
                        "found); install it, or use device=cpu");
        return FAIL(
            STATUS_UNSUPPORTED,
            "device \"cuda\": the NVIDIA driver supports CUDA up to %d.%d, but this ./train was "
            "built with %d.%d; install a newer driver, build with an older toolkit, or use device=cpu",
            driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    }
    if (error == cudaErrorNoDevice || (error == cudaSuccess && *count == 0))
        return FAIL(STATUS_UNSUPPORTED,
                    "device \"cuda\": the NVIDIA driver is installed, but this process sees no GPU; check "
                    "nvidia-smi and CUDA_VISIBLE_DEVICES, or use device=cpu");
    if (error != cudaSuccess)
        return FAIL(STATUS_UNSUPPORTED,
                    "device \"cuda\": the CUDA runtime cannot start: %s; repair it, or use device=cpu",
                    cudaGetErrorString(error));
    return STATUS_OK;
}

void close_device(struct device *device) {
    const cuda_device *cuda = cuda_of(device);
    if (cuda_enter(device) == STATUS_OK) {
        cudnns_delete(cuda->cudnns);
        matmuls_delete(cuda->matmuls);
    }
    delete cuda->tickets;
    free(device);
}

enum status open_gpu(cuda_device *cuda) {
    cudaDeviceProp properties;
    TRY_CUDA(cudaSetDevice(cuda->index));
    TRY_CUDA(cudaGetDeviceProperties(&properties, cuda->index));
    int capability = 10 * properties.major + properties.minor;
    if (capability < LOWEST_CAPABILITY)
        return FAIL(
            STATUS_UNSUPPORTED,
            "device \"cuda\": %s has compute capability %d.%d, and the kernels need 8.0 (Ampere) or newer; "
            "use device=cpu",
            properties.name, properties.major, properties.minor);
    cuda->device.capability = capability;
    cuda->device.tensor_core_heads = CUDA_ATTENTION_TENSOR_WIDTH;
    cuda->n_processors = properties.multiProcessorCount;
    cuda->properties.max_product_workspace = cuda_max_product_workspace(properties.major);
    for (int type = 0; type < N_COMPUTE_DTYPES; type++)
        cuda->device.dense_peak[type] =
            gpu_dense_peak(properties.name, capability, static_cast<enum dtype>(type));
    char memory[32];
    int runtime = 0;
    TRY_CUDA(cudaRuntimeGetVersion(&runtime));
    snprintf(cuda->device.arithmetic, sizeof cuda->device.arithmetic, "%.72s, sm_%d, CUDA %d.%d",
             properties.name, capability, runtime / 1000, runtime % 1000 / 10);
    snprintf(cuda->device.description, sizeof cuda->device.description, "GPU %d, %s, %s", cuda->index,
             cuda->device.arithmetic,
             text_bytes(memory, sizeof memory, static_cast<double>(properties.totalGlobalMem)));
    return matmuls_new(&cuda->matmuls);
}

} // namespace

extern "C" enum status cuda_device_open(int index, struct device **out) {
    int count = 0;
    TRY(count_gpus(&count));
    cuda_device *cuda = static_cast<cuda_device *>(allocate(1, sizeof *cuda));
    cuda->tickets = new cuda_tickets();
    cuda->index = index % count;
    struct device *device = &cuda->device;
    device->name = "cuda";
    device->ops = &cuda_ops;
    device->place = REGION_DEVICE;
    for (int type = 0; type < N_COMPUTE_DTYPES; type++)
        device->symmetric_strips[type] = SYMMETRIC_STRIP;
    device->n_threads = 1;
    device->n_devices = count;
    device->memory_new = memory_new;
    device->memory_delete = memory_delete;
    device->copy = copy;
    device->synchronize = synchronize;
    device->close = close_device;
    device->gpu = &functions;
    device->cudnn_support = cuda_cudnn_support;
    enum status status = open_gpu(cuda);
    if (status != STATUS_OK) {
        device->close(device);
        return status;
    }
    *out = device;
    return STATUS_OK;
}

bool cuda_device_present(void) {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

// ---- how the backend was built

// nvcc defines __CUDA_ARCH_LIST__ as the architectures that it compiles for, such as 800,900 for 8.0 and
// 9.0. The simulator's compiler does not define it.
const char *cuda_device_architectures(char *buffer, size_t size) {
#ifdef __CUDA_ARCH_LIST__
    const int architectures[] = {__CUDA_ARCH_LIST__};
    int length = 0;
    buffer[0] = 0;
    for (int architecture : architectures)
        if (length >= 0 && static_cast<size_t>(length) < size)
            length += snprintf(buffer + length, size - static_cast<size_t>(length), "%s%d.%d",
                               length > 0 ? " " : "", architecture / 100, architecture / 10 % 10);
#else
    snprintf(buffer, size, "none: built for a simulated GPU");
#endif
    return buffer;
}

const char *cuda_device_cublas(char *buffer, size_t size) {
    struct cublaslt lt;
    int major = 0, minor = 0, patch = 0;
    bool found = cublaslt_load(&lt) == STATUS_OK &&
                 lt.GetProperty(MAJOR_VERSION, &major) == CUBLAS_STATUS_SUCCESS &&
                 lt.GetProperty(MINOR_VERSION, &minor) == CUBLAS_STATUS_SUCCESS &&
                 lt.GetProperty(PATCH_LEVEL, &patch) == CUBLAS_STATUS_SUCCESS;
    status_clear();
    if (found)
        snprintf(buffer, size, "%d.%d.%d", major, minor, patch);
    else
        snprintf(buffer, size, "not found");
    return buffer;
}
