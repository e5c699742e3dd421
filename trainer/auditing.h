// The ledger of a run (trainer/runs/ledger.h): with run.audit_every, a run writes it. ./train audit repeats
// steps of a run, by trainer_repeat, and compares them with the ledger; nothing is written then.
//
// The functions that take a `struct audit *` do nothing if it is NULL: the run has no ledger.
#ifndef ZERO_TRAINER_AUDITING_H
#define ZERO_TRAINER_AUDITING_H

#include "trainer/run.h"
#include "trainer/runs/ledger.h"

// What ./train audit wants of a run: train up to a step, and compare with the ledger.
struct audit_task {
    struct ledger *ledger;        // every rank has it
    int64_t until;                // the last step to train
    bool saves;                   // save a checkpoint of that step
    void (*report)(int64_t step); // called on rank 0 when the state after this step was found equal
};

struct audit;
// Returns NULL if the run needs none.
//   task   NULL: the run writes its own ledger
struct audit *audit_new(struct run *run, const struct audit_task *task);
void audit_delete(struct audit *audit);
// Reads a ledger on rank 0 and gives it to all ranks. An absent file is an empty ledger. Collective.
enum status audit_read(struct comm *comm, const char *path, struct ledger *ledger) MUST_CHECK;

struct option;
// Whether the ledger binds an option: the run's bits depend on it.
bool audit_binds(const struct option *option);
// Whether the run repeats steps for ./train audit.
bool audit_repeats(const struct audit *audit);
// Whether such a run saves a checkpoint of its last step.
bool audit_saves(const struct audit *audit);
// Ends such a run at audit_task.until.
void audit_limit(struct run *run);

// Called once the states are loaded. Compares the state with the ledger's, and begins a session. Collective.
//   resumed   the checkpoint that was loaded, still open; NULL: the run begins with initial weights
enum status audit_begin(struct audit *audit, const struct checkpoint *resumed) MUST_CHECK;
// Digests a micro-batch that this rank has loaded, for the next step.
//   first_row   its first row in the step's batch
void audit_batch(struct audit *audit, int64_t first_row, const struct token_batch *batch);
// Sets *data to the digest of all rows of the step, in order, and forgets the micro-batches. Collective.
enum status audit_data(struct audit *audit, struct digest *data) MUST_CHECK;
// Compares or records a finished step, on rank 0.
enum status audit_step(struct audit *audit, const struct ledger_step *step) MUST_CHECK;
// Whether the state after this step is compared or recorded.
bool audit_is_due(const struct audit *audit, int64_t step);
// Compares or records the state after the steps so far, if that was not done yet. All steps must be finished.
// Collective.
enum status audit_state(struct audit *audit) MUST_CHECK;
// Logs the ledger's head.
void audit_log_head(const struct audit *audit);

// Whether the decision on the run's length after this step is repeated, not made.
//   decision   [out] set if one was made then
bool audit_repeats_decision(const struct audit *audit, int64_t step, struct pacing_decision *decision);
void audit_decision(struct audit *audit, const struct pacing_decision *decision);

// Computes what the ledger has of the state in a checkpoint. Collective.
//   data   the checkpoint's, or that of the run that resumed it
enum status audit_checkpoint(struct comm *comm, const struct checkpoint *checkpoint,
                             const struct data_record *data, struct ledger_state *state) MUST_CHECK;

#endif
