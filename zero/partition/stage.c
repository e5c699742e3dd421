// The only place that translates config options into the settings of a stage.
#include "zero/partition/stage.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "model/generate.h"

enum gpt_recompute stage_recompute(const struct config *config) {
    static const enum gpt_recompute levels[] = {[CONFIG_RECOMPUTE_NONE] = RECOMPUTE_NONE,
                                                [CONFIG_RECOMPUTE_ELEMENTWISE] = RECOMPUTE_ELEMENTWISE,
                                                [CONFIG_RECOMPUTE_ATTENTION] = RECOMPUTE_ATTENTION,
                                                [CONFIG_RECOMPUTE_BLOCK] = RECOMPUTE_BLOCK};
    return levels[config->top.recompute];
}

enum partition_kind stage_partition(const struct config *config) {
    static const enum partition_kind kinds[] = {[CONFIG_PARTITION_EVEN] = PARTITION_EVEN,
                                                [CONFIG_PARTITION_LAYER] = PARTITION_LAYER,
                                                [CONFIG_PARTITION_TENSOR] = PARTITION_TENSOR};
    return kinds[config->zero_optimization.partition];
}

static struct stage_options read_options(const struct config *config, enum region_place place) {
    static const enum dtype comm_dtypes[] = {[CONFIG_COMMUNICATION_DTYPE_FP32] = DTYPE_F32,
                                             [CONFIG_COMMUNICATION_DTYPE_BF16] = DTYPE_BF16,
                                             [CONFIG_COMMUNICATION_DTYPE_FP16] = DTYPE_F16};
    bool apart = place == REGION_DEVICE; // the device has memory of its own; otherwise nothing is offloaded
    bool on_host = apart && config->zero_optimization.offload_optimizer.device == CONFIG_OFFLOAD_CPU;
    return (struct stage_options){
        .gradient_comm_dtype = comm_dtypes[config->top.communication_data_type],
        .reduce_bucket = (size_t)config->zero_optimization.reduce_bucket_size,
        .allgather_bucket = (size_t)config->zero_optimization.allgather_bucket_size,
        .prefetch_bucket = (size_t)config->zero_optimization.stage3_prefetch_bucket_size,
        .persistence_threshold = (size_t)config->zero_optimization.stage3_param_persistence_threshold,
        .overlap = config->zero_optimization.overlap_comm,
        .offload_optimizer = on_host,
        .offload_ratio = config->zero_optimization.offload_optimizer.ratio,
        // Stages 0 to 2 keep parameters on the device even if the config sets offload_param.
        .offload_param = apart && stage_shards_params(config) &&
                         config->zero_optimization.offload_param.device == CONFIG_OFFLOAD_CPU};
}

// Lists the spans that the rank owns in `partition`: stage->partition, or its partition_trained.
static void list_owned(const struct stage *stage, const struct partition *partition,
                       struct owned_spans *owned) {
    const struct params *params = stage->params;
    *owned = (struct owned_spans){.spans = allocate((size_t)partition->n_spans, sizeof *owned->spans),
                                  .first = allocate((size_t)params->n_units + 1, sizeof *owned->first)};
    for (int unit = 0; unit < params->n_units; unit++) {
        const struct param_unit *u = &params->units[unit];
        const size_t unit_begins = partition == stage->partition ? u->offset : u->trained_offset;
        for (int i = partition->first_span[unit]; i < partition->first_span[unit + 1]; i++) {
            const struct partition_span *span = &partition->spans[i];
            if (span->owner == stage->rank)
                owned->spans[owned->n++] = (struct stage_span){
                    unit, span->begin, span->end, unit_begins + span->unit_offset, span->shard_offset};
        }
        owned->first[unit + 1] = owned->n;
    }
}

// Records the traces of all passes. gpt_trace records with sequences of one token, because the order of
// events is the same for any length.
static enum status record_traces(struct stage *stage) {
    for (int i = 0; i < N_TRACES; i++) {
        const enum trace_kind kind = (enum trace_kind)i;
        TRY(kind == TRACE_PROMPT || kind == TRACE_DECODING
                ? generator_trace(stage->params, kind, &stage->traces[kind])
                : gpt_trace(stage->params, stage_recompute(stage->config), 1, kind, &stage->traces[kind]));
    }
    return STATUS_OK;
}

enum status stage_init(struct stage *stage) {
    stage->options = read_options(stage->config, stage->device->place);
    stage->logical = (struct logical){.n = (int)stage->config->logical_ranks,
                                      .world = stage->world,
                                      .every = stage_reduces_every_micro_batch(stage->config)};
    if (stage->logical.n == 1) // there is no sum over ranks: nothing is rounded for communication
        stage->options.gradient_comm_dtype = DTYPE_F32;
    if (!stage->partition) {
        partition_init(&stage->own_partition, stage->params, stage_partition(stage->config), stage->world);
        stage->partition = &stage->own_partition;
    }
    list_owned(stage, stage->partition, &stage->owned);
    list_owned(stage, partition_trained(stage->partition), &stage->owned_trained);
    return record_traces(stage);
}

void stage_free(struct stage *stage) {
    for (int kind = 0; kind < N_TRACES; kind++)
        trace_free(&stage->traces[kind]);
    partition_free(&stage->own_partition);
    free(stage->owned.spans);
    free(stage->owned.first);
    free(stage->owned_trained.spans);
    free(stage->owned_trained.first);
    *stage = (struct stage){0};
}
