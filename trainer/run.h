// A run as one rank sees it: what setup creates and every step reads, and how far the run has come. All
// modules of the trainer read this struct. State of one module only is in the module's own struct.
#ifndef ZERO_TRAINER_RUN_H
#define ZERO_TRAINER_RUN_H

#include <stdio.h>

#include "kernels/fingerprint.h"
#include "kernels/region_memory.h"
#include "options/resume.h"
#include "trainer/output/run_folder.h"
#include "trainer/schedule.h"
#include "zero/checkpoint/checkpoint.h"
#include "zero/engine.h"
#include "zero/optimizer/averaging.h"

// The devices that a rank computes with, and their measured speed (machine.h).
struct machine {
    struct device *device, *comm_device; // comm_device runs the reductions between ranks
    struct device *host_device;          // the CPU, for states offloaded from a GPU; NULL without a GPU
    struct stream stream;
    char fingerprint[FINGERPRINT_BYTES]; // of this rank's device
    bool lacks_memory;                   // a rank lacks the memory for the logical ranks of the resumed run
    double gemm_rate; // measured FLOP/s of matrix products, sum over ranks; raised if a step exceeds it
    // FLOP/s of matrix products as the vendor states them, sum over ranks; 0: not known for every rank.
    double dense_peak;
    // Measured on this rank's device: the GEMM rate and, only with run.profile, the memory bandwidth.
    struct device_peak limits;
};

struct audit;
struct run {
    // Fixed once setup is done.
    struct config *config;
    struct comm *comm;
    struct run_folder folder;
    struct machine machine;
    enum dtype type;                       // compute type
    struct checkpoint_attention attention; // the chosen kernel, recorded in checkpoints
    struct params params;
    double flops_per_token; // FLOPs of forward and backward per token
    struct region_memory memory;
    struct engine engine;

    // How far the run has come.
    int64_t step, tokens;       // steps issued so far in all sessions, and the tokens in them
    int64_t last_step;          // the run's last step, as decided so far (pacing.h)
    int64_t saved_step;         // step of this run's newest checkpoint; -1: none
    struct batch_sizes batches; // batch size of each step
    struct run_state state;     // recorded in checkpoints
    struct audit *audit;        // the run's ledger; NULL: none (trainer/auditing.h)

    // The first failure of a write that only this rank did, such as metrics. The ranks agree on it later.
    enum status pending;
    // True if the run is failing, all ranks know it, and the weights are those of a complete step.
    bool can_save;
};

// ---- the ranks

// True on rank 0, which prints and writes the run's folder.
static inline bool run_leads(const struct run *run) {
    return run->comm->rank == 0;
}
// Returns the worst status of all ranks, for work that each rank did alone. Collective.
static inline enum status run_agree(struct run *run, enum status status) {
    return comm_agree(run->comm, status);
}
// run_agree at a point where the weights are those of a complete step: after a failure, the progress can
// still be saved (can_save).
static inline enum status run_agree_between_steps(struct run *run, enum status status) {
    status = run_agree(run, status);
    run->can_save = status > STATUS_STOPPED;
    return status;
}
// Keeps a failure of this rank (`pending`) until the ranks next agree on a status. For code that the other
// ranks do not run.
static inline void run_fail_later(struct run *run, enum status status) {
    if (run->pending == STATUS_OK)
        run->pending = status;
}
// Calls run_folder_check on rank 0; call it before a write to the run's folder. STATUS_OK on other ranks.
static inline enum status run_check_folder(const struct run *run) {
    return run_leads(run) ? run_folder_check(&run->folder) : STATUS_OK;
}

// ---- a step's batch

