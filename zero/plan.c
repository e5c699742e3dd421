// Memory is counted by laying the run out; what is sent is counted by formula, so that a run which measures
// the same has kept its word.
#include "zero/plan.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"

// ---- the parts of a run

// In stage 3 a sample needs every rank: each holds a share of the model that writes it.
static bool wants_generator(const struct plan_request *request) {
    return request->config->train.sample_every > 0 &&
           (request->rank == 0 || request->config->zero_optimization.stage == 3);
}

enum status parts_plan(struct parts *parts, const struct plan_request *request, struct region_table *table) {
    const struct config *config = request->config;
    const struct gpt_options options = {
        .type = request->type,
        .B = (int)config->train.micro_batch_size,
        .T = (int)config->train.seq_len,
        .recompute = strcmp(config->top.recompute, "block") == 0 ? RECOMPUTE_BLOCK : RECOMPUTE_NONE,
        .training = true};
    *parts = (struct parts){0};
    TRY(state_init(&parts->state, request->params, config, request->type, request->rank, request->world,
                   request->device, table));
    TRY(optimizer_init(&parts->optimizer, config, &parts->state, table));
    TRY(gpt_new(request->params, &options, request->device, table, &parts->gpt));
    if (wants_generator(request))
        TRY(generator_new(request->params, request->type, (int)config->train.seq_len, request->device, table,
                          &parts->generator));
    if (request->world == 1)
        return STATUS_OK;
    return region_add_elsewhere(table, REGION_COMMUNICATION, REGION_HOST,
                                comm_memory_bytes(request->world, request->local_world),
                                "links between ranks");
}

void parts_bind(struct parts *parts, const struct region_table *table, struct stream *stream,
                struct comm *comm) {
    state_bind(&parts->state, table, comm);
    optimizer_bind(&parts->optimizer, table);
    gpt_bind(parts->gpt, table, stream);
    if (parts->generator)
        generator_bind(parts->generator, table, stream);
}

void parts_free(struct parts *parts) {
    state_free(&parts->state);
    gpt_delete(parts->gpt);
    generator_delete(parts->generator);
    *parts = (struct parts){0};
}

// ---- what is sent

static uint64_t calls_of(size_t elements, size_t most) {
    return (elements + most - 1) / most;
}

// Elements of a unit that the rank owns: of tensors that stage 3 fetches for each use, and of those that
// persist.
struct share {
    size_t fetched, persistent;
};

static struct share share_of(const struct state *state, int unit) {
    const struct params *params = state->params;
    const struct param_unit *u = &params->units[unit];
    struct share share = {0};
    for (int k = 0; k < state->n_owned; k++) {
        const struct stage_span *span = &state->owned[k];
        for (int i = u->first_param; i < u->first_param + u->n_params && span->unit == unit; i++) {
            const struct param *param = &params->params[i];
            size_t param_end = param->offset + param->elements;
            size_t begin = param->offset > span->begin ? param->offset : span->begin;
            size_t end = param_end < span->end ? param_end : span->end;
            bool persists = param->elements < state->options.persistence_threshold;
            if (begin < end)
                *(persists ? &share.persistent : &share.fetched) += end - begin;
        }
    }
    return share;
}

// Elements of a unit, or of the whole model (unit -1), whose tensors persist or do not.
static size_t count_tensors(const struct state *state, int unit, bool persistent) {
    size_t n = 0;
    for (int i = 0; i < state->params->n_params; i++) {
        const struct param *param = &state->params->params[i];
        if ((unit < 0 || param->unit == unit) &&
            (param->elements < state->options.persistence_threshold) == persistent)
            n += param->elements;
    }
    return n;
}

// Embeddings and blocks are used in forward and in backward; the final norm, which the head computes forward
// and backward in one go, once.
static uint64_t uses_of(const struct params *params, int unit) {
    return unit == params->n_units - 1 ? 1 : 2;
}

static void plan_reduction(const struct state *state, uint64_t n_micro, struct wire_plan *out) {
    const struct params *params = state->params;
    const struct stage_options *options = &state->options;
    uint64_t times = stage_reduces_to_shard(options) ? n_micro : 1, calls = 0;
    size_t owned = state->partition.rank_elements[state->rank];
    for (int unit = 0; unit < params->n_units && options->stage >= 2; unit++)
        calls += calls_of(params->units[unit].elements, options->reduce_bucket);
    if (options->stage < 2)
        calls = calls_of(params->n_elements, options->reduce_bucket);
    out->bytes[COMM_REDUCE_SCATTER] =
        times * (params->n_elements - owned) * dtype_size(options->gradients_travel_as);
    out->calls[COMM_REDUCE_SCATTER] = times * calls;
}

