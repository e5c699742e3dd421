// The part of zero/comm that all backends share. It numbers and counts collectives, queues bulk collectives
// and waits for them, sums a few values, and agrees on failures. Backends implement zero/comm/backend.h.
#include "zero/comm/comm.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/processors.h"
#include "base/text.h"
#include "kernels/ops.h"
#include "kernels/profile.h"
#include "zero/comm/backend.h"
#include "zero/comm/sum_tree.h"

#define SUM_VALUES 4096 // values that comm_sum gathers at a time

const char *comm_operation_name(enum comm_operation operation) {
    static const char *const names[N_COMM_OPERATIONS] = {"reduce_scatter", "all_gather", "exchange",
                                                         "broadcast", "control"};
    return names[operation];
}

uint64_t comm_volume_bytes(const struct comm_volume *volume) {
    return volume->bytes[COMM_REDUCE_SCATTER] + volume->bytes[COMM_ALL_GATHER] + volume->bytes[COMM_EXCHANGE];
}

uint64_t comm_volume_calls(const struct comm_volume *volume) {
    return volume->calls[COMM_REDUCE_SCATTER] + volume->calls[COMM_ALL_GATHER] + volume->calls[COMM_EXCHANGE];
}

// ---- failures

void comm_note_known_failure(struct comm *comm) {
    atomic_store(&comm->failures.known, status_serial());
    atomic_store(&comm->failures.known_at, atomic_load(&comm->state->n_issued));
}

bool comm_is_known_failure(struct comm *comm) {
    return atomic_load(&comm->failures.known) == status_serial() &&
           atomic_load(&comm->failures.known_at) == atomic_load(&comm->state->n_issued);
}

void comm_abort(struct comm *comm, enum status status) {
    if (comm->world == 1 || comm_is_known_failure(comm))
        return;
    comm->backend->abort(comm, status, status_message());
    comm_note_known_failure(comm);
}

// ---- the queue of bulk collectives
//
// With overlap, a thread runs the bulk collectives in order of submission while the caller computes. A caller
// that has to wait runs those that the thread has not begun, which saves waking the thread.
//
// One lock guards the queue. It is released while a collective runs. Meanwhile `running` keeps the other
// thread from starting the next one, so collectives never overlap or change their order. After the first
// failure, the remaining collectives are dropped, and every wait returns that failure.

#define QUEUE_LENGTH 128

// Entry n (from 0) is at n % QUEUE_LENGTH; its work handle is n + 1.
struct comm_queue {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct comm_call calls[QUEUE_LENGTH];
    struct event issued[QUEUE_LENGTH]; // per entry: marks the end of the caller's work at submission
    uint64_t n_submitted, n_done;
    enum status status; // the first failure; later collectives are dropped
    bool running;       // a collective is running, on either thread
    bool stopping;      // the thread is to end once the queue is empty
};

// Runs one collective on the calling thread, after the event `issued`, and counts it. A failure is reported
// to the other ranks at once: they may be waiting for this rank before this rank waits for the result.
//   seconds   [out] how long the collective took
static enum status run_call(struct comm *comm, const struct comm_call *call, struct event *issued,
                            double *seconds) {
    double began = clock_monotonic_s();
    profile_begin(comm->profile, PROFILE_SPAN, comm_collective_name(call->id.collective));
    enum status status = event_wait(issued, &comm->stream); // on the device: no host thread waits
    if (status == STATUS_OK)
        status = comm->backend->bulk(comm, call);
    profile_end(comm->profile, (struct operation_cost){
                                   .bytes = (double)(call->transfer->elements * dtype_size(call->type))});
    *seconds = clock_monotonic_s() - began;
    comm->traffic.calls[call->operation]++;
    if (status != STATUS_OK)
        comm_abort(comm, status);
    return status;
}

// Runs the oldest entry that has not begun. The caller holds the lock, before and after; no other thread may
// be running an entry.
//   eager   true on the caller's thread, which waits for the entry; false on the queue's thread
static void run_next(struct comm *comm, bool eager) {
    struct comm_queue *queue = comm->queue;
    struct comm_call call = queue->calls[queue->n_done % QUEUE_LENGTH];
    struct event *issued = &queue->issued[queue->n_done % QUEUE_LENGTH];
    enum status status = queue->status;
    double seconds = 0;
    queue->running = true;
    pthread_mutex_unlock(&queue->lock);
    comm->eager = eager;
    if (!eager)
        profile_name_thread(comm->profile, "communication");
    if (status == STATUS_OK)
        status = run_call(comm, &call, issued, &seconds);
    comm->eager = true;
    pthread_mutex_lock(&queue->lock);
    comm->traffic.busy_s += seconds;
    queue->running = false;
    queue->status = status;
    queue->n_done++;
    pthread_cond_broadcast(&queue->changed);
}

