// Memory is counted by laying the run out; what is sent is counted by formula, so that a run which measures
// the same has kept its word.
#include "trainer/plan/plan.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "model/param_overlap.h"
#include "trainer/profile/profiler.h"
#include "zero/stages/adafactor.h"

// ---- the parts of a run

// In stage 3 a sample needs every rank: each holds a share of the model that writes it.
bool engine_has_generator(const struct engine_options *request) {
    return request->config->train.sample_every > 0 &&
           (request->rank == 0 || request->config->zero_optimization.stage == 3);
}

// What depends on the stage and on which elements the rank owns.
static enum status add_states(struct engine *parts, const struct engine_options *request,
                              struct region_table *table) {
    TRY(model_states_init(&parts->state, request->params, request->config, request->type, request->rank,
                          request->world, request->partition, request->device, table));
    optimizer_init(&parts->optimizer, request->config, &parts->state);
    return STATUS_OK;
}

size_t engine_links_bytes(const struct engine_options *request) {
    return comm_memory_bytes(request->world, request->config->comm.shared_memory ? request->local_world : 1);
}

// What does not, but for the generator.
static enum status add_model(struct engine *parts, const struct engine_options *request,
                             struct region_table *table) {
    const struct config *config = request->config;
    const struct gpt_options options = {.type = request->type,
                                        .B = (int)config->train.micro_batch_size,
                                        .T = (int)config->train.seq_len,
                                        .recompute = stage_recompute(config),
                                        .offload_activations =
                                            config->top.offload_activations == CONFIG_OFFLOAD_CPU,
                                        .training = true};
    TRY(gpt_new(request->params, &options, request->device, table, &parts->gpt));
    if (engine_has_generator(request))
        TRY(generator_new(request->params,
                          &(struct generator_options){request->type, (int)config->train.seq_len, 1},
                          request->device, table, &parts->generator));
    if (config->run.profile)
        TRY(profiler_plan(request->world, table, &parts->profile_region));
    if (request->world == 1)
        return STATUS_OK;
    enum region_place place = request->device->place;
    TRY(region_add_external(table, REGION_COMMUNICATION, place, comm_sums_bytes(request->world, place),
                            "sums between ranks"));
    return region_add_external(table, REGION_COMMUNICATION, REGION_HOST, engine_links_bytes(request),
                               "links between ranks");
}

enum status engine_plan(struct engine *parts, const struct engine_options *request,
                        struct region_table *table) {
    *parts = (struct engine){0};
    TRY(add_states(parts, request, table));
    return add_model(parts, request, table);
}

enum status engine_bind(struct engine *parts, const struct region_table *table, struct stream *stream,
                        struct comm *comm, struct device *host) {
    TRY(model_states_bind(&parts->state, table, comm, host));
    TRY(optimizer_bind(&parts->optimizer));
    TRY(gpt_bind(parts->gpt, table, stream));
    if (parts->generator)
        generator_bind(parts->generator, table, stream);
    return STATUS_OK;
}

void engine_free(struct engine *parts) {
    optimizer_free(&parts->optimizer);
    model_states_free(&parts->state);
    gpt_delete(parts->gpt);
    generator_delete(parts->generator);
    *parts = (struct engine){0};
}

// ---- what is sent

// Elements of a fetch: of tensors that stage 3 gathers for each use, and of those that persist.
struct share {
    size_t fetched, persistent;
};

static void add_to_share(const struct model_states *state, const struct fetch *fetch, size_t begin,
                         size_t end, struct share *share) {
    size_t from = begin > fetch->range.begin ? begin : fetch->range.begin;
    size_t to = end < fetch->range.end ? end : fetch->range.end;
    for (struct param_overlap it = {0}; params_next_overlap(state->params, fetch->unit, from, to, &it);) {
        bool persists = state->params->params[it.param].elements < state->options.persistence_threshold;
        *(persists ? &share->persistent : &share->fetched) += it.end - it.begin;
    }
}

