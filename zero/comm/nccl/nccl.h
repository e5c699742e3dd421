// Bulk collectives by NCCL: work on a stream of the GPU, for which the host does not wait. The MPI backend
// still opens and closes communication and does everything on host memory. Its watchdog also watches NCCL.
//
// Order. One stream, comm->stream, runs all collectives in order of issue. A collective waits there for an
// event that marks the end of the caller's work; its work handle is an event that marks its own end.
//
// Which path. NCCL needs one GPU per rank, the same version of the library on every rank, and GPUs that can
// reach each other. The ranks exchange what they have, and all reach the same conclusion. Without NCCL, bulk
// collectives go through the host (zero/comm/mpi/mpi.h), and comm->path_text has the reason. If the user
// asked for NCCL (comm.backend=nccl) and it cannot be used, every rank fails.
//
// Failures. The watchdog thread (zero/comm/mpi/failure.h) calls nccl_watch about 50 times a second.
//   - A collective that does not end is shown as a wait in this rank's rank_state: the watchdogs then find
//     the rank that hangs, or ranks in different collectives, as they do without NCCL.
//   - An asynchronous error of NCCL is reported as this rank's failure after a second: if another rank has
//     died, the message about that rank is more useful and usually arrives first.
//   - When any rank has failed, ncclCommAbort ends the kernels that wait for it, so that host threads waiting
//     for the stream return. Their next collective returns the failure.
#ifndef ZERO_ZERO_COMM_NCCL_NCCL_H
#define ZERO_ZERO_COMM_NCCL_NCCL_H

#include "zero/comm/backend.h"
#include "zero/comm/comm.h"

extern const struct comm_device_backend nccl_backend;

// Returns the bytes of device memory that NCCL's staging buffers take on each rank.
size_t nccl_staging_bytes(int world);

#endif