static void *run_queue(void *argument) {
    struct comm *comm = argument;
    struct comm_queue *queue = comm->queue;
    pthread_mutex_lock(&queue->lock);
    while (!queue->stopping || queue->n_done < queue->n_submitted) {
        if (queue->running || queue->n_done == queue->n_submitted)
            pthread_cond_wait(&queue->changed, &queue->lock);
        else
            run_next(comm, false);
    }
    pthread_mutex_unlock(&queue->lock);
    return NULL;
}

static void queue_free(struct comm_queue *queue) {
    for (int i = 0; i < QUEUE_LENGTH; i++)
        event_free(&queue->issued[i]);
    pthread_mutex_destroy(&queue->lock);
    pthread_cond_destroy(&queue->changed);
    free(queue);
}

// Starts the thread and creates comm->queue. comm->device must be attached.
static enum status queue_new(struct comm *comm) {
    struct comm_queue *queue = allocate(1, sizeof *queue);
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->changed, NULL);
    comm->queue = queue;
    enum status status = STATUS_OK;
    for (int i = 0; i < QUEUE_LENGTH && status == STATUS_OK; i++)
        status = event_init(&queue->issued[i], comm->device);
    if (status == STATUS_OK && pthread_create(&queue->thread, NULL, run_queue, comm) != 0)
        status = FAIL(STATUS_FAILED, "cannot start the communication thread");
    if (status != STATUS_OK) {
        comm->queue = NULL;
        queue_free(queue);
    }
    return status;
}

// Runs the queued collectives, ends the thread and frees the queue. No-op without a queue.
static void queue_delete(struct comm *comm) {
    struct comm_queue *queue = comm->queue;
    if (!queue)
        return;
    pthread_mutex_lock(&queue->lock);
    queue->stopping = true;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
    pthread_join(queue->thread, NULL);
    comm->queue = NULL;
    queue_free(queue);
}

// Appends a collective to the queue. It begins once `stream` has finished the work issued to it so far.
// Blocks while the queue is full. Returns the failure of an earlier collective, if there was one.
static enum status queue_submit(struct comm *comm, struct stream *stream, const struct comm_call *call,
                                comm_work *handle) {
    struct comm_queue *queue = comm->queue;
    pthread_mutex_lock(&queue->lock);
    while (queue->n_submitted - queue->n_done == QUEUE_LENGTH)
        pthread_cond_wait(&queue->changed, &queue->lock);
    enum status status = queue->status;
    if (status == STATUS_OK)
        status = event_record(&queue->issued[queue->n_submitted % QUEUE_LENGTH], stream);
    if (status == STATUS_OK) {
        queue->calls[queue->n_submitted % QUEUE_LENGTH] = *call;
        *handle = ++queue->n_submitted;
        pthread_cond_broadcast(&queue->changed);
    }
    pthread_mutex_unlock(&queue->lock);
    return status;
}

// Waits for the collective with this handle and all before it. COMM_WORK_ALL: for all submitted so far.
static enum status queue_wait(struct comm *comm, comm_work handle) {
    struct comm_queue *queue = comm->queue;
    pthread_mutex_lock(&queue->lock);
    if (handle == COMM_WORK_ALL)
        handle = queue->n_submitted;
    if (queue->n_done < handle) {
        double began = clock_monotonic_s();
        profile_begin(comm->profile, PROFILE_SPAN, "wait for communication");
        while (queue->n_done < handle) {
            if (queue->running)
                pthread_cond_wait(&queue->changed, &queue->lock);
            else
                run_next(comm, true);
        }
        profile_end(comm->profile, (struct operation_cost){0});
        comm->traffic.waited_s += clock_monotonic_s() - began;
    }
    enum status status = queue->status;
    pthread_mutex_unlock(&queue->lock);
    return status;
}

// ---- bulk collectives

