// See zero/comm/mpi/mpi.h.
#include "zero/comm/mpi/mpi.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/processors.h"
#include "zero/comm/chunks.h"
#include "zero/comm/mpi/failure.h"
#include "zero/comm/mpi/mpi_internal.h"
#include "zero/comm/mpi/peer.h"
#include "zero/comm/nccl/nccl.h"

#define PATIENCE_MS       5000      // time limit of closing MPI after a failure; after success at least this
#define LINGER_NS         200000000 // delay of the exit after a rank died, so that all see which died first
#define NAP_NS            20000000  // polling interval of the deadline thread
#define IDENTIFICATION_MS 30000     // time limit of gathering identifications, right after MPI has started
#define MOST_NAP_MS       1000      // maximum counted per nap: a nap is longer if the process is suspended

// ---- device memory for the sums of reduce-scatters
//
// If the device has memory of its own, other ranks' contributions are copied there. The links' memory is then
// page-locked, so that copies to and from it use DMA.

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
    mpi->staging.pinned = allocate((size_t)comm->world + 2, sizeof *mpi->staging.pinned);
    if (mpi->linked > 1)
        TRY(pin(comm, mpi->mailbox, mailbox));
    for (int rank = 0; rank < comm->world; rank++)
        TRY(pin(comm, mpi->peers[rank].mailbox, mailbox));
    TRY(pin(comm, mpi->receive_memory, mpi->receive_bytes));
    return pin(comm, mpi->bulk.memory, mpi->bulk.bytes);
}

size_t comm_sums_bytes(int world, enum region_place place, bool for_gpu, bool by_nccl) {
    if (world == 1)
        return 0;
    if (by_nccl)
        return nccl_staging_bytes(world);
    return (place == REGION_HOST ? 1 : (size_t)world) * link_chunk_bytes(world, for_gpu);
}

static size_t staging_bytes(const struct comm *comm) {
    return comm_sums_bytes(comm->world, comm->device->place, comm->for_gpu, false);
}

static enum status mpi_attach(struct comm *comm) {
    struct staging *staging = &mpi_of(comm)->staging;
    void *memory;
    if (comm->world == 1)
        return STATUS_OK;
    TRY(comm->device->memory_new(comm->device, staging_bytes(comm), "sums between ranks", &memory));
    staging->memory = memory;
    return comm->device->place == REGION_HOST ? STATUS_OK : pin_links(comm);
}

static void mpi_detach(struct comm *comm) {
    struct staging *staging = &mpi_of(comm)->staging;
    while (staging->n_pinned > 0)
        device_unpin(comm->device, staging->pinned[--staging->n_pinned]);
    free(staging->pinned);
    comm->device->memory_delete(comm->device, staging->memory, staging_bytes(comm));
    *staging = (struct staging){0};
}

// ---- bulk collectives
//
// In each round a rank first sends a chunk to every other rank, then receives one from each. This cannot
// deadlock, whatever the spans' sizes. A push waits only until the receiver has read the chunk of
// LINK_DEPTH rounds before, and a pull only for pushes of the same round, so waits cannot form a cycle.

static enum status synchronize(struct comm *comm) {
    return comm->device->synchronize(&comm->stream);
}

static enum status copy(struct comm *comm, void *to, const void *from, size_t bytes) {
    return comm->device->copy(&comm->stream, to, from, bytes);
}

// Sends an owner's next n elements to a rank.
static enum status push_chunk(const struct comm_chunks *chunks, int rank, int owner, size_t n) {
    struct comm *comm = chunks->comm;
    const struct comm_call *call = chunks->call;
    // A GPU rounds into its own memory, so the result is staged there.
    const bool staged = call->operation == COMM_REDUCE_SCATTER && call->type != DTYPE_F32 &&
                        comm->device->place != REGION_HOST;
    void *place, *rounded = mpi_of(comm)->staging.memory;
    TRY(peer_push_begin(comm, rank, &call->id, &place));
    TRY(comm_chunk_pack(chunks, owner, n, staged ? rounded : place));
    if (staged)
        TRY(copy(comm, place, rounded, n * chunks->size));
    TRY(synchronize(comm));
    return peer_push_end(comm, rank, &call->id, n * chunks->size, call->operation);
}

