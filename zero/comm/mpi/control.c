// See zero/comm/mpi/control.h. Control collectives move small values of host memory along a binomial tree
// over rank numbers, with its root at rank 0. The children of rank r are r + 1, r + 2, r + 4, ..., for powers
// of two below r's lowest set bit, so the ranks of a subtree are consecutive.
//
// Each collective goes up the tree and down again: no rank leaves before all have arrived, and two ranks in
// different collectives exchange a message and notice it. Links are separate from those of bulk collectives,
// so a control collective never waits behind one.
#include "zero/comm/mpi/control.h"

#include <string.h>

#include "zero/comm/mpi/failure.h"
#include "zero/comm/mpi/peer.h"

// ---- messages

static enum status push(struct comm *comm, int rank, const struct comm_id *id, const char *data,
                        size_t bytes) {
    struct mpi_data *mpi = mpi_of(comm);
    struct ring *ring = mpi->peers[rank].control_to;
    struct peer_wait wait = {comm, CHANNEL_CONTROL, rank, id, false};
    size_t done = 0, n;
    TRY(mpi_check_failure(comm)); // a rank that failed sends no more
    do {                          // 0 bytes are one message too
        n = bytes - done < LINK_CONTROL_BYTES ? bytes - done : LINK_CONTROL_BYTES;
        if (!ring) {
            char *slot;
            TRY(send_pool_take(&wait, &mpi->control, &slot));
            memcpy(slot + LINK_HEADER, data + done, n);
            TRY(send_pool_send(&wait, &mpi->control, n, TAG_CONTROL));
            continue;
        }
        TRY(peer_wait_push(&wait, ring, mpi->spins));
        struct link_header *header = ring_push_place(ring, LINK_CONTROL_BYTES);
        *header = (struct link_header){id->number, (uint32_t)id->collective, (uint32_t)n};
        memcpy((char *)header + LINK_HEADER, data + done, n);
        ring_pushed(ring);
    } while ((done += n) < bytes);
    return STATUS_OK;
}

// Waits for the next message of wait->rank. *header is valid until the next call.
static enum status next_message(struct peer_wait *wait, const struct link_header **header) {
    struct mpi_data *mpi = mpi_of(wait->comm);
    struct ring *ring = mpi->peers[wait->rank].control_from;
    if (!ring) {
        pthread_mutex_lock(&mpi->mpi_lock);
        int error = MPI_Irecv(mpi->control_received, sizeof mpi->control_received, MPI_BYTE, wait->rank,
                              TAG_CONTROL, mpi->everyone, &mpi->control_receive);
        pthread_mutex_unlock(&mpi->mpi_lock);
        if (error != MPI_SUCCESS)
            return FAIL(STATUS_FAILED, "MPI failed to receive from rank %d", wait->rank);
        *header = (const struct link_header *)(const void *)mpi->control_received;
        return peer_wait_request(wait, &mpi->control_receive);
    }
    TRY(peer_wait_pull(wait, ring, mpi->spins));
    *header = ring_pull_place(ring, LINK_CONTROL_BYTES);
    return STATUS_OK;
}

static enum status pull(struct comm *comm, int rank, const struct comm_id *id, char *data, size_t bytes) {
    struct ring *ring = mpi_of(comm)->peers[rank].control_from;
    struct peer_wait wait = {comm, CHANNEL_CONTROL, rank, id, false};
    size_t done = 0, n;
    do {
        const struct link_header *header = NULL;
        n = bytes - done < LINK_CONTROL_BYTES ? bytes - done : LINK_CONTROL_BYTES;
        TRY(next_message(&wait, &header));
        TRY(peer_check_header(comm, rank, id, n, header));
        memcpy(data + done, (const char *)header + LINK_HEADER, n);
        if (ring)
            ring_pulled(ring);
    } while ((done += n) < bytes);
    return STATUS_OK;
}

static enum status push_counted(struct comm *comm, int rank, const struct comm_id *id, const void *data,
                                size_t bytes, enum comm_operation operation) {
    comm->traffic.bytes[operation] += bytes;
    return push(comm, rank, id, data, bytes);
}

// ---- the tree

// Ranks in the subtree of `rank`: itself and those that follow it.
static int subtree_size(const struct comm *comm, int rank) {
    int all = comm->world - rank, own = rank == 0 ? all : rank & -rank;
    return own < all ? own : all;
}

static int parent(int rank) {
    return rank & (rank - 1);
}

static bool is_in_subtree(const struct comm *comm, int top, int rank) {
    return rank >= top && rank < top + subtree_size(comm, top);
}

#define FOR_EACH_CHILD(comm, child)                                                                          \
    for (int step_ = 1, child;                                                                               \
         (child = (comm)->rank + step_) < (comm)->rank + subtree_size((comm), (comm)->rank); step_ *= 2)

// ---- the collectives

enum status mpi_gather(struct comm *comm, const struct comm_id *id, const void *mine, size_t bytes,
                       void *all) {
    char *values = all, *own = values + (size_t)comm->rank * bytes;
    if (bytes > 0)
        memmove(own, mine, bytes);
    FOR_EACH_CHILD(comm, child)
    TRY(pull(comm, child, id, values + (size_t)child * bytes, (size_t)subtree_size(comm, child) * bytes));
    if (comm->rank > 0) {
        TRY(push_counted(comm, parent(comm->rank), id, own, (size_t)subtree_size(comm, comm->rank) * bytes,
                         COMM_CONTROL));
        TRY(pull(comm, parent(comm->rank), id, values, (size_t)comm->world * bytes));
    }
    FOR_EACH_CHILD(comm, child)
    TRY(push_counted(comm, child, id, values, (size_t)comm->world * bytes, COMM_CONTROL));
    return STATUS_OK;
}

// Up from the root to rank 0, then down to all ranks that are not on that path. The others send empty
// messages.
enum status mpi_broadcast(struct comm *comm, const struct comm_id *id, void *data, size_t bytes, int root) {
    bool on_path = is_in_subtree(comm, comm->rank, root);
    FOR_EACH_CHILD(comm, child)
    TRY(pull(comm, child, id, data, is_in_subtree(comm, child, root) ? bytes : 0));
    if (comm->rank > 0) {
        TRY(push_counted(comm, parent(comm->rank), id, data, on_path ? bytes : 0, COMM_BROADCAST));
        TRY(pull(comm, parent(comm->rank), id, data, on_path ? 0 : bytes));
    }
    FOR_EACH_CHILD(comm, child)
    TRY(push_counted(comm, child, id, data, is_in_subtree(comm, child, root) ? 0 : bytes, COMM_BROADCAST));
    return STATUS_OK;
}

static void combine(struct comm_verdict *verdict, const struct comm_verdict *other) {
    if (other->status > verdict->status)
        *verdict = *other;
    else if (other->status == verdict->status)
        verdict->count += other->count; // children have higher ranks: verdict->rank stays the lowest
}

enum status mpi_agree(struct comm *comm, const struct comm_id *id, struct comm_verdict *verdict) {
    struct comm_verdict below;
    FOR_EACH_CHILD(comm, child) {
        TRY(pull(comm, child, id, (char *)&below, sizeof below));
        combine(verdict, &below);
    }
    if (comm->rank > 0) {
        TRY(push_counted(comm, parent(comm->rank), id, verdict, sizeof *verdict, COMM_CONTROL));
        TRY(pull(comm, parent(comm->rank), id, (char *)verdict, sizeof *verdict));
    }
    FOR_EACH_CHILD(comm, child)
    TRY(push_counted(comm, child, id, verdict, sizeof *verdict, COMM_CONTROL));
    return STATUS_OK;
}
