// How a failure of one rank reaches all others, which rank prints it, and the failure detector: a thread of
// each rank, the watchdog, that finds what a rank cannot report itself:
//   dead processes       on this machine; their process id is gone, or they are unreaped zombies
//   mismatched calls     two ranks that wait for each other in different collectives
//   hanging ranks        others wait for a rank, and it does not respond or shows no progress for
//                        comm_options.hang_timeout_s
// Ranks on one machine show their state in shared memory. Others are asked for it: the thread sends questions
// and answers those of other ranks.
//
// A rank that fails, or finds one that failed, leaves a note: a message to every rank. Nothing here waits for
// another rank: it may be gone. Of the ranks that know of a failure, the lowest living one of the machine
// where it was found prints it, and leaves word that it has. The others print it where that word does not
// arrive within a second. The watchdog prints, and it ends the process if the rest of the program does not
// return from its collective and exit within 5 s of the failure.
//
// Functions may be called from any thread.
#ifndef ZERO_ZERO_COMM_MPI_FAILURE_H
#define ZERO_ZERO_COMM_MPI_FAILURE_H

#include "zero/comm/backend.h"
#include "zero/comm/comm.h"

// STATUS_OK, or the status of a failed rank with its message recorded: "rank 2: ...".
enum status mpi_check_failure(struct comm *comm) MUST_CHECK;
// True when a rank has failed, this one included. Records nothing.
bool mpi_has_failed(const struct comm *comm);
// Leaves a note of this rank's failure: comm_backend.abort.
void mpi_abort(struct comm *comm, enum status status, const char *message);
// Returns once this rank has printed the failure or knows that another one has. Some rank must have failed.
void mpi_wait_until_printed(struct comm *comm);
// How much longer than rank 0 a rank waits before it looks into, or reports, what all ranks notice at the
// same time, in milliseconds. Lower ranks act first, and usually end the run before the others begin.
int64_t mpi_stagger_ms(int rank);

enum status mpi_watchdog_start(struct comm *comm) MUST_CHECK;
void mpi_watchdog_stop(struct comm *comm); // ends the thread

#endif
