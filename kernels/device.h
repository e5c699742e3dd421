// A device: its memory, copies, streams, events and table of operations. Backends: kernels/cpu, kernels/cuda
// and tests/ref (the reference for tests). Code outside this folder does not depend on which one runs.
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
// operation to the next. Its size must be at least the maximum of ops->workspace_bytes over the operations
// that will be issued.
struct stream {
    struct device *device;
    void *queue; // the backend's handle, from stream_init; NULL where operations are synchronous
    void *workspace;
    size_t workspace_bytes;
};

// A point in a stream's work that other streams or the host can wait for.
struct event {
    struct device *device;
    void *mark; // the backend's handle; NULL where operations are synchronous
};

// Work captured from a stream once, to be launched any number of times.
struct graph {
    struct device *device;
    void *work; // the backend's handle; NULL: nothing was captured
};

// The attention of a training run: B sequences of T positions, with H query heads and K key-value heads of
// D elements each. q, k and v are column ranges of one (B, T, (H + 2 K) D) tensor.
struct attention_shape {
    int B, T, H, K, D;
    int window; // maximum number of positions that a query sees; 0: no limit
    enum dtype type;
};

// Whether cuDNN computes attention of a shape, forward and backward, with the same bits in every run.
struct cudnn_support {
    bool usable;
    char version[32]; // version of the library, "9.19.0"; "" if there is none
    char reason[400]; // why cuDNN is not usable for the shape
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
    enum status (*timer_open)(struct device *device, void **mark); // opens an event with a timestamp
    enum status (*timer_seconds)(const struct event *from, const struct event *to, double *seconds);
};

struct device {
    const char *name;      // "cpu", "cuda", "ref"
    char arithmetic[112];  // what determines the rounding: instruction set or GPU, and library
    char description[160]; // for messages: arithmetic, threads, memory
    const struct ops *ops;
    enum region_place place; // where its memory is: REGION_HOST for the CPU
    int n_threads;           // host threads that its operations use
    size_t heap_per_thread;  // estimated bytes that the matrix library allocates per thread; 0 on a GPU
    int n_devices;           // number of GPUs on the machine, which ranks share if there are more. 0: a CPU
    int capability;          // a GPU's compute capability, 90 for 9.0; 0: a CPU
    bool has_amx;            // matrix products in bf16 use the CPU's AMX tile registers
    // CPU only: bf16 products, by vector instructions or AMX, are at least as fast as fp32 products. Decided
    // by the processor model or by the instruction set requested, never by timing: ranks that decided
    // differently would compute different bits.
    bool fast_bf16;
    int tensor_core_heads; // maximum head dimension for which ATTENTION_FLASH uses tensor cores; 0: none
    // Dense peak of matrix products by compute type, in FLOP/s, as the vendor states it: 16-bit inputs with
    // fp32 sums, and fp32 without TF32. 0: not known (the CPU, and GPUs that gpu_dense_peak does not list).
    double dense_peak[N_COMPUTE_DTYPES];
    // For each type, the fastest width of strips in symmetric products (matrix_product_args.strip); 0:
    // computing the whole product is as fast.
    int symmetric_strips[N_DTYPES];
    // Allocates zeroed memory, aligned to at least REGION_ALIGNMENT. *out is NULL when bytes == 0. `purpose`
    // names the allocation in error messages.
    enum status (*memory_new)(struct device *device, size_t bytes, const char *purpose, void **out);
    void (*memory_delete)(struct device *device, void *memory, size_t bytes);
    // Copies in stream order; either side may be host memory. May return before the copy has run: pinned host
    // memory must then stay unchanged until synchronize. Pageable host memory is read before the call
    // returns.
    enum status (*copy)(struct stream *stream, void *to, const void *from, size_t bytes);
    // Blocks until all work issued to the stream is done, and reports its errors.
    enum status (*synchronize)(struct stream *stream);
    void (*close)(struct device *device);
    // Sets *out to whether ATTENTION_CUDNN can compute a shape. Loads cuDNN on the first call. If cuDNN is
    // missing or fails, that is reported in *out, not as an error. NULL on devices without ATTENTION_CUDNN.
    enum status (*cudnn_support)(struct device *device, const struct attention_shape *shape,
                                 struct cudnn_support *out);
    struct watched *watched; // non-NULL while kernels/profile.h times this device's operations
    // Kernels, library products and fills issued so far; read it with device_launches. 0 where operations are
    // synchronous.
    uint64_t n_launches;
    struct observed *observed; // non-NULL while kernels/observe.h wraps the device's functions
    // Functions that only GPUs have. NULL on the CPU, whose operations are synchronous, and on a GPU opened
    // for planning only. Call them through the functions below. These handle NULL, except for the graph
    // functions, which require device_has_graphs.
    const struct gpu_functions *gpu;
};

// Opens a device. Close it with device_close.
//   name       "cpu", "cuda", or "auto": the GPU if this build and machine have one, otherwise the CPU
//   n_threads  threads of the CPU backend; 0: one per core that the process may use
//   index      index of this rank among the ranks of its machine. It selects the GPU: `index` modulo the
//              number of GPUs. On a CPU, it selects the NUMA nodes (cpu_device_bind_threads)
// Errors: STATUS_UNSUPPORTED when this build or machine lacks the device.
enum status device_open(const char *name, int n_threads, int index, struct device **out) MUST_CHECK;
void device_close(struct device *device);