// Receives the other ranks' chunks for this rank, and adds them to its own chunk.
static enum status sum_chunks(const struct comm_chunks *chunks, size_t n) {
    struct comm *comm = chunks->comm;
    const struct mpi_data *mpi = mpi_of(comm);
    const void *x[comm->world];
    char *next = mpi->staging.memory;
    for (int rank = 0; rank < comm->world; rank++) {
        if (rank == comm->rank)
            continue;
        TRY(peer_pull_begin(comm, rank, &chunks->call->id, n * chunks->size, &x[rank]));
        if (comm->device->place == REGION_HOST)
            continue;
        next += mpi->chunk_bytes; // the first place is for this rank's rounded chunk
        TRY(copy(comm, next, x[rank], n * chunks->size));
        x[rank] = next;
    }
    TRY(comm_chunk_sum(chunks, n, x, mpi->staging.memory));
    TRY(synchronize(comm));
    for (int rank = 0; rank < comm->world; rank++)
        if (rank != comm->rank)
            TRY(peer_pull_end(comm, rank));
    return STATUS_OK;
}

static enum status reduce_scatter(const struct comm_chunks *chunks) {
    struct comm *comm = chunks->comm;
    for (size_t round = 0; round < chunks->rounds; round++) {
        for (int distance = 1; distance < comm->world; distance++) {
            int owner = (comm->rank + distance) % comm->world;
            size_t n = comm_chunk_elements(chunks, owner, round);
            if (n > 0)
                TRY(push_chunk(chunks, owner, owner, n));
        }
        size_t n = comm_chunk_elements(chunks, comm->rank, round);
        if (n > 0)
            TRY(sum_chunks(chunks, n));
    }
    return STATUS_OK;
}

static enum status receive_chunk(const struct comm_chunks *chunks, int owner, size_t n) {
    struct comm *comm = chunks->comm;
    const void *chunk;
    TRY(peer_pull_begin(comm, owner, &chunks->call->id, n * chunks->size, &chunk));
    TRY(comm_chunk_unpack(chunks, owner, n, chunk));
    TRY(synchronize(comm));
    return peer_pull_end(comm, owner);
}

// Copies a span from this rank's `in` to its `out`.
static enum status copy_span(const struct comm_chunks *chunks, const struct comm_span *span) {
    const char *in = (const char *)chunks->call->in + span->in * chunks->size;
    char *out = (char *)chunks->call->out + span->out * chunks->size;
    return in == out ? STATUS_OK : copy(chunks->comm, out, in, span->elements * chunks->size);
}

static enum status all_gather(const struct comm_chunks *chunks) {
    struct comm *comm = chunks->comm;
    struct comm_cursor *mine = &chunks->cursors[comm->rank], all = *mine;
    for (struct comm_span span; (span = comm_transfer_next(&all, SIZE_MAX)).elements > 0;)
        TRY(copy_span(chunks, &span));
    TRY(synchronize(comm));
    for (size_t round = 0; round < chunks->rounds; round++) {
        const size_t n = comm_chunk_elements(chunks, comm->rank, round);
        const struct comm_cursor here = *mine;
        for (int distance = 1; distance < comm->world && n > 0; distance++) {
            *mine = here; // every rank receives the same chunk
            TRY(push_chunk(chunks, (comm->rank + distance) % comm->world, comm->rank, n));
        }
        for (int owner = 0; owner < comm->world; owner++) {
            const size_t theirs = comm_chunk_elements(chunks, owner, round);
            if (theirs > 0 && owner != comm->rank)
                TRY(receive_chunk(chunks, owner, theirs));
        }
    }
    return STATUS_OK;
}

// Sends the next chunk of a route; no-op at its end.
static enum status push_route(const struct comm_chunks *chunks, struct comm_route *route) {
    struct comm *comm = chunks->comm;
    struct comm_span span = comm_route_next(route, chunks->chunk);
    void *place;
    if (span.elements == 0)
        return STATUS_OK;
    TRY(peer_push_begin(comm, route->to, &chunks->call->id, &place));
    TRY(copy(comm, place, (const char *)chunks->call->in + span.in * chunks->size,
             span.elements * chunks->size));
    TRY(synchronize(comm));
    return peer_push_end(comm, route->to, &chunks->call->id, span.elements * chunks->size, COMM_EXCHANGE);
}

