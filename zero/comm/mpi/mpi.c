// Opens and closes the MPI backend. Opening finds the ranks that share a machine, and places their mailboxes
// in a window of shared memory if they are to use it.
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
#include "zero/comm/mpi/bulk.h"
#include "zero/comm/mpi/control.h"
#include "zero/comm/mpi/data.h"
#include "zero/comm/mpi/failure.h"
#include "zero/comm/mpi/peer.h"
#include "zero/comm/mpi/staging.h"

#define PATIENCE_MS 5000 // how long ranks wait for each other to end: after success at least, else at most
#define LINGER_NS   200000000 // before leaving because of a dead rank, so that all see which one died first
#define NAP_NS      20000000  // of the thread that keeps the deadline
#define MOST_NAP_MS 1000      // that a nap counts for: it lasts longer where the process is suspended

// ---- closing

static void data_free(struct comm *comm) {
    struct mpi_data *mpi = mpi_of(comm);
    peers_close(comm);
    if (mpi->window == MPI_WIN_NULL)
        free(mpi->mailbox);
    free(mpi->peers);
    pthread_mutex_destroy(&mpi->mpi_lock);
    if (!mpi_has_failed(comm)) // else notes may still be being sent from this memory
        free(mpi);
}

// A limit on the time until MPI has closed. Its closing calls wait for all ranks, and one of them may be
// suspended by then; the watchdog, which notices that during a run, has ended before.
struct deadline {
    pthread_t thread;
    bool running;
    atomic_bool met;
    int64_t ms;
    int64_t turn_ms;               // after `ms`: for a rank whose turn comes first to end the others
    int exit_code;                 // of the process, if the deadline is not met
    char message[FAILURE_MESSAGE]; // printed before; "": nothing is
};

// False: the deadline was met.
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
    signal(SIGTERM, SIG_DFL); // by which mpirun ends the others once a rank has ended
    if (!wait_ms(deadline, deadline->turn_ms))
        return NULL;
    if (deadline->message[0] != 0) {
        log_set_level(LOG_ERROR);
        log_error("%s", deadline->message);
    }
    _exit(deadline->exit_code);
}

