// See zero/comm/mpi/watchdog.h.
#include "zero/comm/mpi/watchdog.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/text.h"
#include "zero/comm/mpi/data.h"
#include "zero/comm/mpi/failure.h"

// What becomes of a run that a dead or hanging rank ends.
#define KEPT "Checkpoints are unaffected: the same command resumes from the last one, if there is one"

#define WATCH_NS    20000000 // between two looks
#define PATIENCE_MS 5000     // from a failure anywhere to the end of every process
#define COMPARE_MS  1000     // a wait of this length makes the watchdog compare the two ranks' collectives
#define ALIVE_MS    5000     // a live process answers, or shows a heartbeat, within this time
#define MOST_LOOKS  16       // processes checked per look; each check reads a file of /proc
#define GAP_MS      5000     // no look for this long: this process was suspended, and perhaps others too
#define TURN_MS     100      // between ranks that could report a dead process; mpirun kills all within 1 s
#define NOTE_CALLS  10       // of MPI, each of which may advance a message by one stage

// ---- dead processes

// True for a process id that does not exist, and for an unreaped zombie.
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

// Which rank reports a dead process. A rank that failed before it ended has sent a note, which counts
// instead. Ranks that share memory find it there, and settle there who prints. So do those that exchange
// messages but share `speaker`: the machine has delivered the note, and MPI hands it over after a few calls.
// Waiting any longer would leave it to mpirun, on a busy machine, to kill them before one has printed the
// message.
//
// Ranks that share nothing take turns: one turn for the machine's lowest rank, two for the next, and so on
// until a report arrives. (A rank that was suspended may wake up after other ranks have ended.)
static bool is_turn_to_report(struct comm *comm, int dead) {
    struct mpi_data *mpi = mpi_of(comm);
    int64_t now = rank_state_now_ms(), turn = 1;
    if (mpi->linked > 1)
        return true;
    if (mpi->word.value) {
        for (int i = 0; i < NOTE_CALLS; i++)
            mpi_receive_failure_notes(comm);
        return !mpi_has_failed(comm);
    }
    for (int lower = 0; lower < comm->rank; lower++)
        turn += lower != dead && mpi->peers[lower].process > 0;
    mpi->watchdog.dead_ms = mpi->watchdog.dead_ms ? mpi->watchdog.dead_ms : now;
    return now - mpi->watchdog.dead_ms >= turn * TURN_MS;
}

static void look_for_dead_processes(struct comm *comm) {
    struct mpi_data *mpi = mpi_of(comm);
    int n = comm->world < MOST_LOOKS ? comm->world : MOST_LOOKS;
    for (int i = 0; i < n; i++) {
        int rank = (mpi->watchdog.next_process + i) % comm->world, process = mpi->peers[rank].process;
        char message[LINK_MESSAGE];
        if (process == 0 || !is_dead(process))
            continue;
        if (!is_turn_to_report(comm, rank))
            return;
        snprintf(message, sizeof message,
                 "process %d ended without reporting an error; it may have been killed, for example because "
                 "the machine ran out of memory. " KEPT,
                 process);
        mpi_report_dead(comm, rank, message);
        return;
    }
    mpi->watchdog.next_process = (mpi->watchdog.next_process + n) % comm->world;
}

// ---- questions and answers, between ranks without shared memory

static void send_state(struct comm *comm, int rank, int tag) {
    struct mpi_data *mpi = mpi_of(comm);
    struct watchdog *watchdog = &mpi->watchdog;
    int done = 0;
    pthread_mutex_lock(&mpi->mpi_lock);
    // If the last message was not received yet, it serves as well as another one.
    MPI_Test(&watchdog->requests[rank], &done, MPI_STATUS_IGNORE);
    if (done) {
        rank_state_report(comm->state, &watchdog->answers[rank]);
        MPI_Isend(&watchdog->answers[rank], sizeof *watchdog->answers, MPI_BYTE, rank, tag, mpi->everyone,
                  &watchdog->requests[rank]);
    }
    pthread_mutex_unlock(&mpi->mpi_lock);
}

