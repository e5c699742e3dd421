// See zero/comm/mpi/staging.h.
#include "zero/comm/mpi/staging.h"

#include <stdlib.h>

#include "kernels/ops.h"
#include "zero/comm/mpi/data.h"
#include "zero/comm/nccl/nccl.h"
#include "zero/comm/sum_tree.h"

static enum status pin(struct comm *comm, void *memory, size_t bytes) {
    struct staging *staging = &mpi_of(comm)->staging;
    if (!memory)
        return STATUS_OK;
    TRY(device_pin(comm->device, memory, bytes));
    staging->pinned[staging->n_pinned++] = memory;
    return STATUS_OK;
}

static enum status pin_links(struct comm *comm) {
    struct mpi_data *mpi = mpi_of(comm);
    size_t mailbox = mailbox_pages_bytes(mpi->linked, mpi->chunk_bytes);
    mpi->staging.pinned = calloc((size_t)comm->world + 2, sizeof *mpi->staging.pinned);
    if (!mpi->staging.pinned)
        return FAIL(STATUS_FAILED, "out of memory for links to %d ranks", comm->world - 1);
    if (mpi->linked > 1)
        TRY(pin(comm, mpi->mailbox, mailbox));
    for (int rank = 0; rank < comm->world; rank++)
        TRY(pin(comm, mpi->peers[rank].mailbox, mailbox));
    TRY(pin(comm, mpi->receive_memory, mpi->receive_bytes));
    return pin(comm, mpi->bulk.memory, mpi->bulk.bytes);
}

static size_t sums_bytes(const struct comm *comm) {
    return (size_t)sum_tree_depth(comm->world) * mpi_of(comm)->chunk_bytes;
}

float *staging_sum(const struct comm *comm, int depth) {
    const struct mpi_data *mpi = mpi_of(comm);
    return (float *)(void *)(mpi->staging.sums + (size_t)depth * mpi->chunk_bytes);
}

static enum status buffer_new(struct comm *comm, size_t bytes, char **out) {
    void *memory;
    TRY(comm->device->memory_new(comm->device, bytes, "sums between ranks", &memory));
    *out = memory;
    return STATUS_OK;
}

enum status mpi_attach(struct comm *comm) {
    struct staging *staging = &mpi_of(comm)->staging;
    if (comm->world == 1)
        return STATUS_OK;
    TRY(buffer_new(comm, sums_bytes(comm), &staging->sums));
    TRY(buffer_new(comm, mpi_of(comm)->chunk_bytes, &staging->rounded));
    if (comm->device->place == REGION_HOST)
        return STATUS_OK;
    for (int i = 0; i < N_STAGING_BUFFERS; i++) {
        TRY(buffer_new(comm, mpi_of(comm)->chunk_bytes, &staging->buffers[i]));
        TRY(event_init(&staging->copied[i], comm->device));
        TRY(event_init(&staging->used[i], comm->device));
    }
    TRY(stream_init(&staging->copies, comm->device));
    return pin_links(comm);
}

void mpi_detach(struct comm *comm) {
    struct mpi_data *mpi = mpi_of(comm);
    struct staging *staging = &mpi->staging;
    while (staging->n_pinned > 0)
        device_unpin(comm->device, staging->pinned[--staging->n_pinned]);
    free(staging->pinned);
    stream_free(&staging->copies);
    for (int i = 0; i < N_STAGING_BUFFERS; i++) {
        event_free(&staging->copied[i]);
        event_free(&staging->used[i]);
        comm->device->memory_delete(comm->device, staging->buffers[i], mpi->chunk_bytes);
    }
    comm->device->memory_delete(comm->device, staging->sums, sums_bytes(comm));
    comm->device->memory_delete(comm->device, staging->rounded, mpi->chunk_bytes);
    *staging = (struct staging){0};
}

size_t comm_sums_bytes(int world, enum region_place place, bool for_gpu, bool by_nccl) {
    if (world == 1)
        return 0;
    if (by_nccl)
        return nccl_staging_bytes(world);
    const size_t chunks = (size_t)sum_tree_depth(world) + 1 + (place == REGION_HOST ? 0 : N_STAGING_BUFFERS);
    return chunks * link_chunk_bytes(world, for_gpu);
}

enum status contribution_load(struct comm *comm, const void *link, size_t bytes, struct contribution *out) {
    struct staging *staging = &mpi_of(comm)->staging;
    *out = (struct contribution){.data = link, .buffer = -1};
    if (comm->device->place == REGION_HOST)
        return STATUS_OK;
    int buffer = (int)(staging->n_loaded++ % N_STAGING_BUFFERS);
    TRY(event_wait(&staging->used[buffer], &staging->copies));
    TRY(comm->device->copy(&staging->copies, staging->buffers[buffer], link, bytes));
    TRY(event_record(&staging->copied[buffer], &staging->copies));
    TRY(event_wait(&staging->copied[buffer], &comm->stream));
    *out = (struct contribution){staging->buffers[buffer], buffer};
    return STATUS_OK;
}

enum status contribution_release(struct comm *comm, const struct contribution *contribution) {
    if (contribution->buffer < 0)
        return STATUS_OK;
    return event_record(&mpi_of(comm)->staging.used[contribution->buffer], &comm->stream);
}
