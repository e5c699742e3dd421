// Inside the trainer: what setup makes, the loop uses and evaluation shares.
#ifndef ZERO_TRAINER_TRAINER_INTERNAL_H
#define ZERO_TRAINER_TRAINER_INTERNAL_H

#include "data/loader.h"
#include "data/tokenizer.h"
#include "infer/weights.h"
#include "kernels/memory.h"
#include "trainer/metrics.h"
#include "trainer/plan/plan.h"
#include "trainer/profile/profiler.h"
#include "trainer/run_folder.h"

struct trainer {
    struct config *config;
    const char *command;
    struct comm *comm;
    struct run_folder folder;
    struct checkpoint *resumed;  // NULL: a new run. Open during setup only
    struct weights weights;      // of model.init_from. Open during setup only
    struct tokenizer *tokenizer; // NULL without data.tokenizer
    int *token_bytes;            // (ids) bytes of each token's text, end-of-text having none

    struct device *device, *comm_device; // the second sums what ranks exchange, with one thread
    struct device *host_device;          // the host's cores, for what is kept there for a GPU; else NULL
    struct stream stream;
    enum dtype type;
    struct params params;
    struct memory memory;
    struct engine engine;
    struct comm_volume volume;
    size_t program_bytes; // resident before the run's own memory was taken: the program and its libraries
    struct loader *train, *val; // val NULL without data.val
    float *val_losses;          // (B, T) of a partial micro-batch of data.val
    struct data_record data;    // for checkpoints
    struct metrics metrics;
    double gemm_rate;          // FLOP/s, all ranks together
    struct device_peak limits; // of this rank's device; bytes with run.profile only
    struct profiler profiler;
    int profile_region; // of its memory, with run.profile

    struct loss_scale loss_scale;
    int64_t step, saved_step; // steps done; of the newest checkpoint, -1 for none
    enum status pending;      // of this rank's output since the ranks last agreed (metrics)
    bool can_save;            // the run fails, all ranks know, and the weights are those of a whole step
};

// Everything up to the first step. *complete: the run had all its steps already, and only the folder was
// opened.
enum status trainer_setup(struct trainer *trainer, bool *complete) MUST_CHECK;
void trainer_free(struct trainer *trainer);
// Opens data.train and data.val, the same on all ranks and the same that a resumed run was trained on (or new
// data that checkpoint.accept_new_data allows).
enum status trainer_open_data(struct trainer *trainer) MUST_CHECK;

// Ranks agree on the outcome of what each did alone: the worst status of all.
static inline enum status trainer_agree(struct trainer *trainer, enum status status) {
    return comm_agree(trainer->comm, status);
}
// The same between steps: after a failure here the progress can still be saved.
static inline enum status trainer_agree_between_steps(struct trainer *trainer, enum status status) {
    status = trainer_agree(trainer, status);
    trainer->can_save = status > STATUS_STOPPED;
    return status;
}
// Keeps a failure of one rank's output for the next agreement: the others are not waiting for it now.
static inline void trainer_fail_later(struct trainer *trainer, enum status status) {
    if (trainer->pending == STATUS_OK)
        trainer->pending = status;
}
// Rank 0 alone prints and writes the run's folder.
static inline bool trainer_leads(const struct trainer *trainer) {
    return trainer->comm->rank == 0;
}

// The next functions are called by all ranks and answer all alike.
// Loss on data.val, to the metrics and the log.
enum status trainer_evaluate(struct trainer *trainer) MUST_CHECK;
// One sample to the log and to samples/step-N.txt.
enum status trainer_sample(struct trainer *trainer) MUST_CHECK;
enum status trainer_save(struct trainer *trainer) MUST_CHECK;

// run.profile; without it none does anything. What the machine gives, before the run's memory is taken and
// while gemm_rate is this rank's; starting, before the first step; the end, which tells what was seen, by all
// ranks.
enum status trainer_profile_limits(struct trainer *trainer) MUST_CHECK;
enum status trainer_profile_start(struct trainer *trainer) MUST_CHECK;
enum status trainer_profile_end(struct trainer *trainer) MUST_CHECK;

#endif
