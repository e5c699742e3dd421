// Communication between ranks: the collectives that the ZeRO stages need.
//
//   bulk              reduce-scatter, all-gather and exchange of device memory; may overlap with compute
//   on host memory    sums, gather, broadcast, barrier and agreement; they block
//
// Backends: one rank alone (comm.c), or ranks started by mpirun (zero/comm/mpi/mpi.h). A new backend
// implements zero/comm/backend.h and is chosen in zero/comm/open.c.
//
// Order. Every rank issues the same collectives in the same order. Messages carry the collective's name and
// number, so ranks that disagree all stop, with a message that names both collectives.
//
// Determinism. Sums over ranks are added along a fixed binary tree over rank numbers (sum_tree.h): their bits
// depend on the number of ranks and on nothing else.
//
// Failures. When a rank fails, in a collective or between two, the collectives of all other ranks return its
// status and its message ("rank 2: cannot read ..."). No rank waits for a dead one; a rank that stops
// responding ends the run after comm_options.hang_timeout_s.
//
// Sources: collectives as in MPI 3.1, chapter 5; reduce-scatter and all-gather in ZeRO as in arXiv
// 1910.02054, section 7.
#ifndef ZERO_ZERO_COMM_COMM_H
#define ZERO_ZERO_COMM_COMM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"
#include "kernels/device.h"
#include "zero/comm/transfer.h"

const char *comm_operation_name(enum comm_operation operation); // "reduce_scatter", ...

// What one rank sends in one step, as planned by the modules that send it (zero/engine.h).
struct comm_volume {
    uint64_t bytes[N_COMM_OPERATIONS], calls[N_COMM_OPERATIONS];
};
// The bytes of reduce-scatter, all-gather and exchange together. Excludes broadcasts and control messages.
uint64_t comm_volume_bytes(const struct comm_volume *volume);
uint64_t comm_volume_calls(const struct comm_volume *volume);

// Totals of this rank since the communicator was opened.
struct comm_traffic {
    uint64_t bytes[N_COMM_OPERATIONS]; // payload sent to other ranks
    uint64_t calls[N_COMM_OPERATIONS]; // number of collectives; 0 with one rank
    double busy_s;                     // time spent in bulk collectives
    double waited_s;                   // part of busy_s during which the caller waited
    double host_s; // time spent in collectives on host memory, without waiting for bulk collectives
};

// The path of bulk collectives between GPUs.
enum comm_path {
    COMM_PATH_AUTO, // NCCL if all ranks can use it, else the host
    COMM_PATH_NCCL, // NCCL; comm_attach fails without it
    COMM_PATH_HOST,
};

// How failures of other ranks are detected (zero/comm/comm.c, zero/comm/mpi/failure.c).
struct comm_failures {
    atomic_llong hang_ms;   // how long to wait for a rank that shows no progress; 0: without limit
    atomic_uint known;      // status_serial() of the failure that every rank knows of; 0: none
    atomic_ullong known_at; // how many collectives this rank had issued when the failure became known
};

struct profile;
struct rank_state;
// A communicator. Callers may read the members before `backend`, and also `traffic`, `for_gpu` and
// `path_text`. They may set `profile`. All other members are private to this folder.
struct comm {
    int rank, world;
    int local_rank, local_world; // this rank's number among the ranks on its machine; how many these are
    int processors;              // number of CPUs of this rank: its part of local_processors
    int local_processors;        // number of CPUs of all ranks on this machine
    char place[80]; // "on HOST: ", printed before this rank's messages; "" if all ranks are on one machine
    const struct comm_backend *backend;
    struct rank_state *state; // what this rank shows to the others; NULL with one rank
    struct comm_failures failures;
    struct comm_traffic traffic; // read it after comm_wait(COMM_WORK_ALL)
    struct device *device;       // set by comm_attach
    struct stream stream;        // on that device: runs sums and copies
    struct event issued; // marks the end of the caller's work before a bulk collective that is not queued
    struct comm_queue *queue; // queued bulk collectives; NULL: each runs when it is issued
    void *data;               // private to the backend
    // Bulk collectives as stream work, used where device_data is set. NULL: not wanted.
    const struct comm_device_backend *device_backend;
    void *device_data;
    pthread_mutex_t watch_lock; // held while the watchdog uses device_data, and while device_data changes
    bool for_gpu;               // rank 0's comm_options.for_gpu
    enum comm_path path;
    char path_text[512]; // for the log: how GPUs exchange data, and why; set by comm_attach; "" without GPUs
    struct profile *profile; // records the time spent in collectives and waits; NULL: none
    // True if a caller waits for the running bulk collective. Waits inside it then spin before they sleep.
    bool eager;
};