static enum status pull_route(const struct comm_chunks *chunks, struct comm_route *route) {
    struct comm *comm = chunks->comm;
    struct comm_span span = comm_route_next(route, chunks->chunk);
    const size_t bytes = span.elements * chunks->size;
    const void *chunk;
    if (bytes == 0)
        return STATUS_OK;
    TRY(peer_pull_begin(comm, route->from, &chunks->call->id, bytes, &chunk));
    TRY(copy(comm, (char *)chunks->call->out + span.out * chunks->size, chunk, bytes));
    TRY(synchronize(comm));
    return peer_pull_end(comm, route->from);
}

// Returns the largest number of chunks that any rank sends to another.
static size_t count_rounds(const struct comm_chunks *chunks) {
    const int world = chunks->comm->world;
    size_t most = 0;
    for (int from = 0; from < world; from++)
        for (int to = 0; to < world; to++) {
            struct comm_route route = {.transfer = chunks->call->transfer, .from = from, .to = to};
            size_t n = 0;
            while (from != to && comm_route_next(&route, chunks->chunk).elements > 0)
                n++;
            most = n > most ? n : most;
        }
    return most;
}

static enum status exchange_spans(const struct comm_chunks *chunks) {
    struct comm *comm = chunks->comm;
    const struct comm_transfer *transfer = chunks->call->transfer;
    struct comm_route to[comm->world], from[comm->world],
        own = {.transfer = transfer, .from = comm->rank, .to = comm->rank};
    for (int rank = 0; rank < comm->world; rank++) {
        to[rank] = (struct comm_route){.transfer = transfer, .from = comm->rank, .to = rank};
        from[rank] = (struct comm_route){.transfer = transfer, .from = rank, .to = comm->rank};
    }
    for (struct comm_span span; (span = comm_route_next(&own, SIZE_MAX)).elements > 0;)
        TRY(copy_span(chunks, &span));
    TRY(synchronize(comm));
    for (size_t round = 0, n = count_rounds(chunks); round < n; round++) {
        for (int distance = 1; distance < comm->world; distance++)
            TRY(push_route(chunks, &to[(comm->rank + distance) % comm->world]));
        for (int distance = 1; distance < comm->world; distance++)
            TRY(pull_route(chunks, &from[(comm->rank + distance) % comm->world]));
    }
    return STATUS_OK;
}

static enum status mpi_bulk(struct comm *comm, const struct comm_call *call) {
    size_t owned[comm->world];
    struct comm_cursor cursors[comm->world];
    const struct comm_chunks chunks =
        comm_chunks_of(comm, call, mpi_of(comm)->chunk_bytes / dtype_size(call->type), owned, cursors);
    if (call->operation == COMM_EXCHANGE)
        return exchange_spans(&chunks);
    return call->operation == COMM_REDUCE_SCATTER ? reduce_scatter(&chunks) : all_gather(&chunks);
}

// ---- control collectives
//
// They move small values in host memory along a binomial tree over rank numbers, rooted at rank 0. The
// children of rank r are r + 1, r + 2, r + 4, ..., for powers of two below r's lowest set bit. So the ranks
// of a subtree are consecutive.
//
// Each collective goes up the tree and down again. No rank leaves before all have arrived, and two ranks in
// different collectives notice the mismatch when they exchange a message. Bulk collectives have their own
// links, so a control collective never waits behind a bulk collective.

