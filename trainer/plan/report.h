// What ./train plan prints: the stages of each number of ranks as tables for people or JSON for scripts, and
// the ZeRO paper's table.
#ifndef ZERO_TRAINER_PLAN_REPORT_H
#define ZERO_TRAINER_PLAN_REPORT_H

#include "trainer/plan/plan.h"

// One number of ranks.
struct plan_case {
    int world, local_world, n_threads;
    int64_t micro_batch_size, accumulation_steps, train_batch_size;
    char *refused; // why the config cannot run on so many: then nothing else here counts; NULL: it can
    struct plan_stage stages[N_STAGES];
};

struct plan_report {
    char *source; // of the config
    enum dtype type;
    bool type_measured;  // not given by the config: the faster one here
    bool gpu_is_planned; // for: there is none, or not that one
    int stage;           // that the config names
    const char *partition;
    size_t n_weights, n_elements;      // as struct params has them
    uint64_t device_limit, host_limit; // memory of a rank's GPU, of a machine; 0: not said
    struct plan_case *cases;
    int n_cases;
};
void plan_report_free(struct plan_report *report);

// report NULL: without plans; paper: the paper's table too.
enum status plan_report_print(const struct plan_report *report, bool paper) MUST_CHECK;
enum status plan_report_print_json(const struct plan_report *report, bool paper) MUST_CHECK;

#endif