// Runs a bulk collective with one rank. Whatever the backend, it is a copy or an addition on the caller's
// stream: nothing is sent, and nothing is rounded to the communication dtype.
static enum status run_alone(struct stream *stream, const struct comm_call *call) {
    struct comm_cursor cursor = {.transfer = call->transfer};
    comm_transfer_owners(call->transfer, 1, &cursor.span, NULL);
    const struct device *device = stream->device;
    size_t size = call->operation == COMM_REDUCE_SCATTER ? sizeof(float) : dtype_size(call->type);
    for (struct comm_span span; (span = comm_transfer_next(&cursor, SIZE_MAX)).elements > 0;) {
        const void *in = (const char *)call->in + span.in * size;
        void *out = (char *)call->out + span.out * size;
        const struct add_args sum = {.out = out, .x = out, .y = in, .n = span.elements, .type = DTYPE_F32};
        if (call->accumulate)
            TRY(device->ops->add(stream, &sum));
        else if (out != in)
            TRY(device->copy(stream, out, in, span.elements * size));
    }
    return STATUS_OK;
}

// Reports a failure, if there is one, at once: other ranks may be waiting for this one.
static enum status end_device_call(struct comm *comm, enum status status) {
    if (status != STATUS_OK)
        comm_abort(comm, status);
    return status;
}

static enum status start(struct comm *comm, struct stream *stream, struct comm_call *call, comm_work *work) {
    *work = 0;
    if (comm->world == 1)
        return run_alone(stream, call);
    call->id.number = rank_state_issue(comm->state, call->id.collective);
    if (comm->device_data)
        return end_device_call(comm, comm->device_backend->bulk(comm, stream, call, work));
    if (comm->queue)
        return queue_submit(comm, stream, call, work);
    double seconds;
    TRY(event_record(&comm->issued, stream));
    enum status status = run_call(comm, call, &comm->issued, &seconds);
    comm->traffic.busy_s += seconds;
    comm->traffic.waited_s += seconds;
    return status;
}

enum status comm_reduce_scatter(struct comm *comm, struct stream *stream,
                                const struct comm_transfer *transfer, const float *in, float *out,
                                enum dtype comm_dtype, bool accumulate, comm_work *work) {
    return start(comm, stream,
                 &(struct comm_call){.id.collective = COLLECTIVE_REDUCE_SCATTER,
                                     .operation = COMM_REDUCE_SCATTER,
                                     .transfer = transfer,
                                     .in = in,
                                     .out = out,
                                     .type = comm_dtype,
                                     .accumulate = accumulate},
                 work);
}

enum status comm_all_gather(struct comm *comm, struct stream *stream, const struct comm_transfer *transfer,
                            const void *in, void *out, enum dtype type, comm_work *work) {
    return start(comm, stream,
                 &(struct comm_call){.id.collective = COLLECTIVE_ALL_GATHER,
                                     .operation = COMM_ALL_GATHER,
                                     .transfer = transfer,
                                     .in = in,
                                     .out = out,
                                     .type = type},
                 work);
}

enum status comm_exchange(struct comm *comm, struct stream *stream, const struct comm_transfer *transfer,
                          const void *in, void *out, enum dtype type, comm_work *work) {
    return start(comm, stream,
                 &(struct comm_call){.id.collective = COLLECTIVE_EXCHANGE,
                                     .operation = COMM_EXCHANGE,
                                     .transfer = transfer,
                                     .in = in,
                                     .out = out,
                                     .type = type},
                 work);
}

enum status comm_wait(struct comm *comm, struct stream *stream, comm_work work) {
    if (comm->device_data)
        return end_device_call(comm, comm->device_backend->wait(comm, stream, work));
    // Without device_data, a collective that is done has also finished on the device, so the host need not
    // wait for `stream`.
    return comm->queue && work ? queue_wait(comm, work) : STATUS_OK;
}

bool comm_on_device(const struct comm *comm) {
    return comm->world == 1 || comm->device_data;
}

enum status comm_gather_device(struct comm *comm, struct stream *stream, const void *mine, size_t bytes,
                               void *all) {
    assert(comm_on_device(comm));
    if (comm->world == 1)
        return stream->device->copy(stream, all, mine, bytes);
    comm->traffic.calls[COMM_CONTROL]++;
    const struct comm_id id = {rank_state_issue(comm->state, COLLECTIVE_GATHER), COLLECTIVE_GATHER};
    return end_device_call(comm, comm->device_backend->gather(comm, stream, &id, mine, bytes, all));
}

// ---- collectives on host memory

