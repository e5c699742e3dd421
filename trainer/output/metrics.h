// The metrics of a run, for programs: metrics.jsonl, with one JSON object per line, and the same figures as
// TensorBoard events. A "step" is the number of steps done: 1 for the first loss.
#ifndef ZERO_TRAINER_OUTPUT_METRICS_H
#define ZERO_TRAINER_OUTPUT_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/region.h"
#include "base/status.h"
#include "base/text.h"
#include "infer/tasks/score.h"
#include "trainer/runs/tensorboard.h"

// Bytes of memory. Of the host, total: as planned for rank 0; as measured, the largest resident set of any
// rank. It is the model memory of rank 0 (the regions of the plan) and the program: its code, stacks and
// libraries, as planned the resident set before the model memory was allocated, or what measuring the machine
// took beyond the model memory, as measured the rest of the total.
struct memory_figures {
    size_t total_planned, total;
    size_t model_planned, model;
    size_t device_planned, device; // of rank 0's GPU, measured by the decrease of free memory; 0 without one
    size_t planned[N_REGION_KINDS], measured[N_REGION_KINDS]; // rank 0's memory by kind
};

// What rank 0 sends in a step.
struct comm_figures {
    uint64_t bytes, calls;
    uint64_t planned_bytes, planned_calls;
    double ms;     // time in communication, control messages included
    double hidden; // fraction of it that overlapped with compute, 0 to 1
};

struct step_metrics {
    int64_t step;          // steps done, with this one
    int64_t total;         // steps of the whole run, as far as known
    double loss;           // mean over the tokens of the step, in nats
    double grad_norm;      // before clipping; not finite if gradients overflowed and the step was skipped
    double loss_scale;     // 1: no loss scaling
    int64_t skipped_steps; // so far
    int64_t spikes;        // steps so far whose loss or norm spiked, or was not finite
    double lr;
    int64_t batch_size; // sequences of the step
    bool measures_noise;
    double noise_scale; // in sequences, where measures_noise; NaN: no estimate yet
    double steps_left;  // of the run, as steps like this one
    int64_t tokens;     // trained on so far, with this step
    // Of a mixture: the tokens of each source so far, since the order of its data began; else n_sources is 0.
    const int64_t *source_tokens;
    int n_sources;
    double tokens_per_s;
    double step_ms;
    double of_gemm; // model FLOP/s, relative to the measured GEMM rate of the compute type
    // Model FLOPs utilization: relative to the GPUs' dense peak or, where that is not known, equal to
    // of_gemm.
    double mfu;
    bool mfu_of_dense_peak;
    int threads; // of the rank
    struct memory_figures memory;
    struct comm_figures comm;
};

struct eval_source {
    const char *name; // the path that the config names
    double share, loss;
    int64_t sequences;
};

struct eval_metrics {
    int64_t step;                      // steps done
    double loss;                       // nats per token; of a mixture the mean of its sources by their shares
    double bits_per_byte;              // NaN without a tokenizer
    bool final;                        // the one at the end of the run
    int64_t averaged;                  // of the average of so many updates' weights; 0: of the latest weights
    double latest_loss;                // of the latest weights, where it is final and of an average
    int64_t sequences, all_sequences;  // evaluated, of those that data.val has
    const struct eval_source *sources; // (n_sources) of a mixture
    int n_sources;                     // else 0
};

struct metrics {
    char *path; // NULL: not open
    char *folder;
    int descriptor;
    struct text lines; // that could not be written yet
    struct tensorboard board;
    bool has_constants;    // of this session
    struct text constants; // that could not be written yet
    int64_t batch_size;    // of the step written last; 0: none yet
    int64_t last_step;     // when it was opened: the last step that has a line; 0: none
    int64_t n_missing;     // and how many steps have none, of those from the first line to steps_done
};

// Opens FOLDER/metrics.jsonl for appending, and a new TensorBoard events file. Removes the lines and events
// of steps after `steps_done`, which a resumed run writes again, and an incomplete last one.
enum status metrics_open(struct metrics *metrics, const char *folder, int64_t steps_done) MUST_CHECK;
// These write a line each. On a failure it is kept, and written before the next one, or at the end.
// The first call also appends to FOLDER/sessions.jsonl what is the same in all steps of a session.
enum status metrics_step(struct metrics *metrics, const struct step_metrics *step) MUST_CHECK;
enum status metrics_eval(struct metrics *metrics, const struct eval_metrics *eval) MUST_CHECK;
// {"step": N, "tasks": {NAME: {"acc": X, "acc_stderr": X, ..., "items": N}}} and events named tasks/NAME/acc.
//   results   (tasks->n)
enum status metrics_tasks(struct metrics *metrics, int64_t step, const struct task_list *tasks,
                          const struct task_result *results) MUST_CHECK;
// Log the three words of memory: model memory, program, total; before the first step, and after the last one.
void metrics_log_planned(size_t model_bytes, size_t program_bytes, int world);
void metrics_log_measured(const struct step_metrics *step, int world);
void metrics_close(struct metrics *metrics);

// Resident set size of this process in bytes: the largest so far, and now. 0 if it cannot be read.
size_t metrics_peak_memory(void);
size_t metrics_resident_memory(void);

#endif
