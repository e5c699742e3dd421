// A device: its memory, its copies, its streams and its table of operations. Backends: kernels/ref (the
// oracle, tests only), kernels/cpu and kernels/cuda. Nothing above this folder knows which one runs.
#ifndef ZERO_KERNELS_DEVICE_H
#define ZERO_KERNELS_DEVICE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/dtype.h"
#include "base/region.h"
#include "base/status.h"

struct ops;
struct device;
struct watched;

// An order of work on a device: operations on one stream happen one after the other, and after the call that
// asked for them returned (on the CPU: before it returns). The workspace is scratch that any operation may
// use while it runs and that holds nothing between operations; its size is the largest that
// ops->workspace_bytes gave for what will run on this stream.
struct stream {
    struct device *device;
    void *queue; // the device's own, from stream_init; NULL where operations happen at once
    void *workspace;
    size_t workspace_bytes;
};

// A place in a stream's order, for other streams to wait for.
struct event {
    struct device *device;
    void *mark; // the device's own; NULL where operations happen at once
};

struct device {
    const char *name;      // "cpu", "cuda", "ref"
    char description[160]; // for people: instruction set, library, threads
    const struct ops *ops;
    enum region_place place; // where its memory is
    int n_threads;           // host threads that its operations use
    // Memory zeroed, aligned to REGION_ALIGNMENT at least. bytes 0 gives NULL.
    enum status (*memory_new)(struct device *device, size_t bytes, const char *purpose, void **out);
    void (*memory_delete)(struct device *device, void *memory, size_t bytes);
    // Copies in stream order; either side may be host memory. `copy` may return before the copy happened:
    // pinned host memory must then stay as it is until synchronize, other host memory is read at once.
    enum status (*copy)(struct stream *stream, void *to, const void *from, size_t bytes);
    // Waits until all work given to the stream has happened, and reports what failed in it.
    enum status (*synchronize)(struct stream *stream);
    void (*close)(struct device *device);
    struct watched *watched; // kernels/profile.h, which times this device's operations; NULL: nothing does

    // NULL where memory is the host's and operations happen at once; called through the functions below.
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
    enum status (*timer_open)(struct device *device, void **mark); // as event_open, with the time kept
    enum status (*timer_seconds)(const struct event *from, const struct event *to, double *seconds);
};

// name: "cpu", "cuda", or "auto" for the best that this machine has. n_threads 0: one per core that the
// process may use. index: which GPU, counted round where there are fewer (ranks of one machine give their
// number there); of the CPU, which processors, where threads are bound to memory nodes. STATUS_UNSUPPORTED
// when the device is not in this build or machine. Close with device_close.
enum status device_open(const char *name, int n_threads, int index, struct device **out) MUST_CHECK;
void device_close(struct device *device);

// Bytes of memory of its own that the device can still give; 0 where its memory is the host's.
enum status device_memory_available(struct device *device, size_t *bytes) MUST_CHECK;
// Makes host memory one that copies reach without a detour and behind the caller's back; bytes 0 does
// nothing.
enum status device_pin(struct device *device, void *memory, size_t bytes) MUST_CHECK;
void device_unpin(struct device *device, void *memory); // before the memory is freed; NULL does nothing

enum status stream_init(struct stream *stream, struct device *device) MUST_CHECK; // without a workspace
void stream_free(struct stream *stream); // its work must have happened; a zeroed stream is left alone
// For cleaning up after a failure: waits for what was left on the stream. Why it failed is told elsewhere.
void stream_drain(struct stream *stream); // a zeroed stream is left alone

enum status event_init(struct event *event, struct device *device) MUST_CHECK;
// An event that keeps the time when it happened.
enum status event_init_timed(struct event *event, struct device *device) MUST_CHECK;
void event_free(struct event *event);
// The event becomes the end of the stream's work so far.
enum status event_record(struct event *event, struct stream *stream) MUST_CHECK;
// Later work on `stream` happens after the event. The host does not wait.
enum status event_wait(struct event *event, struct stream *stream) MUST_CHECK;
// The host waits for the event; at once where it was never recorded.
enum status event_synchronize(struct event *event) MUST_CHECK;
// From one timed event to another, both of which have happened; 0 where operations happen at once.
enum status event_seconds(const struct event *from, const struct event *to, double *seconds) MUST_CHECK;

// The oracle as a device, for tests: plain loops in double, one thread.
enum status ref_device_open(struct device **out) MUST_CHECK;
// The CPU backend with a chosen instruction set: "avx512_bf16", "avx512", "avx2", "portable", or NULL for the
// best: avx512_bf16, whose attention multiplies bf16 as it is, where that measures fast. STATUS_UNSUPPORTED
// when this processor lacks it.
enum status cpu_device_open(const char *instruction_set, int n_threads, struct device **out) MUST_CHECK;
// Binds the threads of the CPU backend to memory nodes, where the machine has several and OMP_PROC_BIND,
// OMP_PLACES and GOMP_CPU_AFFINITY do not say otherwise: neighbours to one node, those of device `index`
// after those of the devices before it. Memory then stands where the thread that first touches it works.
enum status cpu_device_bind_threads(struct device *device, int index) MUST_CHECK;
// STATUS_UNSUPPORTED, with what is missing, when there is no GPU, no driver, or no CUDA in this build.
enum status cuda_device_open(int index, struct device **out) MUST_CHECK;
// A GPU for plans, whether or not there is one, or CUDA in this build: it answers ops->workspace_bytes by the
// CUDA backend's own formulas and refuses all else. Where scratch grows with the GPU, as much as on the
// largest.
enum status cuda_device_plan(struct device **out) MUST_CHECK;

// FLOP/s of linear_forward on (rows, n_embd) x (n_embd, 4 n_embd), run again and again for about `seconds`,
// at least a few times. On the CPU rows are bounded so that these few fit into the time.
struct gemm_rate {
    double best; // the fastest run's: what utilisation is measured against
    double mean; // all runs' together: what lasts, on a machine that is shared or that slows down when warm
};
enum status device_measure_gemm_rate(struct device *device, int rows, int n_embd, enum dtype type,
                                     double seconds, struct gemm_rate *rate) MUST_CHECK;
// Bytes/s of a += k b in memory, two reads and a write, the best of a few passes over several times what
// caches hold, or an eighth of the memory that there is where that is less. Takes a part of a second.
enum status device_measure_bandwidth(struct device *device, double *bytes_per_s) MUST_CHECK;
// What "auto" precision resolves to: bf16 on a GPU; on the CPU fp32 or bf16, whichever's GEMM measures faster
// on one fixed shape, so that the answer is the machine's and not the moment's. bf16 rounds more and must win
// by a quarter. fp16 is never the answer: its range wants scaled losses, so who trains in it asks for it.
enum status device_measure_compute_type(struct device *device, enum dtype *out) MUST_CHECK;

#endif
