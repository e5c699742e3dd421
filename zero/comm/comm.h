// Communication between ranks: the collectives that the ZeRO stages need, each counting its bytes and calls.
// Behind it one rank alone (comm_self) or ranks under mpirun (comm_mpi). Bulk calls name memory of a device
// and may run while the caller computes; small ones (sums, agreements) name host memory and wait.
//
// Every rank makes the same calls in the same order. Sums are taken in rank order, so their bits depend on
// the number of ranks and on nothing else. When a rank fails, in or out of a call, the calls of all others
// return its status and message ("rank 2: cannot read ..."): nobody waits for a rank that will not come.
// Each message carries the name and the number of its collective: ranks that make different calls all end
// with a message that names both. A rank that stops responding ends all after comm_options.hang_timeout_s.
//
// Sources: the collectives' meaning as in MPI 3.1, chapter 5; reduce-scatter and all-gather in ZeRO as in
// arXiv 1910.02054, section 7.
#ifndef ZERO_ZERO_COMM_COMM_H
#define ZERO_ZERO_COMM_COMM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"
#include "kernels/device.h"

enum comm_operation {
    COMM_REDUCE_SCATTER,
    COMM_ALL_GATHER,
    COMM_ALL_REDUCE,
    COMM_BROADCAST,
    COMM_CONTROL,
    N_COMM_OPERATIONS
};
const char *comm_operation_name(enum comm_operation operation); // "reduce_scatter", ...

// What this rank has sent so far, and how long it took.
struct comm_traffic {
    uint64_t bytes[N_COMM_OPERATIONS]; // payload handed to other ranks
    uint64_t calls[N_COMM_OPERATIONS]; // collectives; 0 for one rank alone
    double busy_s;                     // in bulk collectives, and all-reduces
    double waited_s;                   // of those, what the caller stood waiting
};

// Elements that one rank owns, as part of one bulk call. Offsets are in elements from the bases that the call
// gets; `in` and `out` mean what the call says.
struct comm_span {
    int owner;
    int next; // the owner's next span in the same transfer, -1: none. comm_spans_link fills it
    size_t in, out, elements;
};
// The spans of one bulk call: the same list on every rank.
struct comm_transfer {
    const struct comm_span *spans;
    int n_spans;
    size_t elements; // the sum of the spans'
};
// Links each owner's spans of one transfer, so that a call visits every span once, whatever the number of
// ranks.
enum status comm_spans_link(struct comm_span *spans, int n_spans) MUST_CHECK;

struct profile;
struct rank_state;
struct comm {
    const struct comm_backend *backend;
    int rank, world;
    int local_rank, local_world; // among the ranks on this machine
    struct rank_state *state;    // what other ranks see of this one; NULL for one rank alone
    atomic_llong hang_ms;        // how long a call may wait for a rank that shows no progress; 0: for ever
    atomic_uint known_failure;   // status_serial() of the failure that every rank knows of; 0: none
    atomic_ullong known_at;      // calls issued when it became known
    struct comm_traffic traffic; // read it after comm_wait_all
    struct device *device;       // from comm_attach
    struct stream stream;        // of that device: sums, and what leaves it
    struct event issued;         // the end of the caller's work when a call is made at once
    struct comm_queue *queue;    // calls under way, or NULL: each runs at once
    void *data;                  // the backend's
    struct profile *profile;     // where the time spent here is told, or NULL
    bool eager;                  // the bulk call being made has a caller who waits for it
};

typedef uint64_t comm_work; // of a bulk call under way; 0: none

// ---- opening and closing

