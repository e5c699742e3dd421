// See zero/comm/mpi/peer.h.
#include "zero/comm/mpi/peer.h"

#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#include "base/alloc.h"
#include "zero/comm/mpi/failure.h"

#define POLLS_BEFORE_NAPS 200   // polls for a message before the wait sleeps between polls
#define NAP_NS            50000 // length of these sleeps
#define MOST_SENDS        64    // maximum bulk chunks in flight; more would queue up inside MPI
#define CONTROL_SENDS     16    // maximum control messages in flight
#define MANY_PEERS        64    // with this many ranks reached by messages, one chunk ahead per rank suffices

// ---- sizes

static size_t slot_bytes(size_t chunk_bytes) {
    return LINK_HEADER + chunk_bytes;
}

static int receive_depth(int n_remote) {
    return n_remote < MANY_PEERS ? LINK_DEPTH : 1;
}

static int send_slots(int n_remote) {
    int wanted = n_remote * receive_depth(n_remote);
    return wanted < MOST_SENDS ? wanted : MOST_SENDS;
}

static size_t received_bytes(int n_remote, size_t chunk_bytes) {
    return link_pages_bytes((size_t)(n_remote * receive_depth(n_remote)) * slot_bytes(chunk_bytes));
}

static size_t sent_bytes(int n_slots, size_t chunk_bytes) {
    return link_pages_bytes((size_t)n_slots * slot_bytes(chunk_bytes));
}

size_t comm_memory_bytes(int world, int linked, bool for_gpu) {
    size_t chunk = link_chunk_bytes(world, for_gpu);
    int n_remote = world - linked;
    if (world == 1)
        return 0;
    size_t bytes = mailbox_pages_bytes(linked, chunk) + (linked > 1 ? LINK_PAGE : 0);
    if (n_remote > 0)
        bytes += received_bytes(n_remote, chunk) + sent_bytes(send_slots(n_remote), chunk) +
                 sent_bytes(CONTROL_SENDS, LINK_CONTROL_BYTES);
    return bytes;
}

// ---- opening and closing

static enum status pool_init(struct send_pool *pool, int n_slots, size_t chunk_bytes) {
    *pool = (struct send_pool){.memory = aligned_alloc(LINK_PAGE, sent_bytes(n_slots, chunk_bytes)),
                               .bytes = sent_bytes(n_slots, chunk_bytes),
                               .slot_bytes = slot_bytes(chunk_bytes),
                               .requests = allocate((size_t)n_slots, sizeof *pool->requests),
                               .n_slots = n_slots};
    if (!pool->memory)
        return FAIL(STATUS_FAILED, "out of memory for %d message buffers of %zu bytes", n_slots, chunk_bytes);
    for (int i = 0; i < n_slots; i++)
        pool->requests[i] = MPI_REQUEST_NULL;
    return STATUS_OK;
}

static bool post_receive(struct comm *comm, int rank, unsigned slot) {
    struct mpi_data *mpi = mpi_of(comm);
    struct peer *peer = &mpi->peers[rank];
    return MPI_Irecv(peer->received[slot], (int)slot_bytes(mpi->chunk_bytes), MPI_BYTE, rank, TAG_CHUNK,
                     mpi->everyone, &peer->receives[slot]) == MPI_SUCCESS;
}

enum status peers_open(struct comm *comm) {
    struct mpi_data *mpi = mpi_of(comm);
    int n_remote = comm->world - mpi->linked;
    mpi->control_receive = MPI_REQUEST_NULL;
    if (n_remote == 0)
        return STATUS_OK;
    mpi->receive_depth = receive_depth(n_remote);
    mpi->receive_bytes = received_bytes(n_remote, mpi->chunk_bytes);
    mpi->receive_memory = aligned_alloc(LINK_PAGE, mpi->receive_bytes);
    if (!mpi->receive_memory)
        return FAIL(STATUS_FAILED, "out of memory for message buffers of %d ranks", n_remote);
    TRY(pool_init(&mpi->bulk, send_slots(n_remote), mpi->chunk_bytes));
    TRY(pool_init(&mpi->control, CONTROL_SENDS, LINK_CONTROL_BYTES));
    char *next = mpi->receive_memory;
    for (int rank = 0; rank < comm->world; rank++) {
        struct peer *peer = &mpi->peers[rank];
        for (int i = 0; i < LINK_DEPTH; i++)
            peer->receives[i] = MPI_REQUEST_NULL;
        if (peer->mailbox || rank == comm->rank)
            continue;
        for (int i = 0; i < mpi->receive_depth; i++, next += slot_bytes(mpi->chunk_bytes)) {
            peer->received[i] = next;
            if (!post_receive(comm, rank, (unsigned)i))
                return FAIL(STATUS_FAILED, "MPI failed to receive from rank %d", rank);
        }
    }
    return STATUS_OK;
}

