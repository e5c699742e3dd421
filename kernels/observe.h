// Watches a device's operations: a function is called after each has run, and may read what it wrote. For
// looking into a pass after the fact (trainer/spikes.h). Slow: it waits for each operation.
#ifndef ZERO_KERNELS_OBSERVE_H
#define ZERO_KERNELS_OBSERVE_H

#include "kernels/device.h"
#include "kernels/ops.h"

//   args   struct NAME_args of the operation
typedef enum status observe_operation(void *context, struct stream *stream, enum operation operation,
                                      const void *args);

// Until observe_end. One device at a time; undone in the opposite order of what else wraps its operations.
void observe_begin(struct device *device, observe_operation *function, void *context);
void observe_end(struct device *device);

#endif