// Receives a question or an answer, if there is one: returns its rank, or -1.
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
    mpi->watchdog.reports[from.MPI_SOURCE] = report;
    mpi->watchdog.answered_ms[from.MPI_SOURCE] = rank_state_now_ms();
    return from.MPI_SOURCE;
}

static void serve_messages(struct comm *comm) {
    struct mpi_data *mpi = mpi_of(comm);
    int rank;
    if (mpi->linked == comm->world)
        return;
    mpi_receive_failure_notes(comm);
    while ((rank = receive_state(comm, TAG_QUESTION)) >= 0)
        send_state(comm, rank, TAG_ANSWER);
    while (receive_state(comm, TAG_ANSWER) >= 0)
        ;
}

static void ask(struct comm *comm, int rank) {
    struct mpi_data *mpi = mpi_of(comm);
    if (mpi->peers[rank].mailbox || rank == comm->rank)
        return;
    mpi->watchdog.asked_ms[rank] = rank_state_now_ms();
    send_state(comm, rank, TAG_QUESTION);
}

// A rank's latest report, from shared memory or an answer. False when it has shown no sign of life since
// `since_ms`.
static bool report_since(struct comm *comm, int rank, int64_t since_ms, struct rank_report *out) {
    struct mpi_data *mpi = mpi_of(comm);
    if (rank == comm->rank || mpi->peers[rank].mailbox) {
        rank_state_report(rank == comm->rank ? comm->state : &mpi->peers[rank].mailbox->state, out);
        return rank_state_now_ms() - out->heartbeat_age_ms >= since_ms;
    }
    *out = mpi->watchdog.reports[rank];
    return mpi->watchdog.answered_ms[rank] > 0 && mpi->watchdog.answered_ms[rank] >= since_ms;
}

// ---- ranks in different collectives

// Reports a failure when this rank waits for one that has issued another collective under the same number: it
// would wait forever.
static void compare_calls(struct comm *comm, enum comm_channel channel, const struct rank_report *own) {
    struct mpi_data *mpi = mpi_of(comm);
    int peer = own->waits[channel].peer;
    uint64_t call = own->waits[channel].call;
    enum comm_collective here, there;
    struct rank_report report;
    char message[LINK_MESSAGE];
    if (!mpi->peers[peer].mailbox && rank_state_now_ms() - mpi->watchdog.asked_ms[peer] > COMPARE_MS)
        ask(comm, peer);
    if (!report_since(comm, peer, 0, &report) || !report_collective(own, call, &here) ||
        !report_collective(&report, call, &there) || here == there)
        return;
    snprintf(message, sizeof message,
             "collective %" PRIu64 " is %s here, but %s on rank %d: the ranks are in different collectives. "
             "Start all of them with the same "
             "program, options and files",
             call, comm_collective_name(here), comm_collective_name(there), peer);
    mpi_abort(comm, STATUS_FAILED, message); // not printed here: both ranks notice it
}

// ---- hanging ranks

// Why a rank keeps the others waiting; NULL: it does not.
static const char *describe_hang(const struct rank_report *report, bool answers, int64_t limit_ms) {
    if (!answers)
        return "does not respond (its process is suspended, or its machine is down)";
    if (!report_is_waiting(report) && report->progress_age_ms > limit_ms)
        return "runs, but makes no progress";
    return NULL;
}

