// Signals that stop a run. SIGINT, SIGTERM, SIGHUP (the terminal closed) and SIGUSR1 (which launchers and
// batch systems forward to every rank) request a stop after the current step. A second signal ends the
// process at once, unless either of the two is SIGHUP. If SIGHUP was ignored at the start (nohup), it stays
// ignored.
#ifndef ZERO_TRAINER_SIGNALS_H
#define ZERO_TRAINER_SIGNALS_H

#include <stdbool.h>

// Starts a thread that receives the signals, and blocks them in the calling thread and in all threads that it
// starts later. Call it before compute threads are started.
void signals_catch(void);
bool signals_stop_requested(void);

#endif
