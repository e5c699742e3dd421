// What programs read of a run: metrics.jsonl, one JSON object a line, and the same figures for TensorBoard. A
// step's loss stands under the number of updates that the weights had when it was computed (the first is step
// 0); an evaluation likewise.
#ifndef ZERO_TRAINER_METRICS_H
#define ZERO_TRAINER_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/region.h"
#include "base/status.h"
#include "trainer/tensorboard.h"

struct step_metrics {
    int64_t step;      // from 0
    double loss;       // mean over the step's tokens, nats
    double grad_norm;  // before clipping; not finite where the gradients overflowed and the step was skipped
    double loss_scale; // 1 where losses are not scaled
    int64_t skipped_steps;          // so far
    bool speculates, stepped_ahead; // offload_optimizer.speculative; whether what it stepped ahead counted
    double lr;
    int64_t tokens; // trained on so far, this step included
    double tokens_per_s;
    double step_ms;
    double mfu; // model FLOPs over the measured GEMM rate of the compute type
    size_t memory_planned_bytes,
        memory_peak_bytes; // the plan and the program; the largest resident size of a rank
    size_t device_planned_bytes,
        device_bytes; // rank 0's memory on its GPU: the plan, and what is gone from the free; 0 without one
    size_t planned[N_REGION_KINDS], measured[N_REGION_KINDS]; // rank 0's memory by kind
    uint64_t comm_bytes, comm_calls, comm_planned_bytes,
        comm_planned_calls; // that rank 0 sent, and was to send
    double comm_ms;         // in which it communicated
    double comm_hidden;     // of those, the part in which it computed as well
};

struct eval_metrics {
    int64_t step;         // updates done
    double loss;          // nats a token
    double bits_per_byte; // NaN without a tokenizer
};

struct metrics {
    FILE *stream;
    char *path;
    struct tensorboard board;
};

// Opens FOLDER/metrics.jsonl for appending, and an events file for TensorBoard. Lines of steps from
// `first_step` on, and a torn last line, are cut off first: a resumed run writes them again, so that there is
// one line a step.
enum status metrics_open(struct metrics *metrics, const char *folder, int64_t first_step) MUST_CHECK;
enum status metrics_step(struct metrics *metrics, const struct step_metrics *step) MUST_CHECK;
enum status metrics_eval(struct metrics *metrics, const struct eval_metrics *eval) MUST_CHECK;
void metrics_close(struct metrics *metrics);

// The largest resident size of this process so far, and that of now, in bytes.
size_t metrics_peak_memory(void);
size_t metrics_resident_memory(void);

#endif