// Evaluates the reports of all ranks and names those that the others wait for. If there are none, either some
// rank is working, and nothing is wrong, or all ranks wait for each other.
static void conclude_inquiry(struct comm *comm, enum comm_channel channel, const struct rank_report *own,
                             int64_t limit_ms) {
    struct watchdog *watchdog = &mpi_of(comm)->watchdog;
    enum comm_collective collective = N_COLLECTIVES;
    struct text message = {0};
    int first = -1, n = 0;
    bool at_work = false;
    (void)report_collective(own, own->waits[channel].call, &collective);
    for (int rank = 0; rank < comm->world; rank++) {
        struct rank_report report;
        bool answers = rank == comm->rank || report_since(comm, rank, watchdog->inquiry_ms, &report);
        const char *what = rank == comm->rank ? NULL : describe_hang(&report, answers, limit_ms);
        // A rank that waits shows no progress either, so this is true only for one that works.
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
        mpi_report_dead(comm, first, message.data ? message.data : "the ranks hang");
    text_free(&message);
}

static void look_for_hangs(struct comm *comm, enum comm_channel channel, const struct rank_report *own) {
    struct watchdog *watchdog = &mpi_of(comm)->watchdog;
    int64_t limit_ms = atomic_load(&comm->hang_ms), now = rank_state_now_ms();
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
        mpi_of(comm)->watchdog.inquiry_ms = 0;
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
    struct watchdog *watchdog = &mpi->watchdog;
    const struct timespec nap = {.tv_nsec = WATCH_NS};
    for (;;) {
        nanosleep(&nap, NULL);
        // Checked after the nap, which may have been a long suspension: another rank may have ended since.
        if (atomic_load(&watchdog->stop))
            return NULL;
        int64_t now = rank_state_now_ms();
        atomic_store(&comm->state->heartbeat_ms, now);
        if (now - watchdog->last_look_ms > GAP_MS) // what looks old may only have been suspended
            watchdog->patient_until_ms = now + atomic_load(&comm->hang_ms);
        watchdog->last_look_ms = now;
        serve_messages(comm);
        watch_device(comm);
        if (!mpi_has_failed(comm)) {
            look_for_dead_processes(comm);
            look_at_own_waits(comm);
            continue;
        }
        watchdog->failed_ms = watchdog->failed_ms ? watchdog->failed_ms : now;
        if (now - watchdog->failed_ms > PATIENCE_MS) {
            mpi_print_failure(comm);
            _exit(status_exit_code((enum status)mpi->failure.status));
        }
    }
}

enum status mpi_watchdog_start(struct comm *comm) {
    struct watchdog *watchdog = &mpi_of(comm)->watchdog;
    size_t world = (size_t)comm->world;
    watchdog->reports = calloc(world, sizeof *watchdog->reports);
    watchdog->answers = calloc(world, sizeof *watchdog->answers);
    watchdog->asked_ms = calloc(world, sizeof *watchdog->asked_ms);
    watchdog->answered_ms = calloc(world, sizeof *watchdog->answered_ms);
    watchdog->requests = calloc(world, sizeof *watchdog->requests);
    if (!watchdog->reports || !watchdog->answers || !watchdog->asked_ms || !watchdog->answered_ms ||
        !watchdog->requests)
        return FAIL(STATUS_FAILED, "out of memory for the watchdog of %d ranks", comm->world);
    for (int rank = 0; rank < comm->world; rank++)
        watchdog->requests[rank] = MPI_REQUEST_NULL;
    watchdog->running = pthread_create(&watchdog->thread, NULL, work, comm) == 0;
    return watchdog->running ? STATUS_OK : FAIL(STATUS_FAILED, "cannot start the watchdog thread");
}

void mpi_watchdog_stop(struct comm *comm) {
    struct watchdog *watchdog = &mpi_of(comm)->watchdog;
    if (!watchdog->running)
        return;
    atomic_store(&watchdog->stop, true);
    pthread_join(watchdog->thread, NULL);
    watchdog->running = false;
}

// Questions that are never received stay active: their memory, a few hundred bytes per rank, is kept until
// the process ends.
void mpi_watchdog_free(struct comm *comm) {
    struct watchdog *watchdog = &mpi_of(comm)->watchdog;
    bool open = false;
    for (int rank = 0; rank < comm->world && watchdog->requests; rank++) {
        int done = 0;
        MPI_Test(&watchdog->requests[rank], &done, MPI_STATUS_IGNORE);
        open = open || !done;
    }
    free(watchdog->reports);
    free(watchdog->asked_ms);
    free(watchdog->answered_ms);
    if (open)
        return;
    free(watchdog->answers);
    free(watchdog->requests);
}
