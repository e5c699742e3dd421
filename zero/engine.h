// The engine: everything that one rank trains with. It combines the model states and the optimizer of a ZeRO
// stage, the model's forward and backward (model/gpt.h), and the generator that writes samples.
//
// Memory is allocated in two steps. engine_plan lists the regions that the engine needs, without allocating
// anything and without the other ranks. Once the table is allocated (kernels/region_memory.h),
// engine_bind gives each member its regions. `./train plan` stops after the first step: a plan counts
// exactly what a run allocates.
#ifndef ZERO_ENGINE_H
#define ZERO_ENGINE_H

#include "zero/optimizer/optimizer.h"

struct engine {
    struct model_states state;
    struct optimizer optimizer;
    struct gpt *gpt;
    int noise_region;
    double *noise_sums;          // device memory for noise_probe.sums; NULL without train.noise_scale_every
    struct generator *generator; // NULL on a rank that writes no samples (engine_has_generator)
};

// Everything that determines an engine's memory. The pointers must outlive the engine.
struct engine_options {
    const struct config *config; // resolved: all defaults are filled in, for `world` ranks
    const struct params *params;
    enum dtype type; // compute type
    struct device *device;
    enum attention_kernel attention; // the kernel to use on a device that has several
    int rank, world, local_world;    // local_world: number of ranks on this machine
    bool for_gpu; // bulk collectives move GPU memory, in larger chunks (as comm_options.for_gpu)
    bool by_nccl; // GPUs exchange data through NCCL (comm_on_device); false: through the host
    const struct partition *partition; // for `params` and `world`; NULL: the engine makes its own
};

// True if this rank takes part in generating samples. In a run with samples (train.sample_every), that is
// rank 0. In stage 3 it is every rank, because each has only a shard of the parameters.
bool engine_has_generator(const struct engine_options *options);
// Returns the bytes of host memory per rank for the links between ranks (comm_memory_bytes).
size_t engine_links_bytes(const struct engine_options *options);

// Adds all regions of the engine to the table. Free with engine_free, also after a failure.
enum status engine_plan(struct engine *engine, const struct engine_options *options,
                        struct region_table *table) MUST_CHECK;
// The two halves of engine_plan. A search over many settings calls each half only for those settings that
// change its result. `engine` must be zeroed before the first call.
//
// The result of engine_plan_states depends on the stage, offload, and the elements that the rank owns. The
// result of engine_plan_model depends on the micro-batch size, recompute, and whether the rank has a
// generator, but on nothing else of the rank and the stage.
enum status engine_plan_states(struct engine *engine, const struct engine_options *options,
                               struct region_table *table) MUST_CHECK;
enum status engine_plan_model(struct engine *engine, const struct engine_options *options,
                              struct region_table *table) MUST_CHECK;

// Returns the bytes and calls that this rank sends per step, by operation. They include gradients,
// parameters and Muon's exchanges, but not evaluation and samples. The engine need not be bound. A run
// measures the same figures (comm_bytes and comm_calls in metrics.jsonl), and tests assert that both agree.
//   n_micro_batches   gradient_accumulation_steps
//
// Source: ZeRO (arXiv 1910.02054), section 7. With P parameters, N ranks and one micro-batch per step, each
// rank sends 2 P (N - 1) / N elements per step in stages 0 to 2, and 3 P (N - 1) / N in stage 3. This
// function uses the exact shards of the partition instead of P / N.
struct comm_volume engine_volume(const struct engine *engine, int64_t n_micro_batches);

// Binds the engine to the memory of an allocated table.
//   host   the CPU's device, for optimizer states kept on the host (see model_states_bind)
enum status engine_bind(struct engine *engine, const struct region_table *table, struct stream *stream,
                        struct comm *comm, struct device *host) MUST_CHECK;
void engine_free(struct engine *engine);

#endif
