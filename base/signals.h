// Signals that stop a run. SIGINT, SIGTERM, SIGHUP (the terminal closed) and SIGUSR1 (which launchers and
// batch systems forward to every rank) request a stop after the current step. A second signal ends the
// process at once. Exceptions: one of the two is SIGHUP, or the second comes within half a second of the
// first, because one request may send several signals. If SIGHUP was ignored at the start (nohup), it stays
// ignored.
#ifndef ZERO_BASE_SIGNALS_H
#define ZERO_BASE_SIGNALS_H

#include <stdbool.h>

// Starts a thread that receives the signals, and blocks them in the calling thread and in all threads that it
// starts later. Call it before compute threads are started.
void signals_catch(void);
bool signals_stop_requested(void);
// The signal that requested the stop, or that the ranks agreed on; 0: none.
int signals_number(void);
// Makes signals_number return `number` on this rank. Call it once the ranks have agreed on a signal that one
// of them received.
void signals_agree_on(int number);

// Sets the callback for the first signal: say(context, signal), called on the signal thread. NULL: none.
// Waits for a running call of the previous callback to return.
void signals_on_stop(void (*say)(void *context, int signal), void *context);
// Sets the line that is written to standard error before a second signal ends the process; "": none. `line`
// is copied and truncated to 1,000 bytes.
void signals_set_farewell(const char *line);

#endif
