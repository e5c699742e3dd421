// Measurements on request, so that a script can take them in turn with other programs' and all see the same
// machine: a line of standard input asks for one, a line of standard output gives its figure.
#ifndef ZERO_CLI_BENCH_REQUESTS_H
#define ZERO_CLI_BENCH_REQUESTS_H

#include "base/status.h"

// What a request (without its newline) comes to. STATUS_INVALID, with what was expected, where it is none.
typedef enum status bench_measure(void *context, const char *request, double *figure);

// Writes "ready" and the device's description, then answers until the input ends or a measurement fails.
enum status bench_answer_requests(const char *description, bench_measure *measure, void *context) MUST_CHECK;

#endif
