// A table is filled cell by cell and printed with each column as wide as its widest cell. Columns that do not
// fit into 100 characters follow below, after a copy of the first column. Prose is wrapped to the same width.
#include "trainer/plan/plan_report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "trainer/plan/paper.h"

void plan_report_free(struct plan_report *report) {
    for (int i = 0; i < report->n_cases; i++) {
        free(report->cases[i].refused);
        free(report->cases[i].schedule);
    }
    free(report->cases);
    free(report->source);
    *report = (struct plan_report){0};
}

// ---- tables

enum { MOST_ROWS = 8, MOST_COLUMNS = 20, GAP = 2 };

struct table {
    int n_rows, n_columns;    // number of rows so far, and number of cells in the longest one
    int filled;               // number of cells in the last row
    bool glued[MOST_COLUMNS]; // true: the column must stay beside the one before it
    char cells[MOST_ROWS][MOST_COLUMNS][24];
};

static void begin_row(struct table *table) {
    table->n_rows++;
    table->filled = 0;
}

// Appends an empty cell to the last row.
static char *next_cell(struct table *table) {
    char *cell = table->cells[table->n_rows - 1][table->filled++];
    if (table->filled > table->n_columns)
        table->n_columns = table->filled;
    return cell;
}
#define ADD_CELL(table, ...) snprintf(next_cell(table), sizeof(table)->cells[0][0], __VA_ARGS__)

static void add_bytes(struct table *table, uint64_t bytes) {
    text_bytes(next_cell(table), sizeof table->cells[0][0], (double)bytes);
}

static size_t column_width(const struct table *table, int column) {
    size_t width = 0;
    for (int row = 0; row < table->n_rows; row++)
        if (strlen(table->cells[row][column]) > width)
            width = strlen(table->cells[row][column]);
    return width;
}

// Returns the end (exclusive) of the columns from `begin` on that fit beside the first column of the table.
// Glued columns stay together; the first group is included even if it is too wide.
static int last_beside_first(const struct table *table, int begin) {
    size_t width = column_width(table, 0);
    int end = begin;
    for (int column = begin; column < table->n_columns; column++) {
        width += GAP + column_width(table, column);
        const bool is_last_of_group = column + 1 == table->n_columns || !table->glued[column + 1];
        if (is_last_of_group && (width <= PLAN_COLUMNS || end == begin))
            end = column + 1;
        if (width > PLAN_COLUMNS && end > begin)
            break;
    }
    return end;
}

static void add_table(struct text *out, const struct table *table) {
    for (int begin = 1, end; begin < table->n_columns; begin = end) {
        end = last_beside_first(table, begin);
        for (int row = 0; row < table->n_rows; row++) {
            text_add(out, "%*s", (int)column_width(table, 0), table->cells[row][0]);
            for (int column = begin; column < end; column++)
                text_add(out, "%*s%*s", GAP, "", (int)column_width(table, column), table->cells[row][column]);
            text_add(out, "\n");
        }
    }
}

void plan_add_folded(struct text *out, struct text *line, const char *indent, const char *tail) {
    if (line->data)
        text_add_folded(out, line->data, PLAN_COLUMNS, indent, tail);
    text_add(out, "\n");
    text_free(line);
}

void plan_add_prose(struct text *out, struct text *line) {
    plan_add_folded(out, line, "  ", "");
}

// ---- the plans as text

// The collectives that the table can show, in the order of their columns.
static const enum comm_operation collectives[] = {COMM_REDUCE_SCATTER, COMM_ALL_GATHER, COMM_EXCHANGE};
enum { N_COLLECTIVES = sizeof collectives / sizeof *collectives };

// The columns of the table that depend on the plan.
struct columns {
    enum comm_operation of[N_COLLECTIVES]; // (n) exchanges only if the plan has any: only Muon makes them
    int n;
    bool has_average; // memory of the average, with train.ema
};

static bool is_shown(const struct columns *columns, int kind) {
    return kind != REGION_AVERAGE || columns->has_average;
}

static struct columns columns_of(const struct plan_case *one) {
    struct columns columns = {.n = 0};
    for (int i = 0; i < N_COLLECTIVES; i++) {
        bool used = collectives[i] <= COMM_ALL_GATHER;
        for (int stage = 0; stage < N_STAGES; stage++)
            used |= one->stages[stage].most.volume.calls[collectives[i]] > 0;
        if (used)
            columns.of[columns.n++] = collectives[i];
    }
    for (int stage = 0; stage < N_STAGES; stage++)
        columns.has_average |= one->stages[stage].most.bytes[REGION_AVERAGE] > 0;
    return columns;
}

