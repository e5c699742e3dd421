// The output of `./train plan --fit`: for each number of ranks the proposals as commands to run or, when
// nothing fits, the alternatives.
#ifndef ZERO_TRAINER_PLAN_FIT_REPORT_H
#define ZERO_TRAINER_PLAN_FIT_REPORT_H

#include "trainer/plan/fit.h"
#include "trainer/plan/report.h"

// The result for one number of ranks. The alternatives are set only when `fit` has no proposals.
struct fit_case {
    struct fit fit;
    const char *preset; // path of a preset that fits; NULL: none
    struct fit_proposal of_preset;
    const char *narrow; // an optimizer.state_dtype with which the run fits; NULL: none
    struct fit_proposal of_narrow;
};
void fit_case_free(struct fit_case *one);

struct fit_report {
    const struct plan_report *plans; // numbers of ranks and refusals; the cases' stages are not used
    struct fit_case *cases;          // (plans->n_cases)
    bool on_gpu;
    uint64_t gpu_memory; // bytes per GPU as given; machine.device of them are free
    struct fit_machine machine;
    bool host_is_here;        // machine.host was not given: it is the memory available on this machine
    const char *const *words; // the command line from the path of the config on
    int n_words;
};
enum status fit_report_print(const struct fit_report *report) MUST_CHECK;
enum status fit_report_print_json(const struct fit_report *report) MUST_CHECK;
// Appends an error message: nothing fits on any number of ranks, and which preset would.
void fit_report_add_failure(const struct fit_report *report, struct text *out);

#endif
