// A proposal is printed as a whole command: its overrides replace those that the user gave for the same
// options.
#include "trainer/plan/fit_report.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"

void fit_case_free(struct fit_case *one) {
    fit_free(&one->fit);
    fit_proposal_free(&one->of_preset);
    fit_proposal_free(&one->of_narrow);
}

// ---- commands

// True if one of the overrides (which contain no blanks or quotes) sets the same option as the word.
static bool is_replaced(const char *overrides, const char *word) {
    size_t length = strcspn(word, "=") + 1;
    for (const char *at = overrides; *at; at += strcspn(at, " "), at += strspn(at, " "))
        if (strncmp(at, word, length) == 0)
            return true;
    return false;
}

static void begin_command(struct text *out, int world, const char *path) {
    if (world > 1)
        text_add(out, "mpirun -n %d ", world);
    text_add(out, "./train ");
    text_add_shell_word(out, path);
}

// Appends the user's overrides of `section` (NULL: all) that are not replaced, then the new ones.
static void end_command(struct text *out, const struct fit_report *report, const char *section,
                        const char *overrides) {
    for (int i = 1; i < report->n_words; i++) {
        const char *word = report->words[i];
        if (is_replaced(overrides, word) || (section && strncmp(word, section, strlen(section)) != 0))
            continue;
        text_add(out, " ");
        text_add_shell_word(out, word);
    }
    text_add(out, "%s%s", *overrides ? " " : "", overrides);
}

static void add_command(struct text *out, const struct fit_report *report, int world, const char *overrides) {
    begin_command(out, world, report->words[0]);
    end_command(out, report, NULL, overrides);
}

// Of the user's overrides, a preset keeps those of the data.
static void add_preset_command(struct text *out, const struct fit_report *report, int world,
                               const struct fit_case *one) {
    begin_command(out, world, one->preset);
    end_command(out, report, "data.", one->of_preset.overrides);
}

// ---- text

// Appends a line of a proposal, folded. Frees `line`.
static void add_line(struct text *out, struct text *line) {
    if (line->data)
        text_add_folded(out, line->data, PLAN_COLUMNS, "      ", "");
    text_add(out, "\n");
    out->failed |= line->failed;
    text_free(line);
}

static void add_taken(struct text *out, const struct fit_report *report,
                      const struct fit_proposal *proposal) {
    char device[32], host[32], program[32], total[32];
    const uint64_t of_host = proposal->taken[REGION_HOST], of_program = report->machine.program;
    if (report->on_gpu)
        text_add(out, "%s of GPU memory; on the host, ",
                 text_bytes(device, sizeof device, (double)proposal->taken[REGION_DEVICE]));
    text_add(out, "model memory %s, program about %s, total %s",
             text_bytes(host, sizeof host, (double)of_host),
             text_bytes(program, sizeof program, (double)of_program),
             text_bytes(total, sizeof total, (double)(of_host + of_program)));
}

// Appends "takes per rank: ..." and `more` as a line.
static void add_taken_line(struct text *out, const struct fit_report *report,
                           const struct fit_proposal *proposal, const char *more) {
    struct text line = {0};
    text_add(&line, "    takes per rank: ");
    add_taken(&line, report, proposal);
    text_add(&line, "%s", more);
    add_line(out, &line);
}

static void add_machine(struct text *out, const struct fit_report *report) {
    char device[32], gpu[32], host[32];
    text_bytes(device, sizeof device, (double)report->machine.device);
    text_bytes(gpu, sizeof gpu, (double)report->gpu_memory);
    text_bytes(host, sizeof host, (double)report->machine.host);
    if (report->on_gpu)
        text_add(out, "%s of GPU memory per rank", device);
    if (report->on_gpu && report->gpu_memory != report->machine.device)
        text_add(out, " (%s minus the memory that CUDA itself uses)", gpu);
    text_add(out, "%s%s per machine%s", report->on_gpu ? " and " : "", host,
             report->host_is_here ? " (available on this one)" : "");
    if (report->machine.process > 0)
        text_add(out, ", of which ulimit -v leaves %s to each process",
                 text_bytes(host, sizeof host, (double)report->machine.process));
}

