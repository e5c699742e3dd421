// See zero/comm/nccl/bulk.h.
//
// Reduce-scatter: each rank sends every owner the owner's slice, rounded to the communication dtype.
// The owner adds the slices of all ranks along the tree (sum_tree.h), in one pass. As many bytes are sent as
// by a ring's reduce-scatter, and the order of sums does not depend on the topology. Large collectives
// proceed in rounds of one chunk per owner, which bounds the staging memory.
//
// All-gather copies, so its bits cannot depend on the algorithm: equal consecutive shards go by
// ncclAllGather, all others from owner to rank.
#include "zero/comm/nccl/bulk.h"

#include "kernels/ops.h"
#include "zero/comm/nccl/watch.h"

#define MOST_SPANS 128 // of one group of calls, which NCCL fuses

// One reduce-scatter, divided into chunks.
struct rounds {
    struct comm *comm;
    const struct comm_call *call;
    size_t size, chunk;          // bytes per element, elements per chunk
    const size_t *owned;         // (world) elements that each rank owns
    struct comm_cursor *cursors; // (world) what is to be sent next to each owner
};

static size_t chunk_elements(const struct rounds *rounds, int owner, size_t round) {
    size_t total = rounds->owned[owner], begin = round * rounds->chunk;
    if (begin >= total)
        return 0;
    return total - begin < rounds->chunk ? total - begin : rounds->chunk;
}

static char *send_chunk(const struct comm *comm, int rank) {
    const struct nccl *nccl = nccl_of(comm);
    return nccl->send + (size_t)rank * nccl->chunk_bytes;
}

// ---- packing

// to = n gradients of this rank, rounded to the communication dtype.
static enum status pack_span(struct comm *comm, const struct comm_call *call, void *to, size_t in, size_t n) {
    const float *from = (const float *)call->in + in;
    const struct cast_args cast = {.out = to, .x = from, .n = n, .type = DTYPE_F32, .out_type = call->type};
    if (call->type == DTYPE_F32)
        return comm->device->copy(&comm->stream, to, from, n * sizeof *from);
    return comm->device->ops->cast(&comm->stream, &cast);
}

// The next n elements for an owner, in one piece: in place where they already are.
static enum status pack_chunk(const struct rounds *rounds, int owner, size_t n, const void **out) {
    struct comm *comm = rounds->comm;
    const struct comm_call *call = rounds->call;
    char *packed = send_chunk(comm, owner);
    struct comm_span span = comm_transfer_next(&rounds->cursors[owner], n);
    *out = (const float *)call->in + span.in;
    if (call->type == DTYPE_F32 && span.elements == n)
        return STATUS_OK;
    *out = packed;
    for (size_t done = 0;; span = comm_transfer_next(&rounds->cursors[owner], n - done)) {
        TRY(pack_span(comm, call, packed + done * rounds->size, span.in, span.elements));
        done += span.elements;
        if (done == n)
            return STATUS_OK;
    }
}

// ---- reduce-scatter

// Sends each owner its chunk, and receives the chunks of this rank. All at once, so that no order of ranks
// can block.
static int exchange(const struct rounds *rounds, size_t round, const void *const *packed) {
    struct comm *comm = rounds->comm;
    const struct nccl *nccl = nccl_of(comm);
    const int type = (int)nccl_type_of(rounds->call->type), rank = comm->rank, world = comm->world;
    const size_t mine = chunk_elements(rounds, rank, round);
    const nccl_stream queue = nccl_queue(&comm->stream);
    int result = nccl->api.GroupStart(), ended;
    for (int distance = 1; distance < world && result == NCCL_SUCCESS; distance++) {
        const int to = (rank + distance) % world, from = (rank + world - distance) % world;
        const size_t n = chunk_elements(rounds, to, round);
        char *place = nccl->receive + (size_t)(from - (from > rank)) * nccl->chunk_bytes;
        if (n > 0)
            result = nccl->api.Send(packed[to], n, type, to, nccl->handle, queue);
        if (mine > 0 && result == NCCL_SUCCESS)
            result = nccl->api.Recv(place, mine, type, from, nccl->handle, queue);
    }
    ended = nccl->api.GroupEnd();
    return result == NCCL_SUCCESS ? ended : result;
}

