// Memory is counted by adding the run's own regions; communication is counted by the modules that send. A run
// measures both, and tests compare them with the plan.
#include "trainer/plan/plan.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "model/params.h"
#include "trainer/profile/profiler.h"
#include "zero/optimizer/muon.h"

// ---- one rank

static enum status add_profile(const struct engine_options *options, struct region_table *table,
                               int *region) {
    return options->config->run.profile ? profiler_plan(options->world, table, region) : STATUS_OK;
}

enum status plan_run(struct engine *engine, const struct engine_options *options, struct region_table *table,
                     int *profile_region) {
    TRY(engine_plan(engine, options, table));
    return add_profile(options, table, profile_region);
}

static enum status add_model(struct engine *engine, const struct engine_options *options,
                             struct region_table *table) {
    int profile_region;
    TRY(engine_plan_model(engine, options, table));
    return add_profile(options, table, &profile_region);
}

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

typedef enum status (*adder)(struct engine *engine, const struct engine_options *options,
                             struct region_table *table);

// Plans a temporary engine with `add`, and counts its memory, work and communication in `plan`.
static enum status count(const struct engine_options *options, adder add, struct plan *plan) {
    struct engine engine = {0};
    struct region_table table;
    region_table_init(&table);
    enum status status = add(&engine, options, &table);
    if (status == STATUS_OK) {
        count_regions(&table, options->device->place, plan);
        for (int further = 0; further < 2 && engine.gpt; further++)
            plan->work[further] = *gpt_work_of(engine.gpt, further);
        if (engine.state.stage.params) { // `add` planned the model states
            plan->volume = engine_volume(&engine, options->config->train.gradient_accumulation_steps);
            muon_flops(&engine.optimizer.muon, &plan->newton_schulz_flops, &plan->newton_schulz_most);
        }
    }
    engine_free(&engine);
    region_table_free(&table);
    return status;
}

enum status plan_add_states(const struct engine_options *options, struct plan *plan) {
    return count(options, engine_plan_states, plan);
}

enum status plan_add_model(const struct engine_options *options, struct plan *plan) {
    return count(options, add_model, plan);
}

enum status plan_make(const struct engine_options *options, struct plan *out) {
    *out = (struct plan){0};
    TRY(plan_add_states(options, out));
    return plan_add_model(options, out);
}

// ---- FLOPs

double step_work_count(const struct gpt_work *model) {
    double flops = 0;
    for (int i = 0; i < model->n_rows; i++)
        switch (model->rows[i].operation) {
        case OP_linear_forward:
        case OP_linear_backward:
        case OP_attention_forward:
        case OP_attention_backward:
            flops += model->rows[i].cost.flops;
            break;
        default: // an operation without matrix products
            break;
        }
    return flops;
}

enum status update_flops_estimate(const struct engine_options *options, double *out) {
    const int strip = options->device->symmetric_strips[newton_schulz_type(options->type)];
    struct optimizer_groups groups;
    enum status status = optimizer_groups_init(&groups, options->config, options->params);
    *out = 0;
    for (int i = 0; i < options->params->n_params && status == STATUS_OK; i++)
        if (optimizer_groups_orthogonalize(&groups, i))
            *out += muon_tensor_flops(&options->params->params[i], strip) / options->world;
    optimizer_groups_free(&groups);
    return status;
}

// ---- every stage, and the ranks that need most and least

// The figures by which the memory of ranks differs, apart from the generator of samples. A rank that has at
// least as much of each as another rank needs at least as much memory.
struct rank_load {
    size_t elements; // elements that the rank owns
    size_t trained;  // owned elements that are not frozen
    size_t moments;  // moments of the trained elements: 0 to 2 each, by the optimizer's rule
    int rank;
};

static int compare_loads(const void *a, const void *b) {
    const struct rank_load *x = a, *y = b;
    if (x->elements != y->elements)
        return x->elements > y->elements ? -1 : 1;
    if (x->trained != y->trained)
        return x->trained > y->trained ? -1 : 1;
    if (x->moments != y->moments)
        return x->moments > y->moments ? -1 : 1;
    return x->rank - y->rank;
}

// True if `a` has at least as much of every figure as `b`.
static bool covers(const struct rank_load *a, const struct rank_load *b) {
    return a->elements >= b->elements && a->trained >= b->trained && a->moments >= b->moments;
}

// True if one of the n loads listed in `front` has at least as much of every figure as `load` or, if `below`,
// at most as much of every figure.
static bool is_covered(const struct rank_load *loads, const int *front, int n, const struct rank_load *load,
                       bool below) {
    for (int i = 0; i < n; i++) {
        const struct rank_load *other = &loads[front[i]];
        if (below ? covers(load, other) : covers(other, load))
            return true;
    }
    return false;
}

// Moves the Pareto-largest and the Pareto-smallest loads to the front: one of the largest needs most memory,
// one of the smallest needs least. Returns their number, which is small for any number of ranks.
static int keep_extremes(struct rank_load *loads, int n) {
    int n_front = 0, n_kept = 0;
    qsort(loads, (size_t)n, sizeof *loads, compare_loads);
    int *front = allocate((size_t)n, sizeof *front);
    bool *kept = allocate((size_t)n, sizeof *kept);
    // In this order, a load comes before all loads that it covers.
    for (int i = 0; i < n; i++)
        if (!is_covered(loads, front, n_front, &loads[i], false)) {
            kept[i] = true;
            front[n_front++] = i;
        }
    n_front = 0;
    for (int i = n - 1; i >= 0; i--)
        if (!is_covered(loads, front, n_front, &loads[i], true)) {
            kept[i] = true;
            front[n_front++] = i;
        }
    for (int i = 0; i < n; i++)
        if (kept[i])
            loads[n_kept++] = loads[i];
    free(front);
    free(kept);
    return n_kept;
}