// For the closing calls of MPI, which wait for all ranks. After a failure they may take PATIENCE_MS; then
// this rank ends silently, as the failure has been printed. After success they may take as long as a rank may
// show no progress during a run. Once a rank has ended because of that, mpirun wakes the others, and ends
// them a second later: their turns are further apart.
static void deadline_begin(struct deadline *deadline, const struct comm *comm, enum status status) {
    const int64_t hang_ms = atomic_load(&comm->hang_ms);
    const bool failing = status_exit_code(status) != 0;
    *deadline =
        (struct deadline){.ms = PATIENCE_MS, .exit_code = status_exit_code(failing ? status : STATUS_FAILED)};
    if (!failing) {
        if (hang_ms == 0)
            return; // without limit
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

// All ranks end together, unless one is dead: MPI_Finalize would wait for it forever.
static void mpi_close(struct comm *comm, enum status status) {
    struct mpi_data *mpi = mpi_of(comm);
    bool failing = status_exit_code(status) != 0;
    struct deadline deadline;
    // Printed before any rank exits: when the first one does, mpirun kills the others.
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

// ---- opening

static enum status check_launcher(const struct comm *comm) {
    static const char *const signs[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++) {
        const char *value = getenv(signs[i]);
        if (value && atoi(value) != comm->world)
            return FAIL(STATUS_UNSUPPORTED,
                        "the launcher started %s ranks, but MPI sees %d: the launcher belongs to another MPI "
                        "than the "
                        "one that this program was built with; use the mpirun of that MPI",
                        value, comm->world);
    }
    return STATUS_OK;
}

// What the ranks of one machine exchange at the start.
struct introduction {
    int rank, process;
    uint64_t process_space; // the namespace of `process`: ids from another container mean nothing here
    uint64_t offset;        // of the mailbox from where the rank's memory in the window begins, in bytes
};

static uint64_t process_space(void) {
    struct stat information;
    return stat("/proc/self/ns/pid", &information) == 0 ? (uint64_t)information.st_ino : 0;
}

// Bytes from a rank's memory in the window to its mailbox, which starts on a page. MPI aligns neither, and
// each rank maps the window at another address, so the owner computes the offset and sends it to the others.
static size_t mailbox_offset(const void *base) {
    return -(uintptr_t)base % LINK_PAGE;
}

// Creates this rank's mailbox: in a window that all ranks of the machine map, or, without shared memory, in
// memory of its own.
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

// Finds the rings between this rank and another one of its machine, `local` by its local rank.
static enum status open_link(struct comm *comm, int local, const struct introduction *other) {
    struct mpi_data *mpi = mpi_of(comm);
    struct peer *peer = &mpi->peers[other->rank];
    MPI_Aint size;
    int unit;
    void *base;
    if (MPI_Win_shared_query(mpi->window, local, &size, &unit, &base) != MPI_SUCCESS)
        return FAIL(STATUS_FAILED, "MPI gives no access to the shared memory of rank %d", other->rank);
    peer->mailbox = (struct mailbox *)(void *)((char *)base + other->offset);
    // A mailbox has no ring for its own rank, so the rings of later ranks are one place lower.
    int here = comm->local_rank - (comm->local_rank > local), there = local - (local > comm->local_rank);
    peer->to = mailbox_ring(peer->mailbox, here, mpi->chunk_bytes);
    peer->from = mailbox_ring(mpi->mailbox, there, mpi->chunk_bytes);
    peer->control_to = mailbox_control_ring(peer->mailbox, mpi->linked, here, mpi->chunk_bytes);
    peer->control_from = mailbox_control_ring(mpi->mailbox, mpi->linked, there, mpi->chunk_bytes);
    return STATUS_OK;
}

static enum status find_machine(struct comm *comm) {
    struct mpi_data *mpi = mpi_of(comm);
    struct introduction mine = {comm->rank, (int)getpid(), process_space(), 0},
                        *all = allocate((size_t)comm->local_world, sizeof *all);
    enum status status = open_mailbox(comm, &mine.offset);
    if (status == STATUS_OK &&
        MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all, sizeof mine, MPI_BYTE,
                      mpi->machine) != MPI_SUCCESS) // after which every mailbox is ready
        status = FAIL(STATUS_FAILED, "MPI failed to gather the ranks of this machine");
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

// All ranks use the options of rank 0.
static void agree_on_options(struct comm *comm, const struct comm_options *options) {
    struct mpi_data *mpi = mpi_of(comm);
    struct comm_options agreed = *options;
    MPI_Bcast(&agreed, sizeof agreed, MPI_BYTE, 0, mpi->everyone);
    mpi->linked = agreed.shared_memory ? comm->local_world : 1;
    comm->path = agreed.path;
    comm->for_gpu = agreed.for_gpu;
    atomic_store(&comm->hang_ms, (long long)(agreed.hang_timeout_s * 1e3));
}

static enum status open_data(struct comm *comm, const struct comm_options *options) {
    struct mpi_data *mpi = mpi_of(comm);
    mpi->window = MPI_WIN_NULL;
    MPI_Comm_dup(MPI_COMM_WORLD, &mpi->everyone);
    MPI_Comm_set_errhandler(mpi->everyone, MPI_ERRORS_RETURN);
    MPI_Comm_rank(mpi->everyone, &comm->rank);
    MPI_Comm_size(mpi->everyone, &comm->world);
    TRY(check_launcher(comm));
    MPI_Comm_split_type(mpi->everyone, MPI_COMM_TYPE_SHARED, comm->rank, MPI_INFO_NULL, &mpi->machine);
    MPI_Comm_set_errhandler(mpi->machine, MPI_ERRORS_RETURN);
    MPI_Comm_rank(mpi->machine, &comm->local_rank);
    MPI_Comm_size(mpi->machine, &comm->local_world);
    agree_on_options(comm, options);
    mpi->chunk_bytes = link_chunk_bytes(comm->world, comm->for_gpu);
    mpi->spins = comm->local_world <= processors_of_machine() ? LINK_SPINS : 0;
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
    // This failure cannot be sent to other ranks yet: MPI ends them all.
    log_error("%s", status_message());
    MPI_Abort(MPI_COMM_WORLD, status_exit_code(status));
    return status;
}
