// Each worker has three counters. The caller increments `ticket` to offer the worker a part. The worker, or
// the caller in its place, sets `taken` to the ticket to take the part. The worker increments `done` when it
// has finished a part. Counters only grow, so a worker that wakes late sees that its part was taken and waits
// again.
#include "base/parallel.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/processors.h"

#define CACHE_LINE      64
#define LONGEST_SPIN_S  200e-6 // seconds; waits are shorter if no other process uses the cores
#define SHORTEST_SPIN_S 2e-6   // seconds; about the time that a thread takes to fall asleep and wake up
#define SPINS_PER_LOOK  8      // looks at the word between two readings of the clock

// A word that one thread changes. Another thread waits for the change.
struct signal_word {
    atomic_uint value;
    atomic_uint sleeping; // 1: the waiting thread sleeps, or is about to sleep
};

struct team;
struct worker {
    _Alignas(CACHE_LINE) struct signal_word ticket; // written by the caller
    atomic_uint taken;
    // How many parts the worker (not the caller in its place) has taken so far. `done` will reach this
    // number. Used by the caller only.
    unsigned n_taken;
    _Alignas(CACHE_LINE) struct signal_word done; // written by the worker
    struct team *team;
    pthread_t thread;
    int part;
};

// The workers of one calling thread, and the function that they run now.
struct team {
    parallel_function *function;
    const void *context;
    int n_parts;
    struct worker **workers; // (n_workers); worker i runs part i + 1
    int n_workers;
    bool refused; // the system refused to create a thread, so no other is created
    atomic_bool stopping;
};

static atomic_int default_threads; // from parallel_set_threads; 0: not set
static _Thread_local struct team team;
static _Thread_local bool inside; // true within a part: nested parallel_run calls run on this thread alone
static _Thread_local double spin_s = LONGEST_SPIN_S; // for how many seconds the next wait spins at most
static pthread_key_t ending; // its destructor stops the workers of a calling thread that ends
static pthread_once_t key_made = PTHREAD_ONCE_INIT;

// ---- waiting

static bool has_changed(const struct signal_word *word, unsigned from) {
    return atomic_load_explicit(&word->value, memory_order_acquire) != from;
}

// Spins until the value differs from `from`, for at most spin_s. Returns whether the value differs.
//   began   [out] the first reading of the clock, from which spin_s counts; 0: the value changed earlier
static bool spin_while(const struct signal_word *word, unsigned from, double *began) {
    for (*began = 0;;) {
        for (int i = 0; i < SPINS_PER_LOOK; i++) {
            if (has_changed(word, from))
                return true;
            processor_pause();
        }
        double now = clock_monotonic_s();
        if (*began == 0)
            *began = now;
        else if (now - *began > spin_s)
            return false;
    }
}

static void sleep_while(struct signal_word *word, unsigned from) {
    while (!has_changed(word, from)) {
        atomic_store(&word->sleeping, 1);
        // Sequential consistency: this load sees the new value, or `change` sees sleeping = 1 and wakes the
        // thread that waits here.
        if (atomic_load(&word->value) == from)
            syscall(SYS_futex, &word->value, FUTEX_WAIT_PRIVATE, from, NULL, NULL, 0);
        atomic_store(&word->sleeping, 0);
    }
}

// Waits until the value differs from `from`. Spinning pays only if the wait is short. So a short wait,
// spinning or asleep, lengthens the next spin, and a long wait halves it.
static void wait_while(struct signal_word *word, unsigned from) {
    double began;
    bool is_short = spin_while(word, from, &began);
    if (!is_short) {
        sleep_while(word, from);
        is_short = clock_monotonic_s() - began < LONGEST_SPIN_S;
    }
    double next = is_short ? spin_s * 1.125 : spin_s / 2;
    spin_s = next > LONGEST_SPIN_S ? LONGEST_SPIN_S : next < SHORTEST_SPIN_S ? SHORTEST_SPIN_S : next;
}

