// See zero/comm/nccl/nccl.h.
#include "zero/comm/nccl/nccl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/ops.h"
#include "zero/comm/mpi/failure.h"
#include "zero/comm/nccl/bulk.h"
#include "zero/comm/nccl/load.h"
#include "zero/comm/nccl/watch.h"

// Large enough for the full bandwidth of a link, small enough that all of them are a few percent of a GPU.
#define LARGEST_CHUNK  ((size_t)4 << 20)
#define SMALLEST_CHUNK ((size_t)64 << 10)
#define ALL_CHUNKS     ((size_t)64 << 20) // bound: one chunk from each other rank

static size_t chunk_bytes(int world) {
    const size_t most = ALL_CHUNKS / (size_t)(world > 1 ? world - 1 : 1);
    const size_t bytes = most < SMALLEST_CHUNK ? SMALLEST_CHUNK : most > LARGEST_CHUNK ? LARGEST_CHUNK : most;
    return bytes / SMALLEST_CHUNK * SMALLEST_CHUNK;
}

static size_t send_bytes(int world) {
    return (size_t)world * chunk_bytes(world);
}

static size_t receive_bytes(int world) {
    return ((size_t)world - 1) * chunk_bytes(world);
}

size_t nccl_staging_bytes(int world) {
    return world > 1 ? send_bytes(world) + receive_bytes(world) : 0;
}

// ---- deciding, with all ranks, whether NCCL is used

#define MACHINE_BYTES 64
#define REASON_BYTES  512

// What one rank has.
struct introduction {
    int32_t on_gpu, version;         // version: 0 if `missing` says why there is none
    char machine[MACHINE_BYTES];     // the machine's boot, which its containers share
    char gpu[DEVICE_IDENTITY_BYTES]; // its address on that machine
    char missing[REASON_BYTES];
};

static void identify_machine(char out[MACHINE_BYTES]) {
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    memset(out, 0, MACHINE_BYTES);
    const bool found = file && fgets(out, MACHINE_BYTES, file);
    if (file)
        fclose(file);
    if (!found)
        (void)gethostname(out, MACHINE_BYTES - 1); // where it fails, one machine is assumed
}

static enum status introduce(struct comm *comm, struct nccl *nccl, struct introduction *mine) {
    *mine = (struct introduction){.on_gpu = comm->device->place == REGION_DEVICE};
    identify_machine(mine->machine);
    if (!mine->on_gpu)
        return STATUS_OK;
    TRY(device_identity(comm->device, mine->gpu));
    if (nccl_load(&nccl->api, &nccl->version) == STATUS_OK) {
        mine->version = nccl->version;
    } else {
        snprintf(mine->missing, sizeof mine->missing, "%s", status_message());
        status_clear();
    }
    return STATUS_OK;
}

// Writes why NCCL cannot be used, for these two ranks of all; returns false if it can.
static bool differs(const struct introduction *all, int a, int b, char reason[REASON_BYTES]) {
    char first[NCCL_VERSION_TEXT_BYTES], second[NCCL_VERSION_TEXT_BYTES];
    if (all[a].version != all[b].version) {
        snprintf(reason, REASON_BYTES, "rank %d has NCCL %s and rank %d has %s; install one version", a,
                 nccl_version_text(all[a].version, first), b, nccl_version_text(all[b].version, second));
        return true;
    }
    if (strcmp(all[a].machine, all[b].machine) == 0 && strcmp(all[a].gpu, all[b].gpu) == 0) {
        snprintf(reason, REASON_BYTES, "ranks %d and %d share the GPU at %s, and NCCL needs one per rank", a,
                 b, all[a].gpu);
        return true;
    }
    return false;
}

// The same conclusion on every rank, as all draw it from the same introductions.
static bool find_obstacle(const struct introduction *all, int world, char reason[REASON_BYTES]) {
    for (int rank = 0; rank < world; rank++) {
        if (!all[rank].on_gpu)
            snprintf(reason, REASON_BYTES, "rank %d does not train on a GPU", rank);
        else if (all[rank].missing[0])
            snprintf(reason, REASON_BYTES, "rank %d: %.480s", rank, all[rank].missing);
        else
            continue;
        return true;
    }
    for (int a = 0; a < world; a++)
        for (int b = a + 1; b < world; b++)
            if (differs(all, a, b, reason))
                return true;
    return false;
}