// Adds all ranks' chunks of this rank to `out`.
static enum status sum_chunks(const struct rounds *rounds, struct comm_cursor *cursor, size_t n,
                              const char *own) {
    struct comm *comm = rounds->comm;
    const struct comm_call *call = rounds->call;
    for (size_t done = 0; done < n;) {
        const struct comm_span span = comm_transfer_next(cursor, n - done);
        const struct sum_tree_args sum = {.out = (float *)call->out + span.out,
                                          .x = nccl_of(comm)->receive + done * rounds->size,
                                          .own = own + done * rounds->size,
                                          .n = span.elements,
                                          .x_stride = rounds->chunk,
                                          .count = comm->world,
                                          .rank = comm->rank,
                                          .accumulate = call->accumulate,
                                          .type = call->type};
        TRY(comm->device->ops->sum_tree(&comm->stream, &sum));
        done += span.elements;
    }
    return STATUS_OK;
}

static enum status run_round(const struct rounds *rounds, size_t round, struct comm_cursor *mine) {
    struct comm *comm = rounds->comm;
    const void *packed[comm->world];
    const size_t n = chunk_elements(rounds, comm->rank, round);
    for (int owner = 0; owner < comm->world; owner++) {
        const size_t wanted = chunk_elements(rounds, owner, round);
        packed[owner] = NULL;
        if (wanted > 0)
            TRY(pack_chunk(rounds, owner, wanted, &packed[owner]));
    }
    const int result = exchange(rounds, round, packed);
    if (result != NCCL_SUCCESS)
        return nccl_failure(comm, result, "ncclSend and ncclRecv");
    return sum_chunks(rounds, mine, n, packed[comm->rank]);
}

static enum status reduce_scatter(struct comm *comm, const struct comm_call *call) {
    size_t owned[comm->world], most = 0;
    int first[comm->world];
    struct comm_cursor cursors[comm->world];
    comm_transfer_owners(call->transfer, comm->world, first, owned);
    for (int owner = 0; owner < comm->world; owner++) {
        most = owned[owner] > most ? owned[owner] : most;
        cursors[owner] = (struct comm_cursor){.transfer = call->transfer, .span = first[owner]};
    }
    const size_t size = dtype_size(call->type);
    const struct rounds rounds = {comm, call, size, nccl_of(comm)->chunk_bytes / size, owned, cursors};
    struct comm_cursor mine = cursors[comm->rank];
    for (size_t round = 0; round * rounds.chunk < most; round++)
        TRY(run_round(&rounds, round, &mine));
    return STATUS_OK;
}

// ---- all-gather

// True where the next `world` spans are one of each rank, in order, of equal size, and consecutive in `out`.
static bool is_even(const struct comm *comm, const struct comm_call *call, int first) {
    const struct comm_span *spans = call->transfer->spans + first;
    const size_t n = spans->elements;
    if (n == 0 || first + comm->world > call->transfer->n_spans)
        return false;
    for (int rank = 0; rank < comm->world; rank++)
        if (spans[rank].owner != rank || spans[rank].elements != n ||
            spans[rank].out != spans->out + (size_t)rank * n)
            return false;
    return true;
}

// From its owner to all other ranks.
static int gather_span(struct comm *comm, const struct comm_call *call, const struct comm_span *span) {
    const struct nccl *nccl = nccl_of(comm);
    const int type = (int)nccl_type_of(call->type);
    const size_t size = dtype_size(call->type);
    const nccl_stream queue = nccl_queue(&comm->stream);
    int result = NCCL_SUCCESS;
    if (span->owner != comm->rank)
        return nccl->api.Recv((char *)call->out + span->out * size, span->elements, type, span->owner,
                              nccl->handle, queue);
    for (int distance = 1; distance < comm->world && result == NCCL_SUCCESS; distance++)
        result = nccl->api.Send((const char *)call->in + span->in * size, span->elements, type,
                                (comm->rank + distance) % comm->world, nccl->handle, queue);
    return result;
}

// Spans [*next, ...) until one group has enough calls.
static int gather_group(struct comm *comm, const struct comm_call *call, int *next) {
    const struct nccl *nccl = nccl_of(comm);
    const struct comm_transfer *transfer = call->transfer;
    const size_t size = dtype_size(call->type);
    const int end = *next + MOST_SPANS < transfer->n_spans ? *next + MOST_SPANS : transfer->n_spans;
    int result = nccl->api.GroupStart(), ended;
    while (*next < end && result == NCCL_SUCCESS) {
        const struct comm_span *spans = transfer->spans + *next;
        if (is_even(comm, call, *next)) {
            result = nccl->api.AllGather(
                (const char *)call->in + spans[comm->rank].in * size, (char *)call->out + spans->out * size,
                spans->elements, (int)nccl_type_of(call->type), nccl->handle, nccl_queue(&comm->stream));
            *next += comm->world;
        } else {
            if (spans->elements > 0)
                result = gather_span(comm, call, spans);
            (*next)++;
        }
    }
    ended = nccl->api.GroupEnd();
    return result == NCCL_SUCCESS ? ended : result;
}

