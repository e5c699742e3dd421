// The steps of training, as a pipeline: a step is issued, and later finished.
//
// Where steps_may_be_ahead is true, the host issues a step before it finishes the previous one, so that the
// GPU never waits for the host. If the previous step then ends the run, the step was issued in vain; it
// changes no weights.
#ifndef ZERO_TRAINER_STEPS_H
#define ZERO_TRAINER_STEPS_H

#include "base/digest.h"
#include "trainer/pacing.h"
#include "trainer/run_output.h"
#include "trainer/spikes.h"
#include "trainer/training_data.h"

// An issued step.
struct issued_step {
    struct step_metrics now; // the step's metrics, filled in as they become known
    struct update_plan plan;
    struct average_record average; // record of the weights' average after the step, if it is not skipped
    struct spike_limits limits;    // above these, its loss or gradient norm is a spike
    int64_t batch_size;            // sequences, over all ranks
    struct digest data;            // of its token rows, if the run has a ledger
    double weighted_targets;       // sum of the weights of the step's targets, over all ranks
    // For the noise scale: the sum of squares of the gradients of a logical rank's first micro-batch, mean
    // over logical ranks. -1: not measured in this step.
    double small_square;
    struct update_result result; // set if is_decided; otherwise it is on the device until the step finishes
    bool is_decided;             // true: the host decided on the update, when the step was issued
    int slot;                    // the slot passed to step_control_begin
    double began_s;              // when the step was issued, on the monotonic clock
    double device_s;             // seconds that the step took on the device; 0: unknown
};

// A micro-batch is of one of four kinds: it is the first in its step or not, and the last in its step or not.
enum { N_MICRO_BATCH_KINDS = 4 };
// Work that is the same in each step. It is captured once as a CUDA graph, and launched from then on.
struct step_graphs {
    bool is_on; // false: no graphs are used
    struct step_graph {
        struct graph graph;
        bool is_warm; // true: the work has been run once without a graph
    } micro_batches[N_MICRO_BATCH_KINDS], update;
};

struct steps {
    struct run *run;
    const struct training_data *data;
    struct run_output *output;
    struct pacing *pacing;
    struct issued_step issued[STEP_SLOTS];
    int64_t n_issued, n_finished; // steps issued and steps finished in this session
    struct step_graphs graphs;
    struct comm_volume volume; // planned communication of a step with volume_micro_batches micro-batches
    int64_t volume_micro_batches;
    int64_t *source_tokens; // (number of sources of data.train) what step_metrics.source_tokens points to
    double finished_s;      // when a step was last finished, on the monotonic clock; 0: none yet
    double finished_step_s; // seconds that this step took; 0: none yet
};

// Called before the first step. Decides whether CUDA graphs are used. If the config asks for them and the
// device has them, but steps of this run cannot be captured, logs why.
void steps_begin(struct steps *steps);
void steps_free(struct steps *steps);

// Issues the next step, and counts it in run->step. STATUS_STOPPED: a rank was asked to stop, and nothing was
// issued. Collective.
enum status steps_issue(struct steps *steps) MUST_CHECK;
// Finishes issued steps until only `left` are unfinished. Loss scale, metrics and progress then include them.
// Code that reads or writes the weights or the run's state between steps must finish all steps first.
// Collective.
enum status steps_finish(struct steps *steps, int left) MUST_CHECK;
// True if the host may issue a step before the previous one is finished:
// - The run computes on a GPU, the GPU decides on the update, and no profile is recorded.
// - An update that is skipped ends the run: there is neither loss scaling nor train.on_spike=skip.
bool steps_may_be_ahead(const struct steps *steps);

#endif
