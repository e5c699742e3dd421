// A thread of each rank watches over the others. It notices a process that is gone, two ranks that wait for
// each other in different collectives, and a rank that shows no progress while others wait for it; it answers
// such questions of ranks on other machines; and it ends the process when a failure is known but the rest of
// the program does not come to see it in time.
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/text.h"
#include "zero/comm/mpi.h"

#define WATCH_NS    20000000
#define PATIENCE_MS 5000 // from a failure anywhere to the end of every process
#define COMPARE_MS  1000 // a wait after which the two ranks' calls are compared
#define ALIVE_MS    5000 // a process that runs answers, or shows its heartbeat, within this time
#define STAGGER_MS  1000 // between ranks that would inquire, so that one does for all
#define MOST_LOOKS  16   // processes looked for at a time; each is a file of /proc
#define GAP_MS      5000 // without a look: this process, and perhaps others, did not run meanwhile
#define TURN_MS     100  // between ranks that would report a dead process; mpirun ends all within a second

// ---- processes that are gone

// Gone, or a zombie that its parent has not waited for.
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

// Ranks that share memory settle there who reports a dead process, and see there what it has told. Without it
// a process that ended because of a failure is reported as dead only when no note of that has come in time (a
// rank that was stopped wakes up beside ranks that have ended); the machine's lowest rank reports first, the
// others only if no report reaches them.
static bool is_turn_to_report(struct comm *comm, int dead) {
    struct mpi_data *mpi = mpi_of(comm);
    int64_t now = rank_state_now_ms(), turn = 1;
    if (mpi->linked > 1)
        return true;
    for (int lower = 0; lower < comm->rank; lower++)
        turn += lower != dead && mpi->peers[lower].process > 0;
    mpi->watch.dead_ms = mpi->watch.dead_ms ? mpi->watch.dead_ms : now;
    return now - mpi->watch.dead_ms >= turn * TURN_MS;
}

static void look_for_the_dead(struct comm *comm) {
    struct mpi_data *mpi = mpi_of(comm);
    int n = comm->world < MOST_LOOKS ? comm->world : MOST_LOOKS;
    for (int i = 0; i < n; i++) {
        int rank = (mpi->watch.next_process + i) % comm->world, process = mpi->peers[rank].process;
        char message[LINK_MESSAGE];
        if (process == 0 || !process_is_gone(process))
            continue;
        if (!is_turn_to_report(comm, rank))
            return;
        snprintf(message, sizeof message,
                 "process %d ended without a word; was it killed, perhaps by the system for want of memory? "
                 "The last checkpoint stands: the same command goes on from it",
                 process);
        mpi_notice_failure(comm, rank, message);
        return;
    }
    mpi->watch.next_process = (mpi->watch.next_process + n) % comm->world;
}

// ---- questions and answers, where there is no shared memory

static void send_state(struct comm *comm, int rank, int tag) {
    struct mpi_data *mpi = mpi_of(comm);
    struct watchdog *watch = &mpi->watch;
    int done = 0;
    pthread_mutex_lock(&mpi->mpi_lock);
    // A message that the other has not taken yet is as good as the next one.
    MPI_Test(&watch->requests[rank], &done, MPI_STATUS_IGNORE);
    if (done) {
        rank_state_report(comm->state, &watch->answers[rank]);
        MPI_Isend(&watch->answers[rank], sizeof *watch->answers, MPI_BYTE, rank, tag, mpi->everyone,
                  &watch->requests[rank]);
    }
    pthread_mutex_unlock(&mpi->mpi_lock);
}

// The next question or answer that is there: its rank, or -1.
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
    mpi->watch.reports[from.MPI_SOURCE] = report;
    mpi->watch.answered_ms[from.MPI_SOURCE] = rank_state_now_ms();
    return from.MPI_SOURCE;
}

static void serve_messages(struct comm *comm) {
    struct mpi_data *mpi = mpi_of(comm);
    int rank;
    if (mpi->linked == comm->world)
        return;
    mpi_receive_failures(comm);
    while ((rank = receive_state(comm, TAG_QUESTION)) >= 0)
        send_state(comm, rank, TAG_ANSWER);
    while (receive_state(comm, TAG_ANSWER) >= 0)
        ;
}

