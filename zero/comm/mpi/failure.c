// See zero/comm/mpi/failure.h.
#include "zero/comm/mpi/failure.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "zero/comm/failure.h"
#include "zero/comm/mpi/data.h"

#define STAGGER_MS 1000 // between two ranks

static void send_notes(struct comm *comm) {
    struct mpi_data *mpi = mpi_of(comm);
    mpi->mailbox->note = mpi->failure;
    for (int rank = 0; rank < comm->world; rank++) {
        struct mailbox *mailbox = rank == comm->rank ? mpi->mailbox : mpi->peers[rank].mailbox;
        int nobody = 0;
        if (mailbox) {
            atomic_compare_exchange_strong(&mailbox->failed_by, &nobody, comm->rank + 1);
            continue;
        }
        pthread_mutex_lock(&mpi->mpi_lock);
        MPI_Isend(&mpi->failure, sizeof mpi->failure, MPI_BYTE, rank, TAG_FAILURE, mpi->everyone,
                  &mpi->note_requests[rank]);
        pthread_mutex_unlock(&mpi->mpi_lock);
    }
}

// Keeps a failure if it is the first that this rank knows of, and returns whether it is. The first one never
// changes: it may be in transit. Needs fail_lock.
static bool keep_note_locked(struct mpi_data *mpi, const struct failure_note *note) {
    bool first = !mpi->failed;
    if (first)
        mpi->failure = *note;
    mpi->failed = true;
    return first;
}

static bool keep_note(struct mpi_data *mpi, const struct failure_note *note) {
    pthread_mutex_lock(&mpi->fail_lock);
    bool first = keep_note_locked(mpi, note);
    pthread_mutex_unlock(&mpi->fail_lock);
    return first;
}

bool mpi_has_failed(struct comm *comm) {
    struct mpi_data *mpi = mpi_of(comm);
    int by = atomic_load(&mpi->mailbox->failed_by) - 1;
    if (by >= 0 && by != comm->rank)
        (void)keep_note(mpi, &mpi->peers[by].mailbox->note);
    pthread_mutex_lock(&mpi->fail_lock);
    bool failed = mpi->failed;
    pthread_mutex_unlock(&mpi->fail_lock);
    return failed;
}

enum status mpi_check_failure(struct comm *comm) {
    const struct failure_note *failure = &mpi_of(comm)->failure;
    if (!mpi_has_failed(comm))
        return STATUS_OK;
    enum status status = FAIL((enum status)failure->status, "rank %d: %s", failure->rank, failure->message);
    comm_note_known_failure(comm);
    return status;
}

void mpi_receive_failure_notes(struct comm *comm) {
    struct mpi_data *mpi = mpi_of(comm);
    struct failure_note note;
    int found = 0;
    MPI_Status from;
    if (mpi->linked == comm->world)
        return;
    pthread_mutex_lock(&mpi->mpi_lock);
    MPI_Iprobe(MPI_ANY_SOURCE, TAG_FAILURE, mpi->everyone, &found, &from);
    if (found)
        MPI_Recv(&note, sizeof note, MPI_BYTE, from.MPI_SOURCE, TAG_FAILURE, mpi->everyone,
                 MPI_STATUS_IGNORE);
    pthread_mutex_unlock(&mpi->mpi_lock);
    if (found)
        (void)keep_note(mpi, &note);
}

void mpi_abort(struct comm *comm, enum status status, const char *message) {
    struct failure_note note = {.rank = comm->rank, .status = (int)status};
    snprintf(note.message, sizeof note.message, "%s", message);
    if (keep_note(mpi_of(comm), &note))
        send_notes(comm);
}

// ---- printing

// Prints the failure if this rank `may` and is the first of its machine to do so. log.txt, which rank 0
// writes, gets the message in any case. Needs fail_lock, so that no other thread ends the process meanwhile:
// each asks whether a rank has failed first.
static void print_once_locked(struct comm *comm, bool may) {
    struct mpi_data *mpi = mpi_of(comm);
    int nobody = 0;
    if (mpi->printed)
        return;
    mpi->printed = true;
    bool prints = may && atomic_compare_exchange_strong(mpi->speaker, &nobody, comm->rank + 1);
    log_set_level(prints ? LOG_ERROR : LOG_QUIET);
    log_error("rank %d: %s", mpi->failure.rank, mpi->failure.message);
    log_set_level(LOG_QUIET);
}

void mpi_print_failure(struct comm *comm) {
    struct mpi_data *mpi = mpi_of(comm);
    pthread_mutex_lock(&mpi->fail_lock);
    print_once_locked(comm, !mpi->failure.gone && (comm->rank == 0 || mpi->peers[0].mailbox));
    pthread_mutex_unlock(&mpi->fail_lock);
}

// Prints before it sends: mpirun kills all ranks within a second of one that died. And it keeps the note and
// prints in one critical section: this rank's other threads take a rank that is gone to be reported already.
void mpi_report_dead(struct comm *comm, int rank, const char *message) {
    struct mpi_data *mpi = mpi_of(comm);
    struct failure_note note = {.rank = rank, .status = STATUS_FAILED, .gone = true};
    snprintf(note.message, sizeof note.message, "%s", message);
    pthread_mutex_lock(&mpi->fail_lock);
    bool first = keep_note_locked(mpi, &note);
    if (first)
        print_once_locked(comm, true);
    pthread_mutex_unlock(&mpi->fail_lock);
    if (first)
        send_notes(comm);
}

int64_t mpi_stagger_ms(int rank) {
    int64_t ms = 0;
    for (; rank > 0; rank /= 2)
        ms += STAGGER_MS;
    return ms;
}
