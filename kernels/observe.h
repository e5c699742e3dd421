// Observers of a device: functions around each of its operations, copies and waits. Profiles
// (kernels/profile.h), run.debug_sync and the search for the cause of a spike (trainer/spikes.h) are such. A
// device that none observes uses its own functions, at no extra cost.
#ifndef ZERO_KERNELS_OBSERVE_H
#define ZERO_KERNELS_OBSERVE_H

#include "kernels/device.h"
#include "kernels/ops.h"

struct observed_call {
    struct stream *stream;
    enum { OBSERVED_OPERATION, OBSERVED_COPY, OBSERVED_WAIT } kind;
    enum operation operation;
    const void *args; // struct NAME_args of the operation
    void *to;         // of a copy
    const void *from;
    size_t bytes;
    const struct observer *next; // private
};

// Called in place of a call: makes it with observe_proceed, and may look at what it did, or refuse it.
typedef enum status observe_function(void *context, struct observed_call *call);
// The call itself, in the observers that were there before, and at last by the device.
enum status observe_proceed(struct observed_call *call) MUST_CHECK;

// Until observe_end. Later observers are around those before. No thread may be using the device meanwhile.
void observe_begin(struct device *device, observe_function *function, void *context);
// No-op where this function does not observe the device, and for NULL.
void observe_end(struct device *device, observe_function *function);

// run.debug_sync: waits for the device after each operation and copy, so that a failure names the one that
// caused it. On a GPU they run after their calls return, and a failure is otherwise noticed by a later call.
// No-op where they are synchronous. Before a profile watches the device, if one does.
void debug_sync_begin(struct device *device);
void debug_sync_end(struct device *device); // no-op for NULL

#endif
