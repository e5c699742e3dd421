// See zero/comm/mpi/failure.h.
#include "zero/comm/mpi/failure.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "zero/comm/mpi/mpi_internal.h"

// End of the messages about a dead or hanging rank: what it means for the run.
#define KEPT "Checkpoints are unaffected: the same command resumes from the last one, if there is one"

#define WATCH_NS    20000000 // time between two polls of the watchdog
#define PATIENCE_MS 5000     // time after which a process ends itself once any rank has failed
#define COMPARE_MS  1000     // a wait of this length makes the watchdog compare the two ranks' collectives
#define ALIVE_MS    5000     // a live process answers, or shows a heartbeat, within this time
#define MOST_LOOKS  16       // maximum processes checked per poll; each check reads a file in /proc
#define GAP_MS      5000     // a pause of the watchdog that shows that this process was suspended
#define NOTE_CALLS  10       // polls for other ranks' notes before a note is left: one may not suffice
#define STAGGER_MS  1000     // unit of mpi_stagger_ms
#define TURN_MS     1000     // time between the turns of two ranks to print a failure
#define MOMENT_MS   200 // head start of rank 0 in printing, if ranks on two machines find a failure at once

// What the watchdog knows about another rank that is reached by messages. Times are values of
// rank_state_now_ms.
struct watched {
    struct rank_report report;     // the last report received from it
    int64_t asked_ms, answered_ms; // when it was last asked, and when it last sent a report; 0: never
    MPI_Request request;           // request of the last question or answer sent to it
    struct rank_report answer;     // the report in that message
};

struct watchdog {
    pthread_t thread;
    atomic_bool stop;
    struct watched *ranks;    // (world)
    int64_t inquiry_ms;       // when all ranks were asked for a report; 0: no inquiry is open
    int64_t patient_until_ms; // no new inquiry before this time: the last one found ranks at work
    int64_t failed_ms;        // when a failure was first seen; 0: none
    int64_t last_look_ms;     // when the thread last ran; 0: never
    int next_process;         // the rank whose process is checked next
    double disk_named_s;      // clock_monotonic_s at the start of the disk wait that was last reported
};

// ---- notes

// Sends `data` to all other ranks without waiting. `data` must stay valid until the process ends: a dead rank
// never receives the message.
static void send_to_all(struct comm *comm, const void *data, size_t bytes) {
    struct mpi_data *mpi = mpi_of(comm);
    MPI_Request request;
    pthread_mutex_lock(&mpi->mpi_lock);
    for (int rank = 0; rank < comm->world; rank++)
        if (rank != comm->rank &&
            MPI_Isend(data, (int)bytes, MPI_BYTE, rank, TAG_FAILURE, mpi->everyone, &request) == MPI_SUCCESS)
            MPI_Request_free(&request);
    pthread_mutex_unlock(&mpi->mpi_lock);
}

// Records a failure if it is the first that this rank knows. Returns whether it is.
static bool keep_note(struct mpi_data *mpi, const struct failure_note *note) {
    int none = 0;
    if (!atomic_compare_exchange_strong(&mpi->failed, &none, 1))
        return false;
    mpi->failure = *note;
    atomic_store(&mpi->failed, 2);
    return true;
}

static void receive_notes(struct comm *comm) {
    struct mpi_data *mpi = mpi_of(comm);
    for (int found = 1; found;) {
        struct failure_note note = {.status = STATUS_OK}; // unchanged if the message is empty
        MPI_Status from;
        pthread_mutex_lock(&mpi->mpi_lock);
        MPI_Iprobe(MPI_ANY_SOURCE, TAG_FAILURE, mpi->everyone, &found, &from);
        if (found)
            MPI_Recv(&note, sizeof note, MPI_BYTE, from.MPI_SOURCE, TAG_FAILURE, mpi->everyone,
                     MPI_STATUS_IGNORE);
        pthread_mutex_unlock(&mpi->mpi_lock);
        if (found && note.status == STATUS_OK)
            atomic_store(&mpi->printed_elsewhere, true);
        else if (found)
            (void)keep_note(mpi, &note);
    }
}

