// Finds settings with which a run fits into memory, without changing what it trains: smaller micro-batches of
// the same batch, recomputation, ZeRO stage, offload. The settings form a ladder in the order of their cost
// (fit.c). Each is planned exactly (trainer/plan/plan.h), and the first ones that fit are proposed.
#ifndef ZERO_TRAINER_PLAN_FIT_H
#define ZERO_TRAINER_PLAN_FIT_H

#include "trainer/plan/plan_report.h"

// The memory to fit into.
struct fit_machine {
    uint64_t device;  // bytes per GPU; ignored when the device is the CPU
    uint64_t host;    // bytes per machine, shared by all ranks on it
    uint64_t program; // bytes of `host` that each rank's program takes besides its model memory
    uint64_t process; // maximum bytes of model memory per process (ulimit -v); 0: no limit
};

// Estimates the bytes of a GPU's memory that a run finds free. The driver's context and the kernels' code
// take some hundred MiB, less on small GPUs: 512 MiB are subtracted, but at most 1/32 of the memory.
static inline uint64_t fit_free_of_gpu(uint64_t bytes) {
    const uint64_t most = (uint64_t)512 << 20;
    return bytes - (bytes / 32 < most ? bytes / 32 : most);
}

struct fit_request {
    struct engine_options plan; // options of the run; `rank` is ignored
    const struct config *given; // resolved config that overrides are relative to, usually plan.config
    struct fit_machine machine;
};

// A setting that fits.
struct fit_proposal {
    char *overrides;               // "section.key=value ..." to add to the command; "" for no change
    char *description;             // the setting in words
    size_t taken[N_REGION_PLACES]; // bytes per rank in each place: the maximum over all ranks
    double flops;                  // FLOPs of matrix products per rank and step, including recomputed ones
    // True: losses are bitwise equal to those of the given config. False: they are equal up to rounding,
    // because sums are added in another order.
    bool same_bits;
};

// Maximum number of proposals: the first setting that fits, and the next two that each take at least a tenth
// less GPU memory than the one before (without a GPU, host memory).
#define FIT_MOST_PROPOSALS 3
struct fit {
    struct fit_proposal proposals[FIT_MOST_PROPOSALS];
    int n_proposals;
    // If nothing fits: path of the largest preset that has fewer parameters and fits on as many ranks, with
    // as many tokens per step. NULL: none fits.
    const char *preset;
};
// Finds proposals or, if nothing fits, a preset. Fails if the config itself cannot be planned. Free with
// fit_free.
enum status fit_find(const struct fit_request *request, struct fit *out) MUST_CHECK;
void fit_free(struct fit *fit);

// Appends advice to the error message of a run that does not fit: the first proposal, or else the preset.
enum status fit_advise(const struct engine_options *run, const struct fit_machine *machine,
                       struct text *out) MUST_CHECK;

// The output of `./train plan --fit`: for each number of ranks, the proposals as commands to run.
struct fit_report {
    const struct plan_report *plans; // its cases need `world`, `local_world` and `refused`, but no stages
    struct fit *cases;               // (plans->n_cases) the result of fit_find for each case
    bool on_gpu;                     // true: the plans are for GPUs
    uint64_t gpu_memory; // bytes per GPU as the user gave them; machine.device has the free part of them
    struct fit_machine machine;
    bool host_is_here;        // the user gave no host memory; machine.host is what this machine has available
    const char *const *words; // the command line, starting with the path of the config
    int n_words;
};
// Prints the report as text or JSON. STATUS_FAILED: nothing fits on any number of ranks.
enum status fit_report_print(const struct fit_report *report, bool as_json) MUST_CHECK;

#endif