// What this rank owns and does not send to itself: the spans of gather_span.
static enum status copy_own(struct comm *comm, const struct comm_call *call) {
    const size_t size = dtype_size(call->type);
    for (int i = 0; i < call->transfer->n_spans;) {
        const struct comm_span *span = &call->transfer->spans[i];
        const char *in = (const char *)call->in + span->in * size;
        char *out = (char *)call->out + span->out * size;
        const bool even = is_even(comm, call, i);
        if (!even && span->owner == comm->rank && in != out)
            TRY(comm->device->copy(&comm->stream, out, in, span->elements * size));
        i += even ? comm->world : 1;
    }
    return STATUS_OK;
}

static enum status all_gather(struct comm *comm, const struct comm_call *call) {
    for (int next = 0; next < call->transfer->n_spans;) {
        const int result = gather_group(comm, call, &next);
        if (result != NCCL_SUCCESS)
            return nccl_failure(comm, result, "ncclAllGather");
    }
    return copy_own(comm, call);
}

// ---- exchange

static int exchange_span(struct comm *comm, const struct comm_call *call, const struct comm_span *span) {
    const struct nccl *nccl = nccl_of(comm);
    const int type = (int)nccl_type_of(call->type);
    const size_t size = dtype_size(call->type);
    int result = NCCL_SUCCESS;
    if (span->owner == span->to || span->elements == 0)
        return result;
    if (span->owner == comm->rank)
        result = nccl->api.Send((const char *)call->in + span->in * size, span->elements, type, span->to,
                                nccl->handle, nccl_queue(&comm->stream));
    if (span->to == comm->rank)
        result = nccl->api.Recv((char *)call->out + span->out * size, span->elements, type, span->owner,
                                nccl->handle, nccl_queue(&comm->stream));
    return result;
}

static enum status exchange_spans(struct comm *comm, const struct comm_call *call) {
    const struct comm_transfer *transfer = call->transfer;
    const size_t size = dtype_size(call->type);
    for (int next = 0; next < transfer->n_spans;) {
        const int end = next + MOST_SPANS < transfer->n_spans ? next + MOST_SPANS : transfer->n_spans;
        int result = nccl_of(comm)->api.GroupStart(), ended;
        for (; next < end && result == NCCL_SUCCESS; next++)
            result = exchange_span(comm, call, &transfer->spans[next]);
        ended = nccl_of(comm)->api.GroupEnd();
        if (result != NCCL_SUCCESS || ended != NCCL_SUCCESS)
            return nccl_failure(comm, result != NCCL_SUCCESS ? result : ended, "ncclSend and ncclRecv");
    }
    for (int i = 0; i < transfer->n_spans; i++) {
        const struct comm_span *span = &transfer->spans[i];
        if (span->owner == comm->rank && span->to == comm->rank)
            TRY(comm->device->copy(&comm->stream, (char *)call->out + span->out * size,
                                   (const char *)call->in + span->in * size, span->elements * size));
    }
    return STATUS_OK;
}

// ----

static size_t sent_elements(const struct comm *comm, const struct comm_call *call) {
    size_t owned[comm->world];
    int first[comm->world];
    comm_transfer_owners(call->transfer, comm->world, first, owned);
    const size_t own = owned[comm->rank];
    switch (call->operation) {
    case COMM_ALL_GATHER:
        return own * ((size_t)comm->world - 1);
    case COMM_EXCHANGE:
        return own - comm_route_elements(call->transfer, comm->rank, comm->rank);
    default:
        return call->transfer->elements - own;
    }
}

static void count(struct comm *comm, const struct comm_call *call) {
    comm->traffic.bytes[call->operation] += sent_elements(comm, call) * dtype_size(call->type);
    comm->traffic.calls[call->operation]++;
}

enum status nccl_run(struct comm *comm, const struct comm_call *call) {
    count(comm, call);
    if (call->operation == COMM_ALL_GATHER)
        return all_gather(comm, call);
    if (call->operation == COMM_EXCHANGE)
        return exchange_spans(comm, call);
    return reduce_scatter(comm, call);
}