static void ask(struct comm *comm, int rank) {
    struct mpi_data *mpi = mpi_of(comm);
    if (mpi->peers[rank].mailbox || rank == comm->rank)
        return;
    mpi->watch.asked_ms[rank] = rank_state_now_ms();
    send_state(comm, rank, TAG_QUESTION);
}

// What a rank has shown since `since_ms`, in shared memory or by an answer; false when it has shown nothing.
static bool report_since(struct comm *comm, int rank, int64_t since_ms, struct rank_report *out) {
    struct mpi_data *mpi = mpi_of(comm);
    if (rank == comm->rank || mpi->peers[rank].mailbox) {
        rank_state_report(rank == comm->rank ? comm->state : &mpi->peers[rank].mailbox->state, out);
        return rank_state_now_ms() - out->heartbeat_age_ms >= since_ms;
    }
    *out = mpi->watch.reports[rank];
    return mpi->watch.answered_ms[rank] > 0 && mpi->watch.answered_ms[rank] >= since_ms;
}

// ---- ranks in different calls

// A rank that waits for another one's part in a call which that one has issued as another collective would
// wait for ever.
static void compare_calls(struct comm *comm, enum comm_channel channel, const struct rank_report *own) {
    struct mpi_data *mpi = mpi_of(comm);
    int peer = own->waits[channel].peer;
    uint64_t call = own->waits[channel].call;
    enum comm_collective here, there;
    struct rank_report report;
    char message[LINK_MESSAGE];
    if (!mpi->peers[peer].mailbox && rank_state_now_ms() - mpi->watch.asked_ms[peer] > COMPARE_MS)
        ask(comm, peer);
    if (!report_since(comm, peer, 0, &report) || !report_collective(own, call, &here) ||
        !report_collective(&report, call, &there) || here == there)
        return;
    snprintf(message, sizeof message,
             "call %" PRIu64
             " between ranks is %s here, but %s on rank %d: the ranks do different things. Were "
             "all started with the same program, options and files?",
             call, comm_collective_name(here), comm_collective_name(there), peer);
    mpi_abort(comm, STATUS_FAILED, message); // both ranks notice it: not printed here
}

// ---- ranks that hang

static const char *what_holds(const struct rank_report *report, bool answers, int64_t limit_ms) {
    if (!answers)
        return "does not respond (its process is stopped, or its machine gone)";
    if (!report_is_waiting(report) && report->progress_age_ms > limit_ms)
        return "runs, but has made no progress";
    return NULL;
}

// All ranks were asked: names those for which the others wait. None: somebody is at work, or all wait.
static void conclude_inquiry(struct comm *comm, enum comm_channel channel, const struct rank_report *own,
                             int64_t limit_ms) {
    struct watchdog *watch = &mpi_of(comm)->watch;
    enum comm_collective collective = N_COLLECTIVES;
    struct text message = {0};
    int first = -1, n = 0;
    bool at_work = false;
    (void)report_collective(own, own->waits[channel].call, &collective);
    for (int rank = 0; rank < comm->world; rank++) {
        struct rank_report report;
        bool answers = rank == comm->rank || report_since(comm, rank, watch->inquiry_ms, &report);
        const char *what = rank == comm->rank ? NULL : what_holds(&report, answers, limit_ms);
        // A rank that has waited as long as this one shows no progress either.
        at_work = at_work || (rank != comm->rank && answers && report.progress_age_ms <= limit_ms);
        if (!what)
            continue;
        if (first < 0)
            text_add(&message,
                     "%s. The others wait for it in call %" PRIu64 " between ranks, %s, for %.0f s "
                     "(run.hang_timeout_s)",
                     what, own->waits[channel].call, comm_collective_name(collective),
                     (double)own->waits[channel].age_ms / 1e3);
        else if (n < 8)
            text_add(&message, "%s %d", n == 1 ? "; the same holds for rank" : ",", rank);
        first = first < 0 ? rank : first;
        n++;
    }
    watch->inquiry_ms = 0;
    watch->patient_until_ms = rank_state_now_ms() + limit_ms;
    if (first < 0 && !at_work) {
        first = comm->rank;
        text_add(&message,
                 "all ranks have waited for each other in call %" PRIu64 " between them, %s, for %.0f s "
                 "(run.hang_timeout_s)",
                 own->waits[channel].call, comm_collective_name(collective),
                 (double)own->waits[channel].age_ms / 1e3);
    }
    text_add(&message, ". The last checkpoint stands: the same command goes on from it");
    if (first >= 0)
        mpi_notice_failure(comm, first, message.data ? message.data : "the ranks hang");
    text_free(&message);
}