// ---- opening and closing

// Options of a communicator. All ranks use those of rank 0.
struct comm_options {
    const char *build;     // identifies the build; compared between ranks. NULL: not known
    bool shared_memory;    // exchange through shared memory on one machine; false: MPI messages
    double hang_timeout_s; // how long a rank may show no progress while others wait for it; 0: no limit
    bool for_gpu;          // bulk collectives move GPU memory: larger chunks
    enum comm_path path;
};
// Opens a communicator of all ranks, if an MPI launcher started this process, else of one rank.
// STATUS_INVALID: two ranks run different builds. Rank 0 has printed the error; the caller logs nothing more.
// STATUS_UNSUPPORTED: the launcher started another number of processes than MPI has ranks. Such a launcher
// belongs to another MPI than the program was built with, or to none.
enum status comm_open(const struct comm_options *options, struct comm **out) MUST_CHECK;
// Returns an environment variable that shows that a launcher (of MPI, Slurm, torchrun, ...) started this
// process as one of several or as a rank; NULL: none.
const char *comm_launcher_sign(void);
// Opens a communicator of one rank, for tests and single-rank commands.
struct comm *comm_open_self(void);
// Sets the device whose memory bulk collectives read and write, and on which sums run. Call it again to
// change the device, which must stay open until comm_detach or comm_close. All ranks call it together.
//   overlap   run bulk collectives on a thread, in order of issue, while the caller computes; false: each is
//             done when its call returns. No effect where comm_on_device: there they always overlap
// Errors: STATUS_UNSUPPORTED where comm_options.path is COMM_PATH_NCCL and NCCL cannot be used.
enum status comm_attach(struct comm *comm, struct device *device, bool overlap) MUST_CHECK;
void comm_detach(struct comm *comm);
// Ends communication; the last call of every rank. Returns the status to exit with: `status`, or the
// failure of another rank. Reports `status` to the other ranks if it is a failure that they do not know.
// With several ranks it prints the failure once; nothing is logged after it.
enum status comm_close(struct comm *comm, enum status status);
// Raises the hang timeout to at least twice `seconds`, the length of a normal step. Callable from any thread.
void comm_expect_seconds(struct comm *comm, double seconds);
// Shows the other ranks that this rank is working between two collectives. Cheap; callable from any thread.
void comm_progress(struct comm *comm);
// Returns the bytes of host memory that each rank needs for its links to the others.
//   world    number of ranks
//   linked   ranks reached through shared memory, this one included: local_world, or 1 without
//            comm.shared_memory; the others are reached by messages
//   for_gpu  as comm_options.for_gpu
size_t comm_memory_bytes(int world, int linked, bool for_gpu);
// Returns the bytes of device memory that each rank needs for the sums of reduce-scatters.
//   place     where that memory is: on a GPU or, for the CPU, on the host
//   for_gpu   as comm_options.for_gpu
//   by_nccl   true if bulk collectives use NCCL
size_t comm_sums_bytes(int world, enum region_place place, bool for_gpu, bool by_nccl);

// ---- bulk collectives
//
// Arguments of all bulk collectives:
//   stream     the collective reads `in` after the work already issued to it; after comm_wait, work issued to
//              it sees the results
//   transfer   must be the same on every rank
//   work       [out] handle for comm_wait. Until then the caller must not change `in`, `out` or `transfer`
// With one rank nothing is sent: the collective is work on `stream`.

// Reduce-scatter. The owner of each span receives in out[span.out ..] the sum of every rank's in[span.in ..].
//   comm_dtype   fp32, bf16 or fp16: each rank's contribution, the owner's too, is rounded to it once; sums
//                are fp32. One rank alone rounds nothing
//   accumulate   add to `out` instead of overwriting it
// Determinism: contributions are added along the tree. `out` may alias the owner's own input where
// span.in == span.out.
enum status comm_reduce_scatter(struct comm *comm, struct stream *stream,
                                const struct comm_transfer *transfer, const float *in, float *out,
                                enum dtype comm_dtype, bool accumulate, comm_work *work) MUST_CHECK;
