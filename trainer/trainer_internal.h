// The trainer's state, shared by the .c files of this folder; trainer.c has the loop.
#ifndef ZERO_TRAINER_TRAINER_INTERNAL_H
#define ZERO_TRAINER_TRAINER_INTERNAL_H

#include <stdio.h>

#include "data/loader.h"
#include "data/tokenizer/tokenizer.h"
#include "infer/tasks/score.h"
#include "infer/weights.h"
#include "kernels/region_memory.h"
#include "trainer/output/metrics.h"
#include "trainer/output/progress.h"
#include "trainer/output/run_folder.h"
#include "trainer/pacing.h"
#include "trainer/plan/micro_batch.h"
#include "trainer/plan/plan.h"
#include "trainer/profile/profiler.h"
#include "trainer/runs/sessions.h"
#include "trainer/schedule.h"
#include "trainer/spikes.h"

// The state of train.max_minutes (pacing.c).
struct trainer_pacing {
    double spent_before_s; // by the run before this start
    double sum_s, n_steps; // of steps since the last decision, the latter as steps like the first
    bool is_warm;          // the first step of this start, which is slower, is over
    double sample_s, save_s;
    int64_t said_total;
};

// A step that was issued.
struct trainer_step {
    struct step_metrics now; // as far as known
    struct update_plan plan;
    struct average_record average; // after the step if it is done
    struct spike_limits limits;
    int64_t batch_size;  // sequences, over all ranks
    double small_square; // of the noise scale: mean over ranks of a micro-batch's sum of squares; < 0: not
                         // measured
    struct update_result result; // if is_decided: else still on the device
    bool is_decided;
    int slot; // of optimizer_begin
    double began_s;
    double device_s; // that it took on the device; 0: not known
};

// What is done the same way in each step, captured as graphs (graphs.c).
enum { N_MICRO_BATCH_KINDS = 4 }; // first of its step or not, times last or not
struct trainer_graphs {
    bool is_on;
    struct trainer_graph {
        struct graph graph;
        bool is_warm; // it has been done once without being captured
    } micro_batches[N_MICRO_BATCH_KINDS], update;
};

// eval.tasks (evaluation.c).
struct trainer_tasks {
    struct task_list list; // empty without eval.tasks
    // (list.n) each
    struct task_batches *batches;
    struct task_scores *scores;
    struct task_result *results; // of the last evaluation
    struct task_scorer scorer;
    double seconds; // that the last evaluation took; 0: none yet
};

struct trainer {
    struct config *config;
    const char *command;
    struct comm *comm;
    struct run_folder folder;
    struct session session;      // of this start, on rank 0; began 0: not yet
    struct checkpoint *resumed;  // NULL: a new run. Open during setup only
    struct weights weights;      // of model.init_from. Open during setup only
    struct tokenizer *tokenizer; // data.tokenizer, else that of the checkpoint to resume; NULL: none
    char *found_tokenizer;       // the file in the folder of model.init_from, where data.tokenizer is not set

    struct device *device, *comm_device; // comm_device runs the reductions between ranks
    struct device *host_device;          // the CPU, for state offloaded from a GPU; NULL without a GPU
    struct stream stream;
    enum dtype type;
    struct checkpoint_attention attention; // decided on, kept in checkpoints
    struct params params;
    // train.micro_batch_size where it was left open, on GPUs (micro_batch.c)
    struct micro_batch_choice micro_batch;
    bool has_micro_batch, keeps_micro_batch; // it was chosen; the resumed checkpoint's is kept
    struct region_memory memory;
    struct engine engine;
    struct batch_sizes batches; // of the steps
    double flops_per_token;     // forward and backward
    struct comm_volume volume;  // of a step with volume_steps micro-batches
    int64_t volume_steps;
    size_t program_bytes; // resident before the run's memory was allocated: the program and its libraries
    struct loader *train, *val; // val NULL without data.val
    float *val_losses;          // (B, T) of a partial micro-batch of data.val
    int64_t *source_tokens;     // (sources of data.train) of struct step_metrics
    struct trainer_tasks tasks; // of eval.tasks
    struct run_state run;       // kept in checkpoints
    struct metrics metrics;
    struct progress progress;  // of rank 0
    double gemm_rate;          // measured FLOP/s, sum over ranks; no step has exceeded it
    double dense_peak;         // FLOP/s as the vendor states it, sum over ranks; 0: not known of every rank
    struct device_peak limits; // of this rank's device; bandwidth is measured with run.profile only
    struct profiler profiler;
    int profile_region; // of its memory, with run.profile

