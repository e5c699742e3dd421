// Chunks to and from other ranks. Both ways look the same to the collectives; waiting looks every few
// milliseconds whether a rank has failed, so no wait outlives the rank that it waits for.
#include <stdlib.h>
#include <time.h>

#include "zero/comm_mpi.h"

#define POLLS_BEFORE_NAPS 200
#define NAP_NS            50000

enum status peers_open(struct comm *comm) {
    struct mpi_data *mpi = mpi_of(comm);
    for (int rank = 0; rank < comm->world; rank++) {
        struct peer *peer = &mpi->peers[rank];
        if (peer->mailbox || rank == comm->rank)
            continue;
        for (int i = 0; i < LINK_DEPTH; i++) {
            peer->sends[i] = peer->receives[i] = MPI_REQUEST_NULL;
            peer->sent[i] = aligned_alloc(LINK_PAGE, link_pages_bytes(mpi->chunk_bytes));
            peer->received[i] = aligned_alloc(LINK_PAGE, link_pages_bytes(mpi->chunk_bytes));
            if (!peer->sent[i] || !peer->received[i])
                return FAIL(STATUS_FAILED, "out of memory for messages to rank %d", rank);
            MPI_Irecv(peer->received[i], (int)mpi->chunk_bytes, MPI_BYTE, rank, TAG_CHUNK, mpi->everyone,
                      &peer->receives[i]);
        }
    }
    return STATUS_OK;
}

static void end_request(MPI_Request *request) {
    if (*request == MPI_REQUEST_NULL)
        return;
    MPI_Cancel(request);
    MPI_Request_free(request);
}

void peers_close(struct comm *comm) {
    struct mpi_data *mpi = mpi_of(comm);
    for (int rank = 0; rank < comm->world; rank++) {
        struct peer *peer = &mpi->peers[rank];
        for (int i = 0; i < LINK_DEPTH && !mpi->dead && peer->received[i]; i++) {
            end_request(&peer->receives[i]);
            if (peer->sends[i] != MPI_REQUEST_NULL)
                MPI_Wait(&peer->sends[i], MPI_STATUS_IGNORE);
        }
        for (int i = 0; i < LINK_DEPTH; i++) {
            free(peer->sent[i]);
            free(peer->received[i]);
        }
    }
}

static enum status finish_request(struct comm *comm, MPI_Request *request) {
    struct mpi_data *mpi = mpi_of(comm);
    const struct timespec nap = {.tv_nsec = NAP_NS};
    for (unsigned polls = 0;; polls++) {
        int done = 0;
        pthread_mutex_lock(&mpi->mpi_lock);
        int error = MPI_Test(request, &done, MPI_STATUS_IGNORE);
        pthread_mutex_unlock(&mpi->mpi_lock);
        if (error != MPI_SUCCESS)
            return FAIL(STATUS_FAILED, "MPI could not carry a message");
        if (done)
            return STATUS_OK;
        if (polls >= POLLS_BEFORE_NAPS) {
            mpi_receive_abort(comm);
            TRY(mpi_check(comm));
            nanosleep(&nap, NULL);
        }
    }
}

enum status peer_push_begin(struct comm *comm, int rank, void **place) {
    struct mpi_data *mpi = mpi_of(comm);
    struct peer *peer = &mpi->peers[rank];
    TRY(mpi_check(comm)); // who has failed sends no more: it would be taken for what was to come
    if (!peer->to) {
        unsigned slot = peer->n_sent % LINK_DEPTH;
        *place = peer->sent[slot];
        return finish_request(comm, &peer->sends[slot]);
    }
    while (!ring_can_push(peer->to)) {
        ring_wait_to_push(peer->to, comm->eager ? mpi->spins : 0);
        TRY(mpi_check(comm));
    }
    *place = ring_push_place(peer->to, mpi->chunk_bytes);
    return STATUS_OK;
}

enum status peer_push_end(struct comm *comm, int rank, size_t bytes, enum comm_operation operation) {
    struct mpi_data *mpi = mpi_of(comm);
    struct peer *peer = &mpi->peers[rank];
    comm->traffic.bytes[operation] += bytes;
    if (peer->to) {
        ring_pushed(peer->to);
        return STATUS_OK;
    }
    unsigned slot = peer->n_sent++ % LINK_DEPTH;
    pthread_mutex_lock(&mpi->mpi_lock);
    int error =
        MPI_Isend(peer->sent[slot], (int)bytes, MPI_BYTE, rank, TAG_CHUNK, mpi->everyone, &peer->sends[slot]);
    pthread_mutex_unlock(&mpi->mpi_lock);
    return error == MPI_SUCCESS ? STATUS_OK : FAIL(STATUS_FAILED, "MPI could not send to rank %d", rank);
}

enum status peer_pull_begin(struct comm *comm, int rank, const void **place) {
    struct mpi_data *mpi = mpi_of(comm);
    struct peer *peer = &mpi->peers[rank];
    if (!peer->from) {
        unsigned slot = peer->n_received % LINK_DEPTH;
        *place = peer->received[slot];
        return finish_request(comm, &peer->receives[slot]);
    }
    while (!ring_can_pull(peer->from)) {
        ring_wait_to_pull(peer->from, comm->eager ? mpi->spins : 0);
        if (!ring_can_pull(peer->from))
            TRY(mpi_check(comm));
    }
    *place = ring_pull_place(peer->from, mpi->chunk_bytes);
    return STATUS_OK;
}

enum status peer_pull_end(struct comm *comm, int rank) {
    struct mpi_data *mpi = mpi_of(comm);
    struct peer *peer = &mpi->peers[rank];
    if (peer->from) {
        ring_pulled(peer->from);
        return STATUS_OK;
    }
    unsigned slot = peer->n_received++ % LINK_DEPTH;
    pthread_mutex_lock(&mpi->mpi_lock);
    int error = MPI_Irecv(peer->received[slot], (int)mpi->chunk_bytes, MPI_BYTE, rank, TAG_CHUNK,
                          mpi->everyone, &peer->receives[slot]);
    pthread_mutex_unlock(&mpi->mpi_lock);
    return error == MPI_SUCCESS ? STATUS_OK : FAIL(STATUS_FAILED, "MPI could not receive from rank %d", rank);
}