// Waits for the bulk collectives issued so far, if a host thread runs them.
static enum status settle(struct comm *comm) {
    return comm->device_data ? STATUS_OK : comm_wait(comm, NULL, COMM_WORK_ALL);
}

// Counts a collective on host memory and returns its id. Requires several ranks. The caller has waited for
// the bulk collectives, or does not need to.
static struct comm_id begin_host_call(struct comm *comm, enum comm_collective collective,
                                      enum comm_operation operation) {
    comm->traffic.calls[operation]++;
    comm->traffic.host_s -= clock_monotonic_s(); // end_host_call adds the time of the end
    profile_begin(comm->profile, PROFILE_SPAN, comm_collective_name(collective));
    return (struct comm_id){rank_state_issue(comm->state, collective), collective};
}

static enum status end_host_call(struct comm *comm, size_t bytes, enum status status) {
    profile_end(comm->profile, (struct operation_cost){.bytes = (double)bytes});
    comm->traffic.host_s += clock_monotonic_s();
    return status;
}

static enum status gather(struct comm *comm, enum comm_collective collective, const void *mine, size_t bytes,
                          void *all) {
    if (comm->world == 1) {
        if (bytes > 0)
            memmove(all, mine, bytes);
        return settle(comm);
    }
    TRY(settle(comm));
    const struct comm_id id = begin_host_call(comm, collective, COMM_CONTROL);
    return end_host_call(comm, bytes, comm->backend->gather(comm, &id, mine, bytes, all));
}

enum status comm_gather(struct comm *comm, const void *mine, size_t bytes, void *all) {
    return gather(comm, COLLECTIVE_GATHER, mine, bytes, all);
}

// Broadcasts without waiting for bulk collectives: after an agreed failure they are dropped, but the
// failure's message must still be broadcast.
static enum status broadcast(struct comm *comm, void *data, size_t bytes, int root) {
    const struct comm_id id = begin_host_call(comm, COLLECTIVE_BROADCAST, COMM_BROADCAST);
    return end_host_call(comm, bytes, comm->backend->broadcast(comm, &id, data, bytes, root));
}

enum status comm_broadcast(struct comm *comm, void *data, size_t bytes, int root) {
    TRY(settle(comm));
    return comm->world == 1 ? STATUS_OK : broadcast(comm, data, bytes, root);
}

// Sums n values over the ranks.
//   all   (world, n) scratch
static enum status sum(struct comm *comm, double *values, size_t n, double *all) {
    TRY(gather(comm, COLLECTIVE_SUM, values, n * sizeof *values, all));
    for (size_t i = 0; i < n; i++) {
        double of_ranks[comm->world];
        for (int r = 0; r < comm->world; r++)
            of_ranks[r] = all[(size_t)r * n + i];
        values[i] = sum_tree(of_ranks, comm->world);
    }
    return STATUS_OK;
}

enum status comm_sum_leaves(struct comm *comm, const double *values, int per_rank, size_t n, double *sums) {
    const size_t row = (size_t)per_rank * n;
    const int n_leaves = per_rank * comm->world;
    double *all = allocate((size_t)comm->world, row * sizeof *all),
           *leaves = allocate((size_t)n_leaves, sizeof *leaves);
    enum status status = comm_gather(comm, values, row * sizeof *all, all);
    for (size_t i = 0; i < n && status == STATUS_OK; i++) {
        for (int leaf = 0; leaf < n_leaves; leaf++)
            leaves[leaf] = all[(size_t)(leaf % comm->world) * row + (size_t)(leaf / comm->world) * n + i];
        sums[i] = sum_tree(leaves, n_leaves);
    }
    free(leaves);
    free(all);
    return status;
}

enum status comm_sum(struct comm *comm, double *values, size_t n) {
    const size_t most = n < SUM_VALUES ? n : SUM_VALUES;
    if (comm->world == 1)
        return settle(comm);
    double *all = allocate((size_t)comm->world * most, sizeof *all);
    enum status status = STATUS_OK;
    for (size_t done = 0; done < n && status == STATUS_OK; done += most)
        status = sum(comm, values + done, n - done < most ? n - done : most, all);
    free(all);
    return status;
}

enum status comm_broadcast_text(struct comm *comm, const struct text *mine, struct text *of_rank_0) {
    uint64_t length = mine->length;
    TRY(comm_broadcast(comm, &length, sizeof length, 0));
    *of_rank_0 = (struct text){allocate(1, length + 1), length, length + 1};
    if (comm->rank == 0 && length > 0)
        memcpy(of_rank_0->data, mine->data, length);
    return comm_broadcast(comm, of_rank_0->data, length, 0);
}

