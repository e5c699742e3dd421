// Inside communication over MPI: what startup and watching (comm_mpi.c), links (comm_mpi_link.c) and
// collectives (comm_mpi_exchange.c) share.
#ifndef ZERO_ZERO_COMM_MPI_H
#define ZERO_ZERO_COMM_MPI_H

#include <mpi.h>
#include <pthread.h>

#include "zero/comm_backend.h"
#include "zero/comm_link.h"

// The way to one other rank: through shared memory (rings) or, on another machine, by MPI messages.
struct peer {
    struct mailbox *mailbox;          // its own; NULL on another machine
    void *pinned[1 + 2 * LINK_DEPTH]; // memory of this link that the device's copies reach directly
    int n_pinned;
    struct ring *to, *from; // NULL on another machine
    char *sent[LINK_DEPTH], *received[LINK_DEPTH];
    MPI_Request sends[LINK_DEPTH], receives[LINK_DEPTH];
    unsigned n_sent, n_received;
};

#define N_STAGED 2

// Where the device is, chunk_bytes each: what exchange and sums pass through.
struct exchange_memory {
    char *sums, *rounded;   // a sum on its way; a share rounded to what travels
    char *staged[N_STAGED]; // shares of other ranks brought to a device with memory of its own, in turn
    struct event copied[N_STAGED], used[N_STAGED]; // one is there; it may be overwritten
    struct stream copies;                          // on which they come
    unsigned n_staged;
};

struct mpi_data {
    MPI_Comm everyone, machine;
    MPI_Win window;          // the mailboxes of this machine's ranks
    struct mailbox *mailbox; // this rank's
    struct peer *peers;      // (world); this rank's own is empty
    size_t chunk_bytes;
    int spins; // looks at a ring before sleeping, where each rank has a processor and its caller waits
    struct exchange_memory memory; // from attach
    pthread_mutex_t mpi_lock;      // around MPI's calls: two threads take turns
    pthread_mutex_t fail_lock;     // guards what follows
    bool failed, dead;             // some rank failed; some rank is gone without a word
    bool told;                     // the person has been told
    int failed_rank;
    enum status status;
    char message[LINK_MESSAGE];
    pthread_t watcher;
    bool watching;
    atomic_bool stop_watching;
};

static inline struct mpi_data *mpi_of(const struct comm *comm) {
    return comm->data;
}

// Takes note of a rank's failure; the first one stays.
void mpi_note_failure(struct comm *comm, int rank, enum status status, const char *message);
// STATUS_OK, or the failure of a rank with its message recorded.
enum status mpi_check(struct comm *comm) MUST_CHECK;
// Whether a rank on another machine has sent word that it failed.
void mpi_receive_abort(struct comm *comm);

// The place of the next chunk to a rank, once there is room; then its sending, `bytes` long.
enum status peer_push_begin(struct comm *comm, int rank, void **place) MUST_CHECK;
enum status peer_push_end(struct comm *comm, int rank, size_t bytes,
                          enum comm_operation operation) MUST_CHECK;
// The next chunk from a rank, once it is there; then its giving back.
enum status peer_pull_begin(struct comm *comm, int rank, const void **place) MUST_CHECK;
enum status peer_pull_end(struct comm *comm, int rank) MUST_CHECK;
enum status peers_open(struct comm *comm) MUST_CHECK;
void peers_close(struct comm *comm);

#define TAG_CHUNK   1
#define TAG_FAILURE 2

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
enum status mpi_bulk(struct comm *comm, const struct comm_call *call) MUST_CHECK;
enum status mpi_gather(struct comm *comm, const void *mine, size_t bytes, void *all) MUST_CHECK;
enum status mpi_sum(struct comm *comm, double *values, size_t n) MUST_CHECK;
enum status mpi_broadcast(struct comm *comm, void *data, size_t bytes, int root) MUST_CHECK;

#endif
