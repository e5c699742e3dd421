// See zero/comm/nccl/nccl.h.
#include "zero/comm/nccl/nccl.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "kernels/ops.h"
#include "zero/comm/chunks.h"
#include "zero/comm/mpi/failure.h"
#include "zero/comm/nccl/load.h"

#define ERROR_MS      1000 // delay from an NCCL error to its report: a dead process is usually found sooner
#define LOOK_NS       20000000 // time between two checks whether a rank has failed
#define MOST_SPANS    128 // maximum spans per NCCL group (ncclGroupStart to ncclGroupEnd), which NCCL fuses
#define NCCL_WORKS    64  // work handles with their own event; an older handle waits for a later event
#define NCCL_WATCHED  128 // maximum collectives watched for completion at a time
#define NCCL_INTERVAL 64  // maximum waits timed at a time

// The time between two points of a stream, read after both have happened.
struct nccl_interval {
    struct event begin, end; // timed events at its start and its end
    uint64_t call;           // the collective's number
};
// Intervals in order: those from n_done to n_begun - 1 have not been read.
struct nccl_intervals {
    struct nccl_interval *entries; // (size)
    unsigned size, n_begun, n_done;
};

struct nccl {
    struct nccl_api api;
    nccl_comm handle; // NCCL's communicator; NULL: not connected
    int version;
    // Staging in chunks of chunk_bytes: `send` has a chunk for each rank (this one too), `receive` one from
    // each other rank.
    size_t chunk_bytes;
    char *send, *receive; // (world) and (world - 1) chunks
    struct event done[NCCL_WORKS];
    uint64_t n_works;    // number of collectives issued; also the last work handle
    atomic_bool aborted; // the watchdog aborted the handle: do not use it any more
    // Written by the main thread. The watchdog reads them even while the main thread holds the lock.
    atomic_uint n_locked;        // how often the main thread took the lock
    _Atomic uint64_t begun_call; // 1 + number of the collective that the main thread issued last; 0: none
    // Written by the watchdog only.
    unsigned stuck_in;   // n_locked when the watchdog found the lock taken
    int64_t stuck_ms;    // when the watchdog found the lock taken; 0: the lock was free
    int64_t error_ms;    // when the watchdog first saw an asynchronous error; 0: never
    uint64_t shown_call; // 1 + the number of the collective shown as this rank's wait; 0: none
    // Guards the handle and the members below: the watchdog polls and aborts while the main thread issues.
    pthread_mutex_t lock;
    struct nccl_intervals works; // on comm->stream: one interval per collective
    struct nccl_intervals waits; // on the callers' streams: one interval per wait for a collective's end
    double busy_s, waited_s;     // sums so far, not yet added to comm->traffic
    uint64_t n_issued;           // number of collectives issued, watched or not
    uint64_t n_watched;          // number of collectives whose end an event marks
    uint64_t last_call;          // number of the last collective
};

static inline struct nccl *nccl_of(const struct comm *comm) {
    return comm->device_data;
}

static inline nccl_stream nccl_queue(const struct stream *stream) {
    return stream->queue;
}

static inline enum nccl_type nccl_type_of(enum dtype type) {
    return type == DTYPE_BF16 ? NCCL_BFLOAT16 : type == DTYPE_F16 ? NCCL_FLOAT16 : NCCL_FLOAT32;
}

// ---- intervals

static enum status nccl_intervals_init(struct nccl_intervals *intervals, struct device *device,
                                       unsigned size) {
    *intervals = (struct nccl_intervals){.entries = allocate(size, sizeof *intervals->entries), .size = size};
    for (unsigned i = 0; i < size; i++) {
        TRY(event_init_timed(&intervals->entries[i].begin, device));
        TRY(event_init_timed(&intervals->entries[i].end, device));
    }
    return STATUS_OK;
}

static void nccl_intervals_free(struct nccl_intervals *intervals) {
    for (unsigned i = 0; intervals->entries && i < intervals->size; i++) {
        event_free(&intervals->entries[i].begin);
        event_free(&intervals->entries[i].end);
    }
    free(intervals->entries);
    *intervals = (struct nccl_intervals){0};
}

// Begins an interval on `stream`. The caller records its end.
//   out   [out] the interval; NULL if all are in use
static enum status nccl_interval_begin(struct nccl_intervals *intervals, struct stream *stream, uint64_t call,
                                       struct nccl_interval **out) {
    *out = NULL;
    if (intervals->n_begun - intervals->n_done == intervals->size)
        return STATUS_OK;
    struct nccl_interval *next = &intervals->entries[intervals->n_begun % intervals->size];
    TRY(event_record(&next->begin, stream));
    next->call = call;
    intervals->n_begun++;
    *out = next;
    return STATUS_OK;
}