    struct run_best evaluated; // the last evaluation on train.eval_steps
    int64_t evaluated_final;   // step of the final evaluation; 0: none yet
    double eval_sequence_s;    // seconds per sequence of the last evaluation; 0: none yet
    double began_s;            // of this start, on the monotonic clock
    struct trainer_pacing pacing;
    int64_t last_step;        // of the run, as far as decided
    int64_t step, saved_step; // steps issued; step of this run's newest checkpoint, -1: none
    int64_t tokens;           // trained on so far
    struct trainer_step steps[STEP_SLOTS];
    int64_t n_issued, n_finished; // steps of this start (step.c)
    struct trainer_graphs graphs;
    double finished_s, finished_step_s; // when it was, and how long it took; 0: none yet
    enum status pending; // first failure of this rank's output (metrics) since the ranks last agreed
    bool can_save;       // the run is failing, all ranks know, and the weights are those of a whole step
};

// ---- a step (step.c)

// Issues the next step; trainer->step counts it. STATUS_STOPPED: a rank was asked to stop, and nothing was
// issued. Collective.
enum status trainer_issue_step(struct trainer *trainer) MUST_CHECK;
// Finishes issued steps until only `left` are not finished: loss scale, metrics and progress then have them.
// What reads or writes the weights, or the run's state, between steps first finishes all. Collective.
enum status trainer_finish_steps(struct trainer *trainer, int left) MUST_CHECK;
// True if the host may issue a step before the one before is finished: the device decides, and neither loss
// scaling nor train.on_spike=skip lets a run go on after an update that is not done.
bool trainer_may_be_ahead(const struct trainer *trainer);

// ---- divergence (divergence.c)

// A step whose loss or norm spiked or is not finite: names it, and does what train.on_spike says. The step
// has its figures, and its update was skipped, but for a spike with train.on_spike=warn. Collective.
enum status trainer_diverged(struct trainer *trainer, const struct trainer_step *step) MUST_CHECK;
// At the end of a run: logs how often it diverged, if it did.
void trainer_log_spikes(const struct trainer *trainer);

// ---- graphs (graphs.c)

// Decides whether graphs are used. If they are asked for and cannot be, logs why.
void trainer_graphs_init(struct trainer *trainer);
void trainer_graphs_free(struct trainer *trainer);
// Does `work`, which issues operations to trainer->stream: through its graph where graphs are on. The first
// time it is done as it is, as libraries load kernels and set themselves up then; the second time it is
// captured. `work` must do the same each time, and change no state of the host that outlasts the step.
enum status trainer_graph_run(struct trainer *trainer, struct trainer_graph *graph,
                              enum status (*work)(void *context), void *context) MUST_CHECK;

// ---- batches of steps

static inline double trainer_step_tokens(const struct trainer *trainer, int64_t batch_size) {
    return (double)(batch_size * trainer->config->train.seq_len);
}
static inline double trainer_step_flops(const struct trainer *trainer, int64_t batch_size) {
    return trainer->flops_per_token * trainer_step_tokens(trainer, batch_size);
}
static inline int64_t trainer_micro_batches(const struct trainer *trainer, int64_t batch_size) {
    return batch_size / (trainer->config->train.micro_batch_size * trainer->comm->world);
}

// The first of this rank's rows of micro-batch k of a step.
static inline int64_t trainer_first_row(const struct trainer *trainer, int64_t k) {
    return (k * trainer->comm->world + trainer->comm->rank) * trainer->config->train.micro_batch_size;
}
// Its first token, counted over the run as gpt_load wants it.
//   tokens   that the run was trained on before the step
static inline uint64_t trainer_first_token(const struct trainer *trainer, int64_t tokens, int64_t k) {
    return (uint64_t)(tokens + trainer_first_row(trainer, k) * trainer->config->train.seq_len);
}

