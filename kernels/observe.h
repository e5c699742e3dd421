// Wraps a device's operations, to look at what each of them did: by a function of the caller's, and
// run.debug_sync. Both are slow: they wait for each operation.
#ifndef ZERO_KERNELS_OBSERVE_H
#define ZERO_KERNELS_OBSERVE_H

#include "kernels/device.h"
#include "kernels/ops.h"

// Called after each operation has run; may read what it wrote. For looking into a pass after the fact
// (trainer/spikes.h).
//   args   struct NAME_args of the operation
typedef enum status observe_operation(void *context, struct stream *stream, enum operation operation,
                                      const void *args);

// Until observe_end. One device at a time; undone in the opposite order of what else wraps its operations.
void observe_begin(struct device *device, observe_operation *function, void *context);
void observe_end(struct device *device);

// run.debug_sync: waits for the device after each operation and copy, so that a failure names the one that
// caused it. On a GPU they run after their calls return, and a failure is otherwise noticed by a later call.
// Wraps the device's operations and copies; no-op where they are synchronous. Before a profile watches the
// device, if one does.
enum status debug_sync_begin(struct device *device) MUST_CHECK;
// Undoes it. No-op for a device that is not wrapped, and for NULL.
void debug_sync_end(struct device *device);

#endif
