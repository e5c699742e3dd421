// What to propose when nothing fits: more ranks, a smaller preset, a narrower optimizer state.
#include <string.h>

#include "configs/presets.h"
#include "trainer/plan/fit.h"
#include "trainer/plan/model_sizes.h"

// The fastest proposal of a search. found: [out] false if nothing fits; `out` is then not written.
static enum status find_fastest(const struct fit_request *request, bool *found, struct fit_proposal *out) {
    struct fit fit;
    TRY(fit_search(request, &fit));
    *found = fit.n_proposals > 0;
    if (*found) {
        *out = fit.proposals[0];
        fit.proposals[0] = (struct fit_proposal){0};
    }
    fit_free(&fit);
    return STATUS_OK;
}

// Divides the batch among `world` ranks, with micro-batches no larger than before. False when it does not
// divide.
static bool divide_batch(struct config *config, int world) {
    int64_t sequences = config->train.train_batch_size / world, *micro = &config->train.micro_batch_size;
    if (sequences == 0 || config->train.train_batch_size % world != 0)
        return false;
    if (*micro > sequences)
        *micro = sequences;
    while (sequences % *micro != 0)
        --*micro;
    config->train.gradient_accumulation_steps = sequences / *micro;
    return true;
}

// ---- a smaller preset

struct chosen_preset {
    const struct preset *preset;
    struct config given; // as in the file
    struct params params;
};

static void chosen_preset_free(struct chosen_preset *chosen) {
    config_free(&chosen->given);
    params_free(&chosen->params);
    *chosen = (struct chosen_preset){0};
}

static enum status read_preset(const struct preset *preset, int world, struct chosen_preset *out) {
    *out = (struct chosen_preset){.preset = preset};
    TRY(config_parse(&out->given, preset->json, strlen(preset->json), preset->path));
    if (config_resolve(&out->given, world) !=
        STATUS_OK) { // its batch does not divide; take_over sets another
        status_clear();
        TRY(config_resolve(&out->given, 1));
    }
    const struct gpt_config sizes = model_sizes(&out->given);
    return params_init(&out->params, &sizes);
}

// The largest preset with fewer than `below` parameters; out->preset is NULL if there is none.
static enum status next_preset(size_t below, int world, struct chosen_preset *out) {
    *out = (struct chosen_preset){.preset = NULL};
    enum status status = STATUS_OK;
    for (int i = 0; i < n_presets && status == STATUS_OK; i++) {
        struct chosen_preset other;
        status = read_preset(&presets[i], world, &other);
        if (status == STATUS_OK && other.params.n_weights < below &&
            (!out->preset || other.params.n_weights > out->params.n_weights)) {
            chosen_preset_free(out);
            *out = other;
        } else {
            chosen_preset_free(&other);
        }
    }
    return status;
}

// The preset's model with the run's device, precision, ranks, ZeRO and optimizer options, and as many tokens
// per step. False when that batch does not divide among the ranks.
static bool take_over(const struct fit_request *request, const struct config *preset, struct config *out) {
    const struct config *run = request->plan.config;
    int world = request->plan.world;
    *out = *preset;
    out->top = run->top;
    out->precision = run->precision;
    out->zero_optimization = run->zero_optimization;
    out->comm = run->comm;
    out->optimizer.type = run->optimizer.type;
    out->optimizer.momentum = run->optimizer.momentum;
    out->optimizer.state_dtype = run->optimizer.state_dtype;
    out->run.threads = run->run.threads;
    int64_t tokens = run->train.train_batch_size * run->train.seq_len;
    out->train.train_batch_size = tokens / preset->train.seq_len / world * world;
    return divide_batch(out, world);
}

static enum status try_preset(const struct fit_request *request, const struct chosen_preset *chosen,
                              bool *found, struct fit_proposal *out) {
    struct config config;
    struct fit_request changed = *request;
    if (!take_over(request, &chosen->given, &config))
        return STATUS_OK;
    changed.plan.config = &config;
    changed.plan.params = &chosen->params;
    changed.given = &chosen->given;
    return find_fastest(&changed, found, out);
}

enum status fit_preset(const struct fit_request *request, const char **path, struct fit_proposal *out) {
    struct chosen_preset chosen;
    bool found = false;
    *path = NULL;
    TRY(next_preset(request->plan.params->n_weights, request->plan.world, &chosen));
    while (chosen.preset) {
        size_t below = chosen.params.n_weights;
        enum status status = try_preset(request, &chosen, &found, out);
        if (found)
            *path = chosen.preset->path;
        chosen_preset_free(&chosen);
        if (status != STATUS_OK || found)
            return status;
        TRY(next_preset(below, request->plan.world, &chosen));
    }
    return STATUS_OK;
}

// ---- a narrower state

enum status fit_narrow_state(const struct fit_request *request, const char **name, struct fit_proposal *out) {
    bool found = false;
    *name = NULL;
    const struct config *config = request->plan.config;
    if (optimizer_traits_of(config, config->optimizer.type).n_moments == 0)
        return STATUS_OK;
    // The enum's order is from wide to narrow.
    for (int type = (int)request->plan.config->optimizer.state_dtype + 1;
         type <= CONFIG_STATE_DTYPE_INT8 && !found; type++) {
        struct config narrow = *config;
        struct fit_request changed = *request;
        narrow.optimizer.state_dtype = (enum config_state_dtype)type;
        changed.plan.config = &narrow;
        TRY(find_fastest(&changed, &found, out));
        if (found)
            *name = config_state_dtype_name(narrow.optimizer.state_dtype);
    }
    return STATUS_OK;
}

// ---- advice

// Tries `world` ranks, on machines like this one with as many ranks each as now.
static enum status advise_ranks(const struct fit_request *request, int world, bool *found, struct text *out) {
    struct config config = *request->plan.config;
    struct fit_request changed = *request;
    struct fit_proposal proposal;
    char bytes[32];
    *found = false;
    if (!divide_batch(&config, world))
        return STATUS_OK;
    changed.plan.config = changed.given = &config;
    changed.plan.world = world;
    TRY(find_fastest(&changed, found, &proposal));
    if (!*found)
        return STATUS_OK;
    enum region_place place = request->plan.device->place;
    text_add(out, "; it would fit (%s per rank) with %s",
             text_bytes(bytes, sizeof bytes, (double)proposal.taken[place]), proposal.overrides);
    if (world != request->plan.world)
        text_add(out, "%s%d ranks (%d per machine)", proposal.overrides[0] ? " on " : "", world,
                 request->plan.local_world);
    fit_proposal_free(&proposal);
    return text_status(out);
}

enum status fit_advise(const struct engine_options *request, const struct fit_machine *machine,
                       struct text *out) {
    enum { MOST_TIMES = 1024 };
    struct fit_request fit = {.plan = *request, .machine = *machine};
    struct device *device = NULL;
    bool found = false;
    enum status status = STATUS_OK;
    if (request->device->place == REGION_DEVICE) // the GPU would measure the GEMMs of every setting
        status = cuda_device_plan(&device);
    if (device) {
        device->attention = request->device->attention;
        fit.plan.device = device;
    }
    for (int times = 1; times <= MOST_TIMES && status == STATUS_OK && !found; times *= 2)
        status = advise_ranks(&fit, times * request->world, &found, out);
    device_close(device);
    if (status == STATUS_OK && !found)
        text_add(out, "; use a smaller model, or a shorter train.seq_len");
    return status == STATUS_OK ? text_status(out) : status;
}
