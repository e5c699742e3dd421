// The ladder is a list of rungs; each rung is a change of the config that saves memory and costs time. Rungs
// are taken in order until the plan fits. Then unnecessary rungs are undone, the most expensive first.
#include "trainer/plan/fit.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "options/config.h"
#include "options/print.h"
#include "trainer/plan/micro_batch.h"
#include "trainer/plan/model_sizes.h"

// ---- the rungs

enum dimension { STAGE, MICRO_BATCH, RECOMPUTE, ATTENTION, OFFLOAD };
// Levels beyond those of the options. RECOMPUTE: INPUTS_ON_HOST. OFFLOAD: quarters of the optimizer states up
// to ALL_OFFLOADED, then PARAMS_OFFLOADED.
enum { INPUTS_ON_HOST = CONFIG_RECOMPUTE_BLOCK + 1, ALL_OFFLOADED = 4, PARAMS_OFFLOADED };

// Each rung raises a dimension to a level; those of MICRO_BATCH instead halve the micro-batch. Rungs are in
// the order of their cost. The comments begin with the cost: by how many percent a step becomes longer.
static const struct rung {
    enum dimension dimension;
    int level;
    const char *words; // text for the description of a proposal; NULL: none
} rungs[] = {
    // Below 1: a step takes 34.02 instead of 33.81 ms (benchmarks/gpu_step.md).
    {RECOMPUTE, CONFIG_RECOMPUTE_ELEMENTWISE, NULL},
    // 1 for stage 2, 4 for stage 3, each relative to the stage below; on 2 and 4 ranks (benchmarks/zero.md).
    // Stage 1 has no rung: several ranks start with it, because a step takes 12 percent longer in stage 0.
    {STAGE, 2, NULL},
    {STAGE, 3, NULL},
    // 4 each: 551,277 tokens/s with micro-batches of 64 sequences and 465,611 with 4 (benchmarks/gpu.md).
    {MICRO_BATCH, 0, NULL},
    {MICRO_BATCH, 0, NULL},
    {MICRO_BATCH, 0, NULL},
    {MICRO_BATCH, 0, NULL},
    // 12 in fp32, 9 in bf16: benchmarks/cpu.md, "Recomputation".
    {RECOMPUTE, CONFIG_RECOMPUTE_ATTENTION, "attention recomputed in backward"},
    // 10: a step takes 140.8 ms with cuDNN and 154.6 ms with flash, which needs less workspace
    // (benchmarks/gpu.md).
    {ATTENTION, 1, "attention by flash"},
    // 14 in fp32, 21 in bf16: benchmarks/cpu.md, "Recomputation".
    {RECOMPUTE, CONFIG_RECOMPUTE_BLOCK, "blocks recomputed in backward"},
    // From here on the time of copies is estimated: PCIe 4.0 x16 (25 GB/s), 65,536 tokens per rank and step.
    // Copies overlap little with blocks that are recomputed.
    {RECOMPUTE, INPUTS_ON_HOST, "blocks recomputed in backward, their inputs on the host"},
    // 6 each: per parameter 6 bytes are copied, and 28 read and written by the host.
    {OFFLOAD, 1, "a quarter of the optimizer on the host"},
    {OFFLOAD, 2, "half of the optimizer on the host"},
    {OFFLOAD, 3, "three quarters of the optimizer on the host"},
    {OFFLOAD, ALL_OFFLOADED, "the optimizer on the host"},
    // Stage 2 again: with offload it may save memory even if it saved none before, because it keeps no
    // gradients of offloaded elements on the device.
    {STAGE, 2, NULL},
    // More than 10 each: micro-batches this small do not fill a device.
    {MICRO_BATCH, 0, NULL},
    {MICRO_BATCH, 0, NULL},
    {MICRO_BATCH, 0, NULL},
    {MICRO_BATCH, 0, NULL},
    // More than all others: parameters are copied in forward and backward of each micro-batch.
    {OFFLOAD, PARAMS_OFFLOADED, "the optimizer and parameters on the host"},
};
enum { N_RUNGS = sizeof rungs / sizeof *rungs };