// Increments the value and wakes the thread that waits for it.
static void change(struct signal_word *word) {
    atomic_fetch_add(&word->value, 1);
    if (atomic_load(&word->sleeping) && atomic_exchange(&word->sleeping, 0))
        syscall(SYS_futex, &word->value, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

// ---- workers

// Takes the part that the ticket offers. Returns false if the other side (caller or worker) has taken it.
static bool take(struct worker *worker, unsigned ticket) {
    unsigned before = ticket - 1;
    return atomic_compare_exchange_strong(&worker->taken, &before, ticket);
}

static void *work(void *argument) {
    struct worker *worker = argument;
    struct team *mine = worker->team;
    inside = true;
    for (unsigned seen = 0;;) {
        wait_while(&worker->ticket, seen);
        seen = atomic_load(&worker->ticket.value);
        if (!take(worker, seen))
            continue;
        if (atomic_load(&mine->stopping))
            return NULL;
        mine->function(mine->context, worker->part, mine->n_parts);
        change(&worker->done);
    }
}

static void stop_workers(void *ending_team) {
    struct team *mine = ending_team;
    atomic_store(&mine->stopping, true);
    for (int i = 0; i < mine->n_workers; i++)
        change(&mine->workers[i]->ticket);
    for (int i = 0; i < mine->n_workers; i++) {
        pthread_join(mine->workers[i]->thread, NULL);
        free(mine->workers[i]);
    }
    free(mine->workers);
}

static void make_key(void) {
    pthread_key_create(&ending, stop_workers);
}

// Starts the worker's thread. It blocks signals, except those for errors, because the frame of a handler
// could overwrite data of oneDNN's GEMM code (base/signals.c). Returns false if the system refuses the
// thread.
static bool start(struct worker *worker) {
    sigset_t blocked, before;
    sigfillset(&blocked);
    const int errors[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        sigdelset(&blocked, errors[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    bool started = pthread_create(&worker->thread, NULL, work, worker) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

static bool add_worker(void) {
    team.workers = reallocate(team.workers, (size_t)team.n_workers + 1, sizeof *team.workers);
    struct worker *worker = aligned_alloc(CACHE_LINE, sizeof *worker);
    if (!worker)
        return false;
    memset(worker, 0, sizeof *worker);
    worker->team = &team;
    worker->part = team.n_workers + 1;
    if (!start(worker)) {
        free(worker);
        return false;
    }
    team.workers[team.n_workers++] = worker;
    return true;
}

static void need_workers(int n) {
    if (n <= team.n_workers || team.refused)
        return;
    pthread_once(&key_made, make_key);
    pthread_setspecific(ending, &team);
    while (team.n_workers < n && !team.refused)
        team.refused = !add_worker();
}

// ---- running

// Returns true if the caller must run the worker's part: may_take is set and the worker has not started it.
// Otherwise waits until the worker has finished its part and returns false.
static bool finish_or_take(struct worker *worker, bool may_take) {
    if (may_take && take(worker, atomic_load_explicit(&worker->ticket.value, memory_order_relaxed)))
        return true;
    wait_while(&worker->done, worker->n_taken++);
    return false;
}

// Runs all parts.
//   anywhere   the caller may also run other parts than part 0. If not, parts that have no thread are skipped
static void run(int n_parts, parallel_function *function, const void *context, bool anywhere) {
    need_workers(n_parts - 1);
    int n_workers = n_parts - 1 < team.n_workers ? n_parts - 1 : team.n_workers;
    team.function = function;
    team.context = context;
    team.n_parts = n_parts;
    for (int i = 0; i < n_workers; i++)
        change(&team.workers[i]->ticket);
    inside = true;
    function(context, 0, n_parts);
    for (int part = n_workers + 1; part < n_parts && anywhere; part++)
        function(context, part, n_parts);
    for (int i = 0; i < n_workers; i++)
        if (finish_or_take(team.workers[i], anywhere))
            function(context, i + 1, n_parts);
    inside = false;
}

void parallel_run(int n_parts, parallel_function *function, const void *context) {
    if (n_parts > 1 && !inside) {
        run(n_parts, function, context, true);
        return;
    }
    for (int part = 0; part < n_parts; part++)
        function(context, part, n_parts);
}

void parallel_run_on_each(int n_threads, parallel_function *function, const void *context) {
    run(n_threads, function, context, false);
}

int parallel_threads(void) {
    int n = atomic_load(&default_threads);
    return n > 0 ? n : processors_threads(processors_usable());
}

void parallel_set_threads(int n) {
    processors_warn_of_threads(n);
    atomic_store(&default_threads, n);
}
