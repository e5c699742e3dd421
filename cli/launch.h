// Starts the ranks of this machine (--ranks N) by the launcher of the MPI that the program was built with.
#ifndef ZERO_CLI_LAUNCH_H
#define ZERO_CLI_LAUNCH_H

#include "base/args.h"

enum { LAUNCH_MOST_RANKS = 1024 };

// The value of --ranks; 0: not given. Each command that uses launch_command lists the flag for its help.
extern int64_t launch_ranks;
#define LAUNCH_FLAG                                                                                          \
    { "--ranks", ARG_INTEGER, &launch_ranks, 1, LAUNCH_MOST_RANKS, "start N ranks on this machine" }

// Runs a command on as many ranks of this machine as --ranks among its arguments says, and waits for their
// end; without --ranks or with one, in this process. Ranks are not bound to cores, so that they divide the
// CPUs of this process; they may be more than the cores. The first SIGINT, SIGTERM, SIGHUP or SIGUSR1 stops
// them after their step, a second one at once. Call it before threads are started. Sets launch_exit_code: of
// the ranks, or 128 + signal if a signal of this process stopped them.
//   name   of the command
//   args   (n_args) its arguments
//   run    what a rank does with the arguments other than --ranks
// STATUS_INVALID: --ranks has no number from 1 to LAUNCH_MOST_RANKS, or a launcher started this process.
// STATUS_UNSUPPORTED: there is no launcher. Or what `run` returns.
enum status launch_command(const char *name, int n_args, char **args,
                           enum status (*run)(int n_args, char **args)) MUST_CHECK;
// The number of ranks that launch_command started this process with; 0: it did not.
int launch_n_ranks(void);

// The code that main exits with when a command succeeds: 0, or that of the ranks that a command started.
extern int launch_exit_code;

#endif
