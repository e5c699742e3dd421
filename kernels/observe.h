// Observers of a device: callbacks around each of its operations, copies and waits. Used by profiles
// (kernels/profile.h), run.debug_sync and the search for the cause of a spike (trainer/spikes.h). A device
// without observers calls its own functions directly, at no extra cost.
#ifndef ZERO_KERNELS_OBSERVE_H
#define ZERO_KERNELS_OBSERVE_H

#include "kernels/device.h"
#include "kernels/ops.h"

struct observed_call {
    struct stream *stream;
    enum { OBSERVED_OPERATION, OBSERVED_COPY, OBSERVED_WAIT } kind;
    enum operation operation;
    const void *args; // the operation's struct NAME_args
    void *to;         // destination of a copy
    const void *from;
    size_t bytes;
    const struct observer *next; // private
};

// Called in place of the observed call. It makes the call with observe_proceed, and may inspect the result or
// refuse the call.
typedef enum status observe_function(void *context, struct observed_call *call);
// Makes the call: the observers added earlier run in turn, then the device itself.
enum status observe_proceed(struct observed_call *call) MUST_CHECK;

// Observes the device until observe_end. Later observers wrap earlier ones. No thread may be using the device
// during the call.
void observe_begin(struct device *device, observe_function *function, void *context);
// No-op if `function` does not observe the device, or if `device` is NULL.
void observe_end(struct device *device, observe_function *function);

// run.debug_sync: waits for the device after each operation and copy, so that a failure names the operation
// that caused it. Without it, a failure on a GPU is reported by some later call. No-op where operations are
// synchronous. Call it before profile_watch.
void debug_sync_begin(struct device *device);
void debug_sync_end(struct device *device); // no-op for NULL

#endif