// Without NCCL: an error where it was asked for by name, else a line for the log.
static enum status go_without(struct comm *comm, const char *reason, bool any_gpu) {
    if (comm->path == COMM_PATH_NCCL)
        return FAIL(STATUS_UNSUPPORTED,
                    "comm.backend=nccl: %s. comm.backend=auto exchanges through the host instead", reason);
    if (any_gpu)
        snprintf(comm->path_text, sizeof comm->path_text, "through host memory, not by NCCL: %.450s", reason);
    return STATUS_OK;
}

// ---- opening

static enum status open_memory(struct comm *comm, struct nccl *nccl) {
    struct device *device = comm->device;
    void *send = NULL, *receive = NULL;
    nccl->chunk_bytes = chunk_bytes(comm->world);
    enum status status = device->memory_new(device, send_bytes(comm->world), "sums between ranks", &send);
    if (status == STATUS_OK)
        status = device->memory_new(device, receive_bytes(comm->world), "sums between ranks", &receive);
    nccl->send = send;
    nccl->receive = receive;
    TRY(status);
    for (int i = 0; i < NCCL_WORKS; i++)
        TRY(event_init(&nccl->done[i], device));
    TRY(nccl_intervals_init(&nccl->works, device, NCCL_WATCHED));
    return nccl_intervals_init(&nccl->waits, device, NCCL_INTERVAL);
}

static void free_memory(struct comm *comm, struct nccl *nccl) {
    struct device *device = comm->device;
    nccl_intervals_free(&nccl->works);
    nccl_intervals_free(&nccl->waits);
    for (int i = 0; i < NCCL_WORKS; i++)
        event_free(&nccl->done[i]);
    device->memory_delete(device, nccl->send, send_bytes(comm->world));
    device->memory_delete(device, nccl->receive, receive_bytes(comm->world));
    pthread_mutex_destroy(&nccl->lock);
    free(nccl);
}

// Every rank gets rank 0's id.
static enum status share_id(struct comm *comm, struct nccl *nccl, nccl_id *id) {
    enum status status = STATUS_OK;
    *id = (nccl_id){{0}};
    if (comm->rank == 0) {
        const int result = nccl->api.GetUniqueId(id);
        if (result != NCCL_SUCCESS)
            status = FAIL(STATUS_FAILED, "NCCL: ncclGetUniqueId: %s", nccl->api.GetErrorString(result));
    }
    TRY(comm_agree(comm, status));
    return comm_broadcast(comm, id, sizeof *id, 0);
}

// NCCL connects the ranks. The watchdog sees a rank that does not take part: meanwhile this one waits for it.
static enum status connect_ranks(struct comm *comm, struct nccl *nccl, nccl_id id) {
    const uint64_t call = atomic_load(&comm->state->n_issued) - 1;
    TRY(device_enter(comm->device));
    rank_state_wait_begin(comm->state, CHANNEL_DEVICE, (comm->rank + 1) % comm->world, call);
    const int result = nccl->api.CommInitRank(&nccl->handle, comm->world, id, comm->rank);
    rank_state_wait_end(comm->state, CHANNEL_DEVICE);
    if (result == NCCL_SUCCESS)
        return STATUS_OK;
    nccl->handle = NULL;
    return FAIL(STATUS_FAILED, "NCCL: ncclCommInitRank: %s (%s)", nccl->api.GetErrorString(result),
                nccl->api.GetLastError(NULL));
}

// One collective of each kind with every rank. NCCL makes connections and their buffers when they are first
// used: that happens now, before memory is planned, and errors of the network show here.
static enum status try_links(struct comm *comm) {
    const struct nccl *nccl = nccl_of(comm);
    struct comm_span spans[comm->world];
    struct comm_transfer all = {.spans = spans, .n_spans = comm->world, .elements = (size_t)comm->world};
    const struct comm_traffic before = comm->traffic;
    for (int rank = 0; rank < comm->world; rank++)
        spans[rank] =
            (struct comm_span){.owner = rank, .in = (size_t)rank, .out = (size_t)rank, .elements = 1};
    comm_spans_link(spans, comm->world);
    float *numbers = (float *)(void *)(nccl->send + send_bytes(comm->world)) - comm->world;
    const struct fill_args fill = {.out = numbers, .n = (size_t)comm->world, .value = 1, .type = DTYPE_F32};
    comm_work work;
    TRY(comm->device->ops->fill(&comm->stream, &fill));
    TRY(comm_reduce_scatter(comm, &comm->stream, &all, numbers, numbers, DTYPE_F32, false, &work));
    TRY(comm_all_gather(comm, &comm->stream, &all, numbers, numbers, DTYPE_F32, &work));
    TRY(comm_wait_all(comm, NULL));
    float sums[comm->world];
    TRY(comm->device->copy(&comm->stream, sums, numbers, sizeof sums));
    TRY(comm->device->synchronize(&comm->stream));
    comm->traffic = before;
    for (int rank = 0; rank < comm->world; rank++)
        if (sums[rank] != (float)comm->world)
            return FAIL(STATUS_FAILED, "NCCL: a sum of %d ones is %g", comm->world, (double)sums[rank]);
    return STATUS_OK;
}