// Updates that were skipped so far.
static inline int64_t trainer_skipped(const struct trainer *trainer) {
    return trainer->run.loss_scale.skipped + trainer->run.spikes.skipped;
}
// The batch sizes of steps, by the config and by what was decided.
void trainer_take_batches(struct trainer *trainer);

// ---- setup and data

// Everything up to the first step. Collective.
//   complete   [out] true if the run already has all its steps; then only the folder was opened
enum status trainer_setup(struct trainer *trainer, bool *complete) MUST_CHECK;
void trainer_free(struct trainer *trainer);
// Records how this start ended, where its beginning was recorded. A failure to do so is a warning only.
void trainer_end_session(struct trainer *trainer, enum status status);
// Opens data.train and data.val. Checks that all ranks see the same data, and that a resumed run gets the
// data that it was trained on, unless checkpoint.accept_new_data allows other data. Collective.
enum status trainer_open_data(struct trainer *trainer) MUST_CHECK;
// Logs what the data is, and what of it was not in the config (trainer/data/defaults.h).
void trainer_describe_data(const struct trainer *trainer);
// Logs how much each source of a mixture was trained on, since its order began.
void trainer_log_drawn(const struct trainer *trainer);

// Opens the checkpoint to resume, if any, and takes over its step and records. Checks that the config
// continues it (resuming.c). Collective.
enum status trainer_find_resume(struct trainer *trainer) MUST_CHECK;
// Loads the weights, moments and averages of a checkpoint; says which tensors' moments begin anew, as another
// rule wrote theirs. STATUS_INVALID: its states would not mean the same in this run.
enum status trainer_load_states(struct trainer *trainer, struct checkpoint *from) MUST_CHECK;
// Logs what the user may not expect of the schedule: a shortened warm-up, or a rate that a resumed run's new
// length changes. Called while the checkpoint is open (resuming.c).
void trainer_describe_resume(const struct trainer *trainer);
void trainer_describe_schedule(const struct trainer *trainer);
// Logs a warm-up that is shortened in a schedule of `steps`, or that the run began with.
void trainer_describe_warmup(const struct trainer *trainer, int64_t steps);
// The steps of warm-up of the run that the checkpoint to resume is of.
int64_t trainer_warmup_before(const struct trainer *trainer);
// The tokenizer (tokenizer.c). Loads data.tokenizer, if it is set; model.vocab_size may follow from it.
enum status trainer_load_tokenizer(struct trainer *trainer) MUST_CHECK;
// Collective. Compares the tokenizer with rank 0's.
enum status trainer_check_same_tokenizer(struct trainer *trainer) MUST_CHECK;
// Compares the tokenizer with that of the checkpoint to resume; without data.tokenizer, uses the checkpoint's
// copy. STATUS_INVALID names both when they differ.
enum status trainer_check_resumed_tokenizer(struct trainer *trainer) MUST_CHECK;
// Compares it with those that data.train and data.val record. Shards that record none pass. STATUS_INVALID
// names both when two differ, or when the shards' has more ids than the model; and when samples or
// data.mask_documents are asked for without a tokenizer.
enum status trainer_check_shard_tokenizers(const struct trainer *trainer) MUST_CHECK;
// The id that begins a document (end-of-text, or bos), by the tokenizer or by what data.train records; -1:
// not known.
int32_t trainer_document_start(const struct trainer *trainer);

