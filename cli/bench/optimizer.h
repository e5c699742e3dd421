// ./train bench --optimizer: times optimizer steps on request, so that a script can alternate them with other
// programs under the same conditions.
#ifndef ZERO_CLI_BENCH_OPTIMIZER_H
#define ZERO_CLI_BENCH_OPTIMIZER_H

#include <stddef.h>

#include "base/status.h"

// Answers requests (cli/bench/requests.h) on the CPU, with the state of n elements (rounded up to whole cache
// lines). A request names a case, which runs once; the answer is its seconds. STATUS_INVALID for an unknown
// name lists the cases.
enum status bench_optimizer(int n_threads, size_t n) MUST_CHECK;

#endif
