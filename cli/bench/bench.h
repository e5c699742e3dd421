// Functions shared by ./train bench and the benchmarks in tests/bench.
#ifndef ZERO_CLI_BENCH_BENCH_H
#define ZERO_CLI_BENCH_BENCH_H

#include "base/status.h"

// Returns the median. Sorts the values.
double bench_median(double *values, int n);

// Measurements on request, so that a script can alternate them with other programs under the same conditions.
// Each line of standard input is a request; its answer is one line of standard output.
// Measures one figure. `request` is one line, without its newline. STATUS_INVALID: bad request; the message
// states what was expected.
typedef enum status bench_measure(void *context, const char *request, double *figure);

// Prints "ready" and the device's description, then answers requests until the input ends or one fails.
enum status bench_answer_requests(const char *description, bench_measure *measure, void *context) MUST_CHECK;

#endif
