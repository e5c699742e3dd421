// Bulk collectives of a single rank. comm_open_self is declared in zero/comm/comm.h.
#ifndef ZERO_ZERO_COMM_SELF_H
#define ZERO_ZERO_COMM_SELF_H

#include "zero/comm/backend.h"

// With one rank, whatever the backend, a bulk collective is a copy or an addition on the caller's stream:
// nothing is sent, nothing is rounded to the communication dtype.
enum status comm_bulk_alone(struct stream *stream, const struct comm_call *call) MUST_CHECK;

#endif
