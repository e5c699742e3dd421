// See zero/comm/mpi/bulk.h. Collectives proceed in rounds of one chunk per owner. In each round a rank first
// sends every other rank its next chunk, then receives theirs.
//
// No deadlock, whatever the spans' sizes: a push waits only until the receiver has read the chunk of
// LINK_DEPTH rounds before, and a pull only for pushes of the same round, so waits cannot form a cycle.
#include "zero/comm/mpi/bulk.h"

#include "kernels/ops.h"
#include "zero/comm/mpi/peer.h"
#include "zero/comm/mpi/staging.h"
#include "zero/comm/sum_tree.h"

// One bulk collective, divided into chunks.
struct exchange {
    struct comm *comm;
    const struct comm_call *call;
    size_t size, chunk;  // bytes per element, elements per chunk
    const size_t *owned; // (world) elements that each rank owns
    const int *first;    // (world) index of each rank's first span
    size_t rounds;
};

// Elements of an owner's chunk in this round; 0 when it has no more.
static size_t chunk_elements(const struct exchange *exchange, int owner, size_t round) {
    size_t total = exchange->owned[owner], begin = round * exchange->chunk;
    if (begin >= total)
        return 0;
    return total - begin < exchange->chunk ? total - begin : exchange->chunk;
}

// Fills `owned` and `first`, (world) each; the exchange keeps pointers to them.
static struct exchange make_exchange(struct comm *comm, const struct comm_call *call, size_t *owned,
                                     int *first) {
    size_t size = dtype_size(call->type), most = 0;
    comm_transfer_owners(call->transfer, comm->world, first, owned);
    for (int owner = 0; owner < comm->world; owner++)
        most = owned[owner] > most ? owned[owner] : most;
    // A chunk must fit the buffers of sums, which are fp32 whatever is sent.
    size_t chunk =
        mpi_of(comm)->chunk_bytes / (call->operation == COMM_REDUCE_SCATTER ? sizeof(float) : size);
    return (struct exchange){comm, call, size, chunk, owned, first, (most + chunk - 1) / chunk};
}

static struct comm_cursor cursor_of(const struct exchange *exchange, int owner) {
    return (struct comm_cursor){.transfer = exchange->call->transfer, .span = exchange->first[owner]};
}

static enum status synchronize(struct comm *comm) {
    return comm->device->synchronize(&comm->stream);
}

static enum status copy(struct comm *comm, void *to, const void *from, size_t bytes) {
    return comm->device->copy(&comm->stream, to, from, bytes);
}

// Rounds n gradients of this rank to the communication dtype.
static enum status round_own(const struct exchange *exchange, void *to, size_t in, size_t n) {
    struct comm *comm = exchange->comm;
    const struct comm_call *call = exchange->call;
    const struct cast_args args = {
        .out = to, .x = (const float *)call->in + in, .n = n, .type = DTYPE_F32, .out_type = call->type};
    return comm->device->ops->cast(&comm->stream, &args);
}

// Copies n elements of the caller to a link, in the communication dtype.
static enum status pack_chunk(const struct exchange *exchange, void *to, size_t in, size_t n) {
    struct comm *comm = exchange->comm;
    const struct comm_call *call = exchange->call;
    char *rounded = mpi_of(comm)->staging.rounded;
    if (call->operation != COMM_REDUCE_SCATTER || call->type == DTYPE_F32)
        return copy(comm, to, (const char *)call->in + in * exchange->size, n * exchange->size);
    if (comm->device->place == REGION_HOST)
        return round_own(exchange, to, in, n);
    TRY(round_own(exchange, rounded, in, n));
    return copy(comm, to, rounded, n * exchange->size);
}

