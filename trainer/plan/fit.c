// A plan is the sum of two halves, model states and model (plan_add_states, plan_add_model). Each half is
// planned once for all settings that share it.
#include "trainer/plan/fit.h"

#include <stdlib.h>
#include <string.h>

#include "trainer/plan/cost_model.h"
#include "trainer/plan/micro_batch.h"

// ---- settings

enum { RATIO_STEPS = 20, MOST_MICRO_SIZES = 64 };

enum { N_RECOMPUTATIONS = CONFIG_RECOMPUTE_BLOCK + 1 };

struct setting {
    int stage, recompute; // enum config_recompute
    int ratio;            // of the optimizer on the host, of RATIO_STEPS
    bool host_params, host_activations;
    int micro; // index into the search's micro_sizes
};

struct memory_use {
    size_t bytes[N_REGION_PLACES];
};

// Memory of the model states: of rank 0, which may write samples, and the most of any other rank.
struct states_plan {
    bool known;
    struct memory_use first, others;
};
// Memory of the model on a rank with a generator of samples, and without; and its work.
struct model_plan {
    bool known;
    struct memory_use with_samples, without_samples;
    struct step_work work; // but for the update
};

struct fit_candidate {
    struct setting setting;
    struct memory_use taken;
    double step_s;
    int n_changes;
};

struct search {
    const struct fit_request *request;
    int *ranks, n_ranks; // the ranks to plan (plan_ranks)
    int64_t micro_sizes[MOST_MICRO_SIZES];
    int n_micro_sizes;
    struct states_plan states[N_STAGES][2][RATIO_STEPS + 1]; // [host_params]
    struct model_plan *models;                               // [micro][recompute][host_activations]
    uint64_t *volume;                                        // [micro][stage]; 0: not known yet
    double update_flops;                                     // of a rank (struct step_work)
    size_t limits[N_REGION_PLACES];                          // bytes per rank
    struct fit_candidate best;                               // within the current limits
    bool found;                                              // `best` is valid
};

static bool on_gpu(const struct search *search) {
    return search->request->plan.device->place == REGION_DEVICE;
}

static enum config_offload offload_choice(bool on_host) {
    return on_host ? CONFIG_OFFLOAD_CPU : CONFIG_OFFLOAD_NONE;
}

static struct config config_with(const struct search *search, const struct setting *setting) {
    struct config config = *search->request->plan.config; // a shallow copy, which is not freed
    int64_t sequences = config.train.micro_batch_size * config.train.gradient_accumulation_steps;
    config.train.micro_batch_size = search->micro_sizes[setting->micro];
    config.train.gradient_accumulation_steps = sequences / config.train.micro_batch_size;
    config.top.recompute = (enum config_recompute)setting->recompute;
    config.zero_optimization.stage = setting->stage;
    if (!on_gpu(search))
        return config;
    config.top.offload_activations = offload_choice(setting->host_activations);
    config.zero_optimization.offload_param.device = offload_choice(setting->host_params);
    config.zero_optimization.offload_optimizer.device = offload_choice(setting->ratio > 0);
    if (setting->ratio > 0)
        config.zero_optimization.offload_optimizer.ratio = setting->ratio / (double)RATIO_STEPS;
    return config;
}

static int count_changes(const struct config *a, const struct config *b) {
    bool offloads = b->zero_optimization.offload_optimizer.device == CONFIG_OFFLOAD_CPU;
    return (a->zero_optimization.stage != b->zero_optimization.stage) +
           (a->top.recompute != b->top.recompute) +
           (a->top.offload_activations != b->top.offload_activations) +
           (a->zero_optimization.offload_param.device != b->zero_optimization.offload_param.device) +
           (a->zero_optimization.offload_optimizer.device != b->zero_optimization.offload_optimizer.device) +
           (offloads &&
            a->zero_optimization.offload_optimizer.ratio != b->zero_optimization.offload_optimizer.ratio) +
           (a->train.micro_batch_size != b->train.micro_batch_size);
}

// ---- memory

static void raise_to(struct memory_use *most, const struct plan *plan) {
    for (int place = 0; place < N_REGION_PLACES; place++)
        if (plan->taken[place] > most->bytes[place])
            most->bytes[place] = plan->taken[place];
}

static enum status plan_states(struct search *search, const struct setting *setting,
                               struct states_plan *out) {
    const struct config config = config_with(search, setting);
    struct engine_options options = search->request->plan;
    options.config = &config;
    for (int i = 0; i < search->n_ranks; i++) {
        struct plan plan = {.total = 0};
        options.rank = search->ranks[i];
        TRY(plan_add_states(&options, &plan));
        raise_to(i == 0 ? &out->first : &out->others, &plan);
    }
    out->known = true;
    return STATUS_OK;
}