typedef uint32_t setting; // bit i is set if rung i is taken

struct ladder {
    const struct fit_request *request;
    enum region_place place; // the memory that each rung must save: the GPU's, or without a GPU the host's
    int *ranks, n_ranks;     // the ranks to plan (plan_ranks)
    size_t limits[N_REGION_PLACES]; // bytes of each place that a rank's plan may take
};

static int level_of(setting taken, enum dimension dimension) {
    int level = 0;
    for (int i = 0; i < N_RUNGS; i++)
        if (rungs[i].dimension == dimension && taken >> i & 1 && rungs[i].level > level)
            level = rungs[i].level;
    return level;
}

static enum config_offload offload_choice(bool on_host) {
    return on_host ? CONFIG_OFFLOAD_CPU : CONFIG_OFFLOAD_NONE;
}

// Returns the run's config with the rungs that are taken. With none, it is the fastest config: if the config
// leaves the micro-batch size open on a GPU, the size is then the largest that a run may choose.
static struct config config_of(const struct ladder *ladder, setting taken) {
    const struct engine_options *run = &ladder->request->plan;
    struct config config = *run->config; // a shallow copy, not to be freed
    const bool on_gpu = ladder->place == REGION_DEVICE;
    const int stage = level_of(taken, STAGE), offload = level_of(taken, OFFLOAD),
              recompute = level_of(taken, RECOMPUTE);
    const int64_t sequences = config_rank_sequences(run->config);
    int64_t micro = config.micro_batch_is_open && on_gpu
                        ? config_largest_divisor(sequences, MICRO_BATCH_MOST_TOKENS / config.train.seq_len)
                        : config.train.micro_batch_size;
    for (int i = 0; i < N_RUNGS; i++)
        if (rungs[i].dimension == MICRO_BATCH && taken >> i & 1 && micro > 1)
            micro = config_largest_divisor(sequences, micro / 2);
    config_set_micro_batch(&config, micro);
    config.zero_optimization.stage = stage > 0 ? stage : run->world > 1 || config.zero_optimization.stage > 0;
    if (recompute > 0)
        config.top.recompute =
            recompute < INPUTS_ON_HOST ? (enum config_recompute)recompute : CONFIG_RECOMPUTE_BLOCK;
    else if (config.top.recompute > CONFIG_RECOMPUTE_ELEMENTWISE)
        config.top.recompute = CONFIG_RECOMPUTE_ELEMENTWISE;
    if (!on_gpu)
        return config;
    if (level_of(taken, ATTENTION) && config.top.attention == CONFIG_ATTENTION_AUTO)
        config.top.attention = CONFIG_ATTENTION_FLASH;
    config.top.offload_activations = offload_choice(recompute == INPUTS_ON_HOST);
    config.zero_optimization.offload_optimizer.device = offload_choice(offload > 0);
    if (offload > 0)
        config.zero_optimization.offload_optimizer.ratio =
            offload < ALL_OFFLOADED ? offload / (double)ALL_OFFLOADED : 1;
    config.zero_optimization.offload_param.device = offload_choice(offload == PARAMS_OFFLOADED);
    if (offload == PARAMS_OFFLOADED)
        config.zero_optimization.stage = 3;
    return config;
}

// ---- climbing the ladder

// Plans a setting: sets `taken` and `flops` of a proposal. `taken` is SIZE_MAX if the plan is refused, for
// example because its buckets would make too many calls.
static enum status plan_setting(const struct ladder *ladder, setting taken, struct fit_proposal *out) {
    const struct config config = config_of(ladder, taken);
    struct engine_options options = ladder->request->plan;
    enum status status = STATUS_OK;
    *out = (struct fit_proposal){.overrides = NULL};
    options.config = &config;
    if (config.top.attention == CONFIG_ATTENTION_FLASH)
        options.attention = ATTENTION_FLASH;
    for (int i = 0; i < ladder->n_ranks && status == STATUS_OK; i++) {
        struct plan plan;
        options.rank = ladder->ranks[i];
        status = plan_make(&options, &plan);
        for (int place = 0; place < N_REGION_PLACES; place++)
            if (plan.taken[place] > out->taken[place])
                out->taken[place] = plan.taken[place];
        out->flops = step_work_count(&plan.work[0]) * (double)config.train.gradient_accumulation_steps;
    }
    if (status != STATUS_INVALID && status != STATUS_UNSUPPORTED)
        return status;
    out->taken[REGION_HOST] = out->taken[REGION_DEVICE] = SIZE_MAX;
    status_clear();
    return STATUS_OK;
}