// Reads the finished intervals and adds their lengths to *seconds. An error of the device stays recorded: the
// thread that issues work gets the same error.
static void read_intervals(struct nccl_intervals *intervals, double *seconds) {
    bool happened = true;
    while (intervals->n_done < intervals->n_begun) {
        const struct nccl_interval *oldest = &intervals->entries[intervals->n_done % intervals->size];
        double length;
        if (event_query(&oldest->end, &happened) != STATUS_OK || !happened ||
            event_seconds(&oldest->begin, &oldest->end, &length) != STATUS_OK)
            return;
        *seconds += length;
        intervals->n_done++;
    }
}

// Adds the lengths of the finished intervals to comm->traffic.
static void nccl_count_time(struct comm *comm) {
    struct nccl *nccl = nccl_of(comm);
    read_intervals(&nccl->works, &nccl->busy_s);
    read_intervals(&nccl->waits, &nccl->waited_s);
    comm->traffic.busy_s += nccl->busy_s;
    comm->traffic.waited_s += nccl->waited_s;
    nccl->busy_s = nccl->waited_s = 0;
}

// ---- failures

static bool is_error(int result) {
    return result != NCCL_SUCCESS && result != NCCL_IN_PROGRESS;
}

// Returns the failure of a call of NCCL. If another rank fails within ERROR_MS, returns that failure instead,
// because it is probably the cause.
static enum status nccl_failure(struct comm *comm, int result, const char *call) {
    const struct nccl *nccl = nccl_of(comm);
    const struct timespec nap = {.tv_nsec = LOOK_NS};
    for (int i = 0; i < ERROR_MS * 1000000LL / LOOK_NS && !mpi_has_failed(comm); i++)
        nanosleep(&nap, NULL);
    TRY(mpi_check_failure(comm));
    return FAIL(STATUS_FAILED, "NCCL: %s: %s (%s)", call, nccl->api.GetErrorString(result),
                nccl->api.GetLastError(nccl->handle));
}

static void report_error(struct comm *comm, int result) {
    struct nccl *nccl = nccl_of(comm);
    const int64_t now = rank_state_now_ms();
    char message[COMM_MESSAGE_BYTES];
    nccl->error_ms = nccl->error_ms ? nccl->error_ms : now;
    if (now - nccl->error_ms < ERROR_MS)
        return;
    snprintf(message, sizeof message, "NCCL: a collective failed: %s (%s)", nccl->api.GetErrorString(result),
             nccl->api.GetLastError(nccl->handle));
    mpi_abort(comm, STATUS_FAILED, message);
}

static void look_for_error(struct comm *comm) {
    struct nccl *nccl = nccl_of(comm);
    int result = NCCL_SUCCESS;
    if (nccl->api.CommGetAsyncError(nccl->handle, &result) == NCCL_SUCCESS && is_error(result))
        report_error(comm, result);
}

// Returns 1 + the number of the oldest collective that has not ended, or 0.
static uint64_t oldest_call(const struct nccl_intervals *works) {
    return works->n_done < works->n_begun ? 1 + works->entries[works->n_done % works->size].call : 0;
}

// Shows a collective (1 + its number, 0: none) as this rank's wait. NCCL does not report which rank it waits
// for, so the watchdog compares this rank's collectives with those of the next rank.
static void show_wait(struct comm *comm, uint64_t call) {
    struct nccl *nccl = nccl_of(comm);
    if (call == nccl->shown_call)
        return;
    if (nccl->shown_call)
        rank_state_wait_end(comm->state, CHANNEL_DEVICE);
    if (call)
        rank_state_wait_begin(comm->state, CHANNEL_DEVICE, (comm->rank + 1) % comm->world, call - 1);
    nccl->shown_call = call;
}

// Watches the collectives that have no interval, because all were in use when they were issued. Once all
// intervals have been read, begins a new one, whose end marks the end of the last such collective.
static void watch_rest(struct comm *comm) {
    struct nccl *nccl = nccl_of(comm);
    struct nccl_interval *rest;
    if (nccl->works.n_done < nccl->works.n_begun || nccl->n_watched == nccl->n_issued)
        return;
    nccl->n_watched = nccl->n_issued;
    if (nccl_interval_begin(&nccl->works, &comm->stream, nccl->last_call, &rest) != STATUS_OK ||
        event_record(&rest->end, &comm->stream) != STATUS_OK)
        return; // the error stays recorded, as in read_intervals
}

static void abort_collectives(struct nccl *nccl) {
    atomic_store(&nccl->aborted, true);
    (void)nccl->api.CommAbort(nccl->handle); // nothing more can be done if it fails
}

// The main thread holds the lock to issue a collective, and may block there: a launch waits while the GPU's
// queue is full behind a collective that does not end. The watchdog then makes, without the lock, the calls
// that NCCL allows from any thread. Aborting ends the launch.
static void watch_stuck(struct comm *comm) {
    struct nccl *nccl = nccl_of(comm);
    const int64_t now = rank_state_now_ms();
    const unsigned n_locked = atomic_load(&nccl->n_locked);
    if (nccl->stuck_ms == 0 || nccl->stuck_in != n_locked) {
        nccl->stuck_ms = now;
        nccl->stuck_in = n_locked;
    }
    if (now - nccl->stuck_ms < ERROR_MS || atomic_load(&nccl->aborted))
        return;
    if (mpi_has_failed(comm)) {
        abort_collectives(nccl);
        return;
    }
    if (nccl->shown_call == 0)
        show_wait(comm, atomic_load(&nccl->begun_call));
    look_for_error(comm);
}