// Rank 0 writes samples if any rank does; train.sample_every=0 gives the plan of a rank without.
static enum status plan_model(struct search *search, const struct setting *setting, struct model_plan *out) {
    struct config config = config_with(search, setting);
    struct engine_options options = search->request->plan;
    options.config = &config;
    options.rank = 0;
    struct plan with_samples = {.total = 0}, without_samples = {.total = 0};
    TRY(plan_add_model(&options, &with_samples));
    config.train.sample_every = 0;
    TRY(plan_add_model(&options, &without_samples));
    raise_to(&out->with_samples, &with_samples);
    raise_to(&out->without_samples, &without_samples);
    step_work_count(&without_samples.work[0], &out->work);
    out->known = true;
    return STATUS_OK;
}

static struct memory_use sum(const struct memory_use *states, const struct memory_use *model) {
    struct memory_use taken;
    for (int place = 0; place < N_REGION_PLACES; place++)
        taken.bytes[place] = states->bytes[place] + model->bytes[place];
    return taken;
}

static struct model_plan *model_plan_of(const struct search *search, const struct setting *setting) {
    return &search->models[(setting->micro * N_RECOMPUTATIONS + setting->recompute) * 2 +
                           setting->host_activations];
}

// The memory of the rank that needs most.
static enum status plan_setting(struct search *search, const struct setting *setting,
                                struct memory_use *out) {
    struct states_plan *states = &search->states[setting->stage][setting->host_params][setting->ratio];
    struct model_plan *model = model_plan_of(search, setting);
    if (!states->known)
        TRY(plan_states(search, setting, states));
    if (!model->known)
        TRY(plan_model(search, setting, model));
    bool all_sample = setting->stage == N_STAGES - 1; // see engine_has_generator
    *out = sum(&states->first, &model->with_samples);
    struct memory_use other =
        sum(&states->others, all_sample ? &model->with_samples : &model->without_samples);
    for (int place = 0; place < N_REGION_PLACES && search->n_ranks > 1; place++)
        if (other.bytes[place] > out->bytes[place])
            out->bytes[place] = other.bytes[place];
    return STATUS_OK;
}

static bool holds(const struct search *search, const struct memory_use *taken, enum region_place place) {
    return taken->bytes[place] <= search->limits[place];
}

// ---- candidates

static enum status find_volume(struct search *search, const struct setting *setting,
                               const struct config *config, uint64_t *bytes) {
    uint64_t *known = &search->volume[setting->micro * N_STAGES + setting->stage];
    struct engine_options options = search->request->plan;
    struct plan plan = {.total = 0};
    options.config = config;
    options.rank = 0;
    if (*known == 0 && options.world > 1)
        TRY(plan_add_states(&options, &plan));
    if (*known == 0)
        *known = comm_volume_bytes(&plan.volume);
    *bytes = *known;
    return STATUS_OK;
}

// True if x is faster; if equally fast, changes fewer options; then, takes less memory.
static bool is_better(const struct fit_candidate *x, const struct fit_candidate *y) {
    if (x->step_s != y->step_s)
        return x->step_s < y->step_s;
    if (x->n_changes != y->n_changes)
        return x->n_changes < y->n_changes;
    for (int place = N_REGION_PLACES - 1; place >= 0; place--)
        if (x->taken.bytes[place] != y->taken.bytes[place])
            return x->taken.bytes[place] < y->taken.bytes[place];
    return false;
}

static enum status add_candidate(struct search *search, const struct setting *setting,
                                 const struct memory_use *taken) {
    const struct config config = config_with(search, setting);
    struct engine_options options = search->request->plan;
    uint64_t volume;
    options.config = &config;
    TRY(find_volume(search, setting, &config, &volume));
    struct step_work work = model_plan_of(search, setting)->work;
    work.update_flops = search->update_flops;
    const struct fit_candidate candidate = {.setting = *setting,
                                            .taken = *taken,
                                            .step_s = step_time_estimate(&options, &work, volume),
                                            .n_changes = count_changes(search->request->given, &config)};
    if (!search->found || is_better(&candidate, &search->best))
        search->best = candidate;
    search->found = true;
    return STATUS_OK;
}

// Binary search for the smallest offload ratio with which the device holds the rest; its need falls as the
// ratio grows. RATIO_STEPS + 1: not even with the whole optimizer on the host.
static enum status find_ratio(struct search *search, struct setting setting, int *ratio) {
    int low = 0, high = RATIO_STEPS + 1; // low does not fit
    while (high - low > 1) {
        struct memory_use taken;
        setting.ratio = high == RATIO_STEPS + 1 ? RATIO_STEPS : (low + high) / 2;
        TRY(plan_setting(search, &setting, &taken));
        if (holds(search, &taken, REGION_DEVICE))
            high = setting.ratio;
        else
            low = setting.ratio;
    }
    *ratio = high;
    return STATUS_OK;
}