// Frees `command`.
static void add_folded_command(struct text *out, struct text *command) {
    if (command->data)
        text_add_folded(out, command->data, PLAN_COLUMNS, "        ", " \\");
    text_add(out, "\n");
    out->failed |= command->failed;
    text_free(command);
}

static void add_command_line(struct text *out, const struct fit_report *report, int world,
                             const char *overrides) {
    struct text command = {0};
    text_add(&command, "    ");
    add_command(&command, report, world, overrides);
    add_folded_command(out, &command);
}

static void add_proposal(struct text *out, const struct fit_report *report, int world,
                         const struct fit_proposal *proposal, double fastest_s) {
    double times = proposal->step_s / fastest_s;
    struct text line = {0};
    if (times > 1 && times < 1.005)
        text_add(&line, "  about as fast: %s", proposal->description);
    else if (times > 1)
        text_add(&line, "  about %.*f times as long: %s", times < 10 ? 2 : 0, times, proposal->description);
    else
        text_add(&line, "  fastest: %s", proposal->description);
    add_line(out, &line);
    add_command_line(out, report, world, proposal->overrides);
    add_taken_line(out, report, proposal,
                   proposal->same_bits ? "; the same losses to the bit" : "; the same losses to rounding");
}

static void add_otherwise(struct text *out, const struct fit_report *report, int world,
                          const struct fit_case *one) {
    struct text line = {0};
    text_add(out, "  nothing fits\n");
    if (one->preset) {
        struct text command = {0};
        text_add(&line, "  the largest preset that fits: %s", one->of_preset.description);
        add_line(out, &line);
        text_add(&command, "    ");
        add_preset_command(&command, report, world, one);
        add_folded_command(out, &command);
        add_taken_line(out, report, &one->of_preset, "");
    } else {
        text_add(out, "  no smaller preset fits either\n");
    }
    if (!one->narrow)
        return;
    text_add(&line, "  it fits with optimizer.state_dtype=%s, which changes rounding: %s", one->narrow,
             one->of_narrow.description);
    add_line(out, &line);
    add_command_line(out, report, world, one->of_narrow.overrides);
    add_taken_line(out, report, &one->of_narrow, "");
}

static void add_case(struct text *out, const struct fit_report *report, int i) {
    const struct plan_case *plan = &report->plans->cases[i];
    const struct fit_case *one = &report->cases[i];
    const char *plural = plan->world == 1 ? "" : "s";
    text_add(out, "\n");
    if (plan->refused) {
        struct text line = {0};
        text_add(&line, "%d rank%s: %s", plan->world, plural, plan->refused);
        plan_add_prose(out, &line);
        return;
    }
    text_add(out, "%d rank%s", plan->world, plural);
    if (plan->world > 1)
        text_add(out, ", %d per machine", plan->local_world);
    text_add(out, "\n");
    for (int k = 0; k < one->fit.n_proposals; k++)
        add_proposal(out, report, plan->world, &one->fit.proposals[k], one->fit.proposals[0].step_s);
    if (one->fit.n_proposals == 0)
        add_otherwise(out, report, plan->world, one);
}

static enum status print_text(struct text *text) {
    enum status status = text_status(text);
    if (status == STATUS_OK)
        fwrite(text->data, 1, text->length, stdout);
    text_free(text);
    return status;
}

enum status fit_report_print(const struct fit_report *report) {
    const struct plan_report *plans = report->plans;
    struct text out = {0}, line = {0};
    char weights[32];
    text_add(&line, "%s: %s parameters, %s%s, into ", plans->source,
             text_count(weights, sizeof weights, (double)plans->n_weights), dtype_name(plans->type),
             plans->type_measured ? " (measured: the faster type on this machine)" : "");
    add_machine(&line, report);
    plan_add_prose(&out, &line);
    text_add(
        &line,
        "Model memory is exact; the memory of the program and the order (by nominal speeds) are estimates.");
    plan_add_prose(&out, &line);
    for (int i = 0; i < plans->n_cases; i++)
        add_case(&out, report, i);
    return print_text(&out);
}