static bool ranks_differ(const struct plan_case *one) {
    for (int stage = 0; stage < N_STAGES; stage++)
        if (one->stages[stage].least != one->stages[stage].most.total)
            return true;
    return false;
}

static void add_header(struct table *table, bool with_host, bool name_rank, const struct columns *columns) {
    begin_row(table);
    ADD_CELL(table, "stage");
    ADD_CELL(table, with_host ? "GPU memory" : "model memory");
    if (with_host)
        ADD_CELL(table, "host memory");
    if (name_rank)
        ADD_CELL(table, "of rank");
    for (int kind = 0; kind < N_REGION_KINDS; kind++)
        if (is_shown(columns, kind))
            ADD_CELL(table, "%s", region_kind_name((enum region_kind)kind));
    for (int i = 0; i < columns->n; i++) {
        ADD_CELL(table, "%s", comm_operation_name(columns->of[i]));
        table->glued[table->filled] = true;
        ADD_CELL(table, "calls");
    }
}

static void add_stage(struct table *table, const struct plan_stage *plan, int stage, bool configured,
                      bool with_host, bool name_rank, const struct columns *columns) {
    begin_row(table);
    ADD_CELL(table, "%s%d", configured ? "*" : "", stage);
    add_bytes(table, plan->most.total);
    if (with_host)
        add_bytes(table, plan->most.host);
    if (name_rank)
        ADD_CELL(table, "%d", plan->rank);
    for (int kind = 0; kind < N_REGION_KINDS; kind++)
        if (is_shown(columns, kind))
            add_bytes(table, plan->most.bytes[kind]);
    for (int i = 0; i < columns->n; i++) {
        add_bytes(table, plan->most.volume.bytes[columns->of[i]]);
        ADD_CELL(table, "%" PRIu64, plan->most.volume.calls[columns->of[i]]);
    }
}

static bool has_limits(const struct plan_report *report) {
    return report->device_limit > 0 || report->host_limit > 0;
}

static bool stage_fits(const struct plan_report *report, const struct plan_case *one, int stage) {
    const size_t *taken = one->stages[stage].most.taken;
    return (report->device_limit == 0 || taken[REGION_DEVICE] <= report->device_limit) &&
           (report->host_limit == 0 ||
            (taken[REGION_HOST] + PLAN_PROGRAM_BYTES) * (uint64_t)one->local_world <= report->host_limit);
}

static void add_fitting(struct text *out, const struct plan_report *report, const struct plan_case *one) {
    struct text line = {0};
    char bytes[32], program[32];
    int n = 0;
    text_add(&line, "Stages that fit");
    if (report->device_limit > 0)
        text_add(&line, " into %s of GPU memory per rank",
                 text_bytes(bytes, sizeof bytes, (double)report->device_limit));
    if (report->host_limit > 0)
        text_add(&line, "%s %s per machine, with about %s for the program of each rank",
                 report->device_limit > 0 ? " and" : " into",
                 text_bytes(bytes, sizeof bytes, (double)report->host_limit),
                 text_bytes(program, sizeof program, (double)PLAN_PROGRAM_BYTES));
    text_add(&line, ":");
    for (int stage = 0; stage < N_STAGES; stage++)
        if (stage_fits(report, one, stage))
            text_add(&line, "%s %d", n++ ? "," : "", stage);
    text_add(&line, n ? "" : " none");
    plan_add_prose(out, &line);
}

static void add_least(struct text *out, const struct plan_case *one) {
    struct text line = {0};
    char bytes[32];
    text_add(&line, "Ranks differ: the table shows the rank that needs most. The least that any rank needs:");
    for (int stage = 0; stage < N_STAGES; stage++)
        text_add(&line, "%s stage %d %s", stage ? "," : "", stage,
                 text_bytes(bytes, sizeof bytes, (double)one->stages[stage].least));
    plan_add_prose(out, &line);
}