// Lower ranks inquire first: the others hear of what they find.
static int64_t stagger_ms(int rank) {
    int64_t ms = 0;
    for (; rank > 0; rank /= 2)
        ms += STAGGER_MS;
    return ms;
}

static void look_for_hangs(struct comm *comm, enum comm_channel channel, const struct rank_report *own) {
    struct watchdog *watch = &mpi_of(comm)->watch;
    int64_t limit_ms = atomic_load(&comm->hang_ms), now = rank_state_now_ms();
    if (limit_ms == 0 || own->waits[channel].age_ms < limit_ms + stagger_ms(comm->rank))
        return;
    if (watch->inquiry_ms == 0 && now >= watch->patient_until_ms) {
        watch->inquiry_ms = now;
        for (int rank = 0; rank < comm->world; rank++)
            ask(comm, rank);
    } else if (watch->inquiry_ms > 0 && now - watch->inquiry_ms > ALIVE_MS) {
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
        mpi_of(comm)->watch.inquiry_ms = 0;
}

// ---- the thread

static void *work(void *argument) {
    struct comm *comm = argument;
    struct mpi_data *mpi = mpi_of(comm);
    struct watchdog *watch = &mpi->watch;
    const struct timespec nap = {.tv_nsec = WATCH_NS};
    while (!atomic_load(&watch->stop)) {
        nanosleep(&nap, NULL);
        int64_t now = rank_state_now_ms();
        atomic_store(&comm->state->heartbeat_ms, now);
        if (now - watch->last_look_ms > GAP_MS) // ages of that time say nothing
            watch->patient_until_ms = now + atomic_load(&comm->hang_ms);
        watch->last_look_ms = now;
        serve_messages(comm);
        if (!mpi_has_failed(comm)) {
            look_for_the_dead(comm);
            look_at_own_waits(comm);
            continue;
        }
        watch->failed_ms = watch->failed_ms ? watch->failed_ms : now;
        if (now - watch->failed_ms > PATIENCE_MS) {
            mpi_speak(comm);
            _exit(status_exit_code((enum status)mpi->failure.status));
        }
    }
    return NULL;
}

enum status watchdog_start(struct comm *comm) {
    struct watchdog *watch = &mpi_of(comm)->watch;
    size_t world = (size_t)comm->world;
    watch->reports = calloc(world, sizeof *watch->reports);
    watch->answers = calloc(world, sizeof *watch->answers);
    watch->asked_ms = calloc(world, sizeof *watch->asked_ms);
    watch->answered_ms = calloc(world, sizeof *watch->answered_ms);
    watch->requests = calloc(world, sizeof *watch->requests);
    if (!watch->reports || !watch->answers || !watch->asked_ms || !watch->answered_ms || !watch->requests)
        return FAIL(STATUS_FAILED, "out of memory for watching over %d ranks", comm->world);
    for (int rank = 0; rank < comm->world; rank++)
        watch->requests[rank] = MPI_REQUEST_NULL;
    watch->running = pthread_create(&watch->thread, NULL, work, comm) == 0;
    return watch->running ? STATUS_OK
                          : FAIL(STATUS_FAILED, "cannot start the thread that watches over ranks");
}

void watchdog_stop(struct comm *comm) {
    struct watchdog *watch = &mpi_of(comm)->watch;
    if (!watch->running)
        return;
    atomic_store(&watch->stop, true);
    pthread_join(watch->thread, NULL);
    watch->running = false;
}

// Questions that nobody takes stay open: their memory, a few hundred bytes a rank, lasts as long as they do.
void watchdog_free(struct comm *comm) {
    struct watchdog *watch = &mpi_of(comm)->watch;
    bool open = false;
    for (int rank = 0; rank < comm->world && watch->requests; rank++) {
        int done = 0;
        MPI_Test(&watch->requests[rank], &done, MPI_STATUS_IGNORE);
        open = open || !done;
    }
    free(watch->reports);
    free(watch->asked_ms);
    free(watch->answered_ms);
    if (open)
        return;
    free(watch->answers);
    free(watch->requests);
}