// All-gather. Every rank receives in out[span.out ..] the owner's in[span.in ..], for each span.
//   type   dtype of the elements
// The owner's `in` and `out` may be the same memory.
enum status comm_all_gather(struct comm *comm, struct stream *stream, const struct comm_transfer *transfer,
                            const void *in, void *out, enum dtype type, comm_work *work) MUST_CHECK;
// Exchange. Each span goes from its owner's in[span.in ..] to out[span.out ..] of rank span.to only. With one
// rank it is copied.
//   type   dtype of the elements
// `in` and `out` must not overlap.
enum status comm_exchange(struct comm *comm, struct stream *stream, const struct comm_transfer *transfer,
                          const void *in, void *out, enum dtype type, comm_work *work) MUST_CHECK;
// Waits for one bulk collective and all issued before it. Returns the first failure.
//   stream   where comm_on_device, this stream waits, and the host does not. Elsewhere the host waits.
//            NULL: the host waits
//   work     the handle of the collective; COMM_WORK_ALL: waits for all
enum status comm_wait(struct comm *comm, struct stream *stream, comm_work work) MUST_CHECK;

// True if bulk collectives are work on streams, and the host never waits for them: with NCCL, and with one
// rank. All ranks have the same value from comm_attach to comm_detach.
bool comm_on_device(const struct comm *comm);
// Gathers every rank's `mine` into all (world * bytes), in rank order, as work on `stream`. Both are device
// memory. For small values, and only if comm_on_device.
enum status comm_gather_device(struct comm *comm, struct stream *stream, const void *mine, size_t bytes,
                               void *all) MUST_CHECK;

// ---- collectives on host memory
//
// All but comm_agree first wait for the bulk collectives issued before them, unless comm_on_device.

// Sets values[i] to the sum of all ranks' values[i], added along the tree. Every rank gathers all
// contributions, a few thousand values at a time.
enum status comm_sum(struct comm *comm, double *values, size_t n) MUST_CHECK;
// Sets sums[i] to the sum of values[i] of all leaves, added along the tree over their numbers. Each rank has
// `per_rank` leaves: its leaf j is number j * world + rank. For small n.
//   values   (per_rank, n)
enum status comm_sum_leaves(struct comm *comm, const double *values, int per_rank, size_t n,
                            double *sums) MUST_CHECK;
// Gathers every rank's `mine` into all (world * bytes) of every rank, in rank order. For small values,
// because each rank holds `all`.
enum status comm_gather(struct comm *comm, const void *mine, size_t bytes, void *all) MUST_CHECK;
// Copies `data` of rank `root` to `data` of all other ranks.
enum status comm_broadcast(struct comm *comm, void *data, size_t bytes, int root) MUST_CHECK;
// Copies rank 0's text to all ranks.
//   mine        used on rank 0
//   of_rank_0   [out] on every rank. Free with text_free, also after a failure
struct text;
enum status comm_broadcast_text(struct comm *comm, const struct text *mine,
                                struct text *of_rank_0) MUST_CHECK;
// Returns once every rank has called it.
enum status comm_barrier(struct comm *comm) MUST_CHECK;
// Returns the worst status of all ranks, with the message of the lowest rank that has it. The message names
// that rank unless all ranks have the status. STATUS_STOPPED counts: one rank that is asked to stop stops all
// ranks. A caller that continues after a failure clears it (status_clear); later failures are then reported
// as usual.
enum status comm_agree(struct comm *comm, enum status status) MUST_CHECK;

// ---- failures that every rank knows of
//
// A rank reports its own failure to the others once (comm_abort). A failure that all ranks agreed on, or that
// came from another rank, is not reported again.

// Reports a failure of this rank to all others, without waiting for them: their collectives return `status`.
void comm_abort(struct comm *comm, enum status status);
// Marks the failure recorded in base/status.h as known to every rank.
void comm_note_known_failure(struct comm *comm);
// True if the failure recorded in base/status.h is known to every rank and no collective was issued since. A
// caller that clears the failure and continues (to save the run's progress) can fail again: that is a new
// one.
bool comm_is_known_failure(struct comm *comm);

#endif
