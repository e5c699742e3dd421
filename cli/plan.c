// ./train plan CONFIG.json: prints memory per rank and communication volume of a run, for several numbers of
// ranks and every ZeRO stage. None of the run's memory is allocated, so any machine can plan a model of any
// size.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/memory.h"
#include "base/processors.h"
#include "cli/commands.h"
#include "data/tokenizer/tokenizer.h"
#include "options/print.h"
#include "trainer/data/defaults.h"
#include "trainer/data/sources.h"
#include "trainer/plan/attention.h"
#include "trainer/plan/fit.h"
#include "trainer/plan/model_sizes.h"
#include "trainer/plan/plan_report.h"

enum { MOST_CASES = 64, MOST_RANKS = 4096 };
#define MOST_MEMORY 0x1p50

static const char *ranks_list = "1,2,4,8";
static int64_t per_machine = 0;
static bool as_json = false, with_paper = false, fits = false;
static uint64_t device_memory = 0, host_memory = 0; // 0: not given

static const struct arg flags[] = {
    {"--ranks", ARG_STRING, &ranks_list, 0, 0, "numbers of ranks, separated by commas (1,2,4,8)"},
    {"--per-machine", ARG_INTEGER, &per_machine, 0, MOST_RANKS,
     "ranks per machine; 0: all on one machine (0)"},
    {"--fit", ARG_FLAG, &fits, 0, 0,
     "find the cheapest settings that fit in memory, and print the command to run"},
    {"--device-memory", ARG_BYTES, &device_memory, 1, MOST_MEMORY,
     "plan for one GPU per rank with this much memory, such as 24G"},
    {"--host-memory", ARG_BYTES, &host_memory, 1, MOST_MEMORY,
     "host memory per machine, shared by its ranks (this machine's available memory)"},
    {"--paper", ARG_FLAG, &with_paper, 0, 0,
     "print table 1 of the ZeRO paper from its formulas; needs no config"},
    {"--json", ARG_FLAG, &as_json, 0, 0, "print one JSON object with exact figures"},
};

// ---- numbers of ranks

static enum status parse_ranks(const char *list, struct plan_report *report) {
    report->cases = allocate(MOST_CASES, sizeof *report->cases);
    for (const char *at = list;; at++) {
        char *end = NULL;
        errno = 0;
        long n = *at >= '0' && *at <= '9' ? strtol(at, &end, 10) : 0;
        if (!end || errno || n < 1 || n > MOST_RANKS || (*end && *end != ','))
            return FAIL(STATUS_INVALID,
                        "train plan: --ranks is \"%s\", expected numbers from 1 to %d separated by commas, "
                        "such as 1,2,4,8",
                        list, MOST_RANKS);
        if (report->n_cases == MOST_CASES)
            return FAIL(STATUS_INVALID, "train plan: --ranks lists more than %d numbers", MOST_CASES);
        report->cases[report->n_cases++].world = (int)n;
        at = end;
        if (!*at)
            return STATUS_OK;
    }
}

// ---- the configuration, for each number of ranks

struct planner {
    const char *path;
    char **overrides;
    int n_overrides;
    struct gpt_config weights; // the sizes of the weights at model.init_from, if it is set
    int n_ids;                 // ids of the tokenizer, if the vocabulary size comes from one; else 0
    struct device *device;     // if a CPU, reopened whenever the number of threads per rank changes
    struct plan_report report;
    bool has_type;         // report.type, the compute dtype, is set
    struct fit_report fit; // for --fit; its case i belongs to report.cases[i]
};