// Sends the next n elements at the cursor to a rank.
static enum status push_elements(const struct exchange *exchange, int rank, struct comm_cursor *cursor,
                                 size_t n) {
    struct comm *comm = exchange->comm;
    void *place;
    TRY(peer_push_begin(comm, rank, &exchange->call->id, &place));
    for (size_t done = 0; done < n;) {
        struct comm_span span = comm_transfer_next(cursor, n - done);
        TRY(pack_chunk(exchange, (char *)place + done * exchange->size, span.in, span.elements));
        done += span.elements;
    }
    TRY(synchronize(comm));
    return peer_push_end(comm, rank, &exchange->call->id, n * exchange->size, exchange->call->operation);
}

// ---- reduce-scatter

// sums = x, upcast to fp32.
static enum status sum_begin(struct comm *comm, float *sums, const void *x, size_t n, enum dtype type) {
    const struct cast_args args = {.out = sums, .x = x, .n = n, .type = type, .out_type = DTYPE_F32};
    return comm->device->ops->cast(&comm->stream, &args);
}

static enum status sum_add(struct comm *comm, float *out, const float *x, const void *y, size_t n,
                           enum dtype type) {
    const struct add_args args = {.out = out, .x = x, .y = y, .n = n, .type = type};
    return comm->device->ops->add(&comm->stream, &args);
}

// This rank's own contribution to a span, rounded as if it had been sent.
static enum status own_contribution(const struct exchange *exchange, const struct comm_span *span,
                                    const void **out) {
    struct mpi_data *mpi = mpi_of(exchange->comm);
    *out = (const float *)exchange->call->in + span->in;
    if (exchange->call->type == DTYPE_F32)
        return STATUS_OK;
    *out = mpi->staging.rounded;
    return round_own(exchange, mpi->staging.rounded, span->in, span->elements);
}

// The sum of a span that this rank owns.
struct span_sum {
    const struct exchange *exchange;
    const void **chunks; // (world) the other ranks' chunks of this round
    struct comm_span span;
    size_t done; // element of the chunks at which the span begins
};

static enum status load_contribution(const struct span_sum *sum, int rank, struct contribution *out) {
    const size_t size = sum->exchange->size;
    *out = (struct contribution){.buffer = -1};
    if (rank == sum->exchange->comm->rank)
        return own_contribution(sum->exchange, &sum->span, &out->data);
    return contribution_load(sum->exchange->comm, (const char *)sum->chunks[rank] + sum->done * size,
                             sum->span.elements * size, out);
}

// Adds the contributions of n >= 2 ranks along the tree (sum_tree.h) to `to`, with partial sums from `depth`
// on.
static enum status sum_ranks(const struct span_sum *sum, int first, int n, int depth, float *to) {
    struct comm *comm = sum->exchange->comm;
    const enum dtype type = sum->exchange->call->type;
    const size_t elements = sum->span.elements;
    const int left = sum_tree_left(n);
    struct contribution a = {.buffer = -1}, b = {.buffer = -1};
    float *partial = staging_sum(comm, depth);
    const float *left_sum = partial;
    if (left > 1)
        TRY(sum_ranks(sum, first, left, depth, partial));
    else {
        TRY(load_contribution(sum, first, &a));
        if (type == DTYPE_F32) // two fp32 contributions are added where they are
            left_sum = a.data;
        else
            TRY(sum_begin(comm, partial, a.data, elements, type));
    }
    if (n - left > 1) {
        float *right_sum = staging_sum(comm, depth + 1);
        TRY(sum_ranks(sum, first + left, n - left, depth + 1, right_sum));
        TRY(sum_add(comm, to, left_sum, right_sum, elements, DTYPE_F32));
    } else {
        TRY(load_contribution(sum, first + left, &b));
        TRY(sum_add(comm, to, left_sum, b.data, elements, type));
    }
    TRY(contribution_release(comm, &a));
    return contribution_release(comm, &b);
}

// Until the last addition `out` is not written, as it may hold this rank's contribution.
static enum status sum_span(const struct span_sum *sum) {
    struct comm *comm = sum->exchange->comm;
    const struct comm_call *call = sum->exchange->call;
    float *out = (float *)call->out + sum->span.out;
    if (!call->accumulate)
        return sum_ranks(sum, 0, comm->world, 0, out);
    TRY(sum_ranks(sum, 0, comm->world, 0, staging_sum(comm, 0)));
    return sum_add(comm, out, out, staging_sum(comm, 0), sum->span.elements, DTYPE_F32);
}

