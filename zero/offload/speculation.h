// A host thread that updates units while the device is still in backward, before the global norm is known:
// its results may have to be discarded. It knows nothing of optimizers; it calls `work` for one unit after
// another, in the order given.
#ifndef ZERO_ZERO_OFFLOAD_SPECULATION_H
#define ZERO_ZERO_OFFLOAD_SPECULATION_H

#include "base/status.h"

struct speculation;

// work(context, unit) runs on the thread. After a unit fails, later units are skipped.
enum status speculation_new(enum status (*work)(void *context, int unit), void *context, int n_units,
                            struct speculation **out) MUST_CHECK;
void speculation_delete(struct speculation *speculation); // waits for the units given; NULL is a no-op

// Queues a unit. At most n_units between two waits.
void speculation_give(struct speculation *speculation, int unit);
// Waits until the queue is empty. *n_done: units done or skipped since the last wait. Returns the first
// failure since speculation_new.
enum status speculation_wait(struct speculation *speculation, int *n_done) MUST_CHECK;

#endif
