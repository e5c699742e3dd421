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
    const void *args;            // the operation's struct NAME_args
    void *to;                    // destination of a copy
    const void *from;            // source of a copy
    size_t bytes;                // size of a copy
    const struct observer *next; // private
};

// An observer, which is called in place of the observed call. It makes that call with observe_proceed and may
// inspect the result. To refuse the call, it returns an error instead.
typedef enum status observe_function(void *context, struct observed_call *call);
// Makes the call: runs the observer that was added before this one or, if there is none, the device's own
// function.
enum status observe_proceed(struct observed_call *call) MUST_CHECK;

// Observes the device until observe_end. Later observers wrap earlier ones. No thread may be using the device
// during the call.
void observe_begin(struct device *device, observe_function *function, void *context);
// Ends the observation by `function`. No-op if it does not observe the device, or if `device` is NULL.
void observe_end(struct device *device, observe_function *function);

// run.debug_sync: waits for the device after each operation and copy, so that a failure names the operation
// that caused it. Without it, a failure on a GPU is reported by some later call. No-op where operations are
// synchronous. Call it before profile_watch.
void debug_sync_begin(struct device *device);
void debug_sync_end(struct device *device); // no-op for NULL

#endif
