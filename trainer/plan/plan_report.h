// The output of `./train plan`: for each number of ranks a table of the stages, as text or JSON. With --paper
// also the table of the ZeRO paper.
#ifndef ZERO_TRAINER_PLAN_PLAN_REPORT_H
#define ZERO_TRAINER_PLAN_PLAN_REPORT_H

#include "trainer/plan/micro_batch.h"
#include "trainer/plan/plan.h"

// The plans for one number of ranks.
struct plan_case {
    int world, local_world, n_threads;
    int64_t micro_batch_size, accumulation_steps, train_batch_size;
    char *schedule; // config_print_schedule; NULL: none
    // The micro_batch_size of a config that leaves it open for a GPU: chosen by its memory (has_choice), or
    // the CPU's choice, because no GPU's memory is known (lacks_memory).
    struct micro_batch_choice choice;
    bool has_choice, lacks_memory;
    // Why the config cannot run on `world` ranks; the other members are then not set. NULL: it can.
    char *refused;
    struct plan_stage stages[N_STAGES];
};

struct plan_report {
    char *source; // path of the config
    enum dtype type;
    bool type_chosen;      // "auto" in the config: the faster type on this machine
    bool gpu_is_planned;   // plans are for a GPU that this machine does not have
    const char *attention; // the name from attention_plan
    int stage;             // zero_optimization.stage of the config
    const char *partition;
    size_t n_weights, n_elements;      // as in struct params
    uint64_t device_limit, host_limit; // bytes per GPU, bytes per machine; 0: not given
    struct plan_case *cases;
    int n_cases;
};
void plan_report_free(struct plan_report *report);

// The width of the output in characters, where words allow.
enum { PLAN_COLUMNS = 100 };
// Appends the line, wrapped by text_add_folded, and a newline. Frees `line`.
void plan_add_folded(struct text *out, struct text *line, const char *indent, const char *tail);
void plan_add_prose(struct text *out, struct text *line); // indents by two

// Appends the reason for a case's micro_batch_size if the config leaves it open; otherwise nothing.
void plan_add_choice(struct text *out, const struct plan_case *one);

// Prints to standard output. report: NULL for no plans. paper: add the paper's table.
void plan_report_print(const struct plan_report *report, bool paper);
void plan_report_print_json(const struct plan_report *report, bool paper);

#endif
