// ./train bench --generate: steps of generation, held to what memory gives. A token of one text needs every
// weight once, and nothing else of that size.
#ifndef ZERO_CLI_BENCH_GENERATE_H
#define ZERO_CLI_BENCH_GENERATE_H

#include <stdbool.h>

#include "base/status.h"

// Reads the model's sizes from a configuration (none of its weights or data) and prints, for each compute
// type and for several texts at once, the seconds of a step and its draws, tokens a second, and the step's
// bytes a second as a part of a plain read loop's over the same weights, in turn; medians. On the CPU.
enum status bench_generate(const char *config_path, int n_threads, bool quick, bool as_json) MUST_CHECK;

#endif