static void partition_of(const struct engine_options *options, struct partition *out) {
    partition_init(out, options->params, stage_partition(options->config), options->world);
}

static size_t moments_of(const struct optimizer_groups *groups, const struct params *params,
                         const struct partition_span *span) {
    size_t n = 0;
    for (struct param_overlap it = {0}; params_next_overlap(params, span->unit, span->begin, span->end, &it);)
        n += (it.end - it.begin) * (size_t)optimizer_group_of(groups, it.param)->n_moments;
    return n;
}

static void measure_loads(const struct optimizer_groups *groups, const struct params *params,
                          const struct partition *partition, struct rank_load *loads) {
    const struct partition *trained = partition_trained(partition);
    for (int rank = 0; rank < partition->world; rank++)
        loads[rank] = (struct rank_load){.elements = partition->rank_elements[rank],
                                         .trained = trained->rank_elements[rank],
                                         .rank = rank};
    for (int i = 0; i < trained->n_spans; i++)
        loads[trained->spans[i].owner].moments += moments_of(groups, params, &trained->spans[i]);
}

static enum status choose_ranks(const struct engine_options *options, const struct partition *partition,
                                int **ranks, int *n_ranks) {
    struct optimizer_groups groups;
    enum status status = optimizer_groups_init(&groups, options->config, options->params);
    if (status == STATUS_OK) {
        struct rank_load *loads = allocate((size_t)partition->world, sizeof *loads);
        measure_loads(&groups, options->params, partition, loads);
        *n_ranks = 1 + keep_extremes(loads + 1, partition->world - 1);
        *ranks = allocate((size_t)*n_ranks, sizeof **ranks);
        for (int i = 0; i < *n_ranks; i++)
            (*ranks)[i] = loads[i].rank;
        free(loads);
    }
    optimizer_groups_free(&groups);
    return status;
}

enum status plan_ranks(const struct engine_options *options, int **ranks, int *n_ranks) {
    struct partition partition;
    partition_of(options, &partition);
    enum status status = choose_ranks(options, &partition, ranks, n_ranks);
    partition_free(&partition);
    return status;
}

static enum status plan_rank(const struct engine_options *options, const struct plan *model,
                             struct plan_stage *out) {
    struct plan plan = *model;
    TRY(plan_add_states(options, &plan));
    if (out->least == 0 || plan.total < out->least)
        out->least = plan.total;
    if (plan.total > out->most.total) {
        out->most = plan;
        out->rank = options->rank;
    }
    return STATUS_OK;
}

static enum status plan_stages_of(const struct engine_options *options, const int *ranks, int n_ranks,
                                  struct plan_stage stages[N_STAGES]) {
    struct config config = *options->config; // a shallow copy, not to be freed
    struct engine_options one = *options;
    // [0] for ranks without and [1] for ranks with a generator of samples; total 0: not planned yet.
    struct plan models[2] = {{.total = 0}};
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

// Plans all stages. With thousands of ranks, making a partition takes longer than everything else, so all
// plans share one.
enum status plan_stages(const struct engine_options *options, struct plan_stage stages[N_STAGES]) {
    struct partition partition;
    struct engine_options one = *options;
    int *ranks = NULL, n_ranks = 0;
    memset(stages, 0, N_STAGES * sizeof *stages);
    partition_of(options, &partition);
    enum status status = choose_ranks(options, &partition, &ranks, &n_ranks);
    one.partition = &partition;
    if (status == STATUS_OK)
        status = plan_stages_of(&one, ranks, n_ranks, stages);
    free(ranks);
    partition_free(&partition);
    return status;
}

// ---- the log

void plan_print(const struct region_table *table, const struct comm_volume *volume, int world,
                const struct gpt *gpt) {
    struct text line = {0};
    char bytes[32];
    for (int kind = 0; kind < N_REGION_KINDS; kind++) {
        size_t n = region_kind_bytes(table, (enum region_kind)kind);
        if (n)
            text_add(&line, "%s %s, ", region_kind_name((enum region_kind)kind),
                     text_bytes(bytes, sizeof bytes, (double)n));
    }
    size_t on_device = region_place_bytes(table, REGION_DEVICE);
    text_add(&line, "in all %s", text_bytes(bytes, sizeof bytes, (double)region_total_bytes(table)));
    if (on_device > 0)
        text_add(&line, ", of which %s on the GPU", text_bytes(bytes, sizeof bytes, (double)on_device));
    log_info("model memory%s: %s", world > 1 ? " of rank 0" : "", line.data ? line.data : "");
    text_free(&line);
    if (world > 1)
        log_info("each step rank 0 sends %s in %llu calls",
                 text_bytes(bytes, sizeof bytes, (double)comm_volume_bytes(volume)),
                 (unsigned long long)comm_volume_calls(volume));
    long long first = gpt_work_sum(gpt_work_of(gpt, false)).launches;
    if (first > 0)
        log_info("launches per micro-batch: %lld in the first of a step, %lld in the others", first,
                 (long long)gpt_work_sum(gpt_work_of(gpt, true)).launches);
}
