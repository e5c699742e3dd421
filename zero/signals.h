// SIGINT, SIGTERM, SIGHUP (a terminal that has gone) and SIGUSR1 (which launchers and batch systems pass on
// to every rank) ask for a stop after the step in progress; a second one ends the process at once. Where
// SIGHUP was ignored at the start (nohup), it stays ignored.
#ifndef ZERO_ZERO_SIGNALS_H
#define ZERO_ZERO_SIGNALS_H

#include <stdbool.h>

void signals_catch(void);
bool signals_stop_asked(void);

#endif
