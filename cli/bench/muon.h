// ./train bench --muon: times Newton-Schulz iterations on the matrices of a model, in turn with a matrix
// product.
#ifndef ZERO_CLI_BENCH_MUON_H
#define ZERO_CLI_BENCH_MUON_H

#include <stdbool.h>

#include "base/status.h"

// Of each shape among the matrices that Muon would update in the model of a configuration, in bf16: prints
// their number, the time of one, FLOP/s (of the products as they are computed: with symmetric ones halved,
// where the device does so) and their median part of the FLOP/s of the device's GEMM, measured before and
// after.
enum status bench_muon(const char *config_path, const char *device_name, int n_threads, bool quick,
                       bool as_json) MUST_CHECK;

#endif
