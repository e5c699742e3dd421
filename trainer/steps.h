// The steps of training, as a pipeline: a step is issued, and later finished.
//
// Where the device decides on the update, and the run goes on in one way only, after an update that is done,
// the host issues a step before it finishes the one before, so that the device never waits for the host. A
// step that is issued in vain, because the one before it ends the run, changes no weights.
#ifndef ZERO_TRAINER_STEPS_H
#define ZERO_TRAINER_STEPS_H

#include "trainer/pacing.h"
#include "trainer/run_output.h"
#include "trainer/spikes.h"
#include "trainer/training_data.h"

// A step that was issued.
struct issued_step {
    struct step_metrics now; // as far as known
    struct update_plan plan;
    struct average_record average; // after the step if it is done
    struct spike_limits limits;
    int64_t batch_size;      // sequences, over all ranks
    double weighted_targets; // the sum of its targets' weights, over all ranks
    double small_square; // of the noise scale: mean over ranks of a micro-batch's sum of squares; < 0: not
                         // measured
    struct update_result result; // if is_decided: else still on the device
    bool is_decided;
    int slot; // of step_control_begin
    double began_s;
    double device_s; // that it took on the device; 0: not known
};

// What is done the same way in each step, captured as CUDA graphs.
enum { N_MICRO_BATCH_KINDS = 4 }; // first of its step or not, times last or not
struct step_graphs {
    bool is_on;
    struct step_graph {
        struct graph graph;
        bool is_warm; // it has been done once without being captured
    } micro_batches[N_MICRO_BATCH_KINDS], update;
};

struct steps {
    struct run *run;
    const struct training_data *data;
    struct run_output *output;
    struct pacing *pacing;
    struct issued_step issued[STEP_SLOTS];
    int64_t n_issued, n_finished; // steps of this start
    struct step_graphs graphs;
    struct comm_volume volume; // of a step with volume_micro_batches
    int64_t volume_micro_batches;
    int64_t *source_tokens;             // (sources of data.train) of struct step_metrics
    double finished_s, finished_step_s; // when the last one was finished, and how long it took; 0: none yet
};

// Before the first step. Decides whether CUDA graphs are used; if they are asked for and cannot be, logs why.
void steps_begin(struct steps *steps);
void steps_free(struct steps *steps);

// Issues the next step; run->step counts it. STATUS_STOPPED: a rank was asked to stop, and nothing was
// issued. Collective.
enum status steps_issue(struct steps *steps) MUST_CHECK;
// Finishes issued steps until only `left` are not finished: loss scale, metrics and progress then have them.
// What reads or writes the weights, or the run's state, between steps first finishes all. Collective.
enum status steps_finish(struct steps *steps, int left) MUST_CHECK;
// True if the host may issue a step before the one before is finished: the device decides, and neither loss
// scaling nor train.on_spike=skip lets a run go on after an update that is not done.
bool steps_may_be_ahead(const struct steps *steps);

#endif