// Collective. Returns the worst status of all ranks for something that each did alone.
static inline enum status trainer_agree(struct trainer *trainer, enum status status) {
    return comm_agree(trainer->comm, status);
}
// The same, between steps: after a failure here the progress can still be saved (can_save).
static inline enum status trainer_agree_between_steps(struct trainer *trainer, enum status status) {
    status = trainer_agree(trainer, status);
    trainer->can_save = status > STATUS_STOPPED;
    return status;
}
// Keeps a failure of this rank until the next agreement, for use where the other ranks do not agree.
static inline void trainer_fail_later(struct trainer *trainer, enum status status) {
    if (trainer->pending == STATUS_OK)
        trainer->pending = status;
}
// True on rank 0, which prints, and writes the run's folder.
static inline bool trainer_leads(const struct trainer *trainer) {
    return trainer->comm->rank == 0;
}
// Before a write to the run's folder: run_folder_check on rank 0.
static inline enum status trainer_check_folder(const struct trainer *trainer) {
    return trainer_leads(trainer) ? run_folder_check(&trainer->folder) : STATUS_OK;
}
// The same for metrics: true on rank 0 unless that fails, later.
static inline bool trainer_writes_metrics(struct trainer *trainer) {
    const enum status status = trainer_check_folder(trainer);
    trainer_fail_later(trainer, status);
    return trainer_leads(trainer) && status == STATUS_OK;
}

// The functions below are collective: all ranks call them and get the same status.
// Makes the parameters those for evaluation: the average of the weights, if the run has one and it has begun
// (zero/stages/averaging.h). false: again the latest, for training and saving.
enum status trainer_show_average(struct trainer *trainer, bool average) MUST_CHECK;
// Logs the loss on train.eval_steps of data.val and writes it to the metrics (evaluation.c).
enum status trainer_evaluate(struct trainer *trainer) MUST_CHECK;
// The same at the end of the run, on train.eval_final_steps. STATUS_STOPPED when a signal ends it.
enum status trainer_evaluate_final(struct trainer *trainer) MUST_CHECK;
// How many sequences each evaluation computes; 0 without data.val.
void trainer_evaluation_lengths(const struct trainer *trainer, int64_t *during, int64_t *final);
// Opens eval.tasks. Checks that all ranks have the same files; warns if they are others than before a resumed
// checkpoint.
enum status trainer_open_tasks(struct trainer *trainer) MUST_CHECK;
void trainer_describe_tasks(const struct trainer *trainer); // logs what there is; not collective
// As many sequences of train.seq_len tokens take about as long as all tasks; 0 without tasks.
int64_t trainer_tasks_sequences(const struct trainer *trainer);
// Logs the figures of eval.tasks and writes them to the metrics. STATUS_STOPPED when a signal ends the one
// after the last step; one before is then left out.
enum status trainer_evaluate_tasks(struct trainer *trainer) MUST_CHECK;
void trainer_tasks_free(struct trainer_tasks *tasks);
// Generates one sample, to the log and to samples/step-N.txt (samples.c).
enum status trainer_sample(struct trainer *trainer) MUST_CHECK;
// Takes over the message of a failure that all ranks have, and forgets the failure. Where the run's folder is
// no longer its own, fails with that: what failed before follows from it.
//   reason   [out] the message; empty after a failure
enum status trainer_take_failure(struct trainer *trainer, struct text *reason) MUST_CHECK;
// Writes a checkpoint and removes old ones beyond checkpoint.keep (checkpointing.c).
enum status trainer_save(struct trainer *trainer) MUST_CHECK;

