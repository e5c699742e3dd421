// Control calls: small values of host memory, along a binomial tree over rank numbers with its root at rank
// 0. The children of rank r are r + 1, r + 2, r + 4, ... below r's lowest set bit, so that the ranks below a
// child are consecutive. Each call goes up the tree and down again: no rank leaves it before all have come,
// and two ranks in different calls meet and see it.
//
// Links and numbers are apart from those of bulk calls: a control call does not wait behind them.
#include <string.h>

#include "zero/comm/mpi.h"

// ---- messages

static enum status push(struct comm *comm, int rank, const struct comm_id *id, const char *data,
                        size_t bytes) {
    struct mpi_data *mpi = mpi_of(comm);
    struct ring *ring = mpi->peers[rank].control_to;
    struct link_wait wait = {comm, CHANNEL_CONTROL, rank, id, false};
    size_t done = 0, n;
    TRY(mpi_check(comm)); // who has failed sends no more
    do {                  // no bytes are one message
        n = bytes - done < LINK_CONTROL_BYTES ? bytes - done : LINK_CONTROL_BYTES;
        if (!ring) {
            char *slot;
            TRY(send_pool_take(&wait, &mpi->control, &slot));
            memcpy(slot + LINK_HEADER, data + done, n);
            TRY(send_pool_send(&wait, &mpi->control, n, TAG_CONTROL));
            continue;
        }
        TRY(link_await_push(&wait, ring, mpi->spins));
        struct link_header *header = ring_push_place(ring, LINK_CONTROL_BYTES);
        *header = (struct link_header){id->number, (uint32_t)id->collective, (uint32_t)n};
        memcpy((char *)header + LINK_HEADER, data + done, n);
        ring_pushed(ring);
    } while ((done += n) < bytes);
    return STATUS_OK;
}

// The next message of a rank's; *header until the next one.
static enum status next_message(struct link_wait *wait, const struct link_header **header) {
    struct mpi_data *mpi = mpi_of(wait->comm);
    struct ring *ring = mpi->peers[wait->rank].control_from;
    if (!ring) {
        pthread_mutex_lock(&mpi->mpi_lock);
        int error = MPI_Irecv(mpi->control_received, sizeof mpi->control_received, MPI_BYTE, wait->rank,
                              TAG_CONTROL, mpi->everyone, &mpi->control_receive);
        pthread_mutex_unlock(&mpi->mpi_lock);
        if (error != MPI_SUCCESS)
            return FAIL(STATUS_FAILED, "MPI could not receive from rank %d", wait->rank);
        *header = (const struct link_header *)(const void *)mpi->control_received;
        return link_finish(wait, &mpi->control_receive);
    }
    TRY(link_await_pull(wait, ring, mpi->spins));
    *header = ring_pull_place(ring, LINK_CONTROL_BYTES);
    return STATUS_OK;
}

static enum status pull(struct comm *comm, int rank, const struct comm_id *id, char *data, size_t bytes) {
    struct ring *ring = mpi_of(comm)->peers[rank].control_from;
    struct link_wait wait = {comm, CHANNEL_CONTROL, rank, id, false};
    size_t done = 0, n;
    do {
        const struct link_header *header = NULL;
        n = bytes - done < LINK_CONTROL_BYTES ? bytes - done : LINK_CONTROL_BYTES;
        TRY(next_message(&wait, &header));
        TRY(link_check_header(comm, rank, id, n, header));
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

// The number of ranks in the subtree of a rank: itself and those that follow it.
static int subtree(const struct comm *comm, int rank) {
    int all = comm->world - rank, own = rank == 0 ? all : rank & -rank;
    return own < all ? own : all;
}

static int parent(int rank) {
    return rank & (rank - 1);
}

static bool holds(const struct comm *comm, int top, int rank) {
    return rank >= top && rank < top + subtree(comm, top);
}

#define FOR_EACH_CHILD(comm, child)                                                                          \
    for (int step_ = 1, child;                                                                               \
         (child = (comm)->rank + step_) < (comm)->rank + subtree((comm), (comm)->rank); step_ *= 2)

// ---- the calls

enum status mpi_gather(struct comm *comm, const struct comm_id *id, const void *mine, size_t bytes,
                       void *all) {
    char *values = all, *own = values + (size_t)comm->rank * bytes;
    if (bytes > 0)
        memmove(own, mine, bytes);
    FOR_EACH_CHILD(comm, child)
    TRY(pull(comm, child, id, values + (size_t)child * bytes, (size_t)subtree(comm, child) * bytes));
    if (comm->rank > 0) {
        TRY(push_counted(comm, parent(comm->rank), id, own, (size_t)subtree(comm, comm->rank) * bytes,
                         COMM_CONTROL));
        TRY(pull(comm, parent(comm->rank), id, values, (size_t)comm->world * bytes));
    }
    FOR_EACH_CHILD(comm, child)
    TRY(push_counted(comm, child, id, values, (size_t)comm->world * bytes, COMM_CONTROL));
    return STATUS_OK;
}

// Up from the root to rank 0, where it is not rank 0, and from there to all who are not on that way.
enum status mpi_broadcast(struct comm *comm, const struct comm_id *id, void *data, size_t bytes, int root) {
    bool on_the_way = holds(comm, comm->rank, root);
    FOR_EACH_CHILD(comm, child)
    TRY(pull(comm, child, id, data, holds(comm, child, root) ? bytes : 0));
    if (comm->rank > 0) {
        TRY(push_counted(comm, parent(comm->rank), id, data, on_the_way ? bytes : 0, COMM_BROADCAST));
        TRY(pull(comm, parent(comm->rank), id, data, on_the_way ? 0 : bytes));
    }
    FOR_EACH_CHILD(comm, child)
    TRY(push_counted(comm, child, id, data, holds(comm, child, root) ? 0 : bytes, COMM_BROADCAST));
    return STATUS_OK;
}

static void combine(struct comm_verdict *verdict, const struct comm_verdict *other) {
    if (other->status > verdict->status)
        *verdict = *other;
    else if (other->status == verdict->status)
        verdict->count += other->count; // and the rank is the lower one already
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