static void cancel(MPI_Request *request) {
    if (*request == MPI_REQUEST_NULL)
        return;
    MPI_Cancel(request);
    MPI_Request_free(request);
}

static void pool_free(struct send_pool *pool) {
    if (pool->n_slots > 0)
        MPI_Waitall(pool->n_slots, pool->requests, MPI_STATUSES_IGNORE);
    free(pool->memory);
    free(pool->requests);
}

void peers_close(struct comm *comm) {
    struct mpi_data *mpi = mpi_of(comm);
    if (mpi_has_failed(comm))
        return; // messages may never be received: keep their memory until the process ends
    pool_free(&mpi->bulk);
    pool_free(&mpi->control);
    for (int rank = 0; rank < comm->world; rank++)
        for (int i = 0; i < mpi->receive_depth; i++)
            cancel(&mpi->peers[rank].receives[i]);
    cancel(&mpi->control_receive);
    free(mpi->receive_memory);
}

// ---- waiting

// Shows the wait in this rank's rank_state, and checks whether a rank has failed. Call it at each poll.
static enum status wait_check(struct peer_wait *wait) {
    if (!wait->shown)
        rank_state_wait_begin(wait->comm->state, wait->channel, wait->rank, wait->id->number);
    wait->shown = true;
    return mpi_check_failure(wait->comm);
}

static void wait_end(struct peer_wait *wait) {
    if (wait->shown)
        rank_state_wait_end(wait->comm->state, wait->channel);
    wait->shown = false;
}

enum status peer_wait_push(struct peer_wait *wait, struct ring *ring, int spins) {
    enum status status = STATUS_OK;
    while (status == STATUS_OK && !ring_can_push(ring)) {
        ring_wait_to_push(ring, spins);
        if (!ring_can_push(ring))
            status = wait_check(wait);
    }
    wait_end(wait);
    return status;
}

enum status peer_wait_pull(struct peer_wait *wait, struct ring *ring, int spins) {
    enum status status = STATUS_OK;
    while (status == STATUS_OK && !ring_can_pull(ring)) {
        ring_wait_to_pull(ring, spins);
        if (!ring_can_pull(ring))
            status = wait_check(wait);
    }
    wait_end(wait);
    return status;
}

enum status peer_wait_request(struct peer_wait *wait, MPI_Request *request) {
    struct mpi_data *mpi = mpi_of(wait->comm);
    const struct timespec nap = {.tv_nsec = NAP_NS};
    enum status status = STATUS_OK;
    for (unsigned polls = 0; status == STATUS_OK; polls++) {
        int done = 0;
        pthread_mutex_lock(&mpi->mpi_lock);
        int error = MPI_Test(request, &done, MPI_STATUS_IGNORE);
        pthread_mutex_unlock(&mpi->mpi_lock);
        if (error != MPI_SUCCESS)
            status = FAIL(STATUS_FAILED, "MPI failed to transfer a message to or from rank %d", wait->rank);
        if (done)
            break;
        if (status == STATUS_OK && polls >= POLLS_BEFORE_NAPS) {
            status = wait_check(wait);
            nanosleep(&nap, NULL);
        }
    }
    wait_end(wait);
    return status;
}

// ---- messages

enum status send_pool_take(struct peer_wait *wait, struct send_pool *pool, char **slot) {
    unsigned next = pool->n_sent % (unsigned)pool->n_slots;
    *slot = pool->memory + next * pool->slot_bytes;
    return peer_wait_request(wait, &pool->requests[next]);
}

enum status send_pool_send(struct peer_wait *wait, struct send_pool *pool, size_t bytes, int tag) {
    struct mpi_data *mpi = mpi_of(wait->comm);
    unsigned next = pool->n_sent++ % (unsigned)pool->n_slots;
    char *slot = pool->memory + next * pool->slot_bytes;
    *(struct link_header *)(void *)slot =
        (struct link_header){wait->id->number, (uint32_t)wait->id->collective, (uint32_t)bytes};
    pthread_mutex_lock(&mpi->mpi_lock);
    int error = MPI_Isend(slot, (int)(LINK_HEADER + bytes), MPI_BYTE, wait->rank, tag, mpi->everyone,
                          &pool->requests[next]);
    pthread_mutex_unlock(&mpi->mpi_lock);
    return error == MPI_SUCCESS ? STATUS_OK
                                : FAIL(STATUS_FAILED, "MPI failed to send to rank %d", wait->rank);
}

