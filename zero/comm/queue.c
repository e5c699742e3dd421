// See zero/comm/queue.h.
#include "zero/comm/queue.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "kernels/profile.h"

#define QUEUE_LENGTH 128

// Entry n (from 0) is at n % QUEUE_LENGTH; its work handle is n + 1.
struct comm_queue {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct comm_call calls[QUEUE_LENGTH];
    struct event issued[QUEUE_LENGTH]; // the end of the caller's work when each was submitted
    uint64_t n_submitted, n_done;
    enum status status; // of the first that failed; those after it are dropped
    bool running;       // a collective is running, on whichever thread
    bool stopping;      // the thread is to end once the queue is empty
};

enum status comm_call_run(struct comm *comm, const struct comm_call *call, struct event *issued,
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

// Runs the oldest entry that has not begun. Called and left with the lock held, and only while no other
// thread runs one.
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
        status = comm_call_run(comm, &call, issued, &seconds);
    comm->eager = true;
    pthread_mutex_lock(&queue->lock);
    comm->traffic.busy_s += seconds;
    queue->running = false;
    queue->status = status;
    queue->n_done++;
    pthread_cond_broadcast(&queue->changed);
}

static void *work(void *argument) {
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

enum status comm_queue_new(struct comm *comm) {
    struct comm_queue *queue = allocate(1, sizeof *queue);
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->changed, NULL);
    comm->queue = queue;
    enum status status = STATUS_OK;
    for (int i = 0; i < QUEUE_LENGTH && status == STATUS_OK; i++)
        status = event_init(&queue->issued[i], comm->device);
    if (status == STATUS_OK && pthread_create(&queue->thread, NULL, work, comm) != 0)
        status = FAIL(STATUS_FAILED, "cannot start the communication thread");
    if (status != STATUS_OK) {
        comm->queue = NULL;
        queue_free(queue);
    }
    return status;
}

void comm_queue_delete(struct comm *comm) {
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

enum status comm_queue_submit(struct comm *comm, struct stream *stream, const struct comm_call *call,
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

enum status comm_queue_wait(struct comm *comm, comm_work handle) {
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
