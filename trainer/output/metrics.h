// The metrics of a run, for programs to read: metrics.jsonl, with one JSON object per line, and the main
// figures also as TensorBoard events. A "step" is the number of steps done: 1 for the first loss.
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

// Bytes of memory. `total` is host memory: planned for rank 0, measured as the largest resident set of any
// rank. It has two parts:
// - model memory of rank 0: the regions of the plan
// - the program: code, stacks and libraries. Planned: the resident set before the model memory was allocated,
//   or what measuring the machine took beyond the model memory. Measured: the rest of the total
struct memory_figures {
    size_t total_planned, total;
    size_t model_planned, model;
    size_t device_planned, device; // rank 0's GPU, measured as the decrease of free memory; 0 without a GPU
    size_t planned[N_REGION_KINDS], measured[N_REGION_KINDS]; // rank 0's memory by kind
};

// Communication of rank 0 in one step.
struct comm_figures {
    uint64_t bytes, calls;                 // measured: bytes sent, and number of collectives
    uint64_t planned_bytes, planned_calls; // the same as planned
    double ms;                             // time in communication, including control messages
    double hidden;                         // fraction of `ms` that overlapped with compute, 0 to 1
};

struct step_metrics {
    int64_t step;          // steps done, including this one
    int64_t total;         // expected number of steps of the whole run
    double loss;           // mean over the step's targets, by their weights; in nats
    double grad_norm;      // before clipping; not finite if gradients overflowed and the step was skipped
    double loss_scale;     // 1: no loss scaling
    int64_t skipped_steps; // steps of the run so far whose update was skipped
    int64_t spikes;        // steps so far whose loss or norm spiked, or was not finite
    double lr;
    int64_t batch_size;  // sequences of the step
    bool measures_noise; // true: the gradient noise scale was measured in this step
    double noise_scale;  // gradient noise scale in sequences, if measures_noise; NaN: no estimate yet
    double steps_left;   // remaining work of the run, in steps of this batch size
    int64_t tokens;      // tokens trained on so far, including this step
    // For a mixture: tokens of each source since the current data order began. n_sources is 0 without a
    // mixture.
    const int64_t *source_tokens;
    int n_sources;
    double tokens_per_s;
    double step_ms;
    double of_gemm; // model FLOP/s, relative to the measured GEMM rate of the compute type
    // Model FLOPs utilization: relative to the dense peak of the GPUs. Equal to of_gemm if the peak is
    // unknown.
    double mfu;
    bool mfu_of_dense_peak; // true if the peak is known
    int threads;            // number of CPU threads of this rank
    struct memory_figures memory;
    struct comm_figures comm;
};

struct eval_source {
    const char *name;  // the path as the config names it
    double share;      // fraction of the mixture
    double loss;       // nats per token
    int64_t sequences; // number of evaluated sequences
};

struct eval_metrics {
    int64_t step;         // steps done
    double loss;          // nats per token; for a mixture the mean of its sources, weighted by their shares
    double bits_per_byte; // NaN without a tokenizer
    bool final;           // true: the evaluation at the end of the run
    int64_t averaged; // updates in the evaluated average of the weights; 0: the latest weights were evaluated
    double latest_loss;                // loss of the latest weights, if `final` and an average was evaluated
    int64_t sequences, all_sequences;  // evaluated sequences, and all sequences of data.val
    const struct eval_source *sources; // (n_sources) the sources of a mixture
    int n_sources;                     // 0 without a mixture
};

struct metrics {
    char *path; // NULL: not open
    char *folder;
    int descriptor;
    struct text lines; // lines that could not be written yet
    struct tensorboard board;
    bool has_constants;    // true: the session's line of constants for sessions.jsonl has been made
    struct text constants; // that line, if it could not be written yet; else empty
    int64_t batch_size;    // batch size of the step written last; 0: none yet
    // Found when the file was opened: the last step that has a line (0: none), and the number of steps from
    // the first line up to steps_done that have none.
    int64_t last_step, n_missing;
};

// Opens FOLDER/metrics.jsonl for appending, and a new TensorBoard events file. Removes an incomplete last
// line, and the lines and events of steps after `steps_done`, which a resumed run writes again.
enum status metrics_open(struct metrics *metrics, const char *folder, int64_t steps_done) MUST_CHECK;
// metrics_step, metrics_eval and metrics_tasks write a line each. If that fails, the line is kept and written
// before the next one, or by metrics_close. The first metrics_step also appends to FOLDER/sessions.jsonl the
// figures that are the same in all steps.
enum status metrics_step(struct metrics *metrics, const struct step_metrics *step) MUST_CHECK;
enum status metrics_eval(struct metrics *metrics, const struct eval_metrics *eval) MUST_CHECK;
// Writes {"step": N, "tasks": {NAME: {"acc": X, "acc_stderr": X, ..., "items": N}}} and events
// tasks/NAME/acc.
//   results   (tasks->n) one per task
enum status metrics_tasks(struct metrics *metrics, int64_t step, const struct task_list *tasks,
                          const struct task_result *results) MUST_CHECK;
// Log model memory, program and total: before the first step as planned, and after the last one as measured.
void metrics_log_planned(size_t model_bytes, size_t program_bytes, int world);
void metrics_log_measured(const struct step_metrics *step, int world);
void metrics_close(struct metrics *metrics);

// Return the largest resident set size of this process so far, and the present one, in bytes; 0 if the size
// cannot be read.
size_t metrics_peak_memory(void);
size_t metrics_resident_memory(void);

#endif
