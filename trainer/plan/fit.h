// Finds settings with which a run fits into memory and still trains the same: smaller micro-batches of the
// same batch, recomputation, ZeRO stage, offload. The settings form a ladder in the order of their cost
// (fit.c). Each is planned exactly (trainer/plan/plan.h), and the first ones that fit are proposed.
#ifndef ZERO_TRAINER_PLAN_FIT_H
#define ZERO_TRAINER_PLAN_FIT_H

#include "trainer/plan/plan_report.h"

// The memory to fit into.
struct fit_machine {
    uint64_t device;  // bytes per GPU; ignored when the device is the CPU
    uint64_t host;    // bytes per machine, shared by all ranks on it
    uint64_t program; // bytes of `host` that each rank's program takes besides its model memory
    uint64_t process; // the most model memory that one process may have (ulimit -v); 0: no limit
};

// The bytes of a GPU's memory that a run finds free. The driver's context and the kernels' code take some
// hundred MiB, less on small GPUs. This subtracts 512 MiB, but at most 1/32 of the memory.
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
    size_t taken[N_REGION_PLACES]; // bytes on the rank that needs most
    double flops;                  // per rank and step, of matrix products, including recomputed ones
    bool same_bits; // true: the same losses to the bit; false: up to rounding, because sums are added in
                    // another order
};

// The first setting that fits, and the next two that each take at least a tenth less of the memory that is
// short: the GPU's or, without a GPU, the host's.
#define FIT_MOST_PROPOSALS 3
struct fit {
    struct fit_proposal proposals[FIT_MOST_PROPOSALS];
    int n_proposals;
    // If nothing fits: path of the largest preset that has fewer parameters and fits on as many ranks, with
    // as many tokens per step. NULL: none fits.
    const char *preset;
};
enum status fit_find(const struct fit_request *request, struct fit *out) MUST_CHECK;
void fit_free(struct fit *fit);

// Appends advice for a run that does not fit to an error message: the first proposal, or else the preset.
enum status fit_advise(const struct engine_options *run, const struct fit_machine *machine,
                       struct text *out) MUST_CHECK;

// The output of `./train plan --fit`: for each number of ranks, the proposals as commands to run.
struct fit_report {
    const struct plan_report *plans; // its numbers of ranks and refusals; not the stages of its cases
    struct fit *cases;               // (plans->n_cases)
    bool on_gpu;
    uint64_t gpu_memory; // bytes per GPU as given; machine.device of these are free
    struct fit_machine machine;
    bool host_is_here;        // machine.host was not given: it is the memory available here
    const char *const *words; // the command line, starting with the path of the config
    int n_words;
};
// Prints the report as text or JSON. STATUS_FAILED: nothing fits on any number of ranks.
enum status fit_report_print(const struct fit_report *report, bool as_json) MUST_CHECK;

#endif