static void nccl_detach(struct comm *comm);

static enum status open_links(struct comm *comm, struct nccl *nccl) {
    nccl_id id;
    TRY(share_id(comm, nccl, &id));
    enum status status = connect_ranks(comm, nccl, id);
    TRY(comm_agree(comm, status));
    pthread_mutex_lock(&comm->watch_lock);
    comm->device_data = nccl; // from here on the watchdog looks after it
    pthread_mutex_unlock(&comm->watch_lock);
    return comm_agree(comm, try_links(comm));
}

static enum status open_nccl(struct comm *comm, struct nccl *nccl) {
    enum status status = comm_agree(comm, open_memory(comm, nccl));
    char reason[REASON_BYTES], version[NCCL_VERSION_TEXT_BYTES];
    if (status == STATUS_OK)
        status = open_links(comm, nccl);
    if (status == STATUS_OK) {
        snprintf(comm->path_text, sizeof comm->path_text, "by NCCL %s, one GPU each",
                 nccl_version_text(nccl->version, version));
        return STATUS_OK;
    }
    snprintf(reason, sizeof reason, "%.*s", (int)sizeof reason - 1, status_message());
    if (comm->device_data) {
        nccl_detach(comm);
    } else {
        if (nccl->handle)
            (void)nccl->api.CommAbort(nccl->handle);
        free_memory(comm, nccl);
    }
    if (mpi_has_failed(comm) || comm->path == COMM_PATH_NCCL)
        return status;
    status_clear(); // all ranks agreed on it, and go on together
    return go_without(comm, reason, true);
}

static enum status nccl_attach(struct comm *comm) {
    struct nccl *nccl = calloc(1, sizeof *nccl);
    struct introduction mine, *all = calloc((size_t)comm->world, sizeof *all);
    char reason[REASON_BYTES];
    enum status status = STATUS_OK;
    if (!nccl || !all)
        status = FAIL(STATUS_FAILED, "out of memory for a communicator of %d ranks", comm->world);
    else
        status = introduce(comm, nccl, &mine);
    if (status == STATUS_OK)
        status = comm_gather(comm, &mine, sizeof mine, all);
    const bool obstacle = status == STATUS_OK && find_obstacle(all, comm->world, reason);
    if (obstacle)
        status = go_without(comm, reason, mine.on_gpu);
    free(all);
    if (status != STATUS_OK || obstacle) {
        free(nccl);
        return status;
    }
    pthread_mutex_init(&nccl->lock, NULL);
    return open_nccl(comm, nccl);
}

// Other ranks may still need what this one has issued, so that ends first; nccl_watch aborts it if one of
// them has failed. A device that has failed ends nothing.
static void nccl_detach(struct comm *comm) {
    struct nccl *nccl = nccl_of(comm);
    if (!nccl)
        return;
    const bool broken = comm->device->synchronize(&comm->stream) != STATUS_OK;
    pthread_mutex_lock(&comm->watch_lock);
    comm->device_data = NULL;
    pthread_mutex_unlock(&comm->watch_lock);
    if (nccl->shown_call)
        rank_state_wait_end(comm->state, CHANNEL_DEVICE);
    if (!atomic_load(&nccl->aborted)) {
        const bool ends = !broken && !mpi_has_failed(comm);
        (void)(ends ? nccl->api.CommDestroy(nccl->handle) : nccl->api.CommAbort(nccl->handle));
    }
    free_memory(comm, nccl);
}

// ---- collectives

static enum status check(struct comm *comm) {
    TRY(mpi_check_failure(comm));
    return atomic_load(&nccl_of(comm)->aborted) ? FAIL(STATUS_FAILED, "NCCL was aborted") : STATUS_OK;
}