static enum status push(struct comm *comm, int rank, const struct comm_id *id, const char *data,
                        size_t bytes) {
    struct mpi_data *mpi = mpi_of(comm);
    struct ring *ring = mpi->peers[rank].control_to;
    struct peer_wait wait = {comm, CHANNEL_CONTROL, rank, id, false};
    size_t done = 0, n;
    TRY(mpi_check_failure(comm)); // send nothing after a failure
    do {                          // 0 bytes still take one message
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

// Waits for the next control message of wait->rank.
//   header   [out] the message; valid until the next call
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

// Returns the number of ranks in the subtree of `rank`. They are `rank` itself and the ranks after it.
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

static enum status mpi_gather(struct comm *comm, const struct comm_id *id, const void *mine, size_t bytes,
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

// Sends the data up from `root` to rank 0, then down to all ranks that are not on that path. The other
// messages are empty.
static enum status mpi_broadcast(struct comm *comm, const struct comm_id *id, void *data, size_t bytes,
                                 int root) {
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

static enum status mpi_agree(struct comm *comm, const struct comm_id *id, struct comm_verdict *verdict) {
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

// ---- closing

static void data_free(struct comm *comm) {
    struct mpi_data *mpi = mpi_of(comm);
    peers_close(comm);
    if (mpi->window == MPI_WIN_NULL)
        free(mpi->mailbox);
    free(mpi->peers);
    pthread_mutex_destroy(&mpi->mpi_lock);
    if (!mpi_has_failed(comm)) // else notes may still be in flight from this memory
        free(mpi);
}

// A time limit for closing MPI. Its closing calls wait for all ranks, and a rank may be suspended by then.
// The watchdog detects that during a run, but has already ended.
struct deadline {
    pthread_t thread;
    bool running;
    atomic_bool met;
    int64_t ms;                    // the time limit
    int64_t turn_ms;               // added to `ms`, so that a rank with an earlier turn ends the others first
    int exit_code;                 // exit code of the process if the deadline passes
    char message[FAILURE_MESSAGE]; // printed if the deadline passes; "": nothing is printed
};

// Waits `ms`, not counting suspensions, or until the deadline is met. Returns false if it was met.
static bool wait_ms(struct deadline *deadline, int64_t ms) {
    const struct timespec nap = {.tv_nsec = NAP_NS};
    for (int64_t waited = 0; waited < ms && !atomic_load(&deadline->met);) {
        const int64_t began = rank_state_now_ms();
        nanosleep(&nap, NULL);
        const int64_t napped = rank_state_now_ms() - began;
        waited += napped < MOST_NAP_MS ? napped : MOST_NAP_MS;
    }
    return !atomic_load(&deadline->met);
}

static void *end_at_deadline(void *argument) {
    struct deadline *deadline = argument;
    if (!wait_ms(deadline, deadline->ms))
        return NULL;
    signal(SIGTERM, SIG_DFL); // mpirun sends SIGTERM to the others once a rank has ended
    if (!wait_ms(deadline, deadline->turn_ms))
        return NULL;
    if (deadline->message[0] != 0) {
        log_set_level(LOG_ERROR);
        log_error("%s", deadline->message);
    }
    _exit(deadline->exit_code);
}

// Sets the deadline for the closing calls of MPI, which wait for all ranks. After a failure it is
// PATIENCE_MS, and this rank then ends silently, as the failure was printed. After success it is the hang
// timeout, at least PATIENCE_MS. Once a rank has ended at its deadline, mpirun signals the others, and
// kills them a second later. So the ranks' turns are more than a second apart.
static void deadline_begin(struct deadline *deadline, const struct comm *comm, enum status status) {
    const int64_t hang_ms = atomic_load(&comm->failures.hang_ms);
    const bool failing = status_exit_code(status) != 0;
    *deadline =
        (struct deadline){.ms = PATIENCE_MS, .exit_code = status_exit_code(failing ? status : STATUS_FAILED)};
    if (!failing) {
        if (hang_ms == 0)
            return; // no limit
        deadline->ms = hang_ms > PATIENCE_MS ? hang_ms : PATIENCE_MS;
        deadline->turn_ms = 2 * mpi_stagger_ms(comm->rank);
        snprintf(deadline->message, sizeof deadline->message,
                 "rank %d: all work is done, but another rank has not ended %g s later (the limit is "
                 "run.hang_timeout_s, or twice a step, and at least %d s): its process is suspended, or its "
                 "machine is down",
                 comm->rank, (double)deadline->ms / 1e3, PATIENCE_MS / 1000);
    }
    deadline->running = pthread_create(&deadline->thread, NULL, end_at_deadline, deadline) == 0;
}

static void deadline_end(struct deadline *deadline) {
    if (!deadline->running)
        return;
    atomic_store(&deadline->met, true);
    pthread_join(deadline->thread, NULL);
}

// All ranks end together, unless one is dead: MPI_Finalize would wait for a dead rank forever.
static void mpi_close(struct comm *comm, enum status status) {
    struct mpi_data *mpi = mpi_of(comm);
    bool failing = status_exit_code(status) != 0;
    struct deadline deadline;
    // Print before any rank exits: when the first one does, mpirun kills the others.
    if (mpi_has_failed(comm))
        mpi_wait_until_printed(comm);
    else if (failing)
        log_error("%s", status_message());
    log_set_level(LOG_QUIET);
    if (mpi_has_failed(comm) && mpi->failure.gone) {
        nanosleep(&(struct timespec){.tv_nsec = LINGER_NS}, NULL);
        mpi_watchdog_stop(comm);
        return;
    }
    mpi_watchdog_stop(comm);
    deadline_begin(&deadline, comm, status);
    MPI_Win window = mpi->window;
    MPI_Comm everyone = mpi->everyone, machine = mpi->machine;
    data_free(comm);
    MPI_Barrier(everyone);
    if (window != MPI_WIN_NULL)
        MPI_Win_free(&window);
    MPI_Comm_free(&machine);
    MPI_Comm_free(&everyone);
    MPI_Finalize();
    deadline_end(&deadline);
}

// ---- opening: finds the ranks that share a machine, and places their mailboxes in a window of shared memory
// if they use shared memory

// The first message of every rank: two NUL-terminated texts. The format never changes, because ranks that
// run any two versions must understand it.
struct identification {
    char build[192], host[64];
};

// Gathers every rank's identification. Earlier versions of the program do not send one, and wait in another
// collective, so there is a time limit.
static enum status gather_identifications(const struct comm *comm, const struct identification *mine,
                                          struct identification *all) {
    const struct timespec nap = {.tv_nsec = NAP_NS / 20};
    const int64_t until = rank_state_now_ms() + IDENTIFICATION_MS;
    MPI_Request request;
    int done = 0;
    int error = MPI_Iallgather(mine, sizeof *mine, MPI_BYTE, all, sizeof *mine, MPI_BYTE,
                               mpi_of(comm)->everyone, &request);
    while (error == MPI_SUCCESS && !done && rank_state_now_ms() < until) {
        error = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (!done)
            nanosleep(&nap, NULL);
    }
    if (error != MPI_SUCCESS)
        return FAIL(STATUS_FAILED, "MPI failed to gather the versions of all ranks");
    return done ? STATUS_OK
                : FAIL(STATUS_FAILED,
                       "not all ranks sent their version within %d s; earlier versions of this program send "
                       "none: start the same ./train on every machine",
                       IDENTIFICATION_MS / 1000);
}

// Compares the builds of all ranks; the result is the same on every rank. STATUS_INVALID: a rank's build
// differs from rank 0's.
static enum status check_builds(const struct comm *comm, const char *build) {
    struct identification mine = {0}, *all = allocate((size_t)comm->world, sizeof *all);
    snprintf(mine.build, sizeof mine.build, "%s", build ? build : "");
    if (gethostname(mine.host, sizeof mine.host - 1) != 0)
        mine.host[0] = '\0';
    // After a failure, `all` is not freed, because MPI may still write to it.
    TRY(gather_identifications(comm, &mine, all));
    enum status status = STATUS_OK;
    for (int rank = 1; rank < comm->world && status == STATUS_OK; rank++)
        if (strncmp(all[rank].build, all[0].build, sizeof mine.build) != 0)
            status = FAIL(
                STATUS_INVALID,
                "rank %d, on %.64s, runs zero.c %.192s, and rank 0, on %.64s, runs zero.c %.192s: ranks of "
                "different builds compute differently; start the same ./train on every machine",
                rank, all[rank].host, all[rank].build, all[0].host, all[0].build);
    free(all);
    return status;
}

// What the ranks of one machine exchange at the start.
struct introduction {
    int rank, process;
    uint64_t process_space; // pid namespace of `process`; containers may have different ones
    uint64_t offset;        // bytes from the start of the rank's memory in the window to its mailbox
    struct processors_mask processors;
};

static uint64_t process_space(void) {
    struct stat information;
    return stat("/proc/self/ns/pid", &information) == 0 ? (uint64_t)information.st_ino : 0;
}

// Returns the bytes from the start of a rank's memory in the window to its mailbox, which is page-aligned.
// MPI does not align the memory, and each rank maps the window at another address. So the owner computes the
// offset and sends it.
static size_t mailbox_offset(const void *base) {
    return -(uintptr_t)base % LINK_PAGE;
}

// Creates this rank's mailbox in a window that all ranks of the machine map. Without shared memory, the
// mailbox is in private memory.
//   offset   [out] as in struct introduction
static enum status open_mailbox(struct comm *comm, uint64_t *offset) {
    struct mpi_data *mpi = mpi_of(comm);
    size_t bytes = mailbox_pages_bytes(mpi->linked, mpi->chunk_bytes);
    void *base = NULL;
    *offset = 0;
    if (mpi->linked == 1) {
        base = aligned_alloc(LINK_PAGE, bytes);
        if (!base)
            return FAIL(STATUS_FAILED, "out of memory for a mailbox of %zu bytes", bytes);
    } else {
        if (MPI_Win_allocate_shared((MPI_Aint)(bytes + LINK_PAGE), 1, MPI_INFO_NULL, mpi->machine, &base,
                                    &mpi->window) != MPI_SUCCESS)
            return FAIL(
                STATUS_FAILED,
                "MPI cannot allocate %zu bytes of shared memory per rank; set comm.shared_memory=false",
                bytes + LINK_PAGE);
        *offset = mailbox_offset(base);
    }
    mpi->mailbox = (struct mailbox *)(void *)((char *)base + *offset);
    mailbox_init(mpi->mailbox, mpi->linked, mpi->chunk_bytes);
    comm->state = &mpi->mailbox->state;
    return STATUS_OK;
}

// Finds the rings between this rank and another rank of its machine, whose local rank is `local`.
static enum status open_link(struct comm *comm, int local, const struct introduction *other) {
    struct mpi_data *mpi = mpi_of(comm);
    struct peer *peer = &mpi->peers[other->rank];
    MPI_Aint size;
    int unit;
    void *base;
    if (MPI_Win_shared_query(mpi->window, local, &size, &unit, &base) != MPI_SUCCESS)
        return FAIL(STATUS_FAILED,
                    "MPI gives no access to the shared memory of rank %d; set comm.shared_memory=false",
                    other->rank);
    peer->mailbox = (struct mailbox *)(void *)((char *)base + other->offset);
    // A mailbox has no ring for its own rank, so the rings of later ranks are one place lower.
    int here = comm->local_rank - (comm->local_rank > local), there = local - (local > comm->local_rank);
    peer->to = mailbox_ring(peer->mailbox, here, mpi->chunk_bytes);
    peer->from = mailbox_ring(mpi->mailbox, there, mpi->chunk_bytes);
    peer->control_to = mailbox_control_ring(peer->mailbox, mpi->linked, here, mpi->chunk_bytes);
    peer->control_from = mailbox_control_ring(mpi->mailbox, mpi->linked, there, mpi->chunk_bytes);
    return STATUS_OK;
}

// Sets comm->processors. A launcher may have given each rank its own CPUs, or all ranks the same set.
static void divide_processors(struct comm *comm, const struct introduction *all) {
    struct processors_mask *masks = allocate((size_t)comm->local_world, sizeof *masks);
    for (int local = 0; local < comm->local_world; local++)
        masks[local] = all[local].processors;
    comm->processors = processors_divide(masks, comm->local_world, comm->local_rank, &comm->local_processors);
    mpi_of(comm)->spins = comm->local_world <= comm->local_processors ? LINK_SPINS : 0;
    free(masks);
}

static enum status find_machine(struct comm *comm) {
    struct mpi_data *mpi = mpi_of(comm);
    struct introduction mine = {.rank = comm->rank,
                                .process = (int)getpid(),
                                .process_space = process_space()},
                        *all = allocate((size_t)comm->local_world, sizeof *all);
    processors_get_mask(&mine.processors);
    enum status status = open_mailbox(comm, &mine.offset);
    if (status == STATUS_OK &&
        MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all, sizeof mine, MPI_BYTE,
                      mpi->machine) != MPI_SUCCESS) // afterwards every mailbox is ready
        status = FAIL(STATUS_FAILED, "MPI failed to gather the ranks of this machine");
    if (status == STATUS_OK)
        divide_processors(comm, all);
    for (int local = 0; local < comm->local_world && status == STATUS_OK; local++) {
        if (local == comm->local_rank)
            continue;
        if (all[local].process_space == mine.process_space)
            mpi->peers[all[local].rank].process = all[local].process;
        if (mpi->linked > 1)
            status = open_link(comm, local, &all[local]);
    }
    free(all);
    return status;
}

// Broadcasts rank 0's options, which all ranks use.
static void agree_on_options(struct comm *comm, const struct comm_options *options) {
    struct mpi_data *mpi = mpi_of(comm);
    struct comm_options agreed = *options;
    MPI_Bcast(&agreed, sizeof agreed, MPI_BYTE, 0, mpi->everyone);
    mpi->linked = agreed.shared_memory ? comm->local_world : 1;
    comm->path = agreed.path;
    comm->for_gpu = agreed.for_gpu;
    atomic_store(&comm->failures.hang_ms, (long long)(agreed.hang_timeout_s * 1e3));
}

static enum status open_data(struct comm *comm, const struct comm_options *options) {
    struct mpi_data *mpi = mpi_of(comm);
    mpi->window = MPI_WIN_NULL;
    MPI_Comm_dup(MPI_COMM_WORLD, &mpi->everyone);
    MPI_Comm_set_errhandler(mpi->everyone, MPI_ERRORS_RETURN);
    MPI_Comm_rank(mpi->everyone, &comm->rank);
    MPI_Comm_size(mpi->everyone, &comm->world);
    TRY(check_builds(comm, options->build));
    MPI_Comm_split_type(mpi->everyone, MPI_COMM_TYPE_SHARED, comm->rank, MPI_INFO_NULL, &mpi->machine);
    MPI_Comm_set_errhandler(mpi->machine, MPI_ERRORS_RETURN);
    MPI_Comm_rank(mpi->machine, &comm->local_rank);
    MPI_Comm_size(mpi->machine, &comm->local_world);
    char host[64] = "";
    if (comm->local_world < comm->world && gethostname(host, sizeof host - 1) == 0)
        snprintf(comm->place, sizeof comm->place, "on %s: ", host);
    agree_on_options(comm, options);
    mpi->chunk_bytes = link_chunk_bytes(comm->world, comm->for_gpu);
    mpi->peers = allocate((size_t)comm->world, sizeof *mpi->peers);
    TRY(find_machine(comm));
    TRY(peers_open(comm));
    return mpi_watchdog_start(comm);
}

static const struct comm_backend mpi_backend = {.name = "mpi",
                                                .attach = mpi_attach,
                                                .detach = mpi_detach,
                                                .bulk = mpi_bulk,
                                                .gather = mpi_gather,
                                                .broadcast = mpi_broadcast,
                                                .agree = mpi_agree,
                                                .abort = mpi_abort,
                                                .close = mpi_close};

enum status comm_open_mpi(const struct comm_options *options, struct comm **out) {
    int provided;
    *out = NULL;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS)
        return FAIL(STATUS_FAILED, "MPI cannot start");
    struct comm *comm = allocate(1, sizeof *comm);
    struct mpi_data *mpi = allocate(1, sizeof *mpi);
    pthread_mutex_init(&mpi->mpi_lock, NULL);
    *comm = (struct comm){
        .backend = &mpi_backend, .data = mpi, .eager = true, .watch_lock = PTHREAD_MUTEX_INITIALIZER};
    enum status status =
        provided >= MPI_THREAD_SERIALIZED
            ? open_data(comm, options)
            : FAIL(STATUS_UNSUPPORTED, "this MPI allows only the main thread to communicate, expected "
                                       "MPI_THREAD_SERIALIZED; use an MPI built with thread support");
    if (status == STATUS_OK) {
        *out = comm;
        return STATUS_OK;
    }
    if (status == STATUS_INVALID) { // every rank has this status
        if (comm->rank == 0)
            log_error("%s", status_message());
        log_set_level(LOG_QUIET);
        MPI_Barrier(mpi->everyone);
        MPI_Finalize();
        return status;
    }
    // This failure cannot be sent to other ranks yet: MPI ends them all.
    log_error("%s", status_message());
    MPI_Abort(MPI_COMM_WORLD, status_exit_code(status));
    return status;
}
