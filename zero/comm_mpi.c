// Ranks started by mpirun. Startup finds out who shares a machine and sets the mailboxes up in a window of
// shared memory; a thread watches over the others: it notices a rank that is gone without a word, and ends
// the process when a failure is known but the rest of the program does not come to see it in time.
#include "zero/comm_mpi.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/processors.h"

#define WATCH_NS   50000000
#define PATIENCE_S 5 // from a failure anywhere to the end of every process

// ---- failures

void mpi_note_failure(struct comm *comm, int rank, enum status status, const char *message) {
    struct mpi_data *mpi = mpi_of(comm);
    pthread_mutex_lock(&mpi->fail_lock);
    if (!mpi->failed) {
        mpi->failed = true;
        mpi->failed_rank = rank;
        mpi->status = status;
        snprintf(mpi->message, sizeof mpi->message, "%s", message);
    }
    pthread_mutex_unlock(&mpi->fail_lock);
}

// Takes over what a rank on this machine has told.
static void read_mailbox(struct comm *comm) {
    struct mpi_data *mpi = mpi_of(comm);
    int rank = atomic_load(&mpi->mailbox->failed_by) - 1;
    if (rank >= 0 && mpi->peers[rank].mailbox)
        mpi_note_failure(comm, rank, (enum status)mpi->peers[rank].mailbox->status,
                         mpi->peers[rank].mailbox->message);
}

enum status mpi_check(struct comm *comm) {
    struct mpi_data *mpi = mpi_of(comm);
    if (atomic_load(&mpi->mailbox->failed_by))
        read_mailbox(comm);
    pthread_mutex_lock(&mpi->fail_lock);
    bool failed = mpi->failed;
    pthread_mutex_unlock(&mpi->fail_lock);
    if (!failed)
        return STATUS_OK;
    comm->failed_together = true;
    return FAIL(mpi->status, "rank %d: %s", mpi->failed_rank, mpi->message);
}

struct failure_note {
    int status;
    char message[LINK_MESSAGE];
};

void mpi_receive_abort(struct comm *comm) {
    struct mpi_data *mpi = mpi_of(comm);
    struct failure_note note;
    MPI_Status from;
    int there = 0;
    if (comm->local_world == comm->world)
        return;
    pthread_mutex_lock(&mpi->mpi_lock);
    MPI_Iprobe(MPI_ANY_SOURCE, TAG_FAILURE, mpi->everyone, &there, &from);
    if (there)
        MPI_Recv(&note, sizeof note, MPI_BYTE, from.MPI_SOURCE, TAG_FAILURE, mpi->everyone,
                 MPI_STATUS_IGNORE);
    pthread_mutex_unlock(&mpi->mpi_lock);
    if (there)
        mpi_note_failure(comm, from.MPI_SOURCE, (enum status)note.status, note.message);
}

// Tells all other ranks that `rank` failed (this one, or one on this machine that cannot tell itself).
static void tell_others(struct comm *comm, int rank, enum status status, const char *message) {
    struct mpi_data *mpi = mpi_of(comm);
    struct mailbox *source = rank == comm->rank ? mpi->mailbox : mpi->peers[rank].mailbox;
    source->status = status;
    snprintf(source->message, sizeof source->message, "%s", message);
    struct failure_note note = {.status = status};
    snprintf(note.message, sizeof note.message, "%s", message);
    for (int other = 0; other < comm->world; other++) {
        struct mailbox *mailbox = other == comm->rank ? mpi->mailbox : mpi->peers[other].mailbox;
        int nobody = 0;
        if (mailbox) {
            atomic_compare_exchange_strong(&mailbox->failed_by, &nobody, rank + 1);
            continue;
        }
        MPI_Request request;
        pthread_mutex_lock(&mpi->mpi_lock);
        // Small enough to leave at once; nobody is there to wait for it later.
        MPI_Isend(&note, sizeof note, MPI_BYTE, other, TAG_FAILURE, mpi->everyone, &request);
        MPI_Request_free(&request);
        pthread_mutex_unlock(&mpi->mpi_lock);
    }
}

