// The output of `./train plan`: for each number of ranks a table of the stages, as text or JSON, and with
// --paper the ZeRO paper's table.
#ifndef ZERO_TRAINER_PLAN_PLAN_REPORT_H
#define ZERO_TRAINER_PLAN_PLAN_REPORT_H

#include "trainer/plan/micro_batch.h"
#include "trainer/plan/plan.h"

// The plans for one number of ranks.
struct plan_case {
    int world, local_world, n_threads;
    int64_t micro_batch_size, accumulation_steps, train_batch_size;
    char *schedule; // config_print_schedule; NULL: none
    // micro_batch_size, where the config leaves it open for a GPU: chosen for its memory (has_choice), or as
    // a CPU takes it, because no GPU's memory is known (lacks_memory).
    struct micro_batch_choice choice;
    bool has_choice, lacks_memory;
    // Why the config cannot run on `world` ranks; the other members are then unset. NULL: it can.
    char *refused;
    struct plan_stage stages[N_STAGES];
};

struct plan_report {
    char *source; // path of the config
    enum dtype type;
    bool type_chosen;      // "auto" in the config: the faster one on this machine
    bool gpu_is_planned;   // for a GPU that this machine does not have
    const char *attention; // attention_plan's name
    int stage;             // zero_optimization.stage of the config
    const char *partition;
    size_t n_weights, n_elements;      // as in struct params
    uint64_t device_limit, host_limit; // bytes per GPU, bytes per machine; 0: not given
    struct plan_case *cases;
    int n_cases;
};
void plan_report_free(struct plan_report *report);

// The most columns of what is printed, where words allow.
enum { PLAN_COLUMNS = 100 };
// Appends the line, folded (text_add_folded), and a newline. Frees `line`.
void plan_add_folded(struct text *out, struct text *line, const char *indent, const char *tail);
void plan_add_prose(struct text *out, struct text *line); // indented by two

// Appends why a case has its micro_batch_size, where the config leaves it open; otherwise nothing.
void plan_add_choice(struct text *out, const struct plan_case *one);

// Print to standard output. report: NULL for no plans. paper: adds the paper's table.
void plan_report_print(const struct plan_report *report, bool paper);
void plan_report_print_json(const struct plan_report *report, bool paper);

#endif
