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
    struct mailbox *mailbox; // the peer's mailbox; NULL: it is reached by messages
    // Rings for bulk chunks (to, from) and for control messages. NULL: messages are used.
    struct ring *to, *from, *control_to, *control_from;
    char *received[LINK_DEPTH];       // buffers for received messages: each a header, then a bulk chunk
    MPI_Request receives[LINK_DEPTH]; // the receives posted into these buffers
    unsigned n_received;              // number of bulk chunks received so far
    int process; // process id of the peer, if this rank can check whether it is alive; else 0
};

// Buffers of messages in flight, shared by all peers.
struct send_pool {
    char *memory;
    size_t bytes, slot_bytes;
    MPI_Request *requests; // (n_slots)
    int n_slots;
    unsigned n_sent; // number of messages sent; the next slot is n_sent % n_slots
};

// Device memory for bulk collectives, of the size that comm_sums_bytes returns.
struct staging {
    char *memory; // this rank's rounded chunk; if the device has its own memory, also the other ranks' chunks
    void **pinned; // (world + 2) addresses of the page-locked memory of links
    int n_pinned;
};

struct mpi_data {
    MPI_Comm everyone, machine; // all ranks; the ranks on this machine
    int linked;                 // ranks reached through shared memory, this one included
    MPI_Win window;             // the linked ranks' mailboxes; MPI_WIN_NULL when linked is 1
    struct mailbox *mailbox;    // this rank's mailbox
    struct peer *peers;         // (world); the entry of this rank is empty
    size_t chunk_bytes;         // payload bytes of a bulk chunk
    int spins;                  // polls of a ring before sleeping; 0 if ranks outnumber processors
    char *receive_memory;       // the memory of every peer's `received`
    size_t receive_bytes;
    int receive_depth; // number of bulk chunks that each peer may send before this rank has read one
    struct send_pool bulk, control;
    // The control message that is being received, or was received last.
    _Alignas(struct link_header) char control_received[LINK_HEADER + LINK_CONTROL_BYTES];
    MPI_Request control_receive;
    struct staging staging;   // created by attach
    pthread_mutex_t mpi_lock; // held around every MPI call while several threads run
    // The failure that became known here first. `failure` never changes once set, because MPI may still be
    // sending it.
    atomic_int failed; // 0: none; 1: `failure` is being written; 2: `failure` is complete
    struct failure_note failure;
    atomic_bool printed;           // this rank has printed the failure, or knows that another rank has
    atomic_bool printed_elsewhere; // another rank has printed the failure
    struct watchdog *watchdog;     // zero/comm/mpi/failure.c
};

static inline struct mpi_data *mpi_of(const struct comm *comm) {
    return comm->data;
}

#endif
