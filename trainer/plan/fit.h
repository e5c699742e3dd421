// Finds the fastest setting of a run that fits into a machine. The search covers the settings that do not
// change what is trained: ZeRO stage, recomputation, offload, and micro-batches of the same batch: smaller
// ones or, where train.micro_batch_size is open for a GPU (configs/config.h), all that a run may choose.
// Each is planned exactly (trainer/plan/plan.h); those that fit are ranked by trainer/plan/cost_model.h.
#ifndef ZERO_TRAINER_PLAN_FIT_H
#define ZERO_TRAINER_PLAN_FIT_H

#include "trainer/plan/plan.h"

// The memory to fit into.
struct fit_machine {
    uint64_t device;  // bytes per GPU; ignored when the device is the CPU
    uint64_t host;    // bytes per machine, shared by all ranks on it
    uint64_t program; // of these, what each rank's program takes besides its model memory
    uint64_t process; // the most model memory that one process may have (ulimit -v); 0: no limit
};

// Bytes of a GPU's memory that a run finds free. The driver's context and the kernels' code take some hundred
// MiB, less on small GPUs: subtracts 512 MiB, but at most 1/32 of the memory.
static inline uint64_t fit_free_of_gpu(uint64_t bytes) {
    const uint64_t most = (uint64_t)512 << 20;
    return bytes - (bytes / 32 < most ? bytes / 32 : most);
}

struct fit_request {
    struct engine_options plan; // of the run; `rank` is ignored
    const struct config *given; // resolved config that overrides are relative to, usually plan.config
    struct fit_machine machine;
};

// A setting that fits.
struct fit_proposal {
    char *overrides;               // "section.key=value ..." to add to the command; "" for no change
    char *description;             // the setting in words
    size_t taken[N_REGION_PLACES]; // bytes of the rank that needs most
    double step_s;                 // nominal time (step_time_estimate), to compare proposals
    bool same_bits; // true: the same losses to the bit; false: to rounding, as sums have another order
};
void fit_proposal_free(struct fit_proposal *proposal);

// Proposals: the fastest; then the fastest that takes at least a tenth less memory than the one before, of
// the GPU's memory or, without a GPU, the host's.
#define FIT_MOST_PROPOSALS 3
struct fit {
    struct fit_proposal proposals[FIT_MOST_PROPOSALS];
    int n_proposals; // 0: nothing fits
};
enum status fit_search(const struct fit_request *request, struct fit *out) MUST_CHECK;
void fit_free(struct fit *fit);

// For a run that does not fit: the largest preset with fewer parameters that fits on as many ranks, with as
// many tokens per step (rounded down to whole sequences per rank).
//   path   [out] of the preset; NULL: none fits, and `out` is not written
enum status fit_preset(const struct fit_request *request, const char **path,
                       struct fit_proposal *out) MUST_CHECK;

// For a run that does not fit: the widest narrower optimizer.state_dtype with which it fits.
//   name   [out] of the dtype; NULL: none fits, and `out` is not written
enum status fit_narrow_state(const struct fit_request *request, const char **name,
                             struct fit_proposal *out) MUST_CHECK;

// Appends advice for a run that does not fit to an error message: the fastest setting that fits on this
// number of ranks or, if there is none, on 2, 4, 8 ... times as many. The batch stays.
enum status fit_advise(const struct engine_options *request, const struct fit_machine *machine,
                       struct text *out) MUST_CHECK;

#endif