void plan_add_choice(struct text *out, const struct plan_case *one) {
    struct text line = {0};
    char why[160];
    if (!one->has_choice && !one->lacks_memory)
        return;
    if (one->has_choice)
        text_add(&line, "micro_batch_size %" PRId64 ": %s", one->micro_batch_size,
                 micro_batch_describe(&one->choice, why, sizeof why));
    else
        text_add(&line,
                 "micro_batch_size is left open, and depends on the GPU's memory: %" PRId64
                 " is the choice for a CPU; --device-memory SIZE plans for a GPU",
                 one->micro_batch_size);
    plan_add_prose(out, &line);
}

// Adds a line with the launches, FLOPs and bytes of one micro-batch on a GPU. Adds nothing without a GPU.
static void add_work(struct text *out, const struct plan_case *one) {
    const struct gpt_work *work = one->stages[0].most.work;
    struct gpt_work_row first = gpt_work_sum(&work[0]), further = gpt_work_sum(&work[1]);
    struct text line = {0};
    char flops[32], bytes[32];
    if (first.launches == 0)
        return;
    text_add(&line, "Launches per micro-batch: %" PRId64, first.launches);
    if (one->accumulation_steps > 1)
        text_add(&line, " in the first of a step, %" PRId64 " in the others", further.launches);
    text_add(&line, "; %s, %s read and written", text_flops(flops, sizeof flops, first.cost.flops),
             text_bytes(bytes, sizeof bytes, first.cost.bytes));
    plan_add_prose(out, &line);
}

// Adds the FLOPs of Muon's Newton-Schulz per step, which do not depend on the number of micro-batches.
static void add_newton_schulz(struct text *out, const struct plan_case *one) {
    const struct plan *plan = &one->stages[0].most;
    struct text line = {0};
    char flops[32];
    if (plan->newton_schulz_flops == 0)
        return;
    text_add(&line, "Newton-Schulz per step: %s", text_flops(flops, sizeof flops, plan->newton_schulz_flops));
    if (one->world > 1)
        text_add(&line, " on all ranks, at most %s on one",
                 text_flops(flops, sizeof flops, plan->newton_schulz_most));
    plan_add_prose(out, &line);
}

static void add_case(struct text *out, const struct plan_report *report, const struct plan_case *one) {
    struct text line = {0};
    text_add(out, "\n");
    text_add(&line, "%d rank%s", one->world, one->world == 1 ? "" : "s");
    if (one->refused) {
        text_add(&line, ": %s", one->refused);
        plan_add_prose(out, &line);
        return;
    }
    if (one->world > 1)
        text_add(&line, ", %d per machine", one->local_world);
    text_add(&line, ", %d thread%s each; train_batch_size %" PRId64 " = %" PRId64 " x %" PRId64 " x %d",
             one->n_threads, one->n_threads == 1 ? "" : "s", one->train_batch_size, one->micro_batch_size,
             one->accumulation_steps, one->world);
    plan_add_prose(out, &line);
    if (one->schedule) {
        text_add(&line, "%s. Memory holds for all steps, communication for steps of train_batch_size.",
                 one->schedule);
        plan_add_prose(out, &line);
    }
    plan_add_choice(out, one);
    struct table table = {0};
    bool differ = ranks_differ(one), on_host = one->stages[0].most.host > 0;
    const struct columns columns = columns_of(one);
    add_header(&table, on_host, differ, &columns);
    for (int stage = 0; stage < N_STAGES; stage++)
        add_stage(&table, &one->stages[stage], stage, stage == report->stage, on_host, differ, &columns);
    add_table(out, &table);
    add_work(out, one);
    add_newton_schulz(out, one);
    if (has_limits(report))
        add_fitting(out, report, one);
    if (differ)
        add_least(out, one);
}

static void add_report(struct text *out, const struct plan_report *report) {
    struct text line = {0};
    char weights[32], program[32];
    text_add(&line, "%s: %s parameters, %s%s, partition %s", report->source,
             text_count(weights, sizeof weights, (double)report->n_weights), dtype_name(report->type),
             report->type_chosen ? " (the faster type on this machine)" : "", report->partition);
    plan_add_prose(out, &line);
    text_add(
        &line,
        "Per rank: model memory and its kinds, communication per step. The program takes about %s of host "
        "memory more.",
        text_bytes(program, sizeof program, (double)PLAN_PROGRAM_BYTES));
    plan_add_prose(out, &line);
    text_add(out, "train_batch_size = micro_batch_size x gradient_accumulation_steps x ranks.\n");
    if (report->gpu_is_planned)
        text_add(out,
                 "For a GPU that is not in this machine: the workspace is an upper bound over GPU models.\n");
    if (report->attention && strcmp(report->attention, "auto") == 0)
        text_add(out, "attention: auto; the workspace has room for cuDNN, which a run uses on GPUs where it "
                      "is faster.\n");
    for (int i = 0; i < report->n_cases; i++)
        add_case(out, report, &report->cases[i]);
    text_add(out, "\n* the config's zero_optimization.stage\n");
}

