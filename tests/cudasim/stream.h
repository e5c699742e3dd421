// Streams and events: work in issue order at once, or, reordering, as late as the rules of streams permit and
// otherwise in an order drawn from a seed.
#ifndef CUDASIM_STREAM_H
#define CUDASIM_STREAM_H

#include "cudasim/api.h"

namespace cudasim {

bool work_is_delayed(); // reordering is on: arguments must outlive the call

// Whether the stream is one of the project's own; if not, a finding that begins with `call`.
cudaError_t check_stream(const char *call, cudaStream_t stream);
// Until all work given to the stream so far has happened.
cudaError_t finish_stream(cudaStream_t stream);
// A finding for each stream and event that was not destroyed.
void report_leaked_streams();

} // namespace cudasim

#endif
