// Streams and events. Work runs immediately, in issue order; in reordering mode it runs as late as the rules
// of streams permit, in an order drawn from a seed.
#ifndef CUDASIM_STREAM_H
#define CUDASIM_STREAM_H

#include "cudasim/api.h"

namespace cudasim {

bool work_is_delayed(); // reordering mode: arguments must outlive the call

// Checks that the stream exists and is not the default stream; otherwise reports a finding about `call`.
cudaError_t check_stream(const char *call, cudaStream_t stream);
// Waits until all work issued to the stream so far has run.
cudaError_t finish_stream(cudaStream_t stream);
// Reports streams and events that were not destroyed.
void report_leaked_streams();

} // namespace cudasim

#endif
