// Streams and events. Work runs immediately, in issue order; in reordering mode it runs as late as the rules
// of streams permit, in an order drawn from a seed.
#ifndef CUDASIM_STREAM_H
#define CUDASIM_STREAM_H

#include <functional>

#include "cudasim/api.h"
#include "tests/cudasim/graph.h"

namespace cudasim {

bool work_is_delayed(); // reordering mode: arguments must outlive the call

// Checks that the stream exists and is not the default stream; otherwise reports a finding about `call`.
cudaError_t check_stream(const char *call, cudaStream_t stream);
// Issues work that another thread does: when its turn comes, `begin` runs, which returns at once; the stream
// continues after finish_begun. In reordering mode only.
void enqueue_begun(cudaStream_t stream, const char *what, std::function<void()> begin);
void finish_begun(cudaStream_t stream, cudaError_t error);
// Runs one piece of work of any stream, usually one that `stream` needs, without waiting; false if none can.
bool drive_stream(cudaStream_t stream);

// Waits until all work issued to the stream so far has run.
cudaError_t finish_stream(cudaStream_t stream);
// The stream's or the event's part in a capture; both must exist. For any other stream: not captured.
capture_place &place_of(cudaStream_t stream);
bool is_captured(cudaStream_t stream);
// A number below n: 0, or in reordering mode one drawn from the seed.
unsigned draw_order(size_t n);
// True for the task that CUDASIM_FAIL chose. Counts tasks.
bool is_failing_task();
// Counts a call in which the host waits for the device. In the order of issue nothing is left to wait for, so
// waits that a device may make are counted by the call: synchronizations of streams and of the device, copies
// from and to pageable memory; an event only if it has not happened, and by another name if nothing was
// issued to its stream after it.
void count_host_wait(const char *call);
// Prints the counts if CUDASIM_COUNTS is set.
void report_counts();
// Reports streams and events that were not destroyed.
void report_leaked_streams();

} // namespace cudasim

#endif
