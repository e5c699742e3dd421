// Bulk collectives by NCCL: work on a stream of the GPU, which never waits on the host. Opening, closing and
// everything on host memory stay with the MPI backend, whose watchdog also looks after NCCL.
//
// Order. One stream, comm->stream, runs all collectives in order of issue. A collective waits there for an
// event that marks the end of the caller's work; its work handle is an event that marks its own end.
//
// Which path. NCCL needs one GPU per rank, the same version of the library on every rank, and GPUs that can
// reach each other. The ranks exchange what they have, and all reach the same conclusion. Without NCCL, bulk
// collectives go through the host (zero/comm/mpi/mpi.h), and comm->path_text has the reason. If the user
// asked for NCCL, that is an error on every rank.
//
// Failures. The watchdog thread (zero/comm/mpi/failure.h) calls nccl_watch about 50 times a second.
//   - A collective that does not end is shown as a wait in this rank's rank_state: the watchdogs then find
//     the rank that hangs, or ranks in different collectives, as they do without NCCL.
//   - An asynchronous error of NCCL is reported as this rank's failure after a second: if another rank has
//     died, its death is the better message.
//   - When any rank has failed, ncclCommAbort ends the kernels that wait for it, so that host threads waiting
//     for the stream return. Their next collective returns the failure.
#ifndef ZERO_ZERO_COMM_NCCL_NCCL_H
#define ZERO_ZERO_COMM_NCCL_NCCL_H

#include "zero/comm/backend.h"
#include "zero/comm/comm.h"

extern const struct comm_device_backend nccl_backend;

// Bytes of device memory that NCCL's staging buffers take on each rank.
size_t nccl_staging_bytes(int world);

#endif