static bool fits(const struct ladder *ladder, const struct fit_proposal *one) {
    return one->taken[REGION_HOST] <= ladder->limits[REGION_HOST] &&
           one->taken[REGION_DEVICE] <= ladder->limits[REGION_DEVICE];
}

// True if both configs round and sum gradients in the same order: the same micro-batch size and, with several
// micro-batches, both or neither reduce after each one (zero_optimization.reduce_every_micro_batch).
static bool sums_alike(const struct config *a, const struct config *b) {
    return a->train.micro_batch_size == b->train.micro_batch_size &&
           (a->train.gradient_accumulation_steps == 1 ||
            stage_reduces_every_micro_batch(a) == stage_reduces_every_micro_batch(b));
}

static enum status describe(const struct ladder *ladder, setting taken, struct fit_proposal *out) {
    const struct engine_options *run = &ladder->request->plan;
    const struct config config = config_of(ladder, taken);
    struct text overrides = {0}, words = {0};
    double update_flops;
    TRY(update_flops_estimate(run, &update_flops));
    out->flops += update_flops;
    text_add(&overrides, "%s", ""); // so that data is not NULL without overrides
    config_print_overrides(ladder->request->given, &config, &overrides);
    if (run->world > 1 || config.zero_optimization.stage > 0)
        text_add(&words, "ZeRO stage %d, ", (int)config.zero_optimization.stage);
    for (int i = 0; i < N_RUNGS; i++)
        if (taken >> i & 1 && rungs[i].words && rungs[i].level == level_of(taken, rungs[i].dimension))
            text_add(&words, "%s, ", rungs[i].words);
    text_add(&words, "%lld x %lld sequences per rank", (long long)config.train.gradient_accumulation_steps,
             (long long)config.train.micro_batch_size);
    out->overrides = overrides.data;
    out->description = words.data;
    out->same_bits = sums_alike(run->config, &config) && !level_of(taken, ATTENTION);
    return STATUS_OK;
}

// Adds a proposal: a setting that fits, without its unnecessary rungs. Lowers the limit for the next proposal
// to nine tenths of this one's memory.
static enum status propose(struct ladder *ladder, setting taken, struct fit_proposal one, struct fit *out) {
    for (int i = N_RUNGS - 1; i >= 0; i--) {
        struct fit_proposal without;
        if (!(taken >> i & 1))
            continue;
        TRY(plan_setting(ladder, taken ^ (setting)1 << i, &without));
        if (fits(ladder, &without)) {
            taken ^= (setting)1 << i;
            one = without;
        }
    }
    ladder->limits[ladder->place] = one.taken[ladder->place] / 10 * 9;
    out->proposals[out->n_proposals] = one;
    return describe(ladder, taken, &out->proposals[out->n_proposals++]);
}

static enum status climb(struct ladder *ladder, int most, struct fit *out) {
    const enum region_place place = ladder->place;
    setting taken = 0;
    struct fit_proposal now, next;
    TRY(plan_setting(ladder, taken, &now));
    for (int i = 0;; i++) {
        while (fits(ladder, &now) && out->n_proposals < most)
            TRY(propose(ladder, taken, now, out));
        if (i == N_RUNGS || out->n_proposals == most)
            return STATUS_OK;
        TRY(plan_setting(ladder, taken | (setting)1 << i, &next));
        if (next.taken[place] < now.taken[place] &&
            (place == REGION_HOST || next.taken[REGION_HOST] <= ladder->limits[REGION_HOST])) {
            taken |= (setting)1 << i;
            now = next;
        }
    }
}

