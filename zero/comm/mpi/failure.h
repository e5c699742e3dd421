// Reports a failure of one rank to all others, and decides which rank prints it. Also the failure detector: a
// thread of each rank, the watchdog, finds what a rank cannot report itself:
//   dead processes       on this machine; their process id is gone, or they are unreaped zombies
//   mismatched calls     two ranks that wait for each other in different collectives
//   hanging ranks        others wait for a rank, and it does not respond or shows no progress for
//                        comm_options.hang_timeout_s
// Ranks on one machine show their state in shared memory. For the others, the watchdogs exchange questions
// and answers.
//
// A rank that fails, or finds a failed rank, leaves a note: a message to every rank. It does not wait
// until they receive it, because they may be dead. The lowest living rank of the machine where the failure
// was found prints the failure, and sends an empty note to the other ranks. Any other rank prints it when it
// is its turn, unless it has received the empty note by then. Turns are a second apart. The watchdog does the
// printing. It also ends the process if the program does not exit within 5 s of the failure.
//
// Functions may be called from any thread.
#ifndef ZERO_ZERO_COMM_MPI_FAILURE_H
#define ZERO_ZERO_COMM_MPI_FAILURE_H

#include "zero/comm/backend.h"
#include "zero/comm/comm.h"

// Returns STATUS_OK, or the status of a failed rank, with its message recorded: "rank 2: ...".
enum status mpi_check_failure(struct comm *comm) MUST_CHECK;
// True if any rank has failed, this one included. Records nothing.
bool mpi_has_failed(const struct comm *comm);
// Leaves a note of this rank's failure. Implements comm_backend.abort.
void mpi_abort(struct comm *comm, enum status status, const char *message);
// Returns once this rank has printed the failure or knows that another one has. Some rank must have failed.
void mpi_wait_until_printed(struct comm *comm);
// Returns how many milliseconds later than rank 0 this rank acts on a failure that all ranks notice at
// once. Lower ranks act first, and usually end the run before the others begin.
int64_t mpi_stagger_ms(int rank);

enum status mpi_watchdog_start(struct comm *comm) MUST_CHECK;
void mpi_watchdog_stop(struct comm *comm); // ends the thread

#endif