static struct share share_of_rank(const struct model_states *state, const struct fetch *fetch) {
    struct share share = {0};
    for (int i = state->owned.first[fetch->unit]; i < state->owned.first[fetch->unit + 1]; i++)
        add_to_share(state, fetch, state->owned.spans[i].begin, state->owned.spans[i].end, &share);
    return share;
}

static struct share share_of_all(const struct model_states *state, const struct fetch *fetch) {
    struct share share = {0};
    add_to_share(state, fetch, fetch->range.begin, fetch->range.end, &share);
    return share;
}

// Embeddings and blocks are used in forward and in backward; the final norm, which the head computes forward
// and backward in one go, once; a block's group as often as the model asks for it.
static uint64_t uses_of(const struct model_states *state, int index) {
    const struct parameters *parameters = &state->parameters;
    int unit = parameters->fetches[index].unit, group = index - parameters->first_fetch[unit];
    if (stage_by_group(&state->options, state->params, unit))
        return (uint64_t)gpt_group_uses(state->params, state->options.recompute, unit,
                                        (enum block_group)group);
    return unit == state->params->n_units - 1 ? 1 : 2;
}

static void plan_reduction(const struct model_states *state, uint64_t n_micro, struct comm_volume *out) {
    const struct params *params = state->params;
    const struct stage_options *options = &state->options;
    const struct gradients *gradients = &state->gradients;
    uint64_t times = stage_reduces_to_shard(options) ? n_micro : 1, calls = 0;
    size_t owned = state->partition.rank_elements[state->rank];
    for (int i = 0; options->stage >= 2 && i < gradients->first_reduction[params->n_units]; i++) {
        struct param_range range = gradients->reductions[i].range;
        calls += buckets_count(range.end - range.begin, options->reduce_bucket);
    }
    if (options->stage < 2)
        calls = buckets_count(params->n_elements, options->reduce_bucket);
    out->bytes[COMM_REDUCE_SCATTER] =
        times * (params->n_elements - owned) * dtype_size(options->gradient_comm_dtype);
    out->calls[COMM_REDUCE_SCATTER] = times * calls;
}

static void plan_gathers(const struct model_states *state, uint64_t n_micro, struct comm_volume *out) {
    const struct params *params = state->params;
    const struct stage_options *options = &state->options;
    uint64_t others = (uint64_t)state->world - 1;
    size_t owned = state->partition.rank_elements[state->rank], size = dtype_size(state->type);
    if (options->stage < 3) { // gradients in stage 0, parameters in 1 and 2
        out->bytes[COMM_ALL_GATHER] = owned * others * (options->stage == 0 ? sizeof(float) : size);
        out->calls[COMM_ALL_GATHER] = buckets_count(params->n_elements, options->allgather_bucket);
        return;
    }
    size_t persistent = 0;
    for (int i = 0; i < state->parameters.first_fetch[params->n_units]; i++) {
        const struct fetch *fetch = &state->parameters.fetches[i];
        uint64_t times = n_micro * uses_of(state, i);
        struct share share = share_of_rank(state, fetch), all = share_of_all(state, fetch);
        out->bytes[COMM_ALL_GATHER] += (times * share.fetched + share.persistent) * size * others;
        out->calls[COMM_ALL_GATHER] += times * buckets_count(all.fetched, options->allgather_bucket);
        persistent += all.persistent;
    }
    out->calls[COMM_ALL_GATHER] += buckets_count(persistent, options->allgather_bucket);
}

void comm_volume_make(const struct model_states *state, int64_t n_micro_batches, struct comm_volume *out) {
    *out = (struct comm_volume){0};
    if (state->world == 1)
        return;
    plan_reduction(state, (uint64_t)n_micro_batches, out);
    plan_gathers(state, (uint64_t)n_micro_batches, out);
    adafactor_traffic(state, &out->bytes[COMM_ALL_REDUCE], &out->calls[COMM_ALL_REDUCE]);
}

uint64_t comm_volume_bytes(const struct comm_volume *volume) {
    return volume->bytes[COMM_REDUCE_SCATTER] + volume->bytes[COMM_ALL_GATHER] +
           volume->bytes[COMM_ALL_REDUCE];
}

