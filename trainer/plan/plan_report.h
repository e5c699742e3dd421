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
    char *schedule; // text of config_print_schedule; NULL: the batch size is constant
    // Set if plans are for a GPU and the config leaves micro_batch_size open. has_choice: `choice` is the
    // size chosen for the GPU's memory. lacks_memory: the GPU's memory is not known, so micro_batch_size is
    // the one for a CPU, and `choice` is not set.
    struct micro_batch_choice choice;
    bool has_choice, lacks_memory;
    // Why the config cannot run on `world` ranks; the other members are then not set. NULL: it can.
    char *refused;
    struct plan_stage stages[N_STAGES];
};

struct plan_report {
    char *source;          // path of the config
    enum dtype type;       // compute type
    bool type_chosen;      // true: precision.compute is "auto", and `type` is the one that suits this machine
    bool gpu_is_planned;   // true: the plans are for a GPU that this machine does not have
    const char *attention; // the name from attention_plan; NULL: none
    int stage;             // zero_optimization.stage of the config
    const char *partition;
    size_t n_weights, n_elements;      // as in struct params
    uint64_t device_limit, host_limit; // bytes per GPU, bytes per machine; 0: not given
    struct plan_case *cases;
    int n_cases;
};
void plan_report_free(struct plan_report *report);

// The maximum width of the output in characters; only a longer word may exceed it.
enum { PLAN_COLUMNS = 100 };
// Appends the line, wrapped to PLAN_COLUMNS, and a newline. Frees `line`.
//   indent   begins each continuation line
//   tail     ends each line but the last: "" or " \\"
void plan_add_folded(struct text *out, struct text *line, const char *indent, const char *tail);
// The same with continuation lines indented by two spaces, and no tail.
void plan_add_prose(struct text *out, struct text *line);

// Appends the reason for a case's micro_batch_size if the config leaves it open; otherwise nothing.
void plan_add_choice(struct text *out, const struct plan_case *one);

// Print the report to standard output.
//   report   NULL: print no plans
//   paper    true: print the table of the ZeRO paper, too
void plan_report_print(const struct plan_report *report, bool paper);
void plan_report_print_json(const struct plan_report *report, bool paper);

#endif
