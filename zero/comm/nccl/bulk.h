// Reduce-scatter and all-gather by NCCL, issued to comm->stream.
#ifndef ZERO_ZERO_COMM_NCCL_BULK_H
#define ZERO_ZERO_COMM_NCCL_BULK_H

#include "zero/comm/nccl/data.h"

// The caller holds nccl->lock and has made comm->stream wait for the inputs. Counts bytes and calls.
enum status nccl_run(struct comm *comm, const struct comm_call *call) MUST_CHECK;

#endif
