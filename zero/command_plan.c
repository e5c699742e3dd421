// ./train plan CONFIG.json: what a run would take and send on each number of ranks, at every ZeRO stage. No
// memory of the run's is touched, so that a model of any size can be planned anywhere.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/processors.h"
#include "data/tokenizer.h"
#include "zero/commands.h"
#include "zero/model_sizes.h"
#include "zero/plan_report.h"
#include "zero/weights.h"

enum { MOST_CASES = 64, MOST_RANKS = 4096 };

static const char *ranks_list = "1,2,4,8";
static int64_t per_machine = 0;
static bool as_json = false, with_paper = false;

static const struct arg flags[] = {
    {"--ranks", ARG_STRING, &ranks_list, 0, 0, "numbers of ranks, separated by commas (1,2,4,8)"},
    {"--per-machine", ARG_INTEGER, &per_machine, 0, MOST_RANKS, "ranks that share a machine; 0: all (0)"},
    {"--paper", ARG_FLAG, &with_paper, 0, 0, "table 1 of the ZeRO paper, by its formulas; needs no config"},
    {"--json", ARG_FLAG, &as_json, 0, 0, "print one JSON object, every figure exact"},
};

// ---- numbers of ranks

static enum status parse_ranks(const char *list, struct plan_report *report) {
    report->cases = calloc(MOST_CASES, sizeof *report->cases);
    if (!report->cases)
        return FAIL(STATUS_FAILED, "out of memory for plans");
    for (const char *at = list;; at++) {
        char *end = NULL;
        errno = 0;
        long n = *at >= '0' && *at <= '9' ? strtol(at, &end, 10) : 0;
        if (!end || errno || n < 1 || n > MOST_RANKS || (*end && *end != ','))
            return FAIL(STATUS_INVALID,
                        "train plan: --ranks is \"%s\", expected numbers from 1 to %d with commas between "
                        "them, as in 1,2,4,8",
                        list, MOST_RANKS);
        if (report->n_cases == MOST_CASES)
            return FAIL(STATUS_INVALID, "train plan: --ranks names more than %d numbers of ranks",
                        MOST_CASES);
        report->cases[report->n_cases++].world = (int)n;
        at = end;
        if (!*at)
            return STATUS_OK;
    }
}

// ---- the config, for one number of ranks after the other

struct planner {
    const char *path;
    char **overrides;
    int n_overrides;
    struct gpt_config weights; // the sizes found in model.init_from, if that is named
    int n_ids;                 // of the tokenizer, if the vocabulary's size comes from it; else 0
    struct device *device;     // opened again where ranks have other threads
    struct plan_report report;
};

// Opens the files that the model's sizes come from: once, as they are the same for all.
static enum status find_sizes(struct planner *planner, const struct config *config) {
    if (config->model.init_from[0]) {
        struct weights weights;
        enum status status = weights_open(&weights, config->model.init_from);
        planner->weights = weights.config;
        weights_close(&weights);
        TRY(status);
    }
    if (!model_sizes_want_tokenizer(config))
        return STATUS_OK;
    struct tokenizer *tokenizer;
    const char *path = config->data.tokenizer;
    if (strcmp(path, "bytes") != 0 && !file_exists(path))
        return FAIL(
            STATUS_INVALID,
            "%s: model.vocab_size comes from data.tokenizer, but there is no %s; make it first, or add "
            "model.vocab_size=N",
            config->source, path);
    TRY(tokenizer_load(path, &tokenizer));
    planner->n_ids = tokenizer_n_ids(tokenizer);
    tokenizer_delete(tokenizer);
    return STATUS_OK;
}

static enum status read_sizes(struct planner *planner) {
    struct config config;
    struct plan_report *report = &planner->report;
    enum partition_kind partition;
    enum status status = config_read(&config, planner->path, planner->n_overrides, planner->overrides);
    if (status == STATUS_OK)
        status = find_sizes(planner, &config);
    if (status == STATUS_OK)
        status = partition_find(config.zero_optimization.partition, &partition);
    if (status == STATUS_OK) {
        report->stage = (int)config.zero_optimization.stage;
        report->partition = partition_name(partition);
        report->source = strdup(config.source);
        if (!report->source)
            status = FAIL(STATUS_FAILED, "out of memory for plans");
    }
    config_free(&config);
    return status;
}

static enum status open_device(struct planner *planner, const struct config *config,
                               const struct plan_case *one) {
    if (planner->device && planner->device->n_threads == one->n_threads)
        return STATUS_OK;
    device_close(planner->device);
    planner->device = NULL;
    return device_open(config->top.device, one->n_threads, 0, &planner->device);
}

// As a new run does; the first plan decides for all.
static enum status choose_type(struct planner *planner, const struct config *config) {
    struct plan_report *report = &planner->report;
    if (report->type_measured)
        return STATUS_OK;
    if (dtype_from_name(config->precision.compute, &report->type))
        return STATUS_OK;
    report->type_measured = true;
    return device_measure_compute_type(planner->device, &report->type);
}