void fit_report_add_failure(const struct fit_report *report, struct text *out) {
    text_add(out, "no setting fits into ");
    add_machine(out, report);
    for (int i = 0; i < report->plans->n_cases; i++)
        if (report->cases[i].preset) {
            text_add(out, "; the largest preset that fits is %s", report->cases[i].preset);
            return;
        }
    text_add(out, "; no preset fits either");
}

// ---- JSON

// Frees `command`.
static void add_json(struct text *out, const struct fit_proposal *proposal, struct text *command) {
    text_add(out, "\"setting\": ");
    json_add_string(out, proposal->description);
    text_add(out, ", \"overrides\": ");
    json_add_string(out, proposal->overrides);
    text_add(out, ", \"command\": ");
    json_add_string(out, command->data ? command->data : "");
    text_add(out, ", \"device_bytes\": %zu, \"host_bytes\": %zu, \"same_bits\": %s",
             proposal->taken[REGION_DEVICE], proposal->taken[REGION_HOST],
             proposal->same_bits ? "true" : "false");
    out->failed |= command->failed;
    text_free(command);
}

static void add_proposals_json(struct text *out, const struct fit_report *report, int world,
                               const struct fit *fit) {
    for (int i = 0; i < fit->n_proposals; i++) {
        const struct fit_proposal *proposal = &fit->proposals[i];
        struct text command = {0};
        add_command(&command, report, world, proposal->overrides);
        text_add(out, "%s\n      {", i ? "," : "");
        add_json(out, proposal, &command);
        text_add(out, ", \"relative_time\": %.4f}", proposal->step_s / fit->proposals[0].step_s);
    }
}

static void add_otherwise_json(struct text *out, const struct fit_report *report, int world,
                               const struct fit_case *one) {
    struct text command = {0};
    if (one->preset) {
        text_add(out, ",\n      \"preset\": {\"path\": ");
        json_add_string(out, one->preset);
        text_add(out, ", ");
        add_preset_command(&command, report, world, one);
        add_json(out, &one->of_preset, &command);
        text_add(out, "}");
    }
    if (one->narrow) {
        text_add(out, ",\n      \"narrow_state\": {\"state_dtype\": ");
        json_add_string(out, one->narrow);
        text_add(out, ", ");
        add_command(&command, report, world, one->of_narrow.overrides);
        add_json(out, &one->of_narrow, &command);
        text_add(out, "}");
    }
}

static void add_case_json(struct text *out, const struct fit_report *report, int i) {
    const struct plan_case *plan = &report->plans->cases[i];
    const struct fit_case *one = &report->cases[i];
    text_add(out, "%s\n    {\"ranks\": %d, ", i ? "," : "", plan->world);
    if (plan->refused) {
        text_add(out, "\"refused\": ");
        json_add_string(out, plan->refused);
        text_add(out, "}");
        return;
    }
    text_add(out, "\"ranks_per_machine\": %d, \"proposals\": [", plan->local_world);
    add_proposals_json(out, report, plan->world, &one->fit);
    text_add(out, "]");
    add_otherwise_json(out, report, plan->world, one);
    text_add(out, "}");
}

enum status fit_report_print_json(const struct fit_report *report) {
    const struct plan_report *plans = report->plans;
    struct text out = {0};
    text_add(&out, "{\n  \"config\": ");
    json_add_string(&out, plans->source);
    text_add(&out, ",\n  \"parameters\": %zu,\n  \"compute\": \"%s\",\n", plans->n_weights,
             dtype_name(plans->type));
    if (report->on_gpu)
        text_add(&out, "  \"device_memory\": %" PRIu64 ",\n  \"device_memory_free\": %" PRIu64 ",\n",
                 report->gpu_memory, report->machine.device);
    text_add(&out, "  \"host_memory\": %" PRIu64 ",\n  \"program_bytes\": %" PRIu64 ",\n  \"fits\": [",
             report->machine.host, report->machine.program);
    for (int i = 0; i < plans->n_cases; i++)
        add_case_json(&out, report, i);
    text_add(&out, "\n  ]\n}\n");
    return print_text(&out);
}