uint64_t comm_volume_calls(const struct comm_volume *volume) {
    return volume->calls[COMM_REDUCE_SCATTER] + volume->calls[COMM_ALL_GATHER] +
           volume->calls[COMM_ALL_REDUCE];
}

// ---- the whole

static void count_regions(const struct region_table *table, enum region_place place, struct plan *plan) {
    for (int kind = 0; kind < N_REGION_KINDS; kind++)
        plan->bytes[kind] += region_bytes(table, (enum region_kind)kind, place);
    plan->total += region_place_bytes(table, place);
    plan->host += region_total_bytes(table) - region_place_bytes(table, place);
    for (int at = 0; at < N_REGION_PLACES; at++)
        for (int kind = 0; kind < N_REGION_KINDS; kind++)
            plan->taken[at] += table->arena_bytes[kind][at];
    for (int i = 0; i < table->n_regions; i++)
        if (table->regions[i].external)
            plan->taken[table->regions[i].place] += table->regions[i].bytes;
}

typedef enum status (*engine_adder)(struct engine *parts, const struct engine_options *request,
                                    struct region_table *table);

static enum status count_parts(const struct engine_options *request, engine_adder add, struct plan *plan) {
    struct engine parts = {0};
    struct region_table table;
    region_table_init(&table);
    enum status status = add(&parts, request, &table);
    if (status == STATUS_OK) {
        count_regions(&table, request->device->place, plan);
        if (parts.state.params) // there are states
            comm_volume_make(&parts.state, request->config->train.gradient_accumulation_steps, &plan->volume);
    }
    engine_free(&parts);
    region_table_free(&table);
    return status;
}

enum status plan_add_states(const struct engine_options *request, struct plan *plan) {
    return count_parts(request, add_states, plan);
}

enum status plan_add_model(const struct engine_options *request, struct plan *plan) {
    return count_parts(request, add_model, plan);
}

enum status plan_make(const struct engine_options *request, struct plan *out) {
    *out = (struct plan){0};
    return count_parts(request, engine_plan, out);
}

// ---- every stage, of the ranks that need most and least

// What sets a rank's memory apart from another's, samples left out: both only ever add to it.
struct load {
    size_t elements; // owned
    size_t partials; // of the norm over them
    int rank;
};

static int compare_loads(const void *a, const void *b) {
    const struct load *x = a, *y = b;
    if (x->elements != y->elements)
        return x->elements > y->elements ? -1 : 1;
    if (x->partials != y->partials)
        return x->partials > y->partials ? -1 : 1;
    return x->rank - y->rank;
}

// Moves those to the front that no other exceeds in both ways, or that exceed no other: one of the first
// needs most, one of the second least. Gives their number, a handful however many ranks there are.
static int keep_extremes(struct load *loads, int n) {
    int n_kept = 0;
    size_t most = 0, least = SIZE_MAX;
    qsort(loads, (size_t)n, sizeof *loads, compare_loads);
    bool *kept = calloc((size_t)n + 1, sizeof *kept);
    for (int i = 0; kept && i < n; i++)
        if (i == 0 || loads[i].partials > most) {
            kept[i] = true;
            most = loads[i].partials;
        }
    for (int i = n - 1; kept && i >= 0; i--)
        if (loads[i].partials < least) {
            kept[i] = true;
            least = loads[i].partials;
        }
    for (int i = 0; kept && i < n; i++)
        if (kept[i])
            loads[n_kept++] = loads[i];
    free(kept);
    return kept ? n_kept : -1;
}

static enum status partition_of(const struct engine_options *request, struct partition *out) {
    struct stage_options options;
    stage_options_read(request->config, request->device->place, &options);
    return partition_init(out, request->params, options.partition, request->world);
}

static void measure_loads(const struct partition *partition, struct load *loads) {
    for (int rank = 0; rank < partition->world; rank++)
        loads[rank] = (struct load){.elements = partition->rank_elements[rank], .rank = rank};
    for (int i = 0; i < partition->n_spans; i++) {
        const struct partition_span *span = &partition->spans[i];
        loads[span->owner].partials += norm_span_partials(span->end - span->begin);
    }
}