// ---- planning

static enum status plan_resolved(struct planner *planner, const struct config *config,
                                 struct plan_case *one) {
    struct plan_report *report = &planner->report;
    struct params params;
    const struct gpt_config sizes = model_sizes(config);
    one->local_world = per_machine > 0 && per_machine < one->world ? (int)per_machine : one->world;
    if (!config->comm.shared_memory) // each rank is as on a machine of its own
        one->local_world = 1;
    one->n_threads = (int)config->run.threads;
    if (one->n_threads == 0)
        one->n_threads = processors_share(one->local_world);
    one->micro_batch_size = config->train.micro_batch_size;
    one->accumulation_steps = config->train.gradient_accumulation_steps;
    one->train_batch_size = config->train.train_batch_size;
    TRY(open_device(planner, config, one));
    TRY(choose_type(planner, config));
    TRY(params_init(&params, &sizes));
    report->n_weights = params.n_weights;
    report->n_elements = params.n_elements;
    const struct plan_request request = {.config = config,
                                         .params = &params,
                                         .type = report->type,
                                         .device = planner->device,
                                         .world = one->world,
                                         .local_world = one->local_world};
    enum status status = plan_stages(&request, one->stages);
    params_free(&params);
    return status;
}

// A number of ranks that the batch does not divide by is no failure: it is said, and the others follow.
static enum status refuse(struct plan_case *one, const char *source) {
    const char *message = status_message();
    size_t n = strlen(source);
    if (strncmp(message, source, n) == 0 && strncmp(message + n, ": ", 2) == 0)
        message += n + 2;
    one->refused = strdup(message);
    status_clear();
    return one->refused ? STATUS_OK : FAIL(STATUS_FAILED, "out of memory for plans");
}

static enum status plan_one(struct planner *planner, struct plan_case *one) {
    struct config config;
    enum status status = config_read(&config, planner->path, planner->n_overrides, planner->overrides);
    if (status == STATUS_OK && config.model.init_from[0])
        status = model_sizes_from_weights(&config, &planner->weights);
    if (status == STATUS_OK && planner->n_ids)
        status = model_sizes_from_tokenizer(&config, planner->n_ids);
    if (status == STATUS_OK) {
        enum status resolved = config_resolve(&config, one->world);
        if (resolved == STATUS_INVALID)
            status = refuse(one, config.source);
        else
            status = resolved == STATUS_OK ? plan_resolved(planner, &config, one) : resolved;
    }
    config_free(&config);
    return status;
}

static enum status plan_all(struct planner *planner) {
    struct plan_report *report = &planner->report;
    int n_refused = 0;
    TRY(parse_ranks(ranks_list, report));
    TRY(read_sizes(planner));
    for (int i = 0; i < report->n_cases; i++) {
        TRY(plan_one(planner, &report->cases[i]));
        n_refused += report->cases[i].refused != NULL;
    }
    if (n_refused < report->n_cases)
        return STATUS_OK;
    return FAIL(STATUS_INVALID, "%s: %s", report->source, report->cases[0].refused);
}

static enum status run_with(int n_positional, const char **positional) {
    enum status (*print)(const struct plan_report *, bool) =
        as_json ? plan_report_print_json : plan_report_print;
    if (n_positional == 0)
        return with_paper
                   ? print(NULL, true)
                   : FAIL(STATUS_INVALID, "train plan: no configuration named; usage: train plan CONFIG.json "
                                          "[section.key=value ...] [--ranks 1,2,4,8], or train plan --paper");
    struct planner planner = {.path = positional[0],
                              .overrides = (char **)positional + 1, // which config_read only reads
                              .n_overrides = n_positional - 1};
    enum status status = plan_all(&planner);
    if (status == STATUS_OK)
        status = print(&planner.report, with_paper);
    device_close(planner.device);
    plan_report_free(&planner.report);
    return status;
}

static enum status run_plan(int n_args, char **args) {
    int n_positional;
    const char **positional = calloc((size_t)n_args + 1, sizeof *positional);
    if (!positional)
        return FAIL(STATUS_FAILED, "out of memory for the arguments of train plan");
    enum status status = args_parse("plan", flags, sizeof flags / sizeof *flags, n_args, args, positional,
                                    n_args, &n_positional);
    if (status == STATUS_OK)
        status = run_with(n_positional, positional);
    free(positional);
    return status;
}

const struct command command_plan = {
    .name = "plan",
    .synopsis = "CONFIG.json [section.key=value ...] [--ranks 1,2,4,8] | --paper",
    .summary = "memory and messages of a run on any number of ranks, at every ZeRO stage",
    .details = "Allocates nothing of it. Workspace depends on the threads of a rank: run.threads, or this\n"
               "machine's cores shared among the ranks on a machine.",
    .flags = flags,
    .n_flags = sizeof flags / sizeof *flags,
    .run = run_plan,
};
