// Starts the ranks of this machine (--ranks N) by the launcher of the MPI that the program was built with.
#ifndef ZERO_CLI_LAUNCH_H
#define ZERO_CLI_LAUNCH_H

#include "base/args.h"

enum { LAUNCH_MOST_RANKS = 1024 };

// Runs `./train ARGV...` on n ranks of this machine and waits for their end. Ranks are not bound to cores, so
// that they divide the CPUs of this process; they may be more than the cores. The first SIGINT, SIGTERM,
// SIGHUP or SIGUSR1 stops them after their step, a second one at once. Call it before threads are started.
//   n          1: starts nothing, and the caller goes on in this process
//   argv       (argc) the command's name and its arguments, without --ranks
//   exit_code  [out] of the ranks; 128 + signal if a signal of this process stopped them; -1 with n = 1
// Errors: STATUS_INVALID if n is not from 1 to LAUNCH_MOST_RANKS, or a launcher started this process;
// STATUS_UNSUPPORTED if there is no launcher.
enum status launch_ranks(int n, int argc, char **argv, int *exit_code) MUST_CHECK;
// The number of ranks that launch_ranks started this process with; 0: it did not.
int launch_n_ranks(void);

// The code that main exits with when a command succeeds: 0, or that of the ranks that a command started.
extern int launch_exit_code;

#endif
