// The machine of a run: the devices of its ranks, and the measurements and decisions about them before the
// first step. Functions that return a status are collective.
//   resumed   the checkpoint to resume, whose decisions are kept; NULL: a new run
#ifndef ZERO_TRAINER_MACHINE_H
#define ZERO_TRAINER_MACHINE_H

#include "trainer/plan/micro_batch.h"
#include "trainer/run.h"

// Opens this rank's devices and attaches communication to them. STATUS_INVALID: some ranks have a GPU and
// others do not. Warns of devices that round differently.
enum status machine_open(struct run *run) MUST_CHECK;
// Closes the devices and frees the run's memory on them. Call it after a failure to open, too.
void machine_close(struct run *run);

// Sets run->type: precision.compute or, for "auto", the faster type of rank 0's device (device_compute_type).
enum status machine_choose_type(struct run *run, const struct checkpoint *resumed) MUST_CHECK;

// train.micro_batch_size of a run that leaves it open, on GPUs.
struct micro_batch_decision {
    struct micro_batch_choice choice;
    bool was_made, keeps; // keeps: the size of the resumed checkpoint is kept
};
// Chooses the size from each rank's memory plan, if the size is open and a rank has a GPU, and sets it in the
// config.
//   out   [out] written if a choice was made
enum status machine_choose_micro_batch(struct run *run, const struct checkpoint *resumed,
                                       struct micro_batch_decision *out) MUST_CHECK;
// Logs the choice and its reason.
void machine_describe_micro_batch(const struct run *run, const struct checkpoint *resumed,
                                  const struct micro_batch_decision *decision);

// Decides how attention is computed (run->attention), for this run and for runs that resume it. Rank 0
// chooses. A kernel that the config names, or that the resumed run recorded, is used or refused. The other
// ranks must have the same version of cuDNN. Call it after the type is chosen and before the memory is
// planned.
enum status machine_choose_attention(struct run *run, const struct checkpoint *resumed) MUST_CHECK;

// Measures the rate of matrix products with which steps are compared; with run.profile also the memory
// bandwidth. Finds the dense peak. Call it before the run's memory is allocated.
enum status machine_measure_rate(struct run *run) MUST_CHECK;
// Repeats that measurement if a step exceeded it, because other programs may have slowed it down. The rate
// becomes at least `achieved`. The device must be idle.
//   achieved   FLOP/s of all ranks in the step's forward and backward passes, timed on rank 0
enum status machine_check_rate(struct run *run, double achieved) MUST_CHECK;

#endif
