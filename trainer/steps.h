// The steps of training, as a pipeline: a step is issued, and later finished.
//
// If the device decides on the update, and the run continues only after an update that is done, the host
// issues a step before it finishes the previous one, so that the device never waits for the host. If the
// previous step ends the run, the step was issued in vain; it changes no weights.
#ifndef ZERO_TRAINER_STEPS_H
#define ZERO_TRAINER_STEPS_H

#include "trainer/pacing.h"
#include "trainer/run_output.h"
#include "trainer/spikes.h"
#include "trainer/training_data.h"

// An issued step.
struct issued_step {
    struct step_metrics now; // as far as known
    struct update_plan plan;
    struct average_record average; // after the step if it is done
    struct spike_limits limits;
    int64_t batch_size;      // sequences, over all ranks
    double weighted_targets; // the sum of its targets' weights, over all ranks
    double small_square; // of the noise scale: mean over ranks of a micro-batch's sum of squares; < 0: not
                         // measured
    struct update_result result; // valid if is_decided: else it is still on the device
    bool is_decided;
    int slot; // slot of step_control_begin
    double began_s;
    double device_s; // time on the device; 0: unknown
};

// Work that is the same in each step, captured as CUDA graphs.
enum { N_MICRO_BATCH_KINDS = 4 }; // first in its step or not, times last or not
struct step_graphs {
    bool is_on;
    struct step_graph {
        struct graph graph;
        bool is_warm; // it was run once without capture
    } micro_batches[N_MICRO_BATCH_KINDS], update;
};

struct steps {
    struct run *run;
    const struct training_data *data;
    struct run_output *output;
    struct pacing *pacing;
    struct issued_step issued[STEP_SLOTS];
    int64_t n_issued, n_finished; // steps of this session
    struct step_graphs graphs;
    struct comm_volume volume; // planned for a step with volume_micro_batches
    int64_t volume_micro_batches;
    int64_t *source_tokens;             // (sources of data.train) of struct step_metrics
    double finished_s, finished_step_s; // when the last step was finished, and its length; 0: none yet
};

// Called before the first step. Decides whether CUDA graphs are used; if the user asked for them and they
// cannot be, logs why.
void steps_begin(struct steps *steps);
void steps_free(struct steps *steps);

// Issues the next step, and counts it in run->step. STATUS_STOPPED: a rank was asked to stop, and nothing was
// issued. Collective.
enum status steps_issue(struct steps *steps) MUST_CHECK;
// Finishes issued steps until only `left` are unfinished. Loss scale, metrics and progress then include them.
// Code that reads or writes the weights or the run's state between steps must finish all steps first.
// Collective.
enum status steps_finish(struct steps *steps, int left) MUST_CHECK;
// True if the host may issue a step before the previous one is finished: the device decides, and a run cannot
// continue after an update that is not done (no loss scaling, no train.on_spike=skip).
bool steps_may_be_ahead(const struct steps *steps);

#endif