// Leaves a note of a failure, unless a note from another rank has arrived: this failure may follow from
// that one. MPI may need a few calls before it hands over a note that has reached this machine.
static void leave_note(struct comm *comm, int rank, enum status status, bool gone, const char *message) {
    struct mpi_data *mpi = mpi_of(comm);
    struct failure_note note = {.from = comm->rank, .rank = rank, .status = (int)status, .gone = gone};
    snprintf(note.message, sizeof note.message, "%s", message);
    for (int call = 0; call < NOTE_CALLS; call++)
        receive_notes(comm);
    if (keep_note(mpi, &note))
        send_to_all(comm, &mpi->failure, sizeof mpi->failure);
}

void mpi_abort(struct comm *comm, enum status status, const char *message) {
    char placed[COMM_MESSAGE_BYTES];
    snprintf(placed, sizeof placed, "%s%s", comm->place, message);
    leave_note(comm, comm->rank, status, false, placed);
}

bool mpi_has_failed(const struct comm *comm) {
    return atomic_load(&mpi_of(comm)->failed) == 2;
}

enum status mpi_check_failure(struct comm *comm) {
    const struct failure_note *failure = &mpi_of(comm)->failure;
    if (!mpi_has_failed(comm))
        return STATUS_OK;
    enum status status = FAIL((enum status)failure->status, "rank %d: %s", failure->rank, failure->message);
    comm_note_known_failure(comm);
    return status;
}

int64_t mpi_stagger_ms(int rank) {
    int64_t ms = 0;
    for (; rank > 0; rank /= 2)
        ms += STAGGER_MS;
    return ms;
}

// ---- printing

