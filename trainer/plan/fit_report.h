// What ./train plan --fit prints: for each number of ranks the proposals as commands to run, or what would do
// where nothing fits.
#ifndef ZERO_TRAINER_PLAN_FIT_REPORT_H
#define ZERO_TRAINER_PLAN_FIT_REPORT_H

#include "trainer/plan/fit.h"
#include "trainer/plan/report.h"

// One number of ranks. What has no proposal of its own: preset and narrow are NULL.
struct fit_case {
    struct fit fit;
    const char *preset; // the path of one that would train
    struct fit_proposal of_preset;
    const char *narrow; // the optimizer.state_dtype that would do
    struct fit_proposal of_narrow;
};
void fit_case_free(struct fit_case *one);

struct fit_report {
    const struct plan_report *plans; // its cases' numbers and refusals, not their stages
    struct fit_case *cases;          // one for each of those
    bool on_gpu;
    uint64_t gpu_memory; // as it was said, of which machine.device is free
    struct fit_machine machine;
    bool host_is_here;        // its memory was not said: what is available on this machine
    const char *const *words; // of the command, from the configuration's path on
    int n_words;
};
enum status fit_report_print(const struct fit_report *report) MUST_CHECK;
enum status fit_report_print_json(const struct fit_report *report) MUST_CHECK;
// Adds one line that says that nothing fits on any number of ranks, and which preset would.
void fit_report_add_failure(const struct fit_report *report, struct text *out);

#endif
