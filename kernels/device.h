// A device: its memory, copies, streams, events and table of operations. Backends: kernels/cpu, kernels/cuda
// and tests/ref (the oracle, tests only). Code above this folder does not know which one runs.
#ifndef ZERO_KERNELS_DEVICE_H
#define ZERO_KERNELS_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "base/region.h"
#include "base/status.h"

#define DEVICE_IDENTITY_BYTES 32

struct ops;
struct device;
struct watched;
struct observed;

// A stream: operations run in issue order. On a GPU a call returns before its operation runs; on the CPU,
// after. `workspace` is scratch shared by all operations of the stream. Nothing survives in it from one
// operation to the next. Size it with ops->workspace_bytes: the maximum over the operations that will be
// issued.
struct stream {
    struct device *device;
    void *queue; // the backend's handle, from stream_init; NULL where operations are synchronous
    void *workspace;
    size_t workspace_bytes;
};

// A point in a stream's order, for other streams or the host to wait for.
struct event {
    struct device *device;
    void *mark; // the backend's handle; NULL where operations are synchronous
};

// Work captured from a stream once, to be launched any number of times.
struct graph {
    struct device *device;
    void *work; // the backend's handle; NULL: nothing was captured
};

// The attention of a training run: q, k and v are ranges of one (B, T, (H + 2 K) D) tensor.
struct attention_shape {
    int B, T, H, K, D;
    int window; // 0: none
    enum dtype type;
};

// Whether cuDNN computes attention of a shape, forward and backward, with the same bits in every run.
struct cudnn_support {
    bool usable;
    char version[32]; // version of the library, "9.19.0"; "" if there is none
    char reason[400]; // why it is not usable
};

// GPU memory, streams, events and graphs: functions that only GPU backends implement.
struct gpu_functions {
    enum status (*memory_available)(struct device *device, size_t *bytes);
    enum status (*pin)(struct device *device, void *memory, size_t bytes);
    void (*unpin)(struct device *device, void *memory);
    enum status (*stream_open)(struct device *device, void **queue);
    void (*stream_close)(struct device *device, void *queue);
    enum status (*event_open)(struct device *device, void **mark);
    void (*event_close)(struct device *device, void *mark);
    enum status (*event_record)(struct event *event, struct stream *stream);
    enum status (*event_wait)(struct event *event, struct stream *stream);
    enum status (*event_synchronize)(struct event *event);
    enum status (*graph_begin)(struct stream *stream);
    enum status (*graph_end)(struct stream *stream, void **work);
    enum status (*graph_launch)(struct stream *stream, void *work);
    void (*graph_close)(struct device *device, void *work);
    enum status (*event_query)(const struct event *event, bool *happened);
    enum status (*enter)(struct device *device);
    enum status (*identify)(struct device *device, char out[DEVICE_IDENTITY_BYTES]);
    enum status (*timer_open)(struct device *device, void **mark); // as event_open, but records a timestamp
    enum status (*timer_seconds)(const struct event *from, const struct event *to, double *seconds);
};

struct device {
    const char *name;      // "cpu", "cuda", "ref"
    char arithmetic[112];  // what determines the rounding: instruction set or GPU, and library
    char description[160]; // for messages: arithmetic, threads, memory
    const struct ops *ops;
    enum region_place place; // where its memory is: REGION_HOST for the CPU
    int n_threads;           // host threads that its operations use
    size_t heap_per_thread;  // estimate for buffers of the library of matrix products; 0 on a GPU
    int n_devices;           // devices of this kind on the machine; further ranks share them. 0: the CPU
    int capability;          // a GPU's compute capability, 90 for 9.0; 0: a CPU
    bool has_amx;            // CPU with AMX: bf16 products are many times faster than other work
    // CPU only: bf16 products, by vector instructions or AMX, are at least as fast as fp32 products. Decided
    // by the processor model or by the instruction set requested, never by timing: ranks that decided
    // differently would compute different bits.
    bool fast_bf16;
    int tensor_core_heads; // widest heads for which ATTENTION_FLASH uses tensor cores; 0: none
    // Dense peak of matrix products by compute type, in FLOP/s, as the vendor states it: 16-bit inputs with
    // fp32 sums, and fp32 without TF32. 0: not known (the CPU, and GPUs that gpu_dense_peak does not list).
    double dense_peak[N_COMPUTE_DTYPES];
    int symmetric_strips[N_DTYPES]; // fastest matrix_product_args.strip by type; 0: none
    // Allocates zeroed memory, aligned to at least REGION_ALIGNMENT. *out is NULL when bytes == 0. `purpose`
    // names the allocation in error messages.
    enum status (*memory_new)(struct device *device, size_t bytes, const char *purpose, void **out);
    void (*memory_delete)(struct device *device, void *memory, size_t bytes);
    // Copies in stream order; either side may be host memory. May return before the copy ran: pinned host
    // memory must then stay unchanged until synchronize. Pageable host memory is read before the call
    // returns.
    enum status (*copy)(struct stream *stream, void *to, const void *from, size_t bytes);
    // Blocks until all work issued to the stream is done, and reports its errors.
    enum status (*synchronize)(struct stream *stream);
    void (*close)(struct device *device);
    // Whether ATTENTION_CUDNN computes a shape; NULL on devices without that choice. Loads the library on the
    // first call. A missing or failing library is an answer in *support, not an error.
    enum status (*cudnn_support)(struct device *device, const struct attention_shape *shape,
                                 struct cudnn_support *out);
    struct watched *watched; // set while kernels/profile.h times this device's operations, otherwise NULL
    // Kernels, library products and fills issued so far; read it with device_launches. 0 where operations are
    // synchronous.
    uint64_t n_launches;
    struct observed *observed; // set while kernels/observe.h wraps the device's functions, otherwise NULL
    // NULL on the CPU, whose operations are synchronous, and on a GPU opened for planning only. Call them
    // through the functions below, which handle NULL.
    const struct gpu_functions *gpu;
};

