// What the exchange needs where the device is: room for sums, and for the shares of other ranks where the
// device has memory of its own. There the links are pinned too, so that copies reach them directly.
#include <stdlib.h>

#include "kernels/ops.h"
#include "zero/comm/mpi.h"

static enum status pin(struct comm *comm, void *memory, size_t bytes) {
    struct exchange_memory *exchange = &mpi_of(comm)->memory;
    if (!memory)
        return STATUS_OK;
    TRY(device_pin(comm->device, memory, bytes));
    exchange->pinned[exchange->n_pinned++] = memory;
    return STATUS_OK;
}

static enum status pin_links(struct comm *comm) {
    struct mpi_data *mpi = mpi_of(comm);
    size_t mailbox = mailbox_pages_bytes(mpi->linked, mpi->chunk_bytes);
    mpi->memory.pinned = calloc((size_t)comm->world + 2, sizeof *mpi->memory.pinned);
    if (!mpi->memory.pinned)
        return FAIL(STATUS_FAILED, "out of memory for links to %d ranks", comm->world - 1);
    if (mpi->linked > 1)
        TRY(pin(comm, mpi->mailbox, mailbox));
    for (int rank = 0; rank < comm->world; rank++)
        TRY(pin(comm, mpi->peers[rank].mailbox, mailbox));
    TRY(pin(comm, mpi->receive_memory, mpi->receive_bytes));
    return pin(comm, mpi->bulk.memory, mpi->bulk.bytes);
}

static enum status take(struct comm *comm, char **out) {
    void *memory;
    TRY(comm->device->memory_new(comm->device, mpi_of(comm)->chunk_bytes, "sums between ranks", &memory));
    *out = memory;
    return STATUS_OK;
}

enum status mpi_attach(struct comm *comm) {
    struct exchange_memory *memory = &mpi_of(comm)->memory;
    if (comm->world == 1)
        return STATUS_OK;
    TRY(take(comm, &memory->sums));
    TRY(take(comm, &memory->rounded));
    if (comm->device->place == REGION_HOST)
        return STATUS_OK;
    for (int i = 0; i < N_STAGED; i++) {
        TRY(take(comm, &memory->staged[i]));
        TRY(event_init(&memory->copied[i], comm->device));
        TRY(event_init(&memory->used[i], comm->device));
    }
    TRY(stream_init(&memory->copies, comm->device));
    return pin_links(comm);
}

void mpi_detach(struct comm *comm) {
    struct mpi_data *mpi = mpi_of(comm);
    struct exchange_memory *memory = &mpi->memory;
    while (memory->n_pinned > 0)
        device_unpin(comm->device, memory->pinned[--memory->n_pinned]);
    free(memory->pinned);
    stream_free(&memory->copies);
    for (int i = 0; i < N_STAGED; i++) {
        event_free(&memory->copied[i]);
        event_free(&memory->used[i]);
        comm->device->memory_delete(comm->device, memory->staged[i], mpi->chunk_bytes);
    }
    comm->device->memory_delete(comm->device, memory->sums, mpi->chunk_bytes);
    comm->device->memory_delete(comm->device, memory->rounded, mpi->chunk_bytes);
    *memory = (struct exchange_memory){0};
}

size_t comm_sums_bytes(int world, enum region_place place) {
    if (world == 1)
        return 0;
    return (place == REGION_HOST ? 2 : 2 + N_STAGED) * link_chunk_bytes(world);
}

// ---- shares of other ranks, brought to where the sum is taken

enum status share_bring(struct comm *comm, const void *share, size_t bytes, struct brought *out) {
    struct exchange_memory *memory = &mpi_of(comm)->memory;
    *out = (struct brought){.share = share, .place = -1};
    if (comm->device->place == REGION_HOST)
        return STATUS_OK;
    int place = (int)(memory->n_staged++ % N_STAGED);
    TRY(event_wait(&memory->used[place], &memory->copies));
    TRY(comm->device->copy(&memory->copies, memory->staged[place], share, bytes));
    TRY(event_record(&memory->copied[place], &memory->copies));
    TRY(event_wait(&memory->copied[place], &comm->stream));
    *out = (struct brought){memory->staged[place], place};
    return STATUS_OK;
}

enum status share_used(struct comm *comm, const struct brought *brought) {
    if (brought->place < 0)
        return STATUS_OK;
    return event_record(&mpi_of(comm)->memory.used[brought->place], &comm->stream);
}