// Reads the files that give the model's sizes. Called once, because the sizes do not depend on the number
// of ranks.
static enum status find_sizes(struct planner *planner, const struct config *config) {
    if (config->model.init_from[0])
        TRY(initial_weights_sizes(config, &planner->weights));
    if (!model_sizes_want_tokenizer(config))
        return STATUS_OK;
    struct tokenizer *tokenizer;
    const char *path = config->data.tokenizer;
    if (strcmp(path, "bytes") != 0 && !file_exists(path))
        return FAIL(
            STATUS_INVALID,
            "%s: model.vocab_size comes from data.tokenizer, but %s does not exist; create it, or set "
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
    enum status status = config_read(&config, planner->path, planner->n_overrides, planner->overrides);
    if (status == STATUS_OK) {
        config_log_dropped(&config);
        data_defaults_vocabulary(&config);
        status = find_sizes(planner, &config);
    }
    if (status == STATUS_OK) {
        report->stage = (int)config.zero_optimization.stage;
        report->partition = config_partition_name(config.zero_optimization.partition);
        report->source = copy_string(config.source);
    }
    config_free(&config);
    return status;
}

// ---- the device; a GPU need not exist on this machine

static enum status plan_gpu(struct planner *planner) {
    planner->report.gpu_is_planned = true;
    planner->device = cuda_device_plan();
    return STATUS_OK;
}

static enum status open_or_plan(struct planner *planner, const struct config *config, int n_threads) {
    if (device_memory > 0 && config->top.device == CONFIG_DEVICE_CPU)
        return FAIL(
            STATUS_INVALID,
            "%s: --device-memory is for GPUs, but device is cpu; add device=cuda, or use --host-memory",
            config->source);
    if (device_memory > 0)
        return plan_gpu(planner);
    enum status status = device_open(config_device_name(config->top.device), n_threads, 0, &planner->device);
    if (status != STATUS_UNSUPPORTED || config->top.device != CONFIG_DEVICE_CUDA)
        return status;
    status_clear(); // this machine has no GPU, and a plan needs none
    return plan_gpu(planner);
}

// Finds the GPU's memory for --fit. Then replaces a real GPU by one that only plans (cuda_device_plan),
// because a real one would measure the matrix products of each of the many settings of --fit, which takes
// minutes.
static enum status measure_gpu(struct planner *planner) {
    size_t available = device_memory;
    if (device_memory == 0 && planner->report.gpu_is_planned)
        return FAIL(
            STATUS_INVALID,
            "train plan: this machine has no GPU; give its memory with --device-memory SIZE, such as 24G");
    if (device_memory == 0)
        TRY(device_memory_available(planner->device, &available));
    planner->fit.on_gpu = true;
    planner->fit.gpu_memory = available;
    planner->fit.machine.device = device_memory > 0 ? fit_free_of_gpu(available) : available;
    if (planner->report.gpu_is_planned)
        return STATUS_OK;
    device_close(planner->device);
    planner->device = NULL;
    planner->device = cuda_device_plan();
    return STATUS_OK;
}

static enum status open_device(struct planner *planner, const struct config *config,
                               const struct plan_case *one) {
    if (planner->device &&
        (planner->device->place == REGION_DEVICE || planner->device->n_threads == one->n_threads))
        return STATUS_OK;
    device_close(planner->device);
    planner->device = NULL;
    TRY(open_or_plan(planner, config, one->n_threads));
    return fits && planner->device->place == REGION_DEVICE ? measure_gpu(planner) : STATUS_OK;
}

// Chooses the compute dtype as a new run does. All cases use the one of the first case.
static enum status choose_type(struct planner *planner, const struct config *config) {
    struct plan_report *report = &planner->report;
    if (planner->has_type)
        return STATUS_OK;
    planner->has_type = true;
    if (config_compute_type(config, &report->type))
        return STATUS_OK;
    report->type_chosen = planner->device->place == REGION_HOST;
    report->type = device_compute_type(planner->device);
    return STATUS_OK;
}

// ---- the micro-batch size, if the config leaves it open for a GPU

// Finds how many bytes are free on the GPU when a run starts.
//   bytes   [out] 0: unknown, because there is neither a GPU nor --device-memory
static enum status find_gpu_memory(const struct planner *planner, uint64_t *bytes) {
    size_t available;
    *bytes = fits ? planner->fit.machine.device : planner->report.device_limit;
    if (*bytes > 0 || planner->report.gpu_is_planned)
        return STATUS_OK;
    TRY(device_memory_available(planner->device, &available));
    *bytes = available;
    return STATUS_OK;
}

// Chooses the micro-batch size as a run on a GPU does. Changes nothing for a CPU, if the configuration gives
// a size, or if the GPU's memory is not known.
static enum status choose_micro_batch(const struct planner *planner, const struct engine_options *request,
                                      struct config *config, struct plan_case *one) {
    uint64_t memory;
    struct device *planned;
    if (!config->micro_batch_is_open || planner->device->place == REGION_HOST)
        return STATUS_OK;
    TRY(find_gpu_memory(planner, &memory));
    one->lacks_memory = memory == 0;
    if (memory == 0)
        return STATUS_OK;
    planned = cuda_device_plan(); // a real GPU would measure the matrix products of every size
    const uint64_t limits[N_REGION_PLACES] = {[REGION_HOST] =
                                                  planner->fit.machine.host / (uint64_t)one->local_world,
                                              [REGION_DEVICE] = micro_batch_limit(memory)};
    struct engine_options on_any_gpu = *request;
    on_any_gpu.device = planned;
    enum status status = micro_batch_choose_for_all(&on_any_gpu, limits, &one->choice);
    device_close(planned);
    if (status == STATUS_OK) {
        one->has_choice = true;
        config_set_micro_batch(config, one->choice.size);
    }
    return status;
}

// ---- planning

static enum status find_fit(struct planner *planner, const struct engine_options *plan, struct fit *out) {
    struct config given = *plan->config; // a shallow copy, which is not freed
    // A proposal names the options whose values differ from `given`. With a micro-batch size of 0 in
    // `given`, every proposal names the micro-batch size.
    if (given.micro_batch_is_open && plan->device->place == REGION_DEVICE)
        given.train.micro_batch_size = given.train.gradient_accumulation_steps = 0;
    const struct fit_request request = {.plan = *plan, .given = &given, .machine = planner->fit.machine};
    return fit_find(&request, out);
}

static enum status plan_resolved(struct planner *planner, struct config *config, struct plan_case *one) {
    struct plan_report *report = &planner->report;
    struct params params;
    const struct gpt_config sizes = config_model(config);
    one->local_world = per_machine > 0 && per_machine < one->world ? (int)per_machine : one->world;
    one->n_threads = (int)config->run.threads;
    if (one->n_threads == 0)
        one->n_threads = processors_threads(processors_usable() / one->local_world);
    one->train_batch_size = config->train.train_batch_size;
    struct text schedule = {0};
    config_print_schedule(config, &schedule);
    one->schedule = schedule.data;
    TRY(open_device(planner, config, one));
    TRY(config_check_backend(config, planner->device->place == REGION_DEVICE));
    TRY(choose_type(planner, config));
    TRY(params_init(&params, &sizes));
    enum attention_kernel attention = ATTENTION_FLASH;
    enum status status = optimizer_groups_freeze(config, &params);
    if (status == STATUS_OK)
        status = attention_plan(planner->device, config, &params.config, report->type, &attention,
                                &report->attention);
    report->n_weights = params.n_weights;
    report->n_elements = params.n_elements;
    struct engine_options request = {.config = config,
                                     .params = &params,
                                     .type = report->type,
                                     .device = planner->device,
                                     .attention = attention,
                                     .world = one->world,
                                     .local_world = one->local_world,
                                     .for_gpu = planner->device->place == REGION_DEVICE,
                                     // The plan assumes one GPU per rank, which NCCL needs.
                                     .by_nccl = config->comm.backend != CONFIG_COMM_BACKEND_MPI};
    if (status == STATUS_OK)
        status = choose_micro_batch(planner, &request, config, one);
    one->micro_batch_size = config->train.micro_batch_size;
    one->accumulation_steps = config->train.gradient_accumulation_steps;
    if (status == STATUS_OK)
        status = fits ? find_fit(planner, &request, &planner->fit.cases[one - report->cases])
                      : plan_stages(&request, one->stages);
    params_free(&params);
    return status;
}

// Records in one->refused why this number of ranks cannot be planned (for example, it does not divide the
// batch). The report shows the reason in place of the plan. The command fails only if no number can be
// planned.
static void refuse(struct plan_case *one, const char *source) {
    const char *message = status_message();
    size_t n = strlen(source);
    if (strncmp(message, source, n) == 0 && strncmp(message + n, ": ", 2) == 0)
        message += n + 2;
    one->refused = copy_string(message);
    status_clear();
}

static enum status plan_one(struct planner *planner, struct plan_case *one) {
    struct config config;
    enum status status = config_read(&config, planner->path, planner->n_overrides, planner->overrides);
    if (status == STATUS_OK)
        data_defaults_vocabulary(&config);
    if (status == STATUS_OK && config.model.init_from[0])
        status = model_sizes_from_weights(&config, &planner->weights, config.model.init_from, false);
    if (status == STATUS_OK && planner->n_ids)
        status = model_sizes_from_tokenizer(&config, config.data.tokenizer, planner->n_ids);
    if (status == STATUS_OK) {
        enum status resolved = config_resolve(&config, one->world);
        if (resolved == STATUS_OK && one == planner->report.cases)
            data_log_mixture(&config); // only once: all numbers of ranks have the same mixture
        if (resolved == STATUS_INVALID)
            refuse(one, config.source);
        else
            status = resolved == STATUS_OK ? plan_resolved(planner, &config, one) : resolved;
    }
    config_free(&config);
    return status;
}

static void begin_fit(struct planner *planner) {
    struct plan_report *report = &planner->report;
    report->device_limit = device_memory > 0 ? fit_free_of_gpu(device_memory) : 0;
    report->host_limit = host_memory;
    planner->fit.plans = report;
    const uint64_t left = memory_address_space_left();
    planner->fit.machine.host = host_memory > 0 ? host_memory : memory_available_on_machine();
    planner->fit.machine.process = host_memory > 0 || left == UINT64_MAX ? 0 : left;
    planner->fit.machine.program = PLAN_PROGRAM_BYTES;
    planner->fit.host_is_here = host_memory == 0;
    planner->fit.cases = allocate((size_t)report->n_cases, sizeof *planner->fit.cases);
}

static enum status plan_all(struct planner *planner) {
    struct plan_report *report = &planner->report;
    int n_refused = 0;
    TRY(parse_ranks(ranks_list, report));
    begin_fit(planner);
    TRY(read_sizes(planner));
    for (int i = 0; i < report->n_cases; i++) {
        TRY(plan_one(planner, &report->cases[i]));
        n_refused += report->cases[i].refused != NULL;
    }
    if (n_refused < report->n_cases)
        return STATUS_OK;
    return FAIL(STATUS_INVALID, "%s: %s", report->source, report->cases[0].refused);
}

static enum status print(const struct planner *planner) {
    const struct plan_report *report = planner ? &planner->report : NULL;
    if (planner && fits)
        return fit_report_print(&planner->fit, as_json);
    as_json ? plan_report_print_json(report, with_paper) : plan_report_print(report, with_paper);
    return STATUS_OK;
}

static void planner_free(struct planner *planner) {
    for (int i = 0; planner->fit.cases && i < planner->report.n_cases; i++)
        fit_free(&planner->fit.cases[i]);
    free(planner->fit.cases);
    device_close(planner->device);
    plan_report_free(&planner->report);
}

static enum status run_with(int n_positional, const char **positional) {
    if (fits && with_paper)
        return FAIL(STATUS_INVALID, "train plan: --fit and --paper cannot be combined");
    if (n_positional == 0)
        return with_paper
                   ? print(NULL)
                   : FAIL(STATUS_INVALID, "train plan: no configuration named; usage: train plan CONFIG.json "
                                          "[section.key=value ...] [--ranks 1,2,4,8], or train plan --paper");
    struct planner planner = {.path = positional[0],
                              .overrides = (char **)positional + 1, // config_read does not modify these
                              .n_overrides = n_positional - 1,
                              .fit = {.words = positional, .n_words = n_positional}};
    enum status status = plan_all(&planner);
    if (status == STATUS_OK)
        status = print(&planner);
    planner_free(&planner);
    return status;
}

static enum status run_plan(int n_args, char **args) {
    int n_positional;
    const char **positional = allocate((size_t)n_args, sizeof *positional);
    enum status status = args_parse("plan", flags, sizeof flags / sizeof *flags, n_args, args, positional,
                                    n_args, &n_positional);
    if (status == STATUS_OK)
        status = run_with(n_positional, positional);
    free(positional);
    return status;
}

const struct command command_plan = {
    .name = "plan",
    .synopsis = "CONFIG.json [section.key=value ...] [--ranks 1,2,4,8] [--fit] | --paper",
    .summary = "predict memory and communication of a run on any number of ranks, at every ZeRO stage",
    .details =
        "Allocates none of the memory of the run. Workspace depends on the threads per rank: run.threads,\n"
        "or this machine's cores divided among the ranks of a machine. No GPU is needed to plan for one:\n"
        "use device=cuda or --device-memory.\n\n"
        "--fit varies only what keeps the run's results the same, bit for bit or up to rounding:\n"
        "ZeRO stage, recompute, offload, and the micro-batch size at the same batch size (only smaller\n"
        "ones, unless train.micro_batch_size is left open for a GPU). It prints the cheapest settings that\n"
        "fit, as a command. If nothing fits, it names the largest preset that does, and exits with 1.",
    .examples = "What GPT-2 1.5B needs on 1, 4 and 8 GPUs of 80 GB, at every stage.\n"
                "./train plan configs/gpt2-xl.json --ranks 1,4,8 --device-memory 80GB\n"
                "The cheapest settings that fit a GPU of 24 GB.\n"
                "./train plan configs/gpt2-xl.json --fit --ranks 1 --device-memory 24GB\n",
    .flags = flags,
    .n_flags = sizeof flags / sizeof *flags,
    .run = run_plan,
};
