// The MPI backend: ranks started by mpirun, one process each. Ranks on one machine exchange through shared
// memory, which MPI sets up. MPI carries the messages between machines (or all of them, with
// comm.shared_memory=false). Only this folder calls MPI; the rest of the program uses comm.h.
//
// Files, from the top; each uses only those below it:
//   mpi.c            opening and closing; bulk and control collectives
//   peer.c           chunks to and from one rank; waiting for a rank
//   failure.c        failure notes, who prints them, and the failure detector
//   mpi_internal.h   the backend's state
// and of zero/comm:
//   chunks.c         chunks of bulk collectives, and their sums
//   ring.c           rings and mailboxes in shared memory; knows nothing of MPI
//   rank_state.c     what a rank shows of itself
//
// Threads of a rank, at most three:
//   main             trains; issues collectives; runs control collectives itself
//   communication    runs bulk collectives, with overlap (zero/comm/comm.c)
//   watchdog         keeps the heartbeat, watches the other ranks (zero/comm/mpi/failure.h). Once it has
//                    ended, another thread limits the time that MPI takes to close (mpi.c)
// main and communication may wait at the same time, one in a control and one in a bulk collective. Control
// and bulk collectives have separate links (rings, buffers, tags), so neither waits behind the other.
//
// mpi_lock is held around every MPI call while several threads run (MPI_THREAD_SERIALIZED). A wait polls
// MPI_Test and releases the lock between polls.
//
// Messages by tag (zero/comm/mpi/mpi_internal.h). Ranks with shared memory send each other only TAG_FAILURE:
//   TAG_CHUNK      link_header + a chunk. Each rank posts receives for up to LINK_DEPTH chunks of every peer
//   TAG_CONTROL    link_header + up to LINK_CONTROL_BYTES. Received when the collective asks for it
//   TAG_FAILURE    failure_note from a rank that fails or finds a dead rank, if it knows of no earlier
//                  failure. Empty: the sender has printed the failure
//   TAG_QUESTION   rank_report of a watchdog that suspects the receiver
//   TAG_ANSWER     rank_report, the answer to a TAG_QUESTION
// In shared memory rings hold the same chunks and headers, and the mailbox holds the rank_state.
//
// A wait for a ring or for a message:
//   1. Polls briefly. A ring is polled only if every rank has a processor of its own and the caller waits
//      for the collective.
//   2. Then sleeps between polls: up to 10 ms on a futex (ring), 50 us (message).
//   3. Meanwhile shows in rank_state which rank it waits for. At each poll it returns if a rank has failed.
//
// A failure:
//   1. A rank fails, or its watchdog finds a rank dead, hanging or in another collective. It records the
//      failure as its first and sends it to all ranks. Later failures are ignored.
//   2. Every wait of every rank returns the status and message of that failure.
//   3. The lowest living rank of the machine where the failure was found prints it at once, because mpirun
//      kills all ranks soon after one has died. Any other rank prints it when it is its turn, unless it has
//      heard by then that the failure was printed. Turns are a second apart.
//   4. comm_close: ranks wait at most 5 s for each other to finish. Watchdogs end processes that do not
//      return from their collective. mpirun may print its own text after the message.
#ifndef ZERO_ZERO_COMM_MPI_MPI_H
#define ZERO_ZERO_COMM_MPI_MPI_H

#include "zero/comm/comm.h"

// Opens MPI. STATUS_FAILED or STATUS_UNSUPPORTED if MPI cannot start or lacks what the program needs. A rank
// that fails after MPI has started prints its message and ends all ranks (MPI_Abort).
enum status comm_open_mpi(const struct comm_options *options, struct comm **out) MUST_CHECK;

#endif