// Offloads the optimizer only if the setting does not fit otherwise, and no more of it than needed.
static enum status consider(struct search *search, struct setting setting) {
    struct memory_use taken;
    setting.ratio = setting.host_params ? RATIO_STEPS : 0;
    TRY(plan_setting(search, &setting, &taken));
    if (!holds(search, &taken, REGION_DEVICE)) {
        if (setting.host_params)
            return STATUS_OK;
        TRY(find_ratio(search, setting, &setting.ratio));
        if (setting.ratio > RATIO_STEPS)
            return STATUS_OK;
        TRY(plan_setting(search, &setting, &taken));
    }
    return holds(search, &taken, REGION_HOST) ? add_candidate(search, &setting, &taken) : STATUS_OK;
}

// Skips a setting that a plan refuses, for example because its buckets would make too many calls.
static enum status consider_or_skip(struct search *search, struct setting setting) {
    enum status status = consider(search, setting);
    if (status != STATUS_INVALID && status != STATUS_UNSUPPORTED)
        return status;
    status_clear();
    return STATUS_OK;
}

// On one rank without a GPU, a higher stage only adds buffers.
static bool stage_is_worth_it(const struct search *search, int stage) {
    const struct engine_options *plan = &search->request->plan;
    return plan->world > 1 || on_gpu(search) || stage == (int)plan->config->zero_optimization.stage;
}

static enum status consider_stages(struct search *search, struct setting setting) {
    for (setting.stage = 0; setting.stage < N_STAGES; setting.stage++) {
        if (!stage_is_worth_it(search, setting.stage))
            continue;
        bool may_host_params = on_gpu(search) && setting.stage == 3;
        for (int host_params = 0; host_params <= may_host_params; host_params++) {
            setting.host_params = host_params;
            TRY(consider_or_skip(search, setting));
        }
    }
    return STATUS_OK;
}

static enum status consider_all(struct search *search) {
    for (int micro = 0; micro < search->n_micro_sizes; micro++)
        for (int recompute = 0; recompute < N_RECOMPUTATIONS; recompute++) {
            bool may_host = on_gpu(search) && recompute == CONFIG_RECOMPUTE_BLOCK;
            for (int host = 0; host <= may_host; host++)
                TRY(consider_stages(
                    search,
                    (struct setting){.micro = micro, .recompute = recompute, .host_activations = host}));
        }
    return STATUS_OK;
}

// ---- the search

// Micro-batch sizes that divide a rank's sequences per step, from the config's size down or, where the config
// leaves it open for a GPU, from the largest that a run would choose.
static void list_micro_sizes(struct search *search) {
    const struct config *config = search->request->plan.config;
    const bool open = config->micro_batch_is_open && on_gpu(search);
    const int64_t sequences = config_rank_sequences(config),
                  most = open ? config_largest_divisor(sequences,
                                                       MICRO_BATCH_MOST_TOKENS / config->train.seq_len)
                              : config->train.micro_batch_size;
    for (int64_t size = most; size > 0 && search->n_micro_sizes < MOST_MICRO_SIZES; size--)
        if (sequences % size == 0)
            search->micro_sizes[search->n_micro_sizes++] = size;
}

// Host memory that a rank has for the model.
static uint64_t host_limit(const struct fit_request *request) {
    const struct fit_machine *machine = &request->machine;
    const uint64_t per_rank = machine->host / (uint64_t)request->plan.local_world;
    const uint64_t left = per_rank > machine->program ? per_rank - machine->program : 0;
    return machine->process > 0 && machine->process < left ? machine->process : left;
}

static enum status search_init(struct search *search, const struct fit_request *request) {
    search->request = request;
    search->limits[REGION_HOST] = host_limit(request);
    search->limits[REGION_DEVICE] = on_gpu(search) ? request->machine.device : SIZE_MAX;
    list_micro_sizes(search);
    size_t n = (size_t)search->n_micro_sizes;
    search->models = calloc(n * N_RECOMPUTATIONS * 2, sizeof *search->models);
    search->volume = calloc(n * N_STAGES, sizeof *search->volume);
    if (!search->models || !search->volume)
        return FAIL(STATUS_FAILED, "out of memory for the settings to try");
    TRY(update_flops_estimate(&request->plan, &search->update_flops));
    return plan_ranks(&request->plan, &search->ranks, &search->n_ranks);
}

static void search_free(struct search *search) {
    free(search->models);
    free(search->volume);
    free(search->ranks);
    free(search);
}

// ---- proposals

