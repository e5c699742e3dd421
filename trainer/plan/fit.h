// The fastest setting of a run that fits into a machine. Tried is every setting that leaves the run what it
// is: ZeRO stage, recomputation, what waits on the host, smaller micro-batches of the same batch. Each is
// planned as the run itself would be, and those that fit are ranked by zero/step_time.
#ifndef ZERO_TRAINER_PLAN_FIT_H
#define ZERO_TRAINER_PLAN_FIT_H

#include "trainer/plan/plan.h"

// What there is. `device` counts only where the device has memory of its own.
struct fit_machine {
    uint64_t device; // bytes of a rank's GPU
    uint64_t host;   // bytes of a machine's memory, for all the ranks on it
};

// What a run finds free of a GPU's memory: the driver's context and the kernels' code take some hundred MiB
// first, which on small GPUs are fewer. Half a GiB, at most a 32nd.
static inline uint64_t fit_free_of_gpu(uint64_t bytes) {
    const uint64_t most = (uint64_t)512 << 20;
    return bytes - (bytes / 32 < most ? bytes / 32 : most);
}

struct fit_request {
    struct engine_options plan; // `rank` is not looked at
    const struct config *given; // what overrides are relative to, resolved: mostly the plan's own config
    struct fit_machine machine;
};

// A setting that fits.
struct fit_proposal {
    char *overrides;               // words to add to the command; "" where nothing needs to be changed
    char *words;                   // the setting, said
    size_t taken[N_REGION_PLACES]; // bytes of the rank that needs most
    double step_s;                 // as zero/step_time estimates it: to compare
    bool same_bits; // losses equal to the last bit; otherwise to rounding: sums have another order
};
void fit_proposal_free(struct fit_proposal *proposal);

// The fastest, and then the fastest that takes a tenth less than the one before of the memory that is short.
#define FIT_MOST_PROPOSALS 3
struct fit {
    struct fit_proposal proposals[FIT_MOST_PROPOSALS];
    int n_proposals; // 0: nothing fits
};
enum status fit_search(const struct fit_request *request, struct fit *out) MUST_CHECK;
void fit_free(struct fit *fit);

// For a run that does not fit: the largest preset with fewer parameters than it that does, on as many ranks,
// its batch of as many tokens (or as many as ranks and sequences allow, rounded down). *path is NULL when
// none does.
enum status fit_preset(const struct fit_request *request, const char **path,
                       struct fit_proposal *out) MUST_CHECK;

// Likewise with a narrower optimizer.state_dtype, the widest that will do. *name is NULL when none will.
enum status fit_narrow_state(const struct fit_request *request, const char **name,
                             struct fit_proposal *out) MUST_CHECK;

// Adds, for a person whose run does not fit, the fastest setting that would, on this number of ranks or, if
// there is none, on more; the batch stays.
enum status fit_advise(const struct engine_options *request, const struct fit_machine *machine,
                       struct text *out) MUST_CHECK;

#endif
