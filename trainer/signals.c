// The handler does only what a handler may: set a flag, or _exit. It runs on a thread of its own.
//
// No signal may interrupt a thread that computes. The system puts a handler's frame below the interrupted
// stack's red zone (128 bytes, System V ABI), and oneDNN's generated matrix products (2.6: sgemm) keep data
// below that: a signal in the wrong microsecond overwrites it, and the product then writes where it should
// not.
#include "trainer/signals.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

static atomic_int asked; // the signal that asked to stop; 0: none

// A hangup only asks: where a terminal or a session closes it comes along with others.
static void handle(int number) {
    int first = atomic_load(&asked);
    if (first && first != SIGHUP && number != SIGHUP)
        _exit(128 + number);
    if (!first || first == SIGHUP)
        atomic_store(&asked, number);
}

static void *wait_for_signals(void *signals) {
    pthread_sigmask(SIG_UNBLOCK, signals, NULL);
    for (;;)
        pause();
    return NULL;
}

void signals_catch(void) {
    static sigset_t caught;
    const int numbers[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP};
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART}, before;
    pthread_t thread;
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
        pthread_sigmask(SIG_UNBLOCK, &caught, NULL); // rather a risk than a run that cannot be stopped
}

bool signals_stop_asked(void) {
    return atomic_load(&asked) != 0;
}
