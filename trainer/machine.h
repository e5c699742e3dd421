// The machine of a run: the devices of its ranks, measurements of them, and the decisions that depend on
// them. Functions that return a status are collective.
//
// In the functions below, `resumed` is the checkpoint that the run resumes; NULL for a new run. A resumed run
// keeps the decisions that its checkpoint records.
#ifndef ZERO_TRAINER_MACHINE_H
#define ZERO_TRAINER_MACHINE_H

#include "trainer/plan/micro_batch.h"
#include "trainer/run.h"

// Opens this rank's devices and attaches communication to them. STATUS_INVALID: some ranks have a GPU and
// others do not.
enum status machine_open(struct run *run) MUST_CHECK;
// Closes the devices and frees the run's memory on them. Call it after a failure to open, too.
void machine_close(struct run *run);

// Sets run->type: precision.compute or, for "auto", the type of the resumed run, or in a new run the
// type that suits rank 0's device (device_compute_type).
enum status machine_choose_type(struct run *run, const struct checkpoint *resumed) MUST_CHECK;

// How train.micro_batch_size was chosen, if the config leaves it open and a rank has a GPU.
struct micro_batch_decision {
    struct micro_batch_choice choice; // the smallest choice of any rank
    bool was_made;                    // false: the config gives the size, or no rank has a GPU
    bool keeps;                       // true: the size is the resumed checkpoint's, not choice.size
};
// Chooses the micro-batch size from each rank's memory plan and sets it in the config, if the config leaves
// it open and a rank has a GPU.
//   out   [out] written only if a choice was made
enum status machine_choose_micro_batch(struct run *run, const struct checkpoint *resumed,
                                       struct micro_batch_decision *out) MUST_CHECK;
// Logs the micro-batch size and its reason, if a choice was made.
void machine_describe_micro_batch(const struct run *run, const struct micro_batch_decision *decision);
// Sets the config's logical_ranks to the number of ranks if a rank lacks the memory to compute several, and
// train.logical_ranks does not ask for them. Call it once the micro-batch size is known. STATUS_INVALID:
// train.logical_ranks asks for more than fit; the message names the largest number that does.
enum status machine_choose_ranks(struct run *run) MUST_CHECK;

// Decides how attention is computed (run->attention), for this run and for runs that resume it. Rank 0
// chooses. If the config names a kernel, or the resumed run recorded one, the run uses it or fails. If rank 0
// chooses cuDNN, all ranks must have the same version of it. Call it after the type is chosen and before the
// memory is planned.
enum status machine_choose_attention(struct run *run, const struct checkpoint *resumed) MUST_CHECK;

// Computes the fingerprints of the ranks' devices and compares them with each other and with the one that the
// resumed checkpoint records. Warns if ranks round differently. Call it after type and attention are chosen.
// STATUS_UNSUPPORTED: fingerprints differ or are not known, and the config has run.require_same_bits.
enum status machine_compare_bits(struct run *run, const struct checkpoint *resumed) MUST_CHECK;
// Logs how this machine's rounding and that of the machine that wrote the checkpoint differ, if they do.
void machine_describe_bits(const struct run *run, const struct checkpoint *resumed);

// Measures the GEMM rate, to which the FLOP/s of steps are compared, and with run.profile the memory
// bandwidth. Sets the dense peak and run->flops_per_token. Call it before the run's memory is allocated.
enum status machine_measure_rate(struct run *run) MUST_CHECK;
// Measures the GEMM rate again if a step exceeded it, because other programs may have slowed down the first
// measurement. The rate becomes at least `achieved`. The device must be idle.
//   achieved   FLOPs of that step's forward and backward passes on all ranks, divided by rank 0's seconds
enum status machine_check_rate(struct run *run, double achieved) MUST_CHECK;

#endif