static void mpi_abort(struct comm *comm, enum status status, const char *message) {
    tell_others(comm, comm->rank, status, message);
    mpi_note_failure(comm, comm->rank, status, message);
}

// ---- watching

// Gone, or a zombie that nobody has buried yet.
static bool process_is_gone(int process) {
    char path[64], state = 0;
    if (kill(process, 0) != 0 && errno == ESRCH)
        return true;
    snprintf(path, sizeof path, "/proc/%d/stat", process);
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    int found = fscanf(file, "%*d (%*[^)]) %c", &state);
    fclose(file);
    return found == 1 && (state == 'Z' || state == 'X');
}

// Rank 0 tells the person. Where it is the one that is gone, the lowest rank left beside it does.
static bool is_speaker(struct comm *comm, int gone) {
    struct mpi_data *mpi = mpi_of(comm);
    for (int rank = 0; rank < comm->rank; rank++)
        if (rank == 0 ? gone != 0 : gone == 0 && mpi->peers[rank].mailbox)
            return false;
    return true;
}

static void look_for_the_dead(struct comm *comm) {
    struct mpi_data *mpi = mpi_of(comm);
    for (int rank = 0; rank < comm->world; rank++) {
        struct mailbox *mailbox = mpi->peers[rank].mailbox;
        if (!mailbox || atomic_load(&mailbox->finished) || !process_is_gone(atomic_load(&mailbox->process)))
            continue;
        char message[256];
        snprintf(message, sizeof message,
                 "process %d ended without a word; was it killed, perhaps by the system for want of memory? "
                 "The last checkpoint stands: the same command goes on from it",
                 atomic_load(&mailbox->process));
        mpi->dead = true;
        mpi_note_failure(comm, rank, STATUS_FAILED, message);
        tell_others(comm, rank, STATUS_FAILED, message);
        return;
    }
}

// Said here and not where the program ends: mpirun kills the ranks that are left within a second.
static void tell_the_person(struct comm *comm) {
    struct mpi_data *mpi = mpi_of(comm);
    if (is_speaker(comm, mpi->dead ? mpi->failed_rank : -1)) {
        log_set_level(LOG_ERROR);
        log_error("rank %d: %s", mpi->failed_rank, mpi->message);
    }
    log_set_level(LOG_QUIET);
}

static void *watch(void *argument) {
    struct comm *comm = argument;
    struct mpi_data *mpi = mpi_of(comm);
    const struct timespec nap = {.tv_nsec = WATCH_NS};
    double failed_at = 0;
    while (!atomic_load(&mpi->stop_watching)) {
        nanosleep(&nap, NULL);
        if (atomic_load(&mpi->mailbox->failed_by))
            read_mailbox(comm);
        mpi_receive_abort(comm);
        pthread_mutex_lock(&mpi->fail_lock);
        bool failed = mpi->failed;
        pthread_mutex_unlock(&mpi->fail_lock);
        if (!failed) {
            look_for_the_dead(comm);
            if (mpi->dead)
                tell_the_person(comm);
            continue;
        }
        failed_at = failed_at > 0 ? failed_at : clock_monotonic_s();
        if (clock_monotonic_s() - failed_at > PATIENCE_S) {
            if (!mpi->dead)
                tell_the_person(comm);
            _exit(status_exit_code(mpi->status));
        }
    }
    return NULL;
}

// ---- closing

static void stop_watching(struct mpi_data *mpi) {
    if (!mpi->watching)
        return;
    atomic_store(&mpi->stop_watching, true);
    pthread_join(mpi->watcher, NULL);
    mpi->watching = false;
}

static void data_free(struct comm *comm) {
    struct mpi_data *mpi = mpi_of(comm);
    if (mpi->peers)
        peers_close(comm);
    free(mpi->peers);
    pthread_mutex_destroy(&mpi->mpi_lock);
    pthread_mutex_destroy(&mpi->fail_lock);
    free(mpi);
}