static inline double run_step_tokens(const struct run *run, int64_t batch_size) {
    return (double)(batch_size * run->config->train.seq_len);
}
static inline double run_step_flops(const struct run *run, int64_t batch_size) {
    return run->flops_per_token * run_step_tokens(run, batch_size);
}
static inline int64_t run_micro_batches(const struct run *run, int64_t batch_size) {
    return batch_size / (run->config->train.micro_batch_size * run->comm->world);
}
// Which micro-batch of which logical rank this rank's micro-batch i is.
//   n_micro   number of this rank's micro-batches in the step
static inline struct logical_micro_batch run_micro_batch(const struct run *run, int64_t i, int64_t n_micro) {
    const struct logical *logical = &run->engine.state.stage.logical;
    return logical_micro_batch_of(logical, i, n_micro / logical_per_rank(logical));
}
// The index in a step's batch of the first row of a micro-batch of this rank.
static inline int64_t run_first_row(const struct run *run, const struct logical_micro_batch *at) {
    return logical_first_row(&run->engine.state.stage.logical, at, run->comm->rank,
                             run->config->train.micro_batch_size);
}
// The index of that row's first token, counted over the whole run, for gpt_load.
//   tokens   number of tokens that the run was trained on before the step
static inline uint64_t run_first_token(const struct run *run, int64_t tokens,
                                       const struct logical_micro_batch *at) {
    return (uint64_t)(tokens + run_first_row(run, at) * run->config->train.seq_len);
}
// Adds up the values of all logical ranks. Collective.
//   mine   (S, n) the values of the S logical ranks that this rank computes
//   sums   [out] (n)
MUST_CHECK static inline enum status run_sum_logical(const struct run *run, const double *mine, size_t n,
                                                     double *sums) {
    return comm_sum_leaves(run->comm, mine, logical_per_rank(&run->engine.state.stage.logical), n, sums);
}
// Sets run->batches: the batch sizes chosen by the gradient noise scale or, if there are none, the config's.
static inline void run_take_batches(struct run *run) {
    run->batches = batch_sizes_of(run->config);
    if (run->state.noise.grown.n > 0)
        run->batches.stages = run->state.noise.grown;
}
// The number of updates skipped so far.
static inline int64_t run_skipped(const struct run *run) {
    return run->state.loss_scale.skipped + run->state.spikes.skipped;
}

// ---- weights and memory

// Sets the parameters to the weights for evaluation: their average, once it includes an update
// (zero/optimizer/averaging.h). Collective.
//   average   false: set them back to the latest weights, for training and saving
MUST_CHECK static inline enum status run_show_average(struct run *run, bool average) {
    return average_show(&run->engine.state, &run->machine.stream, average && run->state.average.n > 0);
}
// What the run, and the run of a checkpoint, decided for "auto".
static inline struct config_decided run_decided(const struct run *run) {
    return (struct config_decided){run->type, run->attention.kernel, run->config->logical_ranks};
}
static inline struct config_decided run_decided_before(const struct checkpoint *from) {
    return (struct config_decided){from->compute, from->attention.kernel, from->logical_ranks};
}
// The kinds of states that a checkpoint of the present step has. It has the average only once that includes
// an update.
static inline struct checkpoint_kinds run_checkpoint_kinds(const struct run *run) {
    struct checkpoint_kinds kinds = model_states_kinds(&run->engine.state);
    kinds.has_average &= run->state.average.n > 0;
    return kinds;
}
// Returns the options that determine this rank's memory, as plans need them.
static inline struct engine_options run_engine_options(const struct run *run) {
    const bool by_cudnn = run->attention.kernel == CONFIG_ATTENTION_CUDNN;
    return (struct engine_options){.config = run->config,
                                   .params = &run->params,
                                   .type = run->type,
                                   .device = run->machine.device,
                                   .attention = by_cudnn ? ATTENTION_CUDNN : ATTENTION_FLASH,
                                   .rank = run->comm->rank,
                                   .world = run->comm->world,
                                   .local_world = run->comm->local_world,
                                   .for_gpu = run->comm->for_gpu,
                                   .by_nccl = comm_on_device(run->comm)};
}
// Bytes of this rank's GPU memory that communication uses for sums.
static inline size_t run_device_sums_bytes(const struct run *run) {
    return comm_sums_bytes(run->comm->world, REGION_DEVICE, run->comm->for_gpu, comm_on_device(run->comm));
}

// Formats " of 100", where 100 is the run's last step, for messages. "" if train.max_minutes is set and the
// last step is not decided yet. Returns buffer.
static inline const char *run_of_total(const struct run *run, char *buffer, size_t size) {
    const struct config *config = run->config;
    buffer[0] = '\0';
    if (config->train.max_minutes == 0 || run->last_step < config->train.max_steps)
        snprintf(buffer, size, " of %lld", (long long)run->last_step);
    return buffer;
}

#endif