static enum status sum_chunks(const struct exchange *exchange, struct comm_cursor *cursor, size_t n) {
    struct comm *comm = exchange->comm;
    const void *chunks[comm->world];
    for (int rank = 0; rank < comm->world; rank++)
        if (rank != comm->rank)
            TRY(peer_pull_begin(comm, rank, &exchange->call->id, n * exchange->size, &chunks[rank]));
    for (size_t done = 0; done < n;) {
        const struct span_sum sum = {exchange, chunks, comm_transfer_next(cursor, n - done), done};
        TRY(sum_span(&sum));
        done += sum.span.elements;
    }
    TRY(synchronize(comm));
    for (int rank = 0; rank < comm->world; rank++)
        if (rank != comm->rank)
            TRY(peer_pull_end(comm, rank));
    return STATUS_OK;
}

static enum status reduce_scatter(const struct exchange *exchange) {
    struct comm *comm = exchange->comm;
    struct comm_cursor cursors[comm->world]; // (world)
    for (int owner = 0; owner < comm->world; owner++)
        cursors[owner] = cursor_of(exchange, owner);
    for (size_t round = 0; round < exchange->rounds; round++) {
        for (int distance = 1; distance < comm->world; distance++) {
            int owner = (comm->rank + distance) % comm->world;
            size_t n = chunk_elements(exchange, owner, round);
            if (n > 0)
                TRY(push_elements(exchange, owner, &cursors[owner], n));
        }
        size_t n = chunk_elements(exchange, comm->rank, round);
        if (n > 0)
            TRY(sum_chunks(exchange, &cursors[comm->rank], n));
    }
    return STATUS_OK;
}

// ---- all-gather

static enum status receive_chunk(const struct exchange *exchange, struct comm_cursor *cursor, int owner,
                                 size_t n) {
    struct comm *comm = exchange->comm;
    const void *chunk;
    TRY(peer_pull_begin(comm, owner, &exchange->call->id, n * exchange->size, &chunk));
    for (size_t done = 0; done < n;) {
        struct comm_span span = comm_transfer_next(cursor, n - done);
        TRY(copy(comm, (char *)exchange->call->out + span.out * exchange->size,
                 (const char *)chunk + done * exchange->size, span.elements * exchange->size));
        done += span.elements;
    }
    TRY(synchronize(comm));
    return peer_pull_end(comm, owner);
}

// Copies what this rank owns from its `in` to its `out`.
static enum status copy_own(const struct exchange *exchange) {
    const struct comm_call *call = exchange->call;
    struct comm_cursor cursor = cursor_of(exchange, exchange->comm->rank);
    for (struct comm_span span; (span = comm_transfer_next(&cursor, SIZE_MAX)).elements > 0;) {
        const char *in = (const char *)call->in + span.in * exchange->size;
        char *out = (char *)call->out + span.out * exchange->size;
        if (in != out)
            TRY(copy(exchange->comm, out, in, span.elements * exchange->size));
    }
    return synchronize(exchange->comm);
}

static enum status all_gather(const struct exchange *exchange) {
    struct comm *comm = exchange->comm;
    struct comm_cursor cursors[comm->world];
    for (int owner = 0; owner < comm->world; owner++)
        cursors[owner] = cursor_of(exchange, owner);
    TRY(copy_own(exchange));
    for (size_t round = 0; round < exchange->rounds; round++) {
        size_t mine = chunk_elements(exchange, comm->rank, round);
        const struct comm_cursor here = cursors[comm->rank];
        for (int distance = 1; distance < comm->world && mine > 0; distance++) {
            cursors[comm->rank] = here; // every rank receives the same chunk
            TRY(push_elements(exchange, (comm->rank + distance) % comm->world, &cursors[comm->rank], mine));
        }
        for (int owner = 0; owner < comm->world; owner++) {
            size_t n = chunk_elements(exchange, owner, round);
            if (n > 0 && owner != comm->rank)
                TRY(receive_chunk(exchange, &cursors[owner], owner, n));
        }
    }
    return STATUS_OK;
}

