// The machine of a run: the devices of its ranks, and what is measured and decided about them before the
// first step. Functions that return a status are collective.
//   resumed   the checkpoint to resume, which keeps what its run decided; NULL: a new run
#ifndef ZERO_TRAINER_MACHINE_H
#define ZERO_TRAINER_MACHINE_H

#include "trainer/plan/micro_batch.h"
#include "trainer/run.h"

// Opens this rank's devices, and the ranks' way to exchange what is on them. STATUS_INVALID: some ranks have
// a GPU and others none. Warns of devices that round differently.
enum status machine_open(struct run *run) MUST_CHECK;
// Closes them, and frees the run's memory on them; also after a failure to open.
void machine_close(struct run *run);

// Sets run->type: precision.compute or, for "auto", the faster type of rank 0's device (device_compute_type).
enum status machine_choose_type(struct run *run, const struct checkpoint *resumed) MUST_CHECK;

// train.micro_batch_size of a run that leaves it open, on GPUs.
struct micro_batch_decision {
    struct micro_batch_choice choice;
    bool was_made, keeps; // keeps: the size of the resumed checkpoint
};
// Chooses the size by each rank's memory plan, if it is open and a rank has a GPU, and sets it in the config.
//   out   [out] written where a choice was made
enum status machine_choose_micro_batch(struct run *run, const struct checkpoint *resumed,
                                       struct micro_batch_decision *out) MUST_CHECK;
// Logs what was chosen, and why.
void machine_describe_micro_batch(const struct run *run, const struct checkpoint *resumed,
                                  const struct micro_batch_decision *decision);

// Decides how attention is computed (run->attention), for the run and for those that resume it. Rank 0
// chooses. What is asked for by name, or recorded by the resumed run, is done or refused; the other ranks
// must have the same version of cuDNN. Called once the type is chosen, before the memory is planned.
enum status machine_choose_attention(struct run *run, const struct checkpoint *resumed) MUST_CHECK;

// Measures the rate of matrix products that steps are compared with; with run.profile also the bandwidth.
// Called before the run's memory is allocated. Finds the dense peak.
enum status machine_measure_rate(struct run *run) MUST_CHECK;
// Other programs may have slowed that measurement down, so it is repeated if a step exceeded it. The rate
// becomes at least `achieved`. The device must be idle.
//   achieved   FLOP/s of all ranks in the step's forward and backward passes, as rank 0 timed them
enum status machine_check_rate(struct run *run, double achieved) MUST_CHECK;

#endif
