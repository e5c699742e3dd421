// Failures that every rank knows of. A rank reports a failure of its own to the others once; one that all
// ranks agreed on, or that came from another rank, is not reported again. Used by comm.c, the queue and the
// backends; comm_abort itself is declared in zero/comm/comm.h.
#ifndef ZERO_ZERO_COMM_FAILURE_H
#define ZERO_ZERO_COMM_FAILURE_H

#include "zero/comm/comm.h"

// Marks the failure recorded in base/status.h as known to every rank.
void comm_note_known_failure(struct comm *comm);
// True while that failure is the recorded one and no collective was issued since. A caller that handled it
// has cleared it, and one that goes on (to save the run's progress) can fail again: that is a new failure.
bool comm_is_known_failure(struct comm *comm);

#endif