// ---- the paper's table

static const struct {
    const char *name;
    double n_params;
} paper_models[] = {{"7.5B", 7.5e9}, {"128B", 128e9}, {"1T", 1e12}};
static const int paper_ranks[] = {1, 4, 16, 64, 256, 1024};
enum {
    N_PAPER_MODELS = sizeof paper_models / sizeof *paper_models,
    N_PAPER_RANKS = sizeof paper_ranks / sizeof *paper_ranks
};

// Adds a figure in GB as the paper prints it: three significant digits, rounded half up; from 100 on whole
// numbers, truncated.
static void add_paper_figure(struct table *table, double bytes) {
    double gb = bytes / 1e9, unit = gb >= 100 ? 1 : gb >= 10 ? 10 : 100;
    ADD_CELL(table, "%.15g", floor(gb * unit + (gb >= 100 ? 0 : 0.5)) / unit);
}

static void add_paper(struct text *out) {
    struct table table = {0};
    begin_row(&table);
    ADD_CELL(&table, "ranks");
    for (int model = 0; model < N_PAPER_MODELS; model++)
        for (int stage = 1; stage < N_STAGES; stage++)
            ADD_CELL(&table, "%s/%d", paper_models[model].name, stage);
    for (int i = 0; i < N_PAPER_RANKS; i++) {
        begin_row(&table);
        ADD_CELL(&table, "%d", paper_ranks[i]);
        for (int model = 0; model < N_PAPER_MODELS; model++)
            for (int stage = 1; stage < N_STAGES; stage++)
                add_paper_figure(&table, paper_bytes(stage, paper_models[model].n_params, paper_ranks[i]));
    }
    text_add(out, "Model states per rank in GB (1e9 bytes), parameters/stage: table 1 of the ZeRO paper\n"
                  "(arXiv 1910.02054).\n"
                  "P parameters, N ranks: stage 1 4P + 12P/N, stage 2 2P + 14P/N, stage 3 16P/N.\n\n");
    add_table(out, &table);
    text_add(out, "\nzero.c keeps gradients in fp32. Its bytes per parameter:\n"
                  "in bf16 and fp16 2 + 4 + 12 = 18 bytes, 4 + 4 + 8 = 16 in fp32. The paper counts 2 + 2 + "
                  "12 = 16.\n");
}

// ---- the plans as JSON

static void add_stage_json(struct text *out, const struct plan_report *report, const struct plan_case *one,
                           int stage) {
    const struct plan_stage *plan = &one->stages[stage];
    const struct columns columns = columns_of(one);
    text_add(out, "        {\"stage\": %d, \"configured\": %s, \"rank\": %d, \"bytes\": {", stage,
             stage == report->stage ? "true" : "false", plan->rank);
    for (int kind = 0; kind < N_REGION_KINDS; kind++)
        text_add(out, "%s\"%s\": %zu", kind ? ", " : "", region_kind_name((enum region_kind)kind),
                 plan->most.bytes[kind]);
    text_add(out, "}, \"total\": %zu, \"least_total\": %zu, \"host\": %zu, \"sends\": {", plan->most.total,
             plan->least, plan->most.host);
    for (int i = 0; i < columns.n; i++)
        text_add(out, "%s\"%s\": {\"bytes\": %" PRIu64 ", \"calls\": %" PRIu64 "}", i ? ", " : "",
                 comm_operation_name(columns.of[i]), plan->most.volume.bytes[columns.of[i]],
                 plan->most.volume.calls[columns.of[i]]);
    text_add(out, "}");
    if (has_limits(report))
        text_add(out, ", \"fits\": %s", stage_fits(report, one, stage) ? "true" : "false");
    text_add(out, "}");
}

