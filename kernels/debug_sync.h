// run.debug_sync: waits for the device after each operation and copy, so that a failure names the one that
// caused it. On a GPU they run after their calls return, and a failure is otherwise noticed by a later call.
#ifndef ZERO_KERNELS_DEBUG_SYNC_H
#define ZERO_KERNELS_DEBUG_SYNC_H

#include "kernels/device.h"

// Wraps the device's operations and copies; no-op where they are synchronous. Before a profile watches the
// device, if one does.
enum status debug_sync_begin(struct device *device) MUST_CHECK;
// Undoes it. No-op for a device that is not wrapped, and for NULL.
void debug_sync_end(struct device *device);

#endif
