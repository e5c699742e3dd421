// A thread that steps units on the host while the device is still in backward: before the global norm is
// known, so that what it makes may have to be thrown away. It knows nothing of optimizers: it does `work` for
// one unit after the other, in the order given.
#ifndef ZERO_ZERO_OFFLOAD_SPECULATION_H
#define ZERO_ZERO_OFFLOAD_SPECULATION_H

#include "base/status.h"

struct speculation;

// work(context, unit) runs on the thread. After a unit that fails, units given are not begun.
enum status speculation_new(enum status (*work)(void *context, int unit), void *context, int n_units,
                            struct speculation **out) MUST_CHECK;
void speculation_delete(struct speculation *speculation); // waits for what was given; NULL is fine

// At most n_units between two waits.
void speculation_give(struct speculation *speculation, int unit);
// Waits until all that was given is done; *n_done: how many units since the last wait. The first failure,
// ever.
enum status speculation_wait(struct speculation *speculation, int *n_done) MUST_CHECK;

#endif
