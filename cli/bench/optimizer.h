// ./train bench --optimizer: optimizer steps timed one by one, on request, so that a script can measure them
// in turn with other programs' and all see the same machine.
#ifndef ZERO_CLI_BENCH_OPTIMIZER_H
#define ZERO_CLI_BENCH_OPTIMIZER_H

#include <stddef.h>

#include "base/status.h"

// Holds the state of n elements (rounded up to whole cache lines). A request (cli/bench/requests.h) names a
// case, which is run once; its figure is the seconds that it took. On the CPU. STATUS_INVALID for a name that
// is none, with all of them.
enum status bench_optimizer(int n_threads, size_t n) MUST_CHECK;

#endif
