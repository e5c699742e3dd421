// The formulas follow the hooks of the stages: what is gathered per use of a unit, what is reduced per
// micro-batch, and what is sent once per step.
#include "trainer/plan/comm_volume.h"

#include "model/params.h"
#include "zero/optimizer/muon.h"
#include "zero/stages/parameters.h"

// Elements of a unit: those gathered again for each use, and those of persistent tensors (smaller than
// stage3_param_persistence_threshold), gathered once per step.
struct fetch_elements {
    size_t fetched, persistent;
};

static void add_elements(const struct stage *stage, int unit, size_t begin, size_t end,
                         struct fetch_elements *sum) {
    for (struct param_overlap it = {0}; params_next_overlap(stage->params, unit, begin, end, &it);) {
        bool persists = stage->params->params[it.param].elements < stage->options.persistence_threshold;
        *(persists ? &sum->persistent : &sum->fetched) += it.end - it.begin;
    }
}

// The elements that this rank owns, and sends.
static struct fetch_elements elements_of_rank(const struct stage *stage, int unit) {
    struct fetch_elements sum = {0};
    for (int i = stage->first_owned[unit]; i < stage->first_owned[unit + 1]; i++)
        add_elements(stage, unit, stage->owned[i].begin, stage->owned[i].end, &sum);
    return sum;
}

static struct fetch_elements elements_of_all(const struct stage *stage, int unit) {
    struct fetch_elements sum = {0};
    add_elements(stage, unit, 0, stage->params->units[unit].elements, &sum);
    return sum;
}

// Reduce-scatter of gradients: a rank sends everything that it does not own, in the communication dtype.
// After each micro-batch in stages 2 and 3 and with reduce_every_micro_batch, otherwise once per step. Stages
// 0 and 1 use buckets of the whole model, 2 and 3 of a unit.
static void add_reductions(const struct stage *stage, uint64_t n_micro, struct comm_volume *out) {
    const struct params *params = stage->params;
    const struct stage_options *options = &stage->options;
    uint64_t times = stage_reduces_to_shard(stage) ? n_micro : 1, calls = 0;
    size_t owned = stage_shard_elements(stage);
    for (int unit = 0; options->stage >= 2 && unit < params->n_units; unit++)
        calls += buckets_count(params->units[unit].elements, options->reduce_bucket);
    if (options->stage < 2)
        calls = buckets_count(params->n_elements, options->reduce_bucket);
    out->bytes[COMM_REDUCE_SCATTER] =
        times * (params->n_elements - owned) * dtype_size(options->gradient_comm_dtype);
    out->calls[COMM_REDUCE_SCATTER] = times * calls;
}

// All-gather: a rank sends what it owns to each of the others. Once per step in stage 0 (reduced gradients)
// and in stages 1 and 2 (updated parameters); in stage 3 for each use of a unit, as the recorded trace has
// them.
static void add_gathers(const struct parameters *parameters, uint64_t n_micro, struct comm_volume *out) {
    const struct stage *stage = parameters->stage;
    const struct params *params = stage->params;
    const struct stage_options *options = &stage->options;
    uint64_t others = (uint64_t)stage->world - 1;
    size_t owned = stage_shard_elements(stage), size = dtype_size(stage->type);
    if (options->stage < 3) {
        out->bytes[COMM_ALL_GATHER] = owned * others * (options->stage == 0 ? sizeof(float) : size);
        out->calls[COMM_ALL_GATHER] = buckets_count(params->n_elements, options->allgather_bucket);
        return;
    }
    size_t persistent = 0;
    for (int unit = 0; unit < params->n_units; unit++) {
        uint64_t times = n_micro * (uint64_t)parameters->fetches[unit].uses;
        struct fetch_elements mine = elements_of_rank(stage, unit), all = elements_of_all(stage, unit);
        out->bytes[COMM_ALL_GATHER] += (times * mine.fetched + mine.persistent) * size * others;
        out->calls[COMM_ALL_GATHER] += times * buckets_count(all.fetched, options->allgather_bucket);
        persistent += all.persistent;
    }
    out->calls[COMM_ALL_GATHER] += buckets_count(persistent, options->allgather_bucket);
}

void comm_volume_make(const struct engine *engine, int64_t n_micro_batches, struct comm_volume *out) {
    const struct model_states *state = &engine->state;
    *out = (struct comm_volume){0};
    if (state->stage.world == 1)
        return;
    add_reductions(&state->stage, (uint64_t)n_micro_batches, out);
    add_gathers(&state->parameters, (uint64_t)n_micro_batches, out);
    muon_traffic(&engine->optimizer.muon, &out->bytes[COMM_EXCHANGE], &out->calls[COMM_EXCHANGE]);
}

uint64_t comm_volume_bytes(const struct comm_volume *volume) {
    return volume->bytes[COMM_REDUCE_SCATTER] + volume->bytes[COMM_ALL_GATHER] + volume->bytes[COMM_EXCHANGE];
}

uint64_t comm_volume_calls(const struct comm_volume *volume) {
    return volume->calls[COMM_REDUCE_SCATTER] + volume->calls[COMM_ALL_GATHER] + volume->calls[COMM_EXCHANGE];
}