enum status comm_barrier(struct comm *comm) {
    char nothing = 0;
    return gather(comm, COLLECTIVE_BARRIER, &nothing, 0, &nothing);
}

// Records the message of rank `from` on every rank, as the message of `status`. With name_it, it begins
// with "rank N: ".
static enum status broadcast_message(struct comm *comm, enum status status, int from, bool name_it) {
    char message[COMM_MESSAGE_BYTES] = {0};
    if (comm->rank == from)
        snprintf(message, sizeof message, "%s%s", name_it ? comm->place : "", status_message());
    TRY(broadcast(comm, message, sizeof message, from));
    status_clear();
    status = name_it ? FAIL(status, "rank %d: %s", from, message) : FAIL(status, "%s", message);
    comm_note_known_failure(comm);
    return status;
}

enum status comm_agree(struct comm *comm, enum status status) {
    if (comm->world == 1)
        return status;
    struct comm_verdict worst = {(int32_t)status, comm->rank, 1};
    const struct comm_id id = begin_host_call(comm, COLLECTIVE_AGREE, COMM_CONTROL);
    TRY(end_host_call(comm, sizeof worst, comm->backend->agree(comm, &id, &worst)));
    if (worst.status <= STATUS_STOPPED)
        return (enum status)worst.status;
    return broadcast_message(comm, (enum status)worst.status, worst.rank, worst.count < comm->world);
}

// ---- progress, opening and closing

static void self_close(struct comm *comm, enum status status) {
    (void)comm, (void)status;
}

static const struct comm_backend self_backend = {.name = "self", .close = self_close};

struct comm *comm_open_self(void) {
    struct comm *comm = allocate(1, sizeof *comm);
    const int processors = processors_usable();
    *comm = (struct comm){.world = 1,
                          .local_world = 1,
                          .processors = processors,
                          .local_processors = processors,
                          .backend = &self_backend,
                          .eager = true};
    return comm;
}

void comm_expect_seconds(struct comm *comm, double seconds) {
    int64_t wanted = (int64_t)(2e3 * seconds);
    if (atomic_load(&comm->failures.hang_ms) > 0 && atomic_load(&comm->failures.hang_ms) < wanted)
        atomic_store(&comm->failures.hang_ms, wanted);
}

void comm_progress(struct comm *comm) {
    if (comm->state)
        rank_state_progress(comm->state);
}

enum status comm_attach(struct comm *comm, struct device *device, bool overlap) {
    comm_detach(comm);
    comm->device = device;
    comm->path_text[0] = 0;
    TRY(stream_init(&comm->stream, device));
    TRY(event_init(&comm->issued, device));
    if (comm->device_backend && comm->world > 1)
        TRY(comm->device_backend->attach(comm));
    if (comm->backend->attach && !comm->device_data)
        TRY(comm->backend->attach(comm));
    return overlap && !comm_on_device(comm) ? queue_new(comm) : STATUS_OK;
}

void comm_detach(struct comm *comm) {
    queue_delete(comm);
    if (!comm->device)
        return;
    if (comm->device_backend && comm->device_data)
        comm->device_backend->detach(comm);
    else if (comm->backend->detach)
        comm->backend->detach(comm);
    event_free(&comm->issued);
    stream_free(&comm->stream);
    comm->device = NULL;
}

enum status comm_close(struct comm *comm, enum status status) {
    if (!comm)
        return status;
    bool failing = status_exit_code(status) != 0;
    bool agrees = comm->world > 1 && (!failing || comm_is_known_failure(comm));
    if (failing)
        comm_abort(comm, status);
    comm_detach(comm);
    // The last agreement. It reports a late failure to every rank. After a failure that all ranks know, it
    // makes them wait for the slowest rank.
    if (agrees) {
        struct comm_verdict worst = {STATUS_OK, comm->rank, 1};
        const struct comm_id id = begin_host_call(comm, COLLECTIVE_CLOSE, COMM_CONTROL);
        enum status closed = end_host_call(comm, sizeof worst, comm->backend->agree(comm, &id, &worst));
        status = failing || closed == STATUS_OK ? status : closed;
    }
    comm->backend->close(comm, status);
    free(comm);
    return status;
}