// Opens a device. Close it with device_close.
//   name       "cpu", "cuda", or "auto": the GPU if this build and machine have one, otherwise the CPU
//   n_threads  threads of the CPU backend; 0: one per core that the process may use
//   index        which GPU, modulo the number of GPUs: ranks pass their number within the machine. For the
//     CPU: which processors to use, where threads are bound to NUMA nodes
// Errors: STATUS_UNSUPPORTED when this build or machine lacks the device.
enum status device_open(const char *name, int n_threads, int index, struct device **out) MUST_CHECK;
void device_close(struct device *device);

// The launches of all streams since the device was opened; 0 where operations are synchronous.
static inline uint64_t device_launches(const struct device *device) {
    return __atomic_load_n(&device->n_launches, __ATOMIC_RELAXED);
}

// Free memory of the device in bytes; 0 for the CPU.
enum status device_memory_available(struct device *device, size_t *bytes) MUST_CHECK;
// Page-locks host memory, so that copies use DMA and run asynchronously. No-op when bytes == 0 or where the
// device's memory is the host's.
enum status device_pin(struct device *device, void *memory, size_t bytes) MUST_CHECK;
void device_unpin(struct device *device, void *memory); // call before freeing the memory; NULL is a no-op

// Makes the device the calling thread's current GPU, for libraries that use that. No-op on the CPU.
enum status device_enter(struct device *device) MUST_CHECK;
// The GPU's PCI address, "0000:65:00.0"; "" for the CPU.
enum status device_identity(struct device *device, char out[DEVICE_IDENTITY_BYTES]) MUST_CHECK;

enum status stream_init(struct stream *stream, struct device *device) MUST_CHECK; // no workspace yet
void stream_free(struct stream *stream); // its work must be done; no-op for a zeroed stream
// For cleanup after a failure: waits for the work left on the stream and ignores its errors, which were
// reported elsewhere. No-op for a zeroed stream.
void stream_drain(struct stream *stream);

enum status event_init(struct event *event, struct device *device) MUST_CHECK;
// As event_init, with a timestamp for event_seconds.
enum status event_init_timed(struct event *event, struct device *device) MUST_CHECK;
void event_free(struct event *event);
// Records the current end of the stream's work.
enum status event_record(struct event *event, struct stream *stream) MUST_CHECK;
// Makes later work on `stream` run after the event. Does not block the host.
enum status event_wait(struct event *event, struct stream *stream) MUST_CHECK;
// Blocks the host until the event has happened; returns at once if it was never recorded.
enum status event_synchronize(struct event *event) MUST_CHECK;
// Whether the event has happened (true if it was never recorded). Does not wait.
enum status event_query(const struct event *event, bool *happened) MUST_CHECK;
// Seconds between two timed events, both of which have happened; 0 where operations are synchronous.
enum status event_seconds(const struct event *from, const struct event *to, double *seconds) MUST_CHECK;

// Graphs, on devices that have them. Between graph_begin and graph_end, operations and copies that this
// thread issues to `stream` are recorded instead of run. Other streams join by event_wait on an event of
// `stream`, and `stream` waits for theirs before graph_end. Each launch repeats the recorded work on the same
// memory.
// While recording, do not wait for the device, copy from or to pageable memory, allocate, or wait for an
// event recorded earlier. graph_end fails if anything did, or if an operation could not be captured. Call
// graph_end even after a failure.
bool device_has_graphs(const struct device *device);
enum status graph_begin(struct stream *stream) MUST_CHECK;
enum status graph_end(struct stream *stream, struct graph *graph) MUST_CHECK;
enum status graph_launch(struct graph *graph, struct stream *stream) MUST_CHECK;
void graph_free(struct graph *graph); // its launches must be done; no-op for a zeroed graph