static enum status choose_ranks(const struct partition *partition, int **ranks, int *n_ranks) {
    int world = partition->world;
    struct load *loads = calloc((size_t)world, sizeof *loads);
    int *list = calloc((size_t)world, sizeof *list), n_others = -1;
    if (loads && list) {
        measure_loads(partition, loads);
        n_others = keep_extremes(loads + 1, world - 1);
    }
    for (int i = 0; i <= n_others; i++)
        list[i] = loads[i].rank;
    free(loads);
    if (n_others < 0) {
        free(list);
        return FAIL(STATUS_FAILED, "out of memory for the plans of %d ranks", world);
    }
    *ranks = list;
    *n_ranks = 1 + n_others;
    return STATUS_OK;
}

enum status plan_ranks(const struct engine_options *request, int **ranks, int *n_ranks) {
    struct partition partition;
    TRY(partition_of(request, &partition));
    enum status status = choose_ranks(&partition, ranks, n_ranks);
    partition_free(&partition);
    return status;
}

static enum status plan_rank(const struct engine_options *request, const struct plan *model,
                             struct plan_stage *out) {
    struct plan plan = *model;
    TRY(plan_add_states(request, &plan));
    if (out->least == 0 || plan.total < out->least)
        out->least = plan.total;
    if (plan.total > out->most.total) {
        out->most = plan;
        out->rank = request->rank;
    }
    return STATUS_OK;
}

static enum status plan_stages_of(const struct engine_options *request, const int *ranks, int n_ranks,
                                  struct plan_stage stages[N_STAGES]) {
    struct config config = *request->config; // members are shared, none is freed
    struct engine_options one = *request;
    struct plan models[2] = {{.total = 0}}; // without and with a generator, made when asked for
    one.config = &config;
    for (int stage = 0; stage < N_STAGES; stage++)
        for (int i = 0; i < n_ranks; i++) {
            config.zero_optimization.stage = stage;
            one.rank = ranks[i];
            struct plan *model = &models[engine_has_generator(&one)];
            if (model->total == 0)
                TRY(plan_add_model(&one, model));
            TRY(plan_rank(&one, model, &stages[stage]));
        }
    return STATUS_OK;
}

// With thousands of ranks a partition takes longer than all the rest: all plans share one.
enum status plan_stages(const struct engine_options *request, struct plan_stage stages[N_STAGES]) {
    struct partition partition;
    struct engine_options one = *request;
    int *ranks = NULL, n_ranks = 0;
    memset(stages, 0, N_STAGES * sizeof *stages);
    TRY(partition_of(request, &partition));
    enum status status = choose_ranks(&partition, &ranks, &n_ranks);
    one.partition = &partition;
    if (status == STATUS_OK)
        status = plan_stages_of(&one, ranks, n_ranks, stages);
    free(ranks);
    partition_free(&partition);
    return status;
}

// ---- said to the person

void plan_print(const struct region_table *table, const struct comm_volume *volume, int world) {
    struct text line = {0};
    char bytes[32];
    for (int kind = 0; kind < N_REGION_KINDS; kind++) {
        size_t n = region_kind_bytes(table, (enum region_kind)kind);
        if (n)
            text_add(&line, "%s %s, ", region_kind_name((enum region_kind)kind),
                     text_bytes(bytes, sizeof bytes, (double)n));
    }
    size_t on_device = region_place_bytes(table, REGION_DEVICE);
    text_add(&line, "total %s", text_bytes(bytes, sizeof bytes, (double)region_total_bytes(table)));
    if (on_device > 0)
        text_add(&line, ", of which %s on the GPU", text_bytes(bytes, sizeof bytes, (double)on_device));
    log_info("memory: %s%s", line.data ? line.data : "", world > 1 ? " on rank 0" : "");
    text_free(&line);
    if (world > 1)
        log_info("each step rank 0 sends %s in %llu calls",
                 text_bytes(bytes, sizeof bytes, (double)comm_volume_bytes(volume)),
                 (unsigned long long)comm_volume_calls(volume));
}