static void add_work_json(struct text *out, const struct gpt_work *work) {
    char flops[32], bytes[32];
    for (int i = 0; i < work->n_rows; i++) {
        const struct gpt_work_row *row = &work->rows[i];
        text_add(out,
                 "%s\n        {\"operation\": \"%s\", \"in\": %d, \"out\": %d, \"calls\": %" PRId64
                 ", \"launches\": %" PRId64 ", \"flops\": %s, \"bytes\": %s}",
                 i ? "," : "", operation_name(row->operation), row->shape.in, row->shape.out, row->calls,
                 row->launches, text_double(flops, row->cost.flops), text_double(bytes, row->cost.bytes));
    }
}

static void add_case_json(struct text *out, const struct plan_report *report, const struct plan_case *one) {
    if (one->refused) {
        text_add(out, "    {\"ranks\": %d, \"refused\": ", one->world);
        json_add_string(out, one->refused);
        text_add(out, "}");
        return;
    }
    text_add(out,
             "    {\"ranks\": %d, \"ranks_per_machine\": %d, \"threads\": %d, \"micro_batch_size\": %" PRId64
             ", \"micro_batch_size_is_chosen\": %s, \"gradient_accumulation_steps\": %" PRId64
             ", \"train_batch_size\": %" PRId64 ", \"stages\": [\n",
             one->world, one->local_world, one->n_threads, one->micro_batch_size,
             one->has_choice ? "true" : "false", one->accumulation_steps, one->train_batch_size);
    for (int stage = 0; stage < N_STAGES; stage++) {
        add_stage_json(out, report, one, stage);
        text_add(out, "%s\n", stage + 1 < N_STAGES ? "," : "");
    }
    text_add(out, "    ], \"micro_batch\": [");
    add_work_json(out, &one->stages[0].most.work[0]);
    text_add(out, "\n    ], \"further_micro_batch\": [");
    add_work_json(out, &one->stages[0].most.work[1]);
    char all[32], most[32];
    text_add(out, "\n    ], \"newton_schulz_flops\": %s, \"newton_schulz_flops_most\": %s}",
             text_double(all, one->stages[0].most.newton_schulz_flops),
             text_double(most, one->stages[0].most.newton_schulz_most));
}

static void add_report_json(struct text *out, const struct plan_report *report) {
    text_add(out, "  \"config\": ");
    json_add_string(out, report->source);
    text_add(
        out,
        ",\n  \"parameters\": %zu,\n  \"elements\": %zu,\n  \"program_bytes\": %zu,\n  \"compute\": \"%s\",\n"
        "  \"compute_chosen\": %s,\n  \"gpu_is_planned\": %s,\n  \"attention\": \"%s\",\n  \"partition\": "
        "\"%s\",\n  \"plans\": [\n",
        report->n_weights, report->n_elements, PLAN_PROGRAM_BYTES, dtype_name(report->type),
        report->type_chosen ? "true" : "false", report->gpu_is_planned ? "true" : "false",
        report->attention ? report->attention : "", report->partition);
    for (int i = 0; i < report->n_cases; i++) {
        add_case_json(out, report, &report->cases[i]);
        text_add(out, "%s\n", i + 1 < report->n_cases ? "," : "");
    }
    text_add(out, "  ]");
}

static void add_paper_json(struct text *out) {
    text_add(out, "  \"paper\": [");
    for (int model = 0; model < N_PAPER_MODELS; model++)
        for (int i = 0; i < N_PAPER_RANKS; i++)
            for (int stage = 1; stage < N_STAGES; stage++)
                text_add(out, "%s\n    {\"parameters\": %.0f, \"ranks\": %d, \"stage\": %d, \"bytes\": %.0f}",
                         model || i || stage > 1 ? "," : "", paper_models[model].n_params, paper_ranks[i],
                         stage, paper_bytes(stage, paper_models[model].n_params, paper_ranks[i]));
    text_add(out, "\n  ]");
}

// ---- printing

static void print_text(struct text *text) {
    fwrite(text->data, 1, text->length, stdout);
    text_free(text);
}

void plan_report_print(const struct plan_report *report, bool paper) {
    struct text out = {0};
    if (report)
        add_report(&out, report);
    if (paper) {
        text_add(&out, "%s", report ? "\n" : "");
        add_paper(&out);
    }
    print_text(&out);
}

void plan_report_print_json(const struct plan_report *report, bool paper) {
    struct text out = {0};
    text_add(&out, "{\n");
    if (report)
        add_report_json(&out, report);
    text_add(&out, "%s", report && paper ? ",\n" : "");
    if (paper)
        add_paper_json(&out);
    text_add(&out, "\n}\n");
    print_text(&out);
}