// All ranks end together, unless one is gone: then MPI would wait for it for ever.
static void mpi_close(struct comm *comm, enum status status) {
    struct mpi_data *mpi = mpi_of(comm);
    // Said before any rank ends: with the first that does mpirun ends the others, and what they say.
    if (status_exit_code(status) != 0)
        log_error("%s", status_message());
    log_set_level(LOG_QUIET);
    atomic_store(&mpi->mailbox->finished, 1);
    stop_watching(mpi);
    bool gone = mpi->dead;
    if (mpi->failed)
        alarm(PATIENCE_S); // its default ends the process
    MPI_Win window = mpi->window;
    MPI_Comm everyone = mpi->everyone, machine = mpi->machine;
    data_free(comm);
    if (gone)
        return;
    MPI_Barrier(everyone);
    MPI_Win_free(&window);
    MPI_Comm_free(&machine);
    MPI_Comm_free(&everyone);
    MPI_Finalize();
    alarm(0);
}

// ---- opening

static enum status check_launcher(const struct comm *comm) {
    static const char *const signs[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++) {
        const char *value = getenv(signs[i]);
        if (value && atoi(value) != comm->world)
            return FAIL(
                STATUS_UNSUPPORTED,
                "the launcher started %s ranks, but MPI sees %d: it belongs to another MPI than the one "
                "that this program was built with; use that one's mpirun",
                value, comm->world);
    }
    return STATUS_OK;
}

// A window's pieces start anywhere, for each rank at another address: the owner says how far in its mailbox
// is, so that it starts a page.
static size_t mailbox_offset(const void *piece) {
    return -(uintptr_t)piece % LINK_PAGE;
}

// The mailboxes of this machine's ranks, one piece each of a window that all of them map.
static enum status open_window(struct comm *comm) {
    struct mpi_data *mpi = mpi_of(comm);
    size_t bytes = mailbox_pages_bytes(comm->local_world, mpi->chunk_bytes) + LINK_PAGE;
    void *base = NULL;
    struct place {
        int rank, offset;
    } mine = {.rank = comm->rank}, *places = calloc((size_t)comm->local_world, sizeof *places);
    if (!places)
        return FAIL(STATUS_FAILED, "out of memory for %d ranks", comm->local_world);
    int error = MPI_Win_allocate_shared((MPI_Aint)bytes, 1, MPI_INFO_NULL, mpi->machine, &base, &mpi->window);
    if (error == MPI_SUCCESS) {
        mine.offset = (int)mailbox_offset(base);
        mpi->mailbox = (struct mailbox *)(void *)((char *)base + mine.offset);
        mailbox_init(mpi->mailbox, comm->local_world, mpi->chunk_bytes);
        MPI_Allgather(&mine, 2, MPI_INT, places, 2, MPI_INT, mpi->machine); // and all are set up
    }
    for (int local = 0; local < comm->local_world && error == MPI_SUCCESS; local++) {
        MPI_Aint size;
        int unit;
        void *other;
        if (local == comm->local_rank)
            continue;
        error = MPI_Win_shared_query(mpi->window, local, &size, &unit, &other);
        if (error != MPI_SUCCESS)
            break;
        struct peer *peer = &mpi->peers[places[local].rank];
        peer->mailbox = (struct mailbox *)(void *)((char *)other + places[local].offset);
        // A mailbox has no ring for its own rank: those after it move up.
        peer->to =
            mailbox_ring(peer->mailbox, comm->local_rank - (comm->local_rank > local), mpi->chunk_bytes);
        peer->from = mailbox_ring(mpi->mailbox, local - (local > comm->local_rank), mpi->chunk_bytes);
    }
    free(places);
    return error == MPI_SUCCESS
               ? STATUS_OK
               : FAIL(STATUS_FAILED,
                      "MPI gave no shared memory of %zu bytes a rank; set comm.shared_memory=false", bytes);
}