static enum status find(const struct fit_request *request, int most, struct fit *out) {
    const struct fit_machine *machine = &request->machine;
    const uint64_t per_rank = machine->host / (uint64_t)request->plan.local_world;
    const uint64_t host = per_rank > machine->program ? per_rank - machine->program : 0;
    struct ladder ladder = {.request = request, .place = request->plan.device->place};
    *out = (struct fit){.n_proposals = 0};
    ladder.limits[REGION_HOST] = machine->process > 0 && machine->process < host ? machine->process : host;
    ladder.limits[REGION_DEVICE] = ladder.place == REGION_DEVICE ? machine->device : SIZE_MAX;
    TRY(plan_ranks(&request->plan, &ladder.ranks, &ladder.n_ranks));
    enum status status = climb(&ladder, most, out);
    free(ladder.ranks);
    return status;
}

// ---- a smaller preset

// Builds a config from the preset's model and the run's device, precision, ranks, ZeRO and optimizer options.
// It has the run's tokens per step, rounded down to whole sequences per rank. Returns false if these are 0.
static bool take_over(const struct fit_request *request, const struct config *preset, struct config *out) {
    const struct config *run = request->plan.config;
    const int world = request->plan.world;
    const int64_t sequences =
        run->train.train_batch_size * run->train.seq_len / preset->train.seq_len / world;
    *out = *preset;
    out->top = run->top;
    out->precision = run->precision;
    out->zero_optimization = run->zero_optimization;
    out->comm = run->comm;
    out->optimizer.type = run->optimizer.type;
    out->optimizer.momentum = run->optimizer.momentum;
    out->optimizer.state_dtype = run->optimizer.state_dtype;
    out->run.threads = run->run.threads;
    out->train.train_batch_size = sequences * world;
    if (sequences > 0)
        config_set_micro_batch(out, config_largest_divisor(sequences, preset->train.micro_batch_size));
    return sequences > 0;
}

// Tries a preset if it has fewer parameters than the run, and more than *best, those of the best preset so
// far. If it fits, sets *best and *path.
static enum status try_preset(const struct fit_request *request, const struct preset *preset, size_t *best,
                              const char **path) {
    struct config given, config;
    struct params params = {0};
    struct fit found = {.n_proposals = 0};
    struct fit_request changed = *request;
    TRY(config_parse(&given, preset->json, strlen(preset->json), preset->path));
    enum status status = config_resolve(&given, request->plan.world);
    if (status != STATUS_OK) { // the ranks do not divide the preset's batch; take_over sets another batch
        status_clear();
        status = config_resolve(&given, 1);
    }
    const struct gpt_config sizes = config_model(&given);
    if (status == STATUS_OK)
        status = params_init(&params, &sizes);
    changed.plan.config = changed.given = &config;
    changed.plan.params = &params;
    if (status == STATUS_OK && params.n_weights < request->plan.params->n_weights &&
        params.n_weights > *best && take_over(request, &given, &config))
        status = find(&changed, 1, &found);
    if (found.n_proposals > 0) {
        *path = preset->path;
        *best = params.n_weights;
    }
    fit_free(&found);
    params_free(&params);
    config_free(&given);
    return status;
}

enum status fit_find(const struct fit_request *request, struct fit *out) {
    struct engine_options options = request->plan;
    struct plan plan;
    size_t best = 0;
    *out = (struct fit){.n_proposals = 0};
    options.rank = 0;
    TRY(plan_make(&options, &plan)); // fails if the config itself is wrong, so that no setting would help
    enum status status = find(request, FIT_MOST_PROPOSALS, out);
    for (int i = 0; i < n_presets && status == STATUS_OK && out->n_proposals == 0; i++)
        status = try_preset(request, &presets[i], &best, &out->preset);
    return status;
}

void fit_free(struct fit *fit) {
    for (int i = 0; i < fit->n_proposals; i++) {
        free(fit->proposals[i].overrides);
        free(fit->proposals[i].description);
    }
    fit->n_proposals = 0;
}

