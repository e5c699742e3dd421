// Signals that stop a run. SIGINT, SIGTERM, SIGHUP (the terminal closed) and SIGUSR1 (which launchers and
// batch systems forward to every rank) request a stop after the current step. A second signal ends the
// process at once, unless either of the two is SIGHUP, or it comes within half a second of the first, as when
// one request sends several. If SIGHUP was ignored at the start (nohup), it stays ignored.
#ifndef ZERO_BASE_SIGNALS_H
#define ZERO_BASE_SIGNALS_H

#include <stdbool.h>

// Starts a thread that receives the signals, and blocks them in the calling thread and in all threads that it
// starts later. Call it before compute threads are started.
void signals_catch(void);
bool signals_stop_requested(void);
// The signal that requested the stop, or that the ranks agreed on; 0: none.
int signals_number(void);
// Sets what signals_number returns on a rank, whichever rank the signal came to.
void signals_agree_on(int number);

// Calls say(context, signal) on that thread when the first signal arrives. NULL: nothing. Returns once no
// call of the one before is under way.
void signals_on_stop(void (*say)(void *context, int signal), void *context);
// Sets the line that the second signal writes to standard error before it ends the process; "": none. `line`
// is copied, and cut after 1,000 bytes.
void signals_set_farewell(const char *line);

#endif
