// The state of the MPI backend, shared by the zero/comm/mpi/*.c files. zero/comm/mpi/mpi.h has the overview.
#ifndef ZERO_ZERO_COMM_MPI_DATA_H
#define ZERO_ZERO_COMM_MPI_DATA_H

#include <mpi.h>
#include <pthread.h>

#include "zero/comm/backend.h"
#include "zero/comm/ring.h"
#include "zero/comm/shared_word.h"

#define TAG_CHUNK    1 // a chunk of a bulk collective, behind its link_header
#define TAG_CONTROL  2 // a message of a control collective, behind its link_header
#define TAG_FAILURE  3 // a failure_note
#define TAG_QUESTION 4 // a rank_report; asks for the receiver's
#define TAG_ANSWER   5 // a rank_report

// The link to one other rank: rings in shared memory, or MPI messages.
struct peer {
    struct mailbox *mailbox; // the peer's own; NULL: it is reached by messages
    struct ring *to, *from, *control_to, *control_from;
    char *received[LINK_DEPTH]; // by messages: received chunks behind their headers
    MPI_Request receives[LINK_DEPTH];
    unsigned n_received;
    int process; // its process id where this rank can look for it, else 0
};

// Buffers of messages being sent, to whichever peer.
struct send_pool {
    char *memory;
    size_t bytes, slot_bytes;
    MPI_Request *requests; // (n_slots)
    int n_slots;
    unsigned n_sent; // the next slot is n_sent % n_slots
};

#define N_STAGING_BUFFERS 2

// Memory of the device for bulk collectives, chunk_bytes each (zero/comm/mpi/staging.h).
struct staging {
    char *sums;    // (sum_tree_depth chunks) partial sums
    char *rounded; // this rank's contribution, rounded to the communication dtype
    // Only where the device has memory of its own:
    char *buffers[N_STAGING_BUFFERS];       // other ranks' contributions, used in turn
    struct event copied[N_STAGING_BUFFERS]; // the buffer is filled
    struct event used[N_STAGING_BUFFERS];   // the buffer may be overwritten
    struct stream copies;                   // fills the buffers
    unsigned n_loaded;                      // the next buffer is n_loaded % N_STAGING_BUFFERS
    void **pinned;                          // (world + 2) page-locked memory of links
    int n_pinned;
};

// What the watchdog thread knows. Times are rank_state_now_ms.
struct watchdog {
    pthread_t thread;
    bool running;
    atomic_bool stop;
    // Of ranks that are reached by messages, (world) each:
    struct rank_report *reports;     // the last report received
    int64_t *asked_ms, *answered_ms; // 0: never
    MPI_Request *requests;           // of the last question or answer sent
    struct rank_report *answers;     // being sent
    int64_t inquiry_ms;              // when all ranks were asked for a report; 0: no inquiry is open
    int64_t patient_until_ms;        // no inquiry before: an earlier one found the ranks at work
    int64_t dead_ms;                 // when a dead process was first seen, not yet reported; 0: none
    int64_t failed_ms;               // when a failure was first seen; 0: none
    int64_t last_look_ms;            // when the thread last looked at everything; 0: never
    int next_process;                // the rank whose process is looked for next
};

struct mpi_data {
    MPI_Comm everyone, machine;
    int linked;              // ranks reached through shared memory, this one included
    MPI_Win window;          // their mailboxes; MPI_WIN_NULL when linked is 1
    struct mailbox *mailbox; // this rank's
    struct shared_word word; // of the machine's ranks where they share no mailboxes; may not be open
    atomic_int *speaker;     // 1 + the rank that prints a failure, of those that share this; 0: none yet
    struct peer *peers;      // (world); the entry of this rank is empty
    size_t chunk_bytes;      // payload of a bulk chunk
    int spins;               // looks at a ring before sleeping; 0 where ranks outnumber processors
    char *receive_memory;    // backs every peer's `received`
    size_t receive_bytes;
    int receive_depth; // chunks that each peer may send ahead
    struct send_pool bulk, control;
    _Alignas(struct link_header) char control_received[LINK_HEADER + LINK_CONTROL_BYTES];
    MPI_Request control_receive;
    struct staging staging;      // from attach
    pthread_mutex_t mpi_lock;    // around calls of MPI while several threads run
    pthread_mutex_t fail_lock;   // guards the following
    bool failed;                 // some rank failed
    bool printed;                // this rank has decided whether it prints the failure
    struct failure_note failure; // the first that became known here. Written once: it may be being sent
    MPI_Request *note_requests;  // (world)
    struct watchdog watchdog;
};

static inline struct mpi_data *mpi_of(const struct comm *comm) {
    return comm->data;
}

#endif