enum status fit_advise(const struct engine_options *run, const struct fit_machine *machine,
                       struct text *out) {
    const enum region_place place = run->device->place;
    struct fit_request request = {.plan = *run, .given = run->config, .machine = *machine};
    struct fit fit = {.n_proposals = 0};
    struct device *device = NULL;
    char bytes[32];
    if (place == REGION_DEVICE) // with the real GPU, each plan would time the GEMMs of its setting
        device = cuda_device_plan();
    if (device)
        request.plan.device = device;
    const enum status status = fit_find(&request, &fit);
    if (fit.n_proposals > 0)
        text_add(out, "; it would fit (%s per rank) with %s",
                 text_bytes(bytes, sizeof bytes, (double)fit.proposals[0].taken[place]),
                 fit.proposals[0].overrides);
    else
        text_add(out, "; use a smaller model (%s%s), a shorter train.seq_len, or more ranks",
                 fit.preset ? "the largest preset that fits is " : "no preset fits either",
                 fit.preset ? fit.preset : "");
    fit_free(&fit);
    device_close(device);
    return status;
}

// ---- the report

// True if one of the overrides sets the same option as `word`. No override contains blanks or quotes.
static bool is_replaced(const char *overrides, const char *word) {
    size_t length = strcspn(word, "=") + 1;
    for (const char *at = overrides; *at; at += strcspn(at, " "), at += strspn(at, " "))
        if (strncmp(at, word, length) == 0)
            return true;
    return false;
}

