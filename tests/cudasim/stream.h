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
// Issues work that another thread does. At its turn, `begin` runs and returns at once; the stream continues
// after finish_begun. Only in reordering mode.
void enqueue_begun(cudaStream_t stream, const char *what, std::function<void()> begin);
void finish_begun(cudaStream_t stream, cudaError_t error);
// Runs one piece of work of any stream, usually one that `stream` needs, without waiting; false if none can.
bool drive_stream(cudaStream_t stream);

// Waits until all work issued to the stream so far has run.
cudaError_t finish_stream(cudaStream_t stream);
// The place of a stream or an event in a capture; both must exist. Not captured for any other stream.
capture_place &place_of(cudaStream_t stream);
bool is_captured(cudaStream_t stream);
// A number below n: 0, or in reordering mode one drawn from the seed.
unsigned draw_order(size_t n);
// True for the task that CUDASIM_FAIL chose. Counts tasks.
bool is_failing_task();
// Counts a call in which the host waits for the device. In issue order there is nothing to wait for, so calls
// that may wait on a real device are counted: synchronizations of streams and of the device, and copies from
// or to pageable memory. Waiting for an event counts only if it has not happened; if nothing was issued to
// its stream after it, it is counted under another name.
void count_host_wait(const char *call);
// Prints the counts if CUDASIM_COUNTS is set.
void report_counts();
// Reports streams and events that were not destroyed.
void report_leaked_streams();

} // namespace cudasim

#endif
