// Inside communication over MPI: what startup (comm_mpi.c), failures (comm_mpi_failure.c), watching
// (comm_mpi_watch.c), links (comm_mpi_link.c), bulk calls (comm_mpi_exchange.c, comm_mpi_memory.c) and
// control calls (comm_mpi_control.c) share.
#ifndef ZERO_ZERO_COMM_MPI_H
#define ZERO_ZERO_COMM_MPI_H

#include <mpi.h>
#include <pthread.h>

#include "zero/comm/backend.h"
#include "zero/comm/ring.h"

// The way to one other rank: through shared memory (rings), or by MPI messages.
struct peer {
    struct mailbox *mailbox; // its own; NULL: by messages
    struct ring *to, *from, *control_to, *control_from;
    char *received[LINK_DEPTH]; // by messages: chunks behind their headers
    MPI_Request receives[LINK_DEPTH];
    unsigned n_received;
    int process; // its process id where it can be looked for, else 0
};

// Buffers of messages that are on their way, whoever gets them.
struct send_pool {
    char *memory;
    size_t bytes, slot_bytes;
    MPI_Request *requests; // (n_slots)
    int n_slots;
    unsigned n_sent;
};

#define N_STAGED 2

// Where the device is, chunk_bytes each: what exchange and sums pass through.
struct exchange_memory {
    char *sums, *rounded;   // a sum on its way; a share rounded to what travels
    char *staged[N_STAGED]; // shares of other ranks brought to a device with memory of its own, in turn
    struct event copied[N_STAGED], used[N_STAGED]; // one is there; it may be overwritten
    struct stream copies;                          // on which they come
    unsigned n_staged;
    void **pinned; // (world + 2) memory of links that the device's copies reach directly
    int n_pinned;
};

// What the watching thread knows of ranks that are reached by messages.
struct watchdog {
    pthread_t thread;
    bool running;
    atomic_bool stop;
    struct rank_report *reports;     // (world)
    int64_t *asked_ms, *answered_ms; // (world) 0: never
    MPI_Request *requests;           // (world) of the last question or answer to each
    struct rank_report *answers;     // (world) on their way
    int64_t inquiry_ms;              // when all were asked whether they are alive; 0: no inquiry
    int64_t patient_until_ms;        // the ranks were found at work: no inquiry before
    int64_t dead_ms;                 // when a dead process was first seen, not yet reported; 0: none
    int64_t failed_ms;               // when a failure was first seen; 0: none
    int64_t last_look_ms;            // of the thread at everything; 0: none yet
    int next_process;                // the rank whose process is looked for next
};

struct mpi_data {
    MPI_Comm everyone, machine;
    int linked;                    // ranks reached through shared memory, this one included
    MPI_Win window;                // their mailboxes; MPI_WIN_NULL where there is only this one
    struct mailbox *mailbox;       // this rank's
    struct mailbox *first_mailbox; // of the machine's first rank
    struct peer *peers;            // (world); this rank's own is empty
    size_t chunk_bytes;
    int spins;            // looks at a ring before sleeping, where each rank has a processor
    char *receive_memory; // of all peers' received
    size_t receive_bytes;
    int receive_depth; // chunks that each peer may send ahead
    struct send_pool bulk, control;
    _Alignas(struct link_header) char control_received[LINK_HEADER + LINK_CONTROL_BYTES];
    MPI_Request control_receive;
    struct exchange_memory memory; // from attach
    pthread_mutex_t mpi_lock;      // around MPI's calls: threads take turns
    pthread_mutex_t fail_lock;     // guards what follows
    bool failed;                   // some rank failed
    bool printed;                  // this rank has had its turn to print it
    struct failure_note failure;   // the first that became known here; notes are sent from it
    MPI_Request *note_requests;    // (world)
    struct watchdog watch;
};

static inline struct mpi_data *mpi_of(const struct comm *comm) {
    return comm->data;
}

#define TAG_CHUNK    1
#define TAG_CONTROL  2
#define TAG_FAILURE  3
#define TAG_QUESTION 4 // are you alive?
#define TAG_ANSWER   5

// ---- comm_mpi_failure.c

