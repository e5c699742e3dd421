// Sends and receives chunks. Rings and messages look the same to the collectives above. A wait checks every
// few milliseconds whether a rank has failed, so no wait outlasts a rank's death for long.
#ifndef ZERO_ZERO_COMM_MPI_PEER_H
#define ZERO_ZERO_COMM_MPI_PEER_H

#include "zero/comm/mpi/mpi_internal.h"

// Allocates message buffers, and posts receives for the ranks that are reached by messages.
enum status peers_open(struct comm *comm) MUST_CHECK;
void peers_close(struct comm *comm);

// ---- chunks of bulk collectives
//
//   id      the collective: sent in the chunk's header, or compared with the header
//   bytes   of payload
//   place   [out] the payload, in the link's own memory

// Waits until there is room for the next chunk to `rank`; then fill `place` and send it.
enum status peer_push_begin(struct comm *comm, int rank, const struct comm_id *id, void **place) MUST_CHECK;
enum status peer_push_end(struct comm *comm, int rank, const struct comm_id *id, size_t bytes,
                          enum comm_operation operation) MUST_CHECK;
// Waits for the next chunk from `rank`; then read `place` and free it for the sender.
enum status peer_pull_begin(struct comm *comm, int rank, const struct comm_id *id, size_t bytes,
                            const void **place) MUST_CHECK;
enum status peer_pull_end(struct comm *comm, int rank) MUST_CHECK;

// ---- for control messages (mpi.c)

// A wait for one rank within a collective. Once it lasts longer than the first sleep, this rank's rank_state
// shows it to the watchdogs.
struct peer_wait {
    struct comm *comm;
    enum comm_channel channel;
    int rank;
    const struct comm_id *id;
    bool shown;
};
// Each waits for what its comment names, and fails if any rank has failed.
enum status peer_wait_push(struct peer_wait *wait, struct ring *ring, int spins) MUST_CHECK; // room in it
enum status peer_wait_pull(struct peer_wait *wait, struct ring *ring, int spins) MUST_CHECK; // a chunk in it
// After a failure the request stays active.
enum status peer_wait_request(struct peer_wait *wait, MPI_Request *request) MUST_CHECK;

// Waits for the pool's next slot, for a message to wait->rank. The payload starts LINK_HEADER bytes into the
// slot.
enum status send_pool_take(struct peer_wait *wait, struct send_pool *pool, char **slot) MUST_CHECK;
// Fills that slot's header and sends it with `bytes` of payload.
enum status send_pool_send(struct peer_wait *wait, struct send_pool *pool, size_t bytes, int tag) MUST_CHECK;

// Fails, and reports the failure to all ranks, unless the header has `bytes` and collective `id`. Otherwise
// the ranks are in different collectives.
enum status peer_check_header(struct comm *comm, int rank, const struct comm_id *id, size_t bytes,
                              const struct link_header *header) MUST_CHECK;

#endif