// train.max_minutes (pacing.c). Sets last_step and the warm-up. Called once the checkpoint is open.
void trainer_pacing_resume(struct trainer *trainer);
// STATUS_INVALID: train.max_minutes of a new run is shorter than a few steps. Called once the rate is
// measured.
enum status trainer_check_minutes(const struct trainer *trainer) MUST_CHECK;
// Seconds of the next step, from the measured rate.
double trainer_estimate_step_s(const struct trainer *trainer);
// Decides on the length of the run if that is due, after a step. The same on all ranks: by rank 0's report.
void trainer_pace(struct trainer *trainer, const struct pacing_report *report);
// The time of a step of this rank, and what this rank has measured so far.
//   step   from 0
void trainer_pacing_measure(struct trainer *trainer, int64_t step, double step_s);
struct pacing_report trainer_pacing_report(const struct trainer *trainer);
double trainer_spent_s(const struct trainer *trainer); // since the start of the run
// " of 100", the run's last step, for messages; "" while train.max_minutes has not decided on it. Returns
// buffer.
static inline const char *trainer_of_total(const struct trainer *trainer, char *buffer, size_t size) {
    const struct config *config = trainer->config;
    buffer[0] = '\0';
    if (config->train.max_minutes == 0 || trainer->last_step < config->train.max_steps)
        snprintf(buffer, size, " of %lld", (long long)trainer->last_step);
    return buffer;
}
// Steps of the whole run after `done` steps, of step_s seconds each: for the screen. With train.max_minutes a
// guess until the first decision.
int64_t trainer_estimate_total(const struct trainer *trainer, int64_t done, double step_s);
// The learning rate of the next step.
double trainer_lr(const struct trainer *trainer);
// This rank's part of the run, for the memory plan.
static inline struct engine_options trainer_engine_options(const struct trainer *trainer) {
    return (struct engine_options){.config = trainer->config,
                                   .params = &trainer->params,
                                   .type = trainer->type,
                                   .device = trainer->device,
                                   .rank = trainer->comm->rank,
                                   .world = trainer->comm->world,
                                   .local_world = trainer->comm->local_world,
                                   .for_gpu = trainer->comm->for_gpu,
                                   .by_nccl = comm_on_device(trainer->comm)};
}
// Bytes of this rank's GPU that communication holds.
static inline size_t trainer_device_sums_bytes(const struct trainer *trainer) {
    return comm_sums_bytes(trainer->comm->world, REGION_DEVICE, trainer->comm->for_gpu,
                           comm_on_device(trainer->comm));
}
// The GPU memory that this rank's plan may take: what is free, divided among the ranks that share the GPU,
// and what communication already holds, since plans count it. Not collective.
MUST_CHECK static inline enum status trainer_device_limit(const struct trainer *trainer, uint64_t *bytes) {
    const int n_devices = trainer->device->n_devices;
    const size_t sharing = (size_t)((trainer->comm->local_world + n_devices - 1) / n_devices);
    size_t free_bytes;
    TRY(device_memory_available(trainer->device, &free_bytes));
    *bytes = free_bytes / sharing + trainer_device_sums_bytes(trainer);
    return STATUS_OK;
}
// Opens this rank's devices, and the ranks' way to exchange what is on them (devices.c). STATUS_INVALID: some
// ranks have a GPU and others none. Devices of a kind that round differently are warned of.
enum status trainer_open_devices(struct trainer *trainer) MUST_CHECK;
// Chooses train.micro_batch_size, if it is open and a rank has a GPU (micro_batch.c).
enum status trainer_choose_micro_batch(struct trainer *trainer) MUST_CHECK;
// Logs what was chosen, and why. Called while the checkpoint to resume is open. Not collective.
void trainer_describe_micro_batch(const struct trainer *trainer);
// Decides how attention is computed, for the run and for those that resume it, and sets it on the device
// (attention.c). Called once the type is chosen and before the memory is planned.
enum status trainer_choose_attention(struct trainer *trainer) MUST_CHECK;
// Before that: whether this rank may come to compute it by cuDNN, which takes more memory.
enum status trainer_may_use_cudnn(struct trainer *trainer, bool *out) MUST_CHECK;
// Measures gemm_rate before the first step, and finds dense_peak (rate.c).
enum status trainer_measure_rate(struct trainer *trainer) MUST_CHECK;
// Measures it again if a step exceeded it. It becomes at least `achieved`.
//   achieved   FLOP/s of all ranks in the step's forward and backward passes, as rank 0 timed them
enum status trainer_check_rate(struct trainer *trainer, double achieved) MUST_CHECK;

// run.profile; without it, these do nothing.
// Measures the limits that operations are compared with. Called before the run's memory is allocated, while
// gemm_rate is still that of this rank alone.
enum status trainer_profile_limits(struct trainer *trainer) MUST_CHECK;
// Starts profiling, before the first step.
enum status trainer_profile_start(struct trainer *trainer) MUST_CHECK;
// Stops profiling, prints the table and writes profile.json and trace.json.
enum status trainer_profile_end(struct trainer *trainer) MUST_CHECK;

#endif