// For the thread that issues collectives; nccl_watch counts with it.
static void lock(struct nccl *nccl) {
    pthread_mutex_lock(&nccl->lock);
    atomic_fetch_add(&nccl->n_locked, 1);
}

// Issues `run` to comm->stream, behind the work of `stream`, between the events of its work handle.
static enum status issue(struct comm *comm, struct stream *stream, uint64_t number,
                         enum status (*run)(struct comm *comm, const void *arguments), const void *arguments,
                         comm_work *work) {
    struct nccl *nccl = nccl_of(comm);
    struct nccl_interval *interval;
    TRY(check(comm));
    atomic_store(&nccl->begun_call, number + 1);
    TRY(event_record(&comm->issued, stream));
    TRY(event_wait(&comm->issued, &comm->stream));
    TRY(nccl_interval_begin(&nccl->works, &comm->stream, number, &interval));
    TRY(run(comm, arguments));
    if (interval)
        TRY(event_record(&interval->end, &comm->stream));
    TRY(event_record(&nccl->done[nccl->n_works % NCCL_WORKS], &comm->stream));
    *work = ++nccl->n_works;
    nccl->n_issued++;
    nccl->n_watched += interval != NULL;
    nccl->last_call = number;
    nccl_count_time(comm);
    return STATUS_OK;
}

static enum status run_bulk(struct comm *comm, const void *arguments) {
    return nccl_run(comm, arguments);
}

static enum status nccl_bulk(struct comm *comm, struct stream *stream, const struct comm_call *call,
                             comm_work *work) {
    struct nccl *nccl = nccl_of(comm);
    lock(nccl);
    enum status status = issue(comm, stream, call->id.number, run_bulk, call, work);
    pthread_mutex_unlock(&nccl->lock);
    return status;
}

struct gather_arguments {
    const void *mine;
    void *all;
    size_t bytes;
};

static enum status run_gather(struct comm *comm, const void *arguments) {
    const struct gather_arguments *a = arguments;
    comm->traffic.bytes[COMM_CONTROL] += a->bytes * ((size_t)comm->world - 1);
    TRY_NCCL(comm, AllGather(a->mine, a->all, a->bytes, NCCL_UINT8, nccl_of(comm)->handle,
                             nccl_queue(&comm->stream)));
    return STATUS_OK;
}

static enum status wait_for(struct comm *comm, struct stream *stream, comm_work work) {
    struct nccl *nccl = nccl_of(comm);
    struct nccl_interval *interval;
    TRY(check(comm));
    TRY(nccl_interval_begin(&nccl->waits, stream, nccl->last_call, &interval));
    TRY(event_wait(&nccl->done[(work - 1) % NCCL_WORKS], stream));
    if (interval)
        TRY(event_record(&interval->end, stream));
    nccl_count_time(comm);
    return STATUS_OK;
}

static enum status nccl_gather(struct comm *comm, struct stream *stream, const struct comm_id *id,
                               const void *mine, size_t bytes, void *all) {
    const struct gather_arguments arguments = {mine, all, bytes};
    struct nccl *nccl = nccl_of(comm);
    comm_work work;
    lock(nccl);
    enum status status = issue(comm, stream, id->number, run_gather, &arguments, &work);
    if (status == STATUS_OK)
        status = wait_for(comm, stream, work);
    pthread_mutex_unlock(&nccl->lock);
    return status;
}

static enum status host_waits(struct comm *comm, comm_work work) {
    struct nccl *nccl = nccl_of(comm);
    TRY(event_synchronize(&nccl->done[(work - 1) % NCCL_WORKS])); // without the lock: nccl_watch may abort it
    lock(nccl);
    enum status status = check(comm);
    nccl_count_time(comm);
    pthread_mutex_unlock(&nccl->lock);
    return status;
}

static enum status nccl_wait(struct comm *comm, struct stream *stream, comm_work work) {
    struct nccl *nccl = nccl_of(comm);
    if (work == COMM_WORK_ALL)
        work = nccl->n_works;
    if (work == 0)
        return STATUS_OK;
    if (!stream)
        return host_waits(comm, work);
    lock(nccl);
    enum status status = wait_for(comm, stream, work);
    pthread_mutex_unlock(&nccl->lock);
    return status;
}

const struct comm_device_backend nccl_backend = {.name = "nccl",
                                                 .attach = nccl_attach,
                                                 .detach = nccl_detach,
                                                 .bulk = nccl_bulk,
                                                 .gather = nccl_gather,
                                                 .wait = nccl_wait,
                                                 .watch = nccl_watch};
