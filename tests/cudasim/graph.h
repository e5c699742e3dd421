// Graphs: capturing the work of streams, and launching it. Work issued to a stream that is being captured
// becomes a node and does not run. A stream joins the capture by waiting for an event recorded in it, and
// must be joined back in the same way before the capture ends. A launch runs the nodes in an order that their
// dependencies permit: that of issue, or in reordering mode one drawn from the seed.
#ifndef CUDASIM_GRAPH_H
#define CUDASIM_GRAPH_H

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cudasim/api.h"

namespace cudasim {

struct capture;

// The relation of a stream or an event to a capture: which capture, and the nodes that precede later work.
struct capture_place {
    std::shared_ptr<capture> in;
    std::vector<size_t> after;
};

bool is_capturing(const capture_place &place); // the capture has not ended
// Adds a node to the capture of the stream's place.
void capture_work(capture_place &stream, const char *what, std::function<int()> run);
// cudaEventRecord and cudaStreamWaitEvent, if is_capturing is true for the stream or the event.
void capture_record(capture_place &event, const capture_place &stream);
cudaError_t capture_wait(cudaStream_t stream, capture_place &place, const capture_place &event);
// Refuses a call that must not be made during a capture, with a finding, and makes the capture invalid.
cudaError_t refuse_in_capture(const char *call, const capture_place &place, const std::string &what);
// The same for calls that are unsafe while the calling thread captures a stream; cudaSuccess if it does not.
cudaError_t check_unsafe(const char *call);
// Reports graphs that were not destroyed.
void report_leaked_graphs();

} // namespace cudasim

#endif