// Appends the user's command with `overrides`, which replace words that set the same options.
static void add_command(struct text *out, const struct fit_report *report, int world, const char *overrides) {
    if (world > 1)
        text_add(out, "mpirun -n %d ", world);
    text_add(out, "./train ");
    text_add_shell_word(out, report->words[0]);
    for (int i = 1; i < report->n_words; i++)
        if (!is_replaced(overrides, report->words[i])) {
            text_add(out, " ");
            text_add_shell_word(out, report->words[i]);
        }
    text_add(out, "%s%s", *overrides ? " " : "", overrides);
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

// Appends a key and its string value to JSON.
static void add_string(struct text *out, const char *key, const char *value) {
    text_add(out, "\"%s\": ", key);
    json_add_string(out, value ? value : "");
}

static void add_proposal(struct text *out, const struct fit_report *report, int world,
                         const struct fit_proposal *one) {
    char device[32], host[32], program[32], flops[32];
    struct text line = {0};
    text_add(&line, "  %s", one->description);
    plan_add_folded(out, &line, "      ", "");
    text_add(&line, "    ");
    add_command(&line, report, world, one->overrides);
    plan_add_folded(out, &line, "        ", " \\");
    text_add(&line, "    takes per rank: ");
    if (report->on_gpu)
        text_add(&line, "%s of GPU memory, ",
                 text_bytes(device, sizeof device, (double)one->taken[REGION_DEVICE]));
    text_add(&line, "%s of host memory and about %s for the program, %s per step; the same losses %s",
             text_bytes(host, sizeof host, (double)one->taken[REGION_HOST]),
             text_bytes(program, sizeof program, (double)report->machine.program),
             text_flops(flops, sizeof flops, one->flops), one->same_bits ? "bit for bit" : "up to rounding");
    plan_add_folded(out, &line, "      ", "");
}

static void add_case(struct text *out, const struct fit_report *report, int i) {
    const struct plan_case *plan = &report->plans->cases[i];
    const struct fit *fit = &report->cases[i];
    struct text line = {0};
    text_add(&line, "%d rank%s", plan->world, plan->world == 1 ? "" : "s");
    if (plan->refused)
        text_add(&line, ": %s", plan->refused);
    else if (plan->world > 1)
        text_add(&line, ", %d per machine", plan->local_world);
    text_add(out, "\n");
    plan_add_prose(out, &line);
    for (int k = 0; k < fit->n_proposals; k++)
        add_proposal(out, report, plan->world, &fit->proposals[k]);
    if (!plan->refused && fit->n_proposals == 0)
        text_add(out, "  nothing fits; %s%s\n",
                 fit->preset ? "the largest preset that fits is " : "no preset fits either",
                 fit->preset ? fit->preset : "");
}

static void add_case_json(struct text *out, const struct fit_report *report, int i) {
    const struct plan_case *plan = &report->plans->cases[i];
    const struct fit *fit = &report->cases[i];
    text_add(out, "%s\n    {\"ranks\": %d, ", i ? "," : "", plan->world);
    if (plan->refused) {
        add_string(out, "refused", plan->refused);
    } else
        text_add(out, "\"ranks_per_machine\": %d, \"proposals\": [", plan->local_world);
    for (int k = 0; k < fit->n_proposals; k++) {
        const struct fit_proposal *one = &fit->proposals[k];
        struct text command = {0};
        add_command(&command, report, plan->world, one->overrides);
        text_add(out, "%s\n      {", k ? "," : "");
        add_string(out, "setting", one->description);
        text_add(out, ", ");
        add_string(out, "overrides", one->overrides);
        text_add(out, ", ");
        add_string(out, "command", command.data);
        text_add(out, ", \"device_bytes\": %zu, \"host_bytes\": %zu, \"flops\": %.10g, \"same_bits\": %s}",
                 one->taken[REGION_DEVICE], one->taken[REGION_HOST], one->flops,
                 one->same_bits ? "true" : "false");
        text_free(&command);
    }
    text_add(out, "%s", plan->refused ? "" : "]");
    if (fit->preset) {
        text_add(out, ", ");
        add_string(out, "preset", fit->preset);
    }
    text_add(out, "}");
}

static void add_report(struct text *out, const struct fit_report *report, bool as_json) {
    const struct plan_report *plans = report->plans;
    struct text line = {0};
    char weights[32];
    if (as_json) {
        text_add(out, "{\n  ");
        add_string(out, "config", plans->source);
        text_add(out, ",\n  \"parameters\": %zu,\n  \"compute\": \"%s\",\n", plans->n_weights,
                 dtype_name(plans->type));
        if (report->on_gpu)
            text_add(out, "  \"device_memory\": %" PRIu64 ",\n  \"device_memory_free\": %" PRIu64 ",\n",
                     report->gpu_memory, report->machine.device);
        text_add(out, "  \"host_memory\": %" PRIu64 ",\n  \"program_bytes\": %" PRIu64 ",\n  \"fits\": [",
                 report->machine.host, report->machine.program);
    } else {
        text_add(&line, "%s: %s parameters, %s%s, into ", plans->source,
                 text_count(weights, sizeof weights, (double)plans->n_weights), dtype_name(plans->type),
                 plans->type_chosen ? " (the faster type on this machine)" : "");
        add_machine(&line, report);
        plan_add_prose(out, &line);
        text_add(out, "The cheapest setting that fits comes first, then those that take less memory.\n");
    }
    for (int i = 0; i < plans->n_cases; i++)
        as_json ? add_case_json(out, report, i) : add_case(out, report, i);
    text_add(out, "%s", as_json ? "\n  ]\n}\n" : "");
}

enum status fit_report_print(const struct fit_report *report, bool as_json) {
    struct text out = {0}, machine = {0};
    const char *preset = NULL;
    int n_proposals = 0;
    add_report(&out, report, as_json);
    add_machine(&machine, report);
    for (int i = 0; i < report->plans->n_cases; i++) {
        n_proposals += report->cases[i].n_proposals;
        preset = preset ? preset : report->cases[i].preset;
    }
    enum status status = STATUS_OK;
    fwrite(out.data, 1, out.length, stdout);
    if (n_proposals == 0)
        status =
            FAIL(STATUS_FAILED, "%s: no setting fits into %s; %s%s", report->plans->source, machine.data,
                 preset ? "the largest preset that fits is " : "no preset fits either", preset ? preset : "");
    text_free(&out);
    text_free(&machine);
    return status;
}