static void add_phrase(struct text *words, const char *phrase) {
    text_add(words, "%s%s", words->length ? ", " : "", phrase);
}

static void describe(const struct config *config, int world, bool gpu, struct text *words) {
    const double ratio = config->zero_optimization.offload_optimizer.ratio;
    if (world > 1 || config->zero_optimization.stage > 0)
        text_add(words, "ZeRO stage %lld", (long long)config->zero_optimization.stage);
    if (config->top.recompute == CONFIG_RECOMPUTE_NONE)
        add_phrase(words, "all activations kept");
    else if (config->top.recompute != CONFIG_RECOMPUTE_ELEMENTWISE)
        text_add(words, "%s%s recomputed in backward", words->length ? ", " : "",
                 config->top.recompute == CONFIG_RECOMPUTE_BLOCK ? "blocks" : "attention");
    if (gpu && config->zero_optimization.offload_optimizer.device == CONFIG_OFFLOAD_CPU) {
        add_phrase(words, ratio < 1 ? "" : "the optimizer on the host");
        if (ratio < 1)
            text_add(words, "%g of the optimizer on the host", ratio);
    }
    if (gpu && config->zero_optimization.offload_param.device == CONFIG_OFFLOAD_CPU)
        add_phrase(words, "parameters on the host");
    if (gpu && config->top.offload_activations == CONFIG_OFFLOAD_CPU)
        add_phrase(words, "activations on the host");
    if (words->length == 0) // as a run is by default
        add_phrase(words, "nothing offloaded or recomputed for memory");
    text_add(words, "%s%lld x %lld sequences per rank", words->length ? ", " : "",
             (long long)config->train.gradient_accumulation_steps, (long long)config->train.micro_batch_size);
}

// True if both configs round and sum gradients in the same order: the same micro-batch size and, with several
// micro-batches, both or neither reduce after each one (zero_optimization.reduce_every_micro_batch).
static bool sums_alike(const struct config *a, const struct config *b) {
    bool every = a->zero_optimization.reduce_every_micro_batch;
    return a->train.micro_batch_size == b->train.micro_batch_size &&
           (a->train.gradient_accumulation_steps == 1 || every ||
            (a->zero_optimization.stage >= 2) == (b->zero_optimization.stage >= 2));
}

static enum status propose(const struct search *search, const struct fit_candidate *candidate,
                           struct fit_proposal *out) {
    const struct fit_request *request = search->request;
    const struct config config = config_with(search, &candidate->setting);
    struct text overrides = {0}, words = {0};
    text_add(&overrides, "%s", ""); // so that data is not NULL without overrides
    config_print_overrides(request->given, &config, &overrides);
    describe(&config, request->plan.world, on_gpu(search), &words);
    *out = (struct fit_proposal){.overrides = overrides.data,
                                 .description = words.data,
                                 .step_s = candidate->step_s,
                                 .same_bits = sums_alike(request->plan.config, &config)};
    memcpy(out->taken, candidate->taken.bytes, sizeof out->taken);
    TRY(text_status(&overrides));
    return text_status(&words);
}

// See FIT_MOST_PROPOSALS.
static enum status choose(struct search *search, struct fit *out) {
    int place = on_gpu(search) ? REGION_DEVICE : REGION_HOST;
    while (out->n_proposals < FIT_MOST_PROPOSALS) {
        search->found = false;
        TRY(consider_all(search));
        if (!search->found)
            break;
        TRY(propose(search, &search->best, &out->proposals[out->n_proposals++]));
        search->limits[place] = search->best.taken.bytes[place] / 10 * 9;
    }
    return STATUS_OK;
}

// Reports an error of the config itself, which the search would skip in every setting.
static enum status check_config(const struct fit_request *request) {
    struct engine_options options = request->plan;
    struct plan plan;
    options.rank = 0;
    return plan_make(&options, &plan);
}

enum status fit_search(const struct fit_request *request, struct fit *out) {
    *out = (struct fit){.n_proposals = 0};
    struct search *search = calloc(1, sizeof *search);
    if (!search)
        return FAIL(STATUS_FAILED, "out of memory for the settings to try");
    enum status status = check_config(request);
    if (status == STATUS_OK)
        status = search_init(search, request);
    if (status == STATUS_OK)
        status = choose(search, out);
    search_free(search);
    if (status != STATUS_OK)
        fit_free(out);
    return status;
}

void fit_proposal_free(struct fit_proposal *proposal) {
    free(proposal->overrides);
    free(proposal->description);
    *proposal = (struct fit_proposal){0};
}

void fit_free(struct fit *fit) {
    for (int i = 0; i < FIT_MOST_PROPOSALS; i++)
        fit_proposal_free(&fit->proposals[i]);
    fit->n_proposals = 0;
}