// The number of kernels, library products and fills issued to the device since it was opened. 0 where
// operations are synchronous.
static inline uint64_t device_launches(const struct device *device) {
    return __atomic_load_n(&device->n_launches, __ATOMIC_RELAXED);
}

// Free memory of the device in bytes; 0 for the CPU.
enum status device_memory_available(struct device *device, size_t *bytes) MUST_CHECK;
// Page-locks host memory, so that copies use DMA and run asynchronously. No-op when bytes == 0 or where the
// device's memory is the host's.
enum status device_pin(struct device *device, void *memory, size_t bytes) MUST_CHECK;
void device_unpin(struct device *device, void *memory); // call before freeing the memory; NULL is a no-op

// Makes the device the calling thread's current GPU, for libraries that use the current GPU. No-op on
// the CPU.
enum status device_enter(struct device *device) MUST_CHECK;
// The GPU's PCI address, "0000:65:00.0"; "" for the CPU.
enum status device_identity(struct device *device, char out[DEVICE_IDENTITY_BYTES]) MUST_CHECK;

enum status stream_init(struct stream *stream, struct device *device) MUST_CHECK; // leaves workspace NULL
// The stream's work must be done before the call. No-op for a zeroed stream.
void stream_free(struct stream *stream);
// For cleanup after a failure: waits for the work left on the stream and ignores its errors, which were
// reported elsewhere. No-op for a zeroed stream.
void stream_drain(struct stream *stream);

enum status event_init(struct event *event, struct device *device) MUST_CHECK;
// As event_init, with a timestamp for event_seconds.
enum status event_init_timed(struct event *event, struct device *device) MUST_CHECK;
void event_free(struct event *event);
// Marks the current end of the stream's work: the event happens once that work is done.
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
// thread issues to `stream` are recorded instead of run. Other streams join the recording by event_wait on
// an event of `stream`; before graph_end, `stream` must wait for an event of each of them. Each launch
// repeats the recorded work on the same memory.
// While recording, do not wait for the device, copy from or to pageable memory, allocate, or wait for an
// event recorded before graph_begin. graph_end fails if any of these happened, or if an operation could not
// be captured. Call graph_end even after a failure.
bool device_has_graphs(const struct device *device);
enum status graph_begin(struct stream *stream) MUST_CHECK;
enum status graph_end(struct stream *stream, struct graph *graph) MUST_CHECK;
enum status graph_launch(struct graph *graph, struct stream *stream) MUST_CHECK;
void graph_free(struct graph *graph); // all launches must be done; no-op for a zeroed graph

// The dense peak of a GPU, to which model FLOPs utilization (MFU) refers: the vendor's FLOP/s of matrix
// products without sparsity. bf16 and fp16: on tensor cores with fp32 sums; fp32: on CUDA cores. Returns 0
// if the GPU is not listed or is a MIG slice.
//   name         as cudaGetDeviceProperties gives it
//   capability   compute capability, 90 for 9.0
double gpu_dense_peak(const char *name, int capability, enum dtype type);
// Opens the CPU backend with a given instruction set: "amx", "avx512_bf16", "avx512", "avx2", "portable",
// or NULL for the best one. amx multiplies bf16 in tile registers. avx512_bf16 multiplies bf16 by vector
// instructions without upcasting; NULL selects it only on processors where that is fast.
//   n_threads   0: one per core that the process may use
// Errors: STATUS_UNSUPPORTED when this processor lacks the instruction set.
enum status cpu_device_open(const char *instruction_set, int n_threads, struct device **out) MUST_CHECK;
// Binds the threads of the CPU backend to NUMA nodes, so that memory is local to the thread that first
// touches it. Threads are numbered over all ranks of the machine: rank `index` has the n_threads numbers
// from index * n_threads on. Consecutive numbers share a node. No-op on a machine with one node.
enum status cpu_device_bind_threads(struct device *device, int index) MUST_CHECK;
// Opens GPU `index` modulo the number of GPUs.
// Errors: STATUS_UNSUPPORTED when there is no GPU, no driver, or no CUDA in this build; the message says
// which.
enum status cuda_device_open(int index, struct device **out) MUST_CHECK;
// Whether cuda_device_open would find a driver and a GPU. Leaves status_message unchanged.
bool cuda_device_present(void);
// A GPU for `./train plan`: needs neither a GPU nor CUDA in this build. ops->workspace_bytes and
// ops->launches use the CUDA backend's own formulas; everything else fails. Workspace that depends on the
// GPU is sized for the largest GPU, and that of ATTENTION_CUDNN as if cuDNN were installed.
struct device *cuda_device_plan(void);

// The three functions below report how the CUDA backend was built and which libraries it finds. They need
// no GPU. Each writes text to `buffer` and returns it; in a build without CUDA, the text says so.
// The compute capabilities that the kernels were compiled for: "8.0 9.0".
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
    struct arena matrices, workspace; // overwritten; `matrices` holds the input and the output
};
struct gemm_rate { // FLOP/s
    double best;   // of the fastest repetition; utilization refers to it
    double mean;   // over all repetitions: lower than `best` if the machine is shared or throttles
};
// Measures the FLOP/s of linear_forward on random (rows, n_embd) x (n_embd, 4 n_embd), repeated for about
// `seconds` and at least 12 times. n_embd is limited to 4096. `rows` is raised to at least 64, and on the
// CPU reduced so that about 12 repetitions fit into the time.
//   memory   NULL: memory is allocated for the call. Otherwise the weights are used as they are;
//     STATUS_FAILED if the memory is too small
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
