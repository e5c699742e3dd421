// The cases of ./train bench: every operation of a training step, with the shapes of a GPT-2 124M.
#ifndef ZERO_CLI_BENCH_OPERATIONS_H
#define ZERO_CLI_BENCH_OPERATIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cost.h"
#include "kernels/device.h"

// Sizes of a GPT-2 124M, and the tile of logits that cross_entropy works on.
enum { BENCH_C = 768, BENCH_LOGITS_STRIDE = 50304, BENCH_LOGITS_ROWS = 256 };

enum { N_BENCH_BUFFERS = 6 };

// What an operation works on.
struct operation_bench {
    struct device *device;
    struct stream stream;
    int B, T;
    enum dtype type;
    void *buffers[N_BENCH_BUFFERS]; // (B T, 4 C) fp32 each, or a tile of fp32 logits where that is larger
    int32_t *tokens;                // (B T), each below T
    bool dry_run;                   // operations are not run: their workspace is added up instead
    size_t workspace_bytes;         // dry run: the largest that an operation asked for
};

struct operation_case {
    const char *name;
    // Issues the operation once, and gives its FLOPs and bytes.
    enum status (*run)(struct operation_bench *bench, struct operation_cost *cost);
    bool multiplies; // matrices of the compute type, which are then random numbers; otherwise zeros
    enum attention_kernel attention; // by which it is computed
};
extern const struct operation_case operation_cases[];
extern const int n_operation_cases;
// Sets the attention of the case's operations. *runs: whether the device has it for bench->type.
enum status operation_case_begin(struct operation_bench *bench, const struct operation_case *one,
                                 bool *runs) MUST_CHECK;

#endif
