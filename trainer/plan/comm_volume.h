// Communication volume of a training step, computed from the model states' layout. A run measures the same
// quantities (metrics.jsonl: comm_bytes, comm_calls), and the tests assert that both agree.
//
// Source: ZeRO (arXiv 1910.02054), section 7: 2 P (N - 1) / N elements per step and rank in stages 1 and 2,
// 3 P (N - 1) / N in stage 3, for P parameters and N ranks; here with the exact shards of a partition.
#ifndef ZERO_TRAINER_PLAN_COMM_VOLUME_H
#define ZERO_TRAINER_PLAN_COMM_VOLUME_H

#include "zero/engine.h"

// What one rank sends in one step, by operation. Evaluation and samples are not counted.
struct comm_volume {
    uint64_t bytes[N_COMM_OPERATIONS], calls[N_COMM_OPERATIONS];
};
// state: planned (model_states_init); it need not be bound. n_micro_batches: gradient_accumulation_steps.
void comm_volume_make(const struct engine *engine, int64_t n_micro_batches, struct comm_volume *out);
// Sums over reduce-scatter, all-gather and exchange. Broadcasts and control messages are left out.
uint64_t comm_volume_bytes(const struct comm_volume *volume);
uint64_t comm_volume_calls(const struct comm_volume *volume);

#endif