static enum status open_data(struct comm *comm, const struct comm_options *options) {
    struct mpi_data *mpi = mpi_of(comm);
    MPI_Comm_dup(MPI_COMM_WORLD, &mpi->everyone);
    MPI_Comm_set_errhandler(mpi->everyone, MPI_ERRORS_RETURN);
    MPI_Comm_rank(mpi->everyone, &comm->rank);
    MPI_Comm_size(mpi->everyone, &comm->world);
    TRY(check_launcher(comm));
    int share = options->shared_memory; // as all agree, even where they were told different things
    MPI_Allreduce(MPI_IN_PLACE, &share, 1, MPI_INT, MPI_MIN, mpi->everyone);
    if (share)
        MPI_Comm_split_type(mpi->everyone, MPI_COMM_TYPE_SHARED, comm->rank, MPI_INFO_NULL, &mpi->machine);
    else
        MPI_Comm_split(mpi->everyone, comm->rank, 0, &mpi->machine); // each as on a machine of its own
    MPI_Comm_set_errhandler(mpi->machine, MPI_ERRORS_RETURN);
    MPI_Comm_rank(mpi->machine, &comm->local_rank);
    MPI_Comm_size(mpi->machine, &comm->local_world);
    mpi->chunk_bytes = link_chunk_bytes(comm->world);
    mpi->spins = comm->local_world <= processors_of_machine() ? LINK_SPINS : 0;
    mpi->peers = calloc((size_t)comm->world, sizeof *mpi->peers);
    if (!mpi->peers)
        return FAIL(STATUS_FAILED, "out of memory for links to %d ranks", comm->world - 1);
    TRY(open_window(comm));
    TRY(peers_open(comm));
    mpi->watching = pthread_create(&mpi->watcher, NULL, watch, comm) == 0;
    return mpi->watching ? STATUS_OK : FAIL(STATUS_FAILED, "cannot start the thread that watches over ranks");
}

static const struct comm_backend mpi_backend = {"mpi",   mpi_attach,    mpi_detach, mpi_bulk, mpi_gather,
                                                mpi_sum, mpi_broadcast, mpi_abort,  mpi_close};

enum status comm_open_mpi(const struct comm_options *options, struct comm **out) {
    int provided;
    *out = NULL;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS)
        return FAIL(STATUS_FAILED, "MPI could not start");
    struct comm *comm = calloc(1, sizeof *comm);
    struct mpi_data *mpi = calloc(1, sizeof *mpi);
    enum status status = STATUS_OK;
    if (!comm || !mpi)
        status = FAIL(STATUS_FAILED, "out of memory for a communicator");
    else if (provided < MPI_THREAD_SERIALIZED)
        status = FAIL(STATUS_UNSUPPORTED, "this MPI lets no thread but the first communicate "
                                          "(MPI_THREAD_SERIALIZED is wanted)");
    if (status == STATUS_OK) {
        pthread_mutex_init(&mpi->mpi_lock, NULL);
        pthread_mutex_init(&mpi->fail_lock, NULL);
        *comm = (struct comm){.backend = &mpi_backend, .data = mpi, .eager = true};
        status = open_data(comm, options);
    }
    if (status == STATUS_OK) {
        *out = comm;
        return STATUS_OK;
    }
    // What fails here fails before ranks can tell each other: MPI ends them all.
    log_error("%s", status_message());
    MPI_Abort(MPI_COMM_WORLD, status_exit_code(status));
    return status;
}

size_t comm_memory_bytes(int world, int local_world) {
    size_t chunk = link_chunk_bytes(world);
    if (world == 1)
        return 0;
    return mailbox_pages_bytes(local_world, chunk) + LINK_PAGE +
           (size_t)(world - local_world) * 2 * LINK_DEPTH * link_pages_bytes(chunk);
}
