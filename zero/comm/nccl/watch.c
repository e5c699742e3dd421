// See zero/comm/nccl/watch.h.
#include "zero/comm/nccl/watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "zero/comm/mpi/failure.h"

#define PATIENCE_MS 1000 // from an error of NCCL to its report: a dead process is found sooner
#define LOOK_NS     20000000

// ---- intervals

enum status nccl_intervals_init(struct nccl_intervals *intervals, struct device *device, unsigned size) {
    *intervals = (struct nccl_intervals){.entries = calloc(size, sizeof *intervals->entries), .size = size};
    if (!intervals->entries)
        return FAIL(STATUS_FAILED, "out of memory for the events of %u collectives", size);
    for (unsigned i = 0; i < size; i++) {
        TRY(event_init_timed(&intervals->entries[i].begin, device));
        TRY(event_init_timed(&intervals->entries[i].end, device));
    }
    return STATUS_OK;
}

void nccl_intervals_free(struct nccl_intervals *intervals) {
    for (unsigned i = 0; intervals->entries && i < intervals->size; i++) {
        event_free(&intervals->entries[i].begin);
        event_free(&intervals->entries[i].end);
    }
    free(intervals->entries);
    *intervals = (struct nccl_intervals){0};
}

enum status nccl_interval_begin(struct nccl_intervals *intervals, struct stream *stream, uint64_t call,
                                struct nccl_interval **out) {
    *out = NULL;
    if (intervals->n_begun - intervals->n_done == intervals->size)
        return STATUS_OK;
    struct nccl_interval *next = &intervals->entries[intervals->n_begun % intervals->size];
    TRY(event_record(&next->begin, stream));
    next->call = call;
    intervals->n_begun++;
    *out = next;
    return STATUS_OK;
}

// Reads the intervals that are over, and adds their lengths to *seconds. An error of the device stays
// recorded: the thread that issues work meets the same one.
static void read_intervals(struct nccl_intervals *intervals, double *seconds) {
    bool happened = true;
    while (intervals->n_done < intervals->n_begun) {
        const struct nccl_interval *oldest = &intervals->entries[intervals->n_done % intervals->size];
        double length;
        if (event_query(&oldest->end, &happened) != STATUS_OK || !happened ||
            event_seconds(&oldest->begin, &oldest->end, &length) != STATUS_OK)
            return;
        *seconds += length;
        intervals->n_done++;
    }
}

void nccl_count_time(struct comm *comm) {
    struct nccl *nccl = nccl_of(comm);
    read_intervals(&nccl->works, &nccl->busy_s);
    read_intervals(&nccl->waits, &nccl->waited_s);
    comm->traffic.busy_s += nccl->busy_s;
    comm->traffic.waited_s += nccl->waited_s;
    nccl->busy_s = nccl->waited_s = 0;
}

// ---- failures

static bool is_error(int result) {
    return result != NCCL_SUCCESS && result != NCCL_IN_PROGRESS;
}

enum status nccl_failure(struct comm *comm, int result, const char *call) {
    const struct nccl *nccl = nccl_of(comm);
    const struct timespec nap = {.tv_nsec = LOOK_NS};
    for (int i = 0; i < PATIENCE_MS * 1000000LL / LOOK_NS && !mpi_has_failed(comm); i++)
        nanosleep(&nap, NULL);
    TRY(mpi_check_failure(comm));
    return FAIL(STATUS_FAILED, "NCCL: %s: %s (%s)", call, nccl->api.GetErrorString(result),
                nccl->api.GetLastError(nccl->handle));
}

static void report_error(struct comm *comm, int result) {
    struct nccl *nccl = nccl_of(comm);
    const int64_t now = rank_state_now_ms();
    char message[COMM_MESSAGE_BYTES];
    nccl->error_ms = nccl->error_ms ? nccl->error_ms : now;
    if (now - nccl->error_ms < PATIENCE_MS)
        return;
    snprintf(message, sizeof message, "NCCL: a collective failed: %s (%s)", nccl->api.GetErrorString(result),
             nccl->api.GetLastError(nccl->handle));
    mpi_abort(comm, STATUS_FAILED, message);
}

static void look_for_error(struct comm *comm) {
    struct nccl *nccl = nccl_of(comm);
    int result = NCCL_SUCCESS;
    if (nccl->api.CommGetAsyncError(nccl->handle, &result) == NCCL_SUCCESS && is_error(result))
        report_error(comm, result);
}

// The oldest collective that has not ended: 1 + its number, or 0.
static uint64_t oldest_call(const struct nccl_intervals *works) {
    return works->n_done < works->n_begun ? 1 + works->entries[works->n_done % works->size].call : 0;
}

// Shows a collective (1 + its number, 0: none) as a wait. NCCL does not tell which rank it waits for; the
// watchdog compares this rank's collectives with those of the next one.
static void show_wait(struct comm *comm, uint64_t call) {
    struct nccl *nccl = nccl_of(comm);
    if (call == nccl->shown_call)
        return;
    if (nccl->shown_call)
        rank_state_wait_end(comm->state, CHANNEL_DEVICE);
    if (call)
        rank_state_wait_begin(comm->state, CHANNEL_DEVICE, (comm->rank + 1) % comm->world, call - 1);
    nccl->shown_call = call;
}

// If more collectives were issued than intervals fit, the end of the last one is watched next.
static void watch_rest(struct comm *comm) {
    struct nccl *nccl = nccl_of(comm);
    struct nccl_interval *rest;
    if (nccl->works.n_done < nccl->works.n_begun || nccl->n_watched == nccl->n_issued)
        return;
    nccl->n_watched = nccl->n_issued;
    if (nccl_interval_begin(&nccl->works, &comm->stream, nccl->last_call, &rest) != STATUS_OK ||
        event_record(&rest->end, &comm->stream) != STATUS_OK)
        return; // recorded, as above
}

static void abort_collectives(struct nccl *nccl) {
    atomic_store(&nccl->aborted, true);
    (void)nccl->api.CommAbort(nccl->handle); // whatever it returns, nothing more can be done
}

// The main thread holds the lock to issue a collective, and may stay there: a launch waits while the GPU's
// queue is full of work behind a collective that does not end. Then this thread looks without the lock, at
// what NCCL lets any thread ask. Aborting from here ends the launch.
static void watch_stuck(struct comm *comm) {
    struct nccl *nccl = nccl_of(comm);
    const int64_t now = rank_state_now_ms();
    const unsigned n_locked = atomic_load(&nccl->n_locked);
    if (nccl->stuck_ms == 0 || nccl->stuck_in != n_locked) {
        nccl->stuck_ms = now;
        nccl->stuck_in = n_locked;
    }
    if (now - nccl->stuck_ms < PATIENCE_MS || atomic_load(&nccl->aborted))
        return;
    if (mpi_has_failed(comm)) {
        abort_collectives(nccl);
        return;
    }
    if (nccl->shown_call == 0)
        show_wait(comm, atomic_load(&nccl->begun_call));
    look_for_error(comm);
}

void nccl_watch(struct comm *comm) {
    struct nccl *nccl = nccl_of(comm);
    if (pthread_mutex_trylock(&nccl->lock) != 0) {
        watch_stuck(comm);
        return;
    }
    nccl->stuck_ms = 0;
    if (!atomic_load(&nccl->aborted)) {
        if (mpi_has_failed(comm)) {
            abort_collectives(nccl);
        } else {
            read_intervals(&nccl->works, &nccl->busy_s);
            watch_rest(comm);
            show_wait(comm, oldest_call(&nccl->works));
            look_for_error(comm);
        }
    }
    pthread_mutex_unlock(&nccl->lock);
}
