// Sends and receives chunks. Callers need not know whether a chunk goes through a ring or a message. A wait
// checks every few milliseconds whether a rank has failed, so no wait outlasts a rank's death for long.
#ifndef ZERO_ZERO_COMM_MPI_PEER_H
#define ZERO_ZERO_COMM_MPI_PEER_H

#include "zero/comm/mpi/mpi_internal.h"

// Allocates message buffers and posts receives, for the ranks that are reached by MPI messages.
enum status peers_open(struct comm *comm) MUST_CHECK;
void peers_close(struct comm *comm);

// ---- chunks of bulk collectives
//
// Parameters of these functions:
//   id      the collective: sent in the chunk's header, or compared with the received header
//   bytes   bytes of payload
//   place   [out] where to write or read the payload, in the link's own memory

// Waits until there is room for the next chunk to `rank`. Fill `place`, then send it with peer_push_end.
enum status peer_push_begin(struct comm *comm, int rank, const struct comm_id *id, void **place) MUST_CHECK;
enum status peer_push_end(struct comm *comm, int rank, const struct comm_id *id, size_t bytes,
                          enum comm_operation operation) MUST_CHECK;
// Waits for the next chunk from `rank`. Read `place`, then free it for the sender with peer_pull_end.
enum status peer_pull_begin(struct comm *comm, int rank, const struct comm_id *id, size_t bytes,
                            const void **place) MUST_CHECK;
enum status peer_pull_end(struct comm *comm, int rank) MUST_CHECK;

// ---- for control messages (mpi.c)

// A wait for one rank within a collective. Once this rank sleeps instead of polling, its rank_state shows the
// wait to the watchdogs.
struct peer_wait {
    struct comm *comm;
    enum comm_channel channel;
    int rank;
    const struct comm_id *id;
    bool shown;
};
// Wait until the ring has room for a chunk (push) or holds a chunk (pull). Fail if any rank has failed.
//   spins   polls before the wait sleeps
enum status peer_wait_push(struct peer_wait *wait, struct ring *ring, int spins) MUST_CHECK;
enum status peer_wait_pull(struct peer_wait *wait, struct ring *ring, int spins) MUST_CHECK;
// Waits until the request completes. Fails if any rank has failed; the request then stays active.
enum status peer_wait_request(struct peer_wait *wait, MPI_Request *request) MUST_CHECK;

// Waits for the pool's next slot, for a message to wait->rank. The payload starts LINK_HEADER bytes into the
// slot.
enum status send_pool_take(struct peer_wait *wait, struct send_pool *pool, char **slot) MUST_CHECK;
// Fills the header of the slot that send_pool_take returned, and sends the slot with `bytes` of payload.
enum status send_pool_send(struct peer_wait *wait, struct send_pool *pool, size_t bytes, int tag) MUST_CHECK;

// Checks that a received header has `bytes` and collective `id`. If not, the ranks are in different
// collectives: fails, and reports the failure to all ranks.
enum status peer_check_header(struct comm *comm, int rank, const struct comm_id *id, size_t bytes,
                              const struct link_header *header) MUST_CHECK;

#endif
