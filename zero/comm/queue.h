// The queue of bulk collectives. With overlap, a thread runs them in the order of submission while the caller
// computes. A caller that has to wait runs those that the thread has not begun itself, which saves a wake-up.
//
// One lock guards the queue. It is released while a collective runs; `running` keeps a second thread from
// starting the next one meanwhile, so that collectives never overlap or change their order. After the first
// failure the remaining collectives are dropped, and every wait returns that failure.
#ifndef ZERO_ZERO_COMM_QUEUE_H
#define ZERO_ZERO_COMM_QUEUE_H

#include "zero/comm/backend.h"

// Starts the thread: comm->queue. comm->device must be attached.
enum status comm_queue_new(struct comm *comm) MUST_CHECK;
// Runs what is queued, ends the thread and frees the queue. No-op without one.
void comm_queue_delete(struct comm *comm);

// Appends a collective, which begins once `stream` has finished the work issued to it so far. Blocks while
// the queue is full. Returns the failure of an earlier collective, if there was one.
enum status comm_queue_submit(struct comm *comm, struct stream *stream, const struct comm_call *call,
                              comm_work *work) MUST_CHECK;
// Waits for `work` and everything before it; COMM_WORK_ALL: for everything submitted so far.
enum status comm_queue_wait(struct comm *comm, comm_work work) MUST_CHECK;

// Runs one collective on the calling thread, once the event `issued` has happened, and counts it. A failure
// is reported to the other ranks at once: they may be waiting for this rank before it waits for the result.
//   seconds   [out] how long it took
enum status comm_call_run(struct comm *comm, const struct comm_call *call, struct event *issued,
                          double *seconds) MUST_CHECK;

#endif
