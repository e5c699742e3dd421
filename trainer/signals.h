// SIGINT, SIGTERM, SIGHUP (a terminal that has gone) and SIGUSR1 (which launchers and batch systems pass on
// to every rank) ask for a stop after the step in progress; a second one, SIGHUP excepted, ends the process
// at once. Where SIGHUP was ignored at the start (nohup), it stays ignored.
#ifndef ZERO_TRAINER_SIGNALS_H
#define ZERO_TRAINER_SIGNALS_H

#include <stdbool.h>

// From here on a thread of its own takes the signals: the caller blocks them, and so do the threads that it
// starts later. Call it before threads that compute are started.
void signals_catch(void);
bool signals_stop_asked(void);

#endif
