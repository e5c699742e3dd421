// The memory and communication of a run, per rank, computed before it allocates anything. Plans use the run's
// own layout code (zero/engine.h), so they are exact, for any rank of any number of ranks.
//
// Source: model states of 16 P bytes as in ZeRO (arXiv 1910.02054, section 5), with the types of this program
// and the exact shards of a partition. Communication: engine_volume (zero/engine.h).
#ifndef ZERO_TRAINER_PLAN_PLAN_H
#define ZERO_TRAINER_PLAN_PLAN_H

#include "zero/engine.h"

// Host memory that a rank's program takes besides its model memory: code, libraries, stacks, buffers of MPI.
// An estimate: runs on CPUs took 12 to 38 MiB (each run logs its own figure). CUDA takes more.
#define PLAN_PROGRAM_BYTES ((size_t)32 << 20)

// Plans the memory of a run: adds the engine's regions to the table and, with run.profile, the profiler's.
//   engine           free it with engine_free, also after a failure
//   profile_region   [out] the profiler's region; only written with run.profile
enum status plan_run(struct engine *engine, const struct engine_options *options, struct region_table *table,
                     int *profile_region) MUST_CHECK;

struct plan {
    size_t bytes[N_REGION_KINDS], total; // bytes in the device's memory: by kind, and in all
    size_t host;                         // bytes in host memory, not in `total`; 0 if the device is the CPU
    size_t taken[N_REGION_PLACES];       // bytes in each place, including padding between regions
    struct comm_volume volume;           // communication per step
    struct gpt_work work[2];             // per micro-batch: [0] the first of a step, [1] each further one
    // FLOPs of Newton-Schulz per step (zero/optimizer/muon.h): sum over ranks, and maximum per rank.
    double newton_schulz_flops, newton_schulz_most;
};
enum status plan_make(const struct engine_options *options, struct plan *out) MUST_CHECK;
// The two halves of plan_make, for planning many settings (see engine_plan_states). Each adds its figures to
// `plan`, which the caller zeroes first.
enum status plan_add_states(const struct engine_options *options, struct plan *plan) MUST_CHECK;
enum status plan_add_model(const struct engine_options *options, struct plan *plan) MUST_CHECK;

// FLOPs of a micro-batch in linear layers and attention, including recomputation in backward, as counted by a
// dry run (model/work.h).
double step_work_count(const struct gpt_work *model);
// Estimates the FLOPs per rank of an update's matrix products, as if ranks shared them equally. Only Muon has
// such products.
enum status update_flops_estimate(const struct engine_options *options, double *out) MUST_CHECK;

// Lists the few ranks that must be planned to find the largest and the smallest plan of any rank, in every
// stage. Rank 0 comes first, because it may write samples. Free *ranks with free().
enum status plan_ranks(const struct engine_options *options, int **ranks, int *n_ranks) MUST_CHECK;

// The plan of one stage.
struct plan_stage {
    struct plan most; // the plan of the rank with the largest total
    int rank;         // the number of that rank
    size_t least;     // the smallest total of any rank, in bytes
};
// Plans every stage; ignores the options' stage and rank. Takes as long as planning a few ranks.
enum status plan_stages(const struct engine_options *options, struct plan_stage stages[N_STAGES]) MUST_CHECK;

// Logs the model memory by kind of region. Also logs what rank 0 sends each step if there are several ranks,
// and the launches per micro-batch on a GPU.
void plan_print(const struct region_table *table, const struct comm_volume *volume, int world,
                const struct gpt *gpt);

#endif