// STATUS_OK, or the failure of a rank with its message recorded. Any thread.
enum status mpi_check(struct comm *comm) MUST_CHECK;
// The same without recording it.
bool mpi_has_failed(struct comm *comm);
// Takes in what ranks that are reached by messages have told.
void mpi_receive_failures(struct comm *comm);
// This rank fails: tells all others.
void mpi_abort(struct comm *comm, enum status status, const char *message);
// This rank has found that another one (or itself) is gone and cannot report it: prints the message and sends
// it to all ranks.
void mpi_notice_failure(struct comm *comm, int rank, const char *message);
// Prints the failure unless another rank has. Rank 0 may, and whoever shares memory with it.
void mpi_speak(struct comm *comm);

// ---- comm_mpi_watch.c

enum status watchdog_start(struct comm *comm) MUST_CHECK;
void watchdog_stop(struct comm *comm);
void watchdog_free(struct comm *comm);

// ---- comm_mpi_link.c

// One wait for a rank as part of a collective, shown to others once it takes longer than a nap.
struct link_wait {
    struct comm *comm;
    enum comm_channel channel;
    int rank;
    const struct comm_id *id;
    bool shown;
};
enum status link_wait_on(struct link_wait *wait) MUST_CHECK; // after each nap: fails when a rank has failed
void link_wait_end(struct link_wait *wait);
// Waits until the ring has room, or a chunk.
enum status link_await_push(struct link_wait *wait, struct ring *ring, int spins) MUST_CHECK;
enum status link_await_pull(struct link_wait *wait, struct ring *ring, int spins) MUST_CHECK;
// Waits for a request of MPI's, which stays open after a failure.
enum status link_finish(struct link_wait *wait, MPI_Request *request) MUST_CHECK;
// A free slot of the pool for a message to wait->rank; then its sending. The header is filled.
enum status send_pool_take(struct link_wait *wait, struct send_pool *pool, char **slot) MUST_CHECK;
enum status send_pool_send(struct link_wait *wait, struct send_pool *pool, size_t bytes, int tag) MUST_CHECK;
// Fails, and tells all ranks, unless the header is that of the next chunk: `bytes` of this collective.
enum status link_check_header(struct comm *comm, int rank, const struct comm_id *id, size_t bytes,
                              const struct link_header *header) MUST_CHECK;

// The place of the next chunk to a rank, once there is room; then its sending, `bytes` long.
enum status peer_push_begin(struct comm *comm, int rank, const struct comm_id *id, void **place) MUST_CHECK;
enum status peer_push_end(struct comm *comm, int rank, const struct comm_id *id, size_t bytes,
                          enum comm_operation operation) MUST_CHECK;
// The next chunk from a rank, once it is there: `bytes` of this collective. Then its giving back.
enum status peer_pull_begin(struct comm *comm, int rank, const struct comm_id *id, size_t bytes,
                            const void **place) MUST_CHECK;
enum status peer_pull_end(struct comm *comm, int rank) MUST_CHECK;
enum status peers_open(struct comm *comm) MUST_CHECK;
void peers_close(struct comm *comm);

// ---- comm_mpi_memory.c

// A share that lies in a link, where the device can add it. At most N_STAGED are brought and not yet used.
struct brought {
    const void *share;
    int place; // of the staged; -1: where it lay
};
enum status share_bring(struct comm *comm, const void *share, size_t bytes, struct brought *out) MUST_CHECK;
// The work given to comm->stream so far was the last to read it.
enum status share_used(struct comm *comm, const struct brought *brought) MUST_CHECK;
enum status mpi_attach(struct comm *comm) MUST_CHECK;
void mpi_detach(struct comm *comm);

// ---- comm_mpi_exchange.c

enum status mpi_bulk(struct comm *comm, const struct comm_call *call) MUST_CHECK;
enum status mpi_sum(struct comm *comm, const struct comm_id *id, double *values, size_t n) MUST_CHECK;

// ---- comm_mpi_control.c

enum status mpi_gather(struct comm *comm, const struct comm_id *id, const void *mine, size_t bytes,
                       void *all) MUST_CHECK;
enum status mpi_broadcast(struct comm *comm, const struct comm_id *id, void *data, size_t bytes,
                          int root) MUST_CHECK;
enum status mpi_agree(struct comm *comm, const struct comm_id *id, struct comm_verdict *verdict) MUST_CHECK;

#endif
