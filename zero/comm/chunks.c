// See zero/comm/chunks.h.
#include "zero/comm/chunks.h"

#include "kernels/ops.h"

struct comm_chunks comm_chunks_of(struct comm *comm, const struct comm_call *call, size_t chunk_elements,
                                  size_t *owned, struct comm_cursor *cursors) {
    int first[comm->world];
    size_t most = 0;
    comm_transfer_owners(call->transfer, comm->world, first, owned);
    for (int owner = 0; owner < comm->world; owner++) {
        cursors[owner] = (struct comm_cursor){.transfer = call->transfer, .span = first[owner]};
        most = owned[owner] > most ? owned[owner] : most;
    }
    return (struct comm_chunks){.comm = comm,
                                .call = call,
                                .size = dtype_size(call->type),
                                .chunk = chunk_elements,
                                .rounds = (most + chunk_elements - 1) / chunk_elements,
                                .owned = owned,
                                .cursors = cursors};
}

size_t comm_chunk_elements(const struct comm_chunks *chunks, int owner, size_t round) {
    const size_t total = chunks->owned[owner], begin = round * chunks->chunk;
    if (begin >= total)
        return 0;
    return total - begin < chunks->chunk ? total - begin : chunks->chunk;
}

// Copies n elements from in[in] on to `to`, converted to the communication dtype.
static enum status pack(const struct comm_chunks *chunks, void *to, size_t in, size_t n) {
    struct comm *comm = chunks->comm;
    const struct comm_call *call = chunks->call;
    const struct cast_args cast = {
        .out = to, .x = (const float *)call->in + in, .n = n, .type = DTYPE_F32, .out_type = call->type};
    if (call->operation == COMM_REDUCE_SCATTER && call->type != DTYPE_F32)
        return comm->device->ops->cast(&comm->stream, &cast);
    return comm->device->copy(&comm->stream, to, (const char *)call->in + in * chunks->size,
                              n * chunks->size);
}

enum status comm_chunk_pack(const struct comm_chunks *chunks, int owner, size_t n, void *to) {
    for (size_t done = 0; done < n;) {
        const struct comm_span span = comm_transfer_next(&chunks->cursors[owner], n - done);
        TRY(pack(chunks, (char *)to + done * chunks->size, span.in, span.elements));
        done += span.elements;
    }
    return STATUS_OK;
}

enum status comm_chunk_unpack(const struct comm_chunks *chunks, int owner, size_t n, const void *from) {
    struct comm *comm = chunks->comm;
    const size_t size = chunks->size;
    for (size_t done = 0; done < n;) {
        const struct comm_span span = comm_transfer_next(&chunks->cursors[owner], n - done);
        TRY(comm->device->copy(&comm->stream, (char *)chunks->call->out + span.out * size,
                               (const char *)from + done * size, span.elements * size));
        done += span.elements;
    }
    return STATUS_OK;
}

enum status comm_chunk_sum(const struct comm_chunks *chunks, size_t n, const void **x, void *rounded) {
    struct comm *comm = chunks->comm;
    const struct comm_call *call = chunks->call;
    for (size_t done = 0; done < n;) {
        const struct comm_span span = comm_transfer_next(&chunks->cursors[comm->rank], n - done);
        x[comm->rank] = (const float *)call->in + span.in;
        if (call->type != DTYPE_F32) {
            TRY(pack(chunks, rounded, span.in, span.elements));
            x[comm->rank] = rounded;
        }
        const struct sum_tree_args sum = {.out = (float *)call->out + span.out,
                                          .x = x,
                                          .n = span.elements,
                                          .count = comm->world,
                                          .rank = comm->rank,
                                          .accumulate = call->accumulate,
                                          .type = call->type};
        TRY(comm->device->ops->sum_tree(&comm->stream, &sum));
        for (int rank = 0; rank < comm->world; rank++)
            x[rank] = (const char *)x[rank] + span.elements * chunks->size;
        done += span.elements;
    }
    return STATUS_OK;
}