enum status peer_check_header(struct comm *comm, int rank, const struct comm_id *id, size_t bytes,
                              const struct link_header *header) {
    if (header->call == id->number && header->collective == (uint32_t)id->collective &&
        header->bytes == bytes)
        return STATUS_OK;
    enum status status =
        FAIL(STATUS_FAILED,
             "collective %" PRIu64 " is %s (a message of %zu bytes) here, but rank %d sends collective "
             "%" PRIu64 ", %s (%" PRIu32
             " bytes): the ranks are in different collectives. Start all of them with the "
             "same program, options and files",
             id->number, comm_collective_name(id->collective), bytes, rank, header->call,
             comm_collective_name((enum comm_collective)header->collective), header->bytes);
    comm_abort(comm, status); // at once: other ranks may be waiting for this one
    return status;
}

// ---- chunks of bulk collectives

static struct peer_wait bulk_wait(struct comm *comm, int rank, const struct comm_id *id) {
    return (struct peer_wait){comm, CHANNEL_BULK, rank, id, false};
}

enum status peer_push_begin(struct comm *comm, int rank, const struct comm_id *id, void **place) {
    struct mpi_data *mpi = mpi_of(comm);
    struct peer *peer = &mpi->peers[rank];
    struct peer_wait wait = bulk_wait(comm, rank, id);
    // Send nothing after a failure. An earlier chunk may be missing then, and the receiver would take this
    // one for it.
    TRY(mpi_check_failure(comm));
    if (!peer->to) {
        char *slot;
        TRY(send_pool_take(&wait, &mpi->bulk, &slot));
        *place = slot + LINK_HEADER;
        return STATUS_OK;
    }
    TRY(peer_wait_push(&wait, peer->to, comm->eager ? mpi->spins : 0));
    *place = (char *)ring_push_place(peer->to, mpi->chunk_bytes) + LINK_HEADER;
    return STATUS_OK;
}

enum status peer_push_end(struct comm *comm, int rank, const struct comm_id *id, size_t bytes,
                          enum comm_operation operation) {
    struct mpi_data *mpi = mpi_of(comm);
    struct peer *peer = &mpi->peers[rank];
    struct peer_wait wait = bulk_wait(comm, rank, id);
    comm->traffic.bytes[operation] += bytes;
    if (!peer->to)
        return send_pool_send(&wait, &mpi->bulk, bytes, TAG_CHUNK);
    *ring_push_place(peer->to, mpi->chunk_bytes) =
        (struct link_header){id->number, (uint32_t)id->collective, (uint32_t)bytes};
    ring_pushed(peer->to);
    return STATUS_OK;
}

enum status peer_pull_begin(struct comm *comm, int rank, const struct comm_id *id, size_t bytes,
                            const void **place) {
    struct mpi_data *mpi = mpi_of(comm);
    struct peer *peer = &mpi->peers[rank];
    struct peer_wait wait = bulk_wait(comm, rank, id);
    const struct link_header *header;
    if (!peer->from) {
        unsigned slot = peer->n_received % (unsigned)mpi->receive_depth;
        TRY(peer_wait_request(&wait, &peer->receives[slot]));
        header = (const struct link_header *)(const void *)peer->received[slot];
    } else {
        TRY(peer_wait_pull(&wait, peer->from, comm->eager ? mpi->spins : 0));
        header = ring_pull_place(peer->from, mpi->chunk_bytes);
    }
    *place = (const char *)header + LINK_HEADER;
    return peer_check_header(comm, rank, id, bytes, header);
}

enum status peer_pull_end(struct comm *comm, int rank) {
    struct mpi_data *mpi = mpi_of(comm);
    struct peer *peer = &mpi->peers[rank];
    if (peer->from) {
        ring_pulled(peer->from);
        return STATUS_OK;
    }
    unsigned slot = peer->n_received++ % (unsigned)mpi->receive_depth;
    pthread_mutex_lock(&mpi->mpi_lock);
    bool posted = post_receive(comm, rank, slot);
    pthread_mutex_unlock(&mpi->mpi_lock);
    return posted ? STATUS_OK : FAIL(STATUS_FAILED, "MPI failed to receive from rank %d", rank);
}
