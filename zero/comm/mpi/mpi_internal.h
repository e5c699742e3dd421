// The state of the MPI backend, shared by the zero/comm/mpi/*.c files. zero/comm/mpi/mpi.h has the overview.
#ifndef ZERO_ZERO_COMM_MPI_MPI_INTERNAL_H
#define ZERO_ZERO_COMM_MPI_MPI_INTERNAL_H

#include <mpi.h>
#include <pthread.h>

#include "zero/comm/backend.h"
#include "zero/comm/comm.h"
#include "zero/comm/ring.h"

#define TAG_CHUNK    1 // a chunk of a bulk collective, after its link_header
#define TAG_CONTROL  2 // a message of a control collective, after its link_header
#define TAG_FAILURE  3 // a failure_note; empty: the sender has printed the failure
#define TAG_QUESTION 4 // a rank_report; asks for the receiver's report
#define TAG_ANSWER   5 // a rank_report

#define FAILURE_MESSAGE 2048

// A failure, as ranks report it to each other.
struct failure_note {
    int from, rank; // the rank that reports it, and the rank that failed
    int status;
    bool gone; // the failed rank is dead or hangs
    char message[FAILURE_MESSAGE];
};

// The link to one other rank: rings in shared memory, or MPI messages.
struct peer {
    struct mailbox *mailbox; // the peer's own; NULL: the peer is reached by messages
    struct ring *to, *from, *control_to, *control_from;
    char *received[LINK_DEPTH]; // received messages: chunks, each after its header
    MPI_Request receives[LINK_DEPTH];
    unsigned n_received;
    int process; // process id if this rank can check it, else 0
};

// Buffers of messages in flight, shared by all peers.
struct send_pool {
    char *memory;
    size_t bytes, slot_bytes;
    MPI_Request *requests; // (n_slots)
    int n_slots;
    unsigned n_sent; // the next slot is n_sent % n_slots
};

// Device memory for bulk collectives: comm_sums_bytes.
struct staging {
    char *memory; // this rank's rounded chunk; if the device has its own memory, also the other ranks' chunks
    void **pinned; // (world + 2) page-locked memory of links
    int n_pinned;
};

struct mpi_data {
    MPI_Comm everyone, machine;
    int linked;              // ranks reached through shared memory, this one included
    MPI_Win window;          // their mailboxes; MPI_WIN_NULL when linked is 1
    struct mailbox *mailbox; // this rank's
    struct peer *peers;      // (world); the entry of this rank is empty
    size_t chunk_bytes;      // payload bytes of a bulk chunk
    int spins;               // polls of a ring before sleeping; 0 if ranks outnumber processors
    char *receive_memory;    // backs every peer's `received`
    size_t receive_bytes;
    int receive_depth; // chunks that each peer may send ahead
    struct send_pool bulk, control;
    _Alignas(struct link_header) char control_received[LINK_HEADER + LINK_CONTROL_BYTES];
    MPI_Request control_receive;
    struct staging staging;   // created by attach
    pthread_mutex_t mpi_lock; // around calls of MPI while several threads run
    // The failure that became known here first. `failure` never changes once set: it may be in flight.
    atomic_int failed; // 0: none; 1: `failure` is being written; 2: `failure` is complete
    struct failure_note failure;
    atomic_bool printed, printed_elsewhere; // printed: by this rank or, as it knows, by another
    struct watchdog *watchdog;              // zero/comm/mpi/failure.c
};

static inline struct mpi_data *mpi_of(const struct comm *comm) {
    return comm->data;
}

#endif