// ---- exchange

static enum status copy_span(const struct exchange *exchange, const struct comm_span *span) {
    const struct comm_call *call = exchange->call;
    return copy(exchange->comm, (char *)call->out + span->out * exchange->size,
                (const char *)call->in + span->in * exchange->size, span->elements * exchange->size);
}

// Sends the next chunk of a route; nothing at its end.
static enum status push_route(const struct exchange *exchange, struct comm_route *route) {
    struct comm *comm = exchange->comm;
    struct comm_span span = comm_route_next(route, exchange->chunk);
    void *place;
    if (span.elements == 0)
        return STATUS_OK;
    TRY(peer_push_begin(comm, route->to, &exchange->call->id, &place));
    TRY(copy(comm, place, (const char *)exchange->call->in + span.in * exchange->size,
             span.elements * exchange->size));
    TRY(synchronize(comm));
    return peer_push_end(comm, route->to, &exchange->call->id, span.elements * exchange->size, COMM_EXCHANGE);
}

static enum status pull_route(const struct exchange *exchange, struct comm_route *route) {
    struct comm *comm = exchange->comm;
    struct comm_span span = comm_route_next(route, exchange->chunk);
    const size_t bytes = span.elements * exchange->size;
    const void *chunk;
    if (bytes == 0)
        return STATUS_OK;
    TRY(peer_pull_begin(comm, route->from, &exchange->call->id, bytes, &chunk));
    TRY(copy(comm, (char *)exchange->call->out + span.out * exchange->size, chunk, bytes));
    TRY(synchronize(comm));
    return peer_pull_end(comm, route->from);
}

// The most chunks that any rank sends to another.
static size_t count_rounds(const struct comm *comm, const struct exchange *exchange) {
    size_t most = 0;
    for (int from = 0; from < comm->world; from++)
        for (int to = 0; to < comm->world; to++) {
            struct comm_route route = {.transfer = exchange->call->transfer, .from = from, .to = to};
            size_t n = 0;
            while (from != to && comm_route_next(&route, exchange->chunk).elements > 0)
                n++;
            most = n > most ? n : most;
        }
    return most;
}

static enum status exchange_spans(const struct exchange *exchange) {
    struct comm *comm = exchange->comm;
    struct comm_route to[comm->world], from[comm->world],
        own = {.transfer = exchange->call->transfer, .from = comm->rank, .to = comm->rank};
    for (int rank = 0; rank < comm->world; rank++) {
        to[rank] = (struct comm_route){.transfer = exchange->call->transfer, .from = comm->rank, .to = rank};
        from[rank] =
            (struct comm_route){.transfer = exchange->call->transfer, .from = rank, .to = comm->rank};
    }
    for (struct comm_span span; (span = comm_route_next(&own, SIZE_MAX)).elements > 0;)
        TRY(copy_span(exchange, &span));
    TRY(synchronize(comm));
    for (size_t round = 0, n = count_rounds(comm, exchange); round < n; round++) {
        for (int distance = 1; distance < comm->world; distance++)
            TRY(push_route(exchange, &to[(comm->rank + distance) % comm->world]));
        for (int distance = 1; distance < comm->world; distance++)
            TRY(pull_route(exchange, &from[(comm->rank + distance) % comm->world]));
    }
    return STATUS_OK;
}

enum status mpi_bulk(struct comm *comm, const struct comm_call *call) {
    size_t owned[comm->world];
    int first[comm->world];
    const struct exchange exchange = make_exchange(comm, call, owned, first);
    if (call->operation == COMM_EXCHANGE)
        return exchange_spans(&exchange);
    return call->operation == COMM_REDUCE_SCATTER ? reduce_scatter(&exchange) : all_gather(&exchange);
}
