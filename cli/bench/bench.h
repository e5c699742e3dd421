// What ./train bench and the benchmarks of tests/bench share.
#ifndef ZERO_CLI_BENCH_BENCH_H
#define ZERO_CLI_BENCH_BENCH_H

#include "base/status.h"

// Sorts the values.
double bench_median(double *values, int n);

// Measurements on request, so that a script can alternate them with other programs under the same conditions.
// Each line of standard input is a request; its answer is one line of standard output.
// Measures what a request (one line, without its newline) asks for. STATUS_INVALID says what was expected.
typedef enum status bench_measure(void *context, const char *request, double *figure);

// Prints "ready" and the device's description, then answers requests until the input ends or one fails.
enum status bench_answer_requests(const char *description, bench_measure *measure, void *context) MUST_CHECK;

#endif
