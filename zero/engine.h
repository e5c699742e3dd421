// The engine: everything that one rank trains with. It combines the model states and the optimizer of a ZeRO
// stage, the model's forward and backward (model/gpt.h), and the generator that writes samples.
//
// Memory is allocated in two steps. engine_plan lists the regions that the engine needs, without allocating
// anything and without the other ranks. Once the table is allocated (kernels/region_memory.h), engine_bind
// hands the regions out. `./train plan` stops after the first step: a plan counts exactly what a run
// allocates.
#ifndef ZERO_ENGINE_H
#define ZERO_ENGINE_H

#include "zero/optimizer/optimizer.h"

struct engine {
    struct model_states state;
    struct optimizer optimizer;
    struct gpt *gpt;
    int noise_region;
    double *noise_sums;          // memory of struct noise_probe; NULL without train.noise_scale_every
    struct generator *generator; // NULL on a rank that writes no samples (engine_has_generator)
};

// Everything that determines an engine's memory. The pointers must outlive the engine.
struct engine_options {
    const struct config *config; // resolved for `world`
    const struct params *params;
    enum dtype type; // compute type
    struct device *device;
    enum attention_kernel attention;   // on devices with a choice
    int rank, world, local_world;      // local_world: ranks on this machine
    bool for_gpu;                      // comm_options.for_gpu
    bool by_nccl;                      // GPUs exchange through NCCL (comm_on_device), not through the host
    const struct partition *partition; // for these params and ranks; NULL: the engine makes its own
};

// True on rank 0 of a run with samples. In stage 3 true on every rank: each rank has a shard of the
// parameters, so all ranks generate together.
bool engine_has_generator(const struct engine_options *options);
// Bytes of host memory per rank for the links between ranks (zero/comm).
size_t engine_links_bytes(const struct engine_options *options);

// Adds all regions of the engine to the table. Free with engine_free, also after a failure.
enum status engine_plan(struct engine *engine, const struct engine_options *options,
                        struct region_table *table) MUST_CHECK;
// The two halves of engine_plan, for planning many settings. `engine` must be zeroed at first.
//   states   depends on the stage, offload, and the elements that the rank owns
//   model    depends on micro-batch size and recompute; on rank and stage only through engine_has_generator
enum status engine_plan_states(struct engine *engine, const struct engine_options *options,
                               struct region_table *table) MUST_CHECK;
enum status engine_plan_model(struct engine *engine, const struct engine_options *options,
                              struct region_table *table) MUST_CHECK;

// What this rank sends per step of n_micro_batches (gradient_accumulation_steps), by operation: the sum for
// gradients, parameters and Muon, without evaluation and samples. The engine need not be bound. A run
// measures the same figures (metrics.jsonl: comm_bytes, comm_calls); tests assert that both agree.
//
// Source: ZeRO (arXiv 1910.02054), section 7: 2 P (N - 1) / N elements per step and rank in stages 0 to 2,
// 3 P (N - 1) / N in stage 3, for P parameters and N ranks; here with the exact shards of a partition.
struct comm_volume engine_volume(const struct engine *engine, int64_t n_micro_batches);

// Binds the engine to the memory of an allocated table.
//   host   the CPU's device, for optimizer states kept on the host (see model_states_bind)
enum status engine_bind(struct engine *engine, const struct region_table *table, struct stream *stream,
                        struct comm *comm, struct device *host) MUST_CHECK;
void engine_free(struct engine *engine);

#endif