static void nccl_watch(struct comm *comm) {
    struct nccl *nccl = nccl_of(comm);
    if (pthread_mutex_trylock(&nccl->lock) != 0) {
        watch_stuck(comm);
        return;
    }
    nccl->stuck_ms = 0;
    if (!atomic_load(&nccl->aborted)) {
        if (mpi_has_failed(comm)) {
            abort_collectives(nccl);
        } else {
            read_intervals(&nccl->works, &nccl->busy_s);
            watch_rest(comm);
            show_wait(comm, oldest_call(&nccl->works));
            look_for_error(comm);
        }
    }
    pthread_mutex_unlock(&nccl->lock);
}

// Returns from the current function unless the call of nccl->api succeeds.
#define TRY_NCCL(comm, call)                                                                                 \
    do {                                                                                                     \
        const int result_ = nccl_of(comm)->api.call;                                                         \
        if (result_ != NCCL_SUCCESS)                                                                         \
            return nccl_failure((comm), result_, #call);                                                     \
    } while (0)

// ---- reduce-scatter
//
// Each rank sends every owner the elements that this owner sums, rounded to the communication dtype. The
// owner adds the contributions of all ranks along the tree. This sends as many bytes as a ring
// reduce-scatter does, and the order of the sums does not depend on the topology.

static char *send_chunk(const struct comm *comm, int rank) {
    const struct nccl *nccl = nccl_of(comm);
    return nccl->send + (size_t)rank * nccl->chunk_bytes;
}

static char *receive_place(const struct comm *comm, int rank) {
    const struct nccl *nccl = nccl_of(comm);
    return nccl->receive + (size_t)(rank - (rank > comm->rank)) * nccl->chunk_bytes;
}

// Packs the next n elements for an owner. If they are already contiguous and in the right dtype, no copy is
// made.
static enum status pack_chunk(const struct comm_chunks *chunks, int owner, size_t n, const void **out) {
    struct comm_cursor next = chunks->cursors[owner];
    const struct comm_span span = comm_transfer_next(&next, n);
    if (chunks->call->type == DTYPE_F32 && span.elements == n) {
        chunks->cursors[owner] = next;
        *out = (const float *)chunks->call->in + span.in;
        return STATUS_OK;
    }
    *out = send_chunk(chunks->comm, owner);
    return comm_chunk_pack(chunks, owner, n, send_chunk(chunks->comm, owner));
}

// Sends each owner its chunk, and receives the other ranks' chunks for this rank. All calls are in one NCCL
// group, so their order cannot cause a deadlock.
static int exchange_chunks(const struct comm_chunks *chunks, size_t round, const void *const *packed) {
    struct comm *comm = chunks->comm;
    const struct nccl *nccl = nccl_of(comm);
    const int type = (int)nccl_type_of(chunks->call->type), rank = comm->rank, world = comm->world;
    const size_t mine = comm_chunk_elements(chunks, rank, round);
    const nccl_stream queue = nccl_queue(&comm->stream);
    int result = nccl->api.GroupStart(), ended;
    for (int distance = 1; distance < world && result == NCCL_SUCCESS; distance++) {
        const int to = (rank + distance) % world, from = (rank + world - distance) % world;
        const size_t n = comm_chunk_elements(chunks, to, round);
        if (n > 0)
            result = nccl->api.Send(packed[to], n, type, to, nccl->handle, queue);
        if (mine > 0 && result == NCCL_SUCCESS)
            result = nccl->api.Recv(receive_place(comm, from), mine, type, from, nccl->handle, queue);
    }
    ended = nccl->api.GroupEnd();
    return result == NCCL_SUCCESS ? ended : result;
}

static enum status run_round(const struct comm_chunks *chunks, size_t round) {
    struct comm *comm = chunks->comm;
    const void *x[comm->world];
    for (int owner = 0; owner < comm->world; owner++) {
        const size_t wanted = comm_chunk_elements(chunks, owner, round);
        x[owner] = NULL;
        if (wanted > 0 && owner != comm->rank)
            TRY(pack_chunk(chunks, owner, wanted, &x[owner]));
    }
    const int result = exchange_chunks(chunks, round, x);
    if (result != NCCL_SUCCESS)
        return nccl_failure(comm, result, "ncclSend and ncclRecv");
    for (int rank = 0; rank < comm->world; rank++)
        x[rank] = receive_place(comm, rank);
    return comm_chunk_sum(chunks, comm_chunk_elements(chunks, comm->rank, round), x,
                          send_chunk(comm, comm->rank));
}

static enum status reduce_scatter(struct comm *comm, const struct comm_call *call) {
    size_t owned[comm->world];
    struct comm_cursor cursors[comm->world];
    const struct comm_chunks chunks =
        comm_chunks_of(comm, call, nccl_of(comm)->chunk_bytes / dtype_size(call->type), owned, cursors);
    for (size_t round = 0; round < chunks.rounds; round++)
        TRY(run_round(&chunks, round));
    return STATUS_OK;
}

// ---- all-gather
//
// An all-gather only copies, so NCCL's choice of an algorithm cannot change the bits. Spans of equal size,
// one per rank in rank order, use ncclAllGather. All others are sent from the owner to each rank.

// True if the next `world` spans belong to one rank each, in rank order, have equal sizes, and are
// consecutive in `out`.
static bool is_even(const struct comm *comm, const struct comm_call *call, int first) {
    const struct comm_span *spans = call->transfer->spans + first;
    const size_t n = spans->elements;
    if (n == 0 || first + comm->world > call->transfer->n_spans)
        return false;
    for (int rank = 0; rank < comm->world; rank++)
        if (spans[rank].owner != rank || spans[rank].elements != n ||
            spans[rank].out != spans->out + (size_t)rank * n)
            return false;
    return true;
}

// Sends a span from its owner to all other ranks.
static int gather_span(struct comm *comm, const struct comm_call *call, const struct comm_span *span) {
    const struct nccl *nccl = nccl_of(comm);
    const int type = (int)nccl_type_of(call->type);
    const size_t size = dtype_size(call->type);
    const nccl_stream queue = nccl_queue(&comm->stream);
    int result = NCCL_SUCCESS;
    if (span->owner != comm->rank)
        return nccl->api.Recv((char *)call->out + span->out * size, span->elements, type, span->owner,
                              nccl->handle, queue);
    for (int distance = 1; distance < comm->world && result == NCCL_SUCCESS; distance++)
        result = nccl->api.Send((const char *)call->in + span->in * size, span->elements, type,
                                (comm->rank + distance) % comm->world, nccl->handle, queue);
    return result;
}

// Gathers about MOST_SPANS spans, from *next on, in one NCCL group. Advances *next.
static int gather_group(struct comm *comm, const struct comm_call *call, int *next) {
    const struct nccl *nccl = nccl_of(comm);
    const struct comm_transfer *transfer = call->transfer;
    const size_t size = dtype_size(call->type);
    const int end = *next + MOST_SPANS < transfer->n_spans ? *next + MOST_SPANS : transfer->n_spans;
    int result = nccl->api.GroupStart(), ended;
    while (*next < end && result == NCCL_SUCCESS) {
        const struct comm_span *spans = transfer->spans + *next;
        if (is_even(comm, call, *next)) {
            result = nccl->api.AllGather(
                (const char *)call->in + spans[comm->rank].in * size, (char *)call->out + spans->out * size,
                spans->elements, (int)nccl_type_of(call->type), nccl->handle, nccl_queue(&comm->stream));
            *next += comm->world;
        } else {
            if (spans->elements > 0)
                result = gather_span(comm, call, spans);
            (*next)++;
        }
    }
    ended = nccl->api.GroupEnd();
    return result == NCCL_SUCCESS ? ended : result;
}

// Copies this rank's own spans from `in` to `out`: gather_span does not send them to their owner.
static enum status copy_own(struct comm *comm, const struct comm_call *call) {
    const size_t size = dtype_size(call->type);
    for (int i = 0; i < call->transfer->n_spans;) {
        const struct comm_span *span = &call->transfer->spans[i];
        const char *in = (const char *)call->in + span->in * size;
        char *out = (char *)call->out + span->out * size;
        const bool even = is_even(comm, call, i);
        if (!even && span->owner == comm->rank && in != out)
            TRY(comm->device->copy(&comm->stream, out, in, span->elements * size));
        i += even ? comm->world : 1;
    }
    return STATUS_OK;
}

static enum status all_gather(struct comm *comm, const struct comm_call *call) {
    for (int next = 0; next < call->transfer->n_spans;) {
        const int result = gather_group(comm, call, &next);
        if (result != NCCL_SUCCESS)
            return nccl_failure(comm, result, "ncclAllGather");
    }
    return copy_own(comm, call);
}

// ---- exchange

static int exchange_span(struct comm *comm, const struct comm_call *call, const struct comm_span *span) {
    const struct nccl *nccl = nccl_of(comm);
    const int type = (int)nccl_type_of(call->type);
    const size_t size = dtype_size(call->type);
    int result = NCCL_SUCCESS;
    if (span->owner == span->to || span->elements == 0)
        return result;
    if (span->owner == comm->rank)
        result = nccl->api.Send((const char *)call->in + span->in * size, span->elements, type, span->to,
                                nccl->handle, nccl_queue(&comm->stream));
    if (span->to == comm->rank)
        result = nccl->api.Recv((char *)call->out + span->out * size, span->elements, type, span->owner,
                                nccl->handle, nccl_queue(&comm->stream));
    return result;
}

static enum status exchange_spans(struct comm *comm, const struct comm_call *call) {
    const struct comm_transfer *transfer = call->transfer;
    const size_t size = dtype_size(call->type);
    for (int next = 0; next < transfer->n_spans;) {
        const int end = next + MOST_SPANS < transfer->n_spans ? next + MOST_SPANS : transfer->n_spans;
        int result = nccl_of(comm)->api.GroupStart(), ended;
        for (; next < end && result == NCCL_SUCCESS; next++)
            result = exchange_span(comm, call, &transfer->spans[next]);
        ended = nccl_of(comm)->api.GroupEnd();
        if (result != NCCL_SUCCESS || ended != NCCL_SUCCESS)
            return nccl_failure(comm, result != NCCL_SUCCESS ? result : ended, "ncclSend and ncclRecv");
    }
    for (int i = 0; i < transfer->n_spans; i++) {
        const struct comm_span *span = &transfer->spans[i];
        if (span->owner == comm->rank && span->to == comm->rank)
            TRY(comm->device->copy(&comm->stream, (char *)call->out + span->out * size,
                                   (const char *)call->in + span->in * size, span->elements * size));
    }
    return STATUS_OK;
}

static size_t sent_elements(const struct comm *comm, const struct comm_call *call) {
    size_t owned[comm->world];
    int first[comm->world];
    comm_transfer_owners(call->transfer, comm->world, first, owned);
    const size_t own = owned[comm->rank];
    switch (call->operation) {
    case COMM_ALL_GATHER:
        return own * ((size_t)comm->world - 1);
    case COMM_EXCHANGE:
        return own - comm_route_elements(call->transfer, comm->rank, comm->rank);
    default:
        return call->transfer->elements - own;
    }
}

static void count(struct comm *comm, const struct comm_call *call) {
    comm->traffic.bytes[call->operation] += sent_elements(comm, call) * dtype_size(call->type);
    comm->traffic.calls[call->operation]++;
}

// Issues a collective to comm->stream, and counts its bytes and calls. The caller holds nccl->lock and has
// made comm->stream wait for the inputs.
static enum status nccl_run(struct comm *comm, const struct comm_call *call) {
    count(comm, call);
    if (call->operation == COMM_ALL_GATHER)
        return all_gather(comm, call);
    if (call->operation == COMM_EXCHANGE)
        return exchange_spans(comm, call);
    return reduce_scatter(comm, call);
}

// ---- work on the stream

static enum status check(struct comm *comm) {
    TRY(mpi_check_failure(comm));
    return atomic_load(&nccl_of(comm)->aborted) ? FAIL(STATUS_FAILED, "the NCCL communicator was aborted")
                                                : STATUS_OK;
}

// Takes the lock on a thread that issues collectives, and counts it for nccl_watch.
static void lock(struct nccl *nccl) {
    pthread_mutex_lock(&nccl->lock);
    atomic_fetch_add(&nccl->n_locked, 1);
}

// Calls `run`, which issues a collective to comm->stream. The collective begins after the work already issued
// to `stream`. Events before and after it record its time.
//   number   the collective's number
static enum status issue(struct comm *comm, struct stream *stream, uint64_t number,
                         enum status (*run)(struct comm *comm, const void *arguments), const void *arguments,
                         comm_work *work) {
    struct nccl *nccl = nccl_of(comm);
    struct nccl_interval *interval;
    TRY(check(comm));
    atomic_store(&nccl->begun_call, number + 1);
    TRY(event_record(&comm->issued, stream));
    TRY(event_wait(&comm->issued, &comm->stream));
    TRY(nccl_interval_begin(&nccl->works, &comm->stream, number, &interval));
    TRY(run(comm, arguments));
    if (interval)
        TRY(event_record(&interval->end, &comm->stream));
    TRY(event_record(&nccl->done[nccl->n_works % NCCL_WORKS], &comm->stream));
    *work = ++nccl->n_works;
    nccl->n_issued++;
    nccl->n_watched += interval != NULL;
    nccl->last_call = number;
    nccl_count_time(comm);
    return STATUS_OK;
}

static enum status run_bulk(struct comm *comm, const void *arguments) {
    return nccl_run(comm, arguments);
}

static enum status nccl_bulk(struct comm *comm, struct stream *stream, const struct comm_call *call,
                             comm_work *work) {
    struct nccl *nccl = nccl_of(comm);
    lock(nccl);
    enum status status = issue(comm, stream, call->id.number, run_bulk, call, work);
    pthread_mutex_unlock(&nccl->lock);
    return status;
}

struct gather_arguments {
    const void *mine;
    void *all;
    size_t bytes;
};

static enum status run_gather(struct comm *comm, const void *arguments) {
    const struct gather_arguments *a = arguments;
    comm->traffic.bytes[COMM_CONTROL] += a->bytes * ((size_t)comm->world - 1);
    TRY_NCCL(comm, AllGather(a->mine, a->all, a->bytes, NCCL_UINT8, nccl_of(comm)->handle,
                             nccl_queue(&comm->stream)));
    return STATUS_OK;
}

static enum status wait_for(struct comm *comm, struct stream *stream, comm_work work) {
    struct nccl *nccl = nccl_of(comm);
    struct nccl_interval *interval;
    TRY(check(comm));
    TRY(nccl_interval_begin(&nccl->waits, stream, nccl->last_call, &interval));
    TRY(event_wait(&nccl->done[(work - 1) % NCCL_WORKS], stream));
    if (interval)
        TRY(event_record(&interval->end, stream));
    nccl_count_time(comm);
    return STATUS_OK;
}

static enum status nccl_gather(struct comm *comm, struct stream *stream, const struct comm_id *id,
                               const void *mine, size_t bytes, void *all) {
    const struct gather_arguments arguments = {mine, all, bytes};
    struct nccl *nccl = nccl_of(comm);
    comm_work work;
    lock(nccl);
    enum status status = issue(comm, stream, id->number, run_gather, &arguments, &work);
    if (status == STATUS_OK)
        status = wait_for(comm, stream, work);
    pthread_mutex_unlock(&nccl->lock);
    return status;
}

static enum status host_waits(struct comm *comm, comm_work work) {
    struct nccl *nccl = nccl_of(comm);
    TRY(event_synchronize(&nccl->done[(work - 1) % NCCL_WORKS])); // no lock: nccl_watch may have to abort
    lock(nccl);
    enum status status = check(comm);
    nccl_count_time(comm);
    pthread_mutex_unlock(&nccl->lock);
    return status;
}

static enum status nccl_wait(struct comm *comm, struct stream *stream, comm_work work) {
    struct nccl *nccl = nccl_of(comm);
    if (work == COMM_WORK_ALL)
        work = nccl->n_works;
    if (work == 0)
        return STATUS_OK;
    if (!stream)
        return host_waits(comm, work);
    lock(nccl);
    enum status status = wait_for(comm, stream, work);
    pthread_mutex_unlock(&nccl->lock);
    return status;
}

// Messages of LARGEST_CHUNK bytes reach the full bandwidth of a link. Up to 1,025 ranks, the buffers for
// all chunks take at most 132 MiB per GPU.
#define LARGEST_CHUNK  ((size_t)4 << 20)
#define SMALLEST_CHUNK ((size_t)64 << 10)
#define ALL_CHUNKS     ((size_t)64 << 20) // limit on the bytes of one chunk from every other rank, together

static size_t chunk_bytes(int world) {
    const size_t most = ALL_CHUNKS / (size_t)(world > 1 ? world - 1 : 1);
    const size_t bytes = most < SMALLEST_CHUNK ? SMALLEST_CHUNK : most > LARGEST_CHUNK ? LARGEST_CHUNK : most;
    return bytes / SMALLEST_CHUNK * SMALLEST_CHUNK;
}

static size_t send_bytes(int world) {
    return (size_t)world * chunk_bytes(world);
}

static size_t receive_bytes(int world) {
    return ((size_t)world - 1) * chunk_bytes(world);
}

size_t nccl_staging_bytes(int world) {
    return world > 1 ? send_bytes(world) + receive_bytes(world) : 0;
}

// ---- deciding, with all ranks, whether NCCL is used

#define MACHINE_BYTES 64
#define REASON_BYTES  512

// What each rank reports to the others about its GPU and its NCCL.
struct introduction {
    int32_t on_gpu, version;         // version: 0 if NCCL cannot be used; `missing` is then the reason
    char machine[MACHINE_BYTES];     // boot id of the machine, which its containers share
    char gpu[DEVICE_IDENTITY_BYTES]; // address of the GPU on that machine
    char missing[REASON_BYTES];
};

static void identify_machine(char out[MACHINE_BYTES]) {
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    memset(out, 0, MACHINE_BYTES);
    const bool found = file && fgets(out, MACHINE_BYTES, file);
    if (file)
        fclose(file);
    if (!found)
        (void)gethostname(out, MACHINE_BYTES - 1); // on failure, all ranks are taken to be on one machine
}

static enum status introduce(struct comm *comm, struct nccl *nccl, struct introduction *mine) {
    *mine = (struct introduction){.on_gpu = comm->device->place == REGION_DEVICE};
    identify_machine(mine->machine);
    if (!mine->on_gpu)
        return STATUS_OK;
    TRY(device_identity(comm->device, mine->gpu));
    if (nccl_load(&nccl->api, &nccl->version) == STATUS_OK) {
        mine->version = nccl->version;
    } else {
        snprintf(mine->missing, sizeof mine->missing, "%s", status_message());
        status_clear();
    }
    return STATUS_OK;
}

// Returns whether these two ranks keep NCCL from being used, and writes the reason.
static bool differs(const struct introduction *all, int a, int b, char reason[REASON_BYTES]) {
    char first[NCCL_VERSION_TEXT_BYTES], second[NCCL_VERSION_TEXT_BYTES];
    if (all[a].version != all[b].version) {
        snprintf(reason, REASON_BYTES, "rank %d has NCCL %s and rank %d has %s; install one version", a,
                 nccl_version_text(all[a].version, first), b, nccl_version_text(all[b].version, second));
        return true;
    }
    if (strcmp(all[a].machine, all[b].machine) == 0 && strcmp(all[a].gpu, all[b].gpu) == 0) {
        snprintf(reason, REASON_BYTES, "ranks %d and %d share the GPU at %s, and NCCL needs one per rank", a,
                 b, all[a].gpu);
        return true;
    }
    return false;
}

// Returns true, and writes the reason, if NCCL cannot be used. All ranks have the same introductions, so
// they reach the same conclusion.
static bool find_obstacle(const struct introduction *all, int world, char reason[REASON_BYTES]) {
    for (int rank = 0; rank < world; rank++) {
        if (!all[rank].on_gpu)
            snprintf(reason, REASON_BYTES, "rank %d does not train on a GPU", rank);
        else if (all[rank].missing[0])
            snprintf(reason, REASON_BYTES, "rank %d: %.480s", rank, all[rank].missing);
        else
            continue;
        return true;
    }
    for (int a = 0; a < world; a++)
        for (int b = a + 1; b < world; b++)
            if (differs(all, a, b, reason))
                return true;
    return false;
}

// Fails if the user asked for NCCL. Otherwise notes for the log why the run goes on without it.
static enum status go_without(struct comm *comm, const char *reason, bool any_gpu) {
    if (comm->path == COMM_PATH_NCCL)
        return FAIL(STATUS_UNSUPPORTED,
                    "comm.backend=nccl: %s. Set comm.backend=auto to exchange through the host instead",
                    reason);
    if (any_gpu)
        snprintf(comm->path_text, sizeof comm->path_text, "through host memory, not by NCCL: %.450s", reason);
    return STATUS_OK;
}

// ---- opening

static enum status open_memory(struct comm *comm, struct nccl *nccl) {
    struct device *device = comm->device;
    void *send = NULL, *receive = NULL;
    nccl->chunk_bytes = chunk_bytes(comm->world);
    enum status status = device->memory_new(device, send_bytes(comm->world), "sums between ranks", &send);
    if (status == STATUS_OK)
        status = device->memory_new(device, receive_bytes(comm->world), "sums between ranks", &receive);
    nccl->send = send;
    nccl->receive = receive;
    TRY(status);
    for (int i = 0; i < NCCL_WORKS; i++)
        TRY(event_init(&nccl->done[i], device));
    TRY(nccl_intervals_init(&nccl->works, device, NCCL_WATCHED));
    return nccl_intervals_init(&nccl->waits, device, NCCL_INTERVAL);
}

static void free_memory(struct comm *comm, struct nccl *nccl) {
    struct device *device = comm->device;
    nccl_intervals_free(&nccl->works);
    nccl_intervals_free(&nccl->waits);
    for (int i = 0; i < NCCL_WORKS; i++)
        event_free(&nccl->done[i]);
    device->memory_delete(device, nccl->send, send_bytes(comm->world));
    device->memory_delete(device, nccl->receive, receive_bytes(comm->world));
    pthread_mutex_destroy(&nccl->lock);
    free(nccl);
}

// Creates the id of the NCCL communicator on rank 0, and sends it to every rank.
static enum status share_id(struct comm *comm, struct nccl *nccl, nccl_id *id) {
    enum status status = STATUS_OK;
    *id = (nccl_id){{0}};
    if (comm->rank == 0) {
        const int result = nccl->api.GetUniqueId(id);
        if (result != NCCL_SUCCESS)
            status = FAIL(STATUS_FAILED, "NCCL: ncclGetUniqueId: %s", nccl->api.GetErrorString(result));
    }
    TRY(comm_agree(comm, status));
    return comm_broadcast(comm, id, sizeof *id, 0);
}

// Connects the ranks. Meanwhile this rank is shown as waiting for NCCL, so that the watchdog finds a rank
// that does not take part.
static enum status connect_ranks(struct comm *comm, struct nccl *nccl, nccl_id id) {
    const uint64_t call = atomic_load(&comm->state->n_issued) - 1;
    TRY(device_enter(comm->device));
    rank_state_wait_begin(comm->state, CHANNEL_DEVICE, (comm->rank + 1) % comm->world, call);
    const int result = nccl->api.CommInitRank(&nccl->handle, comm->world, id, comm->rank);
    rank_state_wait_end(comm->state, CHANNEL_DEVICE);
    if (result == NCCL_SUCCESS)
        return STATUS_OK;
    nccl->handle = NULL;
    return FAIL(STATUS_FAILED, "NCCL: ncclCommInitRank: %s (%s)", nccl->api.GetErrorString(result),
                nccl->api.GetLastError(NULL));
}

// Runs a reduce-scatter and an all-gather with every rank. NCCL creates connections and their buffers at
// first use. This call creates them before memory is planned, and finds network errors early.
static enum status try_links(struct comm *comm) {
    const struct nccl *nccl = nccl_of(comm);
    struct comm_span spans[comm->world];
    struct comm_transfer all = {.spans = spans, .n_spans = comm->world, .elements = (size_t)comm->world};
    const struct comm_traffic before = comm->traffic;
    for (int rank = 0; rank < comm->world; rank++)
        spans[rank] =
            (struct comm_span){.owner = rank, .in = (size_t)rank, .out = (size_t)rank, .elements = 1};
    comm_spans_link(spans, comm->world);
    float *numbers = (float *)(void *)(nccl->send + send_bytes(comm->world)) - comm->world;
    const struct fill_args fill = {.out = numbers, .n = (size_t)comm->world, .value = 1, .type = DTYPE_F32};
    comm_work work;
    TRY(comm->device->ops->fill(&comm->stream, &fill));
    TRY(comm_reduce_scatter(comm, &comm->stream, &all, numbers, numbers, DTYPE_F32, false, &work));
    TRY(comm_all_gather(comm, &comm->stream, &all, numbers, numbers, DTYPE_F32, &work));
    TRY(comm_wait(comm, NULL, COMM_WORK_ALL));
    float sums[comm->world];
    TRY(comm->device->copy(&comm->stream, sums, numbers, sizeof sums));
    TRY(comm->device->synchronize(&comm->stream));
    comm->traffic = before;
    for (int rank = 0; rank < comm->world; rank++)
        if (sums[rank] != (float)comm->world)
            return FAIL(STATUS_FAILED, "NCCL: in a test of the links, the sum of %d ones is %g", comm->world,
                        (double)sums[rank]);
    return STATUS_OK;
}

static void nccl_detach(struct comm *comm);

static enum status open_links(struct comm *comm, struct nccl *nccl) {
    nccl_id id;
    TRY(share_id(comm, nccl, &id));
    enum status status = connect_ranks(comm, nccl, id);
    TRY(comm_agree(comm, status));
    pthread_mutex_lock(&comm->watch_lock);
    comm->device_data = nccl; // from here on the watchdog watches NCCL
    pthread_mutex_unlock(&comm->watch_lock);
    return comm_agree(comm, try_links(comm));
}

static enum status open_nccl(struct comm *comm, struct nccl *nccl) {
    enum status status = comm_agree(comm, open_memory(comm, nccl));
    char reason[REASON_BYTES], version[NCCL_VERSION_TEXT_BYTES];
    if (status == STATUS_OK)
        status = open_links(comm, nccl);
    if (status == STATUS_OK) {
        snprintf(comm->path_text, sizeof comm->path_text, "by NCCL %s, one GPU each",
                 nccl_version_text(nccl->version, version));
        return STATUS_OK;
    }
    snprintf(reason, sizeof reason, "%.*s", (int)sizeof reason - 1, status_message());
    if (comm->device_data) {
        nccl_detach(comm);
    } else {
        if (nccl->handle)
            (void)nccl->api.CommAbort(nccl->handle);
        free_memory(comm, nccl);
    }
    if (mpi_has_failed(comm) || comm->path == COMM_PATH_NCCL)
        return status;
    status_clear(); // all ranks agreed on the failure and continue together
    return go_without(comm, reason, true);
}

static enum status nccl_attach(struct comm *comm) {
    struct nccl *nccl = allocate(1, sizeof *nccl);
    struct introduction mine, *all = allocate((size_t)comm->world, sizeof *all);
    char reason[REASON_BYTES];
    enum status status = introduce(comm, nccl, &mine);
    if (status == STATUS_OK)
        status = comm_gather(comm, &mine, sizeof mine, all);
    const bool obstacle = status == STATUS_OK && find_obstacle(all, comm->world, reason);
    if (obstacle)
        status = go_without(comm, reason, mine.on_gpu);
    free(all);
    if (status != STATUS_OK || obstacle) {
        free(nccl);
        return status;
    }
    pthread_mutex_init(&nccl->lock, NULL);
    return open_nccl(comm, nccl);
}

// Closes NCCL. First waits for the collectives issued so far, because other ranks may need them. nccl_watch
// aborts them if a rank has failed. If the device has failed, they are aborted too.
static void nccl_detach(struct comm *comm) {
    struct nccl *nccl = nccl_of(comm);
    if (!nccl)
        return;
    const bool broken = comm->device->synchronize(&comm->stream) != STATUS_OK;
    pthread_mutex_lock(&comm->watch_lock);
    comm->device_data = NULL;
    pthread_mutex_unlock(&comm->watch_lock);
    if (nccl->shown_call)
        rank_state_wait_end(comm->state, CHANNEL_DEVICE);
    if (!atomic_load(&nccl->aborted)) {
        const bool ends = !broken && !mpi_has_failed(comm);
        (void)(ends ? nccl->api.CommDestroy(nccl->handle) : nccl->api.CommAbort(nccl->handle));
    }
    free_memory(comm, nccl);
}

const struct comm_device_backend nccl_backend = {.name = "nccl",
                                                 .attach = nccl_attach,
                                                 .detach = nccl_detach,
                                                 .bulk = nccl_bulk,
                                                 .gather = nccl_gather,
                                                 .wait = nccl_wait,
                                                 .watch = nccl_watch};