static void plan_gathers(const struct state *state, uint64_t n_micro, struct wire_plan *out) {
    const struct params *params = state->params;
    const struct stage_options *options = &state->options;
    uint64_t others = (uint64_t)state->world - 1;
    size_t owned = state->partition.rank_elements[state->rank], size = dtype_size(state->type);
    if (options->stage < 3) { // gradients in stage 0, parameters in 1 and 2
        out->bytes[COMM_ALL_GATHER] = owned * others * (options->stage == 0 ? sizeof(float) : size);
        out->calls[COMM_ALL_GATHER] = calls_of(params->n_elements, options->allgather_bucket);
        return;
    }
    for (int unit = 0; unit < params->n_units; unit++) {
        uint64_t times = n_micro * uses_of(params, unit);
        struct share share = share_of(state, unit);
        out->bytes[COMM_ALL_GATHER] += (times * share.fetched + share.persistent) * size * others;
        out->calls[COMM_ALL_GATHER] +=
            times * calls_of(count_tensors(state, unit, false), options->allgather_bucket);
    }
    out->calls[COMM_ALL_GATHER] += calls_of(count_tensors(state, -1, true), options->allgather_bucket);
}

void wire_plan_make(const struct state *state, int64_t n_micro_batches, struct wire_plan *out) {
    *out = (struct wire_plan){0};
    if (state->world == 1)
        return;
    plan_reduction(state, (uint64_t)n_micro_batches, out);
    plan_gathers(state, (uint64_t)n_micro_batches, out);
}

uint64_t wire_plan_bytes(const struct wire_plan *wire) {
    return wire->bytes[COMM_REDUCE_SCATTER] + wire->bytes[COMM_ALL_GATHER];
}

uint64_t wire_plan_calls(const struct wire_plan *wire) {
    return wire->calls[COMM_REDUCE_SCATTER] + wire->calls[COMM_ALL_GATHER];
}

// ---- the whole

enum status plan_make(const struct plan_request *request, struct plan *out) {
    struct parts parts;
    struct region_table table;
    *out = (struct plan){0};
    region_table_init(&table);
    enum status status = parts_plan(&parts, request, &table);
    if (status == STATUS_OK) {
        for (int kind = 0; kind < N_REGION_KINDS; kind++)
            out->bytes[kind] = region_kind_bytes(&table, (enum region_kind)kind);
        out->total = region_total_bytes(&table);
        wire_plan_make(&parts.state, request->config->train.gradient_accumulation_steps, &out->wire);
    }
    parts_free(&parts);
    region_table_free(&table);
    return status;
}

void plan_print(const struct region_table *table, const struct wire_plan *wire, int world) {
    struct text line = {0};
    char bytes[32];
    for (int kind = 0; kind < N_REGION_KINDS; kind++) {
        size_t n = region_kind_bytes(table, (enum region_kind)kind);
        if (n)
            text_add(&line, "%s %s, ", region_kind_name((enum region_kind)kind),
                     text_bytes(bytes, sizeof bytes, (double)n));
    }
    log_info("memory: %stotal %s%s", line.data ? line.data : "",
             text_bytes(bytes, sizeof bytes, (double)region_total_bytes(table)),
             world > 1 ? " on rank 0" : "");
    text_free(&line);
    if (world > 1)
        log_info("each step rank 0 sends %s in %llu calls",
                 text_bytes(bytes, sizeof bytes, (double)wire_plan_bytes(wire)),
                 (unsigned long long)wire_plan_calls(wire));
}

// ---- what would fit

// A plan of the same run with another stage, recomputation or number of ranks; the batch stays.
static enum status plan_other(const struct plan_request *request, int64_t stage, bool recompute, int world,
                              size_t *total) {
    struct config other = *request->config; // members are shared, none is freed
    struct plan_request changed = *request;
    struct plan plan;
    int64_t sequences = other.train.train_batch_size / world;
    if (sequences == 0 || other.train.train_batch_size % world != 0)
        return STATUS_INVALID;
    if (other.train.micro_batch_size > sequences)
        other.train.micro_batch_size = sequences;
    other.train.gradient_accumulation_steps = sequences / other.train.micro_batch_size;
    other.zero_optimization.stage = stage;
    char block[] = "block";
    if (recompute)
        other.top.recompute = block;
    changed.config = &other;
    changed.world = world;
    changed.local_world = request->local_world < world ? request->local_world : world;
    changed.rank = 0;
    TRY(plan_make(&changed, &plan));
    *total = plan.total;
    return STATUS_OK;
}

enum status plan_advise(const struct plan_request *request, uint64_t available, struct text *out) {
    bool recomputes = strcmp(request->config->top.recompute, "block") == 0;
    int64_t stage = request->config->zero_optimization.stage;
    // From the cheapest change to the dearest: recomputation costs a third more work, ranks cost machines.
    for (int world = request->world; world <= 1024 * request->world; world *= 2)
        for (int recompute = recomputes; recompute <= 1; recompute++)
            for (int64_t other = stage; other <= (world > 1 ? 3 : stage); other++) {
                size_t total;
                char bytes[32];
                // On machines like this one, each with as many ranks as now.
                if (plan_other(request, other, recompute, world, &total) != STATUS_OK || total > available)
                    continue;
                text_add(out, "; it would fit (%s a rank) with",
                         text_bytes(bytes, sizeof bytes, (double)total));
                if (other != stage)
                    text_add(out, " zero_optimization.stage=%lld", (long long)other);
                if (recompute != recomputes)
                    text_add(out, " recompute=block");
                if (world != request->world)
                    text_add(out, " %d ranks (%d a machine)", world, request->local_world);
                status_clear();
                return text_status(out);
            }
    status_clear();
    text_add(out, "; use a smaller train.micro_batch_size or a smaller model");
    return text_status(out);
}