struct comm_options {
    bool shared_memory;    // ranks on one machine exchange through it; false: all through MPI's messages
    double hang_timeout_s; // 0: none. Rank 0's counts
};
// One rank alone where no MPI launcher started the process, otherwise MPI. STATUS_UNSUPPORTED when another
// MPI than the one built with has started it.
enum status comm_open(const struct comm_options *options, struct comm **out) MUST_CHECK;
// One rank alone, for tests and for what needs no others.
enum status comm_open_self(struct comm **out) MUST_CHECK;
// Gives bulk calls a device, whose memory they move and on which they sum. With `overlap` they run on a
// thread of their own, in the order given, while the caller computes; without it each has happened when it
// returns. May be called again. The device stays open until comm_detach (or comm_close).
enum status comm_attach(struct comm *comm, struct device *device, bool overlap) MUST_CHECK;
void comm_detach(struct comm *comm);
// The last call of every rank. A `status` that the others do not know of yet is told to them, with its
// message. Where there are several ranks, rank 0 tells the person here, and nothing is told after. Gives back
// the status to end with.
enum status comm_close(struct comm *comm, enum status status);
// Steps of this length are normal from now on: waiting twice as long for a rank is no hang. Any thread.
void comm_expect_seconds(struct comm *comm, double seconds);
// Tells the others, should they wait, that this rank is at work between two calls. Cheap; any thread.
void comm_progress(struct comm *comm);
// Bytes of host memory that the links between `world` ranks take in each rank: through shared memory to
// `linked` ranks, itself included (local_world, or 1 without comm.shared_memory), by messages to the others;
// and of memory where the device is (`place`) for what is being summed.
size_t comm_memory_bytes(int world, int linked);
size_t comm_sums_bytes(int world, enum region_place place);

// ---- bulk. Buffers must stay untouched until the work was waited for; writes made on
// `stream` before the call are seen by it, and comm_wait makes later work on the stream see its results. One
// rank alone sends nothing: its calls are work on `stream`.

// Each span's owner gets the sum over ranks r = 0, 1, ... of r's in[span.in ...] in its out[span.out ...]:
// taken in fp32, in rank order. With `accumulate` it is added to what is there. `out` may be the owner's `in`
// itself where span.in == span.out. comm_dtype: fp32, or bf16 or fp16: then every rank's share, the owner's
// own too, is rounded to that once before it is added (one rank alone sends nothing and rounds nothing).
enum status comm_reduce_scatter(struct comm *comm, struct stream *stream,
                                const struct comm_transfer *transfer, const float *in, float *out,
                                enum dtype comm_dtype, bool accumulate, comm_work *work) MUST_CHECK;
// Every rank gets each span's owner's in[span.in ...] in its out[span.out ...], of `type`. The owner's two
// places may be one.
enum status comm_all_gather(struct comm *comm, struct stream *stream, const struct comm_transfer *transfer,
                            const void *in, void *out, enum dtype type, comm_work *work) MUST_CHECK;
enum status comm_wait(struct comm *comm, struct stream *stream, comm_work work) MUST_CHECK;
enum status comm_wait_all(struct comm *comm) MUST_CHECK;

// ---- small, host memory, along a tree of ranks. All but comm_agree wait for the bulk calls before them.

// values[i] becomes the sum over ranks, in rank order.
enum status comm_sum(struct comm *comm, double *values, int n) MUST_CHECK;
// The same of many values, in host memory too: each rank sums a share of them and sends it to the others.
enum status comm_all_reduce(struct comm *comm, double *values, size_t n) MUST_CHECK;
// What `rank` sends for that: its part of the others' shares, and its own share to each of them.
uint64_t comm_all_reduce_bytes(int rank, int world, size_t n);
// `all` (world * bytes) gets every rank's `mine`, in rank order. Every rank holds all of it: keep it small.
enum status comm_gather(struct comm *comm, const void *mine, size_t bytes, void *all) MUST_CHECK;
enum status comm_broadcast(struct comm *comm, void *data, size_t bytes, int root) MUST_CHECK;
enum status comm_barrier(struct comm *comm) MUST_CHECK;
// The worst of all ranks' statuses, with its message, which names the lowest rank that has it (unless all
// have). STATUS_STOPPED counts as a status here: one rank that was asked to stop stops all. A caller that can
// go on after a failure clears it (status_clear); a later failure of one rank then reaches the others as any.
enum status comm_agree(struct comm *comm, enum status status) MUST_CHECK;
// Tells every rank that this one fails, without waiting for them: their calls return `status`.
void comm_abort(struct comm *comm, enum status status);

#endif