// True for a process id that does not exist, or that is an unreaped zombie.
static bool is_dead(int process) {
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

// True for this rank, and for a rank on this machine whose process this rank can check.
static bool is_here(const struct comm *comm, int rank) {
    return rank == comm->rank || mpi_of(comm)->peers[rank].process > 0;
}

// Returns when this rank prints a failure that no other rank has printed, in ms after it learned of the
// failure. On the machine where the failure was found, the lowest living rank prints at once. Each later
// rank waits one second more, and ranks of other machines another second.
static int64_t turn_ms(const struct comm *comm) {
    const struct mpi_data *mpi = mpi_of(comm);
    const struct failure_note *failure = &mpi->failure;
    int64_t ms = comm->rank == 0 || failure->gone ? 0 : MOMENT_MS;
    ms += is_here(comm, failure->from) ? 0 : TURN_MS;
    for (int rank = 0; rank < comm->rank; rank++)
        if (is_here(comm, rank) && !(failure->gone && failure->rank == rank) &&
            !is_dead(mpi->peers[rank].process))
            ms += TURN_MS;
    return ms < PATIENCE_MS ? ms : PATIENCE_MS;
}

// Prints the failure when it is this rank's turn, unless another rank has printed it. Adds it to log.txt,
// which rank 0 writes, in both cases.
static void print_in_turn(struct comm *comm, int64_t known_ms) {
    struct mpi_data *mpi = mpi_of(comm);
    const bool prints = !atomic_load(&mpi->printed_elsewhere);
    if (atomic_load(&mpi->printed) || (prints && known_ms < turn_ms(comm)))
        return;
    log_set_level(prints ? LOG_ERROR : LOG_QUIET);
    log_error("rank %d: %s", mpi->failure.rank, mpi->failure.message);
    log_set_level(LOG_QUIET);
    if (prints)
        send_to_all(comm, NULL, 0);
    atomic_store(&mpi->printed, true);
}

void mpi_wait_until_printed(struct comm *comm) {
    while (!atomic_load(&mpi_of(comm)->printed))
        nanosleep(&(struct timespec){.tv_nsec = WATCH_NS / 4}, NULL);
}

// ---- dead processes

static void look_for_dead_processes(struct comm *comm) {
    struct mpi_data *mpi = mpi_of(comm);
    int n = comm->world < MOST_LOOKS ? comm->world : MOST_LOOKS;
    for (int i = 0; i < n; i++) {
        int rank = (mpi->watchdog->next_process + i) % comm->world, process = mpi->peers[rank].process;
        char message[FAILURE_MESSAGE];
        if (process == 0 || !is_dead(process))
            continue;
        snprintf(message, sizeof message,
                 "process %d ended without reporting an error; it may have been killed, for example because "
                 "the machine ran out of memory. " KEPT,
                 process);
        leave_note(comm, rank, STATUS_FAILED, true, message);
        return;
    }
    mpi->watchdog->next_process = (mpi->watchdog->next_process + n) % comm->world;
}

// ---- questions and answers, between ranks without shared memory

static void send_state(struct comm *comm, int rank, int tag) {
    struct mpi_data *mpi = mpi_of(comm);
    struct watched *other = &mpi->watchdog->ranks[rank];
    int done = 0;
    pthread_mutex_lock(&mpi->mpi_lock);
    // Send nothing while the last message to that rank is in flight: it serves the same purpose.
    MPI_Test(&other->request, &done, MPI_STATUS_IGNORE);
    if (done) {
        rank_state_report(comm->state, &other->answer);
        MPI_Isend(&other->answer, sizeof other->answer, MPI_BYTE, rank, tag, mpi->everyone, &other->request);
    }
    pthread_mutex_unlock(&mpi->mpi_lock);
}

// Receives a question or an answer if one has arrived. Returns its sender's rank, or -1.
static int receive_state(struct comm *comm, int tag) {
    struct mpi_data *mpi = mpi_of(comm);
    struct rank_report report;
    MPI_Status from;
    int there = 0;
    pthread_mutex_lock(&mpi->mpi_lock);
    MPI_Iprobe(MPI_ANY_SOURCE, tag, mpi->everyone, &there, &from);
    if (there)
        MPI_Recv(&report, sizeof report, MPI_BYTE, from.MPI_SOURCE, tag, mpi->everyone, MPI_STATUS_IGNORE);
    pthread_mutex_unlock(&mpi->mpi_lock);
    if (!there)
        return -1;
    mpi->watchdog->ranks[from.MPI_SOURCE].report = report;
    mpi->watchdog->ranks[from.MPI_SOURCE].answered_ms = rank_state_now_ms();
    return from.MPI_SOURCE;
}

static void serve_messages(struct comm *comm) {
    int rank;
    receive_notes(comm);
    if (mpi_of(comm)->linked == comm->world)
        return;
    while ((rank = receive_state(comm, TAG_QUESTION)) >= 0)
        send_state(comm, rank, TAG_ANSWER);
    while (receive_state(comm, TAG_ANSWER) >= 0)
        ;
}

static void ask(struct comm *comm, int rank) {
    struct mpi_data *mpi = mpi_of(comm);
    if (mpi->peers[rank].mailbox || rank == comm->rank)
        return;
    mpi->watchdog->ranks[rank].asked_ms = rank_state_now_ms();
    send_state(comm, rank, TAG_QUESTION);
}

// Gets a rank's latest report, from shared memory or an answer. Returns false if the rank has shown no sign
// of life since `since_ms`.
static bool report_since(struct comm *comm, int rank, int64_t since_ms, struct rank_report *out) {
    struct mpi_data *mpi = mpi_of(comm);
    if (rank == comm->rank || mpi->peers[rank].mailbox) {
        rank_state_report(rank == comm->rank ? comm->state : &mpi->peers[rank].mailbox->state, out);
        return rank_state_now_ms() - out->heartbeat_age_ms >= since_ms;
    }
    const struct watched *other = &mpi->watchdog->ranks[rank];
    *out = other->report;
    return other->answered_ms > 0 && other->answered_ms >= since_ms;
}

// ---- ranks in different collectives

// Reports a failure if this rank waits for a rank that has issued another collective under the same number.
// The wait would never end.
static void compare_calls(struct comm *comm, enum comm_channel channel, const struct rank_report *own) {
    struct mpi_data *mpi = mpi_of(comm);
    int peer = own->waits[channel].peer;
    uint64_t call = own->waits[channel].call;
    enum comm_collective here, there;
    struct rank_report report;
    char message[FAILURE_MESSAGE];
    if (!mpi->peers[peer].mailbox && rank_state_now_ms() - mpi->watchdog->ranks[peer].asked_ms > COMPARE_MS)
        ask(comm, peer);
    if (!report_since(comm, peer, 0, &report) || !report_collective(own, call, &here) ||
        !report_collective(&report, call, &there) || here == there)
        return;
    snprintf(message, sizeof message,
             "collective %" PRIu64 " is %s here, but %s on rank %d: the ranks are in different collectives. "
             "Start all of them with the same program, options and files",
             call, comm_collective_name(here), comm_collective_name(there), peer);
    mpi_abort(comm, STATUS_FAILED, message);
}

// ---- hanging ranks

// Describes why a rank keeps the others waiting; NULL if it does not.
static const char *describe_hang(const struct rank_report *report, bool answers, int64_t limit_ms) {
    if (!answers)
        return "does not respond (its process is suspended, or its machine is down)";
    if (!report_is_waiting(report) && report->progress_age_ms > limit_ms)
        return "runs, but makes no progress";
    return NULL;
}

// Evaluates the reports of all ranks. Reports a failure if some ranks keep the others waiting, or if all
// ranks wait for each other. Otherwise some rank is working, and nothing is wrong.
static void conclude_inquiry(struct comm *comm, enum comm_channel channel, const struct rank_report *own,
                             int64_t limit_ms) {
    struct watchdog *watchdog = mpi_of(comm)->watchdog;
    enum comm_collective collective = N_COLLECTIVES;
    struct text message = {0};
    int first = -1, n = 0;
    bool at_work = false;
    (void)report_collective(own, own->waits[channel].call, &collective);
    for (int rank = 0; rank < comm->world; rank++) {
        struct rank_report report;
        bool answers = rank == comm->rank || report_since(comm, rank, watchdog->inquiry_ms, &report);
        const char *what = rank == comm->rank ? NULL : describe_hang(&report, answers, limit_ms);
        // A waiting rank shows no progress either, so this is true only for a working rank.
        at_work = at_work || (rank != comm->rank && answers && report.progress_age_ms <= limit_ms);
        if (!what)
            continue;
        if (first < 0)
            text_add(&message,
                     "%s. The other ranks have waited for it in collective %" PRIu64 ", %s, for %.0f s "
                     "(the limit is %g s: run.hang_timeout_s, or twice a step)",
                     what, own->waits[channel].call, comm_collective_name(collective),
                     (double)own->waits[channel].age_ms / 1e3, (double)limit_ms / 1e3);
        else if (n < 8)
            text_add(&message, "%s %d", n == 1 ? "; the same is true of rank" : ",", rank);
        first = first < 0 ? rank : first;
        n++;
    }
    watchdog->inquiry_ms = 0;
    watchdog->patient_until_ms = rank_state_now_ms() + limit_ms;
    if (first < 0 && !at_work) {
        first = comm->rank;
        text_add(&message,
                 "all ranks have waited for each other in collective %" PRIu64 ", %s, for %.0f s "
                 "(the limit is %g s: run.hang_timeout_s, or twice a step)",
                 own->waits[channel].call, comm_collective_name(collective),
                 (double)own->waits[channel].age_ms / 1e3, (double)limit_ms / 1e3);
    }
    text_add(&message, ". " KEPT);
    if (first >= 0)
        leave_note(comm, first, STATUS_FAILED, true, message.data);
    text_free(&message);
}

static void look_for_hangs(struct comm *comm, enum comm_channel channel, const struct rank_report *own) {
    struct watchdog *watchdog = mpi_of(comm)->watchdog;
    int64_t limit_ms = atomic_load(&comm->failures.hang_ms), now = rank_state_now_ms();
    if (limit_ms == 0 || own->waits[channel].age_ms < limit_ms + mpi_stagger_ms(comm->rank))
        return;
    if (watchdog->inquiry_ms == 0 && now >= watchdog->patient_until_ms) {
        watchdog->inquiry_ms = now;
        for (int rank = 0; rank < comm->world; rank++)
            ask(comm, rank);
    } else if (watchdog->inquiry_ms > 0 && now - watchdog->inquiry_ms > ALIVE_MS) {
        conclude_inquiry(comm, channel, own, limit_ms);
    }
}

static void look_at_own_waits(struct comm *comm) {
    struct rank_report own;
    bool waits = false;
    rank_state_report(comm->state, &own);
    for (int channel = 0; channel < N_CHANNELS; channel++) {
        if (own.waits[channel].peer < 0 || own.waits[channel].age_ms < COMPARE_MS)
            continue;
        waits = true;
        compare_calls(comm, (enum comm_channel)channel, &own);
        look_for_hangs(comm, (enum comm_channel)channel, &own);
    }
    if (!waits)
        mpi_of(comm)->watchdog->inquiry_ms = 0;
}

// ---- a slow disk

// A rank that waits for its disk is not hanging, however long ago its last progress was: ending the run would
// not make the disk answer. Once the wait is as long as a hang, the rank prints what it waits for. It does
// not use the log, whose file may be on that disk.
static void watch_disk(struct comm *comm) {
    struct watchdog *watchdog = mpi_of(comm)->watchdog;
    const double limit_s = (double)atomic_load(&comm->failures.hang_ms) / 1e3;
    char path[1024];
    double since_s;
    if (!file_disk_waits(path, sizeof path, &since_s))
        return;
    const double waited_s = clock_monotonic_s() - since_s;
    rank_state_progress(comm->state);
    if (limit_s == 0 || waited_s < limit_s || since_s <= watchdog->disk_named_s)
        return;
    watchdog->disk_named_s = since_s;
    dprintf(STDERR_FILENO,
            "train: warning: rank %d has waited for the disk for %.0f s: %s; the run goes on when the disk "
            "answers\n",
            comm->rank, waited_s, path);
}

// ---- the thread

static void watch_device(struct comm *comm) {
    pthread_mutex_lock(&comm->watch_lock);
    if (comm->device_data)
        comm->device_backend->watch(comm);
    pthread_mutex_unlock(&comm->watch_lock);
}

static void *work(void *argument) {
    struct comm *comm = argument;
    struct mpi_data *mpi = mpi_of(comm);
    struct watchdog *watchdog = mpi->watchdog;
    const struct timespec nap = {.tv_nsec = WATCH_NS};
    for (;;) {
        nanosleep(&nap, NULL);
        // Checked after the nap, which may have been a long suspension: another rank may have ended
        // meanwhile.
        if (atomic_load(&watchdog->stop))
            return NULL;
        int64_t now = rank_state_now_ms();
        atomic_store(&comm->state->heartbeat_ms, now);
        if (now - watchdog->last_look_ms > GAP_MS) // reports may be old only because of the suspension
            watchdog->patient_until_ms = now + atomic_load(&comm->failures.hang_ms);
        watchdog->last_look_ms = now;
        watch_disk(comm);
        serve_messages(comm);
        watch_device(comm);
        if (!mpi_has_failed(comm)) {
            look_for_dead_processes(comm);
            look_at_own_waits(comm);
        }
        if (!mpi_has_failed(comm))
            continue;
        watchdog->failed_ms = watchdog->failed_ms ? watchdog->failed_ms : now;
        print_in_turn(comm, now - watchdog->failed_ms);
        if (now - watchdog->failed_ms > PATIENCE_MS)
            _exit(status_exit_code((enum status)mpi->failure.status));
    }
}

enum status mpi_watchdog_start(struct comm *comm) {
    struct watchdog *watchdog = mpi_of(comm)->watchdog = allocate(1, sizeof *watchdog);
    watchdog->ranks = allocate((size_t)comm->world, sizeof *watchdog->ranks);
    for (int rank = 0; rank < comm->world; rank++)
        watchdog->ranks[rank].request = MPI_REQUEST_NULL;
    return pthread_create(&watchdog->thread, NULL, work, comm) == 0
               ? STATUS_OK
               : FAIL(STATUS_FAILED, "cannot start the watchdog thread");
}

void mpi_watchdog_stop(struct comm *comm) {
    struct watchdog *watchdog = mpi_of(comm)->watchdog;
    atomic_store(&watchdog->stop, true);
    pthread_join(watchdog->thread, NULL);
    for (int rank = 0; rank < comm->world; rank++) {
        int done = 0;
        MPI_Test(&watchdog->ranks[rank].request, &done, MPI_STATUS_IGNORE);
        if (!done)
            return; // keep the memory of a message that was not received, until the process ends
    }
    free(watchdog->ranks);
    free(watchdog);
}
