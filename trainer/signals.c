// The handler only sets a flag or calls _exit (both async-signal-safe). It runs on a thread of its own.
//
// Compute threads must not be interrupted by a signal. The kernel puts a handler's frame below the red zone
// of the interrupted stack (128 bytes, System V ABI). oneDNN's generated GEMM code (2.6: sgemm) keeps data
// below the red zone; a handler's frame overwrites it, and the GEMM then writes to wrong addresses.
#include "trainer/signals.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

static atomic_int requested; // the signal that requested a stop; 0: none

// SIGHUP never ends the process at once: a closing terminal sends it together with other signals.
static void handle(int number) {
    int first = atomic_load(&requested);
    if (first && first != SIGHUP && number != SIGHUP)
        _exit(128 + number);
    if (!first || first == SIGHUP)
        atomic_store(&requested, number);
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
        pthread_sigmask(SIG_UNBLOCK, &caught, NULL); // a run that can be stopped is worth the risk
}

bool signals_stop_requested(void) {
    return atomic_load(&requested) != 0;
}
