// The failure detector: a thread of each rank that watches the other ranks. It looks for
//   dead processes       on this machine; their process id is gone, or they are unreaped zombies
//   mismatched calls     two ranks that wait for each other in different collectives
//   hanging ranks        others wait for a rank, and it does not respond or shows no progress for
//                        comm_options.hang_timeout_s
// Ranks on one machine show their state in shared memory. Others are asked for it: the thread sends questions
// and answers those of other ranks. Once a failure is known, from this or any other rank, the thread ends the
// process if the rest of the program does not return from its collective and exit within 5 s.
#ifndef ZERO_ZERO_COMM_MPI_WATCHDOG_H
#define ZERO_ZERO_COMM_MPI_WATCHDOG_H

#include "zero/comm/backend.h"

enum status mpi_watchdog_start(struct comm *comm) MUST_CHECK;
void mpi_watchdog_stop(struct comm *comm); // ends the thread; no-op when it does not run
void mpi_watchdog_free(struct comm *comm);

#endif
