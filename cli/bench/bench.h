// Functions shared by ./train bench and the benchmarks in tests/bench.
#ifndef ZERO_CLI_BENCH_BENCH_H
#define ZERO_CLI_BENCH_BENCH_H

#include "base/status.h"

// Returns the median of n values (the upper one, if n is even). Sorts the values.
double bench_median(double *values, int n);

// For measurements on request: a script can alternate them with runs of other programs, under the same
// conditions. Each line of standard input is a request; its answer is one line of standard output.

// Measures the figure that a request asks for. STATUS_INVALID: the request is malformed; the message states
// what was expected.
//   request   a line without its newline
typedef enum status bench_measure(void *context, const char *request, double *figure);

// Prints "ready" and the device's description, then answers requests until the input ends or one fails.
enum status bench_answer_requests(const char *description, bench_measure *measure, void *context) MUST_CHECK;

#endif
