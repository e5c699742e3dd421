// The handler sets a flag, posts a semaphore, or writes a prepared line and calls _exit; all are
// async-signal-safe. It runs on a dedicated thread, which calls the callback of the first signal outside the
// handler.
//
// Compute threads must not be interrupted by a signal. The kernel puts a handler's frame below the red zone
// of the interrupted stack (128 bytes, System V ABI). The GEMM code that oneDNN generates (in 2.6 for sgemm)
// keeps data below the red zone. A handler's frame overwrites this data, and the GEMM then writes to wrong
// addresses.
#include "base/signals.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"

enum { FAREWELL_BYTES = 1024 };

// Signals that arrive within this time of the first belong to the same request: timeout(1) signals the
// process and then its group, and a closing session sends several.
#define SAME_REQUEST_NS 500000000

static atomic_int requested;           // the signal that requested a stop; 0: none
static atomic_int agreed;              // the signal that the ranks agreed on; 0: none yet
static atomic_llong requested_time_ns; // when `requested` arrived, by CLOCK_MONOTONIC
static sem_t arrived;                  // posted by the first signal
static pthread_mutex_t answer_lock = PTHREAD_MUTEX_INITIALIZER;
static void (*answer)(void *context, int signal);
static void *answer_context;

// The line of signals_set_farewell. Two buffers: the handler may read one while the other is written.
static char farewells[2][FAREWELL_BYTES];
static atomic_int farewell; // index of the buffer that the handler reads

// Writes the line of signals_set_farewell.
static void say_farewell(void) {
    const char *line = farewells[atomic_load(&farewell)];
    for (size_t left = strlen(line); left > 0;) {
        ssize_t n = write(STDERR_FILENO, line, left);
        if (n <= 0)
            return;
        line += n;
        left -= (size_t)n;
    }
}

// The signal handler. The first signal requests a stop; after SAME_REQUEST_NS, a second one ends the process.
// SIGHUP never ends it at once, because a closing terminal sends it together with other signals; the next
// signal takes the place of a first SIGHUP.
static void handle(int number) {
    const int first = atomic_load(&requested);
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    const long long now_ns = time.tv_sec * 1000000000LL + time.tv_nsec;
    if (first && first != SIGHUP && number != SIGHUP) {
        if (now_ns - atomic_load(&requested_time_ns) < SAME_REQUEST_NS)
            return;
        say_farewell();
        _exit(128 + number);
    }
    if (!first || first == SIGHUP) {
        atomic_store(&requested_time_ns, now_ns);
        atomic_store(&requested, number);
    }
    if (!first)
        sem_post(&arrived);
}

static void *wait_for_signals(void *signals) {
    pthread_sigmask(SIG_UNBLOCK, signals, NULL);
    for (;;) {
        if (sem_wait(&arrived) != 0)
            continue; // a signal interrupted the wait
        pthread_mutex_lock(&answer_lock);
        if (answer)
            answer(answer_context, atomic_load(&requested));
        pthread_mutex_unlock(&answer_lock);
    }
    return NULL;
}

void signals_catch(void) {
    static sigset_t caught;
    static bool already;
    const int numbers[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP};
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART}, before;
    pthread_t thread;
    if (already) { // the handlers and the thread of an earlier call still exist
        pthread_sigmask(SIG_BLOCK, &caught, NULL);
        return;
    }
    already = true;
    sem_init(&arrived, 0, 0);
    sigemptyset(&action.sa_mask);
    sigemptyset(&caught);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (numbers[i] == SIGHUP && sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler == SIG_IGN)
            continue;
        sigaction(numbers[i], &action, NULL);
        sigaddset(&caught, numbers[i]);
    }
    pthread_sigmask(SIG_BLOCK, &caught, NULL);
    if (pthread_create(&thread, NULL, wait_for_signals, &caught) == 0)
        pthread_detach(thread);
    else
        pthread_sigmask(SIG_UNBLOCK, &caught, NULL); // no thread: handlers then run on any thread
}

bool signals_stop_requested(void) {
    return atomic_load(&requested) != 0;
}

int signals_number(void) {
    const int number = atomic_load(&agreed);
    return number ? number : atomic_load(&requested);
}

void signals_agree_on(int number) {
    atomic_store(&agreed, number);
}

void signals_on_stop(void (*say)(void *context, int signal), void *context) {
    pthread_mutex_lock(&answer_lock);
    answer = say;
    answer_context = context;
    pthread_mutex_unlock(&answer_lock);
}

void signals_set_farewell(const char *line) {
    int other = 1 - atomic_load(&farewell);
    if (*line) // on a terminal, the line overwrites the progress line
        snprintf(farewells[other], FAREWELL_BYTES, "%s%.1000s\n", log_is_terminal() ? "\r\033[K" : "", line);
    else
        farewells[other][0] = '\0';
    atomic_store(&farewell, other);
}
