// The handler does only what a handler may: set a flag, or _exit.
#include "zero/signals.h"

#include <signal.h>
#include <unistd.h>

static volatile sig_atomic_t asked;

static void handle(int number) {
    if (asked)
        _exit(128 + number);
    asked = 1;
}

void signals_catch(void) {
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
    struct sigaction hangup;
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN)
        sigaction(SIGHUP, &action, NULL);
}

bool signals_stop_asked(void) {
    return asked;
}
