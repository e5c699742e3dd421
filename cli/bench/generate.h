// ./train bench --generate: times steps of generation and compares them with memory bandwidth. Generating one
// token of one text reads every weight once, and nothing else of that size.
#ifndef ZERO_CLI_BENCH_GENERATE_H
#define ZERO_CLI_BENCH_GENERATE_H

#include <stdbool.h>

#include "base/status.h"

// Runs on the CPU, with random weights of the sizes in a configuration. For each compute type and several
// batch sizes, prints medians of: seconds per step (with sampling), tokens per second, and the step's bytes
// per second as a fraction of a plain read loop over the same weights, measured in alternation.
enum status bench_generate(const char *config_path, int n_threads, bool quick, bool as_json) MUST_CHECK;

#endif