// The dense peak of a GPU, to which model FLOPs utilization (MFU) refers: the vendor's FLOP/s of matrix
// products without sparsity. bf16 and fp16: on tensor cores with fp32 sums; fp32: on the other cores. 0: the
// GPU is not listed, or is a MIG slice.
//   name         as cudaGetDeviceProperties gives it
//   capability   compute capability, 90 for 9.0
double gpu_dense_peak(const char *name, int capability, enum dtype type);
// Opens the CPU backend with a given instruction set: "amx", "avx512_bf16", "avx512", "avx2", "portable", or
// NULL for the best one. amx multiplies bf16 in tile registers. The attention of avx512_bf16 multiplies bf16
// without upcasting; NULL selects it only on processors where that is fast.
// Errors: STATUS_UNSUPPORTED when this processor lacks the instruction set.
enum status cpu_device_open(const char *instruction_set, int n_threads, struct device **out) MUST_CHECK;
// Binds the threads of the CPU backend to NUMA nodes. Consecutive threads share a node; the threads of device
// `index` follow those of the devices before it. Memory is then local to the thread that first touches it.
// No-op on a machine with one node.
enum status cpu_device_bind_threads(struct device *device, int index) MUST_CHECK;
// Errors: STATUS_UNSUPPORTED when there is no GPU, no driver, or no CUDA in this build; the message says
// which.
enum status cuda_device_open(int index, struct device **out) MUST_CHECK;
// Whether cuda_device_open finds a driver and a GPU. Records no failure.
bool cuda_device_present(void);
// A GPU for `./train plan`: needs neither a GPU nor CUDA in this build. It answers ops->workspace_bytes with
// the CUDA backend's own formulas and refuses everything else. Scratch that depends on the GPU is sized for
// the largest GPU; that of ATTENTION_CUDNN as if cuDNN were installed.
struct device *cuda_device_plan(void);

// The three functions below report how the CUDA backend was built and which libraries it finds, without a
// GPU. Each writes text to `buffer` and returns it.
// The compute capabilities that the kernels were compiled for: "8.0 9.0", or "none: built without CUDA".
const char *cuda_device_architectures(char *buffer, size_t size);
// The version of cuBLASLt: "12.8.4", or "not found".
const char *cuda_device_cublas(char *buffer, size_t size);
// The version of cuDNN: "9.19.0", or why it cannot be used: "no: libcudnn.so.9 was not found (...)".
const char *cuda_device_cudnn(char *buffer, size_t size);

// Fills memory with random numbers in [-1, 1), in stream order. Rates are measured on random numbers because
// a GPU multiplies zeros faster than anything else: zeros take less power.
//   type   one of the compute types
enum status device_fill_random(struct stream *stream, void *memory, size_t bytes, enum dtype type) MUST_CHECK;

// Memory of the device that a measurement may use, so that it allocates none.
struct gemm_memory {
    struct arena weights;             // (n_embd, 4 n_embd) numbers or more; only read
    struct arena matrices, workspace; // overwritten
};
// Measures the FLOP/s of linear_forward on random (rows, n_embd) x (n_embd, 4 n_embd), repeated for about
// `seconds` and at least 12 times. On the CPU, rows are limited so that the minimum fits into the
// time.
//   memory   NULL: allocates it, and frees it again. STATUS_FAILED if it is too small
struct gemm_rate {
    double best; // fastest repetition: the peak for utilization
    double mean; // all repetitions: the sustained rate, on a machine that is shared or throttles
};
enum status device_measure_gemm_rate(struct device *device, int rows, int n_embd, enum dtype type,
                                     double seconds, const struct gemm_memory *memory,
                                     struct gemm_rate *rate) MUST_CHECK;
// Measures memory bandwidth in bytes/s: the best of a few passes of a += k b (two reads and a write). The
// arrays are several times the size of the caches and take at most an eighth of the available memory. Takes a
// fraction of a second.
enum status device_measure_bandwidth(struct device *device, double *bytes_per_s) MUST_CHECK;
// The compute dtype for precision "auto": bf16 on a GPU, and on a CPU with fast_bf16; else fp32.
// Never fp16: its range needs loss scaling, so it has to be requested.
static inline enum dtype device_compute_type(const struct device *device) {
    return device->place == REGION_DEVICE || device->fast_bf16 ? DTYPE_BF16 : DTYPE_F32;
}

#endif
