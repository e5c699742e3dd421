// How a failure of one rank reaches all others, and which rank prints it. A failure note goes through shared
// memory where there is some and by MPI messages elsewhere. Nothing here waits for another rank: it may be
// gone. Functions may be called from any thread.
#ifndef ZERO_ZERO_COMM_MPI_FAILURE_H
#define ZERO_ZERO_COMM_MPI_FAILURE_H

#include "zero/comm/backend.h"

// STATUS_OK, or the status of a failed rank with its message recorded: "rank 2: ...".
enum status mpi_check_failure(struct comm *comm) MUST_CHECK;
// True when a rank has failed, this one included. Records nothing.
bool mpi_has_failed(struct comm *comm);
// Receives failure notes of ranks that are reached by messages.
void mpi_receive_failure_notes(struct comm *comm);
// Sends this rank's failure to all others: comm_backend.abort.
void mpi_abort(struct comm *comm, enum status status, const char *message);
// Reports a rank that cannot do so itself: its process ended, or it hangs. Prints the message and sends it to
// all ranks.
void mpi_report_dead(struct comm *comm, int rank, const char *message);
// Prints the failure unless another rank has. Only rank 0 and the ranks that share memory with it print.
void mpi_print_failure(struct comm *comm);
// How much longer than rank 0 a rank waits before it looks into, or reports, what all ranks notice at the
// same time, in milliseconds. Lower ranks act first, and usually end the run before the others begin.
int64_t mpi_stagger_ms(int rank);

#endif
